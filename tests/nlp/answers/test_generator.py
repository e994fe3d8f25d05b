"""A model goes on with text: the same seed, the same text, whoever else asks and however much there is."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.nlp.tasks.small_language_model import small_params, train
from trellis.cli.main import main
from trellis.errors import ArgumentError, CheckpointFileError
from trellis.nlp.answers import GenerationOptions, Generator, TextWriter, load_writer
from trellis.nlp.answers.asked_file import Asked
from trellis.nlp.data import ByteTokenizer


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("written"), steps=4)


@pytest.fixture(scope="module")
def writer(run: Path) -> TextWriter:
    return load_writer(str(run))


def written(writer: TextWriter, prompts: list[str], **options: Any) -> list[Any]:
    return [answer.values["continuation"] for answer in writer(prompts, options=GenerationOptions(**options))]


def test_the_same_seed_gives_the_same_text_whatever_else_is_asked(writer: TextWriter) -> None:
    texts = written(writer, ["a", "the cat"], n_tokens=12, seed=1, top_k=200)
    assert texts == written(writer, ["a", "the cat"], n_tokens=12, seed=1, top_k=200)
    assert texts[:1] == written(writer, ["a"], n_tokens=12, seed=1, top_k=200)
    assert texts != written(writer, ["a", "the cat"], n_tokens=12, seed=2, top_k=200)
    # Each prompt draws for itself, also where two are the same.
    assert len(set(written(writer, ["a"] * 3, n_tokens=12, seed=1))) == 3


def test_text_goes_on_beyond_the_context_and_from_nothing(writer: TextWriter) -> None:
    # The context of this model is 16 bytes.
    (answer,) = writer(["ab" * 30], options=GenerationOptions(n_tokens=50, temperature=0))
    assert answer.text.startswith("ab" * 30)
    assert written(writer, [""], n_tokens=5)


class Spelling:
    """A model that writes ids of its own."""

    def __init__(self, ids: list[int]) -> None:
        self.ids = np.array(ids, np.int32)

    def __call__(self, variables: Any, ids: Any, *inputs: Any, method: str, n_tokens: int, **options: Any) -> Any:
        assert method == "generate"
        return np.tile(self.ids[:n_tokens], (len(ids), 1))


def test_an_end_token_ends_a_text() -> None:
    generator = Generator(Spelling([72, 105, 256, 33]), tokenizer=ByteTokenizer(), context=64)
    assert list(generator(["Oh"], variables={}, options=GenerationOptions(n_tokens=4))) == ["Hi"]


def test_what_is_no_prompt_is_told_and_the_others_are_answered(writer: TextWriter) -> None:
    asked = [Asked(("a", "b"), "line 1"), Asked(("a",), "line 2", id=7), Asked(("\ud800",), "line 3")]
    first, second, third = writer.answers(asked, options=GenerationOptions(n_tokens=3))
    assert first.problem == "line 1: it has 2 parts, but a prompt is one text."
    assert second.values["id"] == 7
    assert "half a character" in third.problem


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_tokens": 0}, "n_tokens is 0, but at least 1 token is added"),
        ({"temperature": -1.0}, "temperature is -1.0, but it is 0 or more"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_k": 0}, "top_k is 0, but at least 1 token can be drawn"),
        ({"seed": -1}, "seed is -1, but it is from 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        GenerationOptions(**options)


def test_a_directory_without_a_model_is_told(run: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointFileError, match="There is no checkpoint file in"):
        load_writer(str(tmp_path), params=small_params(tmp_path))


def test_the_command_goes_on_with_texts_lines_and_rows(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["predict", f"--model_dir={run}", "--n_tokens=4", "--json"]
    assert main([*command, "--text=a", "--text=the cat"]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["text"], second["text"]) == ("a", "the cat")
    (tmp_path / "prompts.txt").write_text("a\n\nthe cat\n")
    assert main([*command, "--input_file=prompts.txt", "--output_file=written.jsonl"]) == 0
    lines = [json.loads(line) for line in (tmp_path / "written.jsonl").read_text().splitlines()]
    assert lines == [first, second]
    rows = [{"prompt": "a", "id": 5}, {"prompt": 3}]
    (tmp_path / "prompts.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    capsys.readouterr()
    assert main([*command, "--input_file=prompts.jsonl", "--text_fields=prompt"]) == 1
    printed = capsys.readouterr()
    assert json.loads(printed.out.splitlines()[0]) == {"id": 5, **first}
    assert "prompts.jsonl:2: there is no text in 'prompt'; the columns are prompt" in printed.err
    assert main([*command, "--text=a", "--vocab_file=x"]) == 2
    assert "--vocab_file is given, but the model goes on with text. Leave it out." in capsys.readouterr().err
