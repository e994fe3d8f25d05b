"""Groups of parameters with learning rates and weight decays of their own."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import optax

from trellis.aliases import PyTree
from trellis.errors import ArgumentError
from trellis.optimizers.configs import ParameterGroupConfig
from trellis.optimizers.parts import check_matches, n_matched, natural_order, parameter_paths, path_text

_REST = "rest"


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
        tree = jax.tree_util.tree_map_with_path(lambda path, _: labels[path_text(path)], params)
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
        path_text(path) for path, _ in jax.tree_util.tree_leaves_with_path(params, is_leaf=lambda leaf: leaf is None)
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
            n_names = n_matched(path.split("/"), pattern.split("/"))
            if n_names is not None and path not in taken:
                found.setdefault("/".join(path.split("/")[:n_names]), []).append(path)
        for layer in sorted(found, key=natural_order):
            layers[layer] = found[layer]
            taken.update(found[layer])
    return layers
