"""How much there is to read: the files of ours that a run crosses from its entry to a metric on the screen.

Three real runs are traced in processes of their own: a loop script, `trellis train` of `bert/local`, and `trellis run` of
a module file. A file counts, whole, if one of its functions runs on the way; what runs while modules are imported does
not. `docs/architecture.md` shows the output.

    .venv/bin/python benchmarks/journeys.py            # all three
    .venv/bin/python benchmarks/journeys.py loop       # one of them
    .venv/bin/python benchmarks/journeys.py --check docs/architecture.md   # whether the page is up to date
"""

import argparse
import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGE = REPOSITORY / "src" / "trellis"
CO_OPTIMIZED = 1
"""The flag of code that is a function's, and not that of a module or a class."""

MODULE = '''
from pathlib import Path


def run_fn(fn_args):
    """Counts to `train_steps`, and leaves what a model is: a file that is not empty."""
    for step in range(fn_args.train_steps):
        print(f"Step {step + 1}: loss {1 / (step + 1):.3f}")
    Path(fn_args.serving_model_dir).mkdir(parents=True)
    Path(fn_args.serving_model_dir, "weights.txt").write_text("1.0")
'''


def run_loop(directory: Path) -> None:
    """A script with a training loop, an evaluation and a report."""
    import flax.linen as nn
    import jax
    import numpy as np
    import optax

    import trellis

    def cross_entropy(logits: Any, labels: Any) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    images = np.random.default_rng(0).normal(size=(64, 8)).astype(np.float32)
    labels = images.argmax(-1).astype(np.int32)
    model = nn.Dense(8)
    loop = trellis.TrainLoop(
        init=model.init,
        task=trellis.TrainTask(
            apply=model.apply,
            optimizer=optax.adam(1e-2),
            loss=cross_entropy,
            data=trellis.ExampleStream((images, labels), batch_size=16),
        ),
        rnkey=jax.random.key(0),
        n_steps=4,
        n_steps_per_checkpoint=2,
    )
    process = trellis.serial(
        trellis.EvalLoop(
            task=trellis.EvalTask(
                apply=model.apply,
                metrics={"loss": cross_entropy},
                data=trellis.ExampleStream((images, labels), batch_size=16, n_epochs=1),
            )
        ),
        trellis.SummaryLogger(),
    )
    for checkpoint in loop:
        process(checkpoint)


def run_bert(directory: Path) -> None:
    """The command that `make train` runs, shortened."""
    settings = ("trainer.train_steps=2", "trainer.steps_per_loop=1", "trainer.validation_interval=2")
    settings += ("trainer.validation_steps=1", "trainer.optimizer_config.warmup.polynomial.warmup_steps=1")
    _trellis(
        "train",
        "--experiment=bert/local",
        f"--model_dir={directory / 'run'}",
        *(f"--set={setting}" for setting in settings),
    )


def run_module(directory: Path) -> None:
    """A module file with a `run_fn` of its own."""
    (directory / "my_module.py").write_text(MODULE)
    for split in ("Split-train", "Split-eval"):
        (directory / "examples" / split).mkdir(parents=True)
        (directory / "examples" / split / "data.csv").write_text("x,y\n1,2\n")
    _trellis(
        "run",
        f"--module_file={directory / 'my_module.py'}",
        f"--examples={directory / 'examples'}",
        f"--model={directory / 'model'}",
        "--train_steps=2",
        "--model_files=weights.txt",
    )


JOURNEYS: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "loop": ("a loop script", run_loop, r"eval\s+loss \| "),
    "bert": ("`trellis train --experiment=bert/local`", run_bert, r"eval.*(loss|accuracy)"),
    "module": ("`trellis run` of a module file", run_module, r""),
}
"""Each with a description, the run, and what the screen shows when the metric is there; empty is the end of the run."""


def _trellis(*arguments: str) -> None:
    from trellis.cli.main import main

    sys.argv = ["trellis", *arguments]
    assert main() == 0, "the run has failed"


class Trace:
    """Which files of ours have run a function, in the order of the first."""

    def __init__(self) -> None:
        self.files: dict[str, None] = {}
        self._is_over = False

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        """Hears of every call of a function."""
        code = frame.f_code
        if event != "call" or self._is_over or code.co_filename in self.files or not code.co_flags & CO_OPTIMIZED:
            return
        is_ours = code.co_filename.startswith(f"{PACKAGE}{os.sep}")
        if is_ours and code.co_name != "<module>" and not _is_importing(frame):
            self.files[code.co_filename] = None

    def end(self) -> None:
        """Hears no more."""
        self._is_over = True


def _is_importing(frame: FrameType | None) -> bool:
    """Whether a module is being imported further up the stack."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and "__spec__" in frame.f_globals and frame.f_back is not None:
            if frame.f_back.f_code.co_filename.startswith("<frozen importlib"):
                return True
        frame = frame.f_back
    return False


class Screen(io.TextIOBase):
    """What a run prints, which ends the trace when it shows the metric."""

    def __init__(self, pattern: str, trace: Trace) -> None:
        self.text = ""
        self._pattern = pattern
        self._trace = trace

    def write(self, text: str) -> int:
        self.text += text
        if self._pattern and re.search(self._pattern, self.text):
            self._trace.end()
        return len(text)


def trace(name: str) -> list[Path]:
    """Runs a journey in this process; returns its files, below the package."""
    _, run, pattern = JOURNEYS[name]
    heard = Trace()
    screen = Screen(pattern, heard)
    with tempfile.TemporaryDirectory() as directory, contextlib.redirect_stdout(screen):
        threading.setprofile(heard)
        sys.setprofile(heard)
        try:
            run(Path(directory))
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    assert re.search(pattern, screen.text), f"{name} has shown no metric:\n{screen.text}"
    return [Path(file).relative_to(PACKAGE) for file in heard.files]


def report(name: str) -> Iterator[str]:
    """Yields the lines that tell of a journey."""
    environment = os.environ | {"PYTHONPATH": str(PACKAGE.parent), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    command = [sys.executable, __file__, name, "--traced"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    files = done.stdout.split()
    lengths = {file: len((PACKAGE / file).read_text().splitlines()) for file in files}
    yield f"{JOURNEYS[name][0]}: {len(files)} files, {sum(lengths.values()):,} lines"
    yield from (f"  {lengths[file]:4d}  {file}" for file in files)


def main() -> None:
    """Prints the journeys, or compares them with a page that shows them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *JOURNEYS], help="which journeys; the default is all")
    parser.add_argument("--traced", action="store_true", help="run the journey in this process and list its files")
    parser.add_argument("--check", type=Path, help="a page that should show the output")
    args = parser.parse_args()
    if args.traced:
        print(*trace(args.names[0]), sep="\n")
        return
    text = "\n".join(line for name in args.names or JOURNEYS for line in report(name))
    print(text)
    if args.check and text not in args.check.read_text():
        raise SystemExit(f"{args.check} shows something else. Put the above in its place.")


if __name__ == "__main__":
    main()
