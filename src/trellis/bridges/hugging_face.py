"""Hugging Face's directories of encoders: read and written, without torch and transformers."""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from trellis.aliases import PyTree
from trellis.bridges.family import Family, Weight
from trellis.bridges.hugging_face_names import (
    FAMILIES,
    fields_not_used,
    read_config,
    weights_of,
    write_config,
)
from trellis.bridges.weight_files import read_safetensors, read_settings, write_safetensors
from trellis.disk import local_path, whole_directory
from trellis.errors import ArgumentError, CheckpointFileError, CheckpointMismatchError

_CONFIG, _WEIGHTS, _TOKENIZER_CONFIG = "config.json", "model.safetensors", "tokenizer_config.json"
_MOST_LABELS = 1_000_000
_MOST_LISTED = 12
_INDEX, _SHARDS = "model.safetensors.index.json", "model-*-of-*.safetensors"
_OLD_NAMES = {".gamma": ".weight", ".beta": ".bias"}
_BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")
_POOLED_HEADS = ("sentence_prediction", "multi_label", "next_sentence")
_CLASSIFIERS = ("sentence_prediction", "multi_label", "tagging")
"""The heads whose classes have names; their weights have the same names there, and a model has one of them."""
_SEVERAL_LABELS = "multi_label_classification"
_ARCHITECTURES = {
    ("masked_lm", "next_sentence"): "ForPreTraining",
    ("masked_lm",): "ForMaskedLM",
    ("next_sentence",): "ForNextSentencePrediction",
    ("sentence_prediction",): "ForSequenceClassification",
    ("multi_label",): "ForSequenceClassification",
    ("span_labeling",): "ForQuestionAnswering",
    ("tagging",): "ForTokenClassification",
    (): "Model",
}
_WITHOUT_POOLER = ("ForMaskedLM", "ForQuestionAnswering", "ForTokenClassification")


@dataclass(frozen=True, kw_only=True)
class HuggingFaceSettings:
    """What the `config.json` of a directory says."""

    encoder: Mapping[str, Any]
    """The fields of an `EncoderConfig`: `{"type": "bert", "bert": {…}}`."""
    architecture: str
    """The class of the model, such as `BertForSequenceClassification`; empty if the file names none."""
    heads: tuple[str, ...]
    """The heads of that class under the names of ours; empty if it has none that ours have."""
    label_names: tuple[str, ...]
    """The names of the classes, in order; empty if they have only numbers."""
    n_classes: int
    problem_type: str | None
    mlm_activation: str
    """That of its masked-LM head, if there is one, under our name."""
    head_has_pooler: bool
    """Whether a head that classifies sequences has a dense layer of its own; else it has the encoder's."""
    not_used: tuple[str, ...]
    """The fields of the file that nothing is read from."""

    @property
    def classifies_as_ours(self) -> bool:
        """Whether the model, if it classifies sequences, gives each one class, several classes, or one number."""
        usual = "regression" if self.n_classes == 1 else "single_label_classification"
        return self.heads != ("sentence_prediction",) or self.problem_type in (None, usual)


def read_hugging_face_settings(directory: str | Path) -> HuggingFaceSettings:
    """Returns what the `config.json` of a directory says of the encoder, its heads and its labels."""
    raw = _read_config(local_path(directory, name="directory"))
    place = str(Path(directory, _CONFIG))
    encoder = read_config(raw, place=place)
    architecture = _architecture(raw)
    family = FAMILIES[encoder["type"]]
    names = _label_names(raw, place)
    return HuggingFaceSettings(
        encoder=encoder,
        architecture=architecture,
        heads=_heads(family, raw),
        label_names=() if names == [f"LABEL_{number}" for number in range(len(names))] else tuple(names),
        n_classes=len(names),
        problem_type=raw.get("problem_type"),
        mlm_activation=family.mlm_activation or encoder[encoder["type"]]["hidden_activation"],
        head_has_pooler=family.classifier_dense is not None,
        not_used=tuple(fields_not_used(raw)),
    )


def read_hugging_face_config(directory: str | Path) -> dict[str, Any]:
    """Returns the fields of an `EncoderConfig` for the encoder in a directory: `{"type": "bert", "bert": {…}}`."""
    return read_config(_read_config(Path(directory)), place=str(Path(directory, _CONFIG)))


def read_hugging_face(directory: str | Path) -> tuple[dict[str, Any], PyTree]:
    """Returns the fields of an `EncoderConfig`, and the parameters, in float32.

    The parameters have `encoder` and what there is of `masked_lm`, `next_sentence`, `sentence_prediction` and
    `span_labeling`, under the names of our models; a head that uses the pooler has a copy of it as `pooler_dense`. The
    activation of a masked-LM head is told by `read_hugging_face_settings`. A classifier is `sentence_prediction`,
    `multi_label` or `tagging`, as the file of settings says. Heads of other kinds, such as those of multiple choice,
    are left out.

    Example:
        fields, params = read_hugging_face("weights/bert-base-uncased")
        encoder = build_encoder(EncoderConfig(fields))
        outputs = encoder.apply({"params": params["encoder"]}, batch)
    """
    folder = local_path(directory, name="directory")
    raw = _read_config(folder)
    fields = read_config(raw, place=str(folder / _CONFIG))
    kind = fields["type"]
    family = FAMILIES[kind]
    arrays = _plain_names(read_safetensors(_weight_files(folder)), family.base)
    arrays = _renamed(arrays, _told_apart(family, raw, arrays))
    for name in ("num_hidden_layers", "num_feedforward_networks", "n_layers"):
        # Those of ALBERT's layers are shared. A list of the weights of a billion layers would never end.
        if kind != "albert" and raw.get(name, 0) > len(arrays):
            raise CheckpointMismatchError(
                f"`{folder}`: {name} in {_CONFIG} is {raw[name]}, but there are {len(arrays)} weights in all. One of "
                f"the two files is of another model."
            )
    classifier = _classifier(family, raw)
    if classifier is None:
        heads = ("classifier.", "pre_classifier.")
        arrays = {name: array for name, array in arrays.items() if not name.startswith(heads)}
    if fields[kind].get("use_bottleneck_attention"):
        arrays = {name: array for name, array in arrays.items() if ".bottleneck.attention." not in name}
    theirs = write_config(fields)
    _merge_tied(folder, raw, arrays, bias=_mlm_bias(family, theirs), decoder=family.decoder, words=family.words)
    classes = f"{_classes(family, classifier)}.bias"
    n_classes = arrays[classes].shape[0] if classes in arrays else 2
    n_labels = len(_label_names(raw, str(folder / _CONFIG)))
    if classes in arrays and n_classes != n_labels:
        raise CheckpointMismatchError(
            f"`{folder}`: the classifier has {n_classes} classes, but {_CONFIG} has {n_labels} labels (id2label). "
            f"One of the two files is of another model."
        )
    _check_vocabulary(folder, len(arrays.get(family.words, ())), raw["vocab_size"])
    parts = weights_of(kind, theirs, n_classes=n_classes)
    for name in _CLASSIFIERS:
        # All of them have the same names there.
        parts |= {} if name == classifier else {name: []}
    weights = _present_weights(parts, lambda weight: weight.theirs in arrays)
    shapes = {weight.theirs: weight.their_shape for weight in weights}
    # Heads of other kinds are left out, but in an encoder everything has to be known.
    looked_at = {name: array for name, array in arrays.items() if name in shapes or name.startswith(family.inside)}
    message = f"The weights in `{folder}` are not those of the model that its {_CONFIG} describes:"
    _check_arrays(looked_at, shapes, message=message, way_out="One of the two is of another model: copy both again.")
    flat = {weight.ours: weight.to_ours(arrays[weight.theirs]) for weight in weights}
    for head in _POOLED_HEADS if family.classifier_dense is None else ():
        if "encoder/pooler/kernel" in flat and f"{head}/logits/kernel" in flat:
            flat |= {f"{head}/pooler_dense/{leaf}": flat[f"encoder/pooler/{leaf}"] for leaf in ("kernel", "bias")}
    return fields, unflatten_dict(flat, sep="/")


def write_hugging_face(
    directory: str | Path,
    *,
    config: Mapping[str, Any],
    params: PyTree,
    mlm_activation: str | None = None,
    label_names: Sequence[str] = (),
    tokenizer_config: Mapping[str, Any] | None = None,
    vocab_files: Mapping[str, str | Path] | None = None,
    more_settings: Mapping[str, Any] | None = None,
) -> None:
    """Writes a directory that `transformers` loads, with a model that answers there as it does here.

    These are `config.json`, `model.safetensors` and the files of the tokenizer. The directory appears whole or not at
    all. What `transformers` cannot compute is an error.

    Example:
        write_hugging_face("out/bert", config=encoder_config.as_dict(), params=params, vocab_files={"vocab.txt": file})

    Args:
        directory: A new one.
        config: All fields of an `EncoderConfig`.
        params: `encoder`, and at most the heads that one of Hugging Face's models has. The pooler of a head is written
            in the place of the encoder's, which that head does not use.
        mlm_activation: That of the masked-LM head, if there is one; None is the one that Hugging Face's has.
        label_names: The names of the classes; the default is LABEL_0 and so on.
        tokenizer_config: How text is cut: the fields of `tokenizer_config.json`, if it is not among `vocab_files`.
        vocab_files: The files of the tokenizer, by the names to give them.
        more_settings: What other packages read beside it: the content of files of JSON, by their paths in it.
    """
    folder = local_path(directory, name="directory")
    if folder.exists():
        raise ArgumentError(f"`{folder}` exists already. Name a directory that does not, to write the model to.")
    files = vocab_files or {}
    missing = [str(file) for file in files.values() if not Path(file).is_file()]
    if missing:
        raise ArgumentError(f"vocab_files: there is no {', '.join(missing)}.")
    theirs = write_config(config)
    kind = config["type"]
    family = FAMILIES[kind]
    flat = {name: np.asarray(array, np.float32) for name, array in flatten_dict(params, sep="/").items()}
    heads = tuple(sorted({name.partition("/")[0] for name in flat} - {"encoder"}))
    architecture = _ARCHITECTURES.get(heads)
    if architecture is None or ("next_sentence" in heads and family.next_sentence is None):
        name = "model" if architecture is None else kind
        raise ArgumentError(f"Hugging Face has no {name} with the heads {', '.join(heads)}. Leave some out of params.")
    _check_mlm_activation(kind, heads, mlm_activation, config[kind]["hidden_activation"])
    uses_pooler = False
    if family.classifier_dense is None:
        flat, uses_pooler = _with_one_pooler(flat, heads, kind)
    else:
        flat = _with_own_pooler(flat, heads, kind)
    if kind == "mobilebert" and any(head in _POOLED_HEADS for head in heads):
        theirs["classifier_activation"] = uses_pooler
    arrays = _their_arrays(flat, theirs, kind)
    apart = family.told_apart.get(architecture, {})
    arrays = _renamed(arrays, {ours: name for name, ours in apart.items()})
    if architecture != "Model":
        inside, base = family.inside, family.base
        arrays = {f"{base}.{name}" if name.startswith(inside) else name: array for name, array in arrays.items()}
    theirs["architectures"] = [f"{family.class_name}{architecture}"]
    classifier = next((head for head in heads if head in _CLASSIFIERS), None)
    if classifier is not None:
        n_classes = arrays[f"{_classes(family, classifier)}.bias"].shape[0]
        theirs |= _label_settings(n_classes, label_names, classifier)
    texts = {_CONFIG: theirs, **(more_settings or {})}
    if tokenizer_config is not None and _TOKENIZER_CONFIG not in files:
        texts[_TOKENIZER_CONFIG] = dict(tokenizer_config)
    with whole_directory(folder) as unfinished:
        write_safetensors(unfinished / _WEIGHTS, arrays)
        for name, settings in texts.items():
            text = json.dumps(settings, indent=2, sort_keys=True, ensure_ascii=False)
            (unfinished / name).parent.mkdir(exist_ok=True)
            (unfinished / name).write_text(f"{text}\n", encoding="utf-8")
        for name, file in files.items():
            shutil.copyfile(file, unfinished / name)


def _read_config(folder: Path) -> dict[str, Any]:
    return read_settings(
        folder / _CONFIG, if_missing=f"Give a directory of Hugging Face's, with {_CONFIG} and {_WEIGHTS}."
    )


def _weight_files(folder: Path) -> list[Path]:
    """The files with the arrays: one, or several, which an index lists."""
    if (folder / _WEIGHTS).is_file():
        return [folder / _WEIGHTS]
    if (folder / _INDEX).is_file():
        shards = read_settings(folder / _INDEX).get("weight_map")
        if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
            raise CheckpointFileError(f"`{folder / _INDEX}` does not list files (weight_map). Copy it again.")
        files = [folder / name for name in sorted({*shards.values()})]
        missing = [file.name for file in files if not file.is_file()]
        if missing:
            raise CheckpointFileError(
                f"`{folder}` has no {', '.join(missing)}, although {_INDEX} lists {len(files)} files. Copy what is "
                f"missing."
            )
        return files
    files = sorted(folder.glob(_SHARDS))
    if not files:
        pickled = sorted(file.name for file in folder.iterdir() if file.suffix in (".bin", ".pt", ".pth", ".ckpt"))
        instead = f" It has {', '.join(pickled)}, but pickled weights are not read." if pickled else ""
        raise CheckpointFileError(
            f"`{folder}` has no {_WEIGHTS}.{instead} Load the model with transformers and save it: "
            f"`model.save_pretrained(directory)` writes that file."
        )
    return files


def _plain_names(arrays: Mapping[str, np.ndarray], base: str) -> dict[str, np.ndarray]:
    """The arrays in float32 under today's names, without the names' common beginning."""
    plain_arrays = {}
    for name, array in arrays.items():
        plain = name.removeprefix(f"{base}.")
        for old, new in _OLD_NAMES.items():
            plain = plain.removesuffix(old) + new if plain.endswith(old) else plain
        if plain not in _BUFFERS:
            plain_arrays[plain] = np.asarray(array, np.float32)
    return plain_arrays


def _told_apart(family: Family, raw: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Mapping[str, str]:
    """By what names of weights that models of different classes share begin, and how ours begin in their place."""
    end = _architecture(raw).removeprefix(family.class_name)
    if not end and f"{family.classifier}.bias" in arrays:
        end = "ForSequenceClassification"
    return family.told_apart.get(end, {})


def _renamed(arrays: Mapping[str, np.ndarray], beginnings: Mapping[str, str]) -> dict[str, np.ndarray]:
    """The arrays under names that begin otherwise."""
    renamed = {}
    for name, array in arrays.items():
        old = next((beginning for beginning in beginnings if name.startswith(beginning)), "")
        renamed[beginnings.get(old, "") + name.removeprefix(old)] = array
    return renamed


def _heads(family: Family, raw: Mapping[str, Any]) -> tuple[str, ...]:
    """The heads that the model of a `config.json` has, under the names of ours."""
    suffix = _architecture(raw).removeprefix(family.class_name)
    heads = next((heads for heads, name in _ARCHITECTURES.items() if name == suffix), ())
    is_of_several = heads == ("sentence_prediction",) and raw.get("problem_type") == _SEVERAL_LABELS
    return ("multi_label",) if is_of_several else heads


def _classifier(family: Family, raw: Mapping[str, Any]) -> str | None:
    """The head of ours that `classifier` is; None if it is of another kind, such as that of multiple choice."""
    if not _architecture(raw):
        return "sentence_prediction"
    return next((head for head in _heads(family, raw) if head in _CLASSIFIERS), None)


def _classes(family: Family, classifier: str | None) -> str:
    """What the layer is called that gives the logits of a classifier of ours."""
    return "classifier" if classifier == "tagging" else family.classifier


def _architecture(raw: Mapping[str, Any]) -> str:
    """The name of the class that a model is of; empty if it is not said."""
    names = raw.get("architectures")
    return str(names[0]) if isinstance(names, list) and names else ""


def _label_names(raw: Mapping[str, Any], place: str) -> list[str]:
    n_labels = raw.get("num_labels") or 2
    if not isinstance(n_labels, int) or not 0 < n_labels < _MOST_LABELS:
        raise ArgumentError(
            f"{place}: num_labels is {n_labels!r:.40}, but it is a whole number below {_MOST_LABELS:,}."
        )
    by_number = raw.get("id2label") or {str(number): f"LABEL_{number}" for number in range(n_labels)}
    try:
        return [str(by_number[str(number)]) for number in range(len(by_number))]
    except (KeyError, TypeError):
        raise ArgumentError(
            f"{place}: id2label is {by_number!r:.80}, but it has to name the labels by their numbers from 0 on."
        ) from None


def _mlm_bias(family: Family, theirs: Mapping[str, Any]) -> str:
    """The name of the bias of the masked-LM head."""
    return next(weight.theirs for weight in family.masked_lm(theirs) if weight.ours == "masked_lm/output_bias")


def _merge_tied(
    folder: Path, raw: Mapping[str, Any], arrays: dict[str, np.ndarray], *, bias: str, decoder: str, words: str
) -> None:
    """Takes the masked-LM head's own copies of the embeddings and of its bias out; raises an error if they differ.

    Args:
        bias: The name of the head's bias.
        decoder: The name of what the copies are of.
        words: The name of the embeddings.
    """
    own_bias = arrays.pop(f"{decoder}.bias", None)
    if own_bias is not None:
        arrays.setdefault(bias, own_bias)
    own_table = arrays.pop(f"{decoder}.weight", None)
    if bias not in arrays:
        return
    is_tied = raw.get("tie_word_embeddings", True)
    pairs = {
        f"{decoder}.weight": (own_table, arrays.get(words)),
        f"{decoder}.bias": (own_bias, arrays[bias]),
    }
    for name, (own, shared) in pairs.items():
        if not (is_tied if own is None or shared is None else np.array_equal(own, shared)):
            raise CheckpointMismatchError(
                f"`{folder}`: {name} is a weight of its own (tie_word_embeddings is {is_tied!r} in {_CONFIG}), but our "
                f"masked-LM head shares the embeddings. Such a model cannot be read."
            )


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


def _check_arrays(
    arrays: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]], *, message: str, way_out: str
) -> None:
    """Raises an error with a message, a list and a way out: arrays that are missing, of another shape, or unknown."""
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
        more = [f"  … and {len(lines) - _MOST_LISTED} more"] if len(lines) > _MOST_LISTED else []
        raise CheckpointMismatchError("\n".join([message, *lines[:_MOST_LISTED], *more, way_out]))


def _check_mlm_activation(kind: str, heads: Sequence[str], mlm_activation: str | None, hidden_activation: str) -> None:
    own = FAMILIES[kind].mlm_activation
    if "masked_lm" in heads and own is not None and mlm_activation not in (None, own):
        raise ArgumentError(
            f"mlm_activation is {mlm_activation!r}, but the masked-LM head of Hugging Face's {kind} has {own!r}."
        )
    if "masked_lm" in heads and own is None and mlm_activation not in (None, hidden_activation):
        raise ArgumentError(
            f"mlm_activation is {mlm_activation!r} and the encoder's hidden_activation {hidden_activation!r}, but "
            f"Hugging Face's models have one for both."
        )


def _label_settings(n_classes: int, label_names: Sequence[str], head: str) -> dict[str, Any]:
    names = list(label_names) or [f"LABEL_{number}" for number in range(n_classes)]
    if len(names) != n_classes or len(set(names)) != n_classes:
        raise ArgumentError(f"label_names are {names}, but there are {n_classes} classes, each with a name of its own.")
    usual = "regression" if n_classes == 1 else "single_label_classification"
    problem_type = {"sentence_prediction": usual, "multi_label": _SEVERAL_LABELS}.get(head)
    return {
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
        **({} if problem_type is None else {"problem_type": problem_type}),
    }


def _with_one_pooler(
    flat: Mapping[str, np.ndarray], heads: Sequence[str], kind: str
) -> tuple[dict[str, np.ndarray], bool]:
    """The parameters with the pooler that the head uses in the place of the encoder's; and whether there is one."""
    arrays = {name: array for name, array in flat.items() if "/pooler_dense/" not in name}
    poolers = {
        head: {leaf: flat[f"{head}/pooler_dense/{leaf}"] for leaf in ("kernel", "bias")}
        for head in _POOLED_HEADS
        if f"{head}/pooler_dense/kernel" in flat
    }
    head = next((head for head in _POOLED_HEADS if head in heads), None)
    own = poolers.get(str(head))
    if own is not None:
        return arrays | {f"encoder/pooler/{leaf}": array for leaf, array in own.items()}, True
    # Without a pooler of its own `next_sentence` takes the first token as it is, the others the encoder's.
    has_pooler = "encoder/pooler/kernel" in arrays and head != "next_sentence"
    if head is not None and not has_pooler and kind != "mobilebert":
        raise _without_pooler(head, kind)
    is_left_out = not has_pooler if head is not None else _ARCHITECTURES[tuple(heads)] in _WITHOUT_POOLER
    if is_left_out:
        arrays = {name: array for name, array in arrays.items() if not name.startswith("encoder/pooler/")}
    return arrays, has_pooler


def _with_own_pooler(flat: Mapping[str, np.ndarray], heads: Sequence[str], kind: str) -> dict[str, np.ndarray]:
    """The parameters for a family whose head has a dense layer of its own: without the encoder's where it is not used.

    A head that takes the encoder's pooled output gets a copy of that pooler.
    """
    arrays = dict(flat)
    for head in _POOLED_HEADS:
        if head not in heads or f"{head}/pooler_dense/kernel" in flat:
            continue
        if "encoder/pooler/kernel" not in flat:
            raise _without_pooler(head, kind)
        arrays |= {f"{head}/pooler_dense/{leaf}": flat[f"encoder/pooler/{leaf}"] for leaf in ("kernel", "bias")}
    if heads:
        arrays = {name: array for name, array in arrays.items() if not name.startswith("encoder/pooler/")}
    return arrays


def _without_pooler(head: str, kind: str) -> ArgumentError:
    return ArgumentError(
        f"The head {head} takes the first token without a pooler, but Hugging Face's {kind} always has one. Give the "
        f"head one (inner_dim), or leave it out of params."
    )


def _their_arrays(arrays: Mapping[str, np.ndarray], config: Mapping[str, Any], kind: str) -> dict[str, np.ndarray]:
    counts = [len(arrays[f"{head}/logits/bias"]) for head in _CLASSIFIERS if f"{head}/logits/bias" in arrays]
    parts = weights_of(kind, config, n_classes=counts[0] if counts else 2)
    weights = _present_weights(parts, lambda weight: weight.ours in arrays)
    message = f"The parameters are not those of Hugging Face's {kind} with these settings:"
    way_out = "Give the settings that the parameters were trained with."
    _check_arrays(arrays, {weight.ours: weight.shape for weight in weights}, message=message, way_out=way_out)
    theirs = {weight.theirs: weight.to_theirs(arrays[weight.ours]) for weight in weights}
    if kind == "mobilebert" and "cls.predictions.bias" in theirs:
        # Theirs is there, with no rows, even if the table is as wide as the encoder.
        theirs.setdefault("cls.predictions.dense.weight", np.zeros((0, config["vocab_size"]), np.float32))
    return theirs
