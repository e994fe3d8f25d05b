"""Arrays that span processes are cut into parts that are all of them, once."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from tests import tiny
from trellis.errors import CheckpointFileError
from trellis.extensions import array_parts, checkpoint_storage
from trellis.extensions.array_parts import Part, common_box, reading_sharding, share_out, slices_of


@dataclass(frozen=True)
class Device:
    process_index: int
    number: int


@dataclass(frozen=True)
class Shared:
    """An array on devices, as much as is asked of it: blocks of rows, each on some devices."""

    shape: tuple[int, ...]
    processes: tuple[tuple[int, ...], ...]
    """For each block of rows the processes of the devices that hold it."""

    @property
    def sharding(self) -> "Shared":
        return self

    def devices_indices_map(self, shape: tuple[int, ...]) -> dict[Device, Any]:
        size = shape[0] // len(self.processes) if shape else 0
        rest = (slice(None),) * (len(shape) - 1)
        return {
            Device(process, number): (slice(block * size, (block + 1) * size), *rest) if shape else ()
            for block, processes in enumerate(self.processes)
            for number, process in enumerate(processes)
        }


@pytest.fixture(autouse=True)
def spanning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_parts, "spans_processes", lambda array: True)


@pytest.mark.parametrize("shape", [(64, 48), (4096,), (8, 7, 100), (), (4,)])
@pytest.mark.parametrize("processes", [((0, 1, 2, 3),), ((0, 1), (2, 3)), ((0,), (1,), (2,), (3,)), ((0, 0), (1, 1))])
def test_parts_are_all_of_an_array_once(shape: Any, processes: Any) -> None:
    count = np.zeros(shape)
    for part in share_out(Shared(shape, processes)):
        count[slices_of(part.box)] += 1
    assert (count == 1).all()


def test_what_all_processes_hold_is_shared_out_evenly() -> None:
    parts = share_out(Shared((3, 4096), ((0, 1, 2, 3),)))
    assert [part.process for part in parts] == [0, 1, 2, 3]
    assert [part.box[1] for part in parts] == [(0, 1024), (1024, 2048), (2048, 3072), (3072, 4096)]


def test_what_every_device_holds_is_read_in_slices() -> None:
    mesh = jax.make_mesh((4, 2), ("data", "fsdp"))
    whole = NamedSharding(mesh, PartitionSpec())
    for shape in [(64, 3, 100), (7, 4096), (8192,)]:
        count = np.zeros(shape)
        for index in reading_sharding(shape, whole).devices_indices_map(shape).values():
            count[index] += 1
        assert (count == 1).all(), shape


@pytest.mark.parametrize("shape", [(7, 5001), (8, 8), ()], ids=["cannot be divided", "is small", "is a number"])
def test_what_cannot_be_sliced_is_read_whole(shape: tuple[int, ...]) -> None:
    whole = NamedSharding(jax.make_mesh((8,), ("data",)), PartitionSpec())
    assert reading_sharding(shape, whole) is whole


def test_what_is_shared_out_is_read_as_it_is() -> None:
    apart = NamedSharding(jax.make_mesh((8,), ("fsdp",)), PartitionSpec("fsdp"))
    assert reading_sharding((8192,), apart) is apart


def test_a_part_comes_back_from_json() -> None:
    (part,) = share_out(Shared((4,), ((1,),)))
    assert Part.of_json(part.as_json()) == part
    assert part.name("model_params/bias") == "model_params/bias@0"


def test_blocks_have_in_common_what_both_hold() -> None:
    assert common_box(((0, 4), (2, 6)), ((3, 9), (0, 3))) == ((3, 4), (2, 3))
    assert common_box(((0, 4),), ((4, 9),)) is None
    assert common_box((), ()) == ()


def test_a_process_that_cannot_write_its_part_is_named_by_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, Any] = {}

    def hear(topic: str, **_: Any) -> list[Any]:
        return [told[topic], {"error": "No space left on device"}] if topic.endswith("/parts") else ["process 1: full"]

    snapshot = checkpoint_storage.Snapshot(
        {"model_params/bias@0": np.ones(4)}, {"model_params/bias": "float64[4]"}, {}, {}, parts={}
    )
    monkeypatch.setattr(checkpoint_storage, "tell", told.__setitem__)
    monkeypatch.setattr(checkpoint_storage, "hear", hear)
    with pytest.raises(CheckpointFileError, match="^process 1: No space left on device$"):
        checkpoint_storage.write(tmp_path / "first", tiny.checkpoint(), snapshot)
    assert [name for name in told["first/parts"]["files"] if name.endswith("manifest.ocdbt")]
    assert told["first/manifest"] == "process 1: No space left on device"
    assert not checkpoint_storage.is_checkpoint_file(tmp_path / "first")
    monkeypatch.setattr(checkpoint_storage, "is_first_process", lambda: False)
    with pytest.raises(CheckpointFileError, match="^process 1: full$"):
        checkpoint_storage.write(tmp_path / "second", tiny.checkpoint(), snapshot)
