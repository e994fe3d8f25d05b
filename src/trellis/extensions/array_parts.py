"""Arrays that span processes, in parts: which process writes which block, and which blocks it needs to read."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from trellis.runtime import spans_processes

Box = tuple[tuple[int, int], ...]
"""A block of an array: where it begins and ends, for each axis."""

_SMALLEST_SPLIT = 1 << 10
"""Elements; a smaller block is written by one process, though others hold it too."""


@dataclass(frozen=True)
class Part:
    """A block of an array that one process writes."""

    process: int
    box: Box

    @classmethod
    def of_json(cls, values: Any) -> "Part":
        """The part that `as_json` has described."""
        process, box = values
        return cls(process, tuple((start, stop) for start, stop in box))

    def as_json(self) -> Any:
        """The process, and where the block begins and ends."""
        return [self.process, [list(ends) for ends in self.box]]

    def name(self, array: str) -> str:
        """The name that it has among what its process writes."""
        return f"{array}@{','.join(str(start) for start, _ in self.box)}"


def share_out(array: Any) -> list[Part]:
    """The parts of an array, the same in every process; together they are all of it, once.

    What several processes hold is split among them. What does not span processes is the first one's.
    """
    if not spans_processes(array):
        return [Part(0, box_of((slice(None),) * array.ndim, array.shape))]
    holders: dict[Box, set[int]] = {}
    for device, index in array.sharding.devices_indices_map(array.shape).items():
        holders.setdefault(box_of(index, array.shape), set()).add(device.process_index)
    return [part for box, processes in holders.items() for part in _split(box, sorted(processes))]


def _split(box: Box, processes: list[int]) -> list[Part]:
    sizes = [stop - start for start, stop in box]
    n = len(processes)
    axis = int(np.argmax(sizes)) if sizes else 0
    if math.prod(sizes) < max(_SMALLEST_SPLIT, n) or sizes[axis] < n:
        return [Part(processes[0], box)]
    start = box[axis][0]
    bounds = [start + sizes[axis] * number // n for number in range(n + 1)]
    return [
        Part(process, (*box[:axis], (bounds[number], bounds[number + 1]), *box[axis + 1 :]))
        for number, process in enumerate(processes)
    ]


def copy_own(array: Any, parts: Iterable[Part]) -> dict[Part, np.ndarray]:
    """Copies of those parts of an array that this process writes, in host memory."""
    own = [part for part in parts if part.process == jax.process_index()]
    if not spans_processes(array):
        return {part: np.array(array, copy=True) for part in own}
    shards = {box_of(shard.index, array.shape): shard.data for shard in array.addressable_shards}
    pieces = {part: _piece(shards, part.box) for part in own}
    for piece in pieces.values():
        if isinstance(piece, jax.Array):
            piece.copy_to_host_async()
    return {part: np.array(piece, copy=True) for part, piece in pieces.items()}


def _piece(shards: Mapping[Box, Any], box: Box) -> Any:
    outer, data = next((outer, data) for outer, data in shards.items() if common_box(outer, box) == box)
    # On the CPU a view costs nothing; elsewhere no more than the piece is to leave the device.
    view = np.asarray(data) if data.device.platform == "cpu" else data
    return view[slices_of(box, within=outer)]


def needed_boxes(shape: tuple[int, ...], sharding: Sharding) -> set[Box]:
    """The blocks of an array that devices of this process hold."""
    indices: Any = sharding.addressable_devices_indices_map(shape)
    return {box_of(index, shape) for index in indices.values()}


def reading_sharding(shape: tuple[int, ...], sharding: Sharding) -> Sharding:
    """How an array is shared out while it is read: of one that every device is to hold whole, each reads a slice."""
    if not isinstance(sharding, NamedSharding) or not sharding.is_fully_replicated:
        return sharding
    devices = sharding.mesh.devices.flatten()
    sizes = [size if size % len(devices) == 0 else 0 for size in shape]
    if math.prod(shape) < _SMALLEST_SPLIT * len(devices) or not any(sizes):
        return sharding
    spec = [None] * len(shape)
    return NamedSharding(Mesh(devices, ("slice",)), PartitionSpec(*spec[: int(np.argmax(sizes))], "slice"))


def box_of(index: Any, shape: tuple[int, ...]) -> Box:
    """The block that slices stand for."""
    ends = (part.indices(size) for part, size in zip(index, shape, strict=True))
    return tuple((start, stop) for start, stop, _ in ends)


def common_box(one: Box, other: Box) -> Box | None:
    """The block that two blocks have in common; None if there is none."""
    ends = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return ends if all(start < stop for start, stop in ends) else None


def slices_of(box: Box, *, within: Box | None = None) -> tuple[slice, ...]:
    """The slices that take a block out of the array, or out of another block of it."""
    firsts = [0] * len(box) if within is None else [start for start, _ in within]
    return tuple(slice(start - first, stop - first) for (start, stop), first in zip(box, firsts, strict=True))
