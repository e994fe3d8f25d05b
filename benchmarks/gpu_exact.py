"""Whether runs on a GPU are equal to the bit, killed or not, and what that costs a step.

Run it from the top of the repository as `python -m benchmarks.gpu_exact`; benchmarks/README.md says what is done.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

import trellis
from benchmarks.chaos.remains import differences, remains
from trellis.nlp.data import BertPretrainDataConfig
from trellis.nlp.models import BertEncoderConfig, EncoderConfig, PretrainerConfig
from trellis.nlp.tasks import MaskedLMConfig
from trellis.runtime import Placement
from trellis.tasks import lasting_init
from trellis.trainer import computing_model

RESULTS = Path(__file__).parent / "results"
MOST_SECONDS = 3600
TARGET = 1.03
"""How long an exact step may take, in steps that are not."""


@dataclass(frozen=True)
class Sizes:
    """How large all is."""

    command: tuple[str, ...]
    """What is trained twice undisturbed, and once killed in between."""
    n_steps: int
    checkpoint_interval: int
    encoder: Mapping[str, int]
    batch_size: int
    length: int
    n_predictions: int
    n_timed_steps: int

    def settings(self) -> list[str]:
        """The command's own settings."""
        trainer = {
            "train_steps": self.n_steps,
            "steps_per_loop": self.checkpoint_interval,
            "summary_interval": self.checkpoint_interval,
            "checkpoint_interval": self.checkpoint_interval,
            "validation_interval": self.checkpoint_interval,
        }
        return [*self.command, *(f"--set=trainer.{name}={value}" for name, value in trainer.items())]


REAL = Sizes(
    command=(
        "--experiment=bert/local",
        "--set=runtime.mixed_precision_dtype=bfloat16",
        "--set=task.train_data.global_batch_size=256",
        "--set=task.model.encoder.bert.hidden_size=512",
        "--set=task.model.encoder.bert.num_layers=4",
        "--set=task.model.encoder.bert.num_attention_heads=8",
        "--set=task.model.encoder.bert.intermediate_size=2048",
        "--set=task.model.encoder.bert.dropout_rate=0.1",
        "--set=task.model.encoder.bert.attention_dropout_rate=0.1",
    ),
    n_steps=600,
    checkpoint_interval=200,
    encoder={},
    batch_size=128,
    length=256,
    n_predictions=20,
    n_timed_steps=50,
)
TINY = Sizes(
    command=("--experiment=digits/classifier", "--set=trainer.optimizer_config.warmup.type=null"),
    n_steps=4000,
    checkpoint_interval=1000,
    encoder={"hidden_size": 16, "num_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 1100},
    batch_size=4,
    length=8,
    n_predictions=2,
    n_timed_steps=2,
)


@dataclass(frozen=True)
class Findings:
    """What came of it."""

    device: str
    second_run: str
    """In what a second undisturbed run differs from the first; empty if in nothing."""
    killed_run: str
    """In what a run that was killed and resumed differs."""
    exact: list[float]
    """Milliseconds a step, one number a round."""
    not_exact: list[float]

    @property
    def ratio(self) -> float:
        """How long an exact step takes, in steps that are not: the median over the rounds."""
        return statistics.median(one / other for one, other in zip(self.exact, self.not_exact, strict=True))


def find_platform() -> str:
    """What JAX runs on here, as another process tells: in this one JAX would take the memory that runs need."""
    command = [sys.executable, "-c", "import jax; print(jax.default_backend())"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1]


def train(sizes: Sizes, model_dir: Path) -> None:
    """Runs the command to its end."""
    done = _start(sizes, model_dir)
    if done.wait(MOST_SECONDS):
        raise SystemExit(f"The run failed: {_log(model_dir).read_text()}")


def train_and_kill(sizes: Sizes, model_dir: Path) -> None:
    """Runs the command, kills it after its first checkpoint file, and runs it again to its end."""
    victim = _start(sizes, model_dir)
    while not (model_dir / f"regular_{sizes.checkpoint_interval}").exists():
        if victim.poll() is not None:
            raise SystemExit(f"The run ended before it could be killed: {_log(model_dir).read_text()}")
        time.sleep(0.01)
    victim.send_signal(signal.SIGKILL)
    if victim.wait(MOST_SECONDS) != -signal.SIGKILL:
        raise SystemExit("The run ended before it could be killed. Give it more steps.")
    print(f"  killed after step {sizes.checkpoint_interval}", flush=True)
    train(sizes, model_dir)


def _start(sizes: Sizes, model_dir: Path) -> subprocess.Popen[str]:
    """Starts the command. It compiles all anew: a program that was kept would prove nothing of the next machine."""
    model_dir.parent.mkdir(parents=True, exist_ok=True)
    programs = tempfile.mkdtemp(dir=model_dir.parent)
    command = [sys.executable, "-m", "trellis", "train", *sizes.settings(), f"--model_dir={model_dir}"]
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": programs}
    with _log(model_dir).open("a") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT, text=True)


def _log(model_dir: Path) -> Path:
    return model_dir.with_suffix(".log")


def compare_runs(sizes: Sizes, folder: Path) -> tuple[str, str]:
    """In what a second run, and one that was killed, differ from the first."""
    runs: dict[str, Callable[[Sizes, Path], None]] = {"first": train, "second": train, "killed": train_and_kill}
    for name, run in runs.items():
        print(f"  the {name} run", flush=True)
        run(sizes, folder / name)
    left = {name: remains(folder / name) for name in runs}
    return differences(left["second"], left["first"]), differences(left["killed"], left["first"])


def build_loop(sizes: Sizes, *, exact: bool) -> trellis.TrainLoop:
    """The step of masked LM with the published dropout, on sequences in memory."""
    encoder = BertEncoderConfig(**sizes.encoder)
    data = BertPretrainDataConfig(seq_length=sizes.length, use_next_sentence_label=False)
    pretrainer = PretrainerConfig(encoder=EncoderConfig(bert=encoder))
    task = trellis.get_task(MaskedLMConfig(model=pretrainer, train_data=data, validation_data=data))
    model = computing_model(task.build_model(), runtime=trellis.RuntimeConfig(mixed_precision_dtype="bfloat16"))
    optimizer = optax.adamw(1e-4)
    metrics = task.build_metrics(training=True)

    def step(state: Any, batch: Any, keys: Any) -> Any:
        return task.train_step(batch, state=state, model=model, optimizer=optimizer, metrics=metrics, keys=keys)

    stream = trellis.ExampleStream(_examples(sizes, encoder.vocab_size), batch_size=sizes.batch_size)
    return trellis.TrainLoop(
        init=lasting_init(model),
        input_sample=(stream.batch(0),),
        task=trellis.TrainTask(data=stream, optimizer=optimizer, train_step=step),
        n_steps_per_checkpoint=1_000_000,
        devices=Placement(jax.devices()[:1], exact=exact),
        stdout=False,
        grads=False,
    )


def _examples(sizes: Sizes, vocab_size: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    n_examples = 8 * sizes.batch_size
    # As frequent as words are: a few make up most of a text.
    ids = np.minimum(generator.zipf(1.2, (n_examples, sizes.length)), vocab_size - 1).astype(np.int32)
    order = np.argsort(generator.random(ids.shape), axis=1)
    positions = np.sort(order[:, : sizes.n_predictions], axis=1).astype(np.int32)
    return {
        "input_word_ids": ids,
        "input_mask": np.ones_like(ids),
        "input_type_ids": np.zeros_like(ids),
        "masked_lm_positions": positions,
        "masked_lm_ids": np.take_along_axis(ids, positions, axis=1),
        "masked_lm_weights": np.ones(positions.shape, np.float32),
    }


def measure(sizes: Sizes, *, n_rounds: int) -> dict[bool, list[float]]:
    """Milliseconds a step by whether it is exact, in rounds in which both take turns."""
    loops = {exact: build_loop(sizes, exact=exact) for exact in (True, False)}
    found: dict[bool, list[float]] = {True: [], False: []}
    for number in range(n_rounds + 1):
        for exact in (True, False) if number % 2 else (False, True):
            loop = loops[exact]
            started = time.perf_counter()
            for checkpoint in loop(n_steps=loop.step + sizes.n_timed_steps):
                jax.block_until_ready(checkpoint.model_params)
            # The first round compiles.
            if number:
                found[exact].append((time.perf_counter() - started) / sizes.n_timed_steps * 1000)
    return found


def report(findings: Findings, sizes: Sizes) -> str:
    """What was found, as Markdown."""
    exact, other = (statistics.median(times) for times in (findings.exact, findings.not_exact))
    shape = f"{sizes.batch_size} × {sizes.length}, {sizes.n_predictions} predictions, bfloat16, dropout 0.1"
    lines = [
        "# Exact runs on a GPU\n",
        f"Made by `python -m benchmarks.gpu_exact` on {findings.device}.\n",
        "| run | differs from the first in |",
        "|---|---|",
        f"| a second one | {findings.second_run or 'nothing'} |",
        f"| one that was killed and resumed | {findings.killed_run or 'nothing'} |",
        "",
        f"Masked LM, {shape}; medians of {len(findings.exact)} rounds of {sizes.n_timed_steps} steps:\n",
        "| step | ms |",
        "|---|---|",
        f"| exact | {exact:.2f} |",
        f"| not exact | {other:.2f} |",
        "",
        f"An exact step takes {findings.ratio:.3f} times as long; at most {TARGET} is wanted.",
    ]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs all of it; the exit code is 1 if runs differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--tiny", action="store_true", help="small sizes, on whatever device there is: to try the script"
    )
    parser.add_argument("--rounds", type=int, default=9)
    flags = parser.parse_args(arguments)
    platform = find_platform()
    if platform != "gpu" and not flags.tiny:
        print(f"There is no GPU here, only {platform}: nothing is measured. To try the script, give --tiny.")
        return 0
    sizes = TINY if flags.tiny else REAL
    with tempfile.TemporaryDirectory() as folder:
        second_run, killed_run = compare_runs(sizes, Path(folder))
    print("  steps", flush=True)
    times = measure(sizes, n_rounds=flags.rounds)
    device = f"one {jax.devices()[0].device_kind}, JAX {jax.__version__}"
    findings = Findings(device, second_run, killed_run, exact=times[True], not_exact=times[False])
    print(report(findings, sizes))
    if not flags.tiny:
        (RESULTS / "gpu_exact.md").write_text(report(findings, sizes))
        (RESULTS / "gpu_exact.json").write_text(json.dumps(asdict(findings), indent=1) + "\n")
    return int(bool(second_run or killed_run))


if __name__ == "__main__":
    sys.exit(main())
