"""The words of the command, and what it says of one that there is not."""

import dataclasses
import errno
import gc
import os
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

import trellis as package
from tests.cli.command import REPOSITORY, environment, trellis, trellis_without_jax
from tests.screen import terminal
from trellis.cli.main import WORDS, main
from trellis.errors import DivergedError
from trellis.executor import preempted_by_sigterm
from trellis.runtime import print_line


def failed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Runs the command; returns what it says of input that is bad."""
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    return err


def test_the_installed_command_is_that_of_the_module() -> None:
    scripts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"trellis": "trellis.cli.main:command"}


def test_help_lists_every_word_and_needs_no_jax() -> None:
    done = trellis_without_jax("--help")
    assert done.returncode == 0, done.stderr
    listed = [line.strip() for line in done.stdout.splitlines() if line.startswith("  trellis ")]
    assert [name for name, line in zip(WORDS, listed, strict=True) if not line.startswith(f"trellis {name}  ")] == []


def test_no_word_at_all_is_bad_input_and_gets_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert "trellis train" in failed(capsys)


def test_help_on_half_a_word_lists_what_can_follow(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--help"]) == 0
    out = capsys.readouterr().out
    assert "trellis config show" in out
    assert "trellis experiments" not in out
    assert main(["data", "--help"]) == 0
    assert capsys.readouterr().out.startswith("Shows what a model is trained on; ")


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"trellis {package.__version__}\n"


def test_help_is_a_word_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help"]) == 0
    assert main(["help", "config"]) == 0
    with pytest.raises(SystemExit) as leaving:
        main(["help", "config", "diff"])
    assert leaving.value.code == 0
    out = capsys.readouterr().out
    assert out.startswith("Trains experiments, ")
    assert "\nShows what an experiment is made of.\n" in out
    assert "\nusage: trellis config diff " in out
    assert failed(capsys, "help", "trian").startswith("There is no `trellis trian`. Did you mean `trellis train`?")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("--learning_rate=0.1", "--set=trainer.optimizer_config.learning_rate.cosine.initial_learning_rate=0.1"),
        ("--lr 0.1", "--set=trainer.optimizer_config.learning_rate.cosine.initial_learning_rate=0.1"),
        ("--epochs=3", "--set=trainer.train_epochs=3"),
        ("--train-steps=5", "--set=trainer.train_steps=5"),
        ("--trainer.train_steps=5", "--set=trainer.train_steps=5"),
        ("--batch_size", "--set=task.train_data.global_batch_size=VALUE"),
        ("--seed=7", "--set=runtime.seed=7"),
        ("--hiden_size=7", "--set=task.hidden_size=7"),
    ],
)
def test_a_flag_that_is_a_field_suggests_the_setting(
    capsys: pytest.CaptureFixture[str], given: str, meant: str
) -> None:
    err = failed(capsys, "plan", "--experiment=digits/classifier", "--model_dir=a", *given.split())
    flag = given.replace("=", " ").split()[0]
    assert err == f"There is no flag {flag}. Did you mean {meant}?\nAll flags: trellis plan --help\n"


def test_a_flag_that_does_nothing_is_not_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    err = failed(capsys, "train", "--experiment=digits/classifier", "--model_dir=a", "--output_dir=b")
    assert err.startswith("There is no flag --output_dir.\n")


def test_colours_are_off_where_no_color_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("PYTHON_COLORS", raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    with terminal(n_columns=200) as screen:
        assert main(["config", "show", "--experiment=digits/classifer"]) == 2
    assert screen.colour_of("digits/classifier?") == "default"


@pytest.mark.parametrize("word", WORDS)
def test_every_word_has_help_that_needs_no_jax(word: str) -> None:
    done = trellis_without_jax(*word.split(), "--help")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: trellis {word} ")
    # What makes data, the executor, the launcher, and what looks at files that are there know no experiments.
    strangers = ("data v", "data p", "data f", "run", "launch", "cache", "completion", "report", "serve")
    assert ("--module NAME" in done.stdout) is not word.startswith(strangers)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("trian", "There is no `trellis trian`. Did you mean `trellis train`? There are: experiments, config show,"),
        ("confg show", "There is no `trellis confg`. Did you mean `trellis config show`? There are: experiments, "),
        ("config shwo", "There is no `trellis config shwo`. Did you mean `trellis config show`? There are: config "),
        ("confg", "There is no `trellis confg`. Did you mean `trellis config show`?"),
        ("config", "`trellis config` needs another word: trellis config show or trellis config diff."),
        ("xyz", "There is no `trellis xyz`. There are: experiments, "),
    ],
)
def test_a_mistyped_word_gets_the_nearest_one(capsys: pytest.CaptureFixture[str], given: str, said: str) -> None:
    assert failed(capsys, *given.split()).startswith(said)


def test_all_that_is_wrong_with_flags_is_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert failed(capsys, "train", "--experimnt", "a/b", "--config-file=c", "-mode=train", "--flavour=d", "e") == (
        "There is no flag --experimnt. Did you mean --experiment?\n"
        "There is no flag --config-file. Did you mean --config_file?\n"
        "There is no flag -mode. Did you mean --mode?\n"
        "There is no flag --flavour.\n"
        "'e' is one too many: a value is written as --flag=e.\n"
        "--model_dir is missing.\n"
        "All flags: trellis train --help\n"
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("train --exp=a --model_dir=b", "There is no flag --exp."),
        ("config show", "--experiment is missing."),
        ("config show --experiment", "Argument --experiment: expected one argument."),
        ("config show --experiment=a --experiment=b", "--experiment is given twice, the second time as 'b'"),
        ("config diff digits/classifier", "The following arguments are required: B."),
        ("config diff a b c", "'c' is one too many"),
        ("experiments --modul=x", "There is no flag --modul. Did you mean --module?"),
    ],
)
def test_flags_are_not_guessed(capsys: pytest.CaptureFixture[str], given: str, said: str) -> None:
    err = failed(capsys, *given.split())
    assert err.startswith(said)
    assert "All flags: trellis " in err


def test_bad_input_exits_with_2_and_without_a_traceback() -> None:
    done = trellis("config", "show", "--experiment=digits/classifer")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("There is no experiment 'digits/classifer'. Did you mean digits/classifier?")


def test_an_error_of_trellis_is_told_with_its_notes_and_causes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(modules: object) -> None:
        error = DivergedError("The loss is nan at step 3.", step=3)
        error.add_note("Lower the learning rate.")
        raise error from ZeroDivisionError("by zero")

    monkeypatch.setattr("trellis.cli.experiments.register_experiments", fail)
    assert failed(capsys, "experiments") == (
        "The loss is nan at step 3.\nLower the learning rate.\nCaused by ZeroDivisionError: by zero\n"
    )


def test_a_traceback_has_no_note_on_what_jax_has_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(modules: object) -> None:
        error = FloatingPointError("invalid value (nan) encountered in log")
        error.add_note("For simplicity, JAX has removed its internal frames from the traceback.")
        error.add_note("That was in step 2.")
        raise RuntimeError("no answer") from error

    monkeypatch.setattr("trellis.cli.experiments.register_experiments", fail)
    with pytest.raises(RuntimeError, match="no answer") as raised:
        main(["experiments"])
    assert raised.value.__cause__ is not None
    assert raised.value.__cause__.__notes__ == ["That was in step 2."]


def test_on_a_terminal_an_error_shows_the_value_and_what_was_probably_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "PYTHON_COLORS"):
        monkeypatch.delenv(name, raising=False)
    with terminal(n_columns=200) as screen:
        assert main(["config", "show", "--experiment=digits/classifer"]) == 2
    assert screen.lines[0].startswith("There is no experiment 'digits/classifer'. Did you mean digits/classifier?")
    assert screen.colour_of("'digits/classifer'") == "brown"  # so pyte calls yellow
    assert screen.colour_of("digits/classifier?") == "green"


def test_an_interrupt_exits_with_130_and_without_a_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(modules: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("trellis.cli.experiments.register_experiments", interrupt)
    assert main(["experiments"]) == 130
    assert capsys.readouterr().err == "Interrupted.\n"


COMPILES = """
import os, signal, threading
import jax, jax.numpy as jnp

# A shell has what it starts in the background ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)

def slow(x):
    for n in range(400):
        x = jnp.sort(x + n) @ x
    return x

lowered = jax.jit(slow).lower(jnp.ones((8, 8)))
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
lowered.compile()
"""


def test_an_interrupt_while_a_program_is_compiled_does_not_crash(tmp_path: Path) -> None:
    (tmp_path / "compiles.py").write_text(COMPILES)
    done = trellis("experiments", f"--module={tmp_path}/compiles.py")
    assert (done.returncode, done.stderr) == (130, "Interrupted.\n")


@pytest.mark.usefixtures("heeds_interrupts")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_that_comes_while_memory_is_collected_is_heard(
    number: int, code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def strike(phase: str, info: dict[str, int]) -> None:
        gc.callbacks.remove(strike)
        signal.raise_signal(number)

    def work(modules: object) -> None:
        with preempted_by_sigterm():
            gc.callbacks.append(strike)
            gc.collect()
            threading.Event().wait(30)

    monkeypatch.setattr("trellis.cli.experiments.register_experiments", work)
    try:
        ended_with = main(["experiments"])
    except SystemExit as end:
        ended_with = int(str(end.code))
    assert ended_with == code
    assert capsys.readouterr().err == ("Interrupted.\n" if number == signal.SIGINT else "")


def test_a_reader_who_has_seen_enough_is_no_error() -> None:
    command = [sys.executable, "-m", "trellis", "config", "show", "--experiment=digits/classifier"]
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    assert process.wait() == 141
    process.stderr.close()


def ending(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object], *, word: str = "run") -> int:
    """What the command exits with when one of its words does something."""
    function = dataclasses.replace(
        WORDS[word], function="experiments.act", flags_function="experiments.add_module_flag"
    )
    monkeypatch.setitem(WORDS, word, function)

    def run(flags: object) -> None:
        act()

    monkeypatch.setattr("trellis.cli.experiments.act", run, raising=False)
    return main([word])


def fail(error: Exception) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(errno.EROFS, "Read-only file system", "runs/x"), "`runs/x`: Read-only file system. Make room, or"),
        (OSError(errno.EFBIG, "File too large"), "File too large. Make room, or choose a place"),
        (
            MemoryError("Unable to allocate 8 GiB"),
            "There is not enough memory (MemoryError: Unable to allocate 8 GiB).",
        ),
        (
            RuntimeError("RESOURCE_EXHAUSTED: Out of memory\n…"),
            "There is not enough memory (RuntimeError: RESOURCE_EXH",
        ),
        (ImportError("libx.so: failed to map segment from shared object"), "There is not enough memory (ImportError: "),
    ],
)
def test_a_limit_of_the_machine_is_one_line(
    error: Exception, told: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ending(monkeypatch, fail(error)) == 2
    said = capsys.readouterr().err
    assert said.startswith(told)
    assert said.count("\n") == 1


def test_an_error_of_a_program_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileNotFoundError):
        ending(monkeypatch, fail(FileNotFoundError(errno.ENOENT, "No such file", "mine.txt")))


def test_a_terminal_that_goes_away_does_not_end_a_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(signal.SIGHUP)
    assert ending(monkeypatch, lambda: os.kill(os.getpid(), signal.SIGHUP)) == 0
    assert signal.getsignal(signal.SIGHUP) == before


def test_a_run_goes_on_without_its_reader_and_what_only_tells_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    for word, n_lines, code in (("run", 3, 0), ("plan", 1, 141)):
        lines: list[int] = []
        reading, writing = os.pipe()
        os.close(reading)
        with os.fdopen(writing, "w") as pipe, monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", pipe)
            act = lambda lines=lines: [lines.append(n) or print_line("x") for n in range(3)]  # noqa: E731
            assert ending(patch, act, word=word) == code
        assert len(lines) == n_lines


def test_a_command_runs_without_a_stdout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert ending(monkeypatch, lambda: print_line("x")) == 0
    sys.stdout.close()


def test_streams_that_were_closed_do_not_lend_their_numbers_to_files() -> None:
    program = (
        "import os; from trellis.cli.main import main; code = main(['experiments']); file = open('mine', 'w');"
        "os.write(1, b'of a library'); file.close(); os._exit(code if file and not os.path.getsize('mine') else 9)"
    )
    command = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-c", program]
    assert subprocess.run(command, env=environment(), check=False).returncode == 0


def test_no_word_imports_jax_or_an_extra_to_tell_of_itself() -> None:
    program = """
import sys
import threading
from trellis.cli.main import WORDS, main
HEAVY = {"jax", "numpy", "flax", "optax", "orbax", "pyarrow", "optuna", "starlette", "uvicorn", "mlflow", "wandb"}
for word in WORDS:
    code = main([*word.split(), "--help"])
    if code or HEAVY & sys.modules.keys():
        sys.exit(f"{word}: {code}, {HEAVY & sys.modules.keys()}")
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
