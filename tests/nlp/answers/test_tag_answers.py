"""Files of sentences that a tagger is asked: words on lines, lists, and text."""

import json
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from tests.nlp.data.small_text import small_tokenizer
from trellis.errors import ArgumentError
from trellis.nlp.answers import TagAnswerer
from trellis.nlp.answers.asked_file import open_asked_file

ANSWERER = TagAnswerer(12, ["B-PET", "I-PET", "O"])


def asked(file: Path, *, text_fields: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    """The text of each sentence, and what is wrong with it."""
    texts = open_asked_file(file, answerer=ANSWERER, text_fields=text_fields).texts
    return [("".join(one.parts), one.problem) for one in texts]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", "the O\ncat B-PET\n\ndogs B-PET\n"),
        ("a.conll", "the\ncat\n\ndogs\n"),
        ("a.tsv", "words\ttags\nthe cat\tO O\ndogs\tO\n"),
        ("lines.txt", "the cat\n\ndogs\n"),
        ("a.jsonl", '{"words": ["the", "cat"]}\n{"words": "dogs"}\n'),
    ],
)
def test_files_of_any_form_ask_the_same(name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    sentences = [(text, problem) for text, problem in asked(tmp_path / name) if text]
    assert sentences == [("the cat", ""), ("dogs", "")]


def test_a_space_in_a_word_does_not_part_it_and_a_bad_row_is_told(tmp_path: Path) -> None:
    rows = [{"tokens": ["New York", "sleeps"]}, {"tokens": [3]}, {"other": 1}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (text, _), (_, not_words), (_, missing) = asked(tmp_path / "a.jsonl", text_fields=("tokens",))
    assert text == "New\N{NO-BREAK SPACE}York sleeps"
    assert "a.jsonl:2: 'tokens' is [3], not a list of words" in not_words
    assert "a.jsonl:3: there is no 'tokens' among 'other'." in missing
    parquet.write_table(pyarrow.table({"words": [["New York", "sleeps"]]}), tmp_path / "a.parquet")
    assert asked(tmp_path / "a.parquet") == [(text, "")]


def test_one_sentence_is_asked_at_a_time(tmp_path: Path) -> None:
    tokenizer = small_tokenizer(tmp_path)
    with pytest.raises(ArgumentError, match="'a | b' has 2 parts, but it takes 1: words"):
        ANSWERER.check(("a", "b"), tokenizer=tokenizer)
    with pytest.raises(ArgumentError, match="words is empty. Fill it in"):
        ANSWERER.check((" ",), tokenizer=tokenizer)
