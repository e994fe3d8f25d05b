"""Where arrays live: states and batches, shared out over the axes of a mesh."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from numpy.typing import NDArray

from trellis.aliases import Apply, Array, Batch, PyTree, Variables
from trellis.errors import ArgumentError, shown
from trellis.runtime.agreement import agreed, is_first_process
from trellis.runtime.compilation import jit_on, run_by_parts
from trellis.runtime.processes import spread

AXIS_RULES: Mapping[Any, str] = {
    "vocab": "model",
    "heads": "model",
    "mlp": "model",
    "embed": "fsdp",
    "model": "model",
    "fsdp": "fsdp",
}
"""By the name that a model gives to an axis of a parameter: the axis of the mesh that shares it out."""

_T = TypeVar("_T")
_BATCH_AXES = ("data", "fsdp")
# Smaller arrays are whole on every device of the fsdp axis: gathering them would take longer than what they save.
_SMALLEST_SHARED = 1024


class Placement:
    """Puts states and batches on the devices of a mesh with the axes `data`, `fsdp` and `model`.

    Arrays are global: a batch of 32 on eight devices has shape (32, ...) and four examples on each. There is no replica
    axis anywhere. A batch is split over `data` and `fsdp`. A parameter, and what an optimizer keeps for it, is shared
    out over `model` and `fsdp` along those axes that its model names (`AXIS_RULES`), and over `fsdp` else along the
    longest axis that can be. What cannot be divided evenly is whole everywhere.

    Example:
        TrainLoop(devices=Placement(fsdp=4, model=2), …)

    Args:
        devices: The default is all local ones.
        data: How many devices see different examples and hold the same parameters; -1 for all that are left.
        fsdp: How many devices see different examples and share out the parameters.
        model: How many devices share out each layer's computation.
        exact: Whether the same inputs have to give the same bits each time, as exact resume needs. On GPUs this takes
            kernels that may be slower; other devices do so anyway.
    """

    def __init__(
        self,
        devices: Sequence[Any] | None = None,
        *,
        data: int = -1,
        fsdp: int = 1,
        model: int = 1,
        exact: bool = True,
    ) -> None:
        self.is_exact = exact
        self.devices = tuple(jax.local_devices() if devices is None else devices)
        self._sizes = _resolved({"data": data, "fsdp": fsdp, "model": model}, len(self.devices))
        self.mesh = jax.make_mesh(
            tuple(self._sizes.values()), tuple(self._sizes), axis_types=(AxisType.Auto,) * 3, devices=self.devices
        )
        self.replicated = NamedSharding(self.mesh, PartitionSpec())
        self._batches = NamedSharding(self.mesh, PartitionSpec(_BATCH_AXES))
        self.n_parts = math.prod(self._sizes[axis] for axis in _BATCH_AXES)
        self.spans_processes = not self.replicated.is_fully_addressable
        self.is_writer = is_first_process() or not self.spans_processes

    @classmethod
    def of(cls, devices: "Sequence[Any] | Placement | None") -> "Placement":
        """The placement that was given, or one that splits batches over the devices that were."""
        if isinstance(devices, Placement):
            return devices
        if devices is not None and not isinstance(devices, Sequence):
            raise ArgumentError(f"devices is {shown(devices)}. Give a list of devices, such as jax.devices()[:1].")
        return cls(devices)

    @property
    def platform(self) -> str:
        """What kind of devices these are: `cpu`, `gpu` or `tpu`."""
        platform: str = self.devices[0].platform
        return platform

    def agreed(self, decide: Callable[[], _T]) -> _T:
        """What the first of the processes decides that these devices are of, in all of them; see `agreed`."""
        return agreed(decide) if self.spans_processes else decide()

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """Makes this the `current_placement` of what is traced within."""
        token = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(token)

    @property
    def shares_params(self) -> bool:
        """Whether devices share out the parameters, and gather them where they are used."""
        return self._sizes["fsdp"] > 1

    @property
    def shares_states(self) -> bool:
        """Whether no device may hold all of a state."""
        return self.spans_processes or self._sizes["fsdp"] * self._sizes["model"] > 1

    def shapes(self, make: Callable[..., PyTree], *arguments: Any) -> PyTree:
        """The shapes of the state that a function makes, each with the sharding that it is to have.

        Args:
            make: May return Flax's boxes, which hold the names of an array's axes.
        """
        boxed = jax.eval_shape(make, *arguments)
        plain = nn.meta.unbox(boxed)
        with_names = jax.tree.map(
            lambda leaf, names: self._with_sharding(leaf, self._sharding(leaf.shape, names)) if len(names) else None,
            plain,
            nn.get_partition_spec(boxed),
        )
        return jax.tree.map(self._with_sharding, plain, self.shardings(plain, like=with_names))

    def shardings(self, shapes: PyTree, *, like: PyTree) -> PyTree:
        """The shardings for arrays of some shapes.

        Args:
            like: Of a state whose parts are to be followed: an array whose path ends in that of a parameter, and which
                has its shape, such as its gradient or its moments, gets the parameter's sharding.
        """
        leaders = {
            (_names(path)[1:], leaf.shape): leaf.sharding for path, leaf in jax.tree_util.tree_leaves_with_path(like)
        }

        def choose(path: Any, leaf: Any) -> NamedSharding:
            names = _names(path)
            candidates = (leaders.get((names[start:], leaf.shape)) for start in range(len(names) + 1))
            return next((sharding for sharding in candidates if sharding is not None), self._sharding(leaf.shape))

        return jax.tree_util.tree_map_with_path(choose, shapes)

    def build(self, make: jax.stages.Wrapped, *arguments: Any, like: PyTree) -> PyTree:
        """The arrays that a function makes, which is called only once.

        Args:
            like: Their `shapes`.
        """
        if self.shares_states:
            # Compiled as one, so that no device ever holds more than its share.
            program = jit_on(self.devices, make, is_exact=self.is_exact, out_shardings=shardings_of(like))
            return program(*arguments)
        return run_by_parts(make, *arguments)

    def put_state(self, tree: PyTree, *, like: PyTree | None = None, takes: bool = False) -> PyTree:
        """Copies a tree to the devices; the result shares no memory with what was given.

        Args:
            like: Its `shapes`; the default is to have all of it on every device.
            takes: Whether arrays that span processes, and are in place already, may be taken as they are.
        """
        shardings = jax.tree.map(lambda _: self.replicated, tree) if like is None else shardings_of(like)
        if takes and self.spans_processes:
            return jax.tree.map(
                lambda leaf, place: leaf if _is_at(leaf, place) else spread(leaf, place), tree, shardings
            )
        own = tree if self.spans_processes else jax.tree.map(_own, tree, shardings)
        return self._put(own, shardings, may_alias=False)

    def put_params(self, tree: PyTree) -> PyTree:
        """Puts parameters on the devices; those that are already there stay as they are."""
        return self._put(tree, jax.tree.map(self._kept_sharding, tree))

    def gather(self, variables: PyTree, *, shardings: PyTree) -> PyTree:
        """A model's variables, in a function that is compiled, as they are computed with: whole along `fsdp`.

        Left to itself XLA may as well gather a batch, and have every device compute with all examples.

        Args:
            shardings: How the variables are shared out, and their gradients are to be. Those of a tree of another
                structure are left alone.
        """
        structure: Any = jax.tree.structure(shardings)
        if not self.shares_params or structure != jax.tree.structure(variables):
            return variables
        return jax.tree.map(_gathered, variables, shardings)

    def gathering(self, shapes: Variables) -> Callable[[Apply], Apply]:
        """What turns a model's `apply` into one that gathers the model's variables first.

        Args:
            shapes: Those of the variables, with their shardings.
        """
        shardings = shardings_of(dict(shapes))

        def around(apply: Apply) -> Apply:
            def gathered(variables: Variables, *inputs: Any, **options: Any) -> Any:
                whole = {name: self.gather(variables[name], shardings=shardings.get(name, ())) for name in variables}
                return apply(whole, *inputs, **options)

            return gathered if self.shares_params else apply

        return around

    def own_rows(self, size: int) -> tuple[int, int]:
        """Which rows of a batch go to devices of this process: the first, and the one after the last."""
        if not self.spans_processes:
            return 0, size
        indices: Any = self._batches.addressable_devices_indices_map((size,))
        bounds = [rows.indices(size) for (rows,) in indices.values()]
        return min(start for start, _, _ in bounds), max(stop for _, stop, _ in bounds)

    def put_rows(self, rows: Batch, *, stacked: bool = False) -> Batch:
        """Makes batches that are split over the devices, of the rows that are this process's own.

        Args:
            rows: Those of `own_rows`: the whole batch if there is one process.
            stacked: Whether the leaves carry an axis of steps before the batch axis.
        """
        if len(self.devices) == 1:
            return rows
        sharding = NamedSharding(self.mesh, PartitionSpec(None, _BATCH_AXES)) if stacked else self._batches
        if not self.spans_processes:
            return jax.device_put(rows, sharding)
        first, last = self.own_rows(self.n_parts)
        axis = int(stacked)

        def joined(leaf: Any) -> Array:
            array = np.asarray(leaf)
            size = array.shape[axis] * self.n_parts // (last - first)
            shape = (*array.shape[:axis], size, *array.shape[axis + 1 :])
            start, _ = self.own_rows(size)

            def piece(index: Any) -> NDArray[Any]:
                begin, end, _ = index[axis].indices(size)
                own: NDArray[Any] = array[(*index[:axis], slice(begin - start, end - start), *index[axis + 1 :])]
                return own

            return jax.make_array_from_callback(shape, sharding, piece)

        return jax.tree.map(joined, rows)

    def put_batch(self, batch: Batch) -> Batch:
        """Splits a whole batch if its size allows it, else copies it to every device: right for a short last batch."""
        if len(self.devices) == 1:
            return batch
        divisible = np.shape(jax.tree.leaves(batch)[0])[0] % self.n_parts == 0
        return self._put(batch, self._batches if divisible else self.replicated)

    def _put(self, tree: PyTree, shardings: PyTree, **options: Any) -> PyTree:
        return spread(tree, shardings) if self.spans_processes else jax.device_put(tree, shardings, **options)

    def _sharding(self, shape: tuple[int, ...], names: Sequence[Any] = ()) -> NamedSharding:
        axes: list[str | None] = [None] * len(shape)
        for index, name in enumerate(names):
            axis = AXIS_RULES.get(name)
            if axis not in axes and self._can_share(axis, shape, index):
                axes[index] = axis
        free = [index for index in range(len(shape)) if axes[index] is None and self._can_share("fsdp", shape, index)]
        if free and "fsdp" not in axes:
            axes[max(free, key=lambda index: shape[index])] = "fsdp"
        return NamedSharding(self.mesh, PartitionSpec(*axes))

    def _can_share(self, axis: str | None, shape: tuple[int, ...], index: int) -> bool:
        if axis is None or (axis == "fsdp" and math.prod(shape) < _SMALLEST_SHARED):
            return False
        return self._sizes[axis] > 1 and shape[index] % self._sizes[axis] == 0

    def _kept_sharding(self, leaf: Any) -> NamedSharding:
        sharding = leaf.sharding if isinstance(leaf, jax.Array) else None
        if isinstance(sharding, NamedSharding) and sharding.mesh == self.mesh:
            return sharding
        return self._sharding(np.shape(leaf))

    @staticmethod
    def _with_sharding(leaf: Any, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


_CURRENT: ContextVar[Placement | None] = ContextVar("placement", default=None)


def current_placement() -> Placement | None:
    """The placement that a step is being traced for; None outside of the loops.

    By it a model chooses among ways to compute the same.
    """
    return _CURRENT.get()


def _resolved(sizes: Mapping[str, int], n_devices: int) -> dict[str, int]:
    """The sizes of the axes, with a number in the place of -1."""
    sizes_text = ", ".join(f"{axis}={size}" for axis, size in sizes.items())
    n_open, known = list(sizes.values()).count(-1), math.prod(size for size in sizes.values() if size != -1)
    if n_open > 1 or any(size < 1 and size != -1 for size in sizes.values()):
        raise ArgumentError(
            f"A mesh cannot be {sizes_text}: an axis has at least one device, and one of them may be -1, for all the "
            f"devices that are left."
        )
    if n_devices % known or (not n_open and n_devices != known):
        takes = f"a multiple of {known}" if n_open else f"{known}"
        verb = "is 1" if n_devices == 1 else f"are {n_devices}"
        raise ArgumentError(
            f"A mesh of {sizes_text} takes {takes} devices, but there {verb}. Choose sizes whose product is "
            f"{n_devices}; one of them may be -1, for all the devices that are left."
        )
    return {axis: n_devices // known if size == -1 else size for axis, size in sizes.items()}


def shardings_of(tree: PyTree) -> PyTree:
    """How the arrays of a tree, or those that its shapes stand for, are shared out."""
    return jax.tree.map(lambda leaf: leaf.sharding, tree)


def _is_at(leaf: Any, sharding: NamedSharding) -> bool:
    return isinstance(leaf, jax.Array) and leaf.sharding == sharding


def _own(leaf: Any, sharding: Any) -> Any:
    # From one device to several JAX keeps the memory of the first, whatever `may_alias` says.
    is_elsewhere = isinstance(leaf, jax.Array) and leaf.sharding.device_set != sharding.device_set
    return jnp.copy(leaf) if is_elsewhere else leaf


def _gathered(array: Array, shared: NamedSharding) -> Array:
    if "fsdp" not in shared.spec:
        return array
    whole = shared.update(spec=PartitionSpec(*(None if axis == "fsdp" else axis for axis in shared.spec)))
    return _moved(array, whole, shared)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _moved(array: Array, there: NamedSharding, back: NamedSharding) -> Array:
    """An array where it is needed; its gradient goes back to where it came from."""
    moved: Array = jax.lax.with_sharding_constraint(array, there)
    return moved


def _move(array: Array, there: NamedSharding, back: NamedSharding) -> tuple[Array, None]:
    return _moved(array, there, back), None


def _move_back(there: NamedSharding, back: NamedSharding, _: None, grad: Array) -> tuple[Array]:
    return (jax.lax.with_sharding_constraint(grad, back),)


_moved.defvjp(_move, _move_back)


def _names(path: Any) -> tuple[str, ...]:
    return tuple(jax.tree_util.keystr((key,), simple=True) for key in path)
