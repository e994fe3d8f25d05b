"""An experiment on several processes: what they check of each other before anything is compiled, and how they run."""

import os
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

import jax

from trellis.disk import describe_failure, hidden_path, write_whole
from trellis.errors import ArgumentError, FileWriteError, ProcessLostError, RunFailedError
from trellis.experiments.experiment import ExperimentConfig
from trellis.experiments.mode import get_mode
from trellis.experiments.reports import leaves_of, versions
from trellis.experiments.run import check_directory, run_in_turn
from trellis.runtime import (
    ONE_DEVICE,
    agreed,
    capitalized,
    failing_together,
    gathered,
    is_first_process,
    join_seconds,
    print_line,
    process_name,
    sum_over_processes,
    wait_for_processes,
    watching_processes,
)
from trellis.tasks import BoundModel

_MOST_LISTED = 5
_ALIKE = ("mode", "checkpoint", "pretrain_steps", "allow_changes")
"""The options of a run that all processes have to be given alike; what else one has is its own affair."""
_LOST = ("Gloo", "NCCL", "closed by peer", "reset by peer")
"""What JAX says when it computes with a process that is gone."""
_SECONDS_TO_APPEAR = 5.0
"""How long a file of one machine may take to be seen by another: network file systems keep what they have seen."""


def run_on_processes(
    params: ExperimentConfig,
    *,
    when_ready: Callable[[], object] = lambda: None,
    bindings: Sequence[str] = (),
    **options: Any,
) -> tuple[BoundModel, dict[str, float]]:
    """Runs an experiment as `run_experiment` does, with the processes that this one has joined, if there are any.

    They share out each batch, and have the losses of one; the first writes. Before anything is compiled they check that
    they run the same code and config in the same way, that their devices can add up a number, and that `model_dir` is
    one directory. If one of them stops or gets stuck, all end, with its name.

    Args:
        bindings: Of arguments, from outside the library, which have to be the same in all processes, too.
    """
    with failing_together():
        _check_strategy(params)
        if jax.process_count() == 1:
            return run_in_turn(params, when_ready=when_ready, **options)
        mode = get_mode(options["mode"])
        model_dir = options.get("model_dir")
        if model_dir is not None:
            check_directory(model_dir, mode)
        with watching_processes(), naming_loss():
            own = identity_of(params, options=options, bindings=bindings)
            _check_each_other(own, model_dir, trains=mode.trains)
            result = run_in_turn(params, when_ready=when_ready, **options)
            # JAX ends a process whose first one is gone.
            wait_for_processes("ending the run")
        return result


@contextmanager
def naming_loss() -> Iterator[None]:
    """Says in words what JAX raises when it computes with a process that is gone."""
    try:
        yield
    except (jax.errors.JaxRuntimeError, ValueError) as error:  # the latter if it is known as the call begins
        if not any(name in str(error) for name in _LOST):
            raise
        name = capitalized(process_name(jax.process_index()))
        text = f"{name} has lost another process, as it computed with it. Look at the output of the others for why."
        raise ProcessLostError(text) from error


def _check_strategy(params: ExperimentConfig) -> None:
    """Raises an error if a config asks for devices of one process, and there are several."""
    n_processes = jax.process_count()
    strategy, n_gpus = params.runtime.distribution_strategy, params.runtime.num_gpus
    if n_processes == 1:
        if strategy == "multi_worker_mirrored":
            print_line(
                "runtime.distribution_strategy is multi_worker_mirrored, but this process is alone: it takes the "
                "devices of this machine. To have others, start the same command on each machine with "
                "JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID, or TF_CONFIG."
            )
        return
    if strategy in ONE_DEVICE or n_gpus:
        setting = f"runtime.num_gpus={n_gpus}" if n_gpus else f"runtime.distribution_strategy={strategy}"
        raise ArgumentError(
            f"{setting} uses devices of one worker, but there are {n_processes}. Set runtime.distribution_strategy to "
            f"multi_worker_mirrored and runtime.num_gpus to 0, or leave out workers."
        )


def _check_each_other(own: dict[str, str], model_dir: str | os.PathLike[str] | None, *, trains: bool) -> None:
    """Raises an error in all processes if one differs from the first, does not come, or sees another directory."""
    seconds = join_seconds()
    of_first = agreed(lambda: own)
    facts = {"devices": _own_devices(), "differences": find_differences(own, of_first)}
    everybody = gathered("comparing what they run", facts, seconds=seconds)
    names = [process_name(index) for index in range(len(everybody))]
    if is_first_process():
        print_line(describe_devices(names, [facts["devices"] for facts in everybody]))
    differing = [
        f"{name}: {text}" for name, facts in zip(names, everybody, strict=True) for text in facts["differences"]
    ]
    if differing:
        raise RunFailedError(
            f"Not all processes run the same, compared with {names[0]}:\n  " + "\n  ".join(differing) + "\n"
            "Start the same command with the same code and packages on all machines."
        )
    if model_dir is not None:
        _check_directory(Path(model_dir), names, trains=trains, seconds=seconds)
    n_devices = jax.device_count()
    total = sum_over_processes(range(1, n_devices + 1))
    if total != n_devices * (n_devices + 1) // 2:
        raise RunFailedError(
            f"The {n_devices} devices add up the numbers from 1 to {n_devices} to {total}: one of them is broken, or "
            f"what connects them. Test the machines one by one."
        )


def identity_of(
    params: ExperimentConfig, *, options: Mapping[str, Any] | None = None, bindings: Sequence[str] = ()
) -> dict[str, str]:
    """What has to be the same in all processes, by name: how they run, each value of the config, packages, all code."""
    given = {name: (options or {}).get(name) for name in _ALIKE}
    run = {name: str(value) for name, value in given.items() if value is not None}
    bound = {"what is bound by gin": "; ".join(bindings)} if bindings else {}
    config = {f"the config's {path}": str(value) for path, (value, _) in leaves_of(params).items()}
    packages = {f"the version of {name}": str(text) for name, text in versions().items()}
    return {**run, **bound, **packages, **dict(_sources()), **config}


def _sources() -> Iterator[tuple[str, str]]:
    """Yields checksums of code that has no version: ours, which may have been changed, and the user's."""
    own = Path(__file__).parents[1]
    checksum = 0
    for file in sorted(own.rglob("*.py")):
        checksum = zlib.crc32(file.read_bytes(), checksum)
    yield "the code of trellis", f"{checksum:08x}"
    for name, module in sorted(sys.modules.items()):
        file = Path(getattr(module, "__file__", None) or ".")
        is_installed = {"site-packages", "dist-packages"} & {*file.parts} or file.is_relative_to(sys.base_prefix)
        is_own = name.partition(".")[0] in ("trellis", "__main__")
        if file.suffix == ".py" and not is_installed and not is_own and file.is_file():
            yield f"the module {name}", f"{zlib.crc32(file.read_bytes()):08x}"


def find_differences(own: dict[str, str], of_first: dict[str, str]) -> list[str]:
    """Says in what a process differs from the first one."""
    names = [name for name in {**of_first, **own} if own.get(name) != of_first.get(name)]
    texts = [f"{name} is {own.get(name, 'missing')} and not {of_first.get(name, 'missing')}" for name in names]
    more = [f"and {len(texts) - _MOST_LISTED} more"] if len(texts) > _MOST_LISTED else []
    return [*texts[:_MOST_LISTED], *more]


def _own_devices() -> str:
    devices = jax.local_devices()
    numbers = [device.local_hardware_id for device in devices]
    known = [number for number in numbers if number is not None]
    shown = f" ({_ranges(known)})" if known and devices[0].platform != "cpu" else ""
    return f"{len(devices)} × {devices[0].device_kind}{shown}"


def describe_devices(names: list[str], devices: list[str]) -> str:
    """Says which process has which devices, those that are alike together.

    Args:
        names: Of the processes, such as `process 0 on node-a`.
    """
    hosts = [name.partition(" on ")[2] for name in names]
    parts = []
    for (host, kind), group in groupby(range(len(names)), lambda index: (hosts[index], devices[index])):
        numbers = list(group)
        each = " each" if len(numbers) > 1 else ""
        parts.append(f"{_ranges(numbers)} on {host}: {kind}{each}")
    return f"{len(names)} processes: {'; '.join(parts)}."


def _ranges(numbers: list[int]) -> str:
    """Numbers in short, such as `0-3, 6`."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)


def _check_directory(directory: Path, names: list[str], *, trains: bool, seconds: float) -> None:
    """Raises an error if the processes do not see one directory: the silent fault of a path that is not shared."""

    def leave_mark() -> str:
        mark = hidden_path(directory)
        try:
            write_whole(mark, b"")
        except FileWriteError:
            if trains:
                raise
            # A run that is only evaluated may be in a directory that nobody can write to.
            return ""
        return mark.name

    name = agreed(leave_mark)
    if not name:
        return
    mark = directory / name
    problems = gathered("looking at model_dir", _problem_with(mark, trains=trains), seconds=seconds)
    if is_first_process():
        mark.unlink(missing_ok=True)
    wrong = [f"{name} {problem}" for name, problem in zip(names, problems, strict=True) if problem]
    if wrong:
        raise RunFailedError(
            f"model_dir is `{directory}`, which all processes have to share, but {'; '.join(wrong)}. Give a directory "
            f"of a file system that all machines have mounted."
        )


def _problem_with(mark: Path, *, trains: bool) -> str:
    deadline = time.monotonic() + _SECONDS_TO_APPEAR
    # To list a directory has a network file system look again.
    while mark.name not in ({path.name for path in mark.parent.iterdir()} if mark.parent.is_dir() else ()):
        if time.monotonic() > deadline:
            return f"does not see what {process_name(0)} has written there"
        time.sleep(0.1)
    own = hidden_path(mark.parent)
    try:
        if trains:
            write_whole(own, b"")
            own.unlink()
    except (OSError, FileWriteError) as error:
        return f"cannot write there ({describe_failure(error)})"
    return ""
