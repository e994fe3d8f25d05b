"""Real runs by the command: trained, resumed, evaluated, preempted, refused."""

import json
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import REPOSITORY, environment, trellis, trellis_without_jax
from trellis.cli import train
from trellis.experiments import get_exp_config, register_experiments

SHORT = (
    "--params_override=trainer.steps_per_loop=20,trainer.checkpoint_interval=20,trainer.validation_interval=20,"
    "trainer.summary_interval=20,trainer.optimizer_config.warmup.linear.warmup_steps=5"
)
DIGITS = ("train", "--experiment=digits/classifier", "--model_dir=runs/digits", SHORT)


def trained(*arguments: str) -> str:
    done = trellis(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_train_trains_resumes_and_evaluates_by_the_same_command(tmp_path: Path) -> None:
    model_dir = tmp_path / "runs/digits"
    out = trained(*DIGITS, "--set=trainer.train_steps=40")
    assert out.startswith(
        "digits/classifier, train_and_eval, up to step 40.\n"
        "It writes to runs/digits, and resumes from there if it is interrupted.\n"
    )
    assert re.search(r"\nTime: \d+ % of .* were steps; .*\. More: trellis runs time runs/digits\nDone: ", out)
    ending = out[out.index("Done: ") :]
    assert ending.startswith("Done: step 40 of 40.\n  eval/accuracy 0.")
    best = re.search(r"The best:   (.*)\n", ending)
    assert best and (tmp_path / best[1]).is_dir()
    assert "All of it:  runs/digits\n" in ending
    assert {"params.yaml", "provenance.yaml", "regular_40"} <= {path.name for path in model_dir.iterdir()}

    out = trained(*DIGITS, "--set=trainer.train_steps=60")
    assert "A checkpoint was loaded in " in out
    assert re.findall(r"Step +(\d+) of 60  loss", out) == ["60"]
    assert "Done: step 60 of 60.\n" in out
    again = trained(*DIGITS, "--set=trainer.train_steps=60")
    assert "already reached the total training steps 60" in again
    assert again[again.index("Done: ") :] == out[out.index("Done: ") :]

    assert (model_dir / "params.yaml").read_text().startswith("# Experiment: digits/classifier\ntask:\n")
    out = trained("train", "--config_file=runs/digits/params.yaml", "--mode=eval", "--model_dir=runs/digits")
    assert out.startswith("digits/classifier, eval: evaluates the checkpoint files in runs/digits.\n")
    assert re.search(r"Step +60  eval/accuracy [\d.]+  eval/loss [\d.]+\nDone\.\n", out)


def test_a_users_own_task_is_trained_from_its_file(tmp_path: Path) -> None:
    out = trained(
        "train",
        f"--module={REPOSITORY / 'examples/03_task.py'}",
        "--experiment=spirals/classifier",
        "--mode=train_and_post_eval",
        "--model_dir=runs/spirals",
        "--set=trainer.train_steps=250",
    )
    found = re.search(r"Done: step 250 of 250\.\n  eval/accuracy ([\d.]+)\n  eval/loss", out)
    assert found and float(found[1]) > 0.5
    assert "train_steps: 250" in (tmp_path / "runs/spirals/params.yaml").read_text()


def test_a_run_without_evaluation_ends_with_its_loss() -> None:
    out = trained(*DIGITS, "--mode=train", "--set=trainer.train_steps=20")
    assert re.search(r"Done: step 20 of 20\.\n  train/loss [\d.]+\nAll of it:", out)


def test_a_run_whose_last_metric_is_no_number_ends_well(tmp_path: Path) -> None:
    """As events have it: JSON has no NaN."""
    summary = {"step": 5, "metrics": {"eval": {"loss": "nan", "accuracy": 0.5}}}
    (tmp_path / "regular_5").mkdir()
    (tmp_path / "regular_5/manifest.json").touch()
    (tmp_path / "events.jsonl").write_text(json.dumps({"kind": "summary", **summary}) + "\n")
    register_experiments([])
    params = get_exp_config("digits/classifier")
    lines = list(train._ending(params, tmp_path, logs={}, has_trained=True))
    assert lines[1:3] == ["  eval/loss nan", "  eval/accuracy 0.5"]


def test_a_run_that_is_preempted_saves_and_exits_with_143(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "trellis", *DIGITS, "--set=trainer.train_steps=10000000"]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = iter(process.stdout)
        assert any("  loss " in line for line in lines)
        process.send_signal(signal.SIGTERM)
        rest = "".join(lines)
    assert process.returncode == 143
    assert "The same command continues the run. Exit code 143." in rest
    assert "Done" not in rest
    assert [path for path in (tmp_path / "runs/digits").iterdir() if re.match(r"(regular|preempted)_\d", path.name)]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--mode=trian"], "There is no mode 'trian'. Did you mean train? Modes are: train, eval, "),
        (["--set=trainer.train_steps=0"], "--set: trainer.train_steps is 0."),
        (["--checkpoint=5"], "--checkpoint is for --mode=eval, but the mode is train_and_eval."),
        (["--mode=eval"], "--model_dir: there is no directory `runs/digits` to evaluate. Give that of a run."),
        (["--config_file=no.yaml"], "no.yaml"),
        (["--set=trainer.train_steps=0", "--set=task.hiden_size=1"], "2 problems in the configuration\n"),
    ],
)
def test_train_refuses_bad_input_before_jax_is_imported(tmp_path: Path, flags: list[str], said: str) -> None:
    done = trellis_without_jax(*DIGITS, *flags)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith(said)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("model_dir", "said"),
    [
        ("", "--model_dir is empty: a run needs a directory of its own, as in --model_dir=runs/digits."),
        ("a_file/run", "--model_dir: `a_file/run` cannot be made: Not a directory."),
        ("a_file", "--model_dir: `a_file` cannot be made: File exists."),
    ],
)
def test_a_model_dir_that_cannot_be_is_refused_before_jax_is_imported(
    tmp_path: Path, model_dir: str, said: str
) -> None:
    (tmp_path / "a_file").touch()
    done = trellis_without_jax("train", "--experiment=digits/classifier", f"--model_dir={model_dir}")
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(said)


def test_eval_of_a_directory_without_checkpoint_files_is_told(tmp_path: Path) -> None:
    (tmp_path / "runs/digits").mkdir(parents=True)
    done = trellis(*DIGITS, "--mode=eval")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "There is no checkpoint file in model_dir `runs/digits`" in done.stderr


def test_processes_that_are_started_together_train_together(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    arguments = (*DIGITS, "--set=trainer.train_steps=20", "--set=runtime.distribution_strategy=multi_worker_mirrored")
    cluster = {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": "2"}
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "trellis", *arguments],
            env=environment() | cluster | {"JAX_PROCESS_ID": str(index)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for index in range(2)
    ]
    first, second = (process.communicate(timeout=300)[0] for process in started)
    assert [process.returncode for process in started] == [0, 0], first + second
    assert "Done: step 20 of 20.\n" in first
    assert second.endswith("Done. The first of the processes has written to runs/digits.\n")
    assert (tmp_path / "runs/digits/regular_20").is_dir()
