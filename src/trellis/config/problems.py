"""What is wrong with a configuration: each problem with its place and with the text to write instead."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from textwrap import wrap

from trellis.config.settings import Origin, Setting
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
    """Raises one ConfigError that lists all problems, in the order in which they were written."""
    if not problems:
        return
    paragraphs = tuple(dict.fromkeys(str(problem) for problem in problems))
    heading = [f"{len(paragraphs)} problems in the configuration"] if len(paragraphs) > 1 else []
    raise ConfigError("\n\n".join([*heading, *paragraphs, *_corrected_flags(problems)]), problems=paragraphs)


def _corrected_flags(problems: Sequence[Problem]) -> list[str]:
    """Returns each flag as a whole, if all that is wrong with it can be put right, each at a place of its own."""
    by_flag: dict[tuple[str, str], list[Problem]] = {}
    for problem in problems:
        if problem.origin.form == "flag":
            by_flag.setdefault((problem.origin.source, problem.origin.text), []).append(problem)
    corrected = []
    for (flag, text), of_flag in by_flag.items():
        edits = sorted({edit for problem in of_flag for edit in problem.edits}, key=lambda edit: edit.start)
        is_clear = all(first.stop <= second.start for first, second in pairwise(edits))
        if is_clear and all(problem.edits for problem in of_flag):
            right = _edited(text, edits)
            if right != of_flag[0].fix:
                corrected.append(f"Corrected:\n      {flag}={for_shell(right)}")
    return corrected


def _edited(text: str, edits: Sequence[Edit]) -> str:
    # From the last to the first, so that the places of the others stay.
    for edit in sorted(edits, key=lambda edit: -edit.start):
        text = f"{text[: edit.start]}{edit.text}{text[edit.stop :]}"
    return text


def for_shell(text: str) -> str:
    """Returns a flag's text such that a shell hands it over as it is, its quotes included."""
    plain = shlex.quote(text)
    return plain if plain == text or set(text) & set('"$`\\!') else f'"{text}"'


def edits_of(path: str, setting: Setting, *, value: str | None = None) -> tuple[Edit, ...]:
    """Returns what puts the entries of a flag right: their path and, if one is passed, their value."""
    origin = setting.origin
    if origin.form != "flag" or setting.key is None or path.endswith("]"):
        return ()
    is_in_braces = origin.text.startswith("{", origin.column - 1)
    if isinstance(setting.value, dict) and value is None and not is_in_braces:
        return tuple(edit for name, item in setting.value.items() for edit in edits_of(f"{path}.{name}", item))
    start = setting.key.column - 1
    stop = origin.column - 1 + origin.width
    return (Edit(start, stop, f"{path}={_for_flag(str(setting) if value is None else value)}"),)


def correction(path: str, setting: Setting, *, is_sibling: bool = False, value: str | None = None) -> str:
    """Returns how to write a value at `path` in the language of its origin.

    Args:
        is_sibling: Whether the path differs in its last part only from the one that was written.
        value: The value to write, if not the one that was written.
    """
    text = str(setting) if value is None else value
    if setting.origin.form == "flag":
        return ",".join(edit.text for edit in edits_of(path, setting, value=value))
    if setting.origin.form == "code":
        return f"{path} = {text}"
    *groups, name = path.split(".")
    if is_sibling:
        return f"{name}:" if isinstance(setting.value, dict) and value is None else f"{name}: {text}"
    above = [f"{'  ' * depth}{group}:" for depth, group in enumerate(groups)]
    return "\n".join([*above, f"{'  ' * len(groups)}{name}: {text}"])


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
