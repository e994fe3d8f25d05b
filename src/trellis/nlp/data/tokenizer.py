"""Tokenizers: text to ids by WordPiece or SentencePiece, after the published rules, or by a `tokenizer.json`."""

import abc
import functools
import hashlib
import importlib
import itertools
import json
import re
import threading
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from trellis.data import Ragged, offsets_of
from trellis.disk import local_path
from trellis.errors import ArgumentError, DataError, MissingPackageError
from trellis.nlp.data.older_tokenizers import OLDER_NAMES, as_tokenizer_json

CLS, SEP, MASK, UNKNOWN = "[CLS]", "[SEP]", "[MASK]", "[UNK]"
_ROLES: Mapping[str, tuple[str, ...]] = {
    "cls": (CLS, "<s>"),
    "sep": (SEP, "</s>"),
    "pad": ("[PAD]", "<pad>"),
    "mask": (MASK, "<mask>"),
}
"""What the special tokens are called by what they do: BERT's names, and RoBERTa's."""
_LONGEST_WORD = 400
_MOST_CHUNKS = 1 << 20
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
_BYTE_SPACE = "\N{LATIN CAPITAL LETTER G WITH DOT ABOVE}"
"""How pieces spell a space: SentencePiece's, and those of bytes."""
_RULES = {
    "lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
"""BERT's rules, and what a `tokenizer.json` calls them."""
_IDEOGRAPH = re.compile(
    "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff"
    "\U00020000-\U0002a6df\U0002a700-\U0002b73f\U0002b740-\U0002b81f\U0002b820-\U0002ceaf\U0002f800-\U0002fa1f]"
)
_KEPT_CONTROLS = "\t\n\r"
_ASCII_WORD = re.compile(r"[!-/:-@\[-`{-~]|[^ \t\n\r!-/:-@\[-`{-~]+")
_ASCII_CONTROLS = dict.fromkeys({*range(32), 127} - set(_KEPT_CONTROLS.encode()))


class Tokenizer(abc.ABC):
    """Turns text into the ids of a vocabulary; none of the special tokens is added.

    Args:
        vocab_file: What `content` was read from.
        tokens: Those of the vocabulary, in the order of their ids.
        settings: The other arguments of the tokenizer.
    """

    tokenization: ClassVar[str]
    """What kind it is, in a word."""
    starts_word: NDArray[np.bool_]
    """Of each id, whether it begins a word."""
    lower_case: bool
    """Whether case does not count."""
    strip_accents: bool
    """Whether accents do not count."""
    tokenize_chinese_chars: bool
    """Whether each ideograph is a word of its own."""
    _absence: ClassVar[str]
    """What is said of a token that the vocabulary lacks, and the way out."""

    def __init__(self, vocab_file: Path, *, content: bytes, tokens: Sequence[str], settings: dict[str, bool]) -> None:
        self.vocab_file = vocab_file
        self._tokens = tokens
        self._ids = {token: number for number, token in enumerate(tokens)}
        self._settings = settings
        self.vocab_size = len(tokens)
        kind = type(self).__name__.removesuffix("Tokenizer")
        made_of = content + repr((kind, *settings.values())).encode()
        # The same for tokenizers that give the same ids.
        self.fingerprint = hashlib.blake2b(made_of, digest_size=16).hexdigest()

    @property
    def family(self) -> str:
        """How words are cut into pieces: as WordPiece or SentencePiece do it, or in a way of its own."""
        return self.tokenization

    @property
    def all_tokens(self) -> Sequence[str]:
        """The tokens of the vocabulary, in the order of their ids."""
        return self._tokens

    @property
    def tells_spaces(self) -> bool:
        """Whether a text has other ids behind a space than at the beginning."""
        return False

    @property
    def cls(self) -> str:
        """The token that begins a sequence."""
        return self._special("cls")

    @property
    def sep(self) -> str:
        """The token that ends a span."""
        return self._special("sep")

    @property
    def mask(self) -> str:
        """The token that stands for a masked one."""
        return self._special("mask")

    @property
    def pad_id(self) -> int:
        """The id that fills up a row; 0 if the vocabulary has no token for it."""
        return next((self._ids[token] for token in _ROLES["pad"] if token in self._ids), 0)

    @property
    def n_between(self) -> int:
        """How many ends stand between the two spans of a pair: BERT's has one, RoBERTa's two."""
        return 1 if self.cls == CLS else 2

    @property
    def has_types(self) -> bool:
        """Whether the second span of a pair is of another kind than the first, as with BERT."""
        return self.cls == CLS

    def _special(self, role: str) -> str:
        names = _ROLES[role]
        return next((token for token in names if token in self._ids), names[0])

    @abc.abstractmethod
    def encode(self, texts: Sequence[str]) -> Ragged:
        """The ids of each text, as int32."""

    def encode_inside(self, texts: Sequence[str]) -> Ragged:
        """The ids of texts that stand behind a space, as int32."""
        return self.encode(texts)

    def encode_words(self, texts: Sequence[Sequence[str]], *, gaps: Sequence[Sequence[str]] | None = None) -> Ragged:
        """The ids of each word of texts, as int32.

        Args:
            texts: Words with spaces between them.
            gaps: For each text what stands before its words; empty, or None for all, is single spaces.
        """
        return self.encode([word for words in texts for word in words])

    def encode_with_blanks(self, text: str) -> list[int]:
        """The ids of a text in which `[MASK]` stands for a masked token, whatever the vocabulary calls that."""
        mask = self.id_of(self.mask)
        # The vocabulary's own rules would take the brackets apart.
        first, *others = [self.encode([part]).values.tolist() for part in text.split(MASK)]
        return list(itertools.chain(first, *([mask, *part] for part in others)))

    @abc.abstractmethod
    def words(self, text: str) -> list[str]:
        """The words of a text as they are looked up: cleaned, and in lower case if case does not count."""

    @abc.abstractmethod
    def text_of(self, ids: Sequence[int] | NDArray[np.integer]) -> str:
        """The text that ids spell, with single spaces between words."""

    def locate(self, ids: Sequence[int] | NDArray[np.integer], *, text: str) -> tuple[int, int] | None:
        """Where in a text the pieces of ids stand, as its first character and the one after its last, if it tells."""
        return None

    def pieces_at(
        self, start: int, stop: int, *, text: str, ids: Sequence[int] | NDArray[np.integer]
    ) -> tuple[int, int] | None:
        """The first and the last of a text's ids that a part of it has a share in, if the tokenizer tells."""
        return None

    def tokens(self, text: str) -> list[str]:
        """The pieces of a text, as the vocabulary spells them."""
        return self.tokens_of(self.encode([text]).values)

    def tokens_of(self, ids: Sequence[int] | NDArray[np.integer]) -> list[str]:
        """The tokens of ids."""
        return [self._tokens[number] for number in ids]

    def id_of(self, token: str) -> int:
        """The id of a token that the vocabulary must have."""
        if token not in self._ids:
            raise DataError(f"{self.vocab_file} {self._absence.format(token)}")
        return self._ids[token]

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (type(self), self.vocab_file, tuple(self._settings.items()), self.fingerprint)


def build_tokenizer(vocab_file: str | Path, *, tokenization: str = "WordPiece", lower_case: bool = True) -> Tokenizer:
    """Returns the tokenizer of a vocabulary.

    Args:
        vocab_file: For WordPiece a text file with one token a line; for SentencePiece a trained model. A
            `tokenizer.json` says all by itself, and so do the older files of RoBERTa and XLM-R: `vocab.json` with
            `merges.txt` beside it, and `sentencepiece.bpe.model`.
        tokenization: "WordPiece" or "SentencePiece".
    """
    if Path(vocab_file).name in OLDER_NAMES:
        vocab_file = as_tokenizer_json(vocab_file)
    if Path(vocab_file).suffix == ".json":
        return JsonTokenizer(vocab_file)
    if tokenization == "WordPiece":
        return WordPieceTokenizer(vocab_file, lower_case=lower_case)
    if tokenization == "SentencePiece":
        return SentencePieceTokenizer(vocab_file, lower_case=lower_case)
    raise ArgumentError(f"tokenization is {tokenization!r}; it can be 'WordPiece' or 'SentencePiece'.")


class WordPieceTokenizer(Tokenizer):
    """Words are split at spaces and punctuation, then into the longest pieces that the vocabulary has.

    What stands between two spaces is cut once and remembered: in a corpus the same words come again and again.

    Example:
        tokenizer = WordPieceTokenizer("vocab.txt")
        tokenizer.tokens("unaffable")  # ["un", "##aff", "##able"]

    Args:
        vocab_file: One token a line; its id is the number of the line, from 0. Continuations begin with `##`.
        lower_case: Whether case does not count.
        split_on_punctuation: Whether punctuation marks are words of their own.
        strip_accents: Whether accents do not count; None is as `lower_case`.
        tokenize_chinese_chars: Whether each ideograph is a word of its own.
    """

    tokenization = "WordPiece"
    _absence = "has no token {!r}. Give a vocabulary with it on a line of its own."

    def __init__(
        self,
        vocab_file: str | Path,
        *,
        lower_case: bool = True,
        split_on_punctuation: bool = True,
        strip_accents: bool | None = None,
        tokenize_chinese_chars: bool = True,
    ) -> None:
        tokenizers = nlp_package("tokenizers")
        self.lower_case = lower_case
        self.strip_accents = lower_case if strip_accents is None else strip_accents
        self.tokenize_chinese_chars = tokenize_chinese_chars
        path = local_path(vocab_file, name="vocab_file")
        content = _read(path, what="a vocabulary, one token a line")
        try:
            tokens = [line.strip() for line in content.decode().removesuffix("\n").split("\n")]
        except UnicodeDecodeError as error:
            way_out = "Give a vocabulary with one token a line; SentencePiece models take tokenization=SentencePiece."
            raise DataError(f"{vocab_file}: not UTF-8 text ({error}). {way_out}") from error
        settings = {"lower_case": lower_case, "split_on_punctuation": split_on_punctuation}
        # Only what is unusual is part of the fingerprint, so that tokens which were cached before are found again.
        settings |= {} if self.strip_accents == lower_case else {"strip_accents": self.strip_accents}
        settings |= {} if tokenize_chinese_chars else {"tokenize_chinese_chars": False}
        super().__init__(path, content=content, tokens=tokens, settings=settings)
        self.id_of(UNKNOWN)
        self.starts_word = np.array([not token.startswith("##") for token in tokens])
        model = tokenizers.models.WordPiece(self._ids, unk_token=UNKNOWN, max_input_chars_per_word=_LONGEST_WORD)
        self._tokenizer = tokenizers.Tokenizer(model)
        self._tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
        self._numbers: dict[str, int] = {}
        self._pieces = _ragged([])
        self._learning = threading.Lock()  # a server cuts the texts of several callers at once

    def encode(self, texts: Sequence[str]) -> Ragged:
        """The ids of each text."""
        texts_chunks = [text.split(" ") for text in texts]
        chunks = list(itertools.chain.from_iterable(texts_chunks))
        with self._learning:
            if len(self._numbers) > _MOST_CHUNKS:
                self._numbers.clear()
                self._pieces = _ragged([])
            self._learn([chunk for chunk in chunks if chunk not in self._numbers])
            numbers = np.fromiter(map(self._numbers.__getitem__, chunks), np.int64, len(chunks))
            pieces = self._pieces.gather(numbers)
        n_chunks = np.fromiter(map(len, texts_chunks), np.int64, len(texts))
        return Ragged(pieces.values, offsets=pieces.offsets[offsets_of(n_chunks)])

    def words(self, text: str) -> list[str]:
        """The words of a text, before they are split into pieces."""
        return split_words(text, **self._settings)

    def text_of(self, ids: Sequence[int] | NDArray[np.integer]) -> str:
        """The text that ids spell."""
        return " ".join(self.tokens_of(ids)).replace(" ##", "").replace("##", "").strip()

    def _learn(self, chunks: Sequence[str]) -> None:
        """Remembers the pieces of new chunks."""
        if not chunks:
            return
        new = list(dict.fromkeys(chunks))
        self._numbers |= {chunk: number for number, chunk in enumerate(new, start=len(self._numbers))}
        spaced = [" ".join(self.words(chunk)) for chunk in new]
        encodings = self._tokenizer.encode_batch_fast(spaced, add_special_tokens=False)
        old, pieces = self._pieces, _ragged([encoding.ids for encoding in encodings])
        offsets = np.concatenate([old.offsets, old.offsets[-1] + pieces.offsets[1:]])
        self._pieces = Ragged(np.concatenate([old.values, pieces.values]), offsets=offsets)


def split_words(
    text: str,
    *,
    lower_case: bool = True,
    split_on_punctuation: bool = True,
    strip_accents: bool | None = None,
    tokenize_chinese_chars: bool = True,
) -> list[str]:
    """Drops control characters, and splits text at spaces, around ideographs and at punctuation.

    Example:
        >>> split_words("Don't PANIC!")
        ['don', "'", 't', 'panic', '!']

    Args:
        lower_case: Whether to use lower case.
        split_on_punctuation: Whether punctuation marks are words of their own.
        strip_accents: Whether to remove accents; None is as `lower_case`.
        tokenize_chinese_chars: Whether each ideograph is a word of its own.
    """
    if text.isascii():
        # The same rules, for the characters that nearly all text is made of.
        text = text.translate(_ASCII_CONTROLS)
        text = text.lower() if lower_case else text
        return _ASCII_WORD.findall(text) if split_on_punctuation else text.split()
    text = "".join(map(_cleaned, text))
    text = _IDEOGRAPH.sub(r" \g<0> ", text) if tokenize_chinese_chars else text
    text = text.lower() if lower_case else text
    text = _without_accents(text) if (lower_case if strip_accents is None else strip_accents) else text
    text = "".join(map(_punctuation_apart, text)) if split_on_punctuation else text
    return text.split()


@functools.lru_cache(maxsize=1 << 14)
def _cleaned(character: str) -> str:
    category = unicodedata.category(character)
    if character in _KEPT_CONTROLS or category == "Zs":
        return " "
    return "" if character in "\0\ufffd" or category in ("Cc", "Cf") else character


def _without_accents(text: str) -> str:
    return "".join(letter for letter in unicodedata.normalize("NFD", text) if unicodedata.category(letter) != "Mn")


@functools.lru_cache(maxsize=1 << 14)
def _punctuation_apart(character: str) -> str:
    is_ascii_mark = character.isascii() and not character.isalnum() and character.isprintable() and character != " "
    is_mark = is_ascii_mark or unicodedata.category(character).startswith("P")
    return f" {character} " if is_mark else character


class SentencePieceTokenizer(Tokenizer):
    """Text is split by a trained SentencePiece model; a comma after a digit is a piece of its own.

    Example:
        tokenizer = SentencePieceTokenizer("30k-clean.model")
        tokenizer.tokens("hello world")  # ["▁hello", "▁world"]

    Args:
        vocab_file: The model.
        lower_case: Whether case does not count.
        strip_accents: Whether accents do not count.
    """

    tokenization = "SentencePiece"
    _absence = "has no piece {!r}. Give a model that was trained with it."

    def __init__(self, vocab_file: str | Path, *, lower_case: bool = True, strip_accents: bool = True) -> None:
        sentencepiece = nlp_package("sentencepiece")
        self.lower_case = lower_case
        self.strip_accents = strip_accents
        self.tokenize_chinese_chars = False
        path = local_path(vocab_file, name="vocab_file")
        content = _read(path, what="a SentencePiece model")
        try:
            self._model: Any = sentencepiece.SentencePieceProcessor(model_proto=content)
        except (RuntimeError, ValueError, TypeError) as error:
            raise DataError(f"{vocab_file} is no SentencePiece model ({error}). Give a .model file.") from error
        pieces = [str(self._model.id_to_piece(number)) for number in range(self._model.get_piece_size())]
        settings = {"lower_case": lower_case} | ({} if strip_accents else {"strip_accents": False})
        super().__init__(path, content=content, tokens=pieces, settings=settings)
        self.starts_word = np.array([piece.startswith(_SPACE) for piece in pieces])
        self._hides_comma = np.array([piece[-1:] == "," and piece[-2:-1].isdigit() for piece in pieces])

    def encode(self, texts: Sequence[str]) -> Ragged:
        """The ids of each text, found on all cores."""
        rows = self._model.encode(list(map(self._prepared, texts)), num_threads=-1)
        ids = _ragged(rows)
        return _ragged([self._commas_apart(row) for row in rows]) if self._hides_comma[ids.values].any() else ids

    def words(self, text: str) -> list[str]:
        """The words of a text, as they lie between spaces."""
        return self._prepared(text).split()

    def text_of(self, ids: Sequence[int] | NDArray[np.integer]) -> str:
        """The text that ids spell."""
        return "".join(self.tokens_of(ids)).replace(_SPACE, " ").strip()

    def _prepared(self, text: str) -> str:
        return preprocess_text(text, lower=self.lower_case, strip_accents=self.strip_accents)

    def _commas_apart(self, row: list[int]) -> list[int]:
        if not self._hides_comma[row].any():
            return row
        unknown = self._model.unk_id()
        return [self._ids.get(piece, unknown) for number in row for piece in self._split_piece(number)]

    def _split_piece(self, number: int) -> list[str]:
        piece = self._tokens[number]
        if not self._hides_comma[number]:
            return [piece]
        parts: list[str] = self._model.encode(piece[:-1].replace(_SPACE, ""), out_type=str)
        if not piece.startswith(_SPACE) and parts[0].startswith(_SPACE):
            parts = [part for part in (parts[0][1:], *parts[1:]) if part]
        return [*parts, ","]


class JsonTokenizer(Tokenizer):
    """Text is cut exactly as the package `tokenizers` does it with the `tokenizer.json` of some weights.

    Special tokens that a text spells out, such as a literal [MASK], are these tokens.

    Example:
        tokenizer = JsonTokenizer("weights/tokenizer.json")
        tokenizer.tokens("unaffable")  # ["un", "##aff", "##able"]

    Args:
        vocab_file: The file.
        lower_case: Whether case does not count; None is what the file says. Like the others, it is for files with
            BERT's rules, which the `tokenizer_config.json` beside the file may change.
        strip_accents: Whether accents do not count.
        tokenize_chinese_chars: Whether each ideograph is a word of its own.
    """

    tokenization = "tokenizer.json"
    _absence = "has no token {!r}. Give the tokenizer of an encoder, such as a BERT or a RoBERTa."

    def __init__(
        self,
        vocab_file: str | Path,
        *,
        lower_case: bool | None = None,
        strip_accents: bool | None = None,
        tokenize_chinese_chars: bool | None = None,
    ) -> None:
        tokenizers = nlp_package("tokenizers")
        path = local_path(vocab_file, name="vocab_file")
        content = _read(path, what="a tokenizer.json")
        given = {
            "lower_case": lower_case,
            "strip_accents": strip_accents,
            "tokenize_chinese_chars": tokenize_chinese_chars,
        }
        try:
            values = json.loads(content)
            settings = {name: value for name, value in given.items() if value not in (None, _rule(values, name))}
            for normalizer in _normalizers(values):
                own = {_RULES[name]: value for name, value in settings.items()}
                normalizer |= own if normalizer["type"] == "BertNormalizer" else {}
            self._tokenizer = tokenizers.Tokenizer.from_str(json.dumps(values))
        except Exception as error:
            # The package raises no class of its own.
            raise DataError(f"{vocab_file} is no tokenizer.json ({error}). Copy the file again.") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        by_token: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        tokens = [""] * (1 + max(by_token.values(), default=-1))
        for token, number in by_token.items():
            tokens[number] = token
        super().__init__(path, content=content, tokens=tokens, settings=settings)
        self.lower_case = _rule(values, "lower_case")
        self.strip_accents = _rule(values, "strip_accents")
        self.tokenize_chinese_chars = _rule(values, "tokenize_chinese_chars")
        # Not what the file says: older ones do not.
        model = type(self._tokenizer.model).__name__
        self._family = {"Unigram": "SentencePiece"}.get(model, model)
        by_bytes = _byte_rules(values)
        self._is_of_bytes = bool(by_bytes)
        self._tells_spaces = any(not rule.get("add_prefix_space", True) for rule in by_bytes)
        self._prefix = str(values["model"].get("continuing_subword_prefix") or "") if model == "WordPiece" else ""
        self._added = {token.content for token in self._tokenizer.get_added_tokens_decoder().values()}
        self._ends = self._ends_of_spans()
        self.starts_word = np.array([self._is_start(token) for token in tokens])

    @property
    def family(self) -> str:
        """How words are cut into pieces."""
        return self._family

    @property
    def tells_spaces(self) -> bool:
        """Whether a text has other ids behind a space than at the beginning, as pieces of bytes have."""
        return self._tells_spaces

    @property
    def cls(self) -> str:
        """The token that begins a sequence."""
        return super().cls if self._ends is None else self._ends[0]

    @property
    def sep(self) -> str:
        """The token that ends a span."""
        return super().sep if self._ends is None else self._ends[1]

    @property
    def n_between(self) -> int:
        """How many ends stand between the two spans of a pair."""
        return super().n_between if self._ends is None else self._ends[2]

    def _ends_of_spans(self) -> tuple[str, str, int] | None:
        """What the file puts before and after a span, and how many ends between two; None if it does not tell."""
        one, two = (self._tokenizer.encode(*spans).tokens for spans in ((" ",), (" ", " ")))
        inside = self._tokenizer.encode(" ", add_special_tokens=False).tokens
        if len(one) != len(inside) + 2 or len(two) <= 2 * len(inside) + 2:
            return None
        return one[0], one[-1], len(two) - 2 * len(inside) - 2

    def encode(self, texts: Sequence[str]) -> Ragged:
        """The ids of each text, found on all cores."""
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return _ragged([encoding.ids for encoding in encodings])

    def encode_inside(self, texts: Sequence[str]) -> Ragged:
        """The ids of texts that stand behind a space."""
        return self.encode([f" {text}" for text in texts] if self._tells_spaces else texts)

    def encode_words(self, texts: Sequence[Sequence[str]], *, gaps: Sequence[Sequence[str]] | None = None) -> Ragged:
        """The ids of each word of texts, and of the spaces before it."""
        if not self._tells_spaces:
            return super().encode_words(texts)
        spaced: list[str] = []
        for words, before in zip(texts, gaps or [()] * len(texts), strict=True):
            known = before or ["", *[" "] * (len(words) - 1)][: len(words)]
            spaced += [f"{gap}{word}" for gap, word in zip(known, words, strict=True)]
        return self.encode(spaced)

    def encode_with_blanks(self, text: str) -> list[int]:
        """The ids of a text in which `[MASK]` stands for a masked token."""
        if self.mask not in self._added:
            return super().encode_with_blanks(text)
        # All at once: the token may take the space before it along.
        ids: list[int] = self._tokenizer.encode(text.replace(MASK, self.mask), add_special_tokens=False).ids
        return ids

    def words(self, text: str) -> list[str]:
        """The words of a text, before they are split into pieces."""
        normalizer, pre_tokenizer = self._tokenizer.normalizer, self._tokenizer.pre_tokenizer
        text = text if normalizer is None else normalizer.normalize_str(text)
        if pre_tokenizer is None:
            return text.split()
        parts = (text[start:stop].strip() for _, (start, stop) in pre_tokenizer.pre_tokenize_str(text))
        return [part for part in parts if part]

    def locate(self, ids: Sequence[int] | NDArray[np.integer], *, text: str) -> tuple[int, int] | None:
        """Where in a text the pieces of ids stand; None if they are not there in a row."""
        if self._tells_spaces:
            # At the beginning of a text, or behind a space.
            place = self._locate(ids, f" {text}")
            return self._locate(ids, text) if place is None else (max(place[0] - 1, 0), place[1] - 1)
        return self._locate(ids, text)

    def _locate(self, ids: Sequence[int] | NDArray[np.integer], text: str) -> tuple[int, int] | None:
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        wanted, n = list(map(int, ids)), len(ids)
        starts = (start for start in range(len(encoding.ids) - n + 1) if encoding.ids[start : start + n] == wanted)
        first = next(starts, None) if n else None
        if first is None:
            return None
        return int(encoding.offsets[first][0]), int(encoding.offsets[first + n - 1][1])

    def pieces_at(
        self, start: int, stop: int, *, text: str, ids: Sequence[int] | NDArray[np.integer]
    ) -> tuple[int, int] | None:
        """The first and the last of a text's ids that a part of it has a share in; None by the published rules."""
        if self._family == "WordPiece":
            return None
        for before in (" ", "") if self._tells_spaces else ("",):
            encoding = self._tokenizer.encode(f"{before}{text}", add_special_tokens=False)
            if encoding.ids == list(map(int, ids)):
                places = list(enumerate(encoding.offsets))
                first = max((place for place, (begin, _) in places if begin <= start + len(before)), default=0)
                last = min((place for place, (_, end) in places if end >= stop + len(before)), default=len(places) - 1)
                return first, max(first, last)
        return None

    def _is_start(self, token: str) -> bool:
        if self._prefix:
            return not token.startswith(self._prefix)
        return token.startswith((_SPACE, _BYTE_SPACE))

    def text_of(self, ids: Sequence[int] | NDArray[np.integer]) -> str:
        """The text that ids spell."""
        tokens = self.tokens_of(ids)
        if self._prefix:
            return " ".join(tokens).replace(f" {self._prefix}", "").replace(self._prefix, "").strip()
        if self._is_of_bytes:
            values = _byte_values()
            spelled = b"".join(values.get(sign, sign.encode()) for token in tokens for sign in token)
            return " ".join(spelled.decode(errors="replace").split())
        return "".join(tokens).replace(_SPACE, " ").replace(_BYTE_SPACE, " ").strip()


@functools.cache
def _byte_values() -> Mapping[str, bytes]:
    """The byte that each sign of a byte-level vocabulary stands for: itself if it can be seen, else the next one up."""
    seen = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), 256)]
    hidden = [value for value in range(256) if value not in seen]
    signs = [*map(chr, seen), *(chr(256 + place) for place in range(len(hidden)))]
    return {sign: bytes([value]) for sign, value in zip(signs, [*seen, *hidden], strict=True)}


def _byte_rules(values: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The rules by which a `tokenizer.json` spells text in bytes; empty if it does not."""
    rule = values.get("pre_tokenizer") or {}
    rules = rule.get("pretokenizers", [rule])
    return [rule for rule in rules if rule.get("type") == "ByteLevel"]


def _normalizers(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rules by which a `tokenizer.json` changes text, one after the other."""
    normalizer = values.get("normalizer") or {"type": "Sequence", "normalizers": []}
    return list(normalizer["normalizers"]) if normalizer["type"] == "Sequence" else [normalizer]


def _rule(values: Mapping[str, Any], name: str) -> bool:
    """Whether a `tokenizer.json` follows one of BERT's rules, or a rule of its own that does the same."""
    alone = {"lower_case": "Lowercase", "strip_accents": "StripAccents"}
    for normalizer in _normalizers(values):
        value = normalizer.get(_RULES[name])
        if name == "strip_accents" and value is None:
            value = normalizer.get("lowercase")
        if normalizer["type"] == alone.get(name) or (normalizer["type"] == "BertNormalizer" and value):
            return True
    return False


def preprocess_text(text: str, *, lower: bool = False, strip_accents: bool = True) -> str:
    """Single spaces, compatible characters (NFKD) without accents if these do not count, with `lower` in lower case.

    Example:
        >>> preprocess_text(" Déjà  vu", lower=True)
        'deja vu'
    """
    text = " ".join(text.split())
    if strip_accents and not text.isascii():
        decomposed = unicodedata.normalize("NFKD", text)
        text = "".join(character for character in decomposed if not unicodedata.combining(character))
    return text.lower() if lower else text


def nlp_package(name: str) -> Any:
    """Imports a package that comes with `trellis-jax[nlp]`."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise MissingPackageError(name, "nlp") from None


def _ragged(rows: Sequence[Sequence[int]]) -> Ragged:
    offsets = offsets_of(np.fromiter(map(len, rows), np.int64, len(rows)))
    return Ragged(np.fromiter(itertools.chain.from_iterable(rows), np.int32, int(offsets[-1])), offsets=offsets)


@functools.lru_cache(maxsize=1)
def _reopen(
    kind: Callable[..., Tokenizer], vocab_file: Path, settings: tuple[tuple[str, bool], ...], fingerprint: str
) -> Tokenizer:
    """What a pickled tokenizer becomes: a process that gets it with each block of work opens the vocabulary once."""
    tokenizer = kind(vocab_file, **dict(settings))
    if tokenizer.fingerprint != fingerprint:
        raise DataError(f"vocab_file: `{vocab_file}` was changed while it was in use. Start again.")
    return tokenizer


def _read(path: Path, *, what: str) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"vocab_file: `{path}` cannot be read ({error.strerror}). Give {what}.") from None
    if not content:
        raise DataError(f"vocab_file: `{path}` is empty. Give {what}.")
    return content
