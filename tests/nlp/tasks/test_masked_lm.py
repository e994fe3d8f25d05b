"""The masked-LM task: its losses, with and without next sentences, and what does not fit together."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.nlp.data.small_text import WORDS, write_vocabulary
from tests.nlp.models import tiny_encoders
from tests.nlp.tasks.small import LENGTH, VOCAB_SIZE, bound, encoder, one_step, part_of, sequences, validated
from trellis.errors import ConfigError
from trellis.nlp.data import BertPretrainDataConfig, BertPretrainTextDataConfig
from trellis.nlp.models import ClsHeadConfig, PretrainerConfig
from trellis.nlp.tasks import MaskedLMConfig
from trellis.tasks import BoundModel, get_task

HEAD = ClsHeadConfig(inner_dim=8, name="next_sentence")
N_MASKS = 3


def config(*, next_sentence: bool, **changes: Any) -> MaskedLMConfig:
    data = BertPretrainDataConfig(
        seq_length=LENGTH, max_predictions_per_seq=N_MASKS, use_next_sentence_label=next_sentence
    )
    settings: dict[str, Any] = {
        "model": PretrainerConfig(encoder=encoder(), cls_heads=[HEAD] if next_sentence else []),
        "train_data": data,
        "validation_data": data.replace(is_training=False),
    }
    return MaskedLMConfig(**settings | changes)


def batch(n: int, *, next_sentence: bool) -> dict[str, np.ndarray]:
    random = np.random.default_rng(7)
    masked = {
        "masked_lm_positions": random.integers(1, 6, (n, N_MASKS)).astype(np.int32),
        "masked_lm_ids": random.integers(5, VOCAB_SIZE, (n, N_MASKS)).astype(np.int32),
        # Examples have different numbers of masks, so that a mean of means is not the mean.
        "masked_lm_weights": (np.arange(N_MASKS) <= np.arange(n)[:, None] % N_MASKS).astype(np.float32),
    }
    labels = {"next_sentence_labels": random.integers(0, 2, (n, 1)).astype(np.int32)} if next_sentence else {}
    return sequences(n) | masked | labels


def surprise(logits: Any, labels: np.ndarray) -> np.ndarray:
    logits = np.asarray(logits, np.float64)
    log_shares = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    return -np.take_along_axis(log_shares, labels[..., None], axis=-1)[..., 0]


@pytest.mark.parametrize("next_sentence", [False, True])
def test_the_loss_is_the_mean_over_masks_plus_the_mean_over_pairs(next_sentence: bool) -> None:
    task, examples = get_task(config(next_sentence=next_sentence)), batch(6, next_sentence=next_sentence)
    model = bound(task, examples)
    outputs = jax.jit(model)(examples)
    weights = examples["masked_lm_weights"]
    expected = (surprise(outputs["mlm_logits"], examples["masked_lm_ids"]) * weights).sum() / weights.sum()
    if next_sentence:
        expected += surprise(outputs["next_sentence"], examples["next_sentence_labels"][:, 0]).mean()
    logs = validated(task, model, examples)
    assert float(logs["loss"].compute()) == pytest.approx(expected, rel=1e-5)
    more = {"next_sentence_accuracy", "next_sentence_loss"} if next_sentence else set()
    assert set(logs) == {"loss", "masked_lm_accuracy", "lm_example_loss"} | more


def test_parts_of_a_batch_teach_what_the_whole_does() -> None:
    task, examples = get_task(config(next_sentence=True)), batch(8, next_sentence=True)
    whole, parts = (one_step(task, examples, n_microbatches=n) for n in (1, 4))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), whole[0].params, parts[0].params)
    assert float(parts[1].loss.compute()) == pytest.approx(float(whole[1].loss.compute()), rel=1e-5)


def test_the_loss_of_several_batches_is_that_of_one_big_one() -> None:
    task, examples = get_task(config(next_sentence=True)), batch(7, next_sentence=True)
    model = bound(task, examples)
    whole = validated(task, model, examples)
    first, rest = (validated(task, model, part_of(examples, rows)) for rows in (slice(5), slice(5, 7)))
    for name, metric in whole.items():
        assert float(first[name].merge(rest[name]).compute()) == pytest.approx(float(metric.compute()), rel=1e-5)


def text_data(folder: Path, *, pack_sequences: bool) -> BertPretrainTextDataConfig:
    random = np.random.default_rng(3)
    # The last one fills a row by itself.
    texts = [" ".join(random.choice(WORDS[:8], n)) for n in (2, 5, 3, 9, 4, 2, 6, 14)]
    (folder / "text.txt").write_text("\n\n".join(texts))
    return BertPretrainTextDataConfig(
        input_path=str(folder / "text.txt"),
        vocab_file_path=write_vocabulary(folder / "vocab.txt"),
        cache_dir=str(folder / "cache"),
        seq_length=16,
        max_predictions_per_seq=6,
        masking_rate=0.3,
        use_next_sentence_label=False,
        pack_sequences=pack_sequences,
        global_batch_size=100,
        is_training=False,
        drop_remainder=False,
    )


@pytest.mark.parametrize("kind", tiny_encoders.KINDS)
def test_packed_sentences_have_the_loss_and_gradients_of_the_same_ones_apart(kind: str, tmp_path: Path) -> None:
    model = PretrainerConfig(encoder=tiny_encoders.config(kind))
    tasks = [
        get_task(MaskedLMConfig(model=model, train_data=data, validation_data=data))
        for data in (text_data(tmp_path, pack_sequences=False), text_data(tmp_path, pack_sequences=True))
    ]
    apart, packed = (task.build_inputs(task.task_config.train_data).batch(0) for task in tasks)
    assert len(apart["input_mask"]) == 8
    assert len(packed["input_mask"]) == 4, "every sentence has a row of its own, which proves nothing"
    assert packed["masked_lm_weights"].sum() == apart["masked_lm_weights"].sum() > 8
    module = tasks[0].build_model()

    @jax.jit
    @jax.value_and_grad
    def loss(params: Any, batch: Any) -> jax.Array:
        return tasks[0].build_losses(batch, BoundModel(module, params=params)(batch)).compute()

    # All of them random, so that a token would notice others that it must not see.
    params = tiny_encoders.weights(module, apart)["params"]
    (alone, gradients), (together, same) = loss(params, apart), loss(params, packed)
    assert float(together) == pytest.approx(float(alone), rel=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), same, gradients)
    assert all(np.any(leaf) for leaf in jax.tree.leaves(gradients["masked_lm"]))
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(gradients["encoder"].get("pooler", {})))


def test_what_does_not_fit_together_is_told_at_once_with_its_place() -> None:
    long = config(next_sentence=True)
    long.train_data.seq_length = 17
    long.model.cls_heads = []
    with pytest.raises(ConfigError) as raised:
        get_task(long)
    assert "task.train_data.seq_length is 17, but the encoder has positions for 16 tokens." in str(raised.value)
    assert "task.train_data.use_next_sentence_label is true, but task.model.cls_heads has no head" in str(raised.value)
