"""Text is one row of tokens, of which each is told once an epoch."""

import gzip
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.nlp.data.small_text import write_tokenizer_json
from trellis.data import rows_of
from trellis.errors import ArgumentError, DataError
from trellis.nlp.data import (
    BytePieceTokenizer,
    ByteTokenizer,
    TokenBlocksDataConfig,
    build_block_stream,
    build_byte_tokenizer,
    train_vocabulary,
)

END = ByteTokenizer.end_id


def stream(path: Any, **options: Any) -> Any:
    given = {"global_batch_size": 2, "seq_length": 4, "is_training": False, "drop_remainder": False}
    params = TokenBlocksDataConfig({"input_path": str(path), **given, **options})
    return build_block_stream(params, tokenizer=ByteTokenizer())


def ids_of(blocks: Any) -> list[int]:
    """All that is to be told, in order."""
    told = [blocks.batch(step)["next_word_ids"].ravel() for step in range(blocks.n_batches)]
    return [int(number) for number in np.concatenate(told) if number >= 0]


def text_of(ids: list[int]) -> list[str]:
    """The documents that ids spell."""
    parts = "".join("\0" if number == END else chr(number) for number in ids).split("\0")
    return [part for part in parts if part]


@pytest.mark.parametrize(
    ("documents", "expected"),
    [
        ("files", ["1st\n\n  ok\n = A = \nb\n"]),
        ("blank_lines", ["1st\n", "  ok\n = A = \nb\n"]),
        ("headings", ["1st\n\n  ok\n", " = A = \nb\n"]),
    ],
)
def test_documents_are_joined_by_an_end_and_kept_as_they_are(
    documents: str, expected: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "text.txt.gz"
    file.write_bytes(gzip.compress(b"x1st\n\n  ok\n = A = \nb\n"))
    # The first token is told by nothing.
    assert text_of(ids_of(stream(file, documents=documents))) == expected


def test_several_files_and_rows_are_documents_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("xone\n\n\n")
    rows = [{"text": "two", "title": "2"}, {"text": " ", "title": ""}, {"text": "three", "title": "3"}]
    (tmp_path / "b.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert text_of(ids_of(stream(f"{tmp_path}/a.txt,{tmp_path}/b.jsonl"))) == ["one\n\n\n", "two", "three"]
    both = stream(tmp_path / "b.jsonl", text_field_names=["title", "text"])
    assert text_of(ids_of(both)) == ["\ntwo", "3\nthree"]
    with pytest.raises(DataError, match=r"b.jsonl:1: there is no text in 'body'; the columns are text, title"):
        stream(tmp_path / "b.jsonl", text_field_names=["body"])


def test_text_that_is_longer_than_what_is_read_at_a_time_is_whole(tmp_path: Path) -> None:
    text = "".join(f"line {number}\n" for number in range(20_000))
    (tmp_path / "long.txt").write_text(text)
    blocks = stream(tmp_path / "long.txt", seq_length=1000)
    assert text_of(ids_of(blocks)) == [text[1:]]
    first = blocks.batch(0)
    np.testing.assert_array_equal(first["input_word_ids"][0, 1:], first["next_word_ids"][0, :-1])
    assert first["input_word_ids"].dtype == np.int32


def test_training_blocks_are_shuffled_whole_and_a_function_of_the_step(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("abcdefghijklmnopqrstuvwxyz" * 4)
    blocks = stream(tmp_path / "text.txt", is_training=True, drop_remainder=True, seed=3)
    assert blocks.n_examples == 26
    epoch = np.concatenate([blocks.batch(step)["input_word_ids"] for step in range(13)])
    assert len({row.tobytes() for row in epoch}) == 13  # the text comes again every 26 letters, two blocks of four
    assert not np.array_equal(epoch, stream(tmp_path / "text.txt").batch(0))
    np.testing.assert_array_equal(blocks.batch(7)["next_word_ids"][1:], rows_of(blocks, 1, 2).batch(7)["next_word_ids"])
    assert (epoch >= 0).all()


def test_too_little_text_is_told(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("abc\n")
    with pytest.raises(DataError, match=r"has 5 tokens, too few for a block of 8 and the one after it"):
        stream(tmp_path / "text.txt", seq_length=8, is_training=True)
    (tmp_path / "empty.txt").write_text("\n\n")
    with pytest.raises(DataError, match=r"There is no text in the files"):
        stream(tmp_path / "empty.txt")


@pytest.mark.parametrize("text", ["All of it.\n\n  Twice!", "naïve — \U0001f600", "\x00\x7f\t"])
def test_bytes_spell_every_text_and_give_it_back(text: str) -> None:
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode([text, ""])
    assert ids.lengths.tolist() == [len(text.encode()), 0]
    assert tokenizer.decode([*ids.values, END, 300, -1]) == text
    assert tokenizer.byte_lengths.sum() == 256
    assert len(tokenizer.all_tokens) == tokenizer.vocab_size


def test_pieces_of_bytes_that_were_trained_spell_every_text_and_give_it_back(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the cat sat on the mat .\n  the cat\n" * 20)
    file = tmp_path / "tokenizer.json"
    n_tokens = train_vocabulary(str(tmp_path / "text.txt"), output_file=file, vocab_size=270, tokenization="byte_bpe")
    tokenizer = build_byte_tokenizer(file)
    assert tokenizer.vocab_size == n_tokens == 270
    for text in ("the cat\n  sat", "na\u00efve \U0001f600\x00"):
        ids = tokenizer.encode([text]).values
        assert tokenizer.decode([*ids, tokenizer.end_id]) == text
        assert tokenizer.byte_lengths[ids].sum() == len(text.encode())
    assert len(tokenizer.encode(["the cat"]).values) < 5
    assert tokenizer.byte_lengths[tokenizer.end_id] == 0
    params = TokenBlocksDataConfig(input_path=str(tmp_path / "text.txt"), seq_length=8, vocab_file=str(file))
    batch: Any = build_block_stream(params, tokenizer=pickle.loads(pickle.dumps(tokenizer))).batch(0)
    assert "the cat" in tokenizer.decode(batch["input_word_ids"].ravel())


def test_a_vocabulary_of_bytes_needs_room_for_all_and_a_name(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the cat\n")
    for name, size, message in (("a.txt", 300, "Call it so"), ("a.json", 256, "256 bytes and an end are tokens")):
        with pytest.raises(ArgumentError, match=message):
            train_vocabulary(
                str(tmp_path / "text.txt"), output_file=tmp_path / name, vocab_size=size, tokenization="byte_bpe"
            )


def test_a_tokenizer_that_is_not_of_bytes_or_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no file `\S+none.json`. Train one: trellis data vocabulary"):
        BytePieceTokenizer(tmp_path / "none.json")
    write_tokenizer_json(tmp_path / "words.json", ["cat"], lowercase=False)
    with pytest.raises(DataError, match=r"does not cut text into bytes"):
        BytePieceTokenizer(tmp_path / "words.json")
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(DataError, match=r"is no tokenizer.json"):
        BytePieceTokenizer(tmp_path / "bad.json")
