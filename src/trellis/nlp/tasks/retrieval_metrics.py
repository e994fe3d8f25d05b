"""How well texts find those that belong to them, among all texts of a data set; computed on the host."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

_BLOCK = 1024

Vectors = NDArray[np.floating]
Keys = NDArray[np.integer]


def retrieval_ranks(
    queries: Vectors, candidates: Vectors, *, query_keys: Keys, candidate_keys: Keys
) -> NDArray[np.int64]:
    """The rank of each query's own candidate, from 1, by the product of their vectors.

    Query i belongs to candidate i; there may be more candidates than queries. What equals the query itself, or any text
    that belongs to an equal query, is no wrong answer and takes no place. Of wrong ones with an equal product half go
    before.

    Args:
        query_keys: A number for each query that is equal for equal texts, in one numbering with those of candidates.
    """
    belongs: dict[int, list[int]] = {}
    for query, candidate in zip(query_keys.tolist(), candidate_keys.tolist(), strict=False):
        belongs.setdefault(query, [query]).append(candidate)
    columns: dict[int, list[int]] = {}
    for column, key in enumerate(candidate_keys.tolist()):
        columns.setdefault(key, []).append(column)
    ranks = np.empty(len(queries), np.int64)
    for start in range(0, len(queries), _BLOCK):
        rows = np.arange(start, min(start + _BLOCK, len(queries)))
        scores = queries[rows] @ candidates.T
        own = scores[np.arange(len(rows)), rows]
        for number, row in enumerate(rows.tolist()):
            right = [column for key in belongs[int(query_keys[row])] for column in columns.get(key, ())]
            scores[number, right] = -np.inf
        n_better = (scores > own[:, None]).sum(axis=1)
        n_equal = (scores == own[:, None]).sum(axis=1)
        ranks[rows] = 1 + n_better + n_equal // 2
    return ranks


def recalls_and_mrr(ranks: NDArray[np.int64], *, top_k: Sequence[int], prefix: str) -> Mapping[str, float]:
    """The share of queries whose own candidate is among the first k, and the mean of one divided by its rank.

    Example:
        >>> recalls_and_mrr(np.array([1, 2]), top_k=(1,), prefix="left")
        {'left_recall_at_1': 0.5, 'left_mrr': 0.75}
    """
    recalls = {f"{prefix}_recall_at_{k}": float(np.mean(ranks <= k)) for k in top_k}
    return {**recalls, f"{prefix}_mrr": float(np.mean(1 / ranks))}
