"""`trellis tune`: many runs of an experiment, and which of them is the best."""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from trellis import executor, runtime, tuning
from trellis.cli.experiments import add_experiment_flags, resolve_flags
from trellis.cli.parser import Parser
from trellis.cli.run import add_example_flags, step_args
from trellis.cli.train import given_model_dir, make_directory
from trellis.disk import local_path
from trellis.errors import ArgumentError
from trellis.runtime import print_json, print_line, table
from trellis.tuning import TrialResult

_EPILOG = """\
A range is log(LOW, HIGH), uniform(LOW, HIGH), int(LOW, HIGH) or choice(A, B, …) of a field; a YAML file of them has
  trainer.optimizer_config.learning_rate.cosine.initial_learning_rate: {log: [1e-5, 1e-3]}
Killed and started again, the same command goes on; started several times at once, the processes share the trials.
Each trial is a run of its own in DIR/trials; DIR/best.yaml is for: trellis train --config_file
Exit codes: 0 done, 2 bad input, 143 stopped by SIGTERM with everything saved.

  trellis tune --experiment=digits/classifier --trials=20 --model_dir=runs/sweep --search='task.hidden_size=int(8, 64)'

A module with a tuner_fn(fn_args), which returns a tuner and the arguments of its search, runs as the published tuner:
  trellis tune --module_file=my_module.py --examples=data --model_dir=runs/sweep
"""
_DEFAULT_TRIALS = 20
_INPUTS = {
    "schema": "what the examples hold: a schema file, or the directory of one",
    "transform_graph": "how raw examples were transformed",
}
_OF_MODULE = ("examples", "train_steps", "eval_steps", "custom_config", *_INPUTS)
_OF_EXPERIMENT = (
    *("search", "trials", "metric", "direction", "pruner", "seed", "together"),
    *("experiment", "config_file", "params_override", "set", "module"),
)


def add_flags(parser: Parser) -> None:
    """Adds the flags of a sweep."""
    parser.epilog = _EPILOG
    where = "where the sweep writes all that it leaves, and goes on from"
    parser.add_flag("model_dir", "DIR", where, required=True)
    text = "what is searched: a YAML file, or FIELD=RANGE; as often as you like, later ones win"
    parser.add_repeated_flag("search", "WHAT", text)
    parser.add_flag("trials", "N", "how many trials there are to be in all; the default is 20", type=int)
    text = "the metric of an evaluation to compare by; the default is trainer.best_checkpoint_eval_metric"
    parser.add_flag("metric", "NAME", text, default="")
    text = "which values are better, higher or lower; the default is trainer.best_checkpoint_metric_comp"
    parser.add_flag("direction", "WORD", text, default="")
    text = "what ends trials that fall behind: median, hyperband or none; the default is median"
    parser.add_flag("pruner", "NAME", text)
    parser.add_flag("seed", "N", "from which the choices of trials follow; the default is 0", type=int)
    text = "how many trials to run at once, as one program on one device: for numbers that a step computes with"
    parser.add_flag("together", "N", text, type=int)
    parser.add_json_flag()
    add_experiment_flags(parser)
    parser.add_flag("module_file", "FILE", "a module with a tuner_fn of your own, in the place of an experiment")
    add_example_flags(parser, required=False)
    for name, text in _INPUTS.items():
        parser.add_flag(name, "DIR", f"for a tuner_fn: {text}")


def tune(flags: argparse.Namespace) -> None:
    """Runs a sweep, or the tuner of a module; prints the trials, best first, and where the best is."""
    if flags.module_file is not None:
        _tune_module(flags)
        return
    _check_absent(flags, _OF_MODULE, because="is for a tuner_fn: give it with --module_file")
    directory = local_path(given_model_dir(flags), name="--model_dir")
    config = resolve_flags(flags, mode="train_and_eval")
    space = tuning.read_search(flags.search, config=config)
    n_together = 1 if flags.together is None else flags.together
    if n_together < 1:
        raise ArgumentError(f"--together is {n_together}. Give how many trials to run at once, such as 16.")
    options = tuning.SweepOptions(
        experiment=flags.experiment,
        n_trials=_DEFAULT_TRIALS if flags.trials is None else flags.trials,
        metric=flags.metric,
        direction=flags.direction,
        pruner=flags.pruner or "median",
        seed=flags.seed or 0,
        n_together=n_together,
    )
    # Before the sweep is noted in its directory: another search would be another sweep.
    run_trials = tuning.run_as_replicas(space, n_together=n_together) if n_together > 1 else None
    make_directory(directory)
    sweep = tuning.Sweep(directory, space=space, options=options)
    runtime.keep_programs()
    results = sweep.run(run_trials)
    if flags.json:
        best = str(directory / "best.yaml") if results[0].state == "complete" else None
        content = {"metric": sweep.metric, "direction": sweep.direction, "best": best}
        print_json({**content, "trials": tuning.as_json(results)})
        return
    print_line("\n".join(_rows(results, metric=sweep.metric)))
    if results[0].state == "complete":
        print_line(f"The best: {results[0].model_dir}")
        print_line(f"Its overrides: {directory / 'best.yaml'}, for trellis train --config_file")


def _tune_module(flags: argparse.Namespace) -> None:
    """Runs the tuner of a module; prints its trials, best first, and where the best is."""
    _check_absent(flags, _OF_EXPERIMENT, because="is for an experiment; the tuner_fn of --module_file says it itself")
    if not flags.examples:
        raise ArgumentError(f"--examples is missing: fn_args tells a tuner_fn where its data is.\n{flags.way_out}")
    directory = local_path(given_model_dir(flags), name="--model_dir")
    inputs: dict[str, Any] = {"examples": [executor.Examples(uri) for uri in flags.examples]}
    inputs |= {name: [executor.Artifact(uri)] for name in _INPUTS if (uri := getattr(flags, name))}
    properties = {"module_file": flags.module_file, **step_args(flags), "custom_config": flags.custom_config}
    make_directory(directory)
    trials = executor.run_tuner_fn(directory, inputs, properties)
    best = directory / "best_hyperparameters.txt"
    if flags.json:
        print_json({"best": str(best), "trials": [asdict(trial) for trial in trials]})
        return
    names = list(dict.fromkeys(name for trial in trials for name in trial.values))
    rows = [["trial", "score", *names]]
    for trial in trials:
        score = "" if trial.score is None else f"{trial.score:.6g}"
        rows.append([trial.trial_id, score, *(_shown(trial.values.get(name)) for name in names)])
    print_line("\n".join([*table(rows), f"The best: {best}, for trellis run --hyperparameters"]))


def _check_absent(flags: argparse.Namespace, names: Sequence[str], *, because: str) -> None:
    for name in names:
        if getattr(flags, name):
            raise ArgumentError(f"--{name} {because}. Leave one of them out.")


def _rows(results: Sequence[TrialResult], *, metric: str) -> Iterator[str]:
    names = list(dict.fromkeys(path for result in results for path in result.overrides))
    short = [name.rpartition(".")[2] for name in names]
    # Two fields of one name are told apart by their paths.
    heads = [end if short.count(end) == 1 else name for name, end in zip(names, short, strict=True)]
    rows = [["trial", f"eval/{metric}", *heads, "step", "state"]]
    for result in results:
        value = "" if result.value is None else f"{result.value:.6g}"
        shown = [_shown(result.overrides.get(name)) for name in names]
        rows.append([f"{result.number:04d}", value, *shown, str(result.step), result.state])
    yield from table(rows)
    for result in results:
        if result.error:
            yield f"Trial {result.number:04d} has failed: {result.error.splitlines()[0]}"
    running = [f"{result.number:04d}" for result in results if result.state == "running"]
    if running:
        yield f"Another process is at work on {', '.join(running)}: when it ends, the best may be another one."


def _shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
