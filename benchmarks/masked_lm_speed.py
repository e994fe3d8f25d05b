"""Masked-LM steps a second for a small BERT, beside Lightning and the Hugging Face Trainer with `BertForMaskedLM`.

Run it as `python benchmarks/masked_lm_speed.py`; benchmarks/README.md says what is measured and how.
"""

import argparse
import json
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from loop_overhead_report import describe_machine
from masked_lm_speed_workers import CONTENDERS, Worker

OURS = "Trellis"


@dataclass(frozen=True)
class Measurement:
    """One contender in one round."""

    contender: str
    round: int
    steps_per_second: float


def measure(contenders: Sequence[str], *, n_rounds: int, n_steps: int) -> list[Measurement]:
    """Measures every contender once a round, in an order that is rotated from round to round."""
    found: list[Measurement] = []
    with ExitStack() as stack:
        workers = {name: stack.enter_context(Worker(name)) for name in contenders}
        for name, worker in workers.items():
            print(f"  warming up {name}", flush=True)
            worker.measure(n_steps=2)
        for number in range(n_rounds):
            print(f"  round {number + 1} of {n_rounds}", flush=True)
            first = number % len(contenders)
            order = [*contenders[first:], *contenders[:first]]
            found += [Measurement(name, number, n_steps / workers[name].measure(n_steps=n_steps)) for name in order]
    return found


def report(found: Sequence[Measurement], *, machine: str, n_steps: int) -> str:
    """The table, as Markdown."""
    rounds = sorted({item.round for item in found})
    speed = {(item.contender, item.round): item.steps_per_second for item in found}
    model = (
        "BERT of 4 layers, 256 wide, 4 heads; vocabulary 30522; length 128, batch 16, 20 predictions; AdamW, float32"
    )
    medians = f"Medians of {len(rounds)} rounds of {n_steps} steps; × is how many times as fast Trellis is."
    lines = [
        "# Masked-LM speed\n",
        f"Made by `python benchmarks/masked_lm_speed.py` on {machine}.\n",
        f"{model}, no dropout. {medians}\n",
        "| contender | steps/s | × |",
        "|---|---|---|",
    ]
    for name in dict.fromkeys(item.contender for item in found):
        median = statistics.median(speed[name, number] for number in rounds)
        ratio = statistics.median(speed[OURS, number] / speed[name, number] for number in rounds)
        lines.append(f"| {name} | {median:.2f} | {ratio:.2f} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, shows the table and writes it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=20, help="in a measurement")
    parser.add_argument("--output-dir", type=Path, default=Path(__file__).parent / "results")
    flags = parser.parse_args(arguments)
    contenders = list(dict.fromkeys([OURS, *flags.contenders]))
    found = measure(contenders, n_rounds=flags.rounds, n_steps=flags.steps)
    machine = describe_machine()
    text = report(found, machine=machine, n_steps=flags.steps)
    flags.output_dir.mkdir(parents=True, exist_ok=True)
    values = {"machine": machine, "n_steps": flags.steps, "measurements": [asdict(item) for item in found]}
    (flags.output_dir / "masked_lm_speed.json").write_text(json.dumps(values, indent=1) + "\n")
    (flags.output_dir / "masked_lm_speed.md").write_text(text)
    print(f"\n{text}\nWritten to masked_lm_speed.md and masked_lm_speed.json in `{flags.output_dir}`.")


if __name__ == "__main__":
    main()
