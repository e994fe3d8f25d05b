"""`trellis launch` reads its own flags, and leaves those of the command alone."""

from pathlib import Path
from typing import Any

import pytest

from trellis.cli.main import main


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the engine is asked for."""
    calls: list[Any] = []

    def launch_local(arguments: Any, **options: Any) -> int:
        calls.append((arguments, options))
        return 7

    monkeypatch.setattr("trellis.launch.local.launch_local", launch_local)
    monkeypatch.setattr("trellis.launch.launch_local", launch_local, raising=False)
    return calls


def test_what_follows_two_dashes_is_the_command(launched: list[Any]) -> None:
    assert main(["launch", "--processes=2", "--restarts=3", "--", "train", "--model_dir", "runs/a", "--", "x"]) == 7
    ((arguments, options),) = launched
    assert arguments == ["train", "--model_dir", "runs/a", "--", "x"]
    assert options == {"n_processes": 2, "n_restarts": 3, "log_dir": Path("runs/a/logs")}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--processes=2"], "What is launched is nothing. Write train or run"),
        (["--processes=2", "--", "plan"], "What is launched is 'plan'."),
        (["--", "train"], "--processes is missing."),
        (
            ["--processes=2", "train", "--model_dir=a"],
            "Two dashes come before the command. Write: trellis launch … -- train …",
        ),
        (["--processes=2:4", "--", "train"], "--processes is 2:4, but only `train` on Ray"),
        (["--processes=2:4", "--on=ray", "--", "run"], "--processes is 2:4, but only `train` on Ray"),
        (
            ["--processes=2:4", "--on=ray", "--", "train", "--experiment=digits/classifier", "--model_dir=a"],
            "a batch of 32 examples cannot be shared out over 3. Give one number, a narrower range, or a batch",
        ),
        (
            ["--processes=1:2", "--on=ray", "--", "train", "--experiment=digits/clasifier", "--model_dir=a"],
            "digits/classifier",
        ),
        (["--processes=two", "--", "train"], "Argument --processes: 'two' is no number of processes"),
        (["--processes=2:", "--on=ray", "--", "train"], "Argument --processes: '2:' is no number of processes"),
        (["--processes=2", "--restarts=-1", "--", "train"], "--restarts is -1, but it is at least 0."),
        (
            ["--processes=2", "--gpus_per_process=1", "--", "train"],
            "--gpus_per_process is for --on=ray, and --on is local. Leave it out, or write --on=ray.",
        ),
        (["--processes=2", "--on=ray", "--lead_time=9", "--", "train"], "--lead_time is for --on=slurm, and --on is"),
        (
            ["--processes=2", "--on=slurm", "--", "train", "--experiment=digits/clasifier", "--model_dir=a"],
            "digits/classifier",
        ),
        (
            ["--processes=2", "--on=slurm", "--", "train", "--experiment=digits/classifier", "--modle_dir=a"],
            "Did you mean --model_dir?",
        ),
        (["--processes=2", "--on=slurm", "--", "run", "--exampels=a"], "Did you mean --examples?"),
        (["--proceses=2", "--", "train"], "Did you mean --processes?"),
        (["--processes=2", "--on=kubernetes", "--", "train"], "invalid choice: 'kubernetes'"),
    ],
)
def test_bad_flags_are_told(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", *arguments]) == 2
    assert said in capsys.readouterr().err
