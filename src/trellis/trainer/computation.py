"""A model as the steps of a run compute it."""

from trellis.loops import TrainState
from trellis.runtime import Placement, Precision, RuntimeConfig
from trellis.tasks import Model, WrappedModel


def computing_model(
    model: Model, *, runtime: RuntimeConfig, placement: Placement | None = None, shapes: TrainState | None = None
) -> Model:
    """The model in the run's precision; with a placement, its parameters are gathered where they are shared out.

    Args:
        shapes: Those of the state, with their shardings.
    """
    dtype = runtime.mixed_precision_dtype
    lower = Precision(dtype or "float32").applied_to
    if placement is not None and shapes is not None and placement.shares_params:
        gather = placement.gathering({"params": shapes.params, **shapes.model_state})
        # In this order what is gathered is already small.
        return WrappedModel(model, lambda apply: lower(gather(apply)))
    return WrappedModel(model, lower) if dtype else model
