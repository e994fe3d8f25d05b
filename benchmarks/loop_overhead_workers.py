"""Part A: contenders in processes of their own that stay warm, measured in turn, round after round."""

import importlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from typing import Self

from loop_overhead_workloads import WORKLOADS, build_workload

N_ROUNDS_OF_A_PROCESS = 3
"""Then all start anew: where a process happens to lay its programs and arrays is worth some percent."""


@dataclass(frozen=True)
class Group:
    """Contenders of one module that share a process."""

    module: str
    contenders: tuple[str, ...]
    n_slices: int = 1
    """Into how many parts a measurement is cut, in which the contenders take turns."""


# Raw JAX and Trellis share a process, so that they are compared within one; no two frameworks do.
OURS = Group(
    "loop_overhead_jax",
    (
        "raw jit",
        "Trellis unfused",
        "raw scan",
        "Trellis fused, 50 a checkpoint",
        "Trellis fused, 100 a checkpoint",
    ),
    n_slices=5,
)
OURS_UNSCANNED = replace(OURS, contenders=("raw jit", "Trellis"))
KERAS = Group("loop_overhead_keras", ("Keras fit", "Keras fit, steps_per_execution=50"))
PEERS = (
    KERAS,
    Group("loop_overhead_torch", ("plain torch",)),
    Group("loop_overhead_torch", ("Lightning", "Lightning barebones")),
    Group("loop_overhead_torch", ("Hugging Face Trainer",)),
)


def groups_of(workload: str, *, with_peers: bool) -> tuple[Group, ...]:
    """Those that a workload is measured by."""
    if WORKLOADS[workload].is_scanned:
        return (OURS, *PEERS) if with_peers else (OURS,)
    one_by_one = replace(KERAS, contenders=KERAS.contenders[:1])
    return (OURS_UNSCANNED, one_by_one, *PEERS[1:]) if with_peers else (OURS_UNSCANNED,)


@dataclass(frozen=True)
class Measurement:
    """One contender in one round, in microseconds a step."""

    workload: str
    contender: str
    round: int
    wall: float
    host: float
    """The processor time of the main thread: what the loop costs it, however busy the machine is."""
    processor: float
    """That of all threads: what is computed, however long it waits for a core."""


class Worker:
    """A process that measures on request, and sleeps in between."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  (open as long as the process)
        self._process = subprocess.Popen(
            [sys.executable, __file__, group.module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def measure(self, workload: str) -> dict[str, tuple[float, float, float]]:
        """Seconds of each contender: by the clock, of the main thread, of all. The first request also compiles."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps([workload, self.group.contenders, self.group.n_slices]), file=self._process.stdin, flush=True)
        reply = self._process.stdout.readline()
        if not reply:
            self._errors.seek(0)
            raise RuntimeError(f"The process of {self.group} failed:\n{self._errors.read()}")
        return {name: tuple(seconds) for name, seconds in json.loads(reply).items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def measure_steps(workloads: Sequence[str], *, n_rounds: int, with_peers: bool) -> Iterator[Measurement]:
    """Measures every contender once a round, in an order that is rotated from round to round."""
    for workload in workloads:
        groups = groups_of(workload, with_peers=with_peers)
        per_step = 1e6 / WORKLOADS[workload].n_steps
        for start in range(0, n_rounds, N_ROUNDS_OF_A_PROCESS):
            with ExitStack() as stack:
                workers = [stack.enter_context(Worker(group)) for group in groups]
                for worker in workers:
                    print(f"  {workload}: warming up {', '.join(worker.group.contenders)}", flush=True)
                    worker.measure(workload)
                for i in range(start, min(start + N_ROUNDS_OF_A_PROCESS, n_rounds)):
                    print(f"  {workload}: round {i + 1} of {n_rounds}", flush=True)
                    first = i % len(workers)
                    for worker in workers[first:] + workers[:first]:
                        for name, seconds in worker.measure(workload).items():
                            yield Measurement(workload, name, i, *(part * per_step for part in seconds))


def serve(module: str) -> None:
    """Answers the requests of a `Worker`; what contenders print goes nowhere."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    contenders = importlib.import_module(module).CONTENDERS
    workload_of = cache(build_workload)

    @cache
    def run_of(workload: str, contender: str) -> Callable[[int], float]:
        run: Callable[[int], float] = contenders[contender](workload_of(workload))
        run(WORKLOADS[workload].n_steps)
        return run

    chance = random.Random(0)
    for line in sys.stdin:
        workload, names, n_slices = json.loads(line)
        n_steps = WORKLOADS[workload].n_steps // n_slices
        seconds = {name: [0.0, 0.0, 0.0] for name in names}
        for _ in range(n_slices):
            # By chance: one that always came after the same other would be measured on what that one left behind.
            for name in chance.sample(names, len(names)):
                run = run_of(workload, name)
                started = time.thread_time(), time.process_time()
                seconds[name][0] += run(n_steps)
                seconds[name][1] += time.thread_time() - started[0]
                seconds[name][2] += time.process_time() - started[1]
        print(json.dumps(seconds), file=replies, flush=True)


if __name__ == "__main__":
    serve(sys.argv[1])
