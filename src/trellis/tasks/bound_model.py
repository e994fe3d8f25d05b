"""What a task may take for a model, and the same together with its variables, as a task's steps call it."""

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import flax.linen as nn
import jax

from trellis.aliases import Apply, Init, Key, PyTree, Variables
from trellis.loops import run_model
from trellis.runtime import count_weights

_LOSSES = "losses"
_SOWN = (_LOSSES, "intermediates")


@runtime_checkable
class Model(Protocol):
    """What `Task.build_model` returns: a linen module, or anything else with its `init` and `apply`."""

    @property
    def init(self) -> Any:
        """Makes the variables: an `Init`."""

    @property
    def apply(self) -> Any:
        """Runs the model: an `Apply`."""


@runtime_checkable
class ModelOfTwoModes(Model, Protocol):
    """A model that has a function of its own for evaluation, such as an `NNXModel`."""

    @property
    def eval_apply(self) -> Any:
        """Runs the model in evaluation mode: an `Apply`."""


@runtime_checkable
class ModelWithItems(Protocol):
    """A model that names the parts of its parameters that a warm start takes."""

    @property
    def checkpoint_items(self) -> Mapping[str, str]:
        """Where a checkpoint file has each part, to where this model has it: `{"encoder": "encoder"}`."""


@dataclass(frozen=True)
class WrappedModel:
    """A model that is run in another way than by itself, such as in another precision."""

    model: Model
    around: Callable[[Apply], Apply]
    """Turns the model's `apply` into another with the same contract."""

    @property
    def init(self) -> Any:
        """Makes the variables, as the model itself does."""
        return self.model.init

    @property
    def apply(self) -> Any:
        """Runs the model."""
        return self.around(self.model.apply)


class InferenceStep(Protocol):
    """What a model answers to inputs, to be traced and compiled."""

    def __call__(self, inputs: Any, model: Any, /) -> Any:
        """The outputs; the model is a `BoundModel`."""


class BoundModel:
    """A model with its variables: `model(inputs, training=False)` runs it.

    A call tells the model whether it is `training` if the model's `__call__` has an argument of that name. What a call
    leaves behind is here afterwards: `model_state`, after training, and `losses`, the values that layers have sown
    (`self.sow("losses", name, value)`). Published steps ask a model what was compiled into it: here that is nothing.

    Example:
        outputs = BoundModel(Classifier(), params=checkpoint.model_params)(images)

    Args:
        rngs: Keys by the names of the model's rng collections, such as `dropout`.
    """

    compiled_loss: None = None
    compiled_metrics: None = None
    metrics: tuple[()] = ()

    def __init__(
        self,
        model: Model,
        *,
        params: PyTree,
        model_state: Mapping[str, PyTree] | None = None,
        rngs: Mapping[str, Key] | None = None,
    ) -> None:
        wrapped = model if isinstance(model, WrappedModel) else WrappedModel(model, lambda apply: apply)
        # `Any`: whoever asks for it knows what it is, and that it has more than an `init` and an `apply`.
        self.model: Any = wrapped.model
        self._around = wrapped.around
        self.params = params
        self.model_state: Mapping[str, PyTree] = model_state or {}
        self.losses: list[Any] = []
        self._rngs = rngs or {}

    def __repr__(self) -> str:
        return f"BoundModel({type(self.model).__name__}, {count_weights(self.params)} weights)"

    @property
    def variables(self) -> Variables:
        """All collections, parameters included."""
        return {"params": self.params, **self.model_state}

    @property
    def apply(self) -> Apply:
        """Runs any method of the model by its name, such as `method="generate"`, with variables that it is given."""
        return self._around(self.model.apply)

    def with_variables(self, variables: Variables) -> "BoundModel":
        """The same model with other variables."""
        other = copy.copy(self)
        other.params = variables.get("params", {})
        other.model_state = {name: value for name, value in variables.items() if name != "params"}
        return other

    def __call__(self, inputs: Any, *, training: bool = False) -> Any:
        """The outputs; a tuple of inputs is several arguments."""
        arguments = inputs if isinstance(inputs, tuple) else (inputs,)
        mode = {"training": training} if _is_told(self.model) else {}
        apply = self.model.apply
        if isinstance(self.model, ModelOfTwoModes) and not training:
            apply = self.model.eval_apply
        mutable = [*self.model_state, _LOSSES] if training else [_LOSSES]
        outputs, changes = run_model(
            self._around(apply), self.variables, arguments, rngs=self._rngs, mutable=mutable, **mode
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
