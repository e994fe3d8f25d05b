"""What a task may take for a model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

from trellis.aliases import Apply


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


Around: TypeAlias = Callable[[Apply], Apply]
"""What turns a model's `apply` into another with the same contract."""


@dataclass(frozen=True)
class WrappedModel:
    """A model that is run in another way than by itself, such as in another precision."""

    model: Model
    around: Around

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
