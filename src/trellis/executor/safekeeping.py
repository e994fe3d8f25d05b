"""What a run must not lose, even if it is killed: the model that was there before it, and its inputs.

A run writes to a hidden directory of its own beside the model, which is named after its process. So the next run knows
which of them no living process owns, and puts right what each has left undone.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trellis.disk import exchange, files_in, hidden_path, left_behind, remove_whole, sweep, sync, write_whole
from trellis.errors import ModelRefusedError, RunFailedError
from trellis.executor.artifacts import EVAL, SERVING, Artifacts
from trellis.executor.served_model import check_served_model
from trellis.runtime import print_line

_RUNNING = "running"
# What is hidden in the directory of a run is ours, all else is the model.
_NEW_MODEL = ".new_model.json"
"""Is there when the model is whole, and tells what belongs to it. From then on the model counts."""
_INPUTS = ".inputs.json"
_SPARES = ".inputs"
_OLDER_SET_ASIDE = ".before-this-run"
_OLDER_SPARES = ".inputs-of-this-run"
"""What versions before this one left beside the model when they were killed."""
_MOST_LISTED = 5


def recover(folder: Path, *, keep_dir: Path, model_files: Sequence[str] = ()) -> None:
    """Puts right what runs that were killed have left undone: a model that was whole, inputs that are gone.

    Args:
        folder: That of the model.
        keep_dir: Where that goes which is gone from its place, but must not be put back, as there is another there.
        model_files: Patterns of the files of a model whose format is not known.
    """
    sweep(folder)
    # What is kept of runs is replaced there, too.
    sweep(keep_dir.parent)
    for directory in left_behind(folder, _RUNNING):
        own = hidden_path(folder, ending=_RUNNING)
        try:
            # Two runs that start at once would both do the same: the one that can rename it does.
            directory.rename(own)
        except FileNotFoundError:
            continue
        _recover_inputs(own, keep_dir=keep_dir)
        _conclude(folder, own, is_again=True)
    if (folder / _OLDER_SET_ASIDE).is_dir():
        _recover_older(folder, keep_dir=keep_dir, model_files=model_files)


@contextmanager
def new_model(folder: Path, *, refused_dir: Path) -> Iterator[Path]:
    """Gives a hidden directory to write a model to, which takes the place of the old one when the block ends.

    At every moment the old model or the new one is in its place, and whole. If the block fails, the old one stays.

    Args:
        refused_dir: Where a model goes that was written but is refused: it may be hours of work.
    """
    was_there = folder.is_dir()
    directory = hidden_path(folder, ending=_RUNNING)
    directory.mkdir(parents=True)
    try:
        yield directory
        _commit(directory)
    except ModelRefusedError as error:
        _keep_refused(directory / SERVING, refused_dir, error)
        raise
    finally:
        _conclude(folder, directory)
        if not was_there and not any(folder.iterdir()):
            folder.rmdir()


def _commit(directory: Path) -> None:
    """Brings a new model to the disk, and notes that it is whole."""
    forms = [path for path in directory.iterdir() if not path.name.startswith(".")]
    try:
        for path in (part for form in forms for part in (form, *form.rglob("*"))):
            if path.is_symlink():
                _keep_target(path, directory)
            # A pipe, or a link that leads nowhere, has no content.
            if path.is_file() or path.is_dir():
                sync(path)
        write_whole(directory / _NEW_MODEL, json.dumps({path.name: path.lstat().st_ino for path in forms}).encode())
    except OSError as error:
        raise ModelRefusedError(
            f"The new model could not be brought to the disk: {error.strerror}. Make room, and run it again."
        ) from error


def _keep_target(link: Path, directory: Path) -> None:
    """Has a link that leads out of a directory do so from another place, too."""
    target = Path(os.path.normpath(link.parent.resolve() / link.readlink()))
    if not link.readlink().is_absolute() and directory.resolve() not in target.parents:
        link.unlink()
        link.symlink_to(target)


def _conclude(folder: Path, directory: Path, *, is_again: bool = False) -> None:
    """Puts a model that is whole in its place, and removes all else that a run has written.

    Args:
        is_again: Whether it may have been begun before, and killed anywhere: then what is still new is known by its
            inode.
    """
    inodes = _read_record(directory / _NEW_MODEL)
    try:
        if inodes:
            _publish(folder, directory, inodes, is_again=is_again)
    except OSError as error:
        raise RunFailedError(
            f"The new model is whole, and in `{directory}`, but it could not be put in its place, `{folder}`: "
            f"{error.strerror}. Make that possible: the next run puts it there first."
        ) from error
    _discard(directory)


def _publish(folder: Path, directory: Path, inodes: Mapping[str, int], *, is_again: bool) -> None:
    for name in (SERVING, EVAL, *(inodes.keys() - {SERVING, EVAL})):
        new = directory / name
        if name not in inodes:
            _take_away(folder / name, new)
        elif not is_again or (_is_there(new) and new.lstat().st_ino == inodes[name]):
            _put_in_place(new, folder / name)
    sync(folder)


def _put_in_place(new: Path, place: Path) -> None:
    """Puts what is new in the place of what is old, if there is something."""
    if not _is_there(place):
        new.rename(place)
    elif not exchange(new, place):
        # Not in one step, then. If this process is killed between these two, the next run does the second.
        _take_away(place, new.with_name(f".{new.name}-before"))
        new.rename(place)


def _take_away(old: Path, place: Path) -> None:
    with suppress(FileNotFoundError):
        old.rename(place)


def _read_record(file: Path) -> dict[str, Any]:
    """Returns what a run has noted; nothing if it was killed before that."""
    with suppress(FileNotFoundError, ValueError):
        record = json.loads(file.read_bytes())
        return record if isinstance(record, dict) else {}
    return {}


def _keep_refused(model: Path, refused_dir: Path, error: ModelRefusedError) -> None:
    if model.is_dir() and any(model.iterdir()):
        _move(model, refused_dir)
        error.add_note(f"What was written is kept in `{refused_dir}`.")


def _recover_older(folder: Path, *, keep_dir: Path, model_files: Sequence[str]) -> None:
    """Puts back what an older version has set aside, unless a whole model is in its place: then both are kept."""
    aside = folder / _OLDER_SET_ASIDE
    try:
        check_served_model(str(folder / SERVING), model_files=model_files)
    except ModelRefusedError:
        for path in aside.iterdir():
            _put_in_place(path, folder / path.name)
        _discard(aside)
    else:
        _move(aside, keep_dir / "model_before")
        print_line(f"The model before that of a run that was killed is kept in `{keep_dir / 'model_before'}`.")
    _discard(folder / _OLDER_SPARES)


def _move(path: Path, place: Path) -> None:
    _discard(place)
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(path, place)


def _discard(path: Path) -> None:
    with suppress(OSError):  # it may be of another user, or in use elsewhere
        remove_whole(path)


def _is_there(path: Path) -> bool:
    return os.path.lexists(path)


@dataclass(frozen=True)
class _Input:
    """A file of the inputs, as it was before the run."""

    file: Path
    size: int
    modified: int
    spare: Path
    """Its second name (a hard link) during the run. It has none on another file system."""

    def has_state(self, path: Path) -> bool:
        """Whether a file is as this one was."""
        try:
            status = path.stat()
        except OSError:
            return False
        return (status.st_size, status.st_mtime_ns) == (self.size, self.modified)

    def put_back(self) -> bool:
        """Has the file be what it was; returns False if its content is lost."""
        if not self.has_state(self.spare):
            return False  # there is none, or the file was changed in its place, and the spare with it
        self.file.parent.mkdir(parents=True, exist_ok=True)
        # A third name, as the spare is needed again if this is killed; not beside the file, where it would be an input.
        third = self.spare.with_name(f"{self.spare.name}-again")
        third.unlink(missing_ok=True)
        os.link(self.spare, third)
        third.replace(self.file)
        return True


@contextmanager
def unchanged_inputs(inputs: Artifacts, *, directory: Path) -> Iterator[None]:
    """Puts back the inputs that a run deletes or replaces, and tells of those that it changes; either fails the run.

    Args:
        directory: That of the run, which holds the spares.
    """
    paths = [Path(artifact.uri) for artifacts in inputs.values() for artifact in artifacts]
    files = [file for path in paths for file in _files_of(path)]
    spare_dir = directory / _SPARES
    spare_dir.mkdir()
    before = [_state_before(file, spare_dir / str(index)) for index, file in enumerate(files)]
    for each in before:
        with suppress(OSError):  # another file system, or one without links: a deletion is still reported
            os.link(each.file, each.spare)
    record = {
        "artifacts": [str(path.absolute()) for path in paths],
        "files": [[str(each.file.absolute()), each.size, each.modified] for each in before],
    }
    write_whole(directory / _INPUTS, json.dumps(record).encode())
    try:
        yield
    except BaseException as error:
        if fault := _put_inputs_right(before):
            error.add_note(fault)
        raise
    else:
        if fault := _put_inputs_right(before):
            raise ModelRefusedError(fault)
    finally:
        (directory / _INPUTS).unlink(missing_ok=True)


def _files_of(path: Path) -> list[Path]:
    return [path] if path.is_file() else list(files_in(path))


def _state_before(file: Path, spare: Path) -> _Input:
    status = file.stat()
    return _Input(file, size=status.st_size, modified=status.st_mtime_ns, spare=spare)


def _put_inputs_right(before: Sequence[_Input]) -> str:
    """Puts back deleted and replaced files; returns a message about them, and about those that are changed."""
    deleted = [each for each in before if not each.file.exists()]
    changed = [each for each in before if each not in deleted and not each.has_state(each.file)]
    sentences = [
        f"run_fn has {verb} {_listed([each.file for each in inputs])} of its inputs. {_put_back(inputs)}."
        for verb, inputs in (("deleted", deleted), ("changed", changed))
        if inputs
    ]
    if sentences:
        owner = "Inputs belong to the steps that made them"
        sentences.append(f"{owner}: copy what is to be changed to fn_args.model_run_dir.")
    return " ".join(sentences)


def _put_back(inputs: Sequence[_Input]) -> str:
    n_restored = sum([each.put_back() for each in inputs])
    return "They were put back" if n_restored == len(inputs) else f"{n_restored} of them could be put back"


def _recover_inputs(directory: Path, *, keep_dir: Path) -> None:
    """Puts back the inputs that a killed run has deleted, and says so.

    Where there are others in an artifact now, or changed ones, somebody may have made it anew since: then nothing is
    put back, and what is gone is kept elsewhere.
    """
    record = _read_record(directory / _INPUTS)
    before = {
        Path(file): _Input(Path(file), size=size, modified=modified, spare=directory / _SPARES / str(index))
        for index, (file, size, modified) in enumerate(record.get("files", ()))
    }
    for artifact in map(Path, record.get("artifacts", ())):
        own = {file: each for file, each in before.items() if file == artifact or artifact in file.parents}
        gone = [each for each in own.values() if not each.file.exists()]
        others = [file for file in _files_of(artifact) if file not in own or not own[file].has_state(file)]
        if gone and not others:
            text = f"A run that was killed has deleted {_listed([each.file for each in gone])} of its inputs."
            print_line(f"{text} {_put_back(gone)}.")
        elif others:
            _keep_inputs(own, others, keep_dir=keep_dir)


def _keep_inputs(own: Mapping[Path, _Input], others: Sequence[Path], *, keep_dir: Path) -> None:
    spares = [each for each in own.values() if not each.has_state(each.file) and each.has_state(each.spare)]
    for each in spares:
        kept = keep_dir / each.file.relative_to(each.file.anchor)
        kept.parent.mkdir(parents=True, exist_ok=True)
        each.spare.replace(kept)
    text = f"{_listed(others)} of the inputs have changed since a run began that was killed"
    print_line(f"{text}. What was there before is kept in `{keep_dir}`." if spares else f"{text}.")


def _listed(paths: Sequence[Path]) -> str:
    names = ", ".join(f"`{path}`" for path in paths[:_MOST_LISTED])
    more = f" and {len(paths) - _MOST_LISTED} more files" if len(paths) > _MOST_LISTED else ""
    return f"{names}{more}"
