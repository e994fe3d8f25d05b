"""How well a served model answers examples of files, as a whole and by slices: plain arrays, no task."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trellis.data import ExampleBlock, column_of, infer_features, read_example_blocks
from trellis.errors import ArgumentError, DataError
from trellis.serving.array_predictor import ArrayPredictor
from trellis.serving.load import LoadedModel, load_model
from trellis.spelling import did_you_mean

ALL = "all"
"""The slice that all examples are in."""
_LABELS = ("label", "labels", "label_id", "label_ids", "target", "y")
_MOST_VALUES = 50
"""How many values a feature may have that is sliced by."""


@dataclass(frozen=True)
class SliceScore:
    """What a model reaches on the examples of a slice."""

    n_examples: int
    metrics: Mapping[str, float]


def evaluate_model(
    directory: Path,
    *,
    files: Sequence[str],
    metrics: Sequence[str],
    label: str = "",
    output: str = "",
    slices: Sequence[str] = (),
    columns: Mapping[str, str] | None = None,
) -> dict[str, SliceScore]:
    """Returns what a model that `trellis export` wrote reaches, by slice: `all`, then such as `sex=male`.

    Args:
        files: Of examples: their features have the names of the model's inputs.
        label: The feature with the right answers; the default is one called `label`, `label_ids`, `target` or alike.
        output: The one that is compared with it; the default is the only one, or one called `logits`.
        slices: Features, each of whose values makes a slice.
        columns: The feature that each input of the model is, where the names differ.
    """
    model = load_model(directory)
    predictor = ArrayPredictor(model)
    chosen = {name: [feature] for name, feature in (columns or {}).items()}
    found: dict[str, list[np.ndarray]] = {}
    answers: list[np.ndarray] = []
    for file in files:
        for block in read_example_blocks(file):
            # A slice may be one of the labels themselves.
            for name in dict.fromkeys([_label_name(label, block), *slices]):
                found.setdefault(name, []).append(_values(block, name))
        answers += [_output(batch.outputs, output) for batch in predictor.open(file, columns=chosen).answers]
    if not answers:
        raise DataError(f"There are no examples in {', '.join(files)}. Give some to evaluate on.")
    outputs = np.concatenate(answers)
    features = {name: np.concatenate(parts) for name, parts in found.items()}
    label_name = next(iter(features))
    labels = _numbers(features[label_name], model, label_name)
    rows_of = {ALL: np.ones(len(labels), bool)}
    for name in slices:
        values = np.unique(features[name])
        if len(values) > _MOST_VALUES:
            raise ArgumentError(
                f"The feature {name!r} has {len(values):,} values, and a slice of each would be too many. Slice by one "
                f"with {_MOST_VALUES} or fewer."
            )
        rows_of |= {f"{name}={value}": features[name] == value for value in values}
    return {
        title: SliceScore(int(rows.sum()), {name: METRICS[name](outputs[rows], labels[rows]) for name in metrics})
        for title, rows in rows_of.items()
    }


def check_features(files: Sequence[str], *, label: str, slices: Sequence[str]) -> None:
    """Raises an error if the first examples of files lack the feature of the labels, or one that is sliced by."""
    for file in files:
        for block in itertools.islice(read_example_blocks(file), 1):
            for name in (_label_name(label, block), *slices):
                _values(block, name)


def _label_name(label: str, block: ExampleBlock) -> str:
    if label:
        return label
    name = next((name for name in _LABELS if name in block.names), None)
    if name is None:
        raise ArgumentError(
            f"{block.path}: which feature has the right answers is not known. They are {', '.join(block.names)}. Name "
            f"it: label=NAME"
        )
    return name


def _values(block: ExampleBlock, name: str) -> np.ndarray:
    """A feature that has one value for each example: numbers, or texts."""
    if name not in block.names:
        suggestion = did_you_mean(name, block.names)
        raise ArgumentError(
            f"{block.path} has no feature {name!r}.{suggestion} Its features are {', '.join(block.names)}."
        )
    feature = infer_features(block, missing={})[name]
    column = column_of(block, name=name, feature=feature, missing="" if feature.is_text else None)
    if feature.is_text:
        texts = [column[index] for index in range(len(column))]
        return np.array([text.decode(errors="replace") if isinstance(text, bytes) else str(text) for text in texts])
    array = np.asarray(column) if isinstance(column, np.ndarray) else np.zeros((0, 2))
    if math.prod(array.shape[1:]) != 1:
        raise ArgumentError(f"{block.path}: the feature {name!r} has several values for an example. Take another.")
    return array.reshape(-1)


def _numbers(labels: np.ndarray, model: LoadedModel, name: str) -> np.ndarray:
    if labels.dtype.kind != "U":
        return labels
    known = model.categories.get(name)
    if known is None:
        raise ArgumentError(
            f"The labels {name!r} are texts, such as {str(labels[0])!r:.40}, and the model does not tell their "
            f"numbers. Give numbers."
        )
    unknown = sorted(set(labels.tolist()) - set(known))
    if unknown:
        raise DataError(f"The label {unknown[0]!r:.40} is none of the {len(known)} that the model knows.")
    return np.array([known.index(text) for text in labels.tolist()])


def _output(outputs: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    name = name or (next(iter(outputs)) if len(outputs) == 1 else "logits")
    if name not in outputs:
        suggestion = did_you_mean(name, outputs)
        raise ArgumentError(
            f"The model has no output {name!r}.{suggestion} It has {', '.join(outputs)}. Name one: output=NAME"
        )
    return np.asarray(outputs[name]).astype(np.float64)


def _accuracy(outputs: np.ndarray, labels: np.ndarray) -> float:
    scores = _scores(outputs, labels)
    # What is no number is no answer: else the first NaN would count as the greatest score.
    return float((scores.argmax(-1) == labels).mean()) if np.isfinite(scores).all() else math.nan


def _loss(outputs: np.ndarray, labels: np.ndarray) -> float:
    scores = _scores(outputs, labels)
    shifted = scores - scores.max(-1, keepdims=True)
    of_label = np.take_along_axis(shifted, labels.astype(np.int64)[:, None], -1)[:, 0]
    return float((np.log(np.exp(shifted).sum(-1)) - of_label).mean())


def _f1(outputs: np.ndarray, labels: np.ndarray) -> float:
    """The mean over the classes that are there, of the labels or of the answers."""
    scores = _scores(outputs, labels)
    if not np.isfinite(scores).all():
        return math.nan
    answers = scores.argmax(-1)
    values = []
    for number in np.union1d(labels, answers):
        n_right = ((answers == number) & (labels == number)).sum()
        values.append(2 * n_right / ((answers == number).sum() + (labels == number).sum()))
    return float(np.mean(values))


def _scores(outputs: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The scores of classes; one score of an example is that of the second of two."""
    scores = outputs.reshape(len(outputs), -1)
    if scores.shape[1] == 1:
        scores = np.concatenate([np.zeros_like(scores), scores], 1)
    if labels.dtype.kind == "f" and not np.array_equal(labels, np.round(labels)):
        raise ArgumentError("The labels are no whole numbers, so they are no classes. Take mse or mae.")
    if labels.size and not 0 <= int(labels.min()) <= int(labels.max()) < scores.shape[1]:
        raise DataError(
            f"There are labels from {int(labels.min())} to {int(labels.max())}, but the model has scores for "
            f"{scores.shape[1]} classes, from 0 on."
        )
    return scores


def _errors(outputs: np.ndarray, labels: np.ndarray) -> np.ndarray:
    if math.prod(outputs.shape[1:]) != 1:
        raise ArgumentError(f"The output has the shape {list(outputs.shape)}, and mse and mae take one number each.")
    difference: np.ndarray = outputs.reshape(-1) - labels
    return difference


METRICS: Mapping[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "accuracy": _accuracy,
    "f1": _f1,
    "loss": _loss,
    "mse": lambda outputs, labels: float(np.square(_errors(outputs, labels)).mean()),
    "mae": lambda outputs, labels: float(np.abs(_errors(outputs, labels)).mean()),
}
"""The metrics that a served model can be compared by: of scores before a softmax, or of numbers."""
