"""A law over all experiments of text: trained, moved, exported, a model gives the same answer however it is asked."""

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import trellis
import trellis.nlp.experiments
from tests.nlp.small_experiments import PASSAGE, ROWS, small_experiment, vocabulary, write_texts
from trellis.experiments import export_experiment, read_params, run_experiment
from trellis.experiments.experiment import experiment_summaries
from trellis.nlp.answers import Prediction, Predictor, load_predictor
from trellis.nlp.answers.answerers import in_batches
from trellis.nlp.answers.served_text import read_answerer, read_text
from trellis.tasks import get_task

FAMILIES = ("bert/", "albert/", "mobilebert/", "encoder/")
EXPERIMENTS = [name for name in experiment_summaries() if name.startswith(FAMILIES)]
BLANKS = [("The [MASK] sat on a mat .",), ("the [MASK] sat on a mat .",)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text of each kind."""
    return write_texts(tmp_path_factory.mktemp("text"))


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
    Path(vocabulary(name.partition("/")[0], tmp_path / "text")[0]).unlink()
    params = read_params(run)
    export_experiment(params, model_dir=run, output_dir=tmp_path / "served", platforms=["cpu"])
    sentences = [row[:2] for row in ROWS[:2]]
    texts: Any = {"squad": [("Who sat ?", PASSAGE)]}.get(name.partition("/")[2], BLANKS)
    texts = sentences if any(kind in name for kind in ("sentence", "embedding", "distillation")) else texts
    expected = list(load_predictor(str(run))(texts))
    assert_same(list(load_predictor(str(tmp_path / "served"))(texts)), expected)
    seen: list[Mapping[str, np.ndarray]] = []
    assert_same(list(by_load_model(tmp_path / "served", seen=seen)(texts)), expected)
    if texts is not BLANKS:
        # Text that is asked gives the inputs that the same text has in the validation data.
        batch = get_task(params.task, logging_dir=str(run)).build_inputs(params.task.validation_data).batch(0)
        for column, values in seen[0].items():
            if column in batch:
                rows = np.asarray(batch[column])
            else:
                # The two texts of a pair are sequences of their own, and asked one after the other.
                sides = [batch[column.replace("input", side)] for side in ("left", "right")]
                rows = np.stack(sides, axis=1).reshape(-1, values.shape[-1])
            n = min(len(rows), len(values))
            np.testing.assert_array_equal(values[:n], rows[:n])
