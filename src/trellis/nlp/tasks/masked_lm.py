"""The task of predicting masked words, and whether one sentence follows the other."""

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import jax.numpy as jnp
from flax import struct

from trellis.aliases import Array, Batch
from trellis.config import Problem
from trellis.data import Stream
from trellis.errors import ArgumentError
from trellis.loops import Accuracy, Mean, MetricFunction, StepOutput, TrainState, cross_entropy, weighted_mean
from trellis.nlp.answers import BlankAnswerer
from trellis.nlp.data import LocalText, TextSettings, build_pretraining_stream, build_tokenizer, prepare_local_text
from trellis.nlp.models import BertPretrainer, ClsHeadConfig
from trellis.nlp.tasks.configs import LocalMaskedLMConfig, MaskedLMConfig
from trellis.nlp.tasks.encoder_task import EncoderTask
from trellis.nlp.tasks.text_source import TextSource
from trellis.tasks import BoundModel, InputContext, register_task_cls

_NEXT_SENTENCE = "next_sentence"
_LABELS = "next_sentence_labels"
_MASKS_PER_EXAMPLE = "masks_per_example"


@struct.dataclass
class SumOfMeans:
    """A sum of means over different things: each keeps its own weight until the end."""

    means: tuple[Mean, ...]

    def merge(self, other: "SumOfMeans") -> "SumOfMeans":
        """The sum over the examples of both."""
        return SumOfMeans(tuple(a.merge(b) for a, b in zip(self.means, other.means, strict=True)))

    def compute(self) -> Array:
        """The sum."""
        return sum((mean.compute() for mean in self.means), jnp.float32(0))


@register_task_cls(MaskedLMConfig)
class MaskedLMTask(EncoderTask):
    """Predicts masked words and, where the data has pairs with labels, whether the second follows the first."""

    def problems(self) -> Iterator[Problem]:
        """Yields the problems with the config."""
        yield from super().problems()
        heads = [head.name for head in self.task_config.model.cls_heads]
        for side in ("train_data", "validation_data"):
            if getattr(self.task_config, side).use_next_sentence_label and _NEXT_SENTENCE not in heads:
                message = f"is true, but task.model.cls_heads has no head of the name {_NEXT_SENTENCE}."
                yield self.problem(f"{side}.use_next_sentence_label", message, "Add the head, or set this to false.")

    def build_model(self) -> BertPretrainer:
        """An encoder with its heads."""
        config = self.task_config.model.replace(encoder=self.encoder_config)
        return BertPretrainer(config, encoder=self.build_encoder())

    def build_stream(self, params: Any, input_context: InputContext) -> Stream:
        """Sequences with masks."""
        return build_pretraining_stream(params, input_context, tokenizer=self.tokenizer)

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> Mean:
        """The mean over masked words, and with next sentences the sum of that and of the mean over examples."""
        loss = masked_lm_loss(model_outputs, labels)
        if _LABELS in labels:
            follows = next_sentence_loss(model_outputs, labels)
            n_masks = labels[_MASKS_PER_EXAMPLE][0] if _MASKS_PER_EXAMPLE in labels else loss.weight / follows.weight
            loss = Mean(loss.total / jnp.maximum(n_masks, 1e-6) + follows.total, follows.weight)
        extra = sum(aux_losses or (), jnp.float32(0))
        return Mean(loss.total + extra * loss.weight, loss.weight)

    def build_metrics(self, training: bool = True) -> dict[str, MetricFunction]:
        """The published ones, each a mean over masked words or over examples."""
        metrics: dict[str, MetricFunction] = {
            "masked_lm_accuracy": masked_lm_accuracy,
            "lm_example_loss": masked_lm_loss,
        }
        data = self.task_config.train_data if training else self.task_config.validation_data
        if data.use_next_sentence_label:
            metrics |= {"next_sentence_accuracy": next_sentence_accuracy, "next_sentence_loss": next_sentence_loss}
        return metrics

    def train_step(self, inputs: Batch, *, n_microbatches: int = 1, **options: Any) -> tuple[TrainState, StepOutput]:
        """The published step; the parts of a batch get the mean number of masks in an example of the whole batch."""
        if n_microbatches > 1 and _LABELS in inputs:
            weights = inputs["masked_lm_weights"]
            inputs = {**inputs, _MASKS_PER_EXAMPLE: jnp.full(len(weights), jnp.sum(weights) / len(weights))}
        return super().train_step(inputs, n_microbatches=n_microbatches, **options)

    def validation_step(
        self, inputs: Batch, model: BoundModel, metrics: Mapping[str, MetricFunction] | None = None
    ) -> Mapping[str, Any]:
        """The published step; the loss of several batches is that of one big one."""
        logs = dict(super().validation_step(inputs, model, metrics))
        if _LABELS in inputs and not model.losses:
            logs[self.loss] = SumOfMeans((logs["lm_example_loss"], logs["next_sentence_loss"]))
        return logs

    def weights_settings(self) -> Mapping[str, Any]:
        """The activation of the masked-LM head; raises an error if a head classifies as others' do not."""
        for head in self.task_config.model.cls_heads:
            usual = ClsHeadConfig(name=head.name, inner_dim=head.inner_dim, dropout_rate=head.dropout_rate)
            if head.as_dict() != usual.as_dict():
                raise ArgumentError(
                    f"The head {head.name} of task.model.cls_heads has {head.num_classes} classes, activation "
                    f"{head.activation} and cls_token_idx {head.cls_token_idx}, but Hugging Face's has 2, tanh and 0."
                )
        return {"mlm_activation": self.task_config.model.mlm_activation}

    @property
    def answerer(self) -> BlankAnswerer:
        """Fills the blanks of a text."""
        data = self.task_config.train_data
        return BlankAnswerer(data.seq_length, data.max_predictions_per_seq)


@register_task_cls(LocalMaskedLMConfig)
class LocalMaskedLMTask(MaskedLMTask):
    """Predicts masked words of the documentation of Python's own standard library."""

    def find_text(self) -> TextSource:
        """With a vocabulary that is trained on that text."""
        source = super().find_text()
        return source or TextSource(TextSettings.of(build_tokenizer(self._text.vocab_file)), "config")

    def build_stream(self, params: Any, input_context: InputContext) -> Stream:
        """Its sentences, with masks; every twentieth paragraph is held out for validation."""
        file = self._text.train_file if params.is_training else self._text.validation_file
        return super().build_stream(params.replace(input_path=file), input_context)

    @cached_property
    def _text(self) -> LocalText:
        return prepare_local_text(vocab_size=self.vocab_size)


def masked_lm_loss(outputs: Mapping[str, Array], batch: Mapping[str, Array]) -> Mean:
    """The cross-entropy of the words that were masked."""
    logits = outputs["mlm_logits"].astype(jnp.float32)
    losses = cross_entropy(logits, batch["masked_lm_ids"])
    return weighted_mean(losses, batch["masked_lm_weights"])


def masked_lm_accuracy(outputs: Mapping[str, Array], batch: Mapping[str, Array]) -> Mean:
    """The share of masked words that are predicted right."""
    is_right = jnp.argmax(outputs["mlm_logits"], axis=-1) == batch["masked_lm_ids"]
    return weighted_mean(is_right, batch["masked_lm_weights"])


def next_sentence_loss(outputs: Mapping[str, Array], batch: Mapping[str, Array]) -> Mean:
    """The cross-entropy of whether the second sentence follows the first."""
    logits = outputs[_NEXT_SENTENCE].astype(jnp.float32)
    return weighted_mean(cross_entropy(logits, batch[_LABELS].reshape(-1)))


def next_sentence_accuracy(outputs: Mapping[str, Array], batch: Mapping[str, Array]) -> Mean:
    """The share of pairs that are predicted right."""
    return Accuracy()(outputs[_NEXT_SENTENCE], batch[_LABELS].reshape(-1))
