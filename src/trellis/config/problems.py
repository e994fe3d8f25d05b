"""What is wrong with a configuration, told with the place, the nearest valid name and the text to write."""

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap

from trellis.config.given import Given, Origin, written
from trellis.errors import ConfigError

_SHOWN = 96


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, and the way out."""

    message: str
    origin: Origin
    path: str = ""
    """The dotted path of the field concerned, from the config that was being set."""
    advice: str = ""
    fix: str = ""
    """What to write instead, ready to paste."""

    def __str__(self) -> str:
        """Returns the paragraph that a report has for it."""
        lines = [f"{_place(self.origin)}{self.message}", *_caret(self.origin)]
        if self.advice:
            lines += wrap(self.advice, 118, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)
        lines += [f"      {line}" for line in self.fix.splitlines()]
        return "\n".join(lines)


def raise_if_any(problems: Sequence[Problem]) -> None:
    """Raises one ConfigError that tells all problems, in the order in which they were written."""
    if not problems:
        return
    told = tuple(dict.fromkeys(str(problem) for problem in problems))
    if len(told) == 1:
        raise ConfigError(told[0], problems=told)
    raise ConfigError("\n\n".join((f"{len(told)} problems in the configuration", *told)), problems=told)


def correction(path: str, given: Given, *, sibling: bool = False, value: str | None = None) -> str:
    """Returns how to write a value at `path` in the language of its origin.

    Args:
        sibling: Whether the path differs from the one that was given in its last part only.
        value: The value to write, if not the one that was given.
    """
    text = written(given) if value is None else value
    if given.origin.form == "flag":
        leaves = [(path, text)] if value is not None else _leaves(path, given)
        return f"{given.origin.source}={','.join(f'{leaf}={_for_flag(text)}' for leaf, text in leaves)}"
    if given.origin.form == "code":
        return f"{path} = {text}"
    parts = path.split(".")
    if sibling:
        return f"{parts[-1]}: {text}" if not isinstance(given.value, dict) or value is not None else f"{parts[-1]}:"
    nested = [f"{'  ' * depth}{part}:" for depth, part in enumerate(parts)]
    return "\n".join([*nested[:-1], f"{nested[-1]} {text}"])


def _leaves(path: str, given: Given) -> list[tuple[str, str]]:
    if not isinstance(given.value, dict):
        return [(path, written(given))]
    return [leaf for name, item in given.value.items() for leaf in _leaves(f"{path}.{name}", item)]


def _for_flag(text: str) -> str:
    return f"'{text}'" if "," in text and text[0] not in "'\"[{" else text


def _place(origin: Origin) -> str:
    if origin.form == "code":
        return "" if origin.line is None else f"{origin}: "
    return f"{origin}:{origin.column}: " if origin.line is not None else f"{origin}: "


def _caret(origin: Origin) -> list[str]:
    if not origin.text:
        return []
    start = origin.column - 1
    first = max(0, start - _SHOWN // 2) if len(origin.text) > _SHOWN else 0
    shown = origin.text[first : first + _SHOWN]
    before = "…" if first else ""
    after = "…" if first + _SHOWN < len(origin.text) else ""
    width = max(1, min(origin.width, _SHOWN - (start - first)))
    number = f"{origin.line} | " if origin.line is not None else ""
    margin = " " * (len(number) - 2) + "| " if number else ""
    return [
        f"      {number}{before}{shown}{after}",
        f"      {margin}{' ' * (len(before) + start - first)}{'^' * width}",
    ]
