"""Warm starts: whole models and named parts, from a file or the newest of a directory, at step 0 only."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import pytest

import trellis
from tests import tiny
from tests.trainer import small
from trellis.errors import CheckpointFileError, CheckpointMismatchError
from trellis.tasks import read_warm_start


class Head(nn.Module):
    """The encoder of the small model under another name, and a head of its own."""

    items: tuple[tuple[str, str], ...] = (("encoder", "body"),)

    @property
    def checkpoint_items(self) -> Mapping[str, str]:
        return dict(self.items)

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dense(2, name="head")(nn.relu(nn.Dense(8, name="body")(x)))


@pytest.fixture
def pretrained(tmp_path: Path) -> Path:
    """A run of ten steps, with files of steps 5 and 10."""
    trellis.run_experiment(small.params(10), mode="train", model_dir=tmp_path / "pretrained")
    return tmp_path / "pretrained"


def read(directory: Path) -> Any:
    checkpoint = trellis.CheckpointFileReader(dir=directory, target=small.SmallModel().init).read()
    assert checkpoint is not None
    return checkpoint.model_params


def bound(model: Any) -> trellis.BoundModel:
    variables = model.init(jax.random.key(3), tiny.examples()[0])
    return trellis.BoundModel(model, params=variables["params"])


def test_a_model_without_items_takes_everything_from_the_newest_file(pretrained: Path) -> None:
    variables = read_warm_start(str(pretrained), model=bound(small.SmallModel()))
    tiny.assert_equal(jax.tree.map(np.asarray, variables["params"]), read(pretrained))


def test_a_file_can_be_named(pretrained: Path) -> None:
    variables = read_warm_start(str(pretrained / "regular_5"), model=bound(small.SmallModel()))
    assert not np.array_equal(variables["params"]["encoder"]["kernel"], read(pretrained)["encoder"]["kernel"])


def test_named_parts_are_taken_and_the_rest_stays(pretrained: Path) -> None:
    model = bound(Head())
    variables = read_warm_start(str(pretrained), model=model)
    tiny.assert_equal(jax.tree.map(np.asarray, variables["params"]["body"]), read(pretrained)["encoder"])
    tiny.assert_equal(variables["params"]["head"], model.params["head"])


def test_a_part_of_a_part_is_named_with_dots(pretrained: Path) -> None:
    model = bound(Head(items=(("encoder.kernel", "body.kernel"),)))
    variables = read_warm_start(str(pretrained), model=model)
    np.testing.assert_array_equal(variables["params"]["body"]["kernel"], read(pretrained)["encoder"]["kernel"])
    np.testing.assert_array_equal(variables["params"]["body"]["bias"], model.params["body"]["bias"])


def test_what_a_file_lacks_is_shown(pretrained: Path) -> None:
    with pytest.raises(CheckpointMismatchError) as raised:
        read_warm_start(str(pretrained), model=bound(Head(items=(("classifier", "head"), ("pooler", "body")))))
    for said in (
        "lacks what the model takes",
        "model_params/classifier/kernel: float32[8,4] in the file, float32[8,2] here",
        "model_params/pooler/bias: — in the file, float32[8] here",
    ):
        assert said in str(raised.value)
    with pytest.raises(CheckpointMismatchError, match="checkpoint_items name nothing that it has"):
        read_warm_start(str(pretrained), model=bound(Head(items=(("encoder", "nobody"),))))


def test_a_directory_without_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointFileError, match="holds no checkpoint file. Give a checkpoint file"):
        read_warm_start(str(tmp_path), model=bound(Head()))


def test_a_run_starts_from_the_parameters_and_resumes_without_them(pretrained: Path, tmp_path: Path) -> None:
    params = small.params(5, task={"init_checkpoint": str(pretrained)})
    started = []

    def start(model: trellis.BoundModel) -> Any:
        started.append(1)
        return trellis.Task.initialize(task, model)

    task = small.SmallTask(params.task)
    task.initialize = start  # type: ignore[method-assign]
    trainer = trellis.Trainer(task, config=params.trainer, model_dir=tmp_path / "run", evaluate=False)
    tiny.assert_equal(jax.tree.map(np.asarray, trainer.initialize().model_params), read(pretrained))
    assert trainer.initialize().step == 0
    for n_steps in (5, 10):
        params = small.params(n_steps, task={"init_checkpoint": str(pretrained)})
        trellis.run_experiment(params, task=task, mode="train", model_dir=tmp_path / "run")
    # Once by the trainer, however often it is asked, and once by the first of the two runs.
    assert len(started) == 2
