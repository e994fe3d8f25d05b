"""Whether labels of sentences are learned as by `transformers`: several at once, and those of a teacher.

**Several labels.** Sentences of WikiText-2 have the labels of the topics whose words they use, such as *war* for
`army`; sentences without any are left out. So nobody has given these labels, and a list of words would find them all,
but both sides have to find out from the same sentences. The peer is a classifier with `problem_type` for several
labels; both are scored by scikit-learn.

**Distillation.** A classifier of `transformers` is trained on sentences of SST-2, and its folder teaches two students
that are half as wide: ours by `encoder/distillation`, the other by a plain loop in torch, with the loss of Hinton et
al. Scores are the accuracy on SST-2's own validation data, and how often a student says what its teacher says.

All are small encoders with the vocabulary of a folder of Hugging Face's and new weights, the same on both sides.

    pip install -r benchmarks/requirements.txt scikit-learn
    python benchmarks/sentence_parity.py multi_label --text=wikitext-2/raw --vocabulary=weights
    python benchmarks/sentence_parity.py distillation --sst2=glue/SST-2 --vocabulary=weights
"""

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import parity_sides as sides
import sklearn
import torch
import transformers
from parity_sides import BATCH_SIZE, DEVICE
from sklearn.metrics import average_precision_score, f1_score
from torch.nn import functional

import trellis.nlp.experiments  # noqa: F401  (registers them)
from trellis.experiments import get_exp_config, run_experiment
from trellis.nlp.answers import load_predictor

SEEDS = (1, 2, 3)
TOPICS = {
    "music": {"album", "albums", "band", "music", "musical", "song", "songs", "guitar", "chart", "recorded"},
    "place": {"city", "town", "river", "road", "highway", "island", "park", "street", "building", "north", "south"},
    "sport": {"game", "games", "season", "team", "league", "player", "players", "match", "football", "goal", "won"},
    "story": {"film", "films", "episode", "series", "character", "characters", "novel", "story", "book", "scene"},
    "war": {"army", "battle", "war", "troops", "ship", "ships", "fleet", "division", "attack", "soldiers", "german"},
}
NAMES = sorted(TOPICS)
LENGTH, LEARNING_RATE, TEMPERATURE, SOFT_WEIGHT = 24, 2e-3, 2.0, 0.7
N_TRAIN, N_HELD_OUT, N_STEPS = 3_200, 800, 400
N_LAYERS, WIDTH = 2, 64


class Row(NamedTuple):
    text: str
    label: Any
    """The names of its labels, or its class."""


class Settings(NamedTuple):
    weights: Path
    train: list[Row]
    held_out: list[Row]
    teacher: Path = Path()


def with_new_weights(vocabulary: Path, output: Path, *, width: int, n_positions: int = 512) -> Path:
    """A folder with a small BERT that has learned nothing yet, and with a vocabulary."""
    torch.manual_seed(0)
    sizes = {"hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": N_LAYERS}
    sizes |= {"num_attention_heads": 2, "max_position_embeddings": n_positions}
    # The usual 0.02 is for wide encoders.
    config = transformers.BertConfig(**sizes, initializer_range=0.08)
    transformers.BertModel(config).save_pretrained(output)
    transformers.AutoTokenizer.from_pretrained(vocabulary).save_pretrained(output)
    return output


def read_labelled(folder: Path, split: str, n_rows: int) -> list[Row]:
    """The first sentences of a split that are of some topic, in lower case and without punctuation."""
    rows: list[Row] = []
    for sentence in sides.sentences_of(folder, split):
        words = [word.lower() for word in sentence if word.isalpha()]
        names = [name for name in NAMES if not TOPICS[name].isdisjoint(words)]
        if 6 <= len(words) <= 18 and names and len(rows) < n_rows:
            rows.append(Row(" ".join(words), names))
    return rows


def read_moods(file: Path, n_rows: int) -> list[Row]:
    """The first rows of a file of SST-2."""
    lines = file.read_text(encoding="utf-8").splitlines()[1 : n_rows + 1]
    return [Row(text, int(label)) for text, label in (line.split("\t") for line in lines)]


def answers_of_ours(experiment: str, seed: int, settings: Settings, **task: Any) -> list[Mapping[str, Any]]:
    """What a model that is trained here says of the texts that were held out."""
    with tempfile.TemporaryDirectory() as name:
        file = Path(name, "train.jsonl")
        file.write_text("".join(f"{json.dumps(row._asdict())}\n" for row in settings.train))
        params = get_exp_config(experiment)
        sizes = {"seq_length": LENGTH, "global_batch_size": BATCH_SIZE}
        data = {"input_path": str(file), "text_fields": ["text"], "label_field": "label", **sizes}
        # The pooler is that of the weights, as there.
        task |= {"hub_module_url": str(settings.weights), "train_data": data, "model": {"use_encoder_pooler": True}}
        trainer = sides.trainer_settings(n_steps=N_STEPS, learning_rate=LEARNING_RATE)
        params.override({"task": task, "trainer": trainer, "runtime": {"seed": seed}})
        run_experiment(params, mode="train", model_dir=Path(name, "run"))
        answers = load_predictor(str(Path(name, "run")))([(row.text,) for row in settings.held_out])
        return [answer.values for answer in answers]


class Peer:
    """A classifier of transformers: what it says of texts, and its training."""

    def __init__(self, weights: Path, **options: Any) -> None:
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(weights)
        model = transformers.AutoModelForSequenceClassification.from_pretrained(weights, **options)
        self.model: Any = model.to(DEVICE).eval()

    def logits(self, rows: Sequence[Row]) -> torch.Tensor:
        """The logits of a batch."""
        texts = [row.text for row in rows]
        rules = {"truncation": True, "max_length": LENGTH, "padding": True}
        inputs = self.tokenizer(texts, return_tensors="pt", **rules).to(DEVICE)
        logits: torch.Tensor = self.model(**inputs).logits
        return logits

    @torch.no_grad()
    def answers(self, rows: Sequence[Row]) -> torch.Tensor:
        """The logits of all rows."""
        parts = [self.logits(rows[start : start + BATCH_SIZE]) for start in range(0, len(rows), BATCH_SIZE)]
        return torch.cat(parts).cpu()

    def train(self, loss: Any, *, rows: Sequence[Any], seed: int) -> None:
        """Trains it on rows by the loss of a batch of them."""
        rates = {"n_steps": N_STEPS, "learning_rate": LEARNING_RATE}
        sides.train_in_torch(self.model, rows=rows, loss=loss, seed=seed, **rates)


def our_labels(seed: int, settings: Settings) -> dict[str, float]:
    """The F1 of several labels after a training here."""
    answers = answers_of_ours("encoder/multi_label", seed, settings)
    return scores_of_labels([[answer["probabilities"][name] for name in NAMES] for answer in answers], settings)


def their_labels(seed: int, settings: Settings) -> dict[str, float]:
    """The F1 of several labels after a training with transformers."""
    transformers.set_seed(seed)
    peer = Peer(settings.weights, num_labels=len(NAMES), problem_type="multi_label_classification")
    criterion = torch.nn.BCEWithLogitsLoss()

    def loss(rows: Sequence[Row]) -> torch.Tensor:
        labels = torch.tensor([as_numbers(row.label) for row in rows], dtype=torch.float32, device=DEVICE)
        value: torch.Tensor = criterion(peer.logits(rows), labels)
        return value

    peer.train(loss, rows=settings.train, seed=seed)
    return scores_of_labels(peer.answers(settings.held_out).sigmoid().tolist(), settings)


def as_numbers(names: Sequence[str]) -> list[int]:
    return [int(name in names) for name in NAMES]


def scores_of_labels(chances: Sequence[Sequence[float]], settings: Settings) -> dict[str, float]:
    right = np.array([as_numbers(row.label) for row in settings.held_out])
    return {
        "micro F1": float(f1_score(right, np.array(chances) >= 0.5, average="micro")),
        "mean average precision": float(average_precision_score(right, np.array(chances), average="macro")),
    }


def train_teacher(settings: Settings, output: Path) -> Path:
    """A folder with a classifier of transformers, fine-tuned."""
    transformers.set_seed(0)
    peer = Peer(settings.weights, num_labels=2)

    def loss(rows: Sequence[Row]) -> torch.Tensor:
        return functional.cross_entropy(peer.logits(rows), torch.tensor([row.label for row in rows], device=DEVICE))

    peer.train(loss, rows=settings.train, seed=0)
    for part in (peer.model, peer.tokenizer):
        part.save_pretrained(output)
    return output


def our_student(seed: int, settings: Settings) -> dict[str, float]:
    """The scores of a student that is taught here."""
    teaching = {"temperature": TEMPERATURE, "soft_weight": SOFT_WEIGHT, "teacher_dir": str(settings.teacher)}
    answers = answers_of_ours("encoder/distillation", seed, settings, **teaching)
    return scores_of_student([answer["class"] for answer in answers], settings)


def their_student(seed: int, settings: Settings) -> dict[str, float]:
    """The scores of a student that is taught in torch."""
    transformers.set_seed(seed)
    peer = Peer(settings.weights, num_labels=2)
    taught = list(zip(settings.train, Peer(settings.teacher).answers(settings.train), strict=True))

    def loss(pairs: Sequence[tuple[Row, torch.Tensor]]) -> torch.Tensor:
        logits = peer.logits([row for row, _ in pairs])
        soft = torch.stack([answer for _, answer in pairs]).to(DEVICE)
        logs, shares = (logits / TEMPERATURE).log_softmax(-1), (soft / TEMPERATURE).softmax(-1)
        divergence = functional.kl_div(logs, shares, reduction="batchmean") * TEMPERATURE**2
        hard = functional.cross_entropy(logits, torch.tensor([row.label for row, _ in pairs], device=DEVICE))
        return SOFT_WEIGHT * divergence + (1 - SOFT_WEIGHT) * hard

    peer.train(loss, rows=taught, seed=seed)
    return scores_of_student(peer.answers(settings.held_out).argmax(-1).tolist(), settings)


def scores_of_student(classes: Sequence[int], settings: Settings) -> dict[str, float]:
    says = Peer(settings.teacher).answers(settings.held_out).argmax(-1).tolist()
    right = [row.label for row in settings.held_out]
    return {"accuracy": agreement(classes, right), "says what its teacher says": agreement(classes, says)}


def agreement(first: Sequence[int], second: Sequence[int]) -> float:
    return sum(one == other for one, other in zip(first, second, strict=True)) / len(first)


def compare_labels(text: Path, start: Path, *, seeds: Sequence[int]) -> list[str]:
    """The section on several labels."""
    settings = Settings(start, read_labelled(text, "train", N_TRAIN), read_labelled(text, "valid", N_HELD_OUT))
    own, peer = partial(our_labels, settings=settings), partial(their_labels, settings=settings)
    scores = sides.measure(seeds, ours=own, theirs=peer)
    about = f"Of which topics ({', '.join(NAMES)}) a sentence of WikiText-2 has words; scores by scikit-learn."
    return [about, "", *sides.tables(scores, seeds=seeds, peer="transformers")]


def compare_students(sst2: Path, start: Path, teacher: Path, *, seeds: Sequence[int]) -> list[str]:
    """The section on distillation."""
    settings = Settings(start, read_moods(sst2 / "train.tsv", N_TRAIN), read_moods(sst2 / "dev.tsv", N_HELD_OUT))
    settings = settings._replace(teacher=train_teacher(settings._replace(weights=teacher), teacher))
    own, peer = partial(our_student, settings=settings), partial(their_student, settings=settings)
    scores = sides.measure(seeds, ours=own, theirs=peer)
    says = Peer(settings.teacher).answers(settings.held_out).argmax(-1).tolist()
    right = agreement(says, [row.label for row in settings.held_out])
    about = (
        f"The teacher, {N_LAYERS} layers of {2 * WIDTH} trained by transformers with as many steps, has {right:.4f} on "
        f"SST-2. Students learn from its answers (temperature {TEMPERATURE:g}, a share of {SOFT_WEIGHT:g}) and from "
        f"labels."
    )
    return [about, "", *sides.tables(scores, seeds=seeds, peer="torch")]


def main() -> None:
    """Trains on both sides, and writes a page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=["multi_label", "distillation"])
    parser.add_argument("--text", type=Path, help="for labels: a folder with a file of train and one of valid")
    parser.add_argument("--sst2", type=Path, help="for students: a folder with train.tsv and dev.tsv")
    parser.add_argument("--vocabulary", type=Path, required=True, help="a folder of Hugging Face's, uncased")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        start = with_new_weights(flags.vocabulary, Path(scratch, "start"), width=WIDTH)
        if flags.part == "multi_label":
            title, found = "# Several labels, beside transformers", compare_labels(flags.text, start, seeds=flags.seeds)
        else:
            # Rows that are given to it are as long as it can read.
            sizes = {"width": 2 * WIDTH, "n_positions": LENGTH}
            teacher = with_new_weights(flags.vocabulary, Path(scratch, "teacher"), **sizes)
            title, found = (
                "# Distillation, beside a loop in torch",
                compare_students(flags.sst2, start, teacher, seeds=flags.seeds),
            )
    sizes = {"n_steps": N_STEPS, "learning_rate": LEARNING_RATE, "length": LENGTH}
    rows = f"{N_TRAIN:,} rows are trained on, {N_HELD_OUT:,} others are scored."
    made = f"Made by `benchmarks/sentence_parity.py`: {rows}"
    words = sides.settings_in_words(f"the same new weights ({N_LAYERS} layers of {WIDTH})", **sizes)
    sides.write_page(f"{flags.part}_parity", [title, "", made, "", words, "", *found, sides.versions(sklearn)])


if __name__ == "__main__":
    main()
