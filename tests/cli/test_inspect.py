"""The words that show experiments and configs, and the experiments of a user."""

import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import REPOSITORY, environment, trellis_without_jax
from tests.screen import terminal
from trellis.cli.main import main

CONFIGS_ONLY = '''
from trellis.experiments import ExperimentConfig, get_exp_config, register_config_factory
import {beside}

@register_config_factory("mine/wide")
def wide() -> ExperimentConfig:
    """Wider than digits."""
    config = get_exp_config("digits/classifier")
    config.task.hidden_size = {beside}.SIZE
    return config
'''


def printed(*arguments: str) -> str:
    done = trellis_without_jax(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(*arguments: str) -> str:
    done = trellis_without_jax(*arguments)
    assert done.returncode == 2, done.stderr
    return done.stderr


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A user's experiment in a package below the current directory, with a file beside it."""
    folder = tmp_path / "my_project"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "wide.py").write_text(CONFIGS_ONLY.format(beside="my_project.sizes"))
    (folder / "sizes.py").write_text("SIZE = 99\n")
    return folder


def test_experiments_lists_one_to_a_line_without_jax() -> None:
    listed = dict(line.split(maxsplit=1) for line in printed("experiments").splitlines() if line)
    assert listed["digits/classifier"].startswith("A small network on handwritten digits: ")
    assert {"bert/local", "bert/squad", "albert/pretraining", "mobilebert/sentence_prediction"} <= listed.keys()
    assert list(listed) == sorted(listed)


def test_config_show_tells_where_each_value_comes_from_without_jax(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("task:\n  hidden_size: 8\ntrainer:\n  train_steps: 10\n")
    (tmp_path / "b.yaml").write_text("trainer:\n  train_steps: 20\n  max_to_keep: 4\n")
    lines = printed(
        "config",
        "show",
        "--experiment=digits/classifier",
        "--config_file=a.yaml",
        "--config_file=b.yaml",
        "--params_override=trainer.max_to_keep=7,runtime.seed=1",
        "--set=runtime.seed=2",
        "--set",
        "trainer.validation_steps=3",
    ).splitlines()
    found = {tuple(line.split("#")[0].split()): line.partition("# ")[2] for line in lines}
    assert found["hidden_size:", "8"] == "a.yaml:2"
    assert found["train_steps:", "20"] == "b.yaml:2"
    assert found["max_to_keep:", "7"].startswith("--params_override")
    assert found["seed:", "2"].startswith("--set")
    assert found["validation_steps:", "3"].startswith("--set")
    assert found["steps_per_loop:", "100"] == "factory digits/classifier"


def test_fields_without_effect_are_left_out_unless_they_are_asked_for_or_set() -> None:
    command = ("config", "show", "--experiment=digits/classifier", "--set=trainer.train_tf_function=false")
    out = printed(*command)
    assert "no effect\n" not in out
    assert re.search(r"train_tf_function: false +# --set; no effect: ", out)
    n_hidden = re.search(r"\n# (\d+) fields without effect are left out: --all shows them.\n$", out)
    assert n_hidden is not None
    whole = printed(*command, "--all")
    assert whole.count("# no effect\n") == int(n_hidden[1])
    assert "left out" not in whole


def test_config_show_tells_all_problems_at_once_without_jax(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("task:\n  hiden_size: 8\n")
    err = refused(
        "config", "show", "--experiment=digits/classifier", "--config_file=a.yaml", "--set=trainer.train_step=1"
    )
    assert err.startswith("2 problems in the configuration\n")
    assert "a.yaml:2:3: task.hiden_size is not a field" in err
    assert "--set=trainer.train_steps=1" in err


def test_a_file_that_is_no_text_names_no_experiment(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"\xff\xfe\x00")
    for name in ("model.bin", ".", "nowhere.yaml"):
        assert refused("config", "show", f"--config_file={name}").startswith("--experiment is missing.\n")
    err = refused("config", "show", "--experiment=digits/classifier", "--config_file=model.bin")
    assert err.startswith("model.bin: The file is not UTF-8 text.\n")


def test_config_diff_takes_names_and_files_without_jax(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text("task:\n  hidden_size: 8\n")
    out = printed("config", "diff", "digits/classifier", "params.yaml")
    assert "task.hidden_size\n  digits/classifier  64  (" in out
    assert "  params.yaml        8  (params.yaml:2)" in out
    assert printed("config", "diff", "digits/classifier", "digits/classifier") == "They do not differ.\n"


def test_on_a_terminal_config_diff_is_coloured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "PYTHON_COLORS"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "one.yaml").write_text("task:\n  hidden_size: 8\n")
    (tmp_path / "other.yaml").write_text("task:\n  hidden_size: 16\n")
    with terminal() as screen:
        assert main(["config", "diff", "one.yaml", "other.yaml"]) == 0
    assert screen.lines == ["task.hidden_size", "  one.yaml    8  (one.yaml:2)", "  other.yaml  16  (other.yaml:2)"]
    assert [screen.colour_of(line) for line in screen.lines] == ["default", "red", "green"]


def test_config_diff_refuses_a_file_that_is_not_there() -> None:
    assert refused("config", "diff", "digits/classifier", "runs/params.yaml") == (
        "There is no file `runs/params.yaml`. Give a file, or the name of an experiment.\n"
    )


@pytest.mark.parametrize(
    "arguments", [["--help"], ["experiments"], ["config", "show", "--experiment=digits/classifier"]]
)
def test_the_inspecting_words_answer_in_well_under_half_a_second(arguments: list[str]) -> None:
    command = [sys.executable, "-m", "trellis", *arguments]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env=environment(), capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # Processor time: other work on the machine is not the command's.
    assert after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime < 0.5


@pytest.mark.parametrize("name", ["my_project.wide", "my_project/wide.py"])
def test_a_module_is_a_dotted_name_or_a_file(package: Path, name: str) -> None:
    listed = printed("experiments", f"--module={name}", f"--module={name}").splitlines()
    assert [line.split(maxsplit=1)[1] for line in listed if line.startswith("mine/wide ")] == ["Wider than digits."]
    assert "hidden_size: 99" in printed("config", "show", "--experiment=mine/wide", f"--module={name}")


def test_a_file_can_import_what_lies_beside_it(package: Path) -> None:
    (package / "wide.py").write_text(CONFIGS_ONLY.format(beside="sizes"))
    assert "mine/wide" in printed("experiments", "--module=my_project/wide.py")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("my_projct.wide", "There is no module 'my_projct' here or among what is installed. Give a dotted name"),
        ("my_project.wde", "There is no module 'my_project.wde' here"),
        ("my_project/wde.py", "There is no file `my_project/wde.py`. Did you mean `my_project/wide.py`?"),
    ],
)
def test_a_module_that_is_not_there_is_told(package: Path, name: str, said: str) -> None:
    err = refused("experiments", f"--module={name}")
    assert err.startswith(said)
    assert err.endswith(f"That was while importing --module={name}.\n")


def test_a_file_named_like_a_loaded_module_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/argparse.py").touch()
    err = refused("experiments", "--module=mine/argparse.py")
    assert err.startswith("`mine/argparse.py` has the name of a module that is loaded already.")


def test_an_experiment_that_is_registered_twice_is_told_with_its_module(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import trellis\n@trellis.register_config_factory('digits/classifier')\ndef mine(): ...\n"
    )
    err = refused("experiments", "--module=mine.py")
    assert err.startswith("experiment 'digits/classifier' is registered already")
    assert err.endswith("That was while importing --module=mine.py.\n")


def test_an_error_in_a_users_module_keeps_its_traceback(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import a_package_that_is_not_there\n")
    done = trellis_without_jax("experiments", "--module=broken.py")
    assert done.returncode == 1
    assert 'broken.py", line 1' in done.stderr
    assert "That was while importing --module=broken.py." in done.stderr


def test_a_module_that_could_not_be_imported_is_not_half_there_afterwards(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "half.py").write_text("import trellis\ntrellis.get_exp_config('no/such')\n")
    for _ in range(2):
        assert main(["experiments", "--module=half.py"]) == 2
        assert "There is no experiment 'no/such'" in capsys.readouterr().err


def test_the_example_is_listed_from_its_file() -> None:
    command = [sys.executable, "-m", "trellis", "experiments", f"--module={REPOSITORY / 'examples/03_task.py'}"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True)
    listed = dict(line.split(maxsplit=1) for line in done.stdout.splitlines() if line)
    assert listed["spirals/classifier"] == "Three spiral arms, as a config that files and flags can change."
