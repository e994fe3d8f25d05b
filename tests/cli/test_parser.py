"""Files of flags, and the other flags that commands of absl have."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.command import trellis_without_jax
from trellis.cli.main import main
from trellis.cli.parser import Parser


@pytest.fixture
def parser() -> Parser:
    parser = Parser("plan", "check a run")
    parser.add_flag("mode", "MODE", "how", default="train_and_eval")
    parser.add_flag("model_dir", "DIR", "where")
    parser.add_flag("steps", "N", "how many", type=int)
    parser.add_repeated_flag("config_file", "FILE", "what")
    return parser


def write(name: str, *lines: str) -> None:
    Path(name).write_text("".join(f"{line}\n" for line in lines))


def failed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert (out, "Traceback" in err) == ("", False)
    return err


def test_a_file_stands_for_its_flags_and_may_name_others(parser: Parser) -> None:
    write("base.flags", "# of all runs", "", "--mode=eval", "  // and", "--flagfile=lists/more.flags", "--steps=3  ")
    Path("lists").mkdir()
    write("lists/more.flags", "--config_file=b.yaml", "--config_file=with a space.yaml")
    flags = parser.read(["--config_file=a.yaml", "--flagfile=base.flags", "--config_file=c.yaml"])
    assert (flags.mode, flags.steps) == ("eval", 3)
    assert flags.config_file == ["a.yaml", "b.yaml", "with a space.yaml", "c.yaml"]
    assert parser.read(["--flagfile", "base.flags"]).mode == "eval"
    assert parser.read(["-flagfile=base.flags"]).steps == 3


def test_of_a_file_and_what_else_gives_a_flag_the_last_wins(parser: Parser) -> None:
    write("base.flags", "--mode=eval", "--flagfile=inner.flags", "--steps=3")
    write("inner.flags", "--steps=1", "--model_dir=inner")
    assert parser.read(["--flagfile=base.flags", "--mode=train"]).mode == "train"
    assert parser.read(["--mode=train", "--flagfile=base.flags"]).mode == "eval"
    flags = parser.read(["--model_dir", "first", "--flagfile=base.flags", "--mode", "train"])
    assert (flags.model_dir, flags.mode, flags.steps) == ("inner", "train", 3)


def test_all_that_is_wrong_in_a_file_is_told_with_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    write("bad.flags", "--model_dir=runs/a", "# this", "--mod=train", "--train_steps=3", "stray")
    assert failed(capsys, "plan", "--flagfile=bad.flags") == (
        "bad.flags:3: There is no flag --mod. Did you mean --mode?\n"
        "bad.flags:4: There is no flag --train_steps. Did you mean --set=trainer.train_steps=3?\n"
        "bad.flags:5: 'stray' is one too many: a value is written as --flag=stray.\n"
        "All flags: trellis plan --help\n"
    )


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["--pretrain_steps=many"], "x.flags:1: Argument --pretrain_steps: invalid int value: 'many'."),
        (["--mode=train", "--mode=eval"], "x.flags:2: --mode is given twice, the second time as 'eval'"),
        (["--mode train"], "x.flags:1: a line is one argument. Write:\n      --mode=train\n"),
        (["", "--mode = train"], "x.flags:2: a line is one argument. Write:\n      --mode=train\n"),
        (['--mode="train"'], "x.flags:1: quotes would be part of the value. Write:\n      --mode=train\n"),
        (["--flagfile=y.flags"], "x.flags:1: --flagfile: there is no file `y.flags`. Did you mean `x.flags`?"),
        (["--flagfile=x.flags"], "x.flags:1: --flagfile: `x.flags` is read already, by x.flags → x.flags."),
        (["--flagfile="], "x.flags:1: --flagfile is empty. Write --flagfile=FILE"),
        (["--flagfile=."], "x.flags:1: --flagfile: `.` cannot be read: Is a directory."),
    ],
)
def test_a_line_that_cannot_be_meant_is_told(lines: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    write("x.flags", *lines)
    assert failed(capsys, "plan", "--flagfile=x.flags").startswith(said)


def test_a_file_that_cannot_be_read_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    Path("picture.png").write_bytes(b"\x89PNG\xff\xfe")
    err = failed(capsys, "train", "--flagfile=picture.png")
    assert err == "--flagfile: `picture.png` is not UTF-8 text. Give a file of flags, one a line.\n"
    assert failed(capsys, "train", "--flagfile=none/x").startswith("--flagfile: there is no file `none/x`.")
    assert failed(capsys, "train", "--flagfile").startswith("--flagfile is empty.")
    said = "The word comes before its flags, as in: trellis train --flagfile=x."
    assert failed(capsys, "--flagfile=x", "train").startswith(said)


def test_a_file_of_flags_needs_no_jax() -> None:
    write("show.flags", "--experiment=digits/classifier", "--v=0", "--logtostderr")
    done = trellis_without_jax("config", "show", "--flagfile=show.flags")
    assert (done.returncode, "hidden_size: 64" in done.stdout) == (0, True), done.stderr
    assert done.stderr == "--logtostderr has no effect: logs, of which --v tells the least level, go to stderr.\n"


@pytest.fixture
def _levels() -> Iterator[None]:
    from absl import logging as absl_logging

    root = logging.getLogger()
    before = root.level, absl_logging.get_verbosity(), list(root.handlers)
    yield
    root.setLevel(before[0])
    absl_logging.set_verbosity(before[1])
    root.handlers[:] = before[2]


@pytest.mark.usefixtures("_levels")
@pytest.mark.parametrize(
    ("flag", "level"),
    [
        ("--v=1", logging.DEBUG),
        ("-v", logging.DEBUG),
        ("-v=0", logging.INFO),
        ("--verbosity=-1", logging.WARNING),
        ("--v=error", logging.ERROR),
        ("--v=3", logging.DEBUG - 2),
    ],
)
def test_verbosity_is_that_of_absl(flag: str, level: int) -> None:
    assert main(["experiments", flag]) == 0
    assert logging.getLogger().level == level
    assert logging.getLogger("absl").getEffectiveLevel() == level


def test_a_level_that_there_is_not_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    err = failed(capsys, "train", "--v=loud")
    assert err.startswith(
        "Argument -v/--v/--verbosity: 'loud' is no level of logs: give a number such as 1, or one of "
    )


def test_flags_of_absl_that_do_nothing_are_accepted_by_every_word_and_said_to(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["experiments", "--alsologtostderr", "--log_dir=logs", "--nologtostderr"]) == 0
    names = ("alsologtostderr", "log_dir", "nologtostderr")
    told = [f"--{name} has no effect: logs, of which --v tells the least level, go to stderr.\n" for name in names]
    assert capsys.readouterr().err == "".join(told)
