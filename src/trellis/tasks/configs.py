"""Settings of a problem: its model and its data."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from trellis.config import Config, merge, origin_of, setting_at
from trellis.data import DataConfig, places_in
from trellis.disk import scheme_of
from trellis.remote import address_of, fetched

_Config = TypeVar("_Config", bound=Config)
BASE = "base"
"""The collection of the weights beside which adapters are trained."""


@dataclass
class DifferentialPrivacyConfig(Config):
    """How gradients are clipped and blurred so that no example can be told from them."""

    clipping_norm: float = 100000000.0
    noise_multiplier: float = 0.0
    """The noise's standard deviation, as a multiple of the norm."""


@dataclass
class LoraConfig(Config):
    """Adapters that are trained beside weights which stay as they are: two small matrices for each large one (LoRA)."""

    rank: int = 8
    """How many columns the first matrix has, and rows the second one."""
    alpha: float = 16.0
    """What the two add to a layer is scaled by `alpha / rank`."""
    dropout: float = 0.0
    """Of what goes into the first matrix, in training."""
    targets: list[str] = field(default_factory=lambda: ["query", "value"])
    """Paths of the dense layers that get adapters, or of what these are in, from any name on: `query` is each layer of
    that name."""
    also: list[str] = field(default_factory=list)
    """Paths of what is trained whole beside the adapters, from any name on, such as a head that is new."""
    init_adapter: str = ""
    """A directory of PEFT's whose adapters are those of step 0; empty for new ones, which change nothing at first."""


@dataclass
class TaskConfig(Config):
    """What every task has; a task's own config inherits it and adds its fields."""

    init_checkpoint: str = ""
    """A checkpoint file, a directory with some, or a served model, to take parameters from at step 0."""
    init_parts: list[str] = field(default_factory=list)
    """Paths of the parts that are taken from there, such as `encoder`; empty is all that the model takes by itself."""
    if TYPE_CHECKING:
        # A task's own config names the class of its model: to a type checker that is no mistake.
        model: Any = None
    else:
        model: Config | None = None
    train_data: DataConfig = DataConfig()
    validation_data: DataConfig = DataConfig()
    name: str | None = None
    differential_privacy_config: DifferentialPrivacyConfig | None = None
    allow_image_summary: bool = False

    no_effect: ClassVar[Mapping[str, str]] = {"allow_image_summary": "summaries hold numbers"}
    task_module: ClassVar[str] = ""
    """The module that registers the task of these configs, to be imported when a run starts."""

    @property
    def starts_from(self) -> str:
        """Where parameters are taken from at step 0; empty if they are all new."""
        return self.init_checkpoint


@dataclass
class DigitsConfig(TaskConfig):
    """Which of ten digits a small picture shows; the data comes with Trellis."""

    hidden_size: int = 64
    dropout_rate: float = 0.1
    train_data: DataConfig = DataConfig(global_batch_size=32, is_training=True)
    validation_data: DataConfig = DataConfig(global_batch_size=64, is_training=False, drop_remainder=False)

    task_module: ClassVar[str] = "trellis.tasks.digits"


@dataclass(frozen=True)
class InputContext:
    """What a stream may depend on beside its own config.

    Published streams ask it for their share of the data: here a stream is one, and its batches are global.
    """

    seed: int = 0
    """The seed of the run, for data configs that have none of their own."""
    num_input_pipelines: int = 1
    input_pipeline_id: int = 0
    num_replicas_in_sync: int = 1

    def get_per_replica_batch_size(self, global_batch_size: int) -> int:
        """The batch size of the stream: that of all devices together."""
        return global_batch_size


def with_copies(config: _Config) -> _Config:
    """The config with copies on this machine in the place of addresses; the same object if it has none."""
    return _with_places(config, _copy)


def with_addresses(config: _Config) -> _Config:
    """The config with the addresses that `with_copies` has replaced; the same object if there are none."""
    return _with_places(config, lambda path, text: address_of(text))


def _copy(path: str, text: str) -> str:
    return str(fetched(text, name=f"task.{path}")) if scheme_of(text) else text


def _with_places(config: _Config, replace: Callable[[str, str], str]) -> _Config:
    changed = None
    # A task that is made by hand may have an object of its own for a config.
    for path, value in places_in(config) if isinstance(config, Config) else ():
        other = _mapped(value, partial(replace, path))
        if other != value:
            changed = changed or config.replace()
            merge(changed, setting_at(path, other, origin_of(config, path)))
    return changed or config


def _mapped(value: Any, replace: Callable[[str], str]) -> Any:
    """A path, several with commas between, a list or a mapping of them, each replaced."""
    if isinstance(value, str):
        return ",".join(replace(part.strip()) if "/" in part else part for part in value.split(","))
    if isinstance(value, dict):
        return {name: _mapped(part, replace) for name, part in value.items()}
    return [_mapped(part, replace) for part in value] if isinstance(value, list) else value
