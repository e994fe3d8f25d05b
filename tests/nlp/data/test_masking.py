"""What is masked, how much of it, and what becomes of it."""

import numpy as np
import pytest
from numpy.typing import NDArray

from trellis.errors import ArgumentError
from trellis.nlp.data.masking import Masked, Masking, example_keys, mask_tokens
from trellis.nlp.data.sequences import Specials

CLS, SEP, MASK, VOCAB = 2, 3, 4, 1000
ODD_IDS_CONTINUE = np.arange(VOCAB) % 2 == 0


def masking(**settings: object) -> Masking:
    options = {
        "rate": 0.15,
        "max_predictions": 20,
        "vocab_size": VOCAB,
        "mask_id": MASK,
        "specials": Specials(CLS, SEP),
    }
    return Masking(**{**options, **settings})  # type: ignore[arg-type]


def sequences(n: int, length: int, *, seed: int = 0) -> NDArray[np.int32]:
    ids = np.random.default_rng(seed).integers(10, VOCAB, (n, length)).astype(np.int32)
    ids[:, 0], ids[:, length // 2], ids[:, -1] = CLS, SEP, SEP
    return ids


def masked(ids: NDArray[np.int32], settings: Masking, *, seed: int = 0, epoch: int = 0) -> Masked:
    lengths = np.full(len(ids), ids.shape[1])
    return mask_tokens(
        ids, lengths=lengths, keys=example_keys(np.arange(len(ids)), seed=seed, epochs=epoch), masking=settings
    )


@pytest.mark.parametrize(
    "settings", [{}, {"starts_word": ODD_IDS_CONTINUE}, {"starts_word": ODD_IDS_CONTINUE, "max_ngram_size": 3}]
)
def test_originals_can_be_put_back_and_specials_are_never_chosen(settings: dict[str, object]) -> None:
    ids = sequences(50, 64)
    result = masked(ids, masking(**settings))
    is_there = result.weights > 0
    restored = result.ids.copy()
    row, place = np.nonzero(is_there)
    restored[row, result.positions[row, place]] = result.originals[row, place]
    np.testing.assert_array_equal(restored, ids)
    assert not np.isin(result.originals[is_there], (CLS, SEP)).any()
    assert (result.positions[~is_there] == 0).all()
    assert (result.originals[~is_there] == 0).all()
    for positions, there in zip(result.positions, is_there, strict=True):
        assert (np.diff(positions[there]) > 0).all()


def test_the_published_share_is_chosen_rounded_to_even_and_at_least_one() -> None:
    settings = masking(max_predictions=5)
    lengths = np.array([3, 10, 30, 31, 1000])
    assert settings.n_chosen(lengths).tolist() == [1, 2, 4, 5, 5]
    result = masked(sequences(40, 30), masking())
    assert (result.weights.sum(axis=1) == 4).all()


def test_four_fifths_become_the_mask_a_tenth_a_random_token_and_a_tenth_stay() -> None:
    ids = sequences(400, 128)
    result = masked(ids, masking())
    row, place = np.nonzero(result.weights)
    now, before = result.ids[row, result.positions[row, place]], result.originals[row, place]
    assert np.mean(now == MASK) == pytest.approx(0.8, abs=0.02)
    assert np.mean(now == before) == pytest.approx(0.1, abs=0.02)
    others = now[(now != MASK) & (now != before)]
    assert len(np.unique(others)) > 300
    assert others.min() < 50 and others.max() > VOCAB - 50


def test_every_token_is_chosen_about_as_often() -> None:
    ids = np.tile(sequences(1, 20), (4000, 1))
    chosen = np.zeros(20)
    result = masked(ids, masking())
    np.add.at(chosen, result.positions[result.weights > 0], 1)
    assert chosen[[0, 10, 19]].tolist() == [0, 0, 0]
    assert chosen[chosen > 0] == pytest.approx(4000 * 3 / 17, rel=0.15)


def test_masks_are_a_function_of_seed_epoch_and_example_and_not_of_the_batch() -> None:
    ids = sequences(8, 64)
    settings = masking(starts_word=ODD_IDS_CONTINUE, max_ngram_size=2)
    whole = masked(ids, settings)
    lengths = np.full(1, 64)
    alone = mask_tokens(ids[5:6], lengths=lengths, keys=example_keys(np.array([5]), seed=0, epochs=0), masking=settings)
    for part, of in zip(alone, whole, strict=True):
        np.testing.assert_array_equal(part[0], of[5])
    assert (masked(ids, settings, epoch=1).ids != whole.ids).any(axis=1).all()
    assert (masked(ids, settings, seed=1).ids != whole.ids).any(axis=1).all()


def test_keys_differ_for_all_seeds_epochs_and_examples() -> None:
    keys = [example_keys(np.arange(50), seed=seed, epochs=epoch) for seed in range(10) for epoch in range(10)]
    assert len(np.unique(np.concatenate(keys))) == 5000
    assert example_keys(np.arange(3), seed=-1, epochs=0).dtype == np.uint64


def test_padding_is_never_chosen_and_does_not_change_what_is() -> None:
    ids = sequences(6, 32)
    keys = example_keys(np.arange(6), seed=0, epochs=0)
    short = mask_tokens(ids, lengths=np.full(6, 32), keys=keys, masking=masking())
    long = mask_tokens(np.pad(ids, ((0, 0), (0, 8))), lengths=np.full(6, 32), keys=keys, masking=masking())
    np.testing.assert_array_equal(short.ids, long.ids[:, :32])
    np.testing.assert_array_equal(short.positions, long.positions)
    assert (long.ids[:, 32:] == 0).all()


def test_words_are_chosen_whole_and_never_more_tokens_than_wanted() -> None:
    # [CLS] a ##a b ##b c ##c [SEP], of which three tokens may be chosen: one word.
    ids = np.array([[CLS, 10, 11, 20, 21, 30, 31, SEP]] * 30, np.int32)
    tokens = masked(ids, masking(rate=1.0, max_predictions=3))
    assert (tokens.weights.sum(axis=1) == 3).all()
    words = masked(ids, masking(rate=1.0, max_predictions=3, starts_word=ODD_IDS_CONTINUE))
    assert (words.weights.sum(axis=1) == 2).all()
    assert {tuple(row[:2]) for row in words.positions.tolist()} == {(1, 2), (3, 4), (5, 6)}


def test_a_word_ends_where_the_span_does() -> None:
    # [CLS] up ##dog [SEP] ##s down: what continues nothing is a word of its own.
    ids = np.array([[CLS, 10, 11, SEP, 13, 20]] * 40, np.int32)
    result = masked(ids, masking(rate=0.01, max_predictions=2, starts_word=ODD_IDS_CONTINUE))
    assert {tuple(row[w > 0]) for row, w in zip(result.positions, result.weights, strict=True)} == {(4,), (5,)}


def test_grams_fill_all_that_is_wanted_and_are_masked_as_one() -> None:
    ids = np.full((20, 512), 10, np.int32) + 2 * np.arange(512, dtype=np.int32) % 900
    ids[:, 0], ids[:, -1] = CLS, SEP
    result = masked(ids, masking(rate=0.15, max_predictions=76, starts_word=ODD_IDS_CONTINUE, max_ngram_size=3))
    assert (result.weights.sum(axis=1) == 76).all()
    runs = np.diff(result.positions, axis=1) == 1
    single = masked(ids, masking(rate=0.15, max_predictions=76, starts_word=ODD_IDS_CONTINUE))
    assert runs.mean() > 2 * (np.diff(single.positions, axis=1) == 1).mean()


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(ArgumentError, match="max_ngram_size is 3, which needs whole words"):
        masking(max_ngram_size=3)
    with pytest.raises(ArgumentError, match="share of tokens to mask is 1.5"):
        masking(rate=1.5)
    with pytest.raises(ArgumentError, match="max_predictions_per_seq is 0"):
        masking(max_predictions=0)
