"""The stretch of a training that a Trainer runs: its model, its data, where it starts."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from trellis.aliases import Batch, Variables
from trellis.data import is_stream
from trellis.errors import ModelError
from trellis.extensions import CheckpointFileReader
from trellis.loops import Checkpoint, CheckpointSource, Replay, TrainState
from trellis.runtime import Placement, RuntimeConfig, run_by_parts, shardings_of
from trellis.tasks import BoundModel, InputContext, Model, Task, is_traceable


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What a stretch of a training runs on. A training that is not progressive is one stage."""

    model: Model
    build_train_data: Callable[[], Any]
    build_validation_data: Callable[[], Any]
    initialize: Callable[[BoundModel], Variables]
    """From the model with its own variables to the variables before the first step."""
    start_step: int = 0
    """How many steps were completed before. Checkpoint files of this step and earlier ones are not of this stage."""
    periods: tuple[int, ...] = ()
    """Yields a checkpoint at multiples of these too."""


class Start(CheckpointSource):
    """The newest checkpoint file of the run; if there is none, what the stage starts from."""

    def __init__(self, reader: CheckpointFileReader, *, initialize: Callable[[], Checkpoint]) -> None:
        self.target = reader.target
        self._reader = reader
        self._initialize = initialize

    def __call__(self, initializer: Checkpoint) -> Checkpoint:
        """The checkpoint to start from."""
        found = self._reader(initializer)
        return self._initialize() if found is initializer else found


def first_state(
    stage: Stage, make: jax.stages.Wrapped, *given: Any, optimizer: Any, like: TrainState, placement: Placement
) -> TrainState:
    """The state before the first step: the model's own variables after `stage.initialize`, and a new optimizer's.

    Args:
        make: Makes the model's own, of what is given, as `state_maker` returns it.
        like: Its shapes.
    """

    def own(*given: Any) -> Variables:
        state: TrainState = nn.meta.unbox(run_by_parts(make, *given))
        return {"params": state.params, **state.model_state}

    def initialized(variables: Variables) -> Variables:
        bound = BoundModel(stage.model, params={}).with_variables(variables)
        return overlaid(variables, stage.initialize(bound), place="Task.initialize")

    shapes = {"params": like.params, **like.model_state}
    if is_traceable(stage.initialize) and not placement.shares_states:
        # What is replaced is then never made.
        variables = placement.build_state(jax.jit(lambda *given: initialized(own(*given))), *given, like=shapes)
    else:
        made = placement.build_state(jax.jit(own), *given, like=shapes)
        variables = placement.put_state(initialized(made), like=shapes)
    params = variables.pop("params")
    # As one program, which makes each array where it is to be.
    init = jax.jit(optimizer.init, out_shardings=shardings_of(like.optimizer_state))
    return TrainState(jnp.int32(0), params, variables, init(params))


def overlaid(own: Variables, given: Variables, *, place: str) -> Variables:
    """A model's own variables, with those that are given in their place."""
    leaves = {_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(dict(given))}
    wanted = {_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(dict(own))}
    wrong = [
        f"  {name}: {_described(leaf)} given, {_described(wanted[name]) if name in wanted else '—'} in the model"
        for name, leaf in leaves.items()
        if name not in wanted or jnp.shape(leaf) != jnp.shape(wanted[name])
    ]
    if wrong:
        listed = "\n".join(wrong)
        raise ModelError(
            f"{place} returned variables that its model does not have:\n{listed}\n"
            f"Return arrays as the model has them; what is left out keeps the values that the model starts with."
        )

    def pick(path: Any, leaf: Any) -> Any:
        given = leaves.get(_name(path), leaf)
        return given if jnp.result_type(given) == leaf.dtype else jnp.asarray(given, leaf.dtype)

    variables: Variables = jax.tree_util.tree_map_with_path(pick, dict(own))
    return variables


def whole_stage(task: Task, *, runtime: RuntimeConfig) -> Stage:
    """The one stage of a training from the first step to the last."""
    config = task.task_config
    return Stage(
        model=task.build_model(),
        build_train_data=lambda: build_task_inputs(task, params=config.train_data, runtime=runtime),
        build_validation_data=lambda: build_task_inputs(task, params=config.validation_data, runtime=runtime),
        initialize=task.initialize,
    )


def build_task_inputs(task: Task, *, params: Any, runtime: RuntimeConfig) -> Any:
    """The stream of a task for a data config."""
    takes_context = "input_context" in inspect.signature(task.build_inputs).parameters
    context = {"input_context": InputContext(seed=runtime.seed)} if takes_context else {}
    return task.build_inputs(params, **context)


def peeked(data: Any) -> tuple[Batch, Any]:
    """The first batch, and data that still has it."""
    if is_stream(data):
        return data.batch(0), data
    if isinstance(data, Iterator):
        first = next(data)
        return first, chain([first], data)
    return next(iter(Replay(data, n_batches=1, place="Task.build_inputs"))), data


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _described(leaf: Any) -> str:
    return f"{jnp.result_type(leaf)}{list(jnp.shape(leaf))}"
