"""Lines on the screen that do not break a progress bar."""

import sys

import jax
from tqdm import tqdm

from trellis.aliases import PyTree


def print_line(text: str) -> None:
    """Prints one line on stdout at once, above a progress bar if there is one."""
    tqdm.write(text, file=sys.stdout)
    sys.stdout.flush()


def describe_size(n_bytes: int) -> str:
    """A size for people: exact in bytes, else cut to one decimal in units of 1024."""
    size, text = float(n_bytes), f"= {n_bytes} B"
    for unit in ("kB", "MB", "GB", "TB"):
        size /= 1024
        if size < 1:
            break
        text = f"~ {int(size * 10) / 10} {unit}"
    return text


def describe_weights(params: PyTree) -> str:
    """How many weights there are, and their size in memory."""
    leaves = jax.tree.leaves(params)
    size = describe_size(sum(leaf.size * leaf.dtype.itemsize for leaf in leaves))
    return f"Total number of trainable weights: {sum(leaf.size for leaf in leaves)} {size}."
