"""The vocabulary of a run: where it comes from, and the copy that is kept with the run."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from trellis.data import DataConfig
from trellis.disk import write_whole
from trellis.tasks import TaskConfig

VOCABULARY_NAMES = ("vocab.txt", "spiece.model")
"""What a vocabulary is called in a directory: WordPiece's, SentencePiece's."""
_FIELDS = ("vocab_file", "vocab_file_path")
"""What it is called in the configs of data."""


def find_vocabulary(task_config: TaskConfig) -> Path | None:
    """The vocabulary that the data of a task is made with: the first that is there, None if none is known.

    It is looked for where the data's config says, then beside the pretrained weights.
    """
    return next((file for file in _places(task_config) if file.is_file()), None)


def with_vocabulary(params: DataConfig, *, find: Callable[[], Path | None]) -> DataConfig:
    """The data's config with a vocabulary, if it is one of text and names none.

    Args:
        find: Called if it is needed.
    """
    values = params.as_dict()
    field = next((name for name in _FIELDS if values.get(name) == ""), None)
    found = find() if field else None
    return params if found is None else params.replace(**{str(field): str(found)})


def keep_vocabulary(vocab_file: Path | None, *, directory: str) -> None:
    """Copies a vocabulary, if it is known, into the directory of a run, which can then be asked wherever it is."""
    # A plan looks at how a run would start, and leaves nothing behind: only a run has made its directory.
    if vocab_file is None or not Path(directory).is_dir():
        return
    write_whole(Path(directory, kept_name(vocab_file)), vocab_file.read_bytes())


def find_kept_vocabulary(directory: str | os.PathLike[str]) -> Path | None:
    """The vocabulary that a directory holds; None if it holds none."""
    return next((file for name in VOCABULARY_NAMES if (file := Path(directory, name)).is_file()), None)


def kept_name(vocab_file: Path) -> str:
    """What a vocabulary is called where it is kept."""
    return VOCABULARY_NAMES[1] if vocab_file.suffix == ".model" else VOCABULARY_NAMES[0]


def tokenizer_settings(task_config: TaskConfig) -> dict[str, Any]:
    """How the text of a task was cut into tokens, as `build_tokenizer` takes it."""
    data = task_config.train_data.as_dict()
    return {
        "tokenization": data.get("tokenization", "WordPiece"),
        "lower_case": data.get("lower_case", data.get("do_lower_case", True)),
    }


def _places(task_config: TaskConfig) -> Iterator[Path]:
    values = task_config.as_dict()
    for side in ("train_data", "validation_data"):
        for field in _FIELDS:
            if values[side].get(field):
                yield Path(values[side][field])
    for field in ("hub_module_url", "init_checkpoint"):
        if values.get(field):
            place = Path(values[field])
            yield from (folder / name for folder in (place, place.parent) for name in VOCABULARY_NAMES)
