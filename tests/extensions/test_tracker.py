"""What a tracking service is told of a run: each point once, whatever becomes of the run and of the service."""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import trellis
from tests import tiny
from tests.trainer import small  # noqa: F401  (registers an experiment)
from trellis.errors import ArgumentError, ConfigError, MissingPackageError
from trellis.experiments import mode
from trellis.extensions import TrackedRun, TrackingService, tracker, tracking_services
from trellis.loops import Session


class Service(TrackingService):
    """Keeps what it is told by run, and fails when it is asked to."""

    def __init__(self) -> None:
        self.runs: dict[str, list[Any]] = {}
        self.started: list[TrackedRun] = []
        self.n_failures = 0
        self.is_open = threading.Event()
        self.is_open.set()
        self.is_finished = threading.Event()

    def start(self, run: TrackedRun) -> str:
        self._maybe_fail()
        self.started.append(run)
        self._id = run.id or f"run-{len(self.runs)}"
        self.runs.setdefault(self._id, [])
        return self._id

    def log(self, step: int, time: float, values: Mapping[str, Any]) -> None:
        self._maybe_fail()
        self.runs[self._id].append((step, values.get("train/loss", values)))

    def tell(self, step: int, kind: str, text: str) -> None:
        self.runs[self._id].append(f"{kind}: {text}")

    def finish(self, status: str) -> None:
        self.runs[self._id].append(status)
        self.is_finished.set()

    def _maybe_fail(self) -> None:
        self.is_open.wait(60)
        if self.n_failures:
            self.n_failures -= 1
            raise OSError("no route to host")


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker, "_FIRST_PAUSE", 0.001)


def train(service: Service, directory: Path, steps: range, *, start: int, end: str = "finished", **values: Any) -> Any:
    """A process that goes on from a step and reports some; returns the kinds and texts of its session's events."""
    session, events = Session(), []
    process = trellis.serial(
        trellis.EventWriter(directory), trellis.Tracker(service, output_dir=directory, name="digits")
    )
    session.subscribe(events.append)
    process.attach(session)
    session.emit("initialized", step=start, text="Compiled.")
    for step in steps:
        process(tiny.checkpoint(step, train={"loss": float(step)}, session=session))
    session.emit(end, step=steps[-1], **values)
    return [(event.kind, event.text) for event in events]


def test_a_service_is_told_what_a_run_is_made_of_and_what_happens_in_it(tmp_path: Path) -> None:
    service, session = Service(), Session()
    config = {"task.hidden_size": 64}
    extension = trellis.Tracker(service, output_dir=tmp_path / "a", project="p", config=config, tags={"who": "me"})
    session.emit("skipped_file", step=0, text="A file was passed over.")
    extension.attach(session)
    session.emit("initialized", step=0, text="Compiled.")
    text = trellis.Text("hello")
    summary = tiny.checkpoint(5, eval={"loss": float("nan")}, session=session).with_media(eval={"loss": text})
    assert extension(summary) is summary
    session.emit("diverged", step=6, text="The loss is not finite.")
    session.emit("stopped", step=6, error="DivergedError()")
    (run,) = service.started
    assert (run.name, run.project, run.id, dict(run.config)) == ("a", "p", "", config)
    assert run.tags == {"trellis": trellis.__version__, "who": "me"}
    before, (step, values), *after = service.runs["run-0"]
    assert (before, step, values["eval/loss_"]) == ("skipped_file: A file was passed over.", 5, text)
    assert str(values["eval/loss"]) == "nan"
    assert after == ["diverged: The loss is not finite.", "stopped: DivergedError()", "failed"]


def test_a_run_that_is_resumed_from_an_earlier_step_tells_no_point_twice(tmp_path: Path) -> None:
    service = Service()
    train(service, tmp_path, range(1, 6), start=0, end="stopped")
    train(service, tmp_path, range(4, 8), start=3)
    points = [(step, float(step)) for step in range(1, 8)]
    assert service.runs == {"run-0": [*points[:5], "stopped", *points[5:], "finished"]}


def test_a_run_that_starts_anew_is_another_one(tmp_path: Path) -> None:
    service = Service()
    for _ in range(2):
        train(service, tmp_path, range(1, 3), start=0)
    assert service.runs == {f"run-{n}": [(1, 1.0), (2, 2.0), "finished"] for n in range(2)}


def test_points_that_a_service_has_missed_come_from_the_events_of_the_run(tmp_path: Path) -> None:
    service = Service()
    service.n_failures = 10**9
    events = train(service, tmp_path, range(1, 4), start=0, end="stopped")
    assert service.runs == {}
    untracked = [text for kind, text in events if kind == "untracked"]
    assert len(untracked) == 2
    assert untracked[0] == (
        "Service cannot be reached, or refuses what it is told: OSError: no route to host. The training goes on, and "
        "it is tried again."
    )
    assert "was not told of 3 points" in untracked[1]
    service.n_failures = 0
    # The third step was not saved, and is done again.
    train(service, tmp_path, range(3, 5), start=2)
    assert service.runs == {"run-0": [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0), "finished"]}


def test_a_service_that_fails_for_a_while_is_told_everything_once_and_in_order(tmp_path: Path) -> None:
    service = Service()
    service.n_failures = 5
    reached = threading.Event()
    service.tell = lambda step, kind, text: reached.set()  # type: ignore[method-assign]
    session = Session()
    extension = trellis.Tracker(service, output_dir=tmp_path)
    extension.attach(session)
    for step in (1, 2):
        extension(tiny.checkpoint(step, train={"loss": float(step)}, session=session))
    session.emit("diverged", step=2, text="…")
    # A run that ends would not be patient with a service that fails.
    assert reached.wait(60)
    session.emit("finished", step=2)
    assert service.runs == {"run-0": [(1, 1.0), (2, 2.0), "finished"]}


def test_a_service_that_hangs_does_not_keep_a_run_from_ending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker, "_PATIENCE", {"finished": 0.001})
    service = Service()
    service.is_open.clear()
    events = train(service, tmp_path, range(1, 4), start=0)
    assert ("untracked", "Service was not told of 3 points when the run ended. If it is resumed, they are.") in events
    assert not service.runs
    service.is_open.set()
    assert service.is_finished.wait(60)
    assert service.runs == {"run-0": [(1, 1.0), (2, 2.0), (3, 3.0), "finished"]}


def test_what_is_waiting_for_a_service_that_hangs_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker, "_MOST_WAITING", 3)
    monkeypatch.setattr(tracker, "_PATIENCE", {"finished": 60.0})
    service, session = Service(), Session()
    service.is_open.clear()
    extension = trellis.Tracker(service, output_dir=tmp_path)
    for step in range(1, 100):
        extension(tiny.checkpoint(step, train={"loss": float(step)}, session=session))
    service.is_open.set()
    extension.close()
    assert 2 <= len(service.runs["run-0"]) <= 5


def test_of_several_processes_the_first_one_tracks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker, "is_first_process", lambda: False)
    service = Service()
    train(service, tmp_path / "a", range(1, 4), start=0)
    assert not service.started
    assert not (tmp_path / "a" / "trackers").exists()


def test_a_damaged_record_of_a_run_makes_a_new_one_with_its_whole_history(tmp_path: Path) -> None:
    service = Service()
    train(service, tmp_path, range(1, 4), start=0)
    (tmp_path / "trackers" / "Service.json").write_text('{"run": ')
    train(service, tmp_path, range(4, 5), start=3)
    assert service.runs["run-1"] == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0), "finished"]


def test_a_script_of_single_steps_can_end_a_run_itself(tmp_path: Path) -> None:
    service = Service()
    extension = trellis.Tracker(service, output_dir=tmp_path)
    extension(tiny.checkpoint(1, train={"loss": 1.0}))
    extension.close()
    extension.close()
    assert service.runs == {"run-0": [(1, 1.0), "finished"]}


def test_a_service_that_is_not_there_is_told_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArgumentError, match="There is no tracker 'mlfow'. Did you mean mlflow"):
        trellis.Tracker("mlfow", output_dir=tmp_path)  # type: ignore[arg-type]
    monkeypatch.setattr(tracking_services.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match=r"mlflow-skinny is not installed.* 'trellis-jax\[mlflow\]'"):
        trellis.Tracker("mlflow", output_dir=tmp_path)
    with pytest.raises(ArgumentError, match="Tracker was given 3"):
        trellis.Tracker(3, output_dir=tmp_path)  # type: ignore[arg-type]


def test_a_folder_of_a_packages_name_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trackio").mkdir()
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    assert tracking_services.is_missing("trackio")


def test_an_experiment_is_tracked_by_what_its_config_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service()
    monkeypatch.setattr(tracker, "build_service", {"mlflow": service}.get)
    monkeypatch.setattr(mode, "is_missing", lambda name: False)
    params = trellis.get_exp_config("tests/small")
    with pytest.raises(ConfigError, match="trainer.trackers.* takes one of wandb, mlflow, trackio(.|\\n)*mlflow"):
        params.override({"trainer": {"trackers": ["mlfow"]}})
    params.override({"trainer": {"trackers": ["mlflow"], "train_steps": 10}})
    trellis.run_experiment(params, mode="train", model_dir=tmp_path / "a")
    (run,) = service.started
    assert (run.name, run.project, run.config["trainer.train_steps"]) == ("a", "tests/small", 10)
    assert run.tags["experiment"] == "tests/small"
    assert [told[0] for told in service.runs["run-0"] if isinstance(told, tuple)] == [5, 10]
    monkeypatch.setattr(mode, "is_missing", lambda name: True)
    with pytest.raises(ConfigError, match=r"trainer.trackers has mlflow, which is not installed(.|\n)*jax\[mlflow\]"):
        trellis.run_experiment(params, mode="train", model_dir=tmp_path / "b")
    assert not (tmp_path / "b" / "trackers").exists()
