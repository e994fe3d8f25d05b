"""The script that compares runs on a GPU, tried where there is none."""

import os

import pytest

from benchmarks import gpu_exact


def test_without_a_gpu_it_says_so_and_ends_well(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_exact, "find_platform", lambda: "cpu")
    assert gpu_exact.main([]) == 0
    assert "There is no GPU here, only cpu" in capsys.readouterr().out


@pytest.mark.cluster
@pytest.mark.skipif("TRELLIS_CLUSTER_TESTS" not in os.environ, reason="a minute: run by `make test-cluster`")
def test_runs_of_the_real_command_are_equal_killed_or_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_exact.main(["--tiny", "--rounds=1"]) == 0
    output = capsys.readouterr().out
    assert "killed after step 1000" in output
    assert output.count("| nothing |") == 2
    assert "| not exact |" in output


def test_runs_that_differ_are_a_failure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(gpu_exact, "compare_runs", lambda sizes, folder: ("regular_4 has other arrays", ""))
    monkeypatch.setattr(gpu_exact, "measure", lambda sizes, n_rounds: {True: [2.0], False: [1.0]})
    assert gpu_exact.main(["--tiny"]) == 1
    output = capsys.readouterr().out
    assert "| a second one | regular_4 has other arrays |" in output
    assert "An exact step takes 2.000 times as long" in output
