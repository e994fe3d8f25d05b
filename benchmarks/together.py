"""Many trials as one program against the same trials one after another: digits, and a MiniLM-like fine-tuning.

    python benchmarks/together.py --experiment digits minilm --replicas 16 64

Whole runs as a user has them: starts, evaluations, checkpoint files. One after another is the time of one trial with
all programs compiled before, times the number of trials. Trials differ in the learning rate and in a dropout rate.
"""

import argparse
import contextlib
import io
import json
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from trellis import runtime
from trellis.experiments import ExperimentConfig, ReplicaRun, resolve, run_experiment, run_replicas

RESULTS = Path(__file__).parent / "results" / "together.md"
RATES = "trainer.optimizer_config.learning_rate"
N_EXAMPLES = 2048
N_WORDS = 60
SIZES = {"num_layers": 6, "hidden_size": 384, "num_attention_heads": 12, "intermediate_size": 1536, "vocab_size": 8192}
SMALL = {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 128, "vocab_size": 8192}
HOW = (
    "One after another is the time of one trial, with all compiled before, times the number of trials; together has "
    "the compilation in it. The step ratio is that of steps alone, when all is compiled."
)
HEAD = "| experiment | steps | trials | one alone, s | one after another, s | together, s | ratio | step ratio |"


def digits(directory: Path, n_steps: int, small: bool) -> tuple[str, list[str], list[str]]:
    """The experiment, its settings, and the fields in which trials differ: a learning rate and a dropout rate."""
    return "digits/classifier", [], [f"{RATES}.cosine.initial_learning_rate", "task.dropout_rate"]


def minilm(directory: Path, n_steps: int, small: bool) -> tuple[str, list[str], list[str]]:
    """The same of an encoder of MiniLM's size on sentences of one of two vocabularies, and noise between."""
    letters = random.Random(0)
    words = sorted({"".join(letters.choices("abcdefghijklmnopqrstuvwxyz", k=6)) for _ in range(8000)})
    vocab = directory / "vocab.txt"
    vocab.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]) + "\n")
    for name, n_examples in (("train", N_EXAMPLES), ("valid", 256)):
        rows = []
        for index in range(n_examples):
            label = index % 2
            clues = letters.choices(words[label::2][:50], k=6)
            rows.append({"text": " ".join([*clues, *letters.choices(words, k=N_WORDS)]), "label": label})
        (directory / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    encoder = "task.model.encoder"
    settings = [f"{encoder}.bert.{name}={value}" for name, value in (SMALL if small else SIZES).items()]
    for side, name in (("train_data", "train"), ("validation_data", "valid")):
        settings += [
            f"task.{side}.input_path={directory / name}.jsonl",
            f"task.{side}.vocab_file={vocab}",
            f"task.{side}.text_fields=[text]",
            f"task.{side}.seq_length=64",
            f"task.{side}.global_batch_size=32",
        ]
    settings += ["task.model.num_classes=2", "trainer.train_epochs=0", "trainer.optimizer_config.warmup.type=null"]
    paths = [f"{RATES}.polynomial.initial_learning_rate", f"{encoder}.bert.dropout_rate"]
    return "bert/sentence_prediction_text", settings, paths


EXPERIMENTS = {"digits": digits, "minilm": minilm}


def build_configs(
    name: str, settings: Sequence[str], paths: Sequence[str], *, n_trials: int, n_steps: int
) -> list[ExperimentConfig]:
    """The config of each trial."""
    intervals = ("steps_per_loop", "summary_interval", "validation_interval", "checkpoint_interval")
    common = [
        "runtime.distribution_strategy=one_device",
        f"trainer.train_steps={n_steps}",
        *(f"trainer.{interval}={n_steps // 2}" for interval in intervals),
        *settings,
    ]
    generator = np.random.default_rng(0)
    values = zip(10 ** generator.uniform(-5, -3, n_trials), generator.uniform(0.05, 0.3, n_trials), strict=True)
    return [
        resolve(name, settings=[*common, *(f"{path}={value:.6g}" for path, value in zip(paths, pair, strict=True))])
        for pair in values
    ]


def step_seconds(model_dir: Path) -> float:
    """Seconds of a step in the second half of a run, when all is compiled."""
    events = [json.loads(line) for line in (model_dir / "events.jsonl").read_text().splitlines()]
    return float([event for event in events if event["kind"] == "summary"][-1]["metrics"]["train"]["seconds_per_step"])


def measure(experiment: str, *, n_trials: int, n_steps: int, small: bool, directory: Path) -> str:
    """One row of the table."""
    name, settings, paths = EXPERIMENTS[experiment](directory, n_steps, small)
    configs = build_configs(name, settings, paths, n_trials=n_trials, n_steps=n_steps)
    alone = []
    for index in range(2):
        started = time.perf_counter()
        run_experiment(configs[index], mode="train_and_eval", model_dir=directory / f"alone_{index}")
        alone.append(time.perf_counter() - started)
    runs = [
        ReplicaRun(name=f"{index}", params=params, model_dir=directory / "together" / f"{index}")
        for index, params in enumerate(configs)
    ]
    started = time.perf_counter()
    errors = run_replicas(runs, paths=paths)
    together = time.perf_counter() - started
    assert not any(errors), errors
    in_turn = alone[1] * n_trials
    steps = step_seconds(directory / "alone_1") * n_trials / step_seconds(directory / "together" / "0")
    times = f"{alone[1]:.1f} | {in_turn:.0f} | {together:.1f} | {in_turn / together:.1f} | {steps:.1f}"
    return f"| {experiment}{', small' if small else ''} | {n_steps} | {n_trials} | {times} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiment", nargs="+", choices=EXPERIMENTS, default=[*EXPERIMENTS])
    parser.add_argument("--replicas", nargs="+", type=int, default=[16, 64])
    parser.add_argument("--steps", type=int, help="of each trial; the default is 500 of digits and 60 of minilm")
    parser.add_argument("--small", action="store_true", help="an encoder of 2 layers of 64, for a CPU")
    flags = parser.parse_args()
    runtime.keep_programs()
    device = jax.devices()[0]
    rows = [HEAD, "|" + " --- |" * (HEAD.count("|") - 1)]
    for experiment in flags.experiment:
        n_steps = flags.steps or {"digits": 500, "minilm": 60}[experiment]
        for n_trials in flags.replicas:
            with tempfile.TemporaryDirectory() as directory, contextlib.redirect_stdout(io.StringIO()):
                small = flags.small and experiment == "minilm"
                row = measure(experiment, n_trials=n_trials, n_steps=n_steps, small=small, directory=Path(directory))
            rows.append(row)
            print(row, flush=True)
    text = "\n".join(
        [
            "# Many trials as one program",
            "",
            f"Made by `benchmarks/together.py` on {device.device_kind}, JAX {jax.__version__}. {HOW}",
            "",
            *rows,
            "",
        ]
    )
    RESULTS.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
