"""Parts of a model's parameters, chosen by path; and an optimizer that leaves some of them as they are."""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import wraps
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from trellis.aliases import PyTree
from trellis.errors import ArgumentError
from trellis.spelling import did_you_mean

_ADVICE = "A pattern is the path of a part, such as encoder/layer_0; `*` is for any name, `**` for any number of them."
_MOST_NAMED = 6


@struct.dataclass
class FrozenState:
    """The state of an optimizer that leaves parameters as they are, and so part of every checkpoint file."""

    optimizer: PyTree
    """The state of the optimizer of the others."""
    frozen: tuple[str, ...] = struct.field(pytree_node=False)


def freeze_parameters(
    optimizer: optax.GradientTransformation, *, frozen: Sequence[str], place: str = "freeze_parameters(frozen=…)"
) -> optax.GradientTransformation:
    """Returns an optimizer that keeps nothing of some parameters and leaves them as they are, to the bit.

    A training step computes no gradients of them.

    Example:
        optimizer = freeze_parameters(optax.adamw(1e-3), frozen=["encoder/embeddings", "encoder/layer_[0-5]"])
        task = TrainTask(apply=model.apply, optimizer=optimizer, loss=cross_entropy, data=stream)

    Args:
        frozen: Paths of parts, which stand for all that is in them. `*` and `[0-5]` are for any name and any of some
            characters, `**` is for any number of names.
        place: Where they were given, for errors.
    """
    patterns = _checked_patterns(frozen, place)

    def init(params: PyTree) -> FrozenState:
        paths = parameter_paths(params)
        for pattern in patterns:
            check_matches(pattern, paths, place=place)
        if patterns and all(matches(path, patterns) for path in paths):
            raise ArgumentError(
                f"{place}: {', '.join(patterns)} is all that the model has, so that nothing would be trained. Leave "
                f"out the part that is to learn, such as a head."
            )
        return FrozenState(optimizer=optimizer.init(_without(params, patterns)), frozen=patterns)

    def update(updates: PyTree, state: FrozenState, params: PyTree = None, **extra: Any) -> tuple[PyTree, FrozenState]:
        if params is None:
            raise ArgumentError("freeze_parameters: `update` needs the parameters: update(grads, state, params)")
        known = {name: _without(value, patterns) if name == "grad" else value for name, value in extra.items()}
        if "value_fn" in extra:
            known["value_fn"] = _of_part(extra["value_fn"], params)
        inner_update = optax.with_extra_args_support(optimizer).update
        part, inner = inner_update(_without(updates, patterns), state.optimizer, _without(params, patterns), **known)
        # The zero that changes no number, not even the sign of a zero.
        whole = jax.tree.map(lambda leaf, new: jnp.full_like(leaf, -0.0) if new is None else new, params, part)
        return whole, FrozenState(optimizer=inner, frozen=patterns)

    return optax.GradientTransformationExtraArgs(init, update)


def _of_part(value_fn: Callable[..., Any], params: PyTree) -> Callable[..., Any]:
    """The same function, for a line search, which knows those parameters alone that it moves."""

    # A line search looks at the signature.
    @wraps(value_fn)
    def value_of_part(part: PyTree, *others: Any, **more: Any) -> Any:
        return value_fn(with_part(params, part=part), *others, **more)

    return value_of_part


def trained_part(params: PyTree, *, optimizer_state: PyTree) -> PyTree:
    """Returns the parameters that an optimizer changes, with None in the place of those that are frozen.

    Args:
        params: Parameters, their shapes, or whatever else has their structure.
    """
    frozen = [*_frozen_in(optimizer_state)]
    return _without(params, frozen) if frozen else params


def _frozen_in(optimizer_state: PyTree) -> Iterator[str]:
    for node in jax.tree.leaves(optimizer_state, is_leaf=lambda node: isinstance(node, FrozenState)):
        if isinstance(node, FrozenState):
            yield from node.frozen
            yield from _frozen_in(node.optimizer)


def with_part(whole: PyTree, *, part: PyTree) -> PyTree:
    """Returns a tree with another in the place of its own leaves, except where the other has None."""
    return jax.tree.map(lambda own, other: own if other is None else other, whole, part)


def natural_order(name: str) -> list[tuple[int, str]]:
    """Returns a key by which layer_10 comes after layer_9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def parameter_paths(tree: PyTree) -> list[str]:
    """Returns the path of every leaf, such as `encoder/layer_0/attention/bias`."""
    return [path_text(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]


def matches(path: str, patterns: Sequence[str]) -> bool:
    """Returns whether a parameter is in a part that one of the patterns names.

    Example:
        >>> matches("encoder/layer_1/bias", ["encoder/layer_[01]"]), matches("encoder/layer_10/bias", ["*/layer_1"])
        (True, False)
    """
    return any(n_matched(path.split("/"), pattern.split("/")) is not None for pattern in patterns)


def check_matches(pattern: str, paths: Sequence[str], *, place: str) -> None:
    """Raises an error if a pattern names no parameter."""
    if any(matches(path, [pattern]) for path in paths):
        return
    parts = {"/".join(path.split("/")[:n]) for path in paths for n in range(1, path.count("/") + 2)}
    suggestion = did_you_mean(pattern, sorted(parts))
    raise ArgumentError(f"{place}: {pattern!r} matches no parameter.{suggestion} {_beside(pattern, parts)} {_ADVICE}")


def _beside(pattern: str, parts: Collection[str]) -> str:
    """What there is where a pattern leads away from what there is."""
    names = pattern.split("/")
    known = [n for n in range(1, len(names)) if any(matches(part, ["/".join(names[:n])]) for part in parts)]
    above = "/".join(names[: max(known)]) if known else ""
    n_names = max(known, default=0) + 1
    inside = [part for part in parts if part.count("/") + 1 == n_names and (not above or matches(part, [above]))]
    listed = sorted(inside, key=natural_order)
    more = f" and {len(listed) - _MOST_NAMED} more" if len(listed) > _MOST_NAMED else ""
    return f"There is {', '.join(listed[:_MOST_NAMED]) or 'nothing'}{more}."


def _checked_patterns(patterns: Sequence[str], place: str) -> tuple[str, ...]:
    if isinstance(patterns, str) or not all(isinstance(pattern, str) for pattern in patterns):
        raise ArgumentError(f"{place} is {patterns!r}. Give a list of paths, such as ['encoder/embeddings'].")
    return tuple(patterns)


def _without(tree: PyTree, patterns: Sequence[str]) -> PyTree:
    """The tree with None in the place of the leaves that are chosen."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: None if matches(path_text(path), patterns) else leaf, tree
    )


def n_matched(names: Sequence[str], pattern: Sequence[str]) -> int | None:
    """Returns with how many of its first names a path matches a pattern; None if it does not."""
    if not pattern:
        return 0
    if pattern[0] == "**":
        for n_skipped in range(len(names) + 1):
            n_more = n_matched(names[n_skipped:], pattern[1:])
            if n_more is not None:
                return n_skipped + n_more
        return None
    if not names or not fnmatchcase(names[0], pattern[0]):
        return None
    n_more = n_matched(names[1:], pattern[1:])
    return None if n_more is None else n_more + 1


def path_text(path: Any) -> str:
    """Returns the path of a leaf as text."""
    return jax.tree_util.keystr(path, simple=True, separator="/")
