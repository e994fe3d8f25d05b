"""Files and directories that are whole or not there, whatever happens to the process that writes them."""

import errno
import fcntl
import gc
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from trellis import disk
from trellis.errors import ArgumentError, DirectoryTakenError, FileWriteError


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def dead_pid() -> int:
    """The number of a process that is over."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


def left_by(directory: Path, *, machine: str | None = None, pid: int, process: str = "00000000") -> Path:
    """What a process has left behind, with a file in it."""
    path = directory / f".{machine or disk._MACHINE}-{pid}-{process}-01234567.writing"
    path.mkdir()
    (path / "file").touch()
    return path


def test_a_file_is_written_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.json"
    disk.write_whole(path, b"one")
    disk.write_whole(path, b"two")
    assert path.read_bytes() == b"two"
    assert names(path.parent) == ["file.json"]
    (plain := tmp_path / "plain").touch()
    assert path.stat().st_mode == plain.stat().st_mode


def test_a_file_appears_only_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "events.out.tfevents.1"
    with disk.whole_file(path) as file:
        file.write(b"one")
        assert not path.exists()
        (hidden,) = names(tmp_path)
        assert hidden.startswith(".")
        assert "tfevents" not in hidden, "TensorBoard would read it"
    assert names(tmp_path) == [path.name]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("of the caller")])
def test_a_failure_leaves_what_was_there_and_nothing_else(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "file"
    disk.write_whole(path, b"before")
    with pytest.raises(type(error)), disk.whole_file(path) as file:
        file.write(b"half")
        raise error
    with pytest.raises(type(error)), disk.whole_directory(tmp_path / "directory") as directory:
        (directory / "half").touch()
        raise error
    assert path.read_bytes() == b"before"
    assert names(tmp_path) == ["file"]


def test_two_writers_of_one_file_do_not_get_in_each_others_way(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with disk.whole_file(path) as one, disk.whole_file(path) as other:
        one.write(b"one")
        other.write(b"other")
    assert path.read_bytes() == b"one"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: disk.write_whole(path, bytes([n]) * 100_000), range(50)))
    content = path.read_bytes()
    assert len(content) == 100_000
    assert len(set(content)) == 1
    assert names(tmp_path) == ["file"]


def test_two_processes_write_one_file_many_times(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from trellis.disk import write_whole\n"
        "for n in range(300): write_whole(Path(sys.argv[1]), sys.argv[2].encode() * 10_000)"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(disk.__file__).parents[1])}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path / "file"), letter], stderr=subprocess.PIPE, env=environment
        )
        for letter in "ab"
    ]
    for process in started:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors.decode()
    assert (tmp_path / "file").read_bytes() in (b"a" * 10_000, b"b" * 10_000)
    assert names(tmp_path) == ["file"]


def test_a_directory_appears_only_when_it_is_whole(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "deep" / "model", tmp_path / "empty"):
        with disk.whole_directory(path) as directory:
            (directory / "inner").mkdir()
            (directory / "inner" / "file").write_text("x")
            assert not (path / "inner").exists()
        assert (path / "inner" / "file").read_text() == "x"
        assert not [name for name in names(path.parent) if name.startswith(".")]


def test_a_directory_that_holds_something_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "file").write_text("precious")
    (tmp_path / "file").write_text("precious")
    for path in (tmp_path / "model", tmp_path / "file"):
        with (
            pytest.raises(FileWriteError, match=r"is there already and not empty\. Choose another directory"),
            disk.whole_directory(path),
        ):
            raise AssertionError("the work is not done")


def test_a_directory_that_someone_else_fills_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    with (
        pytest.raises(FileWriteError, match=r"model` could not be written: Directory not empty"),
        disk.whole_directory(tmp_path / "model"),
    ):
        (tmp_path / "model").mkdir()
        (tmp_path / "model" / "file").write_text("precious")
    assert (tmp_path / "model" / "file").read_text() == "precious"
    assert names(tmp_path) == ["model"]


@pytest.mark.parametrize("n_calls_before", [0, 1])
def test_a_full_disk_is_told_with_the_place_and_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_calls_before: int
) -> None:
    disk.write_whole(tmp_path / "file", b"before")
    n_calls = 0

    def full(descriptor: int) -> None:
        nonlocal n_calls
        n_calls += 1
        if n_calls > n_calls_before:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    message = r"could not be written: No space left on device\. What was there .* untouched\. Make room, or choose"
    with pytest.raises(FileWriteError, match=rf"directory` {message}"), disk.whole_directory(tmp_path / "directory"):
        pass
    n_calls = n_calls_before
    with pytest.raises(FileWriteError, match=rf"file` {message}"):
        disk.write_whole(tmp_path / "file", b"after")
    assert (tmp_path / "file").read_bytes() == b"before"
    assert not [name for name in names(tmp_path) if name.startswith(".")]


def test_a_full_disk_is_told_when_the_caller_meets_it(tmp_path: Path) -> None:
    with (
        pytest.raises(FileWriteError, match=r"model` could not be written: No space left on device"),
        disk.whole_directory(tmp_path / "model"),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_file_system_that_turns_read_only_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, *_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    for method in ("open", "unlink"):
        monkeypatch.setattr(Path, method, refuse)
    with pytest.raises(FileWriteError, match=r"file` could not be written: Read-only file system"):
        disk.write_whole(tmp_path / "file", b"")


def test_an_error_of_the_caller_is_raised_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="vocab"), disk.whole_directory(tmp_path / "model"):
        Path("/nowhere/vocab.txt").read_text()


def test_a_place_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileWriteError, match=r"file/inner` could not be written: Not a directory"):
        disk.write_whole(tmp_path / "file" / "inner", b"")
    for path in (tmp_path / "file", tmp_path / "file" / "inner"):
        with pytest.raises(ArgumentError, match=rf"Nothing can be written to output_dir `{path}`: Not a directory"):
            disk.check_writable(path)


@pytest.mark.parametrize("write", ["file", "directory"])
def test_what_killed_processes_have_left_is_swept_away_by_the_next_writer(tmp_path: Path, write: str) -> None:
    left_by(tmp_path, pid=dead_pid())
    left_by(tmp_path, pid=os.getpid())  # of a container that is no more, in which it had the same number
    (tmp_path / f".{disk._MACHINE}-{dead_pid()}-00000000-01234568.writing").write_text("a file")
    if write == "file":
        disk.write_whole(tmp_path / "file", b"")
    else:
        with disk.whole_directory(tmp_path / "directory"):
            pass
    assert names(tmp_path) == [write]


def test_what_killed_processes_have_left_is_swept_away_when_a_place_is_looked_at(tmp_path: Path) -> None:
    left_by(tmp_path, pid=dead_pid())
    (tmp_path / f".{disk._MACHINE}-{dead_pid()}-00000000-01234568.writing").touch()  # to see if one can write
    disk.check_writable(tmp_path)
    assert names(tmp_path) == []


def test_a_link_is_swept_away_and_not_what_it_leads_to(tmp_path: Path) -> None:
    (precious := tmp_path / "precious").mkdir()
    (precious / "file").touch()
    link = tmp_path / f".{disk._MACHINE}-{dead_pid()}-00000000-01234568.writing"
    link.symlink_to(precious)
    disk.sweep(tmp_path)
    assert names(tmp_path) == ["precious"]
    assert names(precious) == ["file"]


def test_a_link_in_the_place_of_a_hidden_file_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (precious := tmp_path / "precious").write_text("precious")
    link = tmp_path / ".link"
    monkeypatch.setattr(disk, "hidden_path", lambda directory, **_: link)
    for target in (precious, tmp_path / "not there"):
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        with pytest.raises(ArgumentError, match="Nothing can be written to .*: File exists"):
            disk.check_writable(tmp_path)
        with pytest.raises(FileWriteError, match="file` could not be written: File exists"):
            disk.write_whole(tmp_path / "file", b"content")
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        with (
            pytest.raises(FileWriteError, match="directory` could not be written: File exists"),
            disk.whole_directory(tmp_path / "directory"),
        ):
            pass
    assert precious.read_text() == "precious"
    assert names(tmp_path) == ["precious"]


def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The paths that are brought to the disk from now on."""
    paths: list[Path] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        paths.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    return paths


def test_a_new_directory_survives_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = synced(monkeypatch)
    disk.check_writable(tmp_path / "runs" / "new")
    assert paths == [tmp_path / "runs", tmp_path]
    disk.check_writable(tmp_path / "runs" / "new")
    assert len(paths) == 2


def test_a_file_that_grows_is_brought_to_the_disk_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "events").touch()
    paths = synced(monkeypatch)
    disk.sync_appended(tmp_path / "events")
    assert paths == [tmp_path / "events", tmp_path]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_a_file_system_that_cannot_sync_directories_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    fsync = os.fsync

    def only_files(descriptor: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(number, os.strerror(number))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", only_files)
    disk.write_whole(tmp_path / "new" / "file", b"content")
    assert (tmp_path / "new" / "file").read_bytes() == b"content"


def test_what_others_are_writing_stays(tmp_path: Path) -> None:
    living = [
        left_by(tmp_path, pid=os.getppid()),
        left_by(tmp_path, pid=os.getpid(), process=disk._PROCESS),
        left_by(tmp_path, pid=dead_pid(), machine="ffffffff"),
        tmp_path / ".mine.writing",
    ]
    living[-1].touch()
    disk.sweep(tmp_path)
    assert names(tmp_path) == sorted(path.name for path in living)


def test_what_another_machine_has_left_is_swept_away_after_a_day(tmp_path: Path) -> None:
    path = left_by(tmp_path, pid=1, machine="ffffffff")
    two_days_ago = time.time() - 2 * 24 * 60 * 60
    os.utime(path, (two_days_ago, two_days_ago))
    disk.sweep(tmp_path)
    assert names(tmp_path) == [path.name], "a file in it is new"
    os.utime(path / "file", (two_days_ago, two_days_ago))
    disk.sweep(tmp_path)
    assert names(tmp_path) == []


def test_what_an_older_version_has_left_is_swept_away_after_a_day(tmp_path: Path) -> None:
    hexadecimal = 32 * "a"
    older = [f".regular_21.{hexadecimal}.{hexadecimal}.writing", f".model.{hexadecimal}.writing", ".regular_7.removed"]
    two_days_ago = time.time() - 2 * 24 * 60 * 60
    for name in (*older, ".mine.writing", ".mine.removed"):
        (tmp_path / name).mkdir()
    disk.sweep(tmp_path)
    assert len(names(tmp_path)) == 5
    for path in tmp_path.iterdir():
        os.utime(path, (two_days_ago, two_days_ago))
    disk.sweep(tmp_path)
    assert names(tmp_path) == [".mine.removed", ".mine.writing"]


def test_a_directory_is_removed_at_once_for_every_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()

    def die(path: Path, **_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(disk.shutil, "rmtree", die)
        with pytest.raises(KeyboardInterrupt):
            disk.remove_whole(tmp_path / "model")
    assert not (tmp_path / "model").exists()
    disk.remove_whole(tmp_path / "model")


def test_what_a_process_has_left_that_has_ended_unasked_is_swept(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        left_by(tmp_path, pid=process.pid)
        disk.sweep(tmp_path)
        assert names(tmp_path) == []


def test_two_directories_change_places_in_one_step(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "name").write_text(name)
    assert disk.exchange(tmp_path / "one", tmp_path / "other")
    assert (tmp_path / "one/name").read_text() == "other"
    with pytest.raises(FileNotFoundError):
        disk.exchange(tmp_path / "one", tmp_path / "missing")


def test_a_scratch_directory_is_removed_by_its_process_or_else_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with disk.scratch_directory() as mine:
        assert mine.parent == tmp_path
    assert not mine.exists()
    left = disk.hidden_path(tmp_path)
    left.mkdir()
    with disk.scratch_directory():
        assert left.is_dir()
    monkeypatch.setattr(disk, "_PROCESS", "0" * 8)
    with disk.scratch_directory() as next_one:
        assert list(tmp_path.iterdir()) == [next_one]


OWNER = """
import sys
from pathlib import Path
from trellis.disk import Ownership
ownership = Ownership(Path(sys.argv[1]))
print("owned", flush=True)
sys.stdin.read()
"""


def start_owner(directory: Path) -> "subprocess.Popen[str]":
    """Another process that owns a directory, until its standard input is closed."""
    command = [sys.executable, "-c", OWNER, str(directory)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "owned\n"
    return process


def test_a_directory_has_one_owner_whom_an_error_names(tmp_path: Path) -> None:
    with start_owner(tmp_path) as process:
        with pytest.raises(DirectoryTakenError) as raised:
            disk.Ownership(tmp_path)
        process.communicate()
    message = str(raised.value)
    assert f"process {process.pid} on {socket.gethostname()}, since 20" in message
    assert f"-c {tmp_path}`. Wait until it ends, stop it (on {socket.gethostname()}: kill {process.pid})" in message
    assert names(tmp_path) == []


def test_a_process_that_was_killed_owns_nothing(tmp_path: Path) -> None:
    with start_owner(tmp_path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert names(tmp_path) == [".lock"]
    with disk.Ownership(tmp_path):
        assert f'"pid": {os.getpid()}' in (tmp_path / ".lock").read_text()
    assert names(tmp_path) == []


def test_a_process_may_own_a_directory_twice_and_gives_it_up_at_last(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "runs")
    outer = disk.Ownership(tmp_path / "runs")
    with disk.Ownership(tmp_path / "link"):
        assert names(tmp_path / "runs") == [".lock"]
    assert names(tmp_path / "runs") == [".lock"]
    del outer
    gc.collect()
    assert not (tmp_path / "runs").exists(), "it was made for the lock, and nothing was put there"


def test_a_directory_that_vanishes_while_it_is_taken_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "_make_directory", lambda directory: None)
    with pytest.raises(FileWriteError, match="`.*/away` could not be written: No such file or directory"):
        disk.Ownership(tmp_path / "away")


def test_a_directory_that_was_made_again_is_owned_again(tmp_path: Path) -> None:
    first = disk.Ownership(tmp_path / "runs")
    shutil.rmtree(tmp_path / "runs")
    with disk.Ownership(tmp_path / "runs"):
        first.release()
        assert names(tmp_path / "runs") == [".lock"]
        (tmp_path / "runs" / "file").touch()
    assert names(tmp_path / "runs") == ["file"]


def test_a_directory_that_comes_back_is_not_the_one_that_was_made_in_its_place(tmp_path: Path) -> None:
    away, place = tmp_path / "away", tmp_path / "runs"
    away.mkdir()
    (away / "file").touch()
    first = disk.Ownership(place)
    disk.check_still_owned(place / "train")
    shutil.rmtree(place)
    disk.check_still_owned(place / "train")  # what is not there is told when it is written to
    with pytest.raises(FileWriteError, match="No such file or directory"):
        disk.write_whole(place / "train" / "file", b"")
    assert not place.exists(), "it would hide what is away"
    away.rename(place)
    text = "is not the directory any more in which this run has begun: .* Start the same command again"
    with pytest.raises(FileWriteError, match=text):
        disk.check_still_owned(place / "train")
    with pytest.raises(FileWriteError, match=text):
        disk.Ownership(place)
    first.release()
    with disk.Ownership(place):
        disk.check_still_owned(place)
    assert names(place) == ["file"]


def test_a_directory_that_is_away_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    away, place = tmp_path / "away", tmp_path / "runs"
    assert disk.list_directory(place) == []
    with disk.Ownership(place):
        (place / "file").touch()
        place.rename(away)
        with pytest.raises(FileWriteError, match="was there when this run began, and is away.*Bring it back"):
            disk.list_directory(place)
        away.rename(place)
        assert disk.list_directory(place) == [place / ".lock", place / "file"]
        shutil.rmtree(place)
        assert disk.list_directory(place) == [], "who has removed it knows that it is gone"


def test_a_lock_does_not_outlive_its_owner_in_a_process_that_was_forked_from_it(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from trellis.disk import Ownership\n"
        "ownership = Ownership(Path(sys.argv[1]))\n"
        "if os.fork(): os._exit(0)\n"
        "print('forked', flush=True); sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "forked\n"
        process.wait()
        disk.Ownership(tmp_path).release()
        process.communicate()


def test_a_lock_that_its_owner_removes_meanwhile_is_taken_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flock, calls = fcntl.flock, []

    def remove_first(descriptor: int, operation: int) -> None:
        calls.append(operation)
        if len(calls) == 1:
            (tmp_path / ".lock").unlink()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    with disk.Ownership(tmp_path):
        assert names(tmp_path) == [".lock"]
    assert len(calls) == 2


def test_a_file_system_without_locks_is_told_of_and_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with disk.Ownership(tmp_path), disk.Ownership(tmp_path):
        pass
    assert capsys.readouterr().err.count("is on a file system without locks (No locks available)") == 1


def test_what_is_damaged_is_set_aside_under_names_of_its_own(tmp_path: Path) -> None:
    for content in (b"one", b"two"):
        (tmp_path / "events.jsonl").write_bytes(content)
        disk.set_aside(tmp_path / "events.jsonl")
    assert (tmp_path / "events.jsonl.damaged").read_bytes() == b"one"
    assert (tmp_path / "events.jsonl.damaged-2").read_bytes() == b"two"
    (tmp_path / "events.out.tfevents.1").touch()
    assert "tfevents" not in disk.set_aside(tmp_path / "events.out.tfevents.1").name, "TensorBoard would read it"
