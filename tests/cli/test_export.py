"""`trellis export`, as a user runs it."""

import json
from pathlib import Path

import numpy as np
import pytest

import trellis as library
from tests.cli.command import trellis, trellis_without_jax

RUN = ("--experiment=digits/classifier", "--model_dir=runs/digits")
SHORT = (
    "--params_override=trainer.steps_per_loop=20,trainer.checkpoint_interval=20,trainer.validation_interval=20,"
    "trainer.summary_interval=20,trainer.train_steps=20,trainer.optimizer_config.warmup.linear.warmup_steps=5,"
    "task.hidden_size=8"
)


def test_export_writes_a_model_that_answers(tmp_path: Path) -> None:
    done = trellis("train", *RUN, SHORT, "--mode=train")
    assert done.returncode == 0, done.stderr
    # As if it was trained on eight devices, which are not here.
    params = tmp_path / "runs/digits/params.yaml"
    assert "fsdp: 1" in params.read_text()
    params.write_text(params.read_text().replace("fsdp: 1", "fsdp: 8"))
    done = trellis("export", *RUN, "--output_dir=served/digits")
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        "Step 20, for cpu, cuda, tpu:\n"
        "  inference_step(inputs float32[batch, 64]) -> outputs float32[batch, 10]\n"
        "Written to:  served/digits\n"
        'To use it:   model = trellis.load_model("served/digits")\n'
        "To ask it:   trellis predict --model_dir=served/digits --input_file=FILE\n"
    )
    model = library.load_model(tmp_path / "served/digits")
    assert model(np.zeros((3, 64), np.float32)).shape == (3, 10)
    assert json.loads((tmp_path / "served/digits/manifest.json").read_text())["metadata"]["task"] == "DigitsTask"
    (tmp_path / "served/digits").rename(tmp_path / "served/moved")
    done = trellis("export", "--refresh=served/moved")
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "Refreshed:   served/moved"), done.stderr
    assert "1 array of answers, to 0.0001 of the greatest (float32)" in done.stdout
    (tmp_path / "served/moved").rename(tmp_path / "served/digits")
    done = trellis("export", *RUN, "--output_dir=served/digits")
    assert done.returncode == 2
    assert "output_dir `served/digits` is there already and not empty. Choose another directory." in done.stderr
    done = trellis("export", *RUN, "--output_dir=weights", "--format=hugging_face")
    assert done.returncode == 2
    assert "The model of DigitsTask is none that Hugging Face has too" in done.stderr


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--experiment=digits/classifier", "--output_dir=x"], "--model_dir is missing."),
        (["--refresh=x", "--output_dir=y"], "--refresh takes all from what lies beside the model, so --output_dir has"),
        ([*RUN, "--output_dir=x"], "--model_dir: there is no directory `runs/digits`. Give that of a run."),
        (["--model_dir=.", "--output_dir=x"], "--model_dir: `.` has no params.yaml, so it is not of a run. Give the"),
        (
            [*RUN[:1], "--model_dir=.", "--output_dir=x", "--format=onnx"],
            "There is no format 'onnx'. There are: jax_export, saved_model, hugging_face, peft.",
        ),
        ([*RUN[:1], "--model_dir=.", "--output_dir=x", "--batch_size=0"], "--batch_size is 0, but a batch has"),
    ],
)
def test_what_cannot_be_exported_is_told_without_loading_jax(flags: list[str], message: str) -> None:
    done = trellis_without_jax("export", *flags)
    assert done.returncode == 2
    assert message in done.stderr
