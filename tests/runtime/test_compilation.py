"""Options of XLA. One that it does not know shows by its error that it was given."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from tests import tiny
from trellis.runtime import compilation, jit_on

GPU, CPU = (SimpleNamespace(platform=name) for name in ("gpu", "cpu"))


@pytest.fixture(autouse=True)
def _asked_anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    jax.devices()  # eight, by the flags that all tests have
    monkeypatch.setenv("XLA_FLAGS", "")
    compilation._is_known.cache_clear()
    yield
    compilation._is_known.cache_clear()


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The options of every program that is compiled from now on."""
    found: list[Any] = []

    def jit(function: Any, *, compiler_options: Any = None, **options: Any) -> Any:
        found.append(compiler_options)
        return original(function, compiler_options=compiler_options, **options)

    original = jax.jit
    monkeypatch.setattr(jax, "jit", jit)
    return found


def test_gpus_multiply_without_triton(given: list[Any]) -> None:
    # That XLA knows the option is asked on every machine.
    assert jit_on([GPU], lambda x: x + 1)(1) == 2
    assert given[-1] == {"xla_gpu_enable_triton_gemm": False}


def test_other_devices_are_left_alone(given: list[Any]) -> None:
    assert jit_on([CPU], lambda x: x + 1)(1) == 2
    assert given == [None]


def test_what_the_user_says_stays(given: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_enable_triton_gemm=true")
    jit_on([GPU], lambda x: x + 1)
    assert given == [None]


def test_an_option_that_xla_lost_is_not_given(given: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation, "_ON_GPUS", {"xla_gpu_of_former_days": False})
    assert jit_on([GPU], lambda x: x + 1)(1) == 2
    assert given[-1] is None


@pytest.mark.parametrize("place", ["trellis.loops.fused_steps", "trellis.loops.eval_loop"])
def test_steps_and_evaluations_are_compiled_with_them(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def jit(_: Any, function: Any, **options: Any) -> Any:
        return jax.jit(function, compiler_options={"xla_gpu_of_former_days": False}, **options)

    monkeypatch.setattr(f"{place}.jit_on", jit)
    with pytest.raises(jax.errors.JaxRuntimeError, match="xla_gpu_of_former_days"):
        tiny.eval_loop()(tiny.train_loop(n_steps=1).next_step())
