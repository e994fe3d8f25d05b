"""The examples in docstrings run: those with a prompt as doctests, the others as the code that they are."""

import ast
import dataclasses
import importlib
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import trellis
from tests import tiny
from tests.architecture.source import PACKAGE, Function, python_files
from tests.cli.command import environment
from tests.trainer import small
from trellis.tasks import DigitsConfig, export_task

# Where examples are whole programs on what `values` has. Elsewhere they are doctests, or they show only a part.
RUN = ("loops", "extensions", "optimizers", "runtime", "tasks", "trainer")
# What shows only a part of a program, each with the reason.
PARTS = {
    "Tally": "its blocks and what writes them are the caller's",
    "add_gradient_noise": "a line of a step of one's own",
    "Lora": "the weights that it starts from are the user's",
    "ProgressivePolicy": "the model that grows is the user's",
    "register_policy_cls": "a class without its methods",
    "register_task_cls": "a class without its methods",
    "ProgressiveTrainer": "its policy is the user's",
}


def module_name(file: Path) -> str:
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def examples(file: Path) -> Iterator[tuple[str, str]]:
    """Yields the examples of a file that have no prompt: of what, and the code."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ClassDef | Function):
            match = re.search(r"^Example:\n((?:    .*\n?|\n)+)", ast.get_docstring(node) or "", re.MULTILINE)
            code = textwrap.dedent(match[1]) if match else ""
            if code and ">>>" not in code and "…" not in code:
                # What a program prints comes after an empty line, at the margin.
                yield node.name, re.split(r"\n\n(?=Step |\{)", code)[0]


def values(tmp_path: Path) -> dict[str, Any]:
    """What the examples name without saying where it comes from."""
    model = tiny.Classifier()
    stream = tiny.stream(n_epochs=2, drop_remainder=True)
    loop = tiny.train_loop(n_steps=4, n_steps_per_checkpoint=2)
    params = small.params(5)
    eval_task = trellis.EvalTask(
        apply=model.apply, metrics={"accuracy": tiny.accuracy, "loss": tiny.cross_entropy}, data=stream
    )
    return {
        **{name: getattr(trellis, name) for name in trellis.__all__},
        "trellis": trellis,
        "jax": jax,
        "jnp": jnp,
        "np": np,
        "nn": nn,
        "optax": optax,
        "Classifier": tiny.Classifier,
        "DigitsConfig": type("OwnConfig", (DigitsConfig,), {}),
        "accuracy": tiny.accuracy,
        "checkpoint": tiny.train_loop(n_steps=1).next_step().copy(),
        "cross_entropy": tiny.cross_entropy,
        "dataclasses": dataclasses,
        "evaluate": trellis.EvalLoop(task=eval_task),
        "export_task": export_task,
        "images": tiny.examples()[0],
        "loop": loop,
        "model": model,
        "model_dir": tmp_path / "run",
        "params": params,
        "stream": stream,
        "task": eval_task,
        "trainer": trellis.Trainer(
            trellis.get_task(params.task), config=params.trainer, runtime=params.runtime, model_dir=tmp_path / "run"
        ),
    }


CODE = [
    pytest.param(file, code, id=name)
    for folder in RUN
    for file in python_files(PACKAGE / folder)
    for name, code in examples(file)
    if name not in PARTS
]
DOCTESTS = [file for file in python_files(PACKAGE) if re.search(r"^\s+>>> ", file.read_text(), re.MULTILINE)]


@pytest.mark.parametrize(("file", "code"), CODE)
def test_an_example_runs(file: Path, code: str, tmp_path: Path) -> None:
    namespace = values(tmp_path)
    if "TrainLoop(" in code:
        namespace["task"] = tiny.train_task()
    elif "export_task(" in code:
        namespace["task"] = trellis.get_task(namespace["params"].task)
        namespace["checkpoint"] = namespace["trainer"].initialize()
    program = compile(code, f"an example in {file.name}", "exec")
    exec(program, vars(importlib.import_module(module_name(file))) | namespace)  # noqa: S102


def test_the_doctests_pass() -> None:
    # In a process of their own: some register what no other test should find.
    program = (
        "import doctest, importlib, sys\n"
        "modules = map(importlib.import_module, sys.argv[1:])\n"
        "sys.exit(sum(doctest.testmod(module, optionflags=doctest.ELLIPSIS).failed for module in modules))"
    )
    command = [sys.executable, "-c", program, *map(module_name, DOCTESTS)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_there_are_examples_of_both_kinds() -> None:
    assert len(CODE) >= 15 and len(DOCTESTS) >= 2
