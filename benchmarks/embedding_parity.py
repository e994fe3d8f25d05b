"""Trains sentence vectors on STS-B here and with sentence-transformers, with equal settings, over three seeds.

The untouched model is evaluated by both first. Without `--full` only its first two layers are taken, for some steps,
and the first 400 pairs of the validation data, so that two cores need minutes; with it they need an hour or two, and
with fewer `--steps` less.

    pip install -r benchmarks/requirements.txt sentence-transformers
    python benchmarks/embedding_parity.py --model=weights/all-MiniLM-L6-v2 --data=glue/STS-B [--full --steps=180]
"""

import argparse
import tempfile
from functools import partial
from pathlib import Path
from typing import NamedTuple

import parity_sides as sides
import sentence_transformers
import torch
from parity_sides import BATCH_SIZE, DEVICE
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import losses
from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator

import trellis.nlp.experiments  # noqa: F401  (registers them)
from trellis.experiments import get_exp_config, run_experiment

SEEDS = (1, 2, 3)
LEARNING_RATE, SEQ_LENGTH = 1e-4, 32
N_STEPS = {False: 60, True: 1_440}
Pair = tuple[str, str, float]


class Settings(NamedTuple):
    model: Path
    data: Path
    n_steps: int


def read_rows(file: Path) -> list[Pair]:
    """The pairs of a file of STS-B, and how alike they are, from 0 to 1."""
    lines = file.read_text().splitlines()
    header = lines[0].split("\t")
    places = [header.index(name) for name in ("sentence1", "sentence2", "score")]
    cells = ([line.split("\t")[place] for place in places] for line in lines[1:])
    return [(first, second, float(score) / 5) for first, second, score in cells]


def spearman(model: SentenceTransformer, rows: list[Pair]) -> float:
    """What sentence-transformers says of a model."""
    evaluator = EmbeddingSimilarityEvaluator(*map(list, zip(*rows, strict=True)))
    return float(evaluator(model)["spearman_cosine"])


def build_theirs(settings: Settings) -> SentenceTransformer:
    """The model as sentence-transformers has it before a training."""
    model = SentenceTransformer(str(settings.model), device=DEVICE)
    model.max_seq_length = SEQ_LENGTH
    return model


def theirs(seed: int, settings: Settings) -> dict[str, float]:
    """The correlation after a training with sentence-transformers."""
    torch.manual_seed(seed)
    model = build_theirs(settings)
    cosine_loss = losses.CosineSimilarityLoss(model)

    def loss(rows: list[Pair]) -> torch.Tensor:
        texts = ([row[side] for row in rows] for side in (0, 1))
        features = [
            {
                name: value.to(DEVICE)
                for name, value in model.preprocess(part).items()
                if isinstance(value, torch.Tensor)
            }
            for part in texts
        ]
        return cosine_loss(features, torch.tensor([row[2] for row in rows], device=DEVICE))

    rates = {"n_steps": settings.n_steps, "learning_rate": LEARNING_RATE}
    sides.train_in_torch(model, rows=read_rows(settings.data / "train.tsv"), loss=loss, seed=seed, **rates)
    return {"Spearman": spearman(model, read_rows(settings.data / "dev.tsv"))}


def ours(seed: int, settings: Settings, mode: str = "train") -> dict[str, float]:
    """The correlation after a training here or, with mode `eval`, of the untouched model."""
    params = get_exp_config("encoder/embedding")
    columns = {"left_text_fields": ["sentence1"], "right_text_fields": ["sentence2"], "score_field": "score"}
    columns |= {"score_range": [0, 5], "seq_length": SEQ_LENGTH}
    files = {side: str(settings.data / f"{name}.tsv") for side, name in (("train", "train"), ("validation", "dev"))}
    task = {
        "hub_module_url": str(settings.model),
        "train_data": {**columns, "input_path": files["train"], "global_batch_size": BATCH_SIZE},
        "validation_data": {**columns, "input_path": files["validation"]},
    }
    trainer = sides.trainer_settings(n_steps=settings.n_steps, learning_rate=LEARNING_RATE)
    params.override({"task": task, "trainer": trainer, "runtime": {"seed": seed}})
    with tempfile.TemporaryDirectory() as model_dir:
        _, logs = run_experiment(params, mode=mode, model_dir=Path(model_dir), run_post_eval=True)
    return {"Spearman": float(logs["spearman_cosine"])}


def with_few_rows(folder: Path, output: Path, *, n_rows: int) -> Path:
    """A copy of the data with the first rows of its validation data only."""
    output.mkdir()
    (output / "train.tsv").write_text((folder / "train.tsv").read_text())
    lines = (folder / "dev.tsv").read_text().splitlines(keepends=True)
    (output / "dev.tsv").write_text("".join(lines[: n_rows + 1]))
    return output


def main() -> None:
    """Trains on both sides, and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--full", action="store_true", help="the whole model and all pairs")
    parser.add_argument("--steps", type=int, help="how many steps are taken")
    flags = parser.parse_args()
    sizes = {"n_steps": flags.steps or N_STEPS[flags.full], "learning_rate": LEARNING_RATE}
    with tempfile.TemporaryDirectory() as scratch:
        settings = Settings(flags.model, flags.data, sizes["n_steps"])
        if not flags.full:
            settings = settings._replace(
                model=sides.with_few_layers(flags.model, Path(scratch, "few")),
                data=with_few_rows(flags.data, Path(scratch, "data"), n_rows=400),
            )
        rows = read_rows(settings.data / "dev.tsv")
        untouched = [ours(0, settings, mode="eval")["Spearman"], spearman(build_theirs(settings), rows)]
        print(f"untouched: {untouched}", flush=True)
        own, peer = partial(ours, settings=settings), partial(theirs, settings=settings)
        scores = sides.measure(SEEDS, ours=own, theirs=peer)
    about = (
        f"Made by `benchmarks/embedding_parity.py`: {len(rows):,} pairs of STS-B's validation data, how "
        f"cosines of vectors rank beside people's scores. Untouched, the weights have {untouched[0]:.4f} here and "
        f"{untouched[1]:.4f} there."
    )
    start = sides.first_layers_in_words(flags.model, is_full=flags.full)
    words = sides.settings_in_words(start, length=SEQ_LENGTH, **sizes)
    title = "# Sentence vectors, beside sentence-transformers"
    measured = sides.tables(scores, seeds=SEEDS, peer="sentence-transformers")
    lines = [title, "", about, "", words, "", *measured, sides.versions(sentence_transformers)]
    sides.write_page("embedding_parity", lines)


if __name__ == "__main__":
    main()
