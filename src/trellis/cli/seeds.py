"""`trellis train --seeds`: one run for each of several seeds, and what they have in common."""

import argparse
import json
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from trellis import experiments, loops, runtime
from trellis.cli.experiments import resolve_flags
from trellis.disk import local_path, write_whole
from trellis.errors import ArgumentError, RunFailedError
from trellis.experiments import get_mode
from trellis.extensions import read_summaries
from trellis.json_text import without_nan
from trellis.runtime import print_line, table


def train_seeds(flags: argparse.Namespace, train: Callable[[argparse.Namespace], None]) -> None:
    """Trains once for each seed, into `{model_dir}/seed_{seed}`; prints and writes the mean of their final metrics.

    Args:
        train: Trains as flags without seeds say.
    """
    seeds = read_seeds(flags.seeds)
    mode = get_mode(flags.mode)
    if not mode.trains or mode.follows:
        raise ArgumentError(f"--seeds is for a training, but the mode is {mode}. Leave out one of them.")
    directory = local_path(flags.model_dir, name="--model_dir")
    if flags.together:
        _train_together(flags, seeds, directory)
    for seed in () if flags.together else seeds:
        print_line(f"Seed {seed}:")
        settings = [*flags.set, f"runtime.seed={seed}"]
        model_dir = str(directory / f"seed_{seed}")
        train(argparse.Namespace(**{**vars(flags), "seeds": None, "set": settings, "model_dir": model_dir}))
    metrics = {seed: _final_metrics(directory / f"seed_{seed}") for seed in seeds}
    names = [name for name in metrics[seeds[0]] if all(name in metrics[seed] for seed in seeds)]
    columns = {name: [metrics[seed][name] for seed in seeds] for name in names}
    means = {name: {"mean": statistics.fmean(c), "deviation": _deviation(c)} for name, c in columns.items()}
    file = directory / "seeds.json"
    write_whole(file, f"{json.dumps(without_nan({'seeds': metrics, 'metrics': means}), indent=1)}\n".encode())
    rows = [["metric", "mean", "deviation", *(f"seed {seed}" for seed in seeds)]]
    for name, values in columns.items():
        numbers = [means[name]["mean"], means[name]["deviation"], *values]
        rows.append([name, *(f"{number:.6g}" for number in numbers)])
    print_line("\n".join([*table(rows), f"The same for programs: {file}"]))


def _train_together(flags: argparse.Namespace, seeds: Sequence[int], directory: Path) -> None:
    """Trains with all seeds as one program."""
    _refuse_with_together(flags)
    params_of = {}
    for seed in seeds:
        model_dir = directory / f"seed_{seed}"
        own = argparse.Namespace(**{**vars(flags), "set": [*flags.set, f"runtime.seed={seed}"]})
        params_of[seed] = resolve_flags(own, mode=flags.mode, model_dir=str(model_dir))
    print_line(f"{flags.experiment}, {flags.mode}: {len(seeds)} seeds as one program. It writes to {directory}.")
    # This loads JAX, when all that can be known without it is known to be right.
    loops.begin_command()
    runtime.keep_programs()
    runs = [
        experiments.ReplicaRun(name=f"seed {seed}", params=params, model_dir=directory / f"seed_{seed}")
        for seed, params in params_of.items()
    ]
    errors = experiments.run_replicas(runs, mode=flags.mode, paths=["runtime.seed"])
    failed = [(seed, error) for seed, error in zip(seeds, errors, strict=True) if error is not None]
    if failed:
        listed = "\n".join(f"  seed {seed}: {error}" for seed, error in failed)
        raise RunFailedError(f"{len(failed)} of {len(seeds)} seeds have failed:\n{listed}") from failed[0][1]


def _refuse_with_together(flags: argparse.Namespace) -> None:
    """Raises an error for flags of a run that one among several in a program cannot follow."""
    given = [name for name in ("profile", "gin_file", "gin_params", "allow_changes") if getattr(flags, name, None)]
    if given:
        raise ArgumentError(f"--{given[0]} is for one run in a program of its own. Leave out that or --together.")


def read_seeds(text: str) -> Sequence[int]:
    """Returns the seeds of a flag: two or more whole numbers, each once."""
    parts = [part.strip() for part in text.split(",")]
    wrong = [part for part in parts if not part.isdecimal()]
    way_out = "Give whole numbers with commas between: --seeds=0,1,2"
    if wrong:
        raise ArgumentError(f"--seeds is {text!r}, but {wrong[0]!r} is no seed. {way_out}")
    seeds = [int(part) for part in parts]
    twice = [seed for seed in seeds if seeds.count(seed) > 1]
    if twice:
        raise ArgumentError(f"--seeds is {text!r}, which has {twice[0]} twice. Give each seed once.")
    if len(seeds) < 2:
        raise ArgumentError(f"--seeds is {text!r}: a deviation needs two seeds or more. {way_out}")
    return seeds


def _deviation(values: Sequence[float]) -> float:
    return statistics.stdev(values) if all(map(math.isfinite, values)) else math.nan


def _final_metrics(model_dir: Path) -> dict[str, float]:
    """The metrics of the last evaluation of a run, or its training loss."""
    summaries = read_summaries(model_dir / "events.jsonl")
    if not summaries:
        return {}
    groups = summaries[max(summaries)]["metrics"]
    group = "eval" if "eval" in groups else "train"
    return {f"{group}/{name}": float(value) for name, value in groups.get(group, {}).items()}
