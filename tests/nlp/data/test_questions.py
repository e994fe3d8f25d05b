"""Questions are read, and become windows over their passages."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from tests.nlp.data.small_questions import long_vocabulary, question, sky_vocabulary, write_squad
from trellis.data import Columns, decode_example, read_records
from trellis.errors import ArgumentError, DataError
from trellis.nlp.data import QADataConfig, Skipped, TextSettings, Windows, WordPieceTokenizer, write_question_data
from trellis.nlp.data.questions import Question, question_features, question_windows, read_questions, tokenize_questions


def test_a_question_comes_before_its_passage_and_the_answer_is_its_exact_tokens(tmp_path: Path) -> None:
    file = write_squad(tmp_path / "squad.json", question("q", "What is blue?", "Sky"))
    tokenizer = WordPieceTokenizer(sky_vocabulary(tmp_path))
    questions = list(read_questions([Path(file)], is_training=True))
    block = tokenize_questions(questions, tokenizer=tokenizer, windows=Windows(16, 128, 8))
    features = question_features(Columns.from_arrays(block), rows=np.arange(1), seq_length=16)
    assert features["input_ids"].tolist() == [[2, 1, 6, 7, 1, 3, 5, 6, 7, 1, 3, 0, 0, 0, 0, 0]]
    assert features["segment_ids"].tolist() == [[0] * 6 + [1] * 5 + [0] * 5]
    assert features["paragraph_mask"].tolist() == [[0] * 6 + [1] * 4 + [0] * 6]
    assert features["start_positions"].tolist() == features["end_positions"].tolist() == [6]
    assert features["unique_ids"].tolist() == [1_000_000_000]


def test_an_answer_inside_a_word_is_found_by_its_tokens(tmp_path: Path) -> None:
    file = write_squad(tmp_path / "squad.json", question("q", "is sky?", "blue"))
    tokenizer = WordPieceTokenizer(sky_vocabulary(tmp_path))
    block = tokenize_questions(
        list(read_questions([Path(file)], is_training=True)), tokenizer=tokenizer, windows=Windows(16, 128, 8)
    )
    assert (block["start_positions"][0], block["end_positions"][0]) == (7, 7)


def test_long_passages_are_read_in_windows_and_tokens_know_where_they_are_seen_best(tmp_path: Path) -> None:
    passage = " ".join(f"w{number}" for number in range(20))
    asked = Question("q", "why", tuple(passage.split()), ("w9 w10",), False, 9, 10)
    tokenizer = WordPieceTokenizer(long_vocabulary(tmp_path))
    block = tokenize_questions([asked], tokenizer=tokenizer, windows=Windows(12, 4, 1))
    words = block["words"]
    assert [row[0] for row in map(words.__getitem__, range(4))] == [0, 4, 8, 12]
    assert words.lengths.tolist() == [8, 8, 8, 8]
    context = block["is_max_context"]
    assert [int(np.sum(context[number])) for number in range(4)] == [6, 4, 4, 6]
    # The answer lies in two of the windows; the others have none.
    assert block["start_positions"].tolist() == [0, 8, 4, 0]
    assert block["end_positions"].tolist() == [0, 9, 5, 0]
    assert block["is_impossible"].tolist() == [1, 0, 0, 1]


@pytest.mark.parametrize("n_tokens", range(30))
@pytest.mark.parametrize("stride", [1, 3, 8, 50])
def test_windows_are_those_of_the_published_loop(n_tokens: int, stride: int) -> None:
    expected, start = [], 0
    while start < n_tokens:
        length = min(n_tokens - start, 8)
        expected.append((start, length))
        if start + length == n_tokens:
            break
        start += min(length, stride)
    assert Windows(12, stride, 1).spans(n_tokens, n_query=1) == expected


def test_questions_are_cut_to_their_length_and_windows_grow_by_what_is_left(tmp_path: Path) -> None:
    asked = Question("q", "why why why", ("w1", "w2"), ("w1",))
    tokenizer = WordPieceTokenizer(long_vocabulary(tmp_path))
    block = tokenize_questions([asked], tokenizer=tokenizer, windows=Windows(12, 4, 2))
    assert block["paragraph_start"].tolist() == [4]


def test_records_of_questions_have_the_published_features_and_meta_data(tmp_path: Path) -> None:
    file = write_squad(tmp_path / "squad.json", question("a", "What is blue?", "Sky"), question("b", "?", "blue"))
    meta = write_question_data(
        file,
        output_path=tmp_path / "out" / "train.tfrecord",
        meta_data_file=str(tmp_path / "out" / "meta.json"),
        tokenizer=WordPieceTokenizer(sky_vocabulary(tmp_path)),
        windows=Windows(16, 128, 8),
    )
    records = [decode_example(record) for record in read_records(tmp_path / "out" / "train.tfrecord")]
    assert [int(record["unique_ids"][0]) for record in records] == [1_000_000_000, 1_000_000_001]
    assert set(records[0]) == {
        "unique_ids", "input_ids", "input_mask", "segment_ids", "paragraph_mask", "class_index",
        "start_positions", "end_positions", "is_impossible",
    }  # fmt: skip
    text = TextSettings.read(tmp_path / "out" / "train.tfrecord.text")
    assert text is not None and text.seq_length == 16
    assert json.loads((tmp_path / "out" / "meta.json").read_text()) == meta | {"text": text.as_json()}
    assert {name: value for name, value in meta.items() if name != "text"} == {
        "task_type": "bert_squad", "train_data_size": 2, "max_seq_length": 16, "max_query_length": 8,
        "doc_stride": 128, "version_2_with_negative": False,
    }  # fmt: skip


def test_an_answer_that_is_not_in_its_passage_is_left_out_and_named(tmp_path: Path) -> None:
    bad = question("bad", "What?", "Sky")
    bad["answers"][0]["answer_start"] = 4
    beyond = question("beyond", "What?", "Sky")
    beyond["answers"][0]["answer_start"] = 99
    file = write_squad(tmp_path / "squad.json", question("good", "What?", "Sky"), bad, beyond)
    skipped = Skipped()
    assert [q.id for q in read_questions([Path(file)], is_training=True, skipped=skipped)] == ["good"]
    assert str(skipped) == "2 questions were left out: their answers are not in their passages (bad, beyond)."
    assert len(list(read_questions([Path(file)]))) == 3
    only_bad = write_squad(tmp_path / "bad.json", bad)
    with pytest.raises(DataError, match=r"no questions in .*bad.json. 1 questions were left out"):
        list(read_questions([Path(only_bad)], is_training=True))


def test_questions_without_an_answer_need_version_2(tmp_path: Path) -> None:
    file = Path(write_squad(tmp_path / "squad.json", question("no", "Why?", is_impossible=True)))
    assert next(read_questions([file], version_2_with_negative=True)).is_impossible
    with pytest.raises(DataError, match="question no: there is no answer. If questions may have none, set version_2"):
        next(read_questions([file]))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a\tb\n", "is not in SQuAD's format: there is no list `data`"),
        ('{"data": {}}', "is not in SQuAD's format: there is no list `data`"),
        ('{"data": [{"title": "t"}]}', "article 0: there is no 'paragraphs'"),
        ('{"data": [7]}', "article 0: there is no 'paragraphs'"),
        ('{"data": [{"paragraphs": [{"qas": []}]}]}', "paragraph 0: there is no 'context'"),
        ('{"data": [{"paragraphs": [{"context": 3}]}]}', "paragraph 0: 'context' is 3"),
        ('{"data": [{"paragraphs": [{"context": "a", "qas": [{"id": "x"}]}]}]}', "question x: there is no 'answers'"),
        ('{"data": [{"paragraphs": [', r"not JSON, or cut short \(.*\). Copy the file again"),
        ('{"data": []}', "There are no questions in"),
    ],
)
def test_what_is_not_squad_is_told_with_its_place(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "bad.json").write_text(content)
    with pytest.raises(DataError, match=message) as error:
        list(read_questions([tmp_path / "bad.json"]))
    assert "bad.json" in str(error.value)


def test_files_that_are_not_utf_8_are_named(tmp_path: Path) -> None:
    (tmp_path / "latin.json").write_bytes(b'{"data": [{"caf\xe9": 1}]}')
    with pytest.raises(DataError, match="latin.json: not UTF-8"):
        list(read_questions([tmp_path / "latin.json"]))


def test_windows_without_room_are_refused() -> None:
    with pytest.raises(ArgumentError, match="seq_length is 64, but a question of 64 tokens"):
        Windows(64, 128, 64)
    with pytest.raises(ArgumentError, match="doc_stride is 0"):
        Windows(384, 0, 64)


def test_settings_without_room_are_told_by_their_place(tmp_path: Path) -> None:
    file = write_squad(tmp_path / "a.json")
    params = QADataConfig(input_path=file, vocab_file=sky_vocabulary(tmp_path), seq_length=64, is_training=True)
    with pytest.raises(ArgumentError, match="^task.train_data.seq_length is 64, but a question of 64 tokens"):
        question_windows(params)


CONTEXT = "Sky is blue"
STARTED = {"text": ["blue", "Sky"], "answer_start": [7, 0]}


@pytest.mark.parametrize(
    "answers",
    [STARTED, {"text": ["blue", "Sky"]}, ["blue", "Sky"], [{"text": "blue", "answer_start": 7}, {"text": "Sky"}]],
    ids=str,
)
def test_rows_have_answers_in_any_form(answers: Any, tmp_path: Path) -> None:
    row = {"id": "q", "question": "What is it?", "context": CONTEXT, "answers": answers}
    json_file, csv_file = tmp_path / "a.jsonl", tmp_path / "a.csv"
    json_file.write_text(json.dumps(row))
    cells = [json.dumps(cell) if name == "answers" else cell for name, cell in row.items()]
    with csv_file.open("w", newline="") as file:
        csv.writer(file).writerows([[*row], cells])
    parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "a.parquet")
    expected = [Question("q", "What is it?", ("Sky", "is", "blue"), ("blue", "Sky"), False, 2, 2)]
    for path in (json_file, csv_file, tmp_path / "a.parquet"):
        assert list(read_questions([path], is_training=True)) == expected


def test_rows_may_have_an_answer_as_text_and_none(tmp_path: Path) -> None:
    file = tmp_path / "a.tsv"
    file.write_text(f"question\tcontext\tanswers\nWhat?\t{CONTEXT}\tblue\nWhy?\t{CONTEXT}\t\n")
    questions = list(read_questions([file], is_training=True, version_2_with_negative=True))
    assert [(one.id, one.first_word, one.is_impossible) for one in questions] == [
        ("a.tsv:2", 2, False),
        ("a.tsv:3", -1, True),
    ]
    with pytest.raises(DataError, match=r"a.tsv:3: there is no answer. If questions may have none, set version_2"):
        list(read_questions([file], is_training=True))
    assert [one.answers for one in read_questions([file], is_asked=True)] == [(), ()]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"query": "q", "context": "c", "answers": "c"}, r"a.jsonl:1: there is no 'question' among .*columns question"),
        ({"question": "q", "context": 3, "answers": "c"}, r"a.jsonl:1: 'context' is 3, not text"),
        ({"question": "q", "context": "c", "answer": "c"}, r"no 'answers' among .* Did you mean 'answer'\?"),
        ({"question": "q", "context": "c", "answers": 7}, r"a.jsonl:1: 'answers' is 7. Give a text, a list of texts"),
        (
            {"question": "q", "context": "c", "answers": {"text": ["c"], "answer_start": [0, 1]}},
            r"a.jsonl:1: 'answers' is .*text and answer_start as SQuAD has them",
        ),
    ],
)
def test_a_bad_row_of_questions_is_told(row: dict[str, object], message: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    with pytest.raises(DataError, match=message):
        list(read_questions([tmp_path / "a.jsonl"], is_training=True))
