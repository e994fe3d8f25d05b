"""Vocabularies, trained on text."""

import io
import itertools
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from trellis.data import find_files
from trellis.disk import write_whole
from trellis.errors import ArgumentError, DataError
from trellis.nlp.data.byte_tokenizers import END
from trellis.nlp.data.corpus import read_sentences
from trellis.nlp.data.token_blocks import read_passages
from trellis.nlp.data.tokenizer import CLS, MASK, SEP, UNKNOWN, nlp_package, preprocess_text, split_words

SPECIAL_TOKENS = ("[PAD]", UNKNOWN, CLS, SEP, MASK)
_MOST_SENTENCES = 2_000_000
_MOST_LETTERS = 1000
_MOST_REPEATS = 10_000


def train_vocabulary(
    input_files: str | Sequence[str],
    *,
    output_file: str | os.PathLike[str],
    vocab_size: int = 30522,
    tokenization: str = "WordPiece",
    lower_case: bool = True,
    min_frequency: int = 2,
) -> int:
    """Trains a vocabulary on text and writes it whole; returns its size, which is `vocab_size` at most.

    Args:
        input_files: Text, or files of rows with a column `text`.
        output_file: One token a line for WordPiece, a model for SentencePiece, a `tokenizer.json` for byte_bpe.
        tokenization: `byte_bpe` is for models that write text, such as GPT: it loses nothing, so case counts.
        min_frequency: How often pieces must stand beside each other to be joined (WordPiece, byte_bpe).
    """
    if tokenization == "byte_bpe":
        return _train_byte_pieces(find_files(input_files), Path(output_file), vocab_size, min_frequency)
    sentences = (sentence.text for sentence in read_sentences(find_files(input_files)))
    if vocab_size <= len(SPECIAL_TOKENS):
        raise ArgumentError(f"vocab_size is {vocab_size}, but {len(SPECIAL_TOKENS)} tokens are special ones already.")
    if tokenization == "WordPiece":
        content = train_wordpiece(sentences, vocab_size=vocab_size, lower_case=lower_case, min_frequency=min_frequency)
        n_tokens = content.count("\n")
        data = content.encode()
    elif tokenization == "SentencePiece":
        data, n_tokens = _train_sentencepiece(sentences, vocab_size, lower_case)
    else:
        raise ArgumentError(f"tokenization is {tokenization!r}; it can be 'WordPiece', 'SentencePiece' or 'byte_bpe'.")
    write_whole(Path(output_file), data)
    return n_tokens


def train_wordpiece(
    sentences: Iterable[str], *, vocab_size: int, lower_case: bool = True, min_frequency: int = 2
) -> str:
    """Trains a vocabulary for WordPiece; returns it with one token a line, special ones first."""
    tokenizers = nlp_package("tokenizers")
    words = _count_words(sentences, lower_case)
    if not words:
        raise DataError("There is no text in the files: every line is empty. Give files with text.")
    alphabet = _alphabet(words)
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=max(vocab_size, len(SPECIAL_TOKENS) + len(alphabet)),
        min_frequency=min_frequency,
        # Left to itself the library numbers letters in any order, and of equal pairs it joins those of lower numbers.
        special_tokens=[*SPECIAL_TOKENS, *alphabet],
        limit_alphabet=0,
        show_progress=sys.stderr.isatty(),
    )
    tokenizer.train_from_iterator(_repeated(words), trainer)
    ids = tokenizer.get_vocab()
    return "".join(f"{token}\n" for token in sorted(ids, key=ids.__getitem__)[:vocab_size])


def _count_words(sentences: Iterable[str], lower_case: bool) -> Counter[str]:
    chunks: Counter[str] = Counter()
    for sentence in sentences:
        chunks.update(sentence.split(" "))
    words: Counter[str] = Counter()
    for chunk, count in chunks.items():
        for word in split_words(chunk, lower_case=lower_case):
            words[word] += count
    return words


def _alphabet(words: Mapping[str, int]) -> list[str]:
    """The most frequent letters, and then those of them that continue words, each in order."""
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for letter in word:
            counts[letter] += count
    letters = set(sorted(counts, key=lambda letter: (-counts[letter], letter))[:_MOST_LETTERS])
    continuations = {letter for word in words for letter in word[1:]} & letters
    # The library leaves out letters that are not there by themselves.
    return [*sorted(letters), *(f"##{letter}" for letter in sorted(continuations))]


def _repeated(words: Mapping[str, int]) -> Iterator[str]:
    for word, count in words.items():
        for start in range(0, count, _MOST_REPEATS):
            yield " ".join([word] * min(_MOST_REPEATS, count - start))


def _train_byte_pieces(files: Sequence[Path], output_file: Path, vocab_size: int, min_frequency: int) -> int:
    tokenizers = nlp_package("tokenizers")
    if output_file.suffix != ".json":
        raise ArgumentError(f"output_file is `{output_file}`, but byte_bpe is written as a tokenizer.json. Call it so.")
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    if vocab_size <= len(alphabet):
        raise ArgumentError(f"vocab_size is {vocab_size}, but {len(alphabet)} bytes and an end are tokens already.")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=[END],
        initial_alphabet=alphabet,
        show_progress=sys.stderr.isatty(),
    )
    texts = (passage.text for passage in read_passages(files))
    first = next(texts, None)
    if first is None:
        raise DataError("There is no text in the files. Give files with text.")
    tokenizer.train_from_iterator(itertools.chain([first], texts), trainer)
    write_whole(output_file, tokenizer.to_str(pretty=True).encode())
    return int(tokenizer.get_vocab_size())


def _train_sentencepiece(sentences: Iterator[str], vocab_size: int, lower_case: bool) -> tuple[bytes, int]:
    sentencepiece = nlp_package("sentencepiece")
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(preprocess_text(sentence, lower=lower_case) for sentence in sentences),
            model_writer=model,
            vocab_size=vocab_size,
            # A sample is as good, and fits into memory whatever the size of the text.
            input_sentence_size=_MOST_SENTENCES,
            hard_vocab_limit=False,
            pad_id=0,
            unk_id=1,
            bos_id=-1,
            eos_id=-1,
            control_symbols=[CLS, SEP, MASK],
            minloglevel=1,
        )
    except RuntimeError as error:
        raise DataError(f"SentencePiece cannot be trained on this text: {error}. Give more text.") from error
    data = model.getvalue()
    return data, int(sentencepiece.SentencePieceProcessor(model_proto=data).get_piece_size())
