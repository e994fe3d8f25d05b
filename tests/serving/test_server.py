"""The server as a process: its connections, a switch of versions and its end under load, and what it refuses."""

import asyncio
import http.client
import json
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn

from tests.cli.command import environment, trellis_without_jax
from tests.serving.served_models import export_doubling, without_text
from trellis.errors import ArgumentError
from trellis.serving import server
from trellis.serving.address import bind, check_access


async def slow_to_listen(scope: Any, receive: Any, send: Any) -> None:
    """Answers without reading what is sent."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """That of a server whose callers have a moment for the head of a request."""
    patch = pytest.MonkeyPatch()
    patch.setattr(server, "_HEAD_SECONDS", 0.5)
    patch.setattr(server, "_most_connections", lambda: 20)
    options: Any = {"ws": "none", "lifespan": "off", "log_config": None, "timeout_keep_alive": 1}
    config = uvicorn.Config(slow_to_listen, http=server._Connection, **options)
    running = server._Server(config)
    listening = bind("127.0.0.1", 0)
    thread = threading.Thread(target=lambda: asyncio.run(running.serve(sockets=[listening])))
    thread.start()
    yield listening.getsockname()[1]
    running.should_exit = True
    thread.join(60)
    patch.undo()
    listening.close()


def said_to(port: int, content: bytes) -> bytes:
    """What the server says to some bytes, until it closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(content)
        received = b""
        while part := connection.recv(1 << 16):
            received += part
        return received


@pytest.mark.parametrize(
    ("content", "status", "problem"),
    [
        (b"", b"408", b"has not come within 0.5 seconds"),
        (b"GET / HTTP/1.1\r\nHost: ", b"408", b"has not come within 0.5 seconds"),
        (b"\x16\x03\x01\x02\x00\x01\x00", b"400", b"The request is not HTTP."),
        (b"nonsense\r\n\r\n", b"400", b"The request is not HTTP."),
        (b"GET / HTTP/1.1\r\n\r\n", b"400", b"The request is not HTTP."),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", b"400", b"The request is not HTTP."),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 100_000, b"400", b"The request is not HTTP."),
    ],
)
def test_what_is_no_request_or_does_not_come_is_refused_and_the_connection_ends(
    port: int, content: bytes, status: bytes, problem: bytes
) -> None:
    received = said_to(port, content)
    assert received.startswith(b"HTTP/1.1 " + status)
    assert json.loads(received.partition(b"\r\n\r\n")[2])["error"].encode().find(problem) >= 0


def test_a_caller_who_sends_on_after_the_answer_drop_by_drop_is_cut_off(port: int) -> None:
    head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n"
    assert said_to(port, head + b"x").startswith(b"HTTP/1.1 200")


def test_more_connections_than_there_may_be_are_refused(port: int) -> None:
    connections = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(21)]
    assert connections[-1].recv(1 << 16).startswith(b"HTTP/1.1 503")
    for connection in connections:
        connection.close()


def test_a_port_that_is_in_use_is_told_and_none_is_asked_for_by_0() -> None:
    with bind("127.0.0.1", 0) as listening:
        port = listening.getsockname()[1]
        assert port > 0
        with pytest.raises(ArgumentError, match=f"127.0.0.1:{port} cannot be taken: Address already in use. --port=0"):
            bind("127.0.0.1", port)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "::1", "localhost"])
def test_this_machine_alone_may_ask_without_a_token(host: str) -> None:
    check_access(host, "")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.0.0.1", "localhost.example"])
def test_others_may_not(host: str) -> None:
    with pytest.raises(ArgumentError, match="callers have to show a token"):
        check_access(host, "")
    check_access(host, "correct-horse-battery")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "--model is missing."),
        (["--model=nowhere"], "There is no directory `nowhere`"),
        (["--model=.", "--port=70000"], "--port is 70000"),
        (["--model=.", "--host=0.0.0.0"], "--host: others could ask at 0.0.0.0"),
        (["--model=.", "--batch_sizes=0"], "--batch_sizes=0 is no list of sizes"),
        (["--model=.", "--timeout_seconds=nan"], "--timeout_seconds is nan"),
        (["--model=.", "--name=a/b"], "--name=a/b is no name for an address"),
        (["--model=.", "--token_file=token"], "--token_file: the token has 5 letters"),
    ],
)
def test_serve_refuses_bad_input_before_jax_is_imported(flags: list[str], message: str) -> None:
    Path("token").write_text("short\n")
    done = trellis_without_jax("serve", *flags)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(message)


@pytest.mark.usefixtures("heeds_interrupts")
def test_who_is_connected_when_the_server_stops_listening_may_still_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_LINGER_SECONDS", 0.0)
    monkeypatch.setattr(server, "_LAST_ASK_SECONDS", 60.0)
    monkeypatch.setattr(threading, "Timer", lambda *_: SimpleNamespace(start=lambda: None))
    export_doubling(tmp_path / "it")
    listening = bind("127.0.0.1", 0)
    options = server.ServerOptions(name="it", batch_sizes=[1], drain_seconds=400)
    serving = server._Serving(tmp_path / "it", options, listening, without_text)
    body = json.dumps({"instances": [[1, 2]]}).encode()
    head = b"POST /v1/models/it:predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)

    async def stop_and_ask() -> tuple[bytes, int]:
        running = asyncio.ensure_future(serving.run())
        while serving._versions.current is None:
            await asyncio.sleep(0)
        reader, writer = await asyncio.open_connection(*listening.getsockname())
        signal.raise_signal(signal.SIGTERM)
        while listening.fileno() >= 0:
            await asyncio.sleep(0)
        writer.write(head + body)
        answer = await reader.read()
        writer.close()
        return answer, await running

    answer, code = asyncio.run(stop_and_ask())
    assert answer.startswith(b"HTTP/1.1 200") and answer.endswith(b'{"predictions": [[2.0, 4.0]]}')
    assert code == 0


class Caller:
    """Asks for doubled numbers, one request after the other, on a connection that stays while it can."""

    def __init__(self, port: int, number: int) -> None:
        self._port = port
        self._number = number
        self.answered: list[int] = []
        """The version of each answer."""

    def ask_until_the_end(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=120)
        for count in range(1_000_000):
            inputs = [{"name": "inputs", "datatype": "FP32", "shape": [1, 2], "data": [self._number, count % 1000]}]
            try:
                connection.request("POST", "/v2/models/it/infer", json.dumps({"inputs": inputs}))
                reply = connection.getresponse()
            except OSError:
                return  # nobody listens any more
            document = json.loads(reply.read())
            assert reply.status == 200, document
            version = int(document["model_version"])
            offset = 1000 * (version > 1)
            assert document["outputs"][0]["data"] == [2 * self._number + offset, 2 * (count % 1000) + offset]
            self.answered.append(version)


def test_versions_change_and_the_server_ends_under_load_without_a_request_lost(tmp_path: Path) -> None:
    export_doubling(tmp_path / "it/1")
    export_doubling(tmp_path / "whole", offset=1000)
    command = ["serve", "--model=it", "--port=0", "--json", "--poll_seconds=0.05", "--batch_sizes=1,4"]
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "trellis", *command],
        env=environment(),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None

    def told(event: str) -> dict[str, Any]:
        assert process.stdout is not None
        for line in process.stdout:
            document: dict[str, Any] = json.loads(line)
            if document["event"] == event:
                return document
        raise AssertionError(f"It has ended without {event}: {process.communicate()}")

    try:
        port = told("listening")["port"]
        callers = [Caller(port, number) for number in range(4)]
        told("ready")
        with ThreadPoolExecutor(4) as threads:
            asking = [threads.submit(caller.ask_until_the_end) for caller in callers]
            shutil.copytree(tmp_path / "whole", tmp_path / "it/2")
            (tmp_path / "it/2/parameters.safetensors").write_bytes(b"half")
            assert "`it/2/parameters.safetensors` is damaged" in told("version_refused")["text"]
            shutil.copytree(tmp_path / "whole", tmp_path / "new")
            (tmp_path / "new").rename(tmp_path / "it/3")
            assert told("version_served")["version"] == 3
            n_before = [len(caller.answered) for caller in callers]
            while any(len(caller.answered) < n + 20 for caller, n in zip(callers, n_before, strict=True)):
                ended, _ = wait(asking, timeout=0.05, return_when=FIRST_COMPLETED)
                assert not ended, [each.exception() for each in ended]
            process.send_signal(signal.SIGTERM)
            stopped = told("stopped")
            for each in asking:
                each.result(120)
        assert process.wait(120) == 0, process.communicate()
    finally:
        process.kill()
        _, errors = process.communicate()
    assert errors == ""
    assert stopped["accepted"] == stopped["answered"] == sum(len(caller.answered) for caller in callers)
    assert all({1, 3} == set(caller.answered) and sorted(caller.answered) == caller.answered for caller in callers)
