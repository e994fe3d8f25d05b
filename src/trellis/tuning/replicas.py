"""Trials of a sweep as one program."""

from collections.abc import Sequence

from trellis.config import DEFAULT, Problem, raise_if_any
from trellis.experiments import ReplicaRun, replica_problems, run_replicas
from trellis.loops import begin_command
from trellis.tuning.search import SearchSpace
from trellis.tuning.sweep import Outcome, RunTrials, Trial, Watch, Watching, describe_error

_DATA = "task.train_data."


def run_as_replicas(space: SearchSpace, *, n_together: int) -> RunTrials:
    """Returns what runs up to so many trials as one program; raises an error if the space does not allow that.

    A trial has its place by its number: a sweep that is started again finds the same program, with the same trials in
    the same places. A program has all its places whoever is there, so that it is compiled once for the whole sweep.
    """
    paths = [range_.path for range_ in space.ranges]
    _check(space, paths)

    def run(trials: Sequence[Trial], *, watch: Watch) -> list[Outcome]:
        begin_command()
        places: list[Trial | None] = [None] * n_together
        for trial in trials:
            own = trial.number % n_together
            free = (place for place in (own, *range(n_together)) if places[place] is None)
            places[next(free)] = trial
        runs = [None if trial is None else _run_of(trial, watch) for trial in places]
        errors = run_replicas(runs, paths=paths)
        found = {
            trial.number: error for trial, error in zip(places, errors, strict=True) if trial is not None and error
        }
        return [Outcome(error=describe_error(found[trial.number]) if trial.number in found else "") for trial in trials]

    return run


def _run_of(trial: Trial, watch: Watch) -> ReplicaRun:
    return ReplicaRun(
        name=f"Trial {trial.number:04d}",
        params=trial.config,
        model_dir=trial.model_dir,
        extensions=[Watching(trial, watch)],
    )


def _check(space: SearchSpace, paths: Sequence[str]) -> None:
    """Raises an error for ranges whose values do not go into one program."""
    problems = []
    for range_ in space.ranges:
        words = [value for value in range_.values if isinstance(value, bool) or not isinstance(value, int | float)]
        if words and not range_.path.startswith(_DATA):
            message = (
                f"{range_.path} is searched over {words[0]!r}, which is no number: it decides what program a step is."
            )
            problems.append(Problem(message, DEFAULT, range_.path, "Search it in a sweep without --together."))
    raise_if_any(problems)
    runs = [space.config_at(0)]
    if any(path.startswith(_DATA) for path in paths):
        # Whether batches have one shape is seen when there are two of them.
        runs.append(space.config_at(-1))
    raise_if_any(replica_problems(runs, paths=paths))
