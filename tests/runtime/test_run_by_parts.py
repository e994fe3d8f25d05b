"""Running a function by parts."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from trellis.runtime.compilation import run_by_parts


class Tower(nn.Module):
    n_layers: int

    @nn.compact
    def __call__(self, x: Any) -> Any:
        for _ in range(self.n_layers):
            x = nn.relu(nn.Dense(16)(x))
        return x


def test_a_model_is_initialized_as_by_one_program() -> None:
    init, key, x = Tower(5).init, jax.random.key(0), jnp.ones((2, 16))
    whole = jax.jit(init)(key, x)
    parts = run_by_parts(jax.jit(init), key, x)
    assert jax.tree.structure(parts) == jax.tree.structure(whole)
    jax.tree.map(np.testing.assert_array_equal, parts, whole)


def test_what_nothing_returned_depends_on_does_not_run() -> None:
    ran = []

    def make(x: Any) -> Any:
        jax.pure_callback(lambda x: ran.append("unused") or x, x, x)
        return jax.pure_callback(lambda x: ran.append("used") or x, x, x) + 1

    assert run_by_parts(jax.jit(make), jnp.float32(1)) == 2
    assert ran == ["used"]


def test_layers_that_are_alike_are_compiled_once() -> None:
    n_compiled = []
    jax.monitoring.register_event_duration_secs_listener(listen := lambda name, *_, **__: n_compiled.append(name))

    def count(n_layers: int) -> int:
        jax.clear_caches()
        n_compiled.clear()
        jax.block_until_ready(run_by_parts(jax.jit(Tower(n_layers).init), jax.random.key(0), jnp.ones((2, 16))))
        return n_compiled.count("/jax/core/compile/backend_compile_duration")

    try:
        assert count(2) == count(6) > 0
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def test_a_function_may_return_what_it_was_given_and_constants() -> None:
    x, constant = jnp.arange(3.0), np.ones(2, np.float32)
    made = run_by_parts(jax.jit(lambda x: {"given": x, "constant": jnp.asarray(constant), "number": 1.5}), x)
    np.testing.assert_array_equal(made["given"], x)
    np.testing.assert_array_equal(made["constant"], constant)
    assert made["number"] == 1.5


def test_a_function_that_is_run_by_parts_in_another_is_none_of_its_parts() -> None:
    ran = []

    @jax.jit
    def make(x: Any) -> Any:
        unused = jax.pure_callback(lambda x: ran.append("unused") or x, x, x)
        return unused, jax.pure_callback(lambda x: ran.append("used") or x, x, x) + 1

    assert run_by_parts(jax.jit(lambda x: run_by_parts(make, x)[1]), jnp.float32(1)) == 2
    assert ran == ["used"]
