"""How much memory it takes to prepare a corpus of any size: the most that a command and its processes hold at once.

Run it as `python benchmarks/corpus_memory.py --text=wiki.train.raw --vocab=vocab.txt --sizes 1 10`;
benchmarks/README.md says what is measured and how.
"""

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

RESULTS = Path(__file__).parent / "results/corpus_memory.md"
WAYS = {
    "data pretraining": "trellis data pretraining --dupe_factor=1 --output_format=columns",
    "direct": "text read by a run: pairs of sentences",
    "direct, packed": "text read by a run: sequences that share rows",
}
_PAUSE = 0.02
_BATCHES = """
import sys
import numpy as np
from trellis.nlp.data import BertPretrainTextDataConfig, build_pretraining_stream

text, vocab, cache, is_packed = sys.argv[1:4] + [sys.argv[4] == "packed"]
config = BertPretrainTextDataConfig(
    input_path=text,
    vocab_file_path=vocab,
    cache_dir=cache,
    documents="headings",
    seq_length=128,
    max_predictions_per_seq=20,
    global_batch_size=256,
    use_next_sentence_label=not is_packed,
    pack_sequences=is_packed,
)
stream = build_pretraining_stream(config)
for step in range(64):
    stream.batch(step)
"""


@dataclass(frozen=True)
class Memory:
    """What processes hold, in bytes."""

    own: int
    """What only they have, and what would have to be swapped out."""
    mapped: int
    """Pages of files, which the system takes back when it needs room; those that several processes map count often."""


def measure(way: str, *, text: Path, vocab: Path, folder: Path) -> tuple[Memory, Memory, float]:
    """Runs one way in processes of its own; returns the peaks of all of them and of the first, and the seconds."""
    start = time.perf_counter()
    process = subprocess.Popen(_command(way, text, vocab, folder), stdout=subprocess.DEVNULL)
    peak, first_peak = Memory(0, 0), Memory(0, 0)
    while process.poll() is None:
        peak = _higher(peak, _memory_of(_tree(process.pid)))
        first_peak = _higher(first_peak, _memory_of([process.pid]))
        time.sleep(_PAUSE)
    if process.returncode:
        raise SystemExit(f"{way}: the command ended with code {process.returncode}.")
    return peak, first_peak, time.perf_counter() - start


def _command(way: str, text: Path, vocab: Path, folder: Path) -> list[str]:
    if way == "data pretraining":
        flags = (f"--input_file={text}", f"--output_file={folder / 'columns'}", f"--vocab_file={vocab}")
        settings = ("--documents=headings", "--dupe_factor=1", "--output_format=columns")
        return [sys.executable, "-m", "trellis", "data", "pretraining", *flags, *settings]
    return [sys.executable, "-c", _BATCHES, str(text), str(vocab), str(folder), way.rpartition(" ")[2]]


def _higher(one: Memory, two: Memory) -> Memory:
    return Memory(max(one.own, two.own), max(one.mapped, two.mapped))


def _tree(pid: int) -> list[int]:
    """A process and all that come of it."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *(member for child in children for member in _tree(int(child)))]


def _memory_of(pids: list[int]) -> Memory:
    own = mapped = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        except OSError:
            continue
        sizes = {
            name: int(rest.split()[0]) << 10
            for name, _, rest in (line.partition(":") for line in lines)
            if "Rss" in name
        }
        own += sizes.get("RssAnon", 0) + sizes.get("RssShmem", 0)
        mapped += sizes.get("RssFile", 0)
    return Memory(own, mapped)


def _copies(text: Path, n: int, *, to: Path) -> None:
    with to.open("wb") as file:
        for _ in range(n):
            with text.open("rb") as source:
                shutil.copyfileobj(source, file)


def main() -> None:
    """Measures, and writes a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--vocab", type=Path, required=True)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 10], help="how often the text is repeated")
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--folder", type=Path, help="where there is room for some times the text")
    parser.add_argument("--output", type=Path, default=RESULTS)
    flags = parser.parse_args()
    rows = []
    for size in flags.sizes:
        for way in flags.ways:
            with tempfile.TemporaryDirectory(dir=flags.folder) as name:
                text = Path(name, "text.txt")
                _copies(flags.text, size, to=text)
                peak, first, seconds = measure(way, text=text, vocab=flags.vocab, folder=Path(name, "out"))
                n_bytes = text.stat().st_size
            cells = (way, f"{size}", *(f"{n / 1e6:,.0f}" for n in (n_bytes, first.own, peak.own, first.mapped)))
            rows.append(f"| {' | '.join(cells)} | {seconds:.0f} |")
            print(rows[-1], flush=True)
    head = (
        "way",
        "times",
        "text MB",
        "own MB, first process",
        "own MB, all processes",
        "mapped MB, first process",
        "s",
    )
    flags.output.write_text(
        "\n".join(
            [
                "# Memory that a corpus takes",
                "",
                f"Made by `benchmarks/corpus_memory.py`; Python {platform.python_version()}, {os.cpu_count()} cores.",
                f"The text is {flags.text.name}, repeated.",
                "",
                *(f"* **{way}**: {what}" for way, what in WAYS.items()),
                "",
                f"| {' | '.join(head)} |",
                f"|{' --- |' * len(head)}",
                *rows,
                "",
            ]
        )
    )


if __name__ == "__main__":
    main()
