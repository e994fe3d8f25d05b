"""Hugging Face's directories: what was recorded of their models is what ours compute, and files come back as they were.

`benchmarks/hugging_face_goldens.py` recorded `tests/golden/hugging_face`.
"""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from safetensors.numpy import load_file, save_file

from trellis.bridges import (
    hugging_face,
    hugging_face_names,
    read_hugging_face,
    read_hugging_face_config,
    read_hugging_face_settings,
    write_hugging_face,
)
from trellis.errors import ArgumentError, CheckpointFileError, CheckpointMismatchError
from trellis.nlp.models import (
    BertClassifier,
    BertPretrainer,
    EncoderConfig,
    PretrainerConfig,
    TalkingHeadsAttention,
    build_encoder,
)
from trellis.optimizers import OptimizationConfig, build_optimizer

GOLDENS = Path(__file__).parents[1] / "golden" / "hugging_face"
KINDS = ("bert", "albert", "mobilebert")
N_STEPS, BATCH_SIZE = 50, 4


def golden(kind: str, part: str) -> dict[str, np.ndarray]:
    arrays = load_file(GOLDENS / kind / "golden.safetensors")
    return {name.removeprefix(f"{part}/"): array for name, array in arrays.items() if name.startswith(part)}


def pretrainer(fields: dict[str, Any]) -> BertPretrainer:
    encoder = EncoderConfig(fields)
    head = {"name": "next_sentence", "inner_dim": 16}
    config = PretrainerConfig(encoder=encoder, cls_heads=[head], mlm_activation=encoder.get().hidden_activation)
    return BertPretrainer(config, build_encoder(encoder))


def loss_and_outputs(model: BertPretrainer, params: Any, batch: Any) -> tuple[jax.Array, Any]:
    outputs = model.apply({"params": params}, batch)
    masked = optax.softmax_cross_entropy_with_integer_labels(outputs["mlm_logits"], batch["masked_lm_ids"])
    order = optax.softmax_cross_entropy_with_integer_labels(outputs["next_sentence"], batch["next_sentence_labels"])
    return jnp.mean(masked) + jnp.mean(order), outputs


def copied(kind: str, to: Path) -> Path:
    shutil.copytree(GOLDENS / kind, to / kind)
    return to / kind


def change_config(directory: Path, **changes: Any) -> None:
    file = directory / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def change_weights(directory: Path, change: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]) -> None:
    file = directory / "model.safetensors"
    arrays = change(load_file(file))
    file.unlink()
    save_file(arrays, file)


def assert_trees_equal(first: Any, second: Any, *, tolerance: float = 0.0) -> None:
    def check(path: Any, a: Any, b: Any) -> None:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance, err_msg=name)

    jax.tree_util.tree_map_with_path(check, first, second)


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_and_gradients_equal_those_of_hugging_face(kind: str, tmp_path: Path) -> None:
    fields, params = read_hugging_face(GOLDENS / kind)
    model = pretrainer(fields)
    batch = {name: jnp.asarray(array[:BATCH_SIZE]) for name, array in golden(kind, "batches").items()}

    @jax.jit
    def run(params: Any) -> Any:
        encoded = model.encoder.apply({"params": params["encoder"]}, batch)
        everywhere = {name: array for name, array in batch.items() if name != "masked_lm_positions"}
        everywhere = model.apply({"params": params}, everywhere)
        function = jax.value_and_grad(lambda params: loss_and_outputs(model, params, batch), has_aux=True)
        return encoded, everywhere, function(params)

    encoded, everywhere, ((loss, outputs), gradients) = run(params)
    expected = golden(kind, "outputs")
    # Padding has no meaning, and ours may differ there.
    real = np.asarray(batch["input_mask"])[..., None]
    for name in ("sequence_output", "mlm_logits"):
        np.testing.assert_allclose(everywhere[name] * real, expected[name] * real, rtol=1e-4, atol=1e-4, err_msg=name)
    np.testing.assert_allclose(encoded["pooled_output"], expected["pooled_output"], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(outputs["next_sentence"], expected["next_sentence"], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(loss, expected["loss"], rtol=1e-5)

    # Gradients have the names and shapes of weights, so they are read as weights.
    directory = copied(kind, tmp_path)
    change_weights(directory, lambda _: golden(kind, "gradients"))
    _, their_gradients = read_hugging_face(directory)
    del their_gradients["encoder"]["pooler"]  # ours has its pooler in the head
    assert_trees_equal(gradients["encoder"].pop("pooler"), jax.tree.map(jnp.zeros_like, params["encoder"]["pooler"]))
    assert_trees_equal(gradients, their_gradients, tolerance=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_fifty_steps_of_adamw_follow_the_losses_of_torch(kind: str) -> None:
    fields, params = read_hugging_face(GOLDENS / kind)
    model = pretrainer(fields)
    adamw = {
        # Ours, as published, is added before the bias correction; torch's after it. At the first step these are equal.
        "epsilon": 1e-7 * math.sqrt(1 - 0.999),
        "weight_decay_rate": 0.01,
        "exclude_from_weight_decay": ["LayerNorm", "layer_norm", "bias"],
    }
    rate = {"type": "constant", "constant": {"learning_rate": 2e-3}}
    config = OptimizationConfig({"optimizer": {"type": "adamw", "adamw": adamw}, "learning_rate": rate})
    optimizer = build_optimizer(config, n_steps=N_STEPS)
    data = {
        name: jnp.asarray(array).reshape(-1, BATCH_SIZE, *array.shape[1:])
        for name, array in golden(kind, "batches").items()
    }

    def step(state: Any, index: jax.Array) -> Any:
        params, optimizer_state = state
        batch = jax.tree.map(lambda array: array[index % len(data["input_mask"])], data)
        function = jax.value_and_grad(lambda params: loss_and_outputs(model, params, batch)[0])
        loss, gradients = function(params)
        updates, optimizer_state = optimizer.update(gradients, optimizer_state, params)
        return (optax.apply_updates(params, updates), optimizer_state), loss

    start = jax.tree.map(jnp.asarray, params)
    _, losses = jax.jit(lambda state: jax.lax.scan(step, state, jnp.arange(N_STEPS)))((start, optimizer.init(start)))
    expected = golden(kind, "losses")["losses"]
    assert expected[-1] < 0.9 * expected[0], "the recorded run learned nothing"
    np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_is_what_hugging_face_had_written(kind: str, tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("[PAD]\n")
    fields, params = read_hugging_face(GOLDENS / kind)
    config = EncoderConfig(fields).as_dict()
    write_hugging_face(
        tmp_path / "out", config=config, params=params, vocab_files={"vocab.txt": tmp_path / "vocab.txt"}
    )
    written, theirs = (load_file(folder / "model.safetensors") for folder in (tmp_path / "out", GOLDENS / kind))
    assert_trees_equal(written, theirs)
    settings, their_settings = (
        json.loads((folder / "config.json").read_text()) for folder in (tmp_path / "out", GOLDENS / kind)
    )
    assert settings == {name: their_settings[name] for name in settings}
    assert (tmp_path / "out" / "vocab.txt").read_text() == "[PAD]\n"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["out", "vocab.txt"]


@pytest.mark.parametrize("kind", KINDS)
def test_old_and_bare_names_of_weights_are_read(kind: str, tmp_path: Path) -> None:
    directory = copied(kind, tmp_path)

    def age(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        old = {}
        for name, array in arrays.items():
            bare = name.removeprefix(f"{kind}.")
            if "LayerNorm." in bare:
                bare = bare.replace(".weight", ".gamma").replace(".bias", ".beta")
            old[bare] = array
        return old | {"embeddings.position_ids": np.arange(16)[None]}

    change_weights(directory, age)
    assert_trees_equal(read_hugging_face(directory)[1], read_hugging_face(GOLDENS / kind)[1])


def test_an_encoder_alone_is_read_and_the_tied_matrix_may_be_there_too(tmp_path: Path) -> None:
    directory = copied("bert", tmp_path)
    kept = ("bert.embeddings.", "bert.encoder.")
    change_weights(directory, lambda arrays: {name: array for name, array in arrays.items() if name.startswith(kept)})
    assert set(read_hugging_face(directory)[1]) == {"encoder"}
    again = copied("bert", tmp_path / "again")
    table = "bert.embeddings.word_embeddings.weight"
    change_weights(again, lambda arrays: arrays | {"cls.predictions.decoder.weight": arrays[table]})
    assert_trees_equal(read_hugging_face(again)[1], read_hugging_face(GOLDENS / "bert")[1])
    change_weights(again, lambda arrays: arrays | {"cls.predictions.decoder.weight": arrays[table] + 1})
    with pytest.raises(CheckpointMismatchError, match="shares the embeddings"):
        read_hugging_face(again)


def test_half_precision_weights_and_shards_are_read(tmp_path: Path) -> None:
    directory = copied("albert", tmp_path)
    arrays = {name: array.astype(np.float16) for name, array in load_file(directory / "model.safetensors").items()}
    (directory / "model.safetensors").unlink()
    for index, part in enumerate((list(arrays)[::2], list(arrays)[1::2]), start=1):
        save_file({name: arrays[name] for name in part}, directory / f"model-0000{index}-of-00002.safetensors")
    params = read_hugging_face(directory)[1]
    assert_trees_equal(params, read_hugging_face(GOLDENS / "albert")[1], tolerance=1e-2)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {np.dtype("float32")}


def test_shards_that_an_index_lists_are_all_needed_and_others_are_left_alone(tmp_path: Path) -> None:
    directory = copied("albert", tmp_path)
    shard = "model-00001-of-00001.safetensors"
    (directory / "model.safetensors").rename(directory / shard)
    save_file({"old": np.zeros(1)}, directory / "model-00001-of-00002.safetensors")
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": dict.fromkeys(load_file(directory / shard), shard)}))
    assert_trees_equal(read_hugging_face(directory)[1], read_hugging_face(GOLDENS / "albert")[1])
    index.write_text(json.dumps({"weight_map": {"a": shard, "b": "model-00002-of-00002.safetensors"}}))
    with pytest.raises(CheckpointFileError, match=r"has no model-00002-of-00002.*, although .* lists 2 files"):
        read_hugging_face(directory)
    index.write_text('{"weight_map": 3}')
    with pytest.raises(CheckpointFileError, match="does not list files"):
        read_hugging_face(directory)


def test_a_classifier_is_written_with_its_own_pooler_and_read_back(tmp_path: Path) -> None:
    fields, params = read_hugging_face(GOLDENS / "bert")
    head = {
        "pooler_dense": jax.tree.map(lambda leaf: leaf + 1, params["encoder"]["pooler"]),
        "logits": {"kernel": np.ones((16, 3), np.float32), "bias": np.arange(3, dtype=np.float32)},
    }
    config = EncoderConfig(fields)
    classifier = {"encoder": params["encoder"], "sentence_prediction": head}
    write_hugging_face(tmp_path / "out", config=config.as_dict(), params=classifier)
    settings = json.loads((tmp_path / "out" / "config.json").read_text())
    assert settings["architectures"] == ["BertForSequenceClassification"]
    assert settings["id2label"] == {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}
    again = read_hugging_face(tmp_path / "out")[1]
    assert_trees_equal(again["sentence_prediction"], head)
    model = BertClassifier(build_encoder(config), num_classes=3)
    batch = {name: array[:2] for name, array in golden("bert", "batches").items()}
    shapes = nn.meta.unbox(jax.eval_shape(model.init, jax.random.key(0), batch))
    assert jax.tree.structure(shapes["params"]) == jax.tree.structure(again)


def test_settings_are_read_with_the_defaults_of_hugging_face(tmp_path: Path) -> None:
    sizes = {"vocab_size": 9, "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1}
    for kind, activation in (("bert", "gelu_exact"), ("albert", "gelu"), ("mobilebert", "relu")):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, "intermediate_size": 4, **sizes}))
        config = EncoderConfig(read_hugging_face_config(tmp_path))
        assert config.type == kind
        assert config.get().hidden_activation == activation
        assert config.get().norm_epsilon == 1e-12


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, "model_type is 'gpt2', but only bert, albert, mobilebert"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
        ({"hidden_act": "mish"}, "hidden_act is 'mish'"),
        ({"is_decoder": True}, "is_decoder is True, but only models with False"),
        ({"pruned_heads": {"0": [1]}}, "pruned_heads is"),
        ({"id2label": {"1": "yes"}}, "id2label is {'1': 'yes'}, but it has to name the labels by their numbers"),
        ({"hidden_size": None}, "does not say hidden_size"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0, but it is a whole number from 1 on"),
        ({"vocab_size": "many"}, "vocab_size is 'many', but it is a whole number"),
        ({"intermediate_size": 10**30}, "intermediate_size is 10{30}, but it is a whole number"),
        ({"model_type": ["bert"]}, r"model_type is \['bert'\]"),
        ({"hidden_act": {}}, "hidden_act is {}"),
    ],
)
def test_settings_that_ours_cannot_have_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    directory = copied("bert", tmp_path)
    change_config(directory, **changes)
    with pytest.raises(ArgumentError, match=message):
        read_hugging_face(directory)


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("albert", {"num_hidden_groups": 2}, "num_hidden_groups is 2, but only models with 1 can be read"),
        ("albert", {"inner_group_num": 2}, "inner_group_num is 2"),
        ("mobilebert", {"use_bottleneck": False}, "use_bottleneck is False"),
        ("mobilebert", {"trigram_input": False}, "trigram_input is False"),
        ("mobilebert", {"true_hidden_size": 16}, "true_hidden_size is 16, .* intra_bottleneck_size, here 8"),
        ("mobilebert", {"pad_token_id": 3}, "pad_token_id is 3"),
    ],
)
def test_settings_of_one_kind_that_ours_cannot_have_are_refused(
    kind: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    directory = copied(kind, tmp_path)
    change_config(directory, **changes)
    with pytest.raises(ArgumentError, match=message):
        read_hugging_face_settings(directory)


def test_fields_that_nothing_is_read_from_are_named(tmp_path: Path) -> None:
    directory = copied("bert", tmp_path)
    change_config(directory, classifier_dropout=0.3, layer_scale=2, id2label={"1": "yes", "0": "no"})
    settings = read_hugging_face_settings(directory)
    assert {"classifier_dropout", "layer_scale", "pad_token_id", "transformers_version"} <= set(settings.not_used)
    used = {"hidden_act", "layer_norm_eps", "type_vocab_size", "tie_word_embeddings", "id2label", "architectures"}
    assert not used & set(settings.not_used)
    assert settings.architecture == "BertForPreTraining"
    assert settings.heads == ("masked_lm", "next_sentence")
    assert settings.label_names == ("no", "yes")


def test_classifiers_of_one_label_of_several_and_of_tokens_are_told_apart(tmp_path: Path) -> None:
    directory = copied("bert", tmp_path)
    head = {"classifier.weight": np.ones((2, 16), np.float32), "classifier.bias": np.ones(2, np.float32)}
    change_weights(directory, lambda arrays: arrays | head)
    change_config(directory, architectures=["BertForTokenClassification"])
    heads = {"sentence_prediction", "multi_label", "tagging"}
    assert heads & read_hugging_face(directory)[1].keys() == {"tagging"}
    change_config(directory, architectures=["BertForSequenceClassification"])
    assert heads & read_hugging_face(directory)[1].keys() == {"sentence_prediction"}
    change_config(directory, problem_type="multi_label_classification")
    assert heads & read_hugging_face(directory)[1].keys() == {"multi_label"}
    assert read_hugging_face_settings(directory).heads == ("multi_label",)
    change_config(directory, architectures=["BertForMultipleChoice"])
    assert not heads & read_hugging_face(directory)[1].keys()
    change_config(directory, architectures=["BertForSequenceClassification"])
    change_config(directory, id2label={"0": "a", "1": "b", "2": "c"})
    with pytest.raises(CheckpointMismatchError, match="classifier has 2 classes, but config.json has 3 labels"):
        read_hugging_face(directory)


@pytest.mark.parametrize("has_own_pooler", [True, False])
def test_a_mobilebert_without_a_pooler_is_written_with_that_of_its_head(has_own_pooler: bool, tmp_path: Path) -> None:
    fields, params = read_hugging_face(GOLDENS / "mobilebert")
    config = EncoderConfig(fields).replace(mobilebert={"classifier_activation": False})
    pooler = params["encoder"].pop("pooler")
    head = {"logits": {"kernel": np.ones((16, 2), np.float32), "bias": np.ones(2, np.float32)}}
    head |= {"pooler_dense": pooler} if has_own_pooler else {}
    classifier = {"encoder": params["encoder"], "sentence_prediction": head}
    write_hugging_face(tmp_path / "out", config=config.as_dict(), params=classifier)
    settings = json.loads((tmp_path / "out" / "config.json").read_text())
    assert settings["classifier_activation"] is has_own_pooler, "transformers would compute another pooled output"
    written = load_file(tmp_path / "out" / "model.safetensors")
    assert ("mobilebert.pooler.dense.weight" in written) is has_own_pooler


def test_a_head_without_the_pooler_that_hugging_face_has_is_not_written(tmp_path: Path) -> None:
    fields, params = read_hugging_face(GOLDENS / "bert")
    config = EncoderConfig(fields).as_dict()
    params["next_sentence"].pop("pooler_dense")
    with pytest.raises(ArgumentError, match="next_sentence takes the first token without a pooler"):
        write_hugging_face(tmp_path / "out", config=config, params=params)
    params.pop("next_sentence")
    with pytest.raises(
        ArgumentError, match="mlm_activation is 'relu' and the encoder's hidden_activation 'gelu_exact'"
    ):
        write_hugging_face(tmp_path / "out", config=config, params=params, mlm_activation="relu")


def test_labels_and_the_tokenizer_are_written_by_name(tmp_path: Path) -> None:
    fields, params = read_hugging_face(GOLDENS / "bert")
    params["sentence_prediction"] = params.pop("next_sentence")
    params.pop("masked_lm")
    (tmp_path / "vocab.txt").write_text("[PAD]\n")
    write: Any = {"config": EncoderConfig(fields).as_dict(), "params": params}
    with pytest.raises(ArgumentError, match=r"label_names are \['no'\], but there are 2 classes"):
        write_hugging_face(tmp_path / "out", **write, label_names=["no"])
    write_hugging_face(
        tmp_path / "out",
        **write,
        label_names=["no", "café"],
        tokenizer_config={"do_lower_case": False},
        vocab_files={"vocab.txt": tmp_path / "vocab.txt"},
    )
    settings = read_hugging_face_settings(tmp_path / "out")
    assert settings.label_names == ("no", "café")
    assert settings.problem_type == "single_label_classification"
    tokenizer = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert tokenizer == {"do_lower_case": False}


def test_the_epsilon_of_layer_norms_in_a_mobilebert_is_that_of_hugging_face(tmp_path: Path) -> None:
    directory = copied("mobilebert", tmp_path)
    change_config(directory, normalization_type="layer_norm")
    config = EncoderConfig(read_hugging_face_config(directory))
    assert config.mobilebert.outer_norm_epsilon == 1e-5
    write_hugging_face(tmp_path / "out", config=config.as_dict(), params=read_hugging_face(directory)[1])
    other = config.replace(mobilebert={"outer_norm_epsilon": None}).as_dict()
    with pytest.raises(ArgumentError, match="norm_epsilon is 1e-12, but .* has 1e-05 in the norm of its embeddings"):
        write_hugging_face(tmp_path / "other", config=other, params=read_hugging_face(directory)[1])


def test_all_missing_unexpected_and_misshapen_weights_are_listed(tmp_path: Path) -> None:
    directory = copied("bert", tmp_path)

    def spoil(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        del arrays["bert.encoder.layer.0.output.dense.bias"]
        arrays["bert.encoder.layer.7.output.dense.bias"] = np.zeros(16, np.float32)
        arrays["cls.predictions.transform.dense.weight"] = np.zeros((16, 8), np.float32)
        return arrays

    change_weights(directory, spoil)
    with pytest.raises(CheckpointMismatchError) as error:
        read_hugging_face(directory)
    assert "missing     encoder.layer.0.output.dense.bias (16,)" in str(error.value)
    assert "unexpected  encoder.layer.7.output.dense.bias" in str(error.value)
    assert "other shape cls.predictions.transform.dense.weight (16, 8), not (16, 16)" in str(error.value)
    assert "of another model: copy both again" in str(error.value)
    change_weights(directory, lambda arrays: {name: array for name, array in arrays.items() if ".layer." not in name})
    with pytest.raises(CheckpointMismatchError, match=r"… and \d+ more\n"):
        read_hugging_face(directory)


def test_a_vocabulary_of_another_size_than_the_weights_is_refused(tmp_path: Path) -> None:
    directory = copied("bert", tmp_path)
    change_config(directory, vocab_size=50)
    with pytest.raises(CheckpointMismatchError, match="vocabulary of 48 words, but vocab_size in config.json is 50"):
        read_hugging_face(directory)
    change_config(directory, vocab_size=48)
    (directory / "vocab.txt").write_text("word\n" * 49)
    with pytest.raises(CheckpointMismatchError, match="49 words, but the weights are for 48"):
        read_hugging_face(directory)


def test_a_directory_without_readable_weights_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(CheckpointFileError, match="config.json` does not exist"):
        read_hugging_face(tmp_path / "nothing")
    directory = copied("bert", tmp_path)
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    with pytest.raises(CheckpointFileError, match="pickled weights are not read.*save_pretrained"):
        read_hugging_face(directory)
    (directory / "config.json").write_text("{")
    with pytest.raises(CheckpointFileError, match="is not JSON"):
        read_hugging_face(directory)


def test_a_billion_layers_are_refused_before_their_weights_are_listed(tmp_path: Path) -> None:
    directory = copied("bert", tmp_path)
    change_config(directory, num_hidden_layers=10**9)
    with pytest.raises(
        CheckpointMismatchError, match=r"num_hidden_layers in config.json is 10{9}, but there are \d\d w"
    ):
        read_hugging_face(directory)


@pytest.mark.parametrize("keep", [0, 4, 100, 5000, -1])
def test_weights_that_are_cut_short_are_named(tmp_path: Path, keep: int) -> None:
    directory = copied("bert", tmp_path)
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(CheckpointFileError, match=r"model.safetensors` is damaged or cut short: .*\. Copy it again\."):
        read_hugging_face(directory)


def test_garbled_weights_and_settings_are_named(tmp_path: Path) -> None:
    directory = copied("bert", tmp_path)
    file = directory / "model.safetensors"
    whole = file.read_bytes()
    for content in (b"\xff" * 200, whole.replace(b'"F32"', b'"F33"'), whole.replace(b"{", b"[")):
        file.write_bytes(content)
        with pytest.raises(CheckpointFileError, match="model.safetensors` is damaged or cut short"):
            read_hugging_face(directory)
    for text in (b"\xff\xfe", b"[" * 100_000, b'{"vocab_size": ' + b"9" * 5000 + b"}", b'{"x": "\\ud800"}'):
        (directory / "config.json").write_bytes(text)
        with pytest.raises(CheckpointFileError, match="config.json` is not JSON: "):
            read_hugging_face(directory)


def test_what_hugging_face_has_no_model_for_is_not_written(tmp_path: Path) -> None:
    fields, params = read_hugging_face(GOLDENS / "bert")
    config = EncoderConfig(fields)
    out = tmp_path / "out"
    with pytest.raises(ArgumentError, match="no model with the heads masked_lm, span_labeling"):
        write_hugging_face(
            out,
            config=config.as_dict(),
            params={
                "encoder": params["encoder"],
                "masked_lm": params["masked_lm"],
                "span_labeling": {"logits": params["next_sentence"]["logits"]},
            },
        )
    first = {"encoder": params["encoder"]}
    with pytest.raises(ArgumentError, match="norm_first is True"):
        write_hugging_face(out, config=config.replace(bert={"norm_first": True}).as_dict(), params=first)
    with pytest.raises(ArgumentError, match="there is no lost.txt"):
        write_hugging_face(out, config=config.as_dict(), params=first, vocab_files={"vocab.txt": "lost.txt"})
    talking = build_encoder(config, attention_cls=TalkingHeadsAttention)
    batch = {name: array[:2] for name, array in golden("bert", "batches").items()}
    shapes = nn.meta.unbox(jax.eval_shape(talking.init, jax.random.key(0), batch))["params"]
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), shapes)
    with pytest.raises(CheckpointMismatchError, match="unexpected encoder/layer_0/attention/after_softmax"):
        write_hugging_face(out, config=config.as_dict(), params={"encoder": zeros})
    halved = {"encoder": params["encoder"], "masked_lm": {"dense": params["masked_lm"]["dense"]}}
    with pytest.raises(CheckpointMismatchError, match="missing masked_lm/output_bias"):
        write_hugging_face(out, config=config.as_dict(), params=halved)
    assert not any(tmp_path.iterdir()), "something was left behind"
    out.mkdir()
    with pytest.raises(ArgumentError, match="exists already"):
        write_hugging_face(out, config=config.as_dict(), params=first)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_labels": 10**9}, "num_labels is 1000000000, but it is a whole number below 1,000,000"),
        ({"num_labels": "two"}, "num_labels is 'two', but it is a whole number"),
    ],
)
def test_an_absurd_number_of_labels_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        hugging_face._label_names(fields, "config.json")


def test_architectures_that_are_no_list_say_nothing_of_the_head() -> None:
    family = hugging_face.FAMILIES["bert"]
    assert hugging_face._classifier(family, {"architectures": 7}) == "sentence_prediction"
    assert hugging_face._classifier(family, {"architectures": ["BertForMultipleChoice"]}) is None


def test_heads_that_do_not_divide_the_width_are_refused() -> None:
    sizes = {"hidden_size": 16, "num_attention_heads": 3, "intermediate_size": 8, "type_vocab_size": 2, "vocab_size": 9}
    config = {"model_type": "bert", "num_hidden_layers": 1, "max_position_embeddings": 8, **sizes}
    with pytest.raises(ArgumentError, match="num_attention_heads is 3, which does not divide the width, 16"):
        hugging_face_names.read_config(config, place="config.json")
