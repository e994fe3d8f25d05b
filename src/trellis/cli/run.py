"""`trellis run`: a user's own training code, between artifacts."""

import argparse
import sys
from pathlib import Path
from typing import Any

from trellis import executor, serving
from trellis.cli.parser import Parser
from trellis.errors import ArgumentError, ExitCode, ProcessLostError, RunFailedError
from trellis.runtime import is_parameter_server, print_error, print_line, table

NOT_BLESSED = 3
"""The exit code of a run whose model is worse than the one that is served."""

_EPILOG = """\
The module has a function run_fn(fn_args), which trains and writes its model to fn_args.serving_model_dir.
Exit codes: 0 done, 1 the run failed, 2 bad input, 3 done but not blessed, 75 a process was lost, 143 stopped by
SIGTERM. A model that was there before stays until the new one is whole, and is replaced in one step.

  trellis run --module_file=my_module.py --examples=data --model=out/model --train_steps=1000

With --bless a model that Trellis has exported becomes the next numbered version in out/model_served, to be served, if
it is not worse than the newest one there, on the eval splits and on each slice of them; blessing.json in the directory
of the run says why or why not. A YAML file has more: metrics: {accuracy: {at_least: 0.8, may_lose: 0.01}}, slices,
min_examples, label, output.

  trellis run … --model=out/model --bless='accuracy>=0.8,loss,label=species,slice=island'
"""
_INPUTS = {
    "schema": "what the examples hold: a schema file, or the directory of one",
    "transform_graph": "how raw examples were transformed",
    "base_model": "a model to start from",
    "hyperparameters": "the result of a tuning: a JSON file, or the directory of one",
    "statistics": "statistics of the examples",
}
_SOURCES = {
    "module_file": ("FILE", "the file of your module; or give one of the next two"),
    "module_path": ("NAME", "the dotted name of your module, or NAME@WHEEL"),
    "run_fn": ("NAME", "your function: dotted, such as trellis.experiments.run_fn; with a module, its name there"),
}


def add_flags(parser: Parser) -> None:
    """Adds the flags: artifacts and properties of the executor, under their own names."""
    parser.epilog = _EPILOG
    for name, (metavar, text) in _SOURCES.items():
        parser.add_flag(name, metavar, text)
    add_example_flags(parser, required=True)
    where = "where the model goes; it is replaced when the run has succeeded"
    parser.add_flag("model", "DIR", where, required=True)
    where = "where checkpoints, summaries and logs go; the default is that of the model with _run behind it"
    parser.add_flag("model_run", "DIR", where)
    for name, text in _INPUTS.items():
        parser.add_flag(name, "DIR", text)
    parser.add_flag("workers", "N", "in how many processes to run; the default is 1", type=int)
    parser.add_flag("timeout", "SECONDS", "seconds after which the run is stopped; the default is never", type=float)
    text = "seconds that one of several workers may be silent before it counts as lost; the default is 60"
    parser.add_flag("worker_timeout", "SECONDS", text, type=float)
    text = "put the model among those that are served if it is not worse: metrics, bounds and slices, or a YAML file"
    parser.add_flag("bless", "RULES", text)
    where = "the versions that are served; the default is that of the model with _served behind it"
    parser.add_flag("served", "DIR", where)
    text = "the files of your model, separated by commas, if the executor does not know its format, such as model.cbm"
    parser.add_flag("model_files", "NAMES", text, type=_names)


def add_example_flags(parser: Parser, *, required: bool) -> None:
    """Adds the flags of examples, of how long to train on them, and of a module's own settings."""
    text = "a directory of examples in splits, Split-train and Split-eval; as often as you like"
    parser.add_argument("--examples", action="append", required=required, metavar="DIR", help=text)
    for side, verb in (("train", "train"), ("eval", "evaluate")):
        text = f"steps to {verb}; the default leaves it to the function"
        parser.add_flag(f"{side}_steps", "N", text, type=int, default=0)
        text = f"splits to {verb} on, separated by commas; the default is {side}"
        parser.add_flag(f"{side}_splits", "NAMES", text, default=side)
    text = "settings of your own, as JSON: '{\"learning_rate\": 0.1}'"
    parser.add_flag("custom_config", "JSON", text, default="")


def step_args(flags: argparse.Namespace) -> dict[str, Any]:
    """The splits and steps of both sides, as the executor takes them."""
    return {
        f"{side}_args": {
            "splits": _names(getattr(flags, f"{side}_splits")),
            "num_steps": getattr(flags, f"{side}_steps"),
        }
        for side in ("train", "eval")
    }


def run(flags: argparse.Namespace) -> int | None:
    """Runs a module in a process of its own, and tells where its model lies, and whether it is blessed."""
    if flags.served is not None and flags.bless is None:
        raise ArgumentError("--served is for --bless. Give the rules: --bless=accuracy, or leave it out.")
    rules = None if flags.bless is None else serving.read_rules(flags.bless)
    if rules is not None:
        serving.check_rules(rules, files=_eval_files(flags))
    if flags.verbosity is not None:
        print_error("--v has no effect: a module runs in a process of its own, and sets up its own logging.")
    inputs: dict[str, Any] = {"examples": [executor.Examples(uri) for uri in flags.examples]}
    inputs |= {name: [executor.Artifact(uri)] for name in _INPUTS if (uri := getattr(flags, name))}
    model_run = flags.model_run or f"{flags.model.rstrip('/')}_run"
    outputs: dict[str, Any] = {"model": [executor.Model(flags.model)], "model_run": [executor.ModelRun(model_run)]}
    try:
        executor.Executor(is_apart=True).Do(inputs, outputs, _exec_properties(flags))
    except RunFailedError as error:
        print_error("\n".join([str(error), *getattr(error, "__notes__", ())]))
        sys.exit(ExitCode.LOST if isinstance(error, ProcessLostError) else 1)
    if is_parameter_server():
        return None
    if not executor.publishes_model():
        print_line("Done. The model is published by the chief of these workers.")
        return None
    print_line(f"Done. The model: {executor.serving_model_dir(flags.model)}")
    if Path(model_run).is_dir():
        print_line(f"The run:         {model_run}")
    return None if rules is None else _bless(flags, rules, Path(model_run))


def _bless(flags: argparse.Namespace, rules: "serving.BlessingRules", model_run: Path) -> int | None:
    """Has a model judged that a run has left; tells what was decided, and why."""
    candidate = Path(executor.serving_model_dir(flags.model))
    if serving.find_served_model(candidate) is None:
        raise ArgumentError(
            f"--bless: `{candidate}` is no model that Trellis has exported, so it cannot be asked here. Export it with "
            f"trellis.serving.export_model or trellis.experiments.run_fn, or leave out --bless."
        )
    served = Path(flags.served or f"{flags.model.rstrip('/')}_served")
    report = model_run / "blessing.json"
    blessing = serving.bless(candidate, served_dir=served, files=_eval_files(flags), rules=rules, report_file=report)
    rows = [["slice", "examples", "metric", "served", "new", ""]]
    for check in blessing.checks:
        before = "" if check.served is None else f"{check.served:.6g}"
        row = [check.slice, str(check.n_examples), check.metric, before, f"{check.candidate:.6g}", check.problem]
        rows.append(row)
    print_line("\n".join(line.rstrip() for line in [*table(rows), *blessing.notes]))
    print_line(f"Blessed: it is {blessing.version} now." if blessing.is_blessed else "Not blessed: it is not served.")
    print_line(f"Why:             {report}")
    return None if blessing.is_blessed else NOT_BLESSED


def _eval_files(flags: argparse.Namespace) -> list[str]:
    splits = _names(flags.eval_splits)
    return [f"{executor.split_dir(uri, split)}/*" for split in splits for uri in flags.examples]


def _exec_properties(flags: argparse.Namespace) -> dict[str, Any]:
    properties: dict[str, Any] = {name: getattr(flags, name) for name in _SOURCES if getattr(flags, name)}
    return {**properties, **step_args(flags), "custom_config": _custom_config(flags)}


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _custom_config(flags: argparse.Namespace) -> Any:
    """The user's settings, with how to run them among them."""
    names = ("workers", "timeout", "worker_timeout", "model_files")
    run_args = {name: value for name in names if (value := getattr(flags, name)) is not None}
    try:
        config = executor.read_custom_config(vars(flags)) or {}
    except ArgumentError:
        return flags.custom_config  # the executor tells what is wrong with it, together with all else
    if not run_args:
        return flags.custom_config
    return {**config, executor.RUN_ARGS: {**config.get(executor.RUN_ARGS, {}), **run_args}}
