"""A config as text: what `trellis config show|diff` and `trellis experiments` print, and what a run leaves behind."""

import itertools
import json
import os
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from trellis.config import (
    DEFAULT,
    Config,
    Origin,
    Setting,
    Text,
    dump,
    origin_of,
    plain_value,
    raise_if_any,
    read_file,
    registered_name,
)
from trellis.disk import describe_failure, set_aside, write_whole
from trellis.errors import ArgumentError
from trellis.experiments.experiment import ExperimentConfig, experiment_summaries, get_exp_config
from trellis.runtime import print_line, table
from trellis.version import __version__

Leaf = tuple[object, Origin]

_NO_EFFECT = "no effect"
_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "tensorboardX")


def list_experiments() -> str:
    """Returns the registered experiments, one to a line, each with what its factory says of itself.

    They stand in families, the groups of their names, which are parted by empty lines.
    """
    summaries = experiment_summaries()
    names = list(summaries)
    lines = table(summaries.items())
    parted = [lines[0]] if lines else []
    for (before, name), line in zip(itertools.pairwise(names), lines[1:], strict=True):
        is_new = before.partition("/")[0] != name.partition("/")[0]
        parted += ["", line] if is_new else [line]
    return _text(parted)


def show_config(config: Config, *, is_whole: bool = True) -> str:
    """Returns a config as YAML in which every line says where its value comes from.

    Args:
        is_whole: Whether fields without effect that nobody has set are shown too; if not, a last line counts them.
    """
    lines = list(_lines(config))
    shown = lines if is_whole else [line for line in lines if line[1] != _NO_EFFECT]
    text = _text(table((text, f"# {note}" if note else "") for text, note in shown))
    n_hidden = len(lines) - len(shown)
    return f"{text}# {n_hidden} fields without effect are left out: --all shows them.\n" if n_hidden else text


def active_fields(config: Config, path: str = "") -> Iterator[str]:
    """Yields the dotted path of each field that has a value of its own, and an effect."""
    for name in config.as_dict():
        value = getattr(config, name)
        if isinstance(value, Config):
            yield from active_fields(value, f"{path}{name}.")
        elif name not in config.no_effect:
            yield f"{path}{name}"


def differing_leaves(first: str, second: str) -> dict[str, tuple[Leaf | None, Leaf | None]]:
    """Returns the values in which two configs differ, by dotted path: that of each, None where one has none.

    Args:
        first: The name of an experiment, or a file such as a run's `params.yaml`.
        second: The same.
    """
    one, other = leaves_of(_read(first)), leaves_of(_read(second))
    pairs = {path: (one.get(path), other.get(path)) for path in dict.fromkeys([*one, *other])}
    return {path: (a, b) for path, (a, b) in pairs.items() if (a and a[0]) != (b and b[0])}


def diff_configs(first: str, second: str) -> str:
    """Returns the values in which two configs differ, each with its origin; empty if there are none.

    Args:
        first: The name of an experiment, or a file such as a run's `params.yaml`.
        second: The same.
    """
    lines = []
    for path, (leaf, other) in differing_leaves(first, second).items():
        lines += [path, *table([(f"  {first}", _describe(leaf)), (f"  {second}", _describe(other))])]
    return _text(lines)


def write_params(params: ExperimentConfig, directory: Path) -> None:
    """Writes down what is about to run: its config, where each value came from, and the versions of what runs it.

    `read_params` reads the config again. A config of before that says something else is kept as `params.1.yaml`, the
    next one as `params.2.yaml`, and so on.
    """
    content = params_text(params).encode()
    _keep_older(directory / "params.yaml", content)
    write_whole(directory / "params.yaml", content)
    write_whole(directory / "provenance.yaml", show_config(params).encode())
    write_whole(directory / "versions.json", f"{json.dumps(versions(), indent=2)}\n".encode())


def params_text(params: ExperimentConfig) -> str:
    """A config as `read_params` reads it."""
    name = registered_name(params)
    heading = f"# Experiment: {name}\n" if name else ""
    return f"{heading}{params.as_yaml()}"


def _keep_older(file: Path, content: bytes) -> None:
    """Copies a file that is to be replaced by other content."""
    try:
        older = file.read_bytes()
    except FileNotFoundError:
        return
    except OSError as error:
        print_line(f"`{file}` cannot be read: {describe_failure(error)}. It is set aside as `{set_aside(file).name}`.")
        return
    if older != content:
        names = (file.with_name(f"{file.stem}.{number}{file.suffix}") for number in itertools.count(1))
        kept = next(name for name in names if not os.path.lexists(name))
        write_whole(kept, older)
        print_line(f"`{file}` says something else than this run: what it says is kept as `{kept.name}`.")


def leaves_of(content: Config | Setting) -> dict[str, Leaf]:
    """Returns every value that holds no others, by its dotted path, with its origin."""
    return dict(_leaves(content, "", DEFAULT))


def versions() -> dict[str, str | None]:
    """The versions of what runs an experiment."""
    packages = {package: _version(package) for package in _PACKAGES}
    return {"python": platform.python_version(), "trellis": __version__, **packages}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _text(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _read(name: str) -> Config | Setting:
    if not Path(name).is_file():
        if name.endswith((".yaml", ".yml", ".json")):
            raise ArgumentError(f"There is no file `{name}`. Give a file, or the name of an experiment.")
        return get_exp_config(name)
    content, problems = read_file(name)
    raise_if_any(problems)
    return content


def _describe(leaf: Leaf | None) -> str:
    return "not there" if leaf is None else f"{leaf[0]!r}  ({leaf[1]})"


def _lines(config: Config, indent: str = "") -> Iterator[tuple[str, str]]:
    for name in config.as_dict():
        value = getattr(config, name)
        inner = value if isinstance(value, list | tuple) else ()
        if isinstance(value, Config):
            yield f"{indent}{name}:", ""
            yield from _lines(value, f"{indent}  ")
        elif any(isinstance(item, Config) for item in inner):
            yield f"{indent}{name}:", ""
            for item in inner:
                (first, note), *rest = _lines(item, f"{indent}  ")
                yield f"{indent}- {first.lstrip()}", note
                yield from rest
        else:
            *above, last = dump({name: config.as_dict()[name]}).splitlines()
            yield from ((f"{indent}{line}", "") for line in above)
            yield f"{indent}{last}", _note(config, name)


def _note(config: Config, name: str) -> str:
    reason = config.no_effect.get(name)
    origin = origin_of(config, name)
    if reason is None:
        return str(origin)
    return _NO_EFFECT if origin == DEFAULT else f"{origin}; no effect: {reason}"


def _leaves(value: object, path: str, origin: Origin) -> Iterator[tuple[str, Leaf]]:
    if isinstance(value, Setting):
        yield from _leaves(value.value, path, value.origin)
    elif isinstance(value, Config):
        for name in value.as_dict():
            yield from _leaves(getattr(value, name), f"{path}.{name}", origin_of(value, name))
    elif isinstance(value, dict) and value:
        for name, item in value.items():
            yield from _leaves(item, f"{path}.{name}", origin)
    elif isinstance(value, list | tuple) and any(map(_has_leaves, value)):
        for i, item in enumerate(value):
            yield from _leaves(item, f"{path}[{i}]", origin)
    else:
        yield path.removeprefix("."), (_plain(value), origin)


def _has_leaves(item: object) -> bool:
    return isinstance(item.value if isinstance(item, Setting) else item, Config | dict)


def _plain(value: object) -> object:
    if isinstance(value, Setting):
        return _plain(value.value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return plain_value(value) if isinstance(value, Text) else value
