"""Running a function once, with little to compile."""

from typing import Any

import jax
from jax.extend.core import Jaxpr, Var, jaxpr_as_fun

from trellis.aliases import PyTree


def run_by_parts(function: jax.stages.Wrapped, *given: Any) -> PyTree:
    """What a function returns, by running only those of its operations that this depends on, each compiled by itself.

    A program that runs only once, such as a model's initialization, takes longer to compile than to run, the more so
    the more layers there are. Its parts are compiled once for all layers that are alike.

    Args:
        function: As `jax.jit` returns it; functions within it that are so too are parts, unless they are run by parts.
    """
    traced = function.trace(*given)
    closed, shapes = traced.jaxpr, traced.out_info
    leaves = jaxpr_as_fun(closed.replace(jaxpr=_without_unused(closed.jaxpr)))(*jax.tree.leaves(given))
    return jax.tree.unflatten(jax.tree.structure(shapes), leaves)


def _without_unused(jaxpr: Jaxpr) -> Jaxpr:
    used, kept = set(_variables(jaxpr.outvars)), []
    for equation in reversed(jaxpr.eqns):
        if equation.effects or used.intersection(equation.outvars):
            kept.append(equation)
            used.update(_variables(equation.invars))
    reduced: Jaxpr = jaxpr.replace(eqns=kept[::-1])
    return reduced


def _variables(atoms: list[Any]) -> list[Var]:
    return [atom for atom in atoms if isinstance(atom, Var)]
