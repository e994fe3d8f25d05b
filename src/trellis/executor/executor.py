"""The executor: runs any `run_fn` between artifacts, checks what it leaves, and publishes it."""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from trellis.disk import files_in
from trellis.errors import ModelRefusedError
from trellis.executor.artifacts import EVAL, SERVING, Artifacts, read_artifacts, serving_model_dir
from trellis.executor.fn_args import Problems, build_fn_args, read_run_args
from trellis.executor.module_file import call, user_function
from trellis.executor.process import StartWorker, run_in_processes, start_process
from trellis.executor.served_model import check_served_model

_SET_ASIDE = ".before-this-run"
_SPARES = ".inputs-of-this-run"
_MOST_LISTED = 5


class Executor:
    """Runs a user's training code: `Do` finds it, checks all that it needs, calls it, and checks its model.

    If anything fails, the model that was there before is there again, and what was written to `model_run` stays.

    Example:
        Executor().Do(
            {"examples": [Examples("data")]},
            {"model": [Model("out/model")], "model_run": [ModelRun("out/model_run")]},
            {"module_file": "my_module.py", "train_args": {"num_steps": 1000}, "eval_args": {}},
        )

    Args:
        start: What starts a worker, where a run needs processes of its own: local ones, by default. A cluster's own
            starter goes here.
        is_apart: Whether the run takes place in a process of its own in any case, so that nothing that it does to its
            process (to exit at once, to crash) is done to this one.
    """

    def __init__(self, *, start: StartWorker = start_process, is_apart: bool = False) -> None:
        self._start = start
        self._is_apart = is_apart

    def Do(  # noqa: N802  (published so)
        self,
        input_dict: Mapping[str, Sequence[Any]],
        output_dict: Mapping[str, Sequence[Any]],
        exec_properties: Mapping[str, Any],
    ) -> None:
        """Runs a `run_fn`.

        Args:
            input_dict: Lists of artifacts: `examples`, and at most one of each of `schema`, `transform_graph`,
                `base_model`, `hyperparameters`, `statistics`.
            output_dict: One artifact each: `model` and `model_run`.
            exec_properties: `train_args` and `eval_args`; one of `module_file`, `module_path`, `run_fn`; and
                `custom_config`, of which the entry `trellis_run_args` may have `workers`, `timeout`, `model_files`.
        """
        inputs = read_artifacts(input_dict)
        outputs = read_artifacts(output_dict)
        problems = Problems()
        fn_args = build_fn_args(inputs, outputs, exec_properties, problems)
        run_args = read_run_args(exec_properties, problems)
        with ExitStack() as stack:
            needs_process = self._is_apart or run_args.workers > 1 or run_args.timeout is not None
            if problems or not needs_process:
                # All problems are raised together, those with the module among them.
                module = user_function(exec_properties, fn_args=fn_args)
                user = problems.attempt(None, lambda: stack.enter_context(module))
                problems.raise_if_any()
                assert user is not None
                train = partial(call, user, fn_args, is_chief=run_args.is_chief)
            else:
                train = partial(run_in_processes, exec_properties, fn_args, run_args=run_args, start=self._start)
            if not run_args.is_chief:
                train()
                return
            model = outputs["model"][0].uri
            refused_dir = Path(outputs["model_run"][0].uri, "refused_model")
            with _replaced_model(Path(model), refused_dir=refused_dir):
                with _unchanged_inputs(inputs, spare_dir=Path(model, _SPARES)):
                    train()
                check_served_model(serving_model_dir(model), model_files=run_args.model_files)


@contextmanager
def _replaced_model(folder: Path, *, refused_dir: Path) -> Iterator[None]:
    """Sets the old model aside while a new one is written; if that fails, puts the old one back.

    A run that was killed has not put it back; the next run does so first.

    Args:
        refused_dir: Where a model goes that was written but is refused: it may be hours of work.
    """
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


@contextmanager
def _unchanged_inputs(inputs: Artifacts, *, spare_dir: Path) -> Iterator[None]:
    """Puts back the inputs that a run deletes, and tells of those that it changes; either fails the run.

    Args:
        spare_dir: Where each file has a second name (a hard link) during the run. It has none on another file system.
    """
    paths = [Path(artifact.uri) for artifacts in inputs.values() for artifact in artifacts]
    files = [file for path in paths for file in ([path] if path.is_file() else files_in(path))]
    states = {file: _state(file) for file in files}
    spares = {file: spare_dir / str(index) for index, file in enumerate(files)}
    shutil.rmtree(spare_dir, ignore_errors=True)
    spare_dir.mkdir(parents=True)
    for file, spare in spares.items():
        with suppress(OSError):  # another file system, or one without links: a deletion is still reported
            os.link(file, spare)
    try:
        yield
    except BaseException as error:
        if fault := _put_inputs_right(states, spares):
            error.add_note(fault)
        raise
    else:
        if fault := _put_inputs_right(states, spares):
            raise ModelRefusedError(fault)
    finally:
        shutil.rmtree(spare_dir, ignore_errors=True)


def _state(path: Path) -> tuple[int, int]:
    """Returns the size of a file, and when it was changed."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _put_inputs_right(states: Mapping[Path, tuple[int, int]], spares: Mapping[Path, Path]) -> str:
    """Puts back deleted files; returns a message about them and about changed files, empty if there are none."""
    deleted = [path for path in states if not path.exists()]
    restored = [path for path in deleted if spares[path].exists()]
    for path in restored:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.link(spares[path], path)
    changed = [path for path in states if path not in deleted and _state(path) != states[path]]
    sentences = []
    if deleted:
        n_restored = len(restored)
        fate = "They were put back" if n_restored == len(deleted) else f"{n_restored} of them could be put back"
        sentences.append(f"run_fn has deleted {_listed(deleted)} of its inputs. {fate}.")
    if changed:
        sentences.append(f"run_fn has changed {_listed(changed)} of its inputs.")
    if sentences:
        owner = "Inputs belong to the steps that made them"
        sentences.append(f"{owner}: copy what is to be changed to fn_args.model_run_dir.")
    return " ".join(sentences)


def _listed(paths: Sequence[Path]) -> str:
    names = ", ".join(f"`{path}`" for path in paths[:_MOST_LISTED])
    more = f" and {len(paths) - _MOST_LISTED} more files" if len(paths) > _MOST_LISTED else ""
    return f"{names}{more}"
