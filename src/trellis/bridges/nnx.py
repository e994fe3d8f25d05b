"""Flax NNX modules in a loop."""

import zlib
from collections import Counter
from collections.abc import Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from flax import nnx
from flax.core.scope import in_filter
from flax.errors import InvalidRngError
from flax.traverse_util import flatten_dict, unflatten_dict

from trellis.aliases import Key, Variables
from trellis.errors import ArgumentError, shown

_NO_KEYS: Mapping[str, Key] = {}


class BuildModule(Protocol):
    """Builds an NNX module: its class, a `functools.partial` of it, or a function."""

    def __call__(self, *, rngs: nnx.Rngs) -> nnx.Module:
        """A new module, initialised from the streams of `rngs`."""


class NNXModel:
    """A Flax NNX module as `init` and `apply`, to be used as those of a linen module.

    Parameters are in the collection `params`, batch statistics in `batch_stats`, all other variables in `state`. Random
    streams start anew in each call, from the keys of their names: in a loop, dropout is a function of the root key and
    the step.

    Example:
        model = NNXModel(lambda rngs: Classifier(n_classes=10, rngs=rngs))
        loop = TrainLoop(
            init=model.init,
            task=TrainTask(apply=model.apply, optimizer=optax.adam(1e-3), loss=cross_entropy, data=stream),
            collections={"apply": ["dropout"]},
        )
        evaluate = EvalLoop(task=EvalTask(apply=model.eval_apply, metrics={"accuracy": accuracy}, data=held_out))
    """

    def __init__(self, build: BuildModule) -> None:
        self._build = build
        self._structure, self._shapes = jax.eval_shape(lambda: nnx.split(self._new(params=0)))

    def init(self, rngs: Mapping[str, Key], *inputs: Any) -> Variables:
        """The variables of a new module, whatever the inputs are."""
        # Traced as in `__init__`, since outside of a trace NNX takes constant arrays for variables.
        variables: Variables = jax.jit(lambda keys: _variables(self._new(**keys)))(dict(rngs))
        return variables

    def apply(
        self, variables: Variables, *inputs: Any, rngs: Mapping[str, Key] = _NO_KEYS, mutable: Any = False
    ) -> Any:
        """The outputs in training mode; with `mutable` a pair of them and the changed collections."""
        module = self.bind(variables, rngs=rngs)
        module.train()
        return _run(module, inputs, rngs, mutable)

    def eval_apply(
        self, variables: Variables, *inputs: Any, rngs: Mapping[str, Key] = _NO_KEYS, mutable: Any = False
    ) -> Any:
        """The outputs in evaluation mode; otherwise as `apply`."""
        return _run(self.bind(variables, rngs=rngs), inputs, rngs, mutable)

    def bind(self, variables: Variables, *, rngs: Mapping[str, Key] = _NO_KEYS) -> nnx.Module:
        """A module with these variables, in evaluation mode.

        Example:
            classifier = model.bind(checkpoint.variables)
        """
        state = jax.tree.map(lambda leaf: leaf, self._shapes)  # a copy, as it is filled in place
        for collection in (*variables.values(), _fresh_streams(self._shapes, rngs)):
            nnx.replace_by_pure_dict(state, collection)
        module: nnx.Module = nnx.merge(self._structure, state)
        module.eval()
        for _, node in nnx.iter_graph(module):
            if isinstance(node, _Streams):
                node.begin(rngs)
        return module

    def _new(self, **keys: Any) -> nnx.Module:
        module = self._build(rngs=_Streams(**keys))
        if not isinstance(module, nnx.Module):
            raise ArgumentError(
                f"{shown(self._build)} returned {shown(module)}, but an NNXModel is made of an nnx.Module."
            )
        return module


class _Streams(nnx.Rngs):
    """Random streams; one that does not exist begins when a module first asks for its name."""

    def begin(self, rngs: Mapping[str, Key]) -> None:
        """Begins the streams of these keys that are not there yet."""
        for name, key in rngs.items():
            if name not in self:
                setattr(self, name, nnx.RngStream(key, tag=name))

    def __getitem__(self, name: str) -> Any:
        if name not in self and "params" in self:
            self.begin({name: jax.random.fold_in(self.params.key.get_value(), zlib.crc32(name.encode()))})
        return super().__getitem__(name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self[name]


def _fresh_streams(shapes: Any, rngs: Mapping[str, Key]) -> dict[str, Any]:
    """The state of all streams before anything is drawn; streams that share a name have different keys."""
    values: dict[tuple[Any, ...], Any] = {}
    n_named: Counter[str] = Counter()
    for path, leaf in nnx.to_flat_state(nnx.filter_state(shapes, nnx.RngState)):
        if isinstance(leaf, nnx.RngCount):
            values[path] = jnp.zeros(leaf.shape, jnp.uint32)
        else:
            key = jax.random.fold_in(rngs.get(leaf.tag, jax.random.key(0)), n_named[leaf.tag])
            values[path] = jax.random.split(key, leaf.shape) if leaf.shape else key
            n_named[leaf.tag] += 1
    return dict(unflatten_dict(values))


def _run(module: Any, inputs: tuple[Any, ...], rngs: Mapping[str, Key], mutable: Any) -> Any:
    unused = {path: count.get_value() for path, count in _counts(module)}
    outputs = module(*inputs)
    for path, count in _counts(module):
        if count.tag not in rngs and count.get_value() is not unused.get(path):
            raise InvalidRngError(f'{type(module).__name__} needs PRNG for "{count.tag}"')
    if mutable is False:
        return outputs
    return outputs, {name: part for name, part in _variables(module).items() if in_filter(mutable, name)}


def _counts(module: nnx.Module) -> Any:
    return nnx.to_flat_state(nnx.state(module, nnx.RngCount))


def _variables(module: nnx.Module) -> dict[str, Any]:
    transient = nnx.Any(nnx.RngState, nnx.Intermediate)
    _, _, *parts = nnx.split(module, transient, nnx.Param, nnx.BatchStat, ...)
    collections = zip(("params", "batch_stats", "state"), map(_with_text_keys, parts), strict=True)
    return {name: part for name, part in collections if part or name == "params"}


def _with_text_keys(state: Any) -> dict[str, Any]:
    # The layers of a list have numbers as keys, which a checkpoint file would give back as text.
    flat = flatten_dict(nnx.to_pure_dict(state))
    return dict(unflatten_dict({tuple(map(str, path)): value for path, value in flat.items()}))
