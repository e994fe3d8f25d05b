"""Bad inputs of every kind that Trellis reads: each has to end soon, in little memory, in success or an error of ours.

python -m benchmarks.chaos.fuzz --n=100000 --seed=0
python -m benchmarks.chaos.fuzz --seed=0 --only=17     # one input again, as a fault says

An input is a valid one that was changed (bits, cuts, numbers, levels, kinds, characters), or made up. All of it
follows from the seed. Functions of served models go to processes of their own: JAX's reader may end a process.
"""

import argparse
import faulthandler
import gzip
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.chaos.tally import Tally
from trellis.config import merge, raise_if_any, read_text
from trellis.data import Columns, ColumnsWriter, RecordWriter, encode_example, read_columns, read_rows
from trellis.errors import TrellisError
from trellis.experiments import get_exp_config, register_experiments, resolve
from trellis.experiments.overrides import parse_params_override, parse_setting

REPOSITORY = Path(__file__).parents[2]
GOLDENS = REPOSITORY / "tests" / "golden"
SECONDS = 5
"""How much time of the processor an input may take; the usual one takes a thousandth of it."""
MEMORY = 2 << 30
"""How many bytes of address space an input may take."""
LONGEST_MESSAGE = 250_000
"""How many characters an error may have: a flag of thousands of them is shown as it was, and corrected as a whole."""
EXPERIMENT = "bert/sentence_prediction_text"
INPUTS_A_PROCESS = 2_500
"""Of how many inputs one goes to a process of its own."""

Attempt = Callable[[random.Random, Path], object]
"""Makes an input in a folder, and has Trellis read it."""

NUMBERS = [
    "-1",
    "0",
    "1e9",
    "1e999",
    "-0.0",
    "9" * 30,
    "9" * 5000,
    "0x" + "f" * 5000,
    "NaN",
    "-Infinity",
    "1_000",
    "1e-400",
]
WORDS = [
    "null",
    "true",
    "",
    "~",
    "[]",
    "{}",
    "''",
    '"',
    "'",
    "*a",
    "&a",
    "<<",
    "!!python/object:os.system",
    "%",
    "@",
    "\t",
]
NASTIES = [
    "\\ud800",
    "\\u0000",
    "\0",
    "\ufeff",
    "\u2028",
    "\u202e",
    "\N{GRINNING FACE}",
    "e\u0301" * 50,
    "\x85",
    "\r",
    "\x1b[31m",
]
BROKEN = [b"\xff\xfe", b"\xc3\x28", b"\xed\xa0\x80", b"\x1f\x8b", b"PAR1", b"\x80\x04."]
VALUES: list[Any] = [
    None,
    True,
    -1,
    0,
    10**9,
    10**30,
    1e308,
    float("nan"),
    "",
    "x",
    "\ud800",
    "9" * 5000,
    [],
    {},
    [[]],
    [None],
    {"": 0},
    {"a": {}},
]


class TooSlowError(BaseException):
    """An input takes too long. No reader may take it for an error of its own."""


def changed_bytes(content: bytes, chance: random.Random) -> bytes:
    """A text or a file with a few changes."""
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        content = chance.choice(CHANGES)(content, chance)
    return content


def _flip(content: bytes, chance: random.Random) -> bytes:
    if not content:
        return b"\0"
    data = bytearray(content)
    for _ in range(chance.choice((1, 1, 8))):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(data)


def _cut(content: bytes, chance: random.Random) -> bytes:
    start, stop = sorted(chance.randrange(len(content) + 1) for _ in range(2))
    return chance.choice((content[:start], content[start:], content[:start] + content[stop:], content[start:stop]))


def _insert(content: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(content) + 1)
    text = chance.choice((chance.choice(NUMBERS), chance.choice(WORDS), chance.choice(NASTIES)))
    new = chance.choice((text.encode(), chance.choice(BROKEN), chance.randbytes(chance.randrange(1, 20))))
    return content[:place] + new + content[place:]


def _repeat(content: bytes, chance: random.Random) -> bytes:
    start = chance.randrange(len(content) + 1)
    part = content[start : start + chance.randrange(1, 60)]
    return content[:start] + part * chance.choice((2, 2, 50)) + content[start:]


def _nest(content: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(content) + 1)
    opening = chance.choice((b"[", b'{"a":', b"{a: ", b"- ", b"a:\n "))
    closing = chance.choice((b"", b"]", b"}"))
    depth = chance.choice((2, 70, 900, 5000))
    return content[:place] + opening * depth + closing * depth + content[place:]


def _renumber(content: bytes, chance: random.Random) -> bytes:
    places = [place for place in range(len(content)) if content[place : place + 1].isdigit()]
    if not places:
        return _insert(content, chance)
    start = stop = chance.choice(places)
    while content[stop : stop + 1].isdigit():
        stop += 1
    return content[:start] + chance.choice(NUMBERS).encode() + content[stop:]


def _overwrite(content: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(content) + 1)
    width = chance.choice((1, 2, 4, 8))
    number = chance.choice((0, 1, (1 << 8 * width) - 1, 1 << (8 * width - 1), chance.randrange(1 << 8 * width)))
    return content[:place] + number.to_bytes(width, "little") + content[place + width :]


CHANGES = (_flip, _flip, _cut, _insert, _insert, _repeat, _nest, _renumber, _overwrite)


def changed_tree(tree: Any, chance: random.Random) -> Any:
    """Plain data, copied, with one value, key or item that is something else."""
    tree = json.loads(json.dumps(tree))
    places = list(_places(tree))
    if not places:
        return chance.choice(VALUES)
    for _ in range(chance.choice((1, 1, 3))):
        parent, key = chance.choice(places)
        action = chance.randrange(5)
        if action == 0 and isinstance(parent, dict):
            parent.pop(key, None)
        elif action == 1 and isinstance(parent, dict):
            parent[chance.choice(("", "x", "type", "_locked", "__class__", str(key).upper()))] = parent.get(key)
        elif action == 2 and isinstance(parent, list):
            parent *= chance.choice((0, 2, 20))
        elif isinstance(parent, dict) or key < len(parent):
            parent[key] = chance.choice(VALUES)
    return tree


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in list(items):
        yield tree, key
        yield from _places(value)


def as_json(tree: Any) -> bytes:
    """JSON text; halves of characters are escaped."""
    return json.dumps(tree).encode()


# Configs.


def config_file(chance: random.Random, folder: Path) -> None:
    """A YAML or JSON file for an experiment."""
    seed = chance.choice(SEEDS["configs"])
    if chance.random() < 0.5:
        values = changed_tree(yaml.safe_load(seed), chance)
        content = (
            as_json(values)
            if chance.random() < 0.5
            else yaml.safe_dump(values, allow_unicode=True).encode(errors="replace")
        )
    else:
        content = changed_bytes(seed, chance)
    file = folder / f"config.{chance.choice(('yaml', 'json'))}"
    file.write_bytes(content)
    resolve(EXPERIMENT, config_file=[str(file)], mode=chance.choice((None, "train")))


def config_text(chance: random.Random, folder: Path) -> None:
    """Made-up YAML of anchors, aliases, merges and brackets."""
    parts = [
        "&a ",
        "*a",
        "&b ",
        "*b",
        "[",
        "]",
        "{",
        "}",
        ", ",
        ": ",
        "\n",
        "  ",
        "- ",
        "<<: ",
        "x",
        "task",
        "trainer",
        "? ",
        "| ",
        "> ",
    ]
    text = "".join(chance.choice([*parts, *WORDS, *NUMBERS[:6]]) for _ in range(chance.randrange(1, 120)))
    if chance.random() < 0.3:
        levels = chance.randrange(1, 40)
        form = chance.choice(("[*{0}, *{0}, *{0}]", "{{a: *{0}, b: *{0}}}", "{{<<: [*{0}, *{0}], c{1}: 1}}"))
        text = "task:\n  l0: &l0 {x: 1}\n" + "".join(
            f"  l{n + 1}: &l{n + 1} {form.format(f'l{n}', n)}\n" for n in range(levels)
        )
    setting, problems = read_text(text, source="text")
    raise_if_any([*problems, *merge(get_exp_config(EXPERIMENT), setting)])


def flag(chance: random.Random, folder: Path) -> None:
    """The text of `--params_override` and of `--set`."""
    names = [
        "trainer.train_steps",
        "task.model.encoder.bert.num_layers",
        "task.init_checkpoint",
        "runtime",
        "x",
        "task.",
        "a[300000000]",
        "a[0]",
    ]
    seed = f"{chance.choice(names)}={chance.choice([*NUMBERS, *WORDS, '[1, 2]', '{a: 1}'])}"
    text = ",".join([seed] * chance.choice((1, 1, 3)))
    if chance.random() < 0.7:
        text = changed_bytes(text.encode(), chance).decode(errors="surrogateescape")
    parse = chance.choice((parse_params_override, parse_setting))
    setting, problems = parse(text)
    raise_if_any([*problems, *merge(get_exp_config(EXPERIMENT), setting)])


# Data.


def record_file(chance: random.Random, folder: Path) -> None:
    """TFRecord files, plain and by gzip, with frames that are damaged or, with right checksums, their content."""
    file = folder / "records.tfrecord"
    if chance.random() < 0.5:
        content = changed_bytes(SEEDS["records"][0], chance)
    else:
        with RecordWriter(file) as writer:
            for example in SEEDS["examples"]:
                writer.write(changed_bytes(example, chance) if chance.random() < 0.5 else example)
        content = file.read_bytes()
    if chance.random() < 0.3:
        content = gzip.compress(content)
        content = changed_bytes(content, chance) if chance.random() < 0.5 else content
    file.write_bytes(content)
    read_columns(
        file, format="tfrecord", features=chance.choice((None, {"label": (np.int64, ())})), cache_dir=folder / "cache"
    )


def row_file(chance: random.Random, folder: Path) -> None:
    """Tables, lines of JSON, text and Parquet."""
    suffix = chance.choice(("jsonl", "jsonl", "csv", "tsv", "txt", "parquet"))
    seed = SEEDS[suffix][0]
    if suffix == "jsonl" and chance.random() < 0.6:
        rows = [json.loads(line) for line in seed.splitlines()]
        content = b"\n".join(as_json(changed_tree(row, chance) if chance.random() < 0.5 else row) for row in rows)
    else:
        content = changed_bytes(seed, chance)
    file = folder / f"rows.{suffix}"
    file.write_bytes(gzip.compress(content) if chance.random() < 0.1 else content)
    if suffix != "parquet" and chance.random() < 0.4:
        for _ in read_rows(file):
            pass
    else:
        read_columns(file, cache_dir=folder / "cache")


def sentence_file(chance: random.Random, folder: Path) -> None:
    """Files of sentences with labels, tokenized."""
    from trellis.nlp.data.sentences import SentenceFields, read_sentence_rows, tokenize_rows

    row_seed = chance.choice(("jsonl", "csv", "tsv"))
    file = folder / f"rows.{row_seed}"
    file.write_bytes(changed_bytes(SEEDS[row_seed][0], chance))
    fields = SentenceFields(texts=["text"], label="label", is_regression=chance.random() < 0.3)
    rows = list(read_sentence_rows([file], fields=fields))
    tokenize_rows(rows, tokenizer=_tokenizer(), fields=fields)


def question_file(chance: random.Random, folder: Path) -> None:
    """SQuAD's files."""
    from trellis.nlp.data.questions import Windows, read_questions, tokenize_questions

    file = folder / "squad.json"
    seed = SEEDS["squad"][0]
    whole = as_json(changed_tree(json.loads(seed), chance)) if chance.random() < 0.6 else changed_bytes(seed, chance)
    file.write_bytes(whole)
    questions = list(
        read_questions([file], is_training=chance.random() < 0.5, version_2_with_negative=chance.random() < 0.5)
    )
    tokenize_questions(questions, tokenizer=_tokenizer(), windows=Windows(32, 8, 8))


def vocabulary_file(chance: random.Random, folder: Path) -> None:
    """Vocabularies, and text for them."""
    from trellis.nlp.data import build_tokenizer

    file = folder / "vocab.txt"
    file.write_bytes(changed_bytes(SEEDS["vocabulary"][0], chance))
    tokenizer = build_tokenizer(file, tokenization=chance.choice(("WordPiece", "WordPiece", "SentencePiece")))
    text = changed_bytes(b"the cat is not on the mat, 3 times!", chance).decode(errors="replace")
    tokenizer.text_of(tokenizer.encode([text]).values)


def column_cache(chance: random.Random, folder: Path) -> None:
    """Columns on disk: manifests and arrays."""
    copy = folder / "columns"
    shutil.copytree(FOLDERS["columns"], copy)
    file = chance.choice(sorted(copy.iterdir()))
    if file.suffix == ".json" and chance.random() < 0.6:
        file.write_bytes(as_json(changed_tree(json.loads(file.read_bytes()), chance)))
    else:
        file.write_bytes(changed_bytes(file.read_bytes(), chance))
    columns = Columns.open(copy)
    columns.take(np.arange(len(columns)))


# Models.


def weights(chance: random.Random, folder: Path) -> None:
    """Hugging Face's directories."""
    from trellis.bridges import read_hugging_face
    from trellis.nlp.models import EncoderConfig, build_encoder

    file = folder / chance.choice(("config.json", "model.safetensors"))
    for name in ("config.json", "model.safetensors"):
        shutil.copyfile(GOLDENS / "hugging_face" / "bert" / name, folder / name)
    content = file.read_bytes()
    if file.suffix == ".json" and chance.random() < 0.7:
        file.write_bytes(as_json(changed_tree(json.loads(content), chance)))
    elif chance.random() < 0.5:
        head = content[:2000]
        file.write_bytes(changed_bytes(head, chance) + content[2000:])
    else:
        file.write_bytes(changed_bytes(content, chance))
    fields, _ = read_hugging_face(folder)
    build_encoder(EncoderConfig(fields))


def checkpoint_manifest(chance: random.Random, folder: Path) -> None:
    """What a checkpoint file says of itself."""
    from trellis.extensions import checkpoint_storage

    seed = next((GOLDENS / "checkpoint_files").glob("*/manifest.json")).read_bytes()
    tree = chance.random() < 0.5
    (folder / "manifest.json").write_bytes(
        as_json(changed_tree(json.loads(seed), chance)) if tree else changed_bytes(seed, chance)
    )
    checkpoint_storage.peek_manifest(folder)


def served_manifest(chance: random.Random, folder: Path) -> None:
    """What a served model says of itself, and its parameters with checksums that fit them."""
    from trellis.serving.manifest import read_manifest
    from trellis.serving.tensor_file import read_tensors

    copy = folder / "served"
    shutil.copytree(FOLDERS["served"], copy)
    if chance.random() < 0.6:
        file = copy / "manifest.json"
        tree = chance.random() < 0.7
        content = file.read_bytes()
        file.write_bytes(as_json(changed_tree(json.loads(content), chance)) if tree else changed_bytes(content, chance))
        read_manifest(copy)
        return
    file = copy / "parameters.safetensors"
    file.write_bytes(changed_bytes(file.read_bytes(), chance))
    for array in read_tensors(file).values():
        array.sum()


def served_function(chance: random.Random, folder: Path) -> None:
    """A served model whose functions are damaged, with checksums that fit, in a process of its own."""
    from trellis.disk import checksum
    from trellis.serving.manifest import digest

    copy = folder / "served"
    shutil.copytree(FOLDERS["served"], copy)
    file = next(copy.glob("*.jax_export"))
    file.write_bytes(changed_bytes(file.read_bytes(), chance))
    manifest = json.loads((copy / "manifest.json").read_bytes())
    manifest["checksums"][file.name] = {**checksum(file), **digest(file)}
    (copy / "manifest.json").write_text(json.dumps(manifest))
    environment = os.environ | {
        "XDG_CACHE_HOME": str(folder),
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    command = [sys.executable, "-c", _ASK, str(copy)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60 * SECONDS)
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode}: {done.stderr[-300:]}")


_ASK = """
import sys
import numpy as np
from trellis.errors import TrellisError
from trellis.serving import load_model
try:
    model = load_model(sys.argv[1])
except TrellisError:
    sys.exit(0)
"""

ATTEMPTS: dict[str, tuple[int, Attempt]] = {
    "config files": (12, config_file),
    "YAML of aliases and merges": (12, config_text),
    "flags": (16, flag),
    "records": (10, record_file),
    "rows": (16, row_file),
    "sentences": (8, sentence_file),
    "questions": (8, question_file),
    "vocabularies": (4, vocabulary_file),
    "columns": (4, column_cache),
    "weights": (4, weights),
    "checkpoint manifests": (3, checkpoint_manifest),
    "served models": (3, served_manifest),
}
"""By kind: its share of all inputs, in percent, and what makes and reads one."""
FUNCTIONS = "functions of served models"
ALL_KINDS = (*ATTEMPTS, FUNCTIONS)

SEEDS: dict[str, list[bytes]] = {}
FOLDERS: dict[str, Path] = {}


def _tokenizer() -> Any:
    from trellis.nlp.data import build_tokenizer

    return build_tokenizer(FOLDERS["vocabulary"])


def make_seeds(folder: Path, *, with_served: bool) -> None:
    """Makes the valid inputs that others are made of."""
    import pyarrow
    from pyarrow import parquet

    rows = [{"text": f"the cat is on mat {n}", "label": n % 2, "score": n / 3, "ids": [n, n + 1]} for n in range(6)]
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "is", "on", "mat", "##s", ",", "3", "not", "!"]
    SEEDS["configs"] = [
        path.read_bytes() for path in sorted((REPOSITORY / "src/trellis/nlp/experiments/yaml").rglob("*.yaml"))[:20]
    ]
    SEEDS["configs"].append(get_exp_config(EXPERIMENT).as_yaml().encode())
    SEEDS["examples"] = [
        encode_example({"text": row["text"], "label": row["label"], "ids": row["ids"], "x": [0.5]}) for row in rows
    ]
    with RecordWriter(folder / "records") as writer:
        for example in SEEDS["examples"]:
            writer.write(example)
    SEEDS["records"] = [(folder / "records").read_bytes()]
    SEEDS["jsonl"] = [b"\n".join(map(as_json, rows))]
    for name, mark in (("csv", ","), ("tsv", "\t")):
        lines = [["text", "label", "score"], *([str(row[key]) for key in ("text", "label", "score")] for row in rows)]
        SEEDS[name] = ["\n".join(map(mark.join, lines)).encode()]
    SEEDS["txt"] = [b"one line\n\nand another\n"]
    parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "rows.parquet")
    SEEDS["parquet"] = [(folder / "rows.parquet").read_bytes()]
    answer = {"text": "cat", "answer_start": 4}
    question = {"id": "q1", "question": "who is on the mat?", "answers": [answer, answer], "is_impossible": False}
    paragraph = {"context": "the cat is on the mat, not 3 cats", "qas": [question, {**question, "id": "q2"}]}
    SEEDS["squad"] = [as_json({"version": "2.0", "data": [{"title": "t", "paragraphs": [paragraph] * 2}]})]
    SEEDS["vocabulary"] = ["".join(f"{word}\n" for word in words).encode()]
    FOLDERS["vocabulary"] = folder / "vocab.txt"
    FOLDERS["vocabulary"].write_bytes(SEEDS["vocabulary"][0])
    FOLDERS["columns"] = folder / "columns"
    with ColumnsWriter(FOLDERS["columns"]) as columns:
        columns.append({"label": np.arange(6), "text": [row["text"] for row in rows]})
    if not with_served:
        return
    FOLDERS["served"] = folder / "served"
    # In a process of its own: a limit on memory is set to this one, and JAX takes much of it for its threads.
    subprocess.run(
        [sys.executable, "-c", _SERVE, str(FOLDERS["served"])],
        check=True,
        env=os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(sys.path)},
    )


_SERVE = """
import sys
import jax.numpy as jnp
import numpy as np
from trellis.serving import Signature, export_model
variables = {"w": np.ones((8, 4), np.float32), "b": np.ones(4, np.float32)}
function = lambda variables, x: {"best": jnp.tanh(x @ variables["w"] + variables["b"]).argmax(-1)}
export_model(sys.argv[1], variables=variables, signatures={"f": Signature(function, np.ones((2, 8), np.float32))})
"""


def chosen_kind(index: int, chance: random.Random, kinds: Collection[str]) -> tuple[str, Attempt]:
    """The kind of an input by its number."""
    if FUNCTIONS in kinds and index % INPUTS_A_PROCESS == INPUTS_A_PROCESS - 1:
        return FUNCTIONS, served_function
    names = [name for name in ATTEMPTS if name in kinds]
    name = chance.choices(names, [ATTEMPTS[name][0] for name in names])[0]
    return name, ATTEMPTS[name][1]


def fault_of(attempt: Attempt, chance: random.Random, folder: Path) -> str:
    """What is wrong with how an input ends; empty if nothing is."""
    try:
        with _time_limit():
            attempt(chance, folder)
    except TrellisError as error:
        message = str(error)
        return "" if 0 < len(message) < LONGEST_MESSAGE else f"a message of {len(message)} characters"
    except TooSlowError:
        return f"it takes more than {SECONDS} seconds"
    except BaseException as error:  # what is found is told
        if isinstance(error, KeyboardInterrupt):
            raise
        place = traceback.extract_tb(error.__traceback__)
        ours = next((frame for frame in reversed(place) if "/src/trellis/" in frame.filename), place[-1])
        return f"{type(error).__name__}: {str(error)[:150]!r} at {Path(ours.filename).name}:{ours.lineno}"
    return ""


@contextmanager
def _time_limit() -> Iterator[None]:
    def interrupt(*_: object) -> None:
        raise TooSlowError

    # The time of the processor: other work on the machine is not the input's fault.
    previous = signal.signal(signal.SIGPROF, interrupt)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)


def limit_memory() -> None:
    """Leaves this process little more address space than it has."""
    import trellis.bridges.hugging_face
    import trellis.extensions.checkpoint_storage
    import trellis.nlp.data.questions
    import trellis.nlp.models
    import trellis.serving.manifest  # noqa: F401  # what is loaded counts as what it has

    n_pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (n_pages * resource.getpagesize() + MEMORY, resource.RLIM_INFINITY))


def fuzz(*, n: int, seed: int, only: int | None = None, kinds: Collection[str] = ALL_KINDS) -> Tally:
    """Tries inputs, and returns what came of them.

    Args:
        only: The number of the one input to try.
        kinds: What to try. With fewer kinds a number stands for another input.
    """
    tally = Tally("fuzz", seed=seed)
    # On a file system in memory, if there is one: an input is a file or two.
    shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="trellis-fuzz-", dir=shared) as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        register_experiments([])
        seeds = Path(folder, "seeds")
        seeds.mkdir()
        make_seeds(seeds, with_served=any("served" in kind for kind in kinds))
        for index in range(n) if only is None else [only]:
            chance = random.Random(f"{seed}/{index}")
            kind, attempt = chosen_kind(index, chance, kinds)
            place = Path(folder, "input")
            place.mkdir()
            if kinds is ALL_KINDS:
                # If C code hangs, no signal is heard: the process ends, with all stacks.
                faulthandler.dump_traceback_later(120 * SECONDS, exit=True)
            fault = fault_of(attempt, chance, place)
            tally.add(kind, fault=fault, again=f"--seed={seed} --only={index}" if fault else "")
            shutil.rmtree(place, ignore_errors=True)
        faulthandler.cancel_dump_traceback_later()
    return tally


def main() -> None:
    """Tries inputs, prints a table, and exits with 1 after a fault."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="the number of one input, to try it again")
    parser.add_argument("--results-dir", type=Path)
    flags = parser.parse_args()
    faulthandler.enable()
    limit_memory()
    sys.exit(fuzz(n=flags.n, seed=flags.seed, only=flags.only).finish(flags.results_dir))


if __name__ == "__main__":
    main()
