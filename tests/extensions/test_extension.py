"""Extensions: called in order, at their own times, and taking part in a run from its first step."""

import dataclasses
import gc
import weakref
from typing import Any

import pytest

import trellis
from tests import tiny
from trellis.errors import ArgumentError
from trellis.loops import Session


class Recorder(trellis.Extension):
    """Notes the sessions that it joins and the steps that it sees."""

    def __init__(self) -> None:
        self.sessions: list[Session] = []
        self.steps: list[int] = []

    def join(self, session: Session) -> None:
        self.sessions.append(session)

    def handle(self, checkpoint: trellis.Checkpoint) -> trellis.Checkpoint:
        self.steps.append(checkpoint.step)
        return checkpoint


def test_each_extension_gets_what_the_one_before_it_returned() -> None:
    def add(group: str) -> Any:
        return lambda summary: summary.with_metrics(**{group: {"n_groups": len(summary.metrics)}})

    summary = trellis.serial(add("a"), trellis.serial(add("b"), add("c")), add("d"))(tiny.checkpoint())
    assert summary.metrics == {name: {"n_groups": n} for n, name in enumerate("abcd")}


def test_no_extension_at_all_returns_the_checkpoint() -> None:
    checkpoint = tiny.checkpoint()
    assert trellis.serial()(checkpoint) is checkpoint


def test_what_cannot_be_called_is_no_extension() -> None:
    with pytest.raises(ArgumentError, match=r"^'log' is not an extension: it cannot be called with a checkpoint\.$"):
        trellis.serial("log")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="None is not an extension"):
        trellis.every(2, None)  # type: ignore[arg-type]


def test_an_extension_that_forgets_to_return_the_checkpoint_is_named() -> None:
    class Forgetful(Recorder):
        def handle(self, checkpoint: trellis.Checkpoint) -> trellis.Checkpoint:
            return None  # type: ignore[return-value]

    def forgetful_function(checkpoint: trellis.Checkpoint) -> None: ...

    with pytest.raises(ArgumentError, match="The extension Forgetful returned None, but it has to return the checkp"):
        trellis.serial(Recorder(), Forgetful())(tiny.checkpoint())
    with pytest.raises(ArgumentError, match="The extension .*forgetful_function.* returned None"):
        trellis.serial(forgetful_function)(tiny.checkpoint())


def test_every_acts_at_multiples_of_its_period_and_at_the_last_step() -> None:
    recorder = Recorder()
    process = trellis.every(4, recorder)
    for step in range(2, 12, 2):
        checkpoint = tiny.checkpoint(step, is_last=step == 10)
        assert process(checkpoint) is checkpoint
    assert recorder.steps == [4, 8, 10]


def test_every_returns_what_its_extensions_make_of_a_checkpoint_that_is_due() -> None:
    process = trellis.every(2, lambda summary: summary.with_metrics(eval={"seen": 1.0}))
    assert process(tiny.checkpoint(1)).metrics == {}
    assert process(tiny.checkpoint(2)).metrics == {"eval": {"seen": 1.0}}


@pytest.mark.parametrize("n_steps", [0, -1])
def test_a_period_has_at_least_one_step(n_steps: int) -> None:
    with pytest.raises(ArgumentError, match=rf"every\(n_steps={n_steps}\) has a period of less than one step"):
        trellis.every(n_steps, Recorder())


def test_an_attached_extension_joins_once_wherever_it_stands() -> None:
    recorders = [Recorder() for _ in range(3)]
    process = trellis.serial(recorders[0], trellis.every(10, recorders[1], trellis.serial(recorders[2])), lambda x: x)
    loop = tiny.train_loop(n_steps=3)
    loop.attach(process)
    loop.attach(process)
    assert [recorder.sessions for recorder in recorders] == [[loop.session]] * 3
    for checkpoint in loop:
        process(checkpoint)
    assert [recorder.sessions for recorder in recorders] == [[loop.session]] * 3
    assert [recorder.steps for recorder in recorders] == [[1, 2, 3], [3], [3]]


def test_an_extension_that_was_not_attached_joins_with_the_first_checkpoint() -> None:
    recorder, session = Recorder(), Session()
    process = trellis.every(10, recorder)
    process(tiny.checkpoint(1, session=session))
    process(tiny.checkpoint(2, session=session))
    assert recorder.sessions == [session]
    assert recorder.steps == []


def test_a_checkpoint_without_a_session_is_handled_too() -> None:
    recorder = Recorder()
    trellis.serial(recorder)(tiny.checkpoint(7))
    assert (recorder.sessions, recorder.steps) == ([], [7])


def test_an_extension_joins_the_session_of_each_loop_that_it_serves() -> None:
    recorder, sessions = Recorder(), [Session(), Session()]
    for session in sessions:
        recorder(tiny.checkpoint(1, session=session))
    assert recorder.sessions == sessions


@dataclasses.dataclass
class Threshold(Recorder):
    """Equal to another one with the same fields, and so without a hash."""

    value: float = 0.5
    sessions: list[Session] = dataclasses.field(default_factory=list, compare=False)
    steps: list[int] = dataclasses.field(default_factory=list, compare=False)


def test_an_extension_may_be_a_dataclass() -> None:
    one, other = Threshold(), Threshold()
    assert one == other
    loop = tiny.train_loop(n_steps=2)
    process = trellis.serial(one, trellis.every(2, other))
    loop.attach(process)
    for checkpoint in loop:
        process(checkpoint)
    assert [one.sessions, other.sessions] == [[loop.session]] * 2
    assert [one.steps, other.steps] == [[1, 2], [2]]


def test_an_extension_keeps_no_session_alive() -> None:
    recorder, session = trellis.serial(), Session()
    recorder(tiny.checkpoint(1, session=session))
    alive = weakref.ref(session)
    del session
    gc.collect()
    assert alive() is None


def test_what_is_no_checkpoint_is_refused_with_the_name_of_the_extension() -> None:
    with pytest.raises(ArgumentError, match="SummaryLogger was called with None, but it takes a checkpoint"):
        trellis.SummaryLogger()(None)  # type: ignore[arg-type]
