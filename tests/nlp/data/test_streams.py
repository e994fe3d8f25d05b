"""Streams give the published names, and are functions of the seed and the step."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.nlp.data.small_questions import question, sky_vocabulary, write_squad
from tests.nlp.data.small_text import is_mapped, small_tokenizer, write_corpus_file, write_vocabulary
from trellis.data import Ragged
from trellis.errors import ArgumentError, ConfigError, DataError, TrellisError
from trellis.nlp.data import (
    BertPretrainDataConfig,
    BertPretrainTextDataConfig,
    PretrainingOptions,
    QADataConfig,
    SentencePredictionDataConfig,
    SentencePredictionTextDataConfig,
    build_pretraining_stream,
    build_question_stream,
    build_sentence_stream,
    get_sentence_task,
    load_questions,
    pretraining_stream,
    question_windows,
    write_pretraining_data,
    write_sentence_data,
)
from trellis.tasks import InputContext

INPUTS = {"input_word_ids", "input_mask", "input_type_ids"}
PREDICTIONS = {"masked_lm_positions", "masked_lm_ids", "masked_lm_weights"}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def text_config(tmp_path: Path, **settings: Any) -> BertPretrainTextDataConfig:
    options: dict[str, Any] = {
        "input_path": write_corpus_file(tmp_path / "text.txt"),
        "vocab_file_path": write_vocabulary(tmp_path / "vocab.txt"),
        "global_batch_size": 4,
        "seq_length": 24,
        "max_predictions_per_seq": 4,
    }
    return BertPretrainTextDataConfig(**{**options, **settings})


def assert_equal(first: dict[str, Any], second: dict[str, Any]) -> None:
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])


def test_text_becomes_batches_that_are_functions_of_seed_and_step(tmp_path: Path) -> None:
    stream = build_pretraining_stream(text_config(tmp_path), InputContext(seed=1))
    batch = stream.batch(5)
    assert set(batch) == INPUTS | PREDICTIONS | {"next_sentence_labels"}
    assert {name: values.shape for name, values in batch.items()} == {
        **dict.fromkeys(INPUTS, (4, 24)), **dict.fromkeys(PREDICTIONS, (4, 4)), "next_sentence_labels": (4, 1),
    }  # fmt: skip
    assert {values.dtype for values in batch.values()} == {np.dtype(np.int32), np.dtype(np.float32)}
    assert_equal(batch, build_pretraining_stream(text_config(tmp_path), InputContext(seed=1)).batch(5))
    other = build_pretraining_stream(text_config(tmp_path), InputContext(seed=2)).batch(5)
    assert (other["input_word_ids"] != batch["input_word_ids"]).any()
    assert_equal(batch, build_pretraining_stream(text_config(tmp_path, seed=1), InputContext(seed=9)).batch(5))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"pack_sequences": True, "use_next_sentence_label": False},
        {"use_whole_word_masking": True, "max_ngram_size": 3, "masking_rate": 0.4, "max_predictions_per_seq": 9},
    ],
    ids=["pairs", "packed", "grams"],
)
def test_a_row_is_the_same_whatever_rows_are_made_beside_it(tmp_path: Path, settings: dict[str, Any]) -> None:
    stream: Any = build_pretraining_stream(text_config(tmp_path, **settings), InputContext(seed=1))
    parts = [stream.rows(0, 1), stream.rows(1, 4)]
    for step in range(12):
        batches = [part.batch(step) for part in parts]
        assert_equal(
            {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}, stream.batch(step)
        )
    stacks = [part.stacked_batches(3, 4) for part in parts]
    joined = {name: np.concatenate([stack[name] for stack in stacks], axis=1) for name in stacks[0]}
    assert_equal(joined, stream.stacked_batches(3, 4))


def kept_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir())


def test_tokens_and_pairs_are_made_once_for_each_seed(tmp_path: Path) -> None:
    params = text_config(tmp_path, cache_dir=str(tmp_path / "kept"))
    build_pretraining_stream(params)
    first = kept_in(tmp_path / "kept")
    assert len(first) == 3  # tokens, where documents begin, pairs
    build_pretraining_stream(params)
    assert kept_in(tmp_path / "kept") == first
    build_pretraining_stream(params.replace(seed=7))
    assert len(kept_in(tmp_path / "kept")) == 4


def test_tokens_and_pairs_that_are_damaged_are_made_anew(tmp_path: Path) -> None:
    params = text_config(tmp_path, cache_dir=str(tmp_path / "kept"))
    batch = build_pretraining_stream(params).batch(0)
    for directory in kept_in(tmp_path / "kept"):
        file = next(directory.glob("*.npy"))
        file.write_bytes(file.read_bytes()[:-4])
    with pytest.warns(UserWarning, match="A cache is made anew"):
        assert_equal(build_pretraining_stream(params).batch(0), batch)


def test_stacked_batches_are_the_batches_stacked(tmp_path: Path) -> None:
    for settings in ({}, {"use_next_sentence_label": False, "pack_sequences": True}):
        stream = build_pretraining_stream(text_config(tmp_path, **settings))
        stacked = stream.stacked_batches(3, 4)
        for number in range(4):
            assert_equal({name: values[number] for name, values in stacked.items()}, stream.batch(3 + number))


def test_each_epoch_has_the_same_sequences_with_other_masks(tmp_path: Path) -> None:
    stream = build_pretraining_stream(text_config(tmp_path, global_batch_size=1))
    epochs = []
    for epoch in range(2):
        batches = [stream.batch(epoch * stream.n_examples + step) for step in range(stream.n_examples)]
        epochs.append([(restored(batch), tuple(batch["input_word_ids"][0])) for batch in batches])
    first, second = ({original for original, _ in epoch} for epoch in epochs)
    assert first == second
    assert {masked for _, masked in epochs[0]} != {masked for _, masked in epochs[1]}


def restored(batch: dict[str, Any]) -> tuple[int, ...]:
    ids = batch["input_word_ids"][0].copy()
    there = batch["masked_lm_weights"][0] > 0
    ids[batch["masked_lm_positions"][0][there]] = batch["masked_lm_ids"][0][there]
    return tuple(ids.tolist())


def test_packed_rows_hold_what_unpacked_ones_hold(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"use_next_sentence_label": False, "is_training": False, "drop_remainder": False}
    settings |= {"global_batch_size": 100, "seq_length": 64, "max_predictions_per_seq": 10}
    plain = build_pretraining_stream(text_config(tmp_path, **settings)).batch(0)
    packed = build_pretraining_stream(text_config(tmp_path, **settings, pack_sequences=True))
    batch = packed.batch(0)
    assert set(batch) == INPUTS | PREDICTIONS | {"segment_ids", "positions"}
    assert len(batch["input_mask"]) < len(plain["input_mask"])
    sequences = {tuple(row[mask > 0]) for row, mask in zip(plain["input_word_ids"], plain["input_mask"], strict=True)}
    found = set()
    for ids, segments in zip(batch["input_word_ids"], batch["segment_ids"], strict=True):
        found |= {tuple(ids[segments == number]) for number in range(1, segments.max() + 1)}
    assert found == sequences
    assert batch["masked_lm_weights"].sum() == plain["masked_lm_weights"].sum()
    guessed = [sorted(b["masked_lm_ids"][b["masked_lm_weights"] > 0].tolist()) for b in (batch, plain)]
    assert guessed[0] == guessed[1]


def test_which_sequences_share_a_row_is_no_list_in_memory_and_is_decided_part_by_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pretraining_stream, "_BLOCK_SEQUENCES", 7)
    config = text_config(tmp_path, use_next_sentence_label=False, pack_sequences=True, seq_length=64)
    packed = build_pretraining_stream(config).packed
    assert isinstance(packed, Ragged)
    assert is_mapped(packed.values) and is_mapped(packed.offsets)
    numbers = np.asarray(packed.values)
    assert sorted(numbers) == list(range(len(numbers)))
    assert len(numbers) > 7
    parts = [{int(number) // 7 for number in np.asarray(packed[row])} for row in range(len(packed))]
    assert all(len(part) == 1 for part in parts)


def test_validation_sees_everything_once_in_order_with_the_same_masks(tmp_path: Path) -> None:
    stream = build_pretraining_stream(text_config(tmp_path, is_training=False, drop_remainder=False))
    again = build_pretraining_stream(text_config(tmp_path, is_training=False, drop_remainder=False))
    assert stream.n_batches == -(-stream.n_examples // 4)
    for step in range(stream.n_batches):
        assert_equal(stream.batch(step), again.batch(step))


@pytest.mark.parametrize(("v2", "output_format"), [(False, "tfrecord"), (True, "tfrecord"), (False, "columns")])
def test_records_of_either_kind_of_names_are_read(tmp_path: Path, v2: bool, output_format: Any) -> None:
    write_pretraining_data(
        write_corpus_file(tmp_path / "text.txt"),
        output_files=[str(tmp_path / "a")],
        tokenizer=small_tokenizer(tmp_path),
        options=PretrainingOptions(24, 4, dupe_factor=1, use_v2_feature_names=v2),
        output_format=output_format,
    )
    params = BertPretrainDataConfig(
        input_path=str(tmp_path / "a"), global_batch_size=4, seq_length=24, max_predictions_per_seq=4
    )
    batch = build_pretraining_stream(params).batch(0)
    assert set(batch) == INPUTS | PREDICTIONS | {"next_sentence_labels"}
    assert batch["input_word_ids"].dtype == np.int32
    with pytest.raises(DataError, match=r"has 24 values .* is 32\. .*--params_override=task.train_data.seq_length=24"):
        build_pretraining_stream(params.replace(seq_length=32))
    with pytest.raises(TrellisError, match="position_ids"):
        build_pretraining_stream(params.replace(use_position_id=True))


def sentence_config(tmp_path: Path, **settings: Any) -> SentencePredictionTextDataConfig:
    (tmp_path / "train.tsv").write_text(
        "Quality\t#1 String\t#2 String\n" + "1\tthe cat sat\ta dog\n0\tthe dogs jumped on the mat\twho\n" * 5
    )
    options: dict[str, Any] = {
        "input_path": str(tmp_path / "train.tsv"),
        "vocab_file": write_vocabulary(tmp_path / "vocab.txt"),
        "text_fields": ["#1 String", "#2 String"],
        "label_field": "Quality",
        "global_batch_size": 4,
        "seq_length": 10,
    }
    return SentencePredictionTextDataConfig(**{**options, **settings})


@pytest.mark.parametrize("output_format", ["tfrecord", "columns"])
def test_raw_rows_and_records_of_them_give_the_same_batches(tmp_path: Path, output_format: Any) -> None:
    text = build_sentence_stream(sentence_config(tmp_path, include_example_id=True))
    output = str(tmp_path / "records")
    write_sentence_data(
        get_sentence_task("MRPC"),
        input_dir=tmp_path,
        output_paths={"train": output},
        meta_data_file=str(tmp_path / "meta.json"),
        tokenizer=small_tokenizer(tmp_path),
        seq_length=10,
        output_format=output_format,
    )
    params = SentencePredictionDataConfig(
        input_path=output,
        global_batch_size=4,
        seq_length=10,
        include_example_id=True,
        label_name=("label_ids", "Quality"),
    )
    records = build_sentence_stream(params)
    for step in (0, 3):
        batch = dict(records.batch(step))
        assert set(batch) == INPUTS | {"label_ids", "example_id", "Quality"}
        np.testing.assert_array_equal(batch.pop("label_ids"), batch["Quality"])
        assert_equal(batch, text.batch(step))
    with pytest.raises(DataError, match=r"shape|values"):
        build_sentence_stream(params.replace(seq_length=12))


@pytest.mark.parametrize("kind", ["text", "records"])
def test_batches_to_train_on_have_no_more_padding_than_the_longest_example(tmp_path: Path, kind: str) -> None:
    text = params = sentence_config(tmp_path, seq_length=64, global_batch_size=10)
    if kind == "records":
        write_sentence_data(
            get_sentence_task("MRPC"),
            input_dir=tmp_path,
            output_paths={"train": str(tmp_path / "records")},
            meta_data_file=str(tmp_path / "meta.json"),
            tokenizer=small_tokenizer(tmp_path),
            seq_length=64,
        )
        params = SentencePredictionDataConfig(
            input_path=str(tmp_path / "records"),
            global_batch_size=10,
            seq_length=64,
            label_name=("label_ids", "Quality"),
        )
    batch, whole = (
        build_sentence_stream(params).batch(0),
        build_sentence_stream(text.replace(is_training=False)).batch(0),
    )
    assert batch["input_mask"].shape == (10, 16)
    assert 8 < batch["input_mask"].sum(-1).max() == whole["input_mask"].sum(-1).max() <= 16
    assert {name: len(array.shape) for name, array in batch.items() if name in INPUTS} == dict.fromkeys(INPUTS, 2)
    # In another order, the same examples.
    for name in INPUTS:
        rows, expected = (sorted(map(tuple, array[:, :16].tolist())) for array in (batch[name], whole[name]))
        assert rows == expected
        assert not whole[name][:, 16:].any()


@pytest.mark.parametrize(
    ("label", "way_out"), [(2, "Set num_classes to 3"), (-1, "Count classes from 0 on")], ids=["beyond", "negative"]
)
def test_a_label_that_is_no_class_is_told_with_its_place_and_the_way_out(
    tmp_path: Path, label: int, way_out: str
) -> None:
    params = sentence_config(tmp_path, is_training=False)
    assert build_sentence_stream(params, n_classes=2).n_examples == 10
    with (tmp_path / "train.tsv").open("a") as file:
        file.write(f"{label}\tthe cat\ta dog\n")
    said = (
        f"task.validation_data.input_path: '.*train.tsv' has the label {label} in example 10, but there are 2 classes"
    )
    with pytest.raises(DataError, match=f"{said}.* {way_out}, or correct the label."):
        build_sentence_stream(params, n_classes=2)
    assert build_sentence_stream(params).n_examples == 11


def test_tokens_are_kept_beside_the_file_and_serve_every_length(tmp_path: Path) -> None:
    params = sentence_config(tmp_path)
    build_sentence_stream(params)
    kept = kept_in(tmp_path / ".trellis")
    batch = build_sentence_stream(params.replace(seq_length=20, is_training=False)).batch(0)
    assert batch["input_word_ids"].shape == (4, 20)
    assert kept_in(tmp_path / ".trellis") == kept
    build_sentence_stream(params.replace(lower_case=False))
    assert len(kept_in(tmp_path / ".trellis")) == 2


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"text_fields": None}, ConfigError, "text_fields is None"),
        (
            {"vocab_file": ""},
            ConfigError,
            "task.train_data.vocab_file is empty, and with the weights lies no vocab.txt",
        ),
        ({"input_path": ""}, ConfigError, "task.train_data.input_path is empty"),
        ({"tfds_name": "glue/mrpc"}, ConfigError, "task.train_data.tfds_split is empty. Name the part of glue/mrpc"),
        ({"tfds_name": {"a": "glue/mrpc"}}, ConfigError, r"tfds_name has several sources \(a\). Name one"),
        ({"text_fields": ["premise"]}, DataError, "there is no column 'premise'"),
        ({"label_field": "label"}, DataError, "the label 'label' is missing"),
        ({"label_values": []}, ConfigError, r"task.train_data.label_values is empty, but it names .*='\[no, yes\]'"),
        ({"label_values": ["no"]}, DataError, "the label '1' is none of 'no'"),
        ({"global_batch_size": 0}, ConfigError, "global_batch_size is 0"),
        ({"is_training": False, "global_batch_size": 64}, DataError, "10 examples, fewer than global_batch_size=64"),
        ({"input_path": "no_such.tsv"}, DataError, "no_such.tsv: no such file"),
    ],
)
def test_settings_that_cannot_work_are_told_before_the_first_step(
    tmp_path: Path, settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        build_sentence_stream(sentence_config(tmp_path, **settings))


def test_without_its_package_a_data_set_of_tensorflow_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    params = sentence_config(tmp_path, tfds_name="glue/mrpc", tfds_split="train", is_training=False)
    message = r"tfds_name is 'glue/mrpc', and tensorflow-datasets is not .*\[tfds\].*task.validation_data.tfds_name=,"
    with pytest.raises(ConfigError, match=message):
        build_sentence_stream(params)


def test_a_data_set_of_tensorflow_is_read_once_by_its_own_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = sentence_config(tmp_path)
    expected = build_sentence_stream(params).batch(0)
    header, *lines = (tmp_path / "train.tsv").read_text().splitlines()
    rows = [dict(zip(header.split("\t"), line.split("\t"), strict=True)) for line in lines]
    n_reads = []

    class Builder:
        info = SimpleNamespace(full_name="tiny/1.0.0")
        data_dir = "prepared"

        def __init__(self, name: str, data_dir: str | None) -> None:
            if name != "tiny":
                raise ValueError(f"Dataset {name} not found.\nA long story.")

        def download_and_prepare(self) -> None:
            pass

        def as_dataset(self, split: str, shuffle_files: bool) -> Any:
            n_reads.append(split)
            encoded = [{name: np.array(text.encode(), object)[()] for name, text in row.items()} for row in rows]
            return [{**row, "idx": np.int64(index)} for index, row in enumerate(encoded)]

    package = SimpleNamespace(builder=Builder, as_numpy=lambda data: data)
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", package)
    named = params.replace(input_path="", tfds_name="tiny", tfds_split="train")
    for _ in range(2):
        batch = build_sentence_stream(named).batch(0)
        for name, values in expected.items():
            np.testing.assert_array_equal(batch[name], values)
    assert n_reads == ["train"]
    with pytest.raises(DataError, match="cannot read the split 'train' of 'tinny': Dataset tinny not found. Check"):
        build_sentence_stream(named.replace(tfds_name="tinny"))


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"vocab_file_path": ""}, ConfigError, "vocab_file_path is empty"),
        ({"pack_sequences": True}, ConfigError, "Set use_next_sentence_label to false to pack"),
        ({"text_field_names": ["a", "b"]}, ConfigError, "text_field_names has 2 columns"),
        ({"max_ngram_size": 2}, ArgumentError, "max_ngram_size is 2, which needs whole words"),
    ],
)
def test_text_settings_that_cannot_work_are_told(
    tmp_path: Path, settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        build_pretraining_stream(text_config(tmp_path, **settings))


def test_text_where_records_are_read_is_told_what_reads_it(tmp_path: Path) -> None:
    text = write_corpus_file(tmp_path / "text.txt")
    with pytest.raises(DataError, match="holds no records .* Text is read by BertPretrainTextDataConfig"):
        build_pretraining_stream(BertPretrainDataConfig(input_path=text))
    sentence_config(tmp_path)
    with pytest.raises(DataError, match="holds no records .*/sentence_prediction_text"):
        build_sentence_stream(SentencePredictionDataConfig(input_path=str(tmp_path / "train.tsv")))


def question_config(tmp_path: Path, **settings: Any) -> QADataConfig:
    questions = [question(f"q{number}", "What is blue?", "Sky") for number in range(5)]
    options: dict[str, Any] = {
        "input_path": write_squad(tmp_path / "squad.json", *questions),
        "vocab_file": sky_vocabulary(tmp_path),
        "global_batch_size": 2,
        "seq_length": 16,
        "query_length": 8,
    }
    return QADataConfig(**{**options, **settings})


def test_questions_to_learn_from_have_positions_and_those_to_validate_with_have_ids(tmp_path: Path) -> None:
    batch = build_question_stream(question_config(tmp_path)).batch(0)
    assert set(batch) == INPUTS | {"start_positions", "end_positions"}
    assert batch["start_positions"].tolist() == [6, 6]
    params = question_config(tmp_path, is_training=False)
    stream = build_question_stream(params)
    assert stream.n_batches == 3
    batches = [stream.batch(step) for step in range(3)]
    assert set(batches[0]) == INPUTS | {"unique_ids"}
    ids = np.concatenate([batch["unique_ids"] for batch in batches])
    assert ids.tolist() == [1_000_000_000 + number for number in range(5)]
    assert len(question_windows(params)) == len(load_questions(params)) == 5


def test_questions_left_out_are_told_on_the_screen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = question("bad", "What?", "Sky")
    bad["answers"][0]["answer_start"] = 5
    path = write_squad(tmp_path / "bad.json", question("good", "What?", "Sky"), bad)
    build_question_stream(question_config(tmp_path).replace(input_path=path))
    assert "1 questions were left out" in capsys.readouterr().out


def test_question_settings_that_cannot_work_are_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="xlnet_format is true"):
        build_question_stream(question_config(tmp_path, xlnet_format=True))
    with pytest.raises(ConfigError, match="vocab_file is empty"):
        build_question_stream(question_config(tmp_path, vocab_file=""))
    with pytest.raises(ConfigError, match="Name SQuAD's JSON file, or rows with questions, for validation"):
        load_questions(question_config(tmp_path, input_path="dev.tfrecord"))
