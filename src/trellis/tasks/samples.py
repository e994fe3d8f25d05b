"""A few examples of an evaluation with what the model says of them, for the page about a run."""

import base64
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import numpy as np

from trellis.aliases import JSON
from trellis.disk import write_whole
from trellis.errors import ArgumentError
from trellis.json_text import without_nan

SAMPLES = "samples.json"

_N_HARDEST, _N_FIRST = 16, 8
_MOST_CLASSES = 50
_LARGEST_PICTURE = 128
_LONGEST_TEXT = 1000


def write_samples(
    directory: str | os.PathLike[str],
    *,
    step: int | None,
    scores: np.ndarray,
    labels: np.ndarray,
    label_names: Sequence[str] = (),
    text_of: Callable[[int], str] | None = None,
    pictures: np.ndarray | None = None,
) -> None:
    """Writes `{directory}/samples.json` about the last evaluation of a classifier, which `trellis report` shows.

    It has the confusion matrix, the examples with the largest loss, and the first ones. It is for
    `Task.reduce_aggregated_logs`, where all scores and labels are known. Of several processes the first one writes;
    nothing is written if there is no such directory.

    Example:
        def reduce_aggregated_logs(self, logs, global_step=None):
            scores, labels = map(np.concatenate, zip(*logs))
            write_samples(self.logging_dir, step=global_step, scores=scores, labels=labels)
            return {}

    Args:
        directory: `Task.logging_dir`.
        scores: Of each class along the last axis, as logits.
        labels: The right classes, as integers.
        text_of: What to show of an example, by its number.
        pictures: Of the examples, in bytes: (examples, height, width), or with three colours as a last axis.
    """
    if not directory or not Path(directory).is_dir() or jax.process_index() or not len(labels):
        return
    if scores.ndim != 2 or labels.shape != scores.shape[:1]:
        raise ArgumentError(
            f"write_samples was given scores {scores.shape} and labels {labels.shape}. Give (examples, classes) and "
            f"(examples,)."
        )
    n_classes = scores.shape[1]
    scores = scores.astype(np.float64)
    shifted = scores - scores.max(axis=1, keepdims=True)
    inside = np.clip(labels, 0, n_classes - 1)
    losses = np.log(np.exp(shifted).sum(axis=1)) - np.take_along_axis(shifted, inside[:, None], axis=1)[:, 0]
    predicted = scores.argmax(axis=1)
    # What is no number is as hard as can be.
    hardest = np.argsort(-np.nan_to_num(losses, nan=np.inf), kind="stable")[:_N_HARDEST]

    def example(number: int) -> dict[str, JSON]:
        content: dict[str, JSON] = {
            "label": int(inside[number]),
            "predicted": int(predicted[number]),
            "loss": float(f"{losses[number]:.5g}"),
        }
        if text_of is not None:
            content["text"] = text_of(number)[:_LONGEST_TEXT]
        if pictures is not None and max(pictures.shape[1:3]) <= _LARGEST_PICTURE:
            content["picture"] = _picture(pictures[number])
        return content

    content: dict[str, JSON] = {
        "step": step,
        "n_examples": len(labels),
        "labels": list(label_names) if len(label_names) == n_classes else [str(label) for label in range(n_classes)],
        "hardest": [example(int(number)) for number in hardest],
        "first": [example(number) for number in range(min(_N_FIRST, len(labels)))],
    }
    if n_classes <= _MOST_CLASSES:
        counts = np.bincount(inside * n_classes + predicted, minlength=n_classes**2)
        content["confusion"] = counts.reshape(n_classes, n_classes).tolist()
    write_whole(Path(directory) / SAMPLES, f"{json.dumps(without_nan(content))}\n".encode())


def _picture(pixels: np.ndarray) -> dict[str, JSON]:
    height, width = pixels.shape[:2]
    channels = 3 if pixels.ndim == 3 else 1
    text = base64.b64encode(np.ascontiguousarray(pixels, np.uint8).tobytes()).decode()
    return {"width": width, "height": height, "channels": channels, "pixels": text}
