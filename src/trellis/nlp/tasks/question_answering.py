"""The task of finding the part of a passage that answers a question."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax

from trellis.aliases import Array, Batch
from trellis.data import Columns, Stream
from trellis.loops import Accuracy, Mean, MetricFunction, weighted_mean
from trellis.nlp.answers import AnswerOptions, QuestionAnswerer, answer_questions, with_vocabulary
from trellis.nlp.data import (
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
from trellis.tasks import BoundModel, InputContext, register_task_cls

_ENDS = ("start", "end")
_V2_NAMES = {
    "exact_match": "best_exact",
    "exact_match_threshold": "best_exact_thresh",
    "final_f1": "best_f1",
    "f1_threshold": "best_f1_thresh",
    "has_answer_exact_match": "HasAns_exact",
    "has_answer_f1": "HasAns_f1",
}
"""From the published names of the scores of SQuAD 2.0 to the official ones."""


@register_task_cls(QuestionAnsweringConfig)
class QuestionAnsweringTask(EncoderTask):
    """Marks answers in passages; the scores are those of SQuAD's official scripts, in percent."""

    def build_model(self) -> BertSpanLabeler:
        """An encoder with a head that marks the first and the last token."""
        return BertSpanLabeler(self.build_encoder())

    def build_stream(self, params: Any, input_context: InputContext) -> Stream:
        """Questions with windows over their passages."""
        return build_question_stream(params, input_context)

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> Mean:
        """The mean of the cross-entropies of both ends."""
        start, end = (
            optax.softmax_cross_entropy_with_integer_labels(
                model_outputs[f"{end}_logits"].astype(jnp.float32), labels[f"{end}_positions"]
            )
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
        """Exact match and F1 over all questions; for SQuAD 2.0 at the best thresholds, as published."""
        logits = {name: np.concatenate([part[name] for part in aggregated_logs]) for name in aggregated_logs[0]}
        questions = self._questions
        answers = answer_questions(
            questions,
            windows=self._windows,
            **logits,
            tokenizer=question_tokenizer(self._validation_data),
            options=self.answerer.options,
        )
        texts = {key: answer.text for key, answer in answers.items()}
        if not self._validation_data.version_2_with_negative:
            scores = evaluate_squad_v1(questions, predictions=texts)
            return {"exact_match": scores["exact_match"], "final_f1": scores["f1"]}
        odds = {key: answer.null_odds for key, answer in answers.items()}
        scores = evaluate_squad_v2(questions, predictions=texts, null_odds=odds)
        return {name: scores[official] for name, official in _V2_NAMES.items() if official in scores}

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
        data = with_vocabulary(self.task_config.validation_data, vocab_file=self.find_vocabulary())
        assert isinstance(data, QADataConfig)
        return data

    @cached_property
    def _questions(self) -> list[Question]:
        return load_questions(self._validation_data)

    @cached_property
    def _windows(self) -> Columns:
        return question_windows(self._validation_data)


def _end_accuracy(end: str) -> MetricFunction:
    def accuracy(outputs: Mapping[str, Array], batch: Mapping[str, Array]) -> Mean:
        return Accuracy()(outputs[f"{end}_logits"], batch[f"{end}_positions"])

    return accuracy
