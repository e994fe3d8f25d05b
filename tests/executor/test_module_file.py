"""Where a user's function comes from, and that it is the one that is written there now."""

import pickle
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.executor.pipeline import WRITES_A_MODEL, do, write_module
from trellis.errors import ArgumentError
from trellis.executor import Executor

MODEL = Path("out/model/Format-Serving")


def model() -> Any:
    """What a module has written."""
    return pickle.loads((MODEL / "model.pkl").read_bytes())


def written_by(text: str) -> str:
    """A module whose model is what a text says."""
    return WRITES_A_MODEL.replace('"trained"', text)


def test_an_edited_module_and_its_edited_siblings_are_picked_up() -> None:
    for text in ("one", "two"):
        Path("settings.py").write_text(f"TEXT = {text!r}\n")
        write_module(f"import settings\n{written_by('settings.TEXT')}")
        do()
        assert model() == text


def test_siblings_can_be_imported_while_the_function_runs_and_not_afterwards() -> None:
    Path("late.py").write_text("TEXT = 'late'\n")
    path = list(sys.path)
    write_module(written_by("__import__('late').TEXT"))
    do()
    assert model() == "late"
    assert sys.path == path


def test_a_module_file_may_have_any_name() -> None:
    for name in ("my_fn.ext", "two.dots.py", "json.py"):
        write_module(name=name)
        do(module_file=name)
        assert MODEL.is_dir()


def test_what_a_module_pickles_is_found_again_under_its_own_name() -> None:
    text = "class Estimator: ...\n" + written_by("Estimator()")
    write_module(text, name="estimators.py")
    do(module_file="estimators.py")
    assert b"estimators" in (MODEL / "model.pkl").read_bytes()
    assert type(model()).__module__ == "estimators"


def test_a_dotted_module_is_found_where_the_command_is_called_and_read_again() -> None:
    Path("my_package").mkdir()
    for text in ("first", "second"):
        write_module(written_by(repr(text)), name="my_package/training.py")
        do(module_file=None, module_path="my_package.training")
        assert model() == text


def test_a_module_in_a_wheel_is_run_with_what_is_in_there_and_nothing_of_an_older_one() -> None:
    for version in ("first", "second"):
        with zipfile.ZipFile(f"code-{version}.whl", "w") as wheel:
            wheel.writestr("packed_module.py", written_by("__import__('packed.sibling').sibling.TEXT"))
            wheel.writestr("packed/__init__.py", "")
            wheel.writestr("packed/sibling.py", f"TEXT = {version!r}\n")
        do(module_file=None, module_path=f"packed_module@code-{version}.whl")
        assert model() == version
    assert not any("trellis-module" in path for path in sys.path)
    assert "packed.sibling" not in sys.modules


def test_a_dotted_function_is_run() -> None:
    write_module(name="dotted_module.py")
    do(module_file=None, run_fn="dotted_module.run_fn")
    assert MODEL.is_dir()


def test_a_function_of_a_module_is_run_by_its_name() -> None:
    text = written_by("'by its name'").replace("def run_fn", "def train_all")
    write_module(f"def run_fn(fn_args): raise KeyError('not this one')\n{text}", name="named_module.py")
    for source in ({"module_file": "named_module.py"}, {"module_file": None, "module_path": "named_module"}):
        do(**source, run_fn="train_all")
        assert model() == "by its name"


def test_a_name_that_a_module_has_not_is_told_with_the_nearest() -> None:
    write_module("LIMIT = 3\ndef train_all(fn_args): ...\ndef other(fn_args): ...\n")
    message = "run_fn: `my_module.py` has no 'train_al'. Did you mean 'train_all'?"
    with pytest.raises(ArgumentError) as caught:
        do(run_fn="train_al")
    assert message in str(caught.value)
    with pytest.raises(ArgumentError, match="has no 'fit'. Its functions are train_all, other."):
        do(run_fn="fit")
    with pytest.raises(ArgumentError, match="LIMIT of `my_module.py` is 3, not a function."):
        do(run_fn="LIMIT")


def test_a_function_itself_is_refused_because_another_process_could_not_find_it() -> None:
    for executor in (Executor(), Executor(is_apart=True)):
        with pytest.raises(ArgumentError, match="run_fn is a function, written_by, but it takes text. Give its name: "):
            do(executor, run_fn=written_by)


def test_a_module_that_imports_absl_alone_has_its_logging() -> None:
    write_module(f"import absl\n{written_by('str(absl.logging.INFO)')}")
    do()
    assert model() == "0"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "def run_fn(fn_args:\n",
            "`my_module.py` cannot be imported: SyntaxError: '(' was never closed (my_module.py, l",
        ),
        ("import no_such_package\n", "cannot be imported: line 1 of "),
        ("x = 1\nraise OSError('disk')\n", "my_module.py: OSError: disk"),
        ("import sys\nsys.exit(3)\n", "my_module.py: SystemExit: 3"),
        ("run_fn = 3\n", "run_fn of `my_module.py` is 3, not a function. It is called as run_fn(fn_args)."),
        ("def run_fn(): ...\n", "is called as run_fn(fn_args), which it does not take: too many positional arguments."),
        ("def run_fn(a, b): ...\n", "which it does not take: missing a required argument: 'b'."),
        ("def train(fn_args): ...\n", "`my_module.py` has no run_fn. Add one: def run_fn(fn_args): "),
    ],
)
def test_a_module_that_cannot_be_run_is_told_before_the_run(text: str, message: str) -> None:
    write_module(text)
    with pytest.raises(ArgumentError) as caught:
        do()
    assert message in str(caught.value)


def test_the_error_in_a_module_is_the_cause_of_what_is_raised() -> None:
    write_module("{}['learning_rate']\n")
    with pytest.raises(ArgumentError) as caught:
        do()
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_wheel_that_is_none_is_named() -> None:
    Path("broken.whl").write_text("no zip")
    with pytest.raises(ArgumentError, match="module_path: `broken.whl` is no wheel. Give NAME@PATH"):
        do(module_file=None, module_path="m@broken.whl")
    with pytest.raises(ArgumentError, match="module_path: `gone.whl` does not exist"):
        do(module_file=None, module_path="m@gone.whl")


def test_a_function_may_take_more_than_it_is_given() -> None:
    write_module(WRITES_A_MODEL.replace("(fn_args)", "(fn_args, verbose=False, **more)"))
    do()
    assert MODEL.is_dir()
