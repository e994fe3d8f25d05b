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
