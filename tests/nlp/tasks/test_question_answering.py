"""What a run on questions reports: scores of the questions that it has seen, as they are answered."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.nlp.data.small_questions import question, sky_vocabulary, write_squad
from trellis.errors import DataError
from trellis.nlp.data import FIRST_UNIQUE_ID, QADataConfig
from trellis.nlp.tasks import QuestionAnsweringConfig
from trellis.nlp.tasks.question_answering import QuestionAnsweringTask

N_TOKENS = 16
BLUE = 6
"""Where the last word of the passage is: after [CLS], two words, [SEP] and two words of the passage."""


def task_on(folder: Path, *questions: dict[str, Any], **options: Any) -> QuestionAnsweringTask:
    lengths = {"seq_length": N_TOKENS, "query_length": 2}
    file = write_squad(folder / "squad.json", *questions)
    data = QADataConfig(input_path=file, vocab_file=sky_vocabulary(folder), is_training=False, **lengths | options)
    return QuestionAnsweringTask(QuestionAnsweringConfig(validation_data=data))


def logits(task: QuestionAnsweringTask, windows: list[int], *, no_answer: float = -100.0) -> list[dict[str, Any]]:
    """What a model says that finds "blue" in these windows."""
    scores = np.full((len(windows), N_TOKENS), -200.0, np.float32)
    scores[:, 0] = no_answer
    scores[:, BLUE] = 1.0
    ids = np.array(windows, np.int32) + FIRST_UNIQUE_ID
    return [{"unique_ids": ids, "start_logits": scores, "end_logits": scores}]


def test_only_questions_that_were_seen_are_scored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = task_on(tmp_path, *(question(str(number), "Is sky", "blue") for number in range(4)))
    assert task.reduce_aggregated_logs(logits(task, [0, 1])) == {"exact_match": 100.0, "final_f1": 100.0}
    said = "2 of 4 questions were seen whole, and only these are scored: the evaluation ended before its data. "
    assert f"{said}Set trainer.validation_steps to -1 to see all." in capsys.readouterr().out
    assert task.reduce_aggregated_logs(logits(task, [3, 1, 0, 2])) == {"exact_match": 100.0, "final_f1": 100.0}
    assert "questions were seen" not in capsys.readouterr().out


def test_a_question_that_was_seen_in_part_is_not_scored(tmp_path: Path) -> None:
    # A window has room for one token of the passage, which has four.
    asked = question("1", "Is sky", "blue"), question("2", "Is sky", "blue")
    task = task_on(tmp_path, *asked, seq_length=6, doc_stride=1)
    assert len(task._windows) == 8
    with pytest.raises(DataError, match="There are no questions with a prediction to evaluate."):
        task.reduce_aggregated_logs(logits(task, [0, 1]))


def test_scores_of_given_answers_and_of_the_best_threshold_have_names_of_their_own(tmp_path: Path) -> None:
    asked = question("1", "Is sky", "blue"), question("2", "Is sky", is_impossible=True)
    task = task_on(tmp_path, *asked, version_2_with_negative=True)
    # The model is a little surer of "blue" than of no answer to either question.
    scores = task.reduce_aggregated_logs(logits(task, [0, 1], no_answer=0.5))
    assert scores["exact_match"] == scores["final_f1"] == 50.0
    assert (scores["has_answer_f1"], scores["no_answer_f1"]) == (100.0, 0.0)
    parts = logits(task, [0], no_answer=-100.0) + logits(task, [1], no_answer=0.9)
    scores = task.reduce_aggregated_logs(parts)
    assert scores["final_f1"] == 50.0
    assert scores["best_f1"] == scores["best_exact"] == 100.0
    assert scores["f1_threshold"] < 0
