"""What a step of BERT-large takes of each of 8, 64 and 256 devices, and what they send: compiled, not run.

Virtual CPU devices stand for the real ones. What is compiled is the step of the masked-LM task, of shapes alone, under
three arrangements: `data` (all devices see different examples), `fsdp` (they share out the state, too) and `model`
(eight of them share out each layer). Bytes are counted in the compiled program and set beside a formula. In the end a
small BERT is run on one device, and the peak of its memory is set beside what was told before.

    .venv/bin/python benchmarks/large_by_plan.py                      # all of it, into benchmarks/results
    .venv/bin/python benchmarks/large_by_plan.py --devices 8 --layers 2 --no-write
"""

import argparse
import json
import os
import resource
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results" / "large_by_plan.md"
NUMBERS = RESULTS.with_suffix(".json")
BATCH_SIZE, LENGTH, N_PREDICTIONS, WIDTH, VOCAB_SIZE = 1024, 128, 20, 1024, 30522
N_SHARING_LAYERS = 8
FLOAT = 4


def build_params(n_layers: int, *settings: str, width: int = WIDTH, batch_size: int = BATCH_SIZE) -> Any:
    """The config of a masked-LM task on batches of zeros."""
    import numpy as np

    import trellis
    import trellis.nlp.experiments
    from trellis.experiments import resolve
    from trellis.nlp.tasks import MaskedLMConfig
    from trellis.nlp.tasks.masked_lm import MaskedLMTask

    @dataclass
    class ZerosConfig(MaskedLMConfig):
        """The task with data of its own."""

    class ZerosTask(MaskedLMTask):
        def build_inputs(self, params: Any, input_context: Any = None) -> Any:
            rows = np.zeros((batch_size, LENGTH), np.int32)
            masks = np.zeros((batch_size, N_PREDICTIONS), np.int32)
            examples = dict.fromkeys(("input_word_ids", "input_type_ids"), rows) | {"input_mask": rows + 1}
            examples |= dict.fromkeys(("masked_lm_positions", "masked_lm_ids"), masks)
            examples |= {"masked_lm_weights": np.ones(masks.shape, np.float32)}
            examples |= {"next_sentence_labels": np.zeros((batch_size, 1), np.int32)}
            return trellis.ExampleStream(examples, batch_size=batch_size)

    trellis.register_task_cls(ZerosConfig)(ZerosTask)
    bert = "task.model.encoder.bert"
    params = resolve(
        "bert/pretraining",
        settings=[
            f"{bert}.hidden_size={width}",
            f"{bert}.num_layers={n_layers}",
            f"{bert}.num_attention_heads={width // 64}",
            f"{bert}.intermediate_size={4 * width}",
            f"task.train_data.global_batch_size={batch_size}",
            "task.train_data.input_path=zeros",
            "trainer.train_steps=1000",
            "trainer.optimizer_config.warmup.type=null",
            "trainer.optimizer_config.learning_rate.polynomial.decay_steps=1000",
            "trainer.optimizer_config.learning_rate.polynomial.initial_learning_rate=1e-4",
            *settings,
        ],
    )
    return params.replace(task=ZerosConfig().replace(**params.task.as_dict()))


def meshes(n_devices: int) -> dict[str, list[str]]:
    """The arrangements, each as the settings that make it."""
    return {
        "data": [],
        "fsdp": [f"runtime.mesh.fsdp={n_devices}"],
        "model": [f"runtime.mesh.model={N_SHARING_LAYERS}"],
    }


def measure(n_devices: int, n_layers: int) -> list[dict[str, Any]]:
    """Compiles the step under each arrangement; in a process that has so many devices."""
    from trellis.experiments import cost_of

    rows = []
    for name, settings in meshes(n_devices).items():
        params = build_params(n_layers, *settings)
        cost = cost_of(params, n_devices=n_devices, model_dir=Path("never-made"))
        rows.append(
            {
                "devices": n_devices,
                "mesh": name,
                "examples": cost.n_examples,
                "held": dict(cost.held),
                "gradients": cost.gradients,
                "temporaries": cost.temporaries,
                "sent": dict(cost.sent),
            }
        )
        print(f"{n_devices} devices, {name}: done", file=sys.stderr)
    return rows


def measure_peak(batch_size: int) -> dict[str, Any]:
    """Runs a small BERT on one device: what was told of its step, and the memory that the process took for it."""
    from trellis.experiments import cost_of
    from trellis.experiments.mode import get_mode
    from trellis.experiments.run import build_task, build_trainer

    model_dir = Path("never-made")
    params = build_params(4, "trainer.train_steps=3", width=256, batch_size=batch_size)
    cost = cost_of(params, n_devices=1, model_dir=model_dir)
    task, params = build_task(params, model_dir=None)
    trainer = build_trainer(params, mode=get_mode("train"), model_dir=model_dir, task=task)
    plain: Any = trainer.lower().compile().memory_analysis()
    n_pages = int(Path("/proc/self/statm").read_text().split()[1])
    loop = trainer._next_stage().train_loop
    for _ in range(2):
        loop.next_step()
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    own = plain.temp_size_in_bytes + sum(cost.held.values())
    return {"batch": batch_size, "told": cost.total, "own": own, "peak": most - n_pages * resource.getpagesize()}


def formula(row: dict[str, Any], whole: dict[str, Any], n_layers: int) -> tuple[float, float]:
    """What is held by each device, and what it sends, by hand.

    Args:
        whole: The row of the same devices under `data`, whose parameters are whole.
    """
    n, params = row["devices"], whole["held"]["parameters"]
    if row["mesh"] == "data":
        # Gradients are summed up; the table of words, which is used twice, in two halves.
        return 3 * params, 2 * (params + FLOAT * VOCAB_SIZE * WIDTH) * (n - 1) / n
    if row["mesh"] == "fsdp":
        # Parameters are gathered and, by the compiler for CPUs, gradients summed up before each device takes its part.
        return 3 * params / n, (params + 2 * params) * (n - 1) / n
    shares = N_SHARING_LAYERS
    # Of the layers the matrices are shared out; the table of words, which eight does not divide, and heads are whole.
    layers = FLOAT * n_layers * 12 * WIDTH**2
    own = params - layers + layers / shares
    # In each layer two sums forward, and backward one before the wide layer and three before queries, keys and values.
    hidden = FLOAT * row["examples"] * LENGTH * WIDTH
    activations = 6 * n_layers * 2 * hidden * (shares - 1) / shares
    replicas = n // shares
    return 3 * own, activations + 2 * (own + FLOAT * VOCAB_SIZE * WIDTH) * (replicas - 1) / replicas


def report(numbers: dict[str, Any], n_layers: int) -> str:
    """The page of results."""
    import jax

    lines = [
        "# Large by plan",
        "",
        f"`benchmarks/large_by_plan.py`: BERT-large ({n_layers} layers × {WIDTH}), masked LM and next sentence, AdamW,",
        f"float32, {BATCH_SIZE} × {LENGTH} tokens a step, compiled for virtual CPU devices by JAX {jax.__version__}.",
        "GiB on each device. Held: parameters and moments. Temporaries: gradients and all that layers keep, as XLA",
        "counts them for CPUs. Sent: by each device in a step, counted in the compiled program as rings send it.",
        "",
        "| devices | mesh | examples on each | held | formula | temporaries | sent | formula | by what |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in numbers["rows"]:
        whole = next(
            other for other in numbers["rows"] if (other["devices"], other["mesh"]) == (row["devices"], "data")
        )
        held, sent = formula(row, whole, n_layers)
        own = row["held"]["parameters"] + row["held"]["optimizer state"]
        total = sum(row["sent"].values())
        kinds = ", ".join(f"{kind} {size / total:.0%}" for kind, size in row["sent"].items() if size > total / 200)
        lines.append(
            f"| {row['devices']} | {row['mesh']} | {row['examples']} | {own / 2**30:.3f} | {held / 2**30:.3f} "
            f"| {row['temporaries'] / 2**30:.2f} | {total / 2**30:.2f} | {sent / 2**30:.2f} | {kinds} |"
        )
    lines += [
        "",
        "A BERT of 4 layers × 256 that was run on one CPU device, MiB: what was told of the step before, what XLA gave",
        "to the program that ran, and by how much the process grew.",
        "",
        "| batch | told | of the program that ran | the process grew by |",
        "|---|---|---|---|",
    ]
    for peak in numbers["peaks"]:
        told, own, grown = (round(peak[name] / 2**20) for name in ("told", "own", "peak"))
        lines.append(f"| {peak['batch']} | {told} | {own} | {grown} |")
    return "\n".join([*lines, ""])


def run_child(n_devices: int, *arguments: str) -> Any:
    """What this script measures in a process that has so many devices."""
    flags = f"--xla_force_host_platform_device_count={n_devices} --xla_backend_optimization_level=0"
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, "TF_CPP_MIN_LOG_LEVEL": "2"}
    command = [sys.executable, __file__, *arguments]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Measures, and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, nargs="*", default=[8, 64, 256])
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--no-write", action="store_true", help="print the page only")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--peak", type=int, help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.child:
        print(json.dumps(measure(flags.child, flags.layers)))
        return
    if flags.peak:
        print(json.dumps(measure_peak(flags.peak)))
        return
    numbers: dict[str, Any] = {"rows": [], "peaks": []}
    if not flags.no_write and NUMBERS.exists():
        numbers = json.loads(NUMBERS.read_text())
    for n_devices in flags.devices:
        rows = run_child(n_devices, f"--child={n_devices}", f"--layers={flags.layers}")
        numbers["rows"] = [row for row in numbers["rows"] if row["devices"] != n_devices] + rows
        save(numbers, flags)
    numbers["peaks"] = [run_child(1, f"--peak={batch_size}") for batch_size in (64, 256, 512)]
    save(numbers, flags)
    print(report(numbers, flags.layers))


def save(numbers: dict[str, Any], flags: argparse.Namespace) -> None:
    """Writes what is known so far, so that a run can be cut into parts."""
    numbers["rows"].sort(key=lambda row: row["devices"])
    if not flags.no_write:
        NUMBERS.write_text(f"{json.dumps(numbers, indent=1)}\n")
        RESULTS.write_text(report(numbers, flags.layers))


if __name__ == "__main__":
    main()
