"""Where arrays live: states on every device, batches split over the `data` axis of a mesh."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from trellis.aliases import Batch, PyTree
from trellis.batch import batch_size
from trellis.errors import DataError


class Placement:
    """Puts states and batches on the devices of a mesh with one axis, `data`.

    Arrays are global: a batch of 32 on eight devices has shape (32, ...) and four examples on each. There is no replica
    axis anywhere.
    """

    def __init__(self, devices: Sequence[Any] | None = None) -> None:
        self.devices = tuple(jax.local_devices() if devices is None else devices)
        self.mesh = Mesh(np.array(self.devices), ("data",))
        self.replicated = NamedSharding(self.mesh, PartitionSpec())

    def put_state(self, tree: PyTree) -> PyTree:
        """Copies a tree to every device; the result shares no memory with what was given."""
        return jax.device_put(tree, self.replicated, may_alias=False)

    def put_batch(self, batch: Batch, *, stacked: bool = False) -> Batch:
        """Splits a batch over the devices.

        Args:
            stacked: Whether the leaves carry an axis of steps before the batch axis.
        """
        if len(self.devices) == 1:
            return batch
        spec = PartitionSpec(None, "data") if stacked else PartitionSpec("data")
        return jax.device_put(batch, NamedSharding(self.mesh, spec))

    def put_any_batch(self, batch: Batch) -> Batch:
        """Splits a batch if its size allows it, else copies it to every device: right for a short last batch."""
        if len(self.devices) == 1:
            return batch
        divisible = batch_size(batch) % len(self.devices) == 0
        return self.put_batch(batch) if divisible else jax.device_put(batch, self.replicated)

    def check_divisible(self, batch: Batch) -> None:
        """Raises an error if a batch cannot be split evenly."""
        n_devices, size = len(self.devices), batch_size(batch)
        if size % n_devices:
            lower, upper = size - size % n_devices, size + n_devices - size % n_devices
            fits = f"{upper}" if lower == 0 else f"{lower} or {upper}"
            raise DataError(
                f"A batch of {size} examples cannot be split over {n_devices} devices. "
                f"Use a batch size of {fits}, or give the loop fewer devices (devices=jax.devices()[:1])."
            )
