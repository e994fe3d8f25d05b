"""What turns text into ids and outputs into answers: as a task has it, and as a served model describes it."""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trellis.aliases import JSON
from trellis.data import DataConfig
from trellis.disk import write_whole
from trellis.errors import ArgumentError, ServedModelError
from trellis.nlp.answers.answerers import Answerer, BlankAnswerer, QuestionAnswerer, SentenceAnswerer
from trellis.nlp.answers.question_answers import AnswerOptions
from trellis.nlp.data import Tokenizer, Windows, build_tokenizer
from trellis.tasks import TaskConfig

TEXT = "text"
"""Where the metadata of a served model describes how it answers text."""
VOCABULARY_NAMES = ("vocab.txt", "spiece.model")
"""The names of a vocabulary in a directory: WordPiece's, SentencePiece's."""
_VOCABULARY_FIELDS = ("vocab_file", "vocab_file_path")
"""The names of a vocabulary in the configs of data."""
_ANSWERERS: Mapping[str, Callable[[Mapping[str, Any]], Answerer]] = {
    BlankAnswerer.kind: lambda fields: BlankAnswerer(**fields),
    SentenceAnswerer.kind: lambda fields: SentenceAnswerer(**fields),
    QuestionAnswerer.kind: lambda fields: QuestionAnswerer(
        Windows(**fields["windows"]), AnswerOptions(**fields["options"])
    ),
}


@dataclass(frozen=True, kw_only=True)
class TextSettings:
    """All that text is answered with beside the model and the vocabulary."""

    answerer: Answerer
    tokenization: str
    lower_case: bool
    vocab_size: int
    """How many tokens the model knows."""

    @classmethod
    def of_served_model(cls, metadata: Mapping[str, Any], *, place: str) -> "TextSettings":
        """The settings that a served model describes.

        Args:
            place: Where it lies, for errors.
        """
        try:
            answerer = _ANSWERERS[metadata["answers"]](metadata["answerer"])
            names = ("tokenization", "lower_case", "vocab_size")
            return cls(answerer=answerer, **{name: metadata[name] for name in names})
        except (KeyError, TypeError) as error:
            raise ServedModelError(
                f"`{place}` tells in a way that is not known here how it answers text ({error}). Install the Trellis "
                f"that wrote it, or export the model again."
            ) from error

    def as_dict(self) -> dict[str, JSON]:
        """The settings, as JSON has them."""
        return {**asdict(self), "answers": self.answerer.kind}

    def build_tokenizer(self, vocab_file: Path | None, *, place: str) -> Tokenizer:
        """Returns the tokenizer of a vocabulary, which must not have more tokens than the model.

        Args:
            vocab_file: None if it is not known, which is an error.
            place: Where the model lies, for errors.
        """
        if vocab_file is None:
            raise ArgumentError(
                f"The vocabulary of the model in `{place}` is not known: its data came as ids. Give it, as in "
                f"--vocab_file=vocab.txt"
            )
        tokenizer = build_tokenizer(vocab_file, tokenization=self.tokenization, lower_case=self.lower_case)
        if tokenizer.vocab_size > self.vocab_size:
            raise ArgumentError(
                f"The vocabulary has {tokenizer.vocab_size} tokens, but the model in `{place}` knows "
                f"{self.vocab_size}. Give the one that it was trained with: --vocab_file=vocab.txt"
            )
        return tokenizer


def find_vocabulary(task_config: TaskConfig) -> Path | None:
    """The vocabulary that the data of a task is made with: the first that is there, None if none is known.

    It is looked for where the data's config says, then beside the pretrained weights.
    """
    return next((file for file in _vocabulary_places(task_config) if file.is_file()), None)


def _vocabulary_places(task_config: TaskConfig) -> Iterator[Path]:
    values = task_config.as_dict()
    for side in ("train_data", "validation_data"):
        for field in _VOCABULARY_FIELDS:
            if values[side].get(field):
                yield Path(values[side][field])
    for field in ("hub_module_url", "init_checkpoint"):
        if values.get(field):
            place = Path(values[field])
            yield from (folder / name for folder in (place, place.parent) for name in VOCABULARY_NAMES)


def with_vocabulary(params: DataConfig, *, vocab_file: Path | None) -> DataConfig:
    """The data's config with a vocabulary, if that is known, and if the data is text and names none."""
    values = params.as_dict()
    fields = [name for name in _VOCABULARY_FIELDS if values.get(name) == ""]
    return params.replace(**{fields[0]: str(vocab_file)}) if fields and vocab_file else params


def keep_vocabulary(vocab_file: Path | None, *, directory: str) -> None:
    """Copies a vocabulary, if it is known, into the directory of a run, which can then be asked wherever it is."""
    # A plan looks at how a run would start, and leaves nothing behind: only a run has made its directory.
    if vocab_file is None or not Path(directory).is_dir():
        return
    write_whole(Path(directory, vocabulary_name(vocab_file)), vocab_file.read_bytes())


def kept_vocabulary(directory: str | os.PathLike[str]) -> Path | None:
    """The vocabulary in the directory of a run; None if there is none."""
    return next((file for name in VOCABULARY_NAMES if (file := Path(directory, name)).is_file()), None)


def vocabulary_name(vocab_file: Path) -> str:
    """The name of a vocabulary in the directory of a run."""
    return VOCABULARY_NAMES[1] if vocab_file.suffix == ".model" else VOCABULARY_NAMES[0]
