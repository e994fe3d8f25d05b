"""A small vocabulary and a small corpus, for the tests of this folder."""

import mmap
from pathlib import Path
from typing import Any

import tokenizers

from trellis.nlp.data import WordPieceTokenizer

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["the", "cat", "dog", "sat", "ran", "on", "a", "mat", "##s", "##ed", "jump", ".", "?", "who"]


def write_vocabulary(path: Path, words: list[str] | None = None) -> str:
    path.write_text("\n".join([*SPECIALS, *(WORDS if words is None else words)]) + "\n")
    return str(path)


def is_mapped(array: Any) -> bool:
    """Whether an array lies in a file."""
    while getattr(array, "base", None) is not None:
        array = array.base
    return isinstance(array, mmap.mmap)


def small_tokenizer(folder: Path) -> WordPieceTokenizer:
    return WordPieceTokenizer(write_vocabulary(folder / "vocab.txt"))


def write_tokenizer_json(
    path: Path, words: list[str] | None = None, *, lowercase: bool = True, longest_word: int = 100
) -> str:
    """What `transformers` leaves with the weights of a BERT."""
    vocabulary = {word: number for number, word in enumerate([*SPECIALS, *(WORDS if words is None else words)])}
    model = tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=longest_word)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = tokenizers.decoders.WordPiece()
    tokenizer.add_special_tokens(SPECIALS)
    # Whoever saves a tokenizer after use may save these too: they must not cut or fill up what is read here.
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path))
    return str(path)


def write_corpus_file(path: Path, *, n_documents: int = 12) -> str:
    """Documents of two to five sentences."""
    sentences = ["the cat sat on the mat .", "a dog ran .", "who jumped on the cats ?", "the dogs jumped on a mat ."]
    documents = []
    for number in range(n_documents):
        lines = [sentences[(number + place) % len(sentences)] for place in range(2 + number % 4)]
        documents.append("\n".join(lines))
    path.write_text("\n\n".join(documents) + "\n")
    return str(path)
