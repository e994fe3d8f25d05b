"""An ordered map over the machines of a cluster of Ray."""

import contextlib
import logging
import os
import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from trellis.errors import ArgumentError, MissingPackageError, RunFailedError
from trellis.launch import join_cluster
from trellis.nlp.data.token_cache import Block, OrderedMap, Result
from trellis.version import __version__

_N_RETRIES = 8
"""How often a block is done again whose worker or machine was lost."""
_BLOCKS_A_CORE = 2
"""How many blocks are under way for each core: one that is worked on, and one that waits."""


def ray_map(address: str | None = None) -> OrderedMap:
    """Work on all cores of a cluster of Ray. A block whose worker is lost is done again; its errors are raised here.

    All machines have to have this version of Trellis, and have to see the files that the work names by the same paths.

    Args:
        address: Of the cluster; None is the one of `RAY_ADDRESS`, or that this machine belongs to.
    """
    try:
        import ray
    except ImportError:
        raise MissingPackageError("ray", "ray") from None
    if not ray.is_initialized():
        own = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
        # Not None, for which Ray would start a cluster here: this machine's cores need none.
        address = address or os.environ.get("RAY_ADDRESS") or "auto"
        join_cluster(ray, address, runtime_env={"env_vars": own}, logging_level=logging.WARNING)

    def ordered_map(function: Callable[[Block], Result], blocks: Iterable[Block], /) -> Iterator[Result]:
        return _ray_map(ray, function, blocks)

    return ordered_map


def _ray_map(ray: Any, function: Callable[[Block], Result], blocks: Iterable[Block]) -> Iterator[Result]:
    do_block = ray.remote(num_cpus=1, max_retries=_N_RETRIES)(_do_block)
    # The work travels to each machine once, and not with each block.
    work = ray.put(_Work(pickle.dumps(function), directory=os.getcwd(), version=__version__))
    waiting: deque[Any] = deque()
    # What is under way when this is left early is not cancelled: Ray ends it with this process, and may crash if it is
    # told to cancel a task that is just done.
    for block in blocks:
        waiting.append(do_block.remote(work, block))
        while len(waiting) >= max(2, _BLOCKS_A_CORE * int(ray.cluster_resources().get("CPU", 1))):
            yield _result(ray, waiting.popleft())
    while waiting:
        yield _result(ray, waiting.popleft())


def _result(ray: Any, reference: Any) -> Any:
    """Waits for a block."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, Exception) and not isinstance(error.cause, ray.exceptions.RayError):
            raise error.cause from None
        # Not the work has failed, but Ray with what it needs.
        raise RunFailedError(
            f"Ray has lost a part of the work: {_one_line(error.cause or error)} Look at `ray status`, and start the "
            f"same command again."
        ) from None
    except ray.exceptions.RayError as error:
        raise RunFailedError(
            f"A block was lost on Ray {_N_RETRIES + 1} times: {_one_line(error)} If its workers ran out of memory, "
            f"give Ray fewer cores a machine (ray start --num-cpus=…)."
        ) from None


class _Work(NamedTuple):
    """What is done with each block."""

    pickled_function: bytes
    """Not the function itself: what it is unpickled from may lie in the directory."""
    directory: str
    """The current one of the command, which its paths may start from."""
    version: str


def _do_block(work: _Work, block: object) -> Any:
    """Works on a block, in a process of Ray."""
    if work.version != __version__:
        raise ArgumentError(
            f"A machine of the cluster has Trellis {__version__}, but the data is prepared by {work.version}. Install "
            f"the same on all machines."
        )
    with contextlib.suppress(OSError):
        os.chdir(work.directory)
    return pickle.loads(work.pickled_function)(block)  # noqa: S301  (what the command itself has pickled)


def _one_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{lines[0].rstrip('.')}." if lines else f"{type(error).__name__}."
