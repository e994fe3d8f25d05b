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
from trellis.errors import ArgumentError, CheckpointFileError, CheckpointMismatchError, ConfigError
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


class Wider(nn.Module):
    """The small model with seven classes."""

    @nn.compact
    def __call__(self, x: Any, training: bool = False) -> Any:
        return nn.Dense(7, name="classifier")(nn.relu(nn.Dense(8, name="encoder")(x)))


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


def test_the_parts_that_are_taken_can_be_named(pretrained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = bound(Wider())
    capsys.readouterr()
    variables = read_warm_start(str(pretrained), model=model, parts=["encoder"])
    assert (
        f"Weights of `{pretrained / 'regular_10'}` are taken: encoder; new are classifier." in capsys.readouterr().out
    )
    tiny.assert_equal(jax.tree.map(np.asarray, variables["params"]["encoder"]), read(pretrained)["encoder"])
    tiny.assert_equal(variables["params"]["classifier"], model.params["classifier"])


def test_a_named_part_comes_from_where_the_model_says(pretrained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = bound(Head())
    variables = read_warm_start(str(pretrained), model=model, parts=["body/kernel"])
    np.testing.assert_array_equal(variables["params"]["body"]["kernel"], read(pretrained)["encoder"]["kernel"])
    tiny.assert_equal(variables["params"]["body"]["bias"], model.params["body"]["bias"])
    assert "are taken: body/kernel; new are body/bias, head." in capsys.readouterr().out


def test_parts_that_do_not_fit_are_named_with_those_that_do(pretrained: Path) -> None:
    with pytest.raises(CheckpointMismatchError) as raised:
        read_warm_start(str(pretrained), model=bound(Wider()))
    assert "model_params/classifier/kernel: float32[8,4] in the file, float32[8,7] here" in str(raised.value)
    assert "or take the parts that fit: --set=task.init_parts=[encoder]." in str(raised.value)
    with pytest.raises(CheckpointMismatchError, match=r"classifier/bias: float32\[4\] in the file, float32\[7\] here"):
        read_warm_start(str(pretrained), model=bound(Wider()), parts=["encoder", "classifier"])
    with pytest.raises(ArgumentError, match=r"task.init_parts: 'encodr' matches no parameter. Did you mean 'encoder'"):
        read_warm_start(str(pretrained), model=bound(Wider()), parts=["encodr"])


def test_parts_are_taken_from_the_best_file_and_from_a_served_model(tmp_path: Path) -> None:
    best = {"best_checkpoint_export_subdir": "best", "best_checkpoint_eval_metric": "accuracy"}
    params = small.params(5, **best)
    run = tmp_path / "run"
    trellis.run_experiment(params, mode="train_and_eval", model_dir=run)
    expected = read(run)["encoder"]
    task = small.SmallTask(params.task)
    model = trellis.BoundModel(small.SmallModel(), params=read(run))
    trellis.tasks.export_task(task, model=model, inputs=tiny.examples()[0], output_dir=tmp_path / "served" / "1")
    for source in (run / "best", tmp_path / "served", tmp_path / "served" / "1"):
        variables = read_warm_start(str(source), model=bound(Wider()), parts=["encoder"])
        tiny.assert_equal(jax.tree.map(np.asarray, variables["params"]["encoder"]), expected)


def test_the_statistics_of_a_part_are_taken_with_it(tmp_path: Path) -> None:
    model = tiny.Classifier(train=True, has_statistics=True)
    writer = trellis.CheckpointFileWriter(output_dir=tmp_path)
    loop = tiny.train_loop(tiny.train_task(model), init=tiny.Classifier(has_statistics=True).init, n_steps=2)
    for checkpoint in loop:
        writer(checkpoint)
    trained = trellis.CheckpointFileReader(dir=tmp_path, target=model.init).read()
    assert trained is not None
    variables = tiny.Classifier(has_statistics=True).init(jax.random.key(3), tiny.examples()[0])
    state = {"batch_stats": variables["batch_stats"]}
    fresh = trellis.BoundModel(model, params=variables["params"], model_state=state)
    taken = read_warm_start(str(tmp_path), model=fresh, parts=["BatchNorm_0"])
    tiny.assert_equal(jax.tree.map(np.asarray, taken["batch_stats"]), trained.model_state["batch_stats"])
    tiny.assert_equal(taken["params"]["Dense_0"], fresh.params["Dense_0"])


def test_a_run_takes_the_parts_that_its_config_names(pretrained: Path, tmp_path: Path) -> None:
    class WiderTask(small.SmallTask):
        def build_model(self) -> Any:
            return Wider()

    params = small.params(
        5,
        task={"init_checkpoint": str(pretrained), "init_parts": ["encoder"]},
        optimizer_config={"frozen": ["encoder"]},
    )
    trellis.run_experiment(params, mode="train", model_dir=tmp_path / "run", task=WiderTask(params.task))
    tiny.assert_equal(read(tmp_path / "run")["encoder"], read(pretrained)["encoder"])
    with pytest.raises(ConfigError, match=r"task.init_parts is \['encoder'\], but nothing says from where"):
        trellis.run_experiment(
            small.params(5, task={"init_parts": ["encoder"]}), mode="train", model_dir=tmp_path / "none"
        )


def test_a_run_tells_what_does_not_fit_and_nothing_of_jax(pretrained: Path, tmp_path: Path) -> None:
    class WiderTask(small.SmallTask):
        def build_model(self) -> Any:
            return Wider()

    params = small.params(5, task={"init_checkpoint": str(pretrained)})
    with pytest.raises(CheckpointMismatchError, match=r"--set=task.init_parts=\[encoder\]") as raised:
        trellis.run_experiment(params, mode="train", model_dir=tmp_path / "run", task=WiderTask(params.task))
    assert not any("internal frames" in note for note in getattr(raised.value, "__notes__", []))


def test_a_damaged_file_is_told_with_its_place(pretrained: Path) -> None:
    (pretrained / "regular_10" / "manifest.json").write_text("{")
    with pytest.raises(CheckpointFileError, match=r"task.init_checkpoint: `.*regular_10` is damaged: manifest.json is"):
        read_warm_start(str(pretrained), model=bound(small.SmallModel()))


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
