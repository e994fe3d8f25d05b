"""How quickly text becomes batches, beside `datasets` and `transformers` doing the same.

Run it as `python benchmarks/data_throughput.py --pairs=MRPC/train.tsv --text=wiki.train.raw --vocab=vocab.txt`;
benchmarks/README.md says what is measured and how.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

PAIR_LENGTH, TEXT_LENGTH, BATCH_SIZE = 128, 512, 32
TRELLIS, ALONE, ALL_CORES = "Trellis", "Hugging Face, one process", "Hugging Face, a process a core"
CONTENDERS = (TRELLIS, ALONE, ALL_CORES)
WORKLOADS = ("pairs", "packed text")
PACKAGES = ("numpy", "tokenizers", "datasets", "transformers", "torch")


@dataclass(frozen=True)
class Measured:
    """One contender's turn: how long it took to prepare the text, and to make one epoch of batches of it."""

    workload: str
    contender: str
    round: int
    n_tokens: int
    prepare: float
    epoch: float

    @property
    def rate(self) -> float:
        """Tokens a second, over both."""
        return self.n_tokens / (self.prepare + self.epoch)


def measure(workload: str, contender: str, flags: argparse.Namespace) -> tuple[float, float, int]:
    """Prepares a workload from nothing, then makes one epoch of batches; counts the tokens that are no padding."""
    with tempfile.TemporaryDirectory() as folder:
        # Once on a few lines first: what is imported or built at first use is not the work to be measured.
        go_through(workload, contender, first_lines(flags, Path(folder)))
    return go_through(workload, contender, flags)


def first_lines(flags: argparse.Namespace, folder: Path) -> argparse.Namespace:
    """The same flags, with files that hold the first lines of the given ones."""
    short = argparse.Namespace(**vars(flags))
    for name in ("pairs", "text"):
        path = Path(getattr(flags, name))
        lines = path.read_text().splitlines(keepends=True)
        (folder / path.name).write_text("".join(lines[:300]))
        setattr(short, name, str(folder / path.name))
    return short


def go_through(workload: str, contender: str, flags: argparse.Namespace) -> tuple[float, float, int]:
    """Returns the seconds to prepare, the seconds of an epoch, and the number of tokens."""
    with tempfile.TemporaryDirectory() as folder:
        start = perf_counter()
        if contender == TRELLIS:
            batches = trellis_batches(workload, flags, folder)
        else:
            n_processes = os.cpu_count() if contender == ALL_CORES else None
            batches = hugging_face_batches(workload, flags, folder, n_processes)
        prepared = perf_counter()
        n_tokens = sum(int(np.asarray(batch["mask"]).sum()) for batch in batches)
        return prepared - start, perf_counter() - prepared, n_tokens


def trellis_batches(workload: str, flags: argparse.Namespace, folder: str) -> Iterator[Mapping[str, Any]]:
    """Batches of ours."""
    from trellis.nlp import data

    shared: dict[str, Any] = {"global_batch_size": BATCH_SIZE, "cache_dir": folder}
    if workload == "pairs":
        stream: Any = data.build_sentence_stream(
            data.SentencePredictionTextDataConfig(
                input_path=flags.pairs,
                vocab_file=flags.vocab,
                text_fields=["#1 String", "#2 String"],
                label_field="Quality",
                seq_length=PAIR_LENGTH,
                **shared,
            )
        )
    else:
        stream = data.build_pretraining_stream(
            data.BertPretrainTextDataConfig(
                input_path=flags.text,
                vocab_file_path=flags.vocab,
                seq_length=TEXT_LENGTH,
                use_next_sentence_label=False,
                pack_sequences=True,
                **shared,
            )
        )
    # As for the peers, a last batch that is short is left out.
    n_rows = stream.n_examples if workload == "packed text" else Path(flags.pairs).read_text().count("\n") - 1
    return ({"mask": stream.batch(step)["input_mask"]} for step in range(n_rows // BATCH_SIZE))


def hugging_face_batches(
    workload: str, flags: argparse.Namespace, folder: str, n_processes: int | None
) -> Iterable[Mapping[str, Any]]:
    """Batches as the scripts run_glue and run_mlm of transformers make them."""
    import datasets
    import tokenizers
    import torch
    import transformers

    datasets.disable_progress_bars()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.BertWordPieceTokenizer(flags.vocab)._tokenizer,
        **{f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")},
    )
    options: dict[str, Any] = {"batched": True, "num_proc": n_processes}
    if workload == "pairs":
        table = datasets.load_dataset(
            "csv", data_files=flags.pairs, delimiter="\t", quoting=3, cache_dir=folder, split="train"
        )

        def encode(rows: Mapping[str, Any]) -> Any:
            return fast(
                rows["#1 String"], rows["#2 String"], truncation=True, max_length=PAIR_LENGTH, padding="max_length"
            )

        encoded = table.map(encode, remove_columns=["#1 String", "#2 String", "#1 ID", "#2 ID"], **options)
        order = encoded.shuffle(seed=0).with_format("numpy")
        return ({"mask": batch["attention_mask"]} for batch in order.iter(BATCH_SIZE, drop_last_batch=True))

    lines = datasets.load_dataset("text", data_files=flags.text, cache_dir=folder, split="train")

    def tokenize(rows: Mapping[str, Any]) -> Any:
        return fast([line for line in rows["text"] if line and not line.isspace()], return_special_tokens_mask=True)

    def group(rows: Mapping[str, list[list[int]]]) -> dict[str, list[list[int]]]:
        joined = {name: [item for row in column for item in row] for name, column in rows.items()}
        n_whole = len(joined["input_ids"]) // TEXT_LENGTH * TEXT_LENGTH
        return {
            name: [column[start : start + TEXT_LENGTH] for start in range(0, n_whole, TEXT_LENGTH)]
            for name, column in joined.items()
        }

    grouped = lines.map(tokenize, remove_columns=["text"], **options).map(group, **options)
    collator = transformers.DataCollatorForLanguageModeling(fast, mlm_probability=0.15)
    loader = torch.utils.data.DataLoader(
        grouped, batch_size=BATCH_SIZE, shuffle=True, drop_last=True, collate_fn=collator
    )
    return ({"mask": batch["attention_mask"].numpy()} for batch in loader)


def measure_all(flags: argparse.Namespace) -> Iterator[Measured]:
    """Every contender in a fresh process, in an order that is rotated from round to round."""
    for number in range(flags.rounds):
        for workload in WORKLOADS:
            shift = number % len(CONTENDERS)
            for contender in CONTENDERS[shift:] + CONTENDERS[:shift]:
                turn = ["--turn", workload, contender]
                files = [f"--pairs={flags.pairs}", f"--text={flags.text}", f"--vocab={flags.vocab}"]
                done = subprocess.run([sys.executable, __file__, *files, *turn], stdout=subprocess.PIPE, check=True)
                prepare, epoch, n_tokens = json.loads(done.stdout.splitlines()[-1])
                measured = Measured(workload, contender, number, n_tokens, prepare, epoch)
                print(f"{workload}, {contender}: {measured.rate:,.0f} tokens/s", flush=True)
                yield measured


def report(measurements: Sequence[Measured], n_rounds: int, load: float) -> str:
    """The table, as Markdown; ratios are taken within a round, then their median."""
    packages = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    lines = [
        "# Data throughput\n",
        f"Made by `python benchmarks/data_throughput.py` on {_processor()}; {packages}.\n",
        f"Medians of {n_rounds} rounds, from files to one epoch of batches; × is how many times as fast Trellis is.",
        f"{load:.1f} other jobs were running on average when it started.\n",
        "| workload | contender | tokens/s | prepare s | epoch s | Trellis × |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    by_turn = {(item.workload, item.contender, item.round): item for item in measurements}
    for workload in WORKLOADS:
        for contender in CONTENDERS:
            turns = [by_turn[workload, contender, number] for number in range(n_rounds)]
            ratios = [by_turn[workload, TRELLIS, item.round].rate / item.rate for item in turns]
            cells = [median(item.rate for item in turns), median(item.prepare for item in turns)]
            epoch = median(item.epoch for item in turns)
            numbers = f"{cells[0]:,.0f} | {cells[1]:.2f} | {epoch:.2f} | {median(ratios):.2f}"
            lines.append(f"| {workload} | {contender} | {numbers} |")
    return "\n".join(lines) + "\n"


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores; Python {platform.python_version()}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures all contenders, shows the table and writes it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", required=True, help="MRPC's train.tsv")
    parser.add_argument("--text", required=True, help="plain text, such as WikiText-2's wiki.train.raw")
    parser.add_argument("--vocab", required=True, help="a vocabulary for WordPiece")
    parser.add_argument("--rounds", type=int, default=3)
    results_dir = Path(__file__).parent / "results"
    parser.add_argument("--output-dir", type=Path, default=results_dir, help="where data_throughput.md and .json go")
    parser.add_argument("--turn", nargs=2, help=argparse.SUPPRESS)
    flags = parser.parse_args(arguments)
    if flags.turn:
        print(json.dumps(measure(*flags.turn, flags)))
        return
    load = os.getloadavg()[0]
    measurements = list(measure_all(flags))
    table = report(measurements, flags.rounds, load)
    flags.output_dir.mkdir(parents=True, exist_ok=True)
    numbers = json.dumps([asdict(item) for item in measurements], indent=1)
    (flags.output_dir / "data_throughput.json").write_text(numbers + "\n")
    (flags.output_dir / "data_throughput.md").write_text(table)
    print(f"\n{table}\nWritten to data_throughput.md and data_throughput.json in `{flags.output_dir}`.")


if __name__ == "__main__":
    main()
