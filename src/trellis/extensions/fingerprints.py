"""What tells two states apart to the bit: a small number for each array, computed where the array is."""

import hashlib
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trellis.aliases import JSON, Array, PyTree
from trellis.extensions.extension import Extension
from trellis.loops import Checkpoint, Session

_TREES = {"params": "model_params", "model_state": "model_state", "optimizer_state": "optimizer_state"}
"""The trees of a state, by the name that an event has for them."""
_N_DIGITS = 16
# Odd constants of MurmurHash3 and of the golden ratio, each of the two words with some of its own.
_CONSTANTS = (
    (np.uint32(0x9E3779B1), np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35)),
    (np.uint32(0x27D4EB2F), np.uint32(0xCC9E2D51), np.uint32(0x1B873593)),
)
_MOST_BYTES_FETCHED = 2**18
_CALLS_IN_FLIGHT = 4


@dataclass(frozen=True)
class Fingerprint:
    """What tells a tree of arrays from another to the bit, whatever devices and processes share it out."""

    tensors: Mapping[str, str]
    """Sixteen digits for each array, by its path."""

    @property
    def digits(self) -> str:
        """Sixteen digits for all of it: names, dtypes, shapes and values."""
        text = "\n".join(f"{name} {digits}" for name, digits in self.tensors.items())
        return hashlib.blake2b(text.encode(), digest_size=_N_DIGITS // 2).hexdigest()


def fingerprint(tree: PyTree) -> Fingerprint:
    """The fingerprint of a tree of arrays. All processes that share it out have to call it.

    Each element's bits are mixed with its place in the array, and the results are added up as whole numbers, which
    gives the same in any order: so the number is the same on any devices. Of a large array two words are fetched.

    Example:
        assert fingerprint(checkpoint.model_params) == fingerprint(checkpoint.copy().model_params)
    """
    leaves = [
        (jax.tree_util.keystr(path, simple=True, separator="/"), leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    ]
    plain = {name: jax.random.key_data(leaf) if _is_key(leaf) else leaf for name, leaf in leaves}
    small = {name: leaf for name, leaf in plain.items() if _is_small(leaf)}
    sums = _started({name: leaf for name, leaf in plain.items() if name not in small})
    fetched, words = jax.device_get((small, sums))
    words |= {name: _words_on_host(array) for name, array in fetched.items()}
    return Fingerprint({name: _digits(leaf, words[name]) for name, leaf in leaves})


def fingerprint_words(tree: PyTree) -> Any:
    """Two numbers for each array of a tree, in the order of its leaves, that tell it from others of its shape.

    They may be traced; of arrays all processes that share them out have to call it.
    """
    leaves = jax.tree.leaves(tree)
    if not leaves:
        return np.zeros((0, 2), np.uint32)
    if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        return jnp.stack([_words_on_devices(leaf) for leaf in leaves])
    numbered = {str(index): leaf for index, leaf in enumerate(leaves)}
    small = {name: leaf for name, leaf in numbered.items() if _is_small(leaf)}
    sums = _started({name: leaf for name, leaf in numbered.items() if name not in small})
    fetched, words = jax.device_get((small, sums))
    words |= {name: _words_on_host(array) for name, array in fetched.items()}
    return np.stack([words[name] for name in numbered])


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _is_small(leaf: Any) -> bool:
    """Whether an array is sooner fetched than a program compiled for its shape."""
    if isinstance(leaf, jax.Array) and not (leaf.is_fully_addressable or leaf.is_fully_replicated):
        return False
    return bool(np.size(leaf) * jnp.result_type(leaf).itemsize <= _MOST_BYTES_FETCHED)


def _started(leaves: Mapping[str, Array]) -> dict[str, Array]:
    """The words of arrays on their devices, under way."""
    words: dict[str, Array] = {}
    in_flight: deque[Array] = deque()
    for name, leaf in leaves.items():
        words[name] = _words_on_devices(leaf)
        in_flight.append(words[name])
        # Sums over several devices that are all under way at once wait for each other for ever on virtual ones.
        if len(in_flight) > _CALLS_IN_FLIGHT and not (isinstance(leaf, jax.Array) and leaf.is_fully_replicated):
            in_flight.popleft().block_until_ready()
    return words


def _digits(leaf: Any, words: Any) -> str:
    # Zeros of one shape have the sum of zeros of another with as many elements: what an array is goes in, too.
    kind = f"{leaf.dtype if _is_key(leaf) else jnp.result_type(leaf)}{list(np.shape(leaf))}"
    seed = hashlib.blake2b(kind.encode(), digest_size=_N_DIGITS // 2).digest()
    mixed = int.from_bytes(seed) ^ (int(words[0]) << 32 | int(words[1]))
    return f"{mixed:0{_N_DIGITS}x}"


def _words_of(bits: Any, places: Any, array_module: Any) -> Any:
    """Two sums over elements, each mixed with its place, as unsigned numbers that begin again at 2^32."""
    sums = [array_module.sum(_mixed(bits, places, constants), dtype=np.uint32) for constants in _CONSTANTS]
    return array_module.stack(sums)


def _mixed(bits: Any, places: Any, constants: tuple[np.uint32, ...]) -> Any:
    first, second, third = constants
    mixed = (bits ^ (places * first + second)) * second
    mixed = (mixed ^ (mixed >> np.uint32(15))) * third
    return mixed ^ (mixed >> np.uint32(13))


def _words_on_host(array: np.ndarray) -> Any:
    # As JAX has it: what it does not have, such as float64, is what it would make of it.
    array = np.ascontiguousarray(array, dtype=jnp.result_type(array)).reshape(-1)
    if _is_packed(array.dtype):
        array = array.astype(np.int8)
    kind = {1: np.uint8, 2: np.uint16}.get(array.dtype.itemsize, np.uint32)
    bits = array.view(kind).astype(np.uint32)
    return _words_of(bits, np.arange(bits.size, dtype=np.uint32), np)


@jax.jit
def _words_on_devices(leaf: Array) -> Array:
    bits = _bits_on_devices(leaf)
    places = jnp.zeros(bits.shape, jnp.uint32)
    stride = 1
    # By axis, and not over a flat array, which devices that share it out would have to gather.
    for axis in reversed(range(bits.ndim)):
        places += jax.lax.broadcasted_iota(jnp.uint32, bits.shape, axis) * np.uint32(stride % 2**32)
        stride *= bits.shape[axis]
    words: Array = _words_of(bits, places, jnp)
    return words


def _bits_on_devices(leaf: Array) -> Array:
    """The bits of an array as numbers of 32 bits; what is wider has an axis more."""
    leaf = jnp.asarray(leaf)
    if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
        leaf = jnp.stack([leaf.real, leaf.imag], axis=-1)
    if leaf.dtype == jnp.bool_:
        leaf = leaf.astype(jnp.uint8)
    elif _is_packed(leaf.dtype):
        leaf = leaf.astype(jnp.int8)
    kind = {1: jnp.uint8, 2: jnp.uint16}.get(leaf.dtype.itemsize, jnp.uint32)
    return jax.lax.bitcast_convert_type(leaf, kind).astype(jnp.uint32)


def _is_packed(dtype: Any) -> bool:
    """Whether a byte may hold several numbers of a dtype."""
    return dtype in (jnp.int4, jnp.uint4, jnp.int2, jnp.uint2)


class Fingerprints(Extension):
    """Tells in an event what the state and the last batch of each checkpoint are, to the bit (kind `fingerprint`).

    An event has sixteen digits for each tree, `params`, `model_state`, `optimizer_state` and `batch`, and under
    `tensors` those of all arrays, one after the other; the first of a session also has their `names`. Two runs are the
    same up to a step if they have the same digits there; `trellis runs diff` compares them.

    Example:
        process = serial(EventWriter("runs/a"), every(1000, Fingerprints(), CheckpointFileWriter("runs/a")))
    """

    def __init__(self) -> None:
        self._tells_names = True

    def join(self, session: Session) -> None:
        """Tells the names anew: lines of an earlier session may be gone."""
        self._tells_names = True

    def handle(self, checkpoint: Checkpoint) -> Checkpoint:
        """Emits the event, and returns the checkpoint as it came."""
        if checkpoint.session is None:
            return checkpoint
        trees = {name: fingerprint(getattr(checkpoint, attribute)) for name, attribute in _TREES.items()}
        if checkpoint.last_batch is not None:
            trees["batch"] = fingerprint(checkpoint.last_batch())
        tensors = {f"{tree}/{name}": digits for tree, part in trees.items() for name, digits in part.tensors.items()}
        values: dict[str, JSON] = {name: part.digits for name, part in trees.items()}
        values["tensors"] = "".join(tensors.values())
        if self._tells_names:
            values["names"] = list(tensors)
        self._tells_names = False
        checkpoint.session.emit("fingerprint", step=checkpoint.step, text="", **values)
        return checkpoint
