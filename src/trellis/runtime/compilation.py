"""How programs are compiled: those that run again and again, and those that run once."""

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import Jaxpr, Var, jaxpr_as_fun

from trellis.aliases import PyTree
from trellis.errors import ModelError, drop_jax_note

# Without Triton's matrix products a step compiles sooner and runs as fast: docs/decisions/0008.
_ON_GPUS = {"xla_gpu_enable_triton_gemm": False}
# Sums in an order that is always the same, and kernels that are not chosen by a clock: docs/decisions/0636.
_EXACT = "xla_gpu_exclude_nondeterministic_ops"
# What XLA says of an operation that it cannot run so; the second is what it says of cuDNN's attention.
_NOT_EXACT_ERRORS = ("deterministic implementation", "raw_hash_map::at")


def jit_on(
    devices: Sequence[Any], function: Callable[..., Any], *, is_exact: bool = True, **options: Any
) -> Callable[..., Any]:
    """`jax.jit` with the options of XLA that suit the devices. What XLA_FLAGS says itself is left as it says.

    Args:
        is_exact: Whether the same inputs have to give the same bits, each time and in each process.
    """
    if devices[0].platform != "gpu":
        return _with_plain_errors(jax.jit(function, **options))
    chosen = _ON_GPUS | ({_EXACT: True} if is_exact else {})
    flags = os.environ.get("XLA_FLAGS", "")
    options_of_xla = {name: value for name, value in chosen.items() if name not in flags and _is_known(name)}
    program = jax.jit(function, compiler_options=options_of_xla or None, **options)
    return _with_plain_errors(program, is_exact=_EXACT in options_of_xla)


def describe_exactness(platform: str, *, is_exact: bool) -> str:
    """Whether what `jit_on` compiles for a platform gives the same bits each time, and why not."""
    if platform != "gpu":
        return "exact to the bit"
    if not is_exact:
        return "not exact to the bit, as was asked for (runtime.exact=false, Placement(exact=False))"
    if not _is_known(_EXACT):
        return f"not exact to the bit: the XLA of JAX {jax.__version__} has no option {_EXACT}"
    flag = next((flag for flag in os.environ.get("XLA_FLAGS", "").split() if _EXACT in flag), "")
    if flag.lower().endswith(("=false", "=0")):
        return f"not exact to the bit: XLA_FLAGS says {flag}"
    return "exact to the bit"


def _with_plain_errors(program: Callable[..., Any], *, is_exact: bool = False) -> Callable[..., Any]:
    """The program, whose errors have no note of JAX on traces, and name the way out if XLA cannot compile it exactly.

    It is no wrapper of JAX's own: a call costs one more frame of Python.
    """

    def run(*arguments: Any, **keywords: Any) -> Any:
        try:
            return program(*arguments, **keywords)
        except Exception as error:
            drop_jax_note(error)
            if not is_exact or not _tells_of_order(error):
                raise
            reason = str(error).strip().splitlines()[0]
            raise ModelError(
                f"XLA cannot compile the step so that it gives the same bits each time: {reason} Compute this without "
                f"that operation, or go without exactness: runtime.exact=false, in a script "
                f"devices=Placement(exact=False)."
            ) from error

    return run


def _tells_of_order(error: Exception) -> bool:
    is_of_xla = isinstance(error, jax.errors.JaxRuntimeError | IndexError)
    return is_of_xla and any(text in str(error) for text in _NOT_EXACT_ERRORS)


@functools.cache
def _is_known(name: str) -> bool:
    """Whether XLA has that option still: it makes no promise about them."""
    try:
        jax.jit(lambda: 0, compiler_options={name: False}).lower().compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True


def run_by_parts(function: jax.stages.Wrapped, *arguments: Any) -> PyTree:
    """What a function returns, by running only those of its operations that this depends on, each compiled by itself.

    A program that runs only once, such as a model's initialization, takes longer to compile than to run, the more so
    the more layers there are. Its parts are compiled once for all layers that are alike.

    Args:
        function: As `jax.jit` returns it; functions within it that are so too are parts, unless they are run by parts.
    """
    traced = function.trace(*arguments)
    closed, shapes = traced.jaxpr, traced.out_info
    leaves = jaxpr_as_fun(closed.replace(jaxpr=_without_unused(closed.jaxpr)))(*jax.tree.leaves(arguments))
    return jax.tree.unflatten(jax.tree.structure(shapes), leaves)


def _without_unused(jaxpr: Jaxpr) -> Jaxpr:
    used, equations = set(_variables(jaxpr.outvars)), []
    for equation in reversed(jaxpr.eqns):
        if equation.effects or used.intersection(equation.outvars):
            equations.append(equation)
            used.update(_variables(equation.invars))
    reduced: Jaxpr = jaxpr.replace(eqns=equations[::-1])
    return reduced


def _variables(atoms: list[Any]) -> list[Var]:
    return [atom for atom in atoms if isinstance(atom, Var)]
