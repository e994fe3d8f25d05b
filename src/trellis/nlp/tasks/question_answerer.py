"""Questions with their passages, and the answers that a model finds there."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from trellis.data import Columns
from trellis.errors import ArgumentError
from trellis.nlp.data import FIRST_UNIQUE_ID, Question, Tokenizer, Windows, question_features, tokenize_questions
from trellis.nlp.tasks.predictions import INPUTS, AskModel, Prediction
from trellis.nlp.tasks.question_answers import Answer, AnswerOptions, answer_questions

ENDS = ("start", "end")


@dataclass(frozen=True)
class QuestionAnswerer:
    """Finds the answer to each question in its passage. The model returns `start_logits` and `end_logits`."""

    windows: Windows
    options: AnswerOptions

    kind: ClassVar[str] = "questions"
    text_columns: ClassVar[Sequence[str]] = ("question", "context")

    @property
    def input_lengths(self) -> Mapping[str, int]:
        """The inputs of the model, and how long each is."""
        return dict.fromkeys(INPUTS, self.windows.seq_length)

    def __call__(
        self, texts: Sequence[tuple[str, ...]], *, ask: AskModel, tokenizer: Tokenizer
    ) -> Iterator[Prediction]:
        """Yields the answer to each question from its passage; a third part of a text is the question's id."""
        questions = [_question(parts, number) for number, parts in enumerate(texts)]
        columns = Columns.from_arrays(tokenize_questions(questions, tokenizer=tokenizer, windows=self.windows))
        rows = np.arange(len(columns))
        features = question_features(columns, rows=rows, seq_length=self.windows.seq_length)
        names = ("input_ids", "input_mask", "segment_ids")
        outputs = list(ask(dict(zip(INPUTS, (features[name] for name in names), strict=True))))
        logits = {f"{end}_logits": np.stack([output[f"{end}_logits"] for output in outputs]) for end in ENDS}
        logits["unique_ids"] = rows + FIRST_UNIQUE_ID
        answers = self.answers(questions, windows=columns, logits=logits, tokenizer=tokenizer)
        for question in questions:
            yield _prediction(question, answers[question.id])

    def answers(
        self, questions: Sequence[Question], *, windows: Columns, logits: Mapping[str, Any], tokenizer: Tokenizer
    ) -> dict[str, Answer]:
        """The answer to each question by its id, from the logits of windows and their `unique_ids`."""
        return answer_questions(questions, windows=windows, **logits, tokenizer=tokenizer, options=self.options)


def _question(parts: tuple[str, ...], number: int) -> Question:
    if len(parts) not in (2, 3) or not all(part.strip() for part in parts):
        raise ArgumentError(f"{parts!r} is to be answered, but it takes a question and a passage.")
    name = parts[2] if len(parts) == 3 else str(number)
    return Question(name, parts[0], tuple(parts[1].split()), answers=())


def _prediction(question: Question, answer: Answer) -> Prediction:
    best = next((found for found in answer.candidates if found.text == answer.text), answer.candidates[0])
    values = {"id": question.id, "question": question.text, "answer": answer.text, "probability": best.probability}
    return Prediction(f"{answer.text or '(no answer)'} ({best.probability:.0%})  {question.text}", values)
