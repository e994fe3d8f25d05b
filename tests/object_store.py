"""A store of objects in memory that fsspec reaches: no rename, no append, no folders but the beginnings of names."""

import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest
from fsspec.registry import _registry
from fsspec.spec import AbstractFileSystem


class ObjectStore(AbstractFileSystem):  # type: ignore[misc]
    """What is put, got and deleted whole, by name."""

    protocol = ("gs", "gcs")
    cachable = False
    objects: ClassVar[dict[str, tuple[bytes, int]]] = {}
    """The content and the version of each object."""
    n_written: ClassVar[int] = 0
    calls: ClassVar[list[tuple[str, str]]] = []
    """What was got, put and deleted, in order."""
    before_write: ClassVar[Callable[[str], None]] = staticmethod(lambda name: None)
    """Is called before each change; what it raises is what the store raises."""

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        path = self._strip_protocol(path).rstrip("/")
        entries: dict[str, dict[str, Any]] = {}
        for name, (content, version) in sorted(self.objects.items()):
            if name == path:
                entries[name] = _info(name, content, version)
            elif name.startswith(f"{path}/"):
                rest = name.removeprefix(f"{path}/")
                child = f"{path}/{rest.partition('/')[0]}"
                is_folder = "/" in rest
                entries[child] = (
                    {"name": child, "size": 0, "type": "directory"} if is_folder else _info(name, content, version)
                )
        if not entries:
            raise FileNotFoundError(path)
        return list(entries.values()) if detail else list(entries)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        name = self._strip_protocol(path)
        self.calls.append(("get", name))
        if name not in self.objects:
            raise FileNotFoundError(name)
        return self.objects[name][0][start:end]

    def get_file(self, rpath: str, lpath: str, *_: Any, **__: Any) -> None:
        Path(lpath).write_bytes(self.cat_file(rpath))

    def pipe_file(self, path: str, value: bytes, **_: Any) -> None:
        name = self._strip_protocol(path)
        type(self).before_write(name)
        self.calls.append(("put", name))
        type(self).n_written += 1
        self.objects[name] = (value, self.n_written)

    def put_file(self, lpath: str, rpath: str, *_: Any, **__: Any) -> None:
        self.pipe_file(rpath, Path(lpath).read_bytes())

    def rm_file(self, path: str) -> None:
        name = self._strip_protocol(path)
        type(self).before_write(name)
        self.calls.append(("delete", name))
        if self.objects.pop(name, None) is None:
            raise FileNotFoundError(name)

    def names(self, address: str) -> list[str]:
        """The names of the objects below an address, from there on."""
        root = self._strip_protocol(address)
        return sorted(name.removeprefix(f"{root}/") for name in self.objects if name.startswith(f"{root}/"))

    def upload(self, directory: Path, address: str) -> None:
        """Puts all files of a directory."""
        for file in sorted(path for path in directory.rglob("*") if path.is_file()):
            self.put_file(str(file), f"{address}/{file.relative_to(directory)}")


def _info(name: str, content: bytes, version: int) -> dict[str, Any]:
    moment = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=version)
    return {"name": name, "size": len(content), "type": "file", "etag": str(version), "LastModified": moment}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    """An empty store behind `gs://`, and a cache of its own for what is fetched."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(ObjectStore, "objects", {})
    monkeypatch.setattr(ObjectStore, "calls", [])
    monkeypatch.setitem(_registry, "gs", ObjectStore)
    yield ObjectStore()
    assert not [name for name in os.listdir() if name.endswith(":")], "an address was taken for a path"
