"""Text that every machine has: the documentation strings of Python's own standard library."""

import ast
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from trellis.errors import ArgumentError, DataError

_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def load_local_corpus(folder: str | Path | None = None) -> str:
    """The documentation strings of all modules in a folder, in order, with an empty line between two.

    Sources are parsed, never imported. The standard library gives about 0.9 million characters of English, the same for
    one version of Python on every machine.

    Args:
        folder: Where the modules are; the default is that of the running Python's standard library.
    """
    folder = Path(sysconfig.get_path("stdlib") if folder is None else folder)
    modules = (ast.parse(file.read_bytes(), file) for file in sorted(folder.glob("*.py")))
    texts = [text for module in modules for text in _documentation(module)]
    if not texts:
        raise DataError(f"No documentation strings were found in {folder}. Name a folder with Python sources.")
    return "\n\n".join(texts)


def byte_sequences(text: str, *, length: int, validation_share: float = 0.05) -> tuple[np.ndarray, np.ndarray]:
    """Cuts a text into sequences of bytes (in UTF-8), each used once: those to train on, and those held out.

    Both are int32 arrays of shape (n, length). The held-out ones are spread evenly over the text.

    Example:
        train, validation = byte_sequences(load_local_corpus(), length=64)
        stream = trellis.ExampleStream((train, train), batch_size=32)
    """
    if length < 1:
        raise ArgumentError(f"length is {length}, but a sequence has at least one byte.")
    if not 0 < validation_share < 1:
        raise ArgumentError(f"validation_share is {validation_share}, but it lies between 0 and 1.")
    tokens = np.frombuffer(text.encode(), np.uint8).astype(np.int32)
    n_sequences = len(tokens) // length
    n_held_out = round(n_sequences * validation_share)
    if not 0 < n_held_out < n_sequences:
        raise DataError(
            f"A text of {len(tokens)} bytes is too short: it gives {n_sequences} sequences of {length} bytes, of which "
            f"{n_held_out} are held out. Use a longer text or shorter sequences."
        )
    sequences = tokens[: n_sequences * length].reshape(n_sequences, length)
    held_out = np.zeros(n_sequences, bool)
    held_out[np.arange(n_held_out) * n_sequences // n_held_out] = True
    return sequences[~held_out], sequences[held_out]


def _documentation(node: _Documented) -> Iterator[str]:
    text = ast.get_docstring(node)
    if text:
        yield text
    for statement in node.body:
        if isinstance(statement, _Documented):
            yield from _documentation(statement)
