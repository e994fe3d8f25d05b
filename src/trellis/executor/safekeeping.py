"""What a run must not lose: the model that was there before it, and its inputs."""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trellis.errors import ModelRefusedError
from trellis.executor.artifacts import EVAL, SERVING, Artifact

_SET_ASIDE = ".before-this-run"
_MOST_LISTED = 5


@contextmanager
def replaced_model(uri: str, *, refused_dir: Path) -> Iterator[None]:
    """Has a model written anew, whole or not at all: if that fails, the one that was there before is there again.

    A run that was killed has not put it back; the next one does so first.

    Args:
        refused_dir: Where a model goes that was written but is refused: it may be hours of work.
    """
    folder = Path(uri)
    aside = folder / _SET_ASIDE
    if aside.is_dir():
        _put_back(folder, aside)
    was_there = folder.is_dir()
    aside.mkdir(parents=True)
    for path in (folder / SERVING, folder / EVAL):
        if path.exists():
            path.rename(aside / path.name)
    try:
        yield
    except BaseException as error:
        if isinstance(error, ModelRefusedError):
            _keep_refused(folder / SERVING, refused_dir, error)
        _put_back(folder, aside)
        if not was_there and not any(folder.iterdir()):
            folder.rmdir()
        raise
    shutil.rmtree(aside)


def _keep_refused(model: Path, refused_dir: Path, error: ModelRefusedError) -> None:
    if model.is_dir() and any(model.iterdir()):
        _remove(refused_dir)
        refused_dir.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(model, refused_dir)
        error.add_note(f"What was written is kept in `{refused_dir}`.")


def _put_back(folder: Path, aside: Path) -> None:
    for name in (SERVING, EVAL):
        _remove(folder / name)
        if (aside / name).exists():
            (aside / name).rename(folder / name)
    shutil.rmtree(aside)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@dataclass(frozen=True)
class _File:
    size: int
    changed: int


@contextmanager
def kept_inputs(inputs: Mapping[str, Sequence[Artifact]], *, spare_dir: Path) -> Iterator[None]:
    """Has inputs as they were: what a run deletes is put back, what it changes is told, and both fail the run.

    Args:
        spare_dir: Where second names of the files are kept meanwhile; on another file system there are none.
    """
    files = [path for listed in inputs.values() for each in listed for path in _files(Path(each.uri))]
    before = {path: _state(path) for path in files}
    spares = _spares(files, spare_dir)
    try:
        yield
    except BaseException as error:
        fault = _put_right(before, spares)
        if fault:
            error.add_note(fault)
        raise
    else:
        fault = _put_right(before, spares)
    finally:
        shutil.rmtree(spare_dir, ignore_errors=True)
    if fault:
        raise ModelRefusedError(fault)


def _put_right(before: Mapping[Path, _File], spares: Mapping[Path, Path]) -> str:
    """Puts back what is gone; returns what to say of it, and of what has changed."""
    deleted = [path for path in before if not path.exists()]
    restored = [path for path in deleted if path in spares]
    for path in restored:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.link(spares[path], path)
    changed = [path for path in before if path not in deleted and _state(path) != before[path]]
    return _told(deleted, changed, n_restored=len(restored)) if deleted or changed else ""


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())


def _state(path: Path) -> _File:
    found = path.stat()
    return _File(found.st_size, found.st_mtime_ns)


def _spares(files: Sequence[Path], spare_dir: Path) -> dict[Path, Path]:
    shutil.rmtree(spare_dir, ignore_errors=True)
    spare_dir.mkdir(parents=True)
    spares = {}
    for index, path in enumerate(files):
        try:
            os.link(path, spare_dir / str(index))
        except OSError:
            continue  # another file system, or one without links: a deletion is told all the same
        spares[path] = spare_dir / str(index)
    return spares


def _told(deleted: Sequence[Path], changed: Sequence[Path], *, n_restored: int) -> str:
    parts = []
    if deleted:
        fate = "They were put back" if n_restored == len(deleted) else f"{n_restored} of them could be put back"
        parts.append(f"run_fn has deleted {_listed(deleted)} of its inputs. {fate}.")
    if changed:
        parts.append(f"run_fn has changed {_listed(changed)} of its inputs.")
    return " ".join(
        [*parts, "Inputs belong to the steps that made them: copy what is to be changed to fn_args.model_run_dir."]
    )


def _listed(paths: Sequence[Path]) -> str:
    names = ", ".join(f"`{path}`" for path in paths[:_MOST_LISTED])
    more = f" and {len(paths) - _MOST_LISTED} more files" if len(paths) > _MOST_LISTED else ""
    return f"{names}{more}"
