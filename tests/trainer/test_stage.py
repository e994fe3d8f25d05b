"""What a training starts from: what `Task.initialize` returns, over the model's own."""

from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import pytest

import trellis
from tests.trainer import small
from trellis.errors import ModelError
from trellis.tasks import traceable

made: list[str] = []
"""The kernels whose initial values were computed."""


class Recorded(nn.Module):
    """The small model, which tells of every kernel that it makes."""

    @nn.compact
    def __call__(self, x: Any, training: bool = False) -> Any:
        x = nn.relu(nn.Dense(8, name="encoder", kernel_init=recorded("encoder"))(x))
        return nn.Dense(4, name="classifier", kernel_init=recorded("classifier"))(x)


def recorded(name: str) -> Any:
    def init(key: Any, shape: Any, dtype: Any = np.float32) -> Any:
        values = nn.initializers.lecun_normal()(key, shape, dtype)
        return jax.pure_callback(lambda values: made.append(name) or values, values, values)

    return init


class RecordedTask(small.SmallTask):
    def build_model(self) -> Any:
        return Recorded()


def initial_params(task_class: Any, directory: Path) -> Any:
    params = small.params(5)
    trainer = trellis.Trainer(task_class(params.task), config=params.trainer, model_dir=directory, evaluate=False)
    made.clear()
    return jax.tree.map(np.asarray, trainer.initialize().model_params)


ONES = {"params": {"encoder": {"kernel": np.ones((8, 8), np.float32)}}}


def test_what_is_replaced_is_not_made(tmp_path: Path) -> None:
    class Replacing(RecordedTask):
        @traceable
        def initialize(self, model: trellis.BoundModel) -> Any:
            return ONES

    own = initial_params(RecordedTask, tmp_path)
    assert sorted(made) == ["classifier", "encoder"]
    found = initial_params(Replacing, tmp_path)
    assert made == ["classifier"]
    np.testing.assert_array_equal(found["encoder"]["kernel"], 1)
    np.testing.assert_array_equal(found["classifier"]["kernel"], own["classifier"]["kernel"])


def test_a_task_of_ones_own_sees_values_also_where_it_calls_what_it_overrides(tmp_path: Path) -> None:
    class Doubling(RecordedTask):
        def initialize(self, model: trellis.BoundModel) -> Any:
            return jax.tree.map(lambda leaf: 2 * np.asarray(leaf), dict(super().initialize(model)))

    own, found = (initial_params(task, tmp_path) for task in (RecordedTask, Doubling))
    assert sorted(made) == ["classifier", "encoder"]
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(2 * a, b), own, found)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"encoder": {"kernel": np.ones((3, 3), np.float32)}}, r"kernel: float32\[3, 3\] given, float32\[8, 8\] in"),
        ({"decoder": np.ones(3, np.float32)}, r"params/decoder: float32\[3\] given, — in the model"),
    ],
)
def test_variables_that_the_model_does_not_have_are_refused(given: Any, said: str, tmp_path: Path) -> None:
    class Wrong(small.SmallTask):
        def initialize(self, model: trellis.BoundModel) -> Any:
            return {"params": given}

    with pytest.raises(ModelError, match=f"(?s)Task.initialize returned .*{said}"):
        initial_params(Wrong, tmp_path)


def test_they_are_of_the_types_of_the_model(tmp_path: Path) -> None:
    class Halves(small.SmallTask):
        def initialize(self, model: trellis.BoundModel) -> Any:
            return jax.tree.map(np.float16, ONES)

    kernel = initial_params(Halves, tmp_path)["encoder"]["kernel"]
    assert kernel.dtype == np.float32
    np.testing.assert_array_equal(kernel, 1)


class ScalarTask(small.SmallTask):
    """A task whose validation step returns what published ones do: the mean of a batch."""

    aggregate_logs = trellis.Task.aggregate_logs
    reduce_aggregated_logs = trellis.Task.reduce_aggregated_logs

    def validation_step(self, inputs: Any, model: Any, metrics: Any = None) -> Any:
        loss = self.build_losses(inputs[1], model(inputs[0]))
        return {self.loss: loss.total / loss.weight if isinstance(loss, trellis.Mean) else loss}


def evaluated(task: trellis.Task, directory: Path) -> Any:
    params = small.params(2)
    trainer = trellis.Trainer(task, config=params.trainer, model_dir=directory, evaluate=False)
    trainer.train()
    return trainer.evaluate().metrics["eval"]


def test_a_plain_scalar_of_a_validation_step_is_a_mean_over_its_batch(tmp_path: Path) -> None:
    config = small.params(2).task
    # The batches have 100, 100 and 56 examples.
    expected = evaluated(small.SmallTask(config), tmp_path / "metrics")["loss"]
    found = evaluated(ScalarTask(config), tmp_path / "scalars")
    assert found.keys() == {"loss"}
    assert found["loss"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("logs", "said"),
    [
        (None, r"Returning.validation_step returned nothing, but it has to return what it has measured by name"),
        (3.0, r"returned a float, but .* return \{self.loss: loss\}"),
        ({}, r"returned nothing to measure. Return at least the loss"),
        (
            {"loss": np.zeros(3, np.float32)},
            r"returned 'loss', which is no scalar, and Returning has no aggregate_logs",
        ),
        ({"loss": 1.0, "f": {"g": 1.0}}, r"returned 'f', which is no scalar"),
    ],
)
def test_what_a_validation_step_returns_for_nobody_is_refused(tmp_path: Path, logs: Any, said: str) -> None:
    class Returning(ScalarTask):
        def validation_step(self, inputs: Any, model: Any, metrics: Any = None) -> Any:
            return logs

    with pytest.raises(ModelError, match=said):
        evaluated(Returning(small.params(2).task), tmp_path)


def test_a_scalar_goes_to_a_task_that_aggregates_too(tmp_path: Path) -> None:
    class Aggregating(ScalarTask):
        def aggregate_logs(self, state: Any, step_outputs: Any) -> Any:
            return [*(state or []), float(step_outputs["loss"])]

        def reduce_aggregated_logs(self, aggregated_logs: Any, global_step: int | None = None) -> dict[str, float]:
            return {"n_batches": float(len(aggregated_logs))}

    found = evaluated(Aggregating(small.params(2).task), tmp_path)
    assert found.keys() == {"loss", "n_batches"}
    assert found["n_batches"] == 3
