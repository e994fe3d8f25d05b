"""A decoder beside one in torch with nanoGPT's settings: the loss that both reach, and tokens a second on a GPU.

Run it as `python benchmarks/decoder_speed.py --part=loss`, or `--part=speed` on a machine with a GPU;
benchmarks/README.md says what is measured and how.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import torch
from decoder_speed_torch import TorchRun

import trellis.nlp.experiments  # noqa: F401  (registers gpt/pretraining)
from trellis.experiments import ExperimentConfig, get_exp_config, run_experiment
from trellis.nlp.data import load_local_corpus, prepare_local_text
from trellis.optimizers import build_schedule
from trellis.tasks import InputContext, get_task

LOSS_SIZES = {
    False: {"layers": 3, "width": 96, "heads": 4, "context": 64, "batch": 8, "steps": 400, "scored": 50, "seeds": 3},
    True: {"layers": 2, "width": 64, "heads": 2, "context": 64, "batch": 8, "steps": 150, "scored": 50, "seeds": 2},
}
SPEED_SIZES = {
    False: {"layers": 12, "width": 768, "heads": 12, "context": 1024, "batch": 12, "steps": 60, "vocab": 50304},
    True: {"layers": 2, "width": 64, "heads": 2, "context": 64, "batch": 4, "steps": 8, "vocab": 512},
}


def build_params(sizes: dict[str, int], *, train_file: str, validation_file: str, seed: int) -> ExperimentConfig:
    """The shipped experiment in a size, on the bytes of two files."""
    params = get_exp_config("gpt/pretraining")
    steps = sizes["steps"]
    data = {"global_batch_size": sizes["batch"], "seq_length": sizes["context"], "documents": "blank_lines"}
    model = {
        "vocab_size": sizes.get("vocab"),
        "num_layers": sizes["layers"],
        "hidden_size": sizes["width"],
        "num_attention_heads": sizes["heads"],
        "max_position_embeddings": sizes["context"],
    }
    every = dict.fromkeys(["summary_interval", "validation_interval"], steps)
    params.override(
        {
            "task": {
                "model": model,
                "n_sample_tokens": 0,
                "train_data": {"input_path": train_file, **data},
                "validation_data": {"input_path": validation_file, **data},
            },
            "trainer": {
                "train_steps": steps,
                "steps_per_loop": steps,
                "checkpoint_interval": 0,
                "validation_steps": sizes.get("scored", -1),
                **every,
            },
            "runtime": {"seed": seed, "distribution_strategy": "one_device"},
        }
    )
    rates = {"cosine": {"initial_learning_rate": 1e-3}}
    warmup = {"linear": {"warmup_steps": max(1, steps // 20)}}
    params.override({"trainer": {"optimizer_config": {"learning_rate": rates, "warmup": warmup}}})
    return params


def rates_of(params: ExperimentConfig) -> list[float]:
    """The learning rate of each step, for whoever has another way to compute them."""
    schedule = build_schedule(params.trainer.optimizer_config, n_steps=params.trainer.train_steps)
    return [float(schedule(np.int32(step))) for step in range(params.trainer.train_steps)]


def batches_of(params: ExperimentConfig, *, is_training: bool) -> Iterator[tuple[Any, Any]]:
    """The very batches that our own run takes, as pairs of ids and what comes after each."""
    data = params.task.train_data if is_training else params.task.validation_data
    stream: Any = get_task(params.task).build_inputs(data, InputContext(seed=params.runtime.seed))
    scored = params.trainer.validation_steps
    n_batches = params.trainer.train_steps if is_training else stream.n_batches if scored < 0 else scored
    for step in range(n_batches):
        batch = stream.batch(step)
        yield batch["input_word_ids"], batch["next_word_ids"]


def measure_loss(sizes: dict[str, int], *, text: str) -> list[dict[str, float]]:
    """The validation loss of both for each seed: the same batches and rates, weights of the same distribution."""
    if text:
        files = [text.format(split=split) for split in ("train", "validation")]
    else:
        local = prepare_local_text(vocab_size=None)
        files = [local.train_file, local.validation_file]
    found = []
    for seed in range(sizes["seeds"]):
        params = build_params(sizes, train_file=files[0], validation_file=files[1], seed=seed)
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            _, metrics = run_experiment(params, mode="train_and_post_eval", model_dir=folder)
        ours, ours_seconds = metrics["validation_loss"], time.perf_counter() - start
        peer = TorchRun(get_task(params.task).task_config.model.as_dict(), seed=seed, device="cpu")
        start = time.perf_counter()
        peer.train(batches_of(params, is_training=True), rates=rates_of(params))
        theirs = peer.evaluate(batches_of(params, is_training=False))
        seconds = time.perf_counter() - start
        found.append({"seed": seed, "ours": ours, "torch": theirs, "s_ours": ours_seconds, "s_torch": seconds})
        print(
            f"seed {seed}: Trellis {ours:.4f} ({ours_seconds:.0f} s), torch {theirs:.4f} ({seconds:.0f} s)", flush=True
        )
    return found


def measure_speed(sizes: dict[str, int]) -> list[dict[str, float]]:
    """Tokens a second of both in bfloat16, compiled and with the fastest kernels that each has."""
    is_gpu = jax.default_backend() == "gpu"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "text.txt")
        n_bytes = 2 * sizes["batch"] * sizes["context"] * sizes["steps"]
        file.write_text((load_local_corpus() * (1 + n_bytes // 800_000))[:n_bytes])
        params = build_params(sizes, train_file=str(file), validation_file=str(file), seed=0)
        third = sizes["steps"] // 4
        params.override({"trainer": {"steps_per_loop": third}})
        params.override({"runtime": {"mixed_precision_dtype": "bfloat16", "exact": False}})
        run_experiment(params, mode="train", model_dir=Path(folder, "run"))
        lines = map(json.loads, Path(folder, "run", "events.jsonl").read_text().splitlines())
        summaries = [line["metrics"]["train"]["tokens_per_second"] for line in lines if line["kind"] == "summary"]
        # The first report has the compilation in it.
        ours = statistics.median(summaries[1:])
        print(f"Trellis: {ours:,.0f} tokens/s", flush=True)
        batches = list(batches_of(params, is_training=True))
    jax.clear_caches()
    device = "cuda" if is_gpu else "cpu"
    peer = TorchRun(
        get_task(params.task).task_config.model.as_dict(), seed=0, device=device, dtype="bfloat16", compiled=is_gpu
    )
    n_warm = max(2, third)
    rates = rates_of(params)
    peer.train(iter(batches[:n_warm]), rates=rates)
    start = time.perf_counter()
    peer.train(iter(batches[n_warm:]), rates=rates[n_warm:])
    seconds = time.perf_counter() - start
    theirs = (len(batches) - n_warm) * sizes["batch"] * sizes["context"] / seconds
    print(f"torch: {theirs:,.0f} tokens/s", flush=True)
    return [{"ours": ours, "torch": theirs, "ratio": ours / theirs}]


def report(part: str, found: list[dict[str, float]], sizes: dict[str, int], text: str) -> str:
    """What was found, as Markdown."""
    lines = [f"# Decoder: {part}\n", ", ".join(f"{name} {size}" for name, size in sizes.items()) + ".\n"]
    if part == "speed":
        (row,) = found
        lines += [
            "| | tokens/s |",
            "|---|---|",
            f"| Trellis | {row['ours']:,.0f} |",
            f"| torch | {row['torch']:,.0f} |",
        ]
        return "\n".join([*lines, f"\nTrellis takes {row['ratio']:.2f} times as many tokens a second."]) + "\n"
    seeds = " | ".join(f"seed {row['seed']}" for row in found)
    name = Path(text).name or "the documentation of Python"
    lines += [f"On the bytes of {name}, in float32: JAX {jax.__version__}, torch {torch.__version__}.\n"]
    lines += [f"| validation loss | {seeds} | mean ± standard deviation |", f"|---|{'---|' * len(found)}---|"]
    for name, key in (("Trellis", "ours"), ("torch", "torch")):
        values = [row[key] for row in found]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        cells = " | ".join(f"{value:.4f}" for value in values)
        lines.append(f"| {name} | {cells} | {statistics.mean(values):.4f} ± {spread:.4f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures a part, prints the report and writes it beside the numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=("loss", "speed"), default="loss")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    text = "a file of text for each split, such as wiki.{split}.txt; by default the documentation of Python"
    parser.add_argument("--text", default="", help=text)
    parser.add_argument("--out", default="benchmarks/results")
    flags = parser.parse_args()
    sizes = (LOSS_SIZES if flags.part == "loss" else SPEED_SIZES)[flags.quick]
    found = measure_loss(sizes, text=flags.text) if flags.part == "loss" else measure_speed(sizes)
    page = report(flags.part, found, sizes, flags.text)
    print(page)
    out = Path(flags.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / f"decoder_{flags.part}.md").write_text(page)
    (out / f"decoder_{flags.part}.json").write_text(json.dumps({"sizes": sizes, "found": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
