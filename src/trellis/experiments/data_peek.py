"""What `trellis data show` shows: a few examples as a model sees them, and what the batches before it are like."""

import hashlib
import math
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import numpy as np
from numpy.typing import NDArray

from trellis.aliases import JSON, Batch
from trellis.config import raise_if_any
from trellis.data import CountedStream, SizedStream, is_stream
from trellis.errors import ArgumentError
from trellis.experiments.experiment import ExperimentConfig
from trellis.experiments.mode import get_mode, mode_problems
from trellis.experiments.run import build_task
from trellis.json_text import without_nan
from trellis.loops import Replay, batch_size
from trellis.runtime import table
from trellis.tasks import BatchView, Task
from trellis.trainer import build_task_inputs, check_shapes

Side = Literal["train", "validation"]

_MOST_BATCHES = 50
_MOST_EXAMPLES = 2000
"""Whatever comes first bounds what statistics are of; one batch is looked at in any case."""
_N_BINS = 8
_MOST_LABELS = 20
_MOST_VALUES = 8
_MOST_COLUMNS = 32
"""Of a picture, in characters."""
_SHADES = " .:-=+*#%@"
_WIDTH = 100
"""Where lines are as long as they may be."""


@dataclass(frozen=True, kw_only=True)
class ArrayFacts:
    """An array of all batches that were looked at."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    """Of the first batch."""
    least: float | None
    """None if it has no numbers, or none that are finite."""
    most: float | None
    mean: float | None
    n_not_finite: int


@dataclass(frozen=True, kw_only=True)
class LengthFacts:
    """How long rows are, padding apart."""

    row_length: int
    """Of the longest rows, padding included."""
    least: int
    most: int
    mean: float
    padding: float
    """Its share of all positions."""
    histogram: tuple[tuple[int, int], ...]
    """Pairs: up to which length, and how many rows are so long and longer than those of the pair before."""


@dataclass(frozen=True, kw_only=True)
class LabelFacts:
    """The labels of one name."""

    name: str
    counts: Mapping[str, int]
    """By label, the most frequent first; empty if labels are measures, not classes."""
    n_distinct: int
    least: float
    most: float
    mean: float


@dataclass(frozen=True, kw_only=True)
class Peek:
    """What a side of an experiment's data is like."""

    side: Side
    step: int
    """Of the first batch that was looked at."""
    n_batches: int
    n_examples: int
    """How many were looked at."""
    n_known: int | None
    """How many the data has; None if it does not say."""
    arrays: tuple[ArrayFacts, ...]
    lengths: LengthFacts | None
    labels: tuple[LabelFacts, ...]
    n_duplicates: int
    """How many examples are the same as one before them, labels apart."""
    n_contradictions: int
    """How many of these have another label."""
    examples: tuple[Mapping[str, JSON], ...]
    """What is shown of the first ones, by name."""
    pictures: tuple[Mapping[str, NDArray[Any]], ...]
    """The arrays among that."""

    def as_json(self) -> dict[str, JSON]:
        """All of it but pictures, for programs."""
        values: dict[str, Any] = {
            **{name: value for name, value in vars(self).items() if name != "pictures"},
            "examples": list(self.examples),
            "arrays": [vars(facts) for facts in self.arrays],
            "lengths": None if self.lengths is None else vars(self.lengths),
            "labels": [vars(facts) for facts in self.labels],
        }
        plain: dict[str, JSON] = without_nan(values)
        return plain


def peek_data(params: ExperimentConfig, *, side: Side, n_examples: int = 3, step: int = 0) -> Peek:
    """Looks at the batches that a run gets from a step on; trains and writes nothing, and makes no model.

    Args:
        n_examples: How many are shown; statistics are of more.
        step: The first batch is the one that the step after so many trains on.
    """
    if n_examples < 0 or step < 0:
        name, value = ("n_examples", n_examples) if n_examples < 0 else ("step", step)
        raise ArgumentError(f"{name} is {value}, but it cannot be less than 0.")
    mode = get_mode("train" if side == "train" else "eval")
    place = f"task.{side}_data."
    problems = [problem for problem in mode_problems(params, mode=mode) if (problem.path or "").startswith(place)]
    raise_if_any(problems)
    task, params = build_task(params, model_dir=None)
    check_shapes(task)
    data = build_task_inputs(task, params=getattr(params.task, f"{side}_data"), runtime=params.runtime)
    n_known = data.n_examples if isinstance(data, CountedStream) else None
    facts = _Facts(task, n_examples=n_examples)
    for batch in _batches(data, step=step, side=side):
        # In a second epoch every example is one that was there before.
        if facts.n_batches and facts.n_examples + batch_size(batch) > min(_MOST_EXAMPLES, n_known or _MOST_EXAMPLES):
            break
        facts.add(batch)
    if not facts.n_batches:
        raise ArgumentError(f"The {side} data has no batch of step {step}: {_end_of(data)}")
    return facts.peek(side=side, step=step, n_known=n_known)


def _batches(data: Any, *, step: int, side: Side) -> Iterator[Batch]:
    if is_stream(data):
        n_known = data.n_batches if isinstance(data, SizedStream) else None
        last = step + _MOST_BATCHES if n_known is None else min(n_known, step + _MOST_BATCHES)
        yield from (data.batch(at) for at in range(step, last))
    elif step:
        raise ArgumentError(f"The {side} data is no stream (`batch(step)`), of which step {step} could be shown.")
    else:
        # What else it holds is read only once.
        yield Replay(data, n_batches=1, place=f"task.{side}_data").peek()


def _end_of(data: Any) -> str:
    n_known = data.n_batches if is_stream(data) and isinstance(data, SizedStream) else None
    return "it ends before." if n_known is None else f"it has {n_known}, those of the steps 0 to {n_known - 1}."


class _Facts:
    """What batches are like, one after the other."""

    def __init__(self, task: Task, *, n_examples: int) -> None:
        self._task = task
        self._n_shown = n_examples
        self.n_batches = 0
        self.n_examples = 0
        self._arrays: dict[str, _Range] = {}
        self._lengths: list[NDArray[np.integer]] = []
        self._row_length = 0
        self._n_positions = 0
        self._labels: dict[str, list[NDArray[Any]]] = {}
        self._view: BatchView | None = None
        self._seen: dict[bytes, bytes] = {}
        self._n_duplicates = 0
        self._n_contradictions = 0
        self._examples: list[Mapping[str, JSON]] = []
        self._pictures: list[Mapping[str, NDArray[Any]]] = []

    def add(self, batch: Batch) -> None:
        """Looks at one more."""
        size = batch_size(batch)
        arrays = {
            jax.tree_util.keystr(path, simple=True, separator="."): np.asarray(leaf) for path, leaf in _leaves(batch)
        }
        for name, array in arrays.items():
            self._arrays.setdefault(name, _Range(array)).add(array)
        view = self._view = self._task.view_batch(batch)
        if view.lengths is not None:
            self._lengths.append(np.asarray(view.lengths))
            self._row_length = max(self._row_length, view.row_length)
            self._n_positions += size * view.row_length
        for name, values in (*view.labels.items(), *view.several_labels.items()):
            self._labels.setdefault(name, []).append(values)
        self._compare(view, size)
        for row in range(min(size, self._n_shown - len(self._examples))):
            self._show(view, row, arrays)
        self.n_batches += 1
        self.n_examples += size

    def _compare(self, view: BatchView, size: int) -> None:
        inputs = [np.ascontiguousarray(leaf) for _, leaf in _leaves(view.inputs)]
        for row in range(size):
            key = hashlib.blake2b(digest_size=16)
            for array in inputs:
                key.update(array[row].tobytes() if array.dtype != object else repr(array[row]).encode())
            label = b"".join(values[row].tobytes() for values in view.labels.values())
            before = self._seen.setdefault(key.digest(), label)
            if len(self._seen) + self._n_duplicates <= self.n_examples + row:
                self._n_duplicates += 1
                self._n_contradictions += before != label

    def _show(self, view: BatchView, row: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        told = view.describe(row) or {name: array[row] for name, array in arrays.items()}
        pictures = {name: value for name, value in told.items() if isinstance(value, np.ndarray) and _is_picture(value)}
        self._pictures.append(pictures)
        self._examples.append(
            {
                name: f"{value.dtype}{list(value.shape)}"
                if name in pictures and isinstance(value, np.ndarray)
                else _as_json(value)
                for name, value in told.items()
            }
        )

    def peek(self, *, side: Side, step: int, n_known: int | None) -> Peek:
        """All of it."""
        view = self._view
        assert view is not None
        return Peek(
            side=side,
            step=step,
            n_batches=self.n_batches,
            n_examples=self.n_examples,
            n_known=n_known,
            arrays=tuple(array.facts(name) for name, array in self._arrays.items()),
            lengths=self._length_facts() if self._lengths else None,
            labels=tuple(_label_facts(name, values, view) for name, values in self._label_values()),
            n_duplicates=self._n_duplicates,
            n_contradictions=self._n_contradictions,
            examples=tuple(self._examples),
            pictures=tuple(self._pictures),
        )

    def _label_values(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yields the labels of all examples by name, if there are any."""
        for name, parts in self._labels.items():
            values = np.concatenate(parts)
            if values.size:
                yield name, values

    def _length_facts(self) -> LengthFacts:
        lengths, longest = np.concatenate(self._lengths), self._row_length
        width = max(1, math.ceil(longest / _N_BINS))
        bins = Counter(((np.maximum(lengths, 1) - 1) // width).tolist())
        return LengthFacts(
            row_length=longest,
            least=int(lengths.min()),
            most=int(lengths.max()),
            mean=float(lengths.mean()),
            padding=1 - int(lengths.sum()) / max(1, self._n_positions),
            histogram=tuple(
                (min(longest, (place + 1) * width), bins[place]) for place in range(math.ceil(longest / width))
            ),
        )


class _Range:
    """The numbers of an array, batch after batch."""

    def __init__(self, first: NDArray[Any]) -> None:
        self._shape, self._dtype = first.shape, str(first.dtype)
        self._least = math.inf
        self._most = -math.inf
        self._total = 0.0
        self._n = 0
        self._n_not_finite = 0

    def add(self, array: NDArray[Any]) -> None:
        try:
            numbers = array.astype(np.float64).ravel()
        except (TypeError, ValueError):
            return
        finite = numbers[np.isfinite(numbers)]
        self._n_not_finite += numbers.size - finite.size
        if finite.size:
            self._least, self._most = min(self._least, finite.min()), max(self._most, finite.max())
            self._total += float(finite.sum())
            self._n += finite.size

    def facts(self, name: str) -> ArrayFacts:
        """All of it."""
        return ArrayFacts(
            name=name,
            dtype=self._dtype,
            shape=self._shape,
            least=float(self._least) if self._n else None,
            most=float(self._most) if self._n else None,
            mean=self._total / self._n if self._n else None,
            n_not_finite=self._n_not_finite,
        )


def _leaves(tree: Any) -> list[tuple[Any, Any]]:
    return [(path, np.asarray(leaf)) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]


def _label_facts(name: str, values: NDArray[Any], view: BatchView) -> LabelFacts:
    numbers = values.astype(np.float64)
    is_class = np.issubdtype(values.dtype, np.integer) or values.dtype == bool
    counts = Counter(numbers.tolist()) if is_class else Counter[float]()
    return LabelFacts(
        name=name,
        counts={view.label_text(value): n for value, n in counts.most_common(_MOST_LABELS)},
        n_distinct=len(np.unique(numbers)),
        least=float(numbers.min()),
        most=float(numbers.max()),
        mean=float(numbers.mean()),
    )


def _is_picture(array: NDArray[Any]) -> bool:
    return array.ndim in (2, 3) and min(array.shape[:2]) > 1 and (array.ndim == 2 or array.shape[2] in (1, 3, 4))


def _as_json(value: JSON | NDArray[Any]) -> JSON:
    if not isinstance(value, np.ndarray | np.generic):
        return value
    if value.size == 1:
        plain: JSON = value.item() if not isinstance(value.item(), bytes) else repr(value.item())
        return plain
    flat = value.ravel()
    shown = [f"{item:.4g}" if isinstance(item, float) else str(item) for item in flat[:_MOST_VALUES].tolist()]
    more = f" … {flat.size - _MOST_VALUES} more" if flat.size > _MOST_VALUES else ""
    return f"{value.dtype}{list(value.shape)} {', '.join(shown)}{more}"


def describe_peek(peek: Peek, *, width: float) -> Iterator[str]:
    """Yields the lines that tell of it, none of them wider than `width`."""
    columns = int(min(width, _WIDTH))
    # What has no words to be wrapped at is cut.
    yield from (next(_cut(line, columns)) for line in _peek_lines(peek, columns))


def _peek_lines(peek: Peek, columns: int) -> Iterator[str]:
    until = peek.step + peek.n_batches - 1
    steps = f"step {peek.step}" if until == peek.step else f"the steps {peek.step} to {until}"
    known = "" if peek.n_known is None else f" ({peek.n_known:,} in all)"
    yield from _wrapped(
        f"{peek.side.capitalize()} data: {peek.n_examples:,} examples{known} in the {peek.n_batches:,} "
        f"batch{'es' if peek.n_batches > 1 else ''} of {steps} were looked at.".split(),
        columns,
    )
    yield ""
    yield from _array_lines(peek.arrays, columns)
    if peek.lengths is not None:
        yield ""
        yield from _length_lines(peek.lengths, columns)
    for labels in peek.labels:
        yield ""
        yield from _label_lines(labels, columns, n_examples=peek.n_examples)
    yield ""
    yield from _wrapped(_duplicates(peek).split(), columns)
    for number, (example, pictures) in enumerate(zip(peek.examples, peek.pictures, strict=True)):
        yield ""
        yield f"Example {number + 1}"
        for name, value in example.items():
            words = [visible(str(word)) for word in value] if isinstance(value, list) else [visible(str(value))]
            yield from _wrapped(words, columns, label=f"  {visible(name)}: ")
            if name in pictures:
                yield from (f"    {line}" for line in sketch(pictures[name], columns=min(_MOST_COLUMNS, columns - 4)))


def _array_lines(arrays: Sequence[ArrayFacts], columns: int) -> Iterator[str]:
    rows: list[tuple[str, ...]] = [("array", "dtype", "shape", "least", "mean", "most", "")]
    for facts in arrays:
        numbers = ["—" if number is None else f"{number:.4g}" for number in (facts.least, facts.mean, facts.most)]
        odd = f"{facts.n_not_finite:,} not finite" if facts.n_not_finite else ""
        shape = " × ".join(map(str, facts.shape))
        rows.append((visible(facts.name) or "batch", facts.dtype, shape, *numbers, odd))
    yield from table(rows)


def _length_lines(lengths: LengthFacts, columns: int) -> Iterator[str]:
    yield from _wrapped(
        f"Lengths: {lengths.least} to {lengths.most} of {lengths.row_length}, {lengths.mean:.1f} on average; "
        f"{lengths.padding:.1%} of all positions are padding.".split(),
        columns,
    )
    yield from _bars([(f"up to {end}", n) for end, n in lengths.histogram], columns)


def _label_lines(labels: LabelFacts, columns: int, *, n_examples: int) -> Iterator[str]:
    name = visible(labels.name)
    if labels.counts:
        yield f"Labels, {name}: {labels.n_distinct} kind{'s' if labels.n_distinct != 1 else ''}"
        yield from _bars([(visible(label), n) for label, n in labels.counts.items()], columns)
        if labels.n_distinct > len(labels.counts):
            yield f"  and {labels.n_distinct - len(labels.counts)} more, each less often"
    else:
        yield f"Labels, {name}: {labels.least:.4g} to {labels.most:.4g}, {labels.mean:.4g} on average"


def _duplicates(peek: Peek) -> str:
    if not peek.n_duplicates:
        return "Duplicates: none among them."
    other = f", {peek.n_contradictions:,} of them with another label" if peek.n_contradictions else ""
    is_small = peek.n_known is not None and peek.n_known < peek.n_examples
    anew = " The data ends within the batch, and begins anew." if is_small else ""
    return f"Duplicates: {peek.n_duplicates:,} of {peek.n_examples:,} are the same as one before them{other}.{anew}"


def _bars(rows: Sequence[tuple[str, int]], columns: int) -> Iterator[str]:
    total, most = sum(n for _, n in rows), max(n for _, n in rows)
    names = [name if cell_width(name) <= columns // 2 else f"{name[: columns // 2 - 1]}…" for name, _ in rows]
    width = max(map(cell_width, names))
    digits = len(f"{most:,}")
    room = max(1, min(40, columns - width - digits - 12))
    for name, (_, n) in zip(names, rows, strict=True):
        share = n / max(1, total)
        bar = "█" * round(room * n / max(1, most))
        yield f"  {name}{' ' * (width - cell_width(name))}  {n:>{digits},}  {share:6.1%}  {bar}".rstrip()


def sketch(pixels: NDArray[Any], *, columns: int) -> Iterator[str]:
    """Yields the lines of a small picture, drawn with characters: two for a pixel, as these are half as wide."""
    grey = pixels.astype(np.float64)
    grey = grey[..., :3].mean(axis=-1) if grey.ndim == 3 else grey
    stride = max(1, math.ceil(2 * grey.shape[1] / max(2, columns)))
    grey = np.nan_to_num(grey[::stride, ::stride], posinf=0, neginf=0)
    span = (grey.max() - grey.min()) or 1.0
    places = ((grey - grey.min()) / span * (len(_SHADES) - 1)).round().astype(int)
    yield from ("".join(2 * _SHADES[place] for place in row).rstrip() for row in places)


def visible(text: str) -> str:
    r"""The text with what has no picture of its own as an escape: control and format characters, and lone accents.

    Example:
        >>> visible("a\tb\x1b[31m")
        'a\\tb\\x1b[31m'
    """
    shown = []
    for place, character in enumerate(text):
        is_lone = bool(unicodedata.combining(character)) and (place == 0 or text[place - 1].isspace())
        is_shown = (character.isprintable() or character == "\u3000") and not is_lone
        shown.append(character if is_shown else character.encode("unicode_escape").decode())
    return "".join(shown)


def cell_width(text: str) -> int:
    """How many columns of a terminal a text takes."""
    from rich.cells import cell_len

    return cell_len(text)


def _wrapped(words: Sequence[str], columns: int, *, label: str = "") -> Iterator[str]:
    """Yields words on lines of at most so many columns; a word that is wider is cut."""
    indent = "    " if label else ""
    line, room = label, max(1, columns - len(indent))
    is_empty = True
    for whole in (part for word in words for part in _cut(word, room)):
        gap = "" if is_empty else " "
        if cell_width(line + gap + whole) > columns and line.strip():
            yield line.rstrip()
            line, gap = indent, ""
        line += gap + whole
        is_empty = False
    yield line.rstrip()


def _cut(word: str, room: int) -> Iterator[str]:
    part = ""
    for character in word:
        if cell_width(part + character) > room:
            yield part
            part = ""
        part += character
    yield part
