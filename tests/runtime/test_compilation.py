"""Options of XLA. One that it does not know shows by its error that it was given."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest
from jax.experimental.compilation_cache.compilation_cache import reset_cache

from tests import tiny
from trellis.errors import ModelError
from trellis.runtime import Placement, compilation, describe_exactness, jit_on

GPU, CPU = (SimpleNamespace(platform=name) for name in ("gpu", "cpu"))


@pytest.fixture(autouse=True)
def _asked_anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    jax.devices()  # are made with the flags of the tests
    monkeypatch.setenv("XLA_FLAGS", "")
    compilation._is_known.cache_clear()
    yield
    compilation._is_known.cache_clear()


@contextlib.contextmanager
def compilation_cache(directory: Path) -> Iterator[None]:
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = [getattr(jax.config, name) for name in names]
    jax.clear_caches()
    jax.config.update(names[0], str(directory))
    jax.config.update(names[1], 0.0)
    reset_cache()
    try:
        yield
    finally:
        for name, value in zip(names, before, strict=True):
            jax.config.update(name, value)
        reset_cache()


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
    assert given[-1] == {"xla_gpu_enable_triton_gemm": False, "xla_gpu_exclude_nondeterministic_ops": True}


def test_exactness_can_be_turned_off(given: list[Any]) -> None:
    assert jit_on([GPU], lambda x: x + 1, is_exact=False)(1) == 2
    assert given[-1] == {"xla_gpu_enable_triton_gemm": False}


def test_other_devices_are_left_alone(given: list[Any]) -> None:
    assert jit_on([CPU], lambda x: x + 1)(1) == 2
    assert given == [None]


def test_what_the_user_says_stays(given: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    flags = "--xla_gpu_enable_triton_gemm=true --xla_gpu_exclude_nondeterministic_ops=false"
    monkeypatch.setenv("XLA_FLAGS", flags)
    jit_on([GPU], lambda x: x + 1)
    assert given == [None]


def test_an_option_that_xla_lost_is_not_given(given: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation, "_ON_GPUS", {"xla_gpu_of_former_days": False})
    assert jit_on([GPU], lambda x: x + 1, is_exact=False)(1) == 2
    assert given[-1] is None


@pytest.mark.parametrize(
    ("device", "is_exact", "flags", "expected"),
    [
        (CPU, True, "", "exact to the bit"),
        (CPU, False, "", "exact to the bit"),
        (GPU, True, "", "exact to the bit"),
        (GPU, True, "--xla_gpu_exclude_nondeterministic_ops=true", "exact to the bit"),
        (GPU, False, "", "not exact to the bit, as was asked for (runtime.exact=false, Placement(exact=False))"),
        (
            GPU,
            True,
            "--xla_a=1 --xla_gpu_exclude_nondeterministic_ops=false",
            "not exact to the bit: XLA_FLAGS says --xla_gpu_exclude_nondeterministic_ops=false",
        ),
    ],
)
def test_it_is_said_whether_steps_are_exact(
    device: Any, is_exact: bool, flags: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XLA_FLAGS", flags)
    assert describe_exactness(device.platform, is_exact=is_exact) == expected


def test_it_is_said_that_xla_has_lost_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation, "_EXACT", "xla_gpu_of_former_days")
    assert describe_exactness("gpu", is_exact=True).endswith("has no option xla_gpu_of_former_days")


@pytest.mark.parametrize(
    "error",
    [
        jax.errors.JaxRuntimeError(
            "UNIMPLEMENTED: HLO instruction %pool does not have a deterministic implementation, but run-to-run "
            "determinism is required."
        ),
        IndexError("raw_hash_map::at"),
    ],
)
def test_what_cannot_be_exact_names_the_setting(error: Exception) -> None:
    def fail(x: Any) -> Any:
        raise error

    with pytest.raises(ModelError, match=r"same bits each time: .*runtime\.exact=false, in a script devices=Placement"):
        jit_on([GPU], fail)(1)


@pytest.mark.parametrize("device", [CPU, GPU])
def test_other_errors_of_programs_stay_as_they_are_without_the_note_of_jax(device: Any) -> None:
    def fail(x: Any) -> Any:
        raise IndexError("list index out of range")

    with pytest.raises(IndexError, match="out of range") as error:
        jit_on([device], fail)(1)
    assert error.value.__notes__ == []


@pytest.mark.parametrize("is_exact", [True, False])
def test_loops_compile_as_their_placement_says(is_exact: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def jit(_: Any, function: Any, *, is_exact: bool, **options: Any) -> Any:
        asked.append(is_exact)
        return jax.jit(function, **options)

    for place in ("trellis.loops.fused_steps", "trellis.loops.eval_loop"):
        monkeypatch.setattr(f"{place}.jit_on", jit)
    placement = Placement(exact=is_exact)
    tiny.eval_loop(devices=placement)(tiny.train_loop(n_steps=1, devices=placement).next_step())
    assert asked == [is_exact, is_exact]


def test_a_program_that_is_kept_is_kept_for_its_options(tmp_path: Path) -> None:
    def tripled(x: Any) -> Any:
        return x * 3

    with compilation_cache(tmp_path):
        for is_exact in (True, False, True):
            jit_on([GPU], tripled, is_exact=is_exact)(jax.numpy.arange(3))
    assert len(list(tmp_path.glob("jit_tripled-*-cache"))) == 2


@pytest.mark.parametrize("place", ["trellis.loops.fused_steps", "trellis.loops.eval_loop"])
def test_steps_and_evaluations_are_compiled_with_them(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def jit(_: Any, function: Any, *, is_exact: bool, **options: Any) -> Any:
        return jax.jit(function, compiler_options={"xla_gpu_of_former_days": False}, **options)

    monkeypatch.setattr(f"{place}.jit_on", jit)
    with pytest.raises(jax.errors.JaxRuntimeError, match="xla_gpu_of_former_days"):
        tiny.eval_loop()(tiny.train_loop(n_steps=1).next_step())
