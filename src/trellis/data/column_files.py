"""From files to columns, with a cache."""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import get_args

from numpy.typing import DTypeLike

from trellis.data.columns import Columns, cached_columns
from trellis.data.examples import read_record_examples
from trellis.data.features import Column, ExampleBlock, Feature, column_of, infer_features, parse_feature
from trellis.data.files import Format, find_files, fingerprint, format_of
from trellis.disk import default_cache_dir
from trellis.errors import ArgumentError, DataError

# Part of the key of the cache: raised when the same files would give other columns than before.
_DECODING_VERSION = 2


def read_columns(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    features: Mapping[str, tuple[DTypeLike, Sequence[int | None]]] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    format: Format | None = None,
    names: Sequence[str] | None = None,
) -> Columns:
    """Decodes the examples of files into columns on disk, once: the next call for the same just memory-maps them.

    Files are read in sorted order, in whatever order they are given. A file is the same while its name, size, time of
    change, and first and last 64 KiB are.

    Example:
        features = {"image": (np.float32, (28, 28)), "label": (np.int64, ())}
        columns = read_columns("data/train-*.tfrecord", features=features)

    Args:
        paths: A file, a glob, or several of them.
        features: Which columns to keep, each with its dtype (`str` or `bytes` for text) and the shape of one example,
            `(None,)` for any length, as in `Feature`. None keeps those of the first examples, as these suggest.
            Integers must fit the dtype; floats are rounded to it.
        cache_dir: Where columns are kept; `$XDG_CACHE_HOME/trellis/columns` (`~/.cache/...`) by default.
        format: The format of the files, where neither content nor name tells it.
        names: The columns of TSV or CSV files that have no header.
    """
    files = find_files(paths)
    parsed = None if features is None else {name: parse_feature(pair, name=name) for name, pair in features.items()}
    if parsed is not None and not parsed:
        raise ArgumentError("features is empty. Name at least one feature, or give None for all.")
    if format is not None and format not in get_args(Format):
        raise ArgumentError(f"format is {format!r}; it can be one of {', '.join(get_args(Format))}.")
    prints = [fingerprint(path) for path in files]
    settings = [_DECODING_VERSION, parsed, format, names and list(names), prints]
    key = hashlib.blake2b(json.dumps(settings).encode(), digest_size=16).hexdigest()
    parent = Path(cache_dir) if cache_dir is not None else default_cache_dir("columns")
    return cached_columns(parent / key, _decoded(files, format, names, parsed))


def _decoded(
    files: Sequence[Path], format: Format | None, names: Sequence[str] | None, features: Mapping[str, Feature] | None
) -> Iterator[dict[str, Column]]:
    """Yields the columns of each block of examples."""
    n_examples = 0
    for path in files:
        for block in _blocks_of(path, format or format_of(path), names, features):
            if features is None:
                features = infer_features(block)
            if not features:
                raise DataError(f"{path}: its first examples have no features. Write them, or leave it out.")
            yield {name: column_of(block, name=name, feature=feature) for name, feature in features.items()}
            n_examples += len(block)
    if n_examples == 0:
        raise DataError(f"There are no examples in {', '.join(map(str, files))}. Give files that have some.")


def _blocks_of(
    path: Path, format: Format, names: Sequence[str] | None, features: Mapping[str, Feature] | None
) -> Iterator[ExampleBlock]:
    if format == "tfrecord":
        return read_record_examples(path)
    # Arrow takes a quarter of a second to load: only when it is to read something.
    from trellis.data.arrow_examples import RowSource, read_parquet_examples, read_row_examples

    if format == "parquet":
        return read_parquet_examples(path, names=features)
    return read_row_examples(RowSource(path, format, names))
