"""`trellis cache`, as a user runs it."""

import json
import os
import time
from pathlib import Path

import pytest

from tests.cli.command import trellis_without_jax
from trellis.cli.main import main


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with programs, and columns that are old."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = tmp_path / "cache/trellis"
    for name in ("compiled/jit_a-cache", "compiled/jit_b-cache", "columns/abc/x.npy"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(bytes(2048))
    manifest = {"count": 5, "columns": dict.fromkeys("abcdef")}
    (root / "columns/abc/columns.json").write_text(json.dumps(manifest))
    then = time.time() - 40 * 24 * 3600
    os.utime(root / "columns/abc", (then, then))
    return root


def test_the_cache_is_shown_with_its_place_what_is_in_it_and_the_total(cache: Path) -> None:
    done = trellis_without_jax("cache")
    assert done.returncode == 0, done.stderr
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert lines[:2] == [f"The cache, {cache}:", "size last used what where"]
    assert lines[2].endswith("2 programs, compiled for accelerators compiled")
    assert lines[3].endswith("40 d 0 h ago 5 examples: a, b, c, d, … columns/abc")
    assert lines[4] == "6.0 kB in all"


def test_programs_read_the_same_as_json(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["path"] == str(cache)
    assert shown["size"] == sum(entry["size"] for entry in shown["entries"])
    assert [entry["kind"] for entry in shown["entries"]] == ["columns", "compiled", "compiled"]
    assert main(["cache", "prune", "--json", "--dry_run"]) == 0
    pruned = json.loads(capsys.readouterr().out)
    assert pruned["is_dry_run"] is True
    assert [Path(entry["path"]).name for entry in pruned["removed"]] == ["abc"]


def test_prune_removes_what_is_older_than_asked(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "prune", "--dry_run"]) == 0
    assert f"Would be removed: 1, 2.0 kB, from {cache}." in capsys.readouterr().out
    assert (cache / "columns/abc").is_dir()
    assert main(["cache", "prune", "--older-than", "60d"]) == 0
    assert "Kept: 3 that were used within 60d. --all removes them too." in capsys.readouterr().out
    assert main(["cache", "prune", "--older_than=4w"]) == 0
    assert f"Removed: 1, 2.0 kB, from {cache}." in capsys.readouterr().out
    assert main(["cache", "prune", "--all"]) == 0
    assert main(["cache"]) == 0
    assert capsys.readouterr().out.endswith(f"The cache, {cache}, is empty.\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["prune", "--older_than=30"],
            "--older_than is '30'. Give a number and its unit, such as 45min, 12h, 30d or 8w.",
        ),
        (["prune", "--older_than=1d", "--all"], "--all and --older_than=1d are both given. Give one of them."),
        (["prnue"], "There is no `trellis cache prnue`. Did you mean `trellis cache prune`?"),
    ],
)
def test_what_cannot_be_pruned_is_told(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_help_tells_of_both_words(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["cache", "--help"])
    assert "trellis cache prune" in capsys.readouterr().out


def test_a_run_says_where_the_cache_is_and_how_large(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = [f"--set=trainer.{name}=1" for name in ("train_steps", "steps_per_loop", "checkpoint_interval")]
    flags = ["--experiment=digits/classifier", "--mode=train", "--model_dir=run", "--set=task.hidden_size=8"]
    assert main(["train", *flags, *settings, "--set=trainer.optimizer_config.warmup.type=null"]) == 0
    assert f"are in {cache}, 6.0 kB: see trellis cache." in capsys.readouterr().out
