"""Histograms, images and text of summaries: what they hold, and what they refuse."""

import struct
import zlib

import jax.numpy as jnp
import numpy as np
import pytest

import trellis
from tests import tiny
from trellis.errors import ArgumentError


def test_a_histogram_counts_every_finite_value_once_and_the_others_apart() -> None:
    histogram = trellis.Histogram(np.array([[1.0, 2.0], [2.0, np.nan], [np.inf, -np.inf]]), n_bins=2)
    assert (histogram.counts.tolist(), histogram.edges.tolist()) == ([1, 2], [1.0, 1.5, 2.0])
    assert (histogram.n_not_finite, histogram.sum, histogram.sum_of_squares) == (3, 5.0, 9.0)


@pytest.mark.parametrize(
    "values",
    [[], [3], [np.nan], [True, False], [1e308, -1e308], [1e16, 1e16 + 2], jnp.ones((2, 3), jnp.bfloat16), 4],
)
def test_any_numbers_make_a_histogram(values: object) -> None:
    histogram = trellis.Histogram(values)
    n_finite = int(np.isfinite(np.asarray(values, np.float64)).sum())
    assert histogram.counts.sum() == n_finite
    assert np.isfinite(histogram.edges).all()
    assert len(histogram.edges) == len(histogram.counts) + 1


def test_an_image_is_the_same_from_fractions_and_from_bytes() -> None:
    fractions = trellis.Image(np.array([[0.0, 1.0], [np.nan, 2.0]]))
    assert fractions.pixels.tolist() == [[[0], [255]], [[0], [255]]]
    assert trellis.Image(np.array([[0, 255], [-3, 300]])).pixels.tolist() == fractions.pixels.tolist()
    assert trellis.Image(jnp.ones((1, 1, 3), jnp.bfloat16)).pixels.tolist() == [[[255, 255, 255]]]


@pytest.mark.parametrize(("n_channels", "color_type"), [(1, 0), (3, 2), (4, 6)])
def test_an_image_is_a_png_file_of_its_pixels(n_channels: int, color_type: int) -> None:
    pixels = np.arange(2 * 3 * n_channels, dtype=np.uint8).reshape(2, 3, n_channels)
    content = trellis.Image(pixels).png()
    signature, header, rows = content[:8], content[16:29], zlib.decompress(content[41:-16])
    assert signature == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">IIBBBBB", header) == (3, 2, 8, color_type, 0, 0, 0)
    assert struct.unpack(">I", content[29:33]) == (zlib.crc32(b"IHDR" + header),)
    assert np.frombuffer(rows, np.uint8).reshape(2, -1)[:, 1:].tobytes() == pixels.tobytes()


def test_what_cannot_be_shown_is_refused_with_what_to_give() -> None:
    for shape in ((3,), (2, 2, 2), (0, 4), (1, 2, 2, 3)):
        with pytest.raises(ArgumentError, match=r"an array of shape .* Give one picture"):
            trellis.Image(np.zeros(shape))
    with pytest.raises(ArgumentError, match="holds no real numbers"):
        trellis.Histogram(["a"])
    with pytest.raises(ArgumentError, match="Text was given 3, which is a int. Give a str"):
        trellis.Text(3)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"a float as train/loss. Give a trellis.Histogram"):
        tiny.checkpoint().with_media(train={"loss": 0.5})  # type: ignore[dict-item]


def test_media_are_added_to_those_of_their_group_and_leave_metrics_alone() -> None:
    first, second = trellis.Text("a"), trellis.Text("b")
    summary = tiny.checkpoint(train={"loss": 0.5}).with_media(train={"a": first}).with_media(train={"b": second})
    assert summary.media == {"train": {"a": first, "b": second}}
    assert summary.metrics == {"train": {"loss": 0.5}}
    assert summary.only("eval").media == {"eval": {}}
