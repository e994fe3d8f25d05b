"""Requests of many callers, answered together by programs that were compiled before."""

import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Protocol

import jax
import numpy as np

from trellis.errors import DataError, RequestRefusedError
from trellis.serving.export import path_name
from trellis.serving.load import LoadedModel, LoadedSignature, checked_array
from trellis.serving.manifest import BATCH, ArraySpec

Arrays = Mapping[str, np.ndarray]
"""Inputs or outputs by name; the first axis is the examples."""
_MOST_ROUNDS = 5
_SECONDS_OF_ROUNDS = 1.0
"""How long the sizes of batches are timed, beside the first round."""
_NEARLY = 0.9
"""What part of the best rate is as good: a larger batch is fewer of them."""


class BatchObserver(Protocol):
    """Is told of each batch that was asked."""

    def __call__(self, *, n_examples: int, size: int, seconds: float) -> None:
        """Notes a batch: how many examples of callers it had, of what size it was, and how long it took."""


@dataclass(eq=False)
class _Question:
    """What one caller asks, and the parts of the answer that there are already."""

    future: "Future[dict[str, np.ndarray]]"
    answers: list[dict[str, np.ndarray] | None]

    def put(self, place: int, outputs: dict[str, np.ndarray]) -> None:
        self.answers[place] = outputs
        complete = [answer for answer in self.answers if answer is not None]
        if len(complete) < len(self.answers):
            return
        whole = complete[0]
        if len(complete) > 1:
            whole = {name: np.concatenate([answer[name] for answer in complete]) for name in whole}
        # A caller that has left meanwhile has cancelled it.
        with suppress(InvalidStateError):
            self.future.set_result(whole)

    def fail(self, error: Exception) -> None:
        with suppress(InvalidStateError):
            self.future.set_exception(error)


@dataclass(eq=False)
class _Part:
    """As much of a question as one batch can have."""

    signature: str
    arrays: Arrays
    n_examples: int
    question: _Question
    place: int


@dataclass
class _Function:
    """A signature as it is asked here."""

    signature: LoadedSignature
    inputs: tuple[ArraySpec, ...]
    """What it takes; of batches any number, as they are made here."""
    sizes: tuple[int, ...]
    """The sizes of batches that are compiled."""
    is_joint: bool = True
    """Whether examples of several callers may be in one batch, and be filled up; else each question is one batch."""
    is_fixed: bool = False
    """Whether it takes batches of one size only."""
    seconds: dict[int, float] = field(default_factory=dict)
    """How long a batch of each size takes, once it is known."""

    def best_size(self, n_waiting: int, *, at_least: int = 1) -> int:
        """The size of the next batch: that which answers the most of those who wait in a second."""
        sizes = [size for size in self.sizes if size >= at_least]
        rates = {size: min(n_waiting, size) / self.seconds.get(size, 1.0) for size in sizes}
        return max(size for size in sizes if rates[size] >= _NEARLY * max(rates.values()))


@dataclass(eq=False)
class Batcher:
    """Asks a model for many callers at once: what waits goes into one batch, filled up to a compiled size.

    Of the sizes it is the one that answers the most examples in a second, by the time that each took at the start:
    where a batch of 32 takes as long as one of 1, all that waits, and less where large batches bring nothing.
    While a batch is computed, the next gathers; nobody waits for others to come. A caller gets the rows of its own
    examples. Examples whose answers depend on others in their batch are found at the start, and never put together.

    Example:
        batcher = Batcher(load_model("served/digits"), sizes=(1, 8, 32), most_waiting=1024)
        batcher.warm_up()
        logits = batcher.submit({"inputs": images}).result()["outputs"]
    """

    model: LoadedModel
    sizes: Sequence[int]
    """Of batches, to be compiled; a model that takes one size has that."""
    most_waiting: int
    """How many examples may wait; more are refused."""
    observe: BatchObserver | None = None
    _functions: dict[str, _Function] = field(init=False)
    _waiting: deque[_Part] = field(init=False, default_factory=deque)
    _n_waiting: int = field(init=False, default=0)
    _changed: threading.Condition = field(init=False, default_factory=threading.Condition)
    _is_closed: bool = field(init=False, default=False)
    _seconds: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self._functions = {name: _function(each, self.sizes) for name, each in self.model.signatures.items()}

    @property
    def n_waiting(self) -> int:
        """How many examples wait."""
        return self._n_waiting

    @property
    def compiled_sizes(self) -> tuple[int, ...]:
        """The sizes of batches of the default function."""
        return self._functions[self.model.manifest.default_signature].sizes

    @property
    def best_size(self) -> int:
        """The size of batches in which the default function answers the most examples in a second."""
        function = self._functions[self.model.manifest.default_signature]
        return function.best_size(function.sizes[-1])

    def warm_up(self) -> None:
        """Compiles each function for each size, times them, and starts to answer."""
        for function in self._functions.values():
            for size in function.sizes:
                _call(function, _zeros(function.inputs, size))
            largest = function.sizes[-1]
            if function.is_joint and largest > 1 and not _is_by_example(function, largest):
                function.is_joint = False
            if function.is_joint:
                function.seconds = _timed(function)
        threading.Thread(target=self._work, name="batches", daemon=True).start()

    def asked_alone(self) -> list[str]:
        """The functions whose answers are not by example, so that no two questions share a batch."""
        return [name for name, function in self._functions.items() if not function.is_joint]

    def inputs_of(self, signature: str) -> tuple[ArraySpec, ...]:
        """What a function takes, in batches of any size."""
        return self._functions[signature].inputs

    def submit(self, arrays: Arrays, *, signature: str | None = None) -> "Future[dict[str, np.ndarray]]":
        """Returns the outputs for examples, by name, when there are some; cancelling them takes the question back.

        Inputs that do not fit are a DataError, and a RequestRefusedError is raised if too many wait already.
        """
        name = signature or self.model.manifest.default_signature
        function = self._functions[name]
        checked = _checked(arrays, function)
        n_examples = len(next(iter(checked.values())))
        largest = function.best_size(n_examples)
        if not function.is_joint:
            _check_size_of_alone(name, function, n_examples)
            largest = n_examples
        future: Future[dict[str, np.ndarray]] = Future()
        starts = range(0, n_examples, largest)
        question = _Question(future, [None] * len(starts))
        parts = [
            _Part(name, rows, len(next(iter(rows.values()))), question, place)
            for place, start in enumerate(starts)
            for rows in [{key: array[start : start + largest] for key, array in checked.items()}]
        ]
        with self._changed:
            self._check_room(n_examples)
            self._waiting.extend(parts)
            self._n_waiting += n_examples
            self._changed.notify()
        return future

    def close(self) -> None:
        """Ends when all that waits is answered; nothing can be asked after it."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def check_room(self) -> None:
        """Raises a RequestRefusedError if no example more may wait."""
        if self._n_waiting >= self.most_waiting:
            raise self._full()

    def _check_room(self, n_examples: int) -> None:
        if self._is_closed:
            raise RequestRefusedError("The server is stopping.", status=503, retry_after=1)
        if n_examples > self.most_waiting:
            raise RequestRefusedError(
                f"The request has {n_examples} examples, and {self.most_waiting} are the most. Send them in parts.",
                status=413,
            )
        if self._n_waiting + n_examples > self.most_waiting:
            raise self._full()

    def _full(self) -> RequestRefusedError:
        n_batches = 1 + self._n_waiting // self.compiled_sizes[-1]
        return RequestRefusedError(
            f"{self._n_waiting} examples wait already, and {self.most_waiting} are the most. Try again later.",
            status=429,
            retry_after=min(60, max(1, round(n_batches * self._seconds))),
        )

    def _work(self) -> None:
        while parts := self._next_batch():
            start = time.perf_counter()
            self._answer(parts)
            seconds = time.perf_counter() - start
            self._seconds = seconds if not self._seconds else 0.9 * self._seconds + 0.1 * seconds
            if self.observe is not None:
                n_examples = sum(part.n_examples for part in parts)
                size = _size_for(self._functions[parts[0].signature], n_examples)
                self.observe(n_examples=n_examples, size=size, seconds=seconds)

    def _next_batch(self) -> list[_Part]:
        """The parts of the next batch: those that wait longest and may be together; empty when there are to be none."""
        with self._changed:
            while True:
                taken = self._take()
                if taken or (self._is_closed and not self._waiting):
                    return taken
                self._changed.wait()

    def _take(self) -> list[_Part]:
        taken: list[_Part] = []
        left: deque[_Part] = deque()
        room = 0
        for part in self._waiting:
            if part.question.future.done():  # given up by its caller, or another part of it has failed
                self._n_waiting -= part.n_examples
                continue
            if not taken:
                room = self._room(part)
            if (not taken or part.signature == taken[0].signature) and part.n_examples <= room:
                taken.append(part)
                room -= part.n_examples
                self._n_waiting -= part.n_examples
            else:
                left.append(part)
        self._waiting = left
        return taken

    def _room(self, first: _Part) -> int:
        """How many examples the next batch has at the most, if a part is the first in it."""
        function = self._functions[first.signature]
        if not function.is_joint:
            return first.n_examples
        n_waiting = sum(part.n_examples for part in self._waiting if part.signature == first.signature)
        return function.best_size(n_waiting, at_least=first.n_examples)

    def _answer(self, parts: Sequence[_Part]) -> None:
        function = self._functions[parts[0].signature]
        try:
            answers = list(_ask(function, [part.arrays for part in parts]))
        except Exception as error:  # noqa: BLE001  (it is raised where the answer is waited for)
            if len(parts) == 1:
                parts[0].question.fail(error)
                return
            # What one caller has sent is not the fault of the others.
            for part in parts:
                self._answer([part])
            return
        for part, answer in zip(parts, answers, strict=True):
            part.question.put(part.place, answer)


def _function(signature: LoadedSignature, sizes: Sequence[int]) -> _Function:
    specs = signature.spec.inputs
    size = specs[0].shape[0] if specs and specs[0].shape else None
    is_joint = all(spec.shape[:1] == (size,) for spec in (*specs, *signature.spec.outputs))
    inputs = tuple(replace(spec, shape=(BATCH, *spec.shape[1:])) if spec.shape else spec for spec in specs)
    if isinstance(size, int):
        return _Function(signature, inputs, (size,), is_joint=is_joint, is_fixed=True)
    return _Function(signature, inputs, tuple(sorted(set(sizes))), is_joint=is_joint)


def _checked(arrays: Arrays, function: _Function) -> dict[str, np.ndarray]:
    signature = function.signature
    signature.check_names(arrays)
    checked = {spec.name: checked_array(arrays[spec.name], spec, owner=signature.name) for spec in function.inputs}
    sizes = {name: len(array) for name, array in checked.items()}
    if len(set(sizes.values())) > 1:
        raise DataError(f"The inputs of {signature.name} differ in their batch size: {sizes}.")
    return checked


def _check_size_of_alone(name: str, function: _Function, n_examples: int) -> None:
    if function.is_fixed and n_examples != function.sizes[0]:
        raise DataError(f"{name} takes batches of {function.sizes[0]} examples, not of {n_examples}.")
    if n_examples > function.sizes[-1]:
        raise DataError(
            f"{name} answers for a batch as a whole, of {function.sizes[-1]} examples at the most, not of {n_examples}."
        )


def _size_for(function: _Function, n_examples: int) -> int:
    """The size of the batch that some examples are asked in."""
    if not function.is_joint:
        return n_examples
    return next(size for size in function.sizes if size >= n_examples)


def _ask(function: _Function, questions: Sequence[Arrays]) -> Iterator[dict[str, np.ndarray]]:
    """Yields the answer to each question; they are asked in one batch, which its last row fills up."""
    counts = [len(next(iter(arrays.values()))) for arrays in questions]
    size = _size_for(function, sum(counts))
    batch = {}
    for spec in function.inputs:
        rows = [arrays[spec.name] for arrays in questions]
        filling = np.repeat(rows[-1][-1:], size - sum(counts), axis=0)
        batch[spec.name] = np.concatenate([*rows, filling]) if len(rows) > 1 or len(filling) else rows[0]
    outputs = _call(function, batch)
    if not function.is_joint:
        yield outputs
        return
    start = 0
    for n_examples in counts:
        yield {name: array[start : start + n_examples] for name, array in outputs.items()}
        start += n_examples


def _call(function: _Function, batch: Arrays) -> dict[str, np.ndarray]:
    outputs = jax.device_get(function.signature.call_by_name(batch))
    leaves = jax.tree_util.tree_leaves_with_path(outputs)
    return {path_name(path, "outputs"): np.asarray(leaf) for path, leaf in leaves}


def _timed(function: _Function) -> dict[int, float]:
    """The least seconds that a batch of each size took, in a few rounds."""
    seconds = dict.fromkeys(function.sizes, float("inf"))
    start = time.perf_counter()
    for _ in range(_MOST_ROUNDS):
        for size in function.sizes:
            batch = _zeros(function.inputs, size)
            asked = time.perf_counter()
            _call(function, batch)
            seconds[size] = min(seconds[size], time.perf_counter() - asked)
        if time.perf_counter() - start > _SECONDS_OF_ROUNDS:
            break
    return seconds


def _zeros(inputs: Sequence[ArraySpec], size: int) -> dict[str, np.ndarray]:
    return {spec.name: np.zeros(_shape(spec, size), spec.dtype) for spec in inputs}


def _shape(spec: ArraySpec, size: int) -> tuple[int, ...]:
    return tuple(size if isinstance(each, str) else each for each in spec.shape)


def _is_by_example(function: _Function, size: int) -> bool:
    """Whether the first row of a batch is answered alike, whatever the other rows are."""
    random = np.random.default_rng(0)
    first = {spec.name: _some(spec, size, random) for spec in function.inputs}
    second = {
        spec.name: np.concatenate([first[spec.name][:1], _some(spec, size, random)[1:]]) for spec in function.inputs
    }
    answers = [_call(function, batch) for batch in (first, second)]
    return all(_are_alike(answers[0][name][0], answers[1][name][0]) for name in answers[0])


def _some(spec: ArraySpec, size: int, random: np.random.Generator) -> np.ndarray:
    shape = _shape(spec, size)
    # Whole numbers may be ids of a small vocabulary.
    values = random.normal(size=shape) if "float" in spec.dtype else random.integers(0, 2, size=shape)
    return values.astype(spec.dtype)


def _are_alike(first: np.ndarray, second: np.ndarray) -> bool:
    if "float" not in first.dtype.name:
        return np.array_equal(first, second)
    return np.allclose(first.astype(np.float64), second.astype(np.float64), rtol=1e-3, atol=1e-5, equal_nan=True)
