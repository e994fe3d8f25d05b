"""Relations between the values of a config, such as `warmup_steps < train_steps`."""

import ast
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from trellis.config.fields import Branch, branches, origin_of, owner_of, paths
from trellis.config.problems import Problem
from trellis.config.settings import CODE, join_path
from trellis.errors import ConfigError
from trellis.spelling import did_you_mean

_RELATIONS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    "<": operator.lt,
    ">=": operator.ge,
    ">": operator.gt,
}
_OPERATOR = re.compile("==|!=|<=|>=|<|>")


@dataclass(frozen=True)
class Operand:
    """A constant, or the dotted path of a field."""

    path: str | None
    constant: object = None

    @classmethod
    def parse(cls, text: str, *, restriction: str) -> "Operand":
        """Returns what an operand's text means: a number, None, True, False, 'quoted text', or else a path."""
        try:
            constant = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            if re.match(r"-?\.?\d", text):
                raise ConfigError(f"Restriction {restriction!r}: {text!r} is neither a number nor a path.") from None
            return cls(text)
        return cls(None, float(constant) if type(constant) is int else constant)

    def value(self, branch: Branch) -> object:
        """Returns the constant, or the value of the field."""
        field = owner_of(branch, self.path) if self.path else None
        return self.constant if field is None else vars(field[0])[field[1]]


@dataclass(frozen=True)
class Restriction:
    """One relation between two operands, which `validate` checks."""

    text: str
    operands: tuple[Operand, Operand]
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
        return cls(text, (left, right), relations[0])

    def problems(self, branch: Branch, prefix: str) -> Iterator[Problem]:
        """Yields what is wrong with a config by this restriction: nothing, unless it does not hold."""
        fields = [operand.path for operand in self.operands if operand.path]
        unknown = [path for path in fields if owner_of(branch, path) is None]
        for path in unknown:
            message = f"Restriction {self.text!r}: there is no {join_path(prefix, path)}."
            advice = did_you_mean(path, paths(branch), show=partial(join_path, prefix)).lstrip()
            yield Problem(message, CODE, prefix, advice)
        if unknown:
            return
        left, right = (operand.value(branch) for operand in self.operands)
        try:
            reason = "" if _RELATIONS[self.relation](left, right) else f"it is {left!r} {self.relation} {right!r}."
        except TypeError:
            reason = f"{left!r} and {right!r} cannot be ordered."
        if reason:
            first = join_path(prefix, fields[0]) if fields else prefix
            origins = [f"{join_path(prefix, path)} comes from {origin_of(branch, path)}" for path in fields]
            advice = f"{'; '.join(origins)}." if origins else ""
            yield Problem(f"Restriction {self.text!r} does not hold: {reason}", CODE, first, advice)


def violations(root: Branch) -> list[Problem]:
    """Returns what is wrong by the restrictions of a config and of all configs below it."""
    return [
        problem
        for prefix, branch in branches(root)
        for restriction in branch._restrictions
        for problem in restriction.problems(branch, prefix)
    ]
