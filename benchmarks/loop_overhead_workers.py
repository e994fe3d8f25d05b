"""Part A: contenders in processes of their own that stay warm, measured in turn, round after round."""

import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from typing import Self

from loop_overhead_workloads import BATCH_SIZE, N_EXAMPLES, build_workload

N_STEPS = N_EXAMPLES // BATCH_SIZE
"""The steps of one measurement: an epoch, so that a peer that thinks in epochs starts only one."""


@dataclass(frozen=True)
class Group:
    """Contenders of one module that share a process."""

    module: str
    contenders: tuple[str, ...]


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
)
PEERS = (
    Group("loop_overhead_keras", ("Keras fit", "Keras fit, steps_per_execution=50")),
    Group("loop_overhead_torch", ("plain torch",)),
    Group("loop_overhead_torch", ("Lightning", "Lightning barebones")),
    Group("loop_overhead_torch", ("Hugging Face Trainer",)),
)


@dataclass(frozen=True)
class Measurement:
    """One contender in one round, in microseconds a step."""

    workload: str
    contender: str
    round: int
    wall: float
    host: float
    """The processor time of the main thread: what the loop costs it, however busy the machine is."""


class Worker:
    """A process that measures on request, and sleeps in between."""

    def __init__(self, group: Group) -> None:
        self._errors = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            [sys.executable, __file__, group.module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def measure(self, workload: str, contender: str) -> tuple[float, float]:
        """Wall time and main-thread time of `N_STEPS` steps, in seconds; the first request also builds and compiles."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps([workload, contender]), file=self._process.stdin, flush=True)
        reply = self._process.stdout.readline()
        if not reply:
            self._errors.seek(0)
            raise RuntimeError(f"The process of {contender!r} failed:\n{self._errors.read()}")
        wall, host = json.loads(reply)
        return wall, host

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def measure_steps(workloads: Sequence[str], *, n_rounds: int, with_peers: bool) -> Iterator[Measurement]:
    """Measures every contender once a round, in an order that is rotated from round to round."""
    with ExitStack() as stack:
        contenders = []
        for group in (OURS, *PEERS) if with_peers else (OURS,):
            worker = stack.enter_context(Worker(group))
            contenders += [(worker, name) for name in group.contenders]
        for workload in workloads:
            for worker, name in contenders:
                print(f"  {workload}: warming up {name}", flush=True)
                worker.measure(workload, name)
            for i in range(n_rounds):
                print(f"  {workload}: round {i + 1} of {n_rounds}", flush=True)
                first = i % len(contenders)
                for worker, name in contenders[first:] + contenders[:first]:
                    wall, host = worker.measure(workload, name)
                    yield Measurement(workload, name, i, wall / N_STEPS * 1e6, host / N_STEPS * 1e6)


def serve(module: str) -> None:
    """Answers the requests of a `Worker`; what contenders print goes nowhere."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    contenders = importlib.import_module(module).CONTENDERS
    workload_of = cache(build_workload)

    @cache
    def run_of(workload: str, contender: str) -> Callable[[int], float]:
        run: Callable[[int], float] = contenders[contender](workload_of(workload))
        run(N_STEPS)
        return run

    for line in sys.stdin:
        run = run_of(*json.loads(line))
        started = time.thread_time()
        wall = run(N_STEPS)
        print(json.dumps([wall, time.thread_time() - started]), file=replies, flush=True)


if __name__ == "__main__":
    serve(sys.argv[1])
