"""Precision: a model computes in a low one, and all that adds up stays float32."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import trellis
from tests import tiny
from trellis.errors import ArgumentError
from trellis.runtime import Precision


def dtypes(tree: Any) -> set[str]:
    return {str(leaf.dtype) for leaf in jax.tree.leaves(tree)}


class Watched(nn.Module):
    """Tells the dtypes that it was given and computed in."""

    tell: Callable[[list[str]], None]

    @nn.compact
    def __call__(self, x: Any, ids: Any, train: bool = True) -> Any:
        """Outputs of a norm and a layer."""
        table = self.param("table", nn.initializers.normal(), (5, 8))
        y = nn.BatchNorm(use_running_average=not train)(nn.Dense(8)(x)) + table[ids]
        self.sow("losses", "size", jnp.mean(y))
        self.tell([str(leaf.dtype) for leaf in (x, ids, table, y)])
        return {"y": y, "ids": ids}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_parameters_and_inputs_are_cast_down_and_outputs_back(dtype: Any) -> None:
    told: list[list[str]] = []
    model = Watched(tell=told.append)
    given = (jnp.ones((4, 3)), jnp.arange(4))
    variables = model.init(jax.random.key(0), *given)
    variables = {name: variables[name] for name in ("params", "batch_stats")}
    apply = Precision(dtype).applied_to(model.apply)
    outputs, changes = apply(variables, *given, rngs={}, mutable=["batch_stats", "losses"])
    assert told[-1] == [dtype, "int32", dtype, dtype]
    assert (outputs["y"].dtype, outputs["ids"].dtype) == (jnp.float32, jnp.int32)
    assert dtypes(changes) == {"float32"}
    assert dtypes(apply(variables, *given, rngs={}, mutable=False, train=False)["y"]) == {"float32"}


def test_gradients_are_float32_and_close_to_those_of_float32() -> None:
    model, (x, y) = tiny.Classifier(), tiny.examples(64)
    params = model.init(jax.random.key(0), x)["params"]

    def grads(dtype: Any) -> Any:
        apply = Precision(dtype).applied_to(model.apply)
        loss = lambda params: tiny.cross_entropy(apply({"params": params}, x, rngs={}, mutable=False), y)  # noqa: E731
        return jax.jit(jax.grad(loss))(params)

    exact = grads("float32")
    for dtype in ("bfloat16", "float16"):
        low = grads(dtype)
        assert dtypes(low) == {"float32"}
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=5e-3), low, exact)


def test_float32_leaves_a_model_as_it_is() -> None:
    apply = tiny.Classifier().apply
    assert Precision().applied_to(apply) == apply


def test_another_name_is_refused() -> None:
    with pytest.raises(ArgumentError, match="one of float32, float16, bfloat16, not 'half'"):
        Precision("half")  # type: ignore[arg-type]


def test_batch_statistics_stay_float32_in_a_loop() -> None:
    model = tiny.Classifier(train=True, has_statistics=True)
    apply = Precision("bfloat16").applied_to(model.apply)
    task = trellis.TrainTask(
        apply=apply, optimizer=tiny.train_task().optimizer, loss=tiny.cross_entropy, data=tiny.stream()
    )
    loop = tiny.train_loop(task, init=tiny.Classifier(has_statistics=True).init, n_steps=4, n_steps_per_checkpoint=4)
    checkpoint = loop.next_checkpoint()
    for tree in (checkpoint.model_params, checkpoint.model_state, checkpoint.grads, checkpoint.optimizer_state[0].mu):
        assert dtypes(tree) == {"float32"}
    assert any((leaf != 0).any() for leaf in tiny.arrays(checkpoint.model_state["batch_stats"]))
