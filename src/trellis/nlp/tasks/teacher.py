"""The answers of a trained model to the text that another is trained on: computed once, and kept beside the text."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trellis.data import Columns
from trellis.disk import files_in, write_whole
from trellis.errors import ArgumentError, CheckpointFileError, DataError
from trellis.experiments import best_of_run, read_params
from trellis.extensions import newest_file
from trellis.json_text import parse_json
from trellis.nlp.answers import Predictor, load_predictor
from trellis.nlp.data import TEXT, SentencePredictionTextDataConfig, cached_answers
from trellis.nlp.tasks.fine_tuned import read_hugging_face_experiment
from trellis.runtime import Tally
from trellis.serving import find_served_model

TEACHER_LOGITS = "teacher_logits"
"""What the answers are called in a batch."""
_NOTE = "teacher.json"
_FINGERPRINT = "fingerprint"


def teacher_columns(
    params: SentencePredictionTextDataConfig, *, teacher_dir: str, run_dir: str, n_classes: int, labels: Sequence[str]
) -> Columns:
    """The teacher's logits for each row of the text, in the order of the task's classes.

    A run that has begun goes on with the answers that it began with, whatever has become of the teacher.

    Args:
        teacher_dir: A run, a served model, or a folder of Hugging Face's.
        run_dir: Where the run writes, which may have begun; empty if that is not known.
        n_classes: How many the task has; 1 is for numbers.
        labels: The names of its classes; empty if they have none.
    """
    kept = _read_note(run_dir)
    known_by = kept or teacher_fingerprint(teacher_dir)
    teacher: list[_Teacher] = []

    def answer(rows: Sequence[tuple[str, ...]]) -> NDArray[np.float32]:
        if not teacher:
            if kept and (not Path(teacher_dir).is_dir() or teacher_fingerprint(teacher_dir) != kept):
                raise DataError(
                    f"task.teacher_dir: `{teacher_dir}` is not the teacher that the run in `{run_dir}` began with, and "
                    f"its answers are not beside {params.input_path} any more. Bring either of them back, or begin a "
                    f"new run."
                )
            teacher.append(_Teacher(teacher_dir, n_classes=n_classes, labels=labels))
        return teacher[0](rows)

    return cached_answers(params, name=TEACHER_LOGITS, answer=answer, known_by=[known_by, n_classes, list(labels)])


def note_teacher(teacher_dir: str, *, run_dir: str) -> None:
    """Writes into the directory of a run which teacher it has begun with."""
    content = json.dumps({_FINGERPRINT: teacher_fingerprint(teacher_dir)}, indent=2)
    write_whole(Path(run_dir, _NOTE), f"{content}\n".encode())


def teacher_fingerprint(teacher_dir: str) -> str:
    """What changes with what a model answers: a hash of its files, where manifests stand for checkpoints."""
    digest = hashlib.blake2b(digest_size=16)
    for file in _files_of(teacher_dir):
        digest.update(file.name.encode())
        with file.open("rb") as content:
            digest.update(hashlib.file_digest(content, "blake2b").digest())
    return digest.hexdigest()


def _files_of(teacher_dir: str) -> list[Path]:
    folder = Path(teacher_dir)
    served = find_served_model(folder)
    if served is not None:
        return sorted(files_in(served))
    if not (folder / "params.yaml").is_file():
        return sorted(file for file in folder.iterdir() if file.suffix in (".json", ".safetensors", ".txt", ".model"))
    checkpoint = best_of_run(read_params(folder), folder) or newest_file(folder)
    if checkpoint is None:
        raise ArgumentError(f"task.teacher_dir: `{teacher_dir}` is a run without a checkpoint file. Train it first.")
    return [folder / "params.yaml", checkpoint / "manifest.json", *sorted(files_in(folder / TEXT))]


class _Teacher:
    """Answers texts with logits in the order of the classes of somebody else's task."""

    def __init__(self, teacher_dir: str, *, n_classes: int, labels: Sequence[str]) -> None:
        self._predictor = _load(teacher_dir)
        self._place = f"task.teacher_dir: `{teacher_dir}`"
        self._n_classes = n_classes
        self._order = _order(list(labels), list(self._predictor.label_values or ()), place=self._place)
        self._tally = Tally("Asking the teacher", unit="texts")

    def __call__(self, rows: Sequence[tuple[str, ...]]) -> NDArray[np.float32]:
        try:
            logits = np.stack(list(self._predictor.logits(rows))).astype(np.float32)
        except ArgumentError as error:
            raise ArgumentError(f"{self._place} cannot answer the text to train on: {error}") from None
        if logits.shape[1] != self._n_classes:
            raise ArgumentError(
                f"{self._place} has {logits.shape[1]} classes, but the task has {self._n_classes} "
                f"(task.model.num_classes; 1 is for numbers). Take a teacher that has learned the same classes."
            )
        self._tally.add(len(rows))
        return logits if self._order is None else logits[:, self._order]


def _load(teacher_dir: str) -> Predictor:
    folder = Path(teacher_dir)
    is_weights = find_served_model(folder) is None and not (folder / "params.yaml").is_file()
    try:
        params: Any = read_hugging_face_experiment(folder) if is_weights else None
        predictor = load_predictor(teacher_dir, params=params)
        # One that answers something else says so here.
        _ = predictor.label_values
    except (ArgumentError, CheckpointFileError) as error:
        raise ArgumentError(f"task.teacher_dir: `{teacher_dir}` cannot teach: {error}") from None
    return predictor


def _order(labels: list[str], theirs: list[str], *, place: str) -> list[int] | None:
    """Where each class of the task is among those of the teacher; None if they are told by their numbers alone."""
    if not labels or not theirs:
        return None
    if sorted(labels) != sorted(theirs):
        raise ArgumentError(f"{place} has the classes {theirs}, but the task has {labels}. Take another teacher.")
    return [theirs.index(label) for label in labels]


def _read_note(run_dir: str) -> str:
    """The fingerprint of the teacher that a run has begun with; empty if none has begun."""
    file = Path(run_dir, _NOTE)
    if not run_dir or newest_file(Path(run_dir)) is None or not file.is_file():
        return ""
    try:
        return str(parse_json(file.read_bytes())[_FINGERPRINT])
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(f"`{file}` does not tell which teacher the run has ({error!r}). Copy it again.") from None
