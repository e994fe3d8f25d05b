"""`trellis verify-resume`, as a user runs it."""

import os
from pathlib import Path

import pytest
import yaml

from tests.cli.command import REPOSITORY
from tests.nlp.small_experiments import SHIPPED, SIZES, small_settings, write_texts
from tests.xla_flags import QUICK
from trellis.cli.main import main


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes that it starts compile more than they compute."""
    monkeypatch.setenv("XLA_FLAGS", QUICK)
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY / "src"))


@pytest.mark.usefixtures("quick")
def test_an_experiment_survives_a_kill_to_the_bit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / "all"
    code = main(["verify-resume", "--experiment=digits/classifier", "--trials=1", f"--dir={directory}"])
    captured = capsys.readouterr()
    assert code == 0, captured.out + captured.err
    lines = captured.out.splitlines()
    assert lines[0].endswith("one run is left alone, then 1 killed and resumed.")
    assert lines[2].startswith("  1  SIGKILL")
    assert lines[3] == "     equal to the bit up to step 500 (5 fingerprints, 5 reports)"
    assert lines[4] == "Each resumed run is as the one that was left alone."
    assert (directory / "trial_1/events.jsonl").is_file()


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text of each kind."""
    return write_texts(tmp_path_factory.mktemp("texts"))


@pytest.mark.cluster
@pytest.mark.skipif("TRELLIS_CLUSTER_TESTS" not in os.environ, reason="minutes: run by `make test-cluster`")
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("experiment", SHIPPED)
def test_every_shipped_experiment_survives_kills_and_goes_on_with_other_processes(
    experiment: str, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(texts / "cache"))
    is_text = experiment.partition("/")[0] in (*SIZES, "encoder", "gpt")
    settings = small_settings(experiment, texts, tmp_path) if is_text else {"trainer": {}}
    intervals = {"summary_interval": 5, "checkpoint_interval": 10, "validation_interval": 10, "steps_per_loop": 5}
    settings["trainer"] |= {"train_steps": 40, **intervals}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(settings))
    flags = [f"--config_file={tmp_path}/small.yaml", "--processes=2,1", "--trials=1", f"--dir={tmp_path}/all"]
    code = main(["verify-resume", f"--experiment={experiment}", *flags])
    captured = capsys.readouterr()
    assert code == 0, captured.out + captured.err
    assert "equal to the bit up to step 40" in captured.out
    assert "batches equal to the bit, losses within 0.001 up to step 40" in captured.out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--mode=eval"], "--mode is eval, which has no training to kill. Give one: --mode=train_and_eval."),
        (["--trials=0"], "--trials is 0, but it is at least 1."),
        (["--processes=1,0"], "--processes is 0, but it is at least 1."),
        (["--processes=two"], "Argument --processes: 'two' is no number, nor several as in 1,2."),
        (["--tolerance=-1"], "--tolerance is -1.0, but it is at least 0."),
        (["--set=trainer.train_stepz=3"], "train_stepz"),
        (["--dir=."], "--dir: `.` is there already. Give one that is empty or does not exist."),
    ],
)
def test_what_is_wrong_is_told_before_the_first_run(
    flags: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main(["verify-resume", "--experiment=digits/classifier", *flags]) == 2
    assert message in capsys.readouterr().err
