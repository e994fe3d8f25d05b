"""Texts of any file are answered as what they are, or it is told what is wrong with them; the rest is answered."""

import gzip
import io
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trellis.cli.predict
import trellis.nlp.answers
from tests.nlp.data.small_text import small_tokenizer
from trellis.cli.main import main
from trellis.errors import ArgumentError, DataError
from trellis.nlp.answers import Answerer, AnswerOptions, Predictor, QuestionAnswerer, SentenceAnswerer
from trellis.nlp.data import Windows

COLA = ("source", "label", "mark", "sentence")
ONE = SentenceAnswerer(8, ["no", "yes"], ["sentence"])
PAIR = SentenceAnswerer(16, ["no", "yes"], ["a", "b"])
QUESTIONS = QuestionAnswerer(Windows(20, 8, 4), AnswerOptions(version_2_with_negative=True))
PASSAGE = "the cat sat on\u00a0a mat ."


def always_yes(inputs: Mapping[str, np.ndarray], /) -> Iterator[np.ndarray]:
    return (np.array([0.0, 1.0], np.float32) for _ in inputs["input_word_ids"])


def second_word(inputs: Mapping[str, np.ndarray], /) -> Iterator[Mapping[str, np.ndarray]]:
    """Answers every question by the second token of its passage."""
    for types in inputs["input_type_ids"]:
        logits = np.zeros(len(types), np.float32)
        logits[types.argmax() + 1] = 9
        yield {"start_logits": logits, "end_logits": logits}


def predictor(answerer: Answerer) -> Predictor:
    ask = second_word if isinstance(answerer, QuestionAnswerer) else always_yes
    return Predictor(answerer, ask=ask, tokenizer=small_tokenizer(Path()))


def texts_in(answerer: Answerer, name: str, content: str | bytes, **names: Any) -> list[Any]:
    Path(name).write_bytes(content.encode() if isinstance(content, str) else content)
    return [prediction.values["text"] for prediction in predictor(answerer).read(name, **names)]


@pytest.fixture
def predict(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """The command with a model that need not be trained: returns its exit code, stdout and stderr."""

    def run(answerer: Answerer, *flags: str, typed: bytes = b"") -> tuple[int, str, str]:
        monkeypatch.setattr(trellis.cli.predict, "_read_params", lambda flags: None)
        monkeypatch.setattr(trellis.nlp.answers, "load_predictor", lambda *_, **__: predictor(answerer))
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(typed)))
        code = main(["predict", "--model_dir=run", *flags])
        output = capsys.readouterr()
        return code, output.out, output.err

    return run


ROWS = 'label\tsentence\n1\tthe cat\n0\t"a dog\n'
OBJECTS = '{"label": 1, "sentence": "the cat"}\n{"sentence": "\\"a dog"}\n'


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rows.tsv", ROWS),
        ("ROWS.TSV", ROWS),
        ("rows.tsv.gz", gzip.compress(ROWS.encode(), mtime=0)),
        ("rows.txt", ROWS),
        ("rows.dat", ROWS),
        ("rows.csv", 'sentence,label\nthe cat,1\n"""a dog",0\n'),
        ("rows.ndjson", OBJECTS),
        ("rows.jsonl.gz", gzip.compress(OBJECTS.encode(), mtime=0)),
        ("rows.json", OBJECTS),
        ("alone.tsv", 'the cat\n"a dog\n'),
        ("alone.txt", '\nthe cat\n\n"a dog\n'),
    ],
)
def test_a_column_of_labels_is_left_out_and_no_row_is_lost_in_any_kind_of_file(name: str, content: str | bytes) -> None:
    assert texts_in(ONE, name, content) == [("the cat",), ('"a dog',)]


def test_files_without_a_header_have_the_columns_of_the_training_or_those_that_are_given() -> None:
    trained = SentenceAnswerer(8, None, ["sentence"], COLA)
    rows = "gj04\t1\t\tthe cat\ngj04\t0\t*\ta dog\n"
    assert texts_in(trained, "dev.tsv", rows) == [("the cat",), ("a dog",)]
    assert texts_in(trained, "test.tsv", "index\tsentence\n0\tthe cat\n") == [("the cat",)]
    assert texts_in(trained, "alone.tsv", "the cat\n") == [("the cat",)]
    assert texts_in(ONE, "dev.tsv", rows, column_names=COLA) == [("the cat",), ("a dog",)]
    assert texts_in(PAIR, "x.tsv", "p\tq\nthe cat\ta dog\n", text_fields=["q", "p"]) == [("a dog", "the cat")]
    assert texts_in(ONE, "x.txt", "label\ttext\n1\tthe cat\n", text_fields=["text"]) == [("the cat",)]
    with pytest.raises(DataError, match="x.tsv: there is no column 'r' among 'p', 'q'. .*--text_fields=…; or, if"):
        texts_in(PAIR, "x.tsv", "p\tq\nthe cat\ta dog\n", text_fields=["r", "s"])
    with pytest.raises(DataError, match="x.tsv: there is no column 'sentence' among 'a', 'b'."):
        texts_in(ONE, "x.tsv", "p\tq\nthe cat\ta dog\n", column_names=["a", "b"])
    with pytest.raises(DataError, match="x.jsonl: there is no column 'sentence' among 'a'."):
        texts_in(ONE, "x.jsonl", '{"a": "the cat"}\n')
    with pytest.raises(ArgumentError, match="text_fields is p, but the model takes 2: a, b. Name a column for each."):
        texts_in(PAIR, "x.tsv", "p\tq\nthe cat\ta dog\n", text_fields=["p"])


def test_columns_are_not_guessed_for_a_model_that_was_trained_on_ids() -> None:
    nameless = SentenceAnswerer(8)
    message = (
        "rows.tsv: which of its columns .* It begins with 'label', 'sentence'. Name one, or two .*: --text_fields=…"
    )
    with pytest.raises(DataError, match=message):
        texts_in(nameless, "rows.tsv", ROWS)
    assert texts_in(nameless, "rows.tsv", ROWS, text_fields=["sentence"])[0] == ("the cat",)
    assert texts_in(nameless, "pairs.txt", "the cat\ta dog\n") == [("the cat", "a dog")]


def test_bad_rows_are_told_by_their_lines_and_the_rest_is_answered_and_written(
    predict: Callable[..., tuple[int, str, str]],
) -> None:
    Path("pairs.tsv").write_bytes(
        b"a\tb\tid\nthe cat\ta cat\t7\nthe dog\t\t8\nalone\n\xff\n\n \ta mat\t9\na mat\tmat\t10\n"
    )
    code, out, err = predict(PAIR, "--input_file=pairs.tsv", "--output_file=out/answers.jsonl")
    assert code == 1
    assert out.splitlines() == [
        *("yes (73%)  the cat | a cat", "yes (73%)  a mat | mat", "Written to out/answers.jsonl."),
    ]
    lines = err.splitlines()
    assert lines[0] == "pairs.tsv: a, b are asked; id is kept."
    assert [line.split(": ", 1)[0] for line in lines[1:-1]] == [f"pairs.tsv:{line}" for line in (3, 4, 5, 7)]
    assert "pairs.tsv:3: b is empty. Fill it in, or leave the text out." in lines
    assert lines[-1] == "4 of 6 texts were not answered."
    written = [json.loads(line) for line in Path("out/answers.jsonl").read_text().splitlines()]
    places = [value.get("error", "").split(": ")[0] for value in written]
    assert places == ["", "pairs.tsv:3", "pairs.tsv:4", "pairs.tsv:5", "pairs.tsv:7", ""]
    assert (written[0]["id"], written[0]["text_fields"], written[1]["id"]) == ("7", ["a", "b"], "8")


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ('{"sentence": null}', "'sentence' is None, not text."),
        ('{"sentence": 5}', "'sentence' is 5, not text."),
        ('{"other": "x"}', "there is no column 'sentence' among 'other'."),
        ('{"sentence": "\\ud83d the cat"}', "which is half of a character). Correct the line"),
        ("{", "not JSON"),
        ('{"sentence": ' + "[" * 100_000, "not read ("),
        ("[1]", "list, not an object."),
    ],
)
def test_an_object_that_cannot_be_asked_is_told_and_the_next_is_answered(row: str, problem: str) -> None:
    Path("rows.jsonl").write_text(f'{{"sentence": "a dog"}}\n{row}\n{{"sentence": "the cat"}}\n')
    _, bad, good = predictor(ONE).read("rows.jsonl")
    assert bad.problem.startswith("rows.jsonl:2: ") and problem in bad.problem
    assert good.values["text"] == ("the cat",)


def test_half_a_character_is_told_wherever_it_comes_from() -> None:
    with pytest.raises(ArgumentError, match="sentence is .*, which has half a character. Give it in UTF-8."):
        predictor(ONE)([("the \udcff cat",)])


def test_a_bad_line_does_not_end_a_session(predict: Callable[..., tuple[int, str, str]]) -> None:
    code, out, err = predict(PAIR, typed=b"the cat\ta cat\n\xff\talso\nalone\n\nthe dog\ta dog\r\n")
    assert (code, out) == (1, "yes (73%)  the cat | a cat\nyes (73%)  the dog | a dog\n")
    first, second, third, last = err.splitlines()
    assert first == "Each line is read as a <tab> b."
    assert second.startswith("line 2: not UTF-8") and last == "2 of 4 texts were not answered."
    assert third == "line 3: 'alone' has 1 part, but it takes 2: a, b."
    assert predict(PAIR, typed=b"the cat\ta cat\n")[0] == 0


def test_the_parts_of_a_text_are_told_by_the_columns_that_they_are_taken_for(
    predict: Callable[..., tuple[int, str, str]],
) -> None:
    inference = SentenceAnswerer(16, None, ["hypothesis", "premise"])
    in_order = predict(inference, "--text=a cat", "--text=the cat sat")
    assert in_order == (0, "1 (73%)  a cat | the cat sat\n", "hypothesis: a cat\npremise: the cat sat\n")
    assert predict(inference, "--text=premise=the cat sat", "--text=hypothesis=a cat") == in_order
    code, _, err = predict(inference, "--text=premise=the cat sat", "--text=a cat")
    assert code == 2 and err.startswith("--text: premise is named, but not each part is, or one twice.")
    code, _, err = predict(inference, "--text=a cat")
    assert code == 2 and err.startswith("'a cat' has 1 part, but it takes 2: hypothesis, premise.")


def test_flags_that_do_not_go_together_are_refused(predict: Callable[..., tuple[int, str, str]]) -> None:
    code, _, err = predict(ONE, "--text=a", "--column_names=a")
    assert code == 2 and err.startswith("--column_names names columns of a file, but --input_file is not given.")
    Path("a.txt").write_text("the cat\n")
    code, _, err = predict(ONE, "--input_file=a.txt", "--output_file=a.txt")
    assert code == 2 and err.startswith("--output_file: `a.txt` is the --input_file.")


def test_an_output_file_is_whole_or_not_there(predict: Callable[..., tuple[int, str, str]]) -> None:
    Path("answers.jsonl").write_text("old\n")
    Path("rows.tsv").write_text("other\tcolumns\nx\ty\n")
    assert predict(ONE, "--input_file=rows.tsv", "--output_file=answers.jsonl")[0] == 2
    assert Path("answers.jsonl").read_text() == "old\n"


def squad(*questions: dict[str, Any], passage: str = PASSAGE) -> str:
    return json.dumps({"data": [{"paragraphs": [{"context": passage, "qas": list(questions)}]}]})


@pytest.mark.parametrize("name", ["asked.json", "ASKED.JSON", "asked.json.gz", "asked.txt"])
def test_questions_need_no_answers_to_be_asked(name: str, predict: Callable[..., tuple[int, str, str]]) -> None:
    content = squad(
        {"id": "q1", "question": "who sat ?"}, {"id": "q2", "question": "who ran ?", "answers": []}
    ).encode()
    Path(name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    assert predict(QUESTIONS, f"--input_file={name}", "--output_file=answers")[0] == 0
    assert json.loads(Path("answers").read_text()) == {"q1": "cat", "q2": "cat"}


def test_questions_in_rows_keep_their_ids_even_the_same_ones(predict: Callable[..., tuple[int, str, str]]) -> None:
    rows = [{"id": 7, "question": "who ?", "context": context} for context in ("the cat sat .", "a dog ran .")]
    Path("asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, _, err = predict(QUESTIONS, "--input_file=asked.jsonl", "--output_file=answers")
    assert (code, err) == (0, "asked.jsonl: question, context are asked; id is kept.\n")
    written = [json.loads(line) for line in Path("answers").read_text().splitlines()]
    assert [(value["id"], value["answer"]) for value in written] == [(7, "cat"), (7, "dog")]


def test_a_passage_without_words_has_no_answer_and_says_so(predict: Callable[..., tuple[int, str, str]]) -> None:
    passage = "\u200b\u200d"
    with pytest.raises(ArgumentError, match="context is .*, in which there is no word. Give a passage."):
        predictor(QUESTIONS)([("who ?", passage)])
    Path("asked.json").write_text(squad({"id": "q", "question": "who ?"}, passage=passage))
    code, out, err = predict(QUESTIONS, "--input_file=asked.json")
    assert (code, out) == (1, "")
    assert err.startswith("asked.json, question q: context is '\\u200b\\u200d', in which there is no word.")


def test_questions_that_share_an_id_are_told() -> None:
    Path("asked.json").write_text(squad({"id": "q", "question": "who ?"}, {"id": "q", "question": "what ?"}))
    with pytest.raises(DataError, match="asked.json: two questions have the id 'q'. Give each its own"):
        predictor(QUESTIONS).open("asked.json")
    Path("list.json").write_text('[{"question": "who ?", "context": "the cat"}]')
    with pytest.raises(DataError, match="list.json is a list. Put one object on each line"):
        predictor(QUESTIONS).open("list.json")


def test_words_of_a_typed_passage_are_those_of_the_same_passage_in_a_file() -> None:
    Path("asked.json").write_text(squad({"id": "q", "question": "who ?"}))
    (from_file,) = predictor(QUESTIONS).read("asked.json")
    (typed,) = predictor(QUESTIONS)([("who ?", PASSAGE)])
    assert typed.values == {name: value for name, value in from_file.values.items() if name != "id"}
