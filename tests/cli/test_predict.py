"""What `trellis predict` refuses, before JAX is imported; and models of arrays, asked from a run and from an export."""

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import trellis
from tests.cli.command import environment, trellis_without_jax
from trellis.cli.main import main
from trellis.data import Columns, read_columns
from trellis.experiments import load_array_predictor
from trellis.optimizers import ConstantLrConfig, LrConfig, OptimizerConfig


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "--model_dir is missing."),
        (["--model_dir=nowhere", "--text=a"], "--model_dir: `nowhere` does not exist. Give the directory of a run"),
        (["--model_dir=.", "--text=a"], "--model_dir: `.` holds run. Give the directory of a run, which has a"),
        (["--model_dir=.", "--text=a", "--input_file=b"], "--text and --input_file are both given. Give one of them."),
        (["--model_dir=.", "--input_file=no.tsv"], "--input_file: there is no file `no.tsv`."),
        (["--model_dir=.", "--txt=a"], "There is no flag --txt. Did you mean --text?"),
        (["--model_dir=run", "--text=a"], "No registered experiment has all the fields of `run/params.yaml`."),
    ],
)
def test_predict_refuses_bad_input_before_jax_is_imported(tmp_path: Path, flags: list[str], message: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/params.yaml").write_text("task: {colour: blue}\n")
    done = trellis_without_jax("predict", *flags)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith(message)


@dataclass
class AnimalsConfig(trellis.TaskConfig):
    """A table of animals."""

    table: str = ""
    train_data: trellis.DataConfig = trellis.DataConfig(is_training=True, global_batch_size=4)
    validation_data: trellis.DataConfig = trellis.DataConfig(is_training=False, global_batch_size=2)


class Animals(nn.Module):
    """A weight for the age, and one for each kind."""

    @nn.compact
    def __call__(self, batch: Any) -> Any:
        """The logit of being tame."""
        kind = nn.Embed(3, 1)(batch["kind"])[:, 0]
        return kind + self.param("age", nn.initializers.ones, ()) * batch["age"]


@trellis.register_task_cls(AnimalsConfig)
class AnimalsTask(trellis.Task):
    """Tells which animals are tame."""

    def build_model(self) -> Any:
        return Animals()

    def build_inputs(self, params: trellis.DataConfig, input_context: Any = None) -> Any:
        columns: Columns = read_columns(self.task_config.table, categories=["kind"], missing={"age": 5, "kind": "?"})
        training = bool(params.is_training)
        return trellis.ExampleStream(
            columns, batch_size=params.global_batch_size, shuffle=training, n_epochs=None if training else 1
        )

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> Any:
        return optax.sigmoid_binary_cross_entropy(model_outputs, labels["tame"].astype(jnp.float32)).mean()


@trellis.register_config_factory("animals/tame")
def animals_tame() -> trellis.ExperimentConfig:
    """Tells which animals are tame."""
    config = trellis.TrainerConfig(train_steps=4, validation_interval=4, checkpoint_interval=2, summary_interval=4)
    config.optimizer_config.optimizer = OptimizerConfig(type="sgd")
    constant = ConstantLrConfig(learning_rate=0.1)
    config.optimizer_config.learning_rate = LrConfig(type="constant", constant=constant)
    runtime = trellis.RuntimeConfig(distribution_strategy="one_device")
    return trellis.ExperimentConfig(task=AnimalsConfig(), trainer=config, runtime=runtime)


@pytest.fixture(scope="module")
def animals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the table, with an export of its model beside it."""
    folder = tmp_path_factory.mktemp("animals")
    (folder / "animals.csv").write_text("age,kind,tame\n1.5,cat,1\n2,dog,1\n,cat,0\n4,?,0\n")
    params = animals_tame()
    params.task.table = str(folder / "animals.csv")
    trellis.run_experiment(params, mode="train_and_eval", model_dir=folder / "run")
    flags = ["--experiment=animals/tame", f"--model_dir={folder / 'run'}", f"--output_dir={folder / 'served'}"]
    assert main(["export", *flags]) == 0
    return folder


def predict(model_dir: Path, *flags: str) -> int:
    return main(["predict", f"--model_dir={model_dir}", *flags])


def test_a_run_a_checkpoint_file_and_an_export_answer_a_table_alike(
    animals: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("new.csv").write_text("id,kind,age\na,dog,1.5\nb,,\n")
    answers = {}
    for name in ("run", "served", "run/regular_4"):
        assert predict(animals / name, "--input_file=new.csv", "--output_file=out.jsonl") == 0
        answers[name] = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    captured = capsys.readouterr()
    assert captured.out.endswith("The answers to 2 examples are written to out.jsonl.\n")
    assert "new.csv: age, kind are asked; id is kept.\n" in captured.err
    assert [line["id"] for line in answers["run"]] == ["a", "b"]
    assert answers["run/regular_4"] == answers["run"]
    for one, other in zip(answers["run"], answers["served"], strict=True):
        assert one["outputs"] == pytest.approx(other["outputs"], rel=1e-5)
    model = load_array_predictor(animals / "run")
    filled = {"age": np.array([1.5, 5], np.float32), "kind": np.array([2, 0], np.int32)}  # ?, cat, dog
    assert model(filled).tolist() == pytest.approx([line["outputs"] for line in answers["run"]])
    assert predict(animals / "run", "--input_file=new.csv", "--checkpoint=2", "--output_file=out.jsonl") == 0
    assert json.loads(Path("out.jsonl").read_text().splitlines()[0]) != answers["run"][0]


def test_a_run_whose_data_are_gone_says_what_it_needs_them_for(
    animals: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(animals / "run", "run")
    file = Path(run) / "params.yaml"
    file.write_text(file.read_text().replace("animals.csv", "gone.csv"))
    Path("new.csv").write_text("age,kind\n1,cat\n")
    assert predict(Path(run), "--input_file=new.csv") == 2
    err = capsys.readouterr().err
    assert "gone.csv: no such file." in err
    assert "The validation data of a run tell what its model takes; a model that was exported needs none." in err


def test_an_exported_table_is_asked_without_its_code_and_data_and_without_any_of_text(animals: Path) -> None:
    shutil.copytree(animals / "served", "moved")
    Path("new.jsonl").write_text('{"kind": "cat", "age": 1}\n')
    program = (
        "import sys; from trellis.cli.main import main; code = main();"
        "sys.exit(str({name for name in sys.modules if name.startswith(('trellis.nlp', 'flax'))} or '') or code)"
    )
    command = [sys.executable, "-c", program, "predict", "--model_dir=moved", "--input_file=new.jsonl"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("0  outputs ")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "answers arrays, not text. Give a file of them: --input_file=FILE"),
        (["--text=a"], "--text is given, but the model answers arrays, not text. Leave it out."),
        (["--input_file=new.csv", "--checkpoint=9"], "checkpoint is '9', which is no checkpoint file of the run"),
        (["--input_file=new.csv", "--missing=age"], "--missing=age does not say which column is filled with what"),
        (["--input_file=new.csv", "--columns=age=year"], "new.csv has no column 'year'"),
        (["--input_file=new.csv"], "'cow' is none of the 3 categories that the model knows."),
        (
            ["--input_file=new.csv", "--seed=0"],
            "--seed is given, but the model does not go on with text. Leave it out.",
        ),
        (["--input_file=no-*.csv"], "--input_file: there is no file `no-*.csv`."),
    ],
)
def test_what_a_model_of_arrays_cannot_be_asked_is_told(
    animals: Path, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("new.csv").write_text("age,kind\n1,cow\n")
    assert predict(animals / "run", *flags, "--output_file=out.csv") == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert "Traceback" not in captured.err
    assert not Path("out.csv").exists()
