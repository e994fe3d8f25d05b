"""An order has every number once, follows from its key, and is not kept as a list where that would be long."""

import tracemalloc

import numpy as np
import pytest

from trellis.data import Order, order


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 17, 1000, 4096, 4097])
@pytest.mark.parametrize("most_listed", [0, 1 << 24])
def test_every_number_comes_once(n: int, most_listed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "_MOST_LISTED", most_listed)
    numbers = Order(n, key=[3, 1])
    assert sorted(numbers.between(0, n).tolist()) == list(range(n))
    assert numbers.between(n - 1, n + 5).tolist() == numbers.between(0, n).tolist()[-1:]
    parts = [numbers.between(start, start + 7) for start in range(0, n, 7)]
    assert np.concatenate(parts).tolist() == numbers.between(0, n).tolist()


def test_a_long_order_takes_no_memory_and_looks_random() -> None:
    n = 3_000_000_000
    tracemalloc.start()
    first, second = (Order(n, key=[0, epoch]) for epoch in (0, 1))
    some = first.between(1_000_000, 1_100_000)
    assert tracemalloc.get_traced_memory()[1] < 20 << 20
    tracemalloc.stop()
    assert len(np.unique(some)) == 100_000
    assert some.min() >= 0
    assert some.max() < n
    assert not np.array_equal(some, second.between(1_000_000, 1_100_000))
    # Of numbers drawn at random, each tenth of the range gets a tenth, and neighbours rise as often as they fall.
    counts = np.histogram(some, bins=10, range=(0, n))[0]
    assert abs(counts - 10_000).max() < 5 * 95
    assert abs(np.mean(np.diff(some) > 0) - 0.5) < 0.01
    # Even and odd places, and low bits, tell nothing of each other.
    assert abs(np.corrcoef(some[:-1], some[1:])[0, 1]) < 0.02
    assert abs(np.mean(some % 2) - 0.5) < 0.01


def test_a_short_order_is_that_of_numpy() -> None:
    expected = np.random.Generator(np.random.Philox(key=[7, 2])).permutation(100)
    np.testing.assert_array_equal(Order(100, key=[7, 2]).between(0, 100), expected)
