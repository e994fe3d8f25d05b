"""A file of rows with text, and which of its columns are taken for what: to train on, and to be asked."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trellis.data import Row, RowFormat, first_names, format_of, read_rows
from trellis.errors import DataError

_OTHER_NAMES = {"premise": "sentence1", "hypothesis": "sentence2", "label": "gold_label"}
"""From what TensorFlow Datasets calls the columns of MNLI, as its published config does, to what GLUE's files do."""
_TABLES: Mapping[str, RowFormat] = {"tsv": "tsv", "csv": "csv", "jsonl": "jsonl", "parquet": "parquet"}
_WITH_LINES = ("tsv", "csv")


@dataclass(frozen=True)
class TextFile:
    """A file of rows with text, after a look at its first row.

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
        if not is_unicode(value):
            raise DataError(f"{place}: {column!r} is {value!r}, which has half a character. Correct the line.")
        return value


def is_unicode(text: str) -> bool:
    """Whether a text is made of whole characters: JSON can also spell halves of them, which nothing can read."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def open_text_file(
    path: Path,
    *,
    texts: Sequence[str],
    label: str | None = None,
    column_names: Sequence[str] | None = None,
    is_asked: bool = False,
    may_hold_texts_alone: bool = True,
) -> TextFile:
    """Returns a file of rows: TSV, CSV, JSONL or Parquet.

    A first line that has all columns with text is a header, whatever `column_names` says: GLUE's CoLA has one in its
    tests, and none elsewhere.

    Args:
        texts: The columns with text.
        label: The column with the label, if it is to be read.
        column_names: The columns of a table without a header.
        is_asked: Whether a model is asked. Then plain text is a table too, with tabs between its cells; and a column
            that is missing is an error at once.
        may_hold_texts_alone: Whether a table that is asked may have no header, the texts in their order, and nothing
            else.
    """
    format = _format(path, with_plain_text=is_asked)
    first = first_names(path, format=format)
    if not first:
        raise DataError(f"{path}: there is no text in it.")
    names = None
    if format in _WITH_LINES:
        is_alone = is_asked and may_hold_texts_alone
        names = _names_without_header(first, texts, column_names, is_asked=is_asked, may_be_alone=is_alone)
    known = first if names is None else names
    columns = {name: _name_in(known, name) for name in (*texts, *([] if label is None else [label]))}
    missing = [name for name in texts if columns[name] not in known]
    # Objects may have different names: one that lacks a column says nothing of the others.
    if is_asked and missing and (format != "jsonl" or len(missing) == len(texts)):
        raise DataError(
            f"{path}: there is no column {missing[0]!r} among {', '.join(map(repr, known))}. The model is asked "
            f"{', '.join(texts)}. Name the columns that have this: --text_fields=…; or, if the file has no header, all "
            f"of its columns: --column_names=…"
        )
    notes = []
    if names is not None:
        notes.append(
            f"There is no header, as its first line does not name {', '.join(texts)}; its columns are taken for "
            f"{', '.join(names)}."
        )
    elif column_names is not None and not missing:
        notes.append("Its columns have names, so that column_names is not needed.")
    notes += [f"Its {column!r} is taken for {name!r}." for name, column in columns.items() if name != column]
    left_out = [name for name in known if name not in columns.values()]
    return TextFile(path, format, columns, left_out, names, notes)


def _names_without_header(
    first: Sequence[str],
    texts: Sequence[str],
    column_names: Sequence[str] | None,
    *,
    is_asked: bool,
    may_be_alone: bool,
) -> Sequence[str] | None:
    """The columns of a table whose first line is a row; None if that line is a header, or nobody can tell."""
    missing = [name for name in texts if _name_in(first, name) not in first]
    if not missing:
        return None
    if column_names is not None and (len(column_names) == len(first) or not is_asked):
        return column_names
    return texts if may_be_alone and len(first) == len(texts) == len(missing) else None


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
        raise DataError(f"{path} {what}. Give .tsv, .csv, .jsonl or .parquet files: their columns have names.")
    return _TABLES[format]


def _name_in(columns: Sequence[str], name: str) -> str:
    """What a file calls a column: its name or, if there is none of that name, the other one that it goes by."""
    other = _OTHER_NAMES.get(name, name)
    return other if other in columns and name not in columns else name
