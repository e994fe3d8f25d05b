"""The devices that a config asks for."""

from typing import Any

import jax

from trellis.config import raise_if_any
from trellis.errors import ArgumentError
from trellis.runtime import ONE_DEVICE, Placement, RuntimeConfig, runtime_problems


def build_placement(config: RuntimeConfig) -> Placement:
    """The devices that a config asks for, arranged as its mesh says.

    `off` and `one_device` are one device; every other strategy is all devices, of all processes that have joined, or
    `num_gpus` local ones.
    """
    raise_if_any(runtime_problems(config))
    takes_one = config.distribution_strategy in ONE_DEVICE
    devices: list[Any] = jax.local_devices() if takes_one or config.num_gpus else jax.devices()
    n_wanted = 1 if takes_one else config.num_gpus or len(devices)
    if n_wanted > len(devices):
        raise ArgumentError(
            f"runtime.num_gpus is {n_wanted}, but this process has {len(devices)} devices ({devices[0].platform}). "
            f"Set runtime.num_gpus=0 to use all that there are."
        )
    mesh = config.mesh
    return Placement(devices[:n_wanted], data=mesh.data, fsdp=mesh.fsdp, model=mesh.model)
