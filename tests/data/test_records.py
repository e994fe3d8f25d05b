"""TFRecord files against bytes that another implementation wrote, and their damage."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from trellis.data.files import masked_crc32c
from trellis.data.records import RecordWriter, read_records
from trellis.errors import ArgumentError, DataError

RECORDS = [b"", b"trellis", bytes(range(40))]
# The three records as TensorBoard's own writer frames them.
GOLDEN = bytes.fromhex(
    "000000000000000029039807d8ea82a2"
    "0700000000000000bbd79f117472656c6c6973126374ea"
    "2800000000000000ff70164a"
    "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f202122232425262775118983"
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "three.tfrecord"
    path.write_bytes(GOLDEN)
    return path


def damage(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(data)


def random_records(n: int) -> list[bytes]:
    generator = np.random.default_rng(n)
    return [generator.bytes(length) for length in generator.integers(0, 300, n)]


def test_bytes_of_another_writer_are_read(file: Path) -> None:
    assert list(read_records(file)) == RECORDS


def test_the_bytes_written_are_those_of_another_writer(tmp_path: Path) -> None:
    with RecordWriter(tmp_path / "ours") as writer:
        for record in RECORDS:
            writer.write(record)
    assert (tmp_path / "ours").read_bytes() == GOLDEN


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_what_is_written_is_read_back(tmp_path: Path, compression: str) -> None:
    records = random_records(2000)
    path = tmp_path / "records"
    with RecordWriter(path, compression=compression) as writer:
        for record in records:
            writer.write(record)
    assert list(read_records(path)) == records


def test_gzip_is_told_by_content_not_by_name(tmp_path: Path) -> None:
    (tmp_path / "plain.gz").write_bytes(GOLDEN)
    (tmp_path / "zipped.tfrecord").write_bytes(gzip.compress(GOLDEN))
    assert list(read_records(tmp_path / "plain.gz")) == RECORDS
    assert list(read_records(tmp_path / "zipped.tfrecord")) == RECORDS


@pytest.mark.parametrize("is_gzip", [False, True])
@pytest.mark.parametrize("length", [8 << 30, (1 << 63) - 1])
def test_a_length_beyond_the_file_takes_no_memory(tmp_path: Path, length: int, is_gzip: bool) -> None:
    header = length.to_bytes(8, "little")
    content = header + masked_crc32c(header) + b"trellis"
    path = tmp_path / "long.tfrecord"
    path.write_bytes(gzip.compress(content) if is_gzip else content)
    with pytest.raises(DataError, match=rf"cut short: record 0 at byte offset 0 needs at least {length + 16} bytes"):
        list(read_records(path))


def test_equal_records_give_equal_gzip_bytes(tmp_path: Path) -> None:
    for name in ("first", "second"):
        with RecordWriter(tmp_path / name, compression="gzip") as writer:
            writer.write(b"same")
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()


def test_a_file_without_records_has_none(tmp_path: Path) -> None:
    with RecordWriter(tmp_path / "none") as writer:
        pass
    assert writer.path.read_bytes() == b""
    assert list(read_records(tmp_path / "none")) == []


def test_wrong_data_is_named_by_file_record_and_offset(file: Path) -> None:
    damage(file, 16 + 12 + 3)
    with pytest.raises(DataError, match=r"three.tfrecord: record 1 at byte offset 16 has a wrong data checksum"):
        list(read_records(file))


def test_a_wrong_length_is_named_by_file_record_and_offset(file: Path) -> None:
    damage(file, 39)
    with pytest.raises(DataError, match=r"three.tfrecord: record 2 at byte offset 39 has a wrong length checksum"):
        list(read_records(file))


def test_an_enormous_wrong_length_is_refused_before_it_is_read(file: Path) -> None:
    damage(file, 16 + 7)
    with pytest.raises(DataError, match="record 1 at byte offset 16 has a wrong length checksum"):
        list(read_records(file))


def test_records_before_the_damage_are_yielded(file: Path) -> None:
    damage(file, len(GOLDEN) - 1)
    records = read_records(file)
    assert [next(records), next(records)] == RECORDS[:2]
    with pytest.raises(DataError, match="record 2 at byte offset 39 has a wrong data checksum"):
        next(records)


@pytest.mark.parametrize(("n_bytes", "n_needed", "n_left"), [(39 + 30, 56, 30), (39 + 12, 56, 12), (39 + 5, 12, 5)])
def test_a_cut_tail_is_named(file: Path, n_bytes: int, n_needed: int, n_left: int) -> None:
    file.write_bytes(GOLDEN[:n_bytes])
    needs = f"record 2 at byte offset 39 needs at least {n_needed} bytes, but {n_left} are left"
    message = rf"three.tfrecord is cut short: {needs}. Copy or write the file again"
    with pytest.raises(DataError, match=message):
        list(read_records(file))


def test_cut_gzip_data_is_named(tmp_path: Path) -> None:
    path = tmp_path / "cut.gz"
    path.write_bytes(gzip.compress(np.random.default_rng(0).bytes(1000))[:-20])
    with pytest.raises(DataError, match=r"cut.gz: gzip data cut short or damaged"):
        list(read_records(path))


def test_a_missing_file_and_a_directory_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere: no such file"):
        list(read_records(tmp_path / "nowhere"))
    with pytest.raises(DataError, match=r"is a directory. To read the files in it, give '.*/\*'"):
        list(read_records(tmp_path))


def write_and_fail(path: Path, compression: str) -> None:
    with RecordWriter(path, compression=compression) as writer:
        writer.write(b"new")
        raise KeyError


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_a_writer_that_fails_leaves_nothing(tmp_path: Path, compression: str) -> None:
    (tmp_path / "kept").write_bytes(b"old")
    with pytest.raises(KeyError):
        write_and_fail(tmp_path / "kept", compression)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert (tmp_path / "kept").read_bytes() == b"old"


def test_an_unknown_compression_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="compression is 'zstd'; it can be 'none' or 'gzip'"):
        RecordWriter(tmp_path / "x", compression="zstd")
