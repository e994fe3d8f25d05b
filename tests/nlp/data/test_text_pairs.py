"""Pairs of texts from files of rows: what a batch has, and what is wrong with rows and settings."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.nlp.data.small_text import write_vocabulary
from trellis.errors import ConfigError, DataError
from trellis.nlp.data import DualEncoderDataConfig, build_pair_stream

ROWS = [
    "the cat sat\ta cat sat on the mat .\ta dog\t5",
    "who ran ?\tthe dog\tthe cat\t2.5",
    "the cat sat\tthe dog\t.\t0",
]


def write_rows(folder: Path, rows: list[str]) -> str:
    (folder / "rows.tsv").write_text("\n".join(["a\tb\tc\tscore", *rows]) + "\n")
    return str(folder / "rows.tsv")


def config(folder: Path, rows: list[str] | None = None, **changes: Any) -> DualEncoderDataConfig:
    settings: dict[str, Any] = {
        "input_path": write_rows(folder, ROWS if rows is None else rows),
        "vocab_file": write_vocabulary(folder / "vocab.txt"),
        "left_text_fields": ["a"],
        "right_text_fields": ["b"],
        "seq_length": 12,
        "global_batch_size": 3,
        "is_training": False,
    }
    return DualEncoderDataConfig(**settings | changes)


def test_a_batch_has_each_text_as_a_sequence_of_its_own_and_a_key_for_equal_texts(tmp_path: Path) -> None:
    batch = build_pair_stream(config(tmp_path, negative_text_fields=["c"])).batch(0)
    sides = ("left", "right", "negative")
    names = {f"{side}_{name}" for side in sides for name in ("word_ids", "mask", "type_ids", "key")}
    assert set(batch) == names
    assert all(batch[f"{side}_word_ids"].shape == (3, 12) for side in sides)
    assert batch["left_word_ids"][0].tolist() == [2, 5, 6, 8, 3, *[0] * 7]
    assert batch["left_mask"].sum(axis=1).tolist() == [5, 5, 5]
    assert not batch["right_type_ids"].any()
    # Equal texts have equal keys, in whichever column they are.
    left, right, negative = (batch[f"{side}_key"] for side in sides)
    assert left[0] == left[2] != left[1]
    assert right[1] == right[2]
    assert len({*left, *right, *negative}) == 2 + 2 + 3


def test_batches_to_train_on_are_as_long_as_the_longest_text_of_any_side(tmp_path: Path) -> None:
    params = config(tmp_path, is_training=True, seq_length=128)
    batch = build_pair_stream(params).batch(0)
    assert batch["left_word_ids"].shape == batch["right_word_ids"].shape == (3, 16)
    assert build_pair_stream(params.replace(seq_length=6)).batch(0)["right_word_ids"].shape == (3, 6)


def test_scores_stand_for_similarities_from_0_to_1(tmp_path: Path) -> None:
    batch = build_pair_stream(config(tmp_path, score_field="score", score_range=(0.0, 5.0))).batch(0)
    np.testing.assert_allclose(batch["score"], [1, 0.5, 0])


@pytest.mark.parametrize(
    ("row", "changes", "message"),
    [
        ("the cat\t \tx\t1", {}, r"rows.tsv:5: 'b' is empty. Fill it in, or leave the row out"),
        ("the cat\ta\tx\t7", {}, r"rows.tsv:5: the score 7 is not from 0 to 5, .* --set .*score_range='\[0, 5\]'"),
        ("the cat\ta\tx\tnan", {}, "rows.tsv:5: the score nan is not from 0 to 5"),
        ("the cat\ta\tx\thigh", {}, "rows.tsv:5: the score 'high' is no number"),
        ("the cat\ta\tx\t", {}, "rows.tsv:5: the score 'score' is missing. Fill it in"),
        ("the cat\ta\tx\t1", {"score_field": "rating"}, "the score 'rating' is missing; the columns are 'a', 'b'"),
        (
            "the cat\ta\tx\t1",
            {"right_text_fields": ["d"]},
            "there is no column 'd' among 'a', .* in .*right_text_fields",
        ),
    ],
)
def test_a_row_that_cannot_be_learned_is_told_by_its_line(
    row: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    params = config(tmp_path, [*ROWS, row], **{"score_field": "score", "score_range": (0.0, 5.0)} | changes)
    with pytest.raises(DataError, match=message):
        build_pair_stream(params)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"right_text_fields": []}, r"validation_data.right_text_fields is \[\]. Name one column"),
        ({"left_text_fields": ["a", "c"]}, r"left_text_fields is \['a', 'c'\]. Name one column"),
        ({"right_text_fields": ["a"]}, "takes the same column for two texts: a, a"),
        ({"score_field": "score", "score_range": (5.0, 0.0)}, r"score_range is \[5, 0\]"),
        ({"preprocessing_hub_module_url": "x"}, "preprocessing_hub_module_url has no meaning"),
        ({"vocab_file": ""}, "vocab_file is empty"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        build_pair_stream(config(tmp_path, **changes))


def test_a_file_without_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="There are no rows in"):
        build_pair_stream(config(tmp_path, []))
