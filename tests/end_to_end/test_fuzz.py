"""A small part of the bad inputs of benchmarks/chaos/fuzz.py, and that it finds what it looks for."""

import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.chaos import fuzz
from trellis.errors import DataError


def test_bad_inputs_end_in_success_or_in_an_error_of_ours() -> None:
    # Not those that JAX has to be loaded for in a process of its own.
    kinds = [kind for kind in fuzz.ALL_KINDS if "served" not in kind]
    tally = fuzz.fuzz(n=200, seed=7, kinds=kinds)
    assert not any(tally.faults.values()), dict(tally.faults)
    assert tally.tried.total() == 200
    assert set(tally.tried) == set(kinds)


def fail(error: BaseException) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act


@pytest.mark.parametrize(
    ("act", "fault"),
    [
        (lambda: None, ""),
        (fail(DataError("a.csv:3: …")), ""),
        (fail(DataError("")), "a message of 0 characters"),
        (fail(KeyError("x")), r"KeyError: \"'x'\" at test_fuzz.py:\d+"),
        (fail(MemoryError()), "MemoryError: '' at "),
        (fail(fuzz.TooSlowError()), "it takes more than 5 seconds"),
    ],
)
def test_any_other_end_is_a_fault(act: Callable[[], None], fault: str, tmp_path: Path) -> None:
    found = fuzz.fault_of(lambda chance, folder: act(), random.Random(0), tmp_path)
    assert re.match(fault, found) if fault else found == ""


def test_an_input_follows_from_its_seed_and_number() -> None:
    content = b'{"a": [1, 2], "b": "text"}'
    first, second, other = (
        [fuzz.changed_bytes(content, random.Random(f"{seed}/{n}")) for n in range(20)] for seed in (1, 1, 2)
    )
    assert first == second != other
