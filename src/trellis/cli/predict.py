"""`trellis predict`: the answers of a trained model."""

import argparse
import json
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

import trellis.nlp.answers
import trellis.nlp.tasks
from trellis.cli.experiments import add_module_flag
from trellis.cli.parser import Parser
from trellis.disk import whole_file
from trellis.errors import ArgumentError
from trellis.experiments import ExperimentConfig, read_params, register_experiments
from trellis.runtime import print_error, print_line
from trellis.serving import find_served_model

if TYPE_CHECKING:
    from trellis.nlp.answers import Asked, Prediction

_EPILOG = """\
Several --text are the parts of one question: a pair of sentences, or a question and the passage that answers it. They
are taken in the order of the columns that the model was trained with; named after these, in any order.
Without --text and --input_file it reads what is typed, a line at a time, with tabs between parts.
A text that cannot be answered is told with its place on stderr; the others are answered, and the exit code is 1.

  trellis predict --model_dir=runs/local --text='Return the [MASK] of the file.'
  trellis predict --model_dir=runs/mrpc --text='He said so.' --text='That is what he said.'
  trellis predict --model_dir=runs/mnli --text='hypothesis=He spoke.' --text='premise=He said so.'
  trellis predict --model_dir=runs/cola --input_file=dev.tsv --column_names=source,label,mark,sentence
  trellis predict --model_dir=runs/squad --input_file=dev-v1.1.json --output_file=predictions.json

A model that `trellis export` wrote answers in the same way, without its code and its config. So does one of Hugging
Face's that is fine-tuned already: a directory with config.json, model.safetensors and the files of the tokenizer.
"""
_SOME_NOT_ANSWERED = 1
_SHOWN_WIDTH = 100


def add_flags(parser: Parser) -> None:
    """Adds what to ask, and whom."""
    parser.epilog = _EPILOG
    models = "where a run was trained, or a served model, or one of Hugging Face's"
    parser.add_flag("model_dir", "DIR", models, required=True)
    parser.add_repeated_flag("text", "TEXT", "what to ask, part by part, as TEXT or COLUMN=TEXT")
    files = "many texts: TSV, CSV or JSONL with columns, or lines with tabs between parts, or SQuAD's JSON"
    parser.add_flag("input_file", "FILE", files, default="")
    fields = "the columns of the file to ask; the default are those that the model was trained with"
    parser.add_flag("text_fields", "A,B", fields, default="")
    parser.add_flag("column_names", "A,B,…", "all columns of a file that has no header", default="")
    output = "where answers go as JSON, a line for each; for SQuAD's JSON one object, as its scripts read it"
    parser.add_flag("output_file", "FILE", output, default="")
    vocabulary = "the vocabulary, if the model does not know it"
    parser.add_flag("vocab_file", "FILE", vocabulary, default="")
    add_module_flag(parser)


def predict(flags: argparse.Namespace) -> int:
    """Answers questions from flags, a file or the keyboard, on the screen and in a file; 1 if some have no answer."""
    _check(flags)
    params = _read_params(flags)
    # This loads JAX, when all that can be known without it is known to be right.
    predictor = trellis.nlp.answers.load_predictor(flags.model_dir, params=params, vocab_file=flags.vocab_file)
    is_squad = False
    if flags.text:
        predictions = predictor([_parts(flags.text, predictor.text_columns)])
    elif flags.input_file:
        names = {name: _listed(getattr(flags, name)) for name in ("text_fields", "column_names")}
        file = predictor.open(flags.input_file, **names)
        for note in file.notes:
            _tell(note)
        predictions = predictor.answers(file.texts)
        is_squad = file.is_squad
    else:
        predictions = predictor.answers(_typed(predictor.text_columns), block_size=1)
    if not flags.output_file:
        return _show(predictions)
    with whole_file(Path(flags.output_file)) as output:
        code = _show(_written(predictions, output, as_one=is_squad))
    print_line(f"Written to {flags.output_file}.")
    return code


def _check(flags: argparse.Namespace) -> None:
    if flags.text and flags.input_file:
        raise ArgumentError("--text and --input_file are both given. Give one of them.")
    for name in ("text_fields", "column_names"):
        if getattr(flags, name) and not flags.input_file:
            raise ArgumentError(f"--{name} names columns of a file, but --input_file is not given.")
    if not flags.input_file:
        return
    if not Path(flags.input_file).is_file():
        raise ArgumentError(f"--input_file: there is no file `{flags.input_file}`.")
    if flags.output_file and Path(flags.output_file).resolve() == Path(flags.input_file).resolve():
        raise ArgumentError(f"--output_file: `{flags.output_file}` is the --input_file. Choose another name.")


def _read_params(flags: argparse.Namespace) -> ExperimentConfig | None:
    """The config of a run; None if the directory holds a served model, which needs none."""
    directory = Path(flags.model_dir)
    if find_served_model(directory) is not None:
        return None
    if not (directory / "params.yaml").is_file() and (directory / "config.json").is_file():
        return trellis.nlp.tasks.read_hugging_face_experiment(directory)
    if not (directory / "params.yaml").is_file():
        names = sorted(path.name for path in directory.iterdir())[:8] if directory.is_dir() else []
        state = f"holds {', '.join(names) or 'nothing'}" if directory.is_dir() else "does not exist"
        raise ArgumentError(
            f"--model_dir: `{directory}` {state}. Give the directory of a run, which has a params.yaml, or one that "
            f"`trellis export` wrote, which has a manifest.json, or a model of Hugging Face's, which has a config.json."
        )
    register_experiments(flags.module)
    return read_params(directory)


def _listed(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _tell(text: str) -> None:
    """Says what was taken for what, apart from the answers."""
    print(text, file=sys.stderr, flush=True)


def _parts(texts: Sequence[str], columns: Sequence[str]) -> tuple[str, ...]:
    """The parts in the order of the columns, which is theirs unless they are named; tells which is taken for which."""
    if len(columns) < 2:
        return tuple(texts)
    named = {name: part for name, equals, part in (text.partition("=") for text in texts) if equals and name in columns}
    if named and len(named) < len(texts):
        raise ArgumentError(
            f"--text: {', '.join(named)} is named, but not each part is, or one twice. Name each once, or none: "
            f"{' '.join(f'--text={name}=…' for name in columns)}"
        )
    parts = tuple(named[name] for name in columns if name in named) if named else tuple(texts)
    if len(parts) == len(columns):
        for name, part in zip(columns, parts, strict=True):
            _tell(f"{name}: {textwrap.shorten(part, _SHOWN_WIDTH, placeholder=' …')}")
    return parts


def _typed(columns: Sequence[str]) -> Iterator["Asked"]:
    """Yields what is typed, line by line."""
    names = " <tab> ".join(columns) or "text, with tabs between its parts"
    _tell(f"Type {names}; Ctrl-D ends." if sys.stdin.isatty() else f"Each line is read as {names}.")
    for number, line in enumerate(sys.stdin.buffer, start=1):
        place = f"line {number}"
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            yield trellis.nlp.answers.Asked((), place, problem=f"{place}: not UTF-8 ({error}). Convert it to UTF-8.")
            continue
        if text.strip():
            yield trellis.nlp.answers.Asked(tuple(text.split("\t")), place)


def _show(predictions: Iterable["Prediction"]) -> int:
    """Prints answers, and what is wrong with texts that have none; returns the exit code."""
    n_asked = n_refused = 0
    for prediction in predictions:
        n_asked += 1
        if prediction.problem:
            n_refused += 1
            print_error(prediction.problem)
        else:
            print_line(prediction.text)
    if not n_refused:
        return 0
    print_error(f"{n_refused} of {n_asked} texts were not answered.")
    return _SOME_NOT_ANSWERED


def _written(predictions: Iterable["Prediction"], output: IO[bytes], *, as_one: bool) -> Iterator["Prediction"]:
    """Yields predictions, and writes each on a line or all as one object by their ids, as SQuAD's scripts read them."""
    answers = {}
    for prediction in predictions:
        if not as_one:
            output.write(f"{json.dumps(prediction.values)}\n".encode())
        elif not prediction.problem:
            answers[prediction.values["id"]] = prediction.values["answer"]
        yield prediction
    if as_one:
        output.write(f"{json.dumps(answers)}\n".encode())
