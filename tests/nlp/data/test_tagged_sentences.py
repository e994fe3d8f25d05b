"""Sentences with tags: files as people have them, windows of words, batches, and what is said of bad files."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from tests.nlp.data.small_text import small_tokenizer, write_vocabulary
from trellis.data import RecordWriter, encode_example
from trellis.errors import ConfigError, DataError
from trellis.nlp.data import (
    TaggedFields,
    TaggedSentence,
    TaggingDataConfig,
    build_tagging_stream,
    count_tags,
    is_conll,
    read_tagged_sentences,
    tag_windows,
)

NAMES = ["B-PET", "I-PET", "O"]
SENTENCES = [(("the", "cat", "sat"), ("B-PET", "I-PET", "O")), (("dogs", "ran"), ("B-PET", "O"))]
CONLL = "-DOCSTART- -X- O\n\nthe DT B-PET\ncat NN I-PET\nsat VB O\n\ndogs NN B-PET\nran VB O\n"
ROWS = [{"words": list(words), "tags": list(tags)} for words, tags in SENTENCES]


def written(file: Path, content: str | bytes) -> Path:
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


def read(file: Path, **fields: Any) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    return [(one.words, one.tags) for one in read_tagged_sentences([file], fields=TaggedFields(**fields))]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("spaces.txt", CONLL),
        ("no_end.conll", CONLL.rstrip()),
        ("tabs.tsv", CONLL.replace(" ", "\t")),
        ("windows.txt", CONLL.replace("\n", "\r\n")),
        ("mark.txt", b"\xef\xbb\xbf" + CONLL.encode()),
        ("blanks.txt", CONLL.replace("\n\n", "\n \n\n")),
        ("conllu.conllu", "# text = the cat\n" + CONLL.replace(" ", "\t")),
        ("rows.jsonl", "\n".join(map(json.dumps, ROWS))),
        ("text.jsonl", "\n".join(json.dumps({key: " ".join(row[key]) for key in row}) for row in ROWS)),
        ("table.csv", "words,tags\nthe cat sat,B-PET I-PET O\ndogs ran,B-PET O\n"),
        ("table.tsv", "id\twords\ttags\n1\tthe cat sat\tB-PET I-PET O\n2\tdogs ran\tB-PET O\n"),
    ],
)
def test_files_as_people_have_them_hold_the_same_sentences(name: str, content: str | bytes, tmp_path: Path) -> None:
    assert read(written(tmp_path / name, content)) == SENTENCES


def test_parquet_holds_lists_of_words_and_of_numbers(tmp_path: Path) -> None:
    columns = {"tokens": [list(words) for words, _ in SENTENCES], "ner_tags": [[0, 1, 2], [0, 2]]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet", words="tokens", tags="ner_tags") == [
        (("the", "cat", "sat"), ("0", "1", "2")),
        (("dogs", "ran"), ("0", "2")),
    ]


def test_other_columns_are_named_and_words_may_have_spaces_between_tabs(tmp_path: Path) -> None:
    file = written(tmp_path / "a.txt", "O\tNew York\nO\tsleeps\n")
    assert read(file, word_column=1, tag_column=0) == [(("New York", "sleeps"), ("O", "O"))]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "the\ncat\n", r"a.txt:1: there is 1 column \('the'\), but words are in one and tags in another"),
        ("a.txt", "the O\nNew York O\n", r"a.txt:2: 3 columns between spaces .*, but 2 in the first line. Part the"),
        ("b.txt", "the O\nNew\n", r"b.txt:2: 1 column between spaces"),
        ("a.tsv", "the\tO\nNew York O\n", r"a.tsv:2: 3 columns between spaces .*by tabs if a word has spaces"),
        ("a.txt", "the\tO\ncat\t\n", r"a.txt:2: the cell in column -1 \(tag_column\) is empty"),
        ("a.txt", "\n\n", r"There are no sentences in .*a.txt. Give files that have some."),
        ("a.jsonl", '{"words": ["a", "b"], "tags": ["O"]}', r"a.jsonl:1: there are 2 words but 1 tags. Give one tag"),
        ("a.jsonl", '{"words": ["a"], "tags": null}', r"a.jsonl:1: 'tags' is null. Fill it in, or leave the row out"),
        ("a.jsonl", '{"word": ["a"], "tags": ["O"]}', r"a.jsonl:1: there is no 'words' .* Did you mean 'word'\?"),
        ("a.jsonl", '{"words": ["a"]}', r"a.jsonl:1: there is no 'tags' among 'words'"),
        ("a.jsonl", '{"words": [1], "tags": ["O"]}', r"a.jsonl:1: 'words' is \[1\], not a list of words"),
        ("a.jsonl", '{"words": [" "], "tags": ["O"]}', r"a.jsonl:1: 'words' has the word ' ', which cannot be read"),
        ("a.jsonl", '{"words": ["a"], "tags": [0.5]}', r"a.jsonl:1: 'tags' is \[0.5\], not a list of tags"),
        ("a.csv", "words,tags\nthe cat,O\n", r"a.csv:2: there are 2 words but 1 tags"),
    ],
)
def test_a_bad_file_is_told_with_its_line_and_the_way_out(
    name: str, content: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=message):
        read(written(tmp_path / name, content))


def test_a_long_file_without_an_empty_line_is_told_to_be_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(read(written(tmp_path / "a.conll", "word O\n" * 600))) == 1
    assert "a.conll: there is no empty line in it, so its 600 words are one sentence." in capsys.readouterr().out
    assert len(read(written(tmp_path / "b.conll", ("word O\n" * 300 + "\n") * 2))) == 2
    assert not capsys.readouterr().out


def test_a_file_of_words_is_known_by_its_name_or_by_its_tags(tmp_path: Path) -> None:
    assert is_conll(written(tmp_path / "a.conll", "the\ncat\n"))
    assert is_conll(written(tmp_path / "eng.testa", CONLL), tags=NAMES)
    assert not is_conll(written(tmp_path / "a.txt", "the cat sat .\n"), tags=NAMES)


def data(folder: Path, content: str = CONLL, **changes: Any) -> TaggingDataConfig:
    settings: dict[str, Any] = {
        "input_path": str(written(folder / "train.conll", content)),
        "vocab_file": write_vocabulary(folder / "vocab.txt"),
        "global_batch_size": 2,
        "seq_length": 12,
        "is_training": False,
        "drop_remainder": False,
    }
    return TaggingDataConfig(**settings | changes)


def test_tags_are_counted_in_alphabetical_order_and_numbers_up_to_the_highest(tmp_path: Path) -> None:
    assert count_tags(data(tmp_path)) == {"B-PET": 2, "I-PET": 1, "O": 2}
    numbers = "".join(f"w {number}\n" for number in (10, 2, 2))
    assert list(count_tags(data(tmp_path, numbers)).values()) == [0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1]


def test_the_first_piece_of_a_word_has_its_tag_and_others_have_none(tmp_path: Path) -> None:
    batch: Any = build_tagging_stream(data(tmp_path), class_names=NAMES).batch(0)
    assert set(batch) == {"input_word_ids", "input_mask", "input_type_ids", "label_ids", "sentence_ids"}
    # [CLS] the cat sat [SEP], and [CLS] dog ##s ran [SEP].
    assert batch["label_ids"][:, :6].tolist() == [[-1, 0, 1, 2, -1, -1], [-1, 0, -1, 2, -1, -1]]
    assert batch["input_mask"].sum(axis=1).tolist() == [5, 5]
    assert batch["sentence_ids"].tolist() == [0, 1]
    trained: Any = build_tagging_stream(data(tmp_path, is_training=True), class_names=NAMES).batch(0)
    assert trained["label_ids"].shape == (2, 8)
    assert "sentence_ids" not in trained


def test_long_sentences_are_cut_between_words_as_the_published_tool_cuts_them(tmp_path: Path) -> None:
    sentences = [TaggedSentence(("dogs",) * n, ("O",) * n, number=number) for number, n in enumerate((3, 12))]
    tokenizer = small_tokenizer(tmp_path)
    windows: Any = tag_windows(sentences, tokenizer=tokenizer, seq_length=8, class_names=["O"])
    assert windows["sentence"].tolist() == [0, 1, 1, 1, 1]
    assert windows["pieces"].lengths.tolist() == [6] * 5


def test_words_without_pieces_and_words_that_fit_no_row_are_unknown(tmp_path: Path) -> None:
    tokenizer = small_tokenizer(tmp_path)
    sentence = TaggedSentence(("\u200b", "cats" + "s" * 9, "cat"), ("O", "O", "X"))
    windows: Any = tag_windows([sentence], tokenizer=tokenizer, seq_length=6, class_names=["O", "X"])
    assert tokenizer.tokens_of(windows["pieces"].values) == ["[UNK]", "[UNK]", "cat"]
    assert windows["labels"].values.tolist() == [0, 0, 1]


def test_an_unknown_tag_is_told_with_its_line_and_the_nearest(tmp_path: Path) -> None:
    wrong = data(tmp_path, CONLL.replace("I-PET", "I-PTE"))
    with pytest.raises(DataError, match=r"train.conll:3: the tag 'I-PTE' is none of 'B-PET'.*mean 'I-PET'.*task.cl"):
        build_tagging_stream(wrong, class_names=NAMES)
    with pytest.raises(ConfigError, match=r"validation_data.seq_length is 2, but one word takes 3"):
        build_tagging_stream(data(tmp_path, seq_length=2), class_names=NAMES)


def test_published_records_are_read_and_their_tags_need_names(tmp_path: Path) -> None:
    example = {"input_ids": [2, 6, 3, 0], "input_mask": [1, 1, 1, 0], "segment_ids": [0] * 4}
    with RecordWriter(tmp_path / "a.tfrecord") as writer:
        for sentence in (4, 5):
            labels = {"label_ids": [-1, 1, -1, -1], "sentence_id": sentence, "sub_sentence_id": 0}
            writer.write(encode_example({name: np.array(value) for name, value in (example | labels).items()}))
    records = data(tmp_path, input_path=os.fspath(tmp_path / "a.tfrecord"), seq_length=4, include_sentence_id=True)
    batch: Any = build_tagging_stream(records, class_names=["O", "X"]).batch(0)
    assert batch["label_ids"].tolist() == [[-1, 1, -1, -1]] * 2
    assert batch["sentence_ids"].tolist() == [4, 5]
    with pytest.raises(DataError, match="has the tag 1, but task.class_names has 1, from 0 on"):
        build_tagging_stream(records, class_names=["O"])
    with pytest.raises(ConfigError, match="have numbers for tags. Name the tags in their order"):
        count_tags(records)


def test_names_of_numbers_are_those_that_parquet_tells(tmp_path: Path) -> None:
    features = {"tags": {"feature": {"names": ["O", "B-PET", "I-PET"], "_type": "ClassLabel"}, "_type": "List"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    table = pyarrow.table({"words": [["the", "dogs"]], "tags": [[0, 1]]}).replace_schema_metadata(metadata)
    parquet.write_table(table, tmp_path / "a.parquet")
    config = data(tmp_path, input_path=str(tmp_path / "a.parquet"))
    assert count_tags(config) == {"O": 1, "B-PET": 1, "I-PET": 0}
    batch: Any = build_tagging_stream(config, class_names=["O", "B-PET", "I-PET"]).batch(0)
    assert batch["label_ids"][0, :4].tolist() == [-1, 0, 1, -1]
