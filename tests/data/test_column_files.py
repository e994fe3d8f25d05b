"""From files of every format to columns, once."""

import gzip
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import trellis
from tests.data.written import ROWS, WRITERS, write_jsonl, write_parquet, write_tfrecord
from trellis.data import column_files as module
from trellis.data.column_files import read_columns
from trellis.data.features import Feature
from trellis.data.ragged import Ragged
from trellis.errors import ArgumentError, DataError, MissingPackageError, TrellisError


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
        "gap": Feature("float64", ()),
    }
    assert columns["n"].tolist() == [1, -20]
    np.testing.assert_array_equal(columns["gap"], [1, np.nan])
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


TABLE = "age,height,name\n31,1.5,NA\nNA,,Ada\n7,n/a,\n"


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_cells_without_a_number_are_nan_and_in_text_a_text(suffix: str) -> None:
    Path(f"a.{suffix}").write_text(TABLE.replace(",", {"csv": ",", "tsv": "\t"}[suffix]))
    columns = read_columns(f"a.{suffix}")
    np.testing.assert_array_equal(columns["age"], [31, np.nan, 7])
    np.testing.assert_array_equal(columns["height"], [1.5, np.nan, np.nan])
    assert [columns["name"][row] for row in range(3)] == ["NA", "Ada", ""]
    asked = read_columns(f"a.{suffix}", features={"age": (np.float32, ())})
    np.testing.assert_array_equal(asked["age"], np.array([31, np.nan, 7], np.float32))


def test_what_stands_for_a_missing_value_is_chosen_by_column() -> None:
    Path("a.csv").write_text(TABLE)
    columns = read_columns("a.csv", features={"age": (np.int32, ()), "height": (np.float32, ())}, missing={"age": -1})
    assert columns["age"].tolist() == [31, -1, 7]
    assert columns["age"].dtype == np.int32
    assert np.isnan(columns["height"][1:]).all()
    assert read_columns("a.csv", missing={"age": 0})["age"].dtype == np.int64
    named = read_columns("a.csv", missing={"name": "nobody"})
    assert [named["name"][row] for row in range(3)] == ["NA", "Ada", "nobody"]
    assert read_columns("a.csv", missing={"name": "nobody"}, categories=["name"]).categories["name"][-1] == "nobody"
    write_jsonl("a.jsonl", [{"x": 1, "t": "a"}, {"x": None}, {"t": None, "x": 3}])
    columns = read_columns("a.jsonl", features={"x": (int, ()), "t": (str, ())}, missing={"x": 0, "t": "nothing"})
    assert columns["x"].tolist() == [1, 0, 3]
    assert [columns["t"][row] for row in range(3)] == ["a", "nothing", "nothing"]
    write_tfrecord("a.tfrecord", [{"x": [1.0, 2.0]}, {"y": 3}])
    filled = read_columns("a.tfrecord", features={"x": (np.float32, (2,))}, missing={"x": 0.5})
    assert filled["x"].tolist() == [[1.0, 2.0], [0.5, 0.5]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"features": {"age": (int, ())}}, r"a.csv, line 3, feature 'age': it is missing.*missing={'age': 0}.*NaN"),
        ({"features": {"agee": (np.float32, ())}}, r"a.csv, line 2, feature 'agee': it is missing"),
        ({"missing": {"age": "old"}}, r"missing\['age'\] is 'old', which is no float64"),
        ({"features": {"age": (int, ())}, "missing": {"age": 0.5}}, r"missing\['age'\] is 0.5, which is no int64"),
        ({"categories": ["nam"]}, r"categories: there is no column 'nam'. Did you mean 'name'\? The columns are age"),
        ({"missing": {"agee": 0}}, r"missing: there is no column 'agee'. Did you mean 'age'\?"),
        ({"categories": "name"}, r"categories is the text 'name'. Give a list of columns: \['name'\]"),
        ({"categories": {"name": ["Ada", "NA"]}}, r"Column 'name', example 2: '' is none of its 2 categories"),
        ({"categories": {"name": ["Ada", "Ada"]}}, r"categories\['name'\] names 'Ada' twice"),
    ],
)
def test_missing_values_and_categories_that_do_not_fit_are_told(options: Any, message: str) -> None:
    Path("a.csv").write_text(TABLE)
    with pytest.raises(TrellisError, match=message):
        read_columns("a.csv", **options)


def test_categories_become_numbers_whose_names_are_kept_for_other_files() -> None:
    Path("train.csv").write_text("x,species\n1,virginica\n2,setosa\n3,virginica\n")
    Path("held_out.csv").write_text("x,species\n1,setosa\n2,virginica\n")
    train = read_columns("train.csv", categories=["species"])
    assert train["species"].tolist() == [1, 0, 1]
    assert train["species"].dtype == np.int32
    assert train.categories == {"species": ["setosa", "virginica"]}
    assert train.select(["x", "species"]).categories == train.categories
    assert train.select(["x"]).categories == {}
    held_out = read_columns("held_out.csv", features={"x": (np.float32, ())}, categories=train.categories)
    assert held_out["species"].tolist() == [0, 1]
    ordered = read_columns("train.csv", categories={"species": ["virginica", "setosa", "versicolor"]})
    assert ordered["species"].tolist() == [0, 1, 0]
    assert trellis.ExampleStream(ordered, batch_size=3, shuffle=False).batch(0)["species"].tolist() == [0, 1, 0]


def test_arrays_of_an_npz_file_are_columns() -> None:
    x = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    np.savez("a.npz", x=x, y=np.arange(4), word=np.array(["a", "b", "", "ä"]))
    np.savez_compressed("b.npz", x=x + 100, y=np.arange(4), word=np.array(["c"] * 4))
    columns = read_columns(["a.npz", "b.npz"])
    assert columns.features == {"x": Feature("float32", (2, 3)), "y": Feature("int64"), "word": Feature("str")}
    np.testing.assert_array_equal(columns["x"], np.concatenate([x, x + 100]))
    assert columns["word"][3] == "ä"
    assert read_columns("a.npz", features={"y": (np.int32, ())})["y"].dtype == np.int32


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros(3), "y": np.zeros(4)}, "a.npz: its arrays need one common first axis.*lengths x: 3, y: 4"),
        ({"x": np.zeros(3), "mean": np.float32(1)}, "lengths x: 3, mean: None"),
        ({"x": np.array([{}, []], object)}, "a.npz: no archive of arrays.*np.savez"),
        ({"x": np.zeros(3, complex)}, "array 'x': it is complex128 of shape"),
    ],
)
def test_an_npz_file_without_examples_is_named(arrays: Any, message: str) -> None:
    np.savez("a.npz", **arrays)
    with pytest.raises(DataError, match=message):
        read_columns("a.npz")


def save_image(path: str, pixels: np.ndarray) -> bytes:
    Path(path).parent.mkdir(exist_ok=True, parents=True)
    Image.fromarray(pixels).save(path)
    return Path(path).read_bytes()


def test_image_files_are_examples_whose_folders_are_their_classes() -> None:
    pixels = np.random.default_rng(0).integers(256, size=(3, 4, 5, 3), dtype=np.uint8)
    for index, folder in enumerate(["cat", "dog", "cat"]):
        save_image(f"images/{folder}/{index}.png", pixels[index])
    columns = read_columns("images/*/*.png", categories=["folder"])
    assert repr(columns) == "3 examples: image uint8[4, 5, 3], name str, folder int32"
    np.testing.assert_array_equal(columns["image"], pixels[[0, 2, 1]])
    assert columns["folder"].tolist() == [0, 0, 1]
    assert columns.categories == {"folder": ["cat", "dog"]}
    assert [columns["name"][row] for row in range(3)] == ["0.png", "2.png", "1.png"]
    save_image("grey.jpg", pixels[0, :, :, 0])
    assert read_columns("grey.jpg")["image"].shape == (1, 4, 5, 1)


def test_images_that_differ_in_size_or_are_damaged_are_named() -> None:
    save_image("images/a.png", np.zeros((4, 4, 3), np.uint8))
    save_image("images/b.png", np.zeros((4, 6, 3), np.uint8))
    with pytest.raises(DataError, match=r"b.png, image 0, feature 'image': it has the shape \(4, 6, 3\), but \(4"):
        read_columns("images/*.png")
    Path("d.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"^d.png: not a PNG or JPEG, or damaged. Write it again, or leave it out.$"):
        read_columns("d.png")
    Path("c.png").write_bytes(Path("images/a.png").read_bytes()[:40])
    with pytest.raises(DataError, match=r"c.png: not a PNG or JPEG, or damaged"):
        read_columns("c.png")


def test_bytes_in_records_are_arrays_of_the_shape_that_is_asked_for() -> None:
    pixels = np.random.default_rng(0).integers(256, size=(3, 4, 5, 3), dtype=np.uint8)
    heights = np.random.default_rng(0).normal(size=(3, 2)).astype(np.float32)
    encoded = [save_image(f"{index}.png", pixels[index]) for index in range(3)]
    write_tfrecord(
        "a.tfrecord",
        [{"raw": pixels[i].tobytes(), "png": encoded[i], "heights": heights[i].tobytes()} for i in range(3)],
    )
    features = {"raw": (np.uint8, (4, 5, 3)), "png": (np.uint8, (4, 5, 3)), "heights": (np.float32, (2,))}
    columns = read_columns("a.tfrecord", features=features)
    np.testing.assert_array_equal(columns["raw"], pixels)
    np.testing.assert_array_equal(columns["png"], pixels)
    np.testing.assert_array_equal(columns["heights"], heights)
    with pytest.raises(
        DataError, match=r"record 0, feature 'raw': it has 60 bytes, but uint8 of shape \(8, 8, 3\) are"
    ):
        read_columns("a.tfrecord", features={"raw": (np.uint8, (8, 8, 3))})
    with pytest.raises(DataError, match=r"it is an image, uint8 of shape \(4, 5, 3\), but uint8 of \(8, 8, 3\) was"):
        read_columns("a.tfrecord", features={"png": (np.uint8, (8, 8, 3))})


def test_images_without_pillow_tell_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    save_image("a.png", np.zeros((4, 4, 3), np.uint8))
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingPackageError, match=r"pillow is not installed.*\[images\]"):
        read_columns("a.png")


def test_a_file_of_one_array_is_a_column_of_its_name() -> None:
    np.save("pixels.npy", np.arange(6).reshape(3, 2))
    assert read_columns("pixels.npy").take([1])["pixels"].tolist() == [[2, 3]]


def test_columns_tell_what_stands_for_absent_values_in_them() -> None:
    Path("ages.csv").write_text("age,kind\n1,a\n,b\n")
    columns = read_columns("ages.csv", missing={"age": 7}, categories=["kind"])
    assert (columns.missing, columns.select(["kind"]).missing) == ({"age": 7}, {})
