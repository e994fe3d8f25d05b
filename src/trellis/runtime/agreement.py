"""What processes that train together tell each other by JAX's coordination service, which needs no devices."""

import itertools
import json
import math
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import jax
from jax._src import distributed  # JAX has no public name for the client of the service that `initialize` starts
from jax.experimental import multihost_utils

from trellis.aliases import JSON
from trellis.errors import ProcessLostError, RunFailedError, TrellisError

_T = TypeVar("_T")
_SECONDS_A_ROUND = 2.0
"""How long one call of the service waits: a process that waits for long still sees that another has failed."""
_SECONDS_TO_SAVE = 600
"""How long a process is waited for in a save: as long as a slow disk may take to write its part."""
_SECONDS_TO_MEET = 3600
"""How long a process is waited for that may have data to prepare or programs to compile before it comes."""
_N_KEPT = 1000
"""So many agreements are kept for processes that are late; later than that is none that is alive."""

_visits: Counter[str] = Counter()
_looks = itertools.count()
_hosts: dict[int, str] = {}


class _Progress:
    """What this process does; written by its main thread, read by the one that tells the others."""

    phase = "start"
    step = 0
    n_marks = 0


PROGRESS = _Progress()


def note_progress(phase: str, step: int | None = None) -> None:
    """Notes what this process does from now on; costs next to nothing.

    Args:
        phase: `input`, `step`, `eval`, `saving`, `extensions`, or one that may take as long as it likes: `start`,
            `compiling`, `waiting`.
        step: How many steps were started; None if that has not changed.
    """
    PROGRESS.phase = phase
    PROGRESS.n_marks += 1
    if step is not None:
        PROGRESS.step = step


@contextmanager
def _waiting() -> Iterator[None]:
    """Notes that this process waits for others, and what it did before when it goes on."""
    before = PROGRESS.phase
    note_progress("waiting")
    try:
        yield
    finally:
        note_progress(before)


def client() -> Any:
    """The client of the coordination service; None in a process that is alone."""
    return distributed.global_state.client


def announce() -> None:
    """Tells the others what machine this process is on; comes right after it has joined them."""
    if client() is not None:
        client().key_value_set(f"trellis/host/{_own_index()}", socket.gethostname(), allow_overwrite=True)


def _own_index() -> int:
    """Which process this one is; `jax.process_index` waits for all others the first time that it is asked."""
    index: int = distributed.global_state.process_id
    return index


def process_name(index: int) -> str:
    """What a process is called in messages, such as `process 1 on node-b`."""
    if index not in _hosts and client() is not None:
        # Kept, as the service may not answer any more when the name is needed.
        with suppress(jax.errors.JaxRuntimeError):
            _hosts[index] = client().key_value_try_get(f"trellis/host/{index}")
    return f"process {index} on {_hosts[index]}" if index in _hosts else f"process {index}"


def capitalized(text: str) -> str:
    """A text as a sentence begins; the names of machines in it stay as they are."""
    return f"{text[:1].upper()}{text[1:]}"


def is_first_process() -> bool:
    """Whether this is the first of the processes that have joined; one alone is."""
    return jax.process_index() == 0


def agreed(decide: Callable[[], _T]) -> _T:
    """What the first process decides, in all of them: what one sees of files or clocks, another may see otherwise.

    All of them have to call it, in the same order. The others wait as long as the first one takes. If it fails, all do.

    Args:
        decide: Is called in the first process only, and returns what JSON can hold.
    """
    if jax.process_count() == 1:
        return decide()
    number = _visits["agreed"]
    _visits["agreed"] += 1
    key = f"trellis/agreed/{number}"
    if not is_first_process():
        with _waiting():
            answer = json.loads(_get(key))
        if "error" in answer:
            raise RunFailedError(f"The first process ({process_name(0)}) has failed: {answer['error']}")
        told: _T = answer["value"]
        return told
    try:
        value = decide()
    except TrellisError as error:
        client().key_value_set(key, json.dumps({"error": str(error)}))
        raise
    client().key_value_set(key, json.dumps({"value": value}))
    if number >= _N_KEPT:
        client().key_value_delete(f"trellis/agreed/{number - _N_KEPT}")
    return value


def gathered(place: str, word: JSON = None, *, seconds: float | None = _SECONDS_TO_MEET) -> list[Any]:
    """The words of all processes, in their order; waits until every process has come.

    All of them have to call it, in the same order.

    Args:
        place: What the processes do there, for the error about one that does not come.
        seconds: How long to wait before an error names those that have not come; None is for ever.
    """
    if jax.process_count() == 1:
        return [word]
    number = _visits["gathered"]
    _visits["gathered"] += 1
    tell(f"gathered/{number}", word)
    with _waiting():
        words = hear(f"gathered/{number}", place=place, seconds=seconds)
    if number and is_first_process():
        # Whoever is here has heard all words of the visit before.
        forget(f"gathered/{number - 1}")
    return words


def tell(topic: str, word: JSON) -> None:
    """Tells the other processes something, which `hear` returns to them; it does not wait for them."""
    client().key_value_set(f"trellis/{topic}/{jax.process_index()}", json.dumps(word))


def hear(
    topic: str,
    *,
    place: str,
    processes: Sequence[int] | None = None,
    seconds: float | None = _SECONDS_TO_SAVE,
) -> list[Any]:
    """What processes have told, by default all of them; waits for those that have not, and names them in an error.

    This may be called in any thread.

    Args:
        place: What the processes do, for the error.
        seconds: How long to wait; None is for ever.
    """
    deadline = math.inf if seconds is None else time.monotonic() + seconds
    asked = list(range(jax.process_count()) if processes is None else processes)
    while True:
        told = {int(key.rpartition("/")[2]): text for key, text in _listed(f"trellis/{topic}/")}
        missing = [index for index in asked if index not in told]
        if not missing:
            return [json.loads(told[index]) for index in asked]
        _raise_failure()
        left = min(_SECONDS_A_ROUND, deadline - time.monotonic())
        if left <= 0:
            names = ", ".join(map(process_name, missing))
            raise ProcessLostError(
                f"After {seconds:g} seconds nothing was heard of {names}, of {jax.process_count()} processes, while "
                f"{place}. See what its output says, and start the same command again."
            )
        with suppress(jax.errors.JaxRuntimeError):
            client().blocking_key_value_get(f"trellis/{topic}/{missing[0]}", math.ceil(1000 * left))


def forget(topic: str) -> None:
    """Removes all that was told of a topic, once everybody has heard it."""
    client().key_value_delete(f"trellis/{topic}/")


def wait_for_processes(place: str, *, seconds: float | None = None) -> None:
    """Waits until every process is here; one alone does not wait.

    Args:
        place: What the processes do there, for the error about one that does not come.
        seconds: How long to wait before an error names those that have not come; None is for ever.
    """
    gathered(place, seconds=seconds)


def tell_failure(error: BaseException) -> None:
    """Has the others, when they wait for this process, end too and say why."""
    # What JAX raises, and what we make of it, is that a process is gone, which it raises in all of them.
    is_of_jax = isinstance(error, jax.errors.JaxRuntimeError)
    if isinstance(error, ProcessLostError):
        is_of_jax = error.__cause__ is not None
    if client() is not None and not is_of_jax:
        text = str(error) if isinstance(error, TrellisError) else f"{type(error).__name__}: {error}".rstrip(": ")
        told = json.dumps({"text": text, "is_lost": isinstance(error, ProcessLostError)})
        # Whoever is interrupted before it has joined them has nobody to tell.
        with suppress(jax.errors.JaxRuntimeError):
            client().key_value_set(f"trellis/failed/{_own_index()}", told, allow_overwrite=True)


def find_failure() -> RunFailedError | None:
    """The error to raise because another process has told of its end; None if none has."""
    for key, text in _listed("trellis/failed/"):
        index = int(key.rpartition("/")[2])
        if index != _own_index():
            told = json.loads(text)
            message = f"{capitalized(process_name(index))} has failed, so this one ends too: {told['text']}"
            return ProcessLostError(message) if told["is_lost"] else RunFailedError(message)
    return None


def is_any_stopping() -> bool:
    """Whether one of several processes was told to stop (SIGTERM): True in all of them at the same look.

    JAX compares the numbers of looks between processes, so they are counted over a whole process: two that are at
    different places for a moment still mean the same look.
    """
    return multihost_utils.reached_preemption_sync_point(next(_looks))


def _listed(directory: str) -> list[tuple[str, str]]:
    entries: list[tuple[str, str]] = client().key_value_dir_get(directory)
    return entries


def _get(key: str) -> str:
    """What the first process has set, or will set."""
    while True:
        try:
            text: str = client().blocking_key_value_get(key, int(_SECONDS_A_ROUND * 1000))
            return text
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise
        _raise_failure()


def _raise_failure() -> None:
    failure = find_failure()
    if failure is not None:
        raise failure
