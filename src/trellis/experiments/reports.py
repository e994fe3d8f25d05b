"""What `trellis config show`, `trellis config diff` and `trellis experiments` print."""

from collections.abc import Iterator
from pathlib import Path

from trellis.config import DEFAULT, Config, Origin, Setting, Text, dump, origin_of, plain_value, raise_if_any, read_file
from trellis.errors import ArgumentError
from trellis.experiments.experiment import experiment_summaries, get_exp_config
from trellis.runtime import table

Leaves = dict[str, tuple[object, Origin]]


def show_config(config: Config) -> str:
    """Returns a config as YAML in which every line says where its value comes from."""
    return _text(table((text, f"# {note}" if note else "") for text, note in _lines(config)))


def diff_configs(first: str, second: str) -> str:
    """Returns the values in which two configs differ, each with its origin; empty if there are none.

    Args:
        first: The name of an experiment, or a file such as a run's `params.yaml`.
        second: The same.
    """
    return diff_leaves(_leaves_of(first), _leaves_of(second), names=(first, second))


def diff_leaves(first: Leaves, second: Leaves, *, names: tuple[str, str]) -> str:
    """Returns the paths at which two sets of values differ."""
    lines = []
    for path in dict.fromkeys([*first, *second]):
        sides = [leaves.get(path) for leaves in (first, second)]
        values = [side[0] if side else None for side in sides]
        if values[0] != values[1]:
            rows = [(f"  {name}", _describe(side)) for name, side in zip(names, sides, strict=True)]
            lines += [path, *table(rows)]
    return _text(lines)


def list_experiments() -> str:
    """Returns the registered experiments, one to a line, each with what its factory says of itself."""
    return _text(table(experiment_summaries().items()))


def leaves_of(config: Config) -> Leaves:
    """Returns every value that is not itself a config, by its dotted path, with its origin."""
    return dict(_config_leaves(config, ""))


def _text(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _leaves_of(name: str) -> Leaves:
    if not Path(name).is_file():
        if name.endswith((".yaml", ".yml", ".json")):
            raise ArgumentError(f"There is no file `{name}`. Give a file, or the name of an experiment.")
        return leaves_of(get_exp_config(name))
    content, problems = read_file(name)
    raise_if_any(problems)
    return dict(_file_leaves(content, ""))


def _describe(side: tuple[object, Origin] | None) -> str:
    return "not there" if side is None else f"{side[0]!r}  ({side[1]})"


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
    return "no effect" if origin == DEFAULT else f"{origin}; no effect: {reason}"


def _config_leaves(config: Config, prefix: str) -> Iterator[tuple[str, tuple[object, Origin]]]:
    for name in config.as_dict():
        path = f"{prefix}.{name}" if prefix else name
        yield from _value_leaves(getattr(config, name), path, origin_of(config, name))


def _value_leaves(value: object, path: str, origin: Origin) -> Iterator[tuple[str, tuple[object, Origin]]]:
    if isinstance(value, Config):
        yield from _config_leaves(value, path)
    elif isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _value_leaves(item, f"{path}.{key}", origin)
    elif isinstance(value, list | tuple) and any(isinstance(item, Config) for item in value):
        for i, item in enumerate(value):
            yield from _value_leaves(item, f"{path}[{i}]", origin)
    else:
        yield path, (list(value) if isinstance(value, list | tuple) else value, origin)


def _file_leaves(content: Setting, path: str) -> Iterator[tuple[str, tuple[object, Origin]]]:
    if isinstance(content.value, dict) and content.value:
        for name, item in content.value.items():
            yield from _file_leaves(item, f"{path}.{name}" if path else name)
    elif isinstance(content.value, list) and any(isinstance(item.value, dict) for item in content.value):
        for i, item in enumerate(content.value):
            yield from _file_leaves(item, f"{path}[{i}]")
    else:
        yield path, (_plain(content), content.origin)


def _plain(content: Setting) -> object:
    if isinstance(content.value, list):
        return [_plain(item) for item in content.value]
    return plain_value(content.value) if isinstance(content.value, Text) else content.value
