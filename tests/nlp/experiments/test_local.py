"""The experiment that every machine can run, for a few steps."""

from pathlib import Path

import pytest

import trellis.nlp.experiments  # noqa: F401  (registers them)
from trellis.experiments import get_exp_config, run_experiment
from trellis.nlp.answers import load_predictor


def test_a_tiny_bert_learns_from_the_local_text_and_fills_in_blanks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    params = get_exp_config("bert/local")
    encoder = {"bert": {"hidden_size": 16, "num_layers": 1, "intermediate_size": 16, "vocab_size": 300}}
    trainer = {"train_steps": 6, "steps_per_loop": 3, "validation_steps": 1, "best_checkpoint_export_subdir": ""}
    params.override({"task": {"model": {"encoder": encoder}}, "trainer": trainer})
    params.runtime.distribution_strategy = "off"
    _, logs = run_experiment(params, mode="train", model_dir="runs/local", run_post_eval=True)
    assert set(logs) == {"validation_loss", "masked_lm_accuracy", "lm_example_loss"}
    vocabulary = Path("runs/local/text/vocab.txt").read_text().split("\n")
    assert "[MASK]" in vocabulary and "##s" in vocabulary
    (prediction,) = load_predictor("runs/local")([("Return the [MASK].",)])
    assert prediction.values["blanks"][0][0]["token"] in vocabulary
