"""A language model small enough to train in a test."""

from pathlib import Path
from typing import Any

from trellis.experiments import ExperimentConfig, get_exp_config, run_experiment

TEXT = "the cat sat on the mat .\n\na dog ran to the cat .\n\n" * 12
MODEL = {"hidden_size": 16, "num_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 16}
DATA = {"global_batch_size": 8, "seq_length": 16, "documents": "blank_lines"}
EVERY = dict.fromkeys(["steps_per_loop", "summary_interval", "checkpoint_interval", "validation_interval"], 2)


def small_params(folder: Path, **changes: Any) -> ExperimentConfig:
    """The shipped experiment on a few lines of text, with two evaluations."""
    for name in ("train", "validation"):
        if not (folder / f"{name}.txt").exists():
            (folder / f"{name}.txt").write_text(TEXT)
    params = get_exp_config("gpt/pretraining")
    # Of a length of its own, so that a run which ends sooner has the same rates up to there.
    rates = {"warmup": {"linear": {"warmup_steps": 1}}, "learning_rate": {"cosine": {"decay_steps": 4}}}
    sides = {f"{name}_data": {"input_path": str(folder / f"{name}.txt"), **DATA} for name in ("train", "validation")}
    params.override(
        {
            "task": {"model": MODEL, "n_sample_tokens": 8, **sides},
            "trainer": {"train_steps": 4, **EVERY, "optimizer_config": rates},
            "runtime": {"distribution_strategy": "one_device"},
        }
    )
    params.override(changes)
    return params


def train(folder: Path, *, steps: int = 4, name: str = "run", **changes: Any) -> Path:
    """The directory of a run."""
    params = small_params(folder, **changes)
    params.override({"trainer": {"train_steps": steps}})
    run_experiment(params, mode="train_and_eval", model_dir=folder / name)
    return folder / name
