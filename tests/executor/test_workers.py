"""Runs in processes of their own: what each is told, and how they end."""

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import environment
from tests.executor.pipeline import WRITES_A_MODEL, do, files_below, write_examples, write_module
from trellis.errors import ArgumentError, ModelRefusedError, RunFailedError
from trellis.executor import Executor, Worker, WorkerOrder, start_process

MODEL = Path("out/model/Format-Serving")
CHILD = """
import os, signal, subprocess, sys
from pathlib import Path

def leave_a_child():
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    Path("children", str(child.pid)).touch()
"""


def run(n_workers: int = 2, *, executor: Executor | None = None, **run_args: Any) -> None:
    """Runs `my_module.py` in workers."""
    custom_config = {"trellis_run_args": {"workers": n_workers, **run_args}}
    do(executor or Executor(is_apart=True), custom_config=custom_config)


@pytest.fixture
def no_process_left() -> Iterator[None]:
    """Fails if a child that a worker has noted still runs."""
    Path("children").mkdir()
    yield
    noted = [int(path.name) for path in Path("children").iterdir()]
    assert noted
    for pid in noted:
        assert not is_running(pid)


def is_running(pid: int) -> bool:
    """Whether there is such a process; one that has ended but was not waited for is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_each_worker_knows_who_it_is_and_only_the_chief_publishes() -> None:
    write_module(
        """
        import json, os, pickle
        from pathlib import Path

        def run_fn(fn_args):
            names = ("TF_CONFIG", "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
            variables = {name: os.environ[name] for name in names}
            Path(f"variables_{variables['JAX_PROCESS_ID']}.json").write_text(json.dumps(variables))
            Path(fn_args.serving_model_dir).mkdir(parents=True)
            Path(fn_args.serving_model_dir, "model.pkl").write_bytes(pickle.dumps(variables["JAX_PROCESS_ID"]))
            print("hello from", variables["JAX_PROCESS_ID"])
        """
    )
    run(3)
    variables = [json.loads(Path(f"variables_{index}.json").read_text()) for index in range(3)]
    configs = [json.loads(each["TF_CONFIG"]) for each in variables]
    assert [(each["task"]["type"], each["task"]["index"]) for each in configs] == [
        ("chief", 0),
        ("worker", 0),
        ("worker", 1),
    ]
    assert all(each["cluster"] == configs[0]["cluster"] for each in configs)
    addresses = configs[0]["cluster"]["chief"] + configs[0]["cluster"]["worker"]
    assert len({*addresses, variables[0]["JAX_COORDINATOR_ADDRESS"]}) == 4
    assert [each["JAX_NUM_PROCESSES"] for each in variables] == ["3", "3", "3"]
    assert files_below("out") == ["model/Format-Serving/model.pkl", "run/logs/worker_1.log", "run/logs/worker_2.log"]
    assert pickle.loads((MODEL / "model.pkl").read_bytes()) == "0"
    assert Path("out/run/logs/worker_2.log").read_text() == "hello from 2\n"


@pytest.mark.usefixtures("no_process_left")
def test_workers_fail_as_one_with_the_first_error_in_front() -> None:
    write_module(
        CHILD
        + """
def run_fn(fn_args):
    leave_a_child()
    if os.environ["JAX_PROCESS_ID"] == "1":
        print("about to fail", flush=True)
        raise ValueError("the rate is negative")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.pause()
"""
    )
    with pytest.raises(RunFailedError) as caught:
        run(2)
    text = str(caught.value)
    assert text.startswith("Worker 1 of 2: run_fn has raised ValueError: the rate is negative\n\nTraceback")
    assert 'raise ValueError("the rate is negative")' in text
    assert "trellis/executor" not in text
    assert text.endswith("The end of its output, out/run/logs/worker_1.log:\nabout to fail")
    assert files_below("out/model") == []


@pytest.mark.usefixtures("no_process_left")
def test_a_run_past_its_time_is_stopped_and_told_where_it_was() -> None:
    write_module(
        CHILD + "\ndef run_fn(fn_args):\n    leave_a_child()\n    wait()\n\ndef wait():\n    while True: ...\n"
    )
    with pytest.raises(RunFailedError) as caught:
        run(1, timeout=2)
    text = str(caught.value)
    assert text.startswith("The run has taken more than its 2 seconds (timeout), so it was stopped.\n\nIt was here:")
    assert text.splitlines()[-1].endswith('my_module.py", line 11 in run_fn')
    assert "in wait" in text.splitlines()[-2]
    assert text.splitlines()[-3].endswith("(most recent call first):")


def test_a_worker_that_is_stopped_is_named_after_a_time_that_can_be_set() -> None:
    write_module(
        """
        import os, signal

        def run_fn(fn_args):
            if os.environ["JAX_PROCESS_ID"] == "1":
                print("about to be stopped", flush=True)
                os.kill(os.getpid(), signal.SIGSTOP)
            signal.pause()
        """
    )
    with pytest.raises(RunFailedError) as caught:
        run(2, worker_timeout=0.2, timeout=60)
    text = str(caught.value)
    assert text.startswith("Worker 1 of 2: The process has been stopped (SIGSTOP) for more than 0.2 seconds (worker_ti")
    assert text.endswith("about to be stopped")


def test_a_worker_that_is_stopped_for_a_moment_goes_on() -> None:
    write_module(
        WRITES_A_MODEL.replace(
            "    os.makedirs",
            """
    import signal
    from pathlib import Path
    if os.environ["JAX_PROCESS_ID"] == "1":
        Path(f"{os.getpid()}.pid").touch()
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        while not (others := list(Path().glob("*.pid"))):
            os.sched_yield()
        while Path("/proc", others[0].stem, "stat").read_text().rpartition(")")[2].split()[0] != "T":
            os.sched_yield()
        os.kill(int(others[0].stem), signal.SIGCONT)
    os.makedirs""",
        )
    )
    run(2, worker_timeout=30, timeout=60)
    assert MODEL.is_dir()


def test_the_port_of_the_coordinator_is_on_the_loopback_and_nobody_else_can_take_it() -> None:
    write_module(
        WRITES_A_MODEL.replace(
            "    os.makedirs",
            """
    import socket
    host, port = os.environ["JAX_COORDINATOR_BIND_ADDRESS"].split(":")
    assert os.environ["JAX_COORDINATOR_ADDRESS"] == f"{host}:{port}"
    assert host == "127.0.0.1"
    with socket.socket() as other:
        try:
            other.bind((host, int(port)))
        except OSError as error:
            print(error.strerror)
    os.makedirs""",
        )
    )
    run(2)
    assert Path("out/run/logs/worker_1.log").read_text() == "Address already in use\n"


def test_workers_that_have_joined_do_not_mind_what_a_stranger_sends() -> None:
    write_module(
        WRITES_A_MODEL.replace(
            "    os.makedirs",
            """
    import socket
    import jax
    from pathlib import Path
    from trellis.runtime import is_first_process, join_processes, wait_for_processes

    join_processes()
    wait_for_processes("joined")
    host, port = os.environ["JAX_COORDINATOR_ADDRESS"].split(":")
    if not is_first_process():
        for text in (b"", b"GET / HTTP/1.1", b"PRI * HTTP/2.0" + bytes(range(256)), bytes(4096)):
            with socket.create_connection((host, int(port))) as stranger:
                stranger.sendall(text)
    wait_for_processes("after that")
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()]
    listening = [line[1].split(":") for line in lines if line[3] == "0A"]
    print("listens on", *{place for place, number in listening if int(number, 16) == int(port)})
    os.makedirs""",
        )
    )
    run(2, timeout=120)
    places = Path("out/run/logs/worker_1.log").read_text().split("listens on")[1].split()
    # 127.0.0.1, as the kernel writes it: alone, or in an address of IPv6.
    assert set(places) <= {"0100007F", "0000000000000000FFFF00000100007F"}


def test_a_process_that_exits_at_once_has_not_returned() -> None:
    write_module("import os\n\ndef run_fn(fn_args):\n    os._exit(0)\n")
    with pytest.raises(RunFailedError, match=r"ended with code 0 before run_fn returned, as os._exit\(0\) does"):
        run(1)


def test_a_process_that_crashes_is_named_by_its_signal() -> None:
    write_module("import os\n\ndef run_fn(fn_args):\n    os.kill(os.getpid(), 9)\n")
    with pytest.raises(RunFailedError, match="The process was ended by SIGKILL before run_fn returned"):
        run(1)


def test_an_error_of_trellis_is_told_without_its_trace() -> None:
    write_module(
        "from trellis.errors import DataError\n\ndef run_fn(fn_args):\n    raise DataError('the file is empty')\n"
    )
    with pytest.raises(RunFailedError) as caught:
        run(1)
    assert str(caught.value) == "the file is empty\n\nThat was in run_fn of my_module.py."


def test_problems_before_the_run_are_told_once_not_by_each_worker() -> None:
    write_module("def run(fn_args): ...")
    with pytest.raises(ArgumentError) as caught:
        run(2)
    assert str(caught.value).startswith("`my_module.py` has no run_fn. Did you mean to name `run` so?")


def test_megabytes_of_output_do_no_harm() -> None:
    write_module(WRITES_A_MODEL.replace("    os.makedirs", "    print('line ' * 1_000_000)\n    os.makedirs"))
    run(2)
    assert Path("out/run/logs/worker_1.log").stat().st_size > 5_000_000
    assert MODEL.is_dir()


def test_a_run_apart_is_checked_as_any_other() -> None:
    write_module("def run_fn(fn_args): ...")
    with pytest.raises(ModelRefusedError, match="it does not exist"):
        run(1)


def test_what_cannot_be_given_to_another_process_is_told() -> None:
    write_module()
    with pytest.raises(ArgumentError, match="exec_properties cannot be given to another process: .*Use what JSON"):
        do(Executor(is_apart=True), custom_config={"model": object()})


def test_a_starter_of_ones_own_is_asked_for_every_worker() -> None:
    orders: list[WorkerOrder] = []

    def start(order: WorkerOrder) -> Worker:
        orders.append(order)
        return start_process(order)

    write_module()
    run(2, executor=Executor(start=start))
    assert [order.index for order in orders] == [0, 1]
    assert MODEL.is_dir()


@pytest.mark.usefixtures("no_process_left")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_command_that_is_told_to_stop_leaves_no_process_behind(number: Any) -> None:
    write_examples(Path("data"))
    write_module(
        CHILD + "\ndef run_fn(fn_args):\n    leave_a_child()\n"
        "    Path('children', str(os.getpid())).touch()\n    print('ready', flush=True)\n    signal.pause()\n"
    )
    flags = ["--module_file=my_module.py", "--examples=data", "--model=out/model", "--workers=2"]
    command = [sys.executable, "-m", "trellis", "run", *flags]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        os.kill(process.pid, number)
        # All workers have to end for the pipe to: it is the chief's too.
        process.stdout.read()
    assert process.returncode in (143, -9)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and any(is_running(int(pid)) for pid in os.listdir("children")):
        os.sched_yield()


def test_a_run_that_is_told_to_stop_may_save_first_and_exits_with_143() -> None:
    write_examples(Path("data"))
    write_module(
        """
        import signal
        import time
        from pathlib import Path
        from trellis.errors import Preempted

        def run_fn(fn_args):
            def save(*_):
                Path("saved").touch()
                raise Preempted

            signal.signal(signal.SIGTERM, save)
            print("ready", flush=True)
            while True:  # a signal that comes just before `signal.pause` would not end it
                time.sleep(0.01)
        """
    )
    flags = ["--module_file=my_module.py", "--examples=data", "--model=out/model"]
    command = [sys.executable, "-m", "trellis", "run", *flags]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.terminate()
    assert process.returncode == 143
    assert Path("saved").exists()
    assert not Path("out/model").exists()


def tf_config(kind: str, index: int, **cluster: list[str]) -> str:
    """The variable as a cluster sets it."""
    return json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})


@pytest.mark.parametrize(
    ("text", "publishes"),
    [
        ("", True),
        ('{"task": {"type": "worker", "index": 3}}', True),
        (tf_config("chief", 0, chief=["a:1"], worker=["b:1"]), True),
        (tf_config("master", 0, master=["a:1"], worker=["b:1"]), True),
        (tf_config("worker", 0, chief=["a:1"], worker=["b:1"]), False),
        (tf_config("worker", 0, worker=["a:1", "b:1"]), True),
        (tf_config("worker", 1, worker=["a:1", "b:1"]), False),
    ],
)
@pytest.mark.parametrize("is_apart", [False, True])
def test_of_workers_that_a_cluster_has_started_the_chief_publishes(
    text: str, publishes: bool, is_apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_CONFIG", text)
    write_module()
    do(Executor(is_apart=is_apart))
    assert files_below("out") == ["model/Format-Serving/model.pkl"] * publishes


@pytest.mark.parametrize("is_apart", [False, True])
def test_a_parameter_server_trains_nothing_and_ends_unless_the_run_fn_is_one(
    is_apart: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TF_CONFIG", tf_config("ps", 0, worker=["a:1"], ps=["b:1"]))
    write_module(WRITES_A_MODEL + "    open('called', 'w').close()\n")
    do(Executor(is_apart=is_apart))
    assert not Path("called").exists()
    assert not Path("out").exists()
    assert "a parameter server (ps), and none is needed: the workers keep the parameters" in capsys.readouterr().out
    do(Executor(is_apart=is_apart), custom_config={"trellis_run_args": {"serves_parameters": True}})
    assert Path("called").exists()
    assert files_below("out") == []


def test_a_worker_of_a_cluster_cannot_be_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", tf_config("worker", 0, worker=["a:1"]))
    write_module()
    with pytest.raises(
        ArgumentError, match="TF_CONFIG is set, so a cluster has started this process.* 2 workers itself"
    ):
        run(2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "environment: TF_CONFIG is '{', which is no JSON: "),
        ("[]", "environment: TF_CONFIG is '[]', which is no mapping."),
        (
            '{"cluster": {"worker": ["a:1"]}}',
            "environment: TF_CONFIG has a cluster, but does not say which part of it ",
        ),
    ],
)
def test_a_broken_description_of_the_cluster_is_told(text: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", text)
    write_module()
    with pytest.raises(ArgumentError) as caught:
        do()
    assert str(caught.value).startswith(message)
