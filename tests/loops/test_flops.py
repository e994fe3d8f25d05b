"""Counting the operations of a trace."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

from trellis.loops.fused_steps import count_flops


def flops(function: Any, *given: Any) -> float:
    return count_flops(jax.make_jaxpr(function)(*given).jaxpr)


def flops_by_xla(function: Any, *given: Any) -> float:
    return jax.jit(function).lower(*given).cost_analysis()["flops"]


def images(**options: Any) -> tuple[Any, Any, Any]:
    layer, x = nn.Conv(16, (3, 3), padding="VALID", **options), jnp.ones((2, 20, 20, 4))
    return layer.apply, layer.init(jax.random.key(0), x), x


def training(model: nn.Module, x: Any) -> tuple[Any, Any]:
    return jax.grad(lambda variables: model.apply(variables, x).var()), model.init(jax.random.key(0), x)


@pytest.mark.parametrize(
    "called",
    [
        (jnp.matmul, jnp.ones((8, 16)), jnp.ones((16, 32))),
        (jax.vmap(jnp.matmul), jnp.ones((5, 8, 16)), jnp.ones((5, 16, 32))),
        (jax.jit(lambda x: jnp.tanh(x @ x)), jnp.ones((64, 64))),
        images(),
        images(strides=2),
        images(feature_group_count=2),
        training(nn.Sequential([nn.Dense(64), nn.relu, nn.Dense(8)]), jnp.ones((32, 48))),
    ],
    ids=["product", "batched", "jit", "convolution", "strided", "grouped", "training"],
)
def test_it_is_what_xla_counts(called: tuple[Any, ...]) -> None:
    assert flops(*called) == pytest.approx(flops_by_xla(*called), rel=0.1)


def test_a_scan_counts_as_often_as_it_runs() -> None:
    x = jnp.ones((32, 32))
    once = flops(lambda x: x @ x, x)
    assert flops(lambda x: jax.lax.scan(lambda c, _: (c @ c, None), x, length=7)[0], x) == 7 * once
    assert flops(lambda x: jax.lax.fori_loop(0, x[0, 0].astype(int), lambda _, c: c @ c, x), x) < 2 * once


def test_of_branches_the_dearest_counts() -> None:
    x = jnp.ones((32, 32))
    once = flops(lambda x: x @ x, x)
    assert once <= flops(lambda x: jax.lax.cond(x[0, 0] > 0, lambda x: x @ x, lambda x: x + 1, x), x) < 1.1 * once
