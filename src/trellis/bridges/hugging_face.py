"""Hugging Face's directories of BERT, ALBERT and MobileBERT: read and written, without torch and transformers."""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from trellis.aliases import PyTree
from trellis.bridges.hugging_face_names import Weight, read_config, weights_of, write_config
from trellis.disk import whole_directory
from trellis.errors import ArgumentError, CheckpointFileError, CheckpointMismatchError, MissingPackageError
from trellis.json_text import parse_json

_CONFIG, _WEIGHTS = "config.json", "model.safetensors"
_SHARDS = "model-*-of-*.safetensors"
_OLD_NAMES = {".gamma": ".weight", ".beta": ".bias"}
_BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")
_INSIDE = ("embeddings.", "encoder.", "pooler.")
"""How the names of an encoder's weights begin."""
_POOLED_HEADS = ("sentence_prediction", "next_sentence")
_ARCHITECTURES = {
    ("masked_lm", "next_sentence"): "ForPreTraining",
    ("masked_lm",): "ForMaskedLM",
    ("next_sentence",): "ForNextSentencePrediction",
    ("sentence_prediction",): "ForSequenceClassification",
    ("span_labeling",): "ForQuestionAnswering",
    (): "Model",
}
_WITHOUT_POOLER = ("ForMaskedLM", "ForQuestionAnswering")
_CLASS_NAMES = {"bert": "Bert", "albert": "Albert", "mobilebert": "MobileBert"}


def read_hugging_face_config(directory: str | Path) -> dict[str, Any]:
    """Returns the fields of an `EncoderConfig` for the encoder in a directory: `{"type": "bert", "bert": {…}}`."""
    return read_config(_read_json(Path(directory)), place=str(Path(directory, _CONFIG)))


def read_hugging_face(directory: str | Path) -> tuple[dict[str, Any], PyTree]:
    """Returns the fields of an `EncoderConfig`, and the parameters, in float32.

    The parameters have `encoder` and what there is of `masked_lm`, `next_sentence`, `sentence_prediction` and
    `span_labeling`, under the names of our models; a head that uses the pooler has a copy of it as `pooler_dense`. A
    masked-LM head has the encoder's activation. Heads of other kinds are left out.

    Example:
        fields, params = read_hugging_face("weights/bert-base-uncased")
        encoder = build_encoder(EncoderConfig(fields))
        outputs = encoder.apply({"params": params["encoder"]}, batch)
    """
    folder = Path(directory)
    raw = _read_json(folder)
    fields = read_config(raw, place=str(folder / _CONFIG))
    kind = fields["type"]
    arrays = _plain_names(_read_arrays(folder), kind)
    for name in ("num_hidden_layers", "num_feedforward_networks"):
        # Those of ALBERT's layers are shared. A list of the weights of a billion layers would never end.
        if kind != "albert" and raw.get(name, 0) > len(arrays):
            raise CheckpointMismatchError(
                f"`{folder}`: {name} in {_CONFIG} is {raw[name]}, but there are {len(arrays)} weights in all. One of "
                f"the two files is of another model."
            )
    n_classes = arrays["classifier.bias"].shape[0] if "classifier.bias" in arrays else 2
    _check_vocabulary(folder, len(arrays.get("embeddings.word_embeddings.weight", ())), raw["vocab_size"])
    parts = weights_of(kind, write_config(fields), n_classes=n_classes)
    weights = _present_weights(parts, lambda weight: weight.theirs in arrays)
    shapes = {weight.theirs: weight.their_shape for weight in weights}
    # Heads of other kinds are left out, but in an encoder everything has to be known.
    looked_at = {name: array for name, array in arrays.items() if name in shapes or name.startswith(_INSIDE)}
    message = f"The weights in `{folder}` are not those of the model that its {_CONFIG} describes:"
    _check_arrays(looked_at, shapes, message=message)
    flat = {weight.ours: weight.to_ours(arrays[weight.theirs]) for weight in weights}
    for head in _POOLED_HEADS:
        if "encoder/pooler/kernel" in flat and f"{head}/logits/kernel" in flat:
            flat |= {f"{head}/pooler_dense/{leaf}": flat[f"encoder/pooler/{leaf}"] for leaf in ("kernel", "bias")}
    return fields, unflatten_dict(flat, sep="/")


def write_hugging_face(
    directory: str | Path, *, config: Mapping[str, Any], params: PyTree, vocab_files: Sequence[str | Path] = ()
) -> None:
    """Writes a directory that `transformers` loads: `config.json`, `model.safetensors` and the files of the vocabulary.

    The directory appears whole or not at all.

    Example:
        write_hugging_face("out/bert", config=encoder_config.as_dict(), params=params, vocab_files=["vocab.txt"])

    Args:
        directory: A new one.
        config: All fields of an `EncoderConfig`.
        params: `encoder`, and at most the heads that one of Hugging Face's models has. The pooler of a head is written
            in the place of the encoder's, which that head does not use.
        vocab_files: Copied under their own names.
    """
    folder = Path(directory)
    if folder.exists():
        raise ArgumentError(f"`{folder}` exists already. Name a directory that does not, to write the model to.")
    missing = [str(file) for file in vocab_files if not Path(file).is_file()]
    if missing:
        raise ArgumentError(f"vocab_files: there is no {', '.join(missing)}.")
    theirs = write_config(config)
    kind = theirs["model_type"]
    flat = {name: np.asarray(array, np.float32) for name, array in flatten_dict(params, sep="/").items()}
    heads = tuple(sorted({name.partition("/")[0] for name in flat} - {"encoder"}))
    architecture = _ARCHITECTURES.get(heads)
    if architecture is None:
        raise ArgumentError(f"Hugging Face has no model with the heads {', '.join(heads)}. Leave some out of params.")
    arrays = _their_arrays(flat, theirs, without_pooler=architecture in _WITHOUT_POOLER)
    if architecture != "Model":
        arrays = {f"{kind}.{name}" if name.startswith(_INSIDE) else name: array for name, array in arrays.items()}
    theirs["architectures"] = [f"{_CLASS_NAMES[kind]}{architecture}"]
    if "sentence_prediction" in heads:
        labels = range(arrays["classifier.bias"].shape[0])
        theirs["id2label"] = {str(label): f"LABEL_{label}" for label in labels}
        theirs["label2id"] = {f"LABEL_{label}": label for label in labels}
    with whole_directory(folder) as unfinished:
        # Not by `save_file`, whose files only their owner may read.
        (unfinished / _WEIGHTS).write_bytes(_safetensors().save(arrays, metadata={"format": "pt"}))
        (unfinished / _CONFIG).write_text(json.dumps(theirs, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        for file in vocab_files:
            shutil.copyfile(file, unfinished / Path(file).name)


def _read_json(folder: Path) -> dict[str, Any]:
    file = folder / _CONFIG
    try:
        config = parse_json(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointFileError(
            f"`{file}` does not exist. Give a directory of Hugging Face's, with {_CONFIG} and {_WEIGHTS}."
        ) from None
    except OSError as error:
        raise CheckpointFileError(f"`{file}` cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise CheckpointFileError(f"`{file}` is not JSON: {error}. Copy it again.") from None
    if not isinstance(config, dict):
        raise CheckpointFileError(f"`{file}` holds no settings, but {config!r:.40}.")
    return config


def _read_arrays(folder: Path) -> dict[str, np.ndarray]:
    files = [folder / _WEIGHTS] if (folder / _WEIGHTS).is_file() else sorted(folder.glob(_SHARDS))
    if not files:
        pickled = sorted(file.name for file in folder.glob("*.bin"))
        instead = f" It has {', '.join(pickled)}, but pickled weights are not read." if pickled else ""
        raise CheckpointFileError(
            f"`{folder}` has no {_WEIGHTS}.{instead} Load the model with transformers and save it: "
            f"`model.save_pretrained(directory)` writes that file."
        )
    load = _safetensors().load_file
    from safetensors import SafetensorError

    arrays: dict[str, np.ndarray] = {}
    for file in files:
        try:
            arrays |= load(file)
        except (SafetensorError, OSError, ValueError, LookupError, TypeError) as error:
            raise CheckpointFileError(f"`{file}` is damaged or cut short: {error}. Copy it again.") from None
    return arrays


def _safetensors() -> Any:
    try:
        import safetensors.numpy
    except ImportError:
        raise MissingPackageError("safetensors", "nlp") from None
    return safetensors.numpy


def _plain_names(arrays: Mapping[str, np.ndarray], kind: str) -> dict[str, np.ndarray]:
    """The arrays in float32 under today's names, without the names' common beginning and without second copies."""
    plain_arrays = {}
    for name, array in arrays.items():
        plain = name.removeprefix(f"{kind}.")
        for old, new in _OLD_NAMES.items():
            plain = plain.removesuffix(old) + new if plain.endswith(old) else plain
        if plain not in _BUFFERS:
            plain_arrays[plain] = np.asarray(array, np.float32)
    head = "predictions" if kind == "albert" else "cls.predictions"
    bias = plain_arrays.pop(f"{head}.decoder.bias", None)
    if bias is not None:
        plain_arrays.setdefault(f"{head}.bias", bias)
    table = plain_arrays.get("embeddings.word_embeddings.weight")
    decoder = plain_arrays.pop(f"{head}.decoder.weight", None)
    if decoder is not None and table is not None and not np.array_equal(decoder, table):
        raise CheckpointMismatchError(
            f"{head}.decoder.weight differs from embeddings.word_embeddings.weight, but our masked-LM head shares the "
            "embeddings. Such a model cannot be read."
        )
    return plain_arrays


def _check_vocabulary(folder: Path, n_embeddings: int, vocab_size: int) -> None:
    if n_embeddings not in (0, vocab_size):
        raise CheckpointMismatchError(
            f"`{folder}`: the weights are for a vocabulary of {n_embeddings} words, but vocab_size in {_CONFIG} is "
            f"{vocab_size}. One of the two files is of another model."
        )
    vocabulary = folder / "vocab.txt"
    n_words = len(vocabulary.read_bytes().splitlines()) if vocabulary.is_file() else 0
    if n_words > vocab_size:
        raise CheckpointMismatchError(
            f"`{vocabulary}` has {n_words} words, but the weights are for {vocab_size}. It is of another model."
        )


def _present_weights(parts: Mapping[str, Sequence[Weight]], is_present: Callable[[Weight], bool]) -> list[Weight]:
    """Returns the weights of the encoder, and of each other part of which some weight is present."""
    present = [weights for name, weights in parts.items() if name == "encoder" or any(map(is_present, weights))]
    return list(chain.from_iterable(present))


def _check_arrays(arrays: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]], *, message: str) -> None:
    """Raises an error with a message and a list: arrays that are missing, of another shape, or unknown."""
    problems = [("missing", f"{name} {shape}") for name, shape in shapes.items() if name not in arrays]
    problems += [
        ("other shape", f"{name} {arrays[name].shape}, not {shape}")
        for name, shape in shapes.items()
        if name in arrays and arrays[name].shape != shape
    ]
    problems += [("unexpected", name) for name in sorted(arrays.keys() - shapes.keys())]
    if problems:
        width = max(len(problem) for problem, _ in problems)
        lines = [f"  {problem:<{width}} {text}" for problem, text in problems]
        raise CheckpointMismatchError("\n".join([message, *lines]))


def _their_arrays(
    flat: Mapping[str, np.ndarray], config: Mapping[str, Any], *, without_pooler: bool
) -> dict[str, np.ndarray]:
    arrays = dict(flat)
    for head in reversed(_POOLED_HEADS):
        for leaf in ("kernel", "bias"):
            pooler = arrays.pop(f"{head}/pooler_dense/{leaf}", None)
            if pooler is not None:
                arrays[f"encoder/pooler/{leaf}"] = pooler
    if without_pooler:
        arrays = {name: array for name, array in arrays.items() if not name.startswith("encoder/pooler/")}
    kind = config["model_type"]
    parts = weights_of(kind, config, n_classes=len(arrays.get("sentence_prediction/logits/bias", (0, 0))))
    weights = _present_weights(parts, lambda weight: weight.ours in arrays)
    message = f"The parameters are not those of Hugging Face's {kind} with these settings:"
    _check_arrays(arrays, {weight.ours: weight.shape for weight in weights}, message=message)
    return {weight.theirs: weight.to_theirs(arrays[weight.ours]) for weight in weights}
