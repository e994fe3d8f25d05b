"""Sentences with labels become the published features."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.nlp.data.small_text import small_tokenizer
from trellis.data import Columns, decode_example, read_records
from trellis.errors import ArgumentError, DataError
from trellis.nlp.data import get_sentence_task, write_sentence_data
from trellis.nlp.data.sentences import TASKS, SentenceFields, read_sentence_rows

MRPC = 'Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\tthe cat sat\ta dog\n0\t7\t8\ta "dog\tran on the mats\n'


def write_mrpc(tmp_path: Path, **settings: object) -> dict[str, object]:
    (tmp_path / "train.tsv").write_text(MRPC)
    (tmp_path / "test.tsv").write_text("index\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t1\t2\tthe cat\ta dog\n")
    options: dict[str, object] = {
        "input_dir": tmp_path,
        "output_paths": {"train": str(tmp_path / "train.out"), "test": str(tmp_path / "test.out")},
        "meta_data_file": str(tmp_path / "meta.json"),
        "tokenizer": small_tokenizer(tmp_path),
        "seq_length": 12,
    }
    return write_sentence_data(get_sentence_task("mrpc"), **{**options, **settings})  # type: ignore[arg-type]


def test_records_and_meta_data_are_those_of_the_published_tool(tmp_path: Path) -> None:
    meta = write_mrpc(tmp_path)
    tokenizer = small_tokenizer(tmp_path)
    first, second = (decode_example(record) for record in read_records(tmp_path / "train.out"))
    ids = np.asarray(first["input_ids"])
    assert tokenizer.tokens_of(ids) == ["[CLS]", "the", "cat", "sat", "[SEP]", "a", "dog", "[SEP]"] + ["[PAD]"] * 4
    assert first["segment_ids"].tolist() == [0] * 5 + [1] * 3 + [0] * 4  # type: ignore[union-attr]
    assert first["input_mask"].tolist() == [1] * 8 + [0] * 4  # type: ignore[union-attr]
    assert {name: int(first[name][0]) for name in ("label_ids", "is_real_example", "example_id")} == {
        "label_ids": 1, "is_real_example": 1, "example_id": 0,
    }  # fmt: skip
    assert int(second["example_id"][0]) == 1
    assert len(list(read_records(tmp_path / "test.out"))) == 1
    text = json.loads((tmp_path / "train.out.text" / "text.json").read_text())
    assert json.loads((tmp_path / "meta.json").read_text()) == meta | {"text": text}
    assert (text["text_fields"], text["label_values"], text["seq_length"]) == (
        ["#1 String", "#2 String"],
        ["0", "1"],
        12,
    )
    assert (tmp_path / "train.out.text" / text["file"]).read_bytes() == tokenizer.vocab_file.read_bytes()
    assert {name: value for name, value in meta.items() if name != "text"} == {
        "processor_type": "MRPC", "max_seq_length": 12, "train_data_size": 2, "test_data_size": 1,
        "task_type": "bert_classification", "num_labels": 2,
    }  # fmt: skip


def test_columns_are_written_instead_when_asked_for(tmp_path: Path) -> None:
    write_mrpc(tmp_path, output_format="columns")
    assert len(Columns.open(tmp_path / "train.out")) == 2


def test_regression_has_labels_that_are_numbers(tmp_path: Path) -> None:
    header = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
    (tmp_path / "dev.tsv").write_text(header + "0\t\t\t\t\t\t\tthe cat\ta dog\t3.5\n")
    meta = write_sentence_data(
        get_sentence_task("STS-B"),
        input_dir=tmp_path,
        output_paths={"dev": str(tmp_path / "dev.out")},
        meta_data_file=str(tmp_path / "meta.json"),
        tokenizer=small_tokenizer(tmp_path),
    )
    assert meta["task_type"] == "bert_regression" and meta["label_type"] == "float"
    label = decode_example(next(read_records(tmp_path / "dev.out")))["label_ids"]
    assert label.dtype == np.float32 and label.tolist() == [3.5]  # type: ignore[union-attr]


@pytest.mark.parametrize("name", TASKS)
def test_every_task_reads_rows_of_its_own_files(tmp_path: Path, name: str) -> None:
    task = get_sentence_task(name)
    for split, file in task.files.items():
        fields = task.fields(split)  # type: ignore[arg-type]
        row = dict.fromkeys(fields.texts, "the cat")
        if fields.label is not None:
            row[fields.label] = "1.5" if task.labels is None else task.labels[-1]
        path = tmp_path / file
        if path.suffix == ".jsonl":
            path.write_text(json.dumps(row) + "\n")
        else:
            names = fields.column_names or list(row)
            header = [] if fields.column_names else ["\t".join(names)]
            path.write_text("\n".join([*header, "\t".join(row.get(column, "-") for column in names)]) + "\n")
        (read,) = read_sentence_rows([path], fields=fields)
        assert read.texts == ("the cat",) * len(fields.texts)
        if fields.label is not None:
            assert read.label == (1.5 if task.labels is None else len(task.labels) - 1)


def test_json_booleans_are_the_labels_true_and_false(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"question": "who", "passage": "a cat", "label": false}\n')
    (row,) = read_sentence_rows([tmp_path / "train.jsonl"], fields=get_sentence_task("boolq").fields("train"))
    assert row.label == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("text\tlabel\na\t1\n", r"rows.tsv:2: there is no column 'sentence' among 'text', 'label'"),
        ("sentence\tmark\na\t1\n", r"rows.tsv:2: the label 'label' is missing; the columns are 'sentence', 'mark'"),
        ("sentence\tlabel\na\t1\nb\t\n", r"rows.tsv:3: the label 'label' is missing. Fill it in"),
        ("sentence\tlabel\na\tgood\n", r"rows.tsv:2: the label 'good' is no whole number"),
        ("sentence\tlabel\na\t3000000000\n", r"rows.tsv:2: the label '3000000000' is no whole number of 32 bits"),
        ("sentence\tlabel\n", "There are no rows in"),
        ("sentence\tlabel\na\t1\t2\n", r"rows.tsv:2: 3 cells, but 2 columns"),
    ],
)
def test_rows_that_cannot_be_used_are_told_with_their_line(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "rows.tsv").write_text(content)
    with pytest.raises(DataError, match=message):
        list(read_sentence_rows([tmp_path / "rows.tsv"], fields=SentenceFields(["sentence"], "label")))


def test_labels_are_looked_up_by_their_names(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("s,l\na,yes\nb,maybe\n")
    fields = SentenceFields(["s"], "l", label_values=["no", "yes"])
    with pytest.raises(DataError, match=r"rows.csv:3: the label 'maybe' is none of 'no', 'yes'"):
        list(read_sentence_rows([tmp_path / "rows.csv"], fields=fields))
    (tmp_path / "rows.txt").write_text("a\n")
    with pytest.raises(DataError, match="rows.txt has no columns"):
        list(read_sentence_rows([tmp_path / "rows.txt"], fields=fields))


def test_tasks_and_splits_that_there_are_not_are_told(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="There is no task 'MRCP'. Did you mean MRPC?"):
        get_sentence_task("MRCP")
    with pytest.raises(DataError, match="AX-g has no split 'train'. It has: test"):
        write_sentence_data(
            get_sentence_task("AX-g"),
            input_dir=tmp_path,
            output_paths={"train": str(tmp_path / "o")},
            meta_data_file=str(tmp_path / "meta.json"),
            tokenizer=small_tokenizer(tmp_path),
        )
