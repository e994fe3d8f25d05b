"""From text to a model's inputs, and from its outputs to answers: of blanks, of sentences, of questions."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import jax
import numpy as np

from trellis.aliases import PyTree
from trellis.data import Columns, Padding, Ragged
from trellis.errors import ArgumentError
from trellis.nlp.answers.question_answers import Answer, AnswerOptions, answer_questions, probabilities
from trellis.nlp.data import (
    FIRST_UNIQUE_ID,
    Question,
    Specials,
    Tokenizer,
    Windows,
    assemble_texts,
    is_unicode,
    passage_gaps,
    passage_words,
    question_features,
    tokenize_questions,
)

BATCH_SIZE = 16
BLANK = "[MASK]"
INPUTS = ("input_word_ids", "input_mask", "input_type_ids")
_SHORTEST = 16
"""How long a batch of short texts is, if it may be shorter than the model reads."""
_N_SHOWN = 5
_MOST_QUOTED = 200


@dataclass(frozen=True)
class Prediction:
    """The answer to one text."""

    text: str
    """For people, on one or more lines."""
    values: Mapping[str, Any]
    """For programs, as JSON has it."""
    problem: str = ""
    """Why there is no answer, if there is none; `text` and `values` say so too."""


class AskModel(Protocol):
    """Runs a model on inputs."""

    def __call__(self, inputs: Mapping[str, np.ndarray], /) -> Iterator[Any]:
        """Yields the model's outputs for each example, as NumPy arrays."""


class Answerer(Protocol):
    """How text becomes a model's inputs, and its outputs an answer: all but the model and the vocabulary.

    It is a dataclass whose fields JSON can hold, so that a served model can describe it.
    """

    @property
    def kind(self) -> str:
        """What it answers, in a word."""

    @property
    def text_columns(self) -> Sequence[str]:
        """The names of the parts of a text; empty if they have none."""

    @property
    def column_names(self) -> Sequence[str] | None:
        """The columns of files without a header, if the model was trained on such."""

    @property
    def input_lengths(self) -> Mapping[str, int]:
        """The inputs of the model, and how long each is."""

    def check(self, parts: tuple[str, ...], *, tokenizer: Tokenizer) -> None:
        """Raises an error that says why a text cannot be answered, if it cannot."""

    def __call__(
        self, texts: Sequence[tuple[str, ...]], *, ask: AskModel, tokenizer: Tokenizer
    ) -> Iterator[Prediction]:
        """Yields the answer to each text, which may have several parts; `check` has found nothing wrong with any."""


def check_parts(parts: tuple[str, ...], names: Sequence[str]) -> None:
    """Raises an error if a text has other parts than are named, or one that is empty or broken."""
    if len(parts) != len(names):
        n_parts = f"{len(parts)} part{'s' if len(parts) > 1 else ''}"
        takes = f"it takes {len(names)}: {', '.join(names)}"
        raise ArgumentError(f"{quoted(' | '.join(parts))} has {n_parts}, but {takes}.")
    for part, name in zip(parts, names, strict=True):
        if not part.strip():
            raise ArgumentError(f"{name} is empty. Fill it in, or leave the text out.")
        if not is_unicode(part):
            raise ArgumentError(f"{name} is {quoted(part)}, which has half a character. Give it in UTF-8.")


def quoted(text: str) -> str:
    """A text as an error shows it: in quotes, and no more than its beginning if it is long."""
    return repr(text if len(text) <= _MOST_QUOTED else f"{text[:_MOST_QUOTED]}…")


def in_batches(
    run: Callable[[Mapping[str, np.ndarray]], PyTree], *, batch_size: int = BATCH_SIZE, cuts_padding: bool = False
) -> AskModel:
    """Asks a function of batches; the last batch is filled up, so that one program runs them all.

    Args:
        cuts_padding: Whether a batch is only as long as its texts need; lengths are powers of two, so that a few
            programs run them all.
    """

    def ask(inputs: Mapping[str, np.ndarray], /) -> Iterator[Any]:
        n = len(next(iter(inputs.values())))
        for start in range(0, n, batch_size):
            rows = np.minimum(np.arange(start, start + batch_size), n - 1)
            batch = {name: array[rows] for name, array in inputs.items()}
            outputs = jax.device_get(run(_without_padding(batch) if cuts_padding else batch))
            for row in range(min(batch_size, n - start)):
                yield jax.tree.map(lambda leaf, row=row: leaf[row], outputs)

    return ask


def _without_padding(batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    longest = int(batch["input_mask"].sum(axis=1).max())
    length = max(_SHORTEST, 1 << (longest - 1).bit_length())
    return {name: array[:, :length] if name in INPUTS else array for name, array in batch.items()}


def sentence_inputs(
    texts: Sequence[tuple[str, ...]], *, tokenizer: Tokenizer, seq_length: int
) -> dict[str, np.ndarray]:
    """What a model reads of sentences or pairs."""
    sequences = assemble_texts(
        tokenizer.encode([parts[0] for parts in texts]),
        tokenizer.encode([parts[1] if len(parts) == 2 else "" for parts in texts]),
        rows=np.arange(len(texts)),
        seq_length=seq_length,
        specials=Specials.of(tokenizer),
    )
    return dict(zip(INPUTS, (sequences.ids, sequences.mask, sequences.types), strict=True))


@dataclass(frozen=True)
class SentenceAnswerer:
    """Tells the class, or the number, of each sentence or pair. The model returns logits; a single one is a number."""

    seq_length: int
    label_values: Sequence[str] | None = None
    """The names of the classes; with None their numbers are shown."""
    text_columns: Sequence[str] = ()
    column_names: Sequence[str] | None = None
    """The columns of its files, if these have no header."""

    kind: ClassVar[str] = "sentences"

    @property
    def input_lengths(self) -> Mapping[str, int]:
        """The inputs of the model, and how long each is."""
        return dict.fromkeys(INPUTS, self.seq_length)

    def check(self, parts: tuple[str, ...], *, tokenizer: Tokenizer) -> None:
        """Refuses what is not the sentence or the pair that the model was trained on; these may be not known."""
        check_parts(parts, self.text_columns or ("the sentence", "the second sentence")[: max(1, len(parts))])

    def __call__(
        self, texts: Sequence[tuple[str, ...]], *, ask: AskModel, tokenizer: Tokenizer
    ) -> Iterator[Prediction]:
        """Yields the class, or the number, of each sentence or pair."""
        logits = self.logits(texts, ask=ask, tokenizer=tokenizer)
        for parts, row in zip(texts, logits, strict=True):
            yield self._prediction(parts, row.astype(np.float64))

    def logits(self, texts: Sequence[tuple[str, ...]], *, ask: AskModel, tokenizer: Tokenizer) -> Iterator[np.ndarray]:
        """Yields the logits of the classes, or the number, of each sentence or pair."""
        yield from ask(sentence_inputs(texts, tokenizer=tokenizer, seq_length=self.seq_length))

    def _prediction(self, parts: tuple[str, ...], logits: np.ndarray) -> Prediction:
        text = " | ".join(parts)
        asked = {"text": parts, **({"text_fields": list(self.text_columns)} if self.text_columns else {})}
        if len(logits) == 1:
            return Prediction(f"{logits[0]:.3f}  {text}", {**asked, "value": float(logits[0])})
        shares = probabilities(logits)
        best = int(shares.argmax())
        label = self.label_values[best] if self.label_values else str(best)
        answer = {"class": best, "label": label, "probabilities": [round(float(p), 6) for p in shares]}
        return Prediction(f"{label} ({shares[best]:.0%})  {text}", {**asked, **answer})


@dataclass(frozen=True)
class EmbeddingAnswerer:
    """Tells the vector of each text or, of two, the cosine of their vectors. The model returns vectors."""

    seq_length: int

    kind: ClassVar[str] = "embeddings"
    text_columns: ClassVar[Sequence[str]] = ()
    column_names: ClassVar[Sequence[str] | None] = None

    @property
    def input_lengths(self) -> Mapping[str, int]:
        """The inputs of the model, and how long each is."""
        return dict.fromkeys(INPUTS, self.seq_length)

    def check(self, parts: tuple[str, ...], *, tokenizer: Tokenizer) -> None:
        """Refuses what is neither a text nor two of them."""
        if len(parts) > 2:
            texts = quoted(" | ".join(parts))
            raise ArgumentError(f"{texts} has {len(parts)} parts. Give a text, or two to be compared.")
        check_parts(parts, ("the text", "the second text")[: max(1, len(parts))])

    def __call__(
        self, texts: Sequence[tuple[str, ...]], *, ask: AskModel, tokenizer: Tokenizer
    ) -> Iterator[Prediction]:
        """Yields the vector of each text, or the cosine of two."""
        single = [(part,) for parts in texts for part in parts]
        vectors = ask(sentence_inputs(single, tokenizer=tokenizer, seq_length=self.seq_length))
        for parts in texts:
            yield _embedding_prediction(parts, [next(vectors).astype(np.float64) for _ in parts])


def _embedding_prediction(parts: tuple[str, ...], vectors: Sequence[np.ndarray]) -> Prediction:
    if len(parts) == 2:
        left, right = vectors
        lengths = np.linalg.norm(left) * np.linalg.norm(right)
        similarity = float(left @ right / lengths) if lengths else 0.0
        return Prediction(f"{similarity:.3f}  {' | '.join(parts)}", {"text": parts, "similarity": similarity})
    (vector,) = vectors
    shown = ", ".join(f"{value:.4f}" for value in vector[:_N_SHOWN])
    more = ", …" if len(vector) > _N_SHOWN else ""
    # As many digits as a number of 32 bits has.
    numbers = [float(np.format_float_positional(np.float32(value), unique=True)) for value in vector]
    return Prediction(f"[{shown}{more}] ({len(vector)} numbers)  {parts[0]}", {"text": parts, "embedding": numbers})


@dataclass(frozen=True)
class QuestionAnswerer:
    """Finds the answer to each question in its passage. The model returns `start_logits` and `end_logits`."""

    windows: Windows
    options: AnswerOptions

    kind: ClassVar[str] = "questions"
    text_columns: ClassVar[Sequence[str]] = ("question", "context")
    column_names: ClassVar[Sequence[str] | None] = None

    @property
    def input_lengths(self) -> Mapping[str, int]:
        """The inputs of the model, and how long each is."""
        return dict.fromkeys(INPUTS, self.windows.seq_length)

    def check(self, parts: tuple[str, ...], *, tokenizer: Tokenizer) -> None:
        """Refuses what is not a question and a passage that has words."""
        check_parts(parts, self.text_columns)
        if not len(tokenizer.encode([parts[1]]).values):
            passage = quoted(parts[1])
            raise ArgumentError(f"{self.text_columns[1]} is {passage}, in which there is no word. Give a passage.")

    def __call__(
        self, texts: Sequence[tuple[str, ...]], *, ask: AskModel, tokenizer: Tokenizer
    ) -> Iterator[Prediction]:
        """Yields the answer to each question from its passage."""
        # Questions on one passage share its words, so that it is tokenized once.
        words = {passage: (passage_words(passage), passage_gaps(passage)) for _, passage in texts}
        questions = [
            Question(str(number), text, words[passage][0], answers=(), gaps=words[passage][1])
            for number, (text, passage) in enumerate(texts)
        ]
        windows = Columns.from_arrays(tokenize_questions(questions, tokenizer=tokenizer, windows=self.windows))
        rows = np.arange(len(windows))
        features = question_features(
            windows, rows=rows, seq_length=self.windows.seq_length, specials=Specials.of(tokenizer)
        )
        names = ("input_ids", "input_mask", "segment_ids")
        outputs = list(ask(dict(zip(INPUTS, (features[name] for name in names), strict=True))))
        answers = answer_questions(
            questions,
            windows=windows,
            unique_ids=rows + FIRST_UNIQUE_ID,
            start_logits=np.stack([output["start_logits"] for output in outputs]),
            end_logits=np.stack([output["end_logits"] for output in outputs]),
            tokenizer=tokenizer,
            options=self.options,
        )
        for question in questions:
            yield _question_prediction(question, answers[question.id])


def _question_prediction(question: Question, answer: Answer) -> Prediction:
    text, probability = "", 0.0
    if answer.is_in_passage:
        matches = (candidate for candidate in answer.candidates if candidate.text == answer.text)
        text, probability = answer.text, next(matches, answer.candidates[0]).probability
    values = {"question": question.text, "answer": text, "probability": probability}
    return Prediction(f"{text or '(no answer)'} ({probability:.0%})  {question.text}", values)


@dataclass(frozen=True)
class BlankAnswerer:
    """Lists for each text the words that fit its blanks best, each blank by itself.

    The model returns `mlm_logits` at `masked_lm_positions`.
    """

    seq_length: int
    n_positions: int
    """How many blanks of a text the model looks at in one row."""

    kind: ClassVar[str] = "blanks"
    text_columns: ClassVar[Sequence[str]] = ("text",)
    column_names: ClassVar[Sequence[str] | None] = None

    @property
    def input_lengths(self) -> Mapping[str, int]:
        """The inputs of the model, and how long each is."""
        return {**dict.fromkeys(INPUTS, self.seq_length), "masked_lm_positions": self.n_positions}

    def check(self, parts: tuple[str, ...], *, tokenizer: Tokenizer) -> None:
        """Refuses a text without a blank, and one that is too long."""
        check_parts(parts, self.text_columns)
        text = _with_blanks(parts[0], tokenizer)
        if BLANK not in text:
            raise ArgumentError(f"{quoted(text)} has no blank to fill. Write {tokenizer.mask} where a word is missing.")
        n_tokens = len(self._encode(text, tokenizer)[0])
        if n_tokens > self.seq_length:
            reads = f"the model reads {self.seq_length}"
            raise ArgumentError(f"{quoted(text)} has {n_tokens} tokens, but {reads}. Shorten it.")

    def __call__(
        self, texts: Sequence[tuple[str, ...]], *, ask: AskModel, tokenizer: Tokenizer
    ) -> Iterator[Prediction]:
        """Yields the words for each text, which has one `[MASK]` or more, or what the vocabulary calls that."""
        whole_texts = [_with_blanks(text, tokenizer) for (text,) in texts]
        encoded = [self._encode(text, tokenizer) for text in whole_texts]
        # A text with many blanks is in several rows.
        rows = [
            (ids, positions[start : start + self.n_positions])
            for ids, positions in encoded
            for start in range(0, len(positions), self.n_positions)
        ]
        word_ids = _padded([ids for ids, _ in rows], self.seq_length, tokenizer.pad_id)
        mask = _padded([[1] * len(ids) for ids, _ in rows], self.seq_length)
        inputs = dict(zip(INPUTS, (word_ids, mask, np.zeros_like(word_ids)), strict=True))
        inputs["masked_lm_positions"] = _padded([positions for _, positions in rows], self.n_positions)
        outputs = ask(inputs)
        for (asked,), text, (_, positions) in zip(texts, whole_texts, encoded, strict=True):
            n_rows = -(-len(positions) // self.n_positions)
            logits = np.concatenate([next(outputs)["mlm_logits"] for _ in range(n_rows)])
            # A model may have room for more tokens than the vocabulary has.
            logits = logits[: len(positions), : tokenizer.vocab_size]
            yield _blank_prediction(asked, text, logits.astype(np.float64), tokenizer)

    def _encode(self, text: str, tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
        """The ids of a text with blanks, and the positions of the blanks."""
        specials = Specials.of(tokenizer)
        mask = tokenizer.id_of(tokenizer.mask)
        ids = [specials.cls, *tokenizer.encode_with_blanks(text), specials.sep]
        return ids, [place for place, number in enumerate(ids) if number == mask]


def _with_blanks(text: str, tokenizer: Tokenizer) -> str:
    """The text with `[MASK]` where it has what the vocabulary calls that."""
    return text.replace(tokenizer.mask, BLANK)


def _padded(rows: Sequence[Sequence[int]], length: int, pad: int = 0) -> np.ndarray:
    return Ragged.from_rows(rows, dtype="int32").take(np.arange(len(rows)), padding=Padding(length, pad))


def _blank_prediction(asked: str, text: str, logits: np.ndarray, tokenizer: Tokenizer) -> Prediction:
    shares = probabilities(logits)
    best = np.argsort(-shares, axis=-1)[:, :_N_SHOWN]
    blanks = [[(int(number), float(share[number])) for number in row] for row, share in zip(best, shares, strict=True)]
    # As somebody would write it: without the signs by which a vocabulary tells where words begin.
    words = [tokenizer.text_of([row[0][0]]) for row in blanks]
    shown = ["  " + ", ".join(f"{tokenizer.text_of([token])} {share:.0%}" for token, share in row) for row in blanks]
    listed = [
        [
            {
                "token": tokenizer.tokens_of([token])[0],
                "word": tokenizer.text_of([token]),
                "probability": round(share, 6),
            }
            for token, share in row
        ]
        for row in blanks
    ]
    marked = _filled(text, [f"*{word}*" for word in words])
    return Prediction("\n".join([marked, *shown]), {"text": asked, "filled": _filled(text, words), "blanks": listed})


def _filled(text: str, words: Sequence[str]) -> str:
    """The text with its blanks replaced, and all else as it is."""
    before, *rest = text.split(BLANK)
    return before + "".join(word + part for word, part in zip(words, rest, strict=True))
