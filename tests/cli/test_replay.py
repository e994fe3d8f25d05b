"""`trellis replay`, as a user runs it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trellis.cli.main import main
from trellis.disk import checksum, files_in
from trellis.experiments import get_exp_config, read_params, replay_step, run_experiment
from trellis.extensions import read_summaries

BASE: dict[str, Any] = {
    "train_steps": 12,
    "steps_per_loop": 1,
    "summary_interval": 4,
    "checkpoint_interval": 4,
    "validation_interval": 4,
    "max_to_keep": 2,
    "n_fused_steps": 1,
    "keep_gradients": True,
    "best_checkpoint_export_subdir": "",
}
LOST = {"learning_rate": {"cosine": {"initial_learning_rate": 1e36}}, "warmup": {"type": None}}


def train(directory: Path, **changes: Any) -> Path:
    """Runs the digits for a few steps, each with its own report."""
    params = get_exp_config("digits/classifier")
    params = params.replace(trainer=BASE | changes, runtime={"distribution_strategy": "one_device"})
    run_experiment(params, mode="train", model_dir=directory)
    return directory


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is over."""
    return train(tmp_path_factory.mktemp("runs") / "digits")


def contents(directory: Path) -> dict[str, Any]:
    """The checksums of all files."""
    return {str(file): checksum(file) for file in files_in(directory)}


@pytest.mark.parametrize("step", [9, 11, 12])
def test_a_step_has_the_loss_and_the_gradients_that_it_had_and_the_run_is_left_alone(run: Path, step: int) -> None:
    before = contents(run)
    report = replay_step(read_params(run), model_dir=run, step=step)
    train_metrics = read_summaries(run / "events.jsonl")[step]["metrics"]["train"]
    np.testing.assert_allclose(report.loss, train_metrics["loss"], rtol=1e-5)
    np.testing.assert_allclose(report.gradient_norms[""], train_metrics["gradients_l2norm"], rtol=1e-4)
    assert report.started_from.endswith("regular_8")
    assert report.n_steps == step - 8
    assert report.first_not_finite == ""
    assert report.is_batch_of_run is (True if step == 12 else None)
    assert contents(run) == before


def test_the_screen_tells_the_loss_the_batch_and_the_gradients_by_layer(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", f"--model_dir={run}", "--step=9"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == f"Step 9, from {run / 'regular_8'}: 1 step was run again."
    assert lines[1].startswith("Loss ")
    assert lines[3].startswith("0 float32[32,64] 0 to 1")
    assert any(line.startswith("classifier/kernel float32[64,10] ") for line in lines)
    assert lines[-1] == "Not finite nothing"


def test_programs_read_the_same_as_json(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", f"--model_dir={run}", "--step=9", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert (content["step"], content["n_steps"]) == (9, 1)
    assert {"all", "classifier", "encoder"} == set(content["gradient_norms"])


def test_a_step_without_a_file_before_it_says_which_there_are(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", f"--model_dir={run}", "--step=3"]) == 2
    message = f"There is no checkpoint file before step 3 in `{run}`. There are: regular_8, regular_12."
    assert message in capsys.readouterr().err
    report = replay_step(read_params(run), model_dir=run, step=3, starts_anew=True)
    loss = read_summaries(run / "events.jsonl")[3]["metrics"]["train"]["loss"]
    np.testing.assert_allclose(report.loss, loss, rtol=1e-5)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--step=0"], "step is 0, but the first step is 1."),
        (["--step=13"], "step is 13, but the run ends with step 12. Give one up to that."),
        (["--step=9", "--model_dir=gone"], "there is no directory `gone`. Give that of a run."),
        (["--step=9", "--model_dir=."], "There is no `params.yaml`. Give the model_dir of a run that was trained."),
        ([], "--step is missing."),
    ],
)
def test_what_cannot_be_replayed_is_told(
    run: Path, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = [] if any("model_dir" in flag for flag in flags) else [f"--model_dir={run}"]
    assert main(["replay", *directory, *flags]) == 2
    assert message in capsys.readouterr().err


def test_the_first_array_that_is_not_finite_is_named_in_the_order_of_computing(tmp_path: Path) -> None:
    run = train(tmp_path / "lost", optimizer_config=LOST, recovery_max_trials=-1, train_steps=4)
    params = read_params(run)
    found = [replay_step(params, model_dir=run, step=step, starts_anew=True).first_not_finite for step in (1, 2, 3)]
    assert found == ["", "the output of classifier", "params/classifier/bias before it"]
