"""Part C: the time from the start of a process to the end of its first training step."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from loop_overhead_workloads import LEARNING_RATE, WORKLOADS, Workload, build_workload


@dataclass(frozen=True)
class Started:
    """One start, in seconds."""

    contender: str
    round: int
    is_warm: bool
    """Whether JAX found its programs in the persistent compilation cache."""
    import_seconds: float
    seconds: float


def start_raw_jax(workload: Workload) -> float:
    """A jitted step; returns when the imports were done, as all of these do."""
    import jax
    import optax
    from loop_overhead_jax import build_model, build_state, build_step

    imported = time.time()
    model, optimizer = build_model(workload.name), optax.adam(LEARNING_RATE)
    step = jax.jit(build_step(model, optimizer), donate_argnums=0)
    jax.block_until_ready(step(build_state(model, optimizer, workload), workload.batch(0)))
    return imported


def start_trellis(workload: Workload) -> float:
    """One step of a TrainLoop."""
    import jax
    import optax
    from loop_overhead_jax import build_model, cross_entropy

    import trellis

    loop_class, task_class = trellis.TrainLoop, trellis.TrainTask
    imported = time.time()
    model = build_model(workload.name)
    stream = trellis.ExampleStream((workload.inputs, workload.labels), batch_size=workload.batch_size)
    task = task_class(apply=model.apply, optimizer=optax.adam(LEARNING_RATE), loss=cross_entropy, data=stream)
    loop = loop_class(init=model.init, task=task, rnkey=jax.random.key(0), stdout=False)
    jax.block_until_ready(loop.next_step().model_params)
    return imported


def start_keras(workload: Workload) -> float:
    """One step of `fit`."""
    from loop_overhead_keras import build_compiled_model

    imported = time.time()
    model = build_compiled_model(workload.name, steps_per_execution=1)
    model.fit(workload.inputs, workload.labels, batch_size=workload.batch_size, steps_per_epoch=1, verbose=0)
    return imported


def start_lightning(workload: Workload) -> float:
    """One step of a Trainer."""
    import lightning  # noqa: F401
    from loop_overhead_torch import STRIPPED, fit_with_lightning

    imported = time.time()
    fit_with_lightning(workload, 1, **STRIPPED)
    return imported


def start_hugging_face(workload: Workload) -> float:
    """One step of a Trainer."""
    from loop_overhead_torch import train_with_hugging_face
    from transformers import Trainer  # noqa: F401

    imported = time.time()
    train_with_hugging_face(workload, 1)
    return imported


SCRIPTS: dict[str, Callable[[Workload], float]] = {
    "raw JAX": start_raw_jax,
    "Trellis": start_trellis,
    "Keras fit": start_keras,
    "Lightning": start_lightning,
    "Hugging Face Trainer": start_hugging_face,
}
WITH_CACHE = ("raw JAX", "Trellis", "Keras fit")
OURS = ("raw JAX", "Trellis")


def measure_starts(*, n_rounds: int, with_peers: bool) -> Iterator[Started]:
    """Starts every script in turn: with an empty compilation cache, then with the one that this has filled."""
    contenders = list(SCRIPTS) if with_peers else list(OURS)
    for contender in contenders:
        print(f"  reading the files of {contender} once", flush=True)
        with tempfile.TemporaryDirectory() as cache_dir:
            _start(contender, cache_dir)
    for i in range(n_rounds):
        print(f"  starts: round {i + 1} of {n_rounds}", flush=True)
        first = i % len(contenders)
        for contender in contenders[first:] + contenders[:first]:
            with tempfile.TemporaryDirectory() as cache_dir:
                for is_warm in (False, True) if contender in WITH_CACHE else (False,):
                    yield Started(contender, i, is_warm, *_start(contender, cache_dir))


def _start(contender: str, cache_dir: str) -> tuple[float, float]:
    # By default JAX keeps only what took a second to compile; here every program counts.
    cache = {"JAX_COMPILATION_CACHE_DIR": cache_dir, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    started = time.time()
    command = [sys.executable, __file__, contender]
    done = subprocess.run(command, env=os.environ | cache, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"The script of {contender!r} failed:\n{done.stderr}")
    imported, ended = json.loads(done.stdout.splitlines()[-1])
    return imported - started, ended - started


if __name__ == "__main__":
    imported = SCRIPTS[sys.argv[1]](build_workload("mlp", n_examples=10 * WORKLOADS["mlp"].batch_size))
    print(json.dumps([imported, time.time()]), flush=True)
