"""Sentences with any number of labels: files as people have them, batches, and what is said of bad files."""

import json
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from tests.nlp.data.small_text import write_vocabulary
from trellis.errors import ConfigError, DataError
from trellis.nlp.data import MultiLabelDataConfig, build_multi_label_stream, count_labels

ROWS: list[tuple[str, list[str]]] = [("the cat sat .", ["pet", "rest"]), ("a dog ran .", ["pet"]), ("the mat", [])]
LABELS = [[1, 1], [1, 0], [0, 0]]


def data(folder: Path, name: str, content: str, **changes: Any) -> MultiLabelDataConfig:
    (folder / name).write_text(content)
    settings: dict[str, Any] = {
        "input_path": str(folder / name),
        "text_fields": ["text"],
        "vocab_file": write_vocabulary(folder / "vocab.txt"),
        "global_batch_size": 3,
        "seq_length": 12,
        "is_training": False,
    }
    return MultiLabelDataConfig(**settings | changes)


JSON = "\n".join(json.dumps({"text": text, "labels": labels}) for text, labels in ROWS)
CSV = "text,labels\n" + "\n".join(f'{text},"{", ".join(labels)}"' for text, labels in ROWS)
TSV = "text\tlabels\n" + "\n".join(f"{text}\t{'|'.join(labels)}" for text, labels in ROWS)
COLUMNS = "text,pet,rest\nthe cat sat .,1,True\na dog ran .,1.0,0\nthe mat,false,\n"


@pytest.mark.parametrize(
    ("name", "content", "changes"),
    [
        ("a.jsonl", JSON, {}),
        ("a.csv", CSV, {}),
        ("a.tsv", TSV, {"label_separator": "|"}),
        ("a.csv", COLUMNS, {"label_fields": ["pet", "rest"]}),
    ],
)
def test_labels_are_a_list_or_a_column_each(name: str, content: str, changes: dict[str, Any], tmp_path: Path) -> None:
    config = data(tmp_path, name, content, **changes)
    assert count_labels(config) == {"pet": 2, "rest": 1}
    batch: Any = build_multi_label_stream(config, class_names=["pet", "rest"]).batch(0)
    assert batch["label_ids"].tolist() == LABELS
    assert batch["input_mask"].sum(axis=1).tolist() == [6, 6, 4]
    fitted: Any = build_multi_label_stream(config.replace(is_training=True), class_names=["pet", "rest"]).batch(0)
    assert fitted["input_word_ids"].shape == (3, 8)


def test_parquet_holds_lists_of_names_and_of_numbers(tmp_path: Path) -> None:
    columns = {"text": [text for text, _ in ROWS], "labels": [[0, 1], [0], []]}
    config = data(tmp_path, "vocab.txt", "", input_path=str(tmp_path / "a.parquet"))
    parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    assert count_labels(config) == {"0": 2, "1": 1}
    batch: Any = build_multi_label_stream(config, class_names=["pet", "rest"]).batch(0)
    assert batch["label_ids"].tolist() == LABELS


@pytest.mark.parametrize(
    ("name", "content", "changes", "message"),
    [
        ("a.jsonl", '{"text": "a", "labels": ["bet"]}', {}, r"a.jsonl:1: the label 'bet' is none of 'pet'.*mean 'pet'"),
        ("a.jsonl", '{"text": "a", "labels": null}', {}, r"a.jsonl:1: 'labels' is null, .* Write \[\] if it has none"),
        ("a.jsonl", '{"text": "a", "label": ["pet"]}', {}, r"a.jsonl:1: the labels 'labels' are missing among 'text'"),
        ("a.jsonl", '{"text": "a", "labels": 0.5}', {}, r"a.jsonl:1: the labels 'labels' are 0.5, not a list of names"),
        (
            "a.csv",
            "text,pet\na,2\n",
            {"label_fields": ["pet"]},
            r"a.csv:2: 'pet' is '2', but a label is there \(1\) or",
        ),
        ("a.csv", "text,pet\na,1\n", {"label_fields": ["bet"]}, r"a.csv:2: the labels 'bet' are missing .*mean 'pet'"),
        ("a.csv", "text,labels\n", {}, r"There are no rows in .*a.csv"),
        ("a.csv", "words,labels\na,pet\n", {}, r"a.csv:2: there is no column 'text' among 'words', 'labels'"),
    ],
)
def test_a_bad_file_is_told_with_its_line_and_a_way_out(
    name: str, content: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=message):
        build_multi_label_stream(data(tmp_path, name, content, **changes), class_names=["pet", "rest"])


def test_settings_that_cannot_be_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="validation_data.text_fields is None. Name the column"):
        count_labels(data(tmp_path, "a.jsonl", JSON, text_fields=None))
    with pytest.raises(ConfigError, match="validation_data.label_separator is empty"):
        count_labels(data(tmp_path, "a.jsonl", JSON, label_separator=""))
    with pytest.raises(DataError, match="No row of .* has a label"):
        count_labels(data(tmp_path, "a.csv", 'text,labels\na,""\n'))
