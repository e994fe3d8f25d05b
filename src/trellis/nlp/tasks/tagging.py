"""The task of giving each word of a sentence a tag."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import jax.numpy as jnp
import numpy as np

from trellis.aliases import Array, Batch, Variables
from trellis.bridges import HuggingFaceSettings
from trellis.config import Origin, Problem, merge, raise_if_any, setting_at
from trellis.data import Stream
from trellis.loops import Accuracy, Mean, MetricFunction, batch_size, cross_entropy, weighted_mean
from trellis.nlp.answers import TagAnswerer, marks_spans
from trellis.nlp.data import NO_TAG, TextSettings, build_tagging_stream, count_tags
from trellis.nlp.models import BertTagger
from trellis.nlp.tasks.configs import TaggingConfig
from trellis.nlp.tasks.encoder_task import EncoderTask
from trellis.nlp.tasks.pretrained import read_fine_tuned
from trellis.nlp.tasks.tagging_metrics import span_scores
from trellis.runtime import print_line
from trellis.tasks import BoundModel, InputContext, register_task_cls, traceable

_LABELS, _SENTENCES = "label_ids", "sentence_ids"
_TRAINING_DATA = "the tags of the training data"


@register_task_cls(TaggingConfig)
class TaggingTask(EncoderTask):
    """Gives words tags, such as those of names (IOB); the scores of spans are those of `seqeval`.

    If the config does not name the tags, they are those of the weights, if these have a head that knows all tags of the
    data, or else those of the training data in alphabetical order.
    """

    def completed(self, params: Any) -> Any:
        """The config with what it leaves to the weights, to the text and to the tags."""
        return self._with_class_names(super().completed(params))

    @cached_property
    def _tagger(self) -> HuggingFaceSettings | None:
        """The settings of a model of Hugging Face's that tags words already; None if the weights are none."""
        settings = read_fine_tuned(self.starts_from)
        return settings if settings is not None and settings.heads == ("tagging",) else None

    @cached_property
    def _n_tags(self) -> Mapping[str, int]:
        """How often each tag is in the training data; nothing if that was not looked at."""
        return {}

    def _with_class_names(self, params: TaggingConfig) -> TaggingConfig:
        if params.class_names is not None:
            return params
        source = self.text_source
        kept = None if source is None or source.owner != "run" else source.settings.label_values
        theirs = () if self._tagger is None else self._tagger.label_names
        if kept is not None:
            names, origin = list(kept), Origin("the run")
        elif params.train_data.input_path:
            raise_if_any(list(self.text_problems(params)))
            data: Any = params.train_data
            self._n_tags = count_tags(data)
            is_known = set(self._n_tags) <= set(theirs)
            names, origin = list(self._n_tags), Origin(_TRAINING_DATA)
            if is_known:
                names, origin = list(theirs), Origin(self.starts_from)
        elif theirs:
            names, origin = list(theirs), Origin(self.starts_from)
        else:
            return params
        config = params.replace()
        raise_if_any(merge(config, setting_at("class_names", names, origin)))
        return config

    def problems(self) -> Iterator[Problem]:
        """Yields the problems with the config."""
        yield from super().problems()
        names = self.class_names
        if not names:
            is_null = self.task_config.class_names is None
            reason = "is null, and there is no training data to find the tags in" if is_null else "is empty"
            advice = "Name the tags in the order of their numbers: --set task.class_names='[O, B-PER, I-PER]'"
            yield self.problem("class_names", f"{reason}.", advice)
        repeated = next((name for name in names if names.count(name) > 1), None)
        if repeated is not None:
            yield self.problem(
                "class_names", f"has {repeated!r} more than once.", "Name each tag once, in their order."
            )

    @property
    def class_names(self) -> list[str]:
        """The tags, in the order of their numbers."""
        return list(self.task_config.class_names or ())

    @property
    def text(self) -> TextSettings | None:
        """All that turns text into ids, and the tags; None if it is not known, because the data came as ids."""
        text = super().text
        return None if text is None else replace(text, label_values=tuple(self.class_names))

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

    def weights_settings(self) -> Mapping[str, Any]:
        """The tags."""
        return {"label_names": self.class_names}

    @property
    def answerer(self) -> TagAnswerer:
        """Gives the words of a sentence tags."""
        data = self.task_config.train_data
        return TagAnswerer(data.seq_length, self.class_names, [data.words_field], data.word_column)

    def plan_notes(self) -> Iterator[str]:
        """How text is cut, and which tags there are."""
        yield from super().plan_notes()
        yield self._tags_note()

    def _tags_note(self) -> str:
        shown = (f"{name} ({self._n_tags[name]:,})" if self._n_tags.get(name) else name for name in self.class_names)
        return f"tags: {', '.join(shown)}"

    @traceable
    def initialize(self, model: BoundModel) -> Variables:
        """The pretrained variables to start from at step 0; the tags that were found are told."""
        if self._n_tags:
            print_line(self._tags_note())
        return super().initialize(model)


def _accuracy(logits: Array, batch: Mapping[str, Array]) -> Mean:
    tags = batch[_LABELS]
    return Accuracy()(logits, jnp.maximum(tags, 0), tags != NO_TAG)
