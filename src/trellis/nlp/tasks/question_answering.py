"""The task of finding the part of a passage that answers a question."""

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import jax.numpy as jnp
import numpy as np

from trellis.aliases import Array, Batch
from trellis.data import Columns, Stream
from trellis.loops import Accuracy, Mean, MetricFunction, cross_entropy, weighted_mean
from trellis.nlp.answers import AnswerOptions, QuestionAnswerer, answer_questions
from trellis.nlp.data import (
    FIRST_UNIQUE_ID,
    QADataConfig,
    Question,
    Windows,
    build_question_stream,
    load_questions,
    question_tokenizer,
    question_windows,
)
from trellis.nlp.models import BertSpanLabeler
from trellis.nlp.tasks.configs import QuestionAnsweringConfig
from trellis.nlp.tasks.encoder_task import EncoderTask
from trellis.nlp.tasks.squad_metrics import evaluate_squad_v1, evaluate_squad_v2
from trellis.runtime import print_line
from trellis.tasks import BoundModel, InputContext, register_task_cls

_ENDS = ("start", "end")
_V2_NAMES = {
    "exact_match": "exact",
    "final_f1": "f1",
    "has_answer_exact_match": "HasAns_exact",
    "has_answer_f1": "HasAns_f1",
    "no_answer_exact_match": "NoAns_exact",
    "no_answer_f1": "NoAns_f1",
    "best_exact": "best_exact",
    "exact_match_threshold": "best_exact_thresh",
    "best_f1": "best_f1",
    "f1_threshold": "best_f1_thresh",
}
"""From the names of the scores of SQuAD 2.0 here to those of the official script.

What is called `best` is what the best threshold would reach; all else is of the answers as they are given."""


@register_task_cls(QuestionAnsweringConfig)
class QuestionAnsweringTask(EncoderTask):
    """Marks answers in passages; the scores are those of SQuAD's official scripts, in percent."""

    def build_model(self) -> BertSpanLabeler:
        """An encoder with a head that marks the first and the last token."""
        return BertSpanLabeler(self.build_encoder())

    def build_stream(self, params: Any, input_context: InputContext) -> Stream:
        """Questions with windows over their passages."""
        return build_question_stream(params, input_context, tokenizer=self.tokenizer)

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> Mean:
        """The mean of the cross-entropies of both ends."""
        start, end = (
            cross_entropy(model_outputs[f"{end}_logits"].astype(jnp.float32), labels[f"{end}_positions"])
            for end in _ENDS
        )
        return weighted_mean((start + end) / 2 + sum(aux_losses or (), jnp.float32(0)))

    def build_metrics(self, training: bool = True) -> dict[str, MetricFunction]:
        """How often each end is found in training; whole answers are measured on the host."""
        return {f"{end}_position_accuracy": _end_accuracy(end) for end in _ENDS} if training else {}

    def validation_step(
        self, inputs: Batch, model: BoundModel, metrics: Mapping[str, MetricFunction] | None = None
    ) -> Mapping[str, Any]:
        """The logits of each window; answers are made of them when all are there."""
        outputs = self.inference_step(inputs, model)
        logits = {f"{end}_logits": outputs[f"{end}_logits"].astype(jnp.float32) for end in _ENDS}
        return {"unique_ids": inputs["unique_ids"], **logits}

    def aggregate_logs(self, state: Any, step_outputs: Mapping[str, Any]) -> Any:
        """All logits so far."""
        return [*(state or []), step_outputs]

    def reduce_aggregated_logs(self, aggregated_logs: Any, global_step: int | None = None) -> dict[str, float]:
        """Exact match and F1 over the questions that were seen whole; for SQuAD 2.0 at the best thresholds, too."""
        logits = {name: np.concatenate([part[name] for part in aggregated_logs]) for name in aggregated_logs[0]}
        questions = self._seen_questions(logits["unique_ids"])
        answers = answer_questions(
            self._questions,
            windows=self._windows,
            **logits,
            tokenizer=self.tokenizer or question_tokenizer(self._validation_data),
            options=self.answerer.options,
        )
        texts = {question.id: answers[question.id].text for question in questions}
        if not self._validation_data.version_2_with_negative:
            scores = evaluate_squad_v1(questions, predictions=texts)
            return {"exact_match": scores["exact_match"], "final_f1": scores["f1"]}
        odds = {key: answers[key].null_odds for key in texts}
        # The answers are those that the task's own threshold has chosen; none of them is taken back.
        scores = evaluate_squad_v2(questions, predictions=texts, null_odds=odds, threshold=math.inf)
        return {name: scores[official] for name, official in _V2_NAMES.items() if official in scores}

    def _seen_questions(self, unique_ids: np.ndarray) -> list[Question]:
        """The questions all of whose windows were seen: an answer may be in any of them."""
        windows = np.asarray(self._windows["question"])
        is_seen = np.ones(len(self._questions), bool)
        is_seen[np.delete(windows, np.unique(unique_ids) - FIRST_UNIQUE_ID)] = False
        if not is_seen.all():
            print_line(
                f"{is_seen.sum():,} of {len(is_seen):,} questions were seen whole, and only these are scored: "
                f"the evaluation ended before its data. Set trainer.validation_steps to -1 to see all."
            )
        return [question for question, seen in zip(self._questions, is_seen, strict=True) if seen]

    @property
    def answerer(self) -> QuestionAnswerer:
        """Finds answers in passages."""
        config = self.task_config
        data = config.validation_data
        options = AnswerOptions(
            n_best_size=config.n_best_size,
            max_answer_length=config.max_answer_length,
            null_score_diff_threshold=config.null_score_diff_threshold,
            version_2_with_negative=data.version_2_with_negative,
        )
        return QuestionAnswerer(Windows(data.seq_length, data.doc_stride, data.query_length), options)

    @cached_property
    def _validation_data(self) -> QADataConfig:
        data = self.task_config.validation_data
        assert isinstance(data, QADataConfig)
        return data

    @cached_property
    def _questions(self) -> list[Question]:
        return load_questions(self._validation_data)

    @cached_property
    def _windows(self) -> Columns:
        return question_windows(self._validation_data, tokenizer=self.tokenizer)


def _end_accuracy(end: str) -> MetricFunction:
    def accuracy(outputs: Mapping[str, Array], batch: Mapping[str, Array]) -> Mean:
        return Accuracy()(outputs[f"{end}_logits"], batch[f"{end}_positions"])

    return accuracy
