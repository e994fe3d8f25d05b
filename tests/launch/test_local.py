"""Processes that are launched together end together, are started again, and are told of by name."""

import errno
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from trellis.errors import ArgumentError, RunFailedError
from trellis.executor import Worker, WorkerOrder
from trellis.launch import launch_local


class Scripted:
    """Workers that end with given codes after some looks, one list of codes for each attempt."""

    def __init__(self, *attempts: list[int | None], output: str = "") -> None:
        self._attempts = iter(attempts)
        self._codes: Iterator[int | None] = iter(())
        self._output = output
        self.orders: list[WorkerOrder] = []
        self.stopped: list[int] = []

    def __call__(self, order: WorkerOrder) -> Worker:
        """Starts one."""
        if order.index == 0:
            self._codes = iter(next(self._attempts))
        self.orders.append(order)
        if order.log_file is not None:
            order.log_file.write_text(self._output)
        return _ScriptedWorker(next(self._codes), order.index, self.stopped)


class _ScriptedWorker:
    def __init__(self, code: int | None, index: int, stopped: list[int]) -> None:
        self._code = code
        self._index = index
        self._stopped = stopped

    def poll(self) -> int | None:
        return self._code

    def stop(self, *, seconds: float) -> None:
        self._stopped.append(self._index)


class _LostWorker(_ScriptedWorker):
    """One of which its engine tells only after some looks that it is gone."""

    n_looks = 0

    def poll(self) -> int | None:
        self.n_looks += 1
        return 75 if self.is_gone() else None

    def is_gone(self) -> bool:
        return self.n_looks > 4


class _StoppedWorker(_ScriptedWorker):
    def is_stopped(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trellis.launch.local._SECONDS_TO_TELL", 0.01)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")


def launch(start: Scripted, tmp_path: Path, *, n_restarts: int = 0) -> int:
    return launch_local(["train"], n_processes=2, log_dir=tmp_path / "logs", n_restarts=n_restarts, start=start)


def test_each_process_knows_who_it_is(tmp_path: Path) -> None:
    start = Scripted([0, 0])
    assert launch(start, tmp_path) == 0
    assert [order.environment["JAX_PROCESS_ID"] for order in start.orders] == ["0", "1"]
    assert {order.environment["JAX_NUM_PROCESSES"] for order in start.orders} == {"2"}
    assert len({order.environment["JAX_COORDINATOR_ADDRESS"] for order in start.orders}) == 1
    assert [order.log_file for order in start.orders] == [None, tmp_path / "logs/process_1.log"]
    assert list(start.orders[0].command[1:]) == ["-m", "trellis", "train"]


def test_one_that_fails_is_named_with_its_output_and_ends_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = Scripted([None, -signal.SIGKILL], output="the last words")
    assert launch(start, tmp_path) == 128 + signal.SIGKILL
    told = capsys.readouterr().err
    assert "Process 1 of 2 was ended by SIGKILL. All were ended." in told
    assert "the last words" in told
    assert sorted(start.stopped) == [0, 1]


def test_one_whose_output_is_away_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = Scripted([None, 7])

    def start_and_lose(order: WorkerOrder) -> Worker:
        worker = start(order)
        if order.log_file is not None:
            order.log_file.unlink()
        return worker

    assert launch_local(["train"], n_processes=2, log_dir=tmp_path / "logs", start=start_and_lose) == 7
    told = capsys.readouterr().err
    assert (
        f"Process 1 of 2 has ended with code 7. All were ended. Its output, {tmp_path}/logs/process_1.log, is" in told
    )


def test_logs_that_cannot_be_written_are_told(tmp_path: Path) -> None:
    (tmp_path / "logs").touch()
    with pytest.raises(ArgumentError, match="Nothing can be written to logs `.*/logs`: Not a directory"):
        launch(Scripted([0, 0]), tmp_path)

    def start_nothing(order: WorkerOrder) -> Worker:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(order.log_file))

    with pytest.raises(RunFailedError, match="Process 0 cannot be started: .*: No such file or directory. Bring back"):
        launch_local(["train"], n_processes=2, log_dir=tmp_path / "more", start=start_nothing)


def test_an_abort_of_jax_is_not_the_cause(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert launch(Scripted([-signal.SIGABRT, 7]), tmp_path) == 7
    assert "Process 1 of 2 has ended with code 7" in capsys.readouterr().err


def test_one_that_has_lost_another_is_not_the_cause(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert launch(Scripted([75, -signal.SIGKILL]), tmp_path) == 128 + signal.SIGKILL
    assert "Process 1 of 2 was ended by SIGKILL" in capsys.readouterr().err


@pytest.mark.parametrize("code", [75, 1])
def test_a_machine_that_is_gone_is_the_cause_though_one_hears_of_it_late(
    code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trellis.launch.local._SECONDS_TO_TELL", 0.01 if code == 75 else 1.0)

    def start(order: WorkerOrder) -> Worker:
        if order.index == 0:
            return _ScriptedWorker(code, 0, [])
        assert order.log_file is not None
        order.log_file.write_text("Ray has lost this process")
        return _LostWorker(None, 1, [])

    assert launch_local(["train"], n_processes=2, log_dir=tmp_path / "logs", start=start) == 75
    told = capsys.readouterr().err
    assert "Process 1 of 2 has ended with code 75. All were ended." in told
    assert "Ray has lost this process" in told


def test_one_that_stays_stopped_is_named_though_no_other_has_noticed_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trellis.launch.local._SECONDS_TO_NOTICE", 0.1)
    monkeypatch.setenv("TRELLIS_WORKER_TIMEOUT", "0.2")
    ended: list[int] = []

    def start(order: WorkerOrder) -> Worker:
        kind = _StoppedWorker if order.index else _ScriptedWorker
        return kind(None, order.index, ended)

    assert launch_local(["train"], n_processes=2, log_dir=tmp_path, start=start) == 75
    told = capsys.readouterr().err
    assert "Process 1 of 2 has been stopped (SIGSTOP) for more than 0.2 seconds (--worker_timeout)" in told
    assert sorted(ended) == [0, 1]


def test_all_are_started_again_as_often_as_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = Scripted([1, None], [None, 1], [0, 0])
    assert launch(start, tmp_path, n_restarts=2) == 0
    assert len(start.orders) == 6
    assert "Starts again, 2 of 2 times: a run goes on from its last checkpoint file." in capsys.readouterr().out
    assert launch(Scripted([1, None], [1, None]), tmp_path, n_restarts=1) == 1


@pytest.mark.parametrize("code", [2, 143])
def test_bad_input_and_a_run_that_was_stopped_are_not_tried_again(tmp_path: Path, code: int) -> None:
    start = Scripted([code, code])
    assert launch(start, tmp_path, n_restarts=5) == code
    assert len(start.orders) == 2


def test_sigterm_is_passed_on(tmp_path: Path) -> None:
    start = Scripted([None, None])

    def start_and_be_told(order: WorkerOrder) -> Worker:
        worker = start(order)
        if order.index == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return worker

    assert launch_local(["train"], n_processes=2, log_dir=tmp_path, start=start_and_be_told) == 143
    assert 0 in start.stopped


def test_gpus_are_shared_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAX_PLATFORMS")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    start = Scripted([0, 0])
    launch(start, tmp_path)
    assert [order.environment["CUDA_VISIBLE_DEVICES"] for order in start.orders] == ["4,5", "6,7"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    with pytest.raises(ArgumentError, match="processes is 2, but this machine has 3 GPUs"):
        launch(start, tmp_path)


def test_there_is_at_least_one_process(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="processes is 0, but there is at least one"):
        launch_local(["train"], n_processes=0, log_dir=tmp_path)
