"""Settings of where a run takes place, and what must hold of them before anything can run; this needs no JAX."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from trellis.aliases import ComputeDtype
from trellis.config import Config, Problem, origin_of

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
    exact: bool = True
    """Whether two runs of one command are equal to the bit on GPUs too, whatever that costs; others always are."""

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


ONE_DEVICE = ("off", "one_device")
"""The strategies that use no more than one device."""


def runtime_problems(config: RuntimeConfig, *, path: str = "runtime") -> list[Problem]:
    """Returns all that is wrong with a runtime config, whatever devices there are.

    Args:
        path: Where the config is, to be named in errors.
    """
    problems = [*_precision_problems(config, path), *_device_problems(config, path), *_mesh_problems(config, path)]
    return [
        Problem(f"{path}.{field} {message}", origin_of(config, field), f"{path}.{field}", advice)
        for field, message, advice in problems
    ]


def _precision_problems(config: RuntimeConfig, path: str) -> Iterator[tuple[str, str, str]]:
    dtype, scale = config.mixed_precision_dtype, config.loss_scale
    if scale is not None and dtype != "float16":
        message = f"is {scale}, but {path}.mixed_precision_dtype is {dtype or 'null'}."
        advice = f"Only float16 needs a loss scale: set {path}.loss_scale to null, or the dtype to float16."
        yield "loss_scale", message, advice
    elif isinstance(scale, float) and scale <= 0:
        yield "loss_scale", f"is {scale}.", "Give a number above 0, such as 128, or dynamic."


def _device_problems(config: RuntimeConfig, path: str) -> Iterator[tuple[str, str, str]]:
    n_devices, strategy = config.num_gpus, config.distribution_strategy
    if n_devices < 0:
        yield "num_gpus", f"is {n_devices}.", "Give a number of devices, or 0 for all that there are."
    if n_devices > 1 and strategy in ONE_DEVICE:
        message = f"is {n_devices}, but {path}.distribution_strategy={strategy} uses one device."
        yield "num_gpus", message, "The strategy for several devices is mirrored."


def _mesh_problems(config: RuntimeConfig, path: str) -> Iterator[tuple[str, str, str]]:
    sizes = {name: getattr(config.mesh, name) for name in ("data", "fsdp", "model")}
    for name, size in sizes.items():
        if size < 1 and size != -1:
            yield f"mesh.{name}", f"is {size}.", "Give a number of devices, or -1 for all that are left."
    first, *others = [name for name, size in sizes.items() if size == -1] or [""]
    for name in others:
        message = f"is -1, and so is {path}.mesh.{first}."
        yield f"mesh.{name}", message, "One axis takes all the devices that are left: give the others a number."
