"""One story: adapters of PEFT are trained on sentences beside an encoder, asked, and exported in every way."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

import trellis
import trellis.nlp.experiments
from tests.nlp.data.small_text import WORDS, write_vocabulary
from trellis.errors import CheckpointMismatchError
from trellis.experiments import (
    ExperimentConfig,
    export_experiment,
    get_exp_config,
    plan_experiment,
    read_params,
    run_experiment,
)
from trellis.nlp.answers import load_predictor
from trellis.nlp.tasks import read_hugging_face_experiment
from trellis.tasks import get_task

GOLDEN = Path(__file__).parents[2] / "golden/peft/bert"
PAIRS = [("the cat sat .", "a cat sat ."), ("the dog ran .", "a mat")]
LORA = {
    "rank": 2,
    "alpha": 3.0,
    "targets": ["query", "value", "attention/output", "intermediate"],
    "also": ["sentence_prediction"],
    "init_adapter": str(GOLDEN / "adapter"),
}


def experiment(folder: Path, lora: dict[str, Any] | None, n_steps: int = 1) -> ExperimentConfig:
    rows = [*(f"{first}\t{second}\t{number}" for number, (first, second) in enumerate(PAIRS)), "a\tb\t2"] * 4
    (folder / "train.tsv").write_text("first\tsecond\tlabel\n" + "\n".join(rows) + "\n")
    params = get_exp_config("bert/sentence_prediction_text")
    data = {
        "input_path": str(folder / "train.tsv"),
        # As many as the weights know.
        "vocab_file": str(write_vocabulary(folder / "vocab.txt", [*WORDS, *map(str, range(29))])),
        "text_fields": ["first", "second"],
        "label_field": "label",
        "global_batch_size": 4,
        "seq_length": 16,
    }
    task = {"train_data": data, "validation_data": data, "hub_module_url": str(GOLDEN / "model")}
    params.override({"task": {**task, "model": {"num_classes": 3, "use_encoder_pooler": True}}})
    params.override({"trainer": {"train_steps": n_steps, "lora": lora, "checkpoint_interval": 1}})
    params.runtime.distribution_strategy = "off"
    return params


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters")
    run_experiment(experiment(folder, LORA), mode="train", model_dir=folder / "run")
    return folder / "run"


def asked(directory: Path, **options: Any) -> np.ndarray:
    answers = load_predictor(str(directory), **options)(PAIRS)
    return np.asarray([answer.values["probabilities"] for answer in answers])


def test_what_was_trained_answers_alike_in_every_form(run: Path, tmp_path: Path) -> None:
    params = read_params(run)
    probabilities = asked(run)
    served = export_experiment(params, model_dir=run, output_dir=tmp_path / "served")
    np.testing.assert_allclose(asked(served), probabilities, rtol=1e-4)
    weights = export_experiment(params, model_dir=run, output_dir=tmp_path / "weights", format="hugging_face")
    again = asked(weights, params=read_hugging_face_experiment(weights))
    np.testing.assert_allclose(again, probabilities, rtol=1e-4)
    adapter = export_experiment(params, model_dir=run, output_dir=tmp_path / "adapter", format="peft")
    arrays, golden = (load_file(folder / "adapter_model.safetensors") for folder in (adapter, GOLDEN / "adapter"))
    assert arrays.keys() == golden.keys()
    assert max(np.abs(arrays[name] - golden[name]).max() for name in golden) < 1e-2, "it started from there"
    settings = json.loads((adapter / "adapter_config.json").read_text())
    assert settings["base_model_name_or_path"] == str(GOLDEN / "model")


def test_a_run_starts_from_what_was_exported(run: Path, tmp_path: Path) -> None:
    adapter = export_experiment(read_params(run), model_dir=run, output_dir=tmp_path / "adapter", format="peft")
    params = read_params(run).replace(trainer={"lora": {**LORA, "init_adapter": str(adapter)}})
    trainer = trellis.Trainer(
        get_task(params.task), config=params.trainer, runtime=params.runtime, model_dir=tmp_path / "run", evaluate=False
    )
    started = trainer.initialize()
    assert started.step == 0
    trained = trainer.read_checkpoint(run / "regular_1", trains=True)
    jax.tree.map(np.testing.assert_array_equal, started.model_params, trained.model_params)


def test_adapters_of_another_rank_are_told_with_the_flags_to_write(tmp_path: Path) -> None:
    with pytest.raises(CheckpointMismatchError, match=r"Write: --set=trainer.lora.rank=2"):
        run_experiment(experiment(tmp_path, {**LORA, "rank": 4}), mode="train", model_dir=tmp_path / "run")


def test_a_plan_reads_the_adapters_that_a_run_starts_from(tmp_path: Path) -> None:
    def problems(**changes: Any) -> list[str]:
        planned = plan_experiment(experiment(tmp_path, LORA | changes), mode="train", model_dir=tmp_path / "run")
        return [problem.message for problem in planned.problems]

    assert problems() == []
    [of_rank] = problems(rank=4)
    assert "Write: --set=trainer.lora.rank=2" in of_rank
    [of_parts] = problems(targets=["query"])
    assert "are for other parts than those of the run" in of_parts
