"""How a model answers text, as a served model describes it."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trellis.aliases import JSON
from trellis.errors import ArgumentError, ServedModelError
from trellis.nlp.answers.answerers import (
    Answerer,
    BlankAnswerer,
    EmbeddingAnswerer,
    QuestionAnswerer,
    SentenceAnswerer,
)
from trellis.nlp.answers.label_answers import LabelsAnswerer
from trellis.nlp.answers.question_answers import AnswerOptions
from trellis.nlp.answers.tag_answers import TagAnswerer
from trellis.nlp.data import VOCABULARY_NAMES, TextSettings, Tokenizer, Windows, build_tokenizer

_ANSWERERS: Mapping[str, Callable[[Mapping[str, Any]], Answerer]] = {
    BlankAnswerer.kind: lambda fields: BlankAnswerer(**fields),
    SentenceAnswerer.kind: lambda fields: SentenceAnswerer(**fields),
    EmbeddingAnswerer.kind: lambda fields: EmbeddingAnswerer(**fields),
    LabelsAnswerer.kind: lambda fields: LabelsAnswerer(**fields),
    TagAnswerer.kind: lambda fields: TagAnswerer(**fields),
    QuestionAnswerer.kind: lambda fields: QuestionAnswerer(
        Windows(**fields["windows"]), AnswerOptions(**fields["options"])
    ),
}


def served_metadata(answerer: Answerer, *, text: TextSettings | None, vocab_size: int, n_types: int) -> dict[str, JSON]:
    """What a served model tells of how it answers text.

    Args:
        text: None if it is not known, because the data came as ids.
        vocab_size: How many tokens the model knows.
        n_types: How many kinds of segments it knows.
    """
    described: Any = answerer
    return {
        "answers": answerer.kind,
        "answerer": asdict(described),
        "tokenizer": None if text is None else text.as_json(),
        "vocab_size": vocab_size,
        "n_types": n_types,
    }


def read_answerer(metadata: Mapping[str, Any], *, place: str) -> Answerer:
    """The answerer that a served model describes.

    Args:
        place: Where it lies, for errors.
    """
    try:
        return _ANSWERERS[metadata["answers"]](metadata["answerer"])
    except (KeyError, TypeError) as error:
        raise ServedModelError(
            f"`{place}` tells in a way that is not known here how it answers text ({error}). Install the Trellis "
            f"that wrote it, or export the model again."
        ) from error


def read_text(metadata: Mapping[str, Any], *, files: Mapping[str, Path], place: str) -> TextSettings | None:
    """The settings of the text that a served model describes; None if its vocabulary is not among its files."""
    file = next((files[name] for name in VOCABULARY_NAMES.values() if name in files), None)
    if file is None:
        return None
    values = metadata.get("tokenizer")
    if values is not None:
        return TextSettings.of_json(values, vocab_file=file, place=place)
    # Models that were exported before told less.
    rules = {name: metadata[name] for name in ("tokenization", "lower_case") if name in metadata}
    return TextSettings.of(build_tokenizer(file, **rules))


def tokenizer_of_model(text: TextSettings | None, *, vocab_file: str, n_known: int, place: str) -> Tokenizer:
    """Returns what cuts text for a model, which must not have more tokens than the model knows.

    Args:
        text: None if it is not known; then the vocabulary has to be given.
        vocab_file: A vocabulary in the place of that of the text; empty for none.
        n_known: How many tokens the model knows.
        place: Where the model lies, for errors.
    """
    given = text.with_file(vocab_file) if vocab_file and text is not None else None
    if given is not None:
        tokenizer = given.build_tokenizer()
    elif vocab_file:
        is_model = vocab_file.endswith(".model")
        tokenizer = build_tokenizer(vocab_file, tokenization="SentencePiece" if is_model else "WordPiece")
    elif text is not None:
        tokenizer = text.build_tokenizer()
    else:
        raise ArgumentError(
            f"The vocabulary of the model in `{place}` is not known: its data came as ids. Give it, as in "
            f"--vocab_file=vocab.txt"
        )
    if tokenizer.vocab_size > n_known:
        raise ArgumentError(
            f"The vocabulary has {tokenizer.vocab_size} tokens, but the model in `{place}` knows {n_known}. Give the "
            f"one that it was trained with: --vocab_file=vocab.txt"
        )
    if given is not None and text is not None and not given.has_tokens_of(text):
        raise ArgumentError(
            f"--vocab_file: the tokens in `{vocab_file}` are not those of the model in `{place}`, which has its own "
            f"vocabulary. Leave the flag out."
        )
    return tokenizer
