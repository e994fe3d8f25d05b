"""The script that measures loops, without measuring."""

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)  # as if it were run by its path
    return importlib.import_module("loop_overhead")


def measure(script: ModuleType, monkeypatch: pytest.MonkeyPatch, folder: Path, *flags: str) -> str:
    def measure_steps(workloads: list[str], n_rounds: int, **options: Any) -> Any:
        for name in workloads:
            for group in importlib.import_module("loop_overhead_workers").groups_of(name, with_peers=False):
                for contender in group.contenders:
                    yield from (script.Measurement(name, contender, n, 100.0 + n, 10.0, 90.0) for n in range(n_rounds))

    monkeypatch.setattr(script, "measure_steps", measure_steps)
    script.main(["--parts", "steps", "--no-peers", f"--output-dir={folder}", *flags])
    return (folder / "loop_overhead.md").read_text()


def test_one_round_is_reported_without_a_spread(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    page = measure(script, monkeypatch, tmp_path, "--workloads", "cnn", "--rounds", "1")
    assert "| raw jit | 10000 | 100 | 100 | – |" in page
    assert "rounds: 1" in page


def test_a_workload_that_is_measured_alone_leaves_the_others_on_the_page(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measure(script, monkeypatch, tmp_path, "--workloads", "mlp", "--rounds", "3")
    page = measure(script, monkeypatch, tmp_path, "--workloads", "cnn", "--rounds", "2")
    assert "**mlp**" in page and "rounds: 3" in page
    assert "**cnn**" in page and "rounds: 2" in page
