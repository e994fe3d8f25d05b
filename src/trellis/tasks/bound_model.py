"""A model together with its variables, as a task's steps call it."""

import copy
import inspect
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax

from trellis.aliases import Init, Key, PyTree, Variables
from trellis.loops import run_model
from trellis.tasks.models import Model, ModelOfTwoModes, WrappedModel

_LOSSES = "losses"
_SOWN = (_LOSSES, "intermediates")


class BoundModel:
    """A model with its variables: `model(inputs, training=False)` runs it.

    A call tells the model whether it is `training` if the model's `__call__` has an argument of that name. What a call
    leaves behind is here afterwards: `model_state`, after training, and `losses`, the values that layers have sown
    (`self.sow("losses", name, value)`).

    Example:
        outputs = BoundModel(Classifier(), params=checkpoint.model_params)(images)

    Args:
        rngs: Keys by the names of the model's rng collections, such as `dropout`.
    """

    def __init__(
        self,
        model: Model,
        *,
        params: PyTree,
        model_state: Mapping[str, PyTree] | None = None,
        rngs: Mapping[str, Key] | None = None,
    ) -> None:
        wrapped = model if isinstance(model, WrappedModel) else WrappedModel(model, lambda apply: apply)
        self.model, self._around = wrapped.model, wrapped.around
        self.params = params
        self.model_state: Mapping[str, PyTree] = model_state or {}
        self.losses: list[Any] = []
        self._rngs = rngs or {}

    @property
    def variables(self) -> Variables:
        """All collections, parameters included."""
        return {"params": self.params, **self.model_state}

    def with_variables(self, variables: Variables) -> "BoundModel":
        """The same model with other variables."""
        other = copy.copy(self)
        other.params = variables.get("params", {})
        other.model_state = {name: value for name, value in variables.items() if name != "params"}
        return other

    def __call__(self, inputs: Any, *, training: bool = False) -> Any:
        """The outputs; a tuple of inputs is several arguments."""
        arguments = inputs if isinstance(inputs, tuple) else (inputs,)
        told = {"training": training} if _is_told(self.model) else {}
        apply = self.model.apply
        if isinstance(self.model, ModelOfTwoModes) and not training:
            apply = self.model.eval_apply
        mutable = [*self.model_state, _LOSSES] if training else [_LOSSES]
        outputs, changes = run_model(
            self._around(apply), self.variables, arguments, rngs=self._rngs, mutable=mutable, **told
        )
        changed = {name: value for name, value in changes.items() if name in self.model_state}
        self.losses = jax.tree.leaves(changes.get(_LOSSES, {}))
        self.model_state = {**self.model_state, **changed}
        return outputs


def lasting_init(model: Model) -> Init:
    """The model's `init` without what layers sow, which is made anew by each call."""

    def init(rngs: Mapping[str, Any], *inputs: Any) -> Variables:
        return {name: value for name, value in model.init(rngs, *inputs).items() if name not in _SOWN}

    return init


def _is_told(model: Any) -> bool:
    call: Any = type(model).__call__ if isinstance(model, nn.Module) else model.apply
    return "training" in inspect.signature(call).parameters
