"""What a training loop costs: steps a second beside raw JAX and the peers, how long a save blocks, time to first step.

Run it as `python benchmarks/loop_overhead.py`; benchmarks/README.md says what is measured and how.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from loop_overhead_report import describe_machine, report_saves, report_starts, report_steps
from loop_overhead_saves import Saved, measure_saves
from loop_overhead_starts import Started, measure_starts
from loop_overhead_workers import Measurement, measure_steps
from loop_overhead_workloads import WORKLOADS

PARTS = ("steps", "saves", "starts")


@dataclass
class Results:
    """The numbers of all parts, measured on one machine with one set of packages."""

    machine: str
    steps: list[Measurement] = field(default_factory=list)
    saves: list[Saved] = field(default_factory=list)
    starts: list[Started] = field(default_factory=list)

    @classmethod
    def load(cls, file: Path) -> "Results":
        """Those of an earlier run on the same machine and packages, so that parts can be measured apart."""
        machine = describe_machine()
        saved = json.loads(file.read_text()) if file.exists() else {}
        if saved.get("machine") != machine:
            return cls(machine)
        return cls(
            machine,
            # Older results do not have the time of all threads, and are not shown beside those that do.
            [Measurement(**item) for item in saved["steps"] if "processor" in item],
            [Saved(**item) for item in saved["saves"]],
            [Started(**item) for item in saved["starts"]],
        )

    def report(self) -> str:
        """All tables, as Markdown."""
        parts = [f"# Loop overhead\n\nMade by `python benchmarks/loop_overhead.py` on {self.machine}."]
        if self.steps:
            about = "Medians of the rounds; × is how many times as fast Trellis is."
            parts.append(f"## Steps\n\n{about}\n\n{report_steps(self.steps)}")
        if self.saves:
            parts.append(f"## Saves\n\nParameters and Adam's state, float32.\n\n{report_saves(self.saves)}")
        if self.starts:
            parts.append(f"## From process start to the end of the first step\n\n{report_starts(self.starts)}")
        return "\n\n".join(parts) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures the parts asked for, shows the tables and writes them."""
    flags = parse(arguments)
    json_file = flags.output_dir / "loop_overhead.json"
    results, with_peers = Results.load(json_file), not flags.no_peers
    print(results.machine, flush=True)
    if "steps" in flags.parts:
        others = [item for item in results.steps if item.workload not in flags.workloads]
        results.steps = others + list(measure_steps(flags.workloads, n_rounds=flags.rounds, with_peers=with_peers))
    if "saves" in flags.parts:
        sizes = [size * 1_000_000 for size in flags.sizes]
        results.saves = list(measure_saves(sizes, n_rounds=flags.few_rounds, with_peers=with_peers))
    if "starts" in flags.parts:
        results.starts = list(measure_starts(n_rounds=flags.few_rounds, with_peers=with_peers))
    report = results.report()
    flags.output_dir.mkdir(parents=True, exist_ok=True)
    json_file.write_text(json.dumps(asdict(results), indent=1) + "\n")
    json_file.with_suffix(".md").write_text(report)
    print(f"\n{report}\nWritten to loop_overhead.md and loop_overhead.json in `{flags.output_dir}`.")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The flags."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="what to measure")
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS), help="of the part steps")
    parser.add_argument("--rounds", type=int, default=11, help="of the part steps")
    parser.add_argument("--few-rounds", type=int, default=3, help="of the parts saves and starts")
    parser.add_argument(
        "--sizes", nargs="+", type=int, default=[10, 100], help="of the part saves, in million parameters"
    )
    parser.add_argument("--no-peers", action="store_true", help="only raw JAX, Orbax and Trellis")
    results_dir = Path(__file__).parent / "results"
    parser.add_argument("--output-dir", type=Path, default=results_dir, help="where loop_overhead.md and .json go")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
