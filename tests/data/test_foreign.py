"""Data sets of other libraries: known by the names of their classes, of which these are stand-ins."""

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import trellis
from tests import tiny
from trellis.data import foreign_batches
from trellis.errors import ArgumentError, DataError
from trellis.loops import build_feed


def stand_in(module: str, name: str, *bases: type) -> Any:
    """Makes a class look like one of another library."""

    def rename(cls: type) -> type:
        return type(name, (cls, *bases), {"__module__": module})

    return rename


@stand_in("torch", "Tensor")
class Tensor:
    def __init__(self, array: np.ndarray, dtype: str = "torch.float32") -> None:
        self._array = array
        self.dtype = dtype

    def detach(self) -> Any:
        return self

    cpu = detach

    def float(self) -> Any:
        return Tensor(self._array)

    def numpy(self) -> np.ndarray:
        if self.dtype == "torch.bfloat16":
            raise TypeError("Got unsupported ScalarType BFloat16")
        return self._array


class Generator:
    """Random numbers for all, as PyTorch has them."""

    def __init__(self) -> None:
        self.random = np.random.default_rng()

    def manual_seed(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)

    def get_state(self) -> Any:
        return self.random.bit_generator.state

    def set_state(self, state: Any) -> None:
        self.random.bit_generator.state = state


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    module = SimpleNamespace(default_generator=Generator())
    monkeypatch.setitem(sys.modules, "torch", module)
    return module


@stand_in("torch.utils.data.dataloader", "DataLoader")
class DataLoader:
    def __init__(self, n: int = 256, batch_size: int = 64) -> None:
        self.arrays = tiny.examples(n)
        self.batch_size = batch_size

    def __len__(self) -> int:
        return math.ceil(len(self.arrays[0]) / self.batch_size)

    def __iter__(self) -> Iterator[list[Any]]:
        order = sys.modules["torch"].default_generator.random.permutation(len(self.arrays[0]))
        for start in range(0, len(order), self.batch_size):
            yield [Tensor(array[order[start : start + self.batch_size]]) for array in self.arrays]


@stand_in("tensorflow.python.data.ops.dataset_ops", "DatasetV2")
class TensorFlowDataset:
    def __init__(self, cardinality: int = 4, seed: int | None = 0) -> None:
        self._cardinality = cardinality
        self._random = np.random.default_rng(seed)

    def batch(self, batch_size: int, drop_remainder: bool = False) -> Any:
        raise AssertionError("it is taken for a stream")

    take = batch

    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Iterator[Any]:
        return iter([])

    def cardinality(self) -> int:
        return self._cardinality

    def as_numpy_iterator(self) -> Iterator[Any]:
        x, y = tiny.examples()
        order = self._random.permutation(len(x)).reshape(4, 64)
        while True:
            yield from ((x[rows], y[rows]) for rows in order)
            if self._cardinality != -1:
                return


@stand_in("datasets.arrow_dataset", "Dataset")
class HuggingFaceDataset:
    is_numpy = False

    def __len__(self) -> int:
        return 256

    def batch(self, batch_size: int) -> Any:
        raise AssertionError("it is taken for a stream")

    def take(self, n: int) -> Any:
        raise AssertionError("it is taken for examples")

    def with_format(self, format: str) -> Any:
        formatted = HuggingFaceDataset()
        formatted.is_numpy = format == "numpy"
        return formatted

    def __getitem__(self, rows: list[int]) -> Any:
        x, y = tiny.examples()
        return {"x": x[rows], "y": y[rows]} if self.is_numpy else {"x": x[rows].tolist(), "y": y[rows].tolist()}


@stand_in("datasets.iterable_dataset", "IterableDataset")
class HuggingFaceStream:
    epoch = 0

    def batch(self, batch_size: int) -> Any:
        raise AssertionError("it is taken for a stream")

    def with_format(self, format: str) -> Any:
        return HuggingFaceStream()

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        x, y = tiny.examples()
        for rows in np.random.default_rng(self.epoch).permutation(256).reshape(4, 64):
            yield x[rows], y[rows]


KINDS = {"torch": DataLoader, "tensorflow": TensorFlowDataset, "datasets": HuggingFaceStream}


@pytest.mark.parametrize("kind", KINDS)
def test_a_data_set_of_another_library_is_trained_on_over_epochs_and_resumed(
    torch: Any, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(directory: Path, n_steps: int) -> list[Any]:
        options: dict[str, Any] = {"init": trellis.CheckpointFileReader(directory, target=tiny.Classifier().init)}
        loop = tiny.train_loop(
            tiny.train_task(data=KINDS[kind]()), **options, n_steps=n_steps, n_steps_per_checkpoint=3, stdout=True
        )
        writer = trellis.CheckpointFileWriter(output_dir=directory)
        return [writer(checkpoint).loss for checkpoint in loop]

    whole = run(tmp_path / "whole", 9)
    torch.default_generator.random.random(100)
    assert run(tmp_path / "parts", 6) + run(tmp_path / "parts", 9) == whole
    output = capsys.readouterr().out
    assert "6 batches of the iterator were read and skipped" in output
    assert "not those" not in output


def test_data_that_is_not_the_same_again_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for n_steps in (2, 4):
        options: dict[str, Any] = {"init": trellis.CheckpointFileReader(tmp_path, target=tiny.Classifier().init)}
        data = TensorFlowDataset(seed=None)
        loop = tiny.train_loop(tiny.train_task(data=data), **options, n_steps=n_steps, stdout=True)
        writer = trellis.CheckpointFileWriter(output_dir=tmp_path)
        for checkpoint in loop:
            writer(checkpoint)
    assert "They are not those that were trained on: a shuffle without a seed?" in capsys.readouterr().out


@pytest.mark.parametrize("kind", KINDS)
def test_a_data_set_of_another_library_is_evaluated_whole_and_each_time_the_same(torch: Any, kind: str) -> None:
    checkpoint = tiny.train_loop(n_steps=1).next_step()
    loop = tiny.eval_loop(data=KINDS[kind]())
    first = loop(checkpoint).metrics["eval"]
    if kind != "tensorflow":
        assert loop(checkpoint).metrics["eval"] == first
    expected = tiny.eval_loop()(checkpoint).metrics["eval"]
    assert first == pytest.approx(expected, rel=1e-5)


def test_a_finite_iterator_is_evaluated_whole_and_kept() -> None:
    checkpoint = tiny.train_loop(n_steps=1).next_step()
    x, y = tiny.examples()
    loop = tiny.eval_loop(data=((x[rows], y[rows]) for rows in np.arange(256).reshape(4, 64)))
    expected = tiny.eval_loop()(checkpoint).metrics["eval"]
    for _ in range(2):
        assert loop(checkpoint).metrics["eval"] == pytest.approx(expected, rel=1e-5)


def test_an_iterator_without_end_is_not_kept_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trellis.loops.feed._MOST_KEPT_BYTES", 10_000)
    checkpoint = tiny.train_loop(n_steps=1).next_step()
    with pytest.raises(ArgumentError, match=r"EvalTask.data has not ended after 18 batches.*EvalLoop\(n_steps=…\)"):
        tiny.eval_loop(data=tiny.batches())(checkpoint)


@pytest.mark.parametrize("dtype", ["torch.float32", "torch.bfloat16"])
def test_tensors_from_an_iterator_become_arrays(dtype: str) -> None:
    x, y = tiny.examples()
    feed = build_feed(iter([[Tensor(x, dtype), Tensor(y)]]), place="TrainTask.data")
    batch = feed.take(0, 1)[1]
    assert isinstance(batch, tuple)
    tiny.assert_equal(batch, (x, y))


def test_a_loader_leaves_the_random_numbers_of_others_alone(torch: Any) -> None:
    generator = torch.default_generator
    generator.manual_seed(7)
    expected = generator.random.random(3).tolist()
    generator.manual_seed(7)
    drawn = [generator.random.random() for _ in foreign_batches(DataLoader(192), place="data")]
    assert drawn == expected

    class Broken(DataLoader):
        def __iter__(self) -> Iterator[list[Any]]:
            generator.random.random()
            raise OSError("no such image")

    generator.manual_seed(7)
    with pytest.raises(OSError, match="no such image"):
        next(iter(foreign_batches(Broken(), place="data")))
    assert generator.random.random() == expected[0]


def test_a_short_last_batch_tells_how_its_library_drops_it(torch: Any) -> None:
    loop = tiny.train_loop(tiny.train_task(data=DataLoader(n=100)), n_steps=4)
    with pytest.raises(DataError, match=r"the batch of step 2 is .*Drop it \(DataLoader\(…, drop_last=True\)\)"):
        list(loop)


def test_examples_of_hugging_face_make_a_stream() -> None:
    stream = trellis.ExampleStream(HuggingFaceDataset(), batch_size=32)
    x, y = tiny.examples()
    expected = trellis.ExampleStream({"x": x, "y": y}, batch_size=32)
    for step in (0, 7, 8):
        tiny.assert_equal(stream.batch(step), expected.batch(step))
    assert stream.n_examples == 256


@stand_in("datasets.dataset_dict", "DatasetDict")
class Splits(dict):  # type: ignore[type-arg]
    pass


@stand_in("torch.utils.data.dataset", "Dataset")
class TorchDataset:
    def __len__(self) -> int:
        return 3


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (HuggingFaceDataset(), r"holds examples and no batches. Give trellis.ExampleStream\(data, batch_size=32\)"),
        (Splits(), r'several splits: name one, such as data\["train"\]'),
        (TorchDataset(), r"Give torch.utils.data.DataLoader\(data, batch_size=32\)"),
    ],
)
def test_what_holds_no_batches_is_refused_with_the_way_out(data: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        tiny.train_loop(tiny.train_task(data=data))
    with pytest.raises(ArgumentError, match=message):
        tiny.eval_loop(data=data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (TensorFlowDataset(), r"a tf.data.Dataset has none.*TrainTask\(data=…\)"),
        (TorchDataset(), "torch.Dataset. It holds examples and no batches"),
    ],
)
def test_a_stream_of_examples_refuses_what_cannot_be_indexed(data: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        trellis.ExampleStream(data, batch_size=4)


def test_a_data_set_that_repeats_is_evaluated_only_for_a_number_of_batches() -> None:
    with pytest.raises(ArgumentError, match=r"no known end.*EvalLoop\(n_steps=…\)"):
        tiny.eval_loop(data=TensorFlowDataset(cardinality=-1))
    checkpoint = tiny.train_loop(n_steps=1).next_step()
    assert tiny.eval_loop(data=TensorFlowDataset(cardinality=-1), n_steps=5)(checkpoint).metrics["eval"]


def test_a_loader_without_batches_is_named(torch: Any) -> None:
    with pytest.raises(DataError, match="TrainTask.data is a DataLoader without a batch"):
        tiny.train_loop(tiny.train_task(data=DataLoader(n=0)), n_steps=1).next_step()
