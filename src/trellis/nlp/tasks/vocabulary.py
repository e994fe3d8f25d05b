"""The vocabulary of a run: where it comes from, and the copy that is kept with the run."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from trellis.data import DataConfig
from trellis.errors import ArgumentError
from trellis.extensions import replace_file
from trellis.nlp.data import Tokenizer, build_tokenizer
from trellis.tasks import TaskConfig

_NAMES = ("vocab.txt", "spiece.model")
"""What a vocabulary is called in a directory: WordPiece's, SentencePiece's."""
_FIELDS = ("vocab_file", "vocab_file_path")
"""What it is called in the configs of data."""


def find_vocabulary(task_config: TaskConfig, *, directories: tuple[str, ...] = ()) -> Path | None:
    """The vocabulary that the data of a task is made with: the first that is there, None if none is known.

    It is looked for in some directories, then where the data's config says, then beside the pretrained weights.
    """
    return next((file for file in _places(task_config, directories) if file.is_file()), None)


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
    target = Path(directory, _NAMES[1] if vocab_file.suffix == ".model" else _NAMES[0])
    replace_file(target, vocab_file.read_bytes())


def read_tokenizer(task_config: TaskConfig, *, model_dir: str, vocab_file: str = "") -> Tokenizer:
    """The tokenizer of a run.

    Args:
        model_dir: Where the run has left its vocabulary.
        vocab_file: The vocabulary, if it is to be another one.
    """
    found = Path(vocab_file) if vocab_file else find_vocabulary(task_config, directories=(model_dir,))
    if found is None:
        raise ArgumentError(
            f"The vocabulary of the run in `{model_dir}` is not known: its data came as ids. Give it, as in "
            f"--vocab_file=vocab.txt"
        )
    return build_tokenizer(found, **_settings(task_config))


def _places(task_config: TaskConfig, directories: tuple[str, ...]) -> Iterator[Path]:
    values = task_config.as_dict()
    yield from (Path(directory, name) for directory in directories for name in _NAMES)
    for side in ("train_data", "validation_data"):
        for field in _FIELDS:
            if values[side].get(field):
                yield Path(values[side][field])
    for field in ("hub_module_url", "init_checkpoint"):
        if values.get(field):
            place = Path(values[field])
            yield from (folder / name for folder in (place, place.parent) for name in _NAMES)


def _settings(task_config: TaskConfig) -> dict[str, Any]:
    """How the text of a task was cut into tokens, as `build_tokenizer` takes it."""
    data = task_config.train_data.as_dict()
    return {
        "tokenization": data.get("tokenization", "WordPiece"),
        "lower_case": data.get("lower_case", data.get("do_lower_case", True)),
    }
