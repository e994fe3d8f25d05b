"""Where the versions of a served model lie, and what to do with a directory that has none; loads nothing."""

from pathlib import Path

from trellis.errors import ServedModelError
from trellis.serving.manifest import MANIFEST, find_served_model


def find_versions(directory: Path) -> dict[int, Path]:
    """The versions of a served model, whole or not, by their numbers; one that has no number is 1."""
    if not (directory / MANIFEST).is_file() and directory.is_dir():
        numbered = {int(path.name): path for path in directory.iterdir() if path.name.isdecimal() and path.is_dir()}
        if numbered:
            return numbered
    path = find_served_model(directory)
    if path is None:
        return {}
    return {int(path.name) if path.name.isdecimal() else 1: path}


def check_served(directory: Path) -> None:
    """Raises an error that says what to do with a directory in which no served model is; loads nothing."""
    if not directory.is_dir():
        raise ServedModelError(f"There is no directory `{directory}`. Give one that `trellis export` wrote.")
    versions = find_versions(directory)
    if any((path / MANIFEST).is_file() for path in versions.values()):
        return
    folders = [directory, *(versions[number] for number in sorted(versions, reverse=True))]
    for folder in folders:
        if (folder / "saved_model.pb").is_file():
            raise ServedModelError(
                f"`{folder}` is a SavedModel, which TensorFlow Serving serves. For this server, export the run again "
                f"without --format=saved_model."
            )
        if (folder / "params.yaml").is_file():
            raise ServedModelError(
                f"`{folder}` is a run, and not yet a served model: "
                f"trellis export --model_dir={folder} --experiment=NAME --output_dir=served/NAME"
            )
        if (folder / "config.json").is_file():
            raise ServedModelError(
                f"`{folder}` is a model of Hugging Face's. Train from it (task.init_checkpoint), then: trellis export"
            )
    inner = sorted(directory.iterdir())
    below = next((path for path in inner if path.is_dir() and find_served_model(path) is not None), None)
    suggestion = "" if below is None else f" Did you mean {below}?"
    names = ", ".join(path.name for path in inner[:8]) or "nothing"
    raise ServedModelError(
        f"`{directory}` holds {names}, and no {MANIFEST}.{suggestion} Give a directory that `trellis export` wrote, or "
        f"one with numbered versions of such."
    )
