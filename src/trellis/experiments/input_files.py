"""The files that a config names and a run needs: whether they are there, and hold something; known without JAX."""

import os
from collections.abc import Iterator
from pathlib import Path

from trellis.config import Problem
from trellis.data import DataConfig, matching_paths, patterns_in
from trellis.experiments.corrections import problem_at
from trellis.experiments.experiment import ExperimentConfig
from trellis.spelling import nearest

_MOST_NAMED = 3


def data_file_problems(params: ExperimentConfig, *, side: str) -> Iterator[Problem]:
    """Yields what is wrong with the files of `task.train_data` or `task.validation_data`.

    Args:
        side: The name of the field.
    """
    data = vars(params.task)[side]
    path = f"task.{side}.input_path"
    for pattern in patterns_in(data.input_path) if isinstance(data, DataConfig) else ():
        files = matching_paths(pattern)
        missing = [file for file in files if not file.exists()]
        empty = [file for file in files if file.exists() and _is_empty(file)]
        if not files:
            yield problem_at(path, config=params, said=f"matches no file: `{pattern}`.", advice=_taken_from(pattern))
        for file in missing:
            said = f"names a file that is not there: `{file}`."
            yield problem_at(path, config=params, said=said, advice=_taken_from(pattern))
        if empty:
            yield problem_at(path, config=params, said=f"names {_counted(empty)}.", advice="Write it again.")


def warm_start_problems(params: ExperimentConfig) -> Iterator[Problem]:
    """Yields what is wrong with `task.init_checkpoint`, as far as can be seen from outside."""
    given = params.task.init_checkpoint
    if given and not Path(given).exists():
        said = f"names a checkpoint that is not there: `{given}`."
        yield problem_at("task.init_checkpoint", config=params, said=said, advice=_taken_from(given))


def _is_empty(file: Path) -> bool:
    return not any(file.iterdir()) if file.is_dir() else file.stat().st_size == 0


def _taken_from(given: str) -> str:
    """Where a path was looked for, and what may have been meant."""
    if "://" in given:
        return "Files are read from this machine's own file systems: copy it here, or mount what holds it."
    directory = Path(given).parent
    if not directory.is_dir():
        return f"There is no directory `{directory}`; paths are taken from `{Path.cwd()}`."
    close = nearest(Path(given).name, os.listdir(directory))
    meant = f"Did you mean `{directory / close}`? " if close else ""
    return f"{meant}Paths are taken from `{Path.cwd()}`."


def _counted(files: list[Path]) -> str:
    named = ", ".join(f"`{file}`" for file in files[:_MOST_NAMED])
    more = f" and {len(files) - _MOST_NAMED} more" if len(files) > _MOST_NAMED else ""
    return f"{'an empty file' if len(files) == 1 else 'empty files'}: {named}{more}"
