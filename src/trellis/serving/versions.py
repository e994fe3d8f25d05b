"""The versions of a model in a directory: the newest whole one is served, and replaced without dropping a request."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from trellis.errors import RequestRefusedError, ServedModelError, TrellisError
from trellis.serving.batching import Batcher
from trellis.serving.load import LoadedModel, load_model
from trellis.serving.manifest import MANIFEST
from trellis.serving.open_inference import check_datatypes
from trellis.serving.served_directory import find_versions

T = TypeVar("T")


class AskRows(Protocol):
    """Asks a model with inputs by name."""

    def __call__(self, inputs: Mapping[str, np.ndarray], /) -> Iterator[Any]:
        """Yields the outputs for each example."""


class TextAnswer(Protocol):
    """The answer to a text."""

    @property
    def values(self) -> Mapping[str, Any]:
        """It, as JSON has it."""


class TextAnswers(Protocol):
    """Answers texts with a served model."""

    @property
    def kind(self) -> str:
        """What is answered, in a word."""

    @property
    def text_columns(self) -> Sequence[str]:
        """The names of the parts of a text; empty if they have none."""

    def __call__(self, texts: Sequence[tuple[str, ...]], /, *, ask: AskRows) -> Iterator[TextAnswer]:
        """Yields the answer to each text, whose parts it has checked; it is called by several threads at once."""


class OpenText(Protocol):
    """Finds out how a model answers texts."""

    def __call__(self, model: LoadedModel, /, *, name: str) -> TextAnswers | None:
        """What answers texts with the model, known by a name; None if it answers none."""


class Tell(Protocol):
    """Is told what happens."""

    def __call__(self, event: str, text: str, **fields: object) -> None:
        """Tells of an event: a word for it, a line for people, and what programs want to know of it."""


@dataclass(eq=False)
class ServedVersion:
    """A version of a model, loaded and compiled, and how many requests are under way that were given to it."""

    number: int
    directory: Path
    model: LoadedModel
    batcher: Batcher
    text: TextAnswers | None
    n_requests: int = 0
    is_replaced: bool = False


def open_version(
    number: int, directory: Path, *, name: str, open_text: OpenText, build_batcher: Callable[[LoadedModel], Batcher]
) -> ServedVersion:
    """Loads a version and compiles all that it will be asked with; whatever is wrong with it is a TrellisError."""
    try:
        model = load_model(directory)
        for signature in model.signatures.values():
            check_datatypes(signature.spec)
        text = open_text(model, name=name)
        batcher = build_batcher(model)
        batcher.warm_up()
    except TrellisError:
        raise
    except Exception as error:
        # XLA tells in pages why it cannot compile.
        reason = (str(error).splitlines() or [""])[0]
        raise ServedModelError(
            f"`{directory}` can be read, but not run here ({type(error).__name__}: {reason:.200}). Export it again."
        ) from error
    return ServedVersion(number, directory, model, batcher, text)


class Versions:
    """What is served of a directory. It lives in one event loop; versions are loaded in threads of their own.

    Example:
        versions = Versions(Path("served/digits"), open_version=…, tell=print)
        await versions.load()
        with versions.lease() as version:
            version.batcher.submit(…)
    """

    def __init__(self, directory: Path, *, open_version: Callable[[int, Path], ServedVersion], tell: Tell) -> None:
        self._directory = directory
        self._open_version = open_version
        self._tell = tell
        self._current: ServedVersion | None = None
        self._broken: dict[Path, tuple[object, bool]] = {}
        """The files of versions that could not be loaded, and whether that was told."""
        self.is_loading = False
        """Whether a thread is at work that cannot be stopped."""

    @property
    def current(self) -> ServedVersion | None:
        """The version that is asked; None before the first is loaded."""
        return self._current

    @contextmanager
    def lease(self, number: int | None = None) -> Iterator[ServedVersion]:
        """Within it, the version that is asked stays, also if another comes meanwhile.

        Args:
            number: That of the version that is wanted; None for the one that is served.
        """
        version = self._current
        if version is None:
            raise RequestRefusedError("The model is not loaded yet.", status=503, retry_after=1)
        if number not in (None, version.number):
            raise RequestRefusedError(f"There is no version {number}. Served is {version.number}.", status=404)
        version.n_requests += 1
        try:
            yield version
        finally:
            version.n_requests -= 1
            _close_if_done(version)

    async def load(self) -> None:
        """Serves the newest whole version; an error if there is none."""
        error = await self._load_newest(is_first=True)
        if self._current is None:
            raise error or ServedModelError(f"`{self._directory}` holds no version that is whole.")

    async def watch(self, seconds: float) -> None:
        """Looks for newer versions from time to time, for ever."""
        while True:
            await asyncio.sleep(seconds)
            await self._load_newest(is_first=False)

    async def _load_newest(self, *, is_first: bool) -> TrellisError | None:
        """Serves the newest whole version if it is not served already; returns what is wrong with the newest."""
        problems: list[tuple[int, TrellisError]] = []
        for number, directory in await in_thread(self._candidates):
            files = await in_thread(partial(_files, directory))
            if self._broken.get(directory) == (files, True):
                continue
            self.is_loading = True
            try:
                version = await in_thread(partial(self._open_version, number, directory))
            except TrellisError as error:
                # What is still being copied changes; what does not is broken.
                is_settled = is_first or self._broken.get(directory) == (files, False)
                self._broken[directory] = (files, is_settled)
                if is_settled:
                    problems.append((number, error))
                self.is_loading = False
                continue
            self.is_loading = False
            self._serve(version)
            break
        if self._current is None:
            return problems[0][1] if problems else None
        for number, problem in problems:
            self._tell_broken(number, problem, served=self._current)
        return None

    def _candidates(self) -> list[tuple[int, Path]]:
        """The versions that could take the place of the served one, the newest first."""
        try:
            versions = {
                number: path for number, path in find_versions(self._directory).items() if (path / MANIFEST).is_file()
            }
        except (OSError, TrellisError):
            return []  # Not there for the moment; what is loaded needs it no more.
        current = self._current
        newest_first = sorted(versions.items(), reverse=True)
        if current is None or current.number not in versions:
            return newest_first
        return [(number, path) for number, path in newest_first if number > current.number]

    def _tell_broken(self, number: int, error: TrellisError, *, served: ServedVersion) -> None:
        text = f"Version {number} is not served, but still {served.number}: {error}"
        self._tell("version_refused", text, version=number)

    def _serve(self, version: ServedVersion) -> None:
        replaced, self._current = self._current, version
        text = f"Version {version.number} is served, from {version.directory}."
        if replaced is not None:
            text = f"Version {version.number} is served in the place of {replaced.number}, from {version.directory}."
            replaced.is_replaced = True
            _close_if_done(replaced)
        self._tell("version_served", text, version=version.number, directory=str(version.directory))


def _close_if_done(version: ServedVersion) -> None:
    if version.is_replaced and not version.n_requests:
        version.batcher.close()


def _files(directory: Path) -> object:
    """What tells whether files have changed."""
    try:
        stats = [(str(path), path.stat()) for path in sorted(directory.rglob("*"))]
    except OSError:
        return None
    return tuple((path, stat.st_size, stat.st_mtime_ns) for path, stat in stats)


async def in_thread(function: Callable[[], T]) -> T:
    """Calls a function in a thread that does not keep the process from ending."""
    future: Future[T] = Future()

    def run() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = function()
        except BaseException as error:  # noqa: BLE001  # it is raised where it is waited for
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, daemon=True).start()
    return await asyncio.wrap_future(future)
