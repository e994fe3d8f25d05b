"""Artifacts on disk, a module beside them, and the executor between."""

import textwrap
from pathlib import Path
from typing import Any

from trellis.data import RecordWriter, encode_example
from trellis.executor import Examples, Executor, Model, ModelRun

SCHEMA = """
feature { name: "size" type: FLOAT shape { dim { size: 1 } } }
feature { name: "kind" type: INT shape { dim { size: 1 } } }
"""
WRITES_A_MODEL = """
import json, os, pickle

def run_fn(fn_args):
    os.makedirs(fn_args.serving_model_dir)
    with open(os.path.join(fn_args.serving_model_dir, "model.pkl"), "wb") as file:
        pickle.dump("trained", file)
"""


def write_examples(folder: Path, *, n: int = 5, splits: tuple[str, ...] = ("Split-train", "Split-eval")) -> Path:
    """Writes splits of gzip'd examples, `n` in each."""
    for split in splits:
        (folder / split).mkdir(parents=True)
        with RecordWriter(folder / split / "data-00000-of-00001.gz", compression="gzip") as writer:
            for index in range(n):
                writer.write(encode_example({"size": [index / 2], "kind": [index % 3]}))
    return folder


def write_module(text: str = WRITES_A_MODEL, *, name: str = "my_module.py") -> Path:
    """Writes a module to where the test is."""
    path = Path(name)
    path.write_text(textwrap.dedent(text))
    return path


def do(executor: Executor | None = None, *, inputs: Any = None, outputs: Any = None, **properties: Any) -> None:
    """Runs `my_module.py` on `data`, into `out`; arguments take the place of that, and None leaves it out."""
    if not Path("data").exists():
        write_examples(Path("data"))
    exec_properties = {"module_file": "my_module.py", "train_args": {"num_steps": 3}, "eval_args": "{}"} | properties
    (executor or Executor()).Do(
        _without_none({"examples": [Examples("data")]} | (inputs or {})),
        _without_none({"model": [Model("out/model")], "model_run": [ModelRun("out/run")]} | (outputs or {})),
        _without_none(exec_properties),
    )


def seen_fn_args(monkeypatch: Any, **arguments: Any) -> Any:
    """Runs a function that keeps its argument; returns that."""
    write_module("import pickle\nfrom pathlib import Path\n\ndef run_fn(fn_args):\n    seen.append(fn_args)\n" + _WRITE)
    calls: list[Any] = []
    monkeypatch.setattr("builtins.seen", calls, raising=False)
    do(**arguments)
    return calls[0]


_WRITE = """\
    Path(fn_args.serving_model_dir).mkdir(parents=True)
    Path(fn_args.serving_model_dir, "model.pkl").write_bytes(pickle.dumps("trained"))
"""


def files_below(folder: str | Path) -> list[str]:
    """The names of all files below a folder, hidden ones included."""
    return sorted(path.relative_to(folder).as_posix() for path in Path(folder).rglob("*") if path.is_file())


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}
