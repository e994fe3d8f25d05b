"""Processes that train together, each with a part of the devices: how they join, and how arrays span them."""

import os
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Sharding

from trellis.aliases import Array, PyTree


def join_processes(environment: Mapping[str, str] = os.environ) -> None:
    """Joins the processes that this one was started with, if there are some; comes before all else that uses JAX.

    Args:
        environment: Says who they are: `JAX_COORDINATOR_ADDRESS`, `JAX_NUM_PROCESSES`, `JAX_PROCESS_ID`.
    """
    n_processes = int(environment.get("JAX_NUM_PROCESSES", "1"))
    if n_processes < 2:
        return
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_preemption_service", True)
    jax.distributed.initialize(
        environment["JAX_COORDINATOR_ADDRESS"],
        num_processes=n_processes,
        process_id=int(environment["JAX_PROCESS_ID"]),
        cluster_detection_method="deactivate",
    )


def is_first_process() -> bool:
    """Whether this is the first of the processes that have joined; one alone is."""
    return jax.process_index() == 0


def wait_for_processes(name: str) -> None:
    """Waits until every process is here; one alone does not wait.

    Args:
        name: Of the place, the same in all of them.
    """
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)


def is_any_stopping(look: int) -> bool:
    """Whether one of several processes was told to stop (SIGTERM): True in all of them at the same look.

    Args:
        look: The number of this look, one more than that of the look before.
    """
    return multihost_utils.reached_preemption_sync_point(look)


def spread(tree: PyTree, shardings: PyTree) -> PyTree:
    """Arrays over the devices of several processes, of what every process has whole; nothing is shared with it."""
    places = jax.tree.map(lambda _: shardings, tree) if isinstance(shardings, Sharding) else shardings
    return jax.tree.map(_spread, tree, places)


def fetch(tree: PyTree) -> PyTree:
    """Whole NumPy arrays of a tree; what spans processes is gathered, so all of them have to call it."""
    return jax.device_get(jax.tree.map(_whole, tree))


def spans_processes(leaf: Any) -> bool:
    """Whether an array is on devices of several processes."""
    return isinstance(leaf, jax.Array) and not leaf.is_fully_addressable


def _spread(leaf: Any, sharding: Any) -> Array:
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        data = _spread(jax.random.key_data(leaf), sharding)
        key: Array = jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
        return key
    if spans_processes(leaf):
        copied: Array = jax.jit(jnp.copy, out_shardings=sharding)(leaf)
        return copied
    array = np.array(leaf)
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def _whole(leaf: Any) -> Any:
    if spans_processes(leaf) and not leaf.is_fully_replicated:
        return multihost_utils.process_allgather(leaf, tiled=True)
    return leaf
