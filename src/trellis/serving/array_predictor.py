"""A model that is asked with arrays and records: files with columns → batches → what it answers."""

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import jax
import numpy as np

from trellis.aliases import PyTree
from trellis.data import ExampleBlock, Feature, Missing, Ragged, column_of, infer_features, read_example_blocks
from trellis.errors import ArgumentError, DataError, ModelError
from trellis.serving.export import path_name
from trellis.serving.load import LoadedModel
from trellis.serving.manifest import BATCH, ArraySpec
from trellis.spelling import did_you_mean

ARRAY_BATCH_SIZE = 128
"""How many examples a model is asked at once, if it takes any number."""
_IDS = ("id", "name")
"""Columns that are kept with an answer, the first that there is: an image file is known by its name."""
_N_LISTED = 12
_REQUEST = re.compile(r" If lengths differ, ask for features=\{[^}]*\}\.|(,? or|\.)? [aA]sk for features=\{[^}]*\}")
_OWN_DTYPES = "biuf"


class ArrayAnswers(NamedTuple):
    """What a model answers to some consecutive examples."""

    ids: list[Any]
    """What each example is known by: its id, or else its number in the file, from 0 on."""
    outputs: dict[str, np.ndarray]
    """By name; the first axis is the examples."""


@dataclass(frozen=True)
class AskedArrays:
    """The answers to the examples of a file, and what was taken for what in it."""

    answers: Iterator[ArrayAnswers]
    notes: Sequence[str]
    has_ids: bool
    """Whether the examples have ids of their own."""


class ArrayPredictor:
    """Asks a model with arrays, or with the columns of files, any number of examples.

    Names in columns of text become the numbers that they had in the training, where the model knows its `categories`;
    what stands for an absent value is known likewise (`missing`).

    Example:
        predictor = load_array_predictor("runs/digits")
        outputs = predictor(images)
        for answers in predictor.open("images.npz").answers:
            print(answers.ids, answers.outputs["outputs"].argmax(-1))
    """

    def __init__(self, model: LoadedModel) -> None:
        self._signature = model.signatures[model.manifest.default_signature]
        specs = self._signature.spec.inputs
        self.inputs = [replace(spec, shape=(BATCH, *spec.shape[1:])) for spec in specs]
        """What the model takes; batches are made here, so it does not matter of what size they are."""
        size = specs[0].shape[0]
        self._batch_size = size if isinstance(size, int) else ARRAY_BATCH_SIZE
        self._categories = model.categories
        missing = model.manifest.metadata.get("missing")
        self._missing: Mapping[str, Missing] = missing if isinstance(missing, dict) else {}

    def __call__(self, inputs: PyTree) -> PyTree:
        """The outputs for examples: all of them, asked in batches."""
        leaves, structure = jax.tree.flatten(inputs)
        arrays = [np.asarray(leaf) for leaf in leaves]
        sizes = {array.shape[0] if array.ndim else None for array in arrays}
        n = sizes.pop() if len(sizes) == 1 else None
        if not n:
            # The model's own check tells what is wrong.
            return self._signature(inputs)
        parts = []
        for start in range(0, n, self._batch_size):
            rows = self._filled_rows(start, n)
            outputs = self._signature(jax.tree.unflatten(structure, [array[rows] for array in arrays]))
            parts.append(self._rows_of(outputs, min(self._batch_size, n - start)))
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)

    def open(
        self,
        input_file: str,
        *,
        columns: Mapping[str, Sequence[str]] | Sequence[str] = (),
        column_names: Sequence[str] = (),
        missing: Mapping[str, Missing] | None = None,
    ) -> AskedArrays:
        """Returns what the model answers to the examples of a file, and what was taken for what in it.

        Args:
            input_file: `.npz`, `.npy`, TFRecord of `tf.Example`, CSV, TSV, JSONL, Parquet or images; a glob is several.
            columns: Which columns each input is made of, as names or patterns such as `pixel_*`; a list for a model of
                one input. The default is the column of the same name. Several columns of numbers become one array.
            column_names: The columns of a table without a header.
            missing: What stands for an absent value, by column, in the place of what the model knows.
        """
        blocks = read_example_blocks(input_file, names=list(column_names) or None)
        first = next(blocks, None)
        if first is None:
            raise DataError(f"There are no examples in {input_file}. Give a file that has some.")
        chosen = _chosen(columns, self.inputs)
        names_of = {spec.name: _columns_of(spec, first, chosen, is_alone=len(self.inputs) == 1) for spec in self.inputs}
        id_name = next((name for name in _IDS if name in first.names and [name] not in names_of.values()), None)
        fillings = {**self._missing, **(missing or {})}
        self._check_missing(missing or {}, names_of)
        read = (self._read(block, names_of, fillings, id_name) for block in itertools.chain([first], blocks))
        notes = [f"{input_file}: {_summary(names_of, first.names, id_name)}"]
        return AskedArrays(self._answers(read), notes, has_ids=id_name is not None)

    def _check_missing(self, missing: Mapping[str, Missing], names_of: Mapping[str, Sequence[str]]) -> None:
        asked = [name for names in names_of.values() for name in names]
        for name in missing:
            if name not in asked:
                suggestion = did_you_mean(name, asked)
                raise ArgumentError(f"missing: {name!r} is not asked.{suggestion} Asked are {', '.join(asked)}.")

    def _read(
        self,
        block: ExampleBlock,
        names_of: Mapping[str, Sequence[str]],
        missing: Mapping[str, Missing],
        id_name: str | None,
    ) -> tuple[list[Any] | None, dict[str, np.ndarray]]:
        """The ids of a block's examples, if they have some, and the inputs of the model."""
        arrays = {spec.name: self._input(block, spec, names_of[spec.name], missing) for spec in self.inputs}
        return None if id_name is None else _ids(block, id_name), arrays

    def _input(
        self, block: ExampleBlock, spec: ArraySpec, names: Sequence[str], missing: Mapping[str, Missing]
    ) -> np.ndarray:
        shape = tuple(size for size in spec.shape[1:] if isinstance(size, int))
        part_shape = shape if len(names) == 1 else ()
        try:
            parts = [self._column(block, name, spec.dtype, part_shape, missing.get(name)) for name in names]
        except DataError as error:
            # Who reads a file to train on may ask for something else; what a model takes is what it takes.
            raise DataError(f"{_REQUEST.sub('', str(error))} The model takes {spec}.") from error.__cause__
        return parts[0].reshape(-1, *shape) if len(parts) == 1 else np.stack(parts, axis=1).reshape(-1, *shape)

    def _column(
        self, block: ExampleBlock, name: str, dtype: str, shape: tuple[int, ...], missing: Missing | None
    ) -> np.ndarray:
        if name in self._categories and math.prod(shape) == 1:
            numbers = self._numbers(block, name, missing)
            if numbers is not None:
                return numbers
        # A model of another precision is given what the files can hold; it is made narrower when the model is asked.
        held = dtype if dtype in np.sctypeDict and np.dtype(dtype).kind in _OWN_DTYPES else "float32"
        _check_presence(block, name, Feature(held, shape), missing)
        column = column_of(block, name=name, feature=Feature(held, shape), missing=missing)
        assert isinstance(column, np.ndarray)  # shapes of models are fixed
        n_known = len(self._categories.get(name, ()))
        is_unknown = (column < 0) | (column >= n_known) if n_known else np.zeros(len(column), bool)
        if is_unknown.any():
            index = int(is_unknown.reshape(len(column), -1).any(1).argmax())
            problem = f"{column[index]} is the number of none of the {n_known} categories that the model knows."
            raise block.error(f"{problem} Give their names, or numbers below {n_known}.", index=index, name=name)
        return column

    def _numbers(self, block: ExampleBlock, name: str, missing: Missing | None) -> np.ndarray | None:
        """The numbers of the names that a column holds; None if it holds numbers already."""
        if not block.cells(name, dtype="str").is_text and name in block.names:
            return None
        _check_presence(block, name, Feature("str"), missing)
        column = column_of(block, name=name, feature=Feature("str"), missing=missing)
        assert isinstance(column, Ragged)
        names = self._categories[name]
        number_of = {text: number for number, text in enumerate(names)}
        # A table has an empty text where other files have no value.
        filling = "" if missing is None or "" in number_of else str(missing)
        texts = [str(column[index]) or filling for index in range(len(column))]
        for index, text in enumerate(texts):
            if text not in number_of:
                suggestion = did_you_mean(text, names)
                known = f"{', '.join(map(repr, names[:_N_LISTED]))}{', …' if len(names) > _N_LISTED else ''}"
                problem = f"{text!r} is none of the {len(names)} categories that the model knows.{suggestion}"
                raise block.error(f"{problem} They are {known}.", index=index, name=name)
        return np.array([number_of[text] for text in texts], np.int32)

    def _answers(self, blocks: Iterator[tuple[list[Any] | None, dict[str, np.ndarray]]]) -> Iterator[ArrayAnswers]:
        """Yields the answers to blocks of any size, batch by batch."""
        n_before = 0
        ids: list[Any] = []
        waiting: dict[str, np.ndarray] = {}
        for block_ids, arrays in blocks:
            size = len(next(iter(arrays.values())))
            ids += range(n_before, n_before + size) if block_ids is None else block_ids
            n_before += size
            waiting = {
                name: np.concatenate([waiting[name], array]) if waiting else array for name, array in arrays.items()
            }
            n_whole = len(ids) // self._batch_size * self._batch_size
            yield from self._asked(ids[:n_whole], {name: array[:n_whole] for name, array in waiting.items()})
            ids = ids[n_whole:]
            waiting = {name: array[n_whole:] for name, array in waiting.items()}
        yield from self._asked(ids, waiting)

    def _asked(self, ids: list[Any], arrays: Mapping[str, np.ndarray]) -> Iterator[ArrayAnswers]:
        for start in range(0, len(ids), self._batch_size):
            rows = self._filled_rows(start, len(ids))
            outputs = self._signature.call_by_name({name: array[rows] for name, array in arrays.items()})
            own = ids[start : start + self._batch_size]
            leaves = jax.tree_util.tree_leaves_with_path(self._rows_of(outputs, len(own)))
            yield ArrayAnswers(own, {path_name(path, "outputs"): leaf for path, leaf in leaves})

    def _rows_of(self, outputs: PyTree, n: int) -> PyTree:
        """The first rows of outputs, on the host; all have to be by example."""
        for spec in self._signature.spec.outputs:
            if spec.shape[:1] != self._signature.spec.inputs[0].shape[:1]:
                raise ModelError(
                    f"The output {spec} of {self._signature.name} is not by example: its first axis is not that of a "
                    f"batch. Leave it out of what the model answers (Task.serving_functions)."
                )
        return jax.tree.map(lambda leaf: leaf[:n], jax.device_get(outputs))

    def _filled_rows(self, start: int, n: int) -> np.ndarray:
        """The rows of a batch; the last batch is filled up with its last row, so that one program runs them all."""
        return np.minimum(np.arange(start, start + self._batch_size), n - 1)


def _check_presence(block: ExampleBlock, name: str, feature: Feature, missing: Missing | None) -> None:
    """Raises an error for the first example that lacks a value which nothing stands for."""
    cells = block.cells(name, dtype=feature.dtype)
    may_be_nan = cells.is_single and feature.shape == () and not feature.is_text and np.dtype(feature.dtype).kind == "f"
    if missing is not None or may_be_nan or cells.is_present.all():
        return
    fill = "none" if feature.is_text else 0
    problem = f"it is missing. Fill it in, or say what stands for it: --missing={name}={fill}"
    raise block.error(f"{problem}.", index=int(np.argmin(cells.is_present)), name=name)


def _chosen(
    columns: Mapping[str, Sequence[str]] | Sequence[str], inputs: Sequence[ArraySpec]
) -> Mapping[str, Sequence[str]]:
    """The columns that were chosen for each input."""
    names = [spec.name for spec in inputs]
    if not isinstance(columns, Mapping):
        if columns and len(inputs) > 1:
            raise ArgumentError(
                f"columns: the model has {len(inputs)} inputs. Say which column is which: "
                f"--columns={','.join(f'{name}=…' for name in names)}"
            )
        return {names[0]: columns} if columns else {}
    for name in columns:
        if name not in names:
            suggestion = did_you_mean(name, names)
            raise ArgumentError(f"columns: the model has no input {name!r}.{suggestion} It takes {_listed(inputs)}.")
    return columns


def _columns_of(
    spec: ArraySpec, block: ExampleBlock, chosen: Mapping[str, Sequence[str]], *, is_alone: bool
) -> list[str]:
    """The columns of a file that an input is made of."""
    if spec.name in chosen:
        names = [name for pattern in chosen[spec.name] for name in _matching(pattern, block)]
        n_numbers = math.prod(size for size in spec.shape[1:] if isinstance(size, int))
        if len(names) not in (1, n_numbers):
            raise ArgumentError(
                f"columns: {spec.name} is to be made of {_shortened(names)}, which are {len(names)}, but the model "
                f"takes {spec}. Name one column, or {n_numbers}."
            )
        return names
    if spec.name in block.names:
        return [spec.name]
    if is_alone:
        return _columns_of_only_input(spec, block)
    suggestion = did_you_mean(spec.name, block.names)
    raise DataError(
        f"{block.path} has no column {spec.name!r}, but the model takes {spec}.{suggestion} Its columns are "
        f"{_shortened(block.names)}. Name the one to take for it: --columns={spec.name}=COLUMN"
    )


def _matching(pattern: str, block: ExampleBlock) -> list[str]:
    matches = [pattern] if pattern in block.names else [name for name in block.names if fnmatchcase(name, pattern)]
    if not matches:
        suggestion = did_you_mean(pattern, block.names)
        raise ArgumentError(
            f"columns: {block.path} has no column {pattern!r}.{suggestion} Its columns are {_shortened(block.names)}."
        )
    return matches


def _columns_of_only_input(spec: ArraySpec, block: ExampleBlock) -> list[str]:
    """The columns for the input of a model that has no other, whose name few files will have."""
    shape = spec.shape[1:]
    candidates = [name for name in block.names if name not in _IDS]
    if len(candidates) == 1:
        return candidates
    features = infer_features(block, missing={})
    fitting = [name for name in candidates if features[name].shape == shape and not features[name].is_text]
    if len(fitting) == 1:
        return fitting
    numbers = [name for name in candidates if features[name].shape == () and not features[name].is_text]
    if shape == (len(numbers),):
        return numbers
    raise DataError(
        f"{block.path}: which of its columns are the input of the model is not known: it takes {spec}, and the columns "
        f"are {_shortened(block.names)}. Name them, by patterns if they are many: --columns=A,B or --columns='pixel_*'"
    )


def _ids(block: ExampleBlock, name: str) -> list[Any]:
    feature = infer_features(block, missing={}).get(name, Feature("str"))
    column = column_of(block, name=name, feature=feature, missing="" if feature.is_text else None)
    if isinstance(column, Ragged):
        rows = [column[index] for index in range(len(column))]
        return [row.decode(errors="replace") if isinstance(row, bytes) else row for row in rows]
    return list(column.tolist())


def _summary(names_of: Mapping[str, Sequence[str]], names: Sequence[str], id_name: str | None) -> str:
    """Which columns are asked, as what, and which are left out."""
    asked = [
        columns[0] if [name] == columns else f"{_shortened(columns)} (as {name})" for name, columns in names_of.items()
    ]
    used = {name for columns in names_of.values() for name in columns} | {id_name}
    left_out = [name for name in names if name not in used]
    n_asked = sum(map(len, names_of.values()))
    rest = f"; {_shortened(left_out)} {'are' if len(left_out) > 1 else 'is'} left out" if left_out else ""
    kept = f"; {id_name} is kept" if id_name else ""
    return f"{', '.join(asked)} {'are' if n_asked > 1 else 'is'} asked{rest}{kept}."


def _shortened(names: Sequence[str]) -> str:
    if len(names) <= _N_LISTED:
        return ", ".join(names)
    return f"{', '.join(names[:3])}, …, {names[-1]} ({len(names)} columns)"


def _listed(inputs: Sequence[ArraySpec]) -> str:
    return ", ".join(map(str, inputs))
