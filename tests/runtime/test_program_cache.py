"""Keeping compiled programs."""

from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

from trellis.runtime import keep_programs


@pytest.fixture(autouse=True)
def _no_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    given = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    yield
    jax.config.update("jax_compilation_cache_dir", given)


def test_programs_for_an_accelerator_are_kept_in_the_users_cache(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "cache" / "trellis" / "compiled"
    assert keep_programs() == directory
    assert str(directory) in capsys.readouterr().out
    assert directory.is_dir()
    assert jax.config.jax_compilation_cache_dir == str(directory)


def test_those_for_a_cpu_are_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    assert keep_programs() is None
    assert jax.config.jax_compilation_cache_dir is None
    assert not any(tmp_path.iterdir())


def test_a_directory_that_was_chosen_stays(tmp_path: Path) -> None:
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    assert keep_programs() is None
    assert jax.config.jax_compilation_cache_dir == str(tmp_path)


def test_a_home_that_cannot_be_written_to_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file, where a directory should be")
    assert keep_programs() is None
    assert jax.config.jax_compilation_cache_dir is None
