"""The modules that register experiments: our own, and a user's."""

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

from trellis.errors import ArgumentError
from trellis.spelling import nearest

# By name: those of a domain lie above this.
_BUILT_IN = ("trellis.experiments.digits", "trellis.nlp.experiments")


def register_experiments(modules: Sequence[str], *, place: str = "--module") -> None:
    """Imports the built-in experiments, then the modules of a user, each a dotted name or a `.py` file.

    Args:
        place: Where the modules were named, for errors.
    """
    for name in _BUILT_IN:
        importlib.import_module(name)
    for name in dict.fromkeys(modules):
        try:
            _import_file(Path(name)) if name.endswith(".py") else _import_name(name)
        except Exception as error:
            error.add_note(f"That was while importing {place}={name}.")
            raise


def _import_name(name: str) -> None:
    # An installed command does not look where it is called, unlike `python -m`.
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name != missing and not name.startswith(f"{missing}."):
            raise
        raise ArgumentError(
            f"There is no module {missing!r} here or among what is installed. "
            f"Give a dotted name that Python can import, or the path of a .py file."
        ) from None


def _import_file(path: Path) -> None:
    if not path.is_file():
        close = nearest(path.name, [file.name for file in path.parent.glob("*.py")])
        suggestion = f" Did you mean `{path.parent / close}`?" if close else ""
        raise ArgumentError(f"There is no file `{path}`.{suggestion}")
    file = path.resolve()
    loaded = sys.modules.get(file.stem)
    if loaded is not None:
        if loaded.__file__ is not None and Path(loaded.__file__).resolve() == file:
            return
        raise ArgumentError(f"`{path}` has the name of a module that is loaded already. Give the file another name.")
    # As if it was run: the files beside it can be imported.
    sys.path.insert(0, str(file.parent))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        # As Python itself does: the next import is to fail the same way, not to find half a module.
        del sys.modules[file.stem]
        raise
