"""Runs that are planned by the command, and not run."""

import json
from pathlib import Path

import pytest

from tests.cli.command import trellis, trellis_without_jax
from trellis.cli.main import main
from trellis.cli.plan import read_memory

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


def test_plan_tells_what_a_step_takes_of_devices_that_need_not_be_there(tmp_path: Path) -> None:
    done = trellis(*DIGITS, "--devices=16", "--memory=80GB")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\nStep       compiled for 16 devices of 74.51 GiB\n" in done.stdout
    assert "\n           sent by each device: all-reduce " in done.stdout
    assert "\n           it fits, and leaves 74.51 GiB\n" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_plan_finds_what_makes_a_step_fit(capsys: pytest.CaptureFixture[str]) -> None:
    wide = "--set=task.hidden_size=16000"
    assert main([*DIGITS, wide, "--devices=8", "--memory=15MB"]) == 2
    told = capsys.readouterr()
    assert "\n           at least 18.31 MiB on each device: parameters 4.58 MiB" in told.out
    assert told.err.startswith("The step takes at least 18.31 MiB of each device, which has 14.31 MiB.\n  With --fit")
    speed = ["--chip=1e9", "--link=1MB"]
    assert main([*DIGITS, wide, "--devices=8", "--memory=15MB", "--fit", "--json", *speed]) == 2
    told = capsys.readouterr()
    fit = json.loads(told.out)["fit"]
    assert (fit["devices"], fit["memory"], fit["fits"]) == (8, 15_000_000, False)
    fitting = [candidate for candidate in fit["candidates"] if candidate["fits"]]
    assert fitting[0]["settings"]["runtime.mesh.fsdp"] > 1
    assert fitting[0]["held"]["parameters"] + fitting[0]["temporaries"] < fitting[0]["total"] < 15_000_000
    assert fitting[0]["seconds"] == fitting[0]["flops"] / 1e9 + sum(fitting[0]["sent"].values()) / 1e6
    assert f"\n      {fitting[0]['flags']}\n" in told.err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--memory=80GB"], "--memory is given without --devices. Say how many there are, such as --devices=8."),
        (["--devices=8", "--fit"], "--fit is given without --memory. Say what a device has, such as --memory=80GB."),
        (["--devices=0"], "Argument --devices: '0' is no number of devices: give one such as 8."),
        (["--devices=8", "--memory=80"], "--memory is '80', which is 80 bytes. Write the unit, too: 80GB or 80GiB."),
        (["--devices=8", "--memory=many"], "--memory is 'many'. Write it as 80GB (10⁹ bytes each), 80GiB (2³⁰ each)"),
        (["--chip=H200"], "--chip and --link are about --devices, which is not given. Say how many, as --devices=8."),
        (
            ["--devices=8", "--chip=H200"],
            "--chip is given without --link. Say what a device sends in a second, such as",
        ),
        (["--devices=8", "--link=50GB"], "--link is given without --chip. Name one, such as --chip=H200, or give its"),
        (["--devices=8", "--link=5", "--chip=H200"], "--link is '5', which is 5 bytes. Write the unit, too: 80GB or"),
        (["--devices=1", "--chip=H2000"], "--chip is 'H2000'. Did you mean 'H200'? Known are GB200, B200, GH200, H200"),
        (["--devices=8", "--mode=eval"], "--devices is about a training step, but --mode=eval trains nothing."),
        (
            ["--devices=8", "--set=runtime.distribution_strategy=off"],
            "--devices is 8, but runtime.distribution_strategy=off uses one. Give --devices=1, or --set=runtime.distr",
        ),
        (["--devices=5"], "task.train_data.global_batch_size is 32. A batch of 32 examples cannot be split over 5 dev"),
    ],
)
def test_flags_about_devices_that_do_not_go_together_are_told(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*DIGITS, *flags]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "n_bytes"), [("80GB", 80 * 10**9), ("80 gib", 80 * 2**30), ("80e9", 80 * 10**9), ("1.5MiB", 3 * 2**19)]
)
def test_memory_is_read_in_every_unit(text: str, n_bytes: int) -> None:
    assert read_memory(text) == n_bytes
