"""The user's cache: what is in it, what is removed from it, and what never is."""

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from trellis import user_cache
from trellis.data import read_columns
from trellis.disk import hidden_path
from trellis.errors import ArgumentError
from trellis.user_cache import cache_entries, cache_root, cache_size, hold, prune

DAY = 24 * 60 * 60.0


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, and a process that uses nothing yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(user_cache, "_held", {})
    yield cache_root()
    end_uses()


def add(name: str, *, days: float = 0.0, n_bytes: int = 100) -> Path:
    """Adds an entry, a directory."""
    path = cache_root() / name
    (path / "part").mkdir(parents=True)
    (path / "part/data.bin").write_bytes(bytes(n_bytes))
    age(path, days)
    return path


def age(path: Path, days: float) -> None:
    then = time.time() - days * DAY
    os.utime(path, (then, then))


def end_uses() -> None:
    """As if this process had ended."""
    while user_cache._held:
        os.close(user_cache._held.popitem()[1])


def test_what_was_not_used_for_long_goes_and_all_else_stays(cache: Path) -> None:
    old, new = add("columns/old", days=40), add("columns/new", days=20)
    pruned = prune(unused_for=30 * DAY)
    assert [entry.path for entry in pruned.removed] == [old]
    assert (pruned.n_kept, pruned.used, pruned.failed) == (1, [], [])
    assert not old.exists()
    assert new.is_dir()
    assert prune(unused_for=0.0).removed[0].path == new
    assert cache_entries() == []


def test_a_dry_run_removes_nothing(cache: Path) -> None:
    old = add("tfds/old", days=40)
    assert [entry.size for entry in prune(unused_for=DAY, is_dry=True).removed] == [100]
    assert old.is_dir()


def test_columns_are_told_by_what_they_hold_and_a_use_makes_them_young(cache: Path) -> None:
    np.savez("data.npz", x=np.zeros((3, 2)), y=np.zeros(3))
    read_columns("data.npz")
    (entry,) = cache_entries()
    assert (entry.kind, entry.what, entry.is_used) == ("columns", "3 examples: x, y", True)
    assert entry.size == cache_size() > 0
    age(entry.path, 40)
    read_columns("data.npz")
    assert time.time() - cache_entries()[0].last_use < DAY


def test_what_a_run_uses_is_not_removed_and_what_it_has_mapped_is_read_on(cache: Path) -> None:
    np.savez("data.npz", x=np.arange(6))
    columns = read_columns("data.npz")
    (entry,) = cache_entries()
    assert [each.path for each in prune(unused_for=0.0).used] == [entry.path]
    assert columns.take([5])["x"].tolist() == [5]
    end_uses()
    assert [each.path for each in prune(unused_for=0.0).removed] == [entry.path]
    assert columns.take([5])["x"].tolist() == [5], "what is mapped outlives its name"


def test_columns_that_were_pruned_are_made_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez("data.npz", x=np.arange(6))
    read_columns("data.npz")
    end_uses()
    assert len(prune(unused_for=0.0).removed) == 1
    assert read_columns("data.npz").take([5])["x"].tolist() == [5]


def test_programs_stay_as_long_as_a_run_keeps_some_there(cache: Path) -> None:
    program = cache / "compiled/jit_step-cache"
    program.parent.mkdir(parents=True)
    program.write_bytes(b"program")
    age(program, 40)
    hold(program.parent)
    assert [entry.path for entry in prune(unused_for=30 * DAY).used] == [program]
    end_uses()
    assert [entry.path for entry in prune(unused_for=30 * DAY).removed] == [program]


def test_links_are_neither_followed_nor_removed_and_what_is_not_ours_stays(tmp_path: Path, cache: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "inner").mkdir(parents=True)
    (outside / "inner/kept.bin").write_bytes(bytes(50))
    old = add("columns/old", days=40)
    (old / "link").symlink_to(outside)
    age(old, 40)
    (cache / "columns/link").symlink_to(outside)
    (cache / "tfds").symlink_to(outside)
    (cache / "something_else").mkdir()
    (cache / "something_else/kept.bin").write_bytes(bytes(50))
    pruned = prune(unused_for=0.0)
    assert [entry.path for entry in pruned.removed] == [old]
    assert (outside / "inner/kept.bin").is_file()
    assert (cache / "columns/link").is_symlink()
    assert (cache / "something_else/kept.bin").is_file()


def test_a_cache_that_is_a_link_itself_is_refused(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    cache.parent.mkdir()
    cache.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ArgumentError, match="is a link, and links are not followed here. Set XDG_CACHE_HOME"):
        prune(unused_for=0.0)
    assert cache_size() == 0, "a run goes on, and only looks how large it is"


def test_two_that_prune_at_once_remove_each_entry_once(cache: Path) -> None:
    for number in range(20):
        add(f"columns/{number}", days=40)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: prune(unused_for=1.0), range(4)))
    assert sorted(entry.path.name for each in results for entry in each.removed) == sorted(map(str, range(20)))
    assert not any(each.used or each.failed for each in results)
    assert list((cache / "columns").iterdir()) == []


def test_what_is_being_written_is_left_alone(cache: Path) -> None:
    folder = cache / "columns"
    folder.mkdir(parents=True)
    hidden = hidden_path(folder)
    hidden.mkdir()
    assert prune(unused_for=0.0).removed == []
    assert hidden.is_dir()


def test_what_cannot_be_removed_is_told(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(user_cache, "remove_whole", refuse)
    old = add("columns/old", days=40)
    assert [(entry.path, reason) for entry, reason in prune(unused_for=DAY).failed] == [(old, "Permission denied")]
