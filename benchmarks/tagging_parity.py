"""Whether a tagger trained by Trellis scores as one that `transformers` trains with the same settings.

The task is made of plain text with capitals, such as the raw WikiText-2: the words of a sentence in lower case, and
the tags `B-CAP` and `I-CAP` for those that had a capital, the first word of the sentence left out. Both sides start
from the same weights, see the same sentences, and use AdamW with the same rates; the score of both is computed by
`seqeval` from the tags that each predicts for whole words.

    pip install -r benchmarks/requirements.txt seqeval
    python benchmarks/tagging_parity.py --text=wikitext-2/raw --weights=weights          # minutes on a CPU
    python benchmarks/tagging_parity.py --text=wikitext-2/raw --weights=weights --full   # hours, or an accelerator
"""

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import parity_sides as sides
import seqeval.metrics
import torch
import transformers
from parity_sides import BATCH_SIZE, DEVICE

import trellis.nlp.experiments  # noqa: F401  (registers them)
from trellis.experiments import get_exp_config, run_experiment
from trellis.nlp.answers import load_predictor

NAMES = ["B-CAP", "I-CAP", "O"]
SEEDS = (1, 2, 3)
LENGTH, LEARNING_RATE = 48, 2e-4


class Sentence(NamedTuple):
    words: list[str]
    tags: list[str]


class Settings(NamedTuple):
    weights: Path
    train: list[Sentence]
    held_out: list[Sentence]
    n_steps: int


def read_sentences(folder: Path, split: str, n_sentences: int) -> list[Sentence]:
    """The first sentences of a split that have some capital beside their first word's."""
    sentences: list[Sentence] = []
    for sentence in sides.sentences_of(folder, split):
        words = sentence[1:31]
        if len(words) >= 8 and any(word[0].isupper() for word in words):
            sentences.append(Sentence([word.lower() for word in words], list(tags_of(words))))
        if len(sentences) == n_sentences:
            break
    return sentences


def tags_of(words: Sequence[str]) -> Iterator[str]:
    was_capital = False
    for word in words:
        is_capital = word[0].isupper()
        yield ("I-CAP" if was_capital else "B-CAP") if is_capital else "O"
        was_capital = is_capital


def score(predicted: list[list[str]], sentences: Sequence[Sentence]) -> dict[str, float]:
    right = [sentence.tags for sentence in sentences]
    return {"F1": float(seqeval.metrics.f1_score(right, predicted))}


def write(file: Path, sentences: Sequence[Sentence]) -> str:
    rows = ({"words": sentence.words, "tags": sentence.tags} for sentence in sentences)
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return str(file)


def ours(seed: int, settings: Settings) -> dict[str, float]:
    """The F1 after a training here."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        params = get_exp_config("encoder/tagging")
        file = write(folder / "train.jsonl", settings.train)
        data = {"input_path": file, "seq_length": LENGTH, "global_batch_size": BATCH_SIZE}
        task = {"hub_module_url": str(settings.weights), "train_data": data}
        trainer = sides.trainer_settings(n_steps=settings.n_steps, learning_rate=LEARNING_RATE)
        params.override({"task": task, "trainer": trainer, "runtime": {"seed": seed}})
        run_experiment(params, mode="train", model_dir=folder / "run")
        predictor = load_predictor(str(folder / "run"))
        answers = predictor([(" ".join(sentence.words),) for sentence in settings.held_out])
        return score([list(answer.values["tags"]) for answer in answers], settings.held_out)


def theirs(seed: int, settings: Settings) -> dict[str, float]:
    """The F1 after a training with transformers."""
    transformers.set_seed(seed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(settings.weights)
    model = transformers.AutoModelForTokenClassification.from_pretrained(settings.weights, num_labels=len(NAMES))
    model = model.to(DEVICE)

    def loss(rows: list[Sentence]) -> torch.Tensor:
        inputs, firsts = encoded(tokenizer, rows)
        labels = torch.full_like(inputs["input_ids"], -100)
        for row, (sentence, places) in enumerate(zip(rows, firsts, strict=True)):
            for number, place in places.items():
                labels[row, place] = NAMES.index(sentence.tags[number])
        return model(**inputs, labels=labels).loss

    rates = {"n_steps": settings.n_steps, "learning_rate": LEARNING_RATE}
    sides.train_in_torch(model, rows=settings.train, loss=loss, seed=seed, **rates)
    predicted: list[list[str]] = []
    with torch.no_grad():
        for start in range(0, len(settings.held_out), BATCH_SIZE):
            rows = settings.held_out[start : start + BATCH_SIZE]
            # None of them is cut: all that has a tag is scored.
            inputs, firsts = encoded(tokenizer, rows, longest=512)
            best = model(**inputs).logits.argmax(-1).cpu()
            for row, (sentence, places) in enumerate(zip(rows, firsts, strict=True)):
                tags = {number: NAMES[int(best[row, place])] for number, place in places.items()}
                # A word of signs that the tokenizer drops has no piece, and so no tag.
                predicted.append([tags.get(number, "O") for number in range(len(sentence.words))])
    return score(predicted, settings.held_out)


def encoded(tokenizer: Any, rows: Sequence[Sentence], longest: int = LENGTH) -> tuple[Any, list[dict[int, int]]]:
    """The inputs of sentences, and where the first piece of each word is, by the number of the word."""
    words = [sentence.words for sentence in rows]
    inputs = tokenizer(
        words, is_split_into_words=True, truncation=True, max_length=longest, padding=True, return_tensors="pt"
    )
    firsts: list[dict[int, int]] = []
    for row in range(len(rows)):
        of_pieces = inputs.word_ids(row)
        seen = dict.fromkeys(number for number in of_pieces if number is not None)
        firsts.append({number: of_pieces.index(number) for number in seen})
    return inputs.to(DEVICE), firsts


def main() -> None:
    """Trains on both sides, and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, required=True, help="a folder with a file of train and one of valid")
    parser.add_argument("--weights", type=Path, required=True, help="a folder of Hugging Face's, uncased")
    parser.add_argument("--full", action="store_true", help="all layers, 16,000 sentences")
    parser.add_argument("--steps", type=int, help="how many steps are taken")
    flags = parser.parse_args()
    n_train, n_held_out, n_steps = (16_000, 2_000, 3_000) if flags.full else (1_600, 300, 100)
    n_steps = flags.steps or n_steps
    sizes = {"n_steps": n_steps, "learning_rate": LEARNING_RATE, "length": LENGTH}
    train = read_sentences(flags.text, "train", n_train)
    held_out = read_sentences(flags.text, "valid", n_held_out)
    with tempfile.TemporaryDirectory() as scratch:
        weights = flags.weights if flags.full else sides.with_few_layers(flags.weights, Path(scratch, "few"))
        settings = Settings(weights, train, held_out, n_steps)
        own, peer = partial(ours, settings=settings), partial(theirs, settings=settings)
        scores = sides.measure(SEEDS, ours=own, theirs=peer)
    about = (
        f"Made by `benchmarks/tagging_parity.py`: which words of WikiText-2, all in lower case, had a capital. F1 of "
        f"spans, by seqeval, on {len(held_out):,} sentences; {len(train):,} others are trained on."
    )
    words = sides.settings_in_words(sides.first_layers_in_words(flags.weights, is_full=flags.full), **sizes)
    measured = sides.tables(scores, seeds=SEEDS, peer="transformers")
    lines = ["# Tags of words, beside transformers", "", about, "", words, "", *measured, sides.versions()]
    sides.write_page("tagging_parity", lines)


if __name__ == "__main__":
    main()
