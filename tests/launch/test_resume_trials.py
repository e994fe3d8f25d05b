"""Runs that are killed and resumed are compared with one that was left alone; here the runs are only told of."""

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.experiments.test_comparison import write_run
from trellis.errors import RunFailedError
from trellis.launch import Reference, ResumeTrials, resume_trials

POINTS = ((5, 0.5, (1, 2, 3)), (10, 0.25, (4, 5, 6)))


class PretendedRun:
    """A run that leaves some events, and is killed or not."""

    points: Any = POINTS
    is_killed = True
    error: Exception | None = None

    def __init__(self, arguments: Any, model_dir: Path, *, n_processes: int) -> None:
        self.model_dir = model_dir
        self.n_processes = n_processes

    def kill(self, number: signal.Signals, **moment: Any) -> bool:
        """Tells whether it was."""
        write_run(self.model_dir, *self.points[:1])
        return self.is_killed

    def finish(self) -> None:
        """Leaves the rest of the events."""
        if self.error is not None:
            raise self.error
        write_run(self.model_dir, *self.points)
        (self.model_dir / "regular_10").mkdir(exist_ok=True)
        (self.model_dir / "regular_10/manifest.json").touch()


@pytest.fixture
def trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ResumeTrials:
    """Trials of pretended runs."""
    monkeypatch.setattr(PretendedRun, "points", POINTS)
    monkeypatch.setattr(Reference, "gaps", {0: 1.0, 5: 0.5})
    monkeypatch.setattr(resume_trials, "_Run", PretendedRun)
    return ResumeTrials([], directory=tmp_path)


def test_a_resumed_run_that_is_as_the_other_has_no_problem(trials: ResumeTrials) -> None:
    reference = trials.run_undisturbed()
    trial = trials.run_trial("trial", reference=reference, signals=[signal.SIGKILL])
    assert trial.problem == ""
    assert trial.comparison is not None and trial.comparison.n_fingerprints == 2
    assert [strike.signal for strike in trial.strikes] == ["SIGKILL"]


@pytest.mark.parametrize(
    ("points", "problem"),
    [
        ((POINTS[0], (10, 0.25, (4, 50, 6))), "It differs from step 10 on; the first is params/dense/bias."),
        ((POINTS[0], (10, 0.26, (4, 5, 6))), "It differs from step 10 on; the first is train/loss."),
        (POINTS[:1], "It ended with step 5, and not with 10."),
        ((POINTS[1],), "Only one of the two tells of step 5."),
    ],
)
def test_what_differs_is_a_problem(
    trials: ResumeTrials, points: Any, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = trials.run_undisturbed()
    monkeypatch.setattr(PretendedRun, "points", points)
    assert trials.run_trial("trial", reference=reference, signals=[signal.SIGTERM]).problem == problem


def test_other_kept_files_are_a_problem(trials: ResumeTrials, tmp_path: Path) -> None:
    reference = trials.run_undisturbed()
    (tmp_path / "undisturbed/best/highest_5").mkdir(parents=True)
    (tmp_path / "undisturbed/best/highest_5/manifest.json").touch()
    trial = trials.run_trial("trial", reference=reference, signals=[signal.SIGKILL])
    assert trial.problem == "It has kept regular_10, and not best/highest_5, regular_10."


def test_on_other_processes_losses_may_be_rounded_otherwise(
    trials: ResumeTrials, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = trials.run_undisturbed()
    monkeypatch.setattr(PretendedRun, "points", (POINTS[0], (10, 0.250001, (7, 8, 6))))
    assert trials.run_trial("two", reference=reference, signals=[signal.SIGKILL], n_processes=2).problem == ""
    assert trials.run_trial("one", reference=reference, signals=[signal.SIGKILL]).problem.startswith("It differs")


def test_a_run_that_is_done_before_it_can_be_killed_proves_nothing(
    trials: ResumeTrials, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = trials.run_undisturbed()
    monkeypatch.setattr(PretendedRun, "is_killed", False)
    trial = trials.run_trial("trial", reference=reference, signals=[signal.SIGKILL])
    assert trial.strikes == ()
    assert "It was done each time before it could be killed. Let it take longer" in trial.problem


def test_a_run_that_cannot_be_resumed_is_a_problem_with_its_output(
    trials: ResumeTrials, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = trials.run_undisturbed()
    monkeypatch.setattr(PretendedRun, "error", RunFailedError("The run ended with 2. The end of its output: torn"))
    trial = trials.run_trial("trial", reference=reference, signals=[signal.SIGKILL])
    assert trial.comparison is None
    assert trial.problem == "It could not be resumed. The run ended with 2. The end of its output: torn"
