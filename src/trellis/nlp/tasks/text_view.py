"""A batch of text as it is shown to people: its pieces, what was masked, and its labels."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from trellis.aliases import JSON
from trellis.tasks import BatchView

_LABELS = ("next_sentence_labels", "is_impossible")
_SEQUENCES = "segment_ids"
"""Which of the sequences in a packed row a token is of, from 1 on; 0 is padding."""

Row = Mapping[str, NDArray[Any]]


class Spelling(Protocol):
    """What shows ids: a tokenizer."""

    @property
    def all_tokens(self) -> Sequence[str]:
        """How each id is shown, in their order."""


def view_text(
    batch: Mapping[str, Any],
    *,
    tokenizer: Spelling | None,
    label_fields: Sequence[str] = (),
    label_names: Sequence[str] = (),
) -> BatchView:
    """The view of a batch of token ids.

    Args:
        tokenizer: Without one, ids are shown.
        label_fields: The names that a label may have in it.
    """
    arrays = {name: np.asarray(values) for name, values in batch.items()}
    ids = arrays["input_word_ids"]
    names = [name for name in (*label_fields, *_LABELS) if name in arrays]
    labels = {name: arrays[name].reshape(len(ids)) for name in names if arrays[name].size == len(ids)}
    several = {name: arrays[name] for name in label_fields if name in arrays and arrays[name].ndim == 2}
    mask = arrays.get("input_mask", np.ones_like(ids))
    view = BatchView(
        inputs={"ids": _unmasked(arrays), "types": arrays.get("input_type_ids", np.zeros_like(ids))},
        labels=labels,
        several_labels={name: _all_labels(values, ids, label_names) for name, values in several.items()},
        label_names=label_names,
        lengths=(mask != 0).sum(axis=1),
        row_length=ids.shape[1],
    )

    def describe(row: int) -> dict[str, JSON]:
        example = {name: values[row] for name, values in arrays.items()}
        told = _describe(example, mask[row] != 0, tokenizer)
        told |= {name: view.label_text(float(values[row])) for name, values in labels.items()}
        return told | {name: _named(example[name], ids[row], label_names, tokenizer) for name in several}

    return BatchView(**vars(view) | {"describe": describe})


def _are_by_class(labels: NDArray[Any], ids: NDArray[Any], names: Sequence[str]) -> bool:
    """Whether rows tell of each class if they have it, and not of each piece which class it has."""
    return bool(labels.shape[-1] == len(names) != ids.shape[-1])


def _all_labels(labels: NDArray[Any], ids: NDArray[Any], names: Sequence[str]) -> NDArray[Any]:
    return np.nonzero(labels)[1] if _are_by_class(labels, ids, names) else labels[labels >= 0]


def _named(labels: NDArray[Any], ids: NDArray[Any], names: Sequence[str], tokenizer: Spelling | None) -> list[JSON]:
    """Several labels of a row: those that it has, or that of each piece which has one."""
    if _are_by_class(labels, ids, names):
        return [names[place] for place in np.flatnonzero(labels).tolist()]
    pieces = _spell(ids, tokenizer)
    return [f"{pieces[place]}={names[labels[place]]}" for place in np.flatnonzero(labels >= 0).tolist()]


def _unmasked(arrays: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    """The ids of before they were masked."""
    ids = arrays["input_word_ids"].copy()
    if "masked_lm_positions" in arrays:
        rows, places = np.nonzero(arrays["masked_lm_weights"])
        ids[rows, arrays["masked_lm_positions"][rows, places]] = arrays["masked_lm_ids"][rows, places]
    return ids


def _describe(example: Row, is_token: NDArray[np.bool_], tokenizer: Spelling | None) -> dict[str, JSON]:
    ids = example["input_word_ids"]
    masked = _masked(example)
    pieces = _spell(ids, tokenizer)
    originals = _spell(np.array(list(masked.values()), ids.dtype), tokenizer)
    for place, original in zip(masked, originals, strict=True):
        seen = pieces[place]
        pieces[place] = f"{seen}<={original}" if seen != original else f"{seen}<=same"
    kinds = example.get(_SEQUENCES)
    name = "sequence"
    if kinds is None:
        kinds, name = example.get("input_type_ids", np.zeros_like(ids)), "type"
    told: dict[str, JSON] = {}
    for kind in np.unique(kinds[is_token]).tolist():
        places = np.flatnonzero(is_token & (kinds == kind))
        told[f"{name} {kind}"] = [pieces[place] for place in places]
    if len(told) == 1 and name == "type" and "type 0" in told:
        told = {"tokens": told["type 0"]}
    told["length"] = f"{int(is_token.sum())} of {len(ids)}"
    if masked or "masked_lm_positions" in example:
        told["masked"] = f"{len(masked)}, as seen<=original"
    if "start_positions" in example:
        first, last = int(example["start_positions"]), int(example["end_positions"])
        told["answer"] = [f"at {first} to {last}:", *pieces[first : last + 1]]
    return told


def _masked(example: Row) -> dict[int, int]:
    """The ids that were masked, by position."""
    if "masked_lm_positions" not in example:
        return {}
    used = np.flatnonzero(example["masked_lm_weights"])
    places, ids = example["masked_lm_positions"][used], example["masked_lm_ids"][used]
    return dict(zip(places.tolist(), ids.tolist(), strict=True))


def _spell(ids: NDArray[Any], tokenizer: Spelling | None) -> list[str]:
    """The pieces of ids; the ids themselves where there are none."""
    if tokenizer is None:
        return [str(number) for number in ids.tolist()]
    tokens = tokenizer.all_tokens
    return [tokens[number] if 0 <= number < len(tokens) else str(number) for number in ids.tolist()]
