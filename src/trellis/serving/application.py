"""What a server answers at which address: an ASGI application over the versions of a model."""

import asyncio
import hmac
import json
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from trellis.errors import ArgumentError, DataError, RequestRefusedError
from trellis.serving import open_inference, tf_serving
from trellis.serving.address import is_loopback
from trellis.serving.json_tensors import read_document
from trellis.serving.server_metrics import CONTENT_TYPE, ServerMetrics
from trellis.serving.versions import ServedVersion, Tell, TextAnswers, Versions
from trellis.version import __version__

T = TypeVar("T")
TEXT_KINDS: Mapping[str, str] = {
    "classify": "sentences",
    "label": "labels",
    "tag": "tags",
    "fill": "blanks",
    "answer": "questions",
    "embed": "embeddings",
}
"""The addresses of models of text, and what a model answers that is asked there."""
_HEALTH = ("/v2/health/live", "/v2/health/ready")
_LEFT = 499
"""The status that is noted for a caller who does not wait for the answer."""
_BODY_SECONDS = 30
_DISCARD_SECONDS = 5
_LONG = 1 << 16
_MOST_BODIES = 16
"""How many bodies of the largest size may be held at once."""
_TEXT_THREADS = 32
_PLURAL, _SINGULAR = "texts", "text"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a server takes from its callers."""

    body_bytes: int
    """The most that a request may have."""
    seconds: float
    """How long a request may wait for its answer."""


@dataclass(eq=False)
class Application:
    """Answers HTTP requests: those of the Open Inference Protocol, of TensorFlow Serving's, and of texts.

    An error is `{"error": …}` with a status that says whose fault it is; what only the makers of a model want to know
    is told on this side, by a number that the caller gets too.
    """

    versions: Versions
    name: str
    limits: Limits
    metrics: ServerMetrics
    tell: Tell
    token: str = ""
    """What callers have to show; empty if all of this machine may ask."""
    tells_requests: bool = False
    is_draining: bool = False
    n_under_way: int = 0
    n_accepted: int = 0
    """Requests to the model that were read whole."""
    n_answered: int = 0
    """Those of them that were sent an answer of any kind, or whose callers had left."""
    _n_held: int = 0
    """Bytes of bodies in memory."""
    _n_texts: int = 0
    _threads: ThreadPoolExecutor = field(init=False)
    _app: Starlette = field(init=False)

    def __post_init__(self) -> None:
        self._threads = ThreadPoolExecutor(_TEXT_THREADS, thread_name_prefix="texts")
        model, version = "/{model}", "/{model}/versions/{version}"
        routes = [
            self._route("/", self._index),
            self._route("/metrics", self._metrics),
            self._route("/v2", self._server_metadata),
            self._route("/v2/health/live", self._live),
            self._route("/v2/health/ready", self._ready),
            *(self._route(f"/v1/models{place}:predict", self._predict, "POST") for place in (version, model)),
            *(self._route(f"/v1/models{place}/metadata", self._tf_metadata) for place in (version, model)),
            *(self._route(f"/v1/models{place}", self._tf_status) for place in (version, model)),
            *(self._route(f"/v2/models{place}/infer", self._infer, "POST") for place in (version, model)),
            *(self._route(f"/v2/models{place}/ready", self._model_ready) for place in (version, model)),
            *(self._route(f"/v2/models{place}", self._model_metadata) for place in (version, model)),
            *(self._route(f"/{word}", self._text, "POST") for word in TEXT_KINDS),
        ]
        self._app = Starlette(routes=routes, exception_handlers={HTTPException: self._no_such_address})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, and notes it."""
        assert scope["type"] == "http"
        start = time.perf_counter()
        status = 500
        is_sent = False

        async def noting_send(message: Message) -> None:
            nonlocal status, is_sent
            if message["type"] == "http.response.start":
                status = message["status"]
                if self.is_draining:
                    message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
            await send(message)
            is_sent = message["type"] == "http.response.body"

        self.n_under_way += 1
        try:
            refusal = self._refusal(Request(scope))
            await (self._app if refusal is None else refusal)(scope, receive, noting_send)
        except ClientDisconnect:
            status, is_sent = _LEFT, True
        finally:
            state = scope.get("state", {})
            self.n_under_way -= 1
            self.n_answered += is_sent and state.get("is_accepted", False)
            self._n_held -= state.get("n_held", 0)
            seconds = time.perf_counter() - start
            self._note(scope, status, seconds)

    def _refusal(self, request: Request) -> Response | None:
        """What those get who may not ask."""
        if request.url.path in _HEALTH:
            return None
        if not self.token:
            # Else a page in a browser could ask, by a name of its own for this machine.
            host = request.headers.get("host", "")
            if host and not _is_own_name(host):
                return _error(
                    403, f"The server is asked as {host!r:.80}, which is not this machine's own name. Set a token."
                )
            return None
        scheme, _, shown = request.headers.get("authorization", "").partition(" ")
        is_right = hmac.compare_digest(shown.strip().encode(), self.token.encode())
        if scheme.lower() == "bearer" and is_right:
            return None
        return _error(401, "Show the server's token: Authorization: Bearer …", {"www-authenticate": "Bearer"})

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        endpoint = scope.get("state", {}).get("endpoint", "other")
        self.metrics.note_request(endpoint=endpoint, status=status, seconds=seconds)
        if self.tells_requests:
            client = (scope.get("client") or ("?",))[0]
            path = str(scope["path"]).encode("unicode_escape").decode()[:200]
            text = f"{client} {scope['method']} {path} {status} {1000 * seconds:.1f} ms"
            milliseconds = round(1000 * seconds, 3)
            fields = {"client": client, "method": scope["method"], "path": path, "status": status}
            self.tell("request", text, **fields, ms=milliseconds)

    def _route(self, path: str, answer: Callable[[Request], Awaitable[Response]], method: str = "GET") -> Route:
        """A route whose errors are answered as the caller is to know them."""
        endpoint = answer.__name__.strip("_")

        async def answered(request: Request) -> Response:
            request.state.endpoint = endpoint
            try:
                return await answer(request)
            except RequestRefusedError as error:
                headers = {} if error.retry_after is None else {"retry-after": str(error.retry_after)}
                return _error(error.status, str(error), headers)
            except (DataError, ArgumentError) as error:
                return _error(400, str(error))
            except ClientDisconnect:
                raise
            except Exception as error:  # noqa: BLE001  (it is told on this side)
                return self._failure(error)

        return Route(path, answered, methods=[method])

    def _failure(self, error: Exception) -> Response:
        number = secrets.token_hex(4)
        reason = (str(error).splitlines() or [""])[0]
        text = f"Request {number} has failed ({type(error).__name__}: {reason:.300})."
        self.tell("request_failed", text, request=number, error=type(error).__name__)
        return _error(500, f"The model has failed on this request. The server's log tells of it as {number}.")

    async def _no_such_address(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 405:
            headers = dict(error.headers or {})
            allowed = ", ".join(sorted({*headers.get("Allow", "").split(", ")} - {"HEAD"}))
            text = f"{request.method} is not for {request.url.path:.200}, but {allowed} is."
            return _error(405, f"{text} There are: {self._listed()}.", headers)
        return _error(error.status_code, f"There is nothing at {request.url.path:.200}. There are: {self._listed()}.")

    def _listed(self) -> str:
        version = self.versions.current
        models = [f"/v2/models/{self.name}/infer", f"/v1/models/{self.name}:predict"]
        words = [] if version is None or version.text is None else [f"/{_word(version.text)}"]
        return ", ".join([*words, *models, "/v2/health/ready", "/metrics"])

    async def _index(self, request: Request) -> Response:
        version = self.versions.current
        number = None if version is None else str(version.number)
        return _json({"model": self.name, "version": number, "addresses": self._listed().split(", ")})

    async def _metrics(self, request: Request) -> Response:
        return Response(self.metrics.text(), media_type=CONTENT_TYPE)

    async def _server_metadata(self, request: Request) -> Response:
        return _json({"name": "trellis", "version": __version__, "extensions": list(open_inference.EXTENSIONS)})

    async def _live(self, request: Request) -> Response:
        return _json({"live": True})

    async def _ready(self, request: Request) -> Response:
        is_ready = self.versions.current is not None and not self.is_draining
        return _json({"ready": is_ready}, status=200 if is_ready else 503)

    async def _model_ready(self, request: Request) -> Response:
        with self._lease(request) as version:
            is_ready = not self.is_draining
            state = {"name": self.name, "version": str(version.number), "ready": is_ready}
            return _json(state, status=200 if is_ready else 503)

    async def _model_metadata(self, request: Request) -> Response:
        with self._lease(request) as version:
            return _json(open_inference.model_metadata(version.model, name=self.name, version=version.number))

    async def _tf_status(self, request: Request) -> Response:
        with self._lease(request) as version:
            return _json(tf_serving.model_status(version.number))

    async def _tf_metadata(self, request: Request) -> Response:
        with self._lease(request) as version:
            return _json(tf_serving.model_metadata(version.model, name=self.name, version=version.number))

    async def _infer(self, request: Request) -> Response:
        with self._lease(request) as version:
            version.batcher.check_room()
            body = await self._read_body(request)
            length = request.headers.get(open_inference.HEADER_LENGTH)
            model, number = version.model, version.number
            asked = await _aside(
                len(body), lambda: open_inference.read_infer_request(body, header_length=length, model=model)
            )
            outputs = await self._outputs(request, version, asked.arrays, asked.signature)
            content, headers = await _aside(
                _size_of(outputs),
                lambda: open_inference.write_infer_answer(asked, outputs, name=self.name, version=number),
            )
            return Response(content, headers=headers)

    async def _predict(self, request: Request) -> Response:
        with self._lease(request) as version:
            version.batcher.check_room()
            body = await self._read_body(request)
            model = version.model
            asked = await _aside(len(body), lambda: tf_serving.read_predict_request(body, model=model))
            outputs = await self._outputs(request, version, asked.arrays, asked.signature)
            content = await _aside(_size_of(outputs), lambda: tf_serving.write_predict_answer(asked, outputs))
            return Response(content, media_type="application/json")

    async def _text(self, request: Request) -> Response:
        word = request.url.path.strip("/")
        with self.versions.lease() as version:
            if version.text is None or version.text.kind != TEXT_KINDS[word]:
                await _discard(request)
                raise RequestRefusedError(f"The model does not {word}. There are: {self._listed()}.", status=404)
            version.batcher.check_room()
            body = await self._read_body(request)
            texts, is_one = _texts(read_document(body), version.text.text_columns)
            if len(texts) > version.batcher.most_waiting:
                raise RequestRefusedError(
                    f"The request has {len(texts)} texts, and {version.batcher.most_waiting} are the most.", status=413
                )
            answers = await self._answers(request, version, version.text, texts)
            known_by = {"model_name": self.name, "model_version": str(version.number)}
            return _json({**known_by, **answers[0]} if is_one else {**known_by, "answers": answers})

    async def _outputs(
        self, request: Request, version: ServedVersion, arrays: Mapping[str, np.ndarray], signature: str
    ) -> dict[str, np.ndarray]:
        future = version.batcher.submit(arrays, signature=signature)
        return await self._awaited(request, asyncio.wrap_future(future))

    async def _answers(
        self, request: Request, version: ServedVersion, text: TextAnswers, texts: Sequence[tuple[str, ...]]
    ) -> list[Mapping[str, Any]]:
        """The answers to texts, which are cut into tokens in a thread that waits there for the model."""
        if self._n_texts + len(texts) > version.batcher.most_waiting:
            raise RequestRefusedError("Too many texts wait already. Try again later.", status=429, retry_after=1)
        asked: list[Future[Any]] = []
        is_given_up = False

        def ask(inputs: Mapping[str, np.ndarray], /) -> Iterator[Any]:
            if is_given_up:
                raise CancelledError
            asked.append(version.batcher.submit(inputs))
            outputs = asked[-1].result()
            n_examples = len(next(iter(inputs.values())))
            is_alone = list(outputs) == ["outputs"]
            for row in range(n_examples):
                rows = {name: array[row] for name, array in outputs.items()}
                yield rows["outputs"] if is_alone else rows

        def answer() -> list[Mapping[str, Any]]:
            return [] if is_given_up else [each.values for each in text(texts, ask=ask)]

        self._n_texts += len(texts)
        try:
            waiting = asyncio.get_running_loop().run_in_executor(self._threads, answer)
            return await self._awaited(request, waiting)
        finally:
            is_given_up = True
            for future in asked:
                future.cancel()
            self._n_texts -= len(texts)

    async def _awaited(self, request: Request, waiting: "asyncio.Future[T]") -> T:
        """What is waited for, unless it takes too long or the caller leaves: then it is given up."""
        self.n_accepted += 1
        request.state.is_accepted = True
        leaving = asyncio.ensure_future(_until_left(request))
        try:
            either: set[asyncio.Future[Any]] = {waiting, leaving}
            await asyncio.wait(either, timeout=self.limits.seconds, return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                return waiting.result()
            if leaving.done():
                raise ClientDisconnect
            raise RequestRefusedError(
                f"There was no answer within {self.limits.seconds:g} seconds, and the request is given up.", status=504
            )
        finally:
            leaving.cancel()
            waiting.cancel()

    async def _read_body(self, request: Request) -> bytes:
        """The body of a request, if it comes in time and is not too large."""
        limit = self.limits.body_bytes
        too_large = RequestRefusedError(
            f"The body of the request is too large: {limit} bytes are the most. Send it in parts.", status=413
        )
        if request.headers.get("content-encoding", "identity") != "identity":
            await _discard(request)
            raise RequestRefusedError("The body is compressed. Send it as it is.", status=415)
        length = request.headers.get("content-length", "")
        if length.isdecimal() and int(length) > limit:
            await _discard(request)
            raise too_large
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                body = await self._received(request)
        except TimeoutError:
            raise RequestRefusedError(
                f"The body of the request has not come within {_BODY_SECONDS} seconds.", status=408
            ) from None
        if body is not None:
            return body
        await _discard(request)
        if request.state.n_held > limit:
            raise too_large
        raise RequestRefusedError("The server holds too many requests already.", status=429, retry_after=1)

    async def _received(self, request: Request) -> bytes | None:
        """All of a body; None as soon as it, or what is held of all requests, is too large."""
        chunks: list[bytes] = []
        async for chunk in request.stream():
            self._hold(request, len(chunk))
            if request.state.n_held > self.limits.body_bytes or self._n_held > _MOST_BODIES * self.limits.body_bytes:
                return None
            chunks.append(chunk)
        return b"".join(chunks)

    def _hold(self, request: Request, n_bytes: int) -> None:
        """Counts bytes that are kept until a request is answered."""
        request.state.n_held = getattr(request.state, "n_held", 0) + n_bytes
        self._n_held += n_bytes

    def _lease(self, request: Request) -> AbstractContextManager[ServedVersion]:
        """The version that the address of a request names, for as long as it is answered."""
        name = request.path_params["model"]
        if name != self.name:
            raise RequestRefusedError(f"There is no model {name!r:.80}. There is: {self.name}.", status=404)
        number = request.path_params.get("version")
        if number is not None and not (number.isascii() and number.isdecimal() and len(number) < 20):
            raise RequestRefusedError(f"{number!r:.40} is no number of a version.", status=404)
        return self.versions.lease(None if number is None else int(number))


def _is_own_name(host: str) -> bool:
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    return is_loopback(name.strip("[]"))


def _error(status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    # What is still to come of a body would be taken for the next request.
    closing = {"connection": "close"} if status in (408, 413, 415) else {}
    return _json({"error": text}, status=status, headers={**closing, **(headers or {})})


def _json(content: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    body = json.dumps(content, allow_nan=False).encode()
    return Response(body, status_code=status, headers=headers, media_type="application/json")


def _word(text: TextAnswers) -> str:
    return next((word for word, kind in TEXT_KINDS.items() if kind == text.kind), text.kind)


def _size_of(outputs: Mapping[str, np.ndarray]) -> int:
    return sum(array.nbytes for array in outputs.values())


async def _aside(n_bytes: int, function: Callable[[], T]) -> T:
    """Calls a function; if it has much to read or to write, then in a thread, so that others are heard meanwhile."""
    return await asyncio.to_thread(function) if n_bytes > _LONG else function()


async def _until_left(request: Request) -> None:
    """Returns when the caller has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _discard(request: Request) -> None:
    """Reads the rest of a body that is refused: many callers read no answer before they have sent all of it."""
    with suppress(TimeoutError, ClientDisconnect):
        async with asyncio.timeout(_DISCARD_SECONDS):
            async for _ in request.stream():
                pass


def _texts(document: Mapping[str, Any], columns: Sequence[str]) -> tuple[list[tuple[str, ...]], bool]:
    """The texts that a request asks, as tuples of their parts, and whether it asks one by itself."""
    is_by_column = bool(columns) and document.keys() == set(columns)
    if is_by_column and list(columns) != [_SINGULAR]:
        return [_parts(document, columns, name="The text")], True
    if _SINGULAR in document:
        return [_parts(document[_SINGULAR], columns, name=_SINGULAR)], True
    texts = document.get(_PLURAL)
    if not isinstance(texts, list) or not texts:
        raise DataError(f"Give {_form(columns)}, or {{'texts': [{_item(columns)}, …]}} for several.")
    return [_parts(text, columns, name=f"{_PLURAL}[{number}]") for number, text in enumerate(texts)], False


def _parts(text: Any, columns: Sequence[str], *, name: str) -> tuple[str, ...]:
    if isinstance(text, Mapping):
        if not columns or text.keys() != set(columns):
            raise DataError(f"{name} has the parts {', '.join(map(str, text))!r:.80}. Give {_form(columns)}.")
        text = [text[name] for name in columns]
    parts = [text] if isinstance(text, str) else text
    if not isinstance(parts, list) or not parts or not all(isinstance(part, str) for part in parts):
        raise DataError(f"{name} is {text!r:.80}. Give {_form(columns)}.")
    return tuple(parts)


def _form(columns: Sequence[str]) -> str:
    return f"{{'text': {_item(columns)}}}" if len(columns) < 2 else _item(columns)


def _item(columns: Sequence[str]) -> str:
    return "'…'" if len(columns) < 2 else "{" + ", ".join(f"'{name}': '…'" for name in columns) + "}"
