"""A stream of examples in arrays or files: shuffled anew in each epoch, gathered by index."""

import copy
import inspect
from collections.abc import Callable
from typing import Any, Protocol

import jax
import numpy as np
from numpy.typing import NDArray

from trellis.aliases import Batch, PyTree
from trellis.data.foreign import foreign_examples
from trellis.data.order import Order, keys_of
from trellis.data.stream import Examples
from trellis.errors import ArgumentError, DataError, drop_jax_note, shown


class ArrayExamples:
    """Arrays in memory (or memory-mapped) as examples: any tree of arrays with a common leading axis."""

    def __init__(self, arrays: PyTree) -> None:
        # A list of numbers is a column; one of arrays is a part of the tree.
        leaves, self._structure = jax.tree.flatten(arrays, is_leaf=_is_column)
        self._leaves = [_as_array(leaf) for leaf in leaves]
        sizes = {leaf.shape[0] if leaf.ndim else None for leaf in self._leaves}
        if len(sizes) != 1 or None in sizes:
            lengths = ", ".join(sorted(map(str, sizes)))
            raise DataError(f"Arrays of examples need one common leading axis, but theirs have the lengths {lengths}.")
        self._n_examples = int(sizes.pop() or 0)

    def __len__(self) -> int:
        return self._n_examples

    def take(self, indices: np.ndarray) -> Batch:
        """Gathers examples by vectorised indexing."""
        return jax.tree.unflatten(self._structure, [leaf.take(indices, axis=0) for leaf in self._leaves])


class CheckedExamples:
    """Examples that a function looks at when they are gathered; it raises an error if something is wrong with them."""

    def __init__(self, examples: Examples, check: Callable[[Batch], None]) -> None:
        self._examples = examples
        self._check = check

    def __len__(self) -> int:
        return len(self._examples)

    def take(self, indices: np.ndarray) -> Batch:
        """Gathers examples, and checks them."""
        gathered = self._examples.take(indices)
        self._check(gathered)
        return gathered


class BatchMap(Protocol):
    """A change of the examples of a batch, such as an augmentation: a pure function."""

    def __call__(self, batch: Any, keys: Any, /) -> Any:
        """The batch to train on.

        Args:
            keys: `[n, 2]` of uint32, one for each example: a key of JAX, or a seed of NumPy. It follows from the seed,
                the epoch and the number of the example.
        """


class ExampleStream:
    """Batches of examples, shuffled anew in each epoch by (seed, epoch), as a pure function of the step.

    Every example is seen once an epoch; a batch may span the border of two epochs, so that no example is dropped. With
    `n_epochs` the stream ends, and its last batch may be short: evaluation takes it, training needs `drop_remainder`.

    Example:
        stream = ExampleStream((images, labels), batch_size=32, seed=0)
        stream.batch(step=1000)

    Args:
        examples: A tree of arrays, a `datasets.Dataset`, or anything with `len` and `take(indices)`, such as columns
            read from files.
        map: Changes each batch, `map(batch, keys)`, with a random key for each example: for an augmentation of one
            example by JAX, `map=jax.jit(jax.vmap(augment))` where `augment(example, key)` returns one; by NumPy, a
            function of the whole batch that draws from `np.random.default_rng(keys.ravel())`.
    """

    def __init__(
        self,
        examples: PyTree,
        *,
        batch_size: int,
        seed: int = 0,
        shuffle: bool = True,
        n_epochs: int | None = None,
        drop_remainder: bool = False,
        map: BatchMap | None = None,
    ) -> None:
        self._examples = _as_examples(examples)
        for name, value in (("batch_size", batch_size), ("seed", seed)):
            if not isinstance(value, int | np.integer):
                raise ArgumentError(f"ExampleStream's {name} is {shown(value)}, but it is a whole number.")
        if batch_size < 1:
            raise ArgumentError(f"batch_size is {batch_size}, but a batch has at least one example.")
        if len(self._examples) == 0:
            raise DataError("There are no examples to make batches of.")
        self.batch_size = batch_size
        self.row_range = (0, batch_size)
        """Which rows of a batch the stream makes: the first, and the one after the last."""
        self._seed = seed
        self._shuffle = shuffle
        self._n_epochs = n_epochs
        self._drop_remainder = drop_remainder
        _check_map(map)
        self._map = map
        self._orders: dict[int, Order] = {}

    def __repr__(self) -> str:
        order = f"seed={self._seed}" if self._shuffle else "shuffle=False"
        end = "" if self._n_epochs is None else f", n_epochs={self._n_epochs}"
        return f"ExampleStream({self.n_examples} examples, batch_size={self.batch_size}, {order}{end})"

    @property
    def n_batches(self) -> int | None:
        """How many batches there are, a short last one included; None if the stream is endless."""
        if self._n_epochs is None:
            return None
        n_whole, n_left = divmod(len(self._examples) * self._n_epochs, self.batch_size)
        return n_whole + (n_left > 0 and not self._drop_remainder)

    @property
    def n_examples(self) -> int:
        """How many examples an epoch has."""
        return len(self._examples)

    @property
    def examples(self) -> Examples:
        """What batches are gathered from."""
        return self._examples

    def checked_by(self, check: Callable[[Batch], None]) -> "ExampleStream":
        """Returns the same stream, whose examples a function looks at when they are gathered."""
        stream = copy.copy(self)
        stream._examples = CheckedExamples(self._examples, check)
        return stream

    def rows(self, start: int, stop: int) -> "ExampleStream":
        """The stream of some rows of every batch: only these are gathered, unless a map needs the whole batch."""
        stream = copy.copy(self)
        stream.row_range = (self.row_range[0] + start, self.row_range[0] + stop)
        return stream

    def batch(self, step: int) -> Batch:
        """The batch of one step."""
        if self._map is None:
            return self._take(self._parts(step))
        parts = self._between(step * self.batch_size, self.batch_size)
        mapped = self._mapped(self._take(parts), parts, step)
        return jax.tree.map(lambda leaf: leaf[slice(*self.row_range)], mapped)

    def stacked_batches(self, step: int, n: int) -> Batch:
        """The batches of several steps, gathered at once."""
        if self._map is not None:
            # One by one, so that what becomes of a batch does not depend on how many are asked for.
            batches = [self.batch(step + i) for i in range(n)]
            return jax.tree.map(lambda *leaves: np.stack(leaves), *batches)
        if self.row_range == (0, self.batch_size):
            parts = self._between(step * self.batch_size, n * self.batch_size)
        else:
            parts = [part for i in range(n) for part in self._parts(step + i)]
        gathered = self._take(parts)
        return jax.tree.map(lambda leaf: leaf.reshape(n, -1, *leaf.shape[1:]), gathered)

    def _take(self, parts: list[tuple[int, NDArray[np.int64]]]) -> Batch:
        numbers = [numbers for _, numbers in parts] or [np.arange(0)]
        return self._examples.take(_joined(numbers))

    def _parts(self, step: int) -> list[tuple[int, NDArray[np.int64]]]:
        """The numbers of the examples of a batch, by epoch."""
        first, stop = self.row_range
        return self._between(step * self.batch_size + first, stop - first)

    def _between(self, start: int, n: int) -> list[tuple[int, NDArray[np.int64]]]:
        """The numbers of `n` examples from a place on, by epoch."""
        n_examples = len(self._examples)
        parts: list[tuple[int, NDArray[np.int64]]] = []
        while n > 0:
            epoch, offset = divmod(start, n_examples)
            if self._n_epochs is not None and epoch >= self._n_epochs:
                break
            stop = min(offset + n, n_examples)
            part = self._order(epoch).between(offset, stop) if self._shuffle else np.arange(offset, stop)
            parts.append((epoch, part))
            start, n = start + len(part), n - len(part)
        return parts

    def _mapped(self, batch: Batch, parts: list[tuple[int, NDArray[np.int64]]], step: int) -> Batch:
        assert self._map is not None
        keys = _joined([keys_of(numbers, seed=self._seed, epoch=epoch) for epoch, numbers in parts])
        try:
            mapped = self._map(batch, keys)
        except Exception as error:
            drop_jax_note(error)
            error.add_note(f"in ExampleStream's map(batch, keys), with the batch of step {step + 1}")
            paths = [path for path, leaf in jax.tree_util.tree_leaves_with_path(batch) if leaf.dtype.kind in "SU"]
            if paths:
                names = ", ".join(jax.tree_util.keystr(path, simple=True) for path in paths)
                error.add_note(f"JAX takes no text, which {names} holds: leave it out (columns.select([…])).")
            raise
        leaves = jax.tree.leaves(mapped)
        if not leaves or any(np.shape(leaf)[:1] != (len(keys),) for leaf in leaves):
            shapes = ", ".join(str(np.shape(leaf)) for leaf in leaves) or "none"
            raise DataError(
                f"ExampleStream's map returned arrays of the shapes {shapes} for a batch of {len(keys)} examples. "
                f"Return a batch with as many; a function of one example is map=jax.vmap(function)."
            )
        return jax.tree.map(np.asarray, mapped)

    def _order(self, epoch: int) -> Order:
        if epoch not in self._orders:
            order = Order(len(self._examples), key=[self._seed % 2**64, epoch])
            # A batch may span the border of two epochs, so the one before is needed too.
            self._orders = {old: self._orders[old] for old in self._orders if old == epoch - 1} | {epoch: order}
        return self._orders[epoch]


def _check_map(map: Any) -> None:
    if map is None:
        return
    if not callable(map):
        raise ArgumentError(f"ExampleStream's map is {shown(map)}, which cannot be called. Give map(batch, keys).")
    try:
        signature = inspect.signature(map)
    except ValueError:
        # What is written in C does not tell.
        return
    try:
        signature.bind("batch", "keys")
    except TypeError as error:
        raise ArgumentError(
            f"ExampleStream's map takes {signature}, but it is called with a batch and a key for each of its examples "
            f"({error}). Give map=lambda batch, keys: …"
        ) from None


def _joined(parts: list[NDArray[Any]]) -> NDArray[Any]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _as_examples(examples: PyTree) -> Examples:
    foreign = foreign_examples(examples)
    if foreign is not None:
        return foreign
    # An array has `len` and `take` too, but its `take` knows no rows.
    is_array = isinstance(examples, np.ndarray | jax.Array)
    return examples if isinstance(examples, Examples) and not is_array else ArrayExamples(examples)


def _as_array(leaf: Any) -> NDArray[Any]:
    try:
        return np.asarray(leaf)
    except ValueError:
        raise DataError(
            "A column of examples is a list whose parts differ in length, which is no array. Pad them to one length, "
            "or write them to a file: read_columns reads JSON lines, and columns.padded(…) pads them."
        ) from None


def _is_column(node: object) -> bool:
    return isinstance(node, list) and bool(node) and isinstance(node[0], list | int | float | str | bytes)
