"""`trellis launch`: a command in several processes, by an engine."""

import argparse
import math
import os
from collections.abc import Sequence
from pathlib import Path

from trellis import launch as engines
from trellis.cli import run, train
from trellis.cli.experiments import resolve_flags
from trellis.cli.main import main
from trellis.cli.parser import Parser
from trellis.errors import ArgumentError
from trellis.experiments import get_mode, leaves_of
from trellis.runtime import print_line

_EPILOG = """\
What follows the two dashes is a command of trellis, train or run, as on one machine. Its processes share out each
batch, and have the losses of one.
Exit codes: those of the command.

  trellis launch --processes=2 --restarts=3 -- train --experiment=digits/classifier --mode=train --model_dir=runs/digits
  trellis launch --on=ray --processes=2:4 --restarts=3 -- train --config_file=run.yaml …
  trellis launch --on=slurm --processes=8 --sbatch='--gpus-per-task=1 --time=4:00:00' -- train --config_file=run.yaml …
"""
_LAUNCHED = {"train": train.add_flags, "run": run.add_flags}
_BATCH_SIZE = "task.train_data.global_batch_size"
_ENGINES = {"address": "ray", "gpus_per_process": "ray", "sbatch": "slurm", "lead_time": "slurm"}
"""Flags that mean nothing to any other engine."""


def add_flags(parser: Parser) -> None:
    """Adds the flags, and the command behind them."""
    parser.epilog = _EPILOG
    text = "who starts the processes: this machine (local), Ray (ray) or SLURM (slurm)"
    parser.add_flag("on", "ENGINE", text, default="local", choices=("local", "ray", "slurm"))
    text = "how many processes; ray: or the fewest and the most, as in 2:4"
    parser.add_flag("processes", "N", text, type=_numbers, required=True)
    text = "how often all are started again when one has failed; the default is never"
    parser.add_flag("restarts", "K", text, type=int, default=0)
    text = "how long a process may be silent, or be stopped, until the run ends and names it; the default is 60"
    parser.add_flag("worker_timeout", "SECONDS", text, type=float)
    text = "the same for one that is at one place, in a step or waiting for input; the default is 1800"
    parser.add_flag("progress_timeout", "SECONDS", text, type=float)
    text = "how long the processes wait for each other when they start; the default is 300"
    parser.add_flag("join_timeout", "SECONDS", text, type=float)
    parser.add_flag("logs", "DIR", "where the output of the processes goes; the default is in the model_dir")
    parser.add_flag("address", "HOST:PORT", "ray: of the cluster; the default is RAY_ADDRESS, or this machine")
    text = "ray: how many GPUs a process takes, one process a machine; the default is none"
    parser.add_flag("gpus_per_process", "N", text, type=int, default=0)
    text = "slurm: options of sbatch, such as '--partition=gpu --time=4:00:00'"
    parser.add_flag("sbatch", "OPTIONS", text, default="")
    text = "slurm: how many seconds before its time is over the job is told to save and stop; the default is 120"
    parser.add_flag("lead_time", "SECONDS", text, type=int, default=120)
    parser.takes_command = True


def launch(flags: argparse.Namespace) -> int:
    """Starts a command in several processes; returns its exit code."""
    if not flags.command or flags.command[0] not in _LAUNCHED:
        first = f"{flags.command[0]!r}" if flags.command else "nothing"
        raise ArgumentError(
            f"What is launched is {first}. Write train or run, with its flags, behind two dashes: "
            f"trellis launch --processes=2 -- train --experiment=…"
        )
    _check_engine(flags)
    for name in ("restarts", "gpus_per_process", "lead_time"):
        if getattr(flags, name) < 0:
            raise ArgumentError(f"--{name} is {getattr(flags, name)}, but it is at least 0.")
    for name in ("worker_timeout", "progress_timeout", "join_timeout"):
        _pass_on(name, getattr(flags, name))
    log_dir = Path(flags.logs) if flags.logs else _default_log_dir(flags.command)
    if flags.on == "ray":
        ray = engines.RayOptions(address=flags.address, n_gpus=flags.gpus_per_process, n_restarts=flags.restarts)
        if flags.command[0] == "run":
            return engines.launch_workers_on_ray(
                flags.command, n_processes=_one_number(flags), log_dir=log_dir, options=ray
            )
        fewest, most = flags.processes
        n_processes = most
        if fewest != most:
            _check_every_number(flags)
            n_processes = flags.processes
        return engines.launch_on_ray(main, flags.command, n_processes=n_processes, log_dir=log_dir, options=ray)
    n_processes = _one_number(flags)
    if flags.on == "local":
        return engines.launch_local(flags.command, n_processes=n_processes, log_dir=log_dir, n_restarts=flags.restarts)
    # A job waits for its turn, and its mistakes would wait with it.
    _check_command(flags.command)
    options = engines.SlurmOptions(
        lead_time=flags.lead_time, n_restarts=flags.restarts, options=tuple(flags.sbatch.split())
    )
    job = engines.launch_on_slurm(flags.command, n_processes=n_processes, log_dir=log_dir, options=options)
    print_line(f"Job {job} is submitted: {log_dir / 'slurm.sh'}")
    print_line(f"Its output:        {log_dir / f'slurm-{job}.log'}")
    print_line(f"To see its state:  squeue --job={job}")
    print_line(f"To stop and save:  scancel --signal=TERM {job}     (to end it for good: scancel {job})")
    return 0


def _check_engine(flags: argparse.Namespace) -> None:
    """Raises an error if there are flags that the engine knows nothing of."""
    for name, engine in _ENGINES.items():
        if name in flags.flags_read and engine != flags.on:
            raise ArgumentError(
                f"--{name} is for --on={engine}, and --on is {flags.on}. Leave it out, or write --on={engine}."
            )


def _check_command(command: Sequence[str]) -> None:
    """Raises an error if a flag, a name or a type of it is wrong."""
    flags = _flags_of(command)
    if command[0] == "train":
        get_mode(flags.mode)
        resolve_flags(flags)


def _flags_of(command: Sequence[str]) -> argparse.Namespace:
    word, *rest = command
    parser = Parser(word, "the command")
    _LAUNCHED[word](parser)
    return parser.read(rest)


def _check_every_number(flags: argparse.Namespace) -> None:
    """Raises an error if a batch cannot be shared out over some of the numbers of processes that Ray may choose."""
    params = resolve_flags(_flags_of(flags.command))
    size, _ = leaves_of(params).get(_BATCH_SIZE, (None, None))
    fewest, most = flags.processes
    n_devices, n_together = max(1, flags.gpus_per_process), max(1, params.runtime.mesh.model)
    parts = {number: max(1, number * n_devices // n_together) for number in range(fewest, most + 1) if number > 0}
    if not isinstance(size, int):
        return
    odd = [str(number) for number, n_parts in parts.items() if size % n_parts]
    if odd:
        good = math.lcm(*parts.values())
        raise ArgumentError(
            f"--processes is {fewest}:{most}, of which Ray takes as many as there is room for, but a batch of {size} "
            f"examples cannot be shared out over {' or '.join(odd)}. Give one number, a narrower range, or a batch "
            f"that all of them divide: --set={_BATCH_SIZE}={max(1, round(size / good)) * good}"
        )


def _pass_on(name: str, seconds: float | None) -> None:
    """Tells the processes of a time, by the variable that they read."""
    if seconds is not None and not seconds > 0:
        raise ArgumentError(f"--{name} is {seconds:g}. Give a number of seconds above 0.")
    if seconds is not None:
        os.environ[f"TRELLIS_{name.upper()}"] = f"{seconds:g}"


def _numbers(text: str) -> tuple[int, int]:
    fewest, colon, most = text.partition(":")
    try:
        return int(fewest), int(most if colon else fewest)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of processes, such as 2 or, for ray, 2:4") from None


def _one_number(flags: argparse.Namespace) -> int:
    fewest, most = flags.processes
    if fewest != most:
        raise ArgumentError(
            f"--processes is {fewest}:{most}, but only `train` on Ray runs in as many processes as there is room for. "
            f"Give one number."
        )
    return int(most)


def _default_log_dir(command: Sequence[str]) -> Path:
    """A folder of the directory that the command writes to."""
    for number, argument in enumerate(command):
        name, _, value = argument.partition("=")
        if name in ("--model_dir", "--model_run"):
            following = command[number + 1] if number + 1 < len(command) else ""
            return Path(value or following, "logs")
    return Path("logs")
