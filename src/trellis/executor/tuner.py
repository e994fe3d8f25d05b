"""A `tuner_fn` of a module, run as the published tuner does: its own tuner searches, and what it finds is kept."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from trellis.disk import Ownership, write_whole
from trellis.errors import ArgumentError, RunFailedError, TrellisError
from trellis.executor.artifacts import Model, ModelRun, read_artifacts
from trellis.executor.fn_args import FnArgs, Problems, build_fn_args
from trellis.executor.module_file import user_function

BEST = "best_hyperparameters.txt"
RESULTS = "tuner_results.json"
_ALL = 1 << 20


@runtime_checkable
class Tuner(Protocol):
    """What a `tuner_fn` returns as its tuner: one of KerasTuner's, or whatever has the same methods."""

    @property
    def oracle(self) -> Any:
        """Has `get_best_trials(n)`: trials with `trial_id`, `score`, `status` and `hyperparameters.values`."""

    def search(self, *args: Any, **fit_kwargs: Any) -> Any:
        """Tries hyperparameters, until it is done."""

    def get_best_hyperparameters(self, num_trials: int = 1) -> Sequence[Any]:
        """The best first; each has `get_config()`, in terms of JSON."""


@runtime_checkable
class TellsOfSearch(Protocol):
    """A tuner that prints what it searches, and what it has found."""

    def search_space_summary(self) -> Any:
        """Prints what is searched."""

    def results_summary(self) -> Any:
        """Prints what was found."""


class TunerFnResult(NamedTuple):
    """What a `tuner_fn` returns.

    Example:
        def tuner_fn(fn_args):
            return TunerFnResult(tuner=RandomSearch(build_model, ...), fit_kwargs={"x": images, "y": labels})
    """

    tuner: Tuner
    fit_kwargs: Mapping[str, Any]
    """The arguments of the tuner's `search`."""


@dataclass(frozen=True)
class TunerTrial:
    """One complete trial."""

    trial_id: str
    score: float | None
    values: Mapping[str, Any]


def run_tuner_fn(
    directory: Path, input_dict: Mapping[str, Sequence[Any]], exec_properties: Mapping[str, Any]
) -> list[TunerTrial]:
    """Calls a `tuner_fn`, has its tuner search, and writes `best_hyperparameters.txt` and `tuner_results.json`.

    `fn_args.working_dir` is `{directory}/working`, and the same each time, so that a tuner which keeps its state there
    goes on where it was. Returns the complete trials, best first.

    Args:
        input_dict: Lists of artifacts: `examples`, and at most one each of `schema` and `transform_graph`.
        exec_properties: `train_args` and `eval_args`; `module_file` or `module_path`; and `custom_config`.
    """
    if exec_properties.get("tune_args"):
        raise ArgumentError("tune_args are for tuners on many machines, which there are none of here. Leave them out.")
    with Ownership(directory):
        working_dir = directory / "working"
        problems = Problems()
        inputs = read_artifacts(input_dict)
        outputs = read_artifacts({"model": [Model(str(working_dir))], "model_run": [ModelRun(str(working_dir))]})
        built = build_fn_args(inputs, outputs, exec_properties, problems)
        problems.raise_if_any()
        working_dir.mkdir(parents=True, exist_ok=True)
        # A tuner writes no model, so there is no place for one.
        nothing: Any = None
        fn_args = replace(
            built,
            working_dir=str(working_dir),
            serving_model_dir=nothing,
            eval_model_dir=nothing,
            model_run_dir=nothing,
        )
        with user_function({**exec_properties, "run_fn": "tuner_fn"}, fn_args=fn_args) as user:
            tuner, trials = _search(user.function, fn_args, place=user.place)
            write_whole(directory / RESULTS, _json([_row(trial) for trial in trials]))
            write_whole(directory / BEST, _json(_best(tuner, place=user.place)))
    return trials


def _search(function: Any, fn_args: FnArgs, *, place: str) -> tuple[Tuner, list[TunerTrial]]:
    try:
        result = function(fn_args)
        tuner, fit_kwargs = getattr(result, "tuner", None), getattr(result, "fit_kwargs", None)
        _check(result, tuner, fit_kwargs, place=place)
        assert isinstance(tuner, Tuner)
        if isinstance(tuner, TellsOfSearch):
            tuner.search_space_summary()
        tuner.search(**fit_kwargs or {})
        if isinstance(tuner, TellsOfSearch):
            tuner.results_summary()
        trials = [trial for each in tuner.oracle.get_best_trials(_ALL) if (trial := _trial(each)) is not None]
    except TrellisError:
        raise
    except Exception as error:
        error.add_note(f"That was in {place}.")
        raise
    if not trials:
        raise RunFailedError(f"{place}: no trial of its tuner is complete, so there are no best hyperparameters.")
    return tuner, trials


def _check(result: Any, tuner: Any, fit_kwargs: Any, *, place: str) -> None:
    """Raises an error if something is no result of a `tuner_fn`."""
    shape = "TunerFnResult(tuner=…, fit_kwargs={…}), of trellis.executor"
    if tuner is None or (fit_kwargs is not None and not isinstance(fit_kwargs, Mapping)):
        what = f"a {type(result).__name__}" if tuner is None else f"fit_kwargs that are a {type(fit_kwargs).__name__}"
        raise ArgumentError(f"{place} has returned {what}. Return {shape}.")
    lacking = [name for name in ("search", "get_best_hyperparameters", "oracle") if name not in dir(tuner)]
    if lacking:
        raise ArgumentError(
            f"{place} has returned the tuner {type(tuner).__name__}, which has no {' and no '.join(lacking)}. Return "
            f"one of KerasTuner's, or one with the same methods."
        )


def _trial(trial: Any) -> TunerTrial | None:
    """A trial of a tuner; None if it is not complete."""
    if getattr(trial, "status", "COMPLETED") not in ("COMPLETED", None):
        return None
    given = getattr(trial, "score", None)
    score = math.nan if given is None else float(given)
    values = dict(trial.hyperparameters.values)
    return TunerTrial(str(trial.trial_id), score=score if math.isfinite(score) else None, values=values)


def _row(trial: TunerTrial) -> dict[str, Any]:
    return {"trial_id": trial.trial_id, "score": trial.score, **trial.values}


def _best(tuner: Tuner, *, place: str) -> Any:
    best = list(tuner.get_best_hyperparameters())[:1]
    if not best:
        raise RunFailedError(f"{place}: its tuner tells no best hyperparameters.")
    return best[0].get_config()


def _json(content: Any) -> bytes:
    def as_plain(value: Any) -> Any:
        # Numbers of NumPy tell their own.
        plain = getattr(value, "item", None)
        if plain is None:
            raise ArgumentError(f"A hyperparameter is {value!r:.60}, which is not in terms of JSON. Take plain values.")
        return plain()

    return f"{json.dumps(content, indent=1, default=as_plain)}\n".encode()
