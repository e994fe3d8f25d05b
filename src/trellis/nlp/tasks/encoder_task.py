"""What all tasks on an encoder have in common: its settings, its weights, and checks before the first step."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict

from trellis.aliases import JSON, Variables
from trellis.bindings import bound
from trellis.bridges import read_hugging_face, read_hugging_face_config
from trellis.config import Given, Problem, merge, origin_of, raise_if_any, read_file
from trellis.data import DataConfig, Stream
from trellis.errors import ArgumentError, CheckpointMismatchError, DataError
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
from trellis.nlp.models import EncoderConfig, build_encoder
from trellis.runtime import print_line
from trellis.tasks import BoundModel, InputContext, ModelWithItems, Task, read_warm_start, traceable

_LENGTHS = {"bert": "max_position_embeddings", "albert": "max_position_embeddings", "mobilebert": "max_sequence_length"}
_FREE = ("dropout_rate", "dropout_prob", "_outputs", "_scores", "_embeddings", "_checkpointing", "_range", "_dtype")
"""The ends of the names of settings that weights do not depend on."""
_NEARLY_FREE = {"hidden_activation", "norm_epsilon"}
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
            _check_is_local(self.hub_module_url, field="task.hub_module_url")
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

    def build_encoder(self) -> Any:
        """The encoder."""
        return bound(build_encoder)(self.encoder_config)

    def build_inputs(self, params: DataConfig, input_context: InputContext | None = None) -> Stream:
        """The stream for a data config; its first batch shows whether the encoder knows its tokens."""
        params = with_vocabulary(params, find=self.find_vocabulary)
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
        return TextSettings.of_task(self.task_config, answerer=self.answerer, vocab_size=self.vocab_size)

    @traceable
    def initialize(self, model: BoundModel) -> Variables:
        """The variables to start from at step 0, with pretrained ones in their place.

        The vocabulary is kept with the run, which can then be asked wherever it is.
        """
        if self.logging_dir:
            keep_vocabulary(self.find_vocabulary(), directory=self.logging_dir)
        source = self.hub_module_url or self.task_config.init_checkpoint
        return read_pretrained(source, model=model, encoder=self.encoder_config)


def _is_hugging_face(directory: str) -> bool:
    return Path(directory, "config.json").is_file()


def _check_is_local(directory: str, *, field: str) -> None:
    """Raises an error if a directory is not there."""
    if Path(directory).is_dir():
        return
    elsewhere = "is an address, but nothing is downloaded" if "://" in directory else "does not exist"
    raise ArgumentError(
        f"{field}: `{directory}` {elsewhere}. Give a directory on this machine: one of Hugging Face's, with "
        f"config.json and model.safetensors, or the model_dir of a run."
    )


def read_encoder_config(directory: str) -> EncoderConfig:
    """The settings of a pretrained encoder: from Hugging Face's `config.json`, or from the `params.yaml` of a run."""
    if _is_hugging_face(directory):
        return EncoderConfig(read_hugging_face_config(directory))
    # A checkpoint file lies in the directory of its run, or in one below that.
    above = [Path(directory), *Path(directory).absolute().parents[:2]]
    file = next((folder / "params.yaml" for folder in above if (folder / "params.yaml").is_file()), None)
    if file is None:
        raise ArgumentError(
            f"`{directory}` has neither config.json, as Hugging Face's directories do, nor params.yaml, as a run does. "
            f"Give one of these, or set task.init_checkpoint and the settings of the encoder."
        )
    values, problems = read_file(file)
    raise_if_any(problems)
    config = EncoderConfig()
    raise_if_any(merge(config, _value_at(values, ("task", "model", "encoder"), file)))
    return config


def read_pretrained(source: str, *, model: BoundModel, encoder: EncoderConfig) -> Variables:
    """The model's variables, with pretrained ones in the place of its own.

    Of the model's `checkpoint_items`, those that a directory of Hugging Face's has are taken from there, which is the
    encoder at least; from a checkpoint file of a run all of them are.

    Args:
        source: Such a directory, a checkpoint file, or the directory of a run; empty for none.
        encoder: The settings of the model's encoder, which have to be those of the weights.
    """
    if not source or not _is_hugging_face(source):
        return read_warm_start(source, model=model)
    fields, weights = read_hugging_face(source)
    _check_settings(source, EncoderConfig(fields), encoder)
    arrays = flatten_dict(weights, sep="/")
    pretrained = {target: arrays[name] for name, target in _sources(model, arrays).items()}
    new = flatten_dict(model.params, sep="/").keys() - pretrained.keys()
    parts = sorted({"/".join(name.split("/")[:2]) for name in new})
    print_line(f"Weights of `{source}` are taken; new are {', '.join(parts) or 'none'}.")

    def pick(path: Any, leaf: Any) -> Any:
        array = pretrained.get(jax.tree_util.keystr(path, simple=True, separator="/"))
        return leaf if array is None else jnp.asarray(array, leaf.dtype)

    params = jax.tree_util.tree_map_with_path(pick, model.params)
    return {**model.variables, "params": params}


def _check_settings(source: str, theirs: EncoderConfig, ours: EncoderConfig) -> None:
    """Refuses weights of another encoder, and prints the other settings that they were trained with."""
    if ours.type != theirs.type:
        differing = [f"  type: {theirs.type} there, {ours.type} here"]
    else:
        here, there = ours.get().as_dict(), theirs.get().as_dict()
        lines = {name: f"  {ours.type}.{name}: {there[name]} there, {value} here" for name, value in here.items()}
        names = [name for name in here if here[name] != there[name]]
        differing = [lines[name] for name in names if not name.endswith(_FREE) and name not in _NEARLY_FREE]
        for name in _NEARLY_FREE & set(names):
            print_line(f"The weights in `{source}` were trained with another setting:{lines[name]}")
    if differing:
        head = f"task.init_checkpoint: the weights in `{source}` are not of task.model.encoder:"
        way_out = "Set task.model.encoder to what is there, or let the directory say it: task.hub_module_url="
        raise CheckpointMismatchError("\n".join([head, *differing, f"{way_out}{source}"]))


def _sources(model: BoundModel, arrays: Mapping[str, Any]) -> dict[str, str]:
    """From the name of each array among the weights to its name in the model."""
    sources: dict[str, str] = {}
    items = model.model.checkpoint_items if isinstance(model.model, ModelWithItems) else {}
    for source, target in items.items():
        begin, end = source.replace(".", "/"), target.replace(".", "/")
        sources |= {name: end + name[len(begin) :] for name in arrays if name.startswith(f"{begin}/")}
    return sources


def _value_at(values: Given, path: tuple[str, ...], file: Path) -> Given:
    for name in path:
        inside = values.value.get(name) if isinstance(values.value, dict) else None
        if inside is None:
            raise ArgumentError(f"`{file}` has no {'.'.join(path)}: it is not of a run on an encoder.")
        values = inside
    return values
