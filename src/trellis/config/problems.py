"""What is wrong with a configuration, told with the place, the nearest valid name and the text to write."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap

from trellis.config.given import Given, Origin, written
from trellis.errors import ConfigError

_SHOWN = 96


@dataclass(frozen=True, slots=True)
class Edit:
    """A part of a flag's text, and what belongs in its place."""

    start: int
    stop: int
    text: str


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, and the way out."""

    message: str
    origin: Origin
    path: str = ""
    """The dotted path of the field concerned, from the config that was being set."""
    advice: str = ""
    fix: str = ""
    """What to write instead, ready to paste; in a flag, the entry concerned."""
    edits: tuple[Edit, ...] = ()
    """What turns a flag's text into the right one, if that is known."""

    def __str__(self) -> str:
        """Returns the paragraph that a report has for it."""
        lines = [f"{_place(self.origin)}{self.message}", *_caret(self.origin)]
        if self.advice:
            lines += wrap(self.advice, 118, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)
        whole = self.fix and self.origin.form == "flag" and _edited(self.origin.text, self.edits) == self.fix
        fix = f"{self.origin.source}={for_shell(self.fix)}" if whole else self.fix
        lines += [f"      {line}" for line in fix.splitlines()]
        return "\n".join(lines)


def raise_if_any(problems: Sequence[Problem]) -> None:
    """Raises one ConfigError that tells all problems, in the order in which they were written."""
    if not problems:
        return
    told = tuple(dict.fromkeys(str(problem) for problem in problems))
    head = [f"{len(told)} problems in the configuration"] if len(told) > 1 else []
    raise ConfigError("\n\n".join([*head, *told, *_corrected_flags(problems)]), problems=told)


def _corrected_flags(problems: Sequence[Problem]) -> list[str]:
    """Returns each flag as a whole, if all that is wrong with it can be put right."""
    by_flag: dict[tuple[str, str], list[Problem]] = {}
    for problem in problems:
        if problem.origin.form == "flag":
            by_flag.setdefault((problem.origin.source, problem.origin.text), []).append(problem)
    corrected = []
    for (flag, text), found in by_flag.items():
        if all(problem.edits for problem in found):
            right = _edited(text, [edit for problem in found for edit in problem.edits])
            if right != found[0].fix:
                corrected.append(f"Corrected:\n      {flag}={for_shell(right)}")
    return corrected


def _edited(text: str, edits: Sequence[Edit]) -> str:
    for edit in sorted(set(edits), key=lambda edit: -edit.start):
        text = f"{text[: edit.start]}{edit.text}{text[edit.stop :]}"
    return text


def for_shell(text: str) -> str:
    """Returns a flag's text such that a shell hands it over as it is, its quotes included."""
    plain = shlex.quote(text)
    return plain if plain == text or set(text) & set('"$`\\!') else f'"{text}"'


def edits_of(path: str, given: Given, *, value: str | None = None) -> tuple[Edit, ...]:
    """Returns what puts the entries of a flag right: their path, and the value if one is given."""
    if given.origin.form != "flag" or given.key is None or path.endswith("]"):
        return ()
    start, stop = given.key.column - 1, given.origin.column - 1 + given.origin.width
    if (
        isinstance(given.value, dict)
        and value is None
        and not given.origin.text.startswith("{", given.origin.column - 1)
    ):
        return tuple(edit for name, item in given.value.items() for edit in edits_of(f"{path}.{name}", item))
    return (Edit(start, stop, f"{path}={_for_flag(written(given) if value is None else value)}"),)


def correction(path: str, given: Given, *, sibling: bool = False, value: str | None = None) -> str:
    """Returns how to write a value at `path` in the language of its origin.

    Args:
        sibling: Whether the path differs from the one that was given in its last part only.
        value: The value to write, if not the one that was given.
    """
    text = written(given) if value is None else value
    if given.origin.form == "flag":
        return ",".join(edit.text for edit in edits_of(path, given, value=value))
    if given.origin.form == "code":
        return f"{path} = {text}"
    parts = path.split(".")
    if sibling:
        return f"{parts[-1]}: {text}" if not isinstance(given.value, dict) or value is not None else f"{parts[-1]}:"
    nested = [f"{'  ' * depth}{part}:" for depth, part in enumerate(parts)]
    return "\n".join([*nested[:-1], f"{nested[-1]} {text}"])


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
