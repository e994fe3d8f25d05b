"""How programs that run again and again are compiled."""

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax

# Without Triton's matrix products a step compiles sooner and runs as fast: docs/decisions/0008.
_ON_GPUS = {"xla_gpu_enable_triton_gemm": False}


def jit_on(devices: Sequence[Any], function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """`jax.jit` with the options of XLA that suit the devices. What XLA_FLAGS says itself is left as it says."""
    chosen = _ON_GPUS if devices[0].platform == "gpu" else {}
    flags = os.environ.get("XLA_FLAGS", "")
    given = {name: value for name, value in chosen.items() if name not in flags and _is_known(name)}
    return jax.jit(function, compiler_options=given or None, **options)


@functools.cache
def _is_known(name: str) -> bool:
    """Whether XLA has that option still: it makes no promise about them."""
    try:
        jax.jit(lambda: 0, compiler_options={name: False}).lower().compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True
