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
from trellis.errors import ArgumentError, Preempted, RunFailedError, shown
from trellis.executor.artifacts import eval_model_dir, serving_model_dir
from trellis.executor.fn_args import FnArgs
from trellis.spelling import did_you_mean, nearest

_MODULES = ("module_file", "module_path")
_FUNCTIONS = ("run_fn", "trainer_fn")
_SOURCES = (*_MODULES, *_FUNCTIONS)
"""The properties that can name what is run: a module, a dotted function, or a module and the function's name in it."""


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
    sources = sources_of(exec_properties)
    kind, place = next(iter(sources.items()))
    if kind in _FUNCTIONS:
        sys.path.insert(0, str(Path.cwd()))
        return _from_dotted(place, source=kind)
    if kind == "module_file":
        module = _load_file(Path(place))
    else:
        module_name, at, wheel = place.partition("@")
        sys.path.insert(0, _unpack(Path(wheel), stack) if at else str(Path.cwd()))
        module = _load_name(module_name)
    for source in _FUNCTIONS:
        if source in sources:
            return _named(module, sources[source], source=source, place=place)
    return _from_module(module, place=place)


def sources_of(exec_properties: Mapping[str, Any]) -> dict[str, str]:
    """Returns the properties that name what is run: a module, a function, or a module and then a function in it."""
    given = {name: exec_properties[name] for name in _SOURCES if exec_properties.get(name)}
    for name in given.keys() & set(_FUNCTIONS):
        if callable(given[name]):
            own_name = getattr(given[name], "__name__", "my_function")
            raise ArgumentError(
                f"{name} is a function, {own_name}, but it takes text. Give its name: {own_name!r} with the "
                f"module_file that has it, or the dotted 'my_module.{own_name}'."
            )
    modules = [name for name in _MODULES if name in given]
    functions = [name for name in _FUNCTIONS if name in given]
    is_of_module = bool(modules) and all("." not in str(given[name]) for name in functions)
    if given and len(modules) <= 1 and len(functions) <= 1 and (is_of_module or not modules):
        return {name: str(value) for name, value in given.items()}
    listed = ", ".join(f"{name}={str(value)!r}" for name, value in given.items()) or "none of them"
    raise ArgumentError(
        f"The run needs one of {', '.join(_SOURCES[:-1])} (or {_SOURCES[-1]}), but {listed} "
        f"{'are' if given else 'is'} given. module_file is the path of a .py file, module_path a dotted module or "
        f"NAME@WHEEL; with one of them, run_fn is the name of a function in it, and 'run_fn' by default. Alone, "
        f"run_fn is a dotted function."
    )


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
    for name in _FUNCTIONS:
        if name in vars(module):
            return _checked(vars(module)[name], name=name, place=place, is_legacy=name == "trainer_fn")
    functions = [name for name, value in vars(module).items() if inspect.isfunction(value)]
    close = nearest("run_fn", functions)
    suggestion = f" Did you mean to name `{close}` so?" if close else ""
    raise ArgumentError(
        f"`{place}` has no run_fn.{suggestion} Add one: def run_fn(fn_args): train, and write the model to "
        f"fn_args.serving_model_dir."
    )


def _named(module: ModuleType, name: str, *, source: str, place: str) -> UserFunction:
    """Returns the function of a module that has a name of its own."""
    if name in vars(module):
        return _checked(vars(module)[name], name=name, place=place, is_legacy=source == "trainer_fn")
    functions = [key for key, value in vars(module).items() if inspect.isfunction(value)]
    advice = did_you_mean(name, functions) or f" Its functions are {', '.join(functions) or 'none'}."
    raise ArgumentError(f"{source}: `{place}` has no {name!r}.{advice}")


def _from_dotted(path: str, *, source: str) -> UserFunction:
    module_name, _, name = path.rpartition(".")
    if not module_name:
        raise ArgumentError(
            f"{source}: {path!r} is no dotted path of a function, such as my_package.my_module.run_fn, and no "
            f"module_file is given that could have a function of that name."
        )
    with _import_errors_at(f"{source}: `{module_name}`"):
        module = importlib.import_module(module_name)
        value = getattr(module, name, None)
    if value is None:
        suggestion = did_you_mean(name, dir(module), show=lambda close: f"`{module_name}.{close}`")
        raise ArgumentError(f"{source}: `{module_name}` has no {name!r}.{suggestion}")
    if isinstance(value, ModuleType):
        return _from_module(value, place=path)
    return _checked(value, name=source, place=path, is_legacy=source == "trainer_fn")


def _checked(function: Any, *, name: str, place: str, is_legacy: bool) -> UserFunction:
    arguments = ("fn_args", "schema") if is_legacy else ("fn_args",)
    listed = f"{name}({', '.join(arguments)})"
    if not callable(function):
        raise ArgumentError(f"{name} of `{place}` is {shown(function)}, not a function. It is called as {listed}.")
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
