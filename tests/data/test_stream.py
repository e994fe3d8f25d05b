"""Streams: a pure function of the step, every example once an epoch."""

import traceback
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import trellis
from trellis.data import StackingStream, read_columns, rows_of
from trellis.errors import ArgumentError, DataError
from trellis.extensions.recovery import SkippingStream
from trellis.loops import build_feed


def numbers(n: int = 10, **options: Any) -> trellis.ExampleStream:
    """A stream over the numbers below `n`."""
    return trellis.ExampleStream({"number": np.arange(n)}, **{"batch_size": 4} | options)


def taken(stream: trellis.ExampleStream, n_batches: int) -> list[int]:
    """The numbers in the first batches."""
    return [int(number) for step in range(n_batches) for number in stream.batch(step)["number"]]


def test_every_example_is_seen_once_an_epoch_also_across_batches() -> None:
    seen = taken(numbers(), 5)
    assert sorted(seen[:10]) == sorted(seen[10:]) == list(range(10))
    assert seen[:10] != seen[10:]


def test_an_array_by_itself_is_examples_along_its_first_axis() -> None:
    images = np.arange(24).reshape(4, 3, 2)
    for array in (images, jnp.asarray(images)):
        stream = trellis.ExampleStream(array, batch_size=2, shuffle=False)
        np.testing.assert_array_equal(stream.batch(1), images[2:])
        np.testing.assert_array_equal(stream.stacked_batches(0, 2), images.reshape(2, 2, 3, 2))


def test_any_step_can_be_asked_for_in_any_order() -> None:
    stream = numbers(seed=3)
    forward = [stream.batch(step)["number"] for step in range(30)]
    for step in (29, 3, 17, 0, 8):
        np.testing.assert_array_equal(numbers(seed=3).batch(step)["number"], forward[step])


@pytest.mark.parametrize("step", [0, 2, 9])
def test_stacked_batches_are_the_batches(step: int) -> None:
    stream = numbers(n=7)
    stacked = stream.stacked_batches(step, 5)["number"]
    np.testing.assert_array_equal(stacked, [stream.batch(step + i)["number"] for i in range(5)])


class OneByOne:
    """A stream of somebody's own, which makes whole batches only."""

    def batch(self, step: int) -> Any:
        """Four numbers."""
        return {"number": 10 * step + np.arange(4)}


@pytest.mark.parametrize(
    "stream",
    [
        numbers(n=7),
        numbers(n=7, shuffle=False, n_epochs=1),
        numbers(n=9, map=lambda batch, keys: {"number": batch["number"] + keys.sum()}),
        SkippingStream(numbers(n=7), windows=((1, 2),)),
        OneByOne(),
    ],
    ids=["shuffled", "ends", "mapped", "skipping", "of one's own"],
)
@pytest.mark.parametrize("cuts", [(0, 2, 4), (0, 1, 4), (0, 1, 2, 3, 4), (0, 4)])
def test_rows_of_batches_are_those_of_the_whole_batches(stream: Any, cuts: tuple[int, ...]) -> None:
    parts = [rows_of(stream, *bounds) for bounds in pairwise(cuts)]
    for step in range(2):
        joined = np.concatenate([part.batch(step)["number"] for part in parts])
        np.testing.assert_array_equal(joined, stream.batch(step)["number"])
    n_batches = getattr(stream, "n_batches", None)
    if isinstance(stream, StackingStream) and n_batches is None:
        joined = np.concatenate([part.stacked_batches(1, 5)["number"] for part in parts], axis=1)  # type: ignore[attr-defined]
        np.testing.assert_array_equal(joined, stream.stacked_batches(1, 5)["number"])


def test_rows_of_rows_are_rows() -> None:
    some = numbers(n=11, batch_size=8).rows(2, 8).rows(1, 3)
    np.testing.assert_array_equal(some.batch(5)["number"], numbers(n=11, batch_size=8).batch(5)["number"][3:5])


def test_no_more_than_the_rows_that_are_asked_for_are_gathered() -> None:
    taken: list[int] = []

    class Counted:
        def __len__(self) -> int:
            return 100

        def take(self, indices: Any) -> Any:
            taken.append(len(indices))
            return np.asarray(indices)

    stream = trellis.ExampleStream(Counted(), batch_size=32).rows(8, 16)
    stream.batch(3)
    stream.stacked_batches(3, 2)
    assert taken == [8, 16]


def test_seeds_shuffle_differently_and_no_shuffle_keeps_the_order() -> None:
    assert taken(numbers(n=100, seed=1), 25) != taken(numbers(n=100, seed=2), 25)
    assert taken(numbers(shuffle=False), 5) == [*range(10), *range(10)]


@pytest.mark.parametrize(("options", "sizes"), [({}, [4, 4, 2]), ({"drop_remainder": True}, [4, 4])])
def test_a_stream_with_epochs_ends(options: Any, sizes: list[int]) -> None:
    stream = numbers(n_epochs=1, **options)
    assert stream.n_batches == len(sizes)
    assert [len(stream.batch(step)["number"]) for step in range(len(sizes))] == sizes
    assert numbers().n_batches is None


def test_columns_read_from_files_make_a_stream(tmp_path: Path) -> None:
    file = tmp_path / "data.jsonl"
    file.write_text("".join(f'{{"x": [{n}.0, 1.0], "y": {n % 2}}}\n' for n in range(10)))
    columns = read_columns(file, cache_dir=tmp_path / "cache")
    batch = trellis.ExampleStream(columns, batch_size=4, shuffle=False).batch(1)
    np.testing.assert_array_equal(batch["x"], [[4, 1], [5, 1], [6, 1], [7, 1]])
    np.testing.assert_array_equal(batch["y"], [0, 1, 0, 1])


def test_a_stream_of_the_users_own_needs_only_a_function_of_the_step() -> None:
    class Own:
        def batch(self, step: int) -> Any:
            return np.full((2, 3), step)

    feed = build_feed(Own(), place="data")
    n, batch = feed.take(5, 3)
    assert n == 3
    np.testing.assert_array_equal(batch[:, 0, 0], [5, 6, 7])
    assert feed.position() is None


def test_an_iterator_is_not_advanced_by_looking_at_it() -> None:
    feed = build_feed(iter([np.full(2, step) for step in range(4)]), place="data")
    assert feed.peek()[0] == 0
    assert feed.take(0, 1)[1][0] == 0
    assert feed.position()["n_batches"] == 1
    assert feed.take(1, 9)[0] == 3
    assert feed.take(4, 1) == (0, None)


def test_an_iterator_that_ends_before_the_position_is_an_error() -> None:
    feed = build_feed(iter([np.zeros(2)] * 3), place="TrainTask.data")
    with pytest.raises(DataError, match="TrainTask.data ended after 3 batches, but the run resumes at batch 5"):
        feed.seek(5, {"n_batches": 5})


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: numbers(batch_size=0), ArgumentError, "batch_size is 0"),
        (lambda: numbers(n=0), DataError, "no examples"),
        (lambda: trellis.ExampleStream((np.ones(3), np.ones(4)), batch_size=1), DataError, "lengths 3, 4"),
    ],
)
def test_bad_input_is_a_clear_error(build: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        build()


def test_lists_of_numbers_are_columns() -> None:
    stream = trellis.ExampleStream(([[1.0, 2.0], [3.0, 4.0]], [0, 1]), batch_size=2, shuffle=False)
    inputs, labels = stream.batch(0)
    np.testing.assert_array_equal(inputs, [[1.0, 2.0], [3.0, 4.0]])
    np.testing.assert_array_equal(labels, [0, 1])
    first, second = trellis.ExampleStream([np.arange(2), np.arange(2)], batch_size=2, shuffle=False).batch(0)
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("options", [{"seed": None}, {"batch_size": "4"}, {"batch_size": 2.5}])
def test_a_size_or_a_seed_that_is_no_number_is_refused(options: Any) -> None:
    name, value = next(iter(options.items()))
    with pytest.raises(ArgumentError, match=f"ExampleStream's {name} is {value!r}, but it is a whole number."):
        numbers(**options)


def noisy(example: Any, key: Any) -> Any:
    return {"number": example["number"], "noise": jax.random.uniform(key)}


@pytest.mark.parametrize("kind", ["jax", "numpy"])
def test_a_map_has_a_key_for_each_example_whatever_batch_it_is_in(kind: str) -> None:
    def drawn(batch: Any, keys: Any) -> Any:
        return {**batch, "noise": np.array([np.random.default_rng(key).random() for key in keys])}

    function = jax.jit(jax.vmap(noisy)) if kind == "jax" else drawn

    def noises(size: int) -> dict[tuple[int, int], float]:
        stream = numbers(batch_size=size, map=function)
        batches = [stream.batch(step) for step in range(20 // size)]
        places = enumerate(number for batch in batches for number in batch["number"].tolist())
        drawn = [noise for batch in batches for noise in batch["noise"].tolist()]
        return {(place // 10, number): drawn[place] for place, number in places}

    of_fours, of_fives = noises(4), noises(5)
    assert of_fours == of_fives
    # Two epochs of ten examples have twenty different numbers.
    assert len(set(of_fours.values())) == 20
    other = numbers(batch_size=4, seed=1, map=function).batch(0)["noise"]
    assert not set(other.tolist()) & set(of_fours.values())


def test_a_map_is_the_same_for_batches_that_are_stacked() -> None:
    stream = numbers(map=lambda batch, keys: {"drawn": np.random.default_rng(keys.ravel()).random((len(keys), 3))})
    stacked = stream.stacked_batches(1, 3)["drawn"]
    assert stacked.shape == (3, 4, 3)
    np.testing.assert_array_equal(stacked, [stream.batch(step)["drawn"] for step in (1, 2, 3)])
    np.testing.assert_array_equal(build_feed(stream, place="data").take(1, 3)[1]["drawn"], stacked)


def test_a_map_sees_a_short_last_batch() -> None:
    stream = numbers(n_epochs=1, map=lambda batch, keys: {"key": keys, **batch})
    assert [len(stream.batch(step)["key"]) for step in range(3)] == [4, 4, 2]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda batch, keys: None,
            r"map returned arrays of the shapes none for a batch of 4 .*map=jax.vmap\(function\)",
        ),
        (lambda batch, keys: {"number": batch["number"][:2]}, r"of the shapes \(2,\) for a batch of 4"),
    ],
)
def test_a_map_that_returns_no_batch_is_told(function: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        numbers(map=function).batch(0)


def test_a_map_that_fails_tells_where_and_one_that_is_none_is_refused() -> None:
    with pytest.raises(KeyError) as caught:
        numbers(map=lambda batch, keys: batch["image"]).batch(3)
    assert caught.value.__notes__ == ["in ExampleStream's map(batch, keys), with the batch of step 4"]
    with pytest.raises(ArgumentError, match=r"map is 'flip', which cannot be called. Give map\(batch, keys\)"):
        numbers(map="flip")
    with pytest.raises(ArgumentError, match=r"map takes \(batch\), but it is called with a batch and a key for each"):
        numbers(map=lambda batch: batch)


def test_a_map_by_jax_on_text_is_told_what_to_leave_out() -> None:
    examples = {"x": np.arange(4.0), "name": np.array(["a", "b", "c", "d"])}
    stream = trellis.ExampleStream(examples, batch_size=2, map=jax.vmap(lambda example, key: example["x"]))
    with pytest.raises(TypeError) as caught:
        stream.batch(0)
    told = "".join(traceback.format_exception_only(caught.value))
    assert "JAX takes no text, which name holds: leave it out" in told
    assert "internal frames" not in told
