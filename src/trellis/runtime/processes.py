"""Processes that train together, each with a part of the devices: how they join, and how arrays span them."""

import atexit
import ipaddress
import math
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src.api import clean_up  # JAX's end of a process has no public name
from jax._src.clusters import ClusterEnv  # JAX has no public name for what it knows of SLURM and Open MPI
from jax.experimental import multihost_utils
from jax.sharding import AxisType, NamedSharding, PartitionSpec, Sharding

from trellis.aliases import Array, PyTree
from trellis.errors import ArgumentError, ExitCode
from trellis.runtime.agreement import announce, tell_failure
from trellis.runtime.cluster import TF_CONFIG, cluster_role, find_cluster, seconds_in, share_of_gpus
from trellis.runtime.console import flush_output, print_error, print_line
from trellis.runtime.roll_call import RollCall, family, host_and_port

_JAX_SECONDS = 100
"""After so many seconds JAX takes a silent process for dead, if nothing else is said."""
_SECONDS_TO_ANSWER = 1.0
_SECONDS_TO_STOP = 10
_SECONDS_TO_END = 30
"""How long processes may take to end all together, after the time for which one may be silent."""


def join_processes(environment: Mapping[str, str] = os.environ) -> None:
    """Joins the processes that this one was started with, if there are some; comes before all else that uses JAX.

    The first of them listens for the others at the address that they are told, and nowhere else if it can, and says so
    on the screen unless only this machine can reach it.

    Args:
        environment: Says who they are: `JAX_COORDINATOR_ADDRESS`, `JAX_NUM_PROCESSES`, `JAX_PROCESS_ID`; where the
            first listens, if not there: `JAX_COORDINATOR_BIND_ADDRESS`; and how many seconds one may be silent:
            `TRELLIS_WORKER_TIMEOUT`. Without the first three, `TF_CONFIG` tells the same: the chief, or the first
            worker, is the first process, and listens at its address there. Without that too, SLURM or Open MPI tell
            it, if they have started this process together with others.
    """
    try:
        # Ray joins the processes that it starts itself.
        if not jax.distributed.is_initialized():
            _join(environment)
        announce()
    except KeyboardInterrupt as error:
        # The others may have met this one, and JAX would have it wait for them at its end, and them for it.
        tell_failure(error)
        raise


def _join(environment: Mapping[str, str]) -> None:
    # More than twice the time, as JAX may not wait for all of it: the silent one is to be named, and all are to have
    # printed their stacks, before JAX aborts the others.
    silence = seconds_in(environment, "TRELLIS_WORKER_TIMEOUT", default=0.0)
    heartbeat = math.ceil(2 * silence) + _SECONDS_TO_END if silence else _JAX_SECONDS
    seconds = join_seconds(environment)
    together = _of_jax(environment) or _of_tf_config(environment) or _of_cluster(environment)
    if together is None:
        return
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_preemption_service", True)
    bind_address = environment.get("JAX_COORDINATOR_BIND_ADDRESS") or _bind_address(together.address)
    if together.index == 0:
        _check_free(bind_address)
        _tell_of(bind_address, together.n_processes)
    RollCall(
        together.address,
        n_processes=together.n_processes,
        index=together.index,
        seconds=seconds,
        place_of=together.place_of,
    ).hold(bind_address=bind_address)
    with _waiting_at_most(seconds, together):
        jax.distributed.initialize(
            together.address,
            num_processes=together.n_processes,
            process_id=together.index,
            local_device_ids=together.device_ids,
            cluster_detection_method="deactivate",
            coordinator_bind_address=bind_address,
            heartbeat_timeout_seconds=heartbeat,
            initialization_timeout=2 * math.ceil(seconds) + _SECONDS_TO_STOP,
        )
    # What was registered last is called first: before JAX waits for the others to leave, too.
    atexit.register(_end_at_ctrl_c)


def _end_at_ctrl_c() -> None:
    """Has Ctrl-C end this process at once: all is saved, and Python would print a traceback."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def end_without_jax() -> None:
    """Has this process end without what JAX does at the end of one, but for leaving the others that it has joined."""
    atexit.unregister(clean_up)
    if jax.distributed.is_initialized():
        atexit.unregister(_end_at_ctrl_c)
        atexit.register(jax.distributed.shutdown)
        atexit.register(_end_at_ctrl_c)


@dataclass(frozen=True)
class _Together:
    """What a process was told of those that it is to join."""

    address: str
    """Where the first one listens."""
    n_processes: int
    index: int
    """Which this one is."""
    place_of: Callable[[int], str]
    """What another one is to whoever has started it."""
    device_ids: Sequence[int] | None = None
    """Which devices of its machine are its own; None if all that it sees are."""


def join_seconds(environment: Mapping[str, str] = os.environ) -> float:
    """How long processes wait for each other when they start: `TRELLIS_JOIN_TIMEOUT`, by default five minutes."""
    return seconds_in(environment, "TRELLIS_JOIN_TIMEOUT", default=300.0)


@contextmanager
def _waiting_at_most(seconds: float, together: _Together) -> Iterator[None]:
    """Ends this process, in words, if one of the others is lost just when all have come: JAX would end with a trace."""

    def leave() -> None:
        print_error(
            f"All {together.n_processes} processes have come to {together.address}, but one of them was lost before "
            f"JAX had joined them, and this one has waited for that for {seconds:g} seconds (TRELLIS_JOIN_TIMEOUT). "
            f"Look at the output of those that do not print this line."
        )
        flush_output()
        os._exit(ExitCode.LOST)

    timer = threading.Timer(seconds, leave)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _of_jax(environment: Mapping[str, str]) -> _Together | None:
    """What the variables of JAX tell; None if there is no other process."""
    n_processes = _whole_number(environment, "JAX_NUM_PROCESSES") if "JAX_NUM_PROCESSES" in environment else 1
    if n_processes < 2:
        return None
    index = _whole_number(environment, "JAX_PROCESS_ID")
    if index >= n_processes:
        raise ArgumentError(f"JAX_PROCESS_ID is {index}, but of {n_processes} processes the last is {n_processes - 1}.")
    address = environment.get("JAX_COORDINATOR_ADDRESS")
    if not address:
        raise ArgumentError(
            f"JAX_NUM_PROCESSES is {n_processes}, but JAX_COORDINATOR_ADDRESS is not set. Give all of them the "
            f"HOST:PORT at which the first one is to listen, as in 10.0.0.1:8476."
        )
    return _Together(address, n_processes, index, place_of=lambda number: f"JAX_PROCESS_ID={number}")


def _of_cluster(environment: Mapping[str, str]) -> _Together | None:
    """What SLURM or Open MPI tell; None if they have started no others with this process."""
    cluster = find_cluster(environment)
    if cluster is None:
        return None
    device_ids: Sequence[int] | None = share_of_gpus(cluster, environment) or None
    address = cluster.address or environment.get("JAX_COORDINATOR_ADDRESS")
    if not address:
        # JAX knows where the first process listens, but tells that only when it has joined.
        address, _, _, device_ids = ClusterEnv.auto_detect_unset_distributed_params(
            None, cluster.n_processes, cluster.index, device_ids, cluster.method, None
        )
    if not address:
        raise ArgumentError(
            f"{cluster.method} has started this process together with others, but does not say where the first of them "
            f"is. Set JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID."
        )
    job = f"job {environment['SLURM_JOB_ID']} of SLURM" if cluster.method == "slurm" else "mpirun"
    return _Together(
        address,
        cluster.n_processes,
        cluster.index,
        place_of=lambda number: f"task {number} of {job}",
        device_ids=device_ids,
    )


def _whole_number(environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name, "")
    if not text.isdecimal():
        given = f"is {text!r}" if text else "is not set"
        raise ArgumentError(
            f"{name} {given}. Each of several processes needs JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and "
            f"JAX_PROCESS_ID, a number from 0 on."
        )
    return int(text)


def _of_tf_config(environment: Mapping[str, str]) -> _Together | None:
    """What `TF_CONFIG` tells; None if that is of no other process."""
    role = cluster_role(environment)
    if role is None:
        return None
    text = environment[TF_CONFIG]
    try:
        addresses = [address for kind in ("chief", "master", "worker") for address in role.cluster.get(kind, ())]
        is_server = role.kind == "ps" and bool(addresses)
        if len(addresses) < 2 and not is_server:
            return None
        index = 0 if is_server else addresses.index(role.cluster[role.kind][role.number])
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        raise ArgumentError(
            f"TF_CONFIG is {text!r}, which does not say which of several workers this process is. Write "
            f'{{"cluster": {{"worker": ["10.0.0.1:8476", "10.0.0.2:8476"]}}, "task": {{"type": "worker", "index": 0}}}}'
            f", unset it, or set JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID."
        ) from None
    if is_server:
        raise ArgumentError(
            f"TF_CONFIG is {text!r}, so this process is a parameter server (ps). None is needed: the workers keep the "
            f"parameters themselves, and do not count it. Do not start it, or let it end here."
        )
    return _Together(addresses[0], len(addresses), index, place_of=lambda number: f"{addresses[number]} in TF_CONFIG")


def _bind_address(address: str) -> str:
    """Where the first process listens, so that the others find it at an address: there, or else on all interfaces.

    Many machines know themselves by an address that no other can reach, so a name that means the loopback here is no
    place to listen, and an address in front of a machine (of a cluster's service) is none of its interfaces.
    """
    host, port = host_and_port(address)
    try:
        with socket.create_server((host, 0), family=family(host)) as server:
            is_local = ipaddress.ip_address(server.getsockname()[0]).is_loopback
    except OSError:
        return f"[::]:{port}"
    return f"[::]:{port}" if is_local and not _is_loopback(host) else address


def _check_free(bind_address: str) -> None:
    """Raises an error if somebody listens at an address: JAX would share the port, or end with a trace."""
    host, port = host_and_port(bind_address)
    try:
        socket.create_connection(("localhost" if _is_everywhere(host) else host, port), _SECONDS_TO_ANSWER).close()
    except OSError:
        return
    raise ArgumentError(
        f"The first of the processes is to listen at {bind_address} (JAX_COORDINATOR_ADDRESS, or "
        f"JAX_COORDINATOR_BIND_ADDRESS), but another process does so already. Give all of them another port."
    )


def _tell_of(bind_address: str, n_processes: int) -> None:
    host, port = host_and_port(bind_address)
    if not _is_loopback(host):
        where = f"all interfaces, port {port}" if _is_everywhere(host) else bind_address
        print_line(
            f"Waiting for {n_processes - 1} more processes on {where}. JAX asks nobody who he is: whoever reaches this "
            f"port can end the run, so keep it within a network that you trust."
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_everywhere(host: str) -> bool:
    return host in ("::", "0.0.0.0")


def sum_over_processes(numbers: Sequence[int]) -> int:
    """Adds up whole numbers, each on a device of its own, by the devices themselves.

    Args:
        numbers: As many as there are devices, the same in all processes.
    """
    mesh = jax.make_mesh((len(numbers),), ("all",), axis_types=(AxisType.Auto,), devices=jax.devices())
    values = spread(np.array(numbers, np.int32), NamedSharding(mesh, PartitionSpec("all")))
    return int(jax.jit(jnp.sum, out_shardings=NamedSharding(mesh, PartitionSpec()))(values))


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
