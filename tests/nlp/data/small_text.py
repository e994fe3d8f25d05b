"""A small vocabulary and a small corpus, for the tests of this folder."""

from pathlib import Path

from trellis.nlp.data import WordPieceTokenizer

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["the", "cat", "dog", "sat", "ran", "on", "a", "mat", "##s", "##ed", "jump", ".", "?", "who"]


def write_vocabulary(path: Path, words: list[str] | None = None) -> str:
    path.write_text("\n".join([*SPECIALS, *(WORDS if words is None else words)]) + "\n")
    return str(path)


def small_tokenizer(folder: Path) -> WordPieceTokenizer:
    return WordPieceTokenizer(write_vocabulary(folder / "vocab.txt"))


def write_corpus_file(path: Path, *, n_documents: int = 12) -> str:
    """Documents of two to five sentences."""
    sentences = ["the cat sat on the mat .", "a dog ran .", "who jumped on the cats ?", "the dogs jumped on a mat ."]
    documents = []
    for number in range(n_documents):
        lines = [sentences[(number + place) % len(sentences)] for place in range(2 + number % 4)]
        documents.append("\n".join(lines))
    path.write_text("\n\n".join(documents) + "\n")
    return str(path)
