"""Examples of many callers in one batch: each gets the answers to its own, and nobody waits for a failure of others."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from tests.serving.served_models import export_doubling, export_function
from trellis.errors import DataError, RequestRefusedError
from trellis.serving import load_model
from trellis.serving.batching import Batcher, _function


@pytest.fixture(scope="module")
def doubling(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_doubling(tmp_path_factory.mktemp("doubling") / "served")


class Observed:
    """Remembers batches, and can hold the model up until it is told to go on."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, int]] = []
        self.goes_on = threading.Event()
        self.goes_on.set()

    def __call__(self, *, n_examples: int, size: int, seconds: float) -> None:
        self.batches.append((n_examples, size))
        self.goes_on.wait(60)


def warm_batcher(directory: Path, observed: Observed, *, sizes: Any = (1, 4, 16), most_waiting: int = 4096) -> Batcher:
    batcher = Batcher(load_model(directory), sizes=sizes, most_waiting=most_waiting, observe=observed)
    batcher.warm_up()
    return batcher


@pytest.fixture
def observed() -> Observed:
    return Observed()


@pytest.fixture
def batcher(doubling: Path, observed: Observed) -> Iterator[Batcher]:
    batcher = warm_batcher(doubling, observed)
    yield batcher
    observed.goes_on.set()
    batcher.close()


def rows_of(caller: int, n_examples: int) -> np.ndarray:
    return np.stack([np.full(n_examples, caller), np.arange(n_examples)], axis=1).astype(np.float32)


def held(batcher: Batcher, observed: Observed) -> None:
    """Has the worker wait after one batch, so that what is asked next gathers."""
    observed.goes_on.clear()
    batcher.submit({"inputs": rows_of(0, 1)}).result(60)


def test_thousands_of_callers_at_once_get_the_answers_to_their_own_examples(
    batcher: Batcher, observed: Observed
) -> None:
    sizes = np.random.default_rng(0).integers(1, 40, 3000)

    def ask(caller: int) -> bool:
        rows = rows_of(caller, int(sizes[caller]))
        outputs = batcher.submit({"inputs": rows}).result(60)["outputs"]
        return np.array_equal(outputs, 2 * rows)

    with ThreadPoolExecutor(64) as threads:
        assert all(threads.map(ask, range(len(sizes))))
    assert sum(n for n, _ in observed.batches) == sizes.sum()
    assert len(observed.batches) < sum(-(-int(size) // 16) for size in sizes)  # some were asked together
    assert {size for _, size in observed.batches} <= {1, 4, 16}
    assert batcher.n_waiting == 0


def test_what_waits_is_asked_in_one_batch_that_is_filled_up(batcher: Batcher, observed: Observed) -> None:
    held(batcher, observed)
    futures = [batcher.submit({"inputs": rows_of(caller, 3)}) for caller in range(3)]
    assert batcher.n_waiting == 9
    observed.goes_on.set()
    answers = [future.result(60)["outputs"] for future in futures]
    assert all(np.array_equal(answer, 2 * rows_of(caller, 3)) for caller, answer in enumerate(answers))
    assert observed.batches == [(1, 1), (9, 16)]


def test_more_examples_than_a_batch_has_are_asked_in_several(batcher: Batcher, observed: Observed) -> None:
    outputs = batcher.submit({"inputs": rows_of(5, 37)}).result(60)["outputs"]
    assert np.array_equal(outputs, 2 * rows_of(5, 37))
    assert [n for n, _ in observed.batches][:2] == [16, 16]


@pytest.mark.parametrize(
    ("seconds", "n_waiting", "size"),
    [
        ({1: 1.0, 8: 1.0, 32: 1.0}, 9, 32),  # a device that a batch does not fill: all at once
        ({1: 1.0, 8: 8.0, 32: 32.0}, 9, 8),  # one that an example fills: no rows for nothing
        ({1: 1.0, 8: 8.0, 32: 32.0}, 1, 1),
        ({1: 1.0, 8: 8.0, 32: 32.0}, 100, 32),  # as fast by example, and fewer batches
        ({1: 1.0, 8: 4.0, 32: 48.0}, 100, 8),  # one whose caches a large batch leaves
        ({}, 9, 32),  # not known
    ],
)
def test_a_batch_has_the_size_that_answers_most_examples_in_a_second(
    doubling: Path, seconds: dict[int, float], n_waiting: int, size: int
) -> None:
    signature = load_model(doubling).signatures["inference_step"]
    function = replace(_function(signature, (1, 8, 32)), seconds=seconds)
    assert function.best_size(n_waiting) == size
    assert function.best_size(n_waiting, at_least=32) == 32


def test_examples_wait_for_the_next_batch_where_a_larger_one_does_not_pay(batcher: Batcher, observed: Observed) -> None:
    held(batcher, observed)
    batcher._functions["inference_step"].seconds = {1: 1.0, 4: 4.0, 16: 64.0}
    futures = [batcher.submit({"inputs": rows_of(caller, 3)}) for caller in range(2)]
    futures += [batcher.submit({"inputs": rows_of(2, 9)})]
    observed.goes_on.set()
    answers = [future.result(60)["outputs"] for future in futures]
    assert all(np.array_equal(answer, 2 * rows_of(n, len(answer))) for n, answer in enumerate(answers))
    assert {size for _, size in observed.batches} == {1, 4}
    assert sum(n for n, _ in observed.batches) == 16


def test_a_question_that_is_given_up_is_not_asked(batcher: Batcher, observed: Observed) -> None:
    held(batcher, observed)
    given_up, kept = (batcher.submit({"inputs": rows_of(caller, 2)}) for caller in (1, 2))
    assert given_up.cancel()
    observed.goes_on.set()
    assert np.array_equal(kept.result(60)["outputs"], 2 * rows_of(2, 2))
    assert observed.batches == [(1, 1), (2, 4)]
    assert batcher.n_waiting == 0


def test_who_comes_when_too_many_wait_is_refused_and_told_when_to_come_again(
    doubling: Path, observed: Observed
) -> None:
    batcher = warm_batcher(doubling, observed, most_waiting=4)
    held(batcher, observed)
    waiting = batcher.submit({"inputs": rows_of(1, 3)})
    with pytest.raises(RequestRefusedError, match="3 examples wait already, and 4 are the most") as refused:
        batcher.submit({"inputs": rows_of(2, 2)})
    assert refused.value.status == 429 and (refused.value.retry_after or 0) >= 1
    with pytest.raises(RequestRefusedError, match="has 5 examples, and 4 are the most. Send them in parts") as refused:
        batcher.submit({"inputs": rows_of(2, 5)})
    assert refused.value.status == 413
    observed.goes_on.set()
    assert np.array_equal(waiting.result(60)["outputs"], 2 * rows_of(1, 3))
    batcher.close()


@pytest.mark.parametrize(
    ("inputs", "problem"),
    [
        ({"inputs": np.zeros((1, 3), np.float32)}, r"inputs of inference_step is float32\[1, 3\], but it takes"),
        ({"inputs": np.zeros((0, 2), np.float32)}, "which has no example"),
        ({"inputs": np.zeros((), np.float32)}, r"is float32\[\], but it takes"),
        ({"input": np.zeros((1, 2), np.float32)}, "lack inputs and have input"),
        ({"inputs": np.zeros((1, 2), np.complex64)}, "is complex64"),
    ],
)
def test_inputs_that_do_not_fit_are_refused_before_they_wait(batcher: Batcher, inputs: Any, problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        batcher.submit(inputs)
    assert batcher.n_waiting == 0


def test_a_failure_is_that_of_the_caller_whose_examples_fail(
    batcher: Batcher, observed: Observed, monkeypatch: pytest.MonkeyPatch
) -> None:
    signature = batcher.model.signatures["inference_step"]
    ask = signature.call_by_name

    def failing(arrays: Any) -> Any:
        if (arrays["inputs"][:, 0] == 7).any():
            raise RuntimeError("out of memory")
        return ask(arrays)

    monkeypatch.setattr(signature, "call_by_name", failing)
    held(batcher, observed)
    futures = [batcher.submit({"inputs": rows_of(caller, 2)}) for caller in (6, 7, 8)]
    observed.goes_on.set()
    assert np.array_equal(futures[0].result(60)["outputs"], 2 * rows_of(6, 2))
    assert np.array_equal(futures[2].result(60)["outputs"], 2 * rows_of(8, 2))
    with pytest.raises(RuntimeError, match="out of memory"):
        futures[1].result(60)


def test_a_model_of_one_batch_size_is_asked_in_batches_of_it(tmp_path: Path, observed: Observed) -> None:
    batcher = warm_batcher(export_doubling(tmp_path / "served", batch_size=4), observed)
    assert batcher.compiled_sizes == (4,)
    for n_examples in (1, 4, 9):
        outputs = batcher.submit({"inputs": rows_of(3, n_examples)}).result(60)["outputs"]
        assert np.array_equal(outputs, 2 * rows_of(3, n_examples))
    assert {size for _, size in observed.batches} == {4}
    batcher.close()


def test_a_model_whose_answers_depend_on_the_batch_is_asked_one_question_at_a_time(
    tmp_path: Path, observed: Observed
) -> None:
    directory = export_function(tmp_path / "served", lambda v, x: x - x.mean(0, keepdims=True), np.zeros((2, 2), "f"))
    batcher = warm_batcher(directory, observed)
    assert batcher.asked_alone() == ["inference_step"]
    held(batcher, observed)
    futures = [batcher.submit({"inputs": rows_of(caller, 3)}) for caller in range(4)]
    observed.goes_on.set()
    for caller, future in enumerate(futures):
        rows = rows_of(caller, 3)
        assert np.array_equal(future.result(60)["outputs"], rows - rows.mean(0, keepdims=True))
    with pytest.raises(DataError, match="for a batch as a whole, of 16 examples at the most, not of 17"):
        batcher.submit({"inputs": rows_of(0, 17)})
    batcher.close()


def test_outputs_that_are_not_by_example_are_given_whole(tmp_path: Path, observed: Observed) -> None:
    directory = export_function(tmp_path / "served", lambda v, x: {"sum": x.sum(), "rows": x}, np.zeros((2, 2), "f"))
    batcher = warm_batcher(directory, observed)
    outputs = batcher.submit({"inputs": rows_of(2, 3)}).result(60)
    assert outputs["sum"].shape == () and outputs["sum"] == rows_of(2, 3).sum()
    batcher.close()


def test_narrow_floats_and_whole_numbers_are_taken_as_the_model_has_them(tmp_path: Path, observed: Observed) -> None:
    inputs = {"ids": np.zeros((2, 3), np.int32), "weights": np.zeros((2, 3), jnp.bfloat16)}
    directory = export_function(tmp_path / "served", lambda v, x: (x["weights"] * x["ids"]).sum(-1), inputs)
    batcher = warm_batcher(directory, observed)
    ids = np.arange(6).reshape(2, 3)
    outputs = batcher.submit({"ids": ids, "weights": np.full((2, 3), 0.5, np.float32)}).result(60)["outputs"]
    assert outputs.dtype == jnp.bfloat16 and outputs.tolist() == [1.5, 6.0]
    with pytest.raises(DataError, match="ids of inference_step has numbers that int32 cannot hold"):
        batcher.submit({"ids": ids + (1 << 40), "weights": np.zeros((2, 3), np.float32)})
    with pytest.raises(DataError, match="differ in their batch size"):
        batcher.submit({"ids": ids[:1], "weights": np.zeros((2, 3), np.float32)})
    batcher.close()


def test_a_batcher_that_is_closed_answers_what_waits_and_takes_no_more(batcher: Batcher, observed: Observed) -> None:
    held(batcher, observed)
    waiting = batcher.submit({"inputs": rows_of(4, 2)})
    batcher.close()
    with pytest.raises(RequestRefusedError, match="The server is stopping"):
        batcher.submit({"inputs": rows_of(4, 2)})
    observed.goes_on.set()
    assert np.array_equal(waiting.result(60)["outputs"], 2 * rows_of(4, 2))
