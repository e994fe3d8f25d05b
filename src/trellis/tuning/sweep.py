"""A sweep: trials are chosen, run, and noted; killed and started again, it goes on."""

import dataclasses
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from trellis.disk import Ownership, owned_in_turn, write_whole
from trellis.errors import ArgumentError, DirectoryTakenError, FileWriteError, MissingPackageError, RunFailedError
from trellis.experiments import ExperimentConfig, leaves_of, measured_metrics, run_experiment
from trellis.extensions import Extension
from trellis.json_text import parse_json
from trellis.loops import Checkpoint, Summary, begin_command
from trellis.runtime import describe_metric, print_line
from trellis.spelling import did_you_mean
from trellis.trainer import metric_name
from trellis.tuning.journal import PRUNERS, Journal, load_optuna
from trellis.tuning.results import TrialResult, write_results
from trellis.tuning.search import SearchSpace, Value

_MOST_LISTED = 10


@dataclass(frozen=True)
class Trial:
    """One run of a sweep."""

    number: int
    config: ExperimentConfig
    model_dir: Path
    metric: str
    """What the trials are compared by, as an evaluation calls it: `accuracy`."""


@dataclass(frozen=True)
class Outcome:
    """How a trial has ended. Its values were told to the watch; its error is empty unless it has failed."""

    error: str = ""


class Watch(Protocol):
    """Is told each value of a trial's metric when it is evaluated; returns whether the trial is to end there."""

    def __call__(self, trial: Trial, step: int, value: float) -> bool:
        """Notes a value, which may be told again after a resume."""


class RunTrials(Protocol):
    """Runs trials, each in its `model_dir`, to the end or up to where the watch ends it; resumes those begun before.

    What a trial does wrong is its outcome. What stops the sweep is raised: a signal, a full disk.
    """

    def __call__(self, trials: Sequence[Trial], *, watch: Watch) -> Sequence[Outcome]:
        """Returns the outcomes in the order of the trials."""


@dataclass(frozen=True)
class SweepOptions:
    """How a sweep chooses and compares its trials."""

    experiment: str
    n_trials: int
    metric: str = ""
    """The default is the metric by which the experiment keeps its best checkpoint."""
    direction: Literal["higher", "lower", ""] = ""
    """The default is that of the experiment."""
    pruner: str = "median"
    seed: int = 0
    n_together: int = 1
    """How many trials are handed over to be run at once."""


class Sweep:
    """Many runs of one experiment in `{directory}/trials`, and which is the best.

    Started again, also by several processes at once, it goes on: a trial belongs to the process that owns its
    directory, and one whose owner has died is taken over, from its checkpoint.

    Example:
        space = read_search(["search.yaml"], config=resolve("digits/classifier"))
        options = SweepOptions(experiment="digits/classifier", n_trials=20)
        results = Sweep("runs/sweep", space=space, options=options).run()
    """

    def __init__(self, directory: str | Path, *, space: SearchSpace, options: SweepOptions) -> None:
        trainer = space.config.trainer
        self._directory = Path(directory)
        self._file = self._directory / "sweep.json"
        self._space = space
        self._options = options
        self.metric = metric_name(options.metric or trainer.best_checkpoint_eval_metric)
        self.direction = options.direction or trainer.best_checkpoint_metric_comp
        _check(options, metric=self.metric)
        load_optuna()
        if options.metric and not self._file.exists():
            # Before it is noted in the directory: with another metric it would be another sweep.
            names = measured_metrics(space.config_at(0))
            if names is not None:
                _check_measured(self.metric, names)
        with self._alone():
            self._check_same()
            self._journal = Journal(
                self._directory,
                ranges=space.ranges,
                direction=self.direction,
                pruner=options.pruner,
                seed=options.seed,
                n_steps=trainer.train_steps,
            )

    def run(self, run_trials: "RunTrials | None" = None) -> list[TrialResult]:
        """Runs the trials that are left; returns all of them, best first.

        Args:
            run_trials: The default is `run_one_by_one`.
        """
        run_trials = run_trials or run_one_by_one
        while True:
            with ExitStack() as owned:
                trials = self._take(owned)
                if not trials:
                    break
                outcomes = run_trials(trials, watch=self._watch)
                for trial, outcome in zip(trials, outcomes, strict=True):
                    self._finish(trial, outcome)
        with self._alone():
            results = self.results()
            write_results(
                self._directory, results=results, experiment=self._options.experiment, ranges=self._space.ranges
            )
        failed = sorted((r for r in results if r.state == "failed"), key=lambda result: result.number)
        if failed and len(failed) == len(results):
            raise RunFailedError(f"All {len(failed)} trials have failed, the first of them so:\n{failed[0].error}")
        return results

    def results(self) -> list[TrialResult]:
        """All trials so far, best first."""
        return [
            dataclasses.replace(result, model_dir=str(self._model_dir(result.number)))
            for result in self._journal.results()
        ]

    def _take(self, owned: ExitStack) -> list[Trial]:
        """Takes trials that nobody works on: first those that were left, then new ones."""
        taken: list[Trial] = []
        with self._alone():
            for number in sorted(self._journal.running()):
                if len(taken) < self._options.n_together and self._own(number, owned):
                    taken += self._prepared(number, self._journal.go_on(number))
            while len(taken) < self._options.n_together and self._journal.n_trials() < self._options.n_trials:
                number, overrides = self._journal.begin()
                self._own(number, owned)
                taken += self._prepared(number, overrides)
        return taken

    def _own(self, number: int, owned: ExitStack) -> bool:
        try:
            owned.enter_context(Ownership(self._model_dir(number)))
        except DirectoryTakenError:
            return False
        return True

    def _prepared(self, number: int, overrides: Mapping[str, Value]) -> list[Trial]:
        """The trial of a number; none if it is over already, or its config cannot work."""
        if self._journal.is_pruned(number):
            self._journal.finish(number)
            return []
        shown = ", ".join(f"{path.rpartition('.')[2]}={_shown(value)}" for path, value in overrides.items())
        print_line(f"Trial {number:04d}: {shown}")
        try:
            config = self._space.config_of(overrides, source=f"trial {number}")
        except ArgumentError as error:
            self._journal.finish(number, error=str(error))
            print_line(f"Trial {number:04d} has failed: {error}")
            return []
        return [Trial(number, config, self._model_dir(number), self.metric)]

    def _watch(self, trial: Trial, step: int, value: float) -> bool:
        return self._journal.report(trial.number, step=step, value=value)

    def _finish(self, trial: Trial, outcome: Outcome) -> None:
        self._journal.finish(trial.number, error=outcome.error)
        result = next(result for result in self._journal.results() if result.number == trial.number)
        if result.state == "failed":
            print_line(f"Trial {trial.number:04d} has failed: {result.error}")
        else:
            value = describe_metric(result.value or 0.0)
            print_line(f"Trial {trial.number:04d} is {result.state}: eval/{self.metric} {value}")

    def _model_dir(self, number: int) -> Path:
        return self._directory / "trials" / f"{number:04d}"

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Waits until no other process of the sweep chooses trials; those do it in an instant."""
        with owned_in_turn(self._directory / "choosing"):
            yield

    def _check_same(self) -> None:
        """Notes what the sweep is one of; an error shows in what it differs from what was noted there before."""
        own = self._identity()
        if not self._file.exists():
            write_whole(self._file, f"{json.dumps(own, indent=1)}\n".encode())
            return
        try:
            recorded = parse_json(self._file.read_bytes())
        except ValueError:
            raise ArgumentError(
                f"`{self._file}` is damaged. It says of what the trials are a sweep: delete it if they are of this one."
            ) from None
        names = [name for name in {**recorded, **own} if recorded.get(name) != own.get(name)]
        lines = [f"  {name}: {recorded.get(name, 'nothing')} there, {own.get(name, 'nothing')} now" for name in names]
        if lines:
            more = [f"  and {len(lines) - _MOST_LISTED} more"] if len(lines) > _MOST_LISTED else []
            listed = "\n".join([*lines[:_MOST_LISTED], *more])
            raise ArgumentError(
                f"`{self._directory}` holds another sweep:\n{listed}\nGo on with what is there, or give another "
                f"--model_dir. Only --trials may change."
            )

    def _identity(self) -> dict[str, str]:
        config = {f"config {path}": str(value) for path, (value, _) in leaves_of(self._space.config).items()}
        search = {f"search {range_.path}": str(range_) for range_ in self._space.ranges}
        options = self._options
        chosen = {"metric": self.metric, "direction": self.direction, "pruner": options.pruner}
        return {"experiment": options.experiment, **chosen, "seed": str(options.seed), **search, **config}


def run_one_by_one(trials: Sequence[Trial], *, watch: Watch) -> list[Outcome]:
    """Runs each trial as `trellis train` would."""
    return [_run(trial, watch) for trial in trials]


def _run(trial: Trial, watch: Watch) -> Outcome:
    begin_command()
    extension = Watching(trial, watch)
    try:
        run_experiment(trial.config, mode="train_and_eval", model_dir=trial.model_dir, extensions=[extension])
    except (FileWriteError, MissingPackageError):
        raise
    except Exception as error:  # noqa: BLE001  (whatever is wrong with one trial, the others go on)
        return Outcome(error=describe_error(error))
    return Outcome()


def describe_error(error: Exception) -> str:
    """What has gone wrong with a trial, in words."""
    return "\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])


class Watching(Extension):
    """Tells the values of a trial, and ends it where it is told to."""

    def __init__(self, trial: Trial, watch: Watch) -> None:
        self._trial = trial
        self._watch = watch

    def handle(self, checkpoint: Checkpoint) -> Checkpoint:
        """Returns the checkpoint, marked as the last one if the trial is pruned."""
        metrics = checkpoint.metrics.get("eval", {}) if isinstance(checkpoint, Summary) else {}
        if not metrics:
            return checkpoint
        name = self._trial.metric
        _check_measured(name, metrics)
        ends = self._watch(self._trial, checkpoint.step, metrics[name])
        if not ends or checkpoint.is_last:
            return checkpoint
        if checkpoint.session is not None:
            text = f"Step {checkpoint.step:6d}: eval/{name} is behind that of other trials; the trial ends here."
            checkpoint.session.emit("pruned", step=checkpoint.step, text=text)
        return dataclasses.replace(checkpoint, is_last=True)


def _check_measured(metric: str, names: Collection[str]) -> None:
    if metric not in names:
        raise ArgumentError(
            f"The metric is {metric!r}, but an evaluation has {', '.join(names)}."
            f"{did_you_mean(metric, names, show=str)}"
        )


def _shown(value: Value) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _check(options: SweepOptions, *, metric: str) -> None:
    if options.n_trials < 1:
        raise ArgumentError(f"--trials is {options.n_trials}. Give at least 1.")
    if not metric:
        raise ArgumentError(
            f"{options.experiment} names no metric to compare trials by (trainer.best_checkpoint_eval_metric is "
            f"empty). Give one: --metric=accuracy --direction=higher"
        )
    if options.pruner not in PRUNERS:
        suggestion = did_you_mean(options.pruner, PRUNERS, show=str)
        raise ArgumentError(f"--pruner is {options.pruner!r}. Give one of {', '.join(PRUNERS)}.{suggestion}")
    if options.direction not in ("", "higher", "lower"):
        raise ArgumentError(f"--direction is {options.direction!r}. Give higher or lower.")
    if options.seed < 0:
        raise ArgumentError(f"--seed is {options.seed}. Give 0 or more.")
