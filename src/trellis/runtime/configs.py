"""Settings of where a run takes place."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from trellis.aliases import ComputeDtype
from trellis.config import Config

_NO_THREADS = "JAX has no thread pools to set"
_COMPILED = "JAX compiles every step"
_PROCESSES = "a run uses the devices of the process that it is started in"
_ALL_REDUCE = "XLA chooses how to reduce over devices"
_TPU_PARTITION = "sharding comes from runtime.mesh"


@dataclass
class MeshConfig(Config):
    """How many devices each axis of the mesh has; at most one axis is -1, for all the devices that are left."""

    data: int = -1
    """Devices that see different examples and hold the same parameters."""
    fsdp: int = 1
    """Devices that see different examples and share out the parameters."""
    model: int = 1
    """Devices that share out each layer's computation."""


@dataclass
class RuntimeConfig(Config):
    """Processes, devices, mesh, precision and seed of a run."""

    distribution_strategy: Literal[
        "off", "one_device", "mirrored", "multi_worker_mirrored", "tpu", "parameter_server"
    ] = "mirrored"
    enable_xla: bool = False
    gpu_thread_mode: str | None = None
    dataset_num_private_threads: int | None = None
    per_gpu_thread_count: int = 0
    tpu: str | None = None
    num_gpus: int = 0
    """How many GPUs to use; 0 is all that there are."""
    worker_hosts: str | None = None
    task_index: int = -1
    all_reduce_alg: str | None = None
    num_packs: int = 1
    mixed_precision_dtype: ComputeDtype | None = None
    """What the model computes in; parameters, loss and gradients stay float32. Null is float32."""
    loss_scale: Literal["dynamic"] | float | None = None
    """For float16 only; null is dynamic: 2**15 at first, halved after an overflow, doubled after 2000 good steps."""
    run_eagerly: bool = False
    batchnorm_spatial_persistent: bool = False
    tpu_enable_xla_dynamic_padder: bool | None = None
    num_cores_per_replica: int = 1
    default_shard_dim: int = -1
    use_tpu_mp_strategy: bool = False
    mesh: MeshConfig = MeshConfig()
    """How the devices are arranged."""
    seed: int = 0
    """From which, with the step and a name, every random key follows."""

    no_effect: ClassVar[Mapping[str, str]] = {
        "enable_xla": _COMPILED,
        "gpu_thread_mode": _NO_THREADS,
        "dataset_num_private_threads": _NO_THREADS,
        "per_gpu_thread_count": _NO_THREADS,
        "tpu": "JAX finds the TPUs of its host itself",
        "worker_hosts": _PROCESSES,
        "task_index": _PROCESSES,
        "run_eagerly": _COMPILED,
        "all_reduce_alg": _ALL_REDUCE,
        "num_packs": _ALL_REDUCE,
        "batchnorm_spatial_persistent": "XLA chooses the kernel",
        "tpu_enable_xla_dynamic_padder": "JAX shapes are static",
        "num_cores_per_replica": _TPU_PARTITION,
        "default_shard_dim": _TPU_PARTITION,
        "use_tpu_mp_strategy": _TPU_PARTITION,
    }

    def model_parallelism(self) -> dict[str, int]:
        """Returns the published settings of partitioned TPUs."""
        return {"num_cores_per_replica": self.num_cores_per_replica, "default_shard_dim": self.default_shard_dim}
