"""What SLURM is given, and what it says."""

from pathlib import Path

import pytest

from trellis.errors import ArgumentError, RunFailedError
from trellis.launch import SlurmOptions, launch_on_slurm


@pytest.fixture
def sbatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in the place of SLURM's, which takes every job."""
    program = tmp_path / "bin/sbatch"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho '42;cluster'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    return program


def test_a_job_has_its_processes_its_options_and_goes_on_by_itself(sbatch: Path, tmp_path: Path) -> None:
    options = SlurmOptions(lead_time=90, n_restarts=3, options=["--time=4:00:00", "--gpus-per-task=1"])
    arguments = ["train", "--model_dir=runs/it's"]
    assert launch_on_slurm(arguments, n_processes=4, log_dir=tmp_path / "logs", options=options) == "42"
    lines = (tmp_path / "logs/slurm.sh").read_text().splitlines()
    assert "#SBATCH --ntasks=4" in lines
    assert "#SBATCH --signal=TERM@90" in lines
    assert "#SBATCH --requeue" in lines
    assert lines.index("#SBATCH --time=4:00:00") < lines.index("#SBATCH --gpus-per-task=1")
    (command,) = (line for line in lines if line.startswith("srun"))
    assert command.endswith("""-m trellis train '--model_dir=runs/it'"'"'s'""")
    assert any('SLURM_RESTART_COUNT:-0}" -lt 3 ]' in line for line in lines)


def test_a_job_that_slurm_refuses_is_told_in_its_words(sbatch: Path, tmp_path: Path) -> None:
    sbatch.write_text("#!/bin/sh\necho 'sbatch: error: invalid partition specified: gpu' >&2\nexit 1\n")
    with pytest.raises(RunFailedError, match="has not taken the job of .*slurm.sh: sbatch: error: invalid partition"):
        launch_on_slurm(["train"], n_processes=2, log_dir=tmp_path)


def test_a_machine_without_slurm_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ArgumentError, match="There is no sbatch on this machine"):
        launch_on_slurm(["train"], n_processes=2, log_dir=tmp_path)
