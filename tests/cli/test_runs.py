"""`trellis runs diff`, as a user runs it."""

import json
from pathlib import Path

import pytest

from tests.cli.command import trellis_without_jax
from tests.experiments.test_comparison import write_run
from trellis.cli.main import main


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
