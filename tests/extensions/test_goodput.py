"""Where the time of a run went, over all attempts: the buckets add up to the wall clock."""

import json
from pathlib import Path
from typing import Any

import pytest

import trellis
from tests import tiny
from trellis.errors import ArgumentError
from trellis.extensions import add_up, read_goodput
from trellis.loops import BUCKETS, TimeLedger


class Machine:
    """A clock, and processes on it that write down where their time goes."""

    def __init__(self) -> None:
        self.now = 5000.0
        self.jump = 0.0
        self.events: list[dict[str, Any]] = []
        self.start()

    def start(self) -> None:
        self.ledger = TimeLedger(clock=lambda: self.now, wall_clock=lambda: self.now + self.jump)

    def spend(self, bucket: str, seconds: float) -> None:
        with self.ledger.spending(bucket):
            self.now += seconds

    def write(self, step: int) -> None:
        self.events.append({"kind": "time", "step": step, "time": self.now + self.jump, **self.ledger.as_event()})


def seconds(**spent: float) -> dict[str, float]:
    return dict.fromkeys((*BUCKETS, "lost", "downtime"), 0.0) | spent


def test_what_was_done_after_the_file_that_a_run_resumes_from_is_lost() -> None:
    machine = Machine()
    machine.spend("start", 4)
    machine.write(0)
    machine.spend("compile", 10)
    machine.spend("step", 20)
    machine.spend("checkpoint", 1)
    machine.write(50)  # a file
    machine.spend("step", 30)
    machine.spend("eval", 2)
    machine.write(80)  # the last sign of life
    machine.now += 60
    machine.start()
    machine.spend("start", 5)
    machine.write(50)
    machine.spend("compile", 9)
    machine.spend("step", 40)
    machine.spend("input_wait", 3)
    machine.write(100)
    goodput = add_up(machine.events)
    assert goodput is not None
    expected = seconds(start=9, compile=19, step=60, input_wait=3, checkpoint=1, lost=32, downtime=60)
    assert goodput.seconds == expected
    assert goodput.total == goodput.wall_seconds == machine.now - 5000
    assert (goodput.n_attempts, goodput.step) == (2, 100)


def test_a_recovery_loses_what_it_goes_back_behind() -> None:
    machine = Machine()
    machine.spend("step", 10)
    machine.write(50)
    machine.spend("step", 8)
    machine.spend("other", 1)
    machine.write(90)
    machine.spend("start", 2)
    machine.write(50)
    machine.spend("step", 10)
    machine.write(100)
    goodput = add_up(machine.events)
    assert goodput is not None
    assert goodput.seconds == seconds(start=2, step=20, lost=9)
    assert goodput.n_attempts == 1


@pytest.mark.parametrize("jumps", [(300_000.0, 300_000.0), (-300_000.0, -300_000.0), (50.0, -250.0), (0.0, -1000.0)])
def test_a_clock_that_jumps_is_told_apart_from_what_was_spent(jumps: tuple[float, float]) -> None:
    machine = Machine()
    machine.spend("step", 10)
    machine.write(50)
    machine.jump = jumps[0]
    machine.spend("step", 10)
    machine.write(60)
    machine.now += 5
    machine.jump = jumps[1]
    machine.start()
    machine.spend("step", 10)
    machine.write(70)
    goodput = add_up(machine.events)
    assert goodput is not None
    downtime = 5.0 if jumps[0] == jumps[1] else 0.0
    assert goodput.seconds == seconds(step=30, downtime=downtime)
    assert goodput.total == goodput.wall_seconds == 30 + downtime
    assert goodput.clock_jump == jumps[1] + 5 - downtime


def test_a_run_without_events_of_time_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"events.jsonl` cannot be read: .* Give the model_dir of a run"):
        read_goodput(tmp_path)
    (tmp_path / "events.jsonl").write_text('{"kind": "time", "step": 3}\nnothing\n{"kind": "finished", "step": 3}\n')
    with pytest.raises(ArgumentError, match="has no event of the kind `time`: its run was too short to write one"):
        read_goodput(tmp_path)


def test_the_seconds_of_a_loop_add_up_to_its_wall_clock(tmp_path: Path) -> None:
    loop = tiny.train_loop(n_steps=60, n_steps_per_checkpoint=20)
    process = trellis.serial(
        tiny.eval_loop(),
        trellis.EventWriter(tmp_path),
        trellis.CheckpointFileWriter(tmp_path),
    )
    loop.attach(process)
    for checkpoint in loop:
        process(checkpoint)
    goodput = read_goodput(tmp_path)
    assert goodput.total == pytest.approx(goodput.wall_seconds, rel=0.01)
    assert goodput.clock_jump == 0
    spent = {name for name, value in goodput.seconds.items() if value > 0}
    assert spent >= {"start", "compile", "step", "eval", "checkpoint"}
    assert not spent & {"lost", "downtime"}
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    # At the start, with the files, and at the end; on a slow machine also in between.
    assert {event["step"] for event in events if event["kind"] == "time"} >= {0, 20, 40, 60}
    assert goodput.as_json()["step"] == 60
