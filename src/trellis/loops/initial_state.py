"""The state before the first step: its shapes, and its arrays."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax.core.meta import unbox
from flax.core.scope import in_filter

from trellis.aliases import Init, Key
from trellis.loops.state import TrainState


def state_maker(
    init: Init, *, optimizer: optax.GradientTransformation | None, keep_names: bool = False
) -> jax.stages.Wrapped:
    """A function from the keys of `init` by name, and inputs, to the state before the first step.

    Args:
        keep_names: Whether parameters stay in the boxes that hold the names of their axes, if the model gives some.
    """

    def make(rngs: Mapping[str, Key], *inputs: Any) -> TrainState:
        named = dict(init(rngs, *inputs))
        plain = unbox(named)
        optimizer_state = () if optimizer is None else optimizer.init(plain.get("params", {}))
        variables = named if keep_names else plain
        return TrainState(jnp.int32(0), variables.pop("params", {}), variables, optimizer_state)

    # To learn the shapes and then to make the state takes one trace.
    return jax.jit(make, inline=True)


def mutable_names(model_state: Mapping[str, Any], mutable_collections: Any) -> list[str]:
    """The collections that a step may change, of those that the model has."""
    return [name for name in model_state if in_filter(mutable_collections, name)]
