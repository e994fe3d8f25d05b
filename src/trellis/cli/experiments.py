"""The flags that name an experiment and change its config, and the words that show experiments; none imports JAX."""

import argparse

from trellis.cli.parser import Parser
from trellis.errors import ArgumentError, TrellisError
from trellis.experiments import (
    ExperimentConfig,
    Leaf,
    active_fields,
    diff_configs,
    differing_leaves,
    experiment_summaries,
    get_exp_config,
    leaves_of,
    list_experiments,
    nearest_field,
    recorded_experiment,
    register_experiments,
    resolve,
    show_config,
)
from trellis.runtime import print_coloured, print_json, print_line

# A field, its value in the first config, its value in the second.
_DIFF_COLOURS = (r"^(?P<bold>\S.*)\n(?P<red>  .*)\n(?P<green>  .*)$",)


def add_module_flag(parser: Parser) -> None:
    """Adds the flag for experiments of one's own."""
    text = "a module that registers experiments of your own: its dotted name, or a .py file; as often as you like"
    parser.add_repeated_flag("module", "NAME", text)


def add_experiment_flags(parser: Parser) -> None:
    """Adds the flags that `resolve_flags` reads."""
    text = "a name that `trellis experiments` lists; a --config_file that is a run's params.yaml says it too"
    parser.add_flag("experiment", "NAME", text)
    parser.set_defaults(way_out=parser.way_out)
    text = "a YAML file that changes the config; as often as you like, later ones win"
    parser.add_repeated_flag("config_file", "FILE", text, address="fetched")
    text = "changes after all files: task.hidden_size=32,trainer.train_steps=2000"
    parser.add_flag("params_override", "TEXT", text, default="")
    text = "one change after all others, to the end of the text; as often as you like"
    parser.add_repeated_flag("set", "FIELD=VALUE", text)
    add_module_flag(parser)
    parser.suggest_setting = suggest_setting


def suggest_setting(flags: argparse.Namespace, name: str, value: str) -> tuple[str | None, bool]:
    """Returns the `--set` that was probably meant by a flag that there is not, and whether the field has its name."""
    try:
        register_experiments(flags.module)
        config = get_exp_config(_experiment_name(flags) or "")
    except TrellisError:
        config = ExperimentConfig()  # what is wrong with the name is told when there are no other problems
    field, is_same = nearest_field(config, name)
    return (None if field is None else f"--set={field}={value or 'VALUE'}"), is_same


def _experiment_name(flags: argparse.Namespace) -> str | None:
    return flags.experiment or next(filter(None, map(recorded_experiment, flags.config_file)), None)


def resolve_flags(
    flags: argparse.Namespace, *, mode: str | None = None, model_dir: str | None = None
) -> ExperimentConfig:
    """Returns the config that the flags describe; sets `flags.experiment` if it is a file that names the experiment."""
    flags.experiment = _experiment_name(flags)
    if not flags.experiment:
        raise ArgumentError(f"--experiment is missing.\n{flags.way_out}")
    register_experiments(flags.module)
    return resolve(
        flags.experiment,
        config_file=flags.config_file,
        params_override=flags.params_override,
        settings=flags.set,
        mode=mode,
        model_dir=model_dir,
    )


def add_diff_flags(parser: Parser) -> None:
    """Adds what `diff` compares."""
    text = "the name of an experiment, or a file such as a run's params.yaml"
    parser.add_argument("first", metavar="A", help=text)
    parser.add_argument("second", metavar="B", help="the same")
    parser.add_json_flag()
    add_module_flag(parser)


def add_list_flags(parser: Parser) -> None:
    """Adds whose experiments are listed, and in what form."""
    add_module_flag(parser)
    parser.add_json_flag()


def experiments(flags: argparse.Namespace) -> None:
    """Lists the registered experiments."""
    register_experiments(flags.module)
    if flags.json:
        listed = [{"name": name, "summary": summary} for name, summary in experiment_summaries().items()]
        print_json({"experiments": listed})
    else:
        print_line(list_experiments().removesuffix("\n"))


def add_show_flags(parser: Parser) -> None:
    """Adds what `show` shows, and how much of it."""
    add_experiment_flags(parser)
    parser.add_argument("--all", action="store_true", help="also fields of published files that have no effect here")
    parser.add_json_flag()


def show(flags: argparse.Namespace) -> None:
    """Shows a resolved config with the origin of each value."""
    config = resolve_flags(flags)
    if flags.json:
        shown = set(active_fields(config))
        leaves = {path: leaf for path, leaf in leaves_of(config).items() if flags.all or _field_of(path, shown)}
        values = [{"field": path, **_leaf_as_json(leaf)} for path, leaf in leaves.items()]
        print_json({"experiment": flags.experiment, "values": values})
    else:
        print_line(show_config(config, is_whole=flags.all).removesuffix("\n"))


def _field_of(path: str, fields: set[str]) -> bool:
    """Whether a path is that of a field, or of something in it."""
    return any(path == field or path.startswith((f"{field}.", f"{field}[")) for field in fields)


def _leaf_as_json(leaf: Leaf) -> dict[str, object]:
    return {"value": leaf[0], "origin": str(leaf[1])}


def diff(flags: argparse.Namespace) -> None:
    """Shows in what two configs differ."""
    register_experiments(flags.module)
    if flags.json:
        pairs = differing_leaves(flags.first, flags.second).items()
        print_json(
            {
                "differences": [
                    {"field": path, "first": a and _leaf_as_json(a), "second": b and _leaf_as_json(b)}
                    for path, (a, b) in pairs
                ]
            }
        )
        return
    text = diff_configs(flags.first, flags.second) or "They do not differ."
    print_coloured(text.removesuffix("\n"), _DIFF_COLOURS)
