"""`trellis run` as a user types it."""

import json
import resource
from pathlib import Path

import pytest

from tests.cli.command import trellis, trellis_without_jax
from tests.executor.pipeline import WRITES_A_MODEL, write_examples, write_module
from trellis.cli.main import main

FLAGS = ("--module_file=my_module.py", "--examples=data", "--model=out/model")


def test_a_module_is_run_and_told_where_its_model_lies_without_jax() -> None:
    write_examples(Path("data"))
    write_module(WRITES_A_MODEL.replace("    os.makedirs", "    print('steps', fn_args.train_steps)\n    os.makedirs"))
    done = trellis_without_jax("run", *FLAGS, "--train_steps=7", "--v=1")
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("--v has no effect: a module runs in a process of its own")
    assert done.stdout == "steps 7\nDone. The model: out/model/Format-Serving\n"


def test_a_function_of_the_module_file_is_run_by_its_name() -> None:
    write_examples(Path("data"))
    write_module(WRITES_A_MODEL.replace("def run_fn(fn_args):", "def train_all(fn_args):\n    print('it is called')"))
    done = trellis_without_jax("run", *FLAGS, "--run_fn=train_all")
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "it is called"), done.stderr
    done = trellis_without_jax("run", *FLAGS, "--run_fn=train_al")
    assert (done.returncode, "Did you mean 'train_all'?" in done.stderr) == (2, True)


def test_the_first_line_of_a_run_fn_comes_within_half_a_second() -> None:
    write_examples(Path("data"))
    write_module()
    assert min(seconds_of_work() for _ in range(3)) < 0.5


def seconds_of_work() -> float:
    """What a whole run takes of a processor: unlike the time on the wall, the same on a busy machine."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert trellis("run", *FLAGS).returncode == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_every_flag_reaches_the_module() -> None:
    for folder in ("one", "two"):
        write_examples(Path(folder), splits=("Split-a", "Split-b"))
    write_module(
        """
        import json
        from pathlib import Path

        def run_fn(fn_args):
            Path(fn_args.serving_model_dir).mkdir()
            seen = vars(fn_args)
            del seen["data_accessor"], seen["num_examples"]
            Path(fn_args.serving_model_dir, "seen.json").write_text(json.dumps(seen))
        """
    )
    Path("best.json").write_text('{"values": {"rate": 1}}')
    Path("schema.pbtxt").write_text("")
    Path("base").mkdir()
    done = trellis(
        "run", "--module_file=my_module.py", "--examples=one", "--examples=two", "--model=out/model/",
        "--model_run=logs", "--model_files=seen.json",
        "--train_splits=a,b", "--eval_splits=b", "--train_steps=3", "--eval_steps=2",
        "--schema=schema.pbtxt",
        "--hyperparameters=best.json", "--base_model=base", "--transform_graph=graph", "--timeout=100",
        '--custom_config={"rate": 0.5}',
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    seen = json.loads(Path("out/model/Format-Serving/seen.json").read_text())
    # It was written beside the model before it, and put in its place when it was whole.
    directory = Path(seen["serving_model_dir"]).parent
    assert directory.parent == Path("out/model")
    assert seen == {
        "working_dir": None,
        "train_files": ["one/Split-a/*", "two/Split-a/*", "one/Split-b/*", "two/Split-b/*"],
        "eval_files": ["one/Split-b/*", "two/Split-b/*"],
        "train_steps": 3,
        "eval_steps": 2,
        "schema_path": "schema.pbtxt",
        "schema_file": "schema.pbtxt",
        "transform_graph_path": "graph",
        "transform_output": "graph",
        "serving_model_dir": f"{directory}/Format-Serving",
        "eval_model_dir": f"{directory}/Format-TFMA",
        "model_run_dir": "logs",
        "base_model": "base/Format-Serving",
        "hyperparameters": {"values": {"rate": 1}},
        "custom_config": {"rate": 0.5},
    }


def test_an_error_in_the_module_is_shown_from_its_own_line_on_and_exits_with_1() -> None:
    write_examples(Path("data"))
    write_module("def run_fn(fn_args):\n    raise ValueError('no rate')\n")
    done = trellis("run", *FLAGS)
    assert done.returncode == 1
    assert done.stderr.startswith("run_fn has raised ValueError: no rate\n\nTraceback (most recent call last):\n")
    assert 'my_module.py", line 2, in run_fn' in done.stderr
    assert "trellis/executor" not in done.stderr


def test_a_worker_that_does_not_publish_tells_of_no_model_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    write_examples(Path("data"))
    write_module()
    cluster = {"chief": ["a:1"], "worker": ["b:1"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}}))
    done = trellis("run", *FLAGS)
    assert done.stdout == "Done. The model is published by the chief of these workers.\n"
    assert not Path("out").exists()


@pytest.mark.parametrize(
    "arguments",
    [["run", *FLAGS], ["train", "--experiment=digits/classifier", "--model_dir=out"]],
    ids=["run", "train"],
)
def test_a_parameter_server_says_that_none_is_needed_and_ends(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = {"worker": ["a:1"], "ps": ["b:1"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "ps", "index": 0}}))
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert out.startswith("TF_CONFIG makes this process a parameter server (ps), and none is needed")
    assert len(out.splitlines()) == 1
    assert not Path("out").exists()


def test_bad_input_exits_with_2_and_tells_all_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    write_module("")
    assert main(["run", *FLAGS, "--custom_config=rate", "--workers=2"]) == 2
    text = capsys.readouterr().err
    assert text.startswith("3 problems before the run\n\ncustom_config: 'rate' is no JSON")
    assert "examples: there is no directory `data`." in text
    assert "`my_module.py` has no run_fn." in text


def test_what_a_run_needs_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--modul_file=my_module.py"]) == 2
    text = capsys.readouterr().err
    assert "There is no flag --modul_file. Did you mean --module_file?" in text
    assert "--examples is missing." in text
    assert "--model is missing." in text


def test_a_model_is_blessed_by_examples_or_the_exit_code_says_that_it_is_not() -> None:
    write_examples(Path("data"))
    write_module(
        """
        import numpy as np
        from trellis.serving import Signature, export_model

        def run_fn(fn_args):
            step = Signature(lambda v, x: x["size"] * v["w"], {"size": np.zeros((1, 1), np.float32)})
            w = np.float32(fn_args.custom_config["w"])
            export_model(fn_args.serving_model_dir, variables={"w": w}, signatures={"f": step}, platforms=["cpu"])
        """
    )
    rules = "--bless=mae,label=kind"
    done = trellis("run", *FLAGS, rules, '--custom_config={"w": 1}')
    assert (done.returncode, "Blessed: it is out/model_served/1 now." in done.stdout) == (0, True), done.stderr
    done = trellis("run", *FLAGS, rules, '--custom_config={"w": 9}')
    assert (done.returncode, "is worse than the" in done.stdout) == (3, True), done.stderr
    assert json.loads(Path("out/model_run/blessing.json").read_text())["is_blessed"] is False
    assert [path.name for path in Path("out/model_served").glob("[0-9]*")] == ["1"]
    done = trellis("run", *FLAGS, "--bless=mae,label=kind,slice=kid")
    assert (done.returncode, "Did you mean 'kind'" in done.stderr) == (2, True), done.stderr
