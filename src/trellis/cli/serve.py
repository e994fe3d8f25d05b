"""`trellis serve`: a served model behind HTTP."""

import argparse
import importlib.util
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import trellis
from trellis import serving
from trellis.cli.parser import Parser
from trellis.errors import ArgumentError, MissingPackageError
from trellis.runtime import print_error

if TYPE_CHECKING:
    from trellis.nlp.answers import ServedText
    from trellis.serving import LoadedModel, OpenText

_EPILOG = """\
Arrays are asked by the Open Inference Protocol (/v2/models/NAME/infer) or TensorFlow Serving's
(/v1/models/NAME:predict), texts at /classify, /label, /tag, /fill, /answer or /embed, as the model can.
/v2/health/ready is for those who balance loads, /metrics for Prometheus. Of numbered versions the newest whole one is
served; a newer one that comes takes its place.
SIGTERM and Ctrl-C end it when all that was accepted is answered. Exit codes: 0 so ended, 1 some were not, 2 bad input.

  trellis serve --model=served/digits
  curl localhost:8000/v1/models/digits:predict -d '{"instances": [[0, 0.5, …]]}'
"""
_PACKAGES = ("starlette", "uvicorn", "prometheus_client")
_TOKEN = "TRELLIS_SERVE_TOKEN"
_LEAST_LETTERS = 16
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_MOST_SIZE = 1 << 16


def add_flags(parser: Parser) -> None:
    """Adds what is served, where, and within which limits."""
    parser.epilog = _EPILOG
    model = "what `trellis export` wrote, or a directory with numbered versions of such"
    parser.add_flag("model", "DIR", model, address="fetched", required=True)
    parser.add_flag("name", "NAME", "what it is called in addresses; the default is the name of the directory")
    host = "where it listens; any other than this machine's own, 127.0.0.1, takes a token"
    parser.add_flag("host", "HOST", host, default="127.0.0.1")
    parser.add_flag("port", "N", "the default is 8000; 0 takes one that is free", type=int, default=8000)
    token = f"a file with the token that callers have to show; or it is in the environment ({_TOKEN})"
    parser.add_flag("token_file", "FILE", token)
    sizes = "the sizes of batches, compiled before it is ready; the default is 1,2,4,8,16,32"
    parser.add_flag("batch_sizes", "A,B,…", sizes, default="1,2,4,8,16,32")
    waiting = "how many examples may wait; the default is 1024, and who comes then gets 429"
    parser.add_flag("most_waiting", "N", waiting, type=int, default=1024)
    seconds = "how long a request may wait for its answer; the default is 30"
    parser.add_flag("timeout_seconds", "S", seconds, type=float, default=30.0)
    body = "the most that a request may have; the default is 16"
    parser.add_flag("max_request_mb", "N", body, type=float, default=16.0)
    drain = "how long it takes at the most to end, when it is told to; the default is 20"
    parser.add_flag("drain_seconds", "S", drain, type=float, default=20.0)
    poll = "how often it looks for newer versions; the default is 2"
    parser.add_flag("poll_seconds", "S", poll, type=float, default=2.0)
    vocabulary = "the vocabulary, if a model of text does not have it"
    parser.add_flag("vocab_file", "FILE", vocabulary, address="fetched", default="")
    parser.add_argument("--access_log", action="store_true", help="tell of each request")
    parser.add_argument("--json", action="store_true", help="print what happens as JSON, an object a line")


def serve(flags: argparse.Namespace) -> int:
    """Serves until it is told to stop."""
    for package in _PACKAGES:
        if importlib.util.find_spec(package) is None:
            raise MissingPackageError(package, "serve")
    sizes = _sizes(flags.batch_sizes)
    for name in ("most_waiting", "timeout_seconds", "max_request_mb", "drain_seconds", "poll_seconds"):
        value = getattr(flags, name)
        if not 0 < value < float("inf"):
            raise ArgumentError(f"--{name} is {value:g}, but it has to be more than 0.")
    if not 0 <= flags.port < 1 << 16:
        raise ArgumentError(f"--port is {flags.port}. Ports are numbers from 1 to 65535; 0 takes one that is free.")
    directory = Path(flags.model)
    name = _name(flags.name, directory)
    token = _token(flags.token_file)
    serving.check_access(flags.host, token)
    serving.check_served(directory)
    listening = serving.bind(flags.host, flags.port)
    # This loads JAX, when all that can be known without it is known to be right.
    options = serving.ServerOptions(
        name=name,
        host=flags.host,
        port=flags.port,
        token=token,
        batch_sizes=sizes,
        most_waiting=flags.most_waiting,
        seconds=flags.timeout_seconds,
        body_bytes=int(flags.max_request_mb * (1 << 20)),
        drain_seconds=flags.drain_seconds,
        poll_seconds=flags.poll_seconds,
        tells_requests=flags.access_log,
        as_json=flags.json,
    )
    with listening:
        return serving.serve_model(directory, options=options, listening=listening, open_text=_open_text(flags))


def _open_text(flags: argparse.Namespace) -> "OpenText":
    def open_text(model: "LoadedModel", /, *, name: str) -> "ServedText | None":
        if "text" not in model.manifest.metadata:
            return None
        if not model.files and not flags.vocab_file:
            print_error("It is asked with ids alone: its data came as such, so it knows no vocabulary (--vocab_file).")
            return None
        return trellis.nlp.answers.open_served_text(model, name=name, vocab_file=flags.vocab_file)

    return open_text


def _sizes(text: str) -> Sequence[int]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() and 0 < int(part) <= _MOST_SIZE for part in parts):
        raise ArgumentError(f"--batch_sizes={text} is no list of sizes, such as 1,8,32.")
    return sorted(set(map(int, parts)))


def _name(name: str | None, directory: Path) -> str:
    if name is None:
        path = directory.resolve()
        # A version by itself is called as the model is.
        name = path.parent.name if path.name.isdecimal() else path.name
        name = re.sub(r"[^A-Za-z0-9._-]+", "_", name).lstrip("._-") or "model"
    if not _NAME.fullmatch(name):
        raise ArgumentError(f"--name={name} is no name for an address: letters, digits and . _ - are.")
    return name


def _token(file: str | None) -> str:
    """What callers have to show; empty for nothing."""
    place, token = _TOKEN, os.environ.get(_TOKEN, "")
    if file is not None:
        place = "--token_file"
        try:
            token = Path(file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ArgumentError(f"--token_file: `{file}` cannot be read ({error}).") from None
    token = token.strip()
    if (token or file is not None) and (len(token) < _LEAST_LETTERS or not token.isascii() or " " in token):
        raise ArgumentError(
            f"{place}: the token has {len(token)} letters. Take {_LEAST_LETTERS} or more of ASCII, without spaces: "
            f"openssl rand -hex 32"
        )
    return token
