"""How programs are compiled: those that run again and again, and those that run once."""

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import Jaxpr, Var, jaxpr_as_fun

from trellis.aliases import PyTree

# Without Triton's matrix products a step compiles sooner and runs as fast: docs/decisions/0008.
_ON_GPUS = {"xla_gpu_enable_triton_gemm": False}


def jit_on(devices: Sequence[Any], function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """`jax.jit` with the options of XLA that suit the devices. What XLA_FLAGS says itself is left as it says."""
    chosen = _ON_GPUS if devices[0].platform == "gpu" else {}
    flags = os.environ.get("XLA_FLAGS", "")
    options_of_xla = {name: value for name, value in chosen.items() if name not in flags and _is_known(name)}
    return jax.jit(function, compiler_options=options_of_xla or None, **options)


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
