"""Runs, data and models at addresses: fetched as copies, sent whole, resumed to the bit."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trellis
from tests import tiny
from tests.object_store import ObjectStore, store
from tests.trainer import small
from trellis.cli import main
from trellis.data import RecordWriter, encode_example, find_files, read_columns, read_records
from trellis.errors import ArgumentError, DataError, DirectoryTakenError, ExitCode, FileWriteError
from trellis.experiments import plan_experiment
from trellis.extensions import checkpoint_storage
from trellis.loops import CLOCKED_METRICS
from trellis.remote import fetched, working_directory
from trellis.tasks.configs import with_addresses, with_copies

__all__ = ["store"]
RUN = "gs://bucket/runs/small"
BEST = {"best_checkpoint_export_subdir": "best", "best_checkpoint_eval_metric": "accuracy"}


def run(model_dir: str | Path, n_steps: int = 20, mode: str = "train_and_eval", **options: Any) -> Any:
    return trellis.run_experiment(small.params(n_steps, **BEST), mode=mode, model_dir=model_dir, **options)


def remains(directory: Path) -> dict[str, Any]:
    """What a run leaves: its checkpoint files with all arrays, and its metrics by step."""
    arrays = {}
    for manifest in sorted(directory.rglob("manifest.json")):
        tree = checkpoint_storage.read_manifest(manifest.parent)["tree"]
        for name, array in checkpoint_storage.read_arrays(manifest.parent, tree).items():
            arrays[f"{manifest.parent.relative_to(directory)}/{name}"] = array.tobytes()
    events = [json.loads(line) for line in (directory / "events.jsonl").read_text().splitlines()]
    summaries = [
        (event["step"], group, name, value)
        for event in events
        for group, metrics in event.get("metrics", {}).items()
        for name, value in metrics.items()
        if name not in CLOCKED_METRICS
    ]
    return {"arrays": arrays, "summaries": summaries, "best": (directory / "best" / "info.json").read_bytes()}


def remains_at(address: str) -> dict[str, Any]:
    with working_directory(address, name="model_dir", writes=False) as directory:
        return remains(directory)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a run on a disk leaves that nobody has killed."""
    directory = tmp_path_factory.mktemp("undisturbed")
    run(directory)
    return remains(directory)


def test_a_run_at_an_address_leaves_what_one_on_a_disk_does(store: ObjectStore, undisturbed: dict[str, Any]) -> None:
    run(RUN)
    assert remains_at(RUN) == undisturbed
    names = store.names(RUN)
    assert {"events.jsonl", "params.yaml", "regular_20/manifest.json", "best/info.json"} <= set(names)
    assert any(name.startswith("train/events.out.tfevents.") for name in names)
    assert not [name for name in names if name.startswith(".")]
    assert list(Path("cache/trellis/remote").iterdir()) == []
    assert not Path("cache/trellis/not_sent").exists()


@pytest.mark.parametrize("n_writes", [0, 3, 12, 20, 31, 45, 58])
def test_a_run_that_is_killed_while_it_sends_ends_as_one_that_was_not(
    store: ObjectStore, undisturbed: dict[str, Any], monkeypatch: pytest.MonkeyPatch, n_writes: int
) -> None:
    left = [n_writes]

    def die(name: str) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError("the connection is lost")

    with monkeypatch.context() as patch:
        patch.setattr(ObjectStore, "before_write", staticmethod(die))
        with pytest.raises((FileWriteError, DataError), match="the connection is lost. (The|Check)"):
            run(RUN)
    for name in store.names(RUN):
        if name.endswith("manifest.json"):
            with working_directory(RUN, name="model_dir", writes=False) as directory:
                checkpoint_storage.read_manifest((directory / name).parent)
    run(RUN)
    assert remains_at(RUN) == undisturbed


def test_what_is_not_sent_is_kept_and_told_of(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        if name.endswith("regular_20/manifest.json"):
            raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(ObjectStore, "before_write", staticmethod(refuse))
    with pytest.raises(
        FileWriteError, match=f"`{RUN}` could not be written: Permission denied. The checkpoint"
    ) as failure:
        run(RUN)
    (note,) = failure.value.__notes__
    kept = Path(note.split("`")[3])
    assert (kept / "regular_20" / "manifest.json").is_file()


def test_a_manifest_is_put_last_and_deleted_first_and_a_run_resumes_from_what_comes_last(store: ObjectStore) -> None:
    run(RUN, n_steps=40)
    root = "bucket/runs/small"
    calls = [(word, name.removeprefix(f"{root}/")) for word, name in store.calls if word != "get"]
    manifest = calls.index(("put", "regular_5/manifest.json"))
    parts = [i for i, (word, name) in enumerate(calls) if name.startswith("regular_5/arrays") and word == "put"]
    assert parts and max(parts) < manifest
    assert calls.index(("put", "events.jsonl")) < min(parts)
    best = [i for i, (word, name) in enumerate(calls) if word == "put" and name.startswith("best/") and i < manifest]
    assert best and max(best) < min(parts)
    removed = [i for i, (word, name) in enumerate(calls) if name.startswith("regular_5/") and word == "delete"]
    assert calls[removed[0]] == ("delete", "regular_5/manifest.json")


def test_the_last_to_start_owns_an_address_and_the_one_before_it_ends(
    store: ObjectStore, capsys: pytest.CaptureFixture[str]
) -> None:
    class Start:
        def __call__(self, checkpoint: Any) -> Any:
            if checkpoint.step == 10:
                with working_directory(RUN, name="model_dir", writes=True):
                    pass
            return checkpoint

    with pytest.raises(
        DirectoryTakenError, match=f"`{RUN}` belongs to nobody: its owner was removed. This process has"
    ):
        run(RUN, extensions=[Start()])
    assert f"`{RUN}` belongs to process " in capsys.readouterr().err
    assert "regular_15/manifest.json" not in store.names(RUN)


def test_an_evaluation_leaves_a_run_alone_that_has_an_owner(
    store: ObjectStore, capsys: pytest.CaptureFixture[str]
) -> None:
    run(RUN, mode="train")
    before = dict(store.objects)
    with working_directory(RUN, name="model_dir", writes=True):
        run(RUN, mode="eval")
        assert {name: content for name, content in store.objects.items() if ".owner" not in name} == before
    assert "This process leaves what is there as it is." in capsys.readouterr().err
    run(RUN, mode="eval")
    assert [name for name in store.names(RUN) if name.startswith("validation/")]


def test_a_plan_of_a_run_at_an_address_fetches_no_arrays_and_writes_nothing(store: ObjectStore) -> None:
    run(RUN, n_steps=10)
    store.calls.clear()
    plan = plan_experiment(small.params(20, **BEST), mode="train_and_eval", model_dir=RUN)
    assert plan.problems == []
    assert "resumes from" in plan.report or "step 10" in plan.report
    assert {word for word, _ in store.calls} == {"get"}
    assert not [name for _, name in store.calls if "/arrays/" in name]


def test_a_run_starts_from_a_checkpoint_at_an_address_and_notes_the_address(store: ObjectStore, tmp_path: Path) -> None:
    run(RUN, n_steps=10)
    params = small.params(5, task={"init_checkpoint": f"{RUN}/regular_10"})
    model, _ = trellis.run_experiment(params, mode="train", model_dir=tmp_path / "warm")
    assert f"init_checkpoint: {RUN}/regular_10" in (tmp_path / "warm" / "params.yaml").read_text()
    run(tmp_path / "local", n_steps=10)
    params = small.params(5, task={"init_checkpoint": str(tmp_path / "local" / "regular_10")})
    same, _ = trellis.run_experiment(params, mode="train", model_dir=tmp_path / "same")
    tiny.assert_equal(tiny.arrays(model.params), tiny.arrays(same.params))


def test_data_is_read_from_an_address_and_fetched_again_only_if_it_has_changed(
    store: ObjectStore, tmp_path: Path
) -> None:
    for part in range(2):
        with RecordWriter(tmp_path / "data" / f"{part}.tfrecord") as writer:
            writer.write(encode_example({"x": [part]}))
    store.upload(tmp_path / "data", "gs://bucket/data")
    pattern = "gs://bucket/data/*.tfrecord"
    files = find_files(pattern)
    assert [file.name for file in files] == ["0.tfrecord", "1.tfrecord"]
    assert np.asarray(read_columns(pattern)["x"]).ravel().tolist() == [0, 1]
    assert len(list(read_records("gs://bucket/data/0.tfrecord"))) == 1
    with pytest.raises(DataError, match="No file matches"):
        find_files("gs://bucket/data/*.jsonl")
    with pytest.raises(DataError, match="no such file"):
        find_files("gs://bucket/data/2.tfrecord")
    # Another process looks again.
    for expected in (0, 1):
        fetched.__globals__["_fetch_once"].cache_clear()
        store.calls.clear()
        assert find_files(pattern) == files
        assert len([name for word, name in store.calls if word == "get"]) == expected
        store.put_file(str(tmp_path / "data" / "1.tfrecord"), "gs://bucket/data/0.tfrecord")
    fetched.__globals__["_fetch_once"].cache_clear()
    store.rm_file("gs://bucket/data/0.tfrecord")
    assert [file.name for file in find_files(pattern)] == ["1.tfrecord"]


def test_the_command_trains_evaluates_exports_and_serves_at_addresses(
    store: ObjectStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store.pipe_file("gs://bucket/short.yaml", b"trainer: {train_steps: 20, checkpoint_interval: 10}\n")
    experiment = ["--experiment=digits/classifier", "--config_file=gs://bucket/short.yaml"]
    assert main.main(["train", *experiment, f"--model_dir={RUN}"]) == 0
    out = capsys.readouterr().out
    assert f"It writes to {RUN}, and resumes from there if it is interrupted.\n" in out
    assert f"The best:   {RUN}/best/highest_eval_accuracy_20\nAll of it:  {RUN}\n" in out
    assert main.main(["train", *experiment, f"--model_dir={RUN}", "--mode=eval"]) == 0
    served = "gs://bucket/served/digits"
    assert main.main(["export", *experiment[:1], f"--model_dir={RUN}", f"--output_dir={served}"]) == 0
    assert f"Written to:  {served}\n" in capsys.readouterr().out
    puts = [name for word, name in store.calls if word == "put" and name.startswith("bucket/served")]
    assert puts[-1] == "bucket/served/digits/manifest.json"
    assert trellis.load_model(served)(np.zeros((3, 64), np.float32)).shape == (3, 10)
    assert main.main(["export", *experiment[:1], f"--model_dir={RUN}", f"--output_dir={served}"]) == ExitCode.BAD_INPUT
    assert f"--output_dir `{served}` is there already and not empty." in capsys.readouterr().err


def test_an_address_is_refused_where_files_are_followed_or_shared(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ArgumentError, match="but mode 'continuous_eval' follows files, which takes a path. Mount what"):
        run(RUN, mode="continuous_eval")
    params = small.params(5, task={"init_checkpoint": RUN})
    with pytest.raises(ArgumentError, match="task.init_checkpoint is `gs://bucket/runs/small`."):
        trellis.run_experiment(params, mode="continuous_train_and_eval", model_dir=tmp_path / "run")
    monkeypatch.setattr("jax.process_count", lambda: 2)
    with pytest.raises(ArgumentError, match="but 2 processes share files, which takes a path. Mount what holds it."):
        run(RUN)
    assert store.objects == {}


@pytest.mark.parametrize(
    ("address", "advice"),
    [
        ("s3://bucket/run", "s3:// needs the package s3fs, which is not installed: pip install 'trellis-jax[remote]'."),
        ("az://box/run", "az:// needs the package adlfs, which is not installed: pip install 'trellis-jax[remote]'."),
        ("oss://box/run", "oss:// needs the package ossfs, which is not installed: pip install ossfs."),
        ("memory://box/../run", "Write it without `..`: a store of objects has no folders to go up from."),
        ("nowhere://box/run", "nowhere:// is none of them: copy it here, or mount what holds it"),
    ],
)
def test_an_address_without_its_package_is_refused_before_anything_is_written(
    address: str, advice: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for word in ("plan", "train"):
        assert main.main([word, "--experiment=digits/classifier", f"--model_dir={address}"]) == ExitCode.BAD_INPUT
        shown = capsys.readouterr().err
        assert f"--model_dir is `{address}`. " in shown and advice in shown
    assert list(tmp_path.iterdir()) == []


def test_an_address_with_a_server_or_three_slashes_is_itself_again_in_the_config_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("one\n")
    address = f"local://{tmp_path}/data/*.txt"
    config = trellis.TaskConfig(train_data={"input_path": address})
    copied = with_copies(config)
    assert [file.read_text() for file in find_files(copied.train_data.input_path)] == ["one\n"]
    assert with_addresses(copied).train_data.input_path == address
    assert config.train_data.input_path == address
