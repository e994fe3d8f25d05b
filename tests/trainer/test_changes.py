"""What has changed when a run is resumed: told, and refused where it makes the run another run."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import trellis
from tests.trainer import small
from trellis.cli.main import main
from trellis.errors import ConfigError
from trellis.experiments import plan_experiment
from trellis.extensions import recorded_notes


@pytest.fixture(scope="module")
def five_steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has reached step 5."""
    directory = tmp_path_factory.mktemp("runs") / "five"
    trellis.run_experiment(small.params(5), mode="train", model_dir=directory)
    return directory


@pytest.fixture
def run(five_steps: Path, tmp_path: Path) -> Path:
    """A copy of it, elsewhere."""
    return Path(shutil.copytree(five_steps, tmp_path / "run"))


def changed(path: str, value: Any) -> trellis.ExperimentConfig:
    """The config of the run with another value."""
    params = small.params(10)
    tree: Any = value
    for name in reversed(path.split(".")):
        tree = {name: tree}
    params.override(tree)
    return params


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        ("runtime.seed", 1, "runtime.seed: 0 → 1"),
        ("runtime.mixed_precision_dtype", "bfloat16", "runtime.mixed_precision_dtype: null → bfloat16"),
        ("task.train_data.global_batch_size", 8, "task.train_data.global_batch_size: 16 → 8"),
        ("task.bad_batches", [400], r"task.bad_batches: null → \[400\]"),
        (
            "trainer.optimizer_config.learning_rate.constant.learning_rate",
            0.5,
            "trainer.optimizer_config.learning_rate.constant.learning_rate: 0.01 → 0.5",
        ),
    ],
)
def test_what_makes_the_run_another_run_is_refused_with_the_old_and_the_new_value(
    five_steps: Path, path: str, value: Any, text: str
) -> None:
    message = rf"(?s)would go on from step 5 as another run:\n  {text}.*another model_dir.*--allow_changes"
    before = sorted(path.name for path in five_steps.iterdir())
    with pytest.raises(ConfigError, match=message):
        trellis.run_experiment(changed(path, value), mode="train", model_dir=five_steps)
    assert sorted(path.name for path in five_steps.iterdir()) == before
    result = plan_experiment(changed(path, value), mode="train", model_dir=five_steps)
    assert "would go on from step 5 as another run" in str(result.problems[0])
    assert not plan_experiment(changed(path, value), mode="train", model_dir=five_steps, allow_changes=True).problems
    assert not plan_experiment(changed(path, value), mode="eval", model_dir=five_steps).problems


def test_a_change_that_is_allowed_is_told_noted_and_no_change_the_next_time(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    params = changed("runtime.seed", 1)
    older = (run / "params.yaml").read_bytes()
    trellis.run_experiment(params, mode="train", model_dir=run, allow_changes=True)
    out = capsys.readouterr().out
    assert "Changed since step 5, as is allowed: runtime.seed: 0 → 1. It is another run now." in out
    assert "Changed since step 5: trainer.train_steps: 5 → 10." in out
    assert "params.yaml` says something else than this run: what it says is kept as `params.1.yaml`." in out
    assert (run / "params.1.yaml").read_bytes() == older
    trellis.run_experiment(params, mode="train", model_dir=run)
    assert "Changed" not in capsys.readouterr().out
    assert sorted(path.name for path in run.glob("params*")) == ["params.1.yaml", "params.yaml"]


def test_what_is_harmless_is_told_in_a_line(five_steps: Path) -> None:
    params = small.params(10, max_to_keep=1, summary_interval=2)
    params.override({"runtime": {"distribution_strategy": "off"}, "task": {"validation_data": {"seed": 3}}})
    result = plan_experiment(params, mode="train", model_dir=five_steps)
    assert not result.problems
    line = next(line for line in result.report.splitlines() if "Changed" in line)
    assert "trainer.summary_interval: 5 → 2; trainer.max_to_keep: 5 → 1; trainer.train_steps: 5 → 10" in line
    assert "runtime.distribution_strategy: one_device → off" in line
    assert "task.validation_data.seed: null → 3" in line


def test_a_run_of_an_older_version_has_no_notes_and_goes_on(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("trellis.trainer.trainer.recorded_notes", lambda directory: (5, {}))
    trellis.run_experiment(changed("runtime.seed", 1), mode="train", model_dir=run)
    assert "Changed since" not in capsys.readouterr().out


@dataclass
class RowsConfig(small.SmallConfig):
    """Data in a file, of which the task reads the first line alone."""


@trellis.register_task_cls(RowsConfig)
class RowsTask(small.SmallTask):
    """Does not read its file: what is there counts all the same."""


def rows(file: Path) -> trellis.ExperimentConfig:
    params = small.params(5)
    params.task = RowsConfig()
    params.override({"task": {"train_data": {"input_path": str(file)}}})
    return params


def test_other_data_is_refused_and_the_same_data_in_another_place_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows.tsv"
    file.write_text("one\ntwo\n")
    trellis.run_experiment(rows(file), mode="train", model_dir=tmp_path / "run")
    moved = file.rename(tmp_path / "moved.tsv")
    trellis.run_experiment(rows(moved), mode="train", model_dir=tmp_path / "run")
    assert f"Changed since step 5: task.train_data.input_path: {file} → {moved}." in capsys.readouterr().out
    moved.write_text("one\nsix\n")
    with pytest.raises(ConfigError, match=r"the training data, files: 1 of 8 bytes, checksum \w+ → 1 of 8 bytes"):
        trellis.run_experiment(rows(moved), mode="train", model_dir=tmp_path / "run")


def test_other_examples_are_known_by_the_first_batch(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_inputs = small.SmallTask.build_inputs
    monkeypatch.setattr(
        small.SmallTask,
        "build_inputs",
        lambda task, params, input_context=None: small.SpoiltStream(build_inputs(task, params, input_context), [0]),
    )
    with pytest.raises(ConfigError, match=r"the training data, the first batch: checksum \w+ → checksum \w+"):
        trellis.run_experiment(small.params(10), mode="train", model_dir=run)


def test_notes_are_those_of_a_run_whoever_reads_them(five_steps: Path) -> None:
    step, notes = recorded_notes(five_steps) or (0, {})
    assert step == 5
    assert notes["config"]["runtime.seed"] == 0
    assert "task.train_data.cache" not in notes["config"], "it has no effect"
    assert notes["data"]["number of examples"] == 256
    assert notes["skipped_data"] == []


def test_fewer_steps_than_were_reached_say_so_and_show_no_lost_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--experiment=digits/classifier", "--mode=train", f"--model_dir={tmp_path}", "--set=task.hidden_size=8"]
    intervals = [f"--set=trainer.{name}=4" for name in ("steps_per_loop", "summary_interval", "checkpoint_interval")]
    short = ["--set=trainer.optimizer_config.warmup.linear.warmup_steps=1"]
    assert main(["train", *flags, *intervals, *short, "--set=trainer.train_steps=8"]) == 0
    shutil.rmtree(tmp_path / "regular_8")
    capsys.readouterr()
    assert main(["train", *flags, *intervals, *short, "--set=trainer.train_steps=2"]) == 0
    out = capsys.readouterr().out
    assert f"trainer.train_steps is 2, but the run in `{tmp_path}` has reached step 4: nothing is trained" in out
    assert "Done: nothing was trained. Step 4 was reached before; trainer.train_steps is 2." in out
