"""Which stages a progressive training has, and how a model grows from one to the next."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from itertools import accumulate
from typing import Any, TypeVar

from trellis.config import Problem, origin_of, raise_if_any
from trellis.errors import ArgumentError
from trellis.optimizers import OptimizationConfig
from trellis.registry import Registry
from trellis.runtime import RuntimeConfig
from trellis.tasks import BoundModel, Task
from trellis.trainer.configs import ProgressiveConfig, ProgressiveTrainerConfig
from trellis.trainer.stage import stage_id_of
from trellis.trainer.task_calls import build_task_inputs


class ProgressivePolicy(ABC):
    """The stages of a training: how long each is, and its model, optimizer and data.

    Stages have numbers from 0 on. What a method returns depends on the number and the configs alone, so that a resumed
    run finds the stage that it was in.

    Example:
        @trellis.register_policy_cls(StackingConfig)
        class StackingPolicy(trellis.ProgressivePolicy):
            def num_stages(self):
                return 3

            def num_steps(self, stage_id):
                return 1000

            def get_model(self, stage_id, old_model=None):
                params = {} if old_model is None else stacked(old_model.params)
                return trellis.BoundModel(Encoder(n_layers=2**stage_id), params=params)

    Args:
        config: Its `progressive` has the policy's own settings.
    """

    def __init__(self, task: Task, *, config: ProgressiveTrainerConfig, runtime: RuntimeConfig | None = None) -> None:
        self.task = task
        # `Any`: its `progressive` is of the class that the policy is registered for.
        self.config: Any = config
        self.runtime = runtime or RuntimeConfig()

    @abstractmethod
    def num_stages(self) -> int:
        """How many stages there are."""

    @abstractmethod
    def num_steps(self, stage_id: int) -> int:
        """How many steps a stage has."""

    @abstractmethod
    def get_model(self, stage_id: int, old_model: BoundModel | None = None) -> BoundModel:
        """The model of a stage, with the variables that are known; those that are left out are initialised.

        Args:
            old_model: That of the stage before, as it was trained. None in the first stage, and for a stage whose
                variables come from a checkpoint file: the module is the same then.
        """

    def get_optimizer(self, stage_id: int) -> OptimizationConfig:
        """The optimizer of a stage, as its config; its state and its schedule start with the stage."""
        optimizer: OptimizationConfig = self.config.optimizer_config
        return optimizer

    def get_train_dataset(self, stage_id: int) -> Any:
        """The training data of a stage.

        A stream is asked for the batches of this stage's own steps, which are counted from the start of the training.
        An iterator is read from its beginning, and so has to be a new one for each stage.
        """
        return self.build_inputs(self.task.task_config.train_data)

    def get_eval_dataset(self, stage_id: int) -> Any:
        """The validation data of a stage."""
        return self.build_inputs(self.task.task_config.validation_data)

    def build_inputs(self, params: Any) -> Any:
        """The task's stream for a data config, for stages whose data is the task's own with other settings."""
        return build_task_inputs(self.task, params=params, runtime=self.runtime)

    @cached_property
    def last_steps(self) -> tuple[int, ...]:
        """The step at which each stage ends."""
        n_stages = self.num_stages()
        lengths = [self.num_steps(stage_id) for stage_id in range(n_stages)]
        place = type(self).__name__
        if not lengths or min(lengths) < 1:
            raise ArgumentError(
                f"{place} has {n_stages} stages, of {lengths} steps. It needs at least one, of at least one step each."
            )
        train_steps, planned = self.config.train_steps, sum(lengths)
        if train_steps > planned:
            path, listed = "trainer.train_steps", " + ".join(map(str, lengths))
            message = f"{path} is {train_steps}, but the stages of {place} have {listed} = {planned} steps."
            advice = f"Set it to {planned}, or give the stages more steps."
            raise_if_any([Problem(message, origin_of(self.config, "train_steps"), path, advice)])
        return tuple(accumulate(lengths))

    def compute_stage_id(self, step: int) -> int:
        """The stage that a checkpoint of a step comes from: at a border, the stage that ends there."""
        return stage_id_of(step, last_steps=self.last_steps)


PolicyClass = TypeVar("PolicyClass", bound=type[ProgressivePolicy])

_policies: Registry[Callable[..., ProgressivePolicy]] = Registry(
    "progressive policy", advice="Import the module that has its policy, which register_policy_cls makes known."
)


def register_policy_cls(config_cls: type[ProgressiveConfig]) -> Callable[[PolicyClass], PolicyClass]:
    """Returns a decorator that makes a class the policy of runs whose `trainer.progressive` is of a class.

    Example:
        @register_policy_cls(StackingConfig)
        class StackingPolicy(ProgressivePolicy): ...
    """
    return _policies.register(config_cls)


def get_policy(task: Task, *, config: ProgressiveTrainerConfig, runtime: RuntimeConfig) -> ProgressivePolicy:
    """Returns the policy that is registered for the class of `trainer.progressive`, or for its nearest parent."""
    if config.progressive is None:
        path = "trainer.progressive"
        advice = "Let the experiment set it to a config whose policy is registered (register_policy_cls)."
        raise_if_any([Problem(f"{path} is not set.", origin_of(config, "progressive"), path, advice)])
    return _policies.get(type(config.progressive))(task, config=config, runtime=runtime)
