"""Guides say what the code does, and those that are whole programs run."""

import ast
import os
import re
from pathlib import Path

import jax
import pytest

import trellis
from tests.architecture.source import PACKAGE, REPOSITORY, parsed_files
from tests.architecture.test_types_of_snippets import python_blocks
from trellis.experiments import resolve
from trellis.optimizers import build_optimizer, trained_part

# Before any test imports Keras: it reads its backend then.
os.environ["KERAS_BACKEND"] = "jax"
# Those whose blocks, one after the other, are a program.
PROGRAMS = (
    "port-a-model-garden-task",
    "write-a-train-step",
    "use-a-keras-model",
    "train-on-images",
    "train-on-tables",
    "work-in-a-notebook",
    "stop-early-and-recover",
    "freeze-average-and-transfer",
    "train-adapters",
    "track-a-run",
)


def emitted_events(package: Path) -> set[str]:
    """The kinds of events that code emits."""
    return {
        call.args[0].value
        for _, module in parsed_files(package)
        for call in ast.walk(module)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "emit"
        if isinstance(call.args[0], ast.Constant)
    }


def listed_events(guide: str) -> list[str]:
    """The first column of the table of events."""
    _, _, table = guide.partition("| kind | when |")
    return re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)


def test_the_guide_lists_every_event_once() -> None:
    listed = listed_events((REPOSITORY / "docs/guides/write-an-extension.md").read_text())
    assert sorted(listed) == sorted(emitted_events(PACKAGE))


def test_an_event_that_is_emitted_is_found(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text('session.emit("began", step=1)\nself.session.emit("ended", step=step, text="")\n')
    assert emitted_events(tmp_path) == {"began", "ended"}
    assert listed_events("| kind | when |\n|---|---|\n| `began` | then |\n| `ended` | now |\n") == ["began", "ended"]


# Keras's own way of making NumPy arrays of its variables, when it predicts or saves by itself.
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")
@pytest.mark.parametrize("guide", PROGRAMS)
def test_a_guide_that_is_a_program_runs(guide: str) -> None:
    page = REPOSITORY / f"docs/guides/{guide}.md"
    # A block's lines have the numbers of the page.
    blocks = [compile("\n" * line + code, page, "exec") for line, code in python_blocks(page.read_text())]
    namespace: dict[str, object] = {"__name__": "__main__"}
    with jax.numpy_rank_promotion("allow"):  # as users have it
        for block in blocks:
            exec(block, namespace)  # noqa: S102


def test_the_config_of_the_guide_on_parts_is_one_for_bert(tmp_path: Path) -> None:
    page = (REPOSITORY / "docs/guides/freeze-average-and-transfer.md").read_text()
    file = tmp_path / "parts.yaml"
    file.write_text("".join(re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)))
    settings = [
        "task.model.num_classes=2",
        "task.init_checkpoint=",
        "task.init_parts=[]",
        "trainer.optimizer_config.warmup.type=null",
    ]
    params = resolve("bert/sentence_prediction", config_file=[str(file)], settings=settings)
    model = trellis.get_task(params.task).build_model()
    inputs = {
        name: jax.ShapeDtypeStruct((1, 128), "int32") for name in ("input_word_ids", "input_mask", "input_type_ids")
    }
    weights = jax.eval_shape(model.init, jax.random.key(0), inputs)["params"]
    state = jax.eval_shape(build_optimizer(params.trainer.optimizer_config, n_steps=100).init, weights)
    counted = [
        sum(leaf.size for leaf in jax.tree.leaves(tree))
        for tree in (weights, trained_part(weights, optimizer_state=state))
    ]
    assert "BertClassifier: {:,} parameters, 419.9 MB, {:,} of them trained".format(*counted) in page
