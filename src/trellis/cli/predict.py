"""`trellis predict`: the answers of a trained model."""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import trellis.nlp.answers
from trellis.cli.experiments import add_module_flag
from trellis.cli.parser import Parser
from trellis.errors import ArgumentError
from trellis.experiments import ExperimentConfig, read_params, register_experiments
from trellis.runtime import print_line
from trellis.serving import find_served_model

_EPILOG = """\
Several --text are the parts of one question: a pair of sentences, or a question and the passage that answers it.
Without --text and --input_file it reads what is typed, a line at a time, with tabs between parts.

  trellis predict --model_dir=runs/local --text='Return the [MASK] of the file.'
  trellis predict --model_dir=runs/mrpc --text='He said so.' --text='That is what he said.'
  trellis predict --model_dir=runs/squad --input_file=dev-v1.1.json --output_file=predictions.json

A model that `trellis export` wrote answers in the same way, without its code and its config.
"""


def add_flags(parser: Parser) -> None:
    """Adds what to ask, and whom."""
    parser.epilog = _EPILOG
    parser.add_flag("model_dir", "DIR", "where a run was trained, or a served model", required=True)
    parser.add_repeated_flag("text", "TEXT", "what to ask, part by part")
    files = "many questions: lines with tabs between parts, or TSV, CSV or JSONL with columns, or SQuAD's JSON"
    parser.add_flag("input_file", "FILE", files, default="")
    output = "where answers go as JSON, a line for each; for SQuAD's JSON one object, as its scripts read it"
    parser.add_flag("output_file", "FILE", output, default="")
    vocabulary = "the vocabulary, if the model does not know it"
    parser.add_flag("vocab_file", "FILE", vocabulary, default="")
    add_module_flag(parser)


def predict(flags: argparse.Namespace) -> None:
    """Answers questions from flags, a file or the keyboard, on the screen and in a file."""
    if flags.text and flags.input_file:
        raise ArgumentError("--text and --input_file are both given. Give one of them.")
    if flags.input_file and not Path(flags.input_file).is_file():
        raise ArgumentError(f"--input_file: there is no file `{flags.input_file}`.")
    params = _read_params(flags)
    # This loads JAX, when all that can be known without it is known to be right.
    predictor = trellis.nlp.answers.load_predictor(flags.model_dir, params=params, vocab_file=flags.vocab_file)
    if flags.text:
        answers = predictor([tuple(flags.text)])
    elif flags.input_file:
        answers = predictor.read(flags.input_file)
    else:
        answers = (answer for parts in _typed(predictor.text_columns) for answer in predictor([parts]))
    values = []
    for answer in answers:
        print_line(answer.text)
        values.append(answer.values)
    if flags.output_file:
        _write(Path(flags.output_file), values, as_one=flags.input_file.endswith(".json"))
        print_line(f"Written to {flags.output_file}.")


def _read_params(flags: argparse.Namespace) -> ExperimentConfig | None:
    """The config of a run; None if the directory holds a served model, which needs none."""
    directory = Path(flags.model_dir)
    if find_served_model(directory) is not None:
        return None
    if not (directory / "params.yaml").is_file():
        names = sorted(path.name for path in directory.iterdir())[:8] if directory.is_dir() else []
        state = f"holds {', '.join(names) or 'nothing'}" if directory.is_dir() else "does not exist"
        raise ArgumentError(
            f"--model_dir: `{directory}` {state}. Give the directory of a run, which has a params.yaml, or one that "
            f"`trellis export` wrote, which has a manifest.json."
        )
    register_experiments(flags.module)
    return read_params(directory)


def _typed(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yields what is typed, line by line."""
    if sys.stdin.isatty():
        print(f"Type {' <tab> '.join(names) or 'text, with tabs between its parts'}; Ctrl-D ends.", file=sys.stderr)
    for line in sys.stdin:
        if line.strip():
            yield tuple(line.rstrip("\n").split("\t"))


def _write(file: Path, values: Sequence[Mapping[str, object]], *, as_one: bool) -> None:
    """Writes answers a line each or, as SQuAD's scripts read them, as one object by the ids of the questions."""
    lines = [json.dumps({value["id"]: value["answer"] for value in values})] if as_one else map(json.dumps, values)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{line}\n" for line in lines))
