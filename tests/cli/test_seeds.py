import argparse
import json
from pathlib import Path

import pytest

from trellis.cli.seeds import read_seeds, train_seeds
from trellis.errors import ArgumentError


def test_each_seed_is_a_run_of_its_own_and_their_mean_is_written(tmp_path: Path) -> None:
    def train(flags: argparse.Namespace) -> None:
        directory = Path(flags.model_dir)
        directory.mkdir(parents=True)
        seed = int(flags.set[-1].removeprefix("runtime.seed="))
        metrics = {"accuracy": float(seed), "recall": "nan" if seed == 1 else 0.5}
        event = {"kind": "summary", "step": 10, "metrics": {"eval": metrics}}
        (directory / "events.jsonl").write_text(f"{json.dumps(event)}\n")

    flags = argparse.Namespace(seeds="1,3", mode="train_and_eval", model_dir=str(tmp_path), set=[], together=False)
    train_seeds(flags, train)
    content = json.loads((tmp_path / "seeds.json").read_text())
    assert content["metrics"]["eval/accuracy"] == {"mean": 2.0, "deviation": pytest.approx(2**0.5)}
    assert content["metrics"]["eval/recall"] == {"mean": "nan", "deviation": "nan"}


@pytest.mark.parametrize(
    ("text", "message"), [("0,x", "'x' is no seed"), ("1,1", "1 twice"), ("4", "two seeds"), ("", "no seed")]
)
def test_wrong_seeds_are_refused(text: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        read_seeds(text)
