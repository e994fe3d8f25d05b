import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from trellis.cli.main import main
from trellis.errors import ArgumentError, ConfigError, DirectoryTakenError, RunFailedError
from trellis.experiments import resolve
from trellis.tuning import Outcome, Sweep, SweepOptions, Trial, TrialResult, Watch, read_search, run_as_replicas

NAME = "digits/classifier"


def build_sweep(directory: Path, *, n_trials: int = 4, pruner: str = "none", most: int = 64) -> Sweep:
    space = read_search([f"task.hidden_size=int(8, {most})"], config=resolve(NAME))
    return Sweep(directory, space=space, options=SweepOptions(experiment=NAME, n_trials=n_trials, pruner=pruner))


def size_of(trial: Trial) -> int:
    size = trial.config.task.as_dict()["hidden_size"]
    assert isinstance(size, int)
    return size


def report_size(trials: Sequence[Trial], *, watch: Watch) -> list[Outcome]:
    for trial in trials:
        watch(trial, 100, float(size_of(trial)))
    return [Outcome() for _ in trials]


def sizes(results: Sequence[TrialResult]) -> dict[int, object]:
    return {result.number: result.overrides["task.hidden_size"] for result in results}


def test_the_best_trial_comes_first_and_is_written_for_other_programs(tmp_path: Path) -> None:
    results = build_sweep(tmp_path).run(report_size)
    values = [result.value for result in results]
    assert values == sorted(values, reverse=True) and len(values) == 4
    best = resolve(NAME, config_file=[str(tmp_path / "best.yaml")])
    assert best.task.as_dict()["hidden_size"] == results[0].overrides["task.hidden_size"]
    hyperparameters = json.loads((tmp_path / "best_hyperparameters.txt").read_text())
    assert hyperparameters["values"] == results[0].overrides
    assert hyperparameters["space"][0]["class_name"] == "Int"
    rows = json.loads((tmp_path / "tuner_results.json").read_text())
    assert [row["score"] for row in rows] == values


def test_a_sweep_in_parts_chooses_what_one_at_once_does(tmp_path: Path) -> None:
    whole = build_sweep(tmp_path / "whole").run(report_size)
    build_sweep(tmp_path / "parts", n_trials=2).run(report_size)
    assert sizes(build_sweep(tmp_path / "parts").run(report_size)) == sizes(whole)


def test_a_trial_whose_process_died_is_taken_over_and_none_is_doubled(tmp_path: Path) -> None:
    def die(trials: Sequence[Trial], *, watch: Watch) -> list[Outcome]:
        watch(trials[0], 100, 0.5)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_sweep(tmp_path).run(die)
    run: list[int] = []

    def note(trials: Sequence[Trial], *, watch: Watch) -> list[Outcome]:
        run.extend(trial.number for trial in trials)
        return report_size(trials, watch=watch)

    results = build_sweep(tmp_path).run(note)
    assert run == [0, 1, 2, 3]
    assert {result.state for result in results} == {"complete"}


def test_a_torn_last_line_of_the_journal_is_taken_away(tmp_path: Path) -> None:
    build_sweep(tmp_path, n_trials=2).run(report_size)
    with (tmp_path / "journal.log").open("ab") as file:
        file.write(b'{"op_code": 4, "wor')
    assert len(build_sweep(tmp_path).run(report_size)) == 4


@pytest.mark.parametrize(
    ("file", "message"),
    [("sweep.json", "delete it if they are of this one"), ("journal.log", "its line 2 is no JSON")],
)
def test_a_damaged_file_of_a_sweep_is_told(tmp_path: Path, file: str, message: str) -> None:
    build_sweep(tmp_path)
    with (tmp_path / file).open("ab") as opened:
        opened.write(b"\0\0\n")
    with pytest.raises(ArgumentError, match=message):
        build_sweep(tmp_path)


def test_failed_trials_are_noted_and_the_others_go_on(tmp_path: Path) -> None:
    def fail_first(trials: Sequence[Trial], *, watch: Watch) -> list[Outcome]:
        return [Outcome("it broke")] if trials[0].number == 0 else report_size(trials, watch=watch)

    results = build_sweep(tmp_path).run(fail_first)
    assert [result.state for result in results] == ["complete"] * 3 + ["failed"]
    assert results[-1].error == "it broke"


def test_a_sweep_of_which_all_trials_fail_ends_with_the_first_error(tmp_path: Path) -> None:
    with pytest.raises(RunFailedError, match="All 2 trials have failed, the first of them so:\ntrial 0 broke"):
        build_sweep(tmp_path, n_trials=2).run(
            lambda trials, *, watch: [Outcome(f"trial {trial.number} broke") for trial in trials]
        )


def test_values_that_are_not_finite_fail_a_trial(tmp_path: Path) -> None:
    def nan(trials: Sequence[Trial], *, watch: Watch) -> list[Outcome]:
        watch(trials[0], 100, float("nan"))
        return [Outcome()]

    with pytest.raises(RunFailedError, match="No evaluation gave a finite value"):
        build_sweep(tmp_path, n_trials=1).run(nan)


def test_a_trial_that_falls_behind_is_pruned(tmp_path: Path) -> None:
    def get_worse(trials: Sequence[Trial], *, watch: Watch) -> list[Outcome]:
        watch(trials[0], 100, -float(trials[0].number))
        return [Outcome()]

    results = build_sweep(tmp_path, n_trials=8, pruner="median").run(get_worse)
    assert {result.number for result in results if result.state == "pruned"} == {5, 6, 7}


def test_a_metric_that_is_not_measured_is_refused_before_the_sweep_is_begun(tmp_path: Path) -> None:
    space = read_search(["task.hidden_size=int(8, 64)"], config=resolve(NAME))
    options = SweepOptions(experiment=NAME, n_trials=1, metric="acuracy")
    with pytest.raises(ArgumentError, match=r"has accuracy, loss\. Did you mean accuracy"):
        Sweep(tmp_path / "sweep", space=space, options=options)
    assert not (tmp_path / "sweep").exists()


def test_a_file_where_the_sweep_is_to_write_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "sweep"
    file.touch()
    assert main(["tune", f"--experiment={NAME}", "--search=task.hidden_size=int(8, 64)", f"--model_dir={file}"]) == 2
    assert f"--model_dir: `{file}` cannot be made" in capsys.readouterr().err


def test_trials_that_others_are_at_work_on_are_told_at_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = [f"--experiment={NAME}", "--search=task.hidden_size=int(8, 64)", "--pruner=none", "--trials=1"]

    def refuse(directory: Path) -> None:
        raise DirectoryTakenError(f"`{directory}` belongs to another process.")

    def start_again(trials: Sequence[Trial], *, watch: Watch) -> list[Outcome]:
        monkeypatch.setattr("trellis.tuning.sweep.Ownership", refuse)
        assert main(["tune", *flags, f"--model_dir={tmp_path}"]) == 0
        return report_size(trials, watch=watch)

    build_sweep(tmp_path, n_trials=1).run(start_again)
    assert "Another process is at work on 0000: when it ends, the best may be another one." in capsys.readouterr().out


def test_data_of_which_no_program_can_be_made_is_refused_before_the_sweep_is_begun() -> None:
    config = resolve(NAME, settings=["runtime.distribution_strategy=one_device"])
    space = read_search(["task.train_data.global_batch_size=int(8, 16)"], config=config)
    with pytest.raises(ConfigError, match="gives batches of other shapes"):
        run_as_replicas(space, n_together=2)


def test_another_search_in_the_same_directory_is_refused_with_the_difference(tmp_path: Path) -> None:
    build_sweep(tmp_path, n_trials=1).run(report_size)
    with pytest.raises(ArgumentError, match=r"search task.hidden_size: int\(8, 64\) there, int\(8, 32\) now"):
        build_sweep(tmp_path, n_trials=1, most=32)


def test_a_sweep_that_was_killed_goes_on_and_loses_no_trial(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "trellis", "tune", f"--experiment={NAME}", "--search=task.hidden_size=int(8, 16)"]
    command += ["--trials=2", "--pruner=none", "--set=trainer.train_steps=200", f"--model_dir={tmp_path}"]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("Step 100 of 200"):
                process.send_signal(signal.SIGKILL)
                break
    assert process.returncode == -signal.SIGKILL
    again = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    rows = json.loads((tmp_path / "tuner_results.json").read_text())
    assert sorted(row["trial_id"] for row in rows) == ["0000", "0001"], again.stdout
    assert sorted(path.name for path in (tmp_path / "trials").iterdir()) == ["0000", "0001"]


@pytest.mark.cluster
@pytest.mark.skipif("TRELLIS_CLUSTER_TESTS" not in os.environ, reason="minutes: run by `make test-cluster`")
def test_a_killed_trial_goes_on_to_the_bit_and_processes_share_a_sweep(tmp_path: Path) -> None:
    """Two processes, of which one is killed in mid-trial, do what one that is left alone does, each trial once."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    periods = ("checkpoint_interval", "validation_interval", "summary_interval", "steps_per_loop")

    def command(name: str) -> list[str]:
        flags = [f"--experiment={NAME}", "--search=task.hidden_size=choice(256)", "--trials=3", "--pruner=none"]
        flags += [f"--set=trainer.{period}=300" for period in periods]
        flags += ["--set=trainer.train_steps=1200", f"--model_dir={tmp_path / name}"]
        return [sys.executable, "-m", "trellis", "tune", *flags]

    subprocess.run(command("alone"), env=environment, capture_output=True, check=True)
    first = subprocess.Popen(command("shared"), env=environment, stdout=subprocess.DEVNULL)
    second = subprocess.Popen(command("shared"), env=environment, stdout=subprocess.DEVNULL)
    with first, second:
        while not list(tmp_path.glob("shared/trials/*/regular_600")) and first.poll() is None:
            os.sched_yield()
        first.send_signal(signal.SIGKILL)
        assert second.wait() == 0
    rows = json.loads((tmp_path / "shared/tuner_results.json").read_text())
    assert sorted(row["trial_id"] for row in rows) == ["0000", "0001", "0002"]
    for trial in ("0000", "0001", "0002"):
        trials = [str(tmp_path / name / "trials" / trial) for name in ("alone", "shared")]
        compare = [sys.executable, "-m", "trellis", "runs", "diff", *trials]
        told = subprocess.run(compare, env=environment, capture_output=True, text=True, check=True)
        assert told.stdout.startswith("Equal to the bit up to step 1200"), told.stdout
