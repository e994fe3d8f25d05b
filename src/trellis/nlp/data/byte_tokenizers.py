"""Tokenizers that lose nothing: bytes, or pieces of bytes, which spell every text and give it back as it was."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from trellis.data import Ragged, offsets_of
from trellis.disk import local_path
from trellis.errors import DataError
from trellis.nlp.data.tokenizer import nlp_package

END = "<|endoftext|>"
"""What stands after each document, as GPT-2 calls it."""
_N_BYTES = 256


class ReversibleTokenizer(Protocol):
    """Turns text into ids and back, for models that write text."""

    @property
    def vocab_file(self) -> Path | None:
        """What it is made of; None if it needs no file."""

    @property
    def vocab_size(self) -> int:
        """How many ids there are, that of the end included."""

    @property
    def end_id(self) -> int:
        """The token after a document."""

    @property
    def fingerprint(self) -> str:
        """The same for tokenizers that give the same ids."""

    @property
    def byte_lengths(self) -> NDArray[np.int32]:
        """How many bytes of text each id stands for; none for the end."""

    @property
    def all_tokens(self) -> Sequence[str]:
        """How each id is shown, in their order."""

    def encode(self, texts: Sequence[str]) -> Ragged:
        """The ids of each text, as int32."""

    def decode(self, ids: Sequence[int] | NDArray[np.integer]) -> str:
        """The text that ids spell; bytes that are no text in UTF-8 are shown as U+FFFD."""


class ByteTokenizer:
    """Each byte of a text in UTF-8 is a token; it needs no file and no package.

    Example:
        >>> ByteTokenizer().encode(["Hé"]).values.tolist()
        [72, 195, 169]
        >>> ByteTokenizer().decode([72, 195, 169])
        'Hé'
    """

    vocab_file: None = None
    vocab_size: ClassVar[int] = _N_BYTES + 1
    end_id: ClassVar[int] = _N_BYTES
    fingerprint: ClassVar[str] = "bytes"

    @property
    def byte_lengths(self) -> NDArray[np.int32]:
        """One for each, none for the end."""
        return np.array([1] * _N_BYTES + [0], np.int32)

    @property
    def all_tokens(self) -> Sequence[str]:
        """The letters of ASCII, and others by their numbers."""
        letters = [chr(byte) if 32 <= byte < 127 else f"<{byte:02x}>" for byte in range(_N_BYTES)]
        return [*letters, END]

    def encode(self, texts: Sequence[str]) -> Ragged:
        """The bytes of each text, as int32."""
        encoded = [text.encode() for text in texts]
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        return Ragged(np.frombuffer(b"".join(encoded), np.uint8).astype(np.int32), offsets=offsets_of(lengths))

    def decode(self, ids: Sequence[int] | NDArray[np.integer]) -> str:
        """The text of bytes; ends are left out, and so are ids that are none of them."""
        return bytes(int(number) for number in ids if 0 <= number < _N_BYTES).decode(errors="replace")


class BytePieceTokenizer:
    """Pieces of bytes, as the package `tokenizers` cuts text with a `tokenizer.json` such as GPT-2's.

    Example:
        tokenizer = BytePieceTokenizer("gpt2/tokenizer.json")
        tokenizer.decode(tokenizer.encode(["All of it."]).values)  # "All of it."
    """

    def __init__(self, vocab_file: str | Path) -> None:
        self.vocab_file = local_path(vocab_file, name="vocab_file")
        if not self.vocab_file.is_file():
            raise DataError(f"vocab_file: there is no file `{vocab_file}`. Train one: trellis data vocabulary.")
        tokenizers = nlp_package("tokenizers")
        content = self.vocab_file.read_bytes()
        try:
            values = json.loads(content)
            self._tokenizer = tokenizers.Tokenizer.from_str(content.decode())
            is_of_bytes = "ByteLevel" in _kinds(values.get("pre_tokenizer"))
        except Exception as error:
            # The package raises no class of its own.
            raise DataError(f"`{vocab_file}` is no tokenizer.json ({error}). Copy the file again.") from error
        if not is_of_bytes:
            raise DataError(
                f"`{vocab_file}` does not cut text into bytes, so not every text could be read and written with it. "
                f"Train one that does: trellis data vocabulary --tokenization=byte_bpe"
            )
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        by_token: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        self.vocab_size = 1 + max(by_token.values(), default=-1)
        self.all_tokens = [""] * self.vocab_size
        for token, number in by_token.items():
            self.all_tokens[number] = token
        if END not in by_token:
            raise DataError(f"`{vocab_file}` has no token {END}, which stands after each document. Take one that has.")
        self.end_id = by_token[END]
        self.fingerprint = hashlib.blake2b(content, digest_size=16).hexdigest()
        added = set(self._tokenizer.get_added_tokens_decoder())
        spelled = _bytes_by_letter()
        self._bytes = [
            b"" if number in added else bytes(spelled[letter] for letter in token if letter in spelled)
            for number, token in enumerate(self.all_tokens)
        ]

    def __reduce__(self) -> tuple[Any, ...]:
        return BytePieceTokenizer, (self.vocab_file,)

    @property
    def byte_lengths(self) -> NDArray[np.int32]:
        """Those of the pieces; none for special tokens."""
        return np.array([len(piece) for piece in self._bytes], np.int32)

    def encode(self, texts: Sequence[str]) -> Ragged:
        """The ids of each text, as int32."""
        rows = [encoding.ids for encoding in self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]
        values = np.concatenate([np.asarray(row, np.int32) for row in rows] or [np.zeros(0, np.int32)])
        return Ragged(values, offsets=offsets_of(np.fromiter(map(len, rows), np.int64, len(rows))))

    def decode(self, ids: Sequence[int] | NDArray[np.integer]) -> str:
        """The text that the pieces spell; special tokens are left out."""
        pieces = [self._bytes[number] for number in ids if 0 <= number < self.vocab_size]
        return b"".join(pieces).decode(errors="replace")


def build_byte_tokenizer(vocab_file: str | Path = "") -> ReversibleTokenizer:
    """Returns the tokenizer of a `tokenizer.json` of byte-level pieces; without one that of single bytes."""
    return BytePieceTokenizer(vocab_file) if vocab_file else ByteTokenizer()


def _kinds(pre_tokenizer: Any) -> set[str]:
    """What a `tokenizer.json` cuts text by."""
    if not pre_tokenizer:
        return set()
    parts = pre_tokenizer.get("pretokenizers", [])
    return {pre_tokenizer["type"]}.union(*map(_kinds, parts))


def _bytes_by_letter() -> dict[str, int]:
    """Which byte each letter of a piece stands for: itself if it can be seen, else the next letter from 256 on."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(_N_BYTES) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(_N_BYTES + n): byte for n, byte in enumerate(hidden)}
