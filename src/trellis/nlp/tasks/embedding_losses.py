"""Losses on the vectors of texts: what belongs together is to be alike."""

import jax
import jax.numpy as jnp

from trellis.aliases import Array
from trellis.loops import Mean, weighted_mean

_NEVER = -1e9


def in_batch_loss(
    queries: Array, candidates: Array, *, query_keys: Array, candidate_keys: Array, scale: float, margin: float
) -> Mean:
    """The cross-entropy of choosing, among all candidates of the batch, the one that belongs to a query.

    Query i belongs to candidate i; there may be more candidates than queries. What equals the query itself, or any text
    that belongs to an equal query, is no wrong candidate, and is left out.

    Args:
        queries: Of shape (queries, width).
        candidates: Of shape (candidates, width).
        query_keys: A number for each query that is equal for equal texts, in one numbering with those of candidates.
        scale: What products are multiplied by.
        margin: By how much the right product has to exceed the others.
    """
    n = queries.shape[0]
    is_own = jnp.eye(n, candidates.shape[0], dtype=bool)
    products = jnp.matmul(queries, candidates.T, precision="highest")
    logits = scale * (products - margin * is_own)
    is_equal_query = (query_keys[:, None] == query_keys[None]).astype(jnp.float32)
    is_right = candidate_keys[:n, None] == candidate_keys[None]
    belongs = jnp.matmul(is_equal_query, is_right.astype(jnp.float32)) > 0.5
    is_left_out = (belongs | (query_keys[:, None] == candidate_keys[None])) & ~is_own
    logits = jnp.where(is_left_out, _NEVER, logits)
    return weighted_mean(jax.nn.logsumexp(logits, axis=-1) - jnp.sum(jnp.where(is_own, logits, 0), axis=-1))


def triplet_loss(vectors: Array, *, margin: float) -> Mean:
    """By how much a text is less alike to the one that belongs to it, less a margin, than to the one that does not.

    Args:
        vectors: Of shape (batch, 3, width).
    """
    right, wrong = cosines(vectors[:, 0], vectors[:, 1]), cosines(vectors[:, 0], vectors[:, 2])
    return weighted_mean(jax.nn.relu(wrong - right + margin))


def cosine_loss(vectors: Array, scores: Array) -> Mean:
    """The squared difference between the cosine of two texts and their score."""
    return weighted_mean(jnp.square(cosines(vectors[:, 0], vectors[:, 1]) - scores))


def cosent_loss(vectors: Array, scores: Array, *, scale: float) -> Mean:
    """A soft count of the pairs of examples in a batch whose cosines are in the wrong order (CoSENT)."""
    similarities = scale * cosines(vectors[:, 0], vectors[:, 1])
    differences = similarities[:, None] - similarities[None]
    is_wrong_order = scores[:, None] < scores[None]
    logits = jnp.append(jnp.where(is_wrong_order, differences, _NEVER).reshape(-1), 0)
    weight = jnp.float32(len(scores))
    return Mean(jax.nn.logsumexp(logits) * weight, weight)


def cosines(left: Array, right: Array) -> Array:
    """The cosine of each vector with the other of the same row."""
    product = jnp.sum(left * right, axis=-1)
    squares = jnp.sum(jnp.square(left), axis=-1) * jnp.sum(jnp.square(right), axis=-1)
    return product * jax.lax.rsqrt(jnp.maximum(squares, 1e-24))
