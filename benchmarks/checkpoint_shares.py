"""What each of 1, 2 and 4 processes copies, writes and reads of a checkpoint file that they save and restore together.

Every process is real, and all of them have four CPU devices in all, so that the layouts are the same. Bytes are those
that the kernel has counted for the process; memory is what its peak rises by. Copies on the devices, which on CPUs are
in the same memory, are not part of a save, but are of a restore.

    python benchmarks/checkpoint_shares.py
    python benchmarks/checkpoint_shares.py --megabytes=64 --results-dir=/tmp/results
"""

import argparse
import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
N_DEVICES = 4
N_ARRAYS = 16
MEGABYTE = 1 << 20
LAYOUTS = {"shared out over all devices": 4, "whole on every device": 1}
"""The sizes of the axis `fsdp` of the mesh."""


def main() -> None:
    """Measures all, and writes a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=256, help="the size of the state")
    parser.add_argument("--results-dir", type=Path, default=RESULTS)
    parser.add_argument("--worker", help="what one process measures, as JSON; for the script itself")
    flags = parser.parse_args()
    if flags.worker:
        work(**json.loads(flags.worker))
        return
    command = f"python benchmarks/checkpoint_shares.py --megabytes={flags.megabytes}"
    place = f"{os.cpu_count()} cores, Python {platform.python_version()}, {N_DEVICES} CPU devices"
    about = f"By `{command}` on {place}. Of several processes the highest is shown, in MB."
    lines = ["# Checkpoint files, shared out", "", about]
    for layout, fsdp in LAYOUTS.items():
        lines += ["", f"## {layout[0].upper()}{layout[1:]}", ""]
        lines += ["| processes | copied to the host | memory of the save | written | read | memory of the restore |"]
        lines += ["|---|---|---|---|---|---|"]
        for n in (1, 2, 4):
            measured = measure(n, fsdp=fsdp, n_bytes=flags.megabytes * MEGABYTE)
            highest = [max(process[name] for process in measured) for name in measured[0]]
            lines.append(f"| {n} | {' | '.join(f'{value / MEGABYTE:.0f}' for value in highest)} |")
            print(lines[-1], flush=True)
    flags.results_dir.mkdir(parents=True, exist_ok=True)
    (flags.results_dir / "checkpoint_shares.md").write_text("\n".join([*lines, ""]))


def measure(n: int, **options: Any) -> list[dict[str, float]]:
    """What each of `n` processes has measured."""
    with tempfile.TemporaryDirectory(prefix="trellis-shares-") as folder:
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = f"127.0.0.1:{server.getsockname()[1]}"
        order = json.dumps({"folder": folder, **options})
        cluster = {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": str(n), "JAX_PLATFORMS": "cpu"}
        cluster["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={N_DEVICES // n}"
        started = [
            subprocess.Popen(
                [sys.executable, __file__, f"--worker={order}"],
                env=os.environ | cluster | {"JAX_PROCESS_ID": str(index)},
            )
            for index in range(n)
        ]
        if any(process.wait() for process in started):
            sys.exit("A process has failed: see above.")
        return [json.loads(Path(folder, f"{index}.json").read_text()) for index in range(n)]


def work(folder: str, fsdp: int, n_bytes: int) -> None:
    """Saves and restores a state together with the other processes, and writes down what this one has used."""
    from trellis.runtime import Placement, join_processes, wait_for_processes

    join_processes()
    import jax
    import jax.numpy as jnp

    import trellis
    from trellis.extensions import checkpoint_storage

    placement = Placement(jax.devices(), fsdp=fsdp)
    n_rows = n_bytes // N_ARRAYS // 4 // 1024

    def make() -> dict[str, Any]:
        keys = jax.random.split(jax.random.key(0), N_ARRAYS)
        return {f"array_{index}": jax.random.normal(keys[index], (n_rows, 1024)) for index in range(N_ARRAYS)}

    shapes = placement.shapes(make)
    params = placement.build(jax.jit(make), like=shapes)
    # Whatever is loaded at the first call is loaded before.
    writer = trellis.CheckpointFileWriter(Path(folder, "run"))
    small = placement.put_state({"array": jnp.zeros((N_DEVICES, 1024))})
    values = {"model_state": {}, "optimizer_state": {}, "grads": None, "loss": 0.0}
    values |= {"n_completed_steps": 1, "elapsed_time": 0.0}
    writer.write(trellis.Checkpoint(small, step=1, **values))
    jax.block_until_ready(params)
    measured: dict[str, float] = {}

    before, n_written = reset_peak(), counted("write_bytes", "wchar")
    checkpoint = trellis.Checkpoint(params, step=2, **values)
    snapshot = checkpoint_storage.Snapshots().take(checkpoint)
    measured["copied"] = sum(array.nbytes for array in snapshot.arrays.values())
    del snapshot
    writer.write(checkpoint)
    measured["save"] = peak() - before
    measured["written"] = counted("write_bytes", "wchar") - n_written

    template = trellis.Checkpoint(shapes, step=0, **values)
    reader = trellis.CheckpointFileReader(Path(folder, "run"), target=lambda *_: {})
    wait_for_processes("saved")
    before, n_read = reset_peak(), counted("rchar")
    restored = reader(template)
    trees = placement.put_state(restored.model_params, like=shapes, takes=True)
    jax.block_until_ready(trees)
    measured["read"] = counted("rchar") - n_read
    measured["restore"] = peak() - before
    equal = jax.jit(lambda one, other: jnp.all(jnp.stack([jnp.all(one[name] == other[name]) for name in one])))
    assert bool(equal(trees, params))
    wait_for_processes("restored")
    order = ("copied", "save", "written", "read", "restore")
    values_in_order = {name: measured[name] for name in order}
    Path(folder, f"{jax.process_index()}.json").write_text(json.dumps(values_in_order))


def counted(*names: str) -> int:
    """The highest of some counts of bytes that the kernel keeps for this process."""
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return max(int(lines[name]) for name in names)


def reset_peak() -> int:
    """Starts to look for a new peak of memory; returns how many bytes are used now."""
    time.sleep(0.1)
    Path("/proc/self/clear_refs").write_text("5")
    return status("VmRSS")


def peak() -> int:
    """The most bytes of memory that were used since then."""
    return status("VmHWM")


def status(name: str) -> int:
    """A number of bytes that the kernel tells of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


if __name__ == "__main__":
    main()
