"""Parts of a model's parameters, chosen by path: frozen ones, and groups with learning rates of their own."""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import wraps
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from trellis.aliases import PyTree
from trellis.errors import ArgumentError
from trellis.optimizers.configs import ParameterGroupConfig
from trellis.spelling import did_you_mean

_ADVICE = "A pattern is the path of a part, such as encoder/layer_0; `*` is for any name, `**` for any number of them."
_MOST_NAMED = 6
_REST = "rest"


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
        whole = with_part(jax.tree.map(lambda leaf: jnp.full_like(leaf, -0.0), params), part=part)
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
    nodes = jax.tree.leaves(optimizer_state, is_leaf=lambda node: isinstance(node, FrozenState))
    frozen = [pattern for node in nodes if isinstance(node, FrozenState) for pattern in node.frozen]
    return _without(params, frozen) if frozen else params


def with_part(whole: PyTree, *, part: PyTree) -> PyTree:
    """Returns a tree with another in the place of its own leaves, except where the other has None."""
    return jax.tree.map(lambda own, other: own if other is None else other, whole, part)


@dataclass(frozen=True)
class _Group:
    """Parameters with a rule of their own."""

    learning_rate_factor: float
    weight_decay: float | None


BuildRule = Callable[[float, float | None], optax.GradientTransformation]
"""Builds the rule of a group from the factor of its learning rate and its weight decay, None for the common one."""


def update_by_groups(
    build_rule: BuildRule, *, groups: Sequence[ParameterGroupConfig], place: str
) -> optax.GradientTransformation:
    """Returns an optimizer whose rule differs between groups of parameters; a parameter is of the first that fits.

    Args:
        place: Where the groups were given, for errors.
    """

    def by_label(params: PyTree) -> optax.GradientTransformationExtraArgs:
        labels, members = _assign(params, groups, place)
        rules = {label: build_rule(group.learning_rate_factor, group.weight_decay) for label, group in members.items()}
        tree = jax.tree_util.tree_map_with_path(lambda path, _: labels[_path_text(path)], params)
        return optax.multi_transform(rules, tree)

    def init(params: PyTree) -> PyTree:
        return by_label(params).init(params)

    def update(updates: PyTree, state: PyTree, params: PyTree = None, **extra: Any) -> tuple[PyTree, PyTree]:
        updates, state = by_label(params).update(updates, state, params, **extra)
        return updates, state

    return optax.GradientTransformationExtraArgs(init, update)


def _assign(
    params: PyTree, groups: Sequence[ParameterGroupConfig], place: str
) -> tuple[dict[str, str], dict[str, _Group]]:
    """The label of each parameter, and what each label stands for."""
    trained = set(parameter_paths(params))
    # A frozen parameter is None here: it is a layer all the same, and its name is not misspelt.
    known = [
        _path_text(path) for path, _ in jax.tree_util.tree_leaves_with_path(params, is_leaf=lambda leaf: leaf is None)
    ]
    labels: dict[str, str] = {}
    members: dict[str, _Group] = {}
    for number, group in enumerate(groups):
        here = f"{place}[{number}].parameters"
        for pattern in group.parameters:
            check_matches(pattern, known, place=here)
        layers = _layers([path for path in known if path not in labels], group.parameters)
        if not any(path in trained for inside in layers.values() for path in inside):
            raise ArgumentError(
                f"{here}: all that {', '.join(group.parameters)} matches is frozen, or in a group before this one, and "
                f"the first counts. Put what is special before what is general."
            )
        for depth, (layer, inside) in enumerate(reversed(layers.items())):
            label = str(number) if group.layer_decay is None else f"{number}/{layer}"
            factor = group.learning_rate_factor * (1.0 if group.layer_decay is None else group.layer_decay) ** depth
            members[label] = _Group(factor, group.weight_decay)
            labels |= dict.fromkeys(inside, label)
    members[_REST] = _Group(1.0, None)
    labels |= {path: _REST for path in trained if path not in labels}
    used = {labels[path] for path in trained}
    return labels, {label: group for label, group in members.items() if label in used}


def _layers(paths: Sequence[str], patterns: Sequence[str]) -> dict[str, list[str]]:
    """The parameters in each part that a pattern matches: in the order of the patterns, then of names and numbers."""
    layers: dict[str, list[str]] = {}
    taken: set[str] = set()
    for pattern in patterns:
        found: dict[str, list[str]] = {}
        for path in paths:
            n_names = _n_matched(path.split("/"), pattern.split("/"))
            if n_names is not None and path not in taken:
                found.setdefault("/".join(path.split("/")[:n_names]), []).append(path)
        for layer in sorted(found, key=_natural_order):
            layers[layer] = found[layer]
            taken.update(found[layer])
    return layers


def _natural_order(name: str) -> list[tuple[int, str]]:
    """A key by which layer_10 comes after layer_9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def parameter_paths(tree: PyTree) -> list[str]:
    """Returns the path of every leaf, such as `encoder/layer_0/attention/bias`."""
    return [_path_text(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]


def matches(path: str, patterns: Sequence[str]) -> bool:
    """Returns whether a parameter is in a part that one of the patterns names.

    Example:
        >>> matches("encoder/layer_1/bias", ["encoder/layer_[01]"]), matches("encoder/layer_10/bias", ["*/layer_1"])
        (True, False)
    """
    return any(_n_matched(path.split("/"), pattern.split("/")) is not None for pattern in patterns)


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
    listed = sorted(inside, key=_natural_order)
    more = f" and {len(listed) - _MOST_NAMED} more" if len(listed) > _MOST_NAMED else ""
    return f"There is {', '.join(listed[:_MOST_NAMED]) or 'nothing'}{more}."


def _checked_patterns(patterns: Sequence[str], place: str) -> tuple[str, ...]:
    if isinstance(patterns, str) or not all(isinstance(pattern, str) for pattern in patterns):
        raise ArgumentError(f"{place} is {patterns!r}. Give a list of paths, such as ['encoder/embeddings'].")
    return tuple(patterns)


def _without(tree: PyTree, patterns: Sequence[str]) -> PyTree:
    """The tree with None in the place of the leaves that are chosen."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: None if matches(_path_text(path), patterns) else leaf, tree
    )


def _n_matched(names: Sequence[str], pattern: Sequence[str]) -> int | None:
    """With how many of its first names a path matches a pattern; None if it does not."""
    if not pattern:
        return 0
    if pattern[0] == "**":
        for n_skipped in range(len(names) + 1):
            n_more = _n_matched(names[n_skipped:], pattern[1:])
            if n_more is not None:
                return n_skipped + n_more
        return None
    if not names or not fnmatchcase(names[0], pattern[0]):
        return None
    n_more = _n_matched(names[1:], pattern[1:])
    return None if n_more is None else n_more + 1


def _path_text(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")
