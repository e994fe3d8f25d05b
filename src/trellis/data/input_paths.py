"""The files that an `input_path` names; known without reading any."""

import glob
import os
from collections.abc import Mapping, Sequence
from pathlib import Path


def patterns_in(input_path: str | Sequence[str] | Mapping[str, str | Sequence[str]]) -> list[str]:
    """The paths and patterns of a `DataConfig.input_path`: text is parted at its commas, a list is not."""
    if isinstance(input_path, str):
        return [part.strip() for part in input_path.split(",") if part.strip()]
    if isinstance(input_path, Mapping):
        return [pattern for named in input_path.values() for pattern in patterns_in(named)]
    return list(input_path)


def matching_paths(pattern: str) -> list[Path]:
    """What a pattern matches, none perhaps; a path that is no pattern is itself, whether it is there or not."""
    # A file that is there is meant, whatever its name: not every star is a glob.
    if os.path.exists(pattern) or not glob.has_magic(pattern):
        return [Path(pattern)]
    return [Path(match) for match in glob.glob(pattern, recursive=True)]
