"""The files that `--config_file` and `--gin_file` name: the user's own, and those that come with experiments."""

from pathlib import Path

_directories: list[Path] = []


def register_config_dir(directory: Path) -> None:
    """Lets the YAML and gin files below a directory be named from anywhere."""
    if directory not in _directories:
        _directories.append(directory)


def shipped_config_files(*, suffix: str = ".yaml") -> dict[str, Path]:
    """Returns the registered files of a kind by name."""
    return {file.name: file for directory in _directories for file in sorted(directory.rglob(f"*{suffix}"))}


def find_config_file(name: str) -> str:
    """Returns a file as it was named if it is there, else the registered one of that name.

    Commands that were written for a source tree work anywhere: `configs/models/albert_base.yaml` is found too.
    """
    path = Path(name)
    shipped = None if path.exists() else shipped_config_files(suffix=path.suffix).get(path.name)
    return name if shipped is None else str(shipped)
