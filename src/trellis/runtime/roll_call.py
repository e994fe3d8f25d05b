"""Who has come, of processes that are to join: JAX waits for them, too, but cannot tell who is missing."""

import json
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from trellis.aliases import JSON
from trellis.errors import ArgumentError, ProcessLostError

_SECONDS_BETWEEN_WORDS = 1.0
_SECONDS_OF_SILENCE = 10.0
"""After so long without a word from the other end nobody is there any more."""
_SECONDS_BETWEEN_CALLS = 0.1
_MOST_BYTES = 1 << 16
"""Of a line: whoever sends more, or what cannot be read, is a stranger."""
_MOST_NAMED = 10


@dataclass(frozen=True)
class RollCall:
    """Has each of several processes tell the first one that it has come, and waits until all have.

    It takes place where JAX listens afterwards. When time is over, each process that has come raises an error that
    names those that have not.

    Example:
        roll_call = RollCall("10.0.0.1:8476", n_processes=4, index=2, seconds=300)  # then .hold(bind_address=…)
    """

    address: str
    """Where the first process is found."""
    n_processes: int
    index: int
    """Which this one is."""
    seconds: float
    place_of: Callable[[int], str] = str
    """What a process is to whoever has started it, such as `worker 10.0.0.2:8476`."""

    def hold(self, *, bind_address: str) -> None:
        """Returns when all have come.

        Args:
            bind_address: Where the first process listens.
        """
        deadline = time.monotonic() + self.seconds
        missing = self._receive(bind_address, deadline) if self.index == 0 else self._come(deadline)
        if not missing:
            return
        listed = ", ".join(f"process {index} ({self.place_of(index)})" for index in missing[:_MOST_NAMED])
        more = f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
        raise ProcessLostError(
            f"Of {self.n_processes} processes {listed}{more} {'has' if len(missing) == 1 else 'have'} not joined after "
            f"{self.seconds:g} seconds (TRELLIS_JOIN_TIMEOUT), while the others waited at {self.address}. Look at the "
            f"output of whoever is missing: it was not started, has ended, or does not reach that address."
        )

    def _receive(self, bind_address: str, deadline: float) -> Sequence[int]:
        """Waits for the others, in the first process; returns who has not come in time."""
        with _Server(bind_address, n_processes=self.n_processes) as server, server.changed:
            server.changed.wait_for(lambda: not server.missing, max(deadline - time.monotonic(), 0))
            server.verdict = server.missing
            server.changed.notify_all()
            server.changed.wait_for(lambda: len(server.told) >= len(server.hosts) - 1, _SECONDS_BETWEEN_WORDS)
            return server.verdict

    def _come(self, deadline: float) -> Sequence[int]:
        """Tells the first process that this one has come, until all have; returns who has not in time."""
        missing: Sequence[int] = [0]
        heard_at = -_SECONDS_OF_SILENCE
        while time.monotonic() < deadline:
            # Nobody listens yet, or it is a stranger, or the first process has ended and may be started again.
            for word in self._words(deadline):
                missing, heard_at = word["missing"], time.monotonic()
                if word["is_over"]:
                    return missing
            time.sleep(_SECONDS_BETWEEN_CALLS)
        is_silent = time.monotonic() - heard_at > _SECONDS_OF_SILENCE / 2
        return sorted({0, *missing}) if is_silent else missing

    def _words(self, deadline: float) -> Iterator[dict[str, Any]]:
        """Yields what the first process says, as long as it says something."""
        address, left = host_and_port(self.address), _seconds_until(deadline)
        own = {"process": self.index, "of": self.n_processes, "host": socket.gethostname()}
        with (
            suppress(OSError),
            socket.create_connection(address, left) as connection,
            connection.makefile("rb") as lines,
        ):
            connection.sendall(_line(own))
            while time.monotonic() < deadline:
                connection.settimeout(_seconds_until(deadline))
                word = _read(lines.readline(_MOST_BYTES))
                if "refused" in word:
                    raise ArgumentError(str(word["refused"]))
                if not {"missing", "is_over"} <= word.keys():
                    return
                yield word


class _Server(socketserver.ThreadingTCPServer):
    """Listens, in the first process; each of the others is heard and told by a thread of its own."""

    daemon_threads = True
    allow_reuse_address = True
    # Whoever has chosen a free port may still hold it.
    allow_reuse_port = True
    request_queue_size = 1024

    def __init__(self, bind_address: str, *, n_processes: int) -> None:
        self.n_processes = n_processes
        self.hosts = {0: socket.gethostname()}
        self.told: set[int] = set()
        self.verdict: list[int] | None = None
        """Who has not come, when that is final."""
        self.changed = threading.Condition()
        host, port = host_and_port(bind_address)
        self.address_family = family(host)
        try:
            super().__init__((host, port), _Guest)
        except OSError as error:
            if host != "::":
                raise ArgumentError(
                    f"The first of the processes cannot listen at {bind_address} ({error.strerror}). Give all of them "
                    f"another address: JAX_COORDINATOR_ADDRESS, or JAX_COORDINATOR_BIND_ADDRESS for the first alone."
                ) from None
            # A machine without IPv6.
            self.address_family = socket.AF_INET
            super().__init__(("0.0.0.0", port), _Guest)

    def __enter__(self) -> "_Server":
        threading.Thread(target=self.serve_forever, args=(_SECONDS_BETWEEN_CALLS,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        # Not `server_close`, which waits for threads that may hear a stranger.
        self.socket.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing: strangers may come and go."""

    @property
    def missing(self) -> list[int]:
        """Who has not come, or has left again."""
        return [index for index in range(self.n_processes) if index not in self.hosts]

    def refusal(self, index: int, n_processes: int, host: str) -> str:
        """Why a process cannot be one of these; empty if it can."""
        if n_processes != self.n_processes:
            return (
                f"Process {index} on {host} was told of {n_processes} processes, and process 0 on {self.hosts[0]} of "
                f"{self.n_processes}. Tell all of them the same number."
            )
        if not 0 < index < n_processes or index in self.hosts:
            return (
                f"The process on {host} was told that it is process {index} of {n_processes}, but so was another one, "
                f"on {self.hosts.get(index)}. Give each of them a number of its own."
            )
        return ""


class _Guest(socketserver.StreamRequestHandler):
    """Another process, or a stranger, at the first one."""

    server: _Server
    timeout = _SECONDS_OF_SILENCE

    def handle(self) -> None:
        """Notes who has come, and tells it who is missing until that is nobody, or time is over."""
        word = _read(self.rfile.readline(_MOST_BYTES))
        try:
            index, n_processes, host = int(word["process"]), int(word["of"]), str(word["host"])
        except (KeyError, TypeError, ValueError):
            return
        with self._here(index, n_processes, host) as refusal:
            if refusal:
                self.wfile.write(_line({"refused": refusal}))
            while not refusal:
                with self.server.changed:
                    verdict, missing = self.server.verdict, self.server.missing
                is_over = verdict is not None
                self.wfile.write(_line({"missing": missing if verdict is None else verdict, "is_over": is_over}))
                if is_over:
                    break
                with self.server.changed:
                    self.server.changed.wait_for(lambda: self.server.verdict is not None, _SECONDS_BETWEEN_WORDS)

    @contextmanager
    def _here(self, index: int, n_processes: int, host: str) -> Iterator[str]:
        """Has a process count as one that has come, until it leaves; gives why it cannot, or an empty text."""
        server = self.server
        with server.changed:
            refusal = server.refusal(index, n_processes, host)
            if not refusal:
                server.hosts[index] = host
                server.changed.notify_all()
        try:
            yield refusal
        except OSError:
            if not refusal:
                with server.changed:
                    del server.hosts[index]
            return
        if not refusal:
            with server.changed:
                server.told.add(index)
                server.changed.notify_all()


def host_and_port(address: str) -> tuple[str, int]:
    """The two parts of an address; an error if it does not have them."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ArgumentError(
            f"JAX_COORDINATOR_ADDRESS (or JAX_COORDINATOR_BIND_ADDRESS) is {address!r}. Give HOST:PORT, as in "
            f"10.0.0.1:8476."
        )
    return host.strip("[]"), int(port)


def family(host: str) -> socket.AddressFamily:
    """What kind of address a host has."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _seconds_until(deadline: float) -> float:
    """How long to wait for a word, with some time to spare."""
    return max(min(_SECONDS_OF_SILENCE, deadline - time.monotonic()), 0.001)


def _line(word: JSON) -> bytes:
    return f"{json.dumps(word)}\n".encode()


def _read(line: bytes) -> dict[str, Any]:
    """What a line says; nothing, if it is none of ours."""
    with suppress(ValueError, RecursionError):
        word = json.loads(line)
        if isinstance(word, dict):
            return word
    return {}
