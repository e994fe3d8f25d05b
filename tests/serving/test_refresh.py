"""Served models, made new: the same answers by a program of today, or what was there, untouched."""

import json
from datetime import date
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import trellis
from tests import tiny
from trellis.errors import RegistryError, ServedModelError
from trellis.experiments import refresh_export
from trellis.serving import Signature, export_model, load_model, read_manifest, read_to_refresh, refresh_model
from trellis.serving.lifetime import lifetime_notice
from trellis.serving.questions import differences, draw_questions, tolerance_of
from trellis.serving.tensor_file import read_tensors

MODEL = tiny.Classifier()
X = tiny.examples(48)[0]
SIGNATURES = {"answer": Signature(MODEL.apply, X)}


@pytest.fixture(scope="module")
def variables() -> Any:
    return MODEL.init(jax.random.key(0), X)


@pytest.fixture
def served(tmp_path: Path, variables: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "words.txt").write_text("a\nb\n")
    path = export_model(
        tmp_path / "served",
        variables=variables,
        signatures=SIGNATURES,
        files={"words.txt": tmp_path / "words.txt"},
        metadata={"step": 7},
        platforms=["cpu"],
    )
    (path / "of_somebody_else.txt").write_text("kept")
    return path


def make_old(served: Path, *, day: str = "2020-01-01", jaxlib: str = "0.1.0") -> None:
    manifest = json.loads((served / "manifest.json").read_text())
    manifest["written"] = day
    manifest["packages"]["jaxlib"] = jaxlib
    (served / "manifest.json").write_text(json.dumps(manifest))


def content_of(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_model_is_made_new_wherever_it_lies_and_answers_as_before(
    served: Path,
    variables: Any,
    can_exchange: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if not can_exchange:
        monkeypatch.setattr("trellis.serving.refresh.exchange", lambda one, other: False)
    make_old(served)
    moved = served.rename(served.with_name("moved"))
    load_model(moved)
    assert f"trellis export --refresh={moved}" in capsys.readouterr().err
    questions = read_tensors(moved / "questions.safetensors")
    done = refresh_model(read_to_refresh(moved), signatures=SIGNATURES)
    assert (done.before.written, done.after.written > "2026") == ("2020-01-01", True)
    model = load_model(moved)
    assert capsys.readouterr().err == ""
    assert model.manifest.packages["jaxlib"] == jax.lib.__version__
    assert model.manifest.metadata == {"step": 7}
    assert model.files["words.txt"].read_text() == "a\nb\n"
    assert (moved / "of_somebody_else.txt").read_text() == "kept"
    np.testing.assert_array_equal(model(X), jax.jit(MODEL.apply)(variables, X))
    for name, array in read_tensors(moved / "questions.safetensors").items():
        np.testing.assert_array_equal(array, questions[name])
    assert [path.name for path in moved.parent.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda v, x: MODEL.apply(v, x) * 1.01, r"answers are not what they were \(float32\): answer: outputs differs"),
        (lambda v, x: MODEL.apply(v, x)[:, :2], r"takes or returns other arrays now: outputs were outputs float32"),
        (lambda v, x: MODEL.apply(v, x) / 0, "not finite"),
    ],
)
def test_a_program_that_answers_otherwise_is_refused_and_the_old_one_stays(
    served: Path, function: Any, message: str
) -> None:
    before = content_of(served)
    with pytest.raises(ServedModelError, match=f"was not refreshed, and is left as it is: .*{message}"):
        refresh_model(read_to_refresh(served), signatures={"answer": Signature(function, X)})
    assert content_of(served) == before


def test_a_model_of_an_older_trellis_still_loads_and_says_why_it_cannot_be_made_new(
    served: Path, variables: Any
) -> None:
    manifest = json.loads((served / "manifest.json").read_text())
    for name in ("written", "random_keys"):
        del manifest[name]
    del manifest["checksums"]["questions.safetensors"]
    (served / "manifest.json").write_text(json.dumps(manifest))
    np.testing.assert_array_equal(load_model(served)(X), jax.jit(MODEL.apply)(variables, X))
    assert "Written on an unknown day" in repr(load_model(served))
    with pytest.raises(ServedModelError, match="kept no questions and answers .* Export it again from its run"):
        read_to_refresh(served)


def test_a_model_of_a_script_needs_its_functions(served: Path) -> None:
    with pytest.raises(ServedModelError, match=r"written by export_model.*serving\.refresh_model\("):
        refresh_export(served)


def test_a_model_of_an_experiment_of_ones_own_says_which_code_it_needs(tmp_path: Path, variables: Any) -> None:
    made_from = {"params.yaml": b"# Experiment: mine/only\ntask: {}\n", "inputs.json": b'{"module": "my_task"}'}
    served = export_model(
        tmp_path / "served", variables=variables, signatures=SIGNATURES, platforms=["cpu"], made_from=made_from
    )
    with pytest.raises(RegistryError, match="mine/only") as error:
        refresh_export(served)
    assert "It needs that code: --module=my_task" in "".join(error.value.__notes__)


@pytest.mark.parametrize(
    ("written", "jaxlib", "expected"),
    [
        ("2026-01-01", "0.9.0", ""),
        ("2026-03-01", "0.10.0", "promises to read it for 27 more days"),
        ("2025-06-01", "0.10.0", "no longer promises to read it"),
        ("", "0.10.0", ""),
    ],
)
def test_the_end_of_the_promise_is_told_to_those_it_concerns(
    served: Path, written: str, jaxlib: str, expected: str
) -> None:
    make_old(served, day=written, jaxlib="0.9.0")
    notice = lifetime_notice(read_manifest(served), place="there", today=date(2026, 8, 1), jaxlib=jaxlib)
    assert expected in notice and bool(expected) == bool(notice)


def test_questions_lie_within_the_example_and_are_none_of_it() -> None:
    rng = np.random.default_rng(0)
    example = {"ids": rng.integers(3, 90, (50, 6)), "x": rng.normal(size=(50, 6)), "is_new": np.zeros((50, 1), bool)}
    shapes = jax.eval_shape(lambda tree: tree, example)
    drawn = draw_questions(shapes, example, batch_size=8)
    for name in ("ids", "x"):
        assert example[name].min() <= drawn[name].min() and drawn[name].max() <= example[name].max()
        assert not any(np.array_equal(row, other) for row in drawn[name] for other in example[name])
    assert drawn["is_new"].dtype == bool


def test_tolerance_follows_the_coarsest_type(served: Path) -> None:
    assert tolerance_of(["float32", "int32"]) == ("float32", 1e-4)
    assert tolerance_of(["float32", "bfloat16"])[0] == "bfloat16"
    spec = read_manifest(served).signatures["answer"]
    stored = read_tensors(served / "questions.safetensors")
    close = stored["answer/outputs/outputs"] * (1 + 1e-3)
    found = {
        tolerance: list(differences("answer", spec, stored=stored, outputs=close, tolerance=tolerance))
        for tolerance in (1e-4, 5e-2)
    }
    assert [bool(found[tolerance]) for tolerance in (1e-4, 5e-2)] == [True, False]


def test_a_model_that_computes_in_bfloat16_is_compared_as_such(tmp_path: Path) -> None:
    def half(v: Any, x: Any) -> Any:
        return (x.astype(jnp.bfloat16) @ v["w"].astype(jnp.bfloat16)).astype(jnp.float32)

    signatures = {"half": Signature(half, X)}
    served = export_model(
        tmp_path / "half", variables={"w": jnp.ones((8, 3))}, signatures=signatures, platforms=["cpu"]
    )
    assert refresh_model(read_to_refresh(served), signatures=signatures).dtype == "bfloat16"
    assert trellis.load_model(served)(X).dtype == np.float32
