"""What was tried and what came of it: a table at the end, and every fault with all that is needed to see it again."""

import json
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Tally:
    """Counts the trials of one script by kind; a trial is fine, or has a fault.

    Example:
        tally = Tally("kills", seed=0)
        tally.add("SIGKILL in a save")
        tally.add("SIGKILL in a save", fault="regular_20 differs from that of the undisturbed run", again="--only=17")
        sys.exit(tally.finish(results_dir))
    """

    title: str
    """What was done, in a word; the file of results is named after it."""
    seed: int
    tried: Counter[str] = field(default_factory=Counter)
    faults: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    notes: list[str] = field(default_factory=list)
    """What else there is to say, a line each."""
    started: float = field(default_factory=time.monotonic)

    def add(self, kind: str, *, fault: str = "", again: str = "") -> None:
        """Counts one trial.

        Args:
            fault: What went wrong; empty if nothing did.
            again: The arguments of the script that repeat this trial.
        """
        self.tried[kind] += 1
        if fault:
            self.faults[kind].append(f"{fault} (again: {again})" if again else fault)
            print(f"FAULT, {kind}: {self.faults[kind][-1]}", flush=True)

    def finish(self, results_dir: Path | None = None) -> int:
        """Prints the table, writes it if there is a directory for it, and returns the exit code: 1 after a fault."""
        n_faults = sum(map(len, self.faults.values()))
        rows = [(kind, n, len(self.faults[kind])) for kind, n in sorted(self.tried.items())]
        rows.append(("all", self.tried.total(), n_faults))
        table = [
            "| what | tried | faults |",
            "|---|---|---|",
            *(f"| {kind} | {n:,} | {bad} |" for kind, n, bad in rows),
        ]
        print("\n".join([*table, *self.notes]))
        print(f"Seed {self.seed}, {time.monotonic() - self.started:.0f} seconds.")
        if results_dir is not None:
            results_dir.mkdir(parents=True, exist_ok=True)
            counts = {kind: {"tried": n, "faults": self.faults[kind]} for kind, n in sorted(self.tried.items())}
            seconds = round(time.monotonic() - self.started)
            found = {"seed": self.seed, "seconds": seconds, "trials": counts, "notes": self.notes}
            text = json.dumps(found, indent=1)
            (results_dir / f"chaos_{self.title}.json").write_text(f"{text}\n")
        return 1 if n_faults else 0
