"""What a model answers to arrays, for people on the screen, and for programs as lines of JSON, a table or arrays."""

import csv
import io
import itertools
import json
import math
from collections.abc import Iterator
from typing import IO, Any, Protocol

import numpy as np

from trellis.serving.array_predictor import ArrayAnswers

_N_SHOWN = 6
_ID = "id"


def answer_lines(answers: ArrayAnswers) -> Iterator[str]:
    """Yields a line for each example: what it is known by, and what the model answers, shortened."""
    for row, known_by in enumerate(answers.ids):
        shown = (f"{name} {_shown(array[row])}" for name, array in answers.outputs.items())
        yield f"{known_by}  {'  '.join(shown)}"


def answer_rows(answers: ArrayAnswers, *, has_ids: bool) -> Iterator[dict[str, Any]]:
    """Yields what the model answers for each example, by name, as JSON has it."""
    columns = {name: plain_numbers(array) for name, array in answers.outputs.items()}
    if has_ids:
        columns = {_ID: answers.ids, **columns}
    for row in zip(*columns.values(), strict=True):
        yield dict(zip(columns, row, strict=True))


def _shown(value: np.ndarray) -> str:
    if value.ndim == 0:
        return f"{value.item():.6g}" if value.dtype.kind == "f" else str(value.item())
    flat = value.reshape(-1)
    numbers = " ".join(f"{number:.4g}" for number in flat[:_N_SHOWN].tolist())
    text = f"[{numbers}{' …' if flat.size > _N_SHOWN else ''}]"
    if value.ndim > 1:
        return f"{text} of shape {value.shape}"
    is_ranked = flat.size > 1 and flat.dtype.kind == "f"
    return f"{text}, the largest at {int(flat.argmax())}" if is_ranked else text


class AnswersFile(Protocol):
    """A file that answers are written to, part by part."""

    def append(self, answers: ArrayAnswers) -> None:
        """Adds some answers."""

    def finish(self) -> None:
        """Writes what is left to be written."""


def open_answers_file(output: IO[bytes], *, suffix: str, has_ids: bool) -> AnswersFile:
    """Returns what writes answers to an open file: a table for `.csv`, arrays for `.npz`, else lines of JSON.

    Args:
        has_ids: Whether examples have ids of their own; numbers are left out, as they are those of the lines.
    """
    kinds: dict[str, type[_Lines | _Table | _Arrays]] = {".csv": _Table, ".npz": _Arrays}
    return kinds.get(suffix.lower(), _Lines)(output, has_ids=has_ids)


class _Lines:
    def __init__(self, output: IO[bytes], *, has_ids: bool) -> None:
        self._output = output
        self._has_ids = has_ids

    def append(self, answers: ArrayAnswers) -> None:
        for row in answer_rows(answers, has_ids=self._has_ids):
            self._output.write(f"{json.dumps(row)}\n".encode())

    def finish(self) -> None:
        pass


class _Table:
    def __init__(self, output: IO[bytes], *, has_ids: bool) -> None:
        self._output = output
        self._has_ids = has_ids
        self._has_header = False

    def append(self, answers: ArrayAnswers) -> None:
        columns = {name: plain_numbers(array) for name, array in _cells(answers.outputs)}
        if self._has_ids:
            columns = {_ID: answers.ids, **columns}
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        if not self._has_header:
            writer.writerow(columns)
            self._has_header = True
        writer.writerows(zip(*columns.values(), strict=True))
        self._output.write(text.getvalue().encode())

    def finish(self) -> None:
        pass


class _Arrays:
    def __init__(self, output: IO[bytes], *, has_ids: bool) -> None:
        self._output = output
        self._has_ids = has_ids
        self._parts: list[ArrayAnswers] = []

    def append(self, answers: ArrayAnswers) -> None:
        self._parts.append(answers)

    def finish(self) -> None:
        arrays = {
            # NumPy's format has no bfloat16: it would be read back as bytes.
            name: _held(np.concatenate([part.outputs[name] for part in self._parts]))
            for name in self._parts[0].outputs
        }
        if self._has_ids:
            arrays = {_ID: np.array([known_by for part in self._parts for known_by in part.ids]), **arrays}
        kwargs: dict[str, Any] = arrays
        np.savez(self._output, allow_pickle=False, **kwargs)


def _cells(outputs: dict[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the columns of a table: an output of several numbers is several of them, `name_0` and so on."""
    for name, array in outputs.items():
        if math.prod(array.shape[1:]) == 1:
            yield name, array.reshape(-1)
            continue
        for place in itertools.product(*map(range, array.shape[1:])):
            index: Any = (slice(None), *place)
            yield f"{name}_{'_'.join(map(str, place))}", array[index]


def _held(array: np.ndarray) -> np.ndarray:
    return array if array.dtype.kind in "biufc" else array.astype(np.float32)


def plain_numbers(array: np.ndarray) -> list[Any]:
    """Numbers as JSON has them: the shortest that mean the same in the array's precision, and `nan` by its name."""
    held = _held(array)
    if held.dtype.kind != "f":
        return list(held.tolist())
    return list(_numbers(held.astype("U").tolist()))


def _numbers(texts: Any) -> Iterator[Any]:
    for text in texts:
        if isinstance(text, list):
            yield list(_numbers(text))
        else:
            number = float(text)
            yield number if math.isfinite(number) else text
