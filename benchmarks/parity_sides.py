"""What the scripts share that train the same here and in torch: settings, the steps in torch, and the page."""

import platform
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import torch
import transformers

RESULTS = Path(__file__).parent / "results"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SIDES = ("Trellis", "the peer")
BATCH_SIZE, WARMUP, DECAY, EPSILON, BETA_2, CLIP_NORM = 16, 0.1, 0.01, 1e-8, 0.999, 1.0
NOT_DECAYED = ("LayerNorm", "bias")
_MOST_LISTED = 10
"""With more seeds only their mean is shown."""
N_LAYERS = 2
"""How many of an encoder's layers are trained where two cores have to be enough."""


def trainer_settings(*, n_steps: int, learning_rate: float) -> dict[str, Any]:
    """The settings of a trainer of ours with which it takes the steps of `train_in_torch`."""
    # The warm-up takes the place of the decay's first steps; epsilon is added before the correction of the bias.
    rate = {"initial_learning_rate": learning_rate / (1 - WARMUP), "decay_steps": n_steps}
    rule = {"epsilon": EPSILON * (1 - BETA_2) ** 0.5, "weight_decay_rate": DECAY, "gradient_clip_norm": CLIP_NORM}
    optimizer = {
        "optimizer": {"adamw": rule},
        "learning_rate": {"polynomial": rate},
        "warmup": {"polynomial": {"warmup_steps": int(n_steps * WARMUP)}},
    }
    return {"train_steps": n_steps, "train_epochs": 0, "validation_interval": n_steps, "optimizer_config": optimizer}


def train_in_torch(
    model: Any,
    *,
    rows: Sequence[Any],
    loss: Callable[[list[Any]], torch.Tensor],
    n_steps: int,
    learning_rate: float,
    seed: int,
) -> None:
    """Trains a model by AdamW on rows, each of which comes once in an epoch, in an order of chance.

    Args:
        loss: That of a batch of rows.
    """
    named = dict(model.named_parameters())
    is_decayed = {name: not any(part in name for part in NOT_DECAYED) for name in named}
    groups = [
        {"params": [p for name, p in named.items() if is_decayed[name] == decays], "weight_decay": DECAY * decays}
        for decays in (True, False)
    ]
    optimizer = torch.optim.AdamW(groups, lr=learning_rate, eps=EPSILON, betas=(0.9, BETA_2))
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, int(n_steps * WARMUP), n_steps)
    random = np.random.default_rng(seed)
    n_batches = len(rows) // BATCH_SIZE
    model.train()
    for step in range(n_steps):
        if step % n_batches == 0:
            order = random.permutation(len(rows))
        start = step % n_batches * BATCH_SIZE
        loss([rows[number] for number in order[start : start + BATCH_SIZE]]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    model.eval()


def with_few_layers(folder: Path, output: Path) -> Path:
    """A copy of a folder of Hugging Face's with the first layers of its encoder only."""
    shutil.copytree(folder, output)
    model = transformers.AutoModel.from_pretrained(folder)
    model.encoder.layer = model.encoder.layer[:N_LAYERS]
    model.config.num_hidden_layers = N_LAYERS
    model.save_pretrained(output)
    return output


def sentences_of(folder: Path, split: str) -> Iterator[list[str]]:
    """The words of the sentences of a split of WikiText, punctuation among them, in the order of the file."""
    (file,) = folder.glob(f"*{split}*")
    for line in file.read_text(encoding="utf-8").splitlines():
        for text in line.split(" . ") if not line.startswith(" = ") else []:
            yield text.split()


def measure(
    seeds: Sequence[int], *, ours: Callable[[int], Mapping[str, float]], theirs: Callable[[int], Mapping[str, float]]
) -> dict[str, list[list[float]]]:
    """For each score what our side, and what the other, reaches with each seed."""
    scores: dict[str, list[list[float]]] = {}
    for seed in seeds:
        for number, (side, train) in enumerate(zip(SIDES, (ours, theirs), strict=True)):
            start = time.perf_counter()
            found = train(seed)
            for name, score in found.items():
                scores.setdefault(name, [[], []])[number].append(score)
            shown = ", ".join(f"{name} {score:.4f}" for name, score in found.items())
            print(f"seed {seed}, {side}: {shown} ({time.perf_counter() - start:.0f} s)", flush=True)
    return scores


def tables(scores: Mapping[str, Sequence[Sequence[float]]], *, seeds: Sequence[int], peer: str) -> Iterator[str]:
    """The scores of both sides as Markdown, and how far their means are from each other beside the seeds' spread."""
    listed = seeds if len(seeds) <= _MOST_LISTED else ()
    for name, sides in scores.items():
        about = "mean ± standard deviation" if listed else f"mean ± standard deviation of {len(seeds)} seeds"
        yield f"| {' | '.join([name, *(f'seed {seed}' for seed in listed), about])} |"
        yield f"|---|{'---|' * len(listed)}---|"
        spreads = [statistics.stdev(values) if len(values) > 1 else 0.0 for values in sides]
        for side, values, spread in zip((SIDES[0], peer), sides, spreads, strict=True):
            cells = [f"{value:.4f}" for value in values[: len(listed)]]
            yield f"| {' | '.join([side, *cells, f'{statistics.mean(values):.4f} ± {spread:.4f}'])} |"
        yield ""
        difference = statistics.mean(sides[0]) - statistics.mean(sides[1])
        error = (sum(spread**2 for spread in spreads) / len(seeds)) ** 0.5
        verdict = f", {abs(difference) / error:.1f} times its standard error" if error else ""
        yield f"The means differ by {difference:+.4f}{verdict}."
        yield ""


def versions(*packages: Any) -> str:
    """What the numbers are of."""
    named = ", ".join(f"{package.__name__} {package.__version__}" for package in (jax, torch, transformers, *packages))
    return f"{named}, on {'a GPU' if DEVICE == 'cuda' else f'a CPU ({platform.machine()})'} in float32."


def first_layers_in_words(weights: Path, *, is_full: bool) -> str:
    """What a training starts from, if it may be the first layers only."""
    return weights.name if is_full else f"the first {N_LAYERS} layers of {weights.name}"


def settings_in_words(start: str, *, n_steps: int, learning_rate: float, length: int) -> str:
    """What both sides have alike."""
    return (
        f"Both sides start from {start} and take {n_steps} steps of {BATCH_SIZE} rows of at most {length} tokens by "
        f"AdamW: a rate of {learning_rate:g} after a warm-up of {WARMUP:.0%} and falling to 0, a decay of {DECAY:g} "
        f"but for norms and biases, gradients clipped to a norm of {CLIP_NORM:g}, dropout as the weights' settings "
        f"say. Orders of rows, weights of heads and dropout are each side's own."
    )


def write_page(name: str, lines: Sequence[str]) -> None:
    """Writes a page of results, and prints it."""
    text = "\n".join(lines).rstrip() + "\n"
    print(text)
    (RESULTS / f"{name}.md").write_text(text)
