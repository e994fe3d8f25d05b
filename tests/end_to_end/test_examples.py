"""Every example runs from start to end, and says what it does, what it achieved and where that lies."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
EXAMPLES = REPOSITORY / "examples"
MOST_LINES = {"01_loop.py": 120, "02_nnx.py": 60, "03_task.py": 80, "04_progressive.py": 110, "05_vision.py": 90}


def run(name: str, *flags: str) -> str:
    """Runs an example where the test may write, with warnings as errors; returns what it printed."""
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), *flags]
    environment = os.environ | {
        "PYTHONPATH": str(REPOSITORY / "src"),
        "XLA_FLAGS": "",
        "JAX_COMPILATION_CACHE_DIR": "compiled",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_is_tested_short_and_says_what_it_is_for() -> None:
    lines = {path.name: len(path.read_text().splitlines()) for path in EXAMPLES.glob("*.py")}
    assert lines.keys() == MOST_LINES.keys()
    assert [name for name in lines if lines[name] > MOST_LINES[name]] == []
    assert all(ast.get_docstring(ast.parse((EXAMPLES / name).read_text())) for name in lines)


def test_01_loop_trains_resumes_and_shows_what_it_learned(tmp_path: Path) -> None:
    flags = ("--d_model=8", "--n_steps_per_checkpoint=2", "--output_dir=runs/small run")

    out = run("01_loop.py", *flags, "--n_steps=4")
    assert "up to step 4.\nIt writes to runs/small run, and resumes from there" in out
    assert "Total number of trainable weights: 5440 ~ 21.2 kB." in out
    assert "  eval/lnpp " in out
    found = re.findall(r"step (\d): lnpp (\d\.\d+), a perplexity of [\d.]+ per byte", out)
    assert [step for step, _ in found] == ["2", "4"]
    assert float(found[1][1]) < float(found[0][1]) < 6
    assert "\nReturn the" in out
    assert "tensorboard --logdir 'runs/small run'" in out
    following = out.splitlines()[-1].split("01_loop.py ")[1]
    assert following == "'--output_dir=runs/small run' --n_steps=8 --n_steps_per_checkpoint=2 --d_model=8"
    names = {path.name for path in (tmp_path / "runs/small run").iterdir()}
    assert {"events.jsonl", "regular_2", "regular_4", "lowest_eval_lnpp_4"} <= names

    out = run("01_loop.py", *flags, "--n_steps=6")
    assert "A checkpoint was loaded in " in out
    assert re.findall(r"Step +(\d) of 6  loss", out) == ["6"]
    assert re.findall(r"step (\d): lnpp", out) == ["2", "6"]

    out = run("01_loop.py", *flags, "--n_steps=6")
    assert "Stop training, already reached the total training steps 6." in out
    assert re.findall(r"step (\d): lnpp", out) == ["2", "6"]


def test_02_nnx_learns_to_read_displays() -> None:
    out = run("02_nnx.py")
    accuracies = [float(text) for text in re.findall(r"accuracy ([\d.]+)%", out)]
    assert len(accuracies) == 5
    assert accuracies[-1] > 90
    assert re.search(r"Displays that show \[(.*)\] are read as \[\1\]\.", out)


def test_03_task_takes_overrides_and_learns(tmp_path: Path) -> None:
    out = run("03_task.py", "--params_override=task.hidden_size=32,trainer.train_steps=500", "--model_dir=runs/spirals")
    found = re.search(r"'accuracy': ([\d.]+)", out)
    assert found, out
    assert float(found[1]) > 0.9
    assert "hidden_size: 32" in (tmp_path / "runs/spirals/params.yaml").read_text()


def test_04_progressive_grows_and_learns(tmp_path: Path) -> None:
    out = run("04_progressive.py", "--model_dir=runs/rows")
    assert re.findall(r"Stage (\d) of 3: up to step (\d+)\.", out) == [("1", "200"), ("2", "400"), ("3", "600")]
    found = re.search(r"4 layers: .*'accuracy': ([\d.]+)", out)
    assert found, out
    assert float(found[1]) > 0.9
    assert (tmp_path / "runs/rows/exported_ckpts/regular_600").is_dir()


def test_05_vision_learns_resumes_and_evaluates_by_running_averages() -> None:
    out = run("05_vision.py", "--n_steps=100", "--output_dir=runs/digits")
    assert re.findall(r"Step (\d+): accuracy", out) == ["100"]
    out = run("05_vision.py", "--n_steps=200", "--output_dir=runs/digits")
    accuracies = re.findall(r"Step (\d+): accuracy ([\d.]+)%", out)
    assert [step for step, _ in accuracies] == ["200"]
    assert float(accuracies[0][1]) > 90
