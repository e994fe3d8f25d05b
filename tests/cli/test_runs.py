"""`trellis runs diff` and `trellis runs time`, as a user runs them."""

import json
from pathlib import Path

import pytest

from tests.cli.command import trellis_without_jax
from tests.experiments.test_comparison import write_run
from trellis.cli.main import main

SECONDS = {
    "start": 10.0,
    "compile": 20.0,
    "input_wait": 5.0,
    "step": 60.0,
    "eval": 3.0,
    "checkpoint": 1.0,
    "other": 1.0,
}


def test_equal_runs_are_told_so_without_jax(tmp_path: Path) -> None:
    for name in "ab":
        write_run(tmp_path / name, (5, 0.5, (1, 2, 3)), (10, 0.25, (4, 5, 6)))
    done = trellis_without_jax("runs", "diff", str(tmp_path / "a"), str(tmp_path / "b"))
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        "Equal to the bit up to step 10, the last that both have: 2 fingerprints and 2 reports of metrics.\n"
    )


def test_where_runs_part_is_a_table_and_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "a", (5, 0.5, (1, 2, 3)), (10, 0.25, (4, 5, 6)))
    write_run(tmp_path / "b", (5, 0.5, (1, 2, 3)), (10, 0.26, (4, 7, 8)))
    for name, n_steps in (("a", 10), ("b", 20)):
        (tmp_path / name / "params.yaml").write_text(f"trainer:\n  train_steps: {n_steps}\n")
    directories = [str(tmp_path / name) for name in "ab"]
    assert main(["runs", "diff", *directories]) == 1
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["trainer.train_steps"] in lines
    assert " ".join(lines[4]).startswith("They part: the first step that differs is 10. Compared were 2 fingerprints")
    assert [line[:4] for line in lines[5:]] == [
        ["state", "step", "10", "params/dense/bias"],
        ["batch", "step", "10", "batch/image"],
        ["metrics", "step", "10", "train/loss"],
    ]
    assert lines[-1][-2:] == ["0.25", "0.26"]
    assert main(["runs", "diff", *directories, "--json"]) == 1
    content = json.loads(capsys.readouterr().out)
    assert (content["is_equal"], content["parted_at"], content["last_step"]) == (False, 10, 10)
    assert content["tensors"][0]["name"] == "params/dense/bias"


def test_what_is_no_run_is_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "diff", str(tmp_path / "a"), str(tmp_path)]) == 2
    assert "Give the model_dir of a run" in capsys.readouterr().err


def write_timed_run(directory: Path, *, ended: float = 1100.0) -> None:
    event = {"kind": "time", "step": 500, "time": ended, "attempt": 1000.0, "seconds": SECONDS, "hidden_input": 12.0}
    (directory / "events.jsonl").write_text(f"{json.dumps(event)}\n")


def test_a_table_has_every_second(tmp_path: Path) -> None:
    write_timed_run(tmp_path)
    done = trellis_without_jax("runs", "time", str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        f"{tmp_path}: 1 attempt, 1 min 40 s, up to step 500.",
        "  steps                         1 min 0 s  60.0 %",
        "  waiting for input                 5.0 s   5.0 %",
        "  compiling                          20 s  20.0 %",
        "  start                              10 s  10.0 %",
        "  evaluation                        3.0 s   3.0 %",
        "  waiting for checkpoint files      1.0 s   1.0 %",
        "  other                             1.0 s   1.0 %",
        "Batches were made for 12 s more while the devices were busy, which costs nothing.",
    ]


@pytest.mark.parametrize(
    ("ended", "told"),
    [(500.0, "set back by 10 min 0 s"), (8300.0, "set forward by 2 h 0 min, or the machine slept")],
)
def test_a_clock_that_was_set_is_told(
    ended: float, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_timed_run(tmp_path, ended=ended)
    assert main(["runs", "time", str(tmp_path)]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"Meanwhile the machine's clock was {told}: this is not counted."


def test_json_has_the_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_timed_run(tmp_path)
    assert main(["runs", "time", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "n_attempts": 1,
        "step": 500,
        "wall_seconds": 100.0,
        "clock_jump": 0.0,
        "goodput": 0.6,
        "seconds": SECONDS | {"lost": 0.0, "downtime": 0.0},
        "hidden_input": 12.0,
    }


def test_what_has_no_time_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "time", str(tmp_path / "none")]) == 2
    assert f"There is no directory `{tmp_path / 'none'}`. Give the model_dir of a run." in capsys.readouterr().err
    assert main(["runs", "time", str(tmp_path)]) == 2
    assert "events.jsonl` cannot be read: " in capsys.readouterr().err
    assert main(["runs"]) == 2
    assert "The following arguments are required: DIR." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--profile=20"], "--profile is '20'. Give the last step before those to trace"),
        (["--profile=20:10"], "--profile is '20:10'. Give the last step before those to trace"),
        (["--profile=5000:5010"], "--profile=5000:5010 begins after step 5000, but the run ends at step 2000"),
        (["--profile=1:2", "--mode=eval"], "--profile is for a training, but the mode is eval."),
    ],
)
def test_steps_that_cannot_be_traced_are_refused_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    experiment = ["--experiment=digits/classifier", "--params_override=trainer.train_steps=2000"]
    assert main(["train", *experiment, f"--model_dir={tmp_path}", *flags]) == 2
    assert message in capsys.readouterr().err
