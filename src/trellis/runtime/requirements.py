"""What a runtime config must say before anything can run; this needs no JAX."""

from collections.abc import Iterator

from trellis.config import Problem, origin_of
from trellis.runtime.configs import RuntimeConfig

ONE_DEVICE = ("off", "one_device")
"""The strategies that use no more than one device."""


def runtime_problems(config: RuntimeConfig, *, path: str = "runtime") -> list[Problem]:
    """Returns all that is wrong with a runtime config, whatever devices there are.

    Args:
        path: Where the config is, to be named in errors.
    """
    found = [*_precision_problems(config, path), *_device_problems(config, path), *_mesh_problems(config, path)]
    return [
        Problem(f"{path}.{field} {message}", origin_of(config, field), f"{path}.{field}", advice)
        for field, message, advice in found
    ]


def _precision_problems(config: RuntimeConfig, path: str) -> Iterator[tuple[str, str, str]]:
    dtype, scale = config.mixed_precision_dtype, config.loss_scale
    if scale is not None and dtype != "float16":
        said = f"is {scale}, but {path}.mixed_precision_dtype is {dtype or 'null'}."
        way = f"Only float16 needs a loss scale: set {path}.loss_scale to null, or the dtype to float16."
        yield "loss_scale", said, way
    elif isinstance(scale, float) and scale <= 0:
        yield "loss_scale", f"is {scale}.", "Give a number above 0, such as 128, or dynamic."


def _device_problems(config: RuntimeConfig, path: str) -> Iterator[tuple[str, str, str]]:
    n_devices, strategy = config.num_gpus, config.distribution_strategy
    if n_devices < 0:
        yield "num_gpus", f"is {n_devices}.", "Give a number of devices, or 0 for all that there are."
    if n_devices > 1 and strategy in ONE_DEVICE:
        said = f"is {n_devices}, but {path}.distribution_strategy={strategy} uses one device."
        yield "num_gpus", said, "The strategy for several devices is mirrored."


def _mesh_problems(config: RuntimeConfig, path: str) -> Iterator[tuple[str, str, str]]:
    sizes = {name: getattr(config.mesh, name) for name in ("data", "fsdp", "model")}
    for name, size in sizes.items():
        if size < 1 and size != -1:
            yield f"mesh.{name}", f"is {size}.", "Give a number of devices, or -1 for all that are left."
    first, *others = [name for name, size in sizes.items() if size == -1] or [""]
    for name in others:
        said = f"is -1, and so is {path}.mesh.{first}."
        yield f"mesh.{name}", said, "One axis takes all the devices that are left: give the others a number."
