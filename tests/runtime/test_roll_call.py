"""Processes that are to join are called, and whoever does not come is named in all that have."""

import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from trellis.errors import ArgumentError, ProcessLostError
from trellis.runtime.roll_call import RollCall

SECONDS = 60.0


@pytest.fixture
def address() -> str:
    """Where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def call(pool: ThreadPoolExecutor, address: str, *indices: int, n: int = 3, seconds: float = SECONDS) -> list[Any]:
    """Has processes of some numbers come."""
    calls = [
        RollCall(address, n_processes=n, index=index, seconds=seconds, place_of=lambda number: f"worker {number}")
        for index in indices
    ]
    return [pool.submit(each.hold, bind_address=address) for each in calls]


def test_all_go_on_when_all_have_come(pool: ThreadPoolExecutor, address: str) -> None:
    for future in call(pool, address, 2, 1, 0):
        assert future.result() is None


@pytest.mark.parametrize(
    ("come", "missing"),
    [
        ([0, 1], r"Of 4 processes process 2 \(worker 2\), process 3 \(worker 3\) have not joined after 0.3 seconds"),
        ([0, 1, 3], r"Of 4 processes process 2 \(worker 2\) has not joined after 0.3 seconds \(TRELLIS_JOIN_TIMEOUT\)"),
        ([1, 3], r"Of 4 processes process 0 \(worker 0\) has not joined after 0.3 seconds"),
    ],
    ids=["two", "one", "the first"],
)
def test_whoever_does_not_come_is_named_in_all_that_have(
    pool: ThreadPoolExecutor, address: str, come: list[int], missing: str
) -> None:
    # The first one says when time is over; the others may have more of it.
    calls: list[Future[None]] = []
    for index in come:
        seconds = 0.3 if index == 0 or 0 not in come else SECONDS
        calls += call(pool, address, index, n=4, seconds=seconds)
    for index, future in zip(come, calls, strict=True):
        # Each tells its own time-out.
        wanted = missing if index == 0 or 0 not in come else missing.replace("0.3", "60")
        with pytest.raises(ProcessLostError, match=wanted):
            future.result()


def test_strangers_are_not_counted(pool: ThreadPoolExecutor, address: str) -> None:
    host, port = address.split(":")
    first, *_ = call(pool, address, 0)
    (second,) = call(pool, address, 1)
    # That it has come shows that somebody listens.
    for text in (b"GET / HTTP/1.1\r\n\r\n", b'{"process": "x"}\n', b"[" * 5000 + b"\n", b""):
        while not stranger_was_heard(host, int(port), text):
            assert not first.done()
    call(pool, address, 2)
    first.result()
    second.result()


def stranger_was_heard(host: str, port: int, text: bytes) -> bool:
    try:
        with socket.create_connection((host, port)) as connection:
            connection.sendall(text)
    except ConnectionRefusedError:
        return False
    return True


def test_one_that_has_left_again_is_missing(
    pool: ThreadPoolExecutor, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trellis.runtime.roll_call._SECONDS_BETWEEN_WORDS", 0.05)
    (first,) = call(pool, address, 0, seconds=3)
    host, port = address.split(":")
    while not stranger_was_heard(host, int(port), b'{"process": 1, "of": 3, "host": "b"}\n'):
        assert not first.done()
    with pytest.raises(ProcessLostError, match="process 1"):
        first.result()


def test_one_that_was_told_of_another_number_is_refused(pool: ThreadPoolExecutor, address: str) -> None:
    (first,) = call(pool, address, 0, seconds=2)
    (other,) = call(pool, address, 1, n=4)
    with pytest.raises(ArgumentError, match="^Process 1 on .* was told of 4 processes, and process 0 on .* of 3. Tell"):
        other.result()
    with pytest.raises(ProcessLostError, match="process 1 .*, process 2 "):
        first.result()


def test_two_of_one_number_are_refused(pool: ThreadPoolExecutor, address: str) -> None:
    first, *twins = call(pool, address, 0, 1, 1, seconds=2)
    errors = [each.exception() for each in twins]
    (refused,) = [error for error in errors if isinstance(error, ArgumentError)]
    assert "was told that it is process 1 of 3, but so was another one, on " in str(refused)
    with pytest.raises(ProcessLostError, match="process 2 "):
        first.result()
