"""A law over all experiments of text: trained, moved, exported, a model gives the same answer however it is asked."""

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import trellis
import trellis.nlp.experiments
from tests.nlp.data.small_text import write_corpus_file, write_tokenizer_json, write_vocabulary
from trellis.experiments import ExperimentConfig, export_experiment, get_exp_config, read_params, run_experiment
from trellis.experiments.experiment import experiment_summaries
from trellis.nlp.answers import Prediction, Predictor, load_predictor
from trellis.nlp.answers.answerers import in_batches
from trellis.nlp.answers.served_text import read_answerer, read_text
from trellis.nlp.data import (
    PretrainingOptions,
    Tokenizer,
    Windows,
    build_tokenizer,
    get_sentence_task,
    train_vocabulary,
    write_pretraining_data,
    write_question_data,
    write_sentence_data,
)
from trellis.tasks import get_task

EXPERIMENTS = [name for name in experiment_summaries() if name.startswith(("bert/", "albert/", "mobilebert/"))]
LENGTH = 24
WORDS = [
    "the",
    "The",
    "cat",
    "Cat",
    "dog",
    "sat",
    "ran",
    "on",
    "a",
    "mat",
    "##s",
    "jump",
    "##ed",
    ".",
    "?",
    "who",
    "Who",
]
SIZES: dict[str, dict[str, Any]] = {
    "bert": {"vocab_size": 300, "hidden_size": 8, "num_layers": 1, "num_attention_heads": 2, "intermediate_size": 8},
    "albert": {"vocab_size": 300, "embedding_width": 4, "hidden_size": 8, "num_layers": 1, "num_attention_heads": 2},
    "mobilebert": {
        "word_vocab_size": 300,
        "word_embed_size": 8,
        "hidden_size": 8,
        "num_blocks": 1,
        "intermediate_size": 8,
    }
    | {"num_attention_heads": 2, "intra_bottleneck_size": 8},
}
ROWS = [("The Cat sat .", "the cat sat .", "1"), ("a dog ran .", "The dog ran .", "0")] * 4
PASSAGE = "The Cat sat on a mat . the dogs jumped on the cat ."
BLANKS = [("The [MASK] sat on a mat .",), ("the [MASK] sat on a mat .",)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text of each kind, and a vocabulary of each kind, by the name of the encoder that uses it; case counts."""
    folder = tmp_path_factory.mktemp("text")
    write_corpus_file(folder / "corpus.txt")
    lines = ["#1 String\t#2 String\tQuality", *("\t".join(row) for row in ROWS)]
    for name in ("train", "dev"):
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    asked = [{"id": "1", "question": "Who sat ?", "answers": [{"text": "The Cat", "answer_start": 0}]}]
    article = {"title": "", "paragraphs": [{"context": PASSAGE, "qas": asked}]}
    (folder / "squad.json").write_text(json.dumps({"version": "1.1", "data": [article]}))
    write_vocabulary(folder / "bert.txt", WORDS)
    write_tokenizer_json(folder / "mobilebert.json", WORDS, lowercase=False)
    (folder / "pieces.txt").write_text(f"{PASSAGE}\n" * 30)
    train_vocabulary(
        str(folder / "pieces.txt"),
        output_file=folder / "albert.model",
        vocab_size=60,
        tokenization="SentencePiece",
        lower_case=False,
    )
    return folder


def vocabulary(encoder: str, folder: Path) -> tuple[str, str]:
    """The file, and how it cuts words."""
    (file,) = folder.glob(f"{encoder}.*")
    return str(file), "SentencePiece" if file.suffix == ".model" else "WordPiece"


def write_records(kind: str, folder: Path, output_dir: Path, tokenizer: Tokenizer) -> str:
    output = str(output_dir / "records")
    meta = str(output_dir / "meta.json")
    if kind == "pretraining":
        options = PretrainingOptions(LENGTH, 4, dupe_factor=1)
        write_pretraining_data(str(folder / "corpus.txt"), output_files=[output], tokenizer=tokenizer, options=options)
    elif kind == "squad":
        squad, windows = str(folder / "squad.json"), Windows(LENGTH, 4, 6)
        write_question_data(squad, output_path=output, meta_data_file=meta, tokenizer=tokenizer, windows=windows)
    else:
        paths: Any = {"train": output}
        task = get_sentence_task("MRPC")
        write_sentence_data(
            task,
            input_dir=folder,
            output_paths=paths,
            meta_data_file=meta,
            tokenizer=tokenizer,
            seq_length=LENGTH,
        )
    return output


def task_settings(name: str, folder: Path, output_dir: Path) -> dict[str, Any]:
    encoder, _, kind = name.partition("/")
    file, tokenization = vocabulary(encoder, folder)
    rules = {"tokenization": tokenization}
    settings: dict[str, Any] = {"model": {"encoder": {encoder: SIZES[encoder]}}}
    if kind == "local":
        return settings
    if kind == "text_wiki_pretraining":
        data = {"input_path": str(folder / "corpus.txt"), "vocab_file_path": file, "lower_case": False, "tfds_name": ""}
    elif kind == "sentence_prediction_text":
        data = {"input_path": str(folder / "train.tsv"), "vocab_file": file, "lower_case": False, **rules}
        data |= {"text_fields": ["#1 String", "#2 String"], "label_field": "Quality"}
    else:
        tokenizer = build_tokenizer(file, tokenization=tokenization, lower_case=False)
        data = {"input_path": write_records(kind, folder, output_dir, tokenizer)}
    settings |= {"train_data": data, "validation_data": data}
    if kind == "squad":
        # Answers are compared with the questions themselves; how they are cut is known from the records.
        settings["validation_data"] = {"input_path": str(folder / "squad.json"), "doc_stride": 4, "query_length": 6}
    if "pretraining" in kind:
        heads = [{"name": "next_sentence", "inner_dim": 8}]
        settings["model"]["cls_heads"] = heads
        settings["train_data"] = settings["validation_data"] = {**data, "max_predictions_per_seq": 4}
    return settings


def small_experiment(name: str, folder: Path, output_dir: Path) -> ExperimentConfig:
    params = get_exp_config(name)
    params.override({"task": task_settings(name, folder, output_dir)})
    sizes = {"global_batch_size": 4, "seq_length": LENGTH}
    params.override({"task": {"train_data": sizes, "validation_data": {**sizes, "drop_remainder": False}}})
    params.override({"trainer": {"train_steps": 1, "train_epochs": 0, "best_checkpoint_export_subdir": ""}})
    params.override({"trainer": {"optimizer_config": {"warmup": {"type": None}}}})
    params.runtime.distribution_strategy = "off"
    return params


def train(name: str, folder: Path, output_dir: Path) -> Path:
    params = small_experiment(name, folder, output_dir)
    params.override({"trainer": {"optimizer_config": {"optimizer": {"type": "sgd"}}}})
    run_experiment(params, mode="train", model_dir=output_dir / "run")
    return output_dir / "run"


def by_load_model(directory: Path, *, seen: list[Mapping[str, np.ndarray]] | None = None) -> Predictor:
    """A predictor of what `load_model` returns, which keeps what it was asked in `seen`."""
    model = trellis.load_model(directory)
    metadata = model.manifest.metadata["text"]
    assert isinstance(metadata, dict)
    text = read_text(metadata, files=model.files, place="")
    assert text is not None

    def ask(inputs: Mapping[str, np.ndarray], /) -> Iterator[Any]:
        if seen is not None:
            seen.append(inputs)
        return in_batches(model)(inputs)

    return Predictor(read_answerer(metadata, place=""), ask=ask, tokenizer=text.build_tokenizer())


def assert_same(predictions: list[Prediction], expected: list[Prediction]) -> None:
    for ours, theirs in zip(predictions, expected, strict=True):
        flat, other = (jax.tree.leaves(dict(answer.values)) for answer in (ours, theirs))
        for value, reference in zip(flat, other, strict=True):
            assert value == (reference if isinstance(reference, str) else pytest.approx(reference, abs=1e-5))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_run_that_was_moved_and_exported_answers_alike_in_three_ways(
    name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "bert/local":
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    shutil.copytree(folder, tmp_path / "text")
    run = shutil.move(train(name, tmp_path / "text", tmp_path), tmp_path / "moved")
    # What the run was made with is gone: it has to know by itself.
    for file in (tmp_path / "text").glob(f"{name.partition('/')[0]}.*"):
        file.unlink()
    params = read_params(run)
    export_experiment(params, model_dir=run, output_dir=tmp_path / "served", platforms=["cpu"])
    sentences = [row[:2] for row in ROWS[:2]]
    texts: Any = {"squad": [("Who sat ?", PASSAGE)]}.get(name.partition("/")[2], BLANKS)
    texts = sentences if "sentence" in name else texts
    expected = list(load_predictor(str(run))(texts))
    assert_same(list(load_predictor(str(tmp_path / "served"))(texts)), expected)
    seen: list[Mapping[str, np.ndarray]] = []
    assert_same(list(by_load_model(tmp_path / "served", seen=seen)(texts)), expected)
    if texts is not BLANKS:
        # Text that is asked gives the inputs that the same text has in the validation data.
        batch = get_task(params.task, logging_dir=str(run)).build_inputs(params.task.validation_data).batch(0)
        for column, values in seen[0].items():
            rows = np.asarray(batch[column])
            n = min(len(rows), len(values))
            np.testing.assert_array_equal(values[:n], rows[:n])
