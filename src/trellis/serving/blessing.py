"""Whether a new model may take the place of the one that is served, by rules; and what becomes of it then."""

import glob
import json
import math
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trellis.config import Setting, Text, plain_value, raise_if_any, read_file
from trellis.disk import owned_in_turn, whole_directory, write_whole
from trellis.errors import ArgumentError, TrellisError
from trellis.json_text import without_nan
from trellis.serving.manifest import MANIFEST
from trellis.spelling import did_you_mean

METRIC_NAMES: Mapping[str, str] = {
    "accuracy": "higher",
    "f1": "higher",
    "loss": "lower",
    "mse": "lower",
    "mae": "lower",
}
"""What models are compared by, and which values are better."""
_SETTINGS = ("label", "output", "slice")
_FIELDS = ("label", "output", "columns", "slices", "min_examples", "metrics")
_BOUNDS = ("at_least", "at_most", "may_lose")
_ITEM = re.compile(r"\s*(?P<name>[\w.]+)\s*(?:(?P<sign>>=|<=|=)\s*(?P<value>\S+))?\s*")
_FORM = "accuracy>=0.8,loss,label=species,slice=sex"
_ROUNDING = 1e-7
"""The part of a value within which two count as equal."""


@dataclass(frozen=True)
class Rule:
    """What a metric has to be like on each slice: in itself, and against the model that is served."""

    at_least: float | None = None
    at_most: float | None = None
    may_lose: float = 0.0
    """By how much it may be worse than that of the model that is served."""


@dataclass(frozen=True)
class BlessingRules:
    """What a model is blessed by."""

    metrics: Mapping[str, Rule]
    slices: Sequence[str] = ()
    """Features: each value of each is a slice, on which the rules hold as on all examples."""
    label: str = ""
    output: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Which feature each input of the model is, where the names differ."""
    min_examples: int = 1
    """Slices with fewer are reported and not judged."""


@dataclass(frozen=True)
class Check:
    """One metric on one slice."""

    slice: str
    n_examples: int
    metric: str
    candidate: float
    served: float | None
    problem: str = ""
    """Empty if it is as the rules want it."""


@dataclass(frozen=True)
class Blessing:
    """What was decided of a model, and why."""

    is_blessed: bool
    candidate: str
    served: str | None
    """The version that it was compared with; None if there was none."""
    version: str | None
    """Where it is now, to be served; None if it was not blessed."""
    checks: tuple[Check, ...] = ()
    notes: tuple[str, ...] = ()
    """What else there is to know, such as served versions that cannot be loaded."""

    @property
    def reasons(self) -> list[str]:
        """Why it was not blessed."""
        return [f"{each.metric} on {each.slice}: {each.problem}" for each in self.checks if each.problem]


def read_rules(text: str) -> BlessingRules:
    """Returns the rules in a text such as `accuracy>=0.8,loss,slice=sex`, or in a YAML file of that name."""
    is_file = text.endswith((".yaml", ".yml", ".json"))
    rules = _of_file(text) if is_file else _of_text(text)
    if not rules.metrics:
        raise ArgumentError(f"--bless={text} names no metric. Give some of {', '.join(METRIC_NAMES)}: {_FORM}")
    for name in rules.metrics:
        if name not in METRIC_NAMES:
            suggestion = did_you_mean(name, METRIC_NAMES)
            raise ArgumentError(
                f"--bless: there is no metric {name!r}.{suggestion} There are: {', '.join(METRIC_NAMES)}."
            )
    return rules


def _of_text(text: str) -> BlessingRules:
    metrics: dict[str, dict[str, float]] = {}
    settings: dict[str, list[str]] = {}
    for item in text.split(","):
        match = _ITEM.fullmatch(item)
        if match is None:
            raise ArgumentError(f"--bless: {item.strip()!r} is no rule. Write, for example: {_FORM}")
        name, sign, value = match["name"], match["sign"], match["value"]
        if sign == "=":
            if name not in _SETTINGS:
                suggestion = did_you_mean(name, _SETTINGS)
                raise ArgumentError(
                    f"--bless: there is no setting {name!r}.{suggestion} There are {', '.join(_SETTINGS)}; bounds of "
                    f"metrics have >= or <=."
                )
            settings.setdefault(name, []).append(value)
            continue
        bounds = metrics.setdefault(name, {})
        if sign:
            bounds["at_least" if sign == ">=" else "at_most"] = _number(value, place=item.strip())
    for name in ("label", "output"):
        if len(settings.get(name, ())) > 1:
            raise ArgumentError(f"--bless: {name} is given {len(settings[name])} times. Give one.")
    return BlessingRules(
        {name: Rule(**bounds) for name, bounds in metrics.items()},
        slices=settings.get("slice", ()),
        label=settings.get("label", [""])[0],
        output=settings.get("output", [""])[0],
    )


def _of_file(name: str) -> BlessingRules:
    setting, problems = read_file(name)
    raise_if_any(problems)
    content = _plain(setting)
    if not isinstance(content, dict):
        raise ArgumentError(f"`{name}` is no mapping. It has {', '.join(_FIELDS)}.")
    _check_names(content, _FIELDS, place=name)
    metrics = content.get("metrics") or {}
    listed = {each: {} for each in metrics} if isinstance(metrics, list) else metrics
    if not isinstance(listed, dict):
        raise ArgumentError(f"`{name}`: metrics is {metrics!r}. Give a mapping: {{accuracy: {{at_least: 0.8}}}}")
    rules = {}
    for metric, bounds in listed.items():
        bounds = {} if bounds is None else bounds
        if not isinstance(bounds, dict):
            raise ArgumentError(f"`{name}`: metrics.{metric} is {bounds!r}. Give {', '.join(_BOUNDS)}, or nothing.")
        _check_names(bounds, _BOUNDS, place=f"{name}: metrics.{metric}")
        numbers = {key: _number(value, place=f"{name}: metrics.{metric}.{key}") for key, value in bounds.items()}
        if numbers.get("may_lose", 0.0) < 0:
            raise ArgumentError(f"`{name}`: metrics.{metric}.may_lose is {numbers['may_lose']:g}. Give 0 or more.")
        rules[str(metric)] = Rule(**numbers)
    slices = content.get("slices") or []
    slices = [slices] if isinstance(slices, str) else slices
    n = content.get("min_examples", 1)
    if not isinstance(slices, list) or not all(isinstance(each, str) for each in slices):
        raise ArgumentError(f"`{name}`: slices is {slices!r}. Give a list of features: [sex, country]")
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        raise ArgumentError(f"`{name}`: min_examples is {n!r}. Give a whole number, 1 or more.")
    texts = {each: content.get(each) or "" for each in ("label", "output")}
    for each, value in texts.items():
        if not isinstance(value, str):
            raise ArgumentError(f"`{name}`: {each} is {value!r}. Give a name.")
    columns = content.get("columns") or {}
    if not isinstance(columns, dict) or not all(isinstance(each, str) for each in columns.values()):
        raise ArgumentError(f"`{name}`: columns is {columns!r}. Give the feature of each input: {{inputs: pixels}}")
    return BlessingRules(rules, slices=slices, min_examples=n, columns=columns, **texts)


def _check_names(content: Mapping[str, Any], known: Sequence[str], *, place: str) -> None:
    for name in content:
        if name not in known:
            raise ArgumentError(
                f"`{place}` has no {name!r}.{did_you_mean(str(name), known)} It has {', '.join(known)}."
            )


def _plain(setting: Setting) -> Any:
    value = setting.value
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return plain_value(value) if isinstance(value, Text) else value


def _number(value: Any, *, place: str) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ArgumentError(f"--bless: {place} has {value!r} where a number has to be.")
    return number


def check_rules(rules: BlessingRules, *, files: Sequence[str]) -> None:
    """Raises an error if examples lack a feature that the rules name; files that are not there yet are left alone."""
    from trellis.serving.evaluation import check_features

    found = [file for file in files if glob.glob(file)]
    check_features(found, label=rules.label, slices=rules.slices)


def bless(
    candidate: Path, *, served_dir: Path, files: Sequence[str], rules: BlessingRules, report_file: Path
) -> Blessing:
    """Compares a model with the one that is served; if the rules hold, it becomes the newest version there.

    Versions are numbered directories. The newest that can be asked is the one to compare with; two processes at once
    do so one after the other. A version is there whole or not at all.

    Args:
        served_dir: Where the versions are; it need not be there yet.
        files: Of the examples that both are asked.
        report_file: What was decided and why is written there, as JSON.
    """
    with owned_in_turn(served_dir):
        # If this fails, what was decided of another model must not be taken for its answer.
        report_file.unlink(missing_ok=True)
        notes: list[str] = []
        found = _evaluated(candidate, files=files, rules=rules)
        served, others = _served(served_dir, files=files, rules=rules, notes=notes)
        checks = tuple(_checks(found, others, rules))
        is_blessed = not any(check.problem for check in checks)
        version = _publish(candidate, served_dir) if is_blessed else None
        blessing = Blessing(
            is_blessed,
            candidate=str(candidate),
            served=None if served is None else str(served),
            version=None if version is None else str(version),
            checks=checks,
            notes=tuple(notes),
        )
        content = {"reasons": blessing.reasons, "rules": asdict(rules), **asdict(blessing)}
        write_whole(report_file, f"{json.dumps(without_nan(content), indent=1)}\n".encode())
    return blessing


def _evaluated(directory: Path, *, files: Sequence[str], rules: BlessingRules) -> Mapping[str, Any]:
    # This loads JAX, when a training is done; rules are read before it.
    from trellis.serving.evaluation import evaluate_model

    return evaluate_model(
        directory,
        files=files,
        metrics=list(rules.metrics),
        label=rules.label,
        output=rules.output,
        slices=rules.slices,
        columns=rules.columns,
    )


def _versions(served_dir: Path) -> list[Path]:
    """Numbered directories, the newest first."""
    folders = [path for path in served_dir.iterdir() if path.name.isdecimal()] if served_dir.is_dir() else []
    return sorted(folders, key=lambda path: int(path.name), reverse=True)


def _served(
    served_dir: Path, *, files: Sequence[str], rules: BlessingRules, notes: list[str]
) -> tuple[Path | None, Mapping[str, Any]]:
    """The newest version that can be asked, and what it reaches."""
    for path in _versions(served_dir):
        if not (path / MANIFEST).is_file():
            notes.append(f"Version {path.name} is no whole model, and was not compared with.")
            continue
        try:
            return path, _evaluated(path, files=files, rules=rules)
        except (TrellisError, OSError) as error:
            notes.append(f"Version {path.name} cannot be asked, and was not compared with: {error}")
    notes.append("There is no model to compare with: only the bounds in the rules count.")
    return None, {}


def _checks(found: Mapping[str, Any], others: Mapping[str, Any], rules: BlessingRules) -> list[Check]:
    checks = []
    for title, score in found.items():
        other = others.get(title)
        for name, rule in rules.metrics.items():
            value = score.metrics[name]
            before = None if other is None else other.metrics[name]
            is_judged = score.n_examples >= rules.min_examples
            problem = _problem(name, value, before, rule) if is_judged else ""
            checks.append(Check(title, score.n_examples, name, candidate=value, served=before, problem=problem))
    return checks


def _problem(name: str, value: float, before: float | None, rule: Rule) -> str:
    """What is wrong with a value; empty if nothing is."""
    if not math.isfinite(value):
        return f"it is {value}"
    if rule.at_least is not None and value < rule.at_least:
        return f"{value:.6g} is less than {rule.at_least:g}"
    if rule.at_most is not None and value > rule.at_most:
        return f"{value:.6g} is more than {rule.at_most:g}"
    # Whatever is a number is better than what is none.
    if before is None or not math.isfinite(before):
        return ""
    lost = before - value if METRIC_NAMES[name] == "higher" else value - before
    if lost <= rule.may_lose + _ROUNDING * max(abs(value), abs(before)):
        return ""
    allowed = f", and may be by {rule.may_lose:g}" if rule.may_lose else ""
    return f"{value:.6g} is worse than the {before:.6g} that is served, by {lost:.3g}{allowed}"


def _publish(candidate: Path, served_dir: Path) -> Path:
    numbers = [int(path.name) for path in _versions(served_dir)]
    version = served_dir / str(max(numbers, default=0) + 1)
    with whole_directory(version) as directory:
        shutil.copytree(candidate, directory, dirs_exist_ok=True)
    return version
