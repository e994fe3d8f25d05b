"""The published tasks on sentences: which files, columns and labels each has."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from trellis.errors import ArgumentError
from trellis.spelling import nearest

Split = Literal["train", "dev", "test"]

_TSV = {"train": "train.tsv", "dev": "dev.tsv", "test": "test.tsv"}
_JSONL = {"train": "train.jsonl", "dev": "val.jsonl", "test": "test.jsonl"}
_ENTAILED = ("entailment", "not_entailment")
_INFERENCE = ("contradiction", "entailment", "neutral")


@dataclass(frozen=True)
class SentenceFields:
    """Where a row of a file has its text and its label."""

    texts: Sequence[str]
    """One column, or two for pairs."""
    label: str | None
    """None if the rows have no labels."""
    label_values: Sequence[str] | None = None
    """What classes are called, in their order; None reads a number."""
    is_regression: bool = False
    column_names: Sequence[str] | None = None
    """The columns of a file without a header."""


@dataclass(frozen=True)
class SentenceTask:
    """A published task: its files in a folder, and what a row of them holds."""

    name: str
    texts: tuple[str, ...]
    label: str = "label"
    labels: tuple[str, ...] | None = ("0", "1")
    """The classes in their order; None for regression."""
    files: dict[str, str] = field(default_factory=lambda: dict(_TSV))
    headless: tuple[str, ...] | None = None
    """The columns of the files to train on and to validate with, where these have no header."""

    def fields(self, split: Split) -> SentenceFields:
        """What a row of a split holds; the labels of tests are not published."""
        return SentenceFields(
            texts=self.texts,
            label=None if split == "test" else self.label,
            label_values=self.labels,
            is_regression=self.labels is None,
            column_names=None if split == "test" else self.headless,
        )


_COLA_COLUMNS = ("source", "label", "mark", "sentence")
# Hypotheses come first, as in the published tool.
_MNLI_TEXTS = ("sentence2", "sentence1")
_MNLI = {"train": "train.tsv", "dev": "dev_{mnli_type}.tsv", "test": "test_{mnli_type}.tsv"}

TASKS = {
    task.name: task
    for task in (
        SentenceTask("COLA", ("sentence",), headless=_COLA_COLUMNS),
        SentenceTask("SST-2", ("sentence",)),
        SentenceTask("MRPC", ("#1 String", "#2 String"), label="Quality"),
        SentenceTask("QQP", ("question1", "question2"), label="is_duplicate"),
        SentenceTask("STS-B", ("sentence1", "sentence2"), label="score", labels=None),
        SentenceTask("MNLI", _MNLI_TEXTS, label="gold_label", labels=_INFERENCE, files=_MNLI),
        SentenceTask("QNLI", ("question", "sentence"), labels=_ENTAILED),
        SentenceTask("RTE", ("sentence1", "sentence2"), labels=_ENTAILED),
        SentenceTask("WNLI", ("sentence1", "sentence2")),
        SentenceTask(
            "AX", _MNLI_TEXTS, label="gold_label", labels=_INFERENCE, files={**_MNLI, "test": "diagnostic.tsv"}
        ),
        SentenceTask("BoolQ", ("question", "passage"), labels=("True", "False"), files=_JSONL),
        SentenceTask("CB", ("premise", "hypothesis"), labels=("entailment", "neutral", "contradiction"), files=_JSONL),
        SentenceTask("SUPERGLUE-RTE", ("premise", "hypothesis"), labels=_ENTAILED, files=_JSONL),
        SentenceTask("AX-g", ("premise", "hypothesis"), labels=_ENTAILED, files={"test": "AX-g.jsonl"}),
    )
}


def get_sentence_task(name: str) -> SentenceTask:
    """Returns a published task by its name, in any case."""
    by_name = {known.lower(): task for known, task in TASKS.items()}
    if name.lower() not in by_name:
        close = nearest(name, TASKS)
        meant = f" Did you mean {close}?" if close else ""
        raise ArgumentError(f"There is no task {name!r}.{meant} There are: {', '.join(TASKS)}.")
    return by_name[name.lower()]
