"""What the README, the guides and the examples show passes mypy and pyright, as it would in a user's editor."""

import builtins
import json
import re
import shutil
import subprocess
import symtable
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.source import REPOSITORY, assert_none

# What snippets name without saying where it comes from. A name that is not here either is of any type.
GIVEN = """
import os
from collections.abc import Iterator
from dataclasses import dataclass

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import trellis
from trellis.data import read_columns
from trellis.executor import FnArgs, TensorFlowDatasetOptions


@dataclass
class StackingConfig(trellis.ProgressiveConfig):
    steps_per_stage: int = 200


class Encoder(nn.Module):
    n_layers: int


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def accuracy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return (logits.argmax(-1) == labels).mean()


def my_generator() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    yield images, labels


loss = cross_entropy
model: nn.Module = Encoder(2)
images, labels = np.zeros((10, 28, 28), np.float32), np.zeros(10, np.int32)
stream = train_stream = eval_stream = trellis.ExampleStream((images, labels), batch_size=5, n_epochs=1)
task = trellis.TrainTask(apply=model.apply, optimizer=optax.sgd(0.1), loss=cross_entropy, data=stream)
eval_task = trellis.EvalTask(apply=model.apply, metrics={"accuracy": accuracy}, data=stream)
loop = trellis.TrainLoop(init=model.init, task=task, n_steps=10)


def fn_args_of(args: FnArgs) -> FnArgs:
    return args


fn_args = fn_args_of(FnArgs())
"""

# mypy as it is without settings, but inside all functions: its settings are the project's own, so that it finds in its
# cache what it knows of the packages.
_MYPY_AS_USERS_HAVE_IT = (
    "# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-calls=False, "
    "disallow-untyped-decorators=False, disallow-subclassing-any=False, disallow-any-generics=False, "
    "warn-return-any=False, warn-unreachable=False, warn-unused-ignores=False, check-untyped-defs=True, "
    "ignore-missing-imports=True, implicit-reexport=True, disable-error-code=import-untyped\n"
)
_PYRIGHT_AS_USERS_HAVE_IT = {
    "typeCheckingMode": "standard",
    "reportPossiblyUnboundVariable": "warning",  # as pyright itself has it
    "reportMissingImports": "none",
    "reportMissingModuleSource": "none",
    "ignore": ["keras_module.py"],  # Keras has no types, and what pyright guesses of them is wrong
    "extraPaths": [str(REPOSITORY / "src")],
}


def python_blocks(page: str) -> Iterator[tuple[int, str]]:
    """Yields the Python code blocks of a page, each with the number of the line above it."""
    for match in re.finditer(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        yield page.count("\n", 0, match.start()) + 1, match[1]


def free_names(code: str) -> set[str]:
    """The names that code reads and does not define."""
    module = symtable.symtable(code, "snippet", "exec")
    defined = {symbol.get_name() for symbol in module.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    return set(_global_names(module)) - defined - vars(builtins).keys()


def _global_names(table: symtable.SymbolTable) -> Iterator[str]:
    is_module = table.get_type() == "module"
    yield from (symbol.get_name() for symbol in table.get_symbols() if is_module or symbol.is_global())
    for inner in table.get_children():
        yield from _global_names(inner)


def write_snippets(folder: Path, repository: Path) -> None:
    """Writes a program for each Python block of the README and the guides; its lines have the numbers of the page."""
    pages = [repository / "README.md", *sorted((repository / "docs" / "guides").glob("*.md"))]
    blocks = [(page, line, code) for page in pages for line, code in python_blocks(page.read_text())]
    given_names = symtable.symtable(GIVEN, "given", "exec").get_identifiers()
    others = sorted(set().union(*(free_names(code) for *_, code in blocks)) - set(given_names))
    unknown = "".join(f"{name}: Any\n" for name in others)
    (folder / "given.py").write_text(f"from typing import Any\n{GIVEN}\n{unknown}{_MYPY_AS_USERS_HAVE_IT}")
    for page, line, code in blocks:
        names = ", ".join(f"{name} as {name}" for name in sorted(free_names(code)))
        above = "\n" * (line - 1) + (f"from given import {names}\n" if names else "\n")
        (folder / f"{page.stem.replace('-', '_')}_{line}.py").write_text(f"{above}{code}{_MYPY_AS_USERS_HAVE_IT}")


def write_examples(folder: Path, repository: Path) -> None:
    """Copies the example programs."""
    for file in sorted((repository / "examples").rglob("*.py")):
        (folder / file.name).write_text(f"{file.read_text()}\n{_MYPY_AS_USERS_HAVE_IT}")


def faults_by_mypy(folder: Path) -> list[str]:
    # In the repository, whose cache knows JAX already. An installed Trellis may be another.
    command = [sys.executable, "-m", "mypy", "--no-error-summary", *map(str, sorted(folder.glob("*.py")))]
    done = subprocess.run(
        command, cwd=REPOSITORY, env={"MYPYPATH": f"src:{folder}"}, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return [re.sub(r"^[^:]*/", "", line) for line in done.stdout.splitlines() if ": error: " in line]


def faults_by_pyright(folder: Path) -> list[str]:
    (folder / "pyrightconfig.json").write_text(json.dumps(_PYRIGHT_AS_USERS_HAVE_IT))
    # This is pyright with a Node.js of its own.
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return [
        f"{Path(fault['file']).name}:{fault['range']['start']['line'] + 1}: {fault['message']}"
        for fault in json.loads(done.stdout)["generalDiagnostics"]
        if fault["severity"] == "error"
    ]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("programs")
    write_snippets(folder, REPOSITORY)
    write_examples(folder, REPOSITORY)
    yield folder
    shutil.rmtree(folder)


def test_what_is_shown_passes_mypy(programs: Path) -> None:
    assert_none(faults_by_mypy(programs))


def test_what_is_shown_passes_pyright(programs: Path) -> None:
    assert_none(faults_by_pyright(programs))


def test_a_snippet_is_found_with_its_line_and_what_it_leaves_open() -> None:
    page = "# Title\n\n```python\nfor x in loop:\n    print(x, lambda y: y + z)\n```\n\n```shell\nls\n```\n"
    assert list(python_blocks(page)) == [(3, "for x in loop:\n    print(x, lambda y: y + z)\n")]
    assert free_names("for x in loop:\n    print(x, lambda y: y + z)\n") == {"loop", "z"}


def test_a_wrong_type_is_found_by_both(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text("import trellis\n\ntrellis.ExampleStream((), batch_size='many')\n")
    assert [fault[:11] for fault in faults_by_mypy(tmp_path)] == ["wrong.py:3:"]
    assert [fault[:11] for fault in faults_by_pyright(tmp_path)] == ["wrong.py:3:"]
