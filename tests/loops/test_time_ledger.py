"""Every second of an attempt is in one bucket."""

import threading

import pytest

from trellis.loops import BUCKETS, InputMeter, TimeLedger


class Clock:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_innermost_thing_counts_and_all_add_up_to_the_wall_clock() -> None:
    clock = Clock()
    ledger = TimeLedger(age=2.0, clock=clock, wall_clock=lambda: 5000.0)
    clock.now += 1
    ledger.switch("step")
    clock.now += 10
    with ledger.spending("compile"):
        clock.now += 4
    clock.now += 10
    ledger.switch("other")
    clock.now += 0.5
    with ledger.spending("eval"):
        clock.now += 3
        with ledger.spending("compile"):
            clock.now += 1
        clock.now += 3
    with pytest.raises(ValueError, match="disk"), ledger.spending("checkpoint"):
        clock.now += 7
        raise ValueError("disk")
    seconds = ledger.seconds()
    assert tuple(seconds) == BUCKETS
    assert seconds == {
        "start": 3,
        "compile": 5,
        "input_wait": 0,
        "step": 20,
        "eval": 6,
        "checkpoint": 7,
        "other": 0.5,
    }
    assert sum(seconds.values()) == clock.now - 100.0 + 2.0
    assert ledger.started_at == 4998.0


def test_a_wait_for_input_is_taken_from_what_is_counted_at_the_time() -> None:
    clock = Clock()
    ledger = TimeLedger(clock=clock)
    ledger.switch("step")
    clock.now += 5
    ledger.move(2, to="input_wait")
    clock.now += 5
    assert ledger.seconds() == dict.fromkeys(BUCKETS, 0.0) | {"step": 8, "input_wait": 2}


def test_it_is_due_to_be_written_down_now_and_then() -> None:
    clock = Clock()
    ledger = TimeLedger(clock=clock, wall_clock=lambda: 5000.0)
    assert ledger.is_due
    clock.now += 1
    seconds = dict.fromkeys(BUCKETS, 0.0) | {"start": 1.0}
    assert ledger.as_event() == {"attempt": 5000.0, "seconds": seconds, "hidden_input": 0.0}
    assert not ledger.is_due
    clock.now += 1
    assert ledger.is_due
    clock.now += 9998
    ledger.as_event()
    clock.now += 59
    assert not ledger.is_due
    clock.now += 1
    assert ledger.is_due


class Call:
    """A call that ends when it is told to, and tells when somebody has noticed."""

    def __init__(self) -> None:
        self._end = threading.Event()

    def end(self) -> None:
        self._end.set()

    def is_ready(self) -> bool:
        return self._end.is_set()

    def block_until_ready(self) -> None:
        self._end.wait()


def test_batches_that_are_made_while_the_devices_are_busy_are_not_waited_for() -> None:
    clock = Clock()
    meter = InputMeter(clock=clock)
    call = Call()

    def make() -> str:
        clock.now += 3
        return "batch"

    assert meter.measure(make, last_call=None) == "batch"
    assert (meter.waited, meter.hidden) == (3, 0)
    assert meter.measure(make, last_call=call) == "batch"
    assert (meter.waited, meter.hidden) == (3, 3)
    call.end()
    meter.measure(make, last_call=call)
    assert (meter.waited, meter.hidden) == (6, 3)


def test_a_call_that_ends_while_a_batch_is_made_divides_its_time() -> None:
    noticed = threading.Event()
    call = Call()

    class NoticingClock(Clock):
        def __call__(self) -> float:
            if threading.current_thread() is not threading.main_thread():
                noticed.set()
            return self.now

    clock = NoticingClock()
    meter = InputMeter(clock=clock)

    def make() -> None:
        clock.now += 1
        call.end()
        noticed.wait(10)
        clock.now += 3

    meter.measure(make, last_call=call)
    assert (meter.waited, meter.hidden) == (3, 1)
    quick = Call()
    clock.now -= 4  # too soon for another look: it is taken to be like the last

    def make_quickly() -> None:
        clock.now += 4

    meter.measure(make_quickly, last_call=quick)
    assert (meter.waited, meter.hidden) == (6, 2)
