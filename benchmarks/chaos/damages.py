"""Damages every file of a run by every means, resumes the run, and asks whether anything was lost in silence.

A small run is made once and stopped half-way. For each trial its directory is copied, one file of the copy is damaged,
and the run is resumed there. It has to end with a clear error that names the
damage; or with all arrays as the undisturbed run has them, to the bit, and, where anything else differs, with a line on
the screen that names the damaged file. A traceback, a hang or a difference without a word is a fault.

    python benchmarks/chaos/damages.py --n_trials=1000
"""

import argparse
import contextlib
import io
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from tally import Tally

SECONDS = 120
"""After which a run that does not end hangs."""
STOP = 12
"""A step at which a checkpoint is due: all before its files is done when the run is stopped."""

FOREIGN = ("regular_99", "preempted_10", ".lock", "params.1.yaml")
"""What somebody else has put there, before it is damaged."""

Means = Callable[[Path, list[Path], random.Random], None]


def _cut(file: Path, others: list[Path], rng: random.Random) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def _cut_anywhere(file: Path, others: list[Path], rng: random.Random) -> None:
    file.write_bytes(file.read_bytes()[: rng.randrange(max(1, file.stat().st_size))])


def _cut_a_line(file: Path, others: list[Path], rng: random.Random) -> None:
    lines = file.read_bytes().splitlines(keepends=True)
    if lines:
        del lines[rng.randrange(len(lines))]
    file.write_bytes(b"".join(lines))


def _flip_head(file: Path, others: list[Path], rng: random.Random) -> None:
    content = file.read_bytes()
    file.write_bytes(bytes(byte ^ 0xFF for byte in content[:16]) + content[16:])


def _flip_bit(file: Path, others: list[Path], rng: random.Random) -> None:
    content = bytearray(file.read_bytes())
    if content:
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    file.write_bytes(content)


def _garble(file: Path, others: list[Path], rng: random.Random) -> None:
    file.write_bytes(rng.randbytes(max(1, file.stat().st_size)))


def _make_directory(file: Path, others: list[Path], rng: random.Random) -> None:
    file.unlink()
    file.mkdir()


def _link_to_nothing(file: Path, others: list[Path], rng: random.Random) -> None:
    file.unlink()
    file.symlink_to(file.parent / "gone" / "away")


def _exchange(file: Path, others: list[Path], rng: random.Random) -> None:
    content = rng.choice(others).read_bytes()
    file.write_bytes(content)


MEANS: dict[str, Means] = {
    "removed": lambda file, others, rng: file.unlink(),
    "emptied": lambda file, others, rng: file.write_bytes(b"") and None,
    "cut in half": _cut,
    "cut anywhere": _cut_anywhere,
    "a line taken out": _cut_a_line,
    "the first bytes flipped": _flip_head,
    "one bit flipped": _flip_bit,
    "garbage": _garble,
    "not UTF-8": lambda file, others, rng: file.write_bytes(b"\xff\xfe\xfa" + file.read_bytes()) and None,
    "a directory": _make_directory,
    "a link to nothing": _link_to_nothing,
    "not to be read": lambda file, others, rng: file.chmod(0),
    "another file of the run": _exchange,
}


def experiment() -> Any:
    """A run of a second: dropout, averages, the best file, data that is left out, every kind of file."""
    import trellis
    import trellis.experiments.digits

    params = trellis.get_exp_config("digits/classifier")
    params.override(
        {
            "task": {"hidden_size": 4, "dropout_rate": 0.3},
            "trainer": {
                "optimizer_config": {"ema": {"average_decay": 0.9}, "warmup": {"linear": {"warmup_steps": 1}}},
                "train_steps": 16,
                "steps_per_loop": 4,
                "summary_interval": 4,
                "checkpoint_interval": 4,
                "validation_interval": 4,
                "validation_steps": 1,
                "max_to_keep": 2,
                "recovery_max_trials": 1,
            },
            "runtime": {"distribution_strategy": "one_device", "seed": 5},
        }
    )
    return params


class Stopped(Exception):
    """Ends a run before its last step."""


def train(directory: Path, *, stops: bool = False) -> None:
    """Trains to the end, from where the directory is; or up to a step between two checkpoint files."""
    import trellis

    def stop(checkpoint: Any) -> Any:
        if stops and checkpoint.step == STOP:
            raise Stopped
        return checkpoint

    with contextlib.suppress(Stopped):
        trellis.run_experiment(experiment(), mode="train_and_eval", model_dir=directory, extensions=[stop])


def contents(directory: Path) -> dict[str, Any]:
    """The arrays of every checkpoint file, and under `history` all else that does not measure time."""
    from trellis.extensions import checkpoint_storage, read_summaries, steps_with_points
    from trellis.loops import CLOCKED_METRICS

    def metrics_of(event: dict[str, Any]) -> dict[str, Any]:
        return {
            group: {name: value for name, value in named.items() if name not in CLOCKED_METRICS}
            for group, named in event["metrics"].items()
        }

    found: dict[str, Any] = {}
    for file in sorted(directory.rglob("manifest.json")):
        manifest = checkpoint_storage.read_manifest(file.parent)
        name = file.parent.relative_to(directory).as_posix()
        if ".damaged" not in name:
            arrays = checkpoint_storage.read_arrays(file.parent, manifest["tree"])
            found[name] = {path: (array.dtype, array.tobytes()) for path, array in arrays.items()}
    events = read_summaries(directory / "events.jsonl")
    found["history"] = {
        "events": {step: metrics_of(event) for step, event in events.items()},
        "train": sorted(steps_with_points(directory / "train")),
        "validation": sorted(steps_with_points(directory / "validation")),
        "info": json.loads((directory / "best/info.json").read_text()),
        "skipped": [window.read_text() for window in directory.glob("skipped_data.json")],
        "params": (directory / "params.yaml").read_text(),
    }
    return found


class Bench:
    """The run before its damage, and the end that every resumed run has to reach."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.half = directory / "half"
        with contextlib.redirect_stdout(io.StringIO()):
            # As if two batches had been left out after a loss that was no number.
            self.half.mkdir()
            (self.half / "skipped_data.json").write_text('[\n {\n  "step": 4,\n  "n_batches": 2\n }\n]')
            train(self.half, stops=True)
            whole = Path(shutil.copytree(self.half, directory / "whole"))
            train(whole)
        self.expected = contents(whole)
        files = [path.relative_to(self.half) for path in self.half.rglob("*") if path.is_file()]
        self.files = sorted([*files, *map(Path, FOREIGN)])

    def trials(self, seed: int, n_trials: int) -> Iterator[tuple[int, Path, str]]:
        """Yields (number, file, means): each pair once, in an order by chance, and then again with other chances."""
        pairs = [(file, means) for file in self.files for means in MEANS]
        rng = random.Random(seed)
        for number in range(n_trials):
            if number % len(pairs) == 0:
                rng.shuffle(pairs)
            yield (number, *pairs[number % len(pairs)])

    def fault_of(self, file: Path, means: str, *, seed: int) -> str:
        """Damages a file of a copy, resumes the run there; returns what went wrong, or nothing."""
        copy = Path(shutil.copytree(self.half, self.directory / f"trial-{os.getpid()}"))
        rng = random.Random(f"{seed} {file} {means}")
        others = [path for path in copy.rglob("*") if path.is_file() and path != copy / file]
        if file.name in FOREIGN:
            (copy / file).write_text("somebody else's\n")
        MEANS[means](copy / file, sorted(others), rng)
        try:
            return self._resumed(copy, file)
        finally:
            shutil.rmtree(copy)

    def _resumed(self, copy: Path, file: Path) -> str:
        from trellis.errors import TrellisError

        screen = io.StringIO()
        names = [name for name in (file.name, *(parent.name for parent in file.parents)) if name]
        with contextlib.redirect_stdout(screen), contextlib.redirect_stderr(screen):
            try:
                with _time_limit():
                    train(copy)
                verdict = self._verdict(contents(copy))
            except TrellisError as error:
                is_named = any(name in str(error) for name in names)
                return "" if is_named else f"the error does not name it: {error}"
            except Exception:  # noqa: BLE001  (a fault, whatever it is)
                return traceback.format_exc()[-3000:]
        lines = [line for line in screen.getvalue().splitlines() if _tells_of_damage(line)]
        is_named = any(name in line for name in names for line in lines)
        if not verdict or (verdict.startswith("HISTORY") and is_named):
            return ""
        return f"{verdict}; of damage the screen says only: {lines}"

    def _verdict(self, found: dict[str, Any]) -> str:
        names = [name for name in self.expected if name != "history" and found.get(name) != self.expected[name]]
        lasting = [name for name in names if not name.startswith("best/")]
        if lasting:
            return f"DIFFERENT: {', '.join(lasting)}"
        history, expected = found["history"], self.expected["history"]
        lost = [*names, *(name for name in expected if history[name] != expected[name])]
        return f"HISTORY differs: {', '.join(lost)}" if lost else ""


def _tells_of_damage(line: str) -> bool:
    words = ("damaged", "set aside", "has no summary", "cannot be read", "does not ", "cut short", "is kept as")
    return any(word in line for word in words)


@contextlib.contextmanager
def _time_limit() -> Iterator[None]:
    def stop(number: int, frame: object) -> None:
        raise TimeoutError(f"the run has not ended after {SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def keep_programs(directory: Path) -> None:
    """Has every program compiled once for all trials."""
    import jax

    jax.config.update("jax_compilation_cache_dir", str(directory))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def main() -> int:
    """Runs the trials; returns 1 if there was a fault."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n_trials", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="the number of one trial")
    parser.add_argument("--results_dir", type=Path)
    flags = parser.parse_args()
    tally = Tally("damages", seed=flags.seed)
    with tempfile.TemporaryDirectory() as directory:
        keep_programs(Path(directory) / "programs")
        bench = Bench(Path(directory))
        print(f"{len(bench.files)} files, {len(MEANS)} means.", flush=True)
        for number, file, means in bench.trials(flags.seed, flags.n_trials):
            if flags.only in (None, number):
                fault = bench.fault_of(file, means, seed=flags.seed + number)
                tally.add(means, fault=fault and f"{file}: {fault}", again=f"--seed={flags.seed} --only={number}")
    return tally.finish(flags.results_dir)


if __name__ == "__main__":
    sys.exit(main())
