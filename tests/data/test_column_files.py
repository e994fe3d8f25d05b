"""From files of every format to columns, once."""

import gzip
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data.written import ROWS, WRITERS, write_jsonl, write_parquet, write_tfrecord
from trellis.data import column_files as module
from trellis.data.column_files import read_columns
from trellis.data.features import Feature
from trellis.data.ragged import Ragged
from trellis.errors import ArgumentError, DataError


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")


@pytest.mark.parametrize("format", WRITERS)
def test_all_that_a_file_holds_becomes_columns(format: str) -> None:
    columns = read_columns(WRITERS[format](f"a.{format}", ROWS))
    features = columns.features
    assert len(columns) == 3
    assert set(features) == {"label", "score", "text", "ids", "box"}
    assert features["label"] == Feature("int64", ())
    assert features["ids"] == Feature("int64", (None,))
    assert columns["label"].tolist() == [1, 0, 300]
    assert columns["score"].tolist() == [0.5, -2.0, 3.0]
    assert columns.take([2, 0])["ids"].tolist() == [[3, 0], [1, 2]]
    texts = [columns["text"][index] for index in range(3)]
    if format == "tfrecord":
        assert features["box"] == Feature("int64", (4,))
        assert texts == ["ä".encode(), b"", b"abc"]
    else:
        assert features["box"] == Feature("int64", (2, 2))
        assert texts == ["ä", "", "abc"]


@pytest.mark.parametrize("format", WRITERS)
def test_features_say_what_the_columns_are(format: str) -> None:
    features = {"text": (str, ()), "box": (np.float32, (2, 2)), "label": ("int16", ()), "score": (np.float16, (None,))}
    columns = read_columns(WRITERS[format]("data", ROWS), features=features)
    assert list(columns.features) == list(features)
    assert columns.features["score"] == Feature("float16", (None,))
    batch = columns.take([0])
    assert batch["text"].tolist() == ["ä"]
    assert batch["box"].tolist() == [[[1, 2], [3, 4]]]
    assert batch["label"].dtype == np.int16


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_cells_of_tables_are_parsed_as_they_look_or_as_asked_for(suffix: str) -> None:
    path = Path(f"a.{suffix}")
    path.write_text(
        "n,x,zip,word,flag,gap\n1,0.5,007,a,true,1\n-20,1e3,123,b,false,\n".replace(
            ",", {"csv": ",", "tsv": "\t"}[suffix]
        )
    )
    columns = read_columns(path)
    assert columns.features == {
        "n": Feature("int64", ()),
        "x": Feature("float64", ()),
        "zip": Feature("str", ()),
        "word": Feature("str", ()),
        "flag": Feature("str", ()),
        "gap": Feature("int64", (None,)),
    }
    assert columns["n"].tolist() == [1, -20]
    assert [columns["gap"][index].tolist() for index in range(2)] == [[1], []]
    asked = read_columns(
        path, features={"n": (str, ()), "zip": (np.int32, ()), "flag": (bool, ()), "x": (np.float32, ())}
    )
    assert asked["n"][1] == "-20"
    assert asked["zip"].tolist() == [7, 123]
    assert asked["flag"].tolist() == [True, False]


def test_text_becomes_one_column() -> None:
    Path("a.txt").write_text("one\n\nthree\n")
    columns = read_columns("a.txt")
    assert [columns["text"][index] for index in range(3)] == ["one", "", "three"]


def test_names_and_format_reach_the_reader() -> None:
    Path("data").write_text("a\t1\nb\t2\n")
    columns = read_columns("data", format="tsv", names=["word", "count"])
    assert columns["count"].tolist() == [1, 2]


def test_several_files_are_read_in_sorted_order_and_each_once() -> None:
    for index in (2, 0, 1):
        write_tfrecord(f"part-{index}", [{"x": index}], compression="gzip" if index == 1 else "none")
    assert read_columns("part-*")["x"].tolist() == [0, 1, 2]
    assert read_columns(["part-1", Path("part-0"), "part-[01]"])["x"].tolist() == [0, 1]


def test_files_of_different_formats_may_be_mixed() -> None:
    write_jsonl("a.jsonl", ROWS[:1])
    write_parquet("b.parquet", ROWS[1:])
    assert read_columns(["a.jsonl", "b.parquet"], features={"label": (np.int64, ())})["label"].tolist() == [1, 0, 300]


def test_more_examples_than_one_block_are_all_there() -> None:
    write_jsonl("a.jsonl", [{"x": index, "ids": list(range(index % 5))} for index in range(10_000)])
    columns = read_columns("a.jsonl")
    assert columns["x"].tolist() == list(range(10_000))
    assert columns.take([9_999])["ids"].tolist() == [[0, 1, 2, 3]]


def test_an_absent_feature_of_any_length_is_empty() -> None:
    write_tfrecord("a", [{"ids": [1, 2], "x": 1}, {"x": 2}])
    features = {"ids": (np.int64, (None,)), "never": (np.float32, (None,))}
    columns = read_columns("a", features=features)
    assert columns["ids"].lengths.tolist() == [2, 0]
    assert isinstance(columns["never"], Ragged)
    assert columns["never"].lengths.tolist() == [0, 0]


def test_a_shard_without_examples_among_others_is_none() -> None:
    write_tfrecord("a-0", [], compression="gzip")
    write_tfrecord("a-1", [{"x": 1}], compression="gzip")
    assert len(read_columns("a-*", format="tfrecord")) == 1


def count_blocks(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    read: list[Path] = []
    plain: Callable[..., Any] = module._blocks_of

    def counted(path: Path, *args: Any) -> Any:
        read.append(path)
        return plain(path, *args)

    monkeypatch.setattr(module, "_blocks_of", counted)
    return read


def test_the_second_call_reads_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_jsonl("a.jsonl", ROWS)
    read = count_blocks(monkeypatch)
    first, second = read_columns(path), read_columns([path])
    assert read == [path]
    assert first.features == second.features
    assert isinstance(second["label"].base, np.memmap)


@pytest.mark.parametrize("change", ["content", "time", "features", "names"])
def test_the_cache_is_not_used_after_a_change(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path("a.csv")
    path.write_text("x,y\n1,2\n")
    read = count_blocks(monkeypatch)
    read_columns(path)
    settings: dict[str, Any] = {}
    if change == "content":
        status = path.stat()
        path.write_text("x,y\n1,3\n")
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    elif change == "time":
        os.utime(path, ns=(1, 1))
    elif change == "features":
        settings = {"features": {"y": (np.int64, ())}}
    else:
        settings = {"names": ["a", "b"]}
    read_columns(path, **settings)
    assert read == [path, path]


def test_the_cache_is_where_it_is_asked_for() -> None:
    path = write_jsonl("a.jsonl", ROWS)
    read_columns(path, cache_dir="mine")
    assert len(list(Path("mine").glob("*/columns.json"))) == 1
    assert not Path("cache").exists()
    read_columns(path)
    assert len(list(Path("cache/trellis/columns").glob("*/columns.json"))) == 1


def test_a_failed_read_leaves_no_cache() -> None:
    path = write_jsonl("a.jsonl", [*ROWS, {"label": "x"}])
    with pytest.raises(DataError):
        read_columns(path, cache_dir="mine")
    assert list(Path("mine").iterdir()) == []


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ("none-*.tfrecord", r"No file matches 'none-\*.tfrecord'. Check the pattern; it is taken from /"),
        ("none.tfrecord", r"none.tfrecord: no such file. Check the path"),
        (["a.jsonl", "none"], "none: no such file"),
        ("empty", "empty is empty. Leave it out, or write it again"),
        (["a.jsonl", "empty"], "empty is empty"),
        (".", r"\. is a directory. To read the files in it, give '\./\*'"),
        ("header.csv", "There are no examples in header.csv. Give files that have some"),
        (
            "what",
            "what: neither its content nor its name tells its format. Give format= one of tfrecord, jsonl, tsv, csv",
        ),
    ],
)
def test_files_without_examples_are_named(paths: Any, message: str) -> None:
    write_jsonl("a.jsonl", ROWS)
    Path("empty").touch()
    Path("header.csv").write_text("x,y\n")
    Path("what").write_text("?")
    with pytest.raises(DataError, match=message):
        read_columns(paths)


def test_a_name_with_a_star_in_it_is_that_file() -> None:
    write_jsonl("a*.jsonl", ROWS[:1])
    write_jsonl("ab.jsonl", ROWS)
    assert len(read_columns("a*.jsonl")) == 1


def test_gzip_of_any_format_is_read() -> None:
    Path("a.csv.gz").write_bytes(gzip.compress(b"x\n1\n"))
    assert read_columns("a.csv.gz")["x"].tolist() == [1]


def test_an_empty_list_of_files_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"The list of files is empty. Give at least one path or glob"):
        read_columns([])


@pytest.mark.parametrize("damage", ["version", "file", "bit", "manifest", "fields", "no manifest"])
def test_a_damaged_cache_is_made_anew(damage: str) -> None:
    path = write_jsonl("a.jsonl", ROWS)
    read_columns(path, cache_dir="mine")
    (manifest,) = Path("mine").glob("*/columns.json")
    if damage == "version":
        manifest.write_text('{"version": 99}')
    elif damage == "file":
        (manifest.parent / "label.npy").write_bytes(b"")
    elif damage == "bit":
        content = bytearray((manifest.parent / "label.npy").read_bytes())
        content[-1] ^= 1
        (manifest.parent / "label.npy").write_bytes(content)
    elif damage == "no manifest":
        manifest.unlink()
    else:
        manifest.write_text("{" if damage == "manifest" else '{"version": 2, "files": [], "columns": 3}')
    with pytest.warns(UserWarning, match=r"A cache is made anew: .*mine.* [Ww]rite the columns again"):
        assert read_columns(path, cache_dir="mine")["label"].tolist() == [1, 0, 300]
    assert read_columns(path, cache_dir="mine")["label"].tolist() == [1, 0, 300]


def test_examples_without_features_are_refused() -> None:
    Path("a.jsonl").write_text("{}\n{}\n")
    with pytest.raises(DataError, match=r"a.jsonl: its first examples have no features"):
        read_columns("a.jsonl")
