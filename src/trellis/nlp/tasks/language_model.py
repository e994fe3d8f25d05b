"""The task of telling which token comes next."""

import math
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import struct

from trellis.aliases import JSON, Array, Batch, Variables
from trellis.config import Origin, Problem, merge, origin_of, raise_if_any, setting_at
from trellis.data import ExampleStream, Stream
from trellis.disk import write_whole
from trellis.errors import ArgumentError
from trellis.extensions import newest_file
from trellis.loops import Mean, Media, MetricFunction, Text
from trellis.nlp.answers import GenerationOptions, Generator, shown_text
from trellis.nlp.data import (
    TEXT,
    VOCABULARY_NAMES,
    LocalText,
    ReversibleTokenizer,
    build_block_stream,
    build_byte_tokenizer,
    prepare_local_text,
)
from trellis.nlp.models import Decoder
from trellis.nlp.tasks.configs import LanguageModelConfig, LocalLanguageModelConfig
from trellis.nlp.tasks.text_source import SIDES
from trellis.nlp.tasks.text_view import view_text
from trellis.tasks import BatchView, BoundModel, InputContext, Task, read_warm_start, register_task_cls, traceable

_ROUNDED_TO = 64


@struct.dataclass
class Perplexity:
    """The exponential of a mean loss: among how many equally probable tokens the model chooses."""

    loss: Mean

    def merge(self, other: "Perplexity") -> "Perplexity":
        """Over what both have seen."""
        return Perplexity(self.loss.merge(other.loss))

    def compute(self) -> Array:
        """The value."""
        return jnp.exp(self.loss.compute())


@register_task_cls(LanguageModelConfig)
class LanguageModelTask(Task):
    """Tells which token comes next, and shows text of its own at every evaluation.

    The tokenizer is kept with the run, which needs no other file from then on.
    """

    def __init__(self, params: Any, *, logging_dir: str | None = None, name: str | None = None) -> None:
        super().__init__(params, logging_dir=logging_dir, name=name)
        raise_if_any(list(self._data_problems()))
        self._task_config = self._completed(params)
        raise_if_any(list(self._problems()))
        self._generator: Generator | None = None

    def _completed(self, params: Any) -> Any:
        """The config with the size of the vocabulary, if it leaves that to the text."""
        if params.model.vocab_size is not None:
            return params
        size = -(-self.tokenizer.vocab_size // _ROUNDED_TO) * _ROUNDED_TO
        completed = params.replace()
        origin = Origin(f"the {self.tokenizer.vocab_size:,} tokens of the text")
        raise_if_any(merge(completed, setting_at("model.vocab_size", size, origin)))
        return completed

    def _data_problems(self) -> Iterator[Problem]:
        config = self.task_config
        files = {side: getattr(config, side).vocab_file for side in SIDES}
        if len(set(files.values())) > 1:
            message = f"is {files['validation_data']!r}, but {files['train_data']!r} for training."
            advice = "Name the same file for both: --set=task.validation_data.vocab_file=…"
            yield self._problem("validation_data.vocab_file", message, advice)

    def _problems(self) -> Iterator[Problem]:
        """Yields the problems with the config."""
        config = self.task_config
        yield from config.model.problems(place="task.model")
        n_tokens = self.tokenizer.vocab_size
        if config.model.vocab_size < n_tokens:
            message = f"is {config.model.vocab_size}, but the text has {n_tokens:,} tokens."
            yield self._problem("model.vocab_size", message, "Leave it out, or set it to that or more.")
        for side in SIDES:
            length = getattr(config, side).seq_length
            if length > self.context:
                message = f"is {length}, but the decoder has positions for {self.context} tokens."
                advice = f"Set it to {self.context} or less, or task.model.max_position_embeddings to more."
                yield self._problem(f"{side}.seq_length", message, advice)
            elif length < 1:
                yield self._problem(f"{side}.seq_length", f"is {length}.", "A block has at least one token.")
        if config.n_sample_tokens > 0 and self.context < 2:
            message = f"is {config.n_sample_tokens}, but a model with one position cannot write."
            yield self._problem("n_sample_tokens", message, "Set it to 0, or give the model more positions.")
        if config.n_sample_tokens < 0:
            message = f"is {config.n_sample_tokens}."
            yield self._problem("n_sample_tokens", message, "Set it to 0 to show no samples.")
        if not 0 <= config.sample_temperature < math.inf:
            message = f"is {config.sample_temperature}, but it is 0 or more."
            yield self._problem("sample_temperature", message, "0.8 is usual.")

    def _problem(self, field: str, message: str, advice: str) -> Problem:
        return Problem(f"task.{field} {message}", origin_of(self.task_config, field), f"task.{field}", advice)

    @cached_property
    def tokenizer(self) -> ReversibleTokenizer:
        """What turns text into ids and back: that of the run if it has begun, else what the config names."""
        if self._kept_file is not None and newest_file(Path(self.logging_dir)) is not None:
            # A run that was trained on bytes has no file.
            return build_byte_tokenizer(self._kept_file if self._kept_file.is_file() else "")
        return build_byte_tokenizer(self.task_config.train_data.vocab_file)

    @property
    def _kept_file(self) -> Path | None:
        """Where a run keeps its tokenizer."""
        return Path(self.logging_dir, TEXT, VOCABULARY_NAMES["tokenizer.json"]) if self.logging_dir else None

    @property
    def context(self) -> int:
        """How many tokens the model sees at most."""
        return int(self.task_config.model.max_position_embeddings)

    def build_model(self) -> Decoder:
        """The decoder."""
        return Decoder(self.task_config.model)

    def build_inputs(self, params: Any, input_context: InputContext | None = None) -> Stream:
        """Blocks of the text."""
        return self.build_stream(params, input_context or InputContext())

    def build_stream(self, params: Any, input_context: InputContext) -> ExampleStream:
        """Blocks of the files of a data config."""
        return build_block_stream(params, input_context, tokenizer=self.tokenizer)

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> Mean:
        """The mean over tokens of the cross-entropy, in nats."""
        loss = _token_loss(model_outputs, labels)
        extra = sum(aux_losses or (), jnp.float32(0))
        return Mean(loss.total + extra * loss.weight, loss.weight)

    def build_metrics(self, training: bool = True) -> dict[str, MetricFunction]:
        """Perplexity, and the bits that a byte of the text would take: the same for any way to cut it."""
        if training:
            return {}
        byte_lengths = np.zeros(self.task_config.model.vocab_size, np.float32)
        byte_lengths[: self.tokenizer.vocab_size] = self.tokenizer.byte_lengths

        def perplexity(outputs: Mapping[str, Array], batch: Mapping[str, Array]) -> Perplexity:
            return Perplexity(_token_loss(outputs, batch))

        def bits_per_byte(outputs: Mapping[str, Array], batch: Mapping[str, Array]) -> Mean:
            following = batch["next_word_ids"]
            n_bytes = jnp.where(following >= 0, jnp.asarray(byte_lengths)[jnp.maximum(following, 0)], 0)
            return Mean(jnp.sum(outputs["losses"]) / math.log(2), jnp.sum(n_bytes))

        return {"perplexity": perplexity, "bits_per_byte": bits_per_byte}

    def inference_step(self, inputs: Any, model: BoundModel) -> Any:
        """The logits of what comes after each token, or with `next_word_ids` the losses of these."""
        return model(inputs, training=False)

    def count_tokens(self, inputs: Batch) -> Array | None:
        """Those that are to be told."""
        return jnp.sum(inputs["next_word_ids"] >= 0) if "next_word_ids" in inputs else None

    def show_model(self, model: BoundModel, *, step: int) -> Mapping[str, Media]:
        """How it goes on with the prompts of the config."""
        config = self.task_config
        if not config.n_sample_tokens or not config.sample_prompts:
            return {}
        if self._generator is None:
            self._generator = Generator(model.apply, tokenizer=self.tokenizer, context=self.context)
        options = GenerationOptions(n_tokens=config.n_sample_tokens, temperature=config.sample_temperature)
        prompts = list(config.sample_prompts)
        texts = self._generator(prompts, variables=model.variables, options=options)
        names = ["sample"] if len(prompts) == 1 else [f"sample_{number}" for number in range(1, len(prompts) + 1)]
        return {
            name: Text(f"Sample at step {step}: {shown_text(prompt + text)}")
            for name, prompt, text in zip(names, prompts, texts, strict=True)
        }

    def serving_inputs(self, inputs: Any) -> dict[str, np.ndarray]:
        """Ids of any tokens."""
        length = self.task_config.validation_data.seq_length
        greatest = self.task_config.model.vocab_size - 1
        return {"input_word_ids": np.linspace(0, greatest, length, dtype=np.int32)[None]}

    def serving_files(self) -> Mapping[str, str]:
        """The tokenizer, if it is one of a file."""
        file = self.tokenizer.vocab_file
        return {} if file is None else {VOCABULARY_NAMES["tokenizer.json"]: str(file)}

    def serving_metadata(self) -> Mapping[str, JSON]:
        """That it tells next tokens: how many it knows, and how many it sees."""
        return {"next_tokens": {"vocab_size": self.task_config.model.vocab_size, "context": self.context}}

    def answering_config(self) -> Any:
        """The config without the places of weights and text."""
        config = self.task_config.replace(init_checkpoint="")
        for side in SIDES:
            config = config.replace(**{side: getattr(config, side).replace(input_path="", vocab_file="")})
        return config

    def view_batch(self, batch: Batch) -> BatchView:
        """Its tokens, spelled."""
        return view_text({"input_word_ids": batch["input_word_ids"]}, tokenizer=self.tokenizer)

    def plan_notes(self) -> Iterator[str]:
        """How text is cut."""
        file = self.tokenizer.vocab_file
        kind = "bytes" if file is None else f"`{file}`, pieces of bytes"
        yield f"text: {kind}, {self.tokenizer.vocab_size:,} tokens"

    @traceable
    def initialize(self, model: BoundModel) -> Variables:
        """The variables of `init_checkpoint` to start from at step 0; others are the model's own.

        The tokenizer is kept with the run, which can then be asked wherever it is.
        """
        file = self.tokenizer.vocab_file
        # A plan looks at how a run would start, and leaves nothing behind: only a run has made its directory.
        if file is not None and self._kept_file is not None and Path(self.logging_dir).is_dir():
            self._kept_file.parent.mkdir(exist_ok=True)
            write_whole(self._kept_file, file.read_bytes())
        config = self.task_config
        return read_warm_start(config.init_checkpoint, model=model, parts=config.init_parts)


@register_task_cls(LocalLanguageModelConfig)
class LocalLanguageModelTask(LanguageModelTask):
    """Tells the next byte of the documentation of Python's own standard library."""

    def build_stream(self, params: Any, input_context: InputContext) -> ExampleStream:
        """Blocks of it; every twentieth paragraph is held out for validation."""
        file = self._text.train_file if params.is_training else self._text.validation_file
        return super().build_stream(params.replace(input_path=file), input_context)

    @cached_property
    def _text(self) -> LocalText:
        return prepare_local_text(vocab_size=None)


def _token_loss(outputs: Mapping[str, Array], batch: Mapping[str, Array]) -> Mean:
    if "losses" not in outputs:
        raise ArgumentError("The batch has no next_word_ids, so there is no loss. Give what comes after each token.")
    is_there = batch["next_word_ids"] >= 0
    return Mean(jnp.sum(outputs["losses"]), jnp.sum(is_there).astype(jnp.float32))
