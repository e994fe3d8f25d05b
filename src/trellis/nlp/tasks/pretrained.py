"""Encoders that were trained before: their settings and weights, from a directory on this machine."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict

from trellis.aliases import Variables
from trellis.bridges import read_hugging_face, read_hugging_face_config
from trellis.config import Setting, merge, raise_if_any, read_file
from trellis.errors import ArgumentError, CheckpointMismatchError
from trellis.nlp.models import EncoderConfig
from trellis.runtime import print_line
from trellis.tasks import BoundModel, ModelWithItems, read_warm_start

_FREE = ("dropout_rate", "dropout_prob", "_outputs", "_scores", "_embeddings", "_checkpointing", "_range", "_dtype")
"""How the names of settings end that weights do not depend on."""
_NEARLY_FREE = {"hidden_activation", "norm_epsilon"}


def is_hugging_face(directory: str) -> bool:
    """Whether a directory is one of Hugging Face's."""
    return Path(directory, "config.json").is_file()


def check_is_local(directory: str, *, field: str) -> None:
    """Raises an error that says what is taken, if a directory is not there."""
    if Path(directory).is_dir():
        return
    elsewhere = "is an address, but nothing is downloaded" if "://" in directory else "does not exist"
    raise ArgumentError(
        f"{field}: `{directory}` {elsewhere}. Give a directory on this machine: one of Hugging Face's, with "
        f"config.json and model.safetensors, or the model_dir of a run."
    )


def read_encoder_config(directory: str) -> EncoderConfig:
    """The settings of a pretrained encoder: from Hugging Face's `config.json`, or from the `params.yaml` of a run."""
    if is_hugging_face(directory):
        return EncoderConfig(read_hugging_face_config(directory))
    # A checkpoint file lies in the directory of its run, or in one below that.
    above = [Path(directory), *Path(directory).absolute().parents[:2]]
    file = next((folder / "params.yaml" for folder in above if (folder / "params.yaml").is_file()), None)
    if file is None:
        raise ArgumentError(
            f"`{directory}` has neither config.json, as Hugging Face's directories do, nor params.yaml, as a run does. "
            f"Give one of these, or set task.init_checkpoint and the settings of the encoder."
        )
    given, problems = read_file(file)
    raise_if_any(problems)
    config = EncoderConfig()
    raise_if_any(merge(config, _at(given, ("task", "model", "encoder"), file)))
    return config


def read_pretrained(source: str, *, model: BoundModel, encoder: EncoderConfig) -> Variables:
    """The model's variables, with pretrained ones in the place of its own.

    From a directory of Hugging Face's the model takes what its `checkpoint_items` name and the directory has, which is
    the encoder at least; from a checkpoint file of a run, all that they name.

    Args:
        source: Such a directory, a checkpoint file, or the directory of a run; empty for none.
        encoder: The settings of the model's encoder, which have to be those of the weights.
    """
    if not source or not is_hugging_face(source):
        return read_warm_start(source, model=model)
    fields, weights = read_hugging_face(source)
    _check_settings(source, EncoderConfig(fields), encoder)
    found = flatten_dict(weights, sep="/")
    taken = {target: found[name] for name, target in _sources(model, found).items()}
    new = flatten_dict(model.params, sep="/").keys() - taken.keys()
    parts = sorted({"/".join(name.split("/")[:2]) for name in new})
    print_line(f"Weights of `{source}` are taken; new are {', '.join(parts) or 'none'}.")

    def pick(at: Any, leaf: Any) -> Any:
        array = taken.get(jax.tree_util.keystr(at, simple=True, separator="/"))
        return leaf if array is None else jnp.asarray(array, leaf.dtype)

    params = jax.tree_util.tree_map_with_path(pick, model.params)
    return {**model.variables, "params": params}


def _check_settings(source: str, of_weights: EncoderConfig, wanted: EncoderConfig) -> None:
    """Refuses weights of another encoder, and tells what else they were trained with."""
    if wanted.type != of_weights.type:
        differing = [f"  type: {of_weights.type} there, {wanted.type} here"]
    else:
        mine, theirs = (config.get().as_dict() for config in (wanted, of_weights))
        lines = {name: f"  {wanted.type}.{name}: {theirs[name]} there, {value} here" for name, value in mine.items()}
        named = [name for name in mine if mine[name] != theirs[name]]
        differing = [lines[name] for name in named if not name.endswith(_FREE) and name not in _NEARLY_FREE]
        for name in _NEARLY_FREE & set(named):
            print_line(f"The weights in `{source}` were trained with another setting:{lines[name]}")
    if differing:
        head = f"task.init_checkpoint: the weights in `{source}` are not of task.model.encoder:"
        way_out = "Set task.model.encoder to what is there, or let the directory say it: task.hub_module_url="
        raise CheckpointMismatchError("\n".join([head, *differing, f"{way_out}{source}"]))


def _sources(model: BoundModel, found: Mapping[str, Any]) -> dict[str, str]:
    """By where the weights have an array: where the model has it."""
    sources: dict[str, str] = {}
    items = model.model.checkpoint_items if isinstance(model.model, ModelWithItems) else {}
    for source, target in items.items():
        begin, end = source.replace(".", "/"), target.replace(".", "/")
        sources |= {name: end + name[len(begin) :] for name in found if name.startswith(f"{begin}/")}
    return sources


def _at(given: Setting, path: tuple[str, ...], file: Path) -> Setting:
    for name in path:
        inside = given.value.get(name) if isinstance(given.value, dict) else None
        if inside is None:
            raise ArgumentError(f"`{file}` has no {'.'.join(path)}: it is not of a run on an encoder.")
        given = inside
    return given
