"""A registered experiment as a step of a pipeline: what the pipeline says is what the config holds."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import trellis
from tests.executor.pipeline import write_examples
from tests.xla_flags import QUICK
from trellis.errors import ConfigError, TrellisError
from trellis.executor import Examples, Executor, HyperParameters, Model, ModelRun
from trellis.extensions import checkpoint_storage

DIGITS = {
    "experiment": "digits/classifier",
    "params_override": "task.hidden_size=8,trainer.steps_per_loop=10,trainer.validation_interval=10,"
    "trainer.checkpoint_interval=10,runtime.distribution_strategy=off",
    "set": ["trainer.optimizer_config.warmup.linear.warmup_steps=5"],
}


def run(custom_config: Any = None, *, more: Any = None, **inputs: Any) -> None:
    """Runs digits, for 20 steps, through the executor."""
    if not Path("data").exists():
        write_examples(Path("data"))
    Executor().Do(
        {"examples": [Examples("data")], **inputs},
        {"model": [Model("out/model")], "model_run": [ModelRun("out/run")]},
        {
            "run_fn": "trellis.experiments.run_fn",
            "train_args": {"num_steps": 20},
            "eval_args": {"num_steps": 2},
            "custom_config": DIGITS | (more or {}) if custom_config is None else custom_config,
        },
    )


def resolved() -> dict[str, Any]:
    """The config that the last run had."""
    params: dict[str, Any] = yaml.safe_load(Path("out/run/params.yaml").read_text())
    return params


def test_an_experiment_runs_as_a_step_with_what_the_pipeline_and_a_tuner_say() -> None:
    Path("tuned").mkdir()
    tuned = {"space": [], "values": {"task.dropout_rate": 0.25, "task.hidden_size": 12}}
    Path("tuned/best_hyperparameters.txt").write_text(json.dumps(tuned))
    run(hyperparameters=[HyperParameters("tuned")])
    params = resolved()
    assert params["task"]["train_data"]["input_path"] == ["data/Split-train/*"]
    assert params["task"]["validation_data"]["input_path"] == ["data/Split-eval/*"]
    assert (params["trainer"]["train_steps"], params["trainer"]["validation_steps"]) == (20, 2)
    assert (params["task"]["hidden_size"], params["task"]["dropout_rate"]) == (12, 0.25)
    assert "fn_args.hyperparameters['task.hidden_size']" in Path("out/run/provenance.yaml").read_text()
    assert Path("out/model/Format-Serving/params.yaml").is_file()

    # The model of one step is the base of the next.
    Path("out").rename("first")
    run(
        more={"params_override": DIGITS["params_override"] + ",task.dropout_rate=0.0"},
        base_model=[Model("first/model")],
        hyperparameters=[HyperParameters("tuned")],
    )
    base = "first/model/Format-Serving/checkpoint"
    assert resolved()["task"]["init_checkpoint"] == base
    kernels = [
        checkpoint_storage.read_arrays(Path(path), {name: checkpoint_storage.read_manifest(Path(path))["tree"][name]})[
            name
        ]
        for path in (base, "out/model/Format-Serving/checkpoint")
        for name in ["model_params/encoder/kernel"]
    ]
    assert np.abs(kernels[0] - kernels[1]).mean() < np.abs(kernels[0]).mean()


@pytest.mark.parametrize(
    ("custom_config", "said"),
    [
        ({}, "custom_config names no experiment. Give one, such as {'experiment': 'digits/classifier'}."),
        ({"experiment": "digits/clasifier"}, "digits/classifier"),
        (
            {"experimnt": "digits/classifier"},
            "custom_config has no 'experimnt'. Did you mean 'experiment'? It takes exp",
        ),
        (DIGITS | {"mode": "eval"}, "mode 'eval' trains nothing, so there would be no model to serve."),
        (DIGITS | {"mode": "trian"}, "There is no mode 'trian'. Did you mean train?"),
    ],
)
def test_what_is_wrong_with_custom_config_is_told(custom_config: Any, said: str) -> None:
    with pytest.raises(TrellisError) as caught:
        run(custom_config)
    assert said in str(caught.value)


def test_a_hyperparameter_that_is_no_path_gets_the_nearest_one() -> None:
    Path("tuned").mkdir()
    Path("tuned/best.json").write_text('{"task.hiden_size": 12}')
    with pytest.raises(ConfigError) as caught:
        run(hyperparameters=[HyperParameters("tuned")])
    assert "fn_args.hyperparameters['task.hiden_size']" in str(caught.value)
    assert "task.hidden_size" in str(caught.value)


def test_an_experiment_of_ones_own_is_found_by_its_module() -> None:
    Path("my_experiments.py").write_text("raise RuntimeError('was imported')\n")
    with pytest.raises(RuntimeError, match="was imported") as caught:
        run(more={"module": "my_experiments.py"})
    assert any("custom_config['module']" in note for note in caught.value.__notes__)


def of_workers(n: int, **more: Any) -> dict[str, Any]:
    """What has digits run by several workers, on devices of all of them."""
    override = DIGITS["params_override"].replace("=off", "=mirrored")  # type: ignore[attr-defined]
    return {"params_override": override, "trellis_run_args": {"workers": n, "timeout": 300}, **more}


def told() -> list[tuple[int, dict[str, Any]]]:
    """The metrics that a run has written, by step."""
    events = map(json.loads, Path("out/run/events.jsonl").read_text().splitlines())
    return [(event["step"], event["metrics"]) for event in events if event["kind"] == "summary"]


def test_several_workers_have_the_losses_of_one_and_write_its_files_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", QUICK)
    wide = [*DIGITS["set"], "task.hidden_size=64"]
    run(more=of_workers(1, set=wide))
    Path("out").rename("alone")
    alone = json.loads(Path("alone/run/best/info.json").read_text())
    arrays = parameters("alone")
    run(more=of_workers(2, set=[*wide, "runtime.mesh.fsdp=2"]))  # each has a half of the parameters
    np.testing.assert_allclose(parameters("out"), arrays, rtol=2e-5, atol=1e-6)
    assert json.loads(Path("out/run/best/info.json").read_text()) == pytest.approx(alone, rel=1e-5)
    assert [step for step, _ in told()] == [10, 20]
    assert {path.name for path in Path("out/run").glob("regular_*")} == {"regular_10", "regular_20"}
    model = trellis.load_model("out/model")
    assert model(np.zeros((3, 64), np.float32)).shape == (3, 10)


def parameters(folder: str) -> Any:
    file = Path(folder, "run/regular_20")
    arrays = checkpoint_storage.read_arrays(file, checkpoint_storage.peek_manifest(file)["tree"])
    return np.concatenate([np.ravel(arrays[name]) for name in sorted(arrays) if name.startswith("model_params/")])


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            {"params_override": DIGITS["params_override"]},
            "distribution_strategy=off uses devices of one worker",
        ),
        ({"set": [*DIGITS["set"], "runtime.num_gpus=1"]}, "runtime.num_gpus=1 uses devices of one worker, but there a"),
    ],
)
def test_what_several_workers_cannot_run_is_told(monkeypatch: pytest.MonkeyPatch, more: Any, said: str) -> None:
    monkeypatch.setenv("XLA_FLAGS", QUICK)
    with pytest.raises(TrellisError, match=said):
        run(more=of_workers(2, **more))
