"""A file of rows with text, and which of its columns are taken for what: to train on, and to be asked."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trellis.data import Row, RowFormat, first_names, format_of, read_rows
from trellis.errors import DataError

_OTHER_NAMES = {"premise": "sentence1", "hypothesis": "sentence2", "label": "gold_label"}
"""From what TensorFlow Datasets calls the columns of MNLI, as its published config does, to what GLUE's files do."""
_TABLES: Mapping[str, RowFormat] = {"tsv": "tsv", "csv": "csv", "jsonl": "jsonl"}


@dataclass(frozen=True)
class TextFile:
    """A file of rows with text; `str` tells what was taken for what.

    Example:
        file = open_text_file(Path("dev.tsv"), texts=["sentence1", "sentence2"], label="label")
        for row in file.rows():
            print(file.text(row, "sentence1"))
    """

    path: Path
    format: RowFormat
    columns: Mapping[str, str]
    """From the names that were asked for to those in the file."""
    left_out: Sequence[str]
    """The other columns of the file."""
    names: Sequence[str] | None = None
    """The columns of a file without a header."""
    notes: Sequence[str] = ()
    """What was decided that nobody has said."""

    def rows(self, *, keep_bad: bool = False) -> Iterator[Row]:
        """Yields the rows; with `keep_bad` also those that cannot be read, each with its problem."""
        return read_rows(self.path, format=self.format, names=self.names, keep_bad=keep_bad)

    def text(self, row: Row, name: str) -> str:
        """The text that a row has in the column that is taken for a name."""
        place, column = f"{self.path}:{row.line}", self.columns[name]
        if column not in row.values:
            way_out = "Name a column that is there by text_fields; columns of a file without a header by column_names."
            known = ", ".join(map(repr, row.values))
            raise DataError(f"{place}: there is no column {column!r} among {known}. {way_out}")
        value = row.values[column]
        if not isinstance(value, str):
            raise DataError(f"{place}: {column!r} is {value!r}, not text. Correct the line, or name another column.")
        return value


def open_text_file(
    path: Path,
    *,
    texts: Sequence[str],
    label: str | None = None,
    column_names: Sequence[str] | None = None,
    may_hold_texts_alone: bool = False,
) -> TextFile:
    """Returns a file of rows, TSV, CSV or JSONL, after a look at its first row.

    A first line that has all columns with text is a header, whatever `column_names` says: GLUE's CoLA has one in its
    tests, and none elsewhere.

    Args:
        texts: The columns with text.
        label: The column with the label, if it is to be read.
        column_names: The columns of a table without a header.
        may_hold_texts_alone: Whether a table without a header may have the texts in their order and nothing else; then
            plain text is a table too, with tabs between its cells.
    """
    format = _format(path, with_plain_text=may_hold_texts_alone)
    first = first_names(path, format=format)
    if not first:
        raise DataError(f"{path}: there is no text in it.")
    wanted = [*texts, *([] if label is None else [label])]
    columns = {name: _name_in(first, name) for name in wanted}
    names: Sequence[str] | None = None
    notes: list[str] = []
    if format != "jsonl" and not all(columns[name] in first for name in texts):
        names = column_names
        if may_hold_texts_alone and (names is None or len(names) != len(first)):
            names = _texts_alone(path, first, texts)
        if names is not None:
            columns = {name: _name_in(names, name) for name in wanted}
            notes.append(
                f"There is no header, as its first line does not name {', '.join(texts)}; its columns are taken for "
                f"{', '.join(names)}."
            )
    elif format != "jsonl" and column_names is not None:
        notes.append("Its first line is a header, so that column_names is not needed.")
    notes += [f"Its {column!r} is taken for {name!r}." for name, column in columns.items() if name != column]
    known = first if names is None else names
    left_out = [name for name in known if name not in columns.values()]
    return TextFile(path, format, columns, left_out, names, notes)


def _format(path: Path, *, with_plain_text: bool) -> RowFormat:
    """The format by content and name; if plain text counts, a file of which neither tells anything is text."""
    try:
        format = format_of(path)
    except DataError:
        if not with_plain_text or not path.is_file():
            raise
        format = "text"
    if format == "text" and with_plain_text:
        return "tsv"
    if format not in _TABLES:
        what = "has no columns" if format == "text" else f"has format {format}"
        raise DataError(f"{path} {what}. Give .tsv, .csv or .jsonl files: their columns have names.")
    return _TABLES[format]


def _name_in(columns: Sequence[str], name: str) -> str:
    """What a file calls a column: its name or, if there is none of that name, the other one that it goes by."""
    other = _OTHER_NAMES.get(name, name)
    return other if other in columns and name not in columns else name


def _texts_alone(path: Path, first: Sequence[str], texts: Sequence[str]) -> Sequence[str]:
    missing = [name for name in texts if _name_in(first, name) not in first]
    if len(first) == len(texts) == len(missing):
        return texts
    raise DataError(
        f"{path}:1: there is no column {missing[0]!r} among {', '.join(map(repr, first))}. The model is asked "
        f"{', '.join(texts)}. Name the columns that have this: --text_fields=…; or, if the file has no header, all of "
        f"its columns: --column_names=…"
    )
