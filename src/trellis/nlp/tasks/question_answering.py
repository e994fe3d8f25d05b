"""The task of finding the part of a passage that answers a question."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax

from trellis.aliases import Array, Batch
from trellis.classification_metrics import Accuracy
from trellis.data import Columns, Stream
from trellis.errors import ArgumentError
from trellis.metrics import Mean, MetricFunction, weighted_mean
from trellis.nlp.data import (
    FIRST_UNIQUE_ID,
    QADataConfig,
    Question,
    Tokenizer,
    Windows,
    build_question_stream,
    load_questions,
    question_features,
    question_tokenizer,
    question_windows,
    tokenize_questions,
)
from trellis.nlp.models import BertSpanLabeler
from trellis.nlp.tasks.configs import QuestionAnsweringConfig
from trellis.nlp.tasks.encoder_task import EncoderTask
from trellis.nlp.tasks.predictions import Prediction, run_in_batches
from trellis.nlp.tasks.question_answers import Answer, AnswerOptions, answer_questions
from trellis.nlp.tasks.squad_metrics import evaluate_squad_v1, evaluate_squad_v2
from trellis.nlp.tasks.vocabulary import with_vocabulary
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
"""The published names of the scores of SQuAD 2.0, to the official ones."""


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
        """The logits of each window, of which answers are made when all are known."""
        outputs = self.inference_step(inputs, model)
        logits = {f"{end}_logits": outputs[f"{end}_logits"].astype(jnp.float32) for end in _ENDS}
        return {"unique_ids": inputs["unique_ids"], **logits}

    def aggregate_logs(self, state: Any, step_outputs: Mapping[str, Any]) -> Any:
        """All logits so far."""
        return [*(state or []), step_outputs]

    def reduce_aggregated_logs(self, aggregated_logs: Any, global_step: int | None = None) -> dict[str, float]:
        """Exact match and F1 over all questions; for SQuAD 2.0 at the best thresholds, as published."""
        logits = {name: np.concatenate([part[name] for part in aggregated_logs]) for name in aggregated_logs[0]}
        questions, tokenizer = self._questions, question_tokenizer(self._validation_data)
        answers = self._answers(questions, self._windows, logits, tokenizer)
        texts = {key: answer.text for key, answer in answers.items()}
        if not self._validation_data.version_2_with_negative:
            scores = evaluate_squad_v1(questions, predictions=texts)
            return {"exact_match": scores["exact_match"], "final_f1": scores["f1"]}
        odds = {key: answer.null_odds for key, answer in answers.items()}
        scores = evaluate_squad_v2(questions, predictions=texts, null_odds=odds)
        return {name: scores[theirs] for name, theirs in _V2_NAMES.items() if theirs in scores}

    @property
    def text_columns(self) -> Sequence[str]:
        """A question and the passage that answers it."""
        return ("question", "context")

    def predict(
        self, texts: Sequence[tuple[str, ...]], *, model: BoundModel, tokenizer: Tokenizer
    ) -> Iterator[Prediction]:
        """The answer to each question from its passage; a third part of a text is the question's id."""
        questions = [_question(parts, number) for number, parts in enumerate(texts)]
        data = self._validation_data
        windows = Windows(data.seq_length, data.doc_stride, data.query_length)
        columns = Columns.from_arrays(tokenize_questions(questions, tokenizer=tokenizer, windows=windows))
        rows = np.arange(len(columns))
        features = question_features(columns, rows=rows, seq_length=data.seq_length)
        inputs = {
            "input_word_ids": features["input_ids"],
            "input_mask": features["input_mask"],
            "input_type_ids": features["segment_ids"],
        }
        outputs = list(run_in_batches(model, inputs))
        logits = {f"{end}_logits": np.stack([output[f"{end}_logits"] for output in outputs]) for end in _ENDS}
        logits["unique_ids"] = rows + FIRST_UNIQUE_ID
        answers = self._answers(questions, columns, logits, tokenizer)
        for question in questions:
            yield _prediction(question, answers[question.id])

    def _answers(
        self, questions: Sequence[Question], windows: Columns, logits: Mapping[str, Any], tokenizer: Tokenizer
    ) -> dict[str, Answer]:
        config = self.task_config
        options = AnswerOptions(
            n_best_size=config.n_best_size,
            max_answer_length=config.max_answer_length,
            null_score_diff_threshold=config.null_score_diff_threshold,
            version_2_with_negative=self._validation_data.version_2_with_negative,
        )
        return answer_questions(questions, windows=windows, **logits, tokenizer=tokenizer, options=options)

    @cached_property
    def _validation_data(self) -> QADataConfig:
        data = with_vocabulary(self.task_config.validation_data, find=self.find_vocabulary)
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


def _question(parts: tuple[str, ...], number: int) -> Question:
    if len(parts) not in (2, 3) or not all(part.strip() for part in parts):
        raise ArgumentError(f"{parts!r} is to be answered, but it takes a question and a passage.")
    name = parts[2] if len(parts) == 3 else str(number)
    return Question(name, parts[0], tuple(parts[1].split()), answers=())


def _prediction(question: Question, answer: Answer) -> Prediction:
    best = next((found for found in answer.candidates if found.text == answer.text), answer.candidates[0])
    values = {"id": question.id, "question": question.text, "answer": answer.text, "probability": best.probability}
    return Prediction(f"{answer.text or '(no answer)'} ({best.probability:.0%})  {question.text}", values)
