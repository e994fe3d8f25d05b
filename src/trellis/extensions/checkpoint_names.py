"""Names of checkpoint files, and which of them a directory holds."""

import re
from pathlib import Path

REGULAR = "regular_"
"""What the names of files begin with that a run writes as it goes."""
PREEMPTED = "preempted_"
"""The same, of a run that was told to stop."""


def find_files(directory: Path, *prefixes: str) -> list[tuple[int, Path]]:
    """The checkpoint files under some prefixes as (step, path), oldest first."""
    found: dict[tuple[int, str], Path] = {}
    # A file that was being replaced by one of the same step when the process died stands in for it.
    pattern = re.compile(rf"({'|'.join(map(re.escape, prefixes))})(\d+)(\.replaced)?")
    for path in sorted(directory.iterdir(), reverse=True) if directory.is_dir() else ():
        match = pattern.fullmatch(path.name)
        if match:
            found[int(match[2]), match[1]] = path
    return [(step, path) for (step, _), path in sorted(found.items())]


def regular_files(directory: Path) -> list[tuple[int, Path]]:
    """The files of a `CheckpointFileWriter` as (step, path), oldest first."""
    return find_files(directory, REGULAR)


def newest_file(directory: Path) -> Path | None:
    """The newest checkpoint file of a run; None if there is none."""
    files = find_files(directory, REGULAR, PREEMPTED)
    return files[-1][1] if files else None
