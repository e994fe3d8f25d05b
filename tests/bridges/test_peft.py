"""Adapters go to PEFT and come from there; what PEFT computes with them is recorded (benchmarks/peft_goldens.py)."""

import json
import shutil
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import optax
import pytest
from flax.traverse_util import flatten_dict
from safetensors.numpy import load_file, save_file

from tests.architecture.source import REPOSITORY
from trellis.bridges import read_hugging_face, read_peft, write_peft
from trellis.errors import ArgumentError, CheckpointFileError, CheckpointMismatchError
from trellis.nlp.models import BertClassifier, EncoderConfig, build_encoder
from trellis.tasks import Lora, parameters_by_path, with_parameters

GOLDENS = REPOSITORY / "tests/golden/peft"
SETTINGS: dict[str, Any] = {"rank": 2, "alpha": 3.0}
TARGETS = {
    "bert": ["query", "value", "attention/output", "intermediate"],
    "albert": ["query", "attention/output", "intermediate"],
    "roberta": ["query", "attention/output"],
    "distilbert": ["query", "attention/output", "intermediate"],
    "modernbert": ["qkv", "attention/output"],
}
ALSO = {kind: ["sentence_prediction"] for kind in TARGETS} | {
    "albert": ["sentence_prediction", "encoder/pooler"],
}
FILE = "adapter_model.safetensors"


def start(kind: str) -> tuple[Lora, dict[str, Any], Any, Any]:
    """The recorded model with new adapters: these, the settings of its encoder, its variables, and a batch."""
    fields, weights = read_hugging_face(GOLDENS / kind / "model")
    config = EncoderConfig(fields)
    has_pooler = "pooler" in weights["encoder"]
    if has_pooler:
        weights["sentence_prediction"].pop("pooler_dense")
    model = BertClassifier(build_encoder(config), num_classes=3, use_encoder_pooler=has_pooler)
    lora = Lora(model, **SETTINGS, targets=TARGETS[kind], also=ALSO[kind])
    recorded = np.load(GOLDENS / kind / "logits.npz")
    names = {"input_word_ids": "input_ids", "input_mask": "attention_mask", "input_type_ids": "token_type_ids"}
    none = np.zeros_like(recorded["input_ids"])
    batch = {ours: recorded.get(theirs, none) for ours, theirs in names.items()}
    own = nn.meta.unbox(lora.init({"params": jax.random.key(0)}, batch))
    variables = lora.starting_from({"params": weights})(own)
    return lora, config.as_dict(), variables, {**batch, "logits": recorded["logits"], "plain": recorded["plain"]}


def read(kind: str, directory: Path | None = None, **options: Any) -> Any:
    lora, config, variables, batch = start(kind)
    shapes = parameters_by_path(variables["params"])
    folder = directory or GOLDENS / kind / "adapter"
    arrays = read_peft(folder, config=config, shapes=shapes, **SETTINGS | options)
    return lora, config, {**variables, "params": with_parameters(variables["params"], arrays)}, batch


@pytest.mark.parametrize("kind", [*TARGETS])
def test_adapters_of_peft_answer_as_they_do_there_and_go_back_as_they_came(kind: str, tmp_path: Path) -> None:
    lora, config, variables, batch = read(kind)
    merged = lora.merged(variables)
    for logits in (lora.apply(variables, batch), lora.model.apply(merged, batch)):
        np.testing.assert_allclose(logits, batch["logits"], rtol=1e-4, atol=1e-5)
    assert np.abs(batch["logits"] - batch["plain"]).max() > 0.1
    write_peft(
        tmp_path / "out",
        config=config,
        trained=variables["params"],
        heads=("sentence_prediction",),
        dropout=0.1,
        base="weights/base",
        **SETTINGS,
    )
    ours, theirs = (load_file(folder / FILE) for folder in (tmp_path / "out", GOLDENS / kind / "adapter"))
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        np.testing.assert_array_equal(array, theirs[name])
    settings, golden = (
        json.loads((folder / "adapter_config.json").read_text())
        for folder in (tmp_path / "out", GOLDENS / kind / "adapter")
    )
    same = ("peft_type", "task_type", "r", "lora_alpha", "lora_dropout", "bias", "use_dora", "fan_in_fan_out")
    assert {name: settings[name] for name in same} == {name: golden[name] for name in same}
    assert settings["base_model_name_or_path"] == "weights/base"
    ends = [f".{end}" for end in golden["target_modules"]]
    assert all(any(name.endswith(end) for end in ends) for name in settings["target_modules"])
    assert "classifier" in settings["modules_to_save"]


@pytest.mark.parametrize("kind", [*TARGETS])
def test_steps_from_adapters_of_peft_are_those_that_it_takes(kind: str) -> None:
    lora, _, variables, batch = read(kind)
    recorded = np.load(GOLDENS / kind / "steps.npz")
    optimizer = optax.adamw(1e-2, weight_decay=0.0)
    params = variables["params"]
    state = optimizer.init(params)

    @jax.jit
    def step(params: Any, state: Any) -> tuple[Any, Any, jax.Array]:
        def loss(params: Any) -> jax.Array:
            logits = lora.apply({**variables, "params": params}, batch)
            return optax.softmax_cross_entropy_with_integer_labels(logits, recorded["labels"]).mean()

        value, gradients = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    losses = []
    for _ in recorded["losses"]:
        params, state, value = step(params, state)
        losses.append(float(value))
    np.testing.assert_allclose(losses, recorded["losses"], rtol=1e-4)
    assert losses[-1] < 0.9 * losses[0]
    logits = lora.apply({**variables, "params": params}, batch)
    np.testing.assert_allclose(logits, recorded["logits"], rtol=1e-3, atol=1e-4)


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    """A copy of the recorded adapters, to be spoilt."""
    return Path(shutil.copytree(GOLDENS / "bert/adapter", tmp_path / "adapter"))


def change(adapter: Path, **settings: Any) -> None:
    file = adapter / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3', but only adapters with 'LORA' can be read"),
        ({"use_dora": True}, "use_dora is True"),
        ({"alora_invocation_tokens": [1]}, r"alora_invocation_tokens is \[1\], but only adapters with None"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights is 'pissa', but only adapters with True can be read"),
        ({"rank_pattern": {"query": 4}}, "rank_pattern is {'query': 4}"),
        ({"r": 4}, r"read_peft.rank is 2, theirs 4\. Write: --set=read_peft.rank=4"),
    ],
)
def test_settings_that_compute_something_else_are_refused(
    adapter: Path, settings: dict[str, Any], message: str
) -> None:
    change(adapter, **settings)
    with pytest.raises((ArgumentError, CheckpointMismatchError), match=message):
        read("bert", adapter)


def test_adapters_of_other_parts_are_listed(adapter: Path) -> None:
    arrays = load_file(adapter / FILE)
    name = next(name for name in arrays if "query.lora_A" in name)
    save_file(
        {**{key: value for key, value in arrays.items() if key != name}, "base_model.model.x": arrays[name]},
        adapter / FILE,
    )
    with pytest.raises(CheckpointMismatchError, match=r"not there:    encoder.*query.lora_A(.|\n)*not in a run: x"):
        read("bert", adapter)
    save_file({**arrays, name: arrays[name][:1]}, adapter / FILE)
    with pytest.raises(CheckpointMismatchError, match=r"is \(1, 16\), which does not fit encoder/layer_0"):
        read("bert", adapter)


def test_files_that_cannot_be_read_say_what_to_do(adapter: Path) -> None:
    (adapter / FILE).write_bytes(b"\0" * 9)
    with pytest.raises(CheckpointFileError, match="damaged or cut short"):
        read("bert", adapter)
    (adapter / FILE).rename(adapter / "adapter_model.bin")
    with pytest.raises(CheckpointFileError, match="pickled weights are not read. Load the adapters with peft"):
        read("bert", adapter)
    (adapter / "adapter_config.json").unlink()
    with pytest.raises(CheckpointFileError, match="does not exist. Give a directory of PEFT's"):
        read("bert", adapter)


def test_what_peft_cannot_have_is_not_written(tmp_path: Path) -> None:
    _, config, variables, _ = start("bert")
    options: dict[str, Any] = {"config": config, "heads": ("sentence_prediction",), "dropout": 0.0, **SETTINGS}
    part = flatten_dict(variables["params"], sep="/")
    trained = {"sentence_prediction": {"logits": {"bias": part["sentence_prediction/logits/bias"]}}}
    with pytest.raises(ArgumentError, match=r"classifier.bias is trained whole and classifier.weight is not"):
        write_peft(tmp_path / "a", trained=trained, **options)
    with pytest.raises(ArgumentError, match="own/kernel is trained, but Hugging Face's bert has nothing of that kind"):
        write_peft(tmp_path / "b", trained={"own": {"kernel": np.zeros((2, 2))}}, **options)
    assert not [*tmp_path.iterdir()]
