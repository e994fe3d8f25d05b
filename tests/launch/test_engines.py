"""Runs on real engines end as undisturbed ones do, to the bit, whatever is killed on the way: `make test-cluster`."""

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from tests.executor.pipeline import write_examples
from trellis.experiments import RunRecord
from trellis.extensions import checkpoint_storage

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif("TRELLIS_CLUSTER_TESTS" not in os.environ, reason="run by `make test-cluster`"),
]
LAST = 3000
SETTINGS = [
    f"trainer.train_steps={LAST}",
    *(f"trainer.{name}_interval=200" for name in ("checkpoint", "validation", "summary")),
]
SECONDS = 900
DRAIN = """
import subprocess, sys, ray
ray.init(address=sys.argv[1], log_to_driver=False)
node = next(node["NodeID"] for node in ray.nodes() if "doomed" in node["Resources"])
reason = ("--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=taken", "--deadline-remaining-seconds=5")
command = [sys.executable, "-m", "ray.scripts.scripts", "drain-node", f"--address={sys.argv[1]}", f"--node-id={node}"]
subprocess.run([*command, *reason], check=True)
"""
_SLURM_CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
FirstJobId={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=cred_expire=15
SchedulerParameters=sched_interval=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def command(model_dir: Path) -> list[str]:
    return [
        *("train", "--experiment=digits/classifier", "--mode=train_and_eval", f"--model_dir={model_dir}"),
        *(f"--set={setting}" for setting in SETTINGS),
    ]


def environment(**more: str) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "XLA_FLAGS": "", "JAX_PLATFORMS": "cpu", **more}


def launch(*arguments: str, **more: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "trellis", "launch", *arguments],
        env=environment(**more),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for(is_there: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not is_there():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def has_saved(model_dir: Path) -> bool:
    return any(model_dir.glob("regular_*"))


def wait_until_saved(launcher: "subprocess.Popen[str]", model_dir: Path) -> None:
    wait_for(lambda: has_saved(model_dir) or launcher.poll() is not None)
    assert launcher.poll() is None, launcher.communicate()[0]


def finish(process: "subprocess.Popen[str]") -> str:
    output = process.communicate(timeout=SECONDS)[0]
    assert process.returncode == 0, output
    return output


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two processes that nobody disturbs."""
    folder = tmp_path_factory.mktemp("undisturbed")
    finish(launch("--processes=2", "--", *command(folder)))
    return folder


def assert_equal(folder: Path, other: Path) -> None:
    first, second = (read(each / f"regular_{LAST}") for each in (folder, other))
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])


def read(file: Path) -> dict[str, np.ndarray]:
    return checkpoint_storage.read_arrays(file, checkpoint_storage.peek_manifest(file)["tree"])


@pytest.mark.parametrize("index", [0, 1])
def test_a_process_that_is_killed_on_this_machine(undisturbed: Path, tmp_path: Path, index: int) -> None:
    launcher = launch("--processes=2", "--restarts=1", "--", *command(tmp_path / "run"))
    wait_until_saved(launcher, tmp_path / "run")
    os.kill(process_of(launcher.pid, index), signal.SIGKILL)
    output = finish(launcher)
    assert f"Process {index} of 2 was ended by SIGKILL" in output
    assert_equal(undisturbed, tmp_path / "run")


def process_of(launcher: int, index: int) -> int:
    """The process of an index that a launcher has started."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    wanted = f"JAX_PROCESS_ID={index}".encode()
    (found,) = (pid for pid in children if wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    return int(found)


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")
def test_a_node_of_ray_that_is_killed(undisturbed: Path, tmp_path: Path) -> None:
    with ExitStack() as stack:
        address, _ = stack.enter_context(ray_node("--head", "--num-cpus=0", "--include-dashboard=false"))
        stack.enter_context(ray_node(f"--address={address}"))
        _, doomed = stack.enter_context(ray_node(f"--address={address}"))
        arguments = ("--on=ray", f"--address={address}", "--processes=2", "--restarts=3")
        launcher = launch(*arguments, "--", *command(tmp_path / "run"), RAY_AUTH_MODE="disabled")
        wait_until_saved(launcher, tmp_path / "run")
        os.killpg(doomed, signal.SIGKILL)
        stack.enter_context(ray_node(f"--address={address}"))
        finish(launcher)
    assert_equal(undisturbed, tmp_path / "run")


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")
def test_a_run_on_ray_goes_on_with_the_processes_that_there_is_room_for(undisturbed: Path, tmp_path: Path) -> None:
    with ExitStack() as stack:
        address, _ = stack.enter_context(ray_node("--head", "--num-cpus=0", "--include-dashboard=false"))
        stack.enter_context(ray_node(f"--address={address}"))
        _, doomed = stack.enter_context(ray_node(f"--address={address}"))
        arguments = ("--on=ray", f"--address={address}", "--processes=1:2", "--restarts=1")
        launcher = launch(*arguments, "--", *command(tmp_path / "run"), RAY_AUTH_MODE="disabled")
        wait_until_saved(launcher, tmp_path / "run")
        os.killpg(doomed, signal.SIGKILL)
        output = finish(launcher)
    assert "devices: 2 cpu → 1 cpu" in output
    expected, found = RunRecord(undisturbed), RunRecord(tmp_path / "run")
    assert found.batch_digits == expected.batch_digits
    assert found.metrics.keys() == expected.metrics.keys()
    assert found.metrics[LAST]["eval/accuracy"] == pytest.approx(expected.metrics[LAST]["eval/accuracy"], abs=0.02)


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")
def test_a_machine_that_ray_is_told_to_take_away_is_no_failure(undisturbed: Path, tmp_path: Path) -> None:
    with ExitStack() as stack:
        address, _ = stack.enter_context(ray_node("--head", "--num-cpus=0", "--include-dashboard=false"))
        stack.enter_context(ray_node(f"--address={address}"))
        _, doomed = stack.enter_context(ray_node(f"--address={address}", '--resources={"doomed": 1}'))
        arguments = ("--on=ray", f"--address={address}", "--processes=2", "--restarts=0")
        launcher = launch(*arguments, "--", *command(tmp_path / "run"), RAY_AUTH_MODE="disabled")
        wait_until_saved(launcher, tmp_path / "run")
        drain = [sys.executable, "-c", DRAIN, address]
        subprocess.run(drain, env=environment(RAY_AUTH_MODE="disabled"), check=True, timeout=SECONDS)
        os.killpg(doomed, signal.SIGKILL)
        stack.enter_context(ray_node(f"--address={address}"))
        finish(launcher)
    assert_equal(undisturbed, tmp_path / "run")


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")
@pytest.mark.parametrize("lost", ["a process", "an actor", "a machine"])
def test_a_module_on_ray_that_loses(undisturbed: Path, tmp_path: Path, lost: str) -> None:
    with ExitStack() as stack:
        address, _ = stack.enter_context(ray_node("--head", "--num-cpus=0", "--include-dashboard=false"))
        nodes = [stack.enter_context(ray_node(f"--address={address}"))[1] for _ in range(2)]
        arguments = ("--on=ray", f"--address={address}", "--processes=2", "--restarts=1", f"--logs={tmp_path}/logs")
        settings = {"experiment": "digits/classifier", "set": SETTINGS}
        module = ("run", "--run_fn=trellis.experiments.run_fn", f"--custom_config={json.dumps(settings)}")
        write_examples(tmp_path / "data")
        directories = (f"--examples={tmp_path}/data", f"--model={tmp_path}/model", f"--model_run={tmp_path}/run")
        launcher = launch(*arguments, "--", *module, *directories, RAY_AUTH_MODE="disabled")
        wait_until_saved(launcher, tmp_path / "run")
        (doomed,) = (pid for pid in pids() if is_process_of_module(pid, tmp_path / "run", index=1))
        if lost == "a process":
            os.kill(doomed, signal.SIGKILL)
        elif lost == "an actor":
            os.kill(parent_of(doomed), signal.SIGKILL)
        else:
            os.killpg(next(node for node in nodes if node in ancestors(doomed)), signal.SIGKILL)
            stack.enter_context(ray_node(f"--address={address}"))
        output = finish(launcher)
        assert not [pid for pid in pids() if is_process_of_module(pid, tmp_path / "run", index=1)]
    ending = "was ended by SIGKILL" if lost == "a process" else "has ended with code 75"
    assert f"Process 1 of 2 {ending}" in output, output
    assert (tmp_path / "model").is_dir()
    assert_equal(undisturbed, tmp_path / "run")


def pids() -> list[int]:
    return [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]


def is_process_of_module(pid: int, model_run: Path, *, index: int) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    is_of_run = f"--model_run={model_run}".encode() in command and b"launch" not in command
    return is_of_run and f"JAX_PROCESS_ID={index}".encode() in variables


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().partition("PPid:")[2].split()[0])


def ancestors(pid: int) -> list[int]:
    found = []
    while pid > 1:
        pid = parent_of(pid)
        found.append(pid)
    return found


@contextmanager
def ray_node(*options: str) -> Iterator[tuple[str, int]]:
    """A node of Ray: the address of its cluster, if it is the head, and the number of its process group."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as other:
        port, client_port = (each.getsockname()[1] for each in (server, other))
    # Of two heads on a machine one would not get the port for clients that is Ray's own choice.
    head = (f"--port={port}", f"--ray-client-server-port={client_port}") if "--head" in options else ()
    own = ("--block", "--object-store-memory=150000000", *head)
    cpus = () if "--num-cpus=0" in options else ("--num-cpus=1",)
    node = subprocess.Popen(
        [str(Path(sys.executable).with_name("ray")), "start", *own, *cpus, *options],
        # Ray would end what runs here if other programs took most of the memory, and have it wait for their work.
        env=environment(RAY_AUTH_MODE="disabled", RAY_memory_monitor_refresh_ms="0", RAY_worker_niceness="0"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert node.stdout is not None
    lines = []
    for line in node.stdout:
        lines.append(line)
        if "Ray runtime started" in line:
            break
    else:
        node.wait()
        raise AssertionError("".join(lines))
    try:
        yield f"127.0.0.1:{port}", node.pid
    finally:
        with suppress(ProcessLookupError):
            os.killpg(node.pid, signal.SIGKILL)
        node.stdout.close()
        node.wait()


@pytest.mark.skipif(shutil.which("slurmctld") is None or os.getuid() != 0, reason="needs slurmctld, and to be root")
def test_a_job_of_slurm_that_is_told_to_stop_goes_on_by_itself(undisturbed: Path, tmp_path: Path) -> None:
    with slurm(tmp_path / "slurm") as conf:
        launcher = launch("--on=slurm", "--processes=2", "--", *command(tmp_path / "run"), SLURM_CONF=conf)
        output = finish(launcher)
        job = output.split()[1]
        wait_for(lambda: has_saved(tmp_path / "run"))
        subprocess.run(["scancel", "--signal=TERM", job], env=environment(SLURM_CONF=conf), check=True)
        # SLURM lets a job that is started again wait as long as its `cred_expire` says.
        state = ["squeue", "--noheader", "--states=all", "--format=%T", f"--job={job}"]
        wait_for(lambda: subprocess.check_output(state, env=environment(SLURM_CONF=conf)) == b"COMPLETED\n")
    log = (tmp_path / f"run/logs/slurm-{job}.log").read_text()
    assert "Stopped and saved: the job waits to be started again." in log
    assert_equal(undisturbed, tmp_path / "run")


@contextmanager
def slurm(folder: Path) -> Iterator[str]:
    """SLURM's own daemons for one node, this machine; the path of their configuration."""
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    with socket.create_server(("", 0)) as one, socket.create_server(("", 0)) as two:
        ports = [one.getsockname()[1], two.getsockname()[1]]
    # JAX takes the port of its coordinator from the number of the job: two that run at once need two numbers.
    conf = folder / "slurm.conf"
    conf.write_text(_SLURM_CONF.format(host=socket.gethostname().partition(".")[0], folder=folder, ports=ports))
    subprocess.run(["service", "munge", "start"], check=True, capture_output=True)
    own = environment(SLURM_CONF=str(conf))
    daemons = [
        subprocess.Popen([name, "-D", *more], env=own, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for name, *more in (("slurmctld", "-c"), ("slurmd",))
    ]
    try:
        wait_for(lambda: b"idle" in subprocess.run(["sinfo"], env=own, capture_output=True, check=False).stdout)
        yield str(conf)
    finally:
        # What SLURM has started outlives its daemons if these are ended before they have heard of the end.
        subprocess.run(["scancel", "--me"], env=own, check=False)
        wait_for(lambda: not subprocess.run(["squeue", "--noheader"], env=own, capture_output=True, check=False).stdout)
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait()
