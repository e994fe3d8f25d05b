"""Checkpoints on disk: written in the background, committed whole, read back checked."""

import dataclasses
import os
import shutil
import time
import uuid
from abc import abstractmethod
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from trellis.aliases import Init
from trellis.disk import sync
from trellis.errors import ArgumentError, CheckpointFileError, CheckpointMismatchError
from trellis.extensions import checkpoint_storage as storage
from trellis.extensions.checkpoint_names import PREEMPTED, REGULAR, find_files
from trellis.extensions.disk import check_writable, describe_failure
from trellis.extensions.extension import Extension
from trellis.loops import Checkpoint, CheckpointSource, Session, finish_saves
from trellis.runtime import is_first_process, print_line, wait_for_processes

_PROCESS = uuid.uuid4().hex


class FileWriter(Extension):
    """Writes checkpoints under a prefix, keeps the newest, and never leaves a half-written one behind."""

    is_resumable = False
    """Whether a run starts from these files by default; such are committed after all others."""

    def __init__(self, output_dir: str | os.PathLike[str], *, keep: int, overwrite: bool) -> None:
        if keep < 1:
            raise ArgumentError(f"keep is {keep}, but at least one checkpoint file has to be kept.")
        self._dir = Path(output_dir)
        self._keep = keep
        self._overwrite = overwrite
        self._written: Future[None] | None = None
        self._n_set_aside = 0
        check_writable(self._dir)

    @property
    @abstractmethod
    def prefix(self) -> str:
        """What the names of the files begin with."""

    def write(self, checkpoint: Checkpoint, *, prefix: str | None = None) -> None:
        """Copies a checkpoint to the host and starts to write it; it is committed when the loop moves on."""
        if not isinstance(checkpoint, Checkpoint):
            raise ArgumentError(
                f"Cannot write to `{self._dir}`: expected a Checkpoint or a Summary, but got {checkpoint!r}."
            )
        name = f"{prefix or self.prefix}{checkpoint.step}"
        newer = [path.name for step, path in find_files(self._dir, self.prefix) if step >= checkpoint.step]
        if newer and not self._overwrite:
            raise CheckpointFileError(
                f"Cannot write `{self._dir / name}`: the directory already holds {', '.join(newer)}. "
                f"Choose another output_dir, or pass overwrite=True."
            )
        if self._written is not None:
            # One save under way at a time: host memory holds at most one copy more.
            self._written.result()
        snapshot = storage.take_snapshot(checkpoint)
        if snapshot.is_shared and not is_first_process():
            return
        temporary = self._dir / f".{name}.{_PROCESS}.{uuid.uuid4().hex}.writing"
        session = checkpoint.session or Session()
        self._written = session.save(
            lambda: self._write(temporary, checkpoint, snapshot),
            lambda: self._commit(temporary, name, checkpoint.step, session),
            is_resumable=self.is_resumable,
        )
        if checkpoint.session is None:
            session.finish()

    def _write(self, temporary: Path, checkpoint: Checkpoint, snapshot: storage.Snapshot) -> None:
        try:
            # What a process that was killed has left.
            for left in (*self._dir.glob(".*.writing"), *self._dir.glob(".*.removed")):
                if _PROCESS not in left.name:
                    shutil.rmtree(left, ignore_errors=True)
            storage.write(temporary, checkpoint, snapshot)
        except Exception as error:
            shutil.rmtree(temporary, ignore_errors=True)
            raise CheckpointFileError(
                f"The checkpoint of step {checkpoint.step} could not be saved in `{self._dir}`: "
                f"{describe_failure(error)}. The files before it are untouched. Make room or mend the directory, "
                f"and start the same command again."
            ) from error

    def _commit(self, temporary: Path, name: str, step: int, session: Session) -> None:
        final = self._dir / name
        replaced = final.with_name(f"{name}.replaced")
        if replaced.exists():
            storage.remove(replaced)
        if final.exists():
            final.rename(replaced)
        temporary.rename(final)
        sync(self._dir)
        if replaced.exists():
            storage.remove(replaced)
        self._tidy(name, step, session)

    def _tidy(self, name: str, step: int, session: Session) -> None:
        """Removes files that are not kept; sets aside those of a later step, which another run has left."""
        if not name.startswith(self.prefix):
            return
        files = find_files(self._dir, self.prefix)
        for later, path in files:
            if later > step:
                aside = path.with_name(f"{self.prefix}{later}.superseded")
                if aside.exists():
                    storage.remove(aside)
                path.rename(aside)
                text = f"`{path}` is of a later step than {name}, which was written now: set aside as `{aside.name}`."
                session.emit("superseded", step=step, text=text, path=str(aside))
        for _, path in [(at, path) for at, path in files if at <= step][: -self._keep]:
            storage.remove(path)


class CheckpointFileWriter(FileWriter):
    """Writes every checkpoint it sees to `{output_dir}/regular_{step}`, in the background.

    A file is committed whole when the loop has moved on; a save that failed raises at the next step. Told to stop by
    SIGTERM, the run saves `preempted_{step}`, which the next regular file replaces.

    Example:
        process = serial(EvalLoop(task=task), CheckpointFileWriter(output_dir="runs/digits", keep=3))

    Args:
        keep: How many of the newest files to keep; two, so that there is one before a damaged newest.
        overwrite: Whether a file of the same step may be replaced, and those of later steps (left by another run) be
            set aside. If not, they are an error.
    """

    is_resumable = True

    def __init__(self, output_dir: str | os.PathLike[str], *, keep: int = 2, overwrite: bool = True) -> None:
        super().__init__(output_dir, keep=keep, overwrite=overwrite)
        self._last_step = -1

    @property
    def prefix(self) -> str:
        """`regular_`."""
        return REGULAR

    def join(self, session: Session) -> None:
        """Saves on preemption too."""
        session.on_preemption(self._save_preempted)

    def handle(self, checkpoint: Checkpoint) -> Checkpoint:
        """Starts to write the checkpoint."""
        self.write(checkpoint)
        self._last_step = checkpoint.step
        return checkpoint

    def _save_preempted(self, checkpoint: Checkpoint) -> None:
        # What a run has only started from is there already.
        is_there = not checkpoint.n_completed_steps and (self._dir / f"{REGULAR}{checkpoint.step}").exists()
        if checkpoint.step != self._last_step and not is_there:
            self.write(checkpoint, prefix=PREEMPTED)

    def _tidy(self, name: str, step: int, session: Session) -> None:
        super()._tidy(name, step, session)
        for at, path in find_files(self._dir, PREEMPTED):
            if name != path.name and at <= step:
                storage.remove(path)


class FileReader(CheckpointSource):
    """Finds the newest whole checkpoint file under some prefixes.

    Args:
        after: Only files of later steps count: a run that starts at this step needs none.
    """

    def __init__(self, dir: str | os.PathLike[str], *, target: Init, after: int = -1) -> None:
        self._dir = Path(dir)
        self._after = after
        self.target = target

    @property
    @abstractmethod
    def prefixes(self) -> tuple[str, ...]:
        """What the names of the files begin with."""

    def __call__(self, initializer: Checkpoint) -> Checkpoint:
        """The newest checkpoint in the form of `initializer`; `initializer` itself if there is none."""
        started = time.perf_counter()
        found = self._find(initializer.session)
        if found is None:
            start = max(self._after, 0)
            return initializer if start == initializer.step else dataclasses.replace(initializer, step=start)
        path, manifest = found
        checkpoint = _restored(path, manifest, initializer)
        if initializer.session is not None:
            seconds = time.perf_counter() - started
            text = f"A checkpoint was loaded in {seconds:.2f} seconds: `{path}`."
            initializer.session.emit("restored", step=checkpoint.step, text=text, path=str(path), seconds=seconds)
        return checkpoint

    def find_step(self) -> int | None:
        """The step of the newest whole file; None if there is none. Of several processes, all have to ask."""
        wait_for_processes("find_step")  # for what the first has written
        found = self._find(None)
        return None if found is None else int(found[1]["step"])

    def read(self) -> Checkpoint | None:
        """The newest checkpoint with its trees as nested dicts; None if there is none."""
        found = self._find(None)
        if found is None:
            return None
        path, manifest = found
        arrays = storage.read_arrays(path, manifest["tree"])
        names = ("model_params", "model_state", "optimizer_state")
        return _checkpoint(manifest, {name: storage.nest(name, arrays) for name in names})

    def _find(self, session: Session | None) -> tuple[Path, dict[str, Any]] | None:
        finish_saves()
        files = [file for file in find_files(self._dir, *self.prefixes) if file[0] > self._after]
        for _, path in reversed(files):
            try:
                return path, storage.read_manifest(path)
            except CheckpointFileError as error:
                text = f"Skipping the damaged checkpoint file `{path}`: {error}."
                if session is None:
                    print_line(text)
                else:
                    session.emit("skipped_file", step=0, text=text, path=str(path))
        if files and self._after < 0:
            raise CheckpointFileError(
                f"Every checkpoint file in `{self._dir}` is damaged ({', '.join(path.name for _, path in files)}). "
                f"Bring one back, or remove them to start from step 0."
            )
        return None


class CheckpointFileReader(FileReader):
    """Starts a loop from the newest file of a `CheckpointFileWriter`, if there is one.

    Damaged files are skipped, with a line that says why. A file of another model is an error that shows the difference.

    Example:
        TrainLoop(init=CheckpointFileReader(dir="runs/digits", target=model.init), …)
    """

    @property
    def prefixes(self) -> tuple[str, ...]:
        """`regular_`, and `preempted_` for what a stopped run has left."""
        return (REGULAR, PREEMPTED)


def restore_file(path: Path, *, template: Checkpoint) -> Checkpoint:
    """The checkpoint of a file.

    Args:
        template: The structure that is needed: shapes and dtypes in the place of arrays.
    """
    return _restored(path, storage.read_manifest(path), template)


def _restored(path: Path, manifest: dict[str, Any], template: Checkpoint) -> Checkpoint:
    tree: dict[str, str] = manifest["tree"]
    wanted = {name: storage.describe(leaf) for name, leaf in storage.flatten(template)}
    sums = {name for name in {*tree, *wanted} if name.startswith("totals/")}
    differing = [name for name in sorted({*tree, *wanted} - sums) if tree.get(name) != wanted.get(name)]
    if differing:
        said = f"`{path}` holds another structure than this run needs:\n{storage.compare(tree, wanted, differing)}"
        raise CheckpointMismatchError(f"{said}\nUse the model and optimizer that wrote it, or another directory.")
    arrays = storage.read_arrays(path, tree)
    names = ["model_params", "model_state", "optimizer_state"]
    # Sums for the next checkpoint are there if the run was preempted; with other metrics than now they are no use.
    if sums and all(tree.get(name) == wanted.get(name) for name in sums):
        names.append("totals")
    trees = {name: storage.unflatten(getattr(template, name), name, arrays) for name in names}
    return _checkpoint(manifest, trees)


def _checkpoint(manifest: dict[str, Any], trees: dict[str, Any]) -> Checkpoint:
    return Checkpoint(
        **trees,
        grads=None,
        loss=manifest["metrics"].get("train", {}).get("loss", float("nan")),
        n_completed_steps=manifest["n_completed_steps"],
        elapsed_time=manifest["elapsed_time"],
        step=manifest["step"],
        position=manifest["position"],
    )
