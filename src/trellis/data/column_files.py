"""From files to columns, with a cache."""

import hashlib
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import get_args

from numpy.typing import DTypeLike

from trellis.data.array_examples import read_image_example, read_npz_examples
from trellis.data.columns import Columns, cached_columns
from trellis.data.examples import read_record_examples
from trellis.data.features import Column, ExampleBlock, Feature, Missing, column_of, infer_features, parse_feature
from trellis.data.files import Format, find_files, fingerprint, format_of
from trellis.disk import default_cache_dir, local_path
from trellis.errors import ArgumentError, DataError
from trellis.spelling import did_you_mean

# Part of the key of the cache: raised when the same files would give other columns than before.
_DECODING_VERSION = 4


def read_columns(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    features: Mapping[str, tuple[DTypeLike, Sequence[int | None]]] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    format: Format | None = None,
    names: Sequence[str] | None = None,
    missing: Mapping[str, Missing] | None = None,
    categories: Sequence[str] | Mapping[str, Sequence[str]] = (),
) -> Columns:
    """Decodes the examples of files into columns on disk, once: the next call for the same just memory-maps them.

    Files are read in sorted order, in whatever order they are given. A file is the same while its name, size, time of
    change, and first and last 64 KiB are.

    Example:
        features = {"image": (np.float32, (28, 28)), "label": (np.int64, ())}
        columns = read_columns("data/train-*.tfrecord", features=features)

        train = read_columns("iris.csv", categories=["species"], missing={"petal_length": 0})
        held_out = read_columns("held_out.csv", categories=train.categories)

    Args:
        paths: A file, a glob, or several of them.
        features: Which columns to keep, each with its dtype (`str` or `bytes` for text) and the shape of one example,
            `(None,)` for any length, as in `Feature`. None keeps those of the first examples, as these suggest.
            Integers must fit the dtype; floats are rounded to it. Bytes that are asked for as an array of some shape
            are its values, or an encoded PNG or JPEG. An image file has the features image, name and folder.
        cache_dir: Where columns are kept; `$XDG_CACHE_HOME/trellis/columns` (`~/.cache/...`) by default.
        format: The format of the files, where neither content nor name tells it.
        names: The columns of TSV or CSV files that have no header.
        missing: What stands for a value that is absent, by feature. Else a float is NaN where its cell is empty or says
            NA, an empty cell of text is an empty text, and the absence of anything else is an error.
        categories: Columns of text that become numbers, from 0 on, in the order of the names given for each, or else
            sorted; `Columns.categories` has them, for other files and to be kept with a model.
    """
    files = find_files(paths)
    parsed = None if features is None else {name: parse_feature(pair, name=name) for name, pair in features.items()}
    if parsed is not None and not parsed:
        raise ArgumentError("features is empty. Name at least one feature, or give None for all.")
    if format is not None and format not in get_args(Format):
        raise ArgumentError(f"format is {format!r}; it can be one of {', '.join(get_args(Format))}.")
    if isinstance(categories, str):
        raise ArgumentError(f"categories is the text {categories!r}. Give a list of columns: [{categories!r}].")
    texts = dict.fromkeys(categories, Feature("str"))
    missing = dict(missing or {})
    prints = [fingerprint(path) for path in files]
    # Images of one size and name may lie in several folders.
    folders = [str(path.parent) for path in files] if _is_any_image(files, format) else None
    settings = [_DECODING_VERSION, parsed, format, names and list(names), missing, list(texts), prints, folders]
    key = hashlib.blake2b(json.dumps(settings).encode(), digest_size=16).hexdigest()
    parent = local_path(cache_dir, name="cache_dir") if cache_dir is not None else default_cache_dir("columns")
    columns = cached_columns(parent / key, _decoded(files, format, names, parsed, missing, texts)).with_missing(missing)
    _check_names(columns.features, missing, "missing")
    given = categories if isinstance(categories, Mapping) else {}
    return columns.numbered({name: given.get(name) for name in categories}) if categories else columns


def read_example_blocks(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], *, names: Sequence[str] | None = None
) -> Iterator[ExampleBlock]:
    """Yields the examples of files, a block at a time, as the files hold them; nothing is kept.

    Args:
        paths: A file, a glob, or several of them; they are read in sorted order.
        names: The columns of TSV or CSV files that have no header.
    """
    for path in find_files(paths):
        yield from _blocks_of(path, format_of(path), names, None)


def _is_any_image(files: Sequence[Path], format: Format | None) -> bool:
    return "image" in {format or format_of(path) for path in files}


def _check_names(columns: Collection[str], names: Iterable[str], argument: str) -> None:
    for name in names:
        if name not in columns:
            suggestion = did_you_mean(name, columns)
            raise ArgumentError(
                f"{argument}: there is no column {name!r}.{suggestion} The columns are {', '.join(columns)}."
            )


def _decoded(
    files: Sequence[Path],
    format: Format | None,
    names: Sequence[str] | None,
    features: Mapping[str, Feature] | None,
    missing: Mapping[str, Missing],
    texts: Mapping[str, Feature],
) -> Iterator[dict[str, Column]]:
    """Yields the columns of each block of examples."""
    n_examples = 0
    features = None if features is None else {**features, **texts}
    for path in files:
        for block in _blocks_of(path, format or format_of(path), names, features):
            _check_names(block.names, texts.keys() - missing.keys(), "categories")
            if features is None:
                features = {**infer_features(block, missing=missing), **texts}
            if not features:
                raise DataError(f"{path}: its first examples have no features. Write them, or leave it out.")
            yield {
                name: column_of(block, name=name, feature=feature, missing=missing.get(name))
                for name, feature in features.items()
            }
            n_examples += len(block)
    if n_examples == 0:
        raise DataError(f"There are no examples in {', '.join(map(str, files))}. Give files that have some.")


def _blocks_of(
    path: Path, format: Format, names: Sequence[str] | None, features: Mapping[str, Feature] | None
) -> Iterator[ExampleBlock]:
    if format == "tfrecord":
        return read_record_examples(path)
    if format == "npz":
        return iter([read_npz_examples(path)])
    if format == "image":
        return iter([read_image_example(path)])
    # Arrow takes a quarter of a second to load: only when it is to read something.
    from trellis.data.arrow_examples import RowSource, read_parquet_examples, read_row_examples

    if format == "parquet":
        return read_parquet_examples(path, names=features)
    return read_row_examples(RowSource(path, format, names))
