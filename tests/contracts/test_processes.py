"""The law of processes: on one, two or four of them a run sees the same batches and has the same losses and metrics."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

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


def without_times(metrics: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    return {
        group: {name: value for name, value in values.items() if "seconds" not in name and "time" not in name}
        for group, values in metrics.items()
    }


@pytest.fixture
def on_processes(tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    """Runs the training above on so many processes; returns what each has seen."""

    def run(n: int, **mesh: int) -> list[dict[str, Any]]:
        folder = tmp_path / f"{n} {mesh}"
        folder.mkdir()
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = f"127.0.0.1:{server.getsockname()[1]}"
        flags = f"--xla_force_host_platform_device_count={N_DEVICES // n} --xla_backend_optimization_level=0"
        source = f"from pathlib import Path; from {__name__} import train; train(Path({str(folder)!r}), **{mesh})"
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
