"""The task of telling which labels, any number of them, a sentence or a pair has."""

from collections.abc import Iterator, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax

from trellis.aliases import Array, Batch
from trellis.config import Problem
from trellis.data import Stream
from trellis.loops import Mean, MetricFunction, batch_size, weighted_mean
from trellis.nlp.answers import LabelsAnswerer
from trellis.nlp.data import build_multi_label_stream, count_labels
from trellis.nlp.models import BertClassifier
from trellis.nlp.tasks.configs import MultiLabelConfig
from trellis.nlp.tasks.named_classes import NamedClassesTask
from trellis.nlp.tasks.sentence_metrics import multi_label_scores
from trellis.tasks import BoundModel, InputContext, register_task_cls

_LABELS = "label_ids"


@register_task_cls(MultiLabelConfig)
class MultiLabelTask(NamedClassesTask):
    """Gives sentences or pairs labels, each by itself; the scores are those of scikit-learn."""

    head = "multi_label"
    noun = "labels"

    def count_names(self, params: Any) -> Mapping[str, int]:
        """How often each label is in the data of a config."""
        return count_labels(params)

    def problems(self) -> Iterator[Problem]:
        """Yields the problems with the config."""
        yield from super().problems()
        if not 0 < self.task_config.threshold < 1:
            message = f"is {self.task_config.threshold}, but it is a probability."
            yield self.problem("threshold", message, "Set it between 0 and 1, such as 0.5.")

    def build_model(self) -> BertClassifier:
        """An encoder with a head that classifies."""
        config = self.task_config.model
        return BertClassifier(
            self.build_encoder(),
            num_classes=len(self.class_names),
            use_encoder_pooler=config.use_encoder_pooler,
            head=self.head,
        )

    def build_stream(self, params: Any, input_context: InputContext) -> Stream:
        """Sentences or pairs with labels, none of which is unknown."""
        return build_multi_label_stream(params, input_context, class_names=self.class_names, tokenizer=self.tokenizer)

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> Mean:
        """The cross-entropy of being there or not, over all labels."""
        losses = optax.sigmoid_binary_cross_entropy(model_outputs.astype(jnp.float32), labels[_LABELS])
        loss = weighted_mean(losses.mean(axis=-1))
        return Mean(loss.total + sum(aux_losses or (), jnp.float32(0)) * loss.weight, loss.weight)

    def build_metrics(self, training: bool = True) -> dict[str, MetricFunction]:
        """How often it is right whether a label is there; the other scores are computed on the host."""
        return {"label_accuracy": lambda logits, batch: _right(self._is_given(logits), batch[_LABELS])}

    def _is_given(self, logits: Array) -> Array:
        threshold = self.task_config.threshold
        return logits.astype(jnp.float32) >= float(np.log(threshold / (1 - threshold)))

    def validation_step(
        self, inputs: Batch, model: BoundModel, metrics: Mapping[str, MetricFunction] | None = None
    ) -> Mapping[str, Any]:
        """The loss and metrics, and which labels are given and which are right."""
        logits = self.inference_step(inputs, model)
        logs = self._measure(inputs, logits, model, metrics, batch_size(inputs))
        return {**logs, "predicted": self._is_given(logits).astype(jnp.int8), "labels": inputs[_LABELS]}

    def aggregate_logs(self, state: Any, step_outputs: Mapping[str, Any]) -> Any:
        """All given and all right labels so far."""
        return [*(state or []), (step_outputs["predicted"], step_outputs["labels"])]

    def reduce_aggregated_logs(self, aggregated_logs: Any, global_step: int | None = None) -> dict[str, float]:
        """F1 over all labels, the mean F1 of the labels, and how often all labels of a row are right."""
        predicted, labels = map(np.concatenate, zip(*aggregated_logs, strict=True))
        return multi_label_scores(predicted == 1, labels=labels == 1)

    @property
    def answerer(self) -> LabelsAnswerer:
        """Tells which labels a sentence or a pair has."""
        data = self.task_config.train_data
        fields = data.text_fields or (() if self.text is None else self.text.text_fields)
        columns = None if data.column_names is None else list(data.column_names)
        return LabelsAnswerer(data.seq_length, self.class_names, self.task_config.threshold, list(fields), columns)


def _right(is_given: Array, labels: Array) -> Mean:
    return weighted_mean(jnp.mean(is_given == (labels == 1), axis=-1))
