"""`trellis predict`: the answers of a trained model."""

import argparse
import json
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

import trellis
from trellis import data, experiments, serving, tasks
from trellis.cli.experiments import add_module_flag
from trellis.cli.parser import Parser
from trellis.disk import whole_file
from trellis.errors import ArgumentError, DataError
from trellis.experiments import ExperimentConfig, read_params, register_experiments
from trellis.remote import working_directory
from trellis.runtime import Tally, print_error, print_json, print_line
from trellis.serving import find_served_model

if TYPE_CHECKING:
    from trellis.nlp.answers import Asked, Prediction
    from trellis.serving import ArrayAnswers

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

A model that writes, such as that of gpt/local, goes on with each --text, each line of a file, or each line that is
typed. The same --seed gives the same text; --temperature=0 always takes what is most probable.

  trellis predict --model_dir=runs/gpt --text='Return the' --text='Raise an' --n_tokens=200 --top_k=40

A model of arrays is asked with a file (or a glob): .npz, .npy, TFRecord of tf.Example, CSV, TSV, JSONL, Parquet or
images. Its inputs are the columns of the same names, or those that --columns names. Names in columns of text become
numbers as in the training, if the run or the served model has kept them. A row that does not fit ends it, with code 2.
With --output_file nothing of the answers is shown, and the file is a table if it is called .csv, arrays if .npz.

  trellis predict --model_dir=runs/digits --input_file=images.npz --output_file=digits.csv
  trellis predict --model_dir=served/digits --input_file=pixels.csv --columns='pixel_*'
  trellis predict --model_dir=runs/churn --module=churn.py --input_file=new.csv --missing=age=0 --checkpoint=best

A model that `trellis export` wrote answers in the same way, without its code and its config. So does one of Hugging
Face's that is fine-tuned already: a directory with config.json, model.safetensors and the files of the tokenizer.
"""
_SOME_NOT_ANSWERED = 1
_OF_WRITERS = ("n_tokens", "temperature", "top_k", "seed")
"""The flags for models that go on with text."""
_NEXT_TOKENS = "next_tokens"
"""What such models tell of themselves."""
_SHOWN_WIDTH = 100


def add_flags(parser: Parser) -> None:
    """Adds what to ask, and whom."""
    parser.epilog = _EPILOG
    models = "where a run was trained, or a served model, or one of Hugging Face's"
    parser.add_flag("model_dir", "DIR", models, address="kept", required=True)
    parser.add_repeated_flag("text", "TEXT", "what to ask, part by part, as TEXT or COLUMN=TEXT")
    files = "texts: TSV, CSV, JSONL with columns, lines with tabs between parts, or SQuAD's JSON; or arrays, see below"
    parser.add_flag("input_file", "FILE", files, address="fetched", default="")
    fields = "the columns of the file to ask; the default are those that the model was trained with"
    parser.add_flag("text_fields", "A,B", fields, default="")
    parser.add_flag("column_names", "A,B,…", "all columns of a file that has no header", default="")
    columns = "which columns of the file are which inputs, as COLUMN or INPUT=COLUMN; a pattern is many"
    parser.add_flag("columns", "A,B", columns, default="")
    parser.add_repeated_flag("missing", "COLUMN=VALUE", "what stands for an absent value")
    output = "where answers go as JSON, a line for each; for SQuAD's JSON one object, as its scripts read it"
    parser.add_flag("output_file", "FILE", output, default="")
    which = "which file of a run: best, a step, or a checkpoint file; the default is the best, or else the newest"
    parser.add_flag("checkpoint", "WHICH", which, address="fetched")
    vocabulary = "the vocabulary, if the model does not know it"
    parser.add_flag("vocab_file", "FILE", vocabulary, address="fetched", default="")
    parser.add_flag("n_tokens", "N", "how many tokens a model that writes adds at most; 100", type=int)
    heat = "how far it strays from what is most probable: 0 never does, 1 as the model says; 0.8"
    parser.add_flag("temperature", "T", heat, type=float)
    parser.add_flag("top_k", "K", "from how many of the most probable tokens it draws; all", type=int)
    parser.add_flag("seed", "SEED", "of what it draws; 0", type=int)
    add_module_flag(parser)
    parser.add_json_flag("print answers as JSON, an object on a line for each, for programs")


def predict(flags: argparse.Namespace) -> int:
    """Answers questions from flags, a file or the keyboard, on the screen and in a file; 1 if some have no answer."""
    _check(flags)
    with working_directory(flags.model_dir, name="--model_dir", writes=False) as directory:
        flags.model_dir = str(directory)
        return _predict(flags)


def _predict(flags: argparse.Namespace) -> int:
    _take_checkpoint_file(flags)
    directory = Path(flags.model_dir)
    served = find_served_model(directory)
    params = None if served is not None else _read_params(flags)
    is_text = True  # of Hugging Face's models, all
    writes = False
    # What follows loads JAX, when all that can be known without it is known to be right.
    if served is not None:
        metadata = serving.read_manifest(served).metadata
        is_text = "text" in metadata
        if _NEXT_TOKENS in metadata and not flags.input_file:
            raise ArgumentError(
                f"`{flags.model_dir}` scores text, as arrays of ids (--input_file), and does not write. Give the "
                f"--model_dir of the run that it was exported from."
            )
    elif params is not None and (directory / "params.yaml").is_file():
        task = tasks.get_task(params.task, logging_dir=flags.model_dir)
        is_text = "text" in task.serving_metadata()
        writes = _NEXT_TOKENS in task.serving_metadata()
    holds_arrays = _holds_arrays(flags.input_file, columns=flags.columns)
    if writes and not holds_arrays:
        return _write_on(flags, params)
    _refuse(flags, _OF_WRITERS, reason="the model does not go on with text")
    if is_text and not holds_arrays:
        return _predict_text(flags, params)
    return _predict_arrays(flags, params, is_text=is_text)


def _write_on(flags: argparse.Namespace, params: ExperimentConfig | None) -> int:
    """Goes on with prompts."""
    _refuse(flags, ("columns", "missing", "vocab_file", "column_names"), reason="the model goes on with text")
    given = {name: getattr(flags, name) for name in _OF_WRITERS if getattr(flags, name) is not None}
    options = trellis.nlp.answers.GenerationOptions(**given)
    writer = trellis.nlp.answers.load_writer(flags.model_dir, params=params, checkpoint=flags.checkpoint)
    if flags.text:
        predictions = writer(flags.text, options=options)
    elif flags.input_file:
        predictions = writer.answers(_prompts_of(flags), options=options)
    else:
        predictions = writer.answers(_typed(["prompt"]), options=options, block_size=1)
    if not flags.output_file:
        return _show(predictions, as_json=flags.json)
    with whole_file(Path(flags.output_file)) as output:
        code = _show(_written(predictions, output, as_one=False))
    _tell_of_file(flags, f"Written to {flags.output_file}.")
    return code


def _prompts_of(flags: argparse.Namespace) -> Iterator["Asked"]:
    """Yields the prompts of a file: its lines, or a column of its rows."""
    names = _listed(flags.text_fields) or ["text"]
    if len(names) > 1:
        raise ArgumentError(f"--text_fields names {', '.join(names)}, but a prompt is one text. Name one column.")
    for path in data.matching_paths(flags.input_file):
        is_table = path.suffix in (".jsonl", ".tsv", ".csv")
        for row in data.read_rows(path, format=None if is_table else "text", keep_bad=True):
            place = f"{path}:{row.line}"
            text = row.values.get(names[0])
            if not row.problem and not isinstance(text, str):
                columns = ", ".join(row.values)
                problem = f"{place}: there is no text in {names[0]!r}; the columns are {columns}. See --text_fields."
                yield trellis.nlp.answers.Asked((), place, problem=problem)
            elif row.problem or str(text).strip():
                yield trellis.nlp.answers.Asked((str(text),), place, row.values.get("id"), row.problem)


def _predict_text(flags: argparse.Namespace, params: ExperimentConfig | None) -> int:
    _refuse(flags, ("columns", "missing"), reason="the model answers text")
    if Path(flags.output_file).suffix in (".csv", ".npz"):
        raise ArgumentError(
            f"--output_file: answers to text are lines of JSON, but `{flags.output_file}` is a name of tables or "
            f"arrays. Name it {Path(flags.output_file).with_suffix('.jsonl')}."
        )
    predictor = trellis.nlp.answers.load_predictor(
        flags.model_dir, params=params, vocab_file=flags.vocab_file, checkpoint=flags.checkpoint
    )
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
        return _show(predictions, as_json=flags.json)
    with whole_file(Path(flags.output_file)) as output:
        code = _show(_written(predictions, output, as_one=is_squad))
    _tell_of_file(flags, f"Written to {flags.output_file}.")
    return code


def _predict_arrays(flags: argparse.Namespace, params: ExperimentConfig | None, *, is_text: bool) -> int:
    reason = "the file holds arrays" if is_text else "the model answers arrays, not text"
    _refuse(flags, ("text", "text_fields", "vocab_file"), reason=reason)
    if not flags.input_file:
        raise ArgumentError(f"`{flags.model_dir}` answers arrays, not text. Give a file of them: --input_file=FILE")
    columns = _columns(flags.columns)
    missing = dict(map(_missing, flags.missing))
    if params is not None and not Path(flags.model_dir, "params.yaml").is_file():
        raise ArgumentError(
            f"`{flags.model_dir}` is a model of Hugging Face's, which is asked with text, not with arrays."
        )
    if params is None:
        # Without the code of tasks, which a served model needs none of.
        _refuse(flags, ("checkpoint",), reason=f"`{flags.model_dir}` is a served model")
        predictor = serving.ArrayPredictor(serving.load_model(flags.model_dir))
    else:
        predictor = experiments.load_array_predictor(flags.model_dir, params=params, checkpoint=flags.checkpoint)
    asked = predictor.open(flags.input_file, columns=columns, column_names=_listed(flags.column_names), missing=missing)
    for note in asked.notes:
        _tell(note)
    if not flags.output_file:
        for answers in asked.answers:
            _print_answers(answers, has_ids=asked.has_ids, as_json=flags.json)
        return 0
    n_examples = 0
    with whole_file(Path(flags.output_file)) as output, Tally("Answering", unit="examples") as tally:
        file = serving.open_answers_file(output, suffix=Path(flags.output_file).suffix, has_ids=asked.has_ids)
        for answers in asked.answers:
            file.append(answers)
            tally.add(len(answers.ids))
            n_examples += len(answers.ids)
        file.finish()
    _tell_of_file(flags, f"The answers to {n_examples} examples are written to {flags.output_file}.")
    return 0


def _tell_of_file(flags: argparse.Namespace, text: str) -> None:
    if flags.json:
        print_json({"output_file": flags.output_file}, is_one_of_many=True)
    else:
        print_line(text)


def _check(flags: argparse.Namespace) -> None:
    if flags.text and flags.input_file:
        raise ArgumentError("--text and --input_file are both given. Give one of them.")
    for name in ("text_fields", "column_names", "columns", "missing"):
        if getattr(flags, name) and not flags.input_file:
            raise ArgumentError(f"--{name} names columns of a file, but --input_file is not given.")
    if not flags.input_file:
        return
    files = data.matching_paths(flags.input_file)
    if not files or not all(path.is_file() for path in files):
        raise ArgumentError(f"--input_file: there is no file `{flags.input_file}`.")
    if flags.output_file and Path(flags.output_file).resolve() in (path.resolve() for path in files):
        raise ArgumentError(f"--output_file: `{flags.output_file}` is the --input_file. Choose another name.")


def _take_checkpoint_file(flags: argparse.Namespace) -> None:
    """Where --model_dir is a checkpoint file of a run, has it name the run, and --checkpoint the file."""
    file = Path(flags.model_dir)
    # The best file lies in a folder of the run, all others in the run itself.
    run = next((folder for folder in file.parents[:2] if (folder / "params.yaml").is_file()), None)
    is_file = (file / "manifest.json").is_file() and file.name.rpartition("_")[2].isdecimal()
    if run is None or not is_file or flags.checkpoint is not None:
        return
    flags.model_dir, flags.checkpoint = str(run), str(file)


def _refuse(flags: argparse.Namespace, names: Sequence[str], *, reason: str) -> None:
    for name in names:
        if getattr(flags, name) not in (None, "", []):
            raise ArgumentError(f"--{name} is given, but {reason}. Leave it out.")


def _holds_arrays(input_file: str, *, columns: str) -> bool:
    """Whether a file, or several, hold what a model of text takes as it is, and no text."""
    if not input_file:
        return False
    first = min(data.matching_paths(input_file))
    try:
        format = data.format_of(first)
        if format == "parquet":
            return bool(columns) or "input_word_ids" in data.first_names(first, format=format)
        return format in ("tfrecord", "npz", "image")
    except DataError:
        return False  # Lines of text may be in a file of any name.


def _columns(text: str) -> dict[str, list[str]] | list[str]:
    """The columns of each input, or those of the only one: `A,B` or `x=A,y=B`; what has no name belongs to the last."""
    chosen: dict[str, list[str]] = {}
    for part in _listed(text):
        name, equals, column = part.rpartition("=")
        key = name if equals or not chosen else next(reversed(chosen))
        chosen.setdefault(key, []).append(column)
    return chosen.get("", []) if list(chosen) == [""] else chosen


def _missing(text: str) -> tuple[str, float | str]:
    name, equals, value = text.rpartition("=")
    if not equals or not name:
        raise ArgumentError(f"--missing={text} does not say which column is filled with what: --missing=COLUMN=VALUE")
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            continue
    return name, value


def _read_params(flags: argparse.Namespace) -> ExperimentConfig:
    """The config of a run, or of a model of Hugging Face's."""
    directory = Path(flags.model_dir)
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


def _print_answers(answers: "ArrayAnswers", *, has_ids: bool, as_json: bool) -> None:
    if as_json:
        for row in serving.answer_rows(answers, has_ids=has_ids):
            print_json(row, is_one_of_many=True)
    else:
        print_line("\n".join(serving.answer_lines(answers)))


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


def _show(predictions: Iterable["Prediction"], *, as_json: bool = False) -> int:
    """Prints answers, and what is wrong with texts that have none; returns the exit code."""
    n_asked = n_refused = 0
    for prediction in predictions:
        n_asked += 1
        if as_json:
            print_json(prediction.values, is_one_of_many=True)
        if prediction.problem:
            n_refused += 1
            print_error(prediction.problem)
        elif not as_json:
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
