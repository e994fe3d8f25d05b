"""The command lines of Model Garden's page on its training driver, as it spells them, with an experiment of ours."""

import re
import shlex
from pathlib import Path

import pytest

from tests.design import largest
from trellis.cli.main import main
from trellis.experiments import resolve

HERE = f"--module={largest.__name__}"

EXPERIMENT = "task:\n  train_data:\n    global_batch_size: 24\ntrainer:\n  train_steps: 8\n  validation_steps: 2\n"
MODEL = "task:\n  model:\n    width: 6\n"


@pytest.fixture(autouse=True)
def _files(tmp_path: Path) -> None:
    for name, text in {"experiments/largest.yaml": EXPERIMENT, "models/narrow.yaml": MODEL}.items():
        file = tmp_path / "configs" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    for name in ("largest_train.tf_record", "largest_eval.tf_record"):
        (tmp_path / name).write_bytes(b"some records")


def test_an_experiment_is_invoked_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["experiments", HERE]) == 0
    listed = capsys.readouterr().out
    assert re.search(r"^largest/classifier +Tells which of four inputs is the largest\.$", listed, re.MULTILINE)
    assert re.search(r"^bert/sentence_prediction +\w", listed, re.MULTILINE)
    assert main(["config", "show", HERE, "--experiment=largest/classifier"]) == 0
    assert "train_steps: 10 " in capsys.readouterr().out


def test_several_files_override_an_experiment_in_their_order(capsys: pytest.CaptureFixture[str]) -> None:
    flags = "--config_file=configs/experiments/largest.yaml --config_file=configs/models/narrow.yaml"
    assert main(["config", "show", HERE, "--experiment=largest/classifier", *flags.split()]) == 0
    shown = capsys.readouterr().out
    assert "width: 6                            " in shown
    assert "# configs/models/narrow.yaml:3\n" in shown
    assert "# configs/experiments/largest.yaml:5\n" in shown


def test_the_override_flag_comes_after_the_files() -> None:
    text = "task.train_data.input_path=/some/path,task.hub_module_url=/some/hub,trainer.train_steps=9"
    config = resolve("largest/classifier", config_file=["configs/experiments/largest.yaml"], params_override=text)
    assert config.task.train_data.input_path == "/some/path"
    assert config.as_dict()["task"]["hub_module_url"] == "/some/hub"
    assert (config.trainer.train_steps, config.task.train_data.global_batch_size) == (9, 24)


def test_a_whole_job_is_started_with_overrides_that_a_shell_has_put_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, out = tmp_path, tmp_path / "output"
    params = f"task.train_data.input_path={data}/largest_train.tf_record"
    params = f"{params},task.validation_data.input_path={data}/largest_eval.tf_record"
    params = f"{params},task.hub_module_url=https://example.com/models/some_encoder/3"
    params = f"{params},runtime.distribution_strategy=tpu,runtime.num_gpus=1"
    command = f"""
     --experiment=largest/classifier
     --mode=train_and_eval
     --model_dir={out}
     --config_file=configs/experiments/largest.yaml
     --tfhub_cache_dir={out}/hub_cache
     --tpu=some_tpu
     --params_override={params}
    """
    assert main(["train", HERE, *shlex.split(command)]) == 0
    said = capsys.readouterr().out
    assert "--tpu has no effect: JAX finds the TPUs of its host itself.\n" in said
    assert "  eval/accuracy 0." in said
    assert "Done: step 8 of 8.\n" in said
    assert {"params.yaml", "regular_8", "train", "validation"} <= {path.name for path in out.iterdir()}
    assert "distribution_strategy: tpu\n" in (out / "params.yaml").read_text()


def test_data_that_was_not_prepared_is_told_before_the_job_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = f"task.train_data.input_path={tmp_path}/largest_trian.tf_record"
    flags = ["--experiment=largest/classifier", "--model_dir=output", f"--params_override={text}"]
    assert main(["train", HERE, *flags]) == 2
    said = capsys.readouterr().err
    assert "task.train_data.input_path names a file that is not there: " in said
    assert f"Did you mean `{tmp_path}/largest_train.tf_record`?" in said


def test_the_published_job_on_bert_resolves_as_it_is_spelt(capsys: pytest.CaptureFixture[str]) -> None:
    params = "task.train_data.input_path=data/mnli_train.tf_record,task.hub_module_url=/some/hub"
    params = f"{params},task.validation_data.input_path=data/mnli_eval.tf_record,runtime.distribution_strategy=tpu"
    command = f"""
     --experiment=bert/sentence_prediction --mode=train_and_eval --model_dir=output
     --config_file=configs/experiments/glue_mnli_matched.yaml --config_file=configs/models/bert_en_uncased_base.yaml
     --tfhub_cache_dir=output/hub_cache --tpu=some_tpu --params_override={params}
    """
    # Only the data is missing.
    assert main(["train", *shlex.split(command)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("2 problems in the configuration\n")
    assert said.count("_data.input_path names a file that is not there") == 2
