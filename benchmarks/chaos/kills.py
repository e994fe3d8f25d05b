"""Kills runs until they end, and compares what they leave with what a run leaves that was never killed, to the bit.

Most of the kills come at file-system calls of a short run, one call after the other: all of them, if there are kills
enough. The others come at chance moments of longer runs, several to each: SIGKILL at any time, in a save, or at a
call, a write that is torn; SIGTERM, SIGINT, and SIGTERM with SIGKILL after it.

    python -m benchmarks.chaos.kills                        # 1,500 kills
    python -m benchmarks.chaos.kills --n=100 --seed=3
    python -m benchmarks.chaos.kills --seed=3 --only=call-17
"""

import argparse
import itertools
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.chaos import victims
from benchmarks.chaos.remains import differences, write_remains
from benchmarks.chaos.tally import Tally
from benchmarks.chaos.victims import VICTIMS, Nursery, Run, Strike

AT_CALL = "SIGKILL at a file-system call"
MEANS = {
    AT_CALL: 4,
    "SIGKILL in a save": 3,
    "SIGKILL at any time": 2,
    "SIGTERM": 2,
    "SIGTERM, then SIGKILL": 2,
    "SIGINT": 2,
}
"""How a run is killed at a chance moment, and how often of each fifteen times."""
GOOD_CODES = {
    signal.SIGKILL: {-signal.SIGKILL},
    signal.SIGTERM: {-signal.SIGTERM, 128 + signal.SIGTERM},
    signal.SIGINT: {-signal.SIGINT, 128 + signal.SIGINT},
}


@dataclass(frozen=True)
class Undisturbed:
    """A run that was never killed."""

    remains: dict[str, Any]
    seconds: float
    n_calls: int


@dataclass(frozen=True)
class Trial:
    """A run with all its kills."""

    name: str
    victim: str
    kills: tuple[str, ...]
    """The means, one after the other."""
    call: int = 0
    """If not 0, the first kill comes at this call."""


@dataclass(frozen=True)
class Moment:
    """When a run is killed: at a call, after some time, or in a save after some points of its history."""

    call: int
    seconds: float
    n_points: int


@dataclass(frozen=True)
class Outcome:
    """What came of a kill, or of a run at its end."""

    kind: str
    name: str
    """That of the trial."""
    fault: str = ""


def main() -> None:
    """Runs as many kills as are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=1500, help="how many kills")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--victims", nargs="+", choices=VICTIMS, default=[*VICTIMS])
    parser.add_argument(
        "--calls-of", choices=VICTIMS, default="short", help="the victim that is killed at one call after the other"
    )
    parser.add_argument("--only", help="the name of the one trial to repeat, such as call-17 or chance-3")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="how many runs at once")
    parser.add_argument("--without-compiler", action="store_true", help="see only the calls that Python makes")
    parser.add_argument("--results-dir", type=Path)
    flags = parser.parse_args()
    if not flags.without_compiler:
        victims.load_calls()
    victims.warm_up()
    directory = Path(tempfile.mkdtemp(prefix="trellis-chaos-"))
    undisturbed = {name: run_undisturbed(name, directory) for name in {flags.calls_of, *flags.victims}}
    tally = Tally("kills", flags.seed)

    def run(trial: Trial) -> Iterator[Outcome]:
        return run_trial(trial, directory, undisturbed[trial.victim], seed=flags.seed)

    trials = choose_trials(flags, n_calls=undisturbed[flags.calls_of].n_calls)
    for outcome in victims.share_out(trials, run, n_jobs=flags.jobs):
        same = f"--seed={flags.seed} --victims {' '.join(flags.victims)} --calls-of={flags.calls_of}"
        tally.add(outcome.kind, fault=outcome.fault, again=f"{same} --only={outcome.name}")
    if not tally.faults:
        shutil.rmtree(directory)
    sys.exit(tally.finish(flags.results_dir))


def run_undisturbed(name: str, directory: Path) -> Undisturbed:
    """Runs a victim twice: to fill the cache of programs, and to see that two undisturbed runs are equal."""
    nursery = Nursery(directory)
    found = []
    for number in range(2):
        path = directory / f"undisturbed_{name}_{number}"
        started = time.monotonic()
        output = nursery.finish(counting(VICTIMS[name]), path, fills_cache=not number)
        seconds = time.monotonic() - started
        n_calls = int(output.split("calls: ")[1])
        found.append(Undisturbed(read_remains(nursery, path), seconds, n_calls))
    fault = differences(found[0].remains, found[1].remains)
    if fault:
        sys.exit(f"Two undisturbed runs of `{name}` differ, so none can be compared: {fault}.")
    return found[1]


def counting(run: Callable[[Path], None]) -> Callable[[Path], None]:
    """A run that says at its end how many calls it has made."""

    def counted(directory: Path) -> None:
        victims.arm(directory, Strike(call=sys.maxsize))
        try:
            run(directory)
        finally:
            print(f"calls: {victims.n_calls()}")

    return counted


def choose_trials(flags: argparse.Namespace, *, n_calls: int) -> list[Trial]:
    """Trials that kill about as often as is asked for; a trial of a name is the same, however many there are."""
    choose = random.Random(flags.seed)
    if flags.only:
        kind, number = flags.only.split("-")
        is_at_call = kind == "call"
        return [trial_at_call(int(number), flags) if is_at_call else trial_by_chance(int(number), flags)]
    calls: Sequence[int] = range(1, n_calls + 1)
    n_at_calls = flags.n * 3 // 5
    if n_calls > n_at_calls:
        calls = sorted(choose.sample(calls, n_at_calls))
    trials = [trial_at_call(call, flags) for call in calls]
    n_left = flags.n - len(trials)
    for number in itertools.count():
        if n_left <= 0:
            break
        trials.append(trial_by_chance(number, flags))
        n_left -= len(trials[-1].kills)
    return trials


def trial_at_call(call: int, flags: argparse.Namespace) -> Trial:
    """A run that is killed at one call."""
    return Trial(f"call-{call}", flags.calls_of, (AT_CALL,), call)


def trial_by_chance(number: int, flags: argparse.Namespace) -> Trial:
    """A run that is killed several times."""
    name = f"chance-{number}"
    choose = random.Random(f"{flags.seed}/{name}")
    kills = choose.choices([*MEANS], weights=[*MEANS.values()], k=choose.randint(2, 5))
    return Trial(name, choose.choice(flags.victims), tuple(kills))


def run_trial(trial: Trial, directory: Path, undisturbed: Undisturbed, *, seed: int) -> Iterator[Outcome]:
    """Kills a run again and again, lets it end, and compares what is left; a difference is the last kill's fault."""
    choose = random.Random(f"{seed}/{trial.name}/kills")
    nursery = Nursery(directory)
    path = directory / trial.name
    kind = f"{trial.victim}: not killed, as it had ended"
    fault = ""
    for n_kills, means in enumerate(trial.kills):
        # What is left to do becomes less with every kill, and a run that has ended cannot be killed.
        share = choose.random() / (n_kills + 1)
        call = trial.call or 1 + int(share * undisturbed.n_calls)
        moment = Moment(call, share * undisturbed.seconds, int(share * len(undisturbed.remains["history"])))
        run, last_signal = kill(trial.victim, means, nursery, path, choose, moment)
        if run.end() == 0:
            break
        if n_kills:
            yield Outcome(kind, trial.name, fault)
        kind = f"{trial.victim}: {means}"
        fault = misbehaviour(trial.victim, run, last_signal)
        shutil.copy(run.log, directory / f"{path.name}.{n_kills}.log")
    try:
        nursery.finish(VICTIMS[trial.victim], path)
        fault = fault or differences(read_remains(nursery, path), undisturbed.remains)
    except RuntimeError as error:
        fault = f"the resumed run {error}"
    yield Outcome(kind, trial.name, fault)
    if fault:
        print(f"What it has left and printed is in {path}*", flush=True)
        return
    shutil.rmtree(path)
    for log in directory.glob(f"{path.name}.*"):
        log.unlink()


def kill(
    victim: str, means: str, nursery: Nursery, path: Path, choose: random.Random, moment: Moment
) -> tuple[Run, int]:
    """Starts a run and kills it by some means; returns it with the last signal that was sent."""
    if means == AT_CALL:
        strike = Strike(moment.call, is_torn=choose.random() < 0.5)
        return nursery.start(VICTIMS[victim], path, strike=strike), signal.SIGKILL
    run = nursery.start(VICTIMS[victim], path)
    if means == "SIGKILL in a save":
        wait_for_save(run, path, n_points=moment.n_points)
        time.sleep(choose.uniform(0, 0.02))
        run.send(signal.SIGKILL)
        return run, signal.SIGKILL
    run.wait(moment.seconds)
    first, *rest = [getattr(signal, name) for name in means.removesuffix(" at any time").split(", then ")]
    run.send(first)
    for last in rest:
        run.wait(choose.uniform(0, 0.3))
        run.send(last)
    return run, rest[-1] if rest else first


def wait_for_save(run: Run, path: Path, *, n_points: int) -> None:
    """Waits until a run that has written so many points writes a file, or has ended."""
    events = path / "events.jsonl"
    while run.wait(0) is None:
        with suppress(FileNotFoundError):
            if events.read_text().count('"summary"') >= n_points and any(path.rglob(".*.writing")):
                return


def misbehaviour(victim: str, run: Run, last_signal: int) -> str:
    """What is wrong with how a run has ended after a signal; empty if nothing is."""
    good = set.union(*(codes for number, codes in GOOD_CODES.items() if number in (last_signal, signal.SIGTERM)))
    # A script without a handler ends with a traceback; so does the command before its own code is reached.
    is_command = victim == "experiment" and "trellis/cli/main.py" in run.output
    if not is_command and last_signal == signal.SIGINT:
        good |= {1}
    if is_command and "Traceback (most recent call last)" in run.output:
        return f"with a traceback it {run.ending}"
    return "" if run.code in good else f"it {run.ending}"


def read_remains(nursery: Nursery, path: Path) -> dict[str, Any]:
    """What a run has left."""
    nursery.finish(write_remains, path)
    file = path.with_name(f"{path.name}.json")
    found: dict[str, Any] = json.loads(file.read_text())
    file.unlink()
    return found


if __name__ == "__main__":
    main()
