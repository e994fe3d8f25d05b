"""The law of addresses: what cannot be reached is refused, wherever a path is taken, before anything is written."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fsspec.registry import _registry

import trellis
from tests import tiny
from trellis.bridges import read_hugging_face
from trellis.cli import main
from trellis.cli.parser import Parser
from trellis.cli.train import add_flags
from trellis.data import Columns, ColumnsWriter, RecordWriter, find_files, read_records
from trellis.errors import ArgumentError, DataError, ExitCode
from trellis.executor import Examples, Executor, Model, ModelRun
from trellis.experiments import get_exp_config, plan_experiment, resolve
from trellis.experiments.overrides import read_params
from trellis.nlp.data import WordPieceTokenizer
from trellis.serving import export_model

ADDRESSES = ["gs://bucket/run", "s3://bucket/run", "hdfs://name/run", "az://box/run", "http://host/run"]
WAY_OUT = re.compile("(copy it here,|mount what holds it,) and give that path")
Take = Callable[[str], object]


def run(address: str) -> object:
    return trellis.run_experiment(get_exp_config("digits/classifier"), mode="train", model_dir=address)


def execute(**uris: str) -> object:
    return Executor().Do(
        {"examples": [Examples(uris.get("examples", "data"))]},
        {"model": [Model(uris.get("model", "out"))], "model_run": [ModelRun("out_run")]},
        {"run_fn": "os.getcwd", "train_args": "{}", "eval_args": "{}"},
    )


LIBRARY: dict[str, Take] = {
    "output_dir": trellis.SummaryWriter,
    "output_dir ": trellis.CheckpointFileWriter,
    "output_dir  ": trellis.EventWriter,
    "output_dir   ": lambda address: trellis.HighestCheckpointFileWriter(address, metric="accuracy"),
    "output_dir    ": lambda address: export_model(address, variables={}, signatures={}),
    "dir": lambda address: trellis.CheckpointFileReader(address, target=tiny.Classifier().init),
    "model_dir": run,
    "model_dir ": lambda address: resolve("digits/classifier", mode="train", model_dir=address),
    "model_dir  ": read_params,
    "model_dir   ": lambda address: plan_experiment(
        get_exp_config("digits/classifier"), mode="train", model_dir=Path(address)
    ),
    "config_file": lambda address: resolve("digits/classifier", config_file=[address]),
    "The directory of a served model": trellis.load_model,
    "path": lambda address: next(read_records(address)),
    "path ": RecordWriter,
    "directory": ColumnsWriter,
    "directory ": Columns.open,
    "directory  ": read_hugging_face,
    "A path of data": find_files,
    "vocab_file": WordPieceTokenizer,
    "The uri of examples": lambda address: execute(examples=address),
    "The uri of model": lambda address: execute(model=address),
}


@pytest.fixture(autouse=True)
def _no_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has nothing reach another machine, whatever is installed here."""
    monkeypatch.setenv("XDG_CACHE_HOME", f"{tmp_path}-cache")
    for scheme in set(_registry) - {"file", "local"}:
        monkeypatch.delitem(_registry, scheme)
    for package in ("gcsfs", "s3fs", "adlfs", "aiohttp"):
        monkeypatch.setitem(sys.modules, package, None)


@pytest.mark.parametrize("name", LIBRARY)
def test_an_address_is_refused_by_whatever_takes_a_path(name: str, tmp_path: Path) -> None:
    for address in ADDRESSES:
        with pytest.raises((ArgumentError, DataError)) as refusal:
            LIBRARY[name](address)
        assert f"{name.rstrip()} is `{address}`" in str(refusal.value)
        assert WAY_OUT.search(str(refusal.value))
    assert list(tmp_path.iterdir()) == []


FLAGS: dict[str, tuple[str, ...]] = {
    "--model_dir": ("train", "--experiment=digits/classifier"),
    "--model_dir ": ("plan", "--experiment=digits/classifier"),
    "--model_dir  ": ("export", "--experiment=digits/classifier", "--output_dir=served"),
    "--model_dir   ": ("predict", "--text=Yes."),
    "--output_dir": ("export", "--experiment=digits/classifier", "--model_dir=runs"),
    "--config_file": ("config", "show", "--experiment=digits/classifier"),
    "--input_file": ("predict", "--model_dir=runs"),
    "--output_file": ("predict", "--model_dir=runs", "--text=Yes."),
    "--examples": ("run", "--module_file=module.py", "--model=out"),
    "--model": ("run", "--module_file=module.py", "--examples=data"),
    "--output_file ": ("data", "vocabulary", "--input_file=text.txt"),
    "--checkpoint": ("train", "--experiment=digits/classifier", "--model_dir=runs", "--mode=eval"),
}


@pytest.mark.parametrize("name", FLAGS)
def test_an_address_is_refused_by_whatever_flag_takes_a_path(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for address in ADDRESSES:
        assert main.main([*FLAGS[name], f"{name.rstrip()}={address}"]) == ExitCode.BAD_INPUT
        shown = capsys.readouterr().err
        assert f"{name.rstrip()} is `{address}`" in shown
        assert WAY_OUT.search(shown)
    assert list(tmp_path.iterdir()) == []


FIELDS = ["task.init_checkpoint", "task.train_data.input_path", "task.validation_data.input_path"]


@pytest.mark.parametrize("word", ["plan", "train"])
def test_an_address_in_a_config_is_refused_with_its_place(
    word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [word, "--experiment=digits/classifier", "--model_dir=runs"]
    assert main.main([*command, *(f"--set={field}=gs://bucket/{field}" for field in FIELDS)]) == ExitCode.BAD_INPUT
    shown = capsys.readouterr().err
    for field in FIELDS:
        assert f"--set: {field} is `gs://bucket/{field}`." in shown
    assert shown.count("gs:// needs the package gcsfs, which is not installed: pip install") == len(FIELDS)
    assert list(tmp_path.iterdir()) == []


def test_a_flag_that_has_no_effect_or_names_no_path_may_be_an_address() -> None:
    parser = Parser("train", "train")
    add_flags(parser)
    addresses = ["--tflex_output_uri=gs://bucket/run", "--tfhub_cache_dir=gs://bucket/hub"]
    flags = parser.read([*addresses, "--model_dir=runs", "--set=task.name=gs://bucket"])
    assert flags.tfhub_cache_dir == "gs://bucket/hub"


def test_an_address_of_this_machine_is_a_path(tmp_path: Path) -> None:
    directory = tmp_path / "a b"
    trellis.SummaryWriter(f"file://{tmp_path}/a%20b")
    assert directory.is_dir()
    with RecordWriter(f"file://localhost{directory}/a.tfrecord") as writer:
        writer.write(b"one")
    assert list(read_records(f"file:{directory}/a.tfrecord")) == [b"one"]
    assert find_files(f"file://{tmp_path}/a%20b/*.tfrecord") == [directory / "a.tfrecord"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a b"]
