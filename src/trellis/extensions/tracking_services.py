"""Where runs are tracked, each behind a few calls: Weights & Biases, MLflow and trackio."""

import importlib
import json
import os
import re
import secrets
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from trellis.aliases import JSON
from trellis.errors import ArgumentError, MissingPackageError
from trellis.extensions.configs import ServiceName, is_missing
from trellis.loops import Histogram, Image, Media, Text
from trellis.spelling import did_you_mean

Status = Literal["finished", "stopped", "failed"]

_PACKAGES = {"wandb": "wandb", "mlflow": "mlflow-skinny", "trackio": "trackio"}
_LONGEST_VALUE = 5000
"""Of a parameter or a tag of MLflow, in characters."""
_MOST_AT_ONCE = 100
"""Of parameters that MLflow takes in one call; of metrics it takes more."""


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """What a service is told of a run when it starts, or goes on."""

    name: str
    project: str
    """What runs that belong together are filed under."""
    directory: Path
    """Where a service may keep files of its own."""
    id: str = ""
    """What the service itself calls a run that goes on; empty for a new one."""
    config: Mapping[str, JSON] = field(default_factory=dict)
    """Values by dotted path."""
    tags: Mapping[str, str] = field(default_factory=dict)


class TrackingService(ABC):
    """Takes what happens in a run, in order, each point once; called by one thread, and may raise and be slow.

    What raised is called again with the same values, later.
    """

    @abstractmethod
    def start(self, run: TrackedRun) -> str:
        """Starts a run, or goes on with it if it has an id; returns its id. The last call decides."""

    @abstractmethod
    def log(self, step: int, time: float, values: Mapping[str, float | Media]) -> None:
        """Takes the values of a step by their names, such as `eval/accuracy`."""

    @abstractmethod
    def tell(self, step: int, kind: str, text: str) -> None:
        """Takes an event, such as an error or a recovery."""

    @abstractmethod
    def finish(self, status: Status) -> None:
        """Ends what `start` began; the run may go on later."""

    def notice(self) -> str:
        """What a person has to know once a run has started; empty if there is nothing."""
        return ""


class _MLflow(TrackingService):
    """Metrics with their steps and times, parameters, events as tags; media as files of the run."""

    def start(self, run: TrackedRun) -> str:
        from mlflow import MlflowClient

        self._client = MlflowClient()
        params = self._resume(run.id) if run.id else None
        if params is None:
            params = {}
            self._id = self._create(run)
        config = {_plain_name(path): _as_text(value) for path, value in run.config.items()}
        self._log_params({name: value for name, value in config.items() if name not in params})
        for name, value in config.items():
            # A parameter of MLflow is what it was.
            if params.get(name, value) != value:
                self._client.set_tag(self._id, f"changed/{name}", value)
        return self._id

    def _resume(self, run_id: str) -> dict[str, str] | None:
        """The parameters of a run that goes on; None if somebody has deleted it."""
        from mlflow.exceptions import MlflowException

        try:
            known = self._client.get_run(run_id)
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return None
            raise
        if known.info.lifecycle_stage != "active":
            return None
        self._id = run_id
        self._client.update_run(run_id, status="RUNNING")
        params: dict[str, str] = known.data.params
        return params

    def _create(self, run: TrackedRun) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or run.project
        experiment = self._client.get_experiment_by_name(name)
        experiment_id = experiment.experiment_id if experiment else self._client.create_experiment(name)
        run_id: str = self._client.create_run(experiment_id, run_name=run.name, tags=dict(run.tags)).info.run_id
        return run_id

    def _log_params(self, params: Mapping[str, str]) -> None:
        from mlflow.entities import Param

        entities = [Param(name, value) for name, value in params.items()]
        for start in range(0, len(entities), _MOST_AT_ONCE):
            self._client.log_batch(self._id, params=entities[start : start + _MOST_AT_ONCE])

    def log(self, step: int, time: float, values: Mapping[str, float | Media]) -> None:
        from mlflow.entities import Metric

        metrics = [
            Metric(_plain_name(name), value, int(time * 1000), step)
            for name, value in values.items()
            if not isinstance(value, Media)
        ]
        for name, value in values.items():
            if isinstance(value, Media):
                self._log_file(f"{_plain_name(name)}/step_{step:08d}", value)
        # Last, as only they would be there twice if a call was repeated, were they not told apart by their times.
        self._client.log_batch(self._id, metrics=metrics)

    def _log_file(self, name: str, media: Media) -> None:
        match media:
            case Text():
                self._client.log_text(self._id, media.text, f"{name}.md")
            case Histogram():
                bins = {"edges": media.edges.tolist(), "counts": media.counts.tolist()}
                self._client.log_dict(self._id, bins | {"n_not_finite": media.n_not_finite}, f"{name}.json")
            case Image():
                # Not by log_image, which needs Pillow.
                folder, _, file = f"{name}.png".rpartition("/")
                with tempfile.TemporaryDirectory() as directory:
                    path = Path(directory) / file
                    path.write_bytes(media.png())
                    self._client.log_artifact(self._id, str(path), folder)

    def tell(self, step: int, kind: str, text: str) -> None:
        self._client.set_tag(self._id, f"event/{step:08d}/{kind}", _as_text(text))

    def finish(self, status: Status) -> None:
        names = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
        self._client.set_terminated(self._id, names[status])


class _Wandb(TrackingService):
    """Values by step. Without a key, or offline, files are kept that `wandb sync` sends."""

    def start(self, run: TrackedRun) -> str:
        import wandb

        # Never asks for a key: the question would stand in the midst of a run that nobody watches.
        has_mode = "WANDB_MODE" in os.environ
        self._is_kept = not has_mode and not wandb.login(prompt=False)
        mode: Any = {"mode": "offline"} if self._is_kept else {}
        directory = os.environ.get("WANDB_DIR") or str(run.directory)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or _file_name(run.project),
            id=run.id or secrets.token_hex(8),
            name=run.name,
            resume="allow",
            tags=[f"{name}: {value}"[:64] for name, value in run.tags.items()],
            dir=directory,
            # The user may have a run of their own in this process.
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off"),
            **mode,
        )
        self._run.config.update(dict(run.config), allow_val_change=True)
        return str(self._run.id)

    def notice(self) -> str:
        if not self._is_kept:
            return ""
        files = Path(self._run.dir).parent
        return f"wandb has no key (`wandb login`), so the run is kept here. To send it: wandb sync {files}"

    def log(self, step: int, time: float, values: Mapping[str, float | Media]) -> None:
        with tempfile.TemporaryDirectory() as directory:
            data = {name: self._as_theirs(value, Path(directory)) for name, value in values.items()}
            self._run.log(data, step=step, commit=True)

    def _as_theirs(self, value: float | Media, directory: Path) -> Any:
        import wandb

        match value:
            case Histogram():
                return wandb.Histogram(np_histogram=(value.counts, value.edges))
            case Image():
                path = directory / f"{secrets.token_hex(8)}.png"
                path.write_bytes(value.png())
                return wandb.Image(str(path))
            case Text():
                return value.text
            case _:
                return value

    def tell(self, step: int, kind: str, text: str) -> None:
        # Not as a point: it may be of an earlier step than the last, which wandb would drop.
        self._run.summary[f"event/{step:08d}/{kind}"] = text

    def finish(self, status: Status) -> None:
        if status == "stopped":
            self._run.mark_preempting()
        self._run.finish(exit_code=0 if status == "finished" else 1)


class _Trackio(TrackingService):
    """Values by step in a local file, or where `TRACKIO_SPACE_ID` or `TRACKIO_SERVER_URL` say."""

    def start(self, run: TrackedRun) -> str:
        import trackio

        # Runs are found again by their names, of which the newest counts.
        name = run.id or f"{run.name}-{secrets.token_hex(3)}"
        self._run = trackio.init(
            project=os.environ.get("TRACKIO_PROJECT") or _file_name(run.project),
            name=name,
            config=dict(run.config) | {f"tag: {tag}": value for tag, value in run.tags.items()},
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        return name

    def log(self, step: int, time: float, values: Mapping[str, float | Media]) -> None:
        self._run.log({name: self._as_theirs(value) for name, value in values.items()}, step=step)

    def _as_theirs(self, value: float | Media) -> Any:
        import trackio

        match value:
            case Histogram():
                return trackio.Histogram(np_histogram=(value.counts, value.edges))
            case Image():
                grey = value.pixels.shape[-1] == 1
                return trackio.Image(value.pixels.repeat(3, axis=-1) if grey else value.pixels)
            case Text():
                return trackio.Markdown(value.text)
            case _:
                return value

    def tell(self, step: int, kind: str, text: str) -> None:
        self._run.alert(kind, text, step=step)

    def finish(self, status: Status) -> None:
        self._run.finish()


_SERVICES: Mapping[str, Callable[[], TrackingService]] = {"wandb": _Wandb, "mlflow": _MLflow, "trackio": _Trackio}


def build_service(name: str) -> TrackingService:
    """The service of a name; an error if there is none, or its package is not installed."""
    if name not in _SERVICES:
        names = get_args(ServiceName)
        raise ArgumentError(
            f"There is no tracker {name!r}.{did_you_mean(name, names, show=str)} There are: {', '.join(names)}."
        )
    if is_missing(name):
        raise MissingPackageError(_PACKAGES[name], name)
    # Here and not by the thread that calls it: Python 3.11 fails now and then if two threads import at a time.
    importlib.import_module(name)
    return _SERVICES[name]()


def _plain_name(name: str) -> str:
    """A name of the characters that MLflow takes, and no other."""
    return re.sub(r"[^\w\-. :/]", "_", name, flags=re.ASCII)[:250]


def _file_name(name: str) -> str:
    return re.sub(r"[^\w\-.]+", "-", name).strip("-")[:100] or "trellis"


def _as_text(value: JSON) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text[:_LONGEST_VALUE]
