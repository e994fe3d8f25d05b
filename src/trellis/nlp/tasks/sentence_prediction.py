"""The task of predicting a class or a number for a sentence, or for a pair."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import jax.numpy as jnp
import numpy as np

from trellis.aliases import Array, Batch, Variables
from trellis.bridges import HuggingFaceSettings
from trellis.config import DEFAULT, Origin, Problem, merge, origin_of, raise_if_any, setting_at
from trellis.data import Stream
from trellis.loops import Accuracy, Mean, MetricFunction, batch_size, cross_entropy, weighted_mean
from trellis.nlp.answers import SentenceAnswerer
from trellis.nlp.data import (
    SentencePredictionTextDataConfig,
    Tokenizer,
    build_sentence_stream,
    count_classes,
    count_label_names,
)
from trellis.nlp.models import BertClassifier
from trellis.nlp.tasks import sentence_metrics
from trellis.nlp.tasks.configs import SentencePredictionConfig
from trellis.nlp.tasks.encoder_task import EncoderTask
from trellis.nlp.tasks.pretrained import read_fine_tuned
from trellis.nlp.tasks.text_source import SIDES, TextSource
from trellis.runtime import print_line
from trellis.tasks import BoundModel, InputContext, register_task_cls, traceable, write_samples

_CLASSES_FOR = {"f1": (2,), "pearson_spearman_corr": (1,)}
"""How many classes a metric is for; any other is for two or more."""
_PIECES = "input_word_ids"
_METRICS = "pearson_spearman_corr goes with 1 class, f1 with 2, the others with 2 or more."


@register_task_cls(SentencePredictionConfig)
class SentencePredictionTask(EncoderTask):
    """Classifies sentences or pairs or, with one class, rates them.

    If the config does not have the number of classes, those of the training data are counted. If nobody has set
    `metric_type`, numbers are scored by their correlations.
    """

    def completed(self, params: Any) -> Any:
        """The config with what it leaves to the weights, to the text and to the labels."""
        return _with_metric(self._with_classes(self._with_label_names(super().completed(params))))

    @cached_property
    def _classifier(self) -> HuggingFaceSettings | None:
        """The settings of an already fine-tuned model of Hugging Face's; None if the weights are none."""
        settings = read_fine_tuned(self.starts_from)
        if settings is None or settings.heads != ("sentence_prediction",) or not settings.classifies_as_ours:
            return None
        return settings

    def find_text(self) -> TextSource | None:
        """Finds the settings of the text; a model that is fine-tuned already has names for its classes."""
        source = super().find_text()
        names = () if self._classifier is None else self._classifier.label_names
        if source is None or source.owner == "run" or not names or source.settings.label_values is not None:
            return source
        return replace(source, settings=replace(source.settings, label_values=names))

    def problems(self) -> Iterator[Problem]:
        """Yields the problems with the config."""
        yield from super().problems()
        n_classes = self.task_config.model.num_classes
        metric = self.task_config.metric_type
        if n_classes < 1:
            advice = "Give the number of classes, or 1 for regression: --params_override=task.model.num_classes=2"
            reason = "" if n_classes else ", and there is no training data to count them in"
            yield self.problem("model.num_classes", f"is {n_classes}{reason}.", advice)
        elif n_classes not in _CLASSES_FOR.get(metric, range(2, n_classes + 1)):
            message = f"is {metric}, but task.model.num_classes is {n_classes}."
            right = "pearson_spearman_corr" if n_classes == 1 else "accuracy"
            advice = f"Set task.metric_type={right}. {_METRICS}"
            yield self.problem("metric_type", message, advice)
        yield from self._label_problems(n_classes)

    def _label_problems(self, n_classes: int) -> Iterator[Problem]:
        sides = {side: getattr(self.task_config, side) for side in ("train_data", "validation_data")}
        names_of = {side: list(data.as_dict().get("label_values") or ()) for side, data in sides.items()}
        for side, names in names_of.items():
            if sides[side].label_type == "float" and n_classes > 1:
                message = f"is float, but task.model.num_classes is {n_classes}."
                yield self.problem(f"{side}.label_type", message, "Set task.model.num_classes=1, or label_type=int.")
            if names and n_classes > 1 and len(names) != n_classes:
                message = f"names {len(names)} classes, but task.model.num_classes is {n_classes}."
                advice = f"Set task.model.num_classes={len(names)}, or name all."
                yield self.problem(f"{side}.label_values", message, advice)
            repeated = next((name for name in names if names.count(name) > 1), None)
            if repeated is not None:
                message = f"has {repeated!r} more than once."
                yield self.problem(f"{side}.label_values", message, "Name each class once, in their order.")
            theirs = [] if self._classifier is None else list(self._classifier.label_names)
            if names and sorted(names) == sorted(theirs) and list(names) != theirs:
                message = f"is {list(names)}, but the model in `{self.starts_from}` has its classes as {theirs}."
                yield self.problem(f"{side}.label_values", message, f"Set it to [{', '.join(theirs)}].")
        trained, validated = names_of.values()
        if trained and validated and trained != validated:
            message = f"is {validated}, but task.train_data.label_values is {trained}."
            advice = "Give both the same, in the same order: a class is the place of its name."
            yield self.problem("validation_data.label_values", message, advice)

    @property
    def is_regression(self) -> bool:
        """Whether the label is a number."""
        return bool(self.task_config.model.num_classes == 1)

    @property
    def label_fields(self) -> Sequence[str]:
        """Files to train on and to validate with may call it differently."""
        return tuple(
            {side.label_field: None for side in (self.task_config.train_data, self.task_config.validation_data)}
        )

    @property
    def label_names(self) -> Sequence[str]:
        """Those of the text, if its classes have names."""
        return () if self.is_regression or self.text is None else self.text.label_values or ()

    def build_model(self) -> BertClassifier:
        """An encoder with a head that classifies."""
        config = self.task_config.model
        return BertClassifier(
            self.build_encoder(),
            num_classes=config.num_classes,
            use_encoder_pooler=config.use_encoder_pooler,
            init_cls_pooler=self.task_config.init_cls_pooler,
        )

    def build_stream(self, params: Any, input_context: InputContext) -> Stream:
        """Sentences or pairs with labels, none of which is beyond the classes."""
        n_classes = None if self.is_regression else self.task_config.model.num_classes
        return build_sentence_stream(params, input_context, n_classes=n_classes, tokenizer=self.tokenizer)

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> Mean:
        """The cross-entropy or, in regression, the squared difference."""
        loss = self._loss(model_outputs, labels)
        return Mean(loss.total + sum(aux_losses or (), jnp.float32(0)) * loss.weight, loss.weight)

    def build_metrics(self, training: bool = True) -> dict[str, MetricFunction]:
        """Those that are means over examples; `reduce_aggregated_logs` computes the others."""
        if self.is_regression:
            return {"mean_squared_error": self._loss}
        return {"cls_accuracy": lambda logits, batch: Accuracy()(logits, self._labels(batch))}

    def validation_step(
        self, inputs: Batch, model: BoundModel, metrics: Mapping[str, MetricFunction] | None = None
    ) -> Mapping[str, Any]:
        """The loss and metrics, and logits and labels for the scores of the whole set."""
        logits = self.inference_step(inputs, model)
        logs = self._measure(inputs, logits, model, metrics, batch_size(inputs))
        pieces = {name: inputs[name] for name in (_PIECES,) if name in inputs}
        return {**logs, "logits": logits.astype(jnp.float32), "labels": self._labels(inputs), **pieces}

    def aggregate_logs(self, state: Any, step_outputs: Mapping[str, Any]) -> Any:
        """All logits and labels so far, and the pieces of the text."""
        return [*(state or []), (step_outputs["logits"], step_outputs["labels"], step_outputs.get(_PIECES))]

    def reduce_aggregated_logs(self, aggregated_logs: Any, global_step: int | None = None) -> dict[str, float]:
        """The score that `metric_type` names, and for two classes the area under precision and recall."""
        *scored, pieces = zip(*aggregated_logs, strict=True)
        logits, labels = map(np.concatenate, scored)
        if self.is_regression:
            predicted = logits[:, 0]
            pearson = sentence_metrics.pearson_correlation(predicted, labels=labels)
            spearman = sentence_metrics.spearman_correlation(predicted, labels=labels)
            return {"pearson_spearman_corr": (pearson + spearman) / 2, "pearson": pearson, "spearman": spearman}
        self._write_samples(logits, labels, pieces, step=global_step)
        scores: dict[str, float] = {}
        if logits.shape[1] == 2:
            scores["auc"] = sentence_metrics.average_precision(logits[:, 1] - logits[:, 0], labels=labels)
        functions = {"f1": sentence_metrics.f1_score, "matthews_corrcoef": sentence_metrics.matthews_corrcoef}
        metric = self.task_config.metric_type
        if metric in functions:
            scores[metric] = functions[metric](logits.argmax(axis=-1), labels=labels)
        return scores

    def _write_samples(
        self, logits: np.ndarray, labels: np.ndarray, pieces: Sequence[Any], *, step: int | None
    ) -> None:
        """Writes what the page about a run shows of an evaluation: texts, if the run knows its vocabulary."""
        tokenizer = None if pieces[0] is None else self.tokenizer
        rows = () if pieces[0] is None else np.concatenate(pieces)
        write_samples(
            self.logging_dir,
            step=step,
            scores=logits,
            labels=labels,
            label_names=[str(name) for name in self.answerer.label_values or ()],
            text_of=None if tokenizer is None else lambda number: _text(rows[number], tokenizer),
        )

    def weights_settings(self) -> Mapping[str, Any]:
        """The names of the classes."""
        return {"label_names": self.answerer.label_values or ()}

    @property
    def answerer(self) -> SentenceAnswerer:
        """Classifies, or rates, a sentence or a pair."""
        data, text = self.task_config.train_data.as_dict(), self.text
        fields = data.get("text_fields") or (() if text is None else text.text_fields)
        labels = data.get("label_values") or (None if text is None else text.label_values)
        # Records tell the names of all classes, of which a config may have fewer or more.
        is_complete = labels is not None and len(labels) == self.task_config.model.num_classes
        names = list(labels) if labels and is_complete else None
        return SentenceAnswerer(data["seq_length"], names, list(fields), data.get("column_names"))

    def _loss(self, logits: Array, batch: Mapping[str, Array]) -> Mean:
        labels = self._labels(batch)
        logits = logits.astype(jnp.float32)
        if self.is_regression:
            return weighted_mean(jnp.square(logits[:, 0] - labels))
        return weighted_mean(cross_entropy(logits, labels))

    def _labels(self, batch: Mapping[str, Array]) -> Array:
        sides = (self.task_config.train_data, self.task_config.validation_data)
        # Files to train on and to validate with may call it differently; a batch has it by the name that its side has.
        field = next(data.label_field for data in sides if data.label_field in batch)
        labels = batch[field].reshape(-1)
        return labels.astype(jnp.float32) if self.is_regression else labels

    @cached_property
    def _counts(self) -> Mapping[str, int]:
        """How often each label is in the training data; nothing if that was not looked at, or has numbers."""
        return {}

    def _with_label_names(self, params: SentencePredictionConfig) -> SentencePredictionConfig:
        """The config with the labels of the training data, if these are names that nobody has listed."""
        data = params.train_data
        is_begun = self.text_source is not None and self.text_source.owner == "run"
        if not isinstance(data, SentencePredictionTextDataConfig) or not data.input_path or is_begun:
            return params
        if data.label_values is not None or data.label_type == "float" or params.model.num_classes == 1:
            return params
        raise_if_any(list(self.text_problems(params)))
        self._counts = count_label_names(data) or {}
        if not self._counts:
            return params
        theirs = () if self._classifier is None else self._classifier.label_names
        names = list(theirs if set(self._counts) <= set(theirs) else self._counts)
        config = params.replace()
        for side in SIDES:
            if getattr(config, side).as_dict().get("label_values", ()) is None:
                origin = Origin("the labels of the training data")
                raise_if_any(merge(config, setting_at(f"{side}.label_values", names, origin)))
        return config

    def plan_notes(self) -> Iterator[str]:
        """How text is cut, and which labels there are."""
        yield from super().plan_notes()
        yield from self._label_notes()

    def _label_notes(self) -> Iterator[str]:
        if self._counts:
            yield f"labels: {', '.join(f'{name} ({count:,})' for name, count in self._counts.items())}"

    @traceable
    def initialize(self, model: BoundModel) -> Variables:
        """The pretrained variables to start from at step 0; the labels that were found are told."""
        for line in self._label_notes():
            print_line(line)
        return super().initialize(model)

    def _with_classes(self, params: SentencePredictionConfig) -> SentencePredictionConfig:
        """The config with the number of classes, if the training data or the weights tell it, and their pooler."""
        values: dict[str, Any] = {}
        origin = Origin("the labels of the training data")
        if not params.model.num_classes and params.train_data.input_path:
            # Labels are counted in data that can be read.
            raise_if_any(list(self.text_problems(params)))
            data: Any = params.train_data
            values["num_classes"] = count_classes(data, tokenizer=self.tokenizer)
        elif not params.model.num_classes and self._classifier is not None:
            origin = Origin(self.starts_from)
            values["num_classes"] = self._classifier.n_classes
        if self._classifier is not None and not params.model.encoder.get().as_dict().get("classifier_activation", True):
            # Such a MobileBERT has no pooler, so its head has none.
            is_same = values.get("num_classes", params.model.num_classes) == self._classifier.n_classes
            values |= {"use_encoder_pooler": True} if is_same else {}
        if not values:
            return params
        config = params.replace()
        raise_if_any(merge(config, setting_at("model", values, origin)))
        return config


def _text(ids: np.ndarray, tokenizer: Tokenizer) -> str:
    return tokenizer.text_of(ids[ids != tokenizer.pad_id])


def _with_metric(params: SentencePredictionConfig) -> SentencePredictionConfig:
    """The config with a metric for numbers, if these are to be learned and nobody has set one."""
    if params.model.num_classes != 1 or origin_of(params, "metric_type") != DEFAULT:
        return params
    config = params.replace()
    origin = Origin("task.model.num_classes=1")
    raise_if_any(merge(config, setting_at("metric_type", "pearson_spearman_corr", origin)))
    return config
