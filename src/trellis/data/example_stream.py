"""A stream of examples in arrays or files: shuffled anew in each epoch, gathered by index."""

import copy
from collections.abc import Callable

import jax
import numpy as np

from trellis.aliases import Batch, PyTree
from trellis.data.foreign import foreign_examples
from trellis.data.order import Order
from trellis.data.stream import Examples
from trellis.errors import ArgumentError, DataError


class ArrayExamples:
    """Arrays in memory (or memory-mapped) as examples: any tree of arrays with a common leading axis."""

    def __init__(self, arrays: PyTree) -> None:
        # A list of numbers is a column; one of arrays is a part of the tree.
        leaves, self._structure = jax.tree.flatten(arrays, is_leaf=_is_column)
        self._leaves = [np.asarray(leaf) for leaf in leaves]
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
    ) -> None:
        self._examples = _as_examples(examples)
        for name, value in (("batch_size", batch_size), ("seed", seed)):
            if not isinstance(value, int | np.integer):
                raise ArgumentError(f"ExampleStream's {name} is {value!r}, but it is a whole number.")
        if batch_size < 1:
            raise ArgumentError(f"batch_size is {batch_size}, but a batch has at least one example.")
        if len(self._examples) == 0:
            raise DataError("There are no examples to make batches of.")
        self.batch_size = batch_size
        self._seed = seed
        self._shuffle = shuffle
        self._n_epochs = n_epochs
        self._drop_remainder = drop_remainder
        self._orders: dict[int, Order] = {}

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

    def checked_by(self, check: Callable[[Batch], None]) -> "ExampleStream":
        """Returns the same stream, whose examples a function looks at when they are gathered."""
        stream = copy.copy(self)
        stream._examples = CheckedExamples(self._examples, check)
        return stream

    def batch(self, step: int) -> Batch:
        """The batch of one step."""
        return self._examples.take(self._indices(step * self.batch_size, self.batch_size))

    def stacked_batches(self, step: int, n: int) -> Batch:
        """The batches of several steps, gathered at once."""
        size = self.batch_size
        gathered = self._examples.take(self._indices(step * size, n * size))
        return jax.tree.map(lambda leaf: leaf.reshape(n, size, *leaf.shape[1:]), gathered)

    def _indices(self, start: int, n: int) -> np.ndarray:
        n_examples = len(self._examples)
        parts = []
        while n > 0:
            epoch, offset = divmod(start, n_examples)
            if self._n_epochs is not None and epoch >= self._n_epochs:
                break
            stop = min(offset + n, n_examples)
            part = self._order(epoch).between(offset, stop) if self._shuffle else np.arange(offset, stop)
            parts.append(part)
            start, n = start + len(part), n - len(part)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _order(self, epoch: int) -> Order:
        if epoch not in self._orders:
            order = Order(len(self._examples), key=[self._seed % 2**64, epoch])
            # A batch may span the border of two epochs, so the one before is needed too.
            self._orders = {old: self._orders[old] for old in self._orders if old == epoch - 1} | {epoch: order}
        return self._orders[epoch]


def _as_examples(examples: PyTree) -> Examples:
    foreign = foreign_examples(examples)
    if foreign is not None:
        return foreign
    # An array has `len` and `take` too, but its `take` knows no rows.
    is_array = isinstance(examples, np.ndarray | jax.Array)
    return examples if isinstance(examples, Examples) and not is_array else ArrayExamples(examples)


def _is_column(node: object) -> bool:
    return isinstance(node, list) and bool(node) and isinstance(node[0], list | int | float | str | bytes)
