"""The law of processes: on one, two or four of them a run sees the same batches and has the same losses and metrics."""

import json
import os
import socket
import subprocess
import sys
import zlib
from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.xla_flags import QUICK
from trellis.extensions import checkpoint_storage
from trellis.loops import CLOCKED_METRICS

N_DEVICES = 4
# Sums over processes are taken in another order than those over devices.
ROUNDING = 1e-5


def train(folder: Path, **mesh: int) -> None:
    """Trains and evaluates on the devices of all processes, and writes down what this process has seen."""
    from trellis.runtime import Placement, join_processes

    join_processes()
    import jax

    import trellis
    from tests import tiny

    class Counted:
        """Examples that count how many of them were gathered, and know which."""

        def __init__(self) -> None:
            self.taken: list[int] = []

        def __len__(self) -> int:
            return 100

        def take(self, indices: Any) -> Any:
            self.taken.extend(map(int, indices))
            return tuple(array[indices] for array in tiny.examples(100))

    placement = Placement(jax.devices(), **mesh)
    examples, held_out = Counted(), Counted()
    model = tiny.Classifier(train=True, dropout_rate=0.2)
    stream = trellis.ExampleStream(examples, batch_size=16)
    loop = tiny.train_loop(
        init=tiny.Classifier().init,
        task=tiny.train_task(model, data=stream),
        devices=placement,
        collections={"apply": ["dropout"]},
        n_steps=9,
        n_steps_per_checkpoint=3,
        stdout=False,
    )
    evaluate = tiny.eval_loop(
        data=trellis.ExampleStream(held_out, batch_size=16, n_epochs=1, shuffle=False), devices=placement
    )
    summaries = [without_times(evaluate(checkpoint).metrics) for checkpoint in loop]
    seen = {"metrics": summaries, "trained": examples.taken, "evaluated": held_out.taken}
    (folder / f"{jax.process_index()}.json").write_text(json.dumps(seen, default=float))


def go_on(folder: Path, n_steps: int, **mesh: int) -> None:
    """Goes on from the files of a folder on the devices of all processes, and writes down what was read and written."""
    from trellis.runtime import Placement, fetch, join_processes

    join_processes()
    import flax.linen as nn
    import jax

    import trellis
    from tests import tiny
    from trellis.extensions import checkpoint_storage

    def checksums(checkpoint: Any) -> dict[str, int]:
        return {name: zlib.crc32(fetch(leaf).tobytes()) for name, leaf in checkpoint_storage.flatten(checkpoint)}

    model = nn.Sequential([nn.Dense(4096), nn.relu, nn.Dense(4)])
    placement = Placement(jax.devices(), **mesh)
    loop = tiny.train_loop(
        init=trellis.CheckpointFileReader(dir=folder / "run", target=model.init),
        task=tiny.train_task(model),
        devices=placement,
        n_steps=n_steps,
        n_steps_per_checkpoint=2,
    )
    skipped: list[str] = []
    loop.session.subscribe(lambda event: skipped.append(event.text) if event.kind == "skipped_file" else None)
    started = checksums(loop.start())
    n_written = []
    process = trellis.serial(
        tiny.eval_loop(model, devices=placement),
        trellis.LowestCheckpointFileWriter(output_dir=folder / "best", metric="loss", stdout=False),
        trellis.CheckpointFileWriter(output_dir=folder / "run"),
    )
    ended = {}
    for checkpoint in loop:
        summary = process(checkpoint)
        ended = checksums(summary)
        snapshot = summary.session.shared(checkpoint_storage.Snapshots).take(summary)
        n_written.append(sum(array.nbytes for array in snapshot.arrays.values()))
    seen = {"started": started, "ended": ended, "n_written": n_written[-1], "skipped": skipped}
    (folder / f"{jax.process_index()}.json").write_text(json.dumps(seen))


def without_times(metrics: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    return {
        group: {name: value for name, value in values.items() if name not in CLOCKED_METRICS}
        for group, values in metrics.items()
    }


@pytest.fixture
def on_processes(tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    """Runs a function above on so many processes; returns what each has seen."""

    def run(n: int, function: str = "train", **options: int) -> list[dict[str, Any]]:
        folder = tmp_path / function
        folder.mkdir(exist_ok=True)
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = f"127.0.0.1:{server.getsockname()[1]}"
        flags = f"--xla_force_host_platform_device_count={N_DEVICES // n} {QUICK}"
        place = f"Path({str(folder)!r})"
        source = f"from pathlib import Path; from {__name__} import {function}; {function}({place}, **{options})"
        cluster = {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": str(n), "XLA_FLAGS": flags}
        root = str(Path(__file__).parents[2])
        started = [
            subprocess.Popen(
                [sys.executable, "-c", source],
                env=os.environ | cluster | {"JAX_PROCESS_ID": str(index)},
                cwd=root,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for index in range(n)
        ]
        outputs = [process.communicate(timeout=300)[0] for process in started]
        assert [process.returncode for process in started] == [0] * n, "\n".join(outputs)
        return [json.loads((folder / f"{index}.json").read_text()) for index in range(n)]

    return run


def flat(metrics: list[dict[str, dict[str, float]]]) -> list[float]:
    return [value for groups in metrics for group in sorted(groups) for _, value in sorted(groups[group].items())]


def test_more_processes_share_out_the_work_and_have_the_results_of_one(on_processes: Any) -> None:
    (alone,) = on_processes(1)
    for n, mesh in [(2, {}), (2, {"fsdp": 4}), (4, {"fsdp": 2})]:
        together = on_processes(n, **mesh)
        for process in together:
            np.testing.assert_allclose(flat(process["metrics"]), flat(alone["metrics"]), rtol=ROUNDING)
            assert process["metrics"] == together[0]["metrics"]
        # Each looks at a first batch, to know its shapes, and has a last one that is short whole.
        own = [process["trained"][16:] for process in together]
        assert sorted(chain.from_iterable(own)) == sorted(alone["trained"][16:])
        assert {len(numbers) for numbers in own} == {9 * 16 // n}
        n_whole = 96 * 3
        assert sum(len(process["evaluated"]) for process in together) == n_whole + n * (3 * 4 + 16)


def test_files_are_shared_out_and_read_on_any_number_of_processes(on_processes: Any, tmp_path: Path) -> None:
    folder = tmp_path / "go_on"
    (before,) = on_processes(1, "go_on", n_steps=2)
    n_bytes = before["n_written"]
    for number, (n, mesh) in enumerate([(2, {"fsdp": 4}), (4, {"fsdp": 2}), (2, {}), (1, {})], start=2):
        together = on_processes(n, "go_on", n_steps=2 * number, **mesh)
        for process in together:
            # They read what was saved, to the bit, however many have saved it.
            assert process["started"] == before["ended"]
            assert process["ended"] == together[0]["ended"]
            # What is not worth sharing out is written by the first.
            assert process["n_written"] == pytest.approx(n_bytes / n, rel=0.02)
            assert not process["skipped"]
        assert sum(process["n_written"] for process in together) == n_bytes
        before = together[0]
        manifest = checkpoint_storage.read_manifest(folder / "run" / f"regular_{2 * number}")
        arrays = checkpoint_storage.read_arrays(folder / "run" / f"regular_{2 * number}", manifest["tree"])
        assert {name: zlib.crc32(array.tobytes()) for name, array in arrays.items()} == before["ended"]
        assert manifest["version"] == (1 if n == 1 else 2)
    assert [path.name for path in (folder / "best").glob("[!.]*")] == ["lowest_eval_loss_10"]


@pytest.mark.cluster
@pytest.mark.skipif("TRELLIS_CLUSTER_TESTS" not in os.environ, reason="a minute: run by `make test-cluster`")
def test_a_file_with_a_damaged_part_is_skipped_by_all_processes(on_processes: Any, tmp_path: Path) -> None:
    folder = tmp_path / "go_on"
    (before, _) = on_processes(2, "go_on", n_steps=2)
    on_processes(2, "go_on", n_steps=4)
    damaged = max(
        (folder / "run" / "regular_4" / "arrays" / "process_1").rglob("d/*"), key=lambda file: file.stat().st_size
    )
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    for process in on_processes(2, "go_on", n_steps=4):
        assert process["started"] == before["ended"]
        (line,) = process["skipped"]
        assert line.startswith("Skipping the damaged checkpoint file")
        assert line.endswith(f"{damaged.relative_to(folder / 'run' / 'regular_4')} is garbled.")
    assert [path.name for path in (folder / "run").glob("*.damaged")] == ["regular_4.damaged"]
