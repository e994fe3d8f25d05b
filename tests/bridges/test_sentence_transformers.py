"""Folders of sentence-transformers: what is read of them, and what is written for them."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from trellis.bridges import read_sentence_embedding, sentence_embedding_files
from trellis.errors import ArgumentError, CheckpointFileError

GOLDENS = Path(__file__).parents[1] / "golden" / "sentence_transformers"


def write_files(folder: Path, files: dict[str, Any]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
@pytest.mark.parametrize("is_normalized", [True, False])
def test_what_is_written_is_read_again(pooling: Any, is_normalized: bool, tmp_path: Path) -> None:
    files = sentence_embedding_files(pooling=pooling, is_normalized=is_normalized, width=8, seq_length=20)
    found = read_sentence_embedding(write_files(tmp_path, files))
    assert found is not None
    assert (found.pooling, found.is_normalized, found.seq_length) == (pooling, is_normalized, 20)


def test_what_the_package_itself_has_written_is_read() -> None:
    mean, first = (read_sentence_embedding(GOLDENS / name) for name in ("mean", "cls"))
    assert mean is not None and (mean.pooling, mean.is_normalized, mean.seq_length) == ("mean", True, 12)
    assert first is not None and (first.pooling, first.is_normalized, first.seq_length) == ("cls", False, 16)


def test_another_folder_is_none_of_them(tmp_path: Path) -> None:
    assert read_sentence_embedding(tmp_path) is None


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("modules.json", [{"type": "x.Transformer", "path": ""}, {"type": "x.Dense"}], "Transformer, Dense, but"),
        ("modules.json", {"type": "x.Transformer"}, "is no list of modules"),
        ("1_Pooling/config.json", {"pooling_mode": "lasttoken"}, "the pooling lasttoken, but"),
        ("1_Pooling/config.json", {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, "mean, cls, but"),
        ("1_Pooling/config.json", [], "the pooling nothing, but"),
    ],
)
def test_what_cannot_be_computed_is_refused_by_its_name(file: str, content: Any, message: str, tmp_path: Path) -> None:
    shutil.copytree(GOLDENS / "mean", tmp_path / "model")
    (tmp_path / "model" / file).write_text(json.dumps(content))
    with pytest.raises((ArgumentError, CheckpointFileError), match=message):
        read_sentence_embedding(tmp_path / "model")


def test_a_folder_whose_encoder_is_in_another_or_that_is_torn_is_refused(tmp_path: Path) -> None:
    shutil.copytree(GOLDENS / "mean", tmp_path / "model")
    file = tmp_path / "model" / "modules.json"
    modules = json.loads(file.read_text())
    modules[0]["path"] = "0_BERT"
    file.write_text(json.dumps(modules))
    with pytest.raises(ArgumentError, match="has its encoder in the folder 0_BERT"):
        read_sentence_embedding(tmp_path / "model")
    file.write_text(file.read_text()[:20])
    with pytest.raises(CheckpointFileError, match="is not JSON"):
        read_sentence_embedding(tmp_path / "model")
