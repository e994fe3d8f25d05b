"""Nothing is lost by a run that is killed, fails or does what it should not."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cli.command import environment
from tests.executor.pipeline import do, files_below, write_examples, write_module
from trellis import disk
from trellis.errors import ModelRefusedError, RunFailedError
from trellis.executor import Examples, safekeeping
from trellis.executor.artifacts import Artifacts
from trellis.executor.safekeeping import new_model, unchanged_inputs

REPOSITORY = Path(__file__).parents[2]
FOLDER = Path("out/model")
MODEL = FOLDER / "Format-Serving"
INPUTS: Artifacts = {"examples": (Examples("data"),)}
TRAIN_FILE = Path("data/Split-train/data-00000-of-00001.gz")
FAILS = "def run_fn(fn_args):\n    raise ValueError('no luck')\n"
WRITES = """
from pathlib import Path

def run_fn(fn_args):
    for form in (fn_args.serving_model_dir, fn_args.eval_model_dir):
        Path(form).mkdir()
        Path(form, "model.pkl").write_text("{version}")
"""


class Killed:
    """A run that was begun in a process that is no more: nothing of it was tidied."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self._stacks: list[ExitStack] = []

    def begin(self, *, inputs: Artifacts | None = None) -> Path:
        """Begins a run; returns its directory."""
        stack = ExitStack()
        directory = stack.enter_context(new_model(FOLDER, refused_dir=Path("out/run/refused_model")))
        if inputs:
            stack.enter_context(unchanged_inputs(inputs, directory=directory))
        self._stacks.append(stack)
        return directory

    def kill(self) -> None:
        """From here on, all that was begun belongs to a process that has ended."""
        self._monkeypatch.setattr(disk, "_PROCESS", "0" * 8)

    def forget(self) -> None:
        """Does not close what was begun."""
        for stack in self._stacks:
            stack.pop_all()


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Killed]:
    """Gives runs to be killed."""
    run = Killed(monkeypatch)
    yield run
    run.forget()


def publish(version: str) -> None:
    """Runs a module that writes both forms of a model."""
    write_module(WRITES.format(version=version))
    do()


def versions() -> list[str]:
    """What the two forms of the model hold."""
    return [path.read_text() for path in disk.files_in(FOLDER)]


def write_new_model(directory: Path, version: str) -> None:
    """Writes both forms of a model."""
    for form in ("Format-Serving", "Format-TFMA"):
        (directory / form).mkdir()
        (directory / form / "model.pkl").write_text(version)


def fail() -> None:
    """Has a run fail."""
    write_module(FAILS)
    with pytest.raises(ValueError, match="no luck"):
        do()


def test_the_old_model_is_in_its_place_while_the_new_one_is_made() -> None:
    publish("old")
    write_module(
        WRITES.format(version="new")
        + "    Path('seen').write_text(Path('out/model/Format-Serving/model.pkl').read_text())"
    )
    do()
    assert Path("seen").read_text() == "old"
    assert versions() == ["new", "new"]


@pytest.mark.parametrize("has_exchange", [True, False])
def test_a_model_that_was_whole_when_its_run_was_killed_is_put_in_its_place_by_one_that_fails(
    killed: Killed, monkeypatch: pytest.MonkeyPatch, has_exchange: bool
) -> None:
    publish("old")
    directory = killed.begin()
    write_new_model(directory, "new")
    safekeeping._commit(directory)
    if has_exchange:
        # One of the two forms has been exchanged when the kill comes.
        assert disk.exchange(directory / "Format-Serving", MODEL)
        assert MODEL.joinpath("model.pkl").read_text() == "new"
    else:
        monkeypatch.setattr(safekeeping, "exchange", lambda one, other: False)
        MODEL.rename(directory / ".Format-Serving-before")
    killed.kill()
    fail()
    assert versions() == ["new", "new"]
    assert files_below("out") == ["model/Format-Serving/model.pkl", "model/Format-TFMA/model.pkl"]


def test_a_model_that_was_not_whole_when_its_run_was_killed_is_removed_by_the_next(killed: Killed) -> None:
    publish("old")
    write_new_model(killed.begin(), "new")
    killed.kill()
    fail()
    assert files_below("out") == ["model/Format-Serving/model.pkl", "model/Format-TFMA/model.pkl"]
    assert versions() == ["old", "old"]


def test_a_run_that_was_killed_after_its_model_was_in_its_place_does_not_undo_that_of_another(killed: Killed) -> None:
    publish("old")
    directory = killed.begin()
    write_new_model(directory, "new")
    safekeeping._commit(directory)
    for form in ("Format-Serving", "Format-TFMA"):
        assert disk.exchange(directory / form, FOLDER / form)
    publish("newer")
    killed.kill()
    fail()
    assert versions() == ["newer", "newer"]


def test_what_another_run_is_writing_is_left_alone(killed: Killed) -> None:
    directory = killed.begin()
    write_new_model(directory, "unfinished")
    publish("new")
    assert files_below(directory) == ["Format-Serving/model.pkl", "Format-TFMA/model.pkl"]


def test_a_form_that_the_new_model_does_not_have_goes_with_the_old_one() -> None:
    publish("old")
    write_module()
    do()
    assert files_below("out") == ["model/Format-Serving/model.pkl"]


def test_a_model_that_cannot_be_put_in_its_place_is_kept_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(one: Path, other: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    publish("old")
    with monkeypatch.context() as context:
        context.setattr(safekeeping, "exchange", refuse)
        with pytest.raises(RunFailedError, match="The new model is whole, and in .* put in its place, .*: Permission"):
            publish("new")
    assert MODEL.joinpath("model.pkl").read_text() == "old"
    monkeypatch.setattr(disk, "_PROCESS", "0" * 8)
    fail()
    assert versions() == ["new", "new"]


def test_what_a_run_writes_beside_its_model_is_published_with_it_and_links_still_lead_there() -> None:
    write_module(
        """
        import os
        from pathlib import Path

        def run_fn(fn_args):
            model = Path(fn_args.serving_model_dir)
            model.mkdir()
            Path("weights.pkl").write_text("weights")
            (model / "model.pkl").symlink_to(os.path.relpath("weights.pkl", model))
            (model / "same.pkl").symlink_to("model.pkl")
            (model.parent / "words.txt").write_text("beside")
        """
    )
    do()
    assert (MODEL / "model.pkl").read_text() == "weights"
    assert os.readlink(MODEL / "same.pkl") == "model.pkl"
    assert Path("out/model/words.txt").read_text() == "beside"


def test_inputs_that_a_killed_run_has_deleted_are_back_before_anything_is_checked(
    killed: Killed, capsys: pytest.CaptureFixture[str]
) -> None:
    write_examples(Path("data"))
    content = TRAIN_FILE.read_bytes()
    killed.begin(inputs=INPUTS)
    TRAIN_FILE.unlink()
    TRAIN_FILE.parent.rmdir()
    killed.kill()
    publish("new")
    assert TRAIN_FILE.read_bytes() == content
    text = capsys.readouterr().out
    assert text.startswith("A run that was killed has deleted `")
    assert text.endswith(f"{TRAIN_FILE}` of its inputs. They were put back.\n")
    assert files_below("out") == ["model/Format-Serving/model.pkl", "model/Format-TFMA/model.pkl"]


def test_inputs_that_were_made_anew_after_a_kill_stay_and_the_old_ones_are_kept_elsewhere(
    killed: Killed, capsys: pytest.CaptureFixture[str]
) -> None:
    write_examples(Path("data"))
    killed.begin(inputs=INPUTS)
    TRAIN_FILE.unlink()
    TRAIN_FILE.with_name("newer.gz").write_bytes(b"newer")
    killed.kill()
    publish("new")
    assert not TRAIN_FILE.exists()
    kept = Path("out/run/of_a_killed_run", TRAIN_FILE.absolute().relative_to("/"))
    assert kept.is_file()
    text = capsys.readouterr().out
    assert "newer.gz` of the inputs have changed since a run began that was killed. What was there before is" in text
    assert "kept in `out/run/of_a_killed_run`." in text


def test_an_input_that_a_run_replaces_is_put_back() -> None:
    write_examples(Path("data"))
    content = TRAIN_FILE.read_bytes()
    write_module(
        WRITES.format(version="new")
        + f"    Path('other').write_text('other')\n    Path('other').replace('{TRAIN_FILE}')\n"
    )
    with pytest.raises(
        ModelRefusedError, match=f"run_fn has changed `{TRAIN_FILE}` of its inputs. They were put back."
    ):
        do()
    assert TRAIN_FILE.read_bytes() == content


def test_an_input_that_a_run_changes_in_its_place_is_told_as_it_cannot_be_put_back() -> None:
    write_module(WRITES.format(version="new") + f"    Path('{TRAIN_FILE}').write_text('other')\n")
    with pytest.raises(ModelRefusedError, match="has changed .* of its inputs. 0 of them could be put back."):
        do()


@pytest.mark.parametrize("is_whole", [True, False])
def test_what_an_older_version_has_set_aside_is_put_back_or_kept(
    is_whole: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    publish("old")
    aside = FOLDER / ".before-this-run"
    aside.mkdir()
    MODEL.rename(aside / "Format-Serving")
    MODEL.mkdir()
    (MODEL / ("model.pkl" if is_whole else "half.txt")).write_text("new")
    fail()
    assert (MODEL / "model.pkl").read_text() == ("new" if is_whole else "old")
    kept = Path("out/run/of_a_killed_run/model_before")
    assert kept.is_dir() == is_whole
    assert (f"is kept in `{kept}`." in capsys.readouterr().out) == is_whole
    assert not aside.exists()


def test_kills_at_calls_of_the_file_system_lose_nothing() -> None:
    script = REPOSITORY / "benchmarks/chaos/executor_kills.py"
    command = [sys.executable, str(script), "--calls=6", "--commands=1"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| all | 7 | 0 |" in done.stdout


def test_what_a_killed_run_was_about_to_remove_beside_its_model_is_removed_by_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as other:
        other.setattr(disk, "_PROCESS", "00000000")  # of the same number, and yet another process
        left = disk.hidden_path(Path("out/run"), ending="removing")
    (left / "model").mkdir(parents=True)
    safekeeping.recover(FOLDER, keep_dir=Path("out/run/of_a_killed_run"))
    assert not left.exists()
