"""The state before the first step: its shapes, and its arrays."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from trellis.aliases import Init, Key, Variables
from trellis.errors import ModelError
from trellis.loops.state import TrainState, plain_errors
from trellis.runtime import Placement, run_by_parts, shardings_of

Initialize = TypeVar("Initialize", bound=Callable[..., Variables])


class InitialState:
    """Makes the state that a training starts from.

    Args:
        init: Makes the model's own variables.
        initialize: Returns the variables to start from, given the model's own; None if these are it.
    """

    def __init__(
        self,
        init: Init,
        *,
        optimizer: optax.GradientTransformation | None,
        placement: Placement,
        initialize: Callable[[Variables], Variables] | None = None,
    ) -> None:
        self._init = init
        self._optimizer = optimizer
        self._placement = placement
        self._initialize = initialize
        # Compiled as a part of what calls it, so that its shapes and its arrays take one trace.
        self._make = jax.jit(self._make_state, inline=True)

    def shapes(self, rngs: Mapping[str, Key], *inputs: Any) -> TrainState:
        """The shapes of the state for inputs of such shapes, each with the sharding that it is to have."""
        shapes: TrainState = self._placement.shapes(self._make, rngs, *inputs)
        return shapes

    def build(self, rngs: Mapping[str, Key], *inputs: Any, shapes: TrainState, step: int) -> TrainState:
        """The state, each array where it is to be.

        Args:
            shapes: What `shapes` has returned for such inputs.
            step: How many steps were completed before.
        """
        # A user's `initialize` may be traced, too.
        with plain_errors():
            variables = self._build_variables(rngs, *inputs, like={"params": shapes.params, **shapes.model_state})
        params = variables.pop("params")
        optimizer_state: Any = ()
        if self._optimizer is not None:
            # As one program, which makes each array where it is to be.
            init = jax.jit(self._optimizer.init, out_shardings=shardings_of(shapes.optimizer_state))
            optimizer_state = init(params)
        state = TrainState(jnp.int32(step), params, variables, optimizer_state)
        # A copy: functions may return arrays that they did not make, and the loop gives its own away.
        own: TrainState = self._placement.put_state(state, like=shapes)
        return own

    def _build_variables(self, *arguments: Any, like: Variables) -> dict[str, Any]:
        initialize, build = self._initialize, self._placement.build
        if initialize is None:
            return dict(build(jax.jit(self._own_variables), *arguments, like=like))
        if is_traceable(initialize) and not self._placement.shares_states:
            # As one function: what is replaced is then never made.
            return dict(build(jax.jit(self._initialized_variables), *arguments, like=like))
        own = build(jax.jit(self._own_variables), *arguments, like=like)
        return dict(self._placement.put_state(self._initialized(own), like=like))

    def _initialized_variables(self, *arguments: Any) -> Variables:
        return self._initialized(self._own_variables(*arguments))

    def _initialized(self, own: Variables) -> Variables:
        assert self._initialize is not None
        return overlaid(own, self._initialize(own), place="TrainTask.initialize")

    def _own_variables(self, *arguments: Any) -> Variables:
        state: TrainState = nn.meta.unbox(run_by_parts(self._make, *arguments))
        return {"params": state.params, **state.model_state}

    def _make_state(self, rngs: dict[str, Key], *inputs: Any) -> TrainState:
        """The model's own state, with parameters in the boxes that hold the names of their axes, if it names them."""
        variables = dict(self._init(rngs, *inputs))
        params = variables.pop("params", {})
        optimizer_state = () if self._optimizer is None else self._optimizer.init(nn.meta.unbox(params))
        return TrainState(jnp.int32(0), params, variables, optimizer_state)


def traceable(initialize: Initialize) -> Initialize:
    """Marks a function that neither looks at the variables it is given nor keeps them: JAX can trace it.

    What such a function replaces is never made.
    """
    vars(initialize)["is_traceable"] = True
    return initialize


def is_traceable(initialize: Callable[..., Variables]) -> bool:
    """Whether a function is marked; one that calls a marked one is not."""
    return getattr(initialize, "is_traceable", False)


def overlaid(own: Variables, others: Variables, *, place: str) -> Variables:
    """A model's own variables, with others in the place of those that have their names.

    Args:
        place: Where the others come from, for errors.
    """
    replacements = {_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(dict(others))}
    originals = {_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(dict(own))}
    problems = [
        f"  {name}: {_describe(leaf)} given, {_describe(originals[name]) if name in originals else '—'} in the model"
        for name, leaf in replacements.items()
        if name not in originals or jnp.shape(leaf) != jnp.shape(originals[name])
    ]
    if problems:
        listed = "\n".join(problems)
        raise ModelError(
            f"{place} returned variables that its model does not have:\n{listed}\n"
            f"Return arrays as the model has them; what is left out keeps the values that the model starts with."
        )

    def pick(path: Any, leaf: Any) -> Any:
        replacement = replacements.get(_name(path), leaf)
        has_dtype = jnp.result_type(replacement) == leaf.dtype
        return replacement if has_dtype else jnp.asarray(replacement, leaf.dtype)

    variables: Variables = jax.tree_util.tree_map_with_path(pick, dict(own))
    return variables


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _describe(leaf: Any) -> str:
    return f"{jnp.result_type(leaf)}{list(jnp.shape(leaf))}"
