"""Work on all cores, in order: what comes out does not depend on how many there are."""

import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any, TypeVar

Block = TypeVar("Block")
Result = TypeVar("Result")

_BYTES_WORTH_A_PROCESS = 16 << 20


def n_useful_workers(n_bytes: int) -> int:
    """How many processes do good to input of a size: starting one takes a second."""
    return max(1, min(os.cpu_count() or 1, n_bytes // _BYTES_WORTH_A_PROCESS))


def ordered_map(function: Callable[[Block], Result], blocks: Iterable[Block], *, n_workers: int) -> Iterator[Result]:
    """Yields the function's results in the order of the blocks; only a few blocks are in memory at a time.

    Args:
        function: Anything that can be sent to another process.
        n_workers: With one, the work is done here.
    """
    if n_workers <= 1:
        yield from map(function, blocks)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(n_workers, mp_context=context, initializer=_start, initargs=(function,)) as pool:
        waiting: deque[Any] = deque()
        for block in blocks:
            waiting.append(pool.submit(_work, block))
            if len(waiting) > 2 * n_workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


_function: Callable[[Any], Any] | None = None


def _start(function: Callable[[Any], Any]) -> None:
    # Sent once: with each block it would carry its tokenizer along.
    global _function
    _function = function


def _work(block: Any) -> Any:
    assert _function is not None
    return _function(block)
