"""What all tasks on an encoder have in common: its settings, its weights, and checks before the first step."""

import os
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from trellis.aliases import JSON, Array, Batch, PyTree, Variables
from trellis.bindings import bound
from trellis.bridges import read_peft, write_hugging_face, write_peft
from trellis.config import Problem, origin_of, raise_if_any
from trellis.data import DataConfig, ExampleStream, Stream
from trellis.errors import DataError
from trellis.extensions import newest_file
from trellis.nlp.answers import Answerer, served_metadata
from trellis.nlp.data import TEXT, TextSettings, Tokenizer, data_place
from trellis.nlp.models import EncoderConfig, LayeredEncoder, build_encoder
from trellis.nlp.tasks.pretrained import read_hugging_face_weights, with_encoder_of
from trellis.nlp.tasks.text_source import (
    SIDES,
    VOCABULARY_FIELDS,
    TextSource,
    data_problems,
    find_text,
    for_run,
    silent_records,
    size_problem,
    text_problems,
    with_text,
)
from trellis.nlp.tasks.text_view import view_text
from trellis.nlp.tasks.tokenizer_config import tokenizer_config
from trellis.runtime import print_line
from trellis.tasks import BatchView, BoundModel, InputContext, LoraConfig, Task, read_warm_start, traceable


class EncoderTask(Task):
    """A task whose model is an encoder with heads.

    What belongs to weights is taken from their own directory, and is in the task's config from then on. A run that
    has begun looks at nothing but its own directory.

    A config that cannot work is an error when the task is made: sequences that are longer than the encoder can read,
    weights from two places or from another machine, text that is cut otherwise than that of the weights.
    """

    def __init__(self, params: Any, *, logging_dir: str | None = None, name: str | None = None) -> None:
        super().__init__(params, logging_dir=logging_dir, name=name)
        self._task_config = self.completed(params)
        raise_if_any(list(self.problems()))

    def completed(self, params: Any) -> Any:
        """The config with what it leaves to the weights and to the text."""
        if self.hub_module_url:
            params = with_encoder_of(self._encoder_dir, config=params)
        source = self.text_source
        return params if source is None else with_text(params, source)

    @abstractmethod
    def build_stream(self, params: Any, input_context: InputContext) -> Stream:
        """The stream for a data config."""

    @property
    @abstractmethod
    def answerer(self) -> Answerer:
        """How its model answers text."""

    @property
    def _encoder_dir(self) -> str:
        """The directory with the encoder's settings: a run that has begun does not need that of the weights."""
        run_dir = self.logging_dir
        if not run_dir or newest_file(Path(run_dir)) is None:
            return self.hub_module_url
        # A run of an older version kept neither the settings of its text nor those of its encoder.
        is_whole = Path(run_dir, TEXT).is_dir() or not Path(self.hub_module_url).is_dir()
        return run_dir if is_whole else self.hub_module_url

    def problems(self) -> Iterator[Problem]:
        """Yields the problems with the config."""
        if self.hub_module_url and self.task_config.init_checkpoint:
            yield self.problem(
                "hub_module_url",
                f"is {self.hub_module_url} while task.init_checkpoint is {self.task_config.init_checkpoint}.",
                "Set one of them: weights come from one place.",
            )
        of_encoder = list(self.encoder_config.problems(place="task.model.encoder"))
        if of_encoder:
            yield from of_encoder
            return
        source = self.text_source
        problem = None if source is None else size_problem(self.task_config, source, n_known=self.vocab_size)
        if problem is not None:
            yield problem
        yield from self.text_problems(self.task_config)
        most = self.n_positions
        for side in SIDES:
            length = getattr(self.task_config, side).seq_length
            if length > most:
                message = f"is {length}, but the encoder has positions for {most} tokens."
                advice = f"Set it to {most} or less, or take another encoder."
                yield self.problem(f"{side}.seq_length", message, advice)

    def text_problems(self, params: Any) -> Iterator[Problem]:
        """Yields what in a config contradicts the settings of the text."""
        source = self.text_source
        if source is None:
            return
        yield from text_problems(params, source)
        # A run that has begun can be asked whatever has become of its data.
        for side in SIDES if source.owner != "run" else ():
            yield from data_problems(params, source, side=side)

    def problem(self, field: str, message: str, advice: str) -> Problem:
        """A problem with a field of the task's config; the message goes on after the field's name."""
        return Problem(f"task.{field} {message}", origin_of(self.task_config, field), f"task.{field}", advice)

    def count_tokens(self, inputs: Batch) -> Array | None:
        """Those that the mask of a batch leaves."""
        return jnp.sum(inputs["input_mask"] != 0) if "input_mask" in inputs else None

    @property
    def hub_module_url(self) -> str:
        """The directory with the encoder's settings and weights; empty if the config has the settings."""
        return str(self.task_config.hub_module_url)

    @property
    def encoder_config(self) -> EncoderConfig:
        """The settings of the encoder."""
        config: EncoderConfig = self.task_config.model.encoder
        return config

    @cached_property
    def text_source(self) -> TextSource | None:
        """Where the settings of the text come from; None if they are not known, because the data came as ids."""
        return self.find_text()

    def find_text(self) -> TextSource | None:
        """Finds the settings of the text."""
        return find_text(self.task_config, run_dir=self.logging_dir)

    @property
    def text(self) -> TextSettings | None:
        """All that turns text into ids; None if it is not known, because the data came as ids."""
        return None if self.text_source is None else for_run(self.text_source, self.task_config)

    @property
    def tokenizer(self) -> Tokenizer | None:
        """What cuts text; None if that is not known."""
        return None if self.text_source is None else self.text_source.settings.build_tokenizer()

    @property
    def n_positions(self) -> int:
        """The length of the longest sequence that the encoder reads."""
        return self.encoder_config.n_positions

    @property
    def n_types(self) -> int:
        """How many kinds of segments the encoder takes: 2 if it reads pairs of two kinds, or looks at none."""
        return self.encoder_config.n_types

    @property
    def vocab_size(self) -> int:
        """How many tokens the encoder knows."""
        return self.encoder_config.vocab_size

    def build_encoder(self) -> LayeredEncoder:
        """The encoder."""
        return bound(build_encoder)(self.encoder_config)

    def build_inputs(self, params: DataConfig, input_context: InputContext | None = None) -> Stream:
        """The stream for a data config; its first batch shows whether the encoder knows its tokens."""
        if self.text_source is not None:
            side = SIDES[0] if params.is_training else SIDES[1]
            raise_if_any(list(data_problems(self.task_config, self.text_source, side=side)))
        stream = self.build_stream(params, input_context or InputContext())

        def check(batch: Any) -> None:
            self._check_ids(batch, f"{data_place(params)}.input_path: {params.input_path!r}")

        if isinstance(stream, ExampleStream):
            # Records are looked at whenever they are read; text is cut here, so that one batch tells of all.
            stream = stream.checked_by(check)
        check(stream.batch(0))
        return stream

    def _check_ids(self, batch: Mapping[str, Any], place: str) -> None:
        """Raises an error if the encoder has no embeddings for what is in a batch, which it would compute as zeros."""
        ways_out = {
            "word_ids": "Make the data with the vocabulary that the encoder has, or set the encoder's vocab_size "
            "to that of the vocabulary.",
            "type_ids": "Make the data with fewer kinds of segments, or set the encoder's type_vocab_size.",
        }
        known = {"word_ids": ("token", self.vocab_size), "type_ids": ("type id", self.n_types)}
        # A batch may have several texts for an example, and then these inputs for each: left_word_ids, right_word_ids.
        columns = [(name, kind) for name in batch for kind in known if name.endswith(f"_{kind}")]
        for name, kind in columns:
            what, n_known = known[kind]
            ids = np.asarray(batch[name])
            odd = next((int(number) for number in (ids.max(), ids.min()) if not 0 <= number < n_known), None)
            if odd is not None:
                known_range = f"the encoder knows {n_known} {what}s, from 0 on"
                raise DataError(f"{place} has the {what} {odd}, but {known_range}. {ways_out[kind]}")

    def serving_inputs(self, inputs: Any) -> dict[str, np.ndarray]:
        """The inputs for plain text, whatever else the data has: from 0 to the greatest that there is of each."""
        greatest = {"input_word_ids": self.vocab_size - 1, "input_type_ids": self.n_types - 1, "input_mask": 1}
        return {
            name: np.linspace(0, greatest.get(name, length - 1), length, dtype=np.int32)[None]
            for name, length in self.answerer.input_lengths.items()
        }

    def answering_config(self) -> Any:
        """The config without the places of weights and text, which have left in it what they had to say."""
        config = self.task_config.replace(hub_module_url="", init_checkpoint="")
        for side in SIDES:
            data = getattr(config, side)
            places = {name: "" for name in ("input_path", *VOCABULARY_FIELDS) if name in data.as_dict()}
            config = config.replace(**{side: data.replace(**places)})
        return config

    def serving_files(self) -> dict[str, str]:
        """The vocabulary, if it is known."""
        return {} if self.text is None else {self.text.file_name: str(self.text.vocab_file)}

    def serving_metadata(self) -> dict[str, JSON]:
        """How text is answered."""
        return {TEXT: served_metadata(self.answerer, text=self.text, vocab_size=self.vocab_size, n_types=self.n_types)}

    def view_batch(self, batch: Batch) -> BatchView:
        """Its pieces, as far as the vocabulary is known, and its labels by name."""
        return view_text(batch, tokenizer=self.tokenizer, label_fields=self.label_fields, label_names=self.label_names)

    @property
    def label_fields(self) -> Sequence[str]:
        """What a label of its own may be called in a batch."""
        return ()

    @property
    def label_names(self) -> Sequence[str]:
        """What its classes are called, in their order; nothing if that is not known."""
        return ()

    def plan_notes(self) -> Iterator[str]:
        """How text is cut."""
        if self.text_source is not None:
            yield f"text: {self.text_source}"

    def write_hugging_face(self, params: PyTree, *, output_dir: str | os.PathLike[str]) -> None:
        """Writes a directory that `transformers` loads: the settings, the weights, the labels, the tokenizer."""
        write_hugging_face(
            Path(output_dir),
            config=self.encoder_config.as_dict(),
            params=params,
            tokenizer_config=self._tokenizer_config(),
            vocab_files=self.serving_files(),
            **self.weights_settings(),
        )

    def write_peft(
        self, trained: PyTree, *, params: PyTree, config: LoraConfig, output_dir: str | os.PathLike[str]
    ) -> None:
        """Writes a directory that PEFT loads beside the weights that the training started from."""
        write_peft(
            Path(output_dir),
            config=self.encoder_config.as_dict(),
            trained=trained,
            heads=tuple(name for name in params if name != "encoder"),
            rank=config.rank,
            alpha=config.alpha,
            dropout=config.dropout,
            base=self.starts_from,
        )

    def read_peft(self, directory: str, *, config: LoraConfig, shapes: Mapping[str, Any]) -> Mapping[str, np.ndarray]:
        """The trained parameters by their paths, from a directory of PEFT's."""
        encoder = self.encoder_config.as_dict()
        place = "trainer.lora"
        return read_peft(directory, config=encoder, shapes=shapes, rank=config.rank, alpha=config.alpha, place=place)

    def _tokenizer_config(self) -> dict[str, JSON] | None:
        """How text is cut, in the words of `transformers`; None if that is not known."""
        if self.text is None:
            return None
        encoder_type = self.encoder_config.type or ""
        return tokenizer_config(self.text, encoder_type=encoder_type, n_positions=self.n_positions)

    def weights_settings(self) -> Mapping[str, Any]:
        """What others have to know to use the weights, as `write_hugging_face` takes it."""
        return {}

    @traceable
    def initialize(self, model: BoundModel) -> Variables:
        """The pretrained variables to start from at step 0; others are the model's own.

        The settings of the text are kept with the run, which can then be asked wherever it is.
        """
        # A plan looks at how a run would start, and leaves nothing behind: only a run has made its directory.
        if self.text is not None and self.logging_dir and Path(self.logging_dir).is_dir():
            self.text.write(Path(self.logging_dir, TEXT))
        for line in silent_records(self.task_config):
            print_line(line)
        source = self.starts_from
        if source and Path(source, "config.json").is_file():
            parts = self.task_config.init_parts
            return read_hugging_face_weights(source, model=model, encoder=self.encoder_config, parts=parts)
        return read_warm_start(source, model=model, parts=self.task_config.init_parts)
