"""gin, a guest at the edge: `--gin_file` and `--gin_params` bind arguments of building blocks, and alone import it."""

import argparse
import importlib
import importlib.util
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from tokenize import TokenError
from typing import Any

from trellis.bindings import standing_in
from trellis.cli.parser import Parser
from trellis.disk import write_whole
from trellis.errors import ArgumentError, MissingPackageError
from trellis.experiments import find_config_file
from trellis.spelling import did_you_mean


@dataclass(frozen=True)
class Bindable:
    """A function or class whose arguments can be bound; library code calls it through `bound`."""

    package: str
    arguments: tuple[str, ...] | None = None
    """Those that can be bound, if not all can: an argument that the library passes itself would win in silence."""


BINDABLE: Mapping[str, Bindable] = {
    "run_experiment": Bindable("trellis.experiments", ("run_post_eval", "save_summary", "extensions")),
    "Trainer": Bindable("trellis.trainer", ("extensions", "save_summary")),
    "ProgressiveTrainer": Bindable("trellis.trainer", ("extensions", "save_summary")),
    "build_encoder": Bindable("trellis.nlp.models", ("attention_cls", "feedforward_cls")),
    "MultiHeadAttention": Bindable("trellis.nlp.models"),
    "TalkingHeadsAttention": Bindable("trellis.nlp.models"),
    "FeedForward": Bindable("trellis.nlp.models"),
    "GatedFeedForward": Bindable("trellis.nlp.models"),
}
"""By their names, which gin files use too."""


def add_gin_flags(parser: Parser) -> None:
    """Adds the published flags."""
    text = "a file that binds arguments of building blocks; as often as you like"
    parser.add_repeated_flag("gin_file", "FILE", text)
    text = "one such binding, after all files: Trainer.save_summary=False; as often as you like"
    parser.add_repeated_flag("gin_params", "BINDING", text)


def check_gin_flags(flags: argparse.Namespace) -> None:
    """Finds the files that come with experiments; raises an error if what the flags need is not there."""
    flags.gin_file = [find_config_file(name) for name in flags.gin_file]
    missing = [name for name in flags.gin_file if not Path(name).is_file()]
    if missing:
        raise ArgumentError("\n".join(map(_missing_file, missing)))
    if (flags.gin_file or flags.gin_params) and importlib.util.find_spec("gin") is None:
        raise MissingPackageError("gin-config", "gin")


@contextmanager
def gin_bindings(flags: argparse.Namespace) -> Iterator[Callable[[Path], None]]:
    """Binds what the flags say for the length of a block.

    Yields a function that takes a file, and writes to it the arguments, bound and default, of all that was called. That
    happens at once and, for what is called later, at the end of the block.
    """
    if not flags.gin_file and not flags.gin_params:
        yield lambda path: None
        return
    gin: Any = importlib.import_module("gin")
    stand_ins = {_target(name): _stand_in(name) for name in BINDABLE}
    _read(gin, flags.gin_file, flags.gin_params)
    files: list[Path] = []

    def write(file: Path) -> None:
        files.append(file)
        write_whole(file, gin.operative_config_str().encode())

    try:
        with standing_in(stand_ins):
            yield write
    finally:
        for file in set(files):
            write(file)
        gin.clear_config()


def _target(name: str) -> Callable[..., Any]:
    target: Callable[..., Any] = getattr(importlib.import_module(BINDABLE[name].package), name)
    return target


@cache
def _stand_in(name: str) -> Any:
    gin: Any = importlib.import_module("gin")
    return gin.external_configurable(_target(name), name=name, module="trellis", allowlist=BINDABLE[name].arguments)


def _read(gin: Any, files: Sequence[str], bindings: Sequence[str]) -> None:
    """Reads all files, then all bindings; one error lists everything that is wrong with them."""
    steps = [(f"--gin_file={name}", partial(gin.parse_config_file, name)) for name in files]
    steps += [(f"--gin_params={text}", partial(gin.parse_config, text)) for text in bindings]
    messages = [f"{flag}: {message}" for flag, parse in steps if (message := _problem(parse))]
    # What a macro stands for is known when all is read.
    if not messages and (message := _problem(gin.finalize)):
        messages = [message]
    if messages:
        gin.clear_config()
        raise ArgumentError("\n\n".join(messages))


def _problem(parse: Callable[[], object]) -> str:
    """Does a part of the reading; returns what is wrong, empty if nothing is."""
    try:
        parse()
    except (ValueError, LookupError, TypeError, SyntaxError, TokenError, OSError, ImportError) as error:
        return f"{error}{_way_out(str(error))}"
    return ""


def _way_out(message: str) -> str:
    """Returns what can be bound, after a message of gin about a name that cannot be."""
    wrong = re.search(r"'([\w.]+)' (?:doesn't have a|doesn't include) .*'(\w+)'", message)
    if wrong and wrong[1] in BINDABLE:
        names = BINDABLE[wrong[1]].arguments or tuple(inspect.signature(_target(wrong[1])).parameters)
        return f"\n{_suggestion(wrong[2], names)}Its arguments that can be bound are: {', '.join(names)}."
    unknown = re.search(r"No configurable matching (?:reference )?'@?([\w.]+)", message)
    if not unknown:
        return ""
    listed = f"{', '.join(BINDABLE)}, and what a --module makes so with gin.configurable"
    return f"\n{_suggestion(unknown[1], BINDABLE)}What can be bound: {listed}."


def _suggestion(name: str, candidates: Iterable[str]) -> str:
    sentence = did_you_mean(name, candidates, show=str).lstrip()
    return f"{sentence} " if sentence else ""


def _missing_file(name: str) -> str:
    directory = Path(name).parent
    names = [file.name for file in directory.glob("*.gin")]
    suggestion = did_you_mean(Path(name).name, names, show=lambda close: f"`{directory / close}`")
    return f"--gin_file: there is no file `{name}`.{suggestion}"
