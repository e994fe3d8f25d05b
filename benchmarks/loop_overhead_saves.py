"""Part B: how long a save blocks the loop, when it is committed, and how long it takes to read it back."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

WIDTH = 1000
BATCH_SIZE = 8
N_BASELINE_STEPS = 7
MOST_STEPS = 500
_NEVER = 10**9


@dataclass(frozen=True)
class Saved:
    """One save and restore, in seconds."""

    n_parameters: int
    contender: str
    round: int
    call: float
    """How long the call that saves takes."""
    lost: float
    """How much longer the steps take that run until the save is committed, all together."""
    total: float
    """From the call until the file is committed, with training going on."""
    restore: float
    step: float
    """The median time of a step with no save under way."""


@dataclass(frozen=True)
class Times:
    """What a contender measured of one save."""

    call: float
    lost: float
    total: float
    step: float


def measure_call(save: Callable[[], None], train: Callable[[], None], committed: Path) -> Times:
    """Times steps without a save, a save, and the steps that run until a path says that it is committed."""
    baseline = median(_seconds(train) for _ in range(N_BASELINE_STEPS))
    started = time.time()
    call = _seconds(save)
    lost = 0.0
    for _ in range(MOST_STEPS):
        lost += _seconds(train) - baseline
        if committed.exists():
            break
    # The moment of the rename that commits, not that of the step that noticed it.
    return Times(call, max(0.0, lost), committed.stat().st_ctime - started, baseline)


def save_with_trellis(n_parameters: int, output_dir: Path) -> tuple[Times, float]:
    """`CheckpointFileWriter` in a TrainLoop."""
    import jax
    import optax

    import trellis

    init, apply = _layers(n_parameters)
    inputs = _inputs()
    stream = trellis.ExampleStream((inputs, inputs), batch_size=BATCH_SIZE)
    task = trellis.TrainTask(apply=apply, optimizer=optax.adam(1e-3), loss=_loss, data=stream)
    loop = trellis.TrainLoop(init=init, task=task, rnkey=jax.random.key(0), grads=False, stdout=False)
    writer = trellis.CheckpointFileWriter(output_dir=output_dir, keep=1)

    checkpoints = loop(n_steps=_NEVER)
    checkpoint = next(checkpoints)

    def train() -> None:
        nonlocal checkpoint
        checkpoint = next(checkpoints)
        jax.block_until_ready(checkpoint.model_params)

    def save() -> None:
        writer(checkpoint)

    save()
    train()
    loop.session.finish()
    times = measure_call(save, train, output_dir / f"regular_{loop.step + N_BASELINE_STEPS}")
    checkpoints.close()
    reader = trellis.CheckpointFileReader(output_dir, target=init)
    return times, _seconds(reader.read)


def save_with_orbax(n_parameters: int, output_dir: Path) -> tuple[Times, float]:
    """Orbax's own asynchronous checkpointer, beside a raw jitted step."""
    import jax
    import optax
    import orbax.checkpoint as ocp

    init, apply = _layers(n_parameters)
    inputs, optimizer = _inputs()[:BATCH_SIZE], optax.adam(1e-3)

    @jax.jit
    def build() -> Any:
        params = init({"params": jax.random.key(0)}, inputs)["params"]
        return {"params": params, "optimizer_state": optimizer.init(params)}

    def step(state: Any) -> Any:
        grads = jax.grad(lambda params: _loss(apply({"params": params}, inputs), inputs))(state["params"])
        updates, optimizer_state = optimizer.update(grads, state["optimizer_state"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "optimizer_state": optimizer_state}

    jitted, state = jax.jit(step, donate_argnums=0), build()

    def train() -> None:
        nonlocal state
        state = jax.block_until_ready(jitted(state))

    train()
    checkpointer = ocp.AsyncCheckpointer(ocp.StandardCheckpointHandler())
    checkpointer.save(output_dir / "first", args=ocp.args.StandardSave(state))
    checkpointer.wait_until_finished()
    path = output_dir / "second"
    times = measure_call(lambda: checkpointer.save(path, args=ocp.args.StandardSave(state)), train, path)
    checkpointer.wait_until_finished()
    return times, _seconds(lambda: checkpointer.restore(path, args=ocp.args.StandardRestore(state)))


def save_with_torch(n_parameters: int, output_dir: Path) -> tuple[Times, float]:
    """`torch.save`, which blocks until all is handed to the operating system."""
    import torch

    layers = [torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(n_parameters // WIDTH**2)]
    model = torch.nn.Sequential(*layers)
    optimizer, inputs = torch.optim.Adam(model.parameters(), fused=True), torch.from_numpy(_inputs()[:BATCH_SIZE])

    def train() -> None:
        optimizer.zero_grad()
        (model(inputs) - inputs).square().mean().backward()
        optimizer.step()

    def save() -> None:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)

    train()
    path = output_dir / "state.pt"
    times = measure_call(save, train, path)
    times = Times(times.call, 0.0, times.call, times.step)
    return times, _seconds(lambda: torch.load(path, weights_only=True))


SCRIPTS: dict[str, Callable[[int, Path], tuple[Times, float]]] = {
    "Trellis CheckpointFileWriter": save_with_trellis,
    "Orbax AsyncCheckpointer": save_with_orbax,
    "torch.save": save_with_torch,
}
OURS = ("Trellis CheckpointFileWriter", "Orbax AsyncCheckpointer")


def measure_saves(sizes: Sequence[int], *, n_rounds: int, with_peers: bool) -> Iterator[Saved]:
    """Measures every writer in a process of its own, in an order that is rotated from round to round."""
    contenders = list(SCRIPTS) if with_peers else list(OURS)
    for n_parameters in sizes:
        for i in range(n_rounds):
            print(f"  saves of {n_parameters / 1e6:.0f} M parameters: round {i + 1} of {n_rounds}", flush=True)
            first = i % len(contenders)
            for contender in contenders[first:] + contenders[:first]:
                yield _measure(n_parameters, contender, i)


def _measure(n_parameters: int, contender: str, i: int) -> Saved:
    with tempfile.TemporaryDirectory() as output_dir:
        command = [sys.executable, __file__, str(n_parameters), contender, output_dir]
        done = subprocess.run(command, capture_output=True, text=True)
        os.sync()
    if done.returncode:
        raise RuntimeError(f"The script of {contender!r} failed:\n{done.stderr}")
    return Saved(n_parameters=n_parameters, contender=contender, round=i, **json.loads(done.stdout.splitlines()[-1]))


def _layers(n_parameters: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """A chain of square layers, as an `init`/`apply` pair."""
    import jax

    n_layers = n_parameters // WIDTH**2

    def init(rngs: Any, inputs: Any) -> Any:
        keys = jax.random.split(rngs["params"], n_layers)
        kernels = {
            f"layer_{i}": {"kernel": jax.random.normal(key, (WIDTH, WIDTH)) / WIDTH} for i, key in enumerate(keys)
        }
        return {"params": kernels}

    def apply(variables: Any, inputs: Any, **_: Any) -> Any:
        for layer in variables["params"].values():
            inputs = inputs + inputs @ layer["kernel"]
        return inputs

    return init, apply


def _loss(outputs: Any, targets: Any) -> Any:
    return ((outputs - targets) ** 2).mean()


def _inputs() -> Any:
    import numpy as np

    return np.random.default_rng(0).normal(size=(16 * BATCH_SIZE, WIDTH)).astype(np.float32)


def _seconds(act: Callable[[], Any]) -> float:
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


def main(n_parameters: str, contender: str, output_dir: str) -> None:
    """Measures one save and prints it as JSON."""
    times, restore = SCRIPTS[contender](int(n_parameters), Path(output_dir))
    print(json.dumps({**times.__dict__, "restore": restore}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
