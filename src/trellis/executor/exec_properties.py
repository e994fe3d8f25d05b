"""What a run is told beside its artifacts: steps, splits, a user's own settings, and how to run."""

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from trellis.errors import ArgumentError
from trellis.spelling import nearest

RUN_ARGS = "trellis_run_args"
"""The entry of custom_config that says how a run is run."""
_RUN_ARGS = ("workers", "timeout", "model_files")
SOURCES = ("module_file", "module_path", "run_fn", "trainer_fn")
"""The properties that can name what is run; exactly one does."""

Value = TypeVar("Value")


@dataclass(frozen=True)
class StepArgs:
    """One of train_args and eval_args."""

    splits: tuple[str, ...]
    n_steps: int | None


@dataclass(frozen=True)
class RunArgs:
    """How a run is run."""

    n_workers: int = 1
    timeout: float | None = None
    """Seconds after which the run is stopped."""
    model_files: tuple[str, ...] = ()
    """Patterns of the files of a model whose format the executor does not know."""

    @property
    def needs_processes(self) -> bool:
        """Whether the run has to take place outside of this process."""
        return self.n_workers > 1 or self.timeout is not None


class Problems:
    """Everything that is wrong before a run, to be raised as one error."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._cause: BaseException | None = None

    def __bool__(self) -> bool:
        return bool(self._texts)

    def add(self, text: str, *, cause: BaseException | None = None) -> None:
        """Adds a problem, once."""
        if text not in self._texts:
            self._texts.append(text)
        self._cause = self._cause or cause

    def caught(self, get: Callable[[], Value], *, place: str) -> Value | None:
        """Returns what a function returns; what it raises as a wrong argument is added, and None returned."""
        try:
            return get()
        except ArgumentError as error:
            self.add(f"{place}: {error}")
            return None

    def raise_if_any(self) -> None:
        """Raises all problems, if there are any."""
        if not self._texts:
            return
        head = [f"{len(self._texts)} problems before the run"] if len(self._texts) > 1 else []
        raise ArgumentError("\n\n".join([*head, *self._texts])) from self._cause


def read_step_args(exec_properties: Mapping[str, Any], *, key: str, split: str) -> StepArgs:
    """Returns `train_args` or `eval_args`, given as a mapping or as JSON text in either spelling of its fields.

    Args:
        split: The one that is meant if none is named.
    """
    if exec_properties.get(key) is None:
        raise ArgumentError(
            f"it is missing. Give exec_properties[{key!r}], such as '{{\"num_steps\": 100}}' or '{{}}'."
        )
    given = _mapping(exec_properties[key])
    fields = {_snake(name): value for name, value in given.items()}
    for name in fields.keys() - {"splits", "num_steps"}:
        close = nearest(name, ["splits", "num_steps"])
        meant = f" Did you mean {close!r}?" if close else ""
        warnings.warn(f"{key}: the field {name!r} has no effect.{meant}", stacklevel=2)
    splits = fields.get("splits") or [split]
    if isinstance(splits, str) or not all(isinstance(name, str) for name in splits):
        raise ArgumentError(f"splits is {splits!r}. Give a list of names, such as [{split!r}].")
    return StepArgs(tuple(splits), _n_steps(fields.get("num_steps")))


def read_custom_config(exec_properties: Mapping[str, Any]) -> Any:
    """Returns `custom_config`, given as a mapping or as JSON text; what is empty is returned as it is."""
    given = exec_properties.get("custom_config")
    if isinstance(given, str):
        given = _json(given or "null")
    if given and not isinstance(given, Mapping):
        shown = f"{type(given).__name__} {given!r}"
        raise ArgumentError(f"it is the {shown}. Give a mapping, or its JSON text: '{{\"rate\": 0.1}}'.")
    return dict(given) if isinstance(given, Mapping) else given


def read_run_args(custom_config: Any) -> RunArgs:
    """Returns how the run is run: the entry `trellis_run_args` of custom_config."""
    given = (custom_config or {}).get(RUN_ARGS) or {}
    if not isinstance(given, Mapping):
        raise ArgumentError(f"{RUN_ARGS} is {given!r}. Give a mapping such as {{'workers': 2, 'timeout': 3600}}.")
    for name in given.keys() - set(_RUN_ARGS):
        close = nearest(str(name), _RUN_ARGS)
        meant = f" Did you mean {close!r}?" if close else ""
        raise ArgumentError(f"{RUN_ARGS} has no field {name!r}.{meant} It has {', '.join(_RUN_ARGS)}.")
    n_workers, timeout, files = given.get("workers", 1), given.get("timeout"), given.get("model_files", ())
    if not isinstance(n_workers, int) or isinstance(n_workers, bool) or n_workers < 1:
        raise ArgumentError(f"workers is {n_workers!r}. Give a whole number, 1 or more.")
    if timeout is not None and not (_is_number(timeout) and timeout > 0):
        raise ArgumentError(f"timeout is {timeout!r}. Give the seconds that the run may take, more than 0.")
    if isinstance(files, str) or not (isinstance(files, Sequence) and all(map(_is_below, files))):
        raise ArgumentError(f"model_files is {files!r}. Give a list of names or patterns, such as ['model.cbm'].")
    return RunArgs(n_workers, None if timeout is None else float(timeout), tuple(files))


def source_of(exec_properties: Mapping[str, Any]) -> tuple[str, str]:
    """Returns which property names what is run, and what it says."""
    given = {name: str(exec_properties[name]) for name in SOURCES if exec_properties.get(name)}
    if len(given) != 1:
        listed = ", ".join(f"{name}={value!r}" for name, value in given.items()) or "none of them"
        raise ArgumentError(
            f"The run needs exactly one of {', '.join(SOURCES[:-1])} (or {SOURCES[-1]}), but {listed} "
            f"{'are' if given else 'is'} given. module_file is the path of a .py file that has a run_fn, module_path a "
            f"dotted module or NAME@WHEEL, run_fn a dotted function."
        )
    return next(iter(given.items()))


def _mapping(given: Any) -> Mapping[str, Any]:
    value = _json(given or "{}") if isinstance(given, str) else given
    if not isinstance(value, Mapping):
        raise ArgumentError(f"it is {value!r}. Give a mapping, or its JSON text: '{{\"num_steps\": 100}}'.")
    return value


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ArgumentError(f"{text!r} is no JSON: {error}. Quote names and texts with double quotes.") from None


def _snake(name: str) -> str:
    return {"numSteps": "num_steps"}.get(name, name)


def _n_steps(given: Any) -> int | None:
    # JSON of the published messages may write numbers as text.
    text = str(given if given is not None else 0)
    number = text.removesuffix(".0")
    if (isinstance(given, bool | Sequence) and not isinstance(given, str)) or not number.lstrip("-").isdecimal():
        raise ArgumentError(f"num_steps is {given!r}. Give a whole number; 0 leaves it to the run_fn.")
    if int(number) < 0:
        raise ArgumentError(f"num_steps is {number}. Give 0, which leaves it to the run_fn, or more.")
    return int(number) or None


def _is_below(pattern: object) -> bool:
    return isinstance(pattern, str) and bool(pattern) and not Path(pattern).is_absolute() and ".." not in pattern


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
