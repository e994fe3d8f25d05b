"""`trellis data`: vocabularies, and records to pretrain and to fine-tune on."""

import argparse
import os
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from trellis.cli.parser import Address, Parser
from trellis.errors import ArgumentError
from trellis.nlp import data
from trellis.runtime import print_json, print_line

_TOKENIZATIONS = ("WordPiece", "SentencePiece")
_TASK_TYPES = ("classification", "regression", "squad")
_FORMATS = ("tfrecord", "columns")
_DOCUMENTS = ("blank_lines", "headings")

_READ = ("input_file", "input_data_dir", "squad_data_file", "vocab_file", "sp_model_file")
"""The flags that name what is read."""

_FINETUNING = """\
  trellis data finetuning --classification_task_name=MRPC --input_data_dir=glue/MRPC --vocab_file=vocab.txt \\
    --train_data_output_path=mrpc/train.tfrecord --eval_data_output_path=mrpc/dev.tfrecord \\
    --meta_data_file_path=mrpc/meta.json

  trellis data finetuning --fine_tuning_task_type=squad --squad_data_file=train-v1.1.json --max_seq_length=384 \\
    --vocab_file=vocab.txt --train_data_output_path=squad/train.tfrecord --meta_data_file_path=squad/meta.json
"""
_PRETRAINING = """\
The text has a sentence a line, and an empty line between documents. WikiText, where such a line parts paragraphs, has
documents that begin with a title: --documents=headings.

  trellis data pretraining --input_file='text/*.txt' --output_file=a.tfrecord,b.tfrecord --vocab_file=vocab.txt

On a cluster of Ray the same bytes are written. All its machines have to see the files, by the same paths:

  trellis data pretraining … --on=ray --address=head:6379
"""
_VOCABULARY = """\
  trellis data vocabulary --input_file='text/*.txt' --output_file=vocab.txt --vocab_size=8000

For a model that writes text, such as gpt/pretraining, it is of pieces of bytes, which spell every text:

  trellis data vocabulary --input_file='text/*.txt' --output_file=tokenizer.json --tokenization=byte_bpe
"""


def add_vocabulary_flags(parser: Parser) -> None:
    """Adds what `vocabulary` needs to know."""
    parser.epilog = _VOCABULARY
    _add(parser, "input_file", str, None, "text, as paths or patterns separated by commas", required=True)
    _add(parser, "output_file", str, None, "where the vocabulary goes", required=True)
    _add(parser, "vocab_size", int, 30522, "how many tokens it may have")
    _add(parser, "min_frequency", int, 2, "how often pieces must meet to be joined (WordPiece, byte_bpe)")
    _add(parser, "tokenization", str, "WordPiece", "what it is for", choices=(*_TOKENIZATIONS, "byte_bpe"))
    _add(parser, "do_lower_case", _boolean, True, "whether case does not count")
    parser.add_json_flag()


def add_finetuning_flags(parser: Parser) -> None:
    """Adds the published flags."""
    parser.epilog = _FINETUNING
    _add(parser, "fine_tuning_task_type", str, "classification", "the kind of task", choices=_TASK_TYPES)
    _add(parser, "classification_task_name", str, "MNLI", "a task of GLUE or SuperGLUE, such as MRPC")
    _add(parser, "input_data_dir", str, None, "the folder with the task's files, such as train.tsv")
    _add(parser, "mnli_type", str, "matched", "which of MNLI's files", choices=("matched", "mismatched"))
    _add(parser, "squad_data_file", str, None, "SQuAD's JSON file")
    _add(parser, "doc_stride", int, 128, "by how many tokens windows over a long passage differ")
    _add(parser, "max_query_length", int, 64, "of questions, in tokens; longer ones are cut")
    _add(parser, "version_2_with_negative", _boolean, False, "whether some questions have no answer")
    _add(parser, "train_data_output_path", str, None, "where examples to train on go")
    _add(parser, "eval_data_output_path", str, None, "where examples to validate with go")
    _add(parser, "test_data_output_path", str, None, "where examples without labels go")
    _add(parser, "meta_data_file_path", str, None, "where sizes and labels are written", required=True)
    _add(parser, "max_seq_length", int, 128, "of a sequence, in tokens; longer ones are cut")
    _add(parser, "output_format", str, "tfrecord", "what is written", choices=_FORMATS)
    _add_engine_flags(parser)
    _add_tokenizer_flags(parser)


def add_pretraining_flags(parser: Parser) -> None:
    """Adds the published flags."""
    parser.epilog = _PRETRAINING
    _add(parser, "input_file", str, None, "text, as paths or patterns separated by commas", required=True)
    _add(parser, "output_file", str, None, "TFRecord files separated by commas, or a folder for columns", required=True)
    _add(parser, "output_format", str, "tfrecord", "what is written", choices=_FORMATS)
    _add(parser, "max_seq_length", int, 128, "of a sequence, in tokens")
    _add(parser, "max_predictions_per_seq", int, 20, "how many tokens of a sequence are masked at most")
    _add(parser, "masked_lm_prob", float, 0.15, "the share of tokens that is masked")
    _add(parser, "short_seq_prob", float, 0.1, "how often sequences are shorter")
    _add(parser, "do_whole_word_mask", _boolean, False, "whether words are masked whole")
    _add(parser, "max_ngram_size", int, None, "up to how many words in a row are masked; needs whole words")
    _add(parser, "dupe_factor", int, 10, "how often the text is used, masked anew each time")
    _add(parser, "random_seed", int, 12345, "of pairs, masks and order")
    _add(parser, "gzip_compress", _boolean, False, "whether the files are compressed")
    _add(parser, "use_v2_feature_names", _boolean, False, "input_word_ids instead of input_ids, and so on")
    _add(parser, "documents", str, "blank_lines", "what parts documents", choices=_DOCUMENTS)
    _add(parser, "n_workers", int, None, "how many processes of this machine work; as many as do good")
    _add_engine_flags(parser)
    _add_tokenizer_flags(parser)


def vocabulary(flags: argparse.Namespace) -> None:
    """Trains a vocabulary on text."""
    n_tokens = data.train_vocabulary(
        _listed(flags.input_file),
        output_file=flags.output_file,
        vocab_size=flags.vocab_size,
        tokenization=flags.tokenization,
        lower_case=flags.do_lower_case,
        min_frequency=flags.min_frequency,
    )
    text = f"{n_tokens} tokens were written to {flags.output_file}."
    _tell(flags, {"n_tokens": n_tokens, "output_file": flags.output_file}, text)


def finetuning(flags: argparse.Namespace) -> None:
    """Makes records of a published task's files."""
    meta = _squad(flags) if flags.fine_tuning_task_type == "squad" else _sentences(flags)
    sizes = ", ".join(f"{name.split('_')[0]} {size}" for name, size in meta.items() if name.endswith("_data_size"))
    text = f"Examples: {sizes}. What a model needs to know of them: {flags.meta_data_file_path}"
    _tell(flags, {**meta, "meta_data_file_path": flags.meta_data_file_path}, text)


def pretraining(flags: argparse.Namespace) -> None:
    """Makes masked records of plain text."""
    n_examples = data.write_pretraining_data(
        _listed(flags.input_file),
        output_files=_listed(flags.output_file),
        tokenizer=_tokenizer(flags),
        options=data.PretrainingOptions(
            **{field.name: getattr(flags, field.name) for field in fields(data.PretrainingOptions)}
        ),
        output_format=flags.output_format,
        ordered_map=_ordered_map(flags, n_workers=flags.n_workers),
    )
    text = f"{n_examples} examples were written to {flags.output_file}."
    _tell(flags, {"n_examples": n_examples, "output_files": _listed(flags.output_file)}, text)


def _tell(flags: argparse.Namespace, answer: Mapping[str, object], text: str) -> None:
    """Tells what was made, in the form that is asked for."""
    if flags.json:
        print_json(answer)
    else:
        print_line(text)


def _sentences(flags: argparse.Namespace) -> dict[str, object]:
    task = data.get_sentence_task(flags.classification_task_name, mnli_type=flags.mnli_type)
    kind = "regression" if task.labels is None else "classification"
    if flags.fine_tuning_task_type != kind:
        raise ArgumentError(f"{task.name} is a {kind}: give --fine_tuning_task_type={kind}.")
    outputs: dict[data.Split, str | None] = {
        "train": flags.train_data_output_path,
        "dev": flags.eval_data_output_path,
        "test": flags.test_data_output_path,
    }
    paths = {split: path for split, path in outputs.items() if path}
    if not paths:
        raise ArgumentError("Nothing is to be written: give --train_data_output_path, --eval_… or --test_….")
    if not flags.input_data_dir:
        raise ArgumentError(f"--input_data_dir is missing: the folder with {', '.join(task.files.values())}.")
    return data.write_sentence_data(
        task,
        input_dir=flags.input_data_dir,
        output_paths=paths,
        meta_data_file=flags.meta_data_file_path,
        tokenizer=_tokenizer(flags),
        seq_length=flags.max_seq_length,
        output_format=flags.output_format,
        ordered_map=_ordered_map(flags),
    )


def _squad(flags: argparse.Namespace) -> dict[str, object]:
    if not flags.squad_data_file or not flags.train_data_output_path:
        missing = "--train_data_output_path" if flags.squad_data_file else "--squad_data_file"
        raise ArgumentError(f"{missing} is missing. Validation needs no records: it reads SQuAD's JSON.")
    return data.write_question_data(
        flags.squad_data_file,
        output_path=flags.train_data_output_path,
        meta_data_file=flags.meta_data_file_path,
        tokenizer=_tokenizer(flags),
        windows=data.Windows(flags.max_seq_length, flags.doc_stride, flags.max_query_length),
        version_2_with_negative=flags.version_2_with_negative,
        output_format=flags.output_format,
        ordered_map=_ordered_map(flags),
    )


def _ordered_map(flags: argparse.Namespace, *, n_workers: int | None = None) -> "data.OrderedMap | None":
    """Who does the work: None lets the tool decide how many processes of this machine."""
    if flags.on == "ray":
        if n_workers is not None:
            raise ArgumentError(
                f"--n_workers is {n_workers}, but --on=ray works on all cores of the cluster. Leave it out."
            )
        return data.ray_map(flags.address)
    if flags.address:
        raise ArgumentError(
            f"--address is {flags.address!r}, but the work is done here. Add --on=ray, or leave it out."
        )
    if n_workers is not None and n_workers < 1:
        raise ArgumentError(f"--n_workers is {n_workers}, but at least one process works.")
    return None if n_workers is None else data.local_map(n_workers)


def _tokenizer(flags: argparse.Namespace) -> "data.Tokenizer":
    name = "vocab_file" if flags.tokenization == "WordPiece" else "sp_model_file"
    file = getattr(flags, name)
    if not file:
        raise ArgumentError(f"--{name} is missing: --tokenization={flags.tokenization} needs it.")
    is_cased = flags.do_lower_case is False
    if os.path.isdir(file):
        text = data.TextSettings.of_weights(file)
        if text is None:
            raise ArgumentError(f"--{name}: `{file}` holds no vocabulary. Give a file, or the directory of weights.")
        tokenizer = text.build_tokenizer()
    else:
        tokenizer = data.build_tokenizer(file, tokenization=flags.tokenization, lower_case=not is_cased)
    if flags.do_lower_case not in (None, tokenizer.lower_case):
        theirs = str(tokenizer.lower_case).lower()
        raise ArgumentError(
            f"--do_lower_case is {str(flags.do_lower_case).lower()}, but {theirs} is what `{file}` says. Leave it out."
        )
    return tokenizer


def _add_engine_flags(parser: Parser) -> None:
    parser.add_json_flag()
    _add(parser, "on", str, "local", "who works: this machine, or a cluster of Ray", choices=("local", "ray"))
    parser.add_flag(
        "address", "HOST:PORT", "ray: of the cluster; the default is RAY_ADDRESS, or the cluster of this machine"
    )


def _add_tokenizer_flags(parser: Parser) -> None:
    _add(parser, "tokenization", str, "WordPiece", "how text is cut into tokens", choices=_TOKENIZATIONS)
    _add(parser, "vocab_file", str, None, "the vocabulary: a token a line, a tokenizer.json, or a folder of weights")
    _add(parser, "sp_model_file", str, None, "the model for SentencePiece")
    case = "whether case does not count; the default is true, or what the weights say, if vocab_file is their folder"
    _add(parser, "do_lower_case", _boolean, None, case)


def _add(parser: Parser, name: str, kind: Any, default: object, text: str, **options: Any) -> None:
    shown = "" if default is None else f"; the default is {str(default).lower() if kind is _boolean else default}"
    if "choices" in options:
        text = f"{text}: {' or '.join(options['choices'])}"
    if kind is _boolean:
        options |= {"nargs": "?", "const": True}
    metavar = {int: "N", float: "X", _boolean: "BOOL"}.get(kind, "TEXT")
    address: Address = "fetched" if name in _READ else "refused"
    parser.add_flag(name, metavar, text + shown, address=address, type=kind, default=default, **options)


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return text.lower() == "true"


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
