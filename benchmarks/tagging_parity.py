"""Whether a tagger trained by Trellis scores as one that `transformers` trains with the same settings.

The task is made of plain text with capitals, such as the raw WikiText-2: the words of a sentence in lower case, and
the tags `B-CAP` and `I-CAP` for those that had a capital, the first word of the sentence left out. Both sides start
from the same weights, see the same sentences, and use AdamW with the same rates; the score of both is computed by
`seqeval` from the tags that each predicts for whole words.

    pip install -r benchmarks/requirements.txt seqeval
    python benchmarks/tagging_parity.py --text=wikitext-2/raw --weights=weights          # minutes on a CPU
    python benchmarks/tagging_parity.py --text=wikitext-2/raw --weights=weights --full   # for an accelerator
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import seqeval.metrics
import torch
import transformers

import trellis.nlp.experiments  # noqa: F401  (registers them)
from trellis.experiments import get_exp_config, run_experiment
from trellis.nlp.answers import load_predictor

NAMES = ["B-CAP", "I-CAP", "O"]
BATCH_SIZE, LENGTH, WARMUP, DECAY, EPSILON, BETA_2 = 16, 64, 0.1, 0.01, 1e-8, 0.999


class Settings(NamedTuple):
    weights: Path
    n_epochs: int
    learning_rate: float


class Sentence(NamedTuple):
    words: list[str]
    tags: list[str]


def read_sentences(folder: Path, split: str, n_sentences: int) -> list[Sentence]:
    """The first sentences of a split that have some capital beside their first word's."""
    (file,) = folder.glob(f"*{split}*")
    sentences: list[Sentence] = []
    for line in file.read_text(encoding="utf-8").splitlines():
        for text in line.split(" . ") if not line.startswith(" = ") else []:
            words = text.split()[1:41]
            if len(words) >= 8 and any(word[0].isupper() for word in words):
                sentences.append(Sentence([word.lower() for word in words], list(tags_of(words))))
        if len(sentences) >= n_sentences:
            break
    return sentences[:n_sentences]


def tags_of(words: Sequence[str]) -> Iterator[str]:
    was_capital = False
    for word in words:
        is_capital = word[0].isupper()
        yield ("I-CAP" if was_capital else "B-CAP") if is_capital else "O"
        was_capital = is_capital


def score(predicted: list[list[str]], sentences: Sequence[Sentence]) -> float:
    right = [sentence.tags for sentence in sentences]
    return float(seqeval.metrics.f1_score(right, predicted))


def write(file: Path, sentences: Sequence[Sentence]) -> str:
    rows = ({"words": sentence.words, "tags": sentence.tags} for sentence in sentences)
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return str(file)


def ours(settings: Settings, train: Sequence[Sentence], held_out: Sequence[Sentence], seed: int) -> float:
    n_steps = len(train) // BATCH_SIZE * settings.n_epochs
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        params = get_exp_config("encoder/tagging")
        sizes = {"seq_length": LENGTH, "global_batch_size": BATCH_SIZE}
        sides = {"train_data": train, "validation_data": held_out}
        data = {side: {**sizes, "input_path": write(folder / f"{side}.jsonl", rows)} for side, rows in sides.items()}
        # The warm-up takes the place of the decay's first steps; epsilon is added before the correction of the bias.
        rate = {"initial_learning_rate": settings.learning_rate / (1 - WARMUP), "decay_steps": n_steps}
        optimizer = {
            "optimizer": {"adamw": {"epsilon": EPSILON * (1 - BETA_2) ** 0.5, "weight_decay_rate": DECAY}},
            "learning_rate": {"polynomial": rate},
            "warmup": {"polynomial": {"warmup_steps": int(n_steps * WARMUP)}},
        }
        trainer = {"train_steps": n_steps, "train_epochs": 0, "optimizer_config": optimizer}
        params.override(
            {"task": {"hub_module_url": str(settings.weights), **data}, "trainer": trainer, "runtime": {"seed": seed}}
        )
        run_experiment(params, mode="train", model_dir=folder / "run")
        predictor = load_predictor(str(folder / "run"))
        answers = predictor([(" ".join(sentence.words),) for sentence in held_out])
        return score([list(answer.values["tags"]) for answer in answers], held_out)


def theirs(settings: Settings, train: Sequence[Sentence], held_out: Sequence[Sentence], seed: int) -> float:
    transformers.set_seed(seed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(settings.weights)
    model = transformers.AutoModelForTokenClassification.from_pretrained(settings.weights, num_labels=len(NAMES))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = model.to(device)
    named = dict(model.named_parameters())
    is_decayed = {name: "LayerNorm" not in name and "bias" not in name for name in named}
    groups = [
        {"params": [p for name, p in named.items() if is_decayed[name] == decays], "weight_decay": DECAY * decays}
        for decays in (True, False)
    ]
    optimizer = torch.optim.AdamW(groups, lr=settings.learning_rate, eps=EPSILON, betas=(0.9, BETA_2))
    n_steps = len(train) // BATCH_SIZE * settings.n_epochs
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, int(n_steps * WARMUP), n_steps)
    random = np.random.default_rng(seed)
    order = np.concatenate([random.permutation(len(train)) for _ in range(settings.n_epochs + 1)])
    model.train()
    for step in range(n_steps):
        rows = [train[number] for number in order[step * BATCH_SIZE : (step + 1) * BATCH_SIZE]]
        inputs, firsts = encoded(tokenizer, rows, device)
        labels = torch.full_like(inputs["input_ids"], -100)
        for row, (sentence, places) in enumerate(zip(rows, firsts, strict=True)):
            labels[row, places] = torch.tensor(
                [NAMES.index(tag) for tag in sentence.tags[: len(places)]], device=device
            )
        model(**inputs, labels=labels).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    model.eval()
    predicted: list[list[str]] = []
    with torch.no_grad():
        for start in range(0, len(held_out), BATCH_SIZE):
            rows = held_out[start : start + BATCH_SIZE]
            # None of them is cut: all that has a tag is scored.
            inputs, firsts = encoded(tokenizer, rows, device, longest=512)
            best = model(**inputs).logits.argmax(-1).cpu()
            predicted += [[NAMES[tag] for tag in best[row, places].tolist()] for row, places in enumerate(firsts)]
    return score(predicted, held_out)


def encoded(
    tokenizer: Any, rows: Sequence[Sentence], device: str, longest: int = LENGTH
) -> tuple[Any, list[list[int]]]:
    """The inputs of sentences, and where the first piece of each word is."""
    words = [sentence.words for sentence in rows]
    inputs = tokenizer(
        words, is_split_into_words=True, truncation=True, max_length=longest, padding=True, return_tensors="pt"
    )
    firsts: list[list[int]] = []
    for row in range(len(rows)):
        of_pieces = inputs.word_ids(row)
        seen = dict.fromkeys(number for number in of_pieces if number is not None)
        firsts.append([of_pieces.index(number) for number in seen])
    return inputs.to(device), firsts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, required=True, help="a folder with a file of train and one of valid")
    parser.add_argument("--weights", type=Path, required=True, help="a folder of Hugging Face's, uncased")
    parser.add_argument("--full", action="store_true", help="16,000 sentences and three epochs, for an accelerator")
    parser.add_argument("--n_train", type=int, default=320)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--learning_rate", type=float, default=1e-4)
    arguments = parser.parse_args()
    n_train, n_held_out, n_epochs = (16_000, 2_000, 3) if arguments.full else (arguments.n_train, 200, 2)
    settings = Settings(arguments.weights, n_epochs, arguments.learning_rate)
    train = read_sentences(arguments.text, "train", n_train)
    held_out = read_sentences(arguments.text, "valid", n_held_out)
    print(f"{len(train)} sentences to train on, {len(held_out)} held out, {n_epochs} epochs, batches of {BATCH_SIZE}")
    scores: dict[str, list[float]] = {}
    for name, measure in {"trellis": ours, "transformers": theirs}.items():
        for seed in range(arguments.seeds):
            scores.setdefault(name, []).append(measure(settings, train, held_out, seed))
            print(f"{name:12} seed {seed}: F1 {scores[name][-1]:.4f}", flush=True)
    print("\n|  | F1 of each seed | mean | spread |\n|---|---|---|---|")
    for name, values in scores.items():
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        listed = ", ".join(f"{value:.4f}" for value in values)
        print(f"| {name} | {listed} | {statistics.mean(values):.4f} | {spread:.4f} |")


if __name__ == "__main__":
    main()
