"""Runs that are planned by the command, and not run."""

from pathlib import Path

import pytest

from tests.cli.command import trellis, trellis_without_jax
from trellis.cli.main import main

DIGITS = ("plan", "--experiment=digits/classifier", "--model_dir=runs/digits")


def test_plan_describes_a_run_and_writes_nothing(tmp_path: Path) -> None:
    done = trellis(*DIGITS)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(
        "digits/classifier, train_and_eval, in runs/digits\nModel      DigitsClassifier: 4,810 parameters"
    )
    assert done.stdout.endswith("\nNothing is wrong with it. `trellis train` with the same flags runs it.\n")
    assert list(tmp_path.iterdir()) == []


def test_plan_tells_what_is_wrong_after_what_it_knows(tmp_path: Path) -> None:
    done = trellis(*DIGITS, "--set=trainer.best_checkpoint_eval_metric=f1", "--set=trainer.train_steps=20")
    assert done.returncode == 2
    assert "\nSteps      20, which see 640 examples" in done.stdout
    assert "Nothing is wrong" not in done.stdout
    assert "The run ends at step 20, while it warms up: trainer.optimizer_config.warmup.linear.warmup_" in done.stdout
    assert done.stderr.startswith("--set: trainer.best_checkpoint_eval_metric is f1, which is not measured.")
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_flags_and_names_that_are_wrong_are_told_before_jax_is_imported() -> None:
    done = trellis_without_jax(*DIGITS, "--set=task.hiden_size=1", "--config_file=no.yaml")
    assert done.returncode == 2
    assert done.stderr.startswith("2 problems in the configuration\n")
    done = trellis_without_jax("plan", "--experiment=digits/classifier", "--model_dir=")
    assert done.stderr.startswith("--model_dir is empty: a run needs a directory of its own")


def test_train_tells_missing_files_before_jax_is_imported(tmp_path: Path) -> None:
    done = trellis_without_jax(
        "train", *DIGITS[1:], "--params_override=trainer.train_steps=40,task.validation_data.input_path=data/*.jsonl"
    )
    assert done.returncode == 2, done.stderr
    assert "task.validation_data.input_path matches no file: `data/*.jsonl`." in done.stderr
    assert not (tmp_path / "runs").exists()


def test_published_flags_that_mean_nothing_here_are_accepted_and_said_to(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--tpu=some-tpu", "--tfhub_cache_dir", "cache", "--noenable_async_checkpointing", "--alsologtostderr"]
    assert main([*DIGITS, *flags]) == 0
    out = capsys.readouterr().out
    for name in ("tpu", "tfhub_cache_dir", "noenable_async_checkpointing", "alsologtostderr"):
        assert f"\n--{name} has no effect: " in out
    assert "--tf_data_service" not in out
