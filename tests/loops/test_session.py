"""The session of a loop: events, saves in the background, the wish to stop."""

import os
import signal
import threading
from typing import Any

import pytest

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


def test_writing_goes_on_beside_the_loop() -> None:
    session, gate, done = Session(), threading.Event(), []
    session.save(lambda: done.append(gate.wait(10)), lambda: done.append("committed"), is_resumable=True)
    session.advance()
    assert done == []
    gate.set()
    session.finish()
    assert done == [True, "committed"]


def test_all_saves_of_a_process_can_be_waited_for() -> None:
    done: list[str] = []
    for name in ("one", "two"):
        Session().save(lambda: None, lambda name=name: done.append(name), is_resumable=True)
    finish_saves()
    assert sorted(done) == ["one", "two"]


def test_sigterm_is_a_wish_to_stop_while_it_is_watched_for() -> None:
    before = signal.getsignal(signal.SIGTERM)
    one, other = Session(), Session()
    first, second = one.watching_for_sigterm(), other.watching_for_sigterm()
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
        with session.watching_for_sigterm():
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert called == [1]
    assert session.is_stopping


def test_a_thread_watches_for_no_signal() -> None:
    handlers: list[Any] = []

    def work() -> None:
        with Session().watching_for_sigterm():
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
