"""Module files: a user's function, found and loaded afresh, with what lies beside it."""

import importlib
import importlib.util
import inspect
import shutil
import sys
import tempfile
import traceback
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from trellis.errors import ArgumentError
from trellis.executor.exec_properties import source_of
from trellis.spelling import nearest


@dataclass(frozen=True)
class UserFunction:
    """A user's function, and whether it is the published `run_fn` or the legacy `trainer_fn`."""

    call: Callable[..., Any]
    place: str
    """Where it comes from, for messages: `run_fn of my_module.py`."""
    is_legacy: bool = False


@contextmanager
def user_function(exec_properties: Mapping[str, Any]) -> Iterator[UserFunction]:
    """Gives the function that a run calls; what lies beside its module can be imported until this is left.

    A module that was loaded before is loaded again, as it may have been edited; so are its siblings.
    """
    source, given = source_of(exec_properties)
    path_before = list(sys.path)
    unpacked = None
    try:
        if source == "module_file":
            yield _from_module(_load_file(Path(given)), place=given)
        elif source == "module_path":
            name, at, wheel = given.partition("@")
            unpacked = _unpack(Path(wheel)) if at else None
            sys.path.insert(0, unpacked or str(Path.cwd()))
            yield _from_module(_load_name(name), place=given)
        else:
            sys.path.insert(0, str(Path.cwd()))
            yield _from_dotted(given, source=source)
    finally:
        sys.path[:] = path_before
        if unpacked is not None:
            _forget(Path(unpacked), and_below=True)
            shutil.rmtree(unpacked, ignore_errors=True)


class _FreshLoader(SourceFileLoader):
    """Compiles what the file says now: bytecode is trusted for a second in which it may have been edited."""

    def get_code(self, fullname: str) -> CodeType:
        """Returns the code of the file."""
        code: CodeType = self.source_to_code(self.get_data(self.path), self.path)
        return code


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        folder = path.parent
        close = nearest(path.name, [file.name for file in folder.iterdir()]) if folder.is_dir() else None
        meant = f" Did you mean `{folder / close}`?" if close else ""
        raise ArgumentError(f"module_file: there is no file `{path}`.{meant}")
    file = path.resolve()
    _forget(file.parent)
    # As if it was run: the files beside it can be imported, now and while it runs.
    sys.path.insert(0, str(file.parent))
    # Under its own name, so that what it pickles can be found again; not if that would hide another module.
    is_free = file.stem.isidentifier() and (importlib.util.find_spec(file.stem) is None or _is_at(file))
    name = file.stem if is_free else f"user_module_{file.stem}"
    if b"absl" in file.read_bytes() and importlib.util.find_spec("absl"):
        # Published modules say `import absl` and use absl.logging, which is there only if somebody has imported it.
        importlib.import_module("absl.logging")
    spec = importlib.util.spec_from_file_location(name, file, loader=_FreshLoader(name, str(file)))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    with _told(f"module_file: `{path}`"):
        spec.loader.exec_module(module)
    return module


def _is_at(file: Path) -> bool:
    """Whether the file is what its own name means."""
    spec = importlib.util.find_spec(file.stem)
    return spec is not None and spec.origin is not None and Path(spec.origin).resolve() == file


def _forget(folder: Path, *, and_below: bool = False) -> None:
    """Forgets the modules of a folder, so that they are read again."""
    for name, module in list(sys.modules.items()):
        file = Path(getattr(module, "__file__", None) or "")
        # A part of a package that happens to lie there is nobody's sibling.
        is_sibling = file.parent == folder and "." not in name and name != "__main__"
        if is_sibling or (and_below and folder in file.parents):
            del sys.modules[name]
    importlib.invalidate_caches()


def _load_name(name: str) -> ModuleType:
    importlib.invalidate_caches()
    with _told(f"module_path: `{name}`"):
        loaded = sys.modules.get(name)
        return importlib.reload(loaded) if loaded is not None else importlib.import_module(name)


def _unpack(wheel: Path) -> str:
    """Unpacks a wheel of Python files; returns the directory to import from."""
    if not zipfile.is_zipfile(wheel):
        what = "is no wheel" if wheel.is_file() else "does not exist"
        raise ArgumentError(f"module_path: `{wheel}` {what}. Give NAME@PATH, where PATH is that of a .whl file.")
    folder = tempfile.mkdtemp(prefix="trellis-module-")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def _from_module(module: ModuleType, *, place: str) -> UserFunction:
    for name in ("run_fn", "trainer_fn"):
        if name in vars(module):
            return _checked(vars(module)[name], name=name, place=place)
    functions = [name for name, value in vars(module).items() if inspect.isfunction(value)]
    close = nearest("run_fn", functions)
    meant = f" Did you mean to name `{close}` so?" if close else ""
    raise ArgumentError(
        f"`{place}` has no run_fn.{meant} Add one: def run_fn(fn_args): train, and write the model to "
        f"fn_args.serving_model_dir."
    )


def _from_dotted(given: str, *, source: str) -> UserFunction:
    module_name, _, name = given.rpartition(".")
    if not module_name:
        raise ArgumentError(
            f"{source}: {given!r} is no dotted path of a function, such as my_package.my_module.run_fn."
        )
    with _told(f"{source}: `{module_name}`"):
        module = importlib.import_module(module_name)
        found = getattr(module, name, None)
    if found is None:
        close = nearest(name, dir(module))
        meant = f" Did you mean `{module_name}.{close}`?" if close else ""
        raise ArgumentError(f"{source}: `{module_name}` has no {name!r}.{meant}")
    if isinstance(found, ModuleType):
        return _from_module(found, place=given)
    return _checked(found, name=source, place=given)


def _checked(function: Any, *, name: str, place: str) -> UserFunction:
    is_legacy = name == "trainer_fn"
    arguments = ("fn_args", "schema") if is_legacy else ("fn_args",)
    listed = f"{name}({', '.join(arguments)})"
    if not callable(function):
        raise ArgumentError(f"{name} of `{place}` is {function!r}, not a function. It is called as {listed}.")
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError as error:
        raise ArgumentError(f"{name} of `{place}` is called as {listed}, which it does not take: {error}.") from None
    except ValueError:
        pass  # a function in C may not tell what it takes
    return UserFunction(function, f"{name} of {place}", is_legacy)


@contextmanager
def _told(place: str) -> Iterator[None]:
    """Tells of an error in a user's module where it is, and what it is."""
    try:
        yield
    except (Exception, SystemExit) as error:
        raise ArgumentError(f"{place} cannot be imported: {_line_of(error)}{type(error).__name__}: {error}") from error


def _line_of(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return ""  # it tells its own
    machinery = (__file__, importlib.__file__)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen")]
    own = [frame for frame in frames if frame.filename not in machinery]
    return f"line {own[-1].lineno} of {own[-1].filename}: " if own else ""
