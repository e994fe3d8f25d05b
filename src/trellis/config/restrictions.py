"""Relations between the values of a config, such as `warmup_steps < train_steps`."""

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trellis.config.fields import Branch, branches, origin_of, owner_of, paths
from trellis.config.problems import Problem
from trellis.config.settings import CODE, join_path
from trellis.errors import ConfigError
from trellis.spelling import nearest

_RELATIONS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    "<": operator.lt,
    ">=": operator.ge,
    ">": operator.gt,
}
_OPERATOR = re.compile("==|!=|<=|>=|<|>")
_WORDS = {"None": None, "True": True, "False": False}


@dataclass(frozen=True)
class Operand:
    """A constant, or the dotted path of a field."""

    text: str
    path: str | None
    constant: object = None

    @classmethod
    def parse(cls, text: str, *, restriction: str) -> "Operand":
        """Returns what an operand's text means: a number, None, True, False, 'quoted text', or else a path."""
        if text in _WORDS:
            return cls(text, None, _WORDS[text])
        if quoted := re.fullmatch(r"'([^']*)'|\"([^\"]*)\"", text):
            return cls(text, None, quoted[1] if quoted[1] is not None else quoted[2])
        if not re.match(r"-?\.?\d", text):
            return cls(text, text)
        try:
            return cls(text, None, float(text))
        except ValueError:
            raise ConfigError(f"Restriction {restriction!r}: {text!r} is neither a number nor a path.") from None


@dataclass(frozen=True)
class Restriction:
    """One relation between two operands, which `validate` checks."""

    text: str
    left: Operand
    right: Operand
    relation: str

    @classmethod
    def parse(cls, text: str) -> "Restriction":
        """Returns the relation that a text such as `a.b <= 3` states."""
        relations = _OPERATOR.findall(text)
        operands = [part.strip() for part in _OPERATOR.split(text)]
        if len(relations) != 1 or not all(operands):
            raise ConfigError(
                f"Restriction {text!r} is not one relation between two operands. "
                f"Write it like 'a.b <= 3', with one of {' '.join(_RELATIONS)}."
            )
        left, right = (Operand.parse(operand, restriction=text) for operand in operands)
        return cls(text, left, right, relations[0])

    def problems(self, branch: Branch, prefix: str) -> list[Problem]:
        """Returns what is wrong with a config by this restriction: nothing, unless it does not hold."""
        unknown = [
            problem for operand in (self.left, self.right) if (problem := self._unknown(operand, branch, prefix))
        ]
        if unknown:
            return unknown
        left, right = (_value(operand, branch) for operand in (self.left, self.right))
        try:
            holds = _RELATIONS[self.relation](left, right)
        except TypeError:
            return [self._problem(f"{left!r} and {right!r} cannot be ordered.", branch, prefix)]
        return [] if holds else [self._problem(f"it is {left!r} {self.relation} {right!r}.", branch, prefix)]

    def _unknown(self, operand: Operand, branch: Branch, prefix: str) -> Problem | None:
        if operand.path is None or owner_of(branch, operand.path) is not None:
            return None
        close = nearest(operand.path, paths(branch))
        message = f"Restriction {self.text!r}: there is no {join_path(prefix, operand.path)}."
        return Problem(message, CODE, prefix, f"Did you mean {join_path(prefix, close)}?" if close else "")

    def _problem(self, what: str, branch: Branch, prefix: str) -> Problem:
        named = [operand.path for operand in (self.left, self.right) if operand.path]
        first = join_path(prefix, named[0]) if named else prefix
        origins = [f"{join_path(prefix, path)} comes from {origin_of(branch, path)}" for path in named]
        advice = f"{'; '.join(origins)}." if origins else ""
        return Problem(f"Restriction {self.text!r} does not hold: {what}", CODE, first, advice)


def violations(root: Branch) -> list[Problem]:
    """Returns what is wrong by the restrictions of a config and of all configs below it."""
    return [
        problem
        for prefix, branch in branches(root)
        for restriction in branch._restrictions
        for problem in restriction.problems(branch, prefix)
    ]


def _value(operand: Operand, branch: Branch) -> object:
    field = owner_of(branch, operand.path) if operand.path else None
    return operand.constant if field is None else vars(field[0])[field[1]]
