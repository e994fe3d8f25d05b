"""How processes join: where the first one listens, and what is told before JAX is asked."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import jax
import pytest

from trellis.errors import ArgumentError, ProcessLostError, RunFailedError
from trellis.runtime import gathered, hear, join_processes

ELSEWHERE = "192.0.2.77"
"""An address of documentations, which no machine has."""


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What JAX is asked for."""
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(
        "jax.distributed.initialize", lambda address, **more: calls.append({"address": address, **more})
    )
    monkeypatch.setattr("jax.config.update", lambda name, value: None)
    monkeypatch.setattr("trellis.runtime.roll_call.RollCall.hold", lambda self, bind_address: None)
    return calls


@pytest.fixture
def busy_port() -> Iterator[int]:
    """A port that somebody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def variables(address: str, *, index: int = 0, **more: str) -> dict[str, str]:
    """The environment of one of two processes."""
    return {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": str(index), **more}


def test_one_process_alone_joins_nobody(joined: list[dict[str, Any]]) -> None:
    join_processes({})
    assert joined == []


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_on_one_machine_the_first_listens_on_the_loopback_and_says_nothing(
    host: str, joined: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    address = f"{host}:{free_port()}"
    join_processes(variables(address))
    assert joined[0]["coordinator_bind_address"] == address
    assert joined[0]["heartbeat_timeout_seconds"] == 100
    assert capsys.readouterr().out == ""


def test_of_several_machines_the_first_says_where_it_listens(
    joined: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    join_processes(variables(f"{ELSEWHERE}:{port}"))
    assert joined[0]["coordinator_bind_address"] == f"[::]:{port}"
    assert f"Waiting for 1 more processes on all interfaces, port {port}. JAX asks nobody" in capsys.readouterr().out


def test_another_than_the_first_listens_nowhere_and_says_nothing(
    joined: list[dict[str, Any]], busy_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    join_processes(variables(f"127.0.0.1:{busy_port}", index=1))
    assert joined[0]["process_id"] == 1
    assert capsys.readouterr().out == ""


def test_the_address_to_listen_at_can_be_chosen(joined: list[dict[str, Any]]) -> None:
    port = free_port()
    chosen = {"JAX_COORDINATOR_BIND_ADDRESS": f"127.0.0.1:{port}"}
    join_processes(variables(f"{ELSEWHERE}:{port}", **chosen))
    assert joined[0]["coordinator_bind_address"] == f"127.0.0.1:{port}"
    assert joined[0]["address"] == f"{ELSEWHERE}:{port}"


def test_a_silent_process_is_named_by_its_starter_before_jax_ends_the_others(joined: list[dict[str, Any]]) -> None:
    join_processes(variables(f"127.0.0.1:{free_port()}", TRELLIS_WORKER_TIMEOUT="7.5"))
    assert joined[0]["heartbeat_timeout_seconds"] == 45


@pytest.mark.usefixtures("joined", "heeds_interrupts")
def test_ctrl_c_ends_a_process_that_waits_for_others_to_leave_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called_at_exit: list[Callable[[], None]] = []
    monkeypatch.setattr("atexit.register", called_at_exit.append)
    join_processes(variables(f"127.0.0.1:{free_port()}"))
    (before_jax_waits,) = called_at_exit
    before_jax_waits()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL


def test_a_port_in_use_is_told_before_jax_is_asked(joined: list[dict[str, Any]], busy_port: int) -> None:
    with pytest.raises(ArgumentError, match=f"is to listen at 127.0.0.1:{busy_port} .* Give all of them another port."):
        join_processes(variables(f"127.0.0.1:{busy_port}"))
    assert joined == []


def test_an_address_without_a_port_is_told(joined: list[dict[str, Any]]) -> None:
    with pytest.raises(ArgumentError, match=r"is 'machine'. Give HOST:PORT, as in 10.0.0.1:8476."):
        join_processes(variables("machine"))


def tf_config(index: int, *, kind: str = "worker", **cluster: list[str]) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})}


def test_a_cluster_is_known_from_tf_config(joined: list[dict[str, Any]]) -> None:
    hosts = [f"127.0.0.1:{free_port()}", "10.0.0.2:1", "10.0.0.3:1"]
    join_processes(tf_config(2, worker=hosts))
    join_processes(tf_config(1, chief=hosts[:1], worker=hosts[1:], ps=["10.0.0.9:1"]))
    join_processes(tf_config(0, kind="chief", chief=hosts[:1], worker=hosts[1:]))
    assert [call["process_id"] for call in joined] == [2, 2, 0]
    assert {(call["address"], call["num_processes"]) for call in joined} == {(hosts[0], 3)}
    join_processes(tf_config(0, worker=hosts[:1]))
    join_processes(tf_config(0, kind="evaluator", chief=hosts[:1]))
    join_processes({"TF_CONFIG": ""})
    assert len(joined) == 3


def test_jax_variables_go_before_tf_config(joined: list[dict[str, Any]]) -> None:
    address = f"127.0.0.1:{free_port()}"
    join_processes(variables(address) | tf_config(2, worker=["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"]))
    assert joined[0]["address"] == address


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"JAX_NUM_PROCESSES": "two"}, "JAX_NUM_PROCESSES is 'two'. Each of several processes needs"),
        ({"JAX_NUM_PROCESSES": "2"}, "JAX_PROCESS_ID is not set. Each of"),
        ({"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "2"}, "JAX_PROCESS_ID is 2, but of 2 processes the last is 1"),
        ({"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1"}, "JAX_COORDINATOR_ADDRESS is not set. Give all of them"),
        ({"TF_CONFIG": "{"}, "TF_CONFIG is '{', which is no JSON: Expecting property name"),
        ({"TF_CONFIG": '{"cluster": {"worker": ["a:1", "b:1"]}}'}, "TF_CONFIG has a cluster, but does not say which"),
        (tf_config(5, worker=["a:1", "b:1"]), "TF_CONFIG is .* does not say which of several workers"),
        (tf_config(0, kind="evaluator", worker=["a:1", "b:1"]), "TF_CONFIG is .* does not say which of several"),
        (
            tf_config(0, kind="ps", worker=["a:1", "b:1"], ps=["c:1"]),
            r"this process is a parameter server \(ps\). None is",
        ),
        (
            tf_config(0, kind="ps", worker=["a:1"], ps=["c:1"]),
            r"this process is a parameter server \(ps\). None is needed",
        ),
    ],
)
def test_an_environment_that_does_not_say_who_this_is_is_told(environment: dict[str, str], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        join_processes(environment)


class Service:
    """The coordination service, as a process of three sees it."""

    def __init__(self, **told: str) -> None:
        self.told = told

    def blocking_key_value_get(self, key: str, milliseconds: int) -> str:
        raise jax.errors.JaxRuntimeError("DEADLINE_EXCEEDED: GetKeyValue() timed out")

    def key_value_dir_get(self, directory: str) -> list[tuple[str, str]]:
        return [(key, text) for key, text in self.told.items() if key.startswith(directory)]

    def key_value_try_get(self, key: str) -> str:
        return self.told[key] if key in self.told else self.blocking_key_value_get(key, 0)

    def key_value_set(self, key: str, text: str) -> None:
        assert key not in self.told
        self.told[key] = text

    def key_value_delete(self, directory: str) -> None:
        self.told = {key: text for key, text in self.told.items() if not key.startswith(directory)}


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    service = Service()
    monkeypatch.setattr("trellis.runtime.agreement.client", lambda: service)
    monkeypatch.setattr("trellis.runtime.agreement._visits", Counter())
    monkeypatch.setattr("jax.process_count", lambda: 3)
    return service


def test_processes_that_say_nothing_are_named(service: Service) -> None:
    service.told = {"trellis/a save/1": '"done"', "trellis/host/2": "node-b"}
    assert hear("a save", place="saving step 4", processes=[1]) == ["done"]
    message = "^After 0.1 seconds nothing was heard of process 0, process 2 on node-b, of 3 processes, while saving"
    with pytest.raises(ProcessLostError, match=message):
        hear("a save", place="saving step 4", seconds=0.1)


def test_what_processes_have_gathered_is_not_kept(service: Service) -> None:
    for number in range(4):
        others = {f"trellis/gathered/{number}/{index}": json.dumps(f"{number} of {index}") for index in (1, 2)}
        service.told |= others
        assert gathered(f"place {number}", "mine") == ["mine", f"{number} of 1", f"{number} of 2"]
        assert {key.split("/")[2] for key in service.told} == {str(number)}


def test_who_waits_for_one_that_has_failed_fails_as_it_did(service: Service) -> None:
    service.told = {"trellis/failed/1": json.dumps({"text": "the disk is full", "is_lost": False})}
    with pytest.raises(RunFailedError, match="^Process 1 has failed, so this one ends too: the disk is full") as caught:
        gathered("saving step 4")
    assert not isinstance(caught.value, ProcessLostError)
    service.told = {"trellis/failed/1": json.dumps({"text": "nothing was heard of process 2", "is_lost": True})}
    with pytest.raises(ProcessLostError, match="nothing was heard of process 2"):
        gathered("saving step 4")


IMPORTS = """
import sys
from jax._src import distributed
from trellis.cli.main import main
from trellis.errors import RunFailedError
from trellis.runtime import join_processes, failing_together, wait_for_processes

is_first = sys.argv[1] == "0"
"""
FAILS_WHEN_JOINED = """
join_processes()
with failing_together():
    if is_first:
        raise RunFailedError("The disk is gone.")
    wait_for_processes("meeting")
"""
IS_INTERRUPTED_WHILE_JOINING = """
def interrupt(state):
    raise KeyboardInterrupt

if is_first:
    distributed.State.initialize_preemption_sync_manager = interrupt
sys.exit(main(["train", "--experiment=digits/classifier", "--mode=train", "--model_dir=run"]))
"""


@pytest.mark.parametrize(
    ("source", "ending", "code", "told"),
    [
        (FAILS_WHEN_JOINED, "RunFailedError: The disk is gone.", 1, f" on {socket.gethostname()}: The disk is gone."),
        (IS_INTERRUPTED_WHILE_JOINING, "Interrupted.", 130, ": KeyboardInterrupt"),
    ],
)
def test_one_that_fails_ends_the_others_while_jax_waits_for_it(source: str, ending: str, code: int, told: str) -> None:
    address = f"127.0.0.1:{free_port()}"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", IMPORTS + source, str(index)],
            env=os.environ | variables(address, index=index) | {"PYTHONPATH": os.pathsep.join(sys.path)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    first, other = (process.communicate(timeout=120)[1] for process in processes)
    assert first.endswith(f"{ending}\n")
    place, _, text = told.partition(": ")
    assert other.endswith(f"Process 0{place} has failed, so this one ends too: {text}\n")
    assert [process.returncode for process in processes] == [code, 2]
