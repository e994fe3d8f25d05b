"""How much there is to read: the files of ours that a run crosses from its entry to a metric on the screen.

Three real commands are traced, with every process that they start: a loop script, `trellis train` of `bert/local`, and
`trellis run` of a module file. A file counts if one of its functions runs on the way; what runs only while modules are
imported does not count. The first number of a row is the lines of the functions that run, the second those of the whole
file. `docs/architecture.md` shows the output.

    .venv/bin/python benchmarks/journeys.py             # all three
    .venv/bin/python benchmarks/journeys.py loop        # one of them
    .venv/bin/python benchmarks/journeys.py --update    # all three, into docs/architecture.md
    .venv/bin/python benchmarks/journeys.py --package   # code lines by package, without docstrings and comments
"""

import argparse
import ast
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGE = REPOSITORY / "src" / "trellis"
PAGE = REPOSITORY / "docs" / "architecture.md"

# Python imports this in every process that starts with it on its path. A line in the file that it writes is the time
# at which a function ran first, its file, and the number of its first line there.
TRACER = """
import os, sys, threading, time

PACKAGE = os.environ["JOURNEY_PACKAGE"] + os.sep
TRACE = open(os.environ["JOURNEY_TRACE"], "a", buffering=1)
OPTIMIZED = 1  # the flag of code that is a function's, and not that of a module or a class
seen = set()


def is_importing(frame):
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib") and frame.f_code.co_name == "exec_module":
            return True
        frame = frame.f_back
    return False


def hear(frame, event, argument):
    code = frame.f_code
    if event != "call" or code in seen or not code.co_filename.startswith(PACKAGE):
        return
    if code.co_flags & OPTIMIZED and not is_importing(frame):
        seen.add(code)
        print(time.monotonic(), code.co_filename.removeprefix(PACKAGE), code.co_firstlineno, file=TRACE)


threading.setprofile(hear)
sys.setprofile(hear)
"""

LOOP = """
import flax.linen as nn
import jax
import numpy as np
import optax

import trellis


def cross_entropy(logits, labels):
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


images = np.random.default_rng(0).normal(size=(64, 8)).astype(np.float32)
labels = images.argmax(-1).astype(np.int32)
model = nn.Dense(8)
train_stream = trellis.ExampleStream((images, labels), batch_size=16)
eval_stream = trellis.ExampleStream((images, labels), batch_size=16, n_epochs=1)
loop = trellis.TrainLoop(
    init=model.init,
    task=trellis.TrainTask(apply=model.apply, optimizer=optax.adam(1e-2), loss=cross_entropy, data=train_stream),
    rnkey=jax.random.key(0),
    n_steps=4,
    n_steps_per_checkpoint=2,
)
process = trellis.serial(
    trellis.EvalLoop(task=trellis.EvalTask(apply=model.apply, metrics={"loss": cross_entropy}, data=eval_stream)),
    trellis.SummaryLogger(),
)
for checkpoint in loop:
    process(checkpoint)
"""

MODULE = '''
from pathlib import Path


def run_fn(fn_args):
    """Counts to `train_steps`, and leaves what a model is: a file that is not empty."""
    for step in range(fn_args.train_steps):
        print(f"Step {step + 1}: loss {1 / (step + 1):.3f}", flush=True)
    Path(fn_args.serving_model_dir).mkdir(parents=True)
    Path(fn_args.serving_model_dir, "weights.txt").write_text("1.0")
'''

SHORT_RUN = (
    "--set=trainer.train_steps=2",
    "--set=trainer.steps_per_loop=1",
    "--set=trainer.validation_interval=2",
    "--set=trainer.validation_steps=1",
    "--set=trainer.optimizer_config.warmup.polynomial.warmup_steps=1",
)


@dataclass(frozen=True)
class Journey:
    """A command that is run in a folder of its own."""

    name: str
    command: tuple[str, ...]
    ends_with: str
    """What the screen shows when the journey is over; the end of the run if it is empty."""


JOURNEYS = {
    "loop": Journey("a loop script", ("loop.py",), r" eval/loss "),
    "bert": Journey(
        "`trellis train --experiment=bert/local`",
        ("-m", "trellis", "train", "--experiment=bert/local", "--model_dir=run", *SHORT_RUN),
        r" eval/\w+ ",
    ),
    "module": Journey(
        "`trellis run` of a module file",
        (
            "-m",
            "trellis",
            "run",
            "--module_file=my_module.py",
            "--examples=examples",
            "--model=model",
            "--train_steps=2",
            "--model_files=weights.txt",
        ),
        "",
    ),
}


def travel(journey: Journey, folder: Path) -> dict[str, set[int]]:
    """Runs a journey; returns the files that it crosses, below the package, in the order of their first entry.

    With each file come the numbers of the lines at which the functions begin that run.
    """
    _prepare(folder)
    trace = folder / "trace.txt"
    trace.touch()
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(folder / "tracer"), str(PACKAGE.parent)]),
        "JOURNEY_PACKAGE": str(PACKAGE),
        "JOURNEY_TRACE": str(trace),
        "XDG_CACHE_HOME": str(folder / "cache"),  # Empty, as for a first run.
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "",
        "PYTHONUNBUFFERED": "1",
    }
    run = subprocess.Popen(
        [sys.executable, *journey.command],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert run.stdout is not None
    screen, end = [], None
    for line in run.stdout:
        screen.append(line)
        if end is None and journey.ends_with and re.search(journey.ends_with, line):
            end = time.monotonic()
    if run.wait() != 0 or (journey.ends_with and end is None):
        raise SystemExit(f"{journey.name} did not get to its end:\n{''.join(screen)}")
    files: dict[str, set[int]] = {}
    entries = (line.split() for line in trace.read_text().splitlines())
    for moment, file, line_number in sorted(entries, key=lambda entry: float(entry[0])):
        if end is None or float(moment) < end:
            files.setdefault(file, set()).add(int(line_number))
    return files


def _prepare(folder: Path) -> None:
    (folder / "tracer").mkdir()
    (folder / "tracer" / "sitecustomize.py").write_text(TRACER)
    (folder / "loop.py").write_text(LOOP)
    (folder / "my_module.py").write_text(MODULE)
    for split in ("Split-train", "Split-eval"):
        (folder / "examples" / split).mkdir(parents=True)
        (folder / "examples" / split / "data.csv").write_text("x,y\n1,2\n")


def describe(journey: Journey) -> Iterator[str]:
    """Yields the lines that tell of a journey."""
    with tempfile.TemporaryDirectory() as folder:
        files = travel(journey, Path(folder))
    whole = {file: len((PACKAGE / file).read_text().splitlines()) for file in files}
    run = {file: count_function_lines(PACKAGE / file, starts) for file, starts in files.items()}
    total = f"{sum(run.values()):,} lines of functions that run, in {sum(whole.values()):,} lines"
    yield f"{journey.name}: {len(files)} files, {total}"
    yield from (f"  {run[file]:4d} of {whole[file]:4d}  {file}" for file in files)


def count_function_lines(file: Path, starts: set[int]) -> int:
    """Counts the lines of the functions of a file that begin at certain lines."""
    lines: set[int] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if first in starts:
                lines.update(range(first, (node.end_lineno or first) + 1))
    return len(lines)


def count_code(file: Path) -> int:
    """Counts the lines of a file without blank ones, comments and docstrings."""
    text = file.read_text()
    strings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            strings.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(text.splitlines(), start=1)
    return sum(
        bool(line.strip()) and not line.strip().startswith("#") and number not in strings for number, line in lines
    )


def describe_packages() -> Iterator[str]:
    """Yields the lines that tell how long each package is."""
    code, n_files = Counter[str](), Counter[str]()
    for file in sorted(PACKAGE.rglob("*.py")):
        folders = file.relative_to(PACKAGE).parts[:-1]
        name = "/".join(folders[:2]) + "/" if folders else "(root)"
        code[name] += count_code(file)
        n_files[name] += 1
    yield from (f"{name:<18}{n_files[name]:4d} files {code[name]:7,} lines of code" for name in sorted(code))
    yield f"{'all':<18}{n_files.total():4d} files {code.total():7,} lines of code"


def main() -> None:
    """Prints the journeys, or the sizes of the packages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"which journeys: {', '.join(JOURNEYS)}; the default is all")
    parser.add_argument("--update", action="store_true", help=f"write all journeys into {PAGE.relative_to(REPOSITORY)}")
    parser.add_argument("--package", action="store_true", help="print the sizes of the packages instead")
    args = parser.parse_args()
    unknown = [name for name in args.names if name not in JOURNEYS]
    if unknown:
        parser.error(f"there is no journey {unknown[0]!r}; there are {', '.join(JOURNEYS)}")
    if args.package:
        print(*describe_packages(), sep="\n")
        return
    if args.update:
        update([line for journey in JOURNEYS.values() for line in describe(journey)])
        return
    for name in args.names or JOURNEYS:
        print(*describe(JOURNEYS[name]), sep="\n", flush=True)


def update(lines: list[str]) -> None:
    """Writes lines into the block of code that the page on the architecture has under Journeys."""
    before, heading, rest = PAGE.read_text().partition("## Journeys\n")
    text, fence, block = rest.partition("```\n")
    after = block[block.index("```") :]
    PAGE.write_text("".join([before, heading, text, fence, *(f"{line}\n" for line in lines), after]))


if __name__ == "__main__":
    main()
