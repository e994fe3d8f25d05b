"""The best checkpoints: what wins, what is written, and what is found again."""

import math
from pathlib import Path
from typing import Any

import pytest

import trellis
from tests import tiny
from trellis.errors import ArgumentError, CheckpointFileError
from trellis.extensions import best_file, best_files
from trellis.loops import Session

LOWEST, HIGHEST = trellis.LowestCheckpointFileWriter, trellis.HighestCheckpointFileWriter


def names(directory: Path) -> list[str]:
    """The files in a directory, by name."""
    return sorted(path.name for path in directory.iterdir() if path.name != ".lock")


def written(writer: Any, directory: Path, values: list[float]) -> list[int]:
    """The steps at which a writer writes, given the values of its metric."""
    steps = []
    for step, value in enumerate(values, start=1):
        before = names(directory)
        writer(tiny.checkpoint(step=step, eval={"loss": value}))
        if names(directory) != before:
            steps.append(step)
    return steps


@pytest.mark.parametrize(
    ("writer", "values", "expected"),
    [
        (LOWEST, [5, 6, 5, math.nan, 0, 0, 1], [1, 5]),
        (LOWEST, [math.nan, math.inf, 3], [3]),
        (LOWEST, [0.0, -1.0], [1, 2]),
        (HIGHEST, [5, 6, 5, math.nan, 7, 7, 1], [1, 2, 5]),
        (HIGHEST, [-1.0, 0.0, -2.0], [1, 2]),
    ],
)
def test_only_a_better_value_is_written(tmp_path: Path, writer: Any, values: list[float], expected: list[int]) -> None:
    best = writer(output_dir=tmp_path, metric="loss")
    assert written(best, tmp_path, values) == expected
    assert names(tmp_path) == [f"{best.word}_eval_loss_{expected[-1]}"]
    assert best.best_metric == values[expected[-1] - 1]


def test_both_kinds_on_one_metric_live_side_by_side_and_are_found(tmp_path: Path) -> None:
    process = trellis.serial(LOWEST(output_dir=tmp_path, metric="loss"), HIGHEST(output_dir=tmp_path, metric="loss"))
    for step, value in enumerate([3.0, 1.0, 7.0], start=1):
        process(tiny.checkpoint(step=step, eval={"loss": value}))
    assert names(tmp_path) == ["highest_eval_loss_3", "lowest_eval_loss_2"]
    options: dict[str, Any] = {"dir": tmp_path, "target": tiny.Classifier().init, "metric": "loss"}
    lowest, highest = trellis.LowestCheckpointFileReader(**options), trellis.HighestCheckpointFileReader(**options)
    assert [checkpoint.step for checkpoint in (lowest.read(), highest.read()) if checkpoint] == [2, 3]


@pytest.mark.parametrize(("writer", "best", "worse"), [(LOWEST, 0.0, 0.5), (HIGHEST, 0.0, -0.5)])
def test_a_best_value_of_zero_survives_a_restart(
    tmp_path: Path, writer: Any, best: float, worse: float, capsys: pytest.CaptureFixture[str]
) -> None:
    writer(output_dir=tmp_path, metric="loss")(tiny.checkpoint(step=4, eval={"loss": best}))
    again = writer(output_dir=tmp_path, metric="loss")
    assert f"The {again.word} value for the metric eval/loss is set to 0.00000000." in capsys.readouterr().out
    assert written(again, tmp_path, [worse, best]) == []


def test_a_loop_starts_from_the_best(tmp_path: Path) -> None:
    loop = tiny.train_loop(n_steps=6, n_steps_per_checkpoint=2)
    process = trellis.serial(tiny.eval_loop(), LOWEST(output_dir=tmp_path, metric="loss"))
    losses = {checkpoint.step: process(checkpoint).metrics["eval"]["loss"] for checkpoint in loop}
    best = min(losses, key=lambda step: losses[step])
    init = trellis.LowestCheckpointFileReader(dir=tmp_path, target=tiny.Classifier().init, metric="loss")
    assert tiny.train_loop(init=init, n_steps=9).step == best


def test_a_restart_from_an_older_best_loses_no_newer_file(tmp_path: Path) -> None:
    regular = trellis.CheckpointFileWriter(output_dir=tmp_path, keep=1)
    best = LOWEST(output_dir=tmp_path, metric="loss")
    for step, value in ((2, 1.0), (10, 2.0)):
        regular(best(tiny.checkpoint(step=step, eval={"loss": value})))
    again = trellis.CheckpointFileWriter(output_dir=tmp_path, keep=1)
    again(tiny.checkpoint(step=4, eval={"loss": 1.5}))
    assert names(tmp_path) == ["lowest_eval_loss_2", "regular_10.superseded", "regular_4"]


def test_several_bests_can_be_kept(tmp_path: Path) -> None:
    written(LOWEST(output_dir=tmp_path, metric="loss", keep=2), tmp_path, [5, 4, 6, 3])
    assert names(tmp_path) == ["lowest_eval_loss_2", "lowest_eval_loss_4"]


def test_a_metric_whose_name_has_a_slash_stays_in_the_directory(tmp_path: Path) -> None:
    LOWEST(output_dir=tmp_path, metric="f1/macro")(tiny.checkpoint(step=2, eval={"f1/macro": 1.0}))
    assert names(tmp_path) == ["lowest_eval_f1-macro_2"]
    assert LOWEST(output_dir=tmp_path, metric="f1/macro").best_metric == 1.0


@pytest.mark.parametrize("metric", ["f1[macro]", "a\\b", "..", "*", "", "a\nb", "\udcff\0", 300 * "ü", "loss_2"])
def test_a_metric_may_have_any_name(tmp_path: Path, metric: str) -> None:
    writer = LOWEST(output_dir=tmp_path, metric=metric, keep=2, stdout=False)
    for step in (2, 3, 4):
        writer(tiny.checkpoint(step=step, eval={metric: 1.0 / step}))
    assert len(names(tmp_path)) == 2
    assert LOWEST(output_dir=tmp_path, metric=metric, stdout=False).best_metric == 0.25
    reader = trellis.LowestCheckpointFileReader(dir=tmp_path, target=tiny.Classifier().init, metric=metric)
    checkpoint = reader.read()
    assert checkpoint is not None
    assert checkpoint.step == 4
    best = best_file(tmp_path)
    assert best is not None
    assert best.name.endswith("_4")


def test_long_names_that_begin_alike_are_kept_apart(tmp_path: Path) -> None:
    one, other = 300 * "x" + "1", 300 * "x" + "2"
    LOWEST(output_dir=tmp_path, metric=one)(tiny.checkpoint(step=8, eval={one: 1.0}))
    assert LOWEST(output_dir=tmp_path, metric=other).best_metric == math.inf


def test_files_that_were_set_aside_are_not_among_the_best(tmp_path: Path) -> None:
    for step, value in ((9, 2.0), (4, 1.0)):
        LOWEST(output_dir=tmp_path, metric="loss")(tiny.checkpoint(step=step, eval={"loss": value}))
    assert names(tmp_path) == ["lowest_eval_loss_4", "lowest_eval_loss_9.superseded"]
    assert [path.name for path in best_files(tmp_path)] == ["lowest_eval_loss_4"]
    assert best_files(tmp_path / "none") == []


def test_a_second_best_that_a_killed_process_has_left_is_removed_at_the_next_start(tmp_path: Path) -> None:
    written(LOWEST(output_dir=tmp_path, metric="loss", keep=2), tmp_path, [5, 4, 6, 3])
    assert LOWEST(output_dir=tmp_path, metric="loss").best_step == 4
    assert names(tmp_path) == ["lowest_eval_loss_4"]


def test_a_best_that_was_not_committed_is_not_the_best(tmp_path: Path) -> None:
    session = Session()
    writer = LOWEST(output_dir=tmp_path, metric="loss")
    writer(tiny.checkpoint(step=2, eval={"loss": 2.0}, session=session))
    session.advance()
    writer(tiny.checkpoint(step=4, eval={"loss": 1.0}, session=session))
    assert (writer.best_metric, writer.best_step) == (1.0, 4)
    session.fail(4)
    session.finish()
    assert (writer.best_metric, writer.best_step) == (2.0, 2)
    assert names(tmp_path) == ["lowest_eval_loss_2"]


def test_metrics_with_similar_names_are_kept_apart(tmp_path: Path) -> None:
    LOWEST(output_dir=tmp_path, metric="loss_2")(tiny.checkpoint(step=8, eval={"loss_2": 1.0}))
    assert LOWEST(output_dir=tmp_path, metric="loss").best_metric == math.inf


def test_a_metric_that_the_summary_does_not_hold_is_named(tmp_path: Path) -> None:
    writer = LOWEST(output_dir=tmp_path, metric="los", stdout=False)
    summary = tiny.checkpoint(step=3, train={"loss": 2.0}, eval={"loss": 1.0, "accuracy": 0.5})
    message = r"metric eval/los from the summary of step 3, which holds train/loss, eval/loss, eval/accuracy. Did you"
    with pytest.raises(ArgumentError, match=message + " mean eval/loss?"):
        writer(summary)


def test_a_checkpoint_without_metrics_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="without metrics. Put an EvalLoop before the writer"):
        LOWEST(output_dir=tmp_path, metric="loss")(tiny.train_loop(n_steps=1).next_step())


def test_a_damaged_best_file_is_skipped_with_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    LOWEST(output_dir=tmp_path, metric="loss")(tiny.checkpoint(step=2, eval={"loss": 1.0}))
    (tmp_path / "lowest_eval_loss_2" / "manifest.json").unlink()
    assert LOWEST(output_dir=tmp_path, metric="loss").best_metric == math.inf
    assert "Skipping the damaged checkpoint file" in capsys.readouterr().out


def test_a_best_file_without_its_metric_is_refused(tmp_path: Path) -> None:
    trellis.CheckpointFileWriter(output_dir=tmp_path)(tiny.checkpoint(step=2))
    (tmp_path / "regular_2").rename(tmp_path / "lowest_eval_loss_2")
    with pytest.raises(CheckpointFileError, match="does not hold the metric eval/loss"):
        LOWEST(output_dir=tmp_path, metric="loss")
