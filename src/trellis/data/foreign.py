"""Data sets of other libraries, known by the names of their classes: nothing is imported to know them."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from trellis.aliases import Batch
from trellis.errors import ArgumentError, DataError

_TENSORS = {"torch.Tensor", "tensorflow.Tensor", "tensorflow.EagerTensor", "tensorflow.RaggedTensor"}
_is_tensor_type: dict[type, bool] = {}


@dataclass(frozen=True)
class _Kind:
    """A class of data sets that yields batches each time it is iterated."""

    name: str
    read: Callable[[Any, int], Iterator[Any]]
    """Its elements, given the number of the epoch."""
    count: Callable[[Any], float | None]
    """How many batches an epoch has, `inf` for one without end; None if that is not known."""
    short_batch: str
    """How its users leave out a last batch that is short."""


class ForeignBatches:
    """The batches of a data set of another library, as it yields them, from the start each time it is iterated.

    A loader of PyTorch that shuffles, or draws random numbers otherwise, does so by the number of the epoch.
    """

    def __init__(self, data: Any, kind: _Kind, *, place: str) -> None:
        self._data = data
        self._kind = kind
        self._place = place

    @property
    def n_batches(self) -> int | None:
        """How many batches an epoch has, where that is known and not without end."""
        count = self._kind.count(self._data)
        return None if count is None or count == float("inf") else int(count)

    @property
    def is_endless(self) -> bool:
        """Whether the data set repeats itself without end."""
        return self._kind.count(self._data) == float("inf")

    @property
    def short_batch(self) -> str:
        """What to write to leave out a last batch that is short."""
        return self._kind.short_batch

    def __iter__(self) -> Iterator[Batch]:
        return self._kind.read(self._data, 0)

    def epochs(self) -> Iterator[Batch]:
        """The batches of one epoch after the other, without end."""
        epoch = 0
        while True:
            n_batches = 0
            for element in self._kind.read(self._data, epoch):
                n_batches += 1
                yield element
            if n_batches == 0:
                raise DataError(f"{self._place} is a {self._kind.name} without a batch.")
            epoch += 1


class HuggingFaceExamples:
    """A data set of Hugging Face's as examples by index."""

    def __init__(self, data: Any) -> None:
        self._data = data.with_format("numpy")

    def __len__(self) -> int:
        return len(self._data)

    def take(self, indices: np.ndarray) -> Batch:
        """Gathers examples: a mapping of arrays."""
        return dict(self._data[indices.tolist()])


def is_foreign(data: Any) -> bool:
    """Whether data is a data set of another library."""
    return bool(_names_of(data) & (_BATCHES.keys() | _REFUSED.keys() | {"datasets.Dataset"}))


def foreign_batches(data: Any, *, place: str) -> ForeignBatches | None:
    """The batches of a data set of another library; None if it is nothing of the kind.

    Args:
        place: What to call the data in an error, such as `TrainTask.data`.
    """
    for name in _ordered_names_of(data):
        if name in _BATCHES:
            return ForeignBatches(data, _BATCHES[name], place=place)
        if name == "datasets.Dataset":
            raise ArgumentError(
                f"{place} is a datasets.Dataset, which holds examples and no batches. "
                f"Give trellis.ExampleStream(data, batch_size=32)."
            )
        if name in _REFUSED:
            raise ArgumentError(f"{place} is a {name}. {_REFUSED[name]}")
    return None


def foreign_examples(data: Any) -> HuggingFaceExamples | None:
    """The examples of a data set of another library that reaches them by index; None if it is nothing of the kind."""
    for name in _ordered_names_of(data):
        if name == "datasets.Dataset":
            return HuggingFaceExamples(data)
        if name in _BATCHES:
            raise ArgumentError(
                f"ExampleStream takes examples that are reached by index, and a {_BATCHES[name].name} has none. "
                f"It makes batches itself: give it to the task as it is, TrainTask(data=…)."
            )
        if name in _REFUSED:
            raise ArgumentError(f"ExampleStream was given a {name}. {_REFUSED[name]}")
    return None


def as_numpy(batch: Any) -> Batch:
    """A batch with the tensors of other libraries as NumPy arrays; a list of tensors becomes a tuple."""
    leaves, structure = jax.tree.flatten(batch)
    if not any(map(_is_tensor, leaves)):
        return batch
    arrays = jax.tree.unflatten(structure, [_array(leaf) if _is_tensor(leaf) else leaf for leaf in leaves])
    # PyTorch collates pairs into lists.
    return tuple(arrays) if isinstance(batch, list) else arrays


def _is_tensor(leaf: Any) -> bool:
    kind = type(leaf)
    if kind not in _is_tensor_type:
        _is_tensor_type[kind] = bool(_names_of(leaf) & _TENSORS)
    return _is_tensor_type[kind]


def _array(tensor: Any) -> np.ndarray:
    if "torch.Tensor" in _names_of(tensor):
        tensor = tensor.detach().cpu()
        # NumPy has no type for it.
        tensor = tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor
    return np.asarray(tensor.numpy())


def _ordered_names_of(data: Any) -> list[str]:
    """The classes of an object, each as the package that it is from and its name."""
    return [f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(data).__mro__]


def _names_of(data: Any) -> set[str]:
    return set(_ordered_names_of(data))


def _read_tf_data(data: Any, epoch: int) -> Iterator[Any]:
    return iter(data.as_numpy_iterator())


def _count_tf_data(data: Any) -> float | None:
    count = int(data.cardinality())
    return {-1: float("inf"), -2: None}.get(count, count)


def _read_hugging_face(data: Any, epoch: int) -> Iterator[Any]:
    data = data.with_format("numpy")
    data.set_epoch(epoch)
    return iter(data)


def _read_torch(loader: Any, epoch: int) -> Iterator[Any]:
    """The batches of a loader, whose random numbers follow from the epoch, and not from what was drawn before."""
    generator = sys.modules["torch"].default_generator
    batches: Iterator[Any] | None = None
    inside: Any = None
    while True:
        outside = generator.get_state()
        try:
            if batches is None:
                generator.manual_seed(epoch)
                batches = iter(loader)
            else:
                generator.set_state(inside)
            batch = next(batches, None)
            inside = generator.get_state()
        finally:
            generator.set_state(outside)
        if batch is None:
            return
        yield batch


def _count_torch(loader: Any) -> float | None:
    try:
        return len(loader)
    except TypeError:
        # A data set that is only iterated has no length.
        return None


_BATCHES = {
    "tensorflow.DatasetV2": _Kind(
        "tf.data.Dataset", _read_tf_data, _count_tf_data, "data.batch(batch_size, drop_remainder=True)"
    ),
    "torch.DataLoader": _Kind("DataLoader", _read_torch, _count_torch, "DataLoader(…, drop_last=True)"),
    "datasets.IterableDataset": _Kind(
        "datasets.IterableDataset",
        _read_hugging_face,
        lambda data: None,
        "data.batch(batch_size, drop_last_batch=True)",
    ),
}
_SPLIT = 'It holds several splits: name one, such as data["train"].'
_REFUSED = {
    "datasets.DatasetDict": _SPLIT,
    "datasets.IterableDatasetDict": _SPLIT,
    "torch.Dataset": "It holds examples and no batches. Give torch.utils.data.DataLoader(data, batch_size=32).",
}
