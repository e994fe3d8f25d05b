"""The Trainer: the same numbers on any devices, for any kind of model, and after damage."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

import trellis
from tests import tiny
from tests.trainer import small
from trellis.bridges import NNXModel
from trellis.errors import ArgumentError
from trellis.extensions import steps_with_points
from trellis.trainer import metric_name
from trellis.trainer.default_extensions import default_extensions


def train(params: trellis.ExperimentConfig, model_dir: Path, task: trellis.Task | None = None) -> Any:
    trainer = trellis.Trainer(
        task or trellis.get_task(params.task), config=params.trainer, runtime=params.runtime, model_dir=model_dir
    )
    return trainer.train()


def test_one_device_and_eight_learn_the_same(tmp_path: Path) -> None:
    one = train(small.params(10), tmp_path / "one")
    params = small.params(10)
    params.override({"runtime": {"distribution_strategy": "mirrored"}})
    eight = train(params, tmp_path / "eight")
    assert jax.tree.leaves(eight.model_params)[0].sharding.num_devices == 8
    np.testing.assert_allclose(one.loss, eight.loss, rtol=1e-5)
    np.testing.assert_allclose(one.metrics["eval"]["loss"], eight.metrics["eval"]["loss"], rtol=1e-5)


def test_parts_of_a_batch_are_learned_from_as_the_whole(tmp_path: Path) -> None:
    class Plain(small.SmallTask):
        rng_collections = ()

        def build_model(self) -> Any:
            return tiny.Classifier()

    whole = train(small.params(10), tmp_path / "whole", Plain(small.SmallConfig()))
    parts = train(small.params(10, n_microbatches=4), tmp_path / "parts", Plain(small.SmallConfig()))
    np.testing.assert_allclose(whole.loss, parts.loss, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), whole.model_params, parts.model_params)


def test_a_step_is_traced_once_for_all_that_a_run_makes_of_it(tmp_path: Path) -> None:
    seen: list[str] = []

    class Counted(small.SmallTask):
        def train_step(self, inputs: Any, **options: Any) -> Any:
            seen.append("train")
            return super().train_step(inputs, **options)

        def validation_step(self, inputs: Any, *rest: Any) -> Any:
            seen.append("validation")
            return super().validation_step(inputs, *rest)

    params = small.params(10)
    trellis.run_experiment(params, mode="train_and_eval", model_dir=tmp_path, task=Counted(params.task))
    # Checked before the first step, costed, compiled and run. The last batch of the validation is a short one.
    assert (seen.count("train"), seen.count("validation")) == (1, 2)


def test_a_step_of_ones_own_that_knows_no_parts_is_refused_with_some(tmp_path: Path) -> None:
    class Own(small.SmallTask):
        def train_step(self, inputs: Any, *, state: Any, model: Any, optimizer: Any, metrics: Any, keys: Any) -> Any:  # type: ignore[override]
            return super().train_step(inputs, state=state, model=model, optimizer=optimizer, metrics=metrics, keys=keys)

    task = Own(small.SmallConfig())
    with pytest.raises(ArgumentError, match="n_microbatches is 2, but Own.train_step takes no n_microbatches"):
        train(small.params(5, n_microbatches=2), tmp_path, task)
    assert train(small.params(5), tmp_path, task).step == 5


def test_an_nnx_model_is_trained_with_dropout_and_evaluated_without(tmp_path: Path) -> None:
    class Network(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.first, self.last = nnx.Linear(8, 16, rngs=rngs), nnx.Linear(16, 4, rngs=rngs)
            self.norm, self.dropout = nnx.BatchNorm(16, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.last(self.dropout(nnx.relu(self.norm(self.first(x)))))

    class NNXTask(small.SmallTask):
        def build_model(self) -> Any:
            return NNXModel(Network)

    task = NNXTask(small.SmallConfig())
    params = small.params(10)
    trainer = trellis.Trainer(task, config=params.trainer, runtime=params.runtime, model_dir=tmp_path)
    summary = trainer.train()
    assert summary is not None
    model = trainer.bound_model(summary)
    x, y = tiny.examples()
    np.testing.assert_array_equal(model(x), model(x))
    np.testing.assert_allclose(summary.metrics["eval"]["accuracy"], tiny.accuracy(model(x), y), rtol=1e-6)
    assert not np.allclose(summary.model_state["batch_stats"]["norm"]["mean"], 0)


def test_an_evaluation_skips_a_damaged_newest_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    params = small.params(10)
    train(params, tmp_path)
    (tmp_path / "regular_10" / "manifest.json").write_text("{")
    trainer = trellis.Trainer(trellis.get_task(params.task), config=params.trainer, model_dir=tmp_path)
    assert trainer.evaluate().metrics["eval"]["at"] == 5


def test_a_run_that_is_through_is_finished_and_not_stopped(tmp_path: Path) -> None:
    train(small.params(5), tmp_path)
    kinds = [json.loads(line)["kind"] for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [kind for kind in kinds if kind != "time"] == ["initialized", "summary", "fingerprint", "finished"]
    assert kinds[-2:] == ["time", "finished"]


def test_the_events_tell_of_an_error_outside_the_loop(tmp_path: Path) -> None:
    def fail(checkpoint: trellis.Checkpoint) -> trellis.Checkpoint:
        raise ZeroDivisionError("of an extension")

    with pytest.raises(ZeroDivisionError, match="of an extension"):
        trellis.run_experiment(small.params(10), mode="train", model_dir=tmp_path, extensions=[fail])
    last = json.loads((tmp_path / "events.jsonl").read_text().splitlines()[-1])
    assert (last["kind"], last["error"]) == ("stopped", "ZeroDivisionError('of an extension')")


def test_a_run_told_not_to_save_when_stopped_does_not(tmp_path: Path) -> None:
    import os
    import signal

    def stop(checkpoint: trellis.Checkpoint) -> trellis.Checkpoint:
        if checkpoint.step == 7:
            os.kill(os.getpid(), signal.SIGTERM)
        return checkpoint

    for saves, expected in ((True, ["preempted_7", "regular_5"]), (False, ["regular_5"])):
        params = small.params(20, steps_per_loop=7, summary_interval=7, preemption_on_demand_checkpoint=saves)
        directory = tmp_path / str(saves)
        with pytest.raises(SystemExit):
            trellis.run_experiment(params, mode="train", model_dir=directory, extensions=[stop])
        assert small.files(directory) == expected


def test_the_norm_of_the_gradients_is_reported_if_it_is_asked_for(tmp_path: Path) -> None:
    summary = train(small.params(10, keep_gradients=True), tmp_path / "asked")
    norms = summary.metrics["train"]
    squares = [float(np.square(leaf).sum()) for leaf in jax.tree.leaves(jax.device_get(summary.grads))]
    np.testing.assert_allclose(norms["gradients_l2norm"], sum(squares) ** 0.5, rtol=1e-5)
    assert norms["weights_l2norm"] > 0
    plain = train(small.params(10), tmp_path / "plain")
    assert plain.grads is None
    assert "gradients_l2norm" not in plain.metrics["train"]
    assert plain.metrics["train"]["weights_l2norm"] == pytest.approx(norms["weights_l2norm"], rel=1e-6)


class NestedTask(small.SmallTask):
    """A task whose host metrics are nested, arrays, and no metrics at all."""

    def reduce_aggregated_logs(self, aggregated_logs: Any, global_step: int | None = None) -> Any:
        right = np.concatenate(aggregated_logs)
        return {
            "plain": np.float32(0.5),
            "one": np.ones(1),
            "by_half": {"first": {"right": right[:128].mean()}, "second": {"right": right[128:].mean()}},
            "counts": np.array([[1, 2], [3, 4]]),
            "predictions": right,
            "name": "small",
        }


def test_host_metrics_may_be_nested_or_arrays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    params = small.params(10, best_checkpoint_export_subdir="best", best_checkpoint_eval_metric="by_half|first|right")
    task = NestedTask(params.task)
    trellis.run_experiment(params, mode="train_and_eval", model_dir=tmp_path, task=task)
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    measured = [line["metrics"]["eval"] for line in lines if line["kind"] == "summary"][-1]
    assert measured.keys() == {
        *("accuracy", "loss", "plain", "one", "by_half/first/right", "by_half/second/right"),
        *("counts_0_0", "counts_0_1", "counts_1_0", "counts_1_1"),
    }
    assert (measured["plain"], measured["one"], measured["counts_1_0"]) == (0.5, 1.0, 3.0)
    said = "Left out of the metrics of eval: predictions, name. A metric is a number, a small array of at most 100"
    assert capsys.readouterr().out.count(said) == 1
    for subdir in ("", "by_half/first", "by_half/second"):
        assert steps_with_points(tmp_path / "validation" / subdir) == {5, 10}
    (best,) = small.files(tmp_path / "best")
    assert "est_eval_by_half-first-right_" in best
    assert (tmp_path / "regular_10").is_dir()

    longer = small.params(15, best_checkpoint_export_subdir="best", best_checkpoint_eval_metric="by_half|first|right")
    trellis.run_experiment(longer, mode="train_and_eval", model_dir=tmp_path, task=NestedTask(longer.task))
    assert "has no summary of" not in capsys.readouterr().out
    assert steps_with_points(tmp_path / "validation/by_half/first") == {5, 10, 15}


def test_a_metric_of_an_evaluation_is_named_as_published_or_as_on_the_screen() -> None:
    assert {metric_name(name) for name in ("loss", "eval/loss", "validation_loss", "eval/validation_loss")} == {"loss"}
    assert metric_name("by_half|first") == metric_name("eval/by_half/first") == "by_half/first"


@pytest.mark.parametrize(("factor", "n_checks"), [(10.0, 1), (1.0, 0), (0.0, 0)])
def test_a_training_tells_of_blow_ups_unless_it_is_told_not_to(tmp_path: Path, factor: float, n_checks: int) -> None:
    config = trellis.TrainerConfig(train_steps=5, blow_up_factor=factor)
    options: dict[str, Any] = {"evaluation": None, "stopping": None, "schedules": {}}
    extensions = default_extensions(config, model_dir=tmp_path, **options)
    assert sum(isinstance(extension, trellis.BlowUpCheck) for extension in extensions) == n_checks
