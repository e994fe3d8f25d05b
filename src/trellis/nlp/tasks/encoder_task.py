"""What all tasks on an encoder have in common: its settings, its weights, and checks before the first step."""

from abc import abstractmethod
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from trellis.aliases import JSON, Variables
from trellis.bindings import bound
from trellis.config import Problem, origin_of, raise_if_any
from trellis.data import DataConfig, Stream
from trellis.errors import DataError
from trellis.nlp.answers import (
    TEXT,
    Answerer,
    TextSettings,
    find_vocabulary,
    keep_vocabulary,
    kept_vocabulary,
    vocabulary_name,
    with_vocabulary,
)
from trellis.nlp.data import data_place
from trellis.nlp.models import EncoderConfig, LayeredEncoder, build_encoder
from trellis.nlp.tasks.pretrained import check_is_local, read_encoder_config, read_hugging_face_weights
from trellis.tasks import BoundModel, InputContext, Task, read_warm_start, traceable

_LENGTHS = {"bert": "max_position_embeddings", "albert": "max_position_embeddings", "mobilebert": "max_sequence_length"}
_VOCABULARIES = {"bert": "vocab_size", "albert": "vocab_size", "mobilebert": "word_vocab_size"}


class EncoderTask(Task):
    """A task whose model is an encoder with heads.

    A config that cannot work is an error when the task is made: sequences that are longer than the encoder can read,
    weights from two places or from another machine.
    """

    def __init__(self, params: Any, *, logging_dir: str | None = None, name: str | None = None) -> None:
        super().__init__(params, logging_dir=logging_dir, name=name)
        raise_if_any(list(self.problems()))

    @abstractmethod
    def build_stream(self, params: Any, input_context: InputContext) -> Stream:
        """The stream for a data config."""

    @property
    @abstractmethod
    def answerer(self) -> Answerer:
        """How its model answers text."""

    def problems(self) -> Iterator[Problem]:
        """Yields the problems with the config."""
        if self.hub_module_url and self.task_config.init_checkpoint:
            yield self.problem(
                "hub_module_url",
                f"is {self.hub_module_url} while task.init_checkpoint is {self.task_config.init_checkpoint}.",
                "Set one of them: weights come from one place.",
            )
        if self.hub_module_url:
            check_is_local(self.hub_module_url, field="task.hub_module_url")
        of_encoder = list(self.encoder_config.problems(place="task.model.encoder"))
        if of_encoder:
            yield from of_encoder
            return
        most = self.n_positions
        for side in ("train_data", "validation_data"):
            length = getattr(self.task_config, side).seq_length
            if length > most:
                message = f"is {length}, but the encoder has positions for {most} tokens."
                advice = f"Set it to {most} or less, or take another encoder."
                yield self.problem(f"{side}.seq_length", message, advice)

    def problem(self, field: str, message: str, advice: str) -> Problem:
        """A problem with a field of the task's config; the message goes on after the field's name."""
        return Problem(f"task.{field} {message}", origin_of(self.task_config, field), f"task.{field}", advice)

    @property
    def hub_module_url(self) -> str:
        """The directory with the encoder's settings and weights; empty if the config has the settings."""
        return str(self.task_config.as_dict().get("hub_module_url", ""))

    @cached_property
    def encoder_config(self) -> EncoderConfig:
        """The settings of the encoder: those in `hub_module_url`, if it is set."""
        config: EncoderConfig = self.task_config.model.encoder
        return read_encoder_config(self.hub_module_url) if self.hub_module_url else config

    @property
    def n_positions(self) -> int:
        """The length of the longest sequence that the encoder reads."""
        return int(getattr(self.encoder_config.get(), _LENGTHS[str(self.encoder_config.type)]))

    @property
    def vocab_size(self) -> int:
        """How many tokens the encoder knows."""
        return int(getattr(self.encoder_config.get(), _VOCABULARIES[str(self.encoder_config.type)]))

    def find_vocabulary(self) -> Path | None:
        """The vocabulary of the data; None if it is not known, because the data came as ids."""
        return find_vocabulary(self.task_config)

    def build_encoder(self) -> LayeredEncoder:
        """The encoder."""
        return bound(build_encoder)(self.encoder_config)

    def build_inputs(self, params: DataConfig, input_context: InputContext | None = None) -> Stream:
        """The stream for a data config; its first batch shows whether the encoder knows its tokens."""
        params = with_vocabulary(params, vocab_file=self.find_vocabulary())
        stream = self.build_stream(params, input_context or InputContext())
        most = int(np.max(stream.batch(0)["input_word_ids"]))
        if most >= self.vocab_size:
            raise DataError(
                f"{data_place(params)}.input_path: {params.input_path!r} has "
                f"the token {most}, but the encoder knows {self.vocab_size} tokens, from 0 on. Make the data with the "
                f"vocabulary that the encoder has, or set the encoder's vocab_size to that of the vocabulary."
            )
        return stream

    def serving_inputs(self, inputs: Any) -> dict[str, np.ndarray]:
        """The inputs for plain text, whatever else the data has."""
        return {name: np.zeros((1, length), np.int32) for name, length in self.answerer.input_lengths.items()}

    def serving_files(self) -> dict[str, str]:
        """The vocabulary, if it is known."""
        vocab_file = kept_vocabulary(self.logging_dir) or self.find_vocabulary()
        return {} if vocab_file is None else {vocabulary_name(vocab_file): str(vocab_file)}

    def serving_metadata(self) -> dict[str, JSON]:
        """How text is answered."""
        return {TEXT: self.text_settings.as_dict()}

    @property
    def text_settings(self) -> TextSettings:
        """All that text is answered with beside the model and the vocabulary."""
        data = self.task_config.train_data.as_dict()
        return TextSettings(
            answerer=self.answerer,
            tokenization=data.get("tokenization", "WordPiece"),
            lower_case=data.get("lower_case", data.get("do_lower_case", True)),
            vocab_size=self.vocab_size,
        )

    @traceable
    def initialize(self, model: BoundModel) -> Variables:
        """The pretrained variables to start from at step 0; others are the model's own.

        The vocabulary is kept with the run, which can then be asked wherever it is.
        """
        if self.logging_dir:
            keep_vocabulary(self.find_vocabulary(), directory=self.logging_dir)
        source = self.hub_module_url or self.task_config.init_checkpoint
        if source and Path(source, "config.json").is_file():
            return read_hugging_face_weights(source, model=model, encoder=self.encoder_config)
        return read_warm_start(source, model=model)
