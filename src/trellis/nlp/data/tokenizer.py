"""Tokenizers: text to ids by WordPiece or SentencePiece, after the published rules."""

import functools
import hashlib
import itertools
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from trellis.data import Ragged, offsets_of
from trellis.errors import ArgumentError, DataError, MissingPackageError
from trellis.nlp.data.words import split_words

CLS, SEP, MASK, UNKNOWN = "[CLS]", "[SEP]", "[MASK]", "[UNK]"
PAD_ID = 0
_LONGEST_WORD = 400
_MOST_CHUNKS = 1 << 20
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"


class Tokenizer(Protocol):
    """Turns text into the ids of a vocabulary; none of the special tokens is added."""

    vocab_size: int
    starts_word: NDArray[np.bool_]
    """Of each id, whether it begins a word."""
    fingerprint: str
    """The same for tokenizers that give the same ids."""

    def encode(self, texts: Sequence[str]) -> Ragged:
        """The ids of each text, as int32."""

    def tokens(self, text: str) -> list[str]:
        """The pieces of a text, as the vocabulary spells them."""

    def words(self, text: str) -> list[str]:
        """The words of a text as they are looked up: cleaned, and lower-cased if that was asked for."""

    def id_of(self, token: str) -> int:
        """The id of a token that the vocabulary must have."""

    def tokens_of(self, ids: Sequence[int] | NDArray[np.integer]) -> list[str]:
        """The tokens of ids."""

    def text_of(self, ids: Sequence[int] | NDArray[np.integer]) -> str:
        """The text that ids spell, with single spaces between words."""


def build_tokenizer(vocab_file: str | Path, *, tokenization: str = "WordPiece", lower_case: bool = True) -> Tokenizer:
    """Returns the tokenizer of a vocabulary.

    Args:
        vocab_file: For WordPiece a text file with one token a line; for SentencePiece a trained model.
        tokenization: "WordPiece" or "SentencePiece".
    """
    if tokenization == "WordPiece":
        return WordPieceTokenizer(vocab_file, lower_case=lower_case)
    if tokenization == "SentencePiece":
        return SentencePieceTokenizer(vocab_file, lower_case=lower_case)
    raise ArgumentError(f"tokenization is {tokenization!r}; it can be 'WordPiece' or 'SentencePiece'.")


class WordPieceTokenizer:
    """Words are split at spaces and punctuation, then into the longest pieces that the vocabulary has.

    What stands between two spaces is looked up once: a corpus has far fewer different words than words.

    Example:
        tokenizer = WordPieceTokenizer("vocab.txt")
        tokenizer.tokens("unaffable")  # ["un", "##aff", "##able"]

    Args:
        vocab_file: One token a line; its id is the number of the line, from 0. Continuations begin with `##`.
        lower_case: Whether case and accents do not count.
        split_on_punctuation: Whether punctuation marks are words of their own.
    """

    def __init__(self, vocab_file: str | Path, *, lower_case: bool = True, split_on_punctuation: bool = True) -> None:
        try:
            import tokenizers
        except ImportError:
            raise MissingPackageError("tokenizers", "nlp") from None
        self._place = Path(vocab_file)
        content = _read(self._place, what="a vocabulary, one token a line")
        try:
            self._tokens = [line.strip() for line in content.decode().removesuffix("\n").split("\n")]
        except UnicodeDecodeError as error:
            way_out = "Give a vocabulary with one token a line; SentencePiece models take tokenization=SentencePiece."
            raise DataError(f"{vocab_file}: not UTF-8 text ({error}). {way_out}") from error
        self._ids = {token: number for number, token in enumerate(self._tokens)}
        self.id_of(UNKNOWN)
        self.vocab_size = len(self._tokens)
        self.starts_word = np.array([not token.startswith("##") for token in self._tokens])
        self.fingerprint = _fingerprint(content, "WordPiece", lower_case, split_on_punctuation)
        self._split = functools.partial(split_words, lower_case=lower_case, split_on_punctuation=split_on_punctuation)
        model = tokenizers.models.WordPiece(self._ids, unk_token=UNKNOWN, max_input_chars_per_word=_LONGEST_WORD)
        self._tokenizer = tokenizers.Tokenizer(model)
        self._tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
        self._numbers: dict[str, int] = {}
        self._pieces = Ragged(np.zeros(0, np.int32), offsets=np.zeros(1, np.int64))

    def encode(self, texts: Sequence[str]) -> Ragged:
        """The ids of each text."""
        rows = [text.split(" ") for text in texts]
        chunks = list(itertools.chain.from_iterable(rows))
        if len(self._numbers) > _MOST_CHUNKS:
            self._numbers.clear()
            self._pieces = Ragged(np.zeros(0, np.int32), offsets=np.zeros(1, np.int64))
        self._learn([chunk for chunk in chunks if chunk not in self._numbers])
        numbers = np.fromiter(map(self._numbers.__getitem__, chunks), np.int64, len(chunks))
        lengths = self._pieces.lengths[numbers]
        ends = np.cumsum(lengths)
        sources = np.arange(len(lengths) and int(ends[-1])) + np.repeat(
            self._pieces.offsets[numbers] - ends + lengths, lengths
        )
        chunk_offsets = np.concatenate([[0], ends])
        offsets = chunk_offsets[offsets_of(np.fromiter(map(len, rows), np.int64, len(rows)))]
        return Ragged(self._pieces.values[sources], offsets=offsets)

    def tokens(self, text: str) -> list[str]:
        """The pieces of a text."""
        return self.tokens_of(self.encode([text]).values)

    def words(self, text: str) -> list[str]:
        """The words of a text, before they are split into pieces."""
        return self._split(text)

    def id_of(self, token: str) -> int:
        """The id of a token that the vocabulary must have."""
        if token not in self._ids:
            raise DataError(f"{self._place} has no token {token!r}. Give a vocabulary with it on a line of its own.")
        return self._ids[token]

    def tokens_of(self, ids: Sequence[int] | NDArray[np.integer]) -> list[str]:
        """The tokens of ids."""
        return [self._tokens[number] for number in ids]

    def text_of(self, ids: Sequence[int] | NDArray[np.integer]) -> str:
        """The text that ids spell."""
        return " ".join(self.tokens_of(ids)).replace(" ##", "").replace("##", "").strip()

    def _learn(self, chunks: Sequence[str]) -> None:
        """Finds the pieces of chunks that were not seen before."""
        if not chunks:
            return
        new = list(dict.fromkeys(chunks))
        self._numbers |= {chunk: number for number, chunk in enumerate(new, start=len(self._numbers))}
        spaced = [" ".join(self._split(chunk)) for chunk in new]
        rows = [encoding.ids for encoding in self._tokenizer.encode_batch_fast(spaced, add_special_tokens=False)]
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        ids = np.fromiter(itertools.chain.from_iterable(rows), np.int32, int(lengths.sum()))
        offsets = np.concatenate([self._pieces.offsets, self._pieces.offsets[-1] + np.cumsum(lengths)])
        self._pieces = Ragged(np.concatenate([self._pieces.values, ids]), offsets=offsets)


class SentencePieceTokenizer:
    """Text is split by a trained SentencePiece model; a comma after a digit is a piece of its own.

    Example:
        tokenizer = SentencePieceTokenizer("30k-clean.model")
        tokenizer.tokens("hello world")  # ["▁hello", "▁world"]

    Args:
        vocab_file: The model.
        lower_case: Whether case does not count.
    """

    def __init__(self, vocab_file: str | Path, *, lower_case: bool = True) -> None:
        try:
            import sentencepiece
        except ImportError:
            raise MissingPackageError("sentencepiece", "nlp") from None
        self._place = Path(vocab_file)
        content = _read(self._place, what="a SentencePiece model")
        try:
            self._model: Any = sentencepiece.SentencePieceProcessor(model_proto=content)
        except (RuntimeError, ValueError, TypeError) as error:
            raise DataError(f"{vocab_file} is no SentencePiece model ({error}). Give a .model file.") from error
        self._lower_case = lower_case
        self.vocab_size = int(self._model.get_piece_size())
        pieces = self.tokens_of(range(self.vocab_size))
        self._ids = {piece: number for number, piece in enumerate(pieces)}
        self.starts_word = np.array([piece.startswith(_SPACE) for piece in pieces])
        self._hides_comma = np.array([piece[-1:] == "," and piece[-2:-1].isdigit() for piece in pieces])
        self.fingerprint = _fingerprint(content, "SentencePiece", lower_case)

    def encode(self, texts: Sequence[str]) -> Ragged:
        """The ids of each text, found on all cores."""
        rows = self._model.encode([preprocess_text(text, lower=self._lower_case) for text in texts], num_threads=-1)
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        values = np.fromiter(itertools.chain.from_iterable(rows), np.int32, int(lengths.sum()))
        if not self._hides_comma[values].any():
            return Ragged(values, offsets=offsets_of(lengths))
        return Ragged.from_rows([np.array(self._commas_apart(row), np.int32) for row in rows], dtype="int32")

    def tokens(self, text: str) -> list[str]:
        """The pieces of a text."""
        ids = self._model.encode(preprocess_text(text, lower=self._lower_case))
        return [piece for number in ids for piece in self._split_piece(number)]

    def words(self, text: str) -> list[str]:
        """The words of a text, as they lie between spaces."""
        return preprocess_text(text, lower=self._lower_case).split()

    def id_of(self, token: str) -> int:
        """The id of a piece that the model must have."""
        if token not in self._ids:
            raise DataError(f"{self._place} has no piece {token!r}. Give a model that was trained with it.")
        return self._ids[token]

    def tokens_of(self, ids: Sequence[int] | NDArray[np.integer]) -> list[str]:
        """The pieces of ids."""
        return [str(self._model.id_to_piece(int(number))) for number in ids]

    def text_of(self, ids: Sequence[int] | NDArray[np.integer]) -> str:
        """The text that ids spell."""
        return "".join(self.tokens_of(ids)).replace(_SPACE, " ").strip()

    def _commas_apart(self, row: list[int]) -> list[int]:
        if not self._hides_comma[row].any():
            return row
        unknown = self._model.unk_id()
        return [self._ids.get(piece, unknown) for number in row for piece in self._split_piece(number)]

    def _split_piece(self, number: int) -> list[str]:
        piece = str(self._model.id_to_piece(number))
        if not self._hides_comma[number]:
            return [piece]
        parts: list[str] = self._model.encode(piece[:-1].replace(_SPACE, ""), out_type=str)
        if not piece.startswith(_SPACE) and parts[0].startswith(_SPACE):
            parts = [part for part in (parts[0][1:], *parts[1:]) if part]
        return [*parts, ","]


def preprocess_text(text: str, *, lower: bool = False) -> str:
    """Single spaces, compatible characters (NFKD) without accents, and lower case if wanted."""
    text = " ".join(text.split())
    if not text.isascii():
        decomposed = unicodedata.normalize("NFKD", text)
        text = "".join(character for character in decomposed if not unicodedata.combining(character))
    return text.lower() if lower else text


def _read(path: Path, *, what: str) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"vocab_file: `{path}` cannot be read ({error.strerror}). Give {what}.") from None
    if not content:
        raise DataError(f"vocab_file: `{path}` is empty. Give {what}.")
    return content


def _fingerprint(content: bytes, *settings: object) -> str:
    return hashlib.blake2b(content + repr(settings).encode(), digest_size=16).hexdigest()
