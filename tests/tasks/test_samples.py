"""What an evaluation leaves for the page about its run."""

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trellis.errors import ArgumentError
from trellis.reports import read_run
from trellis.tasks import write_samples


def samples_of(directory: Path, **arguments: Any) -> Any:
    write_samples(directory, step=5, **arguments)
    return json.loads((directory / "samples.json").read_text())


def test_the_hardest_examples_come_first_and_what_is_no_number_before_them(tmp_path: Path) -> None:
    scores = np.array([[2.0, 0.0], [0.0, 9.0], [np.nan, 0.0], [0.0, 1.0]])
    labels = np.array([0, 0, 1, 1])
    samples = samples_of(tmp_path, scores=scores, labels=labels, label_names=["no", "yes"], text_of="abcd".__getitem__)
    assert [one["text"] for one in samples["hardest"]] == ["c", "b", "d", "a"]
    assert samples["hardest"][0]["loss"] == "nan"
    assert samples["hardest"][1] == {"label": 0, "predicted": 1, "loss": 9.0001, "text": "b"}
    assert samples["confusion"] == [[1, 1], [1, 1]]
    assert samples["labels"] == ["no", "yes"]
    assert read_run(tmp_path).samples == samples


def test_pictures_are_kept_as_bytes_and_many_classes_have_no_matrix(tmp_path: Path) -> None:
    pictures = np.arange(2 * 3 * 4 * 3, dtype=np.uint8).reshape(2, 3, 4, 3)
    samples = samples_of(tmp_path, scores=np.eye(2, 60), labels=np.array([0, 1]), pictures=pictures)
    picture = samples["first"][1]["picture"]
    assert (picture["width"], picture["height"], picture["channels"]) == (4, 3, 3)
    assert base64.b64decode(picture["pixels"]) == pictures[1].tobytes()
    assert "confusion" not in samples


def test_nothing_is_written_where_no_run_is(tmp_path: Path) -> None:
    for directory in ("", tmp_path / "none"):
        write_samples(directory, step=1, scores=np.eye(2), labels=np.array([0, 1]))
    assert not list(tmp_path.iterdir())
    with pytest.raises(ArgumentError, match=r"scores \(2,\) and labels \(2,\)"):
        write_samples(tmp_path, step=1, scores=np.ones(2), labels=np.array([0, 1]))
