"""The flags that name an experiment and change its config."""

import argparse
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

from trellis.cli.words import Once, Parser
from trellis.errors import ArgumentError
from trellis.experiments import ExperimentConfig, recorded_experiment, resolve
from trellis.spelling import nearest

_BUILT_IN = ("trellis.experiments.digits", "trellis.nlp.experiments")


def add_module_flag(parser: Parser) -> None:
    """Adds the flag for experiments of one's own."""
    text = "a module that registers experiments of your own: its dotted name, or a .py file; as often as you like"
    parser.add_argument("--module", action="append", default=[], metavar="NAME", help=text)


def add_experiment_flags(parser: Parser) -> None:
    """Adds the flags that `resolved` reads."""
    text = "a name that `trellis experiments` lists; a --config_file that is a run's params.yaml says it too"
    parser.add_argument("--experiment", action=Once, metavar="NAME", help=text)
    parser.set_defaults(way_out=parser.way_out)
    parser.add_argument(
        "--config_file",
        action="append",
        default=[],
        metavar="FILE",
        help="a YAML file that changes the config; as often as you like, later ones win",
    )
    parser.add_argument(
        "--params_override",
        action=Once,
        default="",
        metavar="TEXT",
        help="changes after all files: task.hidden_size=32,trainer.train_steps=2000",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="one change after all others, to the end of the text; as often as you like",
    )
    add_module_flag(parser)


def resolved(flags: argparse.Namespace, *, mode: str | None = None) -> ExperimentConfig:
    """Returns the config that the flags describe; `flags.experiment` is its name, also where a file has said it."""
    flags.experiment = flags.experiment or next(filter(None, map(recorded_experiment, flags.config_file)), None)
    if not flags.experiment:
        raise ArgumentError(f"--experiment is missing.\n{flags.way_out}")
    register_experiments(flags.module)
    return resolve(
        flags.experiment,
        config_file=flags.config_file,
        params_override=flags.params_override,
        settings=flags.set,
        mode=mode,
    )


def register_experiments(modules: Sequence[str]) -> None:
    """Imports the built-in experiments, then the modules of a user, each a dotted name or a `.py` file."""
    for name in _BUILT_IN:
        importlib.import_module(name)
    for name in dict.fromkeys(modules):
        try:
            _import_file(Path(name)) if name.endswith(".py") else _import_name(name)
        except Exception as error:
            error.add_note(f"That was while importing --module={name}.")
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
        meant = f" Did you mean `{path.parent / close}`?" if close else ""
        raise ArgumentError(f"There is no file `{path}`.{meant}")
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
