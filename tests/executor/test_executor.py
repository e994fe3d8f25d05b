"""What a run is given, what it must leave, and what is told when something is wrong."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.cli.command import environment
from tests.executor.pipeline import SCHEMA, do, files_below, seen_fn_args, write_examples, write_module
from trellis.errors import ArgumentError, DataError, ModelRefusedError, RunFailedError
from trellis.executor import Artifact, Examples, Model

MODEL = Path("out/model/Format-Serving")


def one_file(folder: str, *, name: str, text: str) -> Artifact:
    """An artifact with one file."""
    Path(folder).mkdir(parents=True)
    Path(folder, name).write_text(text)
    return Artifact(folder)


def test_a_module_runs_and_its_model_is_there() -> None:
    write_module()
    do()
    assert files_below("out") == ["model/Format-Serving/model.pkl"]


def test_every_published_field_is_filled_by_the_published_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("base/Format-Serving/export/taxi/1646034756").mkdir(parents=True)
    inputs = {
        "schema": [one_file("schema", name="schema.pbtxt", text=SCHEMA)],
        "transform_graph": [Artifact("graph")],
        "base_model": [Model("base")],
        "hyperparameters": [one_file("tuned", name="best.txt", text='{"rate": 0.1}')],
    }
    train_args = '{"num_steps": 1000}'
    seen = seen_fn_args(monkeypatch, inputs=inputs, train_args=train_args, custom_config='{"test": 10}')
    assert repr(seen.num_examples) == "{'eval': Ellipsis, 'train': Ellipsis}"
    assert seen.num_examples == {"train": 5, "eval": 5}
    assert repr(seen.num_examples) == "{'eval': 5, 'train': 5}"
    paths_and_settings = {
        name: value for name, value in vars(seen).items() if name not in ("data_accessor", "num_examples")
    }
    # The model is written beside the old one, which stays until it is whole.
    directory = Path(seen.serving_model_dir).parent
    assert directory.parent == Path("out/model")
    assert directory.name.startswith(".")
    assert paths_and_settings == {
        "working_dir": None,
        "train_files": ["data/Split-train/*"],
        "eval_files": ["data/Split-eval/*"],
        "train_steps": 1000,
        "eval_steps": None,
        "schema_path": "schema/schema.pbtxt",
        "schema_file": "schema/schema.pbtxt",
        "transform_graph_path": "graph",
        "transform_output": "graph",
        "serving_model_dir": f"{directory}/Format-Serving",
        "eval_model_dir": f"{directory}/Format-TFMA",
        "model_run_dir": "out/run",
        "base_model": "base/Format-Serving/export/taxi/1646034756",
        "hyperparameters": {"rate": 0.1},
        "custom_config": {"test": 10},
    }


def test_splits_are_the_outer_and_artifacts_the_inner_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("one", "two"):
        write_examples(Path(folder), splits=("Split-a", "Split-b", "Split-eval"))
    inputs = {"examples": [Examples("one"), Examples("two/", split_names=("a", "b", "eval"))]}
    seen = seen_fn_args(monkeypatch, inputs=inputs, train_args={"splits": ["a", "b"]})
    assert seen.train_files == ["one/Split-a/*", "two/Split-a/*", "one/Split-b/*", "two/Split-b/*"]
    assert seen.num_examples["a"] == 10


def test_the_old_layout_of_examples_and_models_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    write_examples(Path("old"), splits=("train", "eval"))
    Path("base/serving_model_dir").mkdir(parents=True)
    seen = seen_fn_args(monkeypatch, inputs={"examples": [Examples("old")], "base_model": [Model("base")]})
    assert (seen.train_files, seen.eval_files) == (["old/train/*"], ["old/eval/*"])
    assert seen.base_model == "base/serving_model_dir"


def test_the_artifacts_of_another_pipeline_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = SimpleNamespace(uri="data", split_names='["train", "eval"]', get_string_custom_property=lambda name: "")
    outputs = {"model": [SimpleNamespace(uri="out/model")], "model_run": [SimpleNamespace(uri="out/run")]}
    assert seen_fn_args(monkeypatch, inputs={"examples": [theirs]}, outputs=outputs).train_files == [
        "data/Split-train/*"
    ]


@pytest.mark.parametrize("train_args", [{"numSteps": 7}, '{"num_steps": "7"}', {"num_steps": 7.0}])
def test_steps_are_read_in_every_published_spelling(monkeypatch: pytest.MonkeyPatch, train_args: Any) -> None:
    assert seen_fn_args(monkeypatch, train_args=train_args).train_steps == 7


def test_a_field_that_does_not_exist_is_said_to_have_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.warns(UserWarning, match="train_args: the field 'num_step' has no effect. Did you mean 'num_steps'?"):
        assert seen_fn_args(monkeypatch, train_args={"num_step": 7}).train_steps is None


@pytest.mark.parametrize("custom_config", [{"a": 1}, '{"a": 1}'])
def test_custom_config_is_a_mapping_or_its_text(monkeypatch: pytest.MonkeyPatch, custom_config: Any) -> None:
    assert seen_fn_args(monkeypatch, custom_config=custom_config).custom_config == {"a": 1}


@pytest.mark.parametrize(("custom_config", "expected"), [("", None), ("null", None), ([], []), (None, None)])
def test_an_empty_custom_config_passes_as_it_is(
    monkeypatch: pytest.MonkeyPatch, custom_config: Any, expected: Any
) -> None:
    assert seen_fn_args(monkeypatch, custom_config=custom_config).custom_config == expected


def test_statistics_spare_the_counting(monkeypatch: pytest.MonkeyPatch) -> None:
    for split, n in (("train", 234), ("eval", 100)):
        Path(f"statistics/Split-{split}").mkdir(parents=True)
        # One data set (field 1) of eight bytes or less: a name (field 1), and the number of examples (field 2).
        inner = b"\x0a\x01x\x10" + (bytes([n & 0x7F | 0x80, n >> 7]) if n > 127 else bytes([n]))
        Path(f"statistics/Split-{split}/FeatureStats.pb").write_bytes(b"\x0a" + bytes([len(inner)]) + inner)
    seen = seen_fn_args(monkeypatch, inputs={"statistics": [Artifact("statistics")]})
    assert dict(seen.num_examples) == {"eval": 100, "train": 234}


@pytest.mark.parametrize("content", [b"\x0a\x7f", b"\x08\x01"])
def test_statistics_that_are_none_are_told(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    Path("statistics/Split-train").mkdir(parents=True)
    Path("statistics/Split-train/FeatureStats.pb").write_bytes(content)
    seen = seen_fn_args(monkeypatch, inputs={"statistics": [Artifact("statistics")]})
    with pytest.raises(DataError, match="FeatureStats.pb holds no statistics of examples .*Leave `statistics` out"):
        _ = seen.num_examples["train"]
    assert seen.num_examples["eval"] == 5


# Every situation of the published table of errors, with its message here.
ERRORS: list[tuple[dict[str, Any], str]] = [
    (
        {"module_file": None},
        "The run needs one of module_file, module_path, run_fn (or trainer_fn), but none of them is given.",
    ),
    ({"run_fn": "a.b"}, "but module_file='my_module.py', run_fn='a.b' are given"),
    ({"module_path": "a", "run_fn": "a.b"}, "but module_file='my_module.py', module_path='a', run_fn='a.b' are given"),
    ({"module_file": "my_modul.py"}, "module_file: there is no file `my_modul.py`. Did you mean `my_module.py`?"),
    (
        {"module_file": None, "module_path": "no_such.thing"},
        "module_path: `no_such.thing` cannot be imported: ModuleNotFoundError",
    ),
    ({"run_fn": "train", "trainer_fn": "fit"}, "run_fn='train', trainer_fn='fit' are given"),
    (
        {"module_file": None, "run_fn": "run_fn"},
        "run_fn: 'run_fn' is no dotted path of a function, such as my_package.my_module.run_fn, and no module_file is",
    ),
    ({"module_file": None, "run_fn": "json.dmps"}, "run_fn: `json` has no 'dmps'. Did you mean `json.dumps`?"),
    ({"custom_config": "[1]"}, "custom_config: it is the list [1]. Give a mapping, or its JSON text"),
    ({"custom_config": "{'a': 1}"}, "custom_config: \"{'a': 1}\" is no JSON: "),
    ({"train_args": None}, "train_args: it is missing. Give exec_properties['train_args'], such as"),
    ({"eval_args": "7"}, "eval_args: it is 7. Give a mapping, or its JSON text"),
    ({"train_args": {"num_steps": "many"}}, "train_args: num_steps is 'many'. Give a whole number; 0 leaves it"),
    ({"train_args": {"num_steps": "--5"}}, "train_args: num_steps is '--5'. Give a whole number; 0 leaves it"),
    ({"train_args": {"num_steps": -1}}, "train_args: num_steps is -1. Give 0, which leaves it to the run_fn, or more."),
    ({"train_args": {"splits": "train"}}, "train_args: splits is 'train'. Give a list of names, such as ['train']."),
    (
        {"train_args": {"splits": ["trian"]}},
        "examples: there is no split 'trian' in `data`. Did you mean 'train'? Its splits are eval, train;",
    ),
    ({"inputs": {"examples": []}}, "input_dict['examples'] is missing or empty: give at least one"),
    ({"inputs": {"examples": None}}, "input_dict['examples'] is missing or empty: give at least one"),
    ({"inputs": {"examples": None, "example": []}}, "input_dict['example'] means nothing. Did you mean 'examples'?"),
    ({"inputs": {"examples": [Examples("nowhere")]}}, "examples: there is no directory `nowhere`."),
    ({"inputs": {"examples": "data"}}, "examples: 'data' is no list. Artifacts come in lists"),
    (
        {"inputs": {"examples": ["data"]}},
        "examples: 'data' is no artifact. Give a list of objects with a uri, such as Ex",
    ),
    (
        {"inputs": {"examples": [Examples("data"), Examples("data", payload_format="FORMAT_PROTO")]}},
        "examples: `data` has FORMAT_TF_EXAMPLE, `data` has FORMAT_PROTO. Give artifacts of one payload format.",
    ),
    (
        {"inputs": {"schema": [Artifact("a"), Artifact("b")]}},
        "schema: one artifact is needed, but 2 are given: a, b.",
    ),
    ({"outputs": {"model_run": None}}, "output_dict['model_run'] is missing or empty: give one, such as [ModelRun("),
    ({"outputs": {"model": []}}, "output_dict['model'] is missing or empty: give one, such as [Model('out/model')]"),
    ({"inputs": {"schema": [Artifact("two_files")]}}, "schema: `two_files` holds 2 files: a, b. Leave the one"),
    ({"inputs": {"hyperparameters": [Artifact("two_files")]}}, "hyperparameters: `two_files` holds 2 files: a, b."),
    ({"inputs": {"hyperparameters": [Artifact("two_files/a")]}}, "hyperparameters: `two_files/a` is no JSON: "),
    ({"inputs": {"base_model": [Model("nowhere")]}}, "base_model: there is no directory `nowhere`."),
    ({"inputs": {"base_model": [Model("out/model")]}}, "model and base_model are both `out/model`: what is read would"),
    ({"outputs": {"model": [Model("two_files/a/model")]}}, "model: `two_files/a/model` cannot be written: "),
    (
        {"custom_config": {"trellis_run_args": {"worker": 2}}},
        "trellis_run_args has no field 'worker'. Did you mean 'wor",
    ),
    ({"custom_config": {"trellis_run_args": {"workers": 0}}}, "workers is 0. Give a whole number, 1 or more."),
    ({"custom_config": {"trellis_run_args": {"timeout": "1h"}}}, "timeout is '1h'. Give the seconds that the run may"),
    (
        {"custom_config": {"trellis_run_args": {"worker_timeout": 0}}},
        "worker_timeout is 0. Give the seconds that a wor",
    ),
    *(
        ({"custom_config": {"trellis_run_args": {"model_files": files}}}, f"model_files is {files!r}. Give a list of")
        for files in ("a.cbm", 3, [""], ["/tmp/a"], ["../a"])
    ),
]


@pytest.mark.parametrize(("arguments", "message"), ERRORS, ids=[message[:40] for _, message in ERRORS])
def test_what_is_wrong_is_told_before_the_run(arguments: dict[str, Any], message: str) -> None:
    write_module()
    Path("two_files").mkdir()
    for name in ("a", "b"):
        Path("two_files", name).write_text("text")
    with pytest.raises(ArgumentError) as caught:
        do(**arguments)
    assert message in str(caught.value)
    assert files_below(".").count("out/model/Format-Serving/model.pkl") == 0


def test_a_split_that_one_of_several_artifacts_lacks_is_told_with_the_artifact() -> None:
    write_module()
    write_examples(Path("one"))
    write_examples(Path("two"), splits=("Split-train",))
    with pytest.raises(ArgumentError, match="examples: there is no split 'eval' in `two`. Its splits are train;"):
        do(inputs={"examples": [Examples("one"), Examples("two")]})


def test_all_problems_are_told_at_once() -> None:
    write_module("def run(fn_args): ...")
    with pytest.raises(ArgumentError) as caught:
        do(train_args={"num_steps": "x"}, inputs={"schema": [Artifact("nowhere")]}, outputs={"model": []})
    text = str(caught.value)
    assert text.startswith("4 problems before the run\n\n")
    for part in (
        "num_steps is 'x'",
        "schema: there is no directory",
        "output_dict['model']",
        "has no run_fn. Did you mean",
    ):
        assert part in text


def test_a_split_of_empty_files_is_found() -> None:
    write_module()
    for split in ("train", "eval"):
        Path(f"data/Split-{split}").mkdir(parents=True)
    Path("data/Split-train/data.gz").touch()
    with pytest.raises(ArgumentError) as caught:
        do()
    assert "`data/Split-train` has 1 empty files" in str(caught.value)
    assert "`data/Split-eval` has no files" in str(caught.value)


@pytest.mark.parametrize(
    ("body", "content"),
    [
        ("pass", "it does not exist"),
        ("os.makedirs(fn_args.serving_model_dir)", "it is empty"),
        (
            "os.makedirs(fn_args.serving_model_dir); Path(fn_args.serving_model_dir, 'a.txt').touch()",
            r"a.txt \(0 bytes\)",
        ),
        (
            "Path(fn_args.serving_model_dir).touch()",
            "it is a file",
        ),
    ],
)
def test_a_run_that_leaves_no_model_is_an_error_that_names_what_was_found(body: str, content: str) -> None:
    write_module(f"import os\nfrom pathlib import Path\n\ndef run_fn(fn_args):\n    {body}\n")
    with pytest.raises(
        ModelRefusedError, match=rf"no model in fn_args.serving_model_dir, `out/model/\S+/Format-Serving`: {content}"
    ):
        do()
    assert files_below("out/model") == []


def test_what_a_run_fn_raises_comes_out_as_it_is_with_its_place() -> None:
    write_module("def run_fn(fn_args):\n    raise KeyError('learning_rate')\n")
    with pytest.raises(KeyError, match="learning_rate") as caught:
        do()
    assert caught.value.__notes__ == ["That was in run_fn of my_module.py."]


def test_a_failed_run_leaves_no_half_model_and_the_one_before_it_is_there_again() -> None:
    write_module()
    do()
    write_module(
        """
        from pathlib import Path

        def run_fn(fn_args):
            Path(fn_args.serving_model_dir).mkdir()
            Path(fn_args.serving_model_dir, "half.txt").write_text("half")
            Path(fn_args.model_run_dir).mkdir()
            Path(fn_args.model_run_dir, "checkpoint").write_text("kept")
            raise ValueError("out of memory")
        """
    )
    with pytest.raises(ValueError, match="out of memory"):
        do()
    assert files_below("out") == ["model/Format-Serving/model.pkl", "run/checkpoint"]


def test_a_model_of_an_earlier_run_does_not_count_as_that_of_this_one() -> None:
    write_module()
    do()
    write_module("def run_fn(fn_args): ...")
    with pytest.raises(ModelRefusedError, match="it does not exist"):
        do()
    assert files_below("out") == ["model/Format-Serving/model.pkl"]


def test_deleted_inputs_are_put_back_and_the_model_is_set_apart() -> None:
    write_module(
        """
        import glob, os, pickle
        from pathlib import Path

        def run_fn(fn_args):
            Path(fn_args.serving_model_dir).mkdir()
            Path(fn_args.serving_model_dir, "model.pkl").write_bytes(pickle.dumps("trained"))
            for path in glob.glob(fn_args.train_files[0]):
                os.remove(path)
        """
    )
    with pytest.raises(
        ModelRefusedError, match="run_fn has deleted `data/Split-train/data-00000-of-00001.gz`"
    ) as caught:
        do()
    assert "They were put back." in str(caught.value)
    assert caught.value.__notes__ == ["What was written is kept in `out/run/refused_model`."]
    assert files_below(".") == [
        "data/Split-eval/data-00000-of-00001.gz",
        "data/Split-train/data-00000-of-00001.gz",
        "my_module.py",
        "out/run/refused_model/model.pkl",
    ]


def test_a_changed_base_model_is_told() -> None:
    Path("base/Format-Serving").mkdir(parents=True)
    Path("base/Format-Serving/weights").write_text("old")
    write_module(
        """
        from pathlib import Path

        def run_fn(fn_args):
            Path(fn_args.base_model, "weights").write_text("newer")
            1 / 0
        """
    )
    with pytest.raises(ZeroDivisionError) as caught:
        do(inputs={"base_model": [Model("base")]})
    assert any("has changed `base/Format-Serving/weights`" in note for note in caught.value.__notes__)


def test_an_exit_without_error_is_a_return_and_any_other_a_failure() -> None:
    module = write_module()
    module.write_text(module.read_text() + "    raise SystemExit(0)\n")
    do()
    assert MODEL.is_dir()
    write_module("import sys\n\ndef run_fn(fn_args):\n    sys.exit('no data')\n")
    with pytest.raises(
        RunFailedError, match=r"run_fn of my_module.py has called exit\('no data'\) instead of returning"
    ):
        do()


def test_the_executor_loads_neither_jax_nor_tensorflow_nor_numpy() -> None:
    write_examples(Path("data"))
    write_module()
    program = (
        "import sys; from trellis.executor import *\n"
        "Executor().Do({'examples': [Examples('data')]}, {'model': [Model('out')], 'model_run': [ModelRun('run')]},"
        " {'module_file': 'my_module.py', 'train_args': {}, 'eval_args': {}})\n"
        "print(sorted({'jax', 'flax', 'tensorflow', 'numpy', 'keras', 'absl'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.stdout == "[]\n", done.stderr


def test_reading_batches_loads_numpy_but_not_jax() -> None:
    write_examples(Path("data"))
    program = (
        "import sys; from trellis.executor import DataAccessor, RecordBatchesOptions\n"
        "batch = next(DataAccessor().numpy_factory('data/Split-train/*', RecordBatchesOptions(batch_size=2)))\n"
        "print(sorted({'jax', 'flax', 'tensorflow', 'numpy'} & set(sys.modules)), batch['size'].shape)"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.stdout == "['numpy'] (2, 1)\n", done.stderr
