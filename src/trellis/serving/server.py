"""A model behind HTTP: a socket, connections with limits, and an end that answers all that was accepted."""

import asyncio
import json
import logging
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from trellis.runtime import flush_output, print_error, print_json, print_line
from trellis.serving.address import check_access
from trellis.serving.application import Application, Limits
from trellis.serving.batching import Batcher
from trellis.serving.load import LoadedModel
from trellis.serving.server_metrics import ServerMetrics
from trellis.serving.versions import OpenText, Tell, Versions, open_version

_HEAD_SECONDS = 10
"""How long a caller may take from the connection, or the first letter, to the end of a request's head."""
_READING_SECONDS = 60
"""How long a caller may take to read an answer."""
_MOST_CONNECTIONS = 1000
_OTHER_FILES = 100
_LINGER_SECONDS = 1.0
"""How long a server that was told to stop still listens, so that those who balance loads see that it is not ready."""
_LAST_ASK_SECONDS = 1.0
"""How long, after that, whoever is connected and has not asked yet may still ask."""
_DONE, _CUT = 0, 1
_TROUBLES = ("version_refused", "request_failed")


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """How a model is served."""

    name: str
    """What the model is called in addresses."""
    host: str = "127.0.0.1"
    port: int = 8000
    """0 for one that is free."""
    token: str = ""
    """What callers have to show; needed unless the host is this machine's own."""
    batch_sizes: Sequence[int] = (1, 2, 4, 8, 16, 32)
    """What is compiled before the server is ready."""
    most_waiting: int = 1024
    """How many examples may wait."""
    seconds: float = 30
    """How long a request may wait for its answer."""
    body_bytes: int = 16 << 20
    """The most that a request may have."""
    drain_seconds: float = 20
    """How long the server takes at the most to end, when it is told to."""
    poll_seconds: float = 2
    """How often it looks for new versions."""
    tells_requests: bool = False
    as_json: bool = False
    """Whether what it tells is JSON, an object a line."""


def serve_model(directory: Path, *, options: ServerOptions, listening: socket.socket, open_text: OpenText) -> int:
    """Serves a model until the process is told to stop (SIGTERM, Ctrl-C); returns the exit code.

    It is 0 if each request that was accepted was answered, else 1. A second signal ends it at once.

    Args:
        listening: What `bind` has returned.
        open_text: How models of text are asked.
    """
    check_access(options.host, options.token)
    for name in ("uvicorn.error", "uvicorn.access"):
        logging.getLogger(name).disabled = True  # They tell of callers' mistakes, with traces.
    serving = _Serving(directory, options, listening, open_text)
    code = asyncio.run(serving.run())
    if serving.is_loading:
        # A compiler at work would be torn apart by the interpreter's end.
        flush_output()
        os._exit(code)
    return code


class _Serving:
    """One server, from its start to its end."""

    def __init__(self, directory: Path, options: ServerOptions, listening: socket.socket, open_text: OpenText) -> None:
        self._options = options
        self._listening = listening
        self._tell: Tell = _told_as_json if options.as_json else _told_as_text
        self._metrics = ServerMetrics(sizes=options.batch_sizes)
        self._versions = Versions(
            directory,
            open_version=lambda number, path: open_version(
                number, path, name=options.name, open_text=open_text, build_batcher=self._batcher
            ),
            tell=self._tell,
        )
        self._metrics.watch(n_waiting=self._n_waiting, version=self._version)
        self._application = Application(
            versions=self._versions,
            name=options.name,
            limits=Limits(body_bytes=options.body_bytes, seconds=options.seconds),
            metrics=self._metrics,
            tell=self._tell,
            token=options.token,
            tells_requests=options.tells_requests,
        )

    async def run(self) -> int:
        """Serves until a signal comes, and returns the exit code."""
        config = uvicorn.Config(
            self._application,
            http=_Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
        )
        server = _Server(config)
        stopping = asyncio.Event()
        with _signals_set(stopping):
            tasks = [
                asyncio.ensure_future(each)
                for each in (server.serve(sockets=[self._listening]), self._load_and_watch(), stopping.wait())
            ]
            listening, loading, told = tasks
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if told.done():
                await self._drain(server)
            loading.cancel()
            server.should_exit = True
            await listening
            await asyncio.gather(loading, return_exceptions=True)
        if not told.done():
            # Nothing could be loaded: else it goes on until it is told to stop.
            loading.result()
        return self._farewell()

    @property
    def is_loading(self) -> bool:
        """Whether a version is being loaded by a thread that cannot be stopped."""
        return self._versions.is_loading

    async def _load_and_watch(self) -> None:
        options = self._options
        host, port = self._listening.getsockname()[:2]
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        self._tell("listening", f"Listening at {url}; loading the model.", url=url, host=host, port=port)
        await self._versions.load()
        version = self._versions.current
        assert version is not None
        for signature in version.model.signatures.values():
            self._tell("signature", f"  {signature!r}", name=signature.name)
        sizes = ", ".join(map(str, version.batcher.compiled_sizes))
        best = version.batcher.best_size
        text = f"Compiled for batches of {sizes}; {best} at once are answered fastest."
        self._tell("compiled", text, sizes=list(version.batcher.compiled_sizes), best_size=best)
        for name in version.batcher.asked_alone():
            text = f"{name} answers for a batch as a whole: requests are asked one by one, and not filled up."
            self._tell("asked_alone", text, name=name)
        self._tell("ready", f"Ready: {url}/v2/models/{options.name}/infer", url=url, name=options.name)
        await self._versions.watch(options.poll_seconds)

    async def _drain(self, server: uvicorn.Server) -> None:
        """Lets those who ask see that the server ends, and those be answered who have asked."""
        seconds = self._options.drain_seconds
        application = self._application
        application.is_draining = True
        self._tell(
            "stopping", f"Stopping within {seconds:g} seconds; {application.n_under_way} requests are under way."
        )
        # Whatever does not end by itself, such as a model that computes, does not keep the process.
        watch = threading.Timer(seconds + _LINGER_SECONDS, lambda: os._exit(_CUT))
        watch.daemon = True
        watch.start()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        if self._versions.current is not None:
            await asyncio.sleep(min(_LINGER_SECONDS, seconds / 4))
        for listener in server.servers if server.started else ():
            listener.close()
        # Each answer ends its connection now. Who is connected and has not asked yet has a moment to do so.
        moment = loop.time() + min(_LAST_ASK_SECONDS, seconds / 4)
        while server.server_state.connections and loop.time() < deadline - seconds / 4:
            if not application.n_under_way and loop.time() > moment:
                break
            await asyncio.sleep(0.02)
        server.config.timeout_graceful_shutdown = max(1, int(deadline - loop.time()))

    def _farewell(self) -> int:
        application = self._application
        n_cut = application.n_accepted - application.n_answered
        text = f"Stopped: all of {application.n_accepted} requests to the model were answered."
        if n_cut:
            text = f"Stopped: {n_cut} of {application.n_accepted} requests to the model were not answered."
        self._tell("stopped", text, accepted=application.n_accepted, answered=application.n_answered)
        return _CUT if n_cut else _DONE

    def _batcher(self, model: LoadedModel) -> Batcher:
        options = self._options
        return Batcher(
            model, sizes=options.batch_sizes, most_waiting=options.most_waiting, observe=self._metrics.note_batch
        )

    def _n_waiting(self) -> int:
        version = self._versions.current
        return 0 if version is None else version.batcher.n_waiting

    def _version(self) -> int:
        version = self._versions.current
        return 0 if version is None else version.number


class _Server(uvicorn.Server):
    """uvicorn's server, which leaves signals to whoever runs it."""

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]  # whatever it is made by
        return nullcontext()


@contextmanager
def _signals_set(event: asyncio.Event) -> Iterator[None]:
    """Within it, SIGTERM and Ctrl-C set an event; the second of them ends the process."""
    loop = asyncio.get_running_loop()

    def heed() -> None:
        if event.is_set():
            os._exit(_CUT)
        event.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, heed)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


class _Connection(H11Protocol):
    """uvicorn's connection, with limits on how long a caller may take, and errors in JSON."""

    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        if len(self.connections) > _most_connections():
            self._send_error(503, "The server has too many connections. Try again later.")
            return
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._expect_head()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._abort_later()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._abort_later()

    def send_400_response(self, msg: str) -> None:
        self._send_error(400, "The request is not HTTP.")

    def _expect_head(self) -> None:
        """Starts to wait for a request, unless one is being answered."""
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if is_answering or self.transport.is_closing():
            self._forget_head()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(_HEAD_SECONDS, self._end_slow_head)

    def _forget_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _end_slow_head(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self._send_error(408, f"The head of the request has not come within {_HEAD_SECONDS} seconds.")

    def _send_error(self, status: int, text: str) -> None:
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            content = json.dumps({"error": text}).encode()
            headers = [("content-type", "application/json"), ("connection", "close")]
            head = h11.Response(status_code=status, headers=[*headers, ("content-length", str(len(content)))])
            for event in (head, h11.Data(data=content), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
        self._abort_later()

    def _abort_later(self) -> None:
        """Ends the connection of a caller who does not read the answer."""
        self.loop.call_later(_READING_SECONDS, self.transport.abort)


def _most_connections() -> int:
    return max(1, min(_MOST_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _OTHER_FILES))


def _told_as_text(event: str, text: str, **fields: object) -> None:
    (print_error if event in _TROUBLES else print_line)(text)


def _told_as_json(event: str, text: str, **fields: object) -> None:
    document = {"event": event, "time": round(time.time(), 3), "text": text.strip(), **fields}
    print_json(document, is_one_of_many=True)
