"""Paths on other machines: read by copies that are fetched, written by a copy that is sent.

All else in Trellis works with files of this machine. An address such as `gs://bucket/run` is reached through fsspec, by
the package that fsspec knows for its scheme (gcsfs, s3fs, adlfs, …), and only whole objects are got, put and deleted.
A store of objects has no rename, no append, no lock and no fsync, so the words have these meanings there:

* **Whole.** An object is there with all its content or not at all. A folder with a `manifest.json`, which is what a
  checkpoint file and a served model are, is whole when its manifest is there: it is put last and deleted first. What a
  process that was killed has put of a folder without its manifest is not fetched, and is deleted with the next sending.
* **Committed.** A checkpoint file is sent in the background after it was committed here. Logs come first and the files
  that a run resumes from last, so that what is there after a kill is what a killed process leaves on a disk.
* **Owner.** The last to start. It puts `.owner.json`, and looks at it before each sending: a process whose place was
  taken sends no more and ends with an error. Between the look and the sending there is no lock.
"""

import glob
import hashlib
import itertools
import json
import os
import re
import secrets
import shlex
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from trellis.disk import (
    address_advice,
    address_in,
    default_cache_dir,
    describe_failure,
    files_in,
    hidden_path,
    left_behind,
    local_path,
    remove_whole,
    scheme_of,
    scratch_directory,
    whole_file,
    write_whole,
)
from trellis.errors import ArgumentError, DataError, DirectoryTakenError, FileWriteError, TrellisError
from trellis.user_cache import hold

_MANIFEST = "manifest.json"
_OWNER = ".owner.json"
_COPY = "copy"
_VERSIONS = ("etag", "ETag", "generation", "md5Hash", "mtime", "modified", "LastModified", "last_modified", "updated")
"""What stores call that which changes with the content of an object."""
_TIMES = ("mtime", "modified", "LastModified", "last_modified", "updated", "created")
_EXTRA = ("gcsfs", "s3fs", "adlfs")
"""Packages that come with the extra `remote`."""

_copies: dict[Path, "WorkingCopy"] = {}
"""Those that are being worked on, by their directories."""
_addresses: dict[str, str] = {}
"""What was fetched, by the path of the copy."""


def advice_about(address: str) -> str:
    """Why an address cannot be reached from here, and the way out; empty if it can."""
    scheme = scheme_of(address)
    try:
        import fsspec
        from fsspec.registry import known_implementations
    except ImportError:
        return f"{scheme}:// needs fsspec: pip install 'trellis-jax[remote]'. Or copy it here, and give that path."
    try:
        fsspec.get_filesystem_class(scheme)
    except ValueError:
        return address_advice(address)
    except ImportError as error:
        package = known_implementations[scheme]["class"].partition(".")[0]
        install = "'trellis-jax[remote]'" if package in _EXTRA else package
        if package == "fsspec":
            return f"{error}. Install that, or copy it here, and give that path."
        return (
            f"{scheme}:// needs the package {package}, which is not installed: pip install {install}. Or copy it here, "
            f"or mount what holds it, and give that path."
        )
    return ""


def check_address(address: str, *, name: str) -> None:
    """Raises an error if an address cannot be reached from here."""
    advice = advice_about(address)
    if ".." in PurePosixPath(address).parts:
        advice = "Write it without `..`: a store of objects has no folders to go up from."
    if advice:
        raise ArgumentError(f"{name} is `{address}`. {advice}")


def fetched(path: str | os.PathLike[str], *, name: str) -> Path:
    """A path of this machine as it is; of an address a copy, kept in the cache and fetched again if it has changed.

    An address is that of a file, of a folder with all that is in it, or a pattern of files, whose copies match the
    pattern that is returned. With a file come those beside it whose names begin with its name and a dot. What is not
    there is not there in the copy either.

    Args:
        name: What the path was given as, for errors.
    """
    address = address_in(path)
    if not address:
        return local_path(path, name=name)
    check_address(address, name=name)
    with _reaching(address, name):
        return _fetch_once(address)


@cache
def _fetch_once(address: str) -> Path:
    """One look in each process: what a run reads does not change under it."""
    system, root = _file_system(address)
    is_pattern = glob.has_magic(root)
    objects: dict[str, Any] = _matches(system, root) if is_pattern else dict(system.find(root, detail=True))
    if is_pattern or system.isfile(root):
        objects |= _beside(system, objects.keys())
    server = _server_in(address, root)
    copies = {path: _copy_at(server, path) for path in objects}
    _fetch_objects(address, system, objects, copies)
    copy = _copy_at(server, root)
    place = default_cache_dir("remote")
    pattern = Path(glob.escape(str(place)), copy.relative_to(place)) if is_pattern else copy
    _remove_others(pattern, set(copies.values()))
    _addresses[str(pattern)] = address
    return pattern


def _server_in(address: str, root: str) -> str:
    """The scheme of an address and the server that it names, if what fsspec calls its path is without that."""
    scheme, _, rest = address.partition("://")
    return f"{scheme.lower()}/{rest.strip('/').removesuffix(root.strip('/'))}"


def _copy_at(server: str, path: str) -> Path:
    """Where the copy of an object lies: those that lie side by side do so here."""
    parts = [part for part in PurePosixPath(server, path.strip("/")).parts if part not in ("..", ".")]
    return default_cache_dir("remote").joinpath(*parts)


def _beside(system: Any, files: Set[str]) -> dict[str, Any]:
    """The objects whose names, or whose folders' names, begin with the name of one of some files and a dot."""
    objects: dict[str, Any] = {}
    for folder in {name.rpartition("/")[0] for name in files}:
        for entry in system.ls(folder, detail=True):
            stems = itertools.accumulate(PurePosixPath(entry["name"]).name.split("."), "{}.{}".format)
            if any(f"{folder}/{stem}" in files for stem in stems):
                objects |= system.find(entry["name"], detail=True)
    return objects


def _matches(system: Any, pattern: str) -> dict[str, Any]:
    """The objects that a pattern matches, or else all those in the folders that it matches."""
    matches = system.glob(pattern, detail=True)
    files = {path: info for path, info in matches.items() if info["type"] == "file"}
    return files or {path: info for folder in matches for path, info in system.find(folder, detail=True).items()}


def _remove_others(pattern: Path, copies: Set[Path]) -> None:
    """Removes copies of what is not there any more; what is hidden beside them was made of them here."""
    for match in map(Path, glob.glob(str(pattern), recursive=True)):
        for file in files_in(match) if match.is_dir() else [match]:
            is_hidden = any(part.startswith(".") for part in file.relative_to(match).parts)
            if file not in copies and not is_hidden:
                file.unlink(missing_ok=True)


def address_of(path: str) -> str:
    """The address that this process has fetched a path from; any other path as it is."""
    return _addresses.get(path, path)


def _fetch_objects(
    address: str, system: Any, objects: Mapping[str, Mapping[str, Any]], copies: Mapping[str, Path]
) -> None:
    """Brings the copies of objects up to date."""
    folder = default_cache_dir("remote") / scheme_of(address)
    folder.mkdir(parents=True, exist_ok=True)
    hold(folder)
    notes: dict[str, tuple[Path, str]] = {}
    for path, info in objects.items():
        digest = hashlib.blake2b(str(copies[path]).encode(), digest_size=16).hexdigest()
        note = folder / ".versions" / digest
        versions = [str(info[name]) for name in _VERSIONS if info.get(name)]
        version = json.dumps([info.get("size"), *versions])
        # An object of which nothing tells that it has changed is fetched each time.
        is_same = bool(versions) and note.is_file() and note.read_text() == version
        if not is_same or not copies[path].is_file():
            notes[path] = (note, version)
    _tell_of_fetching(address, [objects[path] for path in notes])
    for path, (note, version) in notes.items():
        _get(system, path, copies[path], objects[path])
        write_whole(note, version.encode())


def _tell_of_fetching(address: str, infos: Sequence[Mapping[str, Any]]) -> None:
    if infos:
        megabytes = sum(info.get("size") or 0 for info in infos) / 1e6
        files = "1 file" if len(infos) == 1 else f"{len(infos):,} files"
        print(f"Fetching {files}, {megabytes:,.1f} MB, from {address} …", file=sys.stderr, flush=True)


def _get(system: Any, path: str, place: Path, info: Mapping[str, Any]) -> None:
    with whole_file(place) as file:
        system.get_file(path, file.name)
    moment = next((info[name] for name in _TIMES if info.get(name)), None)
    seconds = moment.timestamp() if isinstance(moment, datetime) else moment
    if isinstance(seconds, int | float):
        os.utime(place, (seconds, seconds))


def _put(system: Any, file: Path, path: str) -> None:
    try:
        system.put_file(str(file), path)
    except FileNotFoundError:
        # A server of files, unlike a store of objects, has folders. A bucket that is not there is not made.
        parts = PurePosixPath(path).parts
        if not system.exists(str(PurePosixPath(*parts[: 2 if parts[0] == "/" else 1]))):
            raise
        system.makedirs(path.rpartition("/")[0], exist_ok=True)
        system.put_file(str(file), path)


def _file_system(address: str) -> tuple[Any, str]:
    import fsspec

    system, root = fsspec.core.url_to_fs(address)
    # What was listed before may have changed.
    system.invalidate_cache()
    return system, str(root).rstrip("/")


@contextmanager
def _reaching(address: str, name: str) -> Iterator[None]:
    """Has the errors of a store, which are of many kinds, tell what was to be read."""
    try:
        yield
    except TrellisError:
        raise
    except Exception as error:
        raise DataError(
            f"{name} is `{address}`, which cannot be read: {describe_failure(error)}. Check the address, the "
            f"connection and the rights, or copy it here, and give that path."
        ) from error


def copy_of(directory: Path) -> "WorkingCopy | None":
    """The copy that a directory is; None for a directory that is no copy."""
    return _copies.get(directory)


def shown(path: Path) -> str:
    """What people call a path: of something in a working copy, its address."""
    for directory, copy in _copies.items():
        if path.is_relative_to(directory):
            return "/".join([copy.address, *path.relative_to(directory).parts])
    return str(path)


@contextmanager
def working_directory(
    path: str | os.PathLike[str], *, name: str, writes: bool, takes_over: bool = True, is_outline: bool = False
) -> Iterator[Path]:
    """Gives a directory to work in: that of a path itself, or a working copy of an address, sent when the block ends.

    Args:
        name: What the path was given as, for errors.
        writes: Whether what is written there is to be sent.
        takes_over: Whether that is so although the address has an owner.
        is_outline: Whether to fetch only the manifests of folders that have one.
    """
    address = address_in(path).rstrip("/")
    if not address:
        yield local_path(path, name=name)
        return
    check_address(address, name=name)
    with WorkingCopy(address, name=name, writes=writes, takes_over=takes_over, is_outline=is_outline) as copy:
        yield copy.directory


@contextmanager
def new_directory(path: str | os.PathLike[str], *, name: str) -> Iterator[Path]:
    """Gives the path of a directory that is to be written; if that of an address, it is sent when the block has ended.

    Args:
        name: What the path was given as, for errors.
    """
    address = address_in(path).rstrip("/")
    if not address:
        yield local_path(path, name=name)
        return
    check_address(address, name=name)
    with _reaching(address, name):
        system, root = _file_system(address)
        is_free = not system.find(root)
    if not is_free:
        raise FileWriteError(f"{name} `{address}` is there already and not empty. Choose another directory.")
    with scratch_directory() as scratch:
        directory = scratch / PurePosixPath(root).name
        yield directory
        with _sending(address):
            names = [str(file.relative_to(directory)) for file in files_in(directory)]
            for file in sorted(names, key=lambda file: (file == _MANIFEST, file)):
                _put(system, directory / file, f"{root}/{file}")


class WorkingCopy:
    """A directory of this machine that stands for an address while it is worked on; see `working_directory`."""

    def __init__(self, address: str, *, name: str, writes: bool, takes_over: bool, is_outline: bool) -> None:
        self.address = address
        place = default_cache_dir("remote")
        for path in left_behind(place, _COPY):
            remove_whole(path)
        self._hidden = hidden_path(place, ending=_COPY)
        # Messages about its files name them by this path.
        self.directory = self._hidden / re.sub(":?/+", "/", address)
        """Where the copy is."""
        self._name = name
        self._writes = writes
        self._takes_over = takes_over
        self._is_outline = is_outline
        self._token = secrets.token_hex(8)
        self._sent: dict[str, tuple[int, int]] = {}
        """The size and time of each file when it was the same there and here, by its path."""

    def __enter__(self) -> "WorkingCopy":
        try:
            with _reaching(self.address, self._name):
                self._system, self._root = _file_system(self.address)
                owner = self._read_owner()
                self._fetch(unfinished=owner.get("sending", []))
            if owner and self._writes:
                self._tell_of(owner)
                self._writes = self._takes_over
            if self._writes:
                with _sending(self.address):
                    self._put_owner()
        except BaseException:
            remove_whole(self._hidden)
            raise
        _copies[self.directory] = self
        return self

    def _tell_of(self, owner: Mapping[str, Any]) -> None:
        place = "takes its place: if it still runs, it ends when it saves next"
        print(
            f"`{self.address}` belongs to {_described(owner)}. It has not ended, or was killed. This process "
            f"{place if self._takes_over else 'leaves what is there as it is'}.",
            file=sys.stderr,
        )

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        del _copies[self.directory]
        try:
            if self._writes and not isinstance(error, DirectoryTakenError):
                self.send()
                with _sending(self.address):
                    self._system.rm_file(self._object(_OWNER))
        except FileWriteError as failure:
            kept = default_cache_dir("not_sent") / self._token
            kept.parent.mkdir(parents=True, exist_ok=True)
            self._hidden.rename(kept)
            place = kept / self.directory.relative_to(self._hidden)
            text = f"What could not be sent to `{self.address}` is in `{place}`."
            (error or failure).add_note(text)
            if error is None:
                raise
        else:
            remove_whole(self._hidden)

    def send(self) -> None:
        """Makes what is there the same as what is here: logs, then folders with a manifest, those above last."""
        if not self._writes:
            return
        with _sending(self.address):
            self._check_owner()
            files = {
                str(path.relative_to(self.directory)): (path.stat().st_size, path.stat().st_mtime_ns)
                for path in files_in(self.directory)
                if not any(part.startswith(".") for part in path.relative_to(self.directory).parts)
            }
            folders = _whole_folders(files)
            changed = [name for name, state in files.items() if self._sent.get(name) != state]
            gone = [name for name in self._sent if name not in files]
            order = sorted(changed, key=lambda name: _rank(name, folders, files))
            sending = sorted({folder for name in changed if (folder := _folder_of(name, folders))})
            if sending:
                self._put_owner(sending=sending)
            # A folder whose files are replaced is not whole until its manifest is.
            for folder in sending:
                self._delete([f"{folder}/{_MANIFEST}".lstrip("/")])
            for name in order:
                _put(self._system, self.directory / name, self._object(name))
                self._sent[name] = files[name]
            self._delete(sorted(gone, key=lambda name: PurePosixPath(name).name != _MANIFEST))
            if sending:
                self._put_owner()

    def _fetch(self, *, unfinished: Sequence[str]) -> None:
        self.directory.mkdir(parents=True)
        objects = {
            path[len(self._root) + 1 :]: info for path, info in self._system.find(self._root, detail=True).items()
        }
        halves = [folder for folder in unfinished if f"{folder}/{_MANIFEST}".lstrip("/") not in objects]
        folders = _whole_folders(objects) if self._is_outline else []
        if not self._is_outline:
            _tell_of_fetching(self.address, list(objects.values()))
        for name, info in objects.items():
            is_part = _folder_of(name, folders) is not None and PurePosixPath(name).name != _MANIFEST
            if name == _OWNER or is_part:
                continue
            if _folder_of(name, halves) is not None:
                self._sent[name] = (-1, -1)  # to be deleted
                continue
            if ".." in PurePosixPath(name).parts:
                raise DataError(f"`{self.address}` has an object that leads out of it: {name!r}. Rename it.")
            place = self.directory / name
            _get(self._system, self._object(name), place, info)
            self._sent[name] = (place.stat().st_size, place.stat().st_mtime_ns)

    def _object(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _delete(self, names: Sequence[str]) -> None:
        for name in names:
            if self._sent.pop(name, None) is not None:
                with suppress(FileNotFoundError):
                    self._system.rm_file(self._object(name))

    def _read_owner(self) -> dict[str, Any]:
        self._system.invalidate_cache()
        try:
            owner = json.loads(self._system.cat_file(self._object(_OWNER)))
        except (FileNotFoundError, ValueError):
            return {}
        return owner if isinstance(owner, dict) else {}

    def _put_owner(self, *, sending: Sequence[str] = ()) -> None:
        owner = {
            "token": self._token,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "since": time.strftime("%Y-%m-%d %H:%M:%S"),
            "command": shlex.join(sys.argv)[:200],
            "sending": list(sending),
        }
        file = self._hidden / _OWNER
        file.write_text(json.dumps(owner))
        _put(self._system, file, self._object(_OWNER))

    def _check_owner(self) -> None:
        owner = self._read_owner()
        if owner.get("token") != self._token:
            other = _described(owner) if owner else "nobody: its owner was removed"
            raise DirectoryTakenError(
                f"`{self.address}` belongs to {other}. This process has sent nothing since. Stop one of them, or "
                f"choose another directory."
            )


@contextmanager
def _sending(address: str) -> Iterator[None]:
    """Has the errors of a store that is written to name the address."""
    try:
        yield
    except TrellisError:
        raise
    except Exception as error:
        raise FileWriteError(
            f"`{address}` could not be written: {describe_failure(error)}. The checkpoint files that are there are "
            f"whole. Check the connection and the rights, and start the same command again."
        ) from error


def _described(owner: Mapping[str, Any]) -> str:
    return f"process {owner.get('pid')} on {owner.get('host')}, since {owner.get('since')}: `{owner.get('command')}`"


def _whole_folders(files: Mapping[str, object]) -> list[str]:
    """The folders that have a manifest, the innermost first."""
    folders = [str(PurePosixPath(name).parent) for name in files if PurePosixPath(name).name == _MANIFEST]
    return sorted(("" if folder == "." else folder for folder in folders), key=_depth, reverse=True)


def _depth(folder: str) -> int:
    return len(PurePosixPath(folder).parts)


def _folder_of(name: str, folders: Sequence[str]) -> str | None:
    """The folder of some that a file is in; None if it is in none."""
    return next((folder for folder in folders if not folder or name.startswith(f"{folder}/")), None)


def _rank(name: str, folders: Sequence[str], files: Mapping[str, tuple[int, int]]) -> tuple[Any, ...]:
    """By what files are ordered when they are sent."""
    folder = _folder_of(name, folders)
    if folder is None:
        return (0, 0, 0, 0, name)
    manifest = f"{folder}/{_MANIFEST}".lstrip("/")
    return (1, -_depth(folder), files[manifest][1], name == manifest, name)
