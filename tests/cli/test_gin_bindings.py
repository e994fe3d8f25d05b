"""Arguments of building blocks, bound by gin from files and flags."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import environment
from trellis.bindings import bound, standing_in
from trellis.cli.main import main

DIGITS = (
    "--experiment=digits/classifier",
    "--model_dir=run",
    "--set=trainer.optimizer_config.warmup.linear.warmup_steps=1",
    "--set=trainer.train_steps=4",
    "--set=runtime.distribution_strategy=one_device",
)

OWN = """
import gin
from pathlib import Path

@gin.configurable
def look(word="nothing"):
    def extension(checkpoint):
        written = Path("run/operative_config.train.gin").read_text()
        print("said:", word, "look.word = 'bound'" in written)
        return checkpoint
    return extension
"""


def test_an_extension_of_ones_own_is_bound_and_written_down_before_the_first_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "looking.py").write_text(OWN)
    (tmp_path / "own.gin").write_text("Trainer.extensions = [@look()]\nTrainer.save_summary = False\n")
    flags = ["--module=looking.py", "--gin_file=own.gin", "--gin_params=look.word='bound'"]
    assert main(["train", "--mode=train", *DIGITS, *flags]) == 0
    out = capsys.readouterr().out
    assert out.count("said: bound True\n") == 1
    written = (tmp_path / "run/operative_config.train.gin").read_text()
    assert "Trainer.save_summary = False\n" in written
    assert "run_experiment.run_post_eval = False\n" in written
    assert not (tmp_path / "run/train").exists()
    # Nothing stays bound: the next run in this process writes its summaries.
    assert main(["train", "--mode=train", *DIGITS[:1], "--model_dir=next", *DIGITS[2:]]) == 0
    assert (tmp_path / "next/train").is_dir()
    assert not list((tmp_path / "next").glob("*.gin"))


@pytest.mark.parametrize(
    ("binding", "said"),
    [
        ("Trainr.save_summary=False", "Did you mean Trainer? What can be bound: run_experiment, Trainer, "),
        ("Trainer.sav_summary=False", "Did you mean save_summary? Its arguments that can be bound are: extensions, "),
        ("Trainer.evaluate=False", "Its arguments that can be bound are: extensions, save_summary."),
        ("Trainer.extensions=[@nothing()]", "No configurable matching reference '@nothing()'."),
        ("Trainer.save_summary=%nothing", "No bindings specified for 'nothing/gin.macro'"),
        ("Trainer.save_summary", "Couldn't parse statement, expected ':' or '='. (line 1)"),
        ("Trainer.extensions=[1,", "EOF in multi-line statement"),
    ],
)
def test_bindings_of_nothing_are_told(capsys: pytest.CaptureFixture[str], binding: str, said: str) -> None:
    assert main(["plan", *DIGITS, f"--gin_params={binding}"]) == 2
    assert said in capsys.readouterr().err


def test_all_bindings_that_are_wrong_are_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.gin").write_text("Trainer.save_summary = False\nTraine.x = 1\n")
    assert main(["plan", *DIGITS, "--gin_file=a.gin", "--gin_params=Trainer.x=1"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("--gin_file=a.gin: No configurable matching 'Traine'.")
    assert 'In file "a.gin", line 2' in err
    assert "\n\n--gin_params=Trainer.x=1: Configurable 'Trainer' doesn't have a parameter named 'x'." in err


def test_a_gin_file_that_is_not_there_is_told_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    Path("talking.gin").touch()
    assert main(["train", *DIGITS, "--gin_file=taking.gin"]) == 2
    assert capsys.readouterr().err == "--gin_file: there is no file `taking.gin`. Did you mean `talking.gin`?\n"


def test_a_missing_gin_names_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["plan", *DIGITS, "--gin_params=Trainer.save_summary=False"]) == 2
    assert capsys.readouterr().err == "gin-config is not installed. It comes with: pip install 'trellis-jax[gin]'\n"


def test_gin_is_not_imported_without_its_flags() -> None:
    program = "import sys; from trellis.cli.main import main; code = main(); sys.exit('gin' in sys.modules or code)"
    done = subprocess.run([sys.executable, "-c", program, "plan", *DIGITS], env=environment(), check=False)
    assert done.returncode == 0


def test_what_stands_in_for_a_function_does_so_for_a_block_only() -> None:
    def greet(name: str = "you") -> str:
        return f"Hello {name}"

    def leave(name: str = "you") -> str:
        return f"Bye {name}"

    with standing_in({greet: lambda: greet("me")}):
        with standing_in({leave: lambda: leave("them")}):
            assert (bound(greet)(), bound(leave)()) == ("Hello me", "Bye them")
        assert bound(greet)() == "Hello me"
        assert bound(leave) is leave
    assert bound(greet) is greet
