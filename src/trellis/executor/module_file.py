"""Module files: a user's function, found and loaded afresh with what lies beside it, and called."""

import importlib
import importlib.util
import inspect
import sys
import traceback
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from trellis.disk import scratch_directory
from trellis.errors import ArgumentError, Preempted, RunFailedError
from trellis.executor.artifacts import eval_model_dir, serving_model_dir
from trellis.executor.fn_args import FnArgs
from trellis.spelling import did_you_mean, nearest

SOURCES = ("module_file", "module_path", "run_fn", "trainer_fn")
"""The properties that can name what is run; exactly one does."""


@dataclass(frozen=True)
class UserFunction:
    """A user's function, and whether it is the published `run_fn` or the legacy `trainer_fn`."""

    function: Callable[..., Any]
    place: str
    """Where it comes from, for messages: `run_fn of my_module.py`."""
    is_legacy: bool = False


@contextmanager
def user_function(exec_properties: Mapping[str, Any], *, fn_args: FnArgs) -> Iterator[UserFunction]:
    """Gives the function that a run calls; the files beside its module can be imported until the block ends.

    A module that was loaded before is loaded again, as it may have been edited; so are its siblings.
    """
    with ExitStack() as stack:
        stack.callback(sys.path.__setitem__, slice(None), list(sys.path))
        user = _load(exec_properties, stack)
        if user.is_legacy and fn_args.schema_path is None:
            raise ArgumentError(f"{user.place} needs a schema: give the input `schema`, or write a run_fn.")
        yield user


def call(user: UserFunction, fn_args: FnArgs, *, is_chief: bool, scratch_dir: str | None = None) -> None:
    """Calls a user's function; an exit without an error is a return.

    Only the chief gets the directories of the model. What another worker writes as a model is deleted afterwards.

    Args:
        scratch_dir: Where another worker than the chief writes its model; None means among the temporary files.
    """
    with ExitStack() as stack:
        if not is_chief:
            scratch = scratch_dir or str(stack.enter_context(scratch_directory()))
            fn_args = replace(
                fn_args, serving_model_dir=serving_model_dir(scratch), eval_model_dir=eval_model_dir(scratch)
            )
        try:
            if user.is_legacy:
                # Imported here, as it needs protobuf to read a schema, and other runs do not.
                from trellis.executor.legacy_training import run_trainer_fn

                run_trainer_fn(user.function, fn_args=fn_args, is_chief=is_chief)
            else:
                user.function(fn_args)
        except Preempted:
            raise  # no failure: the run has saved its state, and the next run goes on from there
        except SystemExit as error:
            if error.code not in (None, 0):
                message = f"{user.place} has called exit({error.code!r}) instead of returning."
                raise RunFailedError(message) from error
        except Exception as error:
            error.add_note(f"That was in {user.place}.")
            raise


def _load(exec_properties: Mapping[str, Any], stack: ExitStack) -> UserFunction:
    source, name = _source(exec_properties)
    if source == "module_file":
        return _from_module(_load_file(Path(name)), place=name)
    if source == "module_path":
        module_name, at, wheel = name.partition("@")
        sys.path.insert(0, _unpack(Path(wheel), stack) if at else str(Path.cwd()))
        return _from_module(_load_name(module_name), place=name)
    sys.path.insert(0, str(Path.cwd()))
    return _from_dotted(name, source=source)


def _source(exec_properties: Mapping[str, Any]) -> tuple[str, str]:
    """Returns the property that names what is run, and its value."""
    sources = {name: str(exec_properties[name]) for name in SOURCES if exec_properties.get(name)}
    if len(sources) != 1:
        listed = ", ".join(f"{name}={value!r}" for name, value in sources.items()) or "none of them"
        raise ArgumentError(
            f"The run needs exactly one of {', '.join(SOURCES[:-1])} (or {SOURCES[-1]}), but {listed} "
            f"{'are' if sources else 'is'} given. module_file is the path of a .py file that has a run_fn, module_path "
            f"a dotted module or NAME@WHEEL, run_fn a dotted function."
        )
    return next(iter(sources.items()))


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        suggestion = did_you_mean(
            path.name, [file.name for file in path.parent.glob("*")], show=lambda name: f"`{path.with_name(name)}`"
        )
        raise ArgumentError(f"module_file: there is no file `{path}`.{suggestion}")
    file = path.resolve()
    _forget(file.parent)
    # As for a script, the files beside it can be imported, now and while it runs.
    sys.path.insert(0, str(file.parent))
    # It has its own name, so that what it pickles can be loaded again, unless that would hide another module.
    known = importlib.util.find_spec(file.stem) if file.stem.isidentifier() else None
    is_free = file.stem.isidentifier() and (known is None or Path(known.origin or "").resolve() == file)
    name = file.stem if is_free else f"user_module_{file.stem}"
    if b"absl" in file.read_bytes() and importlib.util.find_spec("absl"):
        # Published modules say `import absl` and use absl.logging, which exists only after an import of its own.
        importlib.import_module("absl.logging")
    spec = importlib.util.spec_from_file_location(name, file, loader=SourceFileLoader(name, str(file)))
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    with _import_errors_at(f"module_file: `{path}`"):
        # Not by the loader, which trusts bytecode for a second in which the file may have been edited.
        exec(compile(file.read_bytes(), file, "exec"), vars(module))  # noqa: S102  (a module file is there to be run)
    return module


def _forget(folder: Path, *, and_below: bool = False) -> None:
    """Forgets the modules of a folder, so that they are read again."""
    for name, module in list(sys.modules.items()):
        file = Path(getattr(module, "__file__", None) or "")
        # A module of a package that lies in the same folder is no sibling.
        is_sibling = file.parent == folder and "." not in name and name != "__main__"
        if is_sibling or (and_below and folder in file.parents):
            del sys.modules[name]
    importlib.invalidate_caches()


def _load_name(name: str) -> ModuleType:
    importlib.invalidate_caches()
    with _import_errors_at(f"module_path: `{name}`"):
        loaded = sys.modules.get(name)
        return importlib.reload(loaded) if loaded is not None else importlib.import_module(name)


def _unpack(wheel: Path, stack: ExitStack) -> str:
    """Unpacks a wheel of Python files until the stack is closed; returns the directory to import from."""
    if not zipfile.is_zipfile(wheel):
        problem = "is no wheel" if wheel.is_file() else "does not exist"
        raise ArgumentError(f"module_path: `{wheel}` {problem}. Give NAME@PATH, where PATH is that of a .whl file.")
    folder = stack.enter_context(scratch_directory())
    stack.callback(_forget, folder, and_below=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return str(folder)


def _from_module(module: ModuleType, *, place: str) -> UserFunction:
    for name in ("run_fn", "trainer_fn"):
        if name in vars(module):
            return _checked(vars(module)[name], name=name, place=place)
    functions = [name for name, value in vars(module).items() if inspect.isfunction(value)]
    close = nearest("run_fn", functions)
    suggestion = f" Did you mean to name `{close}` so?" if close else ""
    raise ArgumentError(
        f"`{place}` has no run_fn.{suggestion} Add one: def run_fn(fn_args): train, and write the model to "
        f"fn_args.serving_model_dir."
    )


def _from_dotted(path: str, *, source: str) -> UserFunction:
    module_name, _, name = path.rpartition(".")
    if not module_name:
        raise ArgumentError(f"{source}: {path!r} is no dotted path of a function, such as my_package.my_module.run_fn.")
    with _import_errors_at(f"{source}: `{module_name}`"):
        module = importlib.import_module(module_name)
        value = getattr(module, name, None)
    if value is None:
        suggestion = did_you_mean(name, dir(module), show=lambda close: f"`{module_name}.{close}`")
        raise ArgumentError(f"{source}: `{module_name}` has no {name!r}.{suggestion}")
    if isinstance(value, ModuleType):
        return _from_module(value, place=path)
    return _checked(value, name=source, place=path)


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
def _import_errors_at(place: str) -> Iterator[None]:
    """Raises an error in a user's module as a wrong argument, which says where and what it is."""
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
