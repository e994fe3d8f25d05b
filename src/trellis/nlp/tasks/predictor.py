"""A trained task that answers text."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from flax.traverse_util import unflatten_dict

from trellis.data import read_rows
from trellis.errors import ArgumentError, CheckpointFileError, DataError
from trellis.experiments import ExperimentConfig
from trellis.extensions import checkpoint_storage as storage
from trellis.extensions import newest_file
from trellis.nlp.data import Tokenizer, read_questions
from trellis.nlp.tasks.encoder_task import EncoderTask
from trellis.nlp.tasks.predictions import Prediction
from trellis.nlp.tasks.vocabulary import read_tokenizer
from trellis.tasks import BoundModel, get_task

_ROWS = (".tsv", ".csv", ".jsonl")


class Predictor:
    """Answers text with a trained model.

    Example:
        predictor = load_predictor(read_params("runs/mrpc"), model_dir="runs/mrpc")
        for prediction in predictor([("He said so.", "That is what he said.")]):
            print(prediction.text)
    """

    def __init__(self, task: EncoderTask, *, model: BoundModel, tokenizer: Tokenizer) -> None:
        self.task = task
        self._model = model
        self._tokenizer = tokenizer

    def __call__(self, texts: Sequence[tuple[str, ...]]) -> Iterator[Prediction]:
        """Yields what the model says to each text, which is given by its parts."""
        if not texts:
            raise ArgumentError("There is no text to answer.")
        return self.task.predict(texts, model=self._model, tokenizer=self._tokenizer)

    def read(self, input_file: str) -> Iterator[Prediction]:
        """Yields what the model says to each text of a file.

        Args:
            input_file: Lines with tabs between parts, or TSV, CSV or JSONL with the columns that the task names, or
                questions in SQuAD's JSON.
        """
        texts = list(self._read_texts(Path(input_file)))
        if not texts:
            raise DataError(f"{input_file}: there is no text in it.")
        return self(texts)

    def _read_texts(self, file: Path) -> Iterator[tuple[str, ...]]:
        if file.suffix == ".json":
            yield from self._read_squad(file)
            return
        if file.suffix not in _ROWS:
            lines = (row.values["text"] for row in read_rows(file, format="text"))
            yield from (tuple(str(line).split("\t")) for line in lines if str(line).strip())
            return
        for row in read_rows(file):
            columns = self.task.text_columns or list(row.values)
            missing = [name for name in columns if name not in row.values]
            if missing:
                raise DataError(
                    f"{file}:{row.line}: there is no column {missing[0]!r}; the columns are {', '.join(row.values)}. "
                    f"The task reads {', '.join(columns)}."
                )
            yield tuple(str(row.values[name]) for name in columns)

    def _read_squad(self, file: Path) -> Iterator[tuple[str, ...]]:
        if tuple(self.task.text_columns) != ("question", "context"):
            raise ArgumentError(f"{file}: JSON holds questions on passages, but the run is of a {self.task.name}.")
        with_negative = self.task.task_config.validation_data.version_2_with_negative
        for question in read_questions([file], version_2_with_negative=with_negative):
            yield question.text, " ".join(question.words), question.id


def load_predictor(params: ExperimentConfig, *, model_dir: str, vocab_file: str = "") -> Predictor:
    """Returns the predictor of a run: its best model if it kept one, else its newest.

    Args:
        params: The config of the run.
        vocab_file: The vocabulary, if the run does not know it.
    """
    task = get_task(params.task)
    if not isinstance(task, EncoderTask):
        raise ArgumentError(f"`{model_dir}` holds a {type(task).__name__}, which answers no text.")
    tokenizer = read_tokenizer(params.task, model_dir=model_dir, vocab_file=vocab_file)
    if tokenizer.vocab_size > task.vocab_size:
        raise ArgumentError(
            f"The vocabulary has {tokenizer.vocab_size} tokens, but the model in `{model_dir}` knows "
            f"{task.vocab_size}. Give the one that it was trained with: --vocab_file=vocab.txt"
        )
    subdir = params.trainer.best_checkpoint_export_subdir
    return Predictor(task, model=read_model(task, _find(Path(model_dir), subdir)), tokenizer=tokenizer)


def read_model(task: EncoderTask, checkpoint_file: Path) -> BoundModel:
    """Returns the task's model with the parameters of a checkpoint file, or with their averages if it has some."""
    tree = storage.read_manifest(checkpoint_file)["tree"]
    params = {name.removeprefix("model_params/"): name for name in tree if name.startswith("model_params/")}
    averages = {
        found[1]: name
        for name in tree
        if (found := re.fullmatch(r"optimizer_state/(?:.*/)?average/(.*)", name)) and found[1] in params
    }
    sources = params | averages
    arrays = storage.read_arrays(checkpoint_file, {name: tree[name] for name in sources.values()})
    nested: dict[str, Any] = unflatten_dict({path: arrays[name] for path, name in sources.items()}, sep="/")
    return BoundModel(task.build_model(), params=nested)


def _find(model_dir: Path, subdir: str) -> Path:
    best = sorted((model_dir / subdir).glob("*est_*_[0-9]*")) if subdir else []
    whole = [path for path in best if storage.is_checkpoint_file(path)]
    found = whole[-1] if whole else newest_file(model_dir)
    if found is None:
        raise CheckpointFileError(f"There is no checkpoint file in `{model_dir}`. Train first: trellis train.")
    return found
