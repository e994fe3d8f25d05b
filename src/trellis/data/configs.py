"""Settings of a stream of batches."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from trellis.config import Config

_NO_SERVICE = "there is no tf.data service: each process makes its batches itself"
_RANDOM_ACCESS = "records are read by random access"


@dataclass
class DataConfig(Config):
    """Which records make a stream, in what order, and how many make a batch."""

    input_path: str | list[str] | dict[str, str | list[str]] = ""
    """Files, as paths or patterns separated by commas, or as a list; or several sources by name."""
    tfds_name: str | dict[str, str] = ""
    """A data set of the package `tensorflow-datasets`, in the place of files."""
    tfds_split: str = ""
    """Which part of it, such as `train` or `train[:10%]`."""
    global_batch_size: int = 0
    """Examples in a batch over all processes and devices."""
    is_training: bool | None = None
    """Whether to shuffle and to repeat without end."""
    drop_remainder: bool = True
    """Whether to leave out a last batch that is short."""
    shuffle_buffer_size: int = 100
    cache: bool = False
    cycle_length: int | None = None
    block_length: int = 1
    ram_budget: int | None = None
    deterministic: bool | None = None
    sharding: bool = True
    enable_tf_data_service: bool = False
    tf_data_service_address: str | None = None
    tf_data_service_job_name: str | None = None
    tfds_data_dir: str = ""
    tfds_as_supervised: bool = False
    tfds_skip_decoding_feature: str = ""
    """Names of features to leave as bytes, separated by commas."""
    enable_shared_tf_data_service_between_parallel_trainers: bool = False
    apply_tf_data_service_before_batching: bool = False
    trainer_id: str | None = None
    seed: int | None = None
    """Of the order of the examples; null is the runtime's seed."""
    prefetch_buffer_size: int | None = None
    autotune_algorithm: str | None = None

    no_effect: ClassVar[Mapping[str, str]] = {
        "shuffle_buffer_size": "shuffling is over the whole data, whatever its size",
        "cache": "examples are decoded once and memory-mapped",
        "cycle_length": _RANDOM_ACCESS,
        "block_length": _RANDOM_ACCESS,
        "ram_budget": _RANDOM_ACCESS,
        "deterministic": "the order is always a function of seed and step",
        "sharding": "each process makes the same global batch, and its devices take their part of it",
        "enable_tf_data_service": _NO_SERVICE,
        "tf_data_service_address": _NO_SERVICE,
        "tf_data_service_job_name": _NO_SERVICE,
        "enable_shared_tf_data_service_between_parallel_trainers": _NO_SERVICE,
        "apply_tf_data_service_before_batching": _NO_SERVICE,
        "trainer_id": _NO_SERVICE,
        "prefetch_buffer_size": "a loop has the batches of its next compiled call ready",
        "autotune_algorithm": "there is nothing to tune",
    }
