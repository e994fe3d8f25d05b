"""Modes that follow a training under way, by the command."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import environment
from trellis.cli.main import main

SHORT = (
    "--params_override=trainer.steps_per_loop=5,trainer.checkpoint_interval=5,trainer.validation_interval=5,"
    "trainer.summary_interval=5,trainer.optimizer_config.warmup.linear.warmup_steps=1,trainer.train_steps=10,"
    "runtime.distribution_strategy=one_device"
)
DIGITS = ("train", "--experiment=digits/classifier", SHORT)


def run(*flags: str) -> None:
    assert main([*DIGITS, *flags]) == 0


def test_a_continuous_evaluation_that_was_started_first_ends_with_the_training(tmp_path: Path) -> None:
    flags = ("--model_dir=run", "--mode=continuous_eval", "--set=trainer.continuous_eval_timeout=120")
    command = [sys.executable, "-m", "trellis", *DIGITS, *flags]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        run("--model_dir=run", "--mode=train")
        out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert out.startswith("digits/classifier, continuous_eval: evaluates the checkpoint files in run.\n")
    assert re.findall(r"Step +(\d+)  eval/accuracy", out) == ["5", "10"]
    assert out.rstrip().endswith("tensorboard --logdir run")
    assert [path.name for path in (tmp_path / "run/best").glob("highest_*")] != []
    assert not list((tmp_path / "run").glob("regular_5.*")), "an evaluation touches no file of the training"


def test_a_continuous_evaluation_ends_after_a_training_that_was_shorter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("--model_dir=run", "--mode=train")
    capsys.readouterr()
    run(
        "--model_dir=run",
        "--mode=continuous_eval",
        "--set=trainer.train_steps=20",
        "--set=trainer.continuous_eval_timeout=0",
    )
    out = capsys.readouterr().out
    ended = "No new checkpoint file in `run` for 0 seconds, and its training has finished: the evaluation ends.\n"
    assert ended in out
    assert re.findall(r"Step +(\d+)  eval/accuracy", out) == ["5", "10"]


def test_each_file_of_a_pretraining_is_fine_tuned_from_until_its_last_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("--model_dir=pretraining", "--mode=train")
    capsys.readouterr()
    run(
        "--model_dir=tuned",
        "--mode=continuous_train_and_eval",
        "--pretrain_steps=10",
        "--set=task.init_checkpoint=pretraining",
    )
    out = capsys.readouterr().out
    assert [line for line in out.splitlines() if line.startswith("Fine-tuning")] == [
        "Fine-tuning from `pretraining/regular_5`.",
        "Fine-tuning from `pretraining/regular_10`.",
    ]
    assert "No new checkpoint file" not in out
    logs = json.loads((tmp_path / "tuned/metrics-10.json").read_text())
    assert f"  eval/accuracy {logs['accuracy']:.6g}\n" in out
    written = (tmp_path / "tuned/pretrained_10/params.yaml").read_text()
    assert "init_checkpoint: pretraining/regular_10\n" in written


def test_following_a_pretraining_needs_to_know_which(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*DIGITS, "--model_dir=tuned", "--mode=continuous_train_and_eval"]) == 2
    assert "task.init_checkpoint is not set." in capsys.readouterr().err
    flags = ["--set=task.init_checkpoint=nowhere", "--set=trainer.continuous_eval_timeout=0"]
    assert main([*DIGITS, "--model_dir=tuned", "--mode=continuous_train_and_eval", *flags]) == 2
    assert "no checkpoint file has appeared in `nowhere` for 0 seconds." in capsys.readouterr().err


def test_following_a_pretraining_can_be_planned_before_it_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--model_dir=tuned", "--mode=continuous_train_and_eval", "--set=task.init_checkpoint=later"]
    assert main(["plan", *DIGITS[1:], *flags]) == 0
    assert "Start      step 0, with parameters from later\n" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
