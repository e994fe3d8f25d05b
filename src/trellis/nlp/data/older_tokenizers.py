"""The files that RoBERTa's and XLM-R's vocabularies came as before `tokenizer.json`, turned into one."""

import hashlib
import importlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trellis.disk import default_cache_dir, local_path, write_whole
from trellis.errors import DataError, MissingPackageError
from trellis.json_text import parse_json
from trellis.user_cache import hold

BPE_VOCABULARY, BPE_MERGES, XLM_PIECES = "vocab.json", "merges.txt", "sentencepiece.bpe.model"
OLDER_NAMES = (BPE_VOCABULARY, XLM_PIECES)
"""The names of the files, which say what is in them; beside the first of them lies `merges.txt`."""
_CONFIG = "tokenizer_config.json"
# Part of the key of the cache: raised when the same files would give another tokenizer than before.
_VERSION = 1
_CLS, _SEP, _PAD, _UNKNOWN, _MASK = "<s>", "</s>", "<pad>", "<unk>", "<mask>"
_FIRST_PIECES = (_UNKNOWN, _CLS, _SEP)
_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5
_PIECES_FIELD, _NORMALIZER_FIELD, _TEXT_FIELD, _SCORE_FIELD, _CHARACTERS_FIELD = 1, 3, 1, 2, 2


def as_tokenizer_json(vocab_file: str | os.PathLike[str]) -> Path:
    """Returns the `tokenizer.json` that does the same as an older file, from the user's cache; any other file as it is.

    Example:
        as_tokenizer_json("weights/vocab.json")  # with weights/merges.txt beside it
    """
    file = Path(vocab_file)
    if file.name not in OLDER_NAMES or not file.is_file():
        return file
    if file.name == BPE_VOCABULARY and not (file.parent / BPE_MERGES).is_file():
        raise DataError(f"`{file}` is one half of a vocabulary of byte-level BPE. Put its {BPE_MERGES} beside it.")
    folder = local_path(file, name="vocab_file").parent
    parts = [folder / name for name in (file.name, *((BPE_MERGES,) if file.name == BPE_VOCABULARY else ()))]
    contents = [part.read_bytes() for part in parts]
    adds_space = _adds_prefix_space(folder) if file.name == BPE_VOCABULARY else True
    key = hashlib.blake2b(repr((_VERSION, file.name, adds_space)).encode(), digest_size=16)
    for content in contents:
        key.update(hashlib.blake2b(content).digest())
    made = default_cache_dir("tokenizers") / key.hexdigest() / "tokenizer.json"
    hold(made.parent)
    if not made.is_file():
        tokenizer = _of_merges(parts, contents, adds_space) if len(parts) == 2 else _of_pieces(file, contents[0])
        made.parent.mkdir(parents=True, exist_ok=True)
        write_whole(made, tokenizer.to_str().encode())
        hold(made.parent)
    return made


def _adds_prefix_space(folder: Path) -> bool:
    """Whether the first word of a text is cut as if there was a space before it."""
    try:
        return bool(parse_json((folder / _CONFIG).read_bytes()).get("add_prefix_space", False))
    except (OSError, ValueError, AttributeError):
        return False  # What is wrong with the file is told by who reads the rest of it.


def _of_merges(files: list[Path], contents: list[bytes], adds_space: bool) -> Any:
    """Byte-level BPE by a vocabulary and the pairs that are joined, one a line."""
    tokenizers = _tokenizers()
    try:
        vocabulary = parse_json(contents[0])
        ids = {str(token): int(number) for token, number in vocabulary.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise DataError(f"`{files[0]}` is no vocabulary of byte-level BPE ({error}). Copy the file again.") from None
    try:
        lines = contents[1].decode().splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"`{files[1]}` is not UTF-8 text ({error}). Copy the file again.") from None
    merges = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    wrong = next((pair for pair in merges if len(pair) != 2), None)
    if wrong is not None:
        raise DataError(f"`{files[1]}` has the line {' '.join(wrong)!r}, which is no pair. Copy the file again.")
    _check_special(ids, files[0])
    try:
        tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=ids, merges=merges))
    except Exception as error:
        # The package raises no class of its own.
        raise DataError(f"`{files[1]}` does not go with `{files[0]}` ({error}). Copy both again.") from error
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=adds_space)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.post_processor = tokenizers.processors.RobertaProcessing(
        (_SEP, ids[_SEP]), (_CLS, ids[_CLS]), True, adds_space
    )
    return _with_special(tokenizer)


def _of_pieces(file: Path, content: bytes) -> Any:
    """XLM-R's Unigram, whose ids are those of the SentencePiece model but for the first and the last."""
    tokenizers = _tokenizers()
    try:
        pieces, characters = _read_sentencepiece(content)
    except (IndexError, ValueError, struct.error) as error:
        raise DataError(f"`{file}` is no SentencePiece model ({error}). Copy the file again.") from None
    first = tuple(piece for piece, _ in pieces[:3])
    if first != _FIRST_PIECES:
        raise DataError(
            f"`{file}` begins with the pieces {', '.join(map(repr, first))}, but one of XLM-R with "
            f"{', '.join(map(repr, _FIRST_PIECES))}. A model of another kind is called spiece.model."
        )
    start = [(_CLS, 0.0), (_PAD, 0.0), (_SEP, 0.0), (_UNKNOWN, 0.0)]
    vocabulary = [*start, *pieces[3:], (_MASK, 0.0)]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.Unigram(vocabulary, unk_id=3, byte_fallback=False))
    if characters:
        tokenizer.normalizer = tokenizers.normalizers.Precompiled(characters)
    spaces = tokenizers.pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    by_space = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([by_space, spaces])
    tokenizer.decoder = tokenizers.decoders.Metaspace(replacement="▁", prepend_scheme="always")
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{_CLS} $A {_SEP}", pair=f"{_CLS} $A {_SEP} {_SEP} $B {_SEP}", special_tokens=[(_CLS, 0), (_SEP, 2)]
    )
    return _with_special(tokenizer)


def _with_special(tokenizer: Any) -> Any:
    tokenizers = _tokenizers()
    plain = [tokenizers.AddedToken(token, normalized=False, special=True) for token in (_CLS, _PAD, _SEP, _UNKNOWN)]
    # It stands for a word together with the space before it.
    mask = tokenizers.AddedToken(_MASK, lstrip=True, normalized=False, special=True)
    tokenizer.add_special_tokens([*plain, mask])
    return tokenizer


def _check_special(ids: dict[str, int], file: Path) -> None:
    missing = [token for token in (_CLS, _PAD, _SEP, _MASK) if token not in ids]
    if missing:
        raise DataError(
            f"`{file}` has no token {', '.join(map(repr, missing))}, as RoBERTa's has. For another model give its "
            f"tokenizer.json: `tokenizer.save_pretrained(directory)` of transformers writes that file."
        )


def _read_sentencepiece(content: bytes) -> tuple[list[tuple[str, float]], bytes]:
    """The pieces with their scores, and the table by which characters are changed; empty if there is none."""
    pieces: list[tuple[str, float]] = []
    characters = b""
    for field, value in _fields(content):
        if field == _PIECES_FIELD and isinstance(value, bytes):
            parts = dict(_fields(value))
            text, score = parts[_TEXT_FIELD], parts.get(_SCORE_FIELD, b"\0\0\0\0")
            if not isinstance(text, bytes) or not isinstance(score, bytes):
                raise ValueError("a piece has no text")
            pieces.append((text.decode(), struct.unpack("<f", score)[0]))
        elif field == _NORMALIZER_FIELD and isinstance(value, bytes):
            table = dict(_fields(value)).get(_CHARACTERS_FIELD, b"")
            characters = table if isinstance(table, bytes) else b""
    return pieces, characters


def _fields(content: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yields the fields of a message in the wire format of protocol buffers."""
    place = 0
    while place < len(content):
        key, place = _varint(content, place)
        kind = key & 7
        if kind == _VARINT:
            number, place = _varint(content, place)
            yield key >> 3, number
            continue
        if kind not in (_EIGHT_BYTES, _BYTES, _FOUR_BYTES):
            raise ValueError(f"a field of the kind {kind}")
        size = 8 if kind == _EIGHT_BYTES else 4
        if kind == _BYTES:
            size, place = _varint(content, place)
        if place + size > len(content):
            raise ValueError("cut short")
        yield key >> 3, content[place : place + size]
        place += size


def _varint(content: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[place]
        value |= (byte & 0x7F) << shift
        shift, place = shift + 7, place + 1
        if byte < 0x80:
            return value, place


def _tokenizers() -> Any:
    try:
        return importlib.import_module("tokenizers")
    except ImportError:
        raise MissingPackageError("tokenizers", "nlp") from None
