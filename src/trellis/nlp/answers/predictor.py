"""A trained task that answers text."""

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import flax.linen as nn
import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from trellis.bridges import read_hugging_face
from trellis.errors import ArgumentError, CheckpointFileError, DataError
from trellis.experiments import ExperimentConfig, best_of_run, find_checkpoint, read_params
from trellis.extensions import checkpoint_storage as storage, newest_file
from trellis.nlp.answers.answerers import (
    BATCH_SIZE,
    Answerer,
    AskModel,
    Prediction,
    QuestionAnswerer,
    SentenceAnswerer,
    in_batches,
)
from trellis.nlp.answers.asked_file import Asked, AskedFile, open_asked_file
from trellis.nlp.answers.served_text import read_answerer, read_text, tokenizer_of_model
from trellis.nlp.data import TEXT, TextSettings, Tokenizer, in_blocks
from trellis.runtime import RuntimeConfig
from trellis.serving import LoadedModel, find_served_model, load_model
from trellis.tasks import BASE, BoundModel, LoraConfig, Task, get_task
from trellis.trainer import computing_model, merged_model

_BLOCK_TEXTS = 1 << 10
_FINGERPRINT = f"model_state/{BASE}/fingerprint"
"""Where a checkpoint file says beside which weights its adapters were trained."""


@runtime_checkable
class TextTask(Protocol):
    """A task whose model answers text."""

    @property
    def answerer(self) -> Answerer:
        """How text becomes the model's inputs, and its outputs an answer."""

    @property
    def text(self) -> TextSettings | None:
        """All that turns text into ids; None if it is not known."""

    @property
    def vocab_size(self) -> int:
        """How many tokens the model knows."""

    @property
    def n_types(self) -> int:
        """How many kinds of segments the model knows."""

    def build_model(self) -> Any:
        """The model."""


class ModelTask(Protocol):
    """A task that builds a model."""

    def build_model(self) -> Any:
        """The model."""


class Predictor:
    """Answers text with a trained model.

    Example:
        predictor = load_predictor("served/mrpc")
        for prediction in predictor([("He said so.", "That is what he said.")]):
            print(prediction.text)
    """

    def __init__(self, answerer: Answerer, *, ask: AskModel, tokenizer: Tokenizer) -> None:
        self._answerer = answerer
        self._ask = ask
        self._tokenizer = tokenizer

    @property
    def text_columns(self) -> Sequence[str]:
        """The names of the parts of a text; empty if they have none."""
        return self._answerer.text_columns

    def __call__(self, texts: Sequence[tuple[str, ...]]) -> Iterator[Prediction]:
        """Yields the answer to each text; a text is a tuple of its parts. One that has no answer is an error."""
        self._check(texts)
        return self._answerer(texts, ask=self._ask, tokenizer=self._tokenizer)

    @property
    def label_values(self) -> Sequence[str] | None:
        """The names of the classes of a model that classifies; None if they have none, or are not known."""
        return self._sentence_answerer().label_values

    def logits(self, texts: Sequence[tuple[str, ...]]) -> Iterator[np.ndarray]:
        """Yields the logits of the classes of each text, or its number; the model has to classify sentences."""
        answerer = self._sentence_answerer()
        self._check(texts)
        return answerer.logits(texts, ask=self._ask, tokenizer=self._tokenizer)

    def _check(self, texts: Sequence[tuple[str, ...]]) -> None:
        if not texts:
            raise ArgumentError("There is no text to answer.")
        for number, parts in enumerate(texts):
            try:
                self._answerer.check(parts, tokenizer=self._tokenizer)
            except ArgumentError as error:
                place = f"texts[{number}]: " if len(texts) > 1 else ""
                raise ArgumentError(f"{place}{error}") from None

    def _sentence_answerer(self) -> SentenceAnswerer:
        if not isinstance(self._answerer, SentenceAnswerer):
            raise ArgumentError(f"The model answers {self._answerer.kind}, so it has no logits of sentences.")
        return self._answerer

    def answers(self, texts: Iterable[Asked], *, block_size: int = _BLOCK_TEXTS) -> Iterator[Prediction]:
        """Yields the answer to each text, or what is wrong with it.

        Args:
            block_size: How many texts are read before the first of them is answered.
        """
        for block in in_blocks(texts, block_size):
            checked = [self._checked(asked) for asked in block]
            parts = [asked.parts for asked in checked if not asked.problem]
            predictions = iter(self._answerer(parts, ask=self._ask, tokenizer=self._tokenizer) if parts else ())
            for asked in checked:
                known_by = {} if asked.id is None else {"id": asked.id}
                if asked.problem:
                    yield Prediction(asked.problem, {**known_by, "error": asked.problem}, asked.problem)
                else:
                    prediction = next(predictions)
                    yield replace(prediction, values={**known_by, **prediction.values})

    def read(
        self, input_file: str, *, text_fields: Sequence[str] = (), column_names: Sequence[str] = ()
    ) -> Iterator[Prediction]:
        """Yields the answer to each text of a file, or what is wrong with it; the arguments are those of `open`."""
        return self.answers(self.open(input_file, text_fields=text_fields, column_names=column_names).texts)

    def open(self, input_file: str, *, text_fields: Sequence[str] = (), column_names: Sequence[str] = ()) -> AskedFile:
        """Returns the texts of a file, and what was taken for what in it.

        Args:
            input_file: Lines with tabs between parts, or TSV, CSV or JSONL with columns, or questions in SQuAD's JSON.
            text_fields: The columns to ask; the default are those that the model was trained with.
            column_names: The columns of a file without a header.
        """
        file = open_asked_file(
            Path(input_file), answerer=self._answerer, text_fields=text_fields, column_names=column_names
        )
        first = next(file.texts, None)
        if first is None:
            raise DataError(f"{input_file}: there is no text in it.")
        return replace(file, texts=itertools.chain([first], file.texts))

    def _checked(self, asked: Asked) -> Asked:
        if asked.problem:
            return asked
        try:
            self._answerer.check(asked.parts, tokenizer=self._tokenizer)
        except ArgumentError as error:
            return asked._replace(problem=f"{asked.place}: {error}")
        return asked


def load_predictor(
    model_dir: str, *, params: ExperimentConfig | None = None, vocab_file: str = "", checkpoint: str | None = None
) -> Predictor:
    """Returns the predictor of a run, with its best model if it kept one, else its newest; or that of a served model.

    A served model needs neither its code nor its task nor its config.

    Args:
        model_dir: Of a run, or what `trellis export` wrote, or of a model of Hugging Face's.
        params: The config of a run; the default is the one that it was trained with. A model of Hugging Face's needs
            that of `read_hugging_face_experiment`.
        vocab_file: The vocabulary, if the directory does not have it.
        checkpoint: `best`, a step, or a checkpoint file of a run.
    """
    served = find_served_model(model_dir)
    is_run = Path(model_dir, "params.yaml").is_file() or not Path(model_dir, "config.json").is_file()
    if checkpoint is not None and (served is not None or not is_run):
        raise ArgumentError(f"checkpoint is {checkpoint!r}, but `{model_dir}` is no run of ours. Leave it out.")
    if served is not None:
        return _load_served(served, vocab_file)
    params = params or read_params(model_dir)
    task = get_task(params.task, logging_dir=model_dir if is_run else None)
    if not isinstance(task, TextTask):
        raise ArgumentError(
            f"`{model_dir}` holds a {type(task).__name__}, which answers no text. Arrays it answers: "
            f"trellis.experiments.load_array_predictor({model_dir!r})"
        )
    tokenizer = tokenizer_of_model(task.text, vocab_file=vocab_file, n_known=task.vocab_size, place=model_dir)
    if checkpoint is None:
        file = best_of_run(params, Path(model_dir)) or newest_file(Path(model_dir))
    else:
        file = find_checkpoint(checkpoint, params=params, model_dir=Path(model_dir))
    if file is None and is_run:
        raise CheckpointFileError(f"There is no checkpoint file in `{model_dir}`. Train first: trellis train.")
    if file is None:
        model = read_fine_tuned_model(task, model_dir, runtime=params.runtime)
    else:
        model = read_model(task, file, runtime=params.runtime, adapters=params.trainer.lora)
    run = jax.jit(lambda variables, batch: model.with_variables(variables)(batch))
    # To questions an answer may be sought in the padding, too, as the published one is.
    cuts_padding = not isinstance(task.answerer, QuestionAnswerer)
    ask = in_batches(lambda batch: run(model.variables, batch), cuts_padding=cuts_padding)
    ask = _refusing_types(ask, n_types=task.n_types, place=model_dir)
    return Predictor(task.answerer, ask=ask, tokenizer=tokenizer)


def _load_served(directory: Path, vocab_file: str) -> Predictor:
    model = load_model(directory)
    text = open_served_text(model, name=str(directory), vocab_file=vocab_file)
    if text is None:
        raise ArgumentError(
            f"`{directory}` holds a served {model.manifest.metadata.get('task', 'model')}, which answers no text. "
            f"Arrays it answers: trellis.experiments.load_array_predictor({str(directory)!r})"
        )
    size = model.signatures[model.manifest.default_signature].spec.inputs[0].shape[0]
    return text.predictor(in_batches(model, batch_size=size if isinstance(size, int) else BATCH_SIZE))


class ServedText:
    """Answers text with a served model that somebody else asks, such as a server, which asks for many at once."""

    def __init__(self, answerer: Answerer, *, tokenizer: Tokenizer, n_types: int, name: str) -> None:
        self._answerer = answerer
        self._tokenizer = tokenizer
        self._n_types = n_types
        self._name = name

    @property
    def kind(self) -> str:
        """What it answers, in a word."""
        return self._answerer.kind

    @property
    def text_columns(self) -> Sequence[str]:
        """The names of the parts of a text; empty if they have none."""
        return self._answerer.text_columns

    def predictor(self, ask: AskModel) -> Predictor:
        """Returns what answers text by a way to ask the model."""
        checked = _refusing_types(ask, n_types=self._n_types, place=self._name)
        return Predictor(self._answerer, ask=checked, tokenizer=self._tokenizer)

    def __call__(self, texts: Sequence[tuple[str, ...]], /, *, ask: AskModel) -> Iterator[Prediction]:
        """Yields the answer to each text. One that has no answer is an error."""
        return self.predictor(ask)(texts)


def open_served_text(model: LoadedModel, /, *, name: str, vocab_file: str = "") -> ServedText | None:
    """Returns what answers text with a served model; None if the model takes no text.

    Args:
        name: What errors call the model.
        vocab_file: The vocabulary, if the model does not have it.
    """
    metadata = model.manifest.metadata.get(TEXT)
    if not isinstance(metadata, dict):
        return None
    answerer = read_answerer(metadata, place=name)
    text = read_text(metadata, files=model.files, place=name)
    tokenizer = tokenizer_of_model(text, vocab_file=vocab_file, n_known=metadata["vocab_size"], place=name)
    # Models that were exported before did not tell; theirs were BERT's two.
    return ServedText(answerer, tokenizer=tokenizer, n_types=metadata.get("n_types", 2), name=name)


def _refusing_types(ask: AskModel, *, n_types: int, place: str) -> AskModel:
    """Asks a model, but not with kinds of segments that it has no embeddings for: it would take them for zeros."""

    def checked(inputs: Mapping[str, np.ndarray], /) -> Iterator[Any]:
        most = int(inputs["input_type_ids"].max())
        if most >= n_types:
            raise ArgumentError(
                f"A text has {most + 1} parts, but the model in `{place}` knows {n_types} (type_vocab_size). "
                f"Ask it with fewer."
            )
        return ask(inputs)

    return checked


def read_fine_tuned_model(task: TextTask, directory: str, *, runtime: RuntimeConfig) -> BoundModel:
    """Returns the task's model with the weights of a directory of Hugging Face's, which has to have all that answers.

    Args:
        runtime: The model computes in its precision.
    """
    model = computing_model(task.build_model(), runtime=runtime)
    inputs = {name: np.zeros((1, length), np.int32) for name, length in task.answerer.input_lengths.items()}
    shapes = flatten_dict(nn.meta.unbox(jax.eval_shape(model.init, jax.random.key(0), inputs))["params"], sep="/")
    arrays = flatten_dict(read_hugging_face(directory)[1], sep="/")
    # Models that do not use the encoder's pooler come without it.
    arrays |= {name: np.zeros(shape.shape, np.float32) for name, shape in shapes.items() if _is_unused(name, arrays)}
    missing = [name for name in shapes if name not in arrays]
    if missing:
        raise CheckpointFileError(
            f"`{directory}` has no weights for {', '.join(missing)}, so its model cannot answer. Copy the directory "
            f"again."
        )
    return BoundModel(model, params=unflatten_dict({name: arrays[name] for name in shapes}, sep="/"))


def _is_unused(name: str, arrays: Mapping[str, np.ndarray]) -> bool:
    """Whether a parameter is of a pooler that no head uses: one has its own, or there is none that classifies."""
    is_pooler = name.startswith("encoder/pooler/") and name not in arrays
    heads = ("sentence_prediction", "multi_label")
    has_own = any(f"{head}/pooler_dense/kernel" in arrays for head in heads)
    return is_pooler and (has_own or not any(f"{head}/logits/kernel" in arrays for head in heads))


def read_model(
    task: ModelTask, checkpoint_file: Path, *, runtime: RuntimeConfig, adapters: LoraConfig | None = None
) -> BoundModel:
    """Returns the task's model with the parameters of a checkpoint file, or with their averages if it has some.

    Args:
        runtime: The runtime of the run; the model computes in its precision.
        adapters: Those that the run has trained: then the weights beside them are read from where it took them.
    """
    tree = storage.read_manifest(checkpoint_file)["tree"]
    params = {name.removeprefix("model_params/"): name for name in tree if name.startswith("model_params/")}
    averages = {
        match[1]: name
        for name in tree
        if (match := re.fullmatch(r"optimizer_state/(?:.*/)?average/(.*)", name)) and match[1] in params
    }
    sources = params | averages
    known = [_FINGERPRINT] if adapters is not None and _FINGERPRINT in tree else []
    arrays = storage.read_arrays(checkpoint_file, {name: tree[name] for name in (*sources.values(), *known)})
    if adapters is not None and known and isinstance(task, Task):
        return merged_model(
            task,
            config=adapters,
            runtime=runtime,
            inputs=task.serving_inputs({}),
            trained={path: arrays[name] for path, name in sources.items()},
            fingerprint=arrays[_FINGERPRINT],
        )
    nested: dict[str, Any] = unflatten_dict({path: arrays[name] for path, name in sources.items()}, sep="/")
    return BoundModel(computing_model(task.build_model(), runtime=runtime), params=nested)
