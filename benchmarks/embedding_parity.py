"""Trains sentence vectors on STS-B here and with sentence-transformers, with equal settings, over three seeds.

The untouched model is evaluated by both first. Without `--full` only its first two layers are taken, for forty steps,
and the first 400 pairs of the validation data, so that two cores are enough.

    pip install -r benchmarks/requirements.txt sentence-transformers
    python benchmarks/embedding_parity.py --model=weights/all-MiniLM-L6-v2 --data=glue/STS-B [--full]
"""

import argparse
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import losses
from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator

import trellis.nlp.experiments  # noqa: F401  (registers them)
from trellis.experiments import get_exp_config, run_experiment

SEEDS = (1, 2, 3)
LEARNING_RATE, WEIGHT_DECAY, BATCH_SIZE, SEQ_LENGTH = 1e-4, 0.01, 16, 64
NOT_DECAYED = ("LayerNorm", "bias")


def read_rows(file: Path) -> list[tuple[str, str, float]]:
    """The pairs of a file of STS-B, and how alike they are, from 0 to 1."""
    lines = file.read_text().splitlines()
    header = lines[0].split("\t")
    places = [header.index(name) for name in ("sentence1", "sentence2", "score")]
    cells = ([line.split("\t")[place] for place in places] for line in lines[1:])
    return [(first, second, float(score) / 5) for first, second, score in cells]


def spearman(model: SentenceTransformer, rows: list[tuple[str, str, float]]) -> float:
    """What sentence-transformers says of a model."""
    evaluator = EmbeddingSimilarityEvaluator(*map(list, zip(*rows, strict=True)))
    return float(evaluator(model)["spearman_cosine"])


def train_theirs(folder: Path, data: Path, *, seed: int, n_steps: int) -> tuple[float, float]:
    """The correlation after a training with sentence-transformers, and its seconds."""
    torch.manual_seed(seed)
    model = SentenceTransformer(str(folder))
    model.max_seq_length = SEQ_LENGTH
    loss = losses.CosineSimilarityLoss(model)
    named = list(model.named_parameters())
    is_decayed = {name: not any(part in name for part in NOT_DECAYED) for name, _ in named}
    groups = [
        {"params": [value for name, value in named if is_decayed[name] is decayed], "weight_decay": decay}
        for decayed, decay in ((True, WEIGHT_DECAY), (False, 0.0))
    ]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / n_steps)
    rows = read_rows(data / "train.tsv")
    order: list[int] = []
    shuffled = random.Random(seed)
    start = time.perf_counter()
    model.train()
    for _ in range(n_steps):
        if len(order) < BATCH_SIZE:
            order = shuffled.sample(range(len(rows)), len(rows))
        batch = [rows[order.pop()] for _ in range(BATCH_SIZE)]
        features = [
            {
                name: value.to(model.device)
                for name, value in model.preprocess([row[side] for row in batch]).items()
                if isinstance(value, torch.Tensor)
            }
            for side in (0, 1)
        ]
        value = loss(features, torch.tensor([row[2] for row in batch], device=model.device))
        optimizer.zero_grad()
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    seconds = time.perf_counter() - start
    model.eval()
    return spearman(model, read_rows(data / "dev.tsv")), seconds


def run_ours(folder: Path, data: Path, *, seed: int, n_steps: int) -> tuple[float, float]:
    """The correlation after a training here, or of the untouched model with no steps, and its seconds."""
    params = get_exp_config("encoder/embedding")
    columns = {"left_text_fields": ["sentence1"], "right_text_fields": ["sentence2"], "score_field": "score"}
    columns |= {"score_range": [0, 5], "seq_length": SEQ_LENGTH}
    params.override(
        {
            "task": {
                "hub_module_url": str(folder),
                "train_data": {**columns, "input_path": str(data / "train.tsv"), "global_batch_size": BATCH_SIZE},
                "validation_data": {**columns, "input_path": str(data / "dev.tsv")},
            },
            "trainer": {
                "train_steps": max(1, n_steps),
                "train_epochs": 0,
                "validation_interval": 1_000_000,
                "checkpoint_interval": 1_000_000,
                "optimizer_config": {
                    "warmup": {"type": None},
                    "learning_rate": {"polynomial": {"initial_learning_rate": LEARNING_RATE}},
                    # That of torch, which adds it after the bias correction.
                    "optimizer": {"adamw": {"epsilon": 1e-8 * (1 - 0.999) ** 0.5}},
                },
            },
            "runtime": {"seed": seed},
        }
    )
    mode = "train" if n_steps else "eval"
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as model_dir:
        _, logs = run_experiment(params, mode=mode, model_dir=Path(model_dir), run_post_eval=True)
    return float(logs["spearman_cosine"]), time.perf_counter() - start


def with_few_layers(folder: Path, output: Path, *, n_layers: int) -> Path:
    """A copy of a model with its first layers only."""
    model = SentenceTransformer(str(folder))
    encoder: Any = model[0].auto_model
    encoder.encoder.layer = encoder.encoder.layer[:n_layers]
    encoder.config.num_hidden_layers = n_layers
    model.save(str(output), create_model_card=False)
    return output


def with_few_rows(folder: Path, output: Path, *, n_rows: int) -> Path:
    """A copy of the data with the first rows of its validation data only."""
    output.mkdir()
    (output / "train.tsv").write_text((folder / "train.tsv").read_text())
    lines = (folder / "dev.tsv").read_text().splitlines(keepends=True)
    (output / "dev.tsv").write_text("".join(lines[: n_rows + 1]))
    return output


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--n_steps", type=int, default=0)
    parser.add_argument("--full", action="store_true")
    flags = parser.parse_args()
    n_steps = flags.n_steps or (1_440 if flags.full else 40)
    lines = ["| | sentence-transformers | Trellis |", "|---|---|---|"]
    with tempfile.TemporaryDirectory() as scratch:
        start, data = flags.model, flags.data
        if not flags.full:
            start = with_few_layers(flags.model, Path(scratch, "few"), n_layers=2)
            data = with_few_rows(flags.data, Path(scratch, "data"), n_rows=400)
        untouched = SentenceTransformer(str(start))
        untouched.max_seq_length = SEQ_LENGTH
        ours, _ = run_ours(start, data, seed=0, n_steps=0)
        lines.append(f"| untouched | {spearman(untouched, read_rows(data / 'dev.tsv')):.4f} | {ours:.4f} |")
        print(lines[-1], flush=True)
        theirs = [train_theirs(start, data, seed=seed, n_steps=n_steps) for seed in SEEDS]
        print(theirs, flush=True)
        trained = [run_ours(start, data, seed=seed, n_steps=n_steps) for seed in SEEDS]
    for seed, left, right in zip(SEEDS, theirs, trained, strict=True):
        lines.append(f"| {n_steps} steps, seed {seed} | {left[0]:.4f} | {right[0]:.4f} |")
    means = [statistics.mean(value for value, _ in values) for values in (theirs, trained)]
    spreads = [float(np.std([value for value, _ in values])) for values in (theirs, trained)]
    cells = (f"{mean:.4f} ± {spread:.4f}" for mean, spread in zip(means, spreads, strict=True))
    lines.append(f"| mean | {' | '.join(cells)} |")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
