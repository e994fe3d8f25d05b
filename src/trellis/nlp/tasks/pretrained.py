"""Encoders that were trained before: their settings and weights, from a directory on this machine."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flax.traverse_util import flatten_dict, unflatten_dict

from trellis.aliases import Variables
from trellis.bridges import (
    HuggingFaceSettings,
    read_hugging_face,
    read_hugging_face_config,
    read_hugging_face_settings,
)
from trellis.config import Origin, Setting, merge, origin_of, raise_if_any, read_file, setting_at
from trellis.errors import ArgumentError, CheckpointMismatchError
from trellis.nlp.models import EncoderConfig, PretrainerConfig
from trellis.optimizers import matches
from trellis.runtime import print_line
from trellis.tasks import BoundModel, ModelWithItems, TaskConfig, check_parts, tell_warm_start

_FREE = (
    "dropout_rate",
    "dropout_prob",
    "_pooling",
    "_outputs",
    "_scores",
    "_embeddings",
    "_checkpointing",
    "_range",
    "_dtype",
)
"""The ends of the names of settings that weights do not depend on."""
_MOST_NAMED = 12
_OF_HEADS = ("mlm_activation", "cls_heads", "mlm_output_weights_use_proj")
_NEARLY_FREE = {"hidden_activation", "norm_epsilon", "outer_norm_epsilon"}


def check_is_local(directory: str, *, field: str) -> None:
    """Raises an error if a directory is not there."""
    if Path(directory).is_dir():
        return
    elsewhere = "is an address, but nothing is downloaded" if "://" in directory else "does not exist"
    raise ArgumentError(
        f"{field}: `{directory}` {elsewhere}. Give a directory on this machine: one of Hugging Face's, with "
        f"config.json and model.safetensors, or the model_dir of a run."
    )


def with_encoder_of(directory: str, *, config: TaskConfig) -> TaskConfig:
    """The config of a task with the settings of the encoder in a directory.

    What weights do not depend on, such as rates of dropout, stays as somebody has set it.

    Args:
        directory: Hugging Face's, or that of a run.
    """
    check_is_local(directory, field="task.hub_module_url")
    values = read_encoder_config(directory, like=getattr(config.model, "encoder", None)).as_dict()
    inner = values[values["type"]]
    path = f"model.encoder.{values['type']}"
    own = {name: origin_of(config, f"{path}.{name}") for name in inner if name.endswith(_FREE)}
    kept = [name for name, origin in own.items() if not origin.is_left_open]
    values[values["type"]] = {name: value for name, value in inner.items() if name not in kept}
    filled = config.replace()
    raise_if_any(merge(filled, setting_at("model.encoder", values, Origin(directory))))
    if isinstance(filled.model, PretrainerConfig):
        _take_heads(directory, model=filled.model)
    return filled


def _take_heads(directory: str, *, model: PretrainerConfig) -> None:
    """Sets what a directory says of the heads of a pretraining, in a config that has the directory's encoder."""
    if not Path(directory, "config.json").is_file():
        file = _params_file(directory)
        values, _ = read_file(file)
        own = _value_at(values, ("task", "model"), file)
        settings = own.value if isinstance(own.value, dict) else {}
        raise_if_any(merge(model, replace(own, value={name: settings[name] for name in _OF_HEADS if name in settings})))
        return
    # Theirs are as wide as the encoder.
    encoder = model.encoder.get()
    width = encoder.hidden_size if encoder.as_dict().get("classifier_activation", True) else 0
    heads = [
        head.as_dict() | ({"inner_dim": width} if head.name == "next_sentence" else {}) for head in model.cls_heads
    ]
    activation = read_hugging_face_settings(directory).mlm_activation
    for name, value in {"mlm_activation": activation, "cls_heads": heads}.items():
        raise_if_any(merge(model, setting_at(name, value, Origin(directory))))


def read_fine_tuned(directory: str) -> HuggingFaceSettings | None:
    """The settings of a model of Hugging Face's; None if the directory is none of theirs."""
    return read_hugging_face_settings(directory) if directory and Path(directory, "config.json").is_file() else None


def read_encoder_config(directory: str, *, like: EncoderConfig | None = None) -> EncoderConfig:
    """The settings of a pretrained encoder: from Hugging Face's `config.json`, or from the `params.yaml` of a run.

    Args:
        like: That of the task, whose class of `any` an encoder of one's own has.
    """
    if Path(directory, "config.json").is_file():
        return EncoderConfig(read_hugging_face_config(directory))
    file = _params_file(directory)
    values, problems = read_file(file)
    raise_if_any(problems)
    setting = _value_at(values, ("task", "model", "encoder"), file)
    config = EncoderConfig(any=like.any if like is not None else None)
    if config.any is None and isinstance(setting.value, dict) and "any" in setting.value:
        raise ArgumentError(
            f"`{file}` is of an encoder of its own (task.model.encoder.any), whose class a file does not tell. Set "
            "task.model.encoder.any to a config of that class in the experiment's factory."
        )
    raise_if_any(merge(config, setting))
    return config


def with_settings_of_run(directory: str, *, paths: Sequence[str], config: TaskConfig) -> TaskConfig:
    """The config of a task with what the run that a directory is of has at some paths; the same if it is of no run.

    Args:
        paths: Of settings that belong to the weights, beside those of the encoder: `model.pooling`.
    """
    if Path(directory, "config.json").is_file():
        return config
    file = _params_file(directory)
    values, _ = read_file(file)
    filled = config.replace()
    for path in paths:
        section, _, name = path.partition(".")
        own = _value_at(values, ("task", section), file)
        settings = own.value if isinstance(own.value, dict) else {}
        if name in settings:
            raise_if_any(merge(getattr(filled, section), replace(own, value={name: settings[name]})))
    return filled


def _params_file(directory: str) -> Path:
    """The config of the run that a directory is of."""
    # A checkpoint file lies in the directory of its run, or in one below that.
    above = [Path(directory), *Path(directory).absolute().parents[:2]]
    file = next((folder / "params.yaml" for folder in above if (folder / "params.yaml").is_file()), None)
    if file is None:
        raise ArgumentError(
            f"`{directory}` has neither config.json, as Hugging Face's directories do, nor params.yaml, as a run does. "
            f"Give one of these, or set task.init_checkpoint and the settings of the encoder."
        )
    return file


def read_hugging_face_weights(
    source: str, *, model: BoundModel, encoder: EncoderConfig, parts: Sequence[str] = ()
) -> Variables:
    """Those parameters of the model that Hugging Face's directory has: its `checkpoint_items`, and whole heads.

    A head is taken if it is that of the directory's architecture and of the same shape; the others are new, which a
    line tells, together with the settings in the directory that are not used.

    Args:
        source: The directory, which has the encoder at least.
        encoder: The settings of the model's encoder, which have to be those of the weights.
        parts: The paths of what is taken, as patterns, which then has to be there; none is for all that there is.
    """
    check_parts(parts, model=model)
    fields, weights = read_hugging_face(source)
    _check_settings(source, EncoderConfig(fields), encoder)
    arrays = flatten_dict(weights, sep="/")
    own = flatten_dict(model.params, sep="/")
    pretrained = {
        target: arrays[name]
        for name, target in _sources(model, arrays).items()
        if target in own and own[target].shape == arrays[name].shape
    }
    settings = read_hugging_face_settings(source)
    for head in settings.heads if settings.classifies_as_ours else ():
        pretrained |= _whole_head(head, arrays, model)
    if parts:
        _check_there(source, [name for name in own if matches(name, parts) and name not in pretrained])
        pretrained = {name: array for name, array in pretrained.items() if matches(name, parts)}
    tell_warm_start(source, taken=[f"params/{name}" for name in pretrained], own=[f"params/{name}" for name in own])
    if settings.not_used:
        print_line(f"Its config.json says more, which is not used: {', '.join(settings.not_used)}.")
    return {"params": unflatten_dict(pretrained, sep="/")}


def _check_there(source: str, missing: Sequence[str]) -> None:
    if missing:
        listed = "\n".join(f"  {name}" for name in missing[:_MOST_NAMED])
        more = f"\n  … and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
        raise CheckpointMismatchError(
            f"task.init_parts: `{source}` has none of these, or of another shape:\n{listed}{more}\n"
            f"Leave out their parts, which are new then."
        )


def _check_settings(source: str, theirs: EncoderConfig, ours: EncoderConfig) -> None:
    """Refuses weights of another encoder, and prints the other settings that they were trained with."""
    if ours.type != theirs.type:
        differing = [f"  type: {theirs.type} there, {ours.type} here"]
    else:
        here, there = ours.get().as_dict(), theirs.get().as_dict()
        lines = {name: f"  {ours.type}.{name}: {there[name]} there, {value} here" for name, value in here.items()}
        names = [name for name in here if here[name] != there[name]]
        differing = [lines[name] for name in names if not name.endswith(_FREE) and name not in _NEARLY_FREE]
        for name in _NEARLY_FREE & set(names):
            print_line(f"The weights in `{source}` were trained with another setting:{lines[name]}")
    if differing:
        head = f"task.init_checkpoint: the weights in `{source}` are not of task.model.encoder:"
        way_out = "Set task.model.encoder to what is there, or let the directory say it: task.hub_module_url="
        raise CheckpointMismatchError("\n".join([head, *differing, f"{way_out}{source}"]))


def _sources(model: BoundModel, arrays: Mapping[str, Any]) -> dict[str, str]:
    """From the name of each array among the weights to its name in the model."""
    sources: dict[str, str] = {}
    items = model.model.checkpoint_items if isinstance(model.model, ModelWithItems) else {}
    for source, target in items.items():
        begin, end = source.replace(".", "/"), target.replace(".", "/")
        sources |= {name: end + name[len(begin) :] for name in arrays if name.startswith(f"{begin}/")}
    return sources


def _whole_head(head: str, arrays: Mapping[str, Any], model: BoundModel) -> dict[str, Any]:
    """The arrays of a head of the model, if there is one for each of its parameters."""
    own = {name: leaf for name, leaf in flatten_dict(model.params, sep="/").items() if name.startswith(f"{head}/")}
    is_whole = all(name in arrays and arrays[name].shape == leaf.shape for name, leaf in own.items())
    return {name: arrays[name] for name in own} if is_whole else {}


def _value_at(values: Setting, path: tuple[str, ...], file: Path) -> Setting:
    for name in path:
        inside = values.value.get(name) if isinstance(values.value, dict) else None
        if inside is None:
            raise ArgumentError(f"`{file}` has no {'.'.join(path)}: it is not of a run on an encoder.")
        values = inside
    return values
