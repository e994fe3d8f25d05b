"""An experiment on several processes: the modes it has, what is checked first, and what happens to them."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import trellis
from tests.cli.command import REPOSITORY, environment
from trellis.errors import ProcessLostError, RunFailedError
from trellis.experiments import preflight
from trellis.experiments.processes import describe_devices, find_differences, identity_of, naming_loss
from trellis.extensions import checkpoint_storage
from trellis.loops import CLOCKED_METRICS

SHORT_STAGES = {
    "trainer.train_steps": 40,
    "trainer.progressive.num_stages": 2,
    "trainer.progressive.steps_per_stage": 20,
    "trainer.checkpoint_interval": 5,
    "trainer.validation_interval": 20,
    "trainer.steps_per_loop": 5,
    "trainer.summary_interval": 10,
}
SHORT_DIGITS = {
    "trainer.train_steps": 10,
    "trainer.checkpoint_interval": 5,
    "trainer.validation_interval": 5,
    "trainer.steps_per_loop": 5,
    "trainer.summary_interval": 5,
    "trainer.optimizer_config.warmup.linear.warmup_steps": 1,
    "runtime.distribution_strategy": "mirrored",
}
STAGES = ("--experiment=rows/stacking", "--mode=train_and_eval", *(f"--set={k}={v}" for k, v in SHORT_STAGES.items()))
DIGITS = ("--experiment=digits/classifier", *(f"--set={k}={v}" for k, v in SHORT_DIGITS.items()))
# What befalls the second process, each once: it is killed between two stages, stopped, stuck, and told to stop.
HURTS = f"""
import importlib.util, os, signal, sys, time
from pathlib import Path

spec = importlib.util.spec_from_file_location("progressive", {str(REPOSITORY / "examples/04_progressive.py")!r})
progressive = sys.modules["progressive"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(progressive)


def once(name):
    file = Path(name)
    if os.environ["JAX_PROCESS_ID"] != "1" or file.exists():
        return False
    file.touch()
    return True


class Hurting:
    def __init__(self, stream):
        self.stream = stream

    def batch(self, step):
        if step >= 25 and once("stopped"):
            os.kill(os.getpid(), signal.SIGSTOP)
        if step >= 25 and once("stuck"):
            time.sleep(10_000)
        if step >= 28 and once("told"):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(2)  # the others hear of it before the run is over
        return self.stream.batch(step)


build_inputs, get_model = progressive.RowsTask.build_inputs, progressive.StackingPolicy.get_model


def hurting_inputs(self, params, input_context=None):
    stream = build_inputs(self, params, input_context)
    return Hurting(stream) if params.is_training and Path("hurts").exists() else stream


def hurting_model(self, stage_id, old_model=None):
    if stage_id == 1 and Path("hurts").exists() and once("killed"):
        os.kill(os.getpid(), signal.SIGKILL)
    return get_model(self, stage_id, old_model)


progressive.RowsTask.build_inputs = hurting_inputs
progressive.StackingPolicy.get_model = hurting_model
"""


def launch(*flags: str, command: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """Runs a command in two processes."""
    line = [sys.executable, "-m", "trellis", "launch", "--processes=2", *flags, "--", "train", *command]
    return subprocess.run(line, env=environment(), capture_output=True, text=True, timeout=400, check=False)


def parameters(file: Path) -> Any:
    arrays = checkpoint_storage.read_arrays(file, checkpoint_storage.peek_manifest(file)["tree"])
    return {name: np.asarray(array) for name, array in arrays.items()}


def summaries(directory: Path) -> dict[int, Any]:
    """What a run has reported, by step, without what the clock says."""
    events = map(json.loads, (directory / "events.jsonl").read_text().splitlines())
    return {
        event["step"]: {
            f"{group}/{name}": value
            for group, values in event["metrics"].items()
            for name, value in values.items()
            if name not in CLOCKED_METRICS
        }
        for event in events
        if event["kind"] == "summary"
    }


@pytest.mark.cluster
@pytest.mark.skipif("TRELLIS_CLUSTER_TESTS" not in os.environ, reason="a minute or two: run by `make test-cluster`")
def test_stages_that_are_killed_stopped_stuck_and_told_to_stop_end_as_if_nothing_had_happened(tmp_path: Path) -> None:
    Path("hurting.py").write_text(HURTS)
    stages = ("--module=hurting.py", *STAGES)
    undisturbed = launch(command=(*stages, "--model_dir=undisturbed"))
    assert undisturbed.returncode == 0, undisturbed.stdout + undisturbed.stderr
    assert re.search(r"^2 processes: 0-1 on \S+: 1 × cpu each\.$", undisturbed.stdout, re.MULTILINE)

    Path("hurts").touch()
    flags = ("--restarts=3", "--worker_timeout=5", "--progress_timeout=12")
    hurt = launch(*flags, command=(*stages, "--model_dir=hurt"))
    told = hurt.stdout + hurt.stderr
    assert hurt.returncode == 143, told
    assert "Process 1 of 2 was ended by SIGKILL. All were ended." in told
    assert re.search(r"Process 1 on \S+ is stopped or gone: nothing was heard of it for 5 seconds", told)
    stuck = r"Process 1 on \S+ has made no progress for 12 seconds .*process 1 on \S+ is at step 2\d, waiting for input"
    assert re.search(stuck, told)
    assert "File " in told, "the stacks of all processes"
    assert re.search(r"Stopped by SIGTERM: saved step [23]\d\. The same command continues the run", told)
    for name in ("killed", "stopped", "stuck", "told"):
        assert Path(name).exists()

    rest = launch(command=(*stages, "--model_dir=hurt"))
    assert rest.returncode == 0, rest.stdout + rest.stderr
    expected, found = (parameters(tmp_path / name / "regular_40") for name in ("undisturbed", "hurt"))
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
    assert summaries(tmp_path / "hurt") == summaries(tmp_path / "undisturbed")

    # One process alone has the same losses and the same files.
    Path("hurts").unlink()
    line = [sys.executable, "-m", "trellis", "train", *stages, "--model_dir=alone"]
    subprocess.run(line, env=environment() | {"JAX_PROCESS_ID": "0"}, check=True, timeout=400)
    alone, together = summaries(tmp_path / "alone"), summaries(tmp_path / "undisturbed")
    assert list(alone) == list(together)
    for step, values in alone.items():
        assert values == pytest.approx(together[step], rel=1e-4), step
    files = [{path.name for path in (tmp_path / name).iterdir()} - {"logs"} for name in ("alone", "undisturbed")]
    assert files[0] == files[1]


@pytest.mark.cluster
@pytest.mark.skipif("TRELLIS_CLUSTER_TESTS" not in os.environ, reason="a minute: run by `make test-cluster`")
def test_modes_that_follow_files_do_so_in_several_processes(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "trellis", "train", *DIGITS, "--mode=train", "--model_dir=pretraining"]
    subprocess.run(line, env=environment(), check=True, timeout=400)
    follow = ("--mode=continuous_eval", "--model_dir=pretraining", "--set=trainer.continuous_eval_timeout=1")
    evaluated = launch(command=(*DIGITS, *follow))
    assert evaluated.returncode == 0, evaluated.stdout + evaluated.stderr
    assert re.findall(r"Step +(\d+)  eval/accuracy", evaluated.stdout) == ["5", "10"]
    assert len(list((tmp_path / "pretraining/best").glob("highest_*"))) == 1
    tune = (
        "--mode=continuous_train_and_eval",
        "--model_dir=tuned",
        "--pretrain_steps=5",
        "--set=task.init_checkpoint=pretraining",
    )
    tuned = launch(command=(*DIGITS, *tune))
    assert tuned.returncode == 0, tuned.stdout + tuned.stderr
    logs = json.loads((tmp_path / "tuned/metrics-5.json").read_text())
    assert f"  eval/accuracy {logs['accuracy']:.6g}\n" in tuned.stdout
    assert {path.name for path in (tmp_path / "tuned").iterdir()} >= {"pretrained_5", "metrics-5.json"}


def test_a_directory_that_is_not_shared_is_told_before_anything_is_compiled(tmp_path: Path) -> None:
    Path("apart.py").write_text("import os\nos.chdir('ab'[int(os.environ['JAX_PROCESS_ID'])])\n")
    for name in "ab":
        (tmp_path / name).mkdir()
    wrong = launch(command=(*DIGITS, "--module=apart.py", "--mode=train", "--model_dir=run"))
    assert wrong.returncode == 2, wrong.stdout + wrong.stderr
    assert re.search(
        r"model_dir is `run`, which all processes have to share, but process 1 on \S+ does not see what process 0 on "
        r"\S+ has written there\. Give a directory of a file system that all machines have mounted\.",
        wrong.stderr,
    )
    assert "Total model initialization time" not in wrong.stdout


@pytest.mark.parametrize("kind", [jax.errors.JaxRuntimeError, ValueError])
def test_what_jax_raises_when_a_process_is_gone_is_said_in_words(kind: type[Exception]) -> None:
    with (
        pytest.raises(ProcessLostError, match="^Process 0 has lost another process, as it computed with it"),
        naming_loss(),
    ):
        raise kind("UNKNOWN: Gloo all-reduce failed: Read error: Connection reset by peer")
    with pytest.raises(kind, match="^What is negative"), naming_loss():
        raise kind("What is negative has no root.")


def test_processes_tell_in_what_they_differ_from_the_first() -> None:
    first = identity_of(trellis.get_exp_config("digits/classifier"))
    other = trellis.get_exp_config("digits/classifier")
    other.override({"task": {"hidden_size": 12}})
    assert find_differences(first, first) == []
    assert find_differences(identity_of(other), first) == ["the config's task.hidden_size is 12 and not 64"]
    trains, evaluates = (identity_of(other, options={"mode": mode}) for mode in ("train", "train_and_eval"))
    assert find_differences(trains, evaluates) == ["mode is train and not train_and_eval"]
    bound = identity_of(other, bindings=["Trainer.save_summary=False"])
    assert find_differences(bound, identity_of(other)) == [
        "what is bound by gin is Trainer.save_summary=False and not missing"
    ]
    older = {**first, "the version of jax": "0.9"}
    assert find_differences(older, first) == [f"the version of jax is 0.9 and not {jax.__version__}"]
    assert find_differences({}, {str(number): "x" for number in range(9)})[-1] == "and 4 more"
    assert any(name.startswith("the module tests.") for name in first), "code of one's own counts"


def test_the_map_of_devices_is_short() -> None:
    names = [f"process {index} on node-{'ab'[index // 4]}" for index in range(8)]
    text = describe_devices(names, ["1 × L4"] * 7 + ["2 × L4 (0-1)"])
    assert text == "8 processes: 0-3 on node-a: 1 × L4 each; 4-6 on node-b: 1 × L4 each; 7 on node-b: 2 × L4 (0-1)."


def test_data_of_another_length_is_told_with_the_names_of_who_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def outline(n_batches: int) -> Any:
        class Sized:
            def __init__(self) -> None:
                self.n_batches = n_batches

            def batch(self, step: int) -> Any:
                raise NotImplementedError

        class Side:
            data = Sized()

        class Both:
            train = Side()
            validation = None

        return Both()

    preflight.check_batch_counts(outline(7))
    monkeypatch.setattr(preflight, "gathered", lambda name, own: [own, {"training data": 6}])
    with pytest.raises(RunFailedError, match="training data does not have .* process 0 has 7, process 1 has 6. Give"):
        preflight.check_batch_counts(outline(7))
