"""What a function costs."""

import math
from typing import Any

import jax
from jax.extend.core import Jaxpr


def count_flops(jaxpr: Jaxpr) -> float:
    """About how many floating-point operations it takes: those of products, and one for each element made otherwise.

    A scan counts as often as it runs, a loop of unknown length once, and of several branches the dearest.
    """
    return sum(map(_count, jaxpr.eqns))


def _count(equation: Any) -> float:
    name, params = equation.primitive.name, equation.params
    n_made: int = sum(math.prod(getattr(var.aval, "shape", ())) for var in equation.outvars)
    if name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        n_contracted: int = math.prod(equation.invars[0].aval.shape[axis] for axis in contracted)
        return 2.0 * n_made * n_contracted
    if name == "conv_general_dilated":
        kernel: tuple[int, ...] = equation.invars[1].aval.shape
        n_features: int = kernel[params["dimension_numbers"].rhs_spec[0]]
        n_apart: int = math.prod(params["lhs_dilation"])
        return 2.0 * n_made * math.prod(kernel) / n_features / n_apart
    within = [count_flops(leaf) for leaf in jax.tree.leaves(params, is_leaf=_is_jaxpr) if _is_jaxpr(leaf)]
    if not within:
        return float(n_made)
    return max(within) if name == "cond" else params.get("length", 1) * sum(within)


def _is_jaxpr(leaf: Any) -> bool:
    # Whether it is closed or not, which are one class in new versions of JAX.
    return getattr(leaf, "eqns", None) is not None
