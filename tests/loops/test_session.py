"""The session of a loop: events, saves in the background, the wish to stop."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from trellis.errors import Preempted
from trellis.loops import Event, Session, finish_saves


def test_a_late_listener_hears_what_happened_before() -> None:
    session, heard = Session(), []
    session.emit("first", step=1, seconds=2.0)
    session.subscribe(heard.append)
    session.emit("second", step=2)
    assert [(event.kind, event.step) for event in heard] == [("first", 1), ("second", 2)]
    assert isinstance(heard[0], Event)
    assert heard[0].values == {"seconds": 2.0}


def test_only_a_session_with_stdout_prints(capsys: pytest.CaptureFixture[str]) -> None:
    Session(stdout=True).emit("a", step=0, text="said")
    Session().emit("a", step=0, text="not said")
    assert capsys.readouterr().out == "said\n"


def test_saves_are_committed_when_the_loop_moves_on_and_resumable_ones_last() -> None:
    session, done = Session(), []
    for name, is_resumable in (("regular", True), ("best", False)):
        session.save(
            lambda name=name: done.append(f"write {name}"),
            lambda name=name: done.append(f"commit {name}"),
            is_resumable=is_resumable,
        ).result()
    assert done == ["write regular", "write best"]
    session.finish()
    assert done[2:] == ["commit best", "commit regular"]


def test_a_save_that_failed_is_raised_once_and_not_committed() -> None:
    session, done = Session(), []

    def fail() -> None:
        raise OSError("full")

    session.save(fail, lambda: done.append("committed"), is_resumable=True).exception()
    with pytest.raises(OSError, match="full"):
        session.advance()
    session.finish()
    assert done == []


class Saves:
    """Saves that note what is done with them."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.done: list[str] = []

    def start(self, name: str, *, is_resumable: bool = False, error: Exception | None = None) -> None:
        """Starts a save; with an error, one that cannot be written."""

        def write() -> None:
            if error is not None:
                raise error

        self.session.save(
            write,
            lambda: self.done.append(f"commit {name}"),
            drop=lambda: self.done.append(f"drop {name}"),
            is_resumable=is_resumable,
        )


def test_of_a_checkpoint_all_is_committed_or_nothing() -> None:
    saves = Saves(session := Session())
    saves.start("regular 1", is_resumable=True)
    saves.start("best 1", error=OSError("full"))
    with pytest.raises(OSError, match="full"):
        session.advance()
    assert saves.done == ["drop regular 1", "drop best 1"]
    saves.start("regular 2", is_resumable=True)
    session.finish()
    assert saves.done[2:] == ["commit regular 2"]


def test_after_a_save_that_failed_no_later_one_is_committed_before_the_error_is_told() -> None:
    saves, gate = Saves(session := Session()), threading.Event()
    with contextlib.suppress(OSError), session.running(lambda: 1):
        session.save(lambda: None, lambda: gate.wait(10), is_resumable=True)
        session.advance()
        saves.start("best 1", error=OSError("full"))
        session.advance()
        saves.start("regular 2", is_resumable=True)
        session.advance()
        gate.set()
    assert saves.done == ["drop best 1", "drop regular 2"]


def test_saves_of_a_checkpoint_that_was_not_handled_to_the_end_are_dropped_when_the_loop_is_left() -> None:
    saves, heard = Saves(session := Session()), []
    session.subscribe(heard.append)
    with contextlib.suppress(KeyboardInterrupt), session.running(lambda: 7):
        saves.start("regular 6", is_resumable=True)
        session.advance()
        saves.start("regular 7", is_resumable=True)
        session.fail(7)
        raise KeyboardInterrupt
    assert saves.done == ["commit regular 6", "drop regular 7"]
    assert [(event.kind, event.step) for event in heard] == [("dropped", 7), ("time", 7), ("stopped", 7)]
    assert "no file is kept, as not all was done with it. The same command does it again." in heard[0].text
    session.finish()
    assert len(saves.done) == 2


def test_a_loop_that_moves_on_although_something_failed_commits() -> None:
    saves = Saves(session := Session())
    saves.start("regular 7", is_resumable=True)
    session.fail(7)
    session.advance()
    session.finish()
    assert saves.done == ["commit regular 7"]


def test_what_was_logged_is_brought_to_the_disk_before_files_are_committed() -> None:
    saves = Saves(session := Session())

    def sync() -> None:
        saves.done.append("sync")

    session.before_commit(sync)
    session.before_commit(sync)
    session.finish()
    assert saves.done == []
    saves.start("regular", is_resumable=True)
    saves.start("best")
    session.finish()
    assert saves.done == ["sync", "commit best", "commit regular"]


def test_what_was_logged_and_cannot_be_brought_to_the_disk_is_an_error_and_nothing_is_committed() -> None:
    saves = Saves(session := Session())

    def sync() -> None:
        raise OSError("full")

    session.before_commit(sync)
    saves.start("regular", is_resumable=True)
    with pytest.raises(OSError, match="full"):
        session.finish()
    assert saves.done == ["drop regular"]


def test_writing_goes_on_beside_the_loop() -> None:
    session, gate, done = Session(), threading.Event(), []
    with session.running(lambda: 1):
        session.save(lambda: done.append(gate.wait(10)), lambda: done.append("committed"), is_resumable=True)
        session.advance()
        assert done == []
        gate.set()
    assert done == [True, "committed"]


def test_without_a_loop_a_save_is_waited_for_and_committed_later() -> None:
    session, done = Session(), []
    session.save(lambda: done.append("written"), lambda: done.append("committed"), is_resumable=True)
    assert done == ["written"]
    session.finish()
    assert done == ["written", "committed"]


def test_all_saves_of_a_process_can_be_waited_for() -> None:
    done: list[str] = []
    for name in ("one", "two"):
        Session().save(lambda: None, lambda name=name: done.append(name), is_resumable=True)
    finish_saves()
    assert sorted(done) == ["one", "two"]


def test_sigterm_is_a_wish_to_stop_while_it_is_watched_for() -> None:
    before = signal.getsignal(signal.SIGTERM)
    one, other = Session(), Session()
    first, second = one.watching_for_signals(), other.watching_for_signals()
    first.__enter__()
    second.__enter__()
    os.kill(os.getpid(), signal.SIGTERM)
    first.__exit__(None, None, None)
    assert signal.getsignal(signal.SIGTERM) != before
    second.__exit__(None, None, None)
    assert one.is_stopping
    assert other.is_stopping
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_handler_of_the_users_own_is_called_too() -> None:
    called: list[Any] = []
    before = signal.signal(signal.SIGTERM, lambda *_: called.append(1))
    session = Session()
    try:
        with session.watching_for_signals():
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert called == [1]
    assert session.is_stopping


@pytest.mark.usefixtures("heeds_interrupts")
def test_the_first_interrupt_is_a_wish_to_stop_if_something_would_be_saved(capfd: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGINT)
    session = Session()
    with session.watching_for_signals(), pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
    assert not session.is_stopping
    session.on_preemption(lambda checkpoint: None)
    with session.watching_for_signals():
        os.kill(os.getpid(), signal.SIGINT)
        assert session.stopped_by == "Ctrl-C"
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    told = "The run saves and stops when the steps under way are done. Ctrl-C again leaves at once."
    assert capfd.readouterr().err.split("\n") == ["", told, ""]
    assert signal.getsignal(signal.SIGINT) == before


@pytest.mark.usefixtures("heeds_interrupts")
def test_an_interrupt_of_one_of_several_processes_stops_all_of_them(capfd: pytest.CaptureFixture[str]) -> None:
    told: list[int] = []
    # JAX handles this signal, and tells the others.
    before = signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))
    previous = signal.getsignal(signal.SIGINT)
    try:
        with Session(is_shared=True).watching_for_signals():
            os.kill(os.getpid(), signal.SIGINT)
            assert told == [signal.SIGTERM]
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert signal.getsignal(signal.SIGINT) == previous
    assert "The run saves and stops in all processes when the steps under way are done." in capfd.readouterr().err


def test_an_interrupt_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    session = Session()
    session.on_preemption(lambda checkpoint: None)
    try:
        with session.watching_for_signals():
            os.kill(os.getpid(), signal.SIGINT)
            assert not session.is_stopping
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_thread_watches_for_no_signal() -> None:
    handlers: list[Any] = []

    def work() -> None:
        with Session().watching_for_signals():
            handlers.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert handlers == [signal.getsignal(signal.SIGTERM)]


def test_those_who_asked_for_it_save_on_preemption() -> None:
    session, saved = Session(), []
    save = saved.append
    session.on_preemption(save)
    session.on_preemption(save)
    assert session.preempt("checkpoint") == 1
    assert saved == ["checkpoint"]


def test_a_break_out_of_a_loop_is_no_error() -> None:
    session, heard = Session(), []
    session.subscribe(heard.append)

    def loop() -> Iterator[int]:
        with session.running(lambda: 7):
            yield from range(100)

    for _ in loop():
        break
    assert [(event.kind, event.step) for event in heard] == [("time", 7), ("stopped", 7)]
    assert not heard[1].values


@pytest.mark.parametrize(
    ("error", "events"),
    [
        (None, [("finished", {})]),
        (Preempted(), [("stopped", {})]),
        (KeyboardInterrupt(), [("stopped", {"error": "KeyboardInterrupt()"})]),
        (OSError("full"), [("stopped", {"error": "OSError('full')"})]),
    ],
)
def test_the_end_of_a_loop_is_told_once(error: BaseException | None, events: list[Any]) -> None:
    session, heard = Session(), []
    session.subscribe(heard.append)
    with contextlib.suppress(BaseException), session.running(lambda: 7):
        if error is not None:
            raise error
    assert [(event.kind, dict(event.values)) for event in heard if event.kind != "time"] == events
    assert [event.step for event in heard] == [7, 7]


def test_a_save_that_fails_when_a_loop_is_left_is_an_error() -> None:
    session, heard = Session(), []
    session.subscribe(heard.append)

    def fail() -> None:
        raise OSError("full")

    def loop() -> Iterator[int]:
        with session.running(lambda: 7):
            yield 1

    steps = loop()
    next(steps)
    session.save(fail, lambda: None, is_resumable=True)
    with pytest.raises(OSError, match="full"):
        steps.close()
    assert [(event.kind, dict(event.values)) for event in heard] == [("stopped", {"error": "OSError('full')"})]


def test_extensions_share_something_until_the_loop_moves_on() -> None:
    session = Session()
    shared = session.shared(list)
    shared.append(1)
    assert session.shared(list) is shared
    assert session.shared(dict) == {}
    session.advance()
    assert session.shared(list) == []


def test_a_session_knows_who_takes_part_by_identity() -> None:
    session = Session()
    one, other = [1], [1]
    assert [session.admit(each) for each in (one, other, one, other)] == [True, True, False, False]
    assert Session().admit(one)


def test_looks_for_a_stop_of_other_processes_are_counted_over_all_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers: list[int] = []

    def look(number: int) -> bool:
        numbers.append(number)
        return False

    monkeypatch.setattr("jax.experimental.multihost_utils.reached_preemption_sync_point", look)
    for _ in range(2):
        session = Session(is_shared=True)
        assert [session.wants_to_stop for _ in range(3)] == [False] * 3
    assert numbers == list(range(numbers[0], numbers[0] + 6))
