"""What `trellis predict` refuses, before JAX is imported."""

from pathlib import Path

import pytest

from tests.cli.command import trellis_without_jax


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
