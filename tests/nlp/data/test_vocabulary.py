"""Vocabularies are trained on text, and are the same each time."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import environment
from tests.nlp.data.small_text import write_corpus_file
from trellis.errors import ArgumentError, DataError
from trellis.nlp.data import (
    BertPretrainTextDataConfig,
    build_pretraining_stream,
    build_tokenizer,
    prepare_local_text,
    train_vocabulary,
)

PROGRAM = (
    "import sys; from trellis.nlp.data import train_vocabulary;"
    "train_vocabulary(sys.argv[1], output_file=sys.argv[2], vocab_size=200, min_frequency=1)"
)


def test_a_vocabulary_has_the_special_tokens_first_and_spells_the_text(tmp_path: Path) -> None:
    text = write_corpus_file(tmp_path / "text.txt")
    n_tokens = train_vocabulary(text, output_file=tmp_path / "out" / "vocab.txt", vocab_size=100)
    tokens = (tmp_path / "out" / "vocab.txt").read_text().splitlines()
    assert tokens[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert len(tokens) == len(set(tokens)) == n_tokens <= 100
    tokenizer = build_tokenizer(tmp_path / "out" / "vocab.txt")
    assert "[UNK]" not in tokenizer.tokens("The cats jumped on a dog?")
    assert tokenizer.tokens("mat the cat") == ["mat", "the", "cat"]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["vocab.txt"]


def test_every_process_trains_the_same_vocabulary(tmp_path: Path) -> None:
    # Many pairs that are equally frequent: in which order they are joined must not depend on the process.
    letters = "abcdefghij"
    words = [first + second + third for first in letters for second in letters for third in letters[:3]]
    (tmp_path / "text.txt").write_text(" ".join(words) + "\n")
    for number in range(2):
        output = str(tmp_path / f"{number}.txt")
        command = [sys.executable, "-c", PROGRAM, str(tmp_path / "text.txt"), output]
        subprocess.run(command, env=environment(), check=True, timeout=60)
    assert (tmp_path / "0.txt").read_bytes() == (tmp_path / "1.txt").read_bytes()


def test_a_sentencepiece_model_has_the_published_special_pieces(tmp_path: Path) -> None:
    text = write_corpus_file(tmp_path / "text.txt")
    train_vocabulary(text, output_file=tmp_path / "small.model", vocab_size=40, tokenization="SentencePiece")
    tokenizer = build_tokenizer(tmp_path / "small.model", tokenization="SentencePiece")
    assert tokenizer.tokens_of(range(5)) == ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    assert tokenizer.text_of(tokenizer.encode(["The cats"]).values) == "the cats"


def test_what_no_vocabulary_can_be_made_of_is_told(tmp_path: Path) -> None:
    (tmp_path / "blank.txt").write_text("\n \n")
    with pytest.raises(DataError, match="every line is empty"):
        train_vocabulary(str(tmp_path / "blank.txt"), output_file=tmp_path / "vocab.txt")
    text = write_corpus_file(tmp_path / "text.txt")
    with pytest.raises(ArgumentError, match="vocab_size is 5, but 5 tokens are special"):
        train_vocabulary(text, output_file=tmp_path / "vocab.txt", vocab_size=5)
    with pytest.raises(ArgumentError, match="tokenization is 'BPE'"):
        train_vocabulary(text, output_file=tmp_path / "vocab.txt", tokenization="BPE")
    assert not (tmp_path / "vocab.txt").exists()


def test_the_local_corpus_becomes_text_a_vocabulary_and_a_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = "\n\n".join(
        f"The cat number {n} sat on the mat. Then a dog ran\n    and the cat jumped." for n in range(60)
    )
    monkeypatch.setattr("trellis.nlp.data.local_text.load_local_corpus", lambda: corpus)
    files = prepare_local_text(vocab_size=100, cache_dir=tmp_path)
    lines = Path(files.train_file).read_text().split("\n")
    assert lines[:3] == ["The cat number 1 sat on the mat.", "Then a dog ran and the cat jumped.", ""]
    assert Path(files.validation_file).read_text().count("number") == 3
    monkeypatch.setattr("trellis.nlp.data.local_text.load_local_corpus", lambda: pytest.fail("made again"))
    assert prepare_local_text(vocab_size=100, cache_dir=tmp_path) == files
    params = BertPretrainTextDataConfig(
        input_path=files.train_file,
        vocab_file_path=files.vocab_file,
        global_batch_size=4,
        seq_length=128,
        max_predictions_per_seq=20,
        use_next_sentence_label=False,
        pack_sequences=True,
    )
    assert build_pretraining_stream(params).batch(0)["segment_ids"].max() > 1
