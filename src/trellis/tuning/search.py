"""What a sweep searches: fields of a config, each with the values that it may take."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from trellis.config import Origin, Problem, Setting, Text, merge, plain_value, raise_if_any, read_file, violations
from trellis.experiments import ExperimentConfig, active_fields

Value = None | bool | int | float | str
"""What a searched field takes: one value, no list and no part of the config."""
Kind = Literal["log", "uniform", "int", "choice"]

_EXAMPLES: Mapping[str, str] = {"log": "1e-5, 1e-3", "uniform": "0, 0.5", "int": "1, 8", "choice": "16, 32"}
"""The kinds, each with values that it may have."""
_FLAG = re.compile(r"(?P<path>[A-Za-z][\w.]*)\s*=\s*(?P<kind>\w+)\((?P<values>.*)\)\s*")
_BETWEEN = 0.37
"""Where between its ends a range is tried: a field of whole numbers takes both ends, but not what lies between."""


@dataclass(frozen=True)
class Range:
    """The values that one field may take.

    Example:
        >>> str(Range("trainer.train_steps", kind="int", values=(10, 20)))
        'int(10, 20)'
    """

    path: str
    kind: Kind
    values: tuple[Value, ...]
    """All of a choice; of the other kinds the least and the greatest."""
    step: float | None = None
    """From one value to the next, from the least on; None if there is none."""

    def __str__(self) -> str:
        """Returns the range as a flag has it."""
        step = () if self.step is None else (self.step,)
        return f"{self.kind}({', '.join(map(str, (*self.values, *step)))})"


@dataclass(frozen=True)
class SearchSpace:
    """The ranges of a sweep, checked against the config that they change."""

    config: ExperimentConfig
    ranges: tuple[Range, ...]

    def config_at(self, end: Literal[0, -1]) -> ExperimentConfig:
        """Returns the config of a trial that takes the first, or the last, value of every range."""
        return self.config_of({range_.path: range_.values[end] for range_ in self.ranges}, source="--search")

    def config_of(self, overrides: Mapping[str, Value], *, source: str) -> ExperimentConfig:
        """Returns the config of one trial, validated and locked.

        Args:
            source: What the config names as the origin of the values, such as `trial 7`.
        """
        config = self.config.replace()
        origin = Origin(source)
        problems = [p for path, value in overrides.items() for p in merge(config, _nested(path, value, origin, origin))]
        raise_if_any([*problems, *violations(config)])
        config.lock()
        return config


@dataclass(frozen=True)
class _Entry:
    """One range as it was written."""

    path: str
    kind: str
    values: Sequence[Setting]
    origin: Origin
    key: Origin


def read_search(texts: Sequence[str], *, config: ExperimentConfig) -> SearchSpace:
    """Returns what files and flags search; all that is wrong with them is raised as one error.

    Args:
        texts: Names of YAML files, and ranges such as `trainer.train_steps=int(100, 500)`; later ones win.
        config: What the trials change.
    """
    problems: list[Problem] = []
    entries: dict[str, _Entry] = {}
    for text in texts:
        found = _read_flag(text, problems) if "=" in text else _read_search_file(text, problems)
        entries.update({entry.path: entry for entry in found})
    ranges = {entry.path: _range_of(entry, config, problems) for entry in entries.values()}
    checked = tuple(range_ for range_ in ranges.values() if range_ is not None)
    if not problems:
        problems += _idle_problems(checked, entries, config)
    if not problems and not checked:
        advice = "Give a range: --search 'trainer.train_steps=int(100, 500)', or a YAML file of them."
        problems.append(Problem("Nothing is searched.", Origin("--search", form="flag"), "", advice))
    raise_if_any(problems)
    return SearchSpace(config, checked)


def _read_flag(text: str, problems: list[Problem]) -> list[_Entry]:
    match = _FLAG.fullmatch(text)
    if match is None:
        whole = Origin("--search", form="flag", text=text, width=len(text))
        advice = "Write PATH=log(1e-5, 1e-3), PATH=uniform(0, 0.5), PATH=int(1, 8) or PATH=choice(16, 32)."
        problems.append(Problem(f"{text} is no range.", whole, "", advice))
        return []

    def at(group: str) -> Origin:
        width = max(1, len(match[group]))
        return Origin("--search", form="flag", text=text, column=match.start(group) + 1, width=width)

    items = [item.strip() for item in match["values"].split(",")] if match["values"].strip() else []
    return [
        _Entry(match["path"], match["kind"], [_scalar(item, at("values")) for item in items], at("kind"), at("path"))
    ]


def _scalar(text: str, origin: Origin) -> Setting:
    is_quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
    return Setting(Text(text[1:-1] if is_quoted else text, quoted=is_quoted), origin)


def _read_search_file(name: str, problems: list[Problem]) -> list[_Entry]:
    setting, file_problems = read_file(name)
    problems += file_problems
    if not file_problems and not setting.value:
        problems.append(Problem("The file searches nothing: it is empty.", setting.origin, "", _advice(setting.origin)))
    return [] if file_problems else list(_entries_in(setting, "", problems))


def _entries_in(setting: Setting, path: str, problems: list[Problem]) -> Iterator[_Entry]:
    """Yields the ranges of a file, whose paths may be dotted, nested, or both."""
    if not isinstance(setting.value, dict):
        if setting.value:
            message = f"{path or 'The file'} has {setting}, which is no range."
            problems.append(Problem(message, setting.origin, path, _advice(setting.origin)))
        return
    for name, item in setting.value.items():
        if path and len(setting.value) == 1 and isinstance(item.value, list):
            yield _Entry(path, str(name), item.value, item.key_origin, setting.key_origin)
        else:
            yield from _entries_in(item, f"{path}.{name}" if path else str(name), problems)


def _advice(origin: Origin) -> str:
    return f"Write one of: {', '.join(_written(kind, values, origin) for kind, values in _EXAMPLES.items())}."


def _written(kind: str, values: str, origin: Origin) -> str:
    """Returns a range as it is written where one came from."""
    return f"{kind}({values})" if origin.form == "flag" else f"{{{kind}: [{values}]}}"


def _range_of(entry: _Entry, config: ExperimentConfig, problems: list[Problem]) -> Range | None:
    """Returns the range that an entry describes; None if something is wrong with it."""
    n_before = len(problems)
    kind, path = entry.kind, entry.path
    if kind not in _EXAMPLES:
        message = f"{path} has {kind}, which is no kind of range."
        problems.append(Problem(message, entry.origin, path, _advice(entry.origin)))
        return None
    if kind == "choice":
        values = [value for item in entry.values for value in _choices(entry, item, config, problems)]
        if not values and len(problems) == n_before:
            problems.append(Problem(f"{path}: choice has no values.", entry.origin, path, "Give some."))
        return Range(path, "choice", tuple(dict.fromkeys(values))) if len(problems) == n_before else None
    ends = [plain_value(item.value) if isinstance(item.value, Text) else None for item in entry.values]
    problem = _problem_with_ends(kind, ends)
    if problem:
        advice = f"Write, for example: {_written(kind, _EXAMPLES[kind], entry.origin)}"
        problems.append(Problem(f"{path}: {problem}", entry.origin, path, advice))
        ends = ends[:1]
    ends, steps = ends[:2], ends[2:]
    numbers = [end for end in ends if isinstance(end, int | float) and not isinstance(end, bool)]
    tried = numbers if kind == "int" or problem else [*numbers, _between(numbers, steps)]
    for number in tried or [1]:
        found = _try(entry, Text(repr(number)), config)
        if found and number not in numbers and numbers:
            between = f"{path} does not take {number!r}, which lies between the ends of {kind}."
            advice = f"Search whole numbers: {_written('int', _EXAMPLES['int'], entry.origin)}"
            found = [Problem(between, entry.origin, path, advice)]
        problems += found
        if found:
            break
    if len(problems) > n_before:
        return None
    step = next((float(step) for step in steps if isinstance(step, int | float)), None)
    if kind == "int":
        whole = tuple(int(number) for number in numbers)
        return Range(path, "int", whole, step=None if step is None else int(step))
    return Range(path, "log" if kind == "log" else "uniform", tuple(float(number) for number in numbers), step=step)


def _between(ends: Sequence[float], steps: Sequence[object]) -> float:
    """A value that is none of the two ends of a range, unless its step leads from one to the other."""
    step = next((float(step) for step in steps if isinstance(step, int | float)), None)
    return ends[0] + (_BETWEEN * (ends[1] - ends[0]) if step is None else step)


def _problem_with_ends(kind: str, ends: Sequence[object]) -> str:
    """Says what is wrong with the ends of a range; empty if nothing is."""
    shown = ", ".join(map(str, ends))
    if len(ends) == 3 and kind == "log":
        return f"log({shown}) has a step, which a logarithm has none of."
    if len(ends) not in (2, 3):
        return f"{kind} takes the least and the greatest value, and perhaps a step, not {len(ends)} values."
    low, high, *steps = ends
    is_number = all(isinstance(end, int | float) and not isinstance(end, bool) for end in (low, high))
    if not is_number or not isinstance(low, int | float) or not isinstance(high, int | float):
        return f"{kind}({shown}) has an end that is no number."
    if not (math.isfinite(low) and math.isfinite(high)):
        return f"{kind}({shown}) has an end that is not finite."
    if kind == "int" and any(isinstance(end, float) and not end.is_integer() for end in ends):
        return f"int({shown}) has an end or a step that is no whole number."
    if low >= high:
        return f"{kind}({shown}) has its ends in the wrong order, or is a single value."
    for step in steps:
        if not isinstance(step, int | float) or isinstance(step, bool) or not 0 < step <= high - low:
            return f"{kind}({shown}) has the step {step}, which is not between 0 and the whole range."
        n_steps = round((high - low) / step)
        if not math.isclose(low + n_steps * step, high, rel_tol=1e-9, abs_tol=1e-12):
            last = low + int((high - low) / step) * step
            return f"{kind}({shown}) does not end on a step: its last value would be {last:g}."
    if kind == "log" and low <= 0:
        return f"log({shown}) begins at {low}, but a logarithm needs more than 0."
    return ""


def _choices(entry: _Entry, item: Setting, config: ExperimentConfig, problems: list[Problem]) -> Iterator[Value]:
    """Yields one value of a choice as its field reads it, unless something is wrong with it."""
    changed = config.replace()
    found = merge(changed, _nested(entry.path, item.value, item.origin, entry.key))
    problems += [_without_fix(problem) for problem in found]
    if found:
        return
    value: object = changed
    for name in entry.path.split("."):
        value = getattr(value, name)
    if value is None or isinstance(value, bool | int | float | str):
        yield value
    else:
        message = f"{entry.path} is no single value, but {type(value).__name__}."
        problems.append(Problem(message, item.origin, entry.path, "Search the fields in it."))


def _try(entry: _Entry, value: object, config: ExperimentConfig) -> list[Problem]:
    found = merge(config.replace(), _nested(entry.path, value, entry.origin, entry.key))
    return [_without_fix(problem) for problem in found]


def _without_fix(problem: Problem) -> Problem:
    # What a correction would show is the value that was tried, and not the range.
    return replace(problem, advice=re.sub(r"[\w ]+:$", "", problem.advice).rstrip(), fix="", edits=())


def _nested(path: str, value: object, origin: Origin, key: Origin) -> Setting:
    setting = Setting(value, origin, key)
    for name in reversed(path.split(".")):
        setting = Setting({name: replace(setting, key=key)}, origin, key)
    return setting


def _idle_problems(
    ranges: Sequence[Range], entries: Mapping[str, _Entry], config: ExperimentConfig
) -> Iterator[Problem]:
    """Yields ranges of fields that no trial would look at, as another part of the config is chosen."""
    active = set(active_fields(config))
    for range_ in ranges:
        for value in range_.values if range_.kind == "choice" else ():
            changed = config.replace()
            merge(changed, _nested(range_.path, value, Origin("--search"), Origin("--search")))
            active |= set(active_fields(changed))
    for range_ in ranges:
        if range_.path not in active:
            message = f"{range_.path} has no effect: its part of the config is not chosen."
            advice = "Choose it with the `type` beside it, or search a field of what is chosen."
            yield Problem(message, entries[range_.path].key, range_.path, advice)
