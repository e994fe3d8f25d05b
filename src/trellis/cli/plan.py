"""`trellis plan`: a run before its first step, and whether it has room on devices that need not be there."""

import argparse
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trellis import experiments
from trellis.cli.experiments import resolve_flags
from trellis.cli.gin_bindings import check_gin_flags, gin_bindings
from trellis.cli.parser import Parser
from trellis.cli.train import add_flags as add_train_flags, check_checkpoint, given_model_dir, profiled_steps
from trellis.config import DEFAULT, Problem, raise_if_any
from trellis.errors import ArgumentError
from trellis.experiments import Candidate, ExperimentConfig, Speed, get_mode
from trellis.remote import shown, working_directory
from trellis.runtime import ONE_DEVICE, chip_names, chip_peak, print_coloured, print_json, print_line
from trellis.spelling import did_you_mean

_EPILOG = """\
Nothing is run or written. With --devices the step is compiled for so many devices, which need not be there, and
what it takes of each is told; with --memory, whether that fits; with --fit, changes that make it fit, and their price.
Exit codes: 0 nothing is wrong, 2 something is, or it does not fit.

  trellis plan --experiment=digits/classifier --model_dir=runs/digits
  trellis plan --config_file=run.yaml --model_dir=runs/large --devices=8 --memory=80GB --fit
  trellis plan --config_file=run.yaml --model_dir=runs/large --devices=8 --memory=80GB --fit --chip=400e12 --link=50GB
"""
_COLOURS = (r"^(?P<bold>[A-Z]\w*(?: \w+)?)  ", r"^(?P<yellow>No effect)  ")
_UNITS = {"": 1, **{f"{unit}B": 1000**power for power, unit in enumerate(("", "K", "M", "G", "T"))}} | {
    f"{unit}iB": 1024**power for power, unit in enumerate(("K", "M", "G", "T"), 1)
}
_LEAST_MEMORY = 1_000_000


def add_flags(parser: Parser) -> None:
    """Adds the flags of `train`, and those about devices."""
    add_train_flags(parser)
    parser.epilog = _EPILOG
    text = "compile the step for so many devices, and tell what it takes of each"
    parser.add_flag("devices", "N", text, type=_number)
    text = "what a device has, such as 80GB, 80GiB or 80e9: tell whether the step fits"
    parser.add_flag("memory", "SIZE", text)
    text = "if it does not fit, look for the smallest changes that make it fit"
    parser.add_argument("--fit", action="store_true", help=text)
    text = "tell times for this chip, such as H200, or for as many FLOPs a second as one reaches, such as 400e12"
    parser.add_flag("chip", "NAME", text)
    parser.add_flag("link", "SIZE", "what a device sends to others in a second, such as 50GB; with --chip")
    parser.add_json_flag()


def read_memory(text: str, *, name: str = "--memory") -> int:
    """The bytes that a text such as `80GB`, `80GiB` or `80e9` stands for.

    Example:
        >>> read_memory("80GB"), read_memory("1.5 GiB")
        (80000000000, 1610612736)
    """
    number = re.fullmatch(r"\s*(\d+(?:\.\d*)?(?:[eE]\+?\d+)?)\s*([a-zA-Z]*)\s*", text)
    units = {unit.lower(): size for unit, size in _UNITS.items()}
    if number is None or number[2].lower() not in units:
        raise ArgumentError(f"{name} is {text!r}. Write it as 80GB (10⁹ bytes each), 80GiB (2³⁰ each) or 80e9.")
    n_bytes = int(float(number[1]) * units[number[2].lower()])
    if n_bytes < _LEAST_MEMORY:
        raise ArgumentError(f"{name} is {text!r}, which is {n_bytes} bytes. Write the unit, too: 80GB or 80GiB.")
    return n_bytes


def plan(flags: argparse.Namespace) -> None:
    """Prints what a run would do, then all that is wrong with it; nothing is run or written."""
    mode = get_mode(flags.mode)
    check_checkpoint(flags)
    memory, speed = _checked_memory(flags), _checked_speed(flags)
    if flags.devices and not mode.trains:
        raise ArgumentError(f"--devices is about a training step, but --mode={flags.mode} trains nothing.")
    if flags.devices:
        _pretend_devices(flags.devices)
    run = working_directory(given_model_dir(flags), name="--model_dir", writes=False, is_outline=True)
    params = _on_devices(resolve_flags(flags), flags.devices)
    profiled_steps(flags, params)
    check_gin_flags(flags)
    answer: dict[str, Any] = {}
    with run as directory, gin_bindings(flags):
        answer |= {"experiment": flags.experiment, "mode": flags.mode, "model_dir": shown(directory)}
        # Names and types are right. The rest needs JAX, and all problems with it are reported together.
        result = experiments.plan_experiment(
            params,
            mode=flags.mode,
            model_dir=directory,
            allow_changes=flags.allow_changes,
            checkpoint=flags.checkpoint,
        )
        report = result.report.replace(str(directory), shown(directory)).removesuffix("\n")
        answer |= {"report": report.splitlines(), "problems": [str(problem) for problem in result.problems]}
        if not flags.json:
            print_line(f"{answer['experiment']}, {answer['mode']}, in {answer['model_dir']}")
            for line in flags.idle:
                print_line(line)
            if report:
                print_coloured(report, _COLOURS)
        if flags.devices and not result.problems:
            candidates = _tell_fit(params, flags, memory=memory, speed=speed, directory=directory)
            answer["fit"] = _as_json(candidates, flags.devices, memory, speed)
            result.problems.extend(_fit_problems(candidates, memory=memory))
            answer["problems"] = [str(problem) for problem in result.problems]
    if flags.json:
        print_json(answer)
    raise_if_any(result.problems)
    if not flags.json:
        print_line("Nothing is wrong with it. `trellis train` with the same flags runs it.")


def _checked_memory(flags: argparse.Namespace) -> int | None:
    if flags.fit and not flags.memory:
        raise ArgumentError("--fit is given without --memory. Say what a device has, such as --memory=80GB.")
    if flags.memory is not None and not flags.devices:
        raise ArgumentError("--memory is given without --devices. Say how many there are, such as --devices=8.")
    return None if flags.memory is None else read_memory(flags.memory)


def _checked_speed(flags: argparse.Namespace) -> Speed | None:
    if flags.chip is None and flags.link is None:
        return None
    if not flags.devices:
        raise ArgumentError("--chip and --link are about --devices, which is not given. Say how many, as --devices=8.")
    if flags.chip is None:
        raise ArgumentError(
            "--link is given without --chip. Name one, such as --chip=H200, or give its FLOPs a second."
        )
    if flags.link is None and flags.devices > 1:
        raise ArgumentError("--chip is given without --link. Say what a device sends in a second, such as --link=50GB.")
    link = float("inf") if flags.link is None else read_memory(flags.link, name="--link")
    return Speed(flops=_flops_of(flags.chip), link=link)


def _flops_of(chip: str) -> float:
    if re.fullmatch(r"\d+(\.\d*)?([eE]\+?\d+)?", chip) and float(chip) > 0:
        return float(chip)
    peak = chip_peak(chip)
    if peak is None:
        names = chip_names()
        raise ArgumentError(
            f"--chip is {chip!r}.{did_you_mean(chip, names)} Known are {', '.join(names)}; of any other give how many "
            f"FLOPs it computes in a second, such as 400e12."
        )
    return peak.flops


def _pretend_devices(n_devices: int) -> None:
    """Has JAX, when it is loaded, find so many devices, which share this machine's processor: nothing runs on them."""
    if "jax" not in sys.modules:
        os.environ["JAX_PLATFORMS"] = "cpu"
        # What XLA says of arrangements that are tried, and perhaps not taken.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        # What is compiled is looked at, and not run: its code need not be good.
        own = f"--xla_force_host_platform_device_count={n_devices} --xla_backend_optimization_level=0"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {own}"


def _on_devices(params: ExperimentConfig, n_devices: int | None) -> ExperimentConfig:
    if n_devices is None:
        return params
    strategy = params.runtime.distribution_strategy
    if n_devices > 1 and strategy in ONE_DEVICE:
        raise ArgumentError(
            f"--devices is {n_devices}, but runtime.distribution_strategy={strategy} uses one. Give --devices=1, or "
            f"--set=runtime.distribution_strategy=mirrored"
        )
    changed = params.replace(runtime={"num_gpus": n_devices})
    changed.lock()
    return changed


def _tell_fit(
    params: ExperimentConfig, flags: argparse.Namespace, *, memory: int | None, speed: Speed | None, directory: Path
) -> list[Candidate]:
    """Compiles the step, tells what it takes, and looks for changes if that is asked for and needed."""
    known: list[Candidate] = []

    def tell(candidate: Candidate) -> None:
        known.append(candidate)
        if len(known) == 1:
            lines = _first_lines(candidate, flags.devices, memory, speed)
        else:
            lines = _more_lines(known, memory, speed)
        for line in () if flags.json else lines:
            print_coloured(line, _COLOURS)

    if memory is not None and flags.fit:
        experiments.search_fit(params, n_devices=flags.devices, memory=memory, model_dir=directory, when_known=tell)
    else:
        cost = experiments.cost_of(params, n_devices=flags.devices, model_dir=directory, memory=memory)
        tell(Candidate(settings={}, cost=cost))
    return known


def _first_lines(first: Candidate, n_devices: int, memory: int | None, speed: Speed | None) -> Iterator[str]:
    """Yields what is told of the step as it is."""
    assert first.cost is not None
    yield f"{'Step':<11}compiled for {n_devices} devices{f' of {experiments.gib(memory)}' if memory else ''}"
    for line in experiments.describe_cost(first.cost, speed=speed):
        yield f"{'':<11}{line}"
    if memory is not None and first.fits(memory):
        yield f"{'':<11}it fits, and leaves {experiments.gib(memory - first.cost.total)}"


def _more_lines(known: list[Candidate], memory: int | None, speed: Speed | None) -> Iterator[str]:
    """Yields what is told of the newest change, below that of the others."""
    first = known[0].cost
    assert first is not None and memory is not None
    if len(known) == 2:
        yield f"{'Changes':<11}{experiments.heading(speed)}"
        yield f"{'':<11}{experiments.describe_candidate(known[0], first=first, memory=memory, speed=speed)}"
    yield f"{'':<11}{experiments.describe_candidate(known[-1], first=first, memory=memory, speed=speed)}"


def _fit_problems(candidates: list[Candidate], *, memory: int | None) -> Iterator[Problem]:
    if memory is None or candidates[0].fits(memory) or candidates[0].cost is None:
        return
    first = candidates[0].cost
    least = "" if first.temporaries is not None else "at least "
    message = (
        f"The step takes {least}{experiments.gib(first.total)} of each device, which has {experiments.gib(memory)}."
    )
    fitting = [candidate for candidate in candidates if candidate.fits(memory)]
    if fitting:
        lines = "\n".join(candidate.flags for candidate in fitting)
        yield Problem(message, DEFAULT, advice="Add one of these lines; what they cost stands above:", fix=lines)
    elif len(candidates) > 1:
        yield Problem(
            message, DEFAULT, advice="No change that was tried is enough: take more devices or a smaller batch."
        )
    else:
        yield Problem(message, DEFAULT, advice="With --fit changes are looked for that need less.")


def _as_json(candidates: list[Candidate], n_devices: int, memory: int | None, speed: Speed | None) -> dict[str, Any]:
    return {
        "devices": n_devices,
        "memory": memory,
        "fits": None if memory is None else candidates[0].fits(memory),
        "candidates": [
            {
                "settings": dict(candidate.settings),
                "flags": candidate.flags,
                "fits": None if memory is None else candidate.fits(memory),
                "reason": candidate.reason,
            }
            | ({} if candidate.cost is None else {"total": candidate.cost.total, **_cost_as_json(candidate, speed)})
            for candidate in candidates
        ],
    }


def _cost_as_json(candidate: Candidate, speed: Speed | None) -> dict[str, Any]:
    cost = candidate.cost
    assert cost is not None
    values = {"held": dict(cost.held), "gradients": cost.gradients, "temporaries": cost.temporaries}
    values |= {"examples": cost.n_examples, "flops": cost.flops, "sent": dict(cost.sent)}
    return values | ({} if speed is None else {"seconds": cost.seconds(speed)})


def _number(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of devices: give one such as 8")
    return number
