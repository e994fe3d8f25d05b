"""The folders of sentence-transformers: how the states of an encoder become one vector for a sentence."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from trellis.aliases import JSON
from trellis.bridges.weight_files import read_json
from trellis.errors import ArgumentError, CheckpointFileError

Pooling = Literal["mean", "cls", "max"]
"""How the states of the tokens of a sentence become one vector: their mean, the first one's, the greatest of each."""

_MODULES = "modules.json"
_SETTINGS = "sentence_bert_config.json"
_TOKENIZER = "tokenizer_config.json"
_CONFIG = "config.json"
_FLAGS: Mapping[str, Pooling] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
}
_POOLING_FOLDER = "1_Pooling"
_NORMALIZE_FOLDER = "2_Normalize"
_TYPES = "sentence_transformers.models"
# All versions of the package read the names of this one.
_FORMAT = "2.2.2"


@dataclass(frozen=True, kw_only=True)
class SentenceEmbedding:
    """What a folder of sentence-transformers says beside the encoder."""

    pooling: Pooling
    is_normalized: bool
    """Whether vectors are divided by their length."""
    seq_length: int | None
    """The most tokens of a sentence; None if the folder does not say."""


def read_sentence_embedding(directory: str | Path) -> SentenceEmbedding | None:
    """Returns what a folder of sentence-transformers says beside the encoder; None if it is no such folder.

    Its modules are an encoder that lies in the folder itself, a pooling and perhaps a normalization. Others, such as a
    dense layer, are refused by their names.
    """
    folder = Path(directory)
    if not (folder / _MODULES).is_file():
        return None
    modules = read_json(folder / _MODULES)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise CheckpointFileError(f"`{folder / _MODULES}` is no list of modules. Copy the folder again.")
    kinds = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise ArgumentError(
            f"`{folder / _MODULES}` has the modules {', '.join(kinds) or 'of nothing'}, but Transformer, Pooling and "
            f"Normalize, in this order, are what can be computed here. Take another model."
        )
    if modules[0].get("path"):
        raise ArgumentError(
            f"`{folder}` has its encoder in the folder {modules[0]['path']}, as versions before 2 of "
            f"sentence-transformers wrote it. Write it again: SentenceTransformer({str(folder)!r}).save('new')."
        )
    return SentenceEmbedding(
        pooling=_read_pooling(folder / str(modules[1].get("path")) / _CONFIG),
        is_normalized=kinds[-1] == "Normalize",
        seq_length=_read_length(folder),
    )


def sentence_embedding_files(*, pooling: Pooling, is_normalized: bool, width: int, seq_length: int) -> dict[str, JSON]:
    """Returns what sentence-transformers reads beside the files of an encoder: each file's content by its path.

    Args:
        width: Of the vectors.
        seq_length: The most tokens of a sentence.
    """
    kinds = {"": "Transformer", _POOLING_FOLDER: "Pooling"}
    if is_normalized:
        kinds[_NORMALIZE_FOLDER] = "Normalize"
    modules: list[JSON] = [
        {"idx": number, "name": str(number), "path": path, "type": f"{_TYPES}.{kind}"}
        for number, (path, kind) in enumerate(kinds.items())
    ]
    flags: dict[str, JSON] = {name: mode == pooling for name, mode in _FLAGS.items()}
    files: dict[str, JSON] = {
        _MODULES: modules,
        _SETTINGS: {"max_seq_length": seq_length, "do_lower_case": False},
        "config_sentence_transformers.json": {
            "__version__": {"sentence_transformers": _FORMAT},
            "similarity_fn_name": "cosine" if is_normalized else "dot",
        },
        f"{_POOLING_FOLDER}/{_CONFIG}": {
            "word_embedding_dimension": width,
            **flags,
            "pooling_mode_mean_sqrt_len_tokens": False,
        },
    }
    return files | ({f"{_NORMALIZE_FOLDER}/{_CONFIG}": {}} if is_normalized else {})


def _read_pooling(file: Path) -> Pooling:
    values = read_json(file)
    settings = values if isinstance(values, dict) else {}
    # Newer versions have one name in the place of a flag for each.
    modes: list[Any] = [settings["pooling_mode"]] if "pooling_mode" in settings else []
    names = [name for name, value in settings.items() if name.startswith("pooling_mode_") and value is True]
    modes = modes or [_FLAGS.get(name, name) for name in names]
    if len(modes) != 1 or modes[0] not in _FLAGS.values():
        shown = ", ".join(map(str, modes)) or "nothing"
        raise ArgumentError(f"`{file}` has the pooling {shown}, but it can be one of mean, cls and max here.")
    pooling: Pooling = modes[0]
    return pooling


def _read_length(folder: Path) -> int | None:
    for name, field in ((_SETTINGS, "max_seq_length"), (_TOKENIZER, "model_max_length")):
        values = read_json(folder / name) if (folder / name).is_file() else {}
        length = values.get(field) if isinstance(values, dict) else None
        # Where there is no limit, tokenizers have a number beyond all reason.
        if isinstance(length, int) and 0 < length < 1 << 24:
            return length
    return None
