"""Checkpoint files: found again by their reader, whole or not at all, and errors that are not lost."""

import dataclasses
import errno
import gc
import json
import logging
import os
import shutil
import signal
import sys
import weakref
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.traverse_util import unflatten_dict

import trellis
from tests import tiny
from trellis import disk
from trellis.errors import ArgumentError, CheckpointFileError, CheckpointMismatchError, FileWriteError
from trellis.extensions import checkpoint_storage
from trellis.loops import Session, finish_saves
from trellis.runtime.random import quick_key

GOLDEN = Path(__file__).parents[1] / "golden"


def names(directory: Path) -> list[str]:
    """The files in a directory, by name."""
    return sorted(path.name for path in directory.iterdir() if path.name != ".lock")


def reader(directory: Path, **options: Any) -> trellis.CheckpointFileReader:
    """A reader for the tiny model."""
    return trellis.CheckpointFileReader(dir=directory, target=tiny.Classifier().init, **options)


def train(directory: Path, n_steps: int, **options: Any) -> trellis.TrainLoop:
    """Trains up to a step with files at every second one; run again it resumes."""
    arguments: dict[str, Any] = {"init": reader(directory), "n_steps": n_steps, "n_steps_per_checkpoint": 2} | options
    loop = tiny.train_loop(**arguments)
    writer = trellis.CheckpointFileWriter(output_dir=directory)
    for checkpoint in loop:
        writer(checkpoint)
    return loop


def test_a_checkpoint_comes_back_as_it_was(tmp_path: Path) -> None:
    written = tiny.checkpoint(step=7, eval={"loss": 1.5}, position={"n_batches": 7})
    trellis.CheckpointFileWriter(output_dir=tmp_path / "new" / "dir")(written)
    assert names(tmp_path / "new" / "dir") == ["regular_7"]
    shapes = jax.eval_shape(lambda: trellis.TrainState(0, written.model_params, {}, written.optimizer_state))
    checkpoint = reader(tmp_path / "new" / "dir")(trellis.Checkpoint.of(shapes, step=0))
    tiny.assert_equal(checkpoint.model_params, jax.tree.map(np.asarray, written.model_params))
    tiny.assert_equal(checkpoint.optimizer_state, jax.tree.map(np.asarray, written.optimizer_state))
    assert (checkpoint.step, checkpoint.position) == (7, {"n_batches": 7})


def test_every_kind_of_leaf_comes_back(tmp_path: Path) -> None:
    params = {
        "half": jnp.ones((2, 3), jnp.bfloat16) / 3,
        "bool": jnp.array([True, False]),
        "scalar": jnp.float32(1.5),
        "empty": jnp.zeros((0, 4)),
        "bytes": jnp.arange(3, dtype=jnp.uint8),
        "a/b.c d": jnp.ones(2),
        "key": jax.random.key(3),
    }
    state = trellis.TrainState(0, params, {"list": [jnp.ones(1), (jnp.zeros(2),)]}, ())
    trellis.CheckpointFileWriter(output_dir=tmp_path)(trellis.Checkpoint.of(state, step=1))
    checkpoint = reader(tmp_path)(trellis.Checkpoint.of(jax.eval_shape(lambda: state), step=0))
    data = {**params, "key": jax.random.key_data(params["key"])}
    back = {**checkpoint.model_params, "key": jax.random.key_data(checkpoint.model_params["key"])}
    tiny.assert_equal(back, jax.tree.map(np.asarray, data))
    assert back["half"].dtype == jnp.bfloat16
    tiny.assert_equal(checkpoint.model_state, jax.tree.map(np.asarray, state.model_state))


class Keyed(nn.Module):
    """Draws its noise from a key in its own state."""

    seed: Any = None

    @nn.compact
    def __call__(self, x: Any) -> Any:
        """Logits of four classes."""
        key = self.variable("noise", "key", lambda: self.seed)
        if not self.is_initializing():
            key.value, fresh = jax.random.split(key.value)
            x = x + jax.random.normal(fresh, x.shape)
        return nn.Dense(4)(x)


KEYS = {impl: jax.random.key(3, impl=impl) for impl in ("threefry2x32", "rbg", "unsafe_rbg")}
KEYS["quick"] = quick_key(KEYS["threefry2x32"])


def train_keyed(directory: Path, impl: str, n_steps: int) -> tuple[Any, list[float]]:
    """Trains a model with a key in its state; run again it resumes. Returns the key, and the losses."""
    model = Keyed(KEYS[impl])
    init = trellis.CheckpointFileReader(dir=directory, target=model.init)
    loop = tiny.train_loop(tiny.train_task(model), init=init, n_steps=n_steps, n_steps_per_checkpoint=2)
    writer = trellis.CheckpointFileWriter(output_dir=directory)
    losses, key = [], None
    for checkpoint in loop:
        writer(checkpoint)
        losses.append(checkpoint.loss)
        key = jnp.copy(checkpoint.model_state["noise"]["key"])
    return key, losses


@pytest.mark.parametrize("impl", KEYS)
def test_a_key_in_the_model_state_keeps_its_kind_over_a_resume(tmp_path: Path, impl: str) -> None:
    whole, losses = train_keyed(tmp_path / "whole", impl, 6)
    _, first = train_keyed(tmp_path / "parts", impl, 4)
    resumed, rest = train_keyed(tmp_path / "parts", impl, 6)
    assert first + rest == losses
    assert jax.random.key_impl(resumed) == jax.random.key_impl(whole) == jax.random.key_impl(KEYS[impl])
    tiny.assert_equal(jax.random.key_data(resumed), jax.random.key_data(whole))


@pytest.mark.parametrize(("one", "other"), [("rbg", "unsafe_rbg"), ("threefry2x32", "quick"), ("rbg", "threefry2x32")])
def test_a_key_of_another_kind_is_shown_as_a_difference(tmp_path: Path, one: str, other: str) -> None:
    train_keyed(tmp_path, one, 2)
    message = rf"model_state/noise/key: .*{one}.* in the file, .*{other}.* here"
    with pytest.raises(CheckpointMismatchError, match=message):
        train_keyed(tmp_path, other, 4)


def without_keys(manifest_file: Path) -> None:
    """Turns a manifest into one of the time when the kind of a key was not written down."""
    manifest = json.loads(manifest_file.read_text())["manifest"]
    del manifest["keys"]
    crc = zlib.crc32(json.dumps(manifest, indent=1).encode())
    manifest_file.write_text(json.dumps({"checksum": crc, "manifest": manifest}, indent=1))


@pytest.mark.parametrize("impl", KEYS)
def test_a_file_that_does_not_tell_the_kind_of_a_key_is_resumed(tmp_path: Path, impl: str) -> None:
    whole, losses = train_keyed(tmp_path / "whole", impl, 4)
    train_keyed(tmp_path / "parts", impl, 2)
    without_keys(tmp_path / "parts" / "regular_2" / "manifest.json")
    resumed, rest = train_keyed(tmp_path / "parts", impl, 4)
    assert rest == losses[1:]
    tiny.assert_equal(jax.random.key_data(resumed), jax.random.key_data(whole))


def test_a_reader_that_finds_no_file_gives_the_step_that_it_starts_after(tmp_path: Path) -> None:
    initializer = tiny.checkpoint(step=0)
    checkpoint = reader(tmp_path, after=20)(initializer)
    assert checkpoint.step == 20
    assert checkpoint.model_params is initializer.model_params
    trellis.CheckpointFileWriter(output_dir=tmp_path)(tiny.checkpoint(step=20))
    assert reader(tmp_path, after=20)(initializer).step == 20
    started = tiny.checkpoint(step=20)
    assert reader(tmp_path, after=20)(started) is started
    trellis.CheckpointFileWriter(output_dir=tmp_path)(tiny.checkpoint(step=25))
    assert reader(tmp_path, after=20)(initializer).step == 25


def test_an_absent_or_empty_directory_is_no_checkpoint_and_is_not_made(tmp_path: Path) -> None:
    initializer = tiny.checkpoint(step=0)
    assert reader(tmp_path / "none")(initializer) is initializer
    assert reader(tmp_path)(initializer) is initializer
    assert reader(tmp_path).read() is None
    assert names(tmp_path) == []


def test_a_run_whose_directory_is_away_does_not_begin_anew(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(folder, 4)
    writer = trellis.CheckpointFileWriter(output_dir=folder)
    folder.rename(tmp_path / "away")
    with pytest.raises(FileWriteError, match="was there when this run began, and is away"):
        tiny.train_loop(init=reader(folder), n_steps=6).start()
    (tmp_path / "away").rename(folder)
    loop = tiny.train_loop(init=reader(folder), n_steps=6)
    loop.start()
    assert loop.step == 4
    del writer


def test_the_newest_files_are_kept_in_numeric_order(tmp_path: Path) -> None:
    writer = trellis.CheckpointFileWriter(output_dir=tmp_path, keep=2)
    for step in (8, 9, 10, 100):
        writer(tiny.checkpoint(step=step))
    assert names(tmp_path) == ["regular_10", "regular_100"]


def test_a_checkpoint_is_read_without_a_model(tmp_path: Path) -> None:
    trellis.CheckpointFileWriter(output_dir=tmp_path)(tiny.checkpoint(step=3, train={"loss": 0.25}))
    checkpoint = reader(tmp_path).read()
    assert checkpoint is not None
    assert checkpoint.step == 3
    assert checkpoint.loss == 0.25
    assert checkpoint.model_params["Dense_0"]["kernel"].shape == (3, 2)


class Carry(NamedTuple):
    """What an LSTM hands on."""

    c: Any
    h: Any


@flax.struct.dataclass
class Cell:
    """A state that is no named tuple."""

    memory: Any
    name: str = flax.struct.field(pytree_node=False, default="cell")


def test_a_checkpoint_is_read_with_the_structure_that_was_saved(tmp_path: Path) -> None:
    params = tiny.checkpoint().model_params
    carry = (np.zeros((2, 3), np.float32), [np.ones(2), None], Carry(np.arange(3), {"7": np.arange(2), "a": ()}))
    optimizer = optax.chain(
        optax.clip(1.0), optax.inject_hyperparams(optax.adam)(1e-3), optax.masked(optax.sgd(1.0), True)
    )
    state = {
        "carry": carry,
        "numbers": {7: np.arange(4)},
        "key": jax.random.key(3),
        "cell": Cell(np.arange(5)),
        "no": {},
    }
    written = dataclasses.replace(
        tiny.checkpoint(step=4), model_state=state, optimizer_state=optimizer.init(params), model_params=params
    )
    trellis.CheckpointFileWriter(output_dir=tmp_path)(written)
    checkpoint = reader(tmp_path).read()
    assert checkpoint is not None
    assert jax.tree.structure(checkpoint.optimizer_state) == jax.tree.structure(written.optimizer_state)
    tiny.assert_equal(checkpoint.optimizer_state, written.optimizer_state)
    updates, _ = optimizer.update(params, checkpoint.optimizer_state, params)
    assert jax.tree.structure(updates) == jax.tree.structure(params)
    cell, key = checkpoint.model_state.pop("cell"), checkpoint.model_state.pop("key")
    rest = {name: part for name, part in state.items() if name not in ("cell", "key")}
    assert jax.tree.structure(checkpoint.model_state) == jax.tree.structure(rest)
    assert type(checkpoint.model_state["carry"][2]) is Carry
    tiny.assert_equal(checkpoint.model_state["carry"], carry)
    assert list(checkpoint.model_state["numbers"]) == [7]
    assert jax.random.bits(key) == jax.random.bits(state["key"])
    assert cell._fields == ("memory",) and type(cell).__name__ == "Cell"
    np.testing.assert_array_equal(cell.memory, np.arange(5))


def test_a_class_that_is_not_loaded_or_has_changed_is_read_as_a_named_tuple_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = dataclasses.replace(tiny.checkpoint(step=4), model_state={"carry": Carry(np.zeros(2), np.ones(2))})
    trellis.CheckpointFileWriter(output_dir=tmp_path)(written)
    monkeypatch.delattr(sys.modules[__name__], "Carry")
    checkpoint = reader(tmp_path).read()
    assert checkpoint is not None
    assert repr(checkpoint.model_state["carry"]) == "Carry(c=array([0., 0.]), h=array([1., 1.]))"


def test_a_file_of_an_older_version_that_tells_no_structure_is_read_as_nested_dicts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = dataclasses.replace(tiny.checkpoint(step=4), model_state={"carry": (np.zeros(2), np.ones(2))})
    monkeypatch.setattr(checkpoint_storage, "describe_structure", lambda tree, path: None)
    trellis.CheckpointFileWriter(output_dir=tmp_path)(written)
    file = tmp_path / "regular_4" / "manifest.json"
    manifest = json.loads(file.read_text())["manifest"]
    del manifest["structure"]
    checksum = zlib.crc32(json.dumps(manifest, indent=1).encode())
    file.write_text(json.dumps({"checksum": checksum, "manifest": manifest}, indent=1))
    checkpoint = reader(tmp_path).read()
    assert checkpoint is not None
    assert list(checkpoint.model_state["carry"]) == ["0", "1"]


@pytest.mark.parametrize("n_fused_steps", [1, 10])
def test_a_resumed_run_equals_one_that_was_never_stopped(tmp_path: Path, n_fused_steps: int) -> None:
    model = tiny.Classifier(train=True, dropout_rate=0.3, has_statistics=True)
    target = tiny.Classifier(has_statistics=True).init

    def run(directory: Path, n_steps: int) -> Any:
        loop = tiny.train_loop(
            tiny.train_task(model),
            init=trellis.CheckpointFileReader(dir=directory, target=target),
            collections={"apply": ["dropout"]},
            rnkey=jax.random.key(5),
            n_steps=n_steps,
            n_steps_per_checkpoint=7,
            n_fused_steps=n_fused_steps,
        )
        writer = trellis.CheckpointFileWriter(output_dir=directory)
        return [(c.step, c.loss, tiny.arrays((writer(c).model_params, c.model_state, c.optimizer_state))) for c in loop]

    whole = run(tmp_path / "whole", 28)
    parts = [run(tmp_path / "parts", n) for n in (7, 21, 28)]
    joined = [checkpoint for part in parts for checkpoint in part]
    assert [one[:2] for one in joined] == [one[:2] for one in whole]
    tiny.assert_equal([one[2] for one in joined], [one[2] for one in whole])
    assert names(tmp_path / "parts") == names(tmp_path / "whole") == ["regular_21", "regular_28"]


@pytest.mark.parametrize("kind", ["iterator", "grain"])
def test_the_position_in_the_data_is_saved(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    def data() -> Any:
        if kind == "iterator":
            return tiny.batches()
        import grain

        x, y = tiny.examples()
        pairs = grain.MapDataset.source(list(zip(x, y, strict=True))).seed(3).shuffle().repeat().batch(16)
        return pairs.to_iter_dataset()

    def run(directory: Path, n_steps: int) -> list[float]:
        options: dict[str, Any] = {"init": reader(directory), "n_steps": n_steps, "n_steps_per_checkpoint": 3}
        loop = tiny.train_loop(tiny.train_task(data=data()), **options, stdout=True)
        writer = trellis.CheckpointFileWriter(output_dir=directory)
        return [writer(checkpoint).loss for checkpoint in loop]

    whole = run(tmp_path / "whole", 9)
    assert run(tmp_path / "parts", 3) + run(tmp_path / "parts", 9) == whole
    is_reported = "3 batches of the iterator were read and skipped" in capsys.readouterr().out
    assert is_reported == (kind == "iterator")


def test_restoring_does_not_run_the_model_initialisation(tmp_path: Path) -> None:
    train(tmp_path, 2)
    runs = []

    def init(rngs: Any, x: Any) -> Any:
        jax.debug.callback(lambda: runs.append(1))
        return tiny.Classifier().init(rngs, x)

    tiny.train_loop(init=trellis.CheckpointFileReader(dir=tmp_path, target=init), n_steps=4)
    jax.effects_barrier()
    assert runs == []


def test_a_finished_run_says_so_and_a_longer_one_goes_on(tmp_path: Path) -> None:
    train(tmp_path, 4)
    assert list(train(tmp_path, 4)) == []
    assert train(tmp_path, 6).step == 6


@pytest.mark.parametrize("damage", ["truncated", "deleted", "garbled", "manifest garbled", "manifest gone", "emptied"])
def test_a_damaged_newest_file_is_skipped_with_a_line(
    tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path, 4)
    newest = tmp_path / "regular_4"
    largest = max((path for path in newest.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    hurt(newest, largest, damage)
    loop = tiny.train_loop(init=reader(tmp_path), n_steps=6, stdout=True)
    assert loop.step == 2
    output = capsys.readouterr().out
    assert "Skipping the damaged checkpoint file" in output
    assert str(newest) in output
    assert "regular_2`" in output


@pytest.mark.parametrize("kind", ["a file", "a link to nothing", "an empty directory", "a file of another step"])
def test_what_only_has_the_name_of_a_checkpoint_file_is_set_aside_by_the_run_that_goes_on(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path, 2)
    other = tmp_path / "regular_99"
    if kind == "a file":
        other.write_text("mine")
    elif kind == "a link to nothing":
        other.symlink_to(tmp_path / "gone")
    elif kind == "an empty directory":
        other.mkdir()
    else:
        shutil.copytree(tmp_path / "regular_2", other)
    writer = trellis.CheckpointFileWriter(output_dir=tmp_path)
    for checkpoint in tiny.train_loop(init=reader(tmp_path), n_steps=4, stdout=True):
        writer(checkpoint)
    out = capsys.readouterr().out
    assert f"Skipping the damaged checkpoint file `{other}`" in out
    assert f"`{other}` is set aside as `regular_99.damaged`." in out
    assert {"regular_4", "regular_99.damaged"} <= set(names(tmp_path))


def test_a_file_that_cannot_be_read_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(tmp_path, 4)
    open_file = Path.open

    def refuse(path: Path, *arguments: Any, **options: Any) -> Any:
        if "regular_4" in path.parts:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return open_file(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(CheckpointFileError, match="cannot be read: Permission denied"):
        checkpoint_storage.read_manifest(tmp_path / "regular_4")
    assert reader(tmp_path).find_step() == 2


def hurt(newest: Path, largest: Path, damage: str) -> None:
    """Damages a checkpoint file in one of several ways."""
    if damage == "truncated":
        largest.write_bytes(largest.read_bytes()[:-10])
    elif damage == "deleted":
        largest.unlink()
    elif damage == "garbled":
        data = bytearray(largest.read_bytes())
        data[len(data) // 2] ^= 1
        largest.write_bytes(data)
    elif damage == "manifest garbled":
        manifest = newest / "manifest.json"
        manifest.write_text(manifest.read_text().replace('"step": 4', '"step": 5'))
    elif damage == "manifest gone":
        (newest / "manifest.json").unlink()
    else:
        shutil.rmtree(newest)
        newest.mkdir()


def test_a_run_does_not_start_anew_if_all_its_files_are_damaged(tmp_path: Path) -> None:
    trellis.CheckpointFileWriter(output_dir=tmp_path)(tiny.checkpoint(step=3))
    (tmp_path / "regular_3" / "manifest.json").unlink()
    with pytest.raises(CheckpointFileError, match=r"Every checkpoint file .* is damaged \(regular_3\).*remove them"):
        reader(tmp_path)(tiny.checkpoint(step=0))


def test_a_file_of_another_model_is_shown_as_a_difference(tmp_path: Path) -> None:
    train(tmp_path, 2)

    class Wider(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.Dense(4, name="head")(nn.Dense(32)(x))

    with pytest.raises(CheckpointMismatchError) as caught:
        init = trellis.CheckpointFileReader(dir=tmp_path, target=Wider().init)
        tiny.train_loop(tiny.train_task(Wider(), optimizer=optax.sgd(0.1)), init=init, n_steps=4).start()
    text = str(caught.value)
    assert "regular_2` holds another structure than this run needs:" in text
    assert "  model_params/Dense_0/kernel: float32[8,16] in the file, float32[8,32] here" in text
    assert "  model_params/Dense_1/bias: float32[4] in the file, — here" in text
    assert "  model_params/head/bias: — in the file, float32[4] here" in text
    assert "more" in text


@pytest.mark.parametrize(
    "error",
    [OSError(28, "No space left on device"), ValueError("RESOURCE_EXHAUSTED: [OS error 28: No space left on device]")],
)
def test_a_failed_save_is_raised_at_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def full(path: Path, *_: Any) -> None:
        path.mkdir()
        raise error

    monkeypatch.setattr(checkpoint_storage, "write", full)
    loop = tiny.train_loop(n_steps=20, n_steps_per_checkpoint=1)
    writer = trellis.CheckpointFileWriter(output_dir=tmp_path)
    steps = []
    with pytest.raises(
        CheckpointFileError, match=r"step 1 could not be saved in .*: No space left on device.*Make room"
    ):
        for checkpoint in loop:
            steps.append(checkpoint.step)
            if checkpoint.step == 1:
                writer(checkpoint)
                loop.session._pending[0].written.exception()
    assert steps == [1]
    assert names(tmp_path) == []


def test_a_failed_save_is_told_in_one_message_and_not_by_orbax(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import orbax.checkpoint as ocp

    def log_and_fail(*_: Any, **__: Any) -> None:
        log_by_orbax()
        logging.getLogger("absl").error("of someone else")
        raise ValueError("RESOURCE_EXHAUSTED: No space left on device")

    # As if it were a line of Orbax that logs.
    namespace: dict[str, Any] = {"logging": logging}
    source = "def log_by_orbax():\n    logging.getLogger('absl').error('a long trace')"
    exec(compile(source, Path(ocp.__file__).parent / "future.py", "exec"), namespace)  # noqa: S102
    log_by_orbax = namespace["log_by_orbax"]
    monkeypatch.setattr(ocp.Checkpointer, "save", log_and_fail)
    with pytest.raises(CheckpointFileError, match="No space left on device") as caught:
        trellis.CheckpointFileWriter(output_dir=tmp_path)(tiny.checkpoint())
    assert caught.value.__cause__ is None, "the message says it all"
    assert [record.message for record in caplog.records] == ["of someone else"]
    log_by_orbax()
    assert caplog.records[-1].message == "a long trace"


def test_what_tensorstore_prints_after_a_failed_save_is_dropped_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    checkpoint_storage._ignore_closed_event_loops.cache_clear()
    trellis.CheckpointFileWriter(output_dir=tmp_path)(tiny.checkpoint())
    closed = RuntimeError("Event loop is closed")
    others = [
        SimpleNamespace(exc_value=closed, object="of a user's own loop"),
        SimpleNamespace(exc_value=RuntimeError("another"), object=None),
        SimpleNamespace(exc_value=None, object=None),
    ]
    for unraisable in (SimpleNamespace(exc_value=closed, object=None), *others):
        sys.unraisablehook(unraisable)
    checkpoint_storage._ignore_closed_event_loops.cache_clear()
    assert told == others


def test_a_failed_save_is_raised_once_and_the_next_one_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, *_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    session = Session()
    writer = trellis.CheckpointFileWriter(output_dir=tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_storage, "write", full)
        writer(tiny.checkpoint(step=1, session=session))
        with pytest.raises(CheckpointFileError, match="step 1 could not be saved"):
            writer(tiny.checkpoint(step=2, session=session))
        session.finish()
        writer(tiny.checkpoint(step=2, session=session))
        with pytest.raises(CheckpointFileError, match="step 2 could not be saved"):
            session.finish()
        with pytest.raises(CheckpointFileError, match="step 3 could not be saved"):
            writer(tiny.checkpoint(step=3))
    writer(tiny.checkpoint(step=4))
    assert names(tmp_path) == ["regular_4"]


def test_a_directory_that_turns_unwritable_is_raised(tmp_path: Path) -> None:
    writer = trellis.CheckpointFileWriter(output_dir=tmp_path / "gone")
    shutil.rmtree(tmp_path / "gone")
    (tmp_path / "gone").write_text("a file in its place")
    with pytest.raises(CheckpointFileError, match="could not be saved"):
        writer(tiny.checkpoint())


def test_a_commit_that_fails_is_raised_with_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, target: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    session = Session()
    trellis.CheckpointFileWriter(output_dir=tmp_path)(tiny.checkpoint(step=3, session=session))
    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(
        CheckpointFileError, match=r"step 3 could not be saved in .*: Read-only file .*Make room or mend"
    ):
        session.finish()
    assert names(tmp_path) == []


def test_an_unwritable_directory_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match=r"Nothing can be written to output_dir `.*file/dir`: Not a directory"):
        trellis.CheckpointFileWriter(output_dir=tmp_path / "file" / "dir")


@pytest.mark.parametrize("name", ["rate[0.1]", "a[1]/b", "a\\b", "a**b"])
def test_without_open_files_by_number_a_name_that_is_a_pattern_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(checkpoint_storage, "_OPEN_FILES", tmp_path / "not Linux")
    with pytest.raises(ArgumentError, match=r"has one of \\ \* \? \[ in it\..*Choose another directory"):
        trellis.CheckpointFileWriter(output_dir=tmp_path / name)
    assert names(tmp_path) == []
    trellis.CheckpointFileWriter(output_dir=tmp_path / "a plain name")(tiny.checkpoint())
    assert reader(tmp_path / "a plain name").read() is not None


ODD_NAMES = ["rate[0.1]", "a[1]/b", "a\\b", "a**b", "a b", "a*b", "a?", "a]b[", "ü", "{x}%20#", "a\nb", "~"]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_directory_may_have_any_name(tmp_path: Path, name: str) -> None:
    trellis.CheckpointFileWriter(output_dir=tmp_path / name)(tiny.checkpoint(step=5))
    checkpoint = trellis.CheckpointFileReader(dir=tmp_path / name, target=tiny.Classifier().init).read()
    assert checkpoint is not None
    tiny.assert_equal(tiny.arrays(checkpoint.model_params), tiny.arrays(tiny.checkpoint(step=5).model_params))


def test_a_directory_whose_name_is_no_text_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"run\\udcff` is not UTF-8, so that no log could name it\. Choose another"):
        trellis.CheckpointFileWriter(output_dir=tmp_path / "run\udcff")
    assert names(tmp_path) == []


def test_a_directory_is_named_from_where_one_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trellis.CheckpointFileWriter(output_dir=".")(tiny.checkpoint(step=5))
    assert reader(Path()).read() is not None


def test_two_files_of_the_same_name_are_not_taken_for_each_other(tmp_path: Path) -> None:
    for seed in (1, 2):
        trellis.CheckpointFileWriter(output_dir=tmp_path / str(seed))(tiny.checkpoint(step=5, seed=seed))
    for seed in (1, 2, 1):
        expected = tiny.arrays(tiny.checkpoint(seed=seed).model_params)
        tiny.assert_equal(params_in(tmp_path / str(seed) / "regular_5"), expected)


def test_a_file_that_could_not_be_read_is_not_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import orbax.checkpoint as ocp

    save = ocp.Checkpointer.save

    def forget(checkpointer: Any, path: Path, **arguments: Any) -> None:
        save(checkpointer, path, **arguments)
        (path / "manifest.ocdbt").unlink()

    monkeypatch.setattr(ocp.Checkpointer, "save", forget)
    with pytest.raises(CheckpointFileError, match="step 5 could not be saved"):
        trellis.CheckpointFileWriter(output_dir=tmp_path)(tiny.checkpoint(step=5))
    assert names(tmp_path) == []


def test_a_file_that_reads_otherwise_than_it_was_written_is_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def garbled(path: Path, tree: Any) -> Any:
        return {name: np.full(3, 7) for name in tree}

    monkeypatch.setattr(checkpoint_storage, "read_arrays", garbled)
    with pytest.raises(CheckpointFileError, match=r"could not be saved .* is not read as it was written"):
        trellis.CheckpointFileWriter(output_dir=tmp_path)(tiny.checkpoint(step=5))
    assert names(tmp_path) == []


def with_version(version: Any, file: Path) -> None:
    """Turns a file into one of another format."""
    manifest_file = file / "manifest.json"
    manifest = json.loads(manifest_file.read_text())["manifest"] | {"version": version}
    crc = zlib.crc32(json.dumps(manifest, indent=1).encode())
    manifest_file.write_text(json.dumps({"checksum": crc, "manifest": manifest}, indent=1))


@pytest.mark.parametrize("version", [3, 0, None, "1"])
def test_a_file_of_a_format_that_is_not_known_is_told_and_not_skipped(tmp_path: Path, version: Any) -> None:
    train(tmp_path, 4)
    with_version(version, tmp_path / "regular_4")
    message = rf"regular_4` is of format {version!r}, but this version of Trellis reads the formats 1 and 2\. Use the"
    with pytest.raises(CheckpointMismatchError, match=message):
        train(tmp_path, 6)
    assert names(tmp_path) == ["regular_2", "regular_4"]


def written_in_order(directory: Path, *steps: int) -> None:
    """Writes regular files as if each process was killed before it could remove what is not kept."""
    for step in steps:
        trellis.CheckpointFileWriter(output_dir=directory, keep=99)(tiny.checkpoint(step=step))


def test_what_a_process_killed_after_a_commit_had_to_remove_is_removed_at_the_next_start(tmp_path: Path) -> None:
    written_in_order(tmp_path, 2, 4, 5)
    (tmp_path / "regular_5").rename(tmp_path / "preempted_5")
    written_in_order(tmp_path, 12)
    shutil.copytree(tmp_path / "regular_12", tmp_path / "regular_12.replaced")
    trellis.CheckpointFileWriter(output_dir=tmp_path)
    assert names(tmp_path) == ["regular_12", "regular_4"]


def test_the_next_start_removes_nothing_that_a_damaged_file_would_be_replaced_by(tmp_path: Path) -> None:
    written_in_order(tmp_path, 2, 4, 6)
    (tmp_path / "regular_6" / "manifest.json").write_text("{}")
    trellis.CheckpointFileWriter(output_dir=tmp_path)
    assert names(tmp_path) == ["regular_2", "regular_4", "regular_6"]


def test_the_next_start_removes_nothing_if_a_later_step_is_of_an_older_run(tmp_path: Path) -> None:
    written_in_order(tmp_path, 9, 10, 11)
    (tmp_path / "regular_11").rename(tmp_path / "regular_1")
    trellis.CheckpointFileWriter(output_dir=tmp_path)
    assert names(tmp_path) == ["regular_1", "regular_10", "regular_9"]


@pytest.mark.parametrize("prefix", ["regular", "preempted"])
def test_a_file_that_was_not_replaced_in_the_end_gets_its_name_back_at_the_next_start(
    tmp_path: Path, prefix: str
) -> None:
    written_in_order(tmp_path, 5)
    (tmp_path / "regular_5").rename(tmp_path / f"{prefix}_5.replaced")
    trellis.CheckpointFileWriter(output_dir=tmp_path)
    assert names(tmp_path) == [f"{prefix}_5"]


class FailOnce:
    """An extension that fails at one step, in one of several ways, the first time."""

    def __init__(self, step: int, error: BaseException) -> None:
        self._step = step
        self._error: BaseException | None = error

    def __call__(self, checkpoint: trellis.Checkpoint) -> trellis.Checkpoint:
        """Returns the checkpoint, or fails."""
        if checkpoint.step == self._step and self._error is not None:
            error, self._error = self._error, None
            raise error
        return checkpoint


def run_with(directory: Path, between: Any, *, stops_at: int = 10) -> None:
    """Trains with two writers and something between them; run again it resumes."""
    loop = tiny.train_loop(init=reader(directory), n_steps=10, n_steps_per_checkpoint=2)
    process = trellis.serial(
        trellis.CheckpointFileWriter(output_dir=directory),
        between,
        trellis.HighestCheckpointFileWriter(output_dir=directory, metric="step", group="train", stdout=False),
    )
    for checkpoint in loop:
        summary = trellis.Summary.from_checkpoint(checkpoint)
        process(summary.with_metrics(train={"loss": summary.loss, "step": float(min(summary.step, 6))}))
        if checkpoint.step == stops_at:
            break


@pytest.mark.parametrize("error", [ValueError("of the user"), KeyboardInterrupt(), SystemExit(3)])
def test_a_checkpoint_that_was_not_handled_to_the_end_is_handled_again_by_the_resumed_run(
    tmp_path: Path, error: BaseException
) -> None:
    run_with(tmp_path / "whole", lambda checkpoint: checkpoint)
    between = FailOnce(6, error)
    with pytest.raises(type(error)):
        run_with(tmp_path / "parts", between)
    gc.collect()
    assert names(tmp_path / "parts") == ["highest_train_step_4", "regular_2", "regular_4"]
    run_with(tmp_path / "parts", between)
    expected = ["highest_train_step_6", "regular_10", "regular_8"]
    assert names(tmp_path / "whole") == names(tmp_path / "parts") == expected
    for name in expected:
        tiny.assert_equal(params_in(tmp_path / "parts" / name), params_in(tmp_path / "whole" / name))


def test_a_loop_that_is_left_by_break_commits_its_last_checkpoint(tmp_path: Path) -> None:
    run_with(tmp_path, lambda checkpoint: checkpoint, stops_at=6)
    assert names(tmp_path) == ["highest_train_step_6", "regular_4", "regular_6"]


def test_outside_of_a_loop_that_is_iterated_over_a_failure_drops_what_was_saved_too(tmp_path: Path) -> None:
    loop = tiny.train_loop(n_steps=5)
    process = trellis.serial(trellis.CheckpointFileWriter(output_dir=tmp_path), FailOnce(2, ValueError("of the user")))
    process(loop.next_step())
    with pytest.raises(ValueError, match="of the user"):
        process(loop.next_step())
    finish_saves()
    assert names(tmp_path) == ["regular_1"]
    process(loop.next_step())
    finish_saves()
    assert names(tmp_path) == ["regular_1", "regular_3"]


def test_files_of_later_steps_are_set_aside_and_not_lost(tmp_path: Path) -> None:
    writer = trellis.CheckpointFileWriter(output_dir=tmp_path)
    for step in (9, 10, 1):
        writer(tiny.checkpoint(step=step))
    assert names(tmp_path) == ["regular_1", "regular_10.superseded", "regular_9.superseded"]
    checkpoint = reader(tmp_path).read()
    assert checkpoint is not None
    assert checkpoint.step == 1


class Disk:
    """Notes what is brought to the disk, and in what order names change."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, Path]] = []
        synced: dict[Path, int] = {}
        fsync, rename = os.fsync, Path.rename

        def note_fsync(descriptor: int) -> None:
            fsync(descriptor)
            path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
            synced[path] = path.stat().st_mtime_ns
            self.calls.append(("sync", path))

        def note_rename(path: Path, target: Path) -> Path:
            if not target.name.startswith("."):
                parts = (path, *path.rglob("*"))
                lost = [part for part in parts if synced.get(part) != part.stat().st_mtime_ns]
                assert not lost, f"{lost} would be lost by a power cut"
            renamed = rename(path, target)
            self.calls.append(("rename", target))
            return renamed

        monkeypatch.setattr(os, "fsync", note_fsync)
        monkeypatch.setattr(Path, "rename", note_rename)


def test_a_file_gets_its_name_when_all_of_it_and_all_that_was_logged_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk_calls = Disk(monkeypatch)
    loop = tiny.train_loop(n_steps=6, n_steps_per_checkpoint=2)
    process = trellis.serial(
        trellis.EventWriter(tmp_path),
        trellis.SummaryWriter(tmp_path / "tensorboard"),
        trellis.CheckpointFileWriter(output_dir=tmp_path, keep=1),
    )
    loop.attach(process)
    for checkpoint in loop:
        process(checkpoint)
    (file,) = (tmp_path / "tensorboard/train").iterdir()
    logs = [("sync", path) for path in (tmp_path / "events.jsonl", tmp_path, file, file.parent)]
    calls = disk_calls.calls
    for step in (2, 4, 6):
        committed = calls.index(("rename", tmp_path / f"regular_{step}"))
        assert calls[committed - len(logs) : committed] == logs
        assert calls[committed + 1] == ("sync", tmp_path), "the name is on the disk before an older file is removed"


def test_nothing_is_replaced_without_leave(tmp_path: Path) -> None:
    writer = trellis.CheckpointFileWriter(output_dir=tmp_path, overwrite=False)
    writer(tiny.checkpoint(step=5))
    for step in (5, 4):
        with pytest.raises(CheckpointFileError, match=r"already holds regular_5\. Choose another output_dir"):
            writer(tiny.checkpoint(step=step))
    writer(tiny.checkpoint(step=6))
    assert names(tmp_path) == ["regular_5", "regular_6"]


def test_a_file_of_the_same_step_is_replaced_whole(tmp_path: Path) -> None:
    writer = trellis.CheckpointFileWriter(output_dir=tmp_path)
    writer(tiny.checkpoint(step=5, seed=1))
    writer(tiny.checkpoint(step=5, seed=2))
    checkpoint = reader(tmp_path).read()
    assert checkpoint is not None
    np.testing.assert_array_equal(
        checkpoint.model_params["Dense_0"]["kernel"], tiny.checkpoint(seed=2).model_params["Dense_0"]["kernel"]
    )
    assert names(tmp_path) == ["regular_5"]


def test_a_file_that_was_being_replaced_at_the_kill_is_found(tmp_path: Path) -> None:
    trellis.CheckpointFileWriter(output_dir=tmp_path)(tiny.checkpoint(step=5))
    (tmp_path / "regular_5").rename(tmp_path / "regular_5.replaced")
    checkpoint = reader(tmp_path).read()
    assert checkpoint is not None
    assert checkpoint.step == 5


def test_what_a_killed_save_left_is_swept_away(tmp_path: Path) -> None:
    of_this_machine = disk.hidden_path(tmp_path).name.split("-")[0]
    for ending in ("writing", "removing"):
        # No process has this number: it is above the greatest that Linux gives.
        (tmp_path / f"{of_this_machine}-{2**22 + 1}-00000000-00000000.{ending}" / "arrays").mkdir(parents=True)
    trellis.CheckpointFileWriter(output_dir=tmp_path)(tiny.checkpoint(step=5))
    assert names(tmp_path) == ["regular_5"]


def test_a_file_appears_only_when_all_that_is_done_with_its_checkpoint_is_done(tmp_path: Path) -> None:
    loop = tiny.train_loop(n_steps=2)
    regular = trellis.CheckpointFileWriter(output_dir=tmp_path)
    best = trellis.LowestCheckpointFileWriter(output_dir=tmp_path, metric="loss", group="train", stdout=False)
    for checkpoint in loop:
        regular(checkpoint)
        best(trellis.Summary.from_checkpoint(checkpoint))
        loop.session._pending[-1].written.result()
        assert f"regular_{checkpoint.step}" not in names(tmp_path)
    assert "regular_2" in names(tmp_path)


def test_a_reader_in_the_same_process_sees_what_was_saved(tmp_path: Path) -> None:
    loop = tiny.train_loop(n_steps=5)
    trellis.CheckpointFileWriter(output_dir=tmp_path)(loop.next_step())
    checkpoint = reader(tmp_path).read()
    assert checkpoint is not None
    assert checkpoint.step == 1


def test_the_saved_arrays_are_those_of_the_step_and_not_of_later_ones(tmp_path: Path) -> None:
    loop = tiny.train_loop(n_steps=50, n_steps_per_checkpoint=10)
    writer = trellis.CheckpointFileWriter(output_dir=tmp_path, keep=9)
    expected = {checkpoint.step: tiny.arrays(writer(checkpoint).model_params) for checkpoint in loop}
    for step, params in expected.items():
        manifest = checkpoint_storage.read_manifest(tmp_path / f"regular_{step}")
        arrays = checkpoint_storage.read_arrays(tmp_path / f"regular_{step}", manifest["tree"])
        tiny.assert_equal(jax.tree.leaves(unflatten_dict(arrays, sep="/")["model_params"]), params)


def params_in(file: Path) -> list[np.ndarray]:
    """The parameters that a file holds."""
    arrays = checkpoint_storage.read_arrays(file, checkpoint_storage.peek_manifest(file)["tree"])
    return jax.tree.leaves(unflatten_dict(arrays, sep="/")["model_params"])


def test_a_writer_after_an_extension_that_replaces_parameters_writes_the_new_ones(tmp_path: Path) -> None:
    def double(checkpoint: trellis.Checkpoint) -> trellis.Checkpoint:
        return dataclasses.replace(checkpoint, model_params=jax.tree.map(lambda x: 2 * x, checkpoint.model_params))

    process = trellis.serial(
        trellis.CheckpointFileWriter(output_dir=tmp_path / "before"),
        double,
        trellis.CheckpointFileWriter(output_dir=tmp_path / "after"),
    )
    for checkpoint in tiny.train_loop(n_steps=2):
        process(checkpoint)
    tiny.assert_equal(
        params_in(tmp_path / "after" / "regular_2"), [2 * x for x in params_in(tmp_path / "before" / "regular_2")]
    )


def test_arrays_that_are_changed_in_place_between_two_writers_are_written_as_they_are(tmp_path: Path) -> None:
    session = Session()
    checkpoint = dataclasses.replace(tiny.checkpoint(step=1, session=session), model_params={"x": np.zeros(2)})
    trellis.CheckpointFileWriter(output_dir=tmp_path / "before")(checkpoint)
    checkpoint.model_params["x"] += 1
    trellis.CheckpointFileWriter(output_dir=tmp_path / "after")(checkpoint)
    session.finish()
    assert params_in(tmp_path / "before" / "regular_1")[0].tolist() == [0, 0]
    assert params_in(tmp_path / "after" / "regular_1")[0].tolist() == [1, 1]


def test_two_writers_of_one_checkpoint_share_a_copy_and_nothing_of_it_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[int] = []
    copies: list[weakref.ref[np.ndarray]] = []
    copy = checkpoint_storage._host_copy

    def counted(leaf: Any) -> np.ndarray:
        array = copy(leaf)
        copied.append(array.nbytes)
        copies.append(weakref.ref(array))
        return array

    monkeypatch.setattr(checkpoint_storage, "_host_copy", counted)
    loop = tiny.train_loop(n_steps=6, n_steps_per_checkpoint=2)
    process = trellis.serial(
        trellis.CheckpointFileWriter(output_dir=tmp_path / "one"),
        trellis.CheckpointFileWriter(output_dir=tmp_path / "two"),
        lambda checkpoint: dataclasses.replace(
            checkpoint, model_params=jax.tree.map(lambda x: 2 * x, checkpoint.model_params)
        ),
        trellis.CheckpointFileWriter(output_dir=tmp_path / "three"),
    )
    for checkpoint in loop:
        before = len(copied)
        process(checkpoint)
        n_params = len(jax.tree.leaves(checkpoint.model_params))
        n_leaves = len(list(checkpoint_storage.flatten(checkpoint)))
        assert len(copied) - before == n_leaves + n_params, "only what was replaced is copied again"
    loop.session.finish()
    gc.collect()
    assert [array() for array in copies if array() is not None] == []


def test_two_writers_in_one_directory_do_not_remove_what_the_other_writes(tmp_path: Path) -> None:
    other = tmp_path / disk.hidden_path(tmp_path).name.replace(f"-{os.getpid()}-", f"-{os.getppid()}-")
    other.mkdir()
    trellis.CheckpointFileWriter(output_dir=tmp_path)(tiny.checkpoint(step=5))
    assert names(tmp_path) == sorted([other.name, "regular_5"])


def test_a_file_is_self_describing(tmp_path: Path) -> None:
    trellis.CheckpointFileWriter(output_dir=tmp_path)(tiny.checkpoint(step=5, eval={"loss": 1.5}))
    manifest = json.loads((tmp_path / "regular_5" / "manifest.json").read_text())["manifest"]
    assert manifest["step"] == 5
    assert manifest["metrics"] == {"eval": {"loss": 1.5}}
    assert manifest["tree"]["model_params/Dense_0/kernel"] == "float32[3,2]"
    assert manifest["packages"]["jax"] == jax.__version__


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda d: trellis.CheckpointFileWriter(output_dir=d, keep=0), "keep is 0"),
        (
            lambda d: trellis.CheckpointFileWriter(output_dir=d).write(3),
            "expected a Checkpoint or a Summary, but got 3",
        ),
    ],
)
def test_bad_input_is_a_clear_error(tmp_path: Path, call: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call(tmp_path)


def test_a_file_of_the_first_version_is_resumed(tmp_path: Path) -> None:
    # It was written by a run that was stopped at step 16, with the sums of its last six steps.
    shutil.copytree(GOLDEN / "checkpoint_files" / "preempted_16", tmp_path / "preempted_16")
    model = tiny.Classifier(has_statistics=True)

    def last(init: Any) -> trellis.Checkpoint:
        loop = tiny.train_loop(
            tiny.train_task(
                tiny.Classifier(train=True, dropout_rate=0.3, has_statistics=True), data=tiny.stream(seed=7)
            ),
            init=init,
            rnkey=jax.random.key(11),
            collections={"apply": ["dropout"]},
            n_steps=20,
            n_steps_per_checkpoint=10,
            n_fused_steps=3,
        )
        *_, checkpoint = loop
        return checkpoint

    resumed = last(trellis.CheckpointFileReader(dir=tmp_path, target=model.init))
    whole = last(model.init)
    assert (resumed.step, resumed.n_completed_steps) == (20, 10)
    # Not to the bit: the file is of another machine, and may be of other versions of JAX.
    np.testing.assert_allclose(resumed.loss, whole.loss, rtol=1e-4)
    for name in ("model_params", "model_state", "optimizer_state"):
        one, other = getattr(resumed, name), getattr(whole, name)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), one, other)


@pytest.mark.usefixtures("heeds_interrupts")
def test_a_run_that_is_interrupted_is_saved_and_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    def run(folder: Path, *, interrupted_at: int | None = None) -> list[np.ndarray]:
        class Data:
            def batch(self, step: int) -> Any:
                if step == interrupted_at:
                    os.kill(os.getpid(), signal.SIGINT)
                return tiny.stream().batch(step)

        init = trellis.CheckpointFileReader(folder, target=tiny.Classifier().init)
        loop = tiny.train_loop(tiny.train_task(data=Data()), init=init, n_steps=40, n_steps_per_checkpoint=20)
        writer = trellis.CheckpointFileWriter(folder)
        loop.attach(writer)
        for checkpoint in loop:
            writer(checkpoint)
            arrays = tiny.arrays((checkpoint.model_params, checkpoint.optimizer_state, checkpoint.loss))
        return arrays

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", interrupted_at=4)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["preempted_10"]
    for one, other in zip(run(tmp_path / "run"), run(tmp_path / "whole"), strict=True):
        np.testing.assert_array_equal(one, other)
