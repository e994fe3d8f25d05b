"""A file of rows tells which of its columns are taken for what, to train on and to be asked."""

import gzip
from pathlib import Path

import pytest

from trellis.errors import DataError
from trellis.nlp.data.sentences import SentenceFields, read_sentence_rows
from trellis.nlp.data.text_file import TextFile, open_text_file

COLA = ("source", "label", "mark", "sentence")
TSV = "sentence\tlabel\nthe cat\t1\n"


def texts_of(file: TextFile, *names: str) -> list[tuple[str, ...]]:
    return [tuple(file.text(row, name) for name in names) for row in file.rows()]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rows.TSV", TSV.encode()),
        ("rows.tsv.gz", gzip.compress(TSV.encode(), mtime=0)),
        ("ROWS.Tsv.GZ", gzip.compress(TSV.encode(), mtime=0)),
        ("rows.CSV", TSV.replace("\t", ",").encode()),
        ("rows.ndjson", b'{"sentence": "the cat", "label": 1}\n'),
        ("rows.JSONL", b'{"sentence": "the cat", "label": 1}\n'),
        ("rows", b'{"sentence": "the cat", "label": 1}\n'),
    ],
)
def test_a_file_is_read_as_what_it_is_whatever_the_case_and_packing_of_its_name(name: str, content: bytes) -> None:
    Path(name).write_bytes(content)
    (row,) = read_sentence_rows([Path(name)], fields=SentenceFields(["sentence"], "label"))
    assert (row.texts, row.label) == (("the cat",), 1)
    file = open_text_file(Path(name), texts=["sentence"], is_asked=True)
    assert texts_of(file, "sentence") == [("the cat",)]
    assert (file.left_out, file.notes) == (["label"], [])


def test_a_first_line_that_names_the_texts_is_a_header_and_any_other_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    fields = SentenceFields(["sentence"], "label", column_names=COLA)
    Path("dev.tsv").write_text("gj04\t1\t\tthe cat\n")
    assert [row.texts for row in read_sentence_rows([Path("dev.tsv")], fields=fields)] == [("the cat",)]
    assert "dev.tsv: There is no header, as its first line does not name sentence; its" in capsys.readouterr().out
    Path("test.tsv").write_text("index\tsentence\n0\tthe cat\n")
    file = open_text_file(Path("test.tsv"), texts=["sentence"], column_names=COLA, is_asked=True)
    assert texts_of(file, "sentence") == [("the cat",)]
    assert file.notes == ["Its columns have names, so that column_names is not needed."]


@pytest.mark.parametrize("name", ["rows.tsv", "rows.txt", "rows.dat"])
def test_a_file_of_texts_alone_loses_none_of_them_when_it_is_asked(name: str) -> None:
    Path(name).write_text("the cat\ta cat\nthe dog\ta dog\n")
    file = open_text_file(Path(name), texts=["a", "b"], is_asked=True)
    assert texts_of(file, "a", "b") == [("the cat", "a cat"), ("the dog", "a dog")]
    assert "There is no header, as its first line does not name a, b; its columns are taken for a, b." in file.notes


@pytest.mark.parametrize("content", ["a\tlabel\nthe cat\t1\n", "the cat\ta cat\t1\n", "only\n"])
def test_a_column_that_nobody_named_is_never_a_text(content: str) -> None:
    Path("rows.tsv").write_text(content)
    with pytest.raises(DataError, match="rows.tsv: there is no column '[ab]' among .* --text_fields=…; .* --column"):
        open_text_file(Path("rows.tsv"), texts=["a", "b"], is_asked=True)


def test_the_published_names_of_mnli_are_found_in_glues_own_files(capsys: pytest.CaptureFixture[str]) -> None:
    header = "index\tgenre\tsentence1\tsentence2\tlabel1\tgold_label\n"
    Path("dev_matched.tsv").write_text(header + "0\tfiction\tthe cat sat\ta cat\tneutral\tentailment\n")
    fields = SentenceFields(["premise", "hypothesis"], "label", ["entailment", "neutral", "contradiction"])
    (row,) = read_sentence_rows([Path("dev_matched.tsv")], fields=fields)
    assert (row.texts, row.label) == (("the cat sat", "a cat"), 0)
    assert "Its 'sentence1' is taken for 'premise'." in capsys.readouterr().out


def test_classes_that_have_names_may_go_by_their_numbers_in_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    Path("rows.tsv").write_text("sentence\tlabel\nthe cat\t1\nthe dog\t0\n")
    fields = SentenceFields(["sentence"], "label", ["no", "yes"])
    assert [row.label for row in read_sentence_rows([Path("rows.tsv")], fields=fields)] == [1, 0]
    assert "rows.tsv: Its labels are numbers: by label_values 0 is 'no', 1 is 'yes'." in capsys.readouterr().out
    Path("mixed.tsv").write_text("sentence\tlabel\nthe cat\t1\nthe dog\tno\n")
    with pytest.raises(DataError, match="mixed.tsv:3: the label 'no' is none of '0', '1'"):
        list(read_sentence_rows([Path("mixed.tsv")], fields=fields))


def test_files_without_rows_are_told() -> None:
    Path("rows.npz").write_bytes(b"PK and more")
    with pytest.raises(DataError, match="rows.npz has format npz. Give .tsv, .csv, .jsonl or .parquet files"):
        open_text_file(Path("rows.npz"), texts=["a"], is_asked=True)
    with pytest.raises(DataError, match="nowhere.tsv: no such file"):
        open_text_file(Path("nowhere.tsv"), texts=["a"], is_asked=True)
