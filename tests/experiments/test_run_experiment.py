"""Runs in every mode: what they leave, what they return, what they refuse."""

import gc
import json
import shutil
import threading
import traceback
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import trellis
from tests import tiny
from tests.test_disk import start_owner
from tests.trainer import small
from trellis.errors import ArgumentError, ConfigError, DirectoryTakenError, DivergedError
from trellis.experiments import resolve, run


def summaries(model_dir: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (model_dir / "events.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == "summary"]


def test_train_and_eval_leaves_files_events_and_summaries(tmp_path: Path) -> None:
    params = small.params(
        12, max_to_keep=2, best_checkpoint_export_subdir="best", best_checkpoint_eval_metric="accuracy"
    )
    model, logs = trellis.run_experiment(params, mode="train_and_eval", model_dir=tmp_path)
    assert logs == {}
    assert small.files(tmp_path) == ["regular_10", "regular_12"]
    (best,) = small.files(tmp_path / "best")
    info = json.loads((tmp_path / "best/info.json").read_text())
    assert info.keys() == {"accuracy", "loss", "validation_loss", "host_accuracy", "at", "best_ckpt_global_step"}
    assert info["loss"] == info["validation_loss"]
    assert best == f"highest_eval_accuracy_{info['best_ckpt_global_step']:.0f}"
    assert list((tmp_path / "train").glob("events.*"))
    assert list((tmp_path / "validation").glob("events.*"))
    points = summaries(tmp_path)
    assert [point["step"] for point in points] == [5, 10, 12]
    assert points[-1]["metrics"]["eval"].keys() == {"accuracy", "loss", "host_accuracy", "at"}
    assert {"loss", "accuracy", "learning_rate", "weights_l2norm"} <= points[-1]["metrics"]["train"].keys()
    x, y = tiny.examples()
    evaluated = points[-1]["metrics"]["eval"]
    np.testing.assert_allclose(evaluated["accuracy"], tiny.accuracy(model(x), y), rtol=1e-6)
    np.testing.assert_allclose(evaluated["host_accuracy"], evaluated["accuracy"], rtol=1e-6)
    assert evaluated["at"] == 12


def test_what_ran_is_written_before_the_first_step_and_can_be_run_again(tmp_path: Path) -> None:
    params = small.params(2)
    seen = []

    def look(checkpoint: trellis.Checkpoint) -> trellis.Checkpoint:
        seen.append((tmp_path / "params.yaml").read_text())
        return checkpoint

    trellis.run_experiment(params, mode="train", model_dir=tmp_path, extensions=[look])
    assert seen == [params.as_yaml()]
    assert resolve("tests/small", config_file=[str(tmp_path / "params.yaml")]).as_dict() == params.as_dict()
    versions = json.loads((tmp_path / "versions.json").read_text())
    assert versions["jax"] == jax.__version__
    assert "train_steps: 2" in (tmp_path / "provenance.yaml").read_text()


def test_each_part_is_due_when_its_own_interval_divides_the_step(tmp_path: Path) -> None:
    params = small.params(20, steps_per_loop=8, summary_interval=8, checkpoint_interval=7, validation_interval=6)
    trellis.run_experiment(params, mode="train_and_eval", model_dir=tmp_path)
    assert small.files(tmp_path) == ["regular_14", "regular_20", "regular_7"]
    points = summaries(tmp_path)
    assert [point["step"] for point in points] == [6, 7, 8, 12, 14, 16, 18, 20]
    assert [point["step"] for point in points if "eval" in point["metrics"]] == [6, 12, 18, 20]


def test_post_evaluation_returns_metrics_under_their_published_names(tmp_path: Path) -> None:
    params = small.params(5, best_checkpoint_export_subdir="best", best_checkpoint_eval_metric="validation_loss")
    params.override({"trainer": {"best_checkpoint_metric_comp": "lower"}})
    _, logs = trellis.run_experiment(params, mode="train_and_post_eval", model_dir=tmp_path)
    assert logs.keys() == {"accuracy", "validation_loss", "host_accuracy", "at", "best_validation_loss"}
    assert logs["best_validation_loss"] == logs["validation_loss"]
    assert small.files(tmp_path / "best") == ["lowest_eval_loss_5"]
    _, again = trellis.run_experiment(params, mode="eval", model_dir=tmp_path, run_post_eval=True)
    assert again == logs


def test_evaluation_of_an_empty_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="(?s)There is no checkpoint file in model_dir .* Train first"):
        trellis.run_experiment(small.params(), mode="eval", model_dir=tmp_path)
    assert not (tmp_path / "params.yaml").exists()


def test_a_continuous_evaluation_sees_every_file_and_ends_with_the_training(tmp_path: Path) -> None:
    params = small.params(15, continuous_eval_timeout=60)
    trainer = threading.Thread(
        target=trellis.run_experiment, args=(params,), kwargs={"mode": "train", "model_dir": tmp_path}
    )
    trainer.start()
    trellis.run_experiment(params, mode="continuous_eval", model_dir=tmp_path)
    trainer.join()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert len(list((tmp_path / "validation").iterdir())) == 1
    accumulator = EventAccumulator(str(tmp_path / "validation"))
    accumulator.Reload()
    assert [point.step for point in accumulator.Scalars("accuracy")] == [5, 10, 15]


def test_a_continuous_evaluation_goes_past_a_damaged_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    params = small.params(15, continuous_eval_timeout=0)
    trellis.run_experiment(params, mode="train", model_dir=tmp_path)
    (tmp_path / "regular_10/arrays/_METADATA").unlink()
    (tmp_path / "regular_5/manifest.json").write_text("garbled")
    (tmp_path / "regular_99").touch()
    trellis.run_experiment(params, mode="continuous_eval", model_dir=tmp_path)
    out = capsys.readouterr().out
    assert f"Skipping the damaged checkpoint file `{tmp_path}/regular_5`: manifest.json is garbled." in out
    assert f"`{tmp_path}/regular_10` is damaged, and so was not evaluated: arrays/_METADATA is missing." in out
    assert "Step     15  eval/" in out


def test_a_continuous_evaluation_ends_when_nothing_comes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trellis.run_experiment(small.params(5), mode="train", model_dir=tmp_path)
    params = small.params(50, continuous_eval_timeout=0)
    trellis.run_experiment(params, mode="continuous_eval", model_dir=tmp_path)
    assert "for 0 seconds, and its training has finished: the evaluation ends" in capsys.readouterr().out


def test_each_file_of_a_pretraining_is_fine_tuned_from(tmp_path: Path) -> None:
    trellis.run_experiment(small.params(10), mode="train", model_dir=tmp_path / "pretraining")
    params = small.params(5, task={"init_checkpoint": str(tmp_path / "pretraining")}, continuous_eval_timeout=0)
    _, logs = trellis.run_experiment(params, mode="continuous_train_and_eval", model_dir=tmp_path / "tuned")
    found = {path.name: json.loads(path.read_text()) for path in (tmp_path / "tuned").glob("metrics-*.json")}
    assert found.keys() == {"metrics-5.json", "metrics-10.json"}
    assert found["metrics-10.json"] == logs
    assert small.files(tmp_path / "tuned") == []


def test_a_run_stopped_and_started_again_goes_on_and_a_finished_one_does_nothing(tmp_path: Path) -> None:
    trellis.run_experiment(small.params(10), mode="train", model_dir=tmp_path / "a")
    one, _ = trellis.run_experiment(small.params(20), mode="train", model_dir=tmp_path / "a")
    other, _ = trellis.run_experiment(small.params(20), mode="train", model_dir=tmp_path / "b")
    tiny.assert_equal(one.params, other.params)
    same, _ = trellis.run_experiment(small.params(20), mode="train", model_dir=tmp_path / "a")
    tiny.assert_equal(same.params, other.params)


def test_a_run_that_does_not_get_better_ends_early_and_stays_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    params = small.params(
        100,
        best_checkpoint_export_subdir="best",
        best_checkpoint_eval_metric="at",
        best_checkpoint_metric_comp="lower",
        early_stopping_steps=8,
        checkpoint_interval=50,
    )
    for _ in range(2):
        trellis.run_experiment(params, mode="train_and_eval", model_dir=tmp_path)
        assert small.files(tmp_path) == ["regular_15"]
        assert [point["step"] for point in summaries(tmp_path)] == [5, 10, 15]
    assert "nothing better since step 5; the run ends here" in capsys.readouterr().out
    params.override({"trainer": {"continuous_eval_timeout": 20}})
    trellis.run_experiment(params, mode="continuous_eval", model_dir=tmp_path)
    said = capsys.readouterr().out
    assert "Step     15  eval/accuracy" in said
    assert "seconds: the evaluation ends" not in said


def test_averages_are_evaluated_and_exported_but_training_goes_on_from_the_weights(tmp_path: Path) -> None:
    options = {"best_checkpoint_export_subdir": "best", "best_checkpoint_eval_metric": "accuracy"}
    averaged = small.params(10, optimizer_config={"ema": {"average_decay": 0.9}}, **options)
    model, _ = trellis.run_experiment(averaged, mode="train_and_eval", model_dir=tmp_path / "averaged")
    plain, _ = trellis.run_experiment(small.params(10), mode="train_and_eval", model_dir=tmp_path / "plain")
    reader = trellis.CheckpointFileReader(dir=tmp_path / "averaged", target=small.SmallModel().init)
    saved = reader.read()
    assert saved is not None
    tiny.assert_equal(saved.model_params, tiny_numpy(plain.params))
    tiny.assert_equal(tiny_numpy(model.params), saved.optimizer_state.average)
    x, y = tiny.examples()
    at_end = summaries(tmp_path / "averaged")[-1]["metrics"]["eval"]["accuracy"]
    np.testing.assert_allclose(at_end, tiny.accuracy(model(x), y), rtol=1e-6)


def tiny_numpy(tree: Any) -> Any:
    return jax.tree.map(np.asarray, tree)


@pytest.mark.parametrize("bad_step", [7, 0])
def test_a_loss_that_blows_up_fails_at_once_by_default_and_is_not_saved(tmp_path: Path, bad_step: int) -> None:
    params = small.params(20, task={"bad_batches": [bad_step]})
    with pytest.raises(DivergedError, match="the loss became NaN") as raised:
        trellis.run_experiment(params, mode="train_and_eval", model_dir=tmp_path)
    assert "recovery_max_trials=0 allows no recovery" in raised.value.__notes__[0]
    assert small.files(tmp_path) == (["regular_5"] if bad_step == 7 else [])


def test_a_run_recovers_past_the_bad_data_and_resumes_the_same(tmp_path: Path) -> None:
    bad = {"bad_batches": [7, 17]}
    params = small.params(20, task=bad, recovery_max_trials=2)
    whole, _ = trellis.run_experiment(params, mode="train", model_dir=tmp_path / "whole")
    assert json.loads((tmp_path / "whole" / "skipped_data.json").read_text()) == [
        {"step": 5, "n_batches": 5},
        {"step": 10, "n_batches": 5},
    ]
    assert [point["step"] for point in summaries(tmp_path / "whole")] == [5, 10, 15, 20]

    def interrupt(checkpoint: trellis.Checkpoint) -> trellis.Checkpoint:
        if checkpoint.step == 15:
            raise KeyboardInterrupt
        return checkpoint

    with pytest.raises(KeyboardInterrupt):
        trellis.run_experiment(params, mode="train", model_dir=tmp_path / "parts", extensions=[interrupt])
    assert small.files(tmp_path / "parts") == ["regular_10", "regular_5"]
    resumed, _ = trellis.run_experiment(params, mode="train", model_dir=tmp_path / "parts")
    tiny.assert_equal(resumed.params, whole.params)


def test_a_run_gives_up_after_so_many_recoveries(tmp_path: Path) -> None:
    params = small.params(20, task={"bad_batches": [7, 17]}, recovery_max_trials=1)
    with pytest.raises(DivergedError) as raised:
        trellis.run_experiment(params, mode="train", model_dir=tmp_path)
    assert "recovery_max_trials=1 allows no more recovery" in raised.value.__notes__[0]


def test_a_loss_above_the_bound_counts_from_the_given_step_on(tmp_path: Path) -> None:
    late = small.params(10, loss_upper_bound=0.01, recovery_begin_steps=11)
    trellis.run_experiment(late, mode="train", model_dir=tmp_path / "late")
    with pytest.raises(DivergedError, match="the mean loss was .*, more than loss_upper_bound=0.01"):
        trellis.run_experiment(small.params(10, loss_upper_bound=0.01), mode="train", model_dir=tmp_path / "now")


def test_all_that_is_wrong_with_a_trainer_config_is_told_at_once(tmp_path: Path) -> None:
    params = small.params(0, validation_interval=0, validation_steps=0, early_stopping_steps=5)
    with pytest.raises(ConfigError) as raised:
        trellis.run_experiment(params, mode="train_and_eval", model_dir=tmp_path)
    for said in (
        "4 problems",
        "trainer.train_steps is 0",
        "trainer.validation_interval is 0",
        "best_checkpoint_eval_m",
    ):
        assert said in str(raised.value)


def test_a_mode_that_is_none_is_told_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="There is no mode 'train_and_evaluate'. Did you mean train_and_eval?"):
        trellis.run_experiment(small.params(), mode="train_and_evaluate", model_dir=tmp_path)
    with pytest.raises(ArgumentError, match="model_dir is not given"):
        trellis.run_experiment(small.params(), mode="train", model_dir="")


def test_a_warm_start_without_a_file_says_what_to_give(tmp_path: Path) -> None:
    params = small.params(task={"init_checkpoint": str(tmp_path / "nowhere")})
    with pytest.raises(ConfigError, match="task.init_checkpoint names a checkpoint that is not there: .*nowhere"):
        trellis.run_experiment(params, mode="train", model_dir=tmp_path / "run")


def test_the_digits_are_learned_from_the_config_alone(tmp_path: Path) -> None:
    import trellis.experiments.digits

    params = resolve("digits/classifier", params_override="trainer.train_steps=200,task.hidden_size=32")
    _, logs = trellis.run_experiment(params, mode="train_and_post_eval", model_dir=tmp_path)
    assert logs["accuracy"] > 0.8


def test_a_breakpoint_in_a_loss_shows_the_loop_the_step_and_the_task(tmp_path: Path) -> None:
    frames: list[str] = []

    class Stopped(small.SmallTask):
        def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> Any:
            ours = [frame for frame in traceback.extract_stack() if "/src/trellis/" in frame.filename]
            frames.extend(Path(frame.filename).stem for frame in ours)
            return super().build_losses(labels, model_outputs, aux_losses)

    params = small.params(5)
    trellis.run_experiment(params, mode="train", model_dir=tmp_path, task=Stopped(params.task))
    assert list(dict.fromkeys(frames)) == ["run", "trainer", "stage", "train_loop", "task", "step"]


def test_a_config_that_its_task_has_filled_in_is_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill_in(self: Any, params: Any, **rest: Any) -> None:
        trellis.Task.__init__(self, params.replace(name="filled in"), **rest)

    configs: list[Any] = []
    monkeypatch.setattr(small.SmallTask, "__init__", fill_in)
    monkeypatch.setattr(run, "write_params", lambda params, directory: configs.append(params))
    params = small.params(5)
    params.lock()
    trellis.run_experiment(params, mode="train", model_dir=tmp_path)
    assert configs[0].task.name == "filled in"
    for part in (configs[0], configs[0].task, configs[0].trainer):
        with pytest.raises(ConfigError, match="locked"):
            part.override({"name": "other"})


def test_a_task_runs_on_the_config_that_is_written_and_no_longer_changes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill_in(self: Any, params: Any, **rest: Any) -> None:
        trellis.Task.__init__(self, params.replace(name="filled in"), **rest)

    monkeypatch.setattr(small.SmallTask, "__init__", fill_in)
    task, params = run.build_task(small.params(5), model_dir=tmp_path)
    assert task.task_config == params.task
    with pytest.raises(ConfigError, match="locked"):
        task.task_config.name = "other"


def test_a_second_training_in_a_directory_is_refused_before_it_writes_and_an_evaluation_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    params = small.params(5, best_checkpoint_export_subdir="best", best_checkpoint_eval_metric="accuracy")
    trellis.run_experiment(params, mode="train_and_eval", model_dir=tmp_path)
    before = sorted(path.name for path in tmp_path.iterdir())
    assert ".lock" not in before, "a run that has ended owns nothing"
    with start_owner(tmp_path) as training, start_owner(tmp_path / "best") as best:
        for mode in ("train", "continuous_train_and_eval"):
            params.task.init_checkpoint = str(tmp_path)
            with pytest.raises(DirectoryTakenError, match=rf"process {training.pid} on .* choose another directory"):
                trellis.run_experiment(params, mode=mode, model_dir=tmp_path)
        with pytest.raises(DirectoryTakenError, match=f"process {training.pid} on"):
            trellis.CheckpointFileWriter(tmp_path)
        assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", *before]
        trellis.run_experiment(params, mode="eval", model_dir=tmp_path)
        assert "leaves the best checkpoint file alone" not in capsys.readouterr().out, "there is nothing better"
        shutil.rmtree(next((tmp_path / "best").glob("highest_*")))
        trellis.run_experiment(params, mode="eval", model_dir=tmp_path)
        assert "This evaluation leaves the best checkpoint file alone" in capsys.readouterr().out
        training.communicate()
        best.communicate()
    trellis.run_experiment(params, mode="train_and_eval", model_dir=tmp_path)


def test_a_chosen_checkpoint_file_is_evaluated_and_the_run_stays_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    best = {"best_checkpoint_export_subdir": "best", "best_checkpoint_eval_metric": "validation_loss"}
    params = small.params(15, **best, best_checkpoint_metric_comp="lower")
    trellis.run_experiment(params, mode="train_and_eval", model_dir=tmp_path)
    measured = {point["step"]: point["metrics"]["eval"] for point in summaries(tmp_path)}
    (best_file,) = small.files(tmp_path / "best")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    at_best = int(best_file.rpartition("_")[2])
    for chosen, step in (("best", at_best), ("5", 5), (tmp_path / "regular_10", 10)):
        capsys.readouterr()
        trellis.run_experiment(params, mode="eval", model_dir=tmp_path, checkpoint=chosen)
        out = capsys.readouterr().out
        assert f"Step {step:6d}  eval/" in out
        assert f"loss {measured[step]['loss']:.6g}" in out
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    for wrong in ("7", "worst", tmp_path / "best"):
        with pytest.raises(ArgumentError, match=r"is no checkpoint file of the run in .* There are: .*regular_5, "):
            trellis.run_experiment(params, mode="eval", model_dir=tmp_path, checkpoint=wrong)
    with pytest.raises(ArgumentError, match="checkpoint is '5', but mode 'train' chooses its files"):
        trellis.run_experiment(params, mode="train", model_dir=tmp_path, checkpoint="5")


def made_trainer(params: trellis.ExperimentConfig, kind: Any = trellis.Trainer, **options: Any) -> Any:
    task = small.SmallTask(params.task)
    return kind(task, config=params.trainer, runtime=params.runtime, **options)


def test_a_trainer_of_ones_own_is_run_in_every_mode(tmp_path: Path) -> None:
    seen: list[int] = []

    class Own(trellis.Trainer):
        def stage_extensions(self, stage: Any) -> Any:
            return [lambda checkpoint: seen.append(checkpoint.step) or checkpoint]

    params = small.params(10)
    expected, _ = trellis.run_experiment(params, mode="train", model_dir=tmp_path / "built")
    trainer = made_trainer(params, Own, model_dir=tmp_path / "own")
    model, _ = trellis.run_experiment(params, mode="train", trainer=trainer)
    tiny.assert_equal(model.params, expected.params)
    assert seen == [5, 10]
    assert ["eval" in point["metrics"] for point in summaries(tmp_path / "own")] == [False, False]
    assert (tmp_path / "own/params.yaml").read_text() == params.as_yaml()
    for mode in ("eval", "continuous_eval"):
        again = small.params(10, continuous_eval_timeout=0)
        trainer = made_trainer(again, Own, model_dir=tmp_path / "own")
        _, logs = trellis.run_experiment(again, mode=mode, trainer=trainer, run_post_eval=mode == "eval")
    assert logs == {}
    trainer = made_trainer(params, Own, model_dir=tmp_path / "both", evaluate=False)
    trellis.run_experiment(params, mode="train_and_eval", trainer=trainer, model_dir=tmp_path / "both")
    assert ["eval" in point["metrics"] for point in summaries(tmp_path / "both")] == [True, True]
    trainer = made_trainer(params, Own, model_dir=tmp_path / "post")
    _, logs = trellis.run_experiment(params, mode="train_and_post_eval", trainer=trainer, task=trainer.task)
    assert logs["accuracy"] == summaries(tmp_path / "both")[-1]["metrics"]["eval"]["accuracy"]


def test_a_trainer_that_does_not_fit_its_run_is_refused(tmp_path: Path) -> None:
    params = small.params(10)
    trainer = made_trainer(params, model_dir=tmp_path / "own")
    other = small.SmallTask(params.task)
    for options, said in (
        ({"trainer": trellis.Trainer}, "which is no trainer. Give one: trainer=Trainer"),
        ({"mode": "continuous_train_and_eval"}, "trainer is given, but mode 'continuous_train_and_eval' makes one for"),
        ({"model_dir": tmp_path / "b"}, "model_dir is `.*/b`, but the trainer's is `.*/own`. Leave it out here"),
        ({"task": other}, "task is given beside trainer, which has its own. Make it with that"),
        ({"extensions": [print]}, "extensions is given beside trainer"),
        ({"save_summary": False}, "save_summary is given beside trainer"),
        ({"params": small.params(20)}, "params.trainer.train_steps is 20, but the trainer was made with 10"),
        ({"params": params.replace(runtime={"seed": 7})}, "params.runtime.seed is 7, but the trainer was made with 0"),
    ):
        given: dict[str, Any] = {"params": params, "mode": "train", "trainer": trainer} | options
        with pytest.raises(ArgumentError, match=said):
            trellis.run_experiment(given.pop("params"), **given)
    assert not (tmp_path / "own").exists()


def test_a_trainer_whose_length_is_left_to_its_data_is_refused(tmp_path: Path) -> None:
    params = small.params(0, train_epochs=1.0)
    with pytest.raises(ArgumentError, match=r"left to its data \(16 steps\), but a trainer that is given is made"):
        trellis.run_experiment(params, mode="train", trainer=made_trainer(params, model_dir=tmp_path))


def test_a_run_without_checkpoint_files_learns_the_same_and_says_that_it_cannot_be_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected, _ = trellis.run_experiment(small.params(12), mode="train_and_eval", model_dir=tmp_path / "saved")
    capsys.readouterr()
    params = small.params(12, checkpoint_interval=0)
    model, logs = trellis.run_experiment(params, mode="train_and_eval", model_dir=tmp_path / "not", run_post_eval=True)
    tiny.assert_equal(model.params, expected.params)
    assert logs["accuracy"] > 0
    assert small.files(tmp_path / "not") == []
    out = capsys.readouterr().out
    assert out.count("no checkpoint files are written. The run cannot be resumed, and its model is not kept") == 1
    again, _ = trellis.run_experiment(params, mode="train_and_eval", model_dir=tmp_path / "not")
    tiny.assert_equal(again.params, expected.params)
    assert [point["step"] for point in summaries(tmp_path / "not")] == [5, 10, 12]


def test_a_run_without_checkpoint_files_keeps_the_best_and_does_not_mistake_an_earlier_one_for_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    best = {"best_checkpoint_export_subdir": "best", "best_checkpoint_eval_metric": "accuracy"}
    params = small.params(10, checkpoint_interval=0, **best)
    trellis.run_experiment(params, mode="train_and_eval", model_dir=tmp_path)
    assert "and of its models only the best is kept when it ends" in capsys.readouterr().out
    assert len(small.files(tmp_path / "best")) == 1
    with pytest.raises(ConfigError, match=r"highest_eval_accuracy_\d+` is of an earlier run, which cannot be gone on"):
        trellis.run_experiment(params, mode="train_and_eval", model_dir=tmp_path)


def test_what_needs_checkpoint_files_is_refused_without_them(tmp_path: Path) -> None:
    params = small.params(10, checkpoint_interval=0, max_to_keep=0)
    with pytest.raises(ConfigError, match="(?s)max_to_keep is 0.*is 0, so that no .* continuous_eval follows those"):
        trellis.run_experiment(params, mode="continuous_eval", model_dir=tmp_path)
    with pytest.raises(ConfigError, match="trainer.checkpoint_interval is -1"):
        trellis.run_experiment(small.params(10, checkpoint_interval=-1), mode="train", model_dir=tmp_path)


def test_a_run_without_a_directory_leaves_only_what_it_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    expected, _ = trellis.run_experiment(small.params(10), mode="train", model_dir=tmp_path / "saved")
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    capsys.readouterr()
    model, logs = trellis.run_experiment(small.params(10), mode="train_and_post_eval")
    tiny.assert_equal(model.params, expected.params)
    assert logs["accuracy"] > 0
    assert "goes when it ends. The run cannot be resumed." in capsys.readouterr().out
    trainer = made_trainer(small.params(10))
    assert "and goes with it. The run cannot be resumed." in capsys.readouterr().out
    assert trainer.train().step == 10
    assert trainer.model_dir.parent == tmp_path / "scratch"
    del trainer
    gc.collect()
    assert not any((tmp_path / "scratch").iterdir())
    with pytest.raises(ArgumentError, match="model_dir is not given: mode 'eval' needs that of a run"):
        trellis.run_experiment(small.params(10), mode="eval")
