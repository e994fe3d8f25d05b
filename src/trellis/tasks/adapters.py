"""Adapters (LoRA): few parameters, trained beside weights that stay as they are."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from trellis.aliases import Apply, Array, Key, PyTree, Variables
from trellis.errors import ArgumentError, ModelError
from trellis.extensions import fingerprint_words
from trellis.loops import MadeAtStart, overlaid
from trellis.optimizers import matches
from trellis.runtime import print_line
from trellis.spelling import did_you_mean
from trellis.tasks.bound_model import Model
from trellis.tasks.configs import BASE, LoraConfig

_FIRST, _SECOND = "lora_a", "lora_b"
_KERNEL = "kernel"
_DROPOUT = "dropout"
_MOST_NAMED = 6


@runtime_checkable
class PeftTask(Protocol):
    """A task whose adapters PEFT can have too."""

    def read_peft(self, directory: str, *, config: LoraConfig, shapes: Mapping[str, Any]) -> Mapping[str, np.ndarray]:
        """The trained parameters by their paths, which have such shapes, from a directory of PEFT's."""

    def write_peft(
        self, trained: PyTree, *, params: PyTree, config: LoraConfig, output_dir: str | os.PathLike[str]
    ) -> None:
        """Writes a directory that PEFT loads beside the weights that the training started from.

        Args:
            params: All parameters of the model.
        """


class Lora:
    """A linen model with adapters: each target layer adds `alpha / rank * dropout(x) @ a @ b` to what it computes.

    Its `init` and `apply` are for a loop. Their `params` are what is trained: `lora_a` and `lora_b` beside the place of
    each target's kernel, and what `also` names. All other weights are in a collection of their own, for which there are
    neither gradients nor a state of the optimizer, and which no checkpoint file holds: each start makes them again, and
    a file knows them by a fingerprint. In the beginning `b` is zero, so that nothing is changed.

    Example:
        adapted = Lora(model, rank=8, targets=["query", "value"], also=["head"])
        task = TrainTask(
            apply=adapted.apply, initialize=adapted.starting_from(pretrained), optimizer=optimizer, loss=loss, data=data
        )
        for checkpoint in TrainLoop(init=adapted.init, task=task, n_steps=1000):
            variables = adapted.merged(checkpoint.variables)  # those of the model itself

    Args:
        targets: Paths of dense layers (`nn.Dense`, `nn.DenseGeneral`), or of what these are in, from any name on:
            `query` is each layer of that name, `encoder/layer_[0-5]` all layers in those. `*` is for any name.
        also: Paths of what is trained whole, in the same words.
        alpha: The default is twice the rank.
        dropout: Of what goes into `a`, where `apply` is given a key `dropout`.
        place: Where the settings were given, for errors.
        origin: Where the weights come from, for errors.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        rank: int = 8,
        targets: Sequence[str] = ("query", "value"),
        also: Sequence[str] = (),
        alpha: float | None = None,
        dropout: float = 0.0,
        place: str = "Lora",
        origin: str = "the weights",
    ) -> None:
        if not isinstance(model, nn.Module):
            raise ModelError(
                f"{place}: adapters are for models of Flax's linen, whose layers can be found by their paths, but this "
                f"one is a {type(model).__name__}. Train it whole, or freeze parts of it: "
                f"--set=trainer.optimizer_config.frozen=[…]"
            )
        self.model = model
        self._rank = rank
        self._alpha = 2.0 * rank if alpha is None else alpha
        self._dropout = dropout
        self._targets, self._also = _checked(targets, f"{place}.targets"), _checked(also, f"{place}.also")
        self._place, self._origin = place, origin
        if not self._targets:
            raise ArgumentError(f"{place}.targets is empty. Name what gets adapters, such as [query, value].")
        _check_numbers(self._rank, self._alpha, dropout, place)

    def __repr__(self) -> str:
        return f"Lora({type(self.model).__name__}, rank={self._rank}, targets={[*self._targets]})"

    def init(self, rngs: Mapping[str, Key], *inputs: Any) -> Variables:
        """Makes the variables: the model's own, and adapters that change nothing."""
        layers: dict[str, _Layer] = {}
        with nn.intercept_methods(_recorder(layers)):
            variables = dict(self.model.init(dict(rngs), *inputs))
        if BASE in variables:
            raise ModelError(
                f"{self._place}: {type(self.model).__name__} has a collection {BASE!r} of its own, but that is what "
                f"the one with the frozen weights is called. Give the model's another name."
            )
        params = _flat(variables.pop("params", {}))
        trained = self._whole(params)
        targets = self._find_targets(params, layers, trained)
        base = {path: leaf for path, leaf in params.items() if path not in trained}
        for number, (path, layer) in enumerate(sorted(targets.items())):
            key = jax.random.fold_in(rngs["params"], number)
            trained |= self._new_pair(path, params[f"{path}/{_KERNEL}"], layer, key)
        return {"params": _nested(trained), BASE: self._made(_nested(base)), **variables}

    @property
    def apply(self) -> Apply:
        """Runs the model with its adapters."""
        return self.around(self.model.apply)

    def around(self, apply: Apply) -> Apply:
        """Turns the model's `apply`, or another with its contract, into one that takes the variables of `init`."""

        def adapted(variables: Variables, *inputs: Any, mutable: Any = False, **options: Any) -> Any:
            pairs = _pairs(variables["params"])
            kept = mutable
            if isinstance(mutable, list | tuple):
                kept = [name for name in mutable if name != BASE]
            with nn.intercept_methods(self._adder(pairs)):
                return apply(self.plain(variables), *inputs, mutable=kept, **options)

        return adapted

    def plain(self, variables: Variables) -> Variables:
        """The variables of the model itself, as they are without the adapters."""
        base: Any = variables[BASE]
        params = {path: leaf for path, leaf in _flat(variables["params"]).items() if not _is_of_pair(path)}
        others = {name: value for name, value in variables.items() if name not in ("params", BASE)}
        return {"params": _nested({**_flat(base.tree), **params}), **others}

    def merged(self, variables: Variables) -> Variables:
        """The variables of the model itself with the adapters in them, so that it answers as it does with them."""
        plain = self.plain(variables)
        params = _flat(plain["params"])
        merged = jax.jit(_merged)
        for path, (first, second) in _pairs(variables["params"]).items():
            name = f"{path}/{_KERNEL}"
            params[name] = merged(params[name], first, second, jnp.float32(self._scale))
        return {**plain, "params": _nested(params)}

    def starting_from(self, start: Variables | Callable[[Variables], Variables]) -> Callable[[Variables], Variables]:
        """What a `TrainTask` takes as `initialize`, so that the model's weights are those of a training before.

        A line tells which weights are neither among these nor trained, so that they stay as chance has made them.

        Args:
            start: Variables of the model itself, some or all, or a function from its own ones to these.
        """

        def initialize(variables: Variables) -> Variables:
            plain = self.plain(variables)
            others = start(plain) if callable(start) else start
            begun = overlaid(plain, others, place=f"{self._place}: starting_from")
            own, trained = _flat(begun["params"]), _flat(variables["params"])
            base: Any = variables[BASE]
            params = {path: own.get(path, leaf) for path, leaf in trained.items()}
            kept = {path: own[path] for path in _flat(base.tree)}
            before = _flat(plain["params"])
            random = sorted({path.rpartition("/")[0] for path in kept if own[path] is before[path]})
            if random:
                print_line(
                    f"Frozen as chance has made them are {_listed(random)}: {self._origin} did not have them, and "
                    f"{self._place}.also does not name them."
                )
            return {**begun, "params": _nested(params), BASE: self._made(_nested(kept))}

        return initialize

    def shares(self, variables: Variables) -> tuple[PyTree, PyTree, dict[str, PyTree]]:
        """The parameters that are trained, all of them with the frozen ones, and the model's other collections."""
        base: Any = variables[BASE]
        trained = _flat(variables["params"])
        others = {name: value for name, value in variables.items() if name not in ("params", BASE)}
        return variables["params"], _nested({**_flat(base.tree), **trained}), others

    def description(self, params: PyTree) -> str:
        """What is trained of a model, in words.

        Args:
            params: Those that are trained, or all.
        """
        whole = f"; whole: {', '.join(self._also)}" if self._also else ""
        n_matrices = len(_pairs(params))
        matrices = "1 matrix" if n_matrices == 1 else f"{n_matrices} matrices"
        return f"adapters of rank {self._rank} for {matrices}{whole}"

    @property
    def _scale(self) -> float:
        return self._alpha / self._rank

    def _made(self, tree: PyTree) -> MadeAtStart:
        return MadeAtStart(tree=tree, fingerprint=fingerprint_words(nn.meta.unbox(tree)), origin=self._origin)

    def _whole(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters that are trained whole."""
        for pattern in self._also:
            if not any(_is_in(path, pattern) for path in params):
                raise ArgumentError(_no_match(f"{self._place}.also", pattern, params, what="no parameter"))
        return {path: leaf for path, leaf in params.items() if any(_is_in(path, pattern) for pattern in self._also)}

    def _find_targets(
        self, params: Mapping[str, Any], layers: Mapping[str, "_Layer"], whole: Mapping[str, Any]
    ) -> dict[str, "_Layer"]:
        """The layers that get adapters, by their paths."""
        place = f"{self._place}.targets"
        dense = {path: layer for path, layer in layers.items() if f"{path}/{_KERNEL}" in params}
        found: dict[str, _Layer] = {}
        for pattern in self._targets:
            own = {path: layer for path, layer in dense.items() if _is_in(f"{path}/{_KERNEL}", pattern)}
            if not own:
                in_it = [path for path in params if _is_in(path, pattern)]
                if in_it:
                    raise ArgumentError(
                        f"{place}: {pattern!r} has no dense layer in it, only {_listed(in_it)}. Adapters are for "
                        f"nn.Dense and nn.DenseGeneral, such as {_listed(dense)}. To train it whole, name it in "
                        f"{self._place}.also."
                    )
                raise ArgumentError(_no_match(place, pattern, [f"{path}/{_KERNEL}" for path in dense], what="no layer"))
            found |= {path: layer for path, layer in own.items() if f"{path}/{_KERNEL}" not in whole}
        if not found:
            raise ArgumentError(
                f"{place}: all of {', '.join(self._targets)} is trained whole, as in {self._place}.also."
            )
        for path, layer in found.items():
            shape = nn.meta.unbox(params[f"{path}/{_KERNEL}"]).shape
            if shape != layer.shape:
                raise ArgumentError(
                    f"{place}: the kernels of {path} are stacked (nn.scan or nn.vmap; {shape}, each {layer.shape}), "
                    f"and adapters are for layers one by one. Leave it out."
                )
            most = min(layer.sizes)
            if self._rank > most:
                n_in, n_out = layer.sizes
                raise ArgumentError(
                    f"{self._place}.rank is {self._rank}, but {path} is a matrix of {n_in} × {n_out}, which has no "
                    f"greater rank than {most}. Take {most} or less, or leave it out of {place}."
                )
        return found

    def _new_pair(self, path: str, kernel: Any, layer: "_Layer", key: Key) -> dict[str, Any]:
        inside, outside = layer.shape[: layer.n_inputs], layer.shape[layer.n_inputs :]
        names = kernel.names if isinstance(kernel, nn.Partitioned) else None
        dtype = nn.meta.unbox(kernel).dtype
        bound = 1.0 / np.sqrt(layer.sizes[0])
        first: Any = jax.random.uniform(key, (*inside, self._rank), dtype, minval=-bound, maxval=bound)
        second: Any = jnp.zeros((self._rank, *outside), dtype)
        if names is not None:
            first = kernel.replace(value=first, names=(*names[: layer.n_inputs], None))
            second = kernel.replace(value=second, names=(None, *names[layer.n_inputs :]))
        return {f"{path}/{_FIRST}": first, f"{path}/{_SECOND}": second}

    def _adder(self, pairs: Mapping[str, tuple[Array, Array]]) -> Any:
        def add(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
            outputs = call(*args, **kwargs)
            if context.method_name != "__call__" or not isinstance(context.module, nn.Dense | nn.DenseGeneral):
                return outputs
            pair = pairs.get("/".join(context.module.path))
            if pair is None:
                return outputs
            inputs = args[0] if args else kwargs["inputs"]
            return outputs + self._change(context.module, inputs, *pair, dtype=outputs.dtype)

        return add

    def _change(self, module: Any, inputs: Array, first: Array, second: Array, *, dtype: Any) -> Array:
        """What the adapters of a layer add to what it computes."""
        if self._dropout and module.has_rng(_DROPOUT):
            kept = jax.random.bernoulli(module.make_rng(_DROPOUT), 1 - self._dropout, inputs.shape)
            inputs = jnp.where(kept, inputs / (1 - self._dropout), 0)
        n_inputs = first.ndim - 1
        axes = (-1,) if isinstance(module, nn.Dense) else module.axis
        axes = tuple(sorted(axis % inputs.ndim for axis in ((axes,) if isinstance(axes, int) else axes)))
        narrow = jax.lax.dot_general(
            inputs.astype(dtype), first.astype(dtype), ((axes, tuple(range(n_inputs))), ((), ()))
        )
        # Scaled where it is small.
        return jnp.tensordot(narrow * jnp.asarray(self._scale, dtype), second.astype(dtype), axes=1)


def parameters_by_path(params: PyTree) -> dict[str, Any]:
    """The arrays of a tree of parameters by their paths, such as `encoder/layer_0/attention/query/lora_a`."""
    return _flat(params)


def with_parameters(params: PyTree, arrays: Mapping[str, Any]) -> PyTree:
    """A tree of parameters with others in the place of those that have their paths."""
    return _nested({**_flat(params), **arrays})


def build_adapters(model: Model, config: LoraConfig | None, *, origin: str) -> Lora | None:
    """The adapters that a config asks for; None if it asks for none."""
    if config is None:
        return None
    return Lora(
        model,  # type: ignore[arg-type]
        rank=config.rank,
        targets=config.targets,
        also=config.also,
        alpha=config.alpha,
        dropout=config.dropout,
        place="trainer.lora",
        origin=origin,
    )


@dataclass(frozen=True)
class _Layer:
    """A dense layer of a model."""

    shape: tuple[int, ...]
    """That of its kernel."""
    n_inputs: int
    """How many axes of the kernel are summed over: the first ones."""

    @property
    def sizes(self) -> tuple[int, int]:
        """What goes in and what comes out, as a matrix has it."""
        return int(np.prod(self.shape[: self.n_inputs])), int(np.prod(self.shape[self.n_inputs :]))


def _recorder(layers: dict[str, _Layer]) -> Any:
    """What notes each dense layer of a model that is run."""

    def record(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
        outputs = call(*args, **kwargs)
        module = context.module
        is_dense = isinstance(module, nn.Dense | nn.DenseGeneral) and context.method_name == "__call__"
        if is_dense and not (isinstance(module, nn.DenseGeneral) and module.batch_dims):
            shape = nn.meta.unbox(module.variables["params"][_KERNEL]).shape
            features = module.features
            n_outputs = 1 if isinstance(features, int) else len(features)
            layers["/".join(module.path)] = _Layer(shape, len(shape) - n_outputs)
        return outputs

    return record


def _pairs(params: PyTree) -> dict[str, tuple[Array, Array]]:
    """The adapters among parameters, by the paths of their layers."""
    flat = _flat(params)
    firsts = [path.removesuffix(f"/{_FIRST}") for path in flat if path.endswith(f"/{_FIRST}")]
    return {path: (flat[f"{path}/{_FIRST}"], flat[f"{path}/{_SECOND}"]) for path in firsts}


def _is_of_pair(path: str) -> bool:
    return path.endswith((f"/{_FIRST}", f"/{_SECOND}"))


def _merged(kernel: Array, first: Array, second: Array, scale: Array) -> Array:
    # In full precision: it is done once, and what is exported is to answer as what was trained.
    change = jnp.tensordot(first, second, axes=1, precision=jax.lax.Precision.HIGHEST)
    return (kernel + scale * change).astype(kernel.dtype)


def _is_in(path: str, pattern: str) -> bool:
    return matches(path, [pattern, f"**/{pattern}"])


def _no_match(place: str, pattern: str, paths: Any, *, what: str) -> str:
    names = [name for path in paths for name in _beginnings(path.split("/"))]
    suggestion = did_you_mean(pattern, sorted(set(names)))
    parts = sorted({path.split("/")[-2 if what == "no layer" else 0] for path in paths})
    return f"{place}: {pattern!r} matches {what}.{suggestion} There is {_listed(parts)}."


def _beginnings(names: Sequence[str]) -> Iterator[str]:
    """Yields what a path may be called by: each stretch of its names."""
    yield from ("/".join(names[start:end]) for end in range(1, len(names) + 1) for start in range(end))


def _listed(names: Any) -> str:
    names = [*names]
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"{', '.join(names[:_MOST_NAMED]) or 'nothing'}{more}"


def _checked(patterns: Any, place: str) -> tuple[str, ...]:
    if isinstance(patterns, str) or not all(isinstance(pattern, str) for pattern in patterns):
        raise ArgumentError(f"{place} is {patterns!r}. Give a list of paths, such as ['query', 'value'].")
    return tuple(patterns)


def _check_numbers(rank: Any, alpha: Any, dropout: Any, place: str) -> None:
    if not isinstance(rank, int) or rank < 1:
        raise ArgumentError(f"{place}.rank is {rank!r}, but adapters have a rank of at least 1. 8 is usual.")
    if not alpha > 0:
        raise ArgumentError(f"{place}.alpha is {alpha!r}, so that adapters would change nothing. 16 is usual.")
    if not 0 <= dropout < 1:
        raise ArgumentError(f"{place}.dropout is {dropout!r}, but it is a share: 0 or more, and less than 1.")


def _flat(tree: PyTree) -> dict[str, Any]:
    return dict(flatten_dict(tree, sep="/"))


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    return dict(unflatten_dict(dict(flat), sep="/"))
