"""What an input path names, and how a file is known."""

from pathlib import Path

import pytest

from tests import tiny
from trellis.data import CountedStream, matching_paths, patterns_in
from trellis.data.files import masked_crc32c, open_file
from trellis.errors import DataError


@pytest.mark.parametrize(
    ("input_path", "patterns"),
    [
        ("", []),
        ("a", ["a"]),
        ("a*, b/c ,", ["a*", "b/c"]),
        (["a,b", "c"], ["a,b", "c"]),
        ({"one": "a,b", "other": ["c"]}, ["a", "b", "c"]),
    ],
)
def test_text_is_parted_at_commas_and_a_list_is_not(input_path: object, patterns: list[str]) -> None:
    assert patterns_in(input_path) == patterns  # type: ignore[arg-type]


def test_a_path_that_is_there_is_meant_whatever_its_name() -> None:
    for name in ("part-1", "part-2", "part-[12]"):
        Path(name).touch()
    assert matching_paths("part-[12]") == [Path("part-[12]")]
    assert sorted(matching_paths("part-?")) == [Path("part-1"), Path("part-2")]
    assert matching_paths("other*") == []
    assert matching_paths("other") == [Path("other")]


def test_a_file_that_cannot_be_read_is_named() -> None:
    Path("loop").symlink_to("loop")
    for name, reason in (("loop", "Too many levels of symbolic links"), ("x" * 300, "File name too long")):
        with pytest.raises(DataError, match=f"{name} cannot be read: {reason}"), open_file(Path(name)):
            pass


def test_a_stream_of_examples_tells_how_many_there_are() -> None:
    stream = tiny.stream()
    assert isinstance(stream, CountedStream)
    assert stream.n_examples == 256


def test_a_masked_checksum_is_the_check_word_rotated_and_added_to() -> None:
    assert masked_crc32c(b"") == (0xA282EAD8).to_bytes(4, "little")
    # CRC-32C of the usual check word is 0xE3069283.
    assert masked_crc32c(b"123456789") == (0xC78AB0E5).to_bytes(4, "little")
