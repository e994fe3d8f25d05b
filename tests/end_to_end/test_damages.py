"""A small part of `benchmarks/chaos/damages.py`: what is damaged is named, and nothing is lost in silence."""

import random
import sys
from pathlib import Path

import pytest

from trellis.extensions import SkippedData

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "chaos"))

import damages

TRIALS = [
    ("events.jsonl", "removed"),
    ("events.jsonl", "not UTF-8"),
    ("events.jsonl", "one bit flipped"),
    ("events.jsonl", "a line taken out"),
    ("train/", "one bit flipped"),
    ("validation/", "removed"),
    ("validation/", "a directory"),
    ("skipped_data.json", "garbage"),
    ("skipped_data.json", "removed"),
    ("best/info.json", "cut in half"),
    ("best/highest", "emptied"),
    ("regular_8/manifest.json", "cut in half"),
    ("regular_99", "another file of the run"),
    ("regular_99", "a link to nothing"),
    ("params.yaml", "a directory"),
]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> damages.Bench:
    """A run that was stopped half-way."""
    return damages.Bench(tmp_path_factory.mktemp("damages"))


@pytest.mark.parametrize(("place", "means"), TRIALS)
def test_a_damaged_run_ends_as_an_undamaged_one_or_names_the_damage(
    bench: damages.Bench, place: str, means: str
) -> None:
    file = next(file for file in bench.files if file.as_posix().startswith(place))
    assert bench.fault_of(file, means, seed=0) == ""


def test_any_file_may_be_damaged_by_any_means(bench: damages.Bench) -> None:
    seed = random.randrange(2**32)
    print(f"random seed {seed}")
    for number, file, means in bench.trials(seed, 4):
        assert bench.fault_of(file, means, seed=seed + number) == "", f"{file}, {means}"


def test_the_kit_finds_what_is_lost_in_silence(bench: damages.Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SkippedData, "windows", [])
    fault = bench.fault_of(Path("skipped_data.json"), "removed", seed=0)
    assert fault.startswith("DIFFERENT: regular_12, regular_16; of damage the screen says only: []")
