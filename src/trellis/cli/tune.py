"""`trellis tune`: many runs of an experiment, and which of them is the best."""

import argparse
import json
from collections.abc import Iterator, Sequence

from trellis import runtime, tuning
from trellis.cli.experiments import add_experiment_flags, resolve_flags
from trellis.cli.parser import Parser
from trellis.cli.train import given_model_dir
from trellis.disk import local_path
from trellis.errors import ArgumentError
from trellis.runtime import print_line, table
from trellis.tuning import TrialResult

_EPILOG = """\
A range is log(LOW, HIGH), uniform(LOW, HIGH), int(LOW, HIGH) or choice(A, B, …) of a field; a YAML file of them has
  trainer.optimizer_config.learning_rate.cosine.initial_learning_rate: {log: [1e-5, 1e-3]}
Killed and started again, the same command goes on; started several times at once, the processes share the trials.
Each trial is a run of its own in DIR/trials; DIR/best.yaml is for: trellis train --config_file
Exit codes: 0 done, 2 bad input, 143 stopped by SIGTERM with everything saved.

  trellis tune --experiment=digits/classifier --trials=20 --model_dir=runs/sweep --search='task.hidden_size=int(8, 64)'
"""


def add_flags(parser: Parser) -> None:
    """Adds the flags of a sweep."""
    parser.epilog = _EPILOG
    where = "where the sweep writes all that it leaves, and goes on from"
    parser.add_flag("model_dir", "DIR", where, required=True)
    text = "what is searched: a YAML file, or FIELD=RANGE; as often as you like, later ones win"
    parser.add_repeated_flag("search", "WHAT", text)
    parser.add_flag("trials", "N", "how many trials there are to be in all; the default is 20", type=int, default=20)
    text = "the metric of an evaluation to compare by; the default is trainer.best_checkpoint_eval_metric"
    parser.add_flag("metric", "NAME", text, default="")
    text = "which values are better, higher or lower; the default is trainer.best_checkpoint_metric_comp"
    parser.add_flag("direction", "WORD", text, default="")
    text = "what ends trials that fall behind: median, hyperband or none; the default is median"
    parser.add_flag("pruner", "NAME", text, default="median")
    parser.add_flag("seed", "N", "from which the choices of trials follow; the default is 0", type=int, default=0)
    text = "how many trials to run at once, as one program on one device: for numbers that a step computes with"
    parser.add_flag("together", "N", text, type=int, default=1)
    parser.add_argument("--json", action="store_true", help="end with one JSON object, for programs")
    add_experiment_flags(parser)


def tune(flags: argparse.Namespace) -> None:
    """Runs a sweep; prints its trials, best first, and where the best is."""
    directory = local_path(given_model_dir(flags), name="--model_dir")
    config = resolve_flags(flags, mode="train_and_eval")
    space = tuning.read_search(flags.search, config=config)
    options = tuning.SweepOptions(
        experiment=flags.experiment,
        n_trials=flags.trials,
        metric=flags.metric,
        direction=flags.direction,
        pruner=flags.pruner,
        seed=flags.seed,
        n_together=flags.together,
    )
    if flags.together < 1:
        raise ArgumentError(f"--together is {flags.together}. Give how many trials to run at once, such as 16.")
    # Before the sweep is noted in its directory: another search would be another sweep.
    run_trials = tuning.run_together(space, n_together=flags.together) if flags.together > 1 else None
    sweep = tuning.Sweep(directory, space=space, options=options)
    runtime.keep_programs()
    results = sweep.run(run_trials)
    if flags.json:
        best = str(directory / "best.yaml") if results[0].state == "complete" else None
        content = {"metric": sweep.metric, "direction": sweep.direction, "best": best}
        print_line(json.dumps({**content, "trials": tuning.as_json(results)}, indent=1))
        return
    print_line("\n".join(_rows(results, metric=sweep.metric)))
    if results[0].state == "complete":
        print_line(f"The best: {results[0].model_dir}")
        print_line(f"Its overrides: {directory / 'best.yaml'}, for trellis train --config_file")


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


def _shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
