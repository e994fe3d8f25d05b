"""The page about runs while they go on, served to this machine alone."""

import errno
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from trellis.disk import describe_failure
from trellis.errors import ArgumentError
from trellis.reports.ledger import RunLedger, RunReader
from trellis.reports.page import BEFORE_RUNS, build_content, build_page

PORT = 7117

_ADDRESS = "127.0.0.1"
_NAMES = ("127.0.0.1", "localhost")
_SECONDS_BETWEEN_READINGS = 1.0
_SECONDS_OF_PATIENCE = 20.0
_TAKEN = (errno.EADDRINUSE, errno.EACCES)


class LiveReport:
    """A server of the page about runs, which keeps up with them. It only reads, and only this machine can ask it.

    Example:
        with LiveReport(lambda: find_runs("runs")) as report:
            print(report.url)
            report.serve()

    Args:
        directories: Returns whose runs are shown; asked again each time, as a sweep begins new ones.
        port: Of 127.0.0.1; 0 takes a free one, and None the usual one, or a free one if that is taken.
    """

    def __init__(self, directories: Callable[[], Sequence[Path]], *, port: int | None = None) -> None:
        self._directories = directories
        self._readers: dict[Path, RunReader] = {}
        self._lock = threading.Lock()
        self._content = ""
        self._read_at = -_SECONDS_BETWEEN_READINGS
        self._server = _listen(port, _handler_of(self))
        self.url = f"http://{_ADDRESS}:{self._server.server_port}/"

    def __enter__(self) -> "LiveReport":
        return self

    def __exit__(self, *error: object) -> None:
        self._server.server_close()

    def serve(self) -> None:
        """Answers until it is interrupted, or `stop` is called by another thread."""
        self._server.serve_forever(poll_interval=0.2)

    def stop(self) -> None:
        """Ends `serve`."""
        self._server.shutdown()

    def page(self) -> str:
        """The page as HTML."""
        with self._lock:
            return build_page(self._read(), is_live=True)

    def content(self) -> str:
        """What the page shows, as JSON; read at most once a second, however many ask."""
        with self._lock:
            if time.monotonic() - self._read_at >= _SECONDS_BETWEEN_READINGS:
                self._content = build_content(self._read())
                self._read_at = time.monotonic()
            return self._content

    def _read(self) -> list[RunLedger]:
        directories = self._directories()
        self._readers = {one: self._readers.get(one) or RunReader(one) for one in directories if one.is_dir()}
        return [reader.read() for reader in self._readers.values()]


def _listen(port: int | None, handler: type[BaseHTTPRequestHandler]) -> ThreadingHTTPServer:
    try:
        return _Server((_ADDRESS, PORT if port is None else port), handler)
    except OSError as error:
        if error.errno not in _TAKEN or port is not None:
            message = f"Port {PORT if port is None else port} of {_ADDRESS} cannot be had: {describe_failure(error)}."
            raise ArgumentError(f"{message} --port=0 takes a free one.") from None
        return _Server((_ADDRESS, 0), handler)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing of a browser that has gone."""


def _handler_of(report: LiveReport) -> type[BaseHTTPRequestHandler]:
    class Answers(BaseHTTPRequestHandler):
        """Answers for a page and its content, and refuses all else."""

        timeout = _SECONDS_OF_PATIENCE
        server_version = "Trellis"
        sys_version = ""

        def do_GET(self) -> None:
            """Answers."""
            # The name of another site that leads here is that site asking for what runs have left.
            if self.headers.get("Host", "").rpartition(":")[0].lower() not in _NAMES:
                self._send(HTTPStatus.FORBIDDEN, f"This page is asked for as {report.url}\n", "text/plain")
                return
            match self.path.partition("?")[0]:
                case "/":
                    self._send(HTTPStatus.OK, report.page(), "text/html")
                case "/content.json":
                    self._send_if_new(report.content())
                case _:
                    self._send(HTTPStatus.NOT_FOUND, "There are only / and /content.json.\n", "text/plain")

        def do_HEAD(self) -> None:
            """Answers without a body."""
            self.do_GET()

        def _send_if_new(self, content: str) -> None:
            # When it was made is in it, and is no news.
            of_runs = content.partition(BEFORE_RUNS)[2].encode()
            tag = f'"{zlib.crc32(of_runs):08x}-{len(of_runs)}"'
            if self.headers.get("If-None-Match") == tag:
                self.send_response(HTTPStatus.NOT_MODIFIED)
                self.send_header("ETag", tag)
                self.end_headers()
            else:
                self._send(HTTPStatus.OK, content, "application/json", ETag=tag)

        def _send(self, status: HTTPStatus, text: str, kind: str, **headers: str) -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.send_header("X-Frame-Options", "DENY")
            self.send_header("Cross-Origin-Resource-Policy", "same-origin")
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Says nothing of each request."""

    return Answers
