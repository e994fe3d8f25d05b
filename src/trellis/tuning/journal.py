"""The journal of a sweep: which trials there are, what they reported, what became of them."""

import fcntl
import json
import math
import os
import warnings
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trellis.errors import ArgumentError, MissingPackageError
from trellis.tuning.results import State, TrialResult
from trellis.tuning.search import Range, Value

if TYPE_CHECKING:
    import optuna

PRUNERS = ("median", "hyperband", "none")


class Journal:
    """A file that several processes may append to; a trial that was reported there is there after a kill.

    Args:
        n_steps: How long a trial is, for a pruner that plans with it; 0 if that is not known.
    """

    def __init__(
        self,
        directory: Path,
        *,
        ranges: Sequence[Range],
        direction: Literal["higher", "lower"],
        pruner: str,
        seed: int,
        n_steps: int,
    ) -> None:
        optuna = load_optuna()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._optuna = optuna
        self._ranges = ranges
        self._sign = 1 if direction == "higher" else -1
        file = directory / "journal.log"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            backend = optuna.storages.journal.JournalFileBackend(str(file), lock_obj=_FileLock(file))
            try:
                self._study = optuna.create_study(
                    storage=optuna.storages.JournalStorage(backend),
                    study_name="sweep",
                    direction="maximize" if direction == "higher" else "minimize",
                    sampler=_seeded_sampler(optuna, seed),
                    pruner=_pruner(optuna, pruner, n_steps),
                    load_if_exists=True,
                )
            except json.JSONDecodeError:
                raise ArgumentError(_describe_damage(file)) from None

    def n_trials(self) -> int:
        """How many trials were begun."""
        return len(self._study.get_trials(deepcopy=False))

    def running(self) -> list[int]:
        """The numbers of the trials that have no end yet."""
        return [result.number for result in self.results() if result.state == "running"]

    def begin(self) -> tuple[int, dict[str, Value]]:
        """Begins a trial; returns its number, and what it sets."""
        trial = self._study.ask()
        return trial.number, self._suggest(trial)

    def go_on(self, number: int) -> dict[str, Value]:
        """What a trial sets that was begun before, also if its process was killed while it was being begun."""
        return self._suggest(self._open(number))

    def report(self, number: int, *, step: int, value: float) -> bool:
        """Notes a value of a trial; returns whether the trial is to be pruned. A value that is known is not changed."""
        if not math.isfinite(value):
            return False
        trial = self._open(number)
        if step not in self._frozen(number).intermediate_values:
            trial.report(value, step)
        if not trial.should_prune():
            return False
        # A process that is killed now must not train a pruned trial on when it is started again.
        trial.set_user_attr("pruned_at", step)
        return True

    def is_pruned(self, number: int) -> bool:
        """Whether a trial was told to end."""
        return "pruned_at" in self._frozen(number).user_attrs

    def finish(self, number: int, *, error: str = "") -> None:
        """Notes the end of a trial: its best value, or why it has none."""
        state = self._optuna.trial.TrialState
        best = self._best(self._frozen(number))
        if not error and best is None:
            error = "No evaluation gave a finite value of the metric."
        if error:
            self._open(number).set_user_attr("error", error)
            self._study.tell(number, state=state.FAIL)
        elif self.is_pruned(number):
            self._study.tell(number, state=state.PRUNED)
        else:
            self._study.tell(number, best)

    def results(self) -> list[TrialResult]:
        """All trials, best first; those without a value last."""
        results = [self._result(frozen) for frozen in self._study.get_trials(deepcopy=False)]
        order = {"complete": 0, "pruned": 1, "running": 2, "failed": 3}

        def rank(result: TrialResult) -> tuple[int, float, int]:
            value = math.inf if result.value is None else -self._sign * result.value
            return order[result.state], value, result.number

        return sorted(results, key=rank)

    def _result(self, frozen: "optuna.trial.FrozenTrial") -> TrialResult:
        states: Mapping[str, State] = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed"}
        return TrialResult(
            number=frozen.number,
            state=states.get(frozen.state.name, "running"),
            value=self._best(frozen),
            step=max(frozen.intermediate_values, default=0),
            overrides={
                range_.path: frozen.params[range_.path] for range_ in self._ranges if range_.path in frozen.params
            },
            error=frozen.user_attrs.get("error", ""),
        )

    def _best(self, frozen: "optuna.trial.FrozenTrial") -> float | None:
        values = [self._sign * value for value in frozen.intermediate_values.values()]
        return self._sign * max(values) if values else None

    def _suggest(self, trial: "optuna.trial.Trial") -> dict[str, Value]:
        overrides: dict[str, Value] = {}
        for range_ in self._ranges:
            if range_.kind == "choice":
                overrides[range_.path] = trial.suggest_categorical(range_.path, range_.values)
                continue
            low, high = (float(value or 0) for value in range_.values)
            if range_.kind == "int":
                step = 1 if range_.step is None else int(range_.step)
                overrides[range_.path] = trial.suggest_int(range_.path, int(low), int(high), step=step)
            else:
                is_log = range_.kind == "log"
                overrides[range_.path] = trial.suggest_float(range_.path, low, high, step=range_.step, log=is_log)
        return overrides

    def _frozen(self, number: int) -> "optuna.trial.FrozenTrial":
        frozen: optuna.trial.FrozenTrial = self._study.get_trials(deepcopy=False)[number]
        return frozen

    def _open(self, number: int) -> "optuna.trial.Trial":
        trial: optuna.trial.Trial = self._optuna.trial.Trial(self._study, self._frozen(number)._trial_id)
        return trial


class _FileLock:
    """Locks the journal for one write; the system releases it if the process is killed.

    What a power cut has left of a line is taken away first: the next line would become part of it.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._descriptor = -1

    def acquire(self) -> bool:
        self._descriptor = os.open(self._file.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o666)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        content = self._file.read_bytes() if self._file.exists() else b""
        if content and not content.endswith(b"\n"):
            os.truncate(self._file, content.rfind(b"\n") + 1)
        return True

    def release(self) -> None:
        os.close(self._descriptor)


def _describe_damage(file: Path) -> str:
    way_out = f"Begin anew with another --model_dir; what trials have left is in `{file.parent / 'trials'}`."
    for number, line in enumerate(file.read_bytes().splitlines(), 1):
        try:
            json.loads(line)
        except ValueError:
            place = f"`{file}` is damaged: its line {number} is no JSON."
            return f"{place} Take it away if it is none of the sweep's. {way_out}"
    return f"`{file}` is damaged. {way_out}"


def load_optuna() -> Any:
    """Returns the package that chooses what to try."""
    try:
        import optuna
        import optuna.storages.journal
    except ImportError as error:
        raise MissingPackageError("optuna", "tune") from error
    return optuna


def _pruner(optuna: Any, name: str, n_steps: int) -> Any:
    if name == "median":
        return optuna.pruners.MedianPruner()
    if name == "hyperband":
        return optuna.pruners.HyperbandPruner(max_resource=n_steps or "auto")
    return optuna.pruners.NopPruner()


def _seeded_sampler(optuna: Any, seed: int) -> Any:
    """A sampler whose draws for a trial follow from the seed, the number of the trial, and the trials before it.

    One stream of random numbers for all trials would begin anew, and repeat its draws, when a sweep is started again.
    """

    class SeededSampler(optuna.samplers.BaseSampler):  # type: ignore[misc]
        def before_trial(self, study: Any, trial: Any) -> None:
            number = zlib.crc32(f"{seed} {trial.number}".encode())
            self._sampler = optuna.samplers.TPESampler(seed=number)
            self._sampler.before_trial(study, trial)

        def infer_relative_search_space(self, study: Any, trial: Any) -> Any:
            return self._sampler.infer_relative_search_space(study, trial)

        def sample_relative(self, study: Any, trial: Any, search_space: Any) -> Any:
            return self._sampler.sample_relative(study, trial, search_space)

        def sample_independent(self, study: Any, trial: Any, name: str, distribution: Any) -> Any:
            return self._sampler.sample_independent(study, trial, name, distribution)

    return SeededSampler()
