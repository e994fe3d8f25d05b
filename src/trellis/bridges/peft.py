"""Directories of PEFT's with adapters (LoRA) of encoders: read and written, without torch and peft."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict

from trellis.aliases import PyTree
from trellis.bridges.family import Weight
from trellis.bridges.hugging_face_names import FAMILIES, weights_of, write_config
from trellis.bridges.weight_files import read_safetensors, read_settings, write_safetensors
from trellis.disk import local_path, whole_directory
from trellis.errors import ArgumentError, CheckpointFileError, CheckpointMismatchError

_CONFIG, _WEIGHTS, _PICKLE = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
_PREFIX = "base_model.model."
_POOLED_HEADS = ("sentence_prediction", "multi_label", "next_sentence")
_TASKS = {
    "sentence_prediction": ("SEQ_CLS", "ForSequenceClassification"),
    "multi_label": ("SEQ_CLS", "ForSequenceClassification"),
    "tagging": ("TOKEN_CLS", "ForTokenClassification"),
    "span_labeling": ("QUESTION_ANS", "ForQuestionAnswering"),
}
"""By the heads of ours: what PEFT calls the task, and how the name of the class ends that has such a head."""
_PAIRS = {"lora_A.weight": "lora_a", "lora_B.weight": "lora_b"}
_PLAIN: Mapping[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "use_dora": (False, None),
    "use_rslora": (False, None),
    "fan_in_fan_out": (False, None),
    "rank_pattern": ({}, None),
    "alpha_pattern": ({}, None),
    "layer_replication": (None,),
    "trainable_token_indices": (None,),
    "target_parameters": (None, []),
    "lora_bias": (False, None),
    "use_qalora": (False, None),
    "use_bdlora": (False, None),
    "alora_invocation_tokens": (None,),
    "arrow_config": (None,),
    "kasa_config": (None,),
    "monteclora_config": (None,),
    # With others, such as pissa, the weights beside the adapters are no longer those of the folder.
    "init_lora_weights": (True, False, None, "gaussian", "eva", "orthogonal", "mica"),
}
"""What a config may say of adapters for us to compute the same; the first value is the usual one."""


def write_peft(
    directory: str | Path,
    *,
    config: Mapping[str, Any],
    trained: PyTree,
    heads: Sequence[str],
    rank: int,
    alpha: float,
    dropout: float,
    base: str = "",
) -> None:
    """Writes a directory that PEFT loads beside the weights that the adapters were trained with.

    These are `adapter_config.json` and `adapter_model.safetensors`. What is trained whole is among `modules_to_save`.

    Example:
        write_peft("out/adapter", config=config, trained=params, heads=(), rank=8, alpha=16, dropout=0)

    Args:
        directory: A new one.
        config: All fields of an `EncoderConfig`.
        trained: The trained parameters: `lora_a` and `lora_b` beside the place of each kernel, and whole ones.
        heads: All heads that the model has.
        base: Where the weights are, for PEFT to find them.
    """
    folder = local_path(directory, name="directory")
    if folder.exists():
        raise ArgumentError(f"`{folder}` exists already. Name a directory that does not, to write the adapters to.")
    flat = {name: np.asarray(array, np.float32) for name, array in flatten_dict(trained, sep="/").items()}
    names = _Names(config, heads, n_classes=_n_classes(flat))
    arrays: dict[str, np.ndarray] = {}
    targets: list[str] = []
    whole: dict[str, set[str]] = {}
    for path, array in flat.items():
        layer, _, leaf = path.rpartition("/")
        if leaf == "lora_a":
            arrays[names.of_pair(layer, "lora_A.weight")] = np.ascontiguousarray(array.reshape(-1, rank).T)
            targets.append(names.module_of(layer))
        elif leaf == "lora_b":
            arrays[names.of_pair(layer, "lora_B.weight")] = np.ascontiguousarray(array.reshape(rank, -1).T)
        else:
            name = names.full(names.weight(path))
            arrays[f"{_PREFIX}{name}"] = names.weight(path).to_theirs(array)
            whole.setdefault(names.module_to_save(name), set()).add(name)
    for module, of_module in whole.items():
        missing = [name for name in names.all_of(module) if name not in of_module]
        if missing:
            raise ArgumentError(
                f"{', '.join(sorted(of_module))} is trained whole and {', '.join(missing)} is not, but PEFT trains "
                f"whole modules. Name all of {module} in trainer.lora.also."
            )
    settings = {
        "peft_type": "LORA",
        "task_type": next((_TASKS[head][0] for head in heads if head in _TASKS), None),
        "base_model_name_or_path": base or None,
        "r": rank,
        "lora_alpha": int(alpha) if alpha == int(alpha) else alpha,
        "lora_dropout": dropout,
        "target_modules": sorted(targets),
        "modules_to_save": sorted(whole) or None,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "use_dora": False,
        "use_rslora": False,
    }
    with whole_directory(folder) as unfinished:
        write_safetensors(unfinished / _WEIGHTS, arrays)
        text = json.dumps(settings, indent=2, sort_keys=True, ensure_ascii=False)
        (unfinished / _CONFIG).write_text(f"{text}\n", encoding="utf-8")


def read_peft(
    directory: str | Path,
    *,
    config: Mapping[str, Any],
    shapes: Mapping[str, Any],
    rank: int,
    alpha: float,
    place: str = "read_peft",
) -> dict[str, np.ndarray]:
    """Returns the trained parameters of a directory of PEFT's by their paths; an error if they are not those of a run.

    Args:
        config: All fields of an `EncoderConfig`.
        shapes: What is needed: arrays or shapes by path.
        place: What errors call the settings that the directory has to agree with.
    """
    folder = local_path(directory, name="directory")
    settings = read_settings(folder / _CONFIG, if_missing=f"Give a directory of PEFT's, with {_CONFIG}.")
    _check_settings(folder, settings, rank=rank, alpha=alpha, place=place)
    heads = {path.partition("/")[0] for path in shapes} - {"encoder"}
    names = _Names(config, sorted(heads), n_classes=_n_classes(shapes))
    theirs = {names.plain(name): array for name, array in _read_arrays(folder).items()}
    needed = {path: names.plain(names.in_file(path)) for path in shapes}
    missing = [name for name in needed.values() if name not in theirs]
    unexpected = sorted(theirs.keys() - set(needed.values()))
    if missing or unexpected:
        lines = [f"  not there:    {name}" for name in missing] + [f"  not in a run: {name}" for name in unexpected]
        more = [f"  … and {len(lines) - 12} more"] if len(lines) > 12 else []
        listed = "\n".join([*lines[:12], *more])
        raise CheckpointMismatchError(
            f"The adapters in `{folder}` are for other parts than those of the run:\n{listed}\n"
            f"It has target_modules {settings.get('target_modules')} and modules_to_save "
            f"{settings.get('modules_to_save')}: let {place}.targets and {place}.also name the same."
        )
    return {path: _to_ours(path, theirs[name], shapes[path].shape, folder, names) for path, name in needed.items()}


class _Names:
    """What PEFT calls the parameters of an encoder with heads."""

    def __init__(self, config: Mapping[str, Any], heads: Sequence[str], *, n_classes: int) -> None:
        self._kind = config["type"]
        self._family = FAMILIES[self._kind]
        self._has_heads = bool(heads)
        self._apart = next((self._family.told_apart.get(_TASKS[head][1], {}) for head in heads if head in _TASKS), {})
        parts = weights_of(self._kind, write_config(config), n_classes=n_classes)
        # Of heads that a model does not have, some weights have the names of those that it has.
        own = {"encoder", "pooler", *heads} if heads else parts.keys()
        self._weights = {weight.ours: weight for name in parts if name in own for weight in parts[name]}
        # Theirs has one pooler, which ours has in the head that uses it.
        for head in _POOLED_HEADS if self._family.classifier_dense is None else ():
            for leaf in ("kernel", "bias"):
                pooler = self._weights.get(f"encoder/pooler/{leaf}")
                if pooler is not None:
                    self._weights[f"{head}/pooler_dense/{leaf}"] = pooler

    def weight(self, path: str) -> Weight:
        """A parameter under its two names."""
        if path not in self._weights:
            raise ArgumentError(
                f"{path} is trained, but Hugging Face's {self._kind} has nothing of that kind, so PEFT cannot have it."
            )
        return self._weights[path]

    def full(self, weight: Weight) -> str:
        """The name in a model, with what that of an encoder begins with if there is a head."""
        name = weight.theirs
        for theirs, ours in self._apart.items():
            name = theirs + name.removeprefix(ours) if name.startswith(ours) else name
        is_inside = self._has_heads and name.startswith(self._family.inside)
        return f"{self._family.base}.{name}" if is_inside else name

    def plain(self, name: str) -> str:
        """A name of a file without what it may begin with."""
        return name.removeprefix(_PREFIX).removeprefix(f"{self._family.base}.")

    def module_to_save(self, name: str) -> str:
        """The module that PEFT trains whole: a head, or a layer of the encoder."""
        is_of_encoder = not self._has_heads or name.startswith(f"{self._family.base}.")
        return _module(name) if is_of_encoder else name.partition(".")[0]

    def module_of(self, layer: str) -> str:
        """The name of a dense layer."""
        return _module(self.full(self.weight(f"{layer}/kernel")))

    def all_of(self, module: str) -> list[str]:
        """The names of all weights of a module."""
        names = {self.full(weight) for weight in self._weights.values()}
        return sorted(name for name in names if name.startswith(f"{module}."))

    def of_pair(self, layer: str, leaf: str) -> str:
        """The name of one of the two matrices of a layer."""
        return f"{_PREFIX}{self.module_of(layer)}.{leaf}"

    def in_file(self, path: str) -> str:
        """The name that a file has for a parameter."""
        layer, _, leaf = path.rpartition("/")
        theirs = next((theirs for theirs, ours in _PAIRS.items() if ours == leaf), None)
        return self.of_pair(layer, theirs) if theirs is not None else f"{_PREFIX}{self.full(self.weight(path))}"


def _to_ours(path: str, array: np.ndarray, shape: tuple[int, ...], folder: Path, names: _Names) -> np.ndarray:
    is_pair = path.rpartition("/")[2] in _PAIRS.values()
    array = np.asarray(array, np.float32)
    their_shape = names.weight(path).their_shape if not is_pair else None
    if array.size != np.prod(shape) or (their_shape is not None and array.shape != their_shape):
        raise CheckpointMismatchError(
            f"`{folder}`: {names.in_file(path)} is {array.shape}, which does not fit {path} of the run, {shape}. It is "
            f"of another model."
        )
    return np.ascontiguousarray(array.T.reshape(shape)) if is_pair else names.weight(path).to_ours(array)


def _module(name: str) -> str:
    return name.rpartition(".")[0]


def _n_classes(arrays: Mapping[str, Any]) -> int:
    biases = (arrays.get(f"{head}/logits/bias") for head in _TASKS if head != "span_labeling")
    return next((int(bias.shape[0]) for bias in biases if bias is not None), 2)


def _check_settings(folder: Path, settings: Mapping[str, Any], *, rank: int, alpha: float, place: str) -> None:
    for name, values in _PLAIN.items():
        if settings.get(name, values[0]) not in values:
            raise ArgumentError(
                f"`{folder / _CONFIG}`: {name} is {settings[name]!r:.60}, but only adapters with {values[0]!r} can be "
                f"read."
            )
    given = {"rank": (settings.get("r"), rank), "alpha": (settings.get("lora_alpha"), alpha)}
    wrong = {name: theirs for name, (theirs, ours) in given.items() if theirs != ours}
    if wrong:
        flags = " ".join(f"--set={place}.{name}={value}" for name, value in wrong.items())
        listed = ", ".join(f"{place}.{name} is {given[name][1]}, theirs {value}" for name, value in wrong.items())
        raise CheckpointMismatchError(f"The adapters in `{folder}` are of other settings: {listed}. Write: {flags}")


def _read_arrays(folder: Path) -> dict[str, np.ndarray]:
    file = folder / _WEIGHTS
    if not file.is_file():
        pickled = f" It has {_PICKLE}, but pickled weights are not read." if (folder / _PICKLE).is_file() else ""
        raise CheckpointFileError(
            f"`{folder}` has no {_WEIGHTS}.{pickled} Load the adapters with peft and save them: "
            f"`model.save_pretrained(directory)` writes that file."
        )
    return read_safetensors([file])
