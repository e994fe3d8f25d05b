"""Whether a new model takes the place of the one that is served."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trellis.errors import ArgumentError, ServedModelError
from trellis.serving import Signature, bless, export_model, read_rules
from trellis.serving.blessing import BlessingRules, Rule
from trellis.serving.evaluation import SliceScore, check_features, evaluate_model

Scores = dict[str, SliceScore]


def scores(accuracy: float, *, of_slice: float | None = None, n: int = 10) -> Scores:
    values = {"all": accuracy} | ({} if of_slice is None else {"sex=f": of_slice})
    return {title: SliceScore(n, {"accuracy": value}) for title, value in values.items()}


@pytest.fixture
def judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Judges a model of which the scores are known, as those of each version are; a version without any is broken."""
    known: dict[Path, Scores] = {}

    def evaluated(directory: Path, **_: Any) -> Mapping[str, SliceScore]:
        if directory not in known:
            raise ServedModelError(f"`{directory}` is damaged.")
        return known[directory]

    monkeypatch.setattr("trellis.serving.blessing._evaluated", evaluated)

    def run(found: Scores, *, text: str = "accuracy", rules: BlessingRules | None = None) -> Any:
        candidate = tmp_path / "model"
        candidate.mkdir(exist_ok=True)
        (candidate / "manifest.json").write_text("{}")
        known[candidate] = found
        report_file = tmp_path / "blessing.json"
        blessing = bless(
            candidate,
            served_dir=tmp_path / "served",
            files=[],
            rules=rules or read_rules(text),
            report_file=report_file,
        )
        if blessing.version is not None:
            known[Path(blessing.version)] = found
        assert json.loads(report_file.read_text())["is_blessed"] is blessing.is_blessed
        return blessing

    return run


def test_a_first_model_is_held_to_the_bounds_alone(judge: Any, tmp_path: Path) -> None:
    assert judge(scores(0.7), text="accuracy>=0.8").reasons == ["accuracy on all: 0.7 is less than 0.8"]
    assert not (tmp_path / "served").exists() or not list((tmp_path / "served").glob("[0-9]*"))
    assert judge(scores(0.8), text="accuracy>=0.8").version == str(tmp_path / "served/1")


def test_equal_is_not_worse_and_worse_is_refused_on_any_slice(judge: Any, tmp_path: Path) -> None:
    judge(scores(0.8, of_slice=0.6))
    assert judge(scores(0.8, of_slice=0.6)).version == str(tmp_path / "served/2")
    refused = judge(scores(0.9, of_slice=0.5))
    assert refused.reasons == ["accuracy on sex=f: 0.5 is worse than the 0.6 that is served, by 0.1"]
    assert refused.served == str(tmp_path / "served/2")
    assert sorted(path.name for path in (tmp_path / "served").glob("[0-9]*")) == ["1", "2"]


def test_a_rule_may_allow_a_loss_and_leave_out_small_slices(judge: Any) -> None:
    judge(scores(0.8))
    assert judge(scores(0.75), rules=BlessingRules({"accuracy": Rule(may_lose=0.1)})).is_blessed
    assert judge(scores(0.1), rules=BlessingRules({"accuracy": Rule()}, min_examples=11)).is_blessed


def test_what_is_no_number_is_refused_and_replaced(judge: Any) -> None:
    assert judge(scores(math.nan)).reasons == ["accuracy on all: it is nan"]
    judge(scores(0.5))
    assert not judge(scores(math.nan)).is_blessed


def test_broken_versions_are_passed_over_and_told(judge: Any, tmp_path: Path) -> None:
    judge(scores(0.8))
    (tmp_path / "served/4").mkdir()
    (tmp_path / "served/3").mkdir()
    (tmp_path / "served/3/manifest.json").write_text("{}")
    worse = judge(scores(0.7))
    assert worse.served == str(tmp_path / "served/1") and not worse.is_blessed
    assert [note.partition(",")[0] for note in worse.notes] == [
        "Version 4 is no whole model",
        "Version 3 cannot be asked",
    ]
    assert judge(scores(0.8)).version == str(tmp_path / "served/5")


def test_rules_are_read_from_a_text_and_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text("metrics: {accuracy: {at_least: 0.8}, loss: }\nslices: [sex]\nlabel: kind\n")
    assert read_rules(str(file)) == BlessingRules(
        {"accuracy": Rule(at_least=0.8), "loss": Rule()}, slices=["sex"], label="kind"
    )
    assert read_rules("accuracy>=0.8, loss,slice=sex,label=kind") == read_rules(str(file))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("acuracy", "no metric 'acuracy'. Did you mean 'accuracy'"),
        ("accuracy>0.5", "'accuracy>0.5' is no rule"),
        ("accuracy>=high", "'high' where a number has to be"),
        ("accuracy,slces=sex", "no setting 'slces'. Did you mean 'slice'"),
        ("slice=sex", "names no metric"),
    ],
)
def test_wrong_rules_are_refused(text: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        read_rules(text)


def test_a_model_is_asked_examples_of_files_by_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    w = np.array([[-1, 1]], np.float32)
    signature = Signature(lambda v, x: {"logits": x["size"][:, None] @ v["w"]}, {"size": np.zeros(2, np.float32)})
    served = export_model(tmp_path / "served", variables={"w": w}, signatures={"f": signature}, platforms=["cpu"])
    file = tmp_path / "examples.csv"
    file.write_text("size,label,sex\n1,1,f\n-1,0,f\n2,0,m\n-2,0,m\n")
    found = evaluate_model(served, files=[str(file)], metrics=["accuracy", "loss", "f1"], slices=["sex"])
    assert {title: score.n_examples for title, score in found.items()} == {"all": 4, "sex=f": 2, "sex=m": 2}
    assert [found[title].metrics["accuracy"] for title in found] == [0.75, 1.0, 0.5]
    assert found["sex=m"].metrics["loss"] == pytest.approx((np.log1p(np.exp(4)) + np.log1p(np.exp(-4))) / 2)
    by_label = evaluate_model(served, files=[str(file)], metrics=["accuracy"], slices=["label", "label"])
    assert {title: score.metrics["accuracy"] for title, score in by_label.items()} == pytest.approx(
        {"all": 0.75, "label=0": 2 / 3, "label=1": 1.0}
    )
    with pytest.raises(ArgumentError, match="no feature 'sx'. Did you mean 'sex'"):
        check_features([str(file)], label="", slices=["sx"])
