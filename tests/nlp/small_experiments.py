"""The shipped experiments, each small enough for a test: tiny models on a few lines of text of every kind."""

import json
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np

import trellis.nlp.experiments  # noqa: F401  (registers them)
from tests.nlp.data.small_text import write_corpus_file, write_tokenizer_json, write_vocabulary
from tests.nlp.small_roberta import write_roberta
from trellis.bridges import write_hugging_face
from trellis.experiments import ExperimentConfig, get_exp_config
from trellis.experiments.experiment import _experiments
from trellis.nlp.data import (
    PretrainingOptions,
    Tokenizer,
    Windows,
    build_tokenizer,
    get_sentence_task,
    train_vocabulary,
    write_pretraining_data,
    write_question_data,
    write_sentence_data,
)
from trellis.nlp.models import BertClassifier, EncoderConfig, build_encoder

# Other tests register experiments of their own.
SHIPPED = [name for name in _experiments.names() if _experiments.get(name).__module__.startswith("trellis.")]
LENGTH = 24
WORDS = [
    "the",
    "The",
    "cat",
    "Cat",
    "dog",
    "sat",
    "ran",
    "on",
    "a",
    "mat",
    "##s",
    "jump",
    "##ed",
    ".",
    "?",
    "who",
    "Who",
]
SIZES: dict[str, dict[str, Any]] = {
    "bert": {"vocab_size": 300, "hidden_size": 8, "num_layers": 1, "num_attention_heads": 2, "intermediate_size": 8},
    "albert": {"vocab_size": 300, "embedding_width": 4, "hidden_size": 8, "num_layers": 1, "num_attention_heads": 2},
    "mobilebert": {
        "word_vocab_size": 300,
        "word_embed_size": 8,
        "hidden_size": 8,
        "num_blocks": 1,
        "intermediate_size": 8,
    }
    | {"num_attention_heads": 2, "intra_bottleneck_size": 8},
}
ROWS = [("The Cat sat .", "the cat sat .", "1"), ("a dog ran .", "The dog ran .", "0")] * 4
TAGGED = ["The B-PET", "Cat I-PET", "sat O", ". O", "", "dogs B-PET", "ran O", ""] * 2
PASSAGE = "The Cat sat on a mat . the dogs jumped on the cat ."


def write_texts(folder: Path) -> Path:
    """Text of each kind, and a vocabulary of each kind, by the name of the encoder that uses it; case counts."""
    write_corpus_file(folder / "corpus.txt")
    lines = ["#1 String\t#2 String\tQuality", *("\t".join(row) for row in ROWS)]
    for name in ("train", "dev"):
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    asked = [{"id": "1", "question": "Who sat ?", "answers": [{"text": "The Cat", "answer_start": 0}]}]
    article = {"title": "", "paragraphs": [{"context": PASSAGE, "qas": asked}]}
    (folder / "squad.json").write_text(json.dumps({"version": "1.1", "data": [article]}))
    labelled = [{"sentence": a, "labels": ["pet", "rest"][: 1 + int(label)]} for a, _, label in ROWS]
    (folder / "labels.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in labelled))
    (folder / "tags.conll").write_text("".join(f"{line}\n" for line in TAGGED))
    write_vocabulary(folder / "bert.txt", WORDS)
    write_roberta(folder / "encoder.folder")
    write_tokenizer_json(folder / "mobilebert.json", WORDS, lowercase=False)
    (folder / "pieces.txt").write_text(f"{PASSAGE}\n" * 30)
    train_vocabulary(
        str(folder / "pieces.txt"),
        output_file=folder / "albert.model",
        vocab_size=60,
        tokenization="SentencePiece",
        lower_case=False,
    )
    return folder


def vocabulary(encoder: str, folder: Path) -> tuple[str, str]:
    """The file, and how it cuts words; experiments of any encoder are made small as those of BERT are."""
    encoder = "bert" if encoder == "encoder" else encoder
    (file,) = folder.glob(f"{encoder}.*")
    return str(file), "SentencePiece" if file.suffix == ".model" else "WordPiece"


def write_records(kind: str, folder: Path, output_dir: Path, tokenizer: Tokenizer) -> str:
    output = str(output_dir / "records")
    meta = str(output_dir / "meta.json")
    if kind == "pretraining":
        options = PretrainingOptions(LENGTH, 4, dupe_factor=1)
        write_pretraining_data(str(folder / "corpus.txt"), output_files=[output], tokenizer=tokenizer, options=options)
    elif kind == "squad":
        squad, windows = str(folder / "squad.json"), Windows(LENGTH, 4, 6)
        write_question_data(squad, output_path=output, meta_data_file=meta, tokenizer=tokenizer, windows=windows)
    else:
        paths: Any = {"train": output}
        task = get_sentence_task("MRPC")
        write_sentence_data(
            task,
            input_dir=folder,
            output_paths=paths,
            meta_data_file=meta,
            tokenizer=tokenizer,
            seq_length=LENGTH,
        )
    return output


def raw_data(kind: str, folder: Path) -> dict[str, Any]:
    """Both sides of a task that starts from weights, which tell how text is cut."""
    if kind == "squad":
        data = {"input_path": str(folder / "squad.json"), "doc_stride": 4, "query_length": 6}
    elif kind == "masked_lm":
        data = {"input_path": str(folder / "corpus.txt"), "max_predictions_per_seq": 4}
    else:
        data = {"input_path": str(folder / "train.tsv"), "label_field": "Quality"}
        data |= {"text_fields": ["#1 String", "#2 String"]}
    return {"train_data": data, "validation_data": data}


def write_teacher(folder: Path, output_dir: Path, *, n_classes: int = 2) -> str:
    """A tiny classifier as Hugging Face writes it, with the vocabulary of BERT."""
    vocab_size = len((folder / "bert.txt").read_text().splitlines())
    encoder = EncoderConfig(bert={**SIZES["bert"], "vocab_size": vocab_size, "max_position_embeddings": LENGTH})
    model = BertClassifier(build_encoder(encoder), num_classes=n_classes)
    inputs = {name: np.ones((1, LENGTH), np.int32) for name in ("input_word_ids", "input_mask", "input_type_ids")}
    params = nn.meta.unbox(jax.jit(model.init)(jax.random.key(1), inputs)["params"])
    write_hugging_face(
        output_dir / "teacher",
        config=encoder.as_dict(),
        params=params,
        tokenizer_config={"do_lower_case": False, "tokenizer_class": "BertTokenizer"},
        vocab_files={"vocab.txt": folder / "bert.txt"},
    )
    return str(output_dir / "teacher")


def task_settings(name: str, folder: Path, output_dir: Path) -> dict[str, Any]:
    encoder, _, kind = name.partition("/")
    if encoder == "encoder" and kind in ("masked_lm", "sentence_prediction_text", "squad"):
        return {"hub_module_url": str(folder / "encoder.folder" / "weights"), **raw_data(kind, folder)}
    if encoder == "gpt":
        decoder = {"num_layers": 1, "hidden_size": 8, "num_attention_heads": 2, "max_position_embeddings": LENGTH}
        data = {} if kind == "local" else {"input_path": str(folder / "corpus.txt")}
        return {"model": decoder, "train_data": data, "validation_data": data}
    file, tokenization = vocabulary(encoder, folder)
    rules = {"tokenization": tokenization}
    kind_of_encoder = "bert" if encoder == "encoder" else encoder
    sizes = SIZES[kind_of_encoder]
    settings: dict[str, Any] = {"model": {"encoder": {"type": kind_of_encoder, kind_of_encoder: sizes}}}
    if kind == "local":
        return settings
    if kind == "text_wiki_pretraining":
        data = {"input_path": str(folder / "corpus.txt"), "vocab_file_path": file, "lower_case": False, "tfds_name": ""}
    elif kind == "embedding":
        data = {"input_path": str(folder / "train.tsv"), "vocab_file": file, "lower_case": False, **rules}
        data |= {"left_text_fields": ["#1 String"], "right_text_fields": ["#2 String"]}
    elif kind in ("sentence_prediction_text", "distillation"):
        data = {"input_path": str(folder / "train.tsv"), "vocab_file": file, "lower_case": False, **rules}
        data |= {"text_fields": ["#1 String", "#2 String"], "label_field": "Quality"}
    elif kind == "multi_label":
        data = {"input_path": str(folder / "labels.jsonl"), "vocab_file": file, "lower_case": False, **rules}
        data |= {"text_fields": ["sentence"]}
    elif kind == "tagging":
        data = {"input_path": str(folder / "tags.conll"), "vocab_file": file, "lower_case": False, **rules}
    else:
        tokenizer = build_tokenizer(file, tokenization=tokenization, lower_case=False)
        data = {"input_path": write_records(kind, folder, output_dir, tokenizer)}
    settings |= {"train_data": data, "validation_data": data}
    if kind == "distillation":
        settings["teacher_dir"] = write_teacher(folder, output_dir)
    if kind == "squad":
        # Answers are compared with the questions themselves; how they are cut is known from the records.
        settings["validation_data"] = {"input_path": str(folder / "squad.json"), "doc_stride": 4, "query_length": 6}
    if "pretraining" in kind:
        heads = [{"name": "next_sentence", "inner_dim": 8}]
        settings["model"]["cls_heads"] = heads
        settings["train_data"] = settings["validation_data"] = {**data, "max_predictions_per_seq": 4}
    return settings


def small_settings(name: str, folder: Path, output_dir: Path) -> dict[str, Any]:
    """What makes an experiment small, as in a config file.

    Args:
        folder: Of `write_texts`.
        output_dir: Where the records go that it is trained on.
    """
    settings = task_settings(name, folder, output_dir)
    sizes = {"global_batch_size": 4, "seq_length": LENGTH}
    settings["train_data"] = {**settings.get("train_data", {}), **sizes}
    settings["validation_data"] = {**settings.get("validation_data", {}), **sizes, "drop_remainder": False}
    trainer = {"train_steps": 1, "train_epochs": 0, "best_checkpoint_export_subdir": ""}
    return {"task": settings, "trainer": {**trainer, "optimizer_config": {"warmup": {"type": None}}}}


def small_experiment(name: str, folder: Path, output_dir: Path) -> ExperimentConfig:
    """An experiment of one step, on one device."""
    params = get_exp_config(name)
    params.override(small_settings(name, folder, output_dir))
    params.runtime.distribution_strategy = "off"
    return params
