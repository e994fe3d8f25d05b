"""What is shown of data: exactly what a training gets, and what is true of it."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trellis
from tests.nlp.data.small_text import WORDS, write_corpus_file, write_vocabulary
from tests.nlp.tasks import small as small_text
from tests.trainer import small  # registers an experiment
from trellis.errors import ArgumentError, ConfigError
from trellis.experiments import Peek, describe_peek, peek_data
from trellis.experiments.data_peek import cell_width, sketch, visible
from trellis.nlp.data import build_tokenizer
from trellis.nlp.tasks.text_view import view_text
from trellis.tasks import InputContext, get_task


def lines(peek: Peek, width: float = math.inf) -> list[str]:
    return list(describe_peek(peek, width=width))


def sentences(folder: Path, *rows: str, **settings: Any) -> trellis.ExperimentConfig:
    """An experiment on pairs of sentences with labels that have names."""
    (folder / "pairs.tsv").write_text("\n".join(["first\tsecond\tverdict", *rows]) + "\n")
    data = {
        "input_path": str(folder / "pairs.tsv"),
        "vocab_file": write_vocabulary(folder / "vocab.txt"),
        "text_fields": ["first", "second"],
        "label_field": "verdict",
        "label_values": ["no", "yes"],
        "seq_length": 16,
        "global_batch_size": 4,
    }
    params = trellis.get_exp_config("bert/sentence_prediction_text")
    encoder = {"type": "bert", "bert": small_text.encoder().get().as_dict()}
    sides = {"train_data": data | settings, "validation_data": data}
    params.override({"task": {"model": {"encoder": encoder, "num_classes": 2}, **sides}})
    return params


def test_the_batches_are_those_of_the_training_from_any_step_on() -> None:
    params = trellis.get_exp_config("tests/small")
    params.override({"runtime": {"seed": 7}, "task": {"train_data": {"global_batch_size": 3}}})
    task = get_task(params.task)
    x, y = task.build_inputs(params.task.train_data, InputContext(seed=7)).batch(5)
    peek = peek_data(params, side="train", step=5, n_examples=3)
    assert [example["1"] for example in peek.examples] == y.tolist()
    assert all(f"{x[row][0]:.4g}" in str(peek.examples[row]["0"]) for row in range(3))


def test_statistics_are_of_whole_batches_within_an_epoch_and_say_so() -> None:
    peek = peek_data(trellis.get_exp_config("tests/small"), side="train")
    assert (peek.n_batches, peek.n_examples, peek.n_known, peek.n_duplicates) == (16, 256, 256, 0)
    assert (
        lines(peek)[0] == "Train data: 256 examples (256 in all) in the 16 batches of the steps 0 to 15 were looked at."
    )
    (labels,) = peek.labels
    assert sum(labels.counts.values()) == 256
    assert labels.n_distinct == 4
    validation = peek_data(trellis.get_exp_config("tests/small"), side="validation", n_examples=0)
    assert (validation.n_batches, validation.n_examples, validation.examples) == (3, 256, ())


def test_numbers_that_are_none_are_counted_and_no_json_breaks_on_them() -> None:
    params = trellis.get_exp_config("tests/small")
    params.override({"task": {"bad_batches": [1]}})
    peek = peek_data(params, side="train")
    assert peek.arrays[0].n_not_finite == 16 * 8
    text = json.dumps(peek_data(params, side="train", step=1, n_examples=1).as_json(), allow_nan=False)
    assert json.loads(text)["arrays"][0]["least"] is not None
    assert any("128 not finite" in line for line in lines(peek))


def test_text_is_shown_in_pieces_with_lengths_labels_by_name_and_contradictions(tmp_path: Path) -> None:
    rows = ("the cat sat\ta dog ran .\tyes", "the cat sat\ta dog ran .\tno", "who\tthe cats\tyes", "on a mat\tthe\tyes")
    peek = peek_data(sentences(tmp_path, *rows), side="train", n_examples=4)
    assert (peek.n_duplicates, peek.n_contradictions) == (1, 1)
    assert peek.lengths is not None
    assert (peek.lengths.least, peek.lengths.most) == (7, 10)
    assert dict(peek.labels[0].counts) == {"yes (1)": 3, "no (0)": 1}
    shown = {tuple(example["type 1"]): example for example in peek.examples}  # type: ignore[arg-type]
    cats = shown["the", "cat", "##s", "[SEP]"]
    assert (cats["type 0"], cats["verdict"]) == (["[CLS]", "who", "[SEP]"], "yes (1)")
    assert any("1 of them with another label" in line for line in lines(peek))


def test_several_labels_of_an_example_are_counted_by_class(tmp_path: Path) -> None:
    data = {"vocab_file": write_vocabulary(tmp_path / "vocab.txt"), "seq_length": 16, "global_batch_size": 2}
    encoder = {"type": "bert", "bert": small_text.encoder().get().as_dict()}
    (tmp_path / "tags.conll").write_text("the O\ncats B-PET\nsat O\n\ndogs B-PET\n")
    texts = ({"text": "the cat", "labels": ["pet", "rest"]}, {"text": "who", "labels": ["pet"]})
    (tmp_path / "labels.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in texts))
    found = []
    for name, file, settings in (
        ("bert/tagging", "tags.conll", {}),
        ("encoder/multi_label", "labels.jsonl", {"text_fields": ["text"]}),
    ):
        params = trellis.get_exp_config(name)
        side = {**data, **settings, "input_path": str(tmp_path / file)}
        sides = {"train_data": side, "validation_data": side}
        params.override({"task": {"model": {"encoder": encoder}, **sides}})
        found.append(dict(peek_data(params, side="train").labels[0].counts))
    assert found == [{"B-PET (0)": 2, "O (1)": 2}, {"pet (0)": 2, "rest (1)": 1}]


def test_masked_pieces_are_shown_with_what_was_masked_and_packed_rows_by_sequence(tmp_path: Path) -> None:
    tokenizer = build_tokenizer(write_vocabulary(tmp_path / "vocab.txt"))
    ids = {word: 5 + number for number, word in enumerate(WORDS)}
    batch = {
        "input_word_ids": np.array([[2, 4, ids["dog"], 3, 2, ids["sat"], 3, 0]]),
        "input_mask": np.array([[1, 1, 1, 1, 1, 1, 1, 0]]),
        "input_type_ids": np.zeros((1, 8), int),
        "segment_ids": np.array([[1, 1, 1, 1, 2, 2, 2, 0]]),
        "masked_lm_positions": np.array([[1, 2, 5, 0]]),
        "masked_lm_ids": np.array([[ids["the"], ids["cat"], ids["sat"], 0]]),
        "masked_lm_weights": np.array([[1.0, 1.0, 1.0, 0.0]]),
    }
    view = view_text(batch, tokenizer=tokenizer)
    assert view.describe(0) == {
        "sequence 1": ["[CLS]", "[MASK]<=the", "dog<=cat", "[SEP]"],
        "sequence 2": ["[CLS]", "sat<=same", "[SEP]"],
        "length": "7 of 8",
        "masked": "3, as seen<=original",
    }
    # What is the same but for its masks is the same.
    assert view.inputs["ids"].tolist() == [[2, ids["the"], ids["cat"], 3, 2, ids["sat"], 3, 0]]
    assert view_text(batch, tokenizer=None).describe(0)["sequence 2"] == ["2", f"{ids['sat']}<=same", "3"]


def test_answers_are_shown_as_the_pieces_that_are_marked(tmp_path: Path) -> None:
    tokenizer = build_tokenizer(write_vocabulary(tmp_path / "vocab.txt"))
    batch = {
        "input_word_ids": np.array([[2, 5, 3, 6, 7, 3]]),
        "input_type_ids": np.array([[0, 0, 0, 1, 1, 1]]),
        "start_positions": np.array([3]),
        "end_positions": np.array([4]),
        "is_impossible": np.array([0]),
    }
    told = view_text(batch, tokenizer=tokenizer).describe(0)
    assert told["answer"] == ["at 3 to 4:", "cat", "dog"]
    assert told["is_impossible"] == "0"


def test_text_to_pretrain_on_is_shown_as_it_is_masked(tmp_path: Path) -> None:
    params = trellis.get_exp_config("bert/text_wiki_pretraining")
    data = {
        "tfds_name": "",
        "input_path": write_corpus_file(tmp_path / "text.txt"),
        "vocab_file_path": write_vocabulary(tmp_path / "vocab.txt"),
        "cache_dir": str(tmp_path / "cache"),
        "seq_length": 12,
        "max_predictions_per_seq": 3,
        "global_batch_size": 4,
    }
    encoder = {"type": "bert", "bert": small_text.encoder().get().as_dict()}
    params.override({"task": {"model": {"encoder": encoder}, "train_data": data, "validation_data": data}})
    peek = peek_data(params, side="train", n_examples=1)
    (example,) = peek.examples
    pieces = [piece for name in ("type 0", "type 1") for piece in example[name]]  # type: ignore[union-attr]
    assert pieces[0] == "[CLS]"
    assert sum("<=" in str(piece) for piece in pieces) == int(str(example["masked"]).partition(",")[0])


def test_no_line_is_wider_than_the_terminal_whatever_the_text(tmp_path: Path) -> None:
    view = ["日本語" * 30, "a" * 200, "e\u0301" * 50, "\x1b[31m", "\u202e", "x\ty"]
    peek = peek_data(trellis.get_exp_config("tests/small"), side="train", n_examples=1)
    shown = Peek(**vars(peek) | {"examples": ({"日本\n語": view},), "pictures": ({},)})
    for width in (20, 40, 80):
        text = lines(shown, width)
        assert max(map(cell_width, text)) <= width
        assert not any(character in "".join(text) for character in "\x1b\u202e\t\n")
    assert visible("\u0301x e\u0301 a\u200bb") == "\\u0301x e\u0301 a\\u200bb"


def test_pictures_are_drawn_and_digits_are_pictures() -> None:
    assert list(sketch(np.array([[0.0, 1.0], [np.nan, 0.5]]), columns=8)) == ["  @@", "  =="]
    assert max(len(line) for line in sketch(np.ones((100, 100, 3)), columns=32)) <= 32
    params = trellis.get_exp_config("digits/classifier")
    peek = peek_data(params, side="validation", n_examples=1)
    assert peek.pictures[0]["picture"].shape == (8, 8)
    assert peek.examples[0].keys() == {"picture", "label"}


def test_what_cannot_be_shown_is_told_with_the_way_out(tmp_path: Path) -> None:
    params = trellis.get_exp_config("tests/small")
    with pytest.raises(ArgumentError, match="has no batch of step 3: it has 3, those of the steps 0 to 2"):
        peek_data(params, side="validation", step=3)
    with pytest.raises(ArgumentError, match="n_examples is -1"):
        peek_data(params, side="train", n_examples=-1)
    wrong = sentences(tmp_path, "the\ta\tyes", input_path=str(tmp_path / "nowhere.tsv"))
    with pytest.raises(ConfigError, match=r"task.train_data.input_path names a file that is not there"):
        peek_data(wrong, side="train")


def test_data_that_is_no_stream_is_shown_by_its_first_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        small.SmallTask, "build_inputs", lambda self, params, input_context=None: iter([(np.eye(3), np.arange(3))])
    )
    params = trellis.get_exp_config("tests/small")
    peek = peek_data(params, side="train")
    assert (peek.n_batches, peek.n_examples, peek.n_known) == (1, 3, None)
    with pytest.raises(ArgumentError, match="is no stream"):
        peek_data(params, side="train", step=1)
