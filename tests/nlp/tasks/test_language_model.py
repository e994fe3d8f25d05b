"""The task of telling what comes next, as runs of it behave."""

import json
import math
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.nlp.tasks.small_language_model import small_params, train
from trellis.errors import ConfigError, DataError
from trellis.experiments import export_experiment, get_exp_config, read_params
from trellis.extensions import checkpoint_storage, newest_file
from trellis.nlp.answers import GenerationOptions, load_writer
from trellis.nlp.data import ByteTokenizer, train_vocabulary
from trellis.nlp.tasks.language_model import LanguageModelTask
from trellis.optimizers import build_optimizer
from trellis.serving import load_model
from trellis.tasks import get_task


def arrays(run: Path) -> dict[str, Any]:
    file = newest_file(run)
    assert file is not None
    tree = checkpoint_storage.read_manifest(file)["tree"]
    return checkpoint_storage.read_arrays(file, tree)


def assert_same(run: Path, other: Path) -> None:
    ours, theirs = arrays(run), arrays(other)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        np.testing.assert_array_equal(value, theirs[name], err_msg=name)


def events(run: Path, kind: str) -> list[Any]:
    lines = map(json.loads, (run / "events.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] == kind]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text, and a whole run on it."""
    folder = tmp_path_factory.mktemp("language_model")
    train(folder)
    return folder


def last_metrics(run: Path) -> dict[str, float]:
    metrics: dict[str, float] = events(run, "summary")[-1]["metrics"]["eval"]
    return metrics


def test_a_resumed_run_ends_with_the_same_bits_and_shows_each_sample_once(folder: Path) -> None:
    train(folder, steps=2, name="resumed")
    resumed = train(folder, name="resumed")
    assert_same(folder / "run", resumed)
    shown = events(resumed, "shown")
    assert [(event["step"], event["name"]) for event in shown] == [(2, "sample"), (4, "sample")]
    assert [event["text"] for event in shown] == [event["text"] for event in events(folder / "run", "shown")]
    assert shown[0]["text"].startswith("Sample at step 2: \n")


def test_metrics_are_those_of_the_text(folder: Path) -> None:
    values = last_metrics(folder / "run")
    text = (folder / "validation.txt").read_text()
    documents = text.replace("\n\n", "\n").encode()
    assert values["perplexity"] == pytest.approx(math.exp(values["loss"]), rel=1e-5)
    # Each token but the first is told, and ends are no bytes of the text.
    n_told = len(documents) + text.count("\n\n") - 1
    in_bits = values["loss"] * n_told / math.log(2)
    assert values["bits_per_byte"] == pytest.approx(in_bits / (len(documents) - 1), rel=1e-4)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("batches", {"task": {"validation_data": {"global_batch_size": 3}}}),
        ("parts", {"trainer": {"n_microbatches": 4}, "task": {"model": {"use_gradient_checkpointing": True}}}),
        ("mesh", {"runtime": {"distribution_strategy": "mirrored", "mesh": {"data": 2, "fsdp": 2, "model": 2}}}),
    ],
)
def test_a_run_is_the_same_to_rounding_however_it_is_computed(name: str, changes: Any, folder: Path) -> None:
    run = train(folder, name=name, **changes)
    assert last_metrics(run) == pytest.approx(last_metrics(folder / "run"), rel=2e-5)


def test_norms_and_biases_are_not_decayed(tmp_path: Path) -> None:
    params = small_params(tmp_path)
    task = get_task(params.task)
    model: Any = task.build_model()
    variables = jax.jit(model.init)(jax.random.key(0), {"input_word_ids": np.zeros((1, 4), np.int32)})
    weights = jax.tree.map(lambda leaf: np.ones(leaf.shape, np.float32), variables["params"])
    optimizer = build_optimizer(params.trainer.optimizer_config, n_steps=4)
    zeros = jax.tree.map(np.zeros_like, weights)
    state = optimizer.init(weights)
    _, state = optimizer.update(zeros, state, weights)
    updates, _ = optimizer.update(zeros, state, weights)
    decayed = {
        jax.tree_util.keystr(path, simple=True, separator="/")
        for path, leaf in jax.tree_util.tree_leaves_with_path(updates)
        if np.any(np.asarray(leaf))
    }
    every = {
        jax.tree_util.keystr(path, simple=True, separator="/")
        for path, _ in jax.tree_util.tree_leaves_with_path(weights)
    }
    assert {name for name in every if "kernel" in name or "embedding" in name} == decayed


def test_a_run_in_bfloat16_on_pieces_of_bytes_learns_and_keeps_its_tokenizer(folder: Path) -> None:
    file = folder / "tokenizer.json"
    train_vocabulary(str(folder / "train.txt"), output_file=file, vocab_size=300, tokenization="byte_bpe")
    named = {"vocab_file": str(file)}
    low = {"mixed_precision_dtype": "bfloat16"}
    run = train(folder, name="pieces", task={"train_data": named, "validation_data": named}, runtime=low)
    first, last = (event["metrics"]["eval"]["loss"] for event in events(run, "summary"))
    assert last < first < math.log(320) + 0.1
    file.unlink()
    (answer,) = load_writer(str(run))(["the cat"], options=GenerationOptions(n_tokens=5))
    assert answer.text.startswith("the cat")
    with pytest.raises(DataError, match=r"there is no file .*tokenizer.json"):
        get_task(read_params(run).task)


def test_an_export_scores_text_without_the_code(folder: Path, tmp_path: Path) -> None:
    run = folder / "run"
    export_experiment(read_params(run), model_dir=run, output_dir=tmp_path / "served", platforms=["cpu"])
    ids = ByteTokenizer().encode(["the cat sat on t"]).values[None]
    logits: Any = load_model(tmp_path / "served")({"input_word_ids": ids})
    assert logits["logits"].shape == (1, 16, 320)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"vocab_size": 100}}, r"task.model.vocab_size is 100, but the text has 257 tokens"),
        ({"train_data": {"seq_length": 17}}, r"train_data.seq_length is 17, but the decoder has positions for 16"),
        ({"validation_data": {"seq_length": 0}}, r"task.validation_data.seq_length is 0"),
        ({"validation_data": {"vocab_file": "x.json"}}, r"validation_data.vocab_file is 'x.json', but '' for training"),
        ({"model": {"num_attention_heads": 5}}, r"num_attention_heads is 5, which does not divide hidden_size=16"),
        ({"model": {"num_layers": 100000}}, r"task.model.num_layers is 100000, but it is from 0 to 1000"),
        ({"n_sample_tokens": -1}, r"task.n_sample_tokens is -1"),
        ({"sample_temperature": -0.5}, r"task.sample_temperature is -0.5, but it is 0 or more"),
    ],
)
def test_a_config_that_cannot_work_is_told_when_the_task_is_made(changes: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        get_task(small_params(tmp_path, task=changes).task)


def test_the_shipped_experiment_on_local_text_knows_its_sizes() -> None:
    task = get_task(get_exp_config("gpt/local").task)
    assert isinstance(task, LanguageModelTask)
    assert task.task_config.model.vocab_size == 320
    assert task.context == 128
