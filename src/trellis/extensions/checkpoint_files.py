"""Checkpoints on disk: written in the background, committed whole, read back checked."""

import dataclasses
import errno
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
from flax.traverse_util import unflatten_dict

from trellis.aliases import JSON, Init, PyTree
from trellis.disk import (
    Ownership,
    check_still_owned,
    check_writable,
    describe_failure,
    hidden_path,
    list_directory,
    local_path,
    remove_whole,
    set_aside,
    sweep,
    sync,
)
from trellis.errors import ArgumentError, CheckpointFileError, CheckpointMismatchError, DirectoryTakenError, shown
from trellis.extensions import checkpoint_storage as storage
from trellis.extensions.extension import Extension
from trellis.loops import Checkpoint, CheckpointSource, Event, Session, finish_saves
from trellis.runtime import forget, gathered, is_first_process, note_progress, print_line

REGULAR = "regular_"
"""The names of files that a run writes as it goes begin with this."""
PREEMPTED = "preempted_"
"""The names of files of a run that was told to stop begin with this."""


def find_files(directory: Path, *prefixes: str) -> list[tuple[int, Path]]:
    """The checkpoint files under some prefixes as (step, path), oldest first."""
    files: dict[tuple[int, str], Path] = {}
    # A process may have died while it replaced a file by one of the same step: then the older file counts.
    pattern = re.compile(rf"({'|'.join(map(re.escape, prefixes))})(\d+)(\.replaced)?")
    for path in reversed(list_directory(directory)):
        match = pattern.fullmatch(path.name)
        if match:
            files[int(match[2]), match[1]] = path
    return [(step, path) for (step, _), path in sorted(files.items())]


def regular_files(directory: Path) -> list[tuple[int, Path]]:
    """The files of a `CheckpointFileWriter` as (step, path), oldest first."""
    return find_files(directory, REGULAR)


def resumable_files(directory: Path) -> list[tuple[int, Path]]:
    """All files that a run may go on from as (step, path), oldest first."""
    return find_files(directory, REGULAR, PREEMPTED)


def newest_file(directory: Path) -> Path | None:
    """The newest checkpoint file of a run; None if there is none."""
    files = resumable_files(directory)
    return files[-1][1] if files else None


def newest_whole_file(
    files: Sequence[tuple[int, Path]], *, session: Session | None = None, together: bool = False
) -> tuple[Path, dict[str, Any]] | None:
    """The newest of some files that is whole, and its manifest; None if there is none.

    Damaged files are skipped, with a line or an event that says why.

    Args:
        together: Whether all processes call this with the same files: then each checks a part of them.
    """
    for _, path in reversed(files):
        try:
            return path, checked_manifest(path, together=together)
        except CheckpointMismatchError:
            # Not damaged: to go on from an older file would be to lose the work of this one.
            raise
        except CheckpointFileError as error:
            text = f"Skipping the damaged checkpoint file `{path}`: {error}."
            if session is not None:
                session.emit("skipped_file", step=0, text=text, path=str(path))
            elif is_first_process() or not together:
                print_line(text)
    return None


def checked_manifest(path: Path, *, together: bool = False) -> dict[str, Any]:
    """The manifest of a checkpoint file in its place: an error says what is damaged, or that it belongs elsewhere."""
    manifest = storage.read_manifest(path, together=together)
    step = path.name.removesuffix(".replaced").rpartition("_")[2]
    if step != str(manifest["step"]):
        raise CheckpointFileError(f"it holds step {manifest['step']}, and not that of its name")
    return manifest


def recorded_notes(directory: Path) -> tuple[int, dict[str, Any]] | None:
    """The step and the notes of the newest checkpoint file that tells them; None if there is none."""
    for step, path in reversed(find_files(directory, REGULAR, PREEMPTED)):
        try:
            return step, storage.peek_manifest(path).get("notes", {})
        except CheckpointFileError:
            continue  # a run that starts from there names what is damaged
    return None


class FileWriter(Extension):
    """Writes checkpoints under a prefix, keeps the newest, and never leaves a half-written one behind."""

    notes: Mapping[str, JSON] = MappingProxyType({})
    """What else the manifests of the files say."""
    is_resumable = False
    """Whether a run starts from these files by default; they are committed after all others."""

    def __init__(self, output_dir: str | os.PathLike[str], *, prefix: str, keep: int, overwrite: bool) -> None:
        if keep < 1:
            raise ArgumentError(f"keep is {keep}, but at least one checkpoint file has to be kept.")
        self.prefix = prefix
        """What the names of the files begin with."""
        self._dir = local_path(output_dir, name="output_dir")
        self._keep = keep
        self._overwrite = overwrite
        self._written: Future[None] | None = None
        self._told: str | None = None
        """What the processes have told each other of the last save is under this name."""
        storage.check_readable(self._dir)
        check_writable(self._dir)
        self._ownership: Ownership | None = None
        if is_first_process():
            # A process that owns the directory tidies up after itself.
            with suppress(DirectoryTakenError), Ownership(self._dir):
                self._tidy_after_kill()

    def join(self, session: Session) -> None:
        """Owns the directory until the loop ends, and sets aside what the session finds damaged."""
        self._own()
        session.subscribe(lambda event: self._handle_event(event, session))

    def _handle_event(self, event: Event, session: Session) -> None:
        if event.kind in ("finished", "stopped"):
            self._give_up()
        if event.kind == "skipped_file" and self._ownership is not None:
            self._set_aside(Path(str(event.values["path"])), session)

    def _set_aside(self, path: Path, session: Session) -> None:
        """Renames a damaged file of this writer, unless a whole one has taken its place."""
        is_own = path.parent.resolve() == self._dir.resolve() and path.name.startswith(self._prefixes)
        if not is_own or not os.path.lexists(path):
            return
        try:
            checked_manifest(path)
        except CheckpointFileError:
            text = f"`{path}` is set aside as `{set_aside(path).name}`."
            session.emit("set_aside", step=0, text=text, path=str(path))

    @property
    def _prefixes(self) -> tuple[str, ...]:
        """What the names of all files begin with that this writer writes and removes."""
        return (self.prefix,)

    def find_owner(self) -> str:
        """Says who else writes to the directory; empty if nobody does."""
        if self._ownership is None:
            try:
                Ownership(self._dir).release()
            except DirectoryTakenError as error:
                return str(error)
        return ""

    def _own(self) -> None:
        # Of several processes that run one loop, the first one makes and removes files; all write into them.
        if self._ownership is None and is_first_process():
            self._ownership = Ownership(self._dir)

    def _give_up(self) -> None:
        if self._ownership is not None:
            self._ownership.release()
            self._ownership = None

    def write(self, checkpoint: Checkpoint, *, prefix: str | None = None) -> None:
        """Copies a checkpoint to the host and starts to write it; it is committed when the loop moves on."""
        if not isinstance(checkpoint, Checkpoint):
            raise ArgumentError(
                f"Cannot write to `{self._dir}`: expected a Checkpoint or a Summary, but got {shown(checkpoint)}."
            )
        session = checkpoint.session or Session()
        with session.ledger.spending("checkpoint"):
            self._start_write(checkpoint, session, name=f"{prefix or self.prefix}{checkpoint.step}")

    def _start_write(self, checkpoint: Checkpoint, session: Session, *, name: str) -> None:
        is_owner = self._ownership is not None
        self._own()
        newer = [path.name for step, path in find_files(self._dir, self.prefix) if step >= checkpoint.step]
        hidden = hidden_path(self._dir)
        note_progress("saving", checkpoint.step)
        if self._written is not None:
            # One save under way at a time: host memory holds at most one copy more.
            session.wait_for(self._written)
            self._written = None
        together = storage.spans(checkpoint)
        is_committer = is_first_process() or not together
        if together:
            # The first one may be committing a file at this moment: what it sees counts.
            newer, hidden_name = gathered(f"saving step {checkpoint.step}", [newer, hidden.name])[0]
            hidden = self._dir / hidden_name
            if is_committer and self._told is not None:
                # Whoever is here has done with the save before.
                forget(self._told)
            self._told = hidden.name
        if newer and not self._overwrite:
            raise CheckpointFileError(
                f"Cannot write `{self._dir / name}`: the directory already holds {', '.join(newer)}. "
                f"Choose another output_dir, or pass overwrite=True."
            )
        snapshot = session.shared(storage.Snapshots).take(checkpoint)
        written = session.save(
            lambda: self._write(hidden, checkpoint, snapshot, is_committer=is_committer),
            lambda: self._commit(hidden, name, checkpoint.step, session) if is_committer else None,
            drop=lambda: self._drop(hidden, is_committer=is_committer),
            is_resumable=self.is_resumable,
        )
        if checkpoint.session is None:
            session.finish()
            if not is_owner:
                self._give_up()
        else:
            self._written = written

    def _write(self, hidden: Path, checkpoint: Checkpoint, snapshot: storage.Snapshot, *, is_committer: bool) -> None:
        with self._saving(hidden, checkpoint.step, removes=is_committer):
            if is_committer:
                sweep(self._dir)
            storage.write(hidden, checkpoint, snapshot, self.notes)

    def _commit(self, hidden: Path, name: str, step: int, session: Session) -> None:
        final = self._dir / name
        replaced = final.with_name(f"{name}.replaced")
        with self._saving(hidden, step):
            check_still_owned(self._dir)
            remove_whole(replaced)
            if final.exists():
                final.rename(replaced)
            hidden.rename(final)
            sync(self._dir)
            remove_whole(replaced)
            self._tidy(name, step, session)

    def _drop(self, hidden: Path, *, is_committer: bool) -> None:
        """Undoes a write that will not be committed."""
        if is_committer:
            shutil.rmtree(hidden, ignore_errors=True)

    @contextmanager
    def _saving(self, hidden: Path, step: int, *, removes: bool = True) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001  (it is raised, as another)
            if removes:
                shutil.rmtree(hidden, ignore_errors=True)
            reason = describe_failure(error)
            raise CheckpointFileError(
                f"The checkpoint of step {step} could not be saved in `{self._dir}`: {reason}. "
                f"The files before it are untouched. Make room or mend the directory, and start the same command again."
            ) from (None if reason in map(os.strerror, errno.errorcode) else error)

    def _tidy(self, name: str, step: int, session: Session) -> None:
        """Removes files that are not kept; sets aside those of a later step, which another run has left."""
        if not name.startswith(self.prefix):
            return
        files = find_files(self._dir, self.prefix)
        for later, path in files:
            if later > step:
                aside = path.with_name(f"{self.prefix}{later}.superseded")
                remove_whole(aside)
                try:
                    path.rename(aside)
                except FileNotFoundError:
                    # Another process that writes to this directory has removed it just now.
                    continue
                sync(self._dir)
                text = f"`{path}` is of a later step than {name}, which was written now: set aside as `{aside.name}`."
                session.emit("superseded", step=step, text=text, path=str(aside))
        for _, path in [(at, path) for at, path in files if at <= step][: -self._keep]:
            remove_whole(path)

    def _tidy_after_kill(self) -> None:
        """Does what a process that was killed after a commit had still to do."""
        self._end_replacing(self.prefix)
        files = find_files(self._dir, self.prefix)
        if len(files) <= self._keep or not _is_in_order(files):
            return
        n_whole = 0
        for _, path in reversed(files):
            if n_whole == self._keep:
                remove_whole(path)
            else:
                n_whole += _is_whole(path)

    def _end_replacing(self, prefix: str) -> None:
        """Removes files that were replaced, and gives their names back to those that were not."""
        for step, path in find_files(self._dir, prefix):
            name = f"{prefix}{step}"
            if path.name == name:
                remove_whole(self._dir / f"{name}.replaced")
            else:
                with suppress(FileNotFoundError):
                    path.rename(self._dir / name)


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
        notes: What else the manifests of the files say, such as what the run is one of.
    """

    is_resumable = True

    def __init__(
        self,
        output_dir: str | os.PathLike[str],
        *,
        keep: int = 2,
        overwrite: bool = True,
        notes: Mapping[str, JSON] = MappingProxyType({}),
    ) -> None:
        super().__init__(output_dir, prefix=REGULAR, keep=keep, overwrite=overwrite)
        self.notes = notes
        # Before anything else is done: what a run goes on from is in this directory.
        self._own()
        self._last_step = -1

    def join(self, session: Session) -> None:
        """Saves on preemption too."""
        super().join(session)
        session.on_preemption(self._save_preempted)

    @property
    def _prefixes(self) -> tuple[str, ...]:
        return (REGULAR, PREEMPTED)

    def handle(self, checkpoint: Checkpoint) -> Checkpoint:
        """Starts to write the checkpoint."""
        self.write(checkpoint)
        self._last_step = checkpoint.step
        return checkpoint

    def _save_preempted(self, checkpoint: Checkpoint) -> None:
        # A run that has completed no step would save what it started from, which may be a file of this directory.
        is_there = not checkpoint.n_completed_steps and (self._dir / f"{REGULAR}{checkpoint.step}").exists()
        if storage.spans(checkpoint):
            is_there = gathered(f"saving step {checkpoint.step}", is_there)[0]
        if checkpoint.step != self._last_step and not is_there:
            self.write(checkpoint, prefix=PREEMPTED)

    def _tidy(self, name: str, step: int, session: Session) -> None:
        super()._tidy(name, step, session)
        for at, path in find_files(self._dir, PREEMPTED):
            if name != path.name and at <= step:
                remove_whole(path)

    def _tidy_after_kill(self) -> None:
        super()._tidy_after_kill()
        self._end_replacing(PREEMPTED)
        preempted, regular = find_files(self._dir, PREEMPTED), regular_files(self._dir)
        if preempted and regular and _is_in_order([*preempted, regular[-1]]) and _is_whole(regular[-1][1]):
            for _, path in preempted:
                remove_whole(path)

    def _drop(self, hidden: Path, *, is_committer: bool) -> None:
        super()._drop(hidden, is_committer=is_committer)
        self._last_step = -1


class FileReader(CheckpointSource):
    """Finds the newest whole checkpoint file under some prefixes.

    Args:
        after: Only files of later steps count; without one, the run starts at this step.
    """

    prefixes: tuple[str, ...]
    """What the names of the files begin with."""
    gives_away = True

    def __init__(self, dir: str | os.PathLike[str], *, target: Init, after: int = -1) -> None:
        self._dir = local_path(dir, name="dir")
        self._after = after
        self.target = target

    def __call__(self, initializer: Checkpoint) -> Checkpoint:
        """The newest checkpoint in the form of `initializer`; if there is none, `initializer` at the first step."""
        started = time.perf_counter()
        file = self._find(initializer.session, together=storage.spans(initializer))
        if file is None:
            first_step = max(self._after, 0)
            is_there = initializer.step == first_step
            return initializer if is_there else dataclasses.replace(initializer, step=first_step)
        path, manifest = file
        checkpoint = _restored(path, manifest, initializer)
        if initializer.session is not None:
            seconds = time.perf_counter() - started
            text = f"A checkpoint was loaded in {seconds:.2f} seconds: `{path}`."
            initializer.session.emit("restored", step=checkpoint.step, text=text, path=str(path), seconds=seconds)
        return checkpoint

    def find_path(self) -> Path | None:
        """The newest whole file; None if there is none."""
        file = self._find(None)
        return None if file is None else file[0]

    def find_step(self) -> int | None:
        """The step of the newest whole file; None if there is none. All processes of a run have to call it."""
        file = self._find(None, together=jax.process_count() > 1)
        return None if file is None else int(file[1]["step"])

    def read(self) -> Checkpoint | None:
        """The newest checkpoint, whose trees have the structure that was saved; None if there is none.

        Tuples, lists, dicts and None come back as they were, and so do named tuples, such as the states of optax, if
        their class is loaded; what else has fields comes back as a named tuple of its name. Files of versions before
        this one tell no structure: then all are nested dicts.
        """
        file = self._find(None)
        if file is None:
            return None
        path, manifest = file
        arrays = storage.read_arrays(path, manifest["tree"])
        if "structure" not in manifest:
            trees = unflatten_dict(arrays, sep="/")
            return _checkpoint(manifest, {name: trees.get(name, {}) for name in storage.STATE})
        arrays |= storage.as_keys(arrays, manifest["keys"])
        structure = manifest["structure"]
        return _checkpoint(manifest, {name: storage.rebuild(structure[name], arrays) for name in storage.STATE})

    def _find(self, session: Session | None, *, together: bool = False) -> tuple[Path, dict[str, Any]] | None:
        finish_saves()
        files = [file for file in find_files(self._dir, *self.prefixes) if file[0] > self._after]
        if together:
            # The first one commits files, and may have done so after another has looked.
            names = gathered(f"looking at `{self._dir}`", [[step, path.name] for step, path in files])[0]
            files = [(step, self._dir / name) for step, name in names]
        newest = newest_whole_file(files, session=session, together=together)
        if newest is None and files and self._after < 0:
            raise CheckpointFileError(
                f"Every checkpoint file in `{self._dir}` is damaged ({', '.join(path.name for _, path in files)}). "
                f"Bring one back, or remove them to start from step 0."
            )
        return newest


class CheckpointFileReader(FileReader):
    """Starts a loop from the newest file of a `CheckpointFileWriter`, if there is one.

    Damaged files are skipped, with a line that says why. A file of another model is an error that shows the difference.

    Example:
        TrainLoop(init=CheckpointFileReader(dir="runs/digits", target=model.init), …)
    """

    prefixes = (REGULAR, PREEMPTED)


def _is_in_order(files: Sequence[tuple[int, Path]]) -> bool:
    """Whether files were written in the order of their steps, and so are of one run; false for what is damaged."""
    try:
        times = [storage.written_at(path) for _, path in files]
    except OSError:
        return False
    steps = [step for step, _ in files]
    return times == sorted(times) and steps == sorted(steps)


def _is_whole(path: Path) -> bool:
    try:
        storage.read_manifest(path)
    except OSError:
        # Damaged, or not to be read, or just being removed by another process.
        return False
    return True


def restore_file(path: Path, *, template: Checkpoint) -> Checkpoint:
    """The checkpoint of a file.

    Args:
        template: The structure that is needed: shapes and dtypes in the place of arrays.
    """
    return _restored(path, storage.read_manifest(path, together=storage.spans(template)), template)


def _restored(path: Path, manifest: dict[str, Any], template: Checkpoint) -> Checkpoint:
    differences = storage.find_differences(manifest, template)
    if differences:
        raise CheckpointMismatchError(
            f"`{path}` holds another structure than this run needs:\n{differences}\n"
            f"Use the model and optimizer that wrote it, or another directory."
        )
    tree: dict[str, str] = manifest["tree"]
    state = [name for name in tree if name.partition("/")[0] in storage.STATE]
    shardings = {name: value for name, value in storage.shared_shardings(template).items() if name in state}
    arrays: dict[str, Any] = {
        **storage.read_arrays(path, {name: text for name, text in tree.items() if name not in shardings}),
        **storage.read_shards(path, tree, shardings),
    }
    names = [*storage.STATE]
    # Sums for the next checkpoint are there if the run was preempted. They are of no use if the metrics have changed.
    sums = {name: text for name, text in tree.items() if name.startswith("totals/")}
    needed = {name: storage.describe(leaf) for name, leaf in storage.flatten(template) if name.startswith("totals/")}
    if sums and sums == needed:
        names.append("totals")
    return _checkpoint(manifest, storage.unflatten({name: getattr(template, name) for name in names}, arrays))


def _checkpoint(manifest: dict[str, Any], trees: dict[str, PyTree]) -> Checkpoint:
    return Checkpoint(
        **trees,
        grads=None,
        loss=manifest["metrics"].get("train", {}).get("loss", float("nan")),
        n_completed_steps=manifest["n_completed_steps"],
        elapsed_time=manifest["elapsed_time"],
        step=manifest["step"],
        position=manifest["position"],
    )
