"""The task of giving each word of a sentence a tag."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from trellis.aliases import Array, Batch
from trellis.data import Stream
from trellis.loops import Accuracy, Mean, MetricFunction, batch_size, cross_entropy, weighted_mean
from trellis.nlp.answers import TagAnswerer, marks_spans
from trellis.nlp.data import NO_TAG, build_tagging_stream, count_tags
from trellis.nlp.models import BertTagger
from trellis.nlp.tasks.configs import TaggingConfig
from trellis.nlp.tasks.named_classes import NamedClassesTask
from trellis.nlp.tasks.tagging_metrics import span_scores
from trellis.tasks import BoundModel, InputContext, register_task_cls

_LABELS, _SENTENCES = "label_ids", "sentence_ids"


@register_task_cls(TaggingConfig)
class TaggingTask(NamedClassesTask):
    """Gives words tags, such as those of names (IOB); the scores of spans are those of `seqeval`.

    A sentence that is in several rows, because it is too long for one, is scored whole.
    """

    head = "tagging"
    noun = "tags"

    def count_names(self, params: Any) -> Mapping[str, int]:
        """How often each tag is in the data of a config."""
        return count_tags(params)

    def build_model(self) -> BertTagger:
        """An encoder with a head that gives each token a tag."""
        config = self.task_config.model
        return BertTagger(
            self.build_encoder(),
            num_classes=len(self.class_names),
            dropout_rate=config.head_dropout,
            initializer_range=config.head_initializer_range,
        )

    def build_stream(self, params: Any, input_context: InputContext) -> Stream:
        """Sentences with tags, none of which is unknown."""
        return build_tagging_stream(params, input_context, class_names=self.class_names, tokenizer=self.tokenizer)

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> Mean:
        """The mean cross-entropy of the tokens that have a tag."""
        tags = labels[_LABELS]
        losses = cross_entropy(model_outputs.astype(jnp.float32), jnp.maximum(tags, 0))
        loss = weighted_mean(losses, tags != NO_TAG)
        return Mean(loss.total + sum(aux_losses or (), jnp.float32(0)) * loss.weight, loss.weight)

    def build_metrics(self, training: bool = True) -> dict[str, MetricFunction]:
        """How many words have the right tag; spans are scored on the host."""
        return {"accuracy": _accuracy}

    def validation_step(
        self, inputs: Batch, model: BoundModel, metrics: Mapping[str, MetricFunction] | None = None
    ) -> Mapping[str, Any]:
        """The loss and metrics, and the best and the right tag of each token."""
        logits = self.inference_step(inputs, model)
        logs = self._measure(inputs, logits, model, metrics, batch_size(inputs))
        numbers = {_SENTENCES: inputs[_SENTENCES]} if _SENTENCES in inputs else {}
        return {**logs, "predicted": jnp.argmax(logits, axis=-1), "labels": inputs[_LABELS], **numbers}

    def aggregate_logs(self, state: Any, step_outputs: Mapping[str, Any]) -> Any:
        """The best and the right tags of words so far, sentence by sentence, and how many rows there were."""
        sentences: dict[int, tuple[list[int], list[int]]]
        sentences, n_rows = ({}, 0) if state is None else state
        predicted, labels = step_outputs["predicted"], step_outputs["labels"]
        # Of records it is not known which rows are of one sentence.
        numbers = step_outputs.get(_SENTENCES, n_rows + np.arange(len(labels)))
        for number, best, right in zip(numbers.tolist(), predicted, labels, strict=True):
            is_word = right != NO_TAG
            said, there = sentences.setdefault(number, ([], []))
            said.extend(best[is_word].tolist())
            there.extend(right[is_word].tolist())
        return sentences, n_rows + len(labels)

    def reduce_aggregated_logs(self, aggregated_logs: Any, global_step: int | None = None) -> dict[str, float]:
        """Precision, recall and F1 of spans and, if the config says so, of each type."""
        sentences, _ = aggregated_logs
        names = self.class_names
        return span_scores(
            (([names[tag] for tag in said], [names[tag] for tag in there]) for said, there in sentences.values()),
            is_marked=marks_spans(names),
            per_type=self.task_config.scores_per_type,
        )

    @property
    def answerer(self) -> TagAnswerer:
        """Gives the words of a sentence tags."""
        data = self.task_config.train_data
        return TagAnswerer(data.seq_length, self.class_names, [data.words_field], data.word_column)


def _accuracy(logits: Array, batch: Mapping[str, Array]) -> Mean:
    tags = batch[_LABELS]
    return Accuracy()(logits, jnp.maximum(tags, 0), tags != NO_TAG)
