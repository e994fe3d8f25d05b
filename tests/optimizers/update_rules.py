"""The published update rules, written once more in NumPy and float64.

Each takes the number of the update from 1 on, the learning rate, a parameter, its gradient, a dict of its own to
remember things in, and the optimizer's settings, and returns the new parameter.
"""

from typing import Any

import numpy as np

Array = Any


def norm(x: Array) -> float:
    return float(np.sqrt(np.sum(x**2)))


def rms(x: Array) -> float:
    return float(np.sqrt(np.mean(x**2)))


def remember(memory: dict[str, Array], key: str, like: Array, start: float = 0.0) -> Array:
    return memory.setdefault(key, np.full_like(like, start))


def mean(memory: dict[str, Array], key: str, value: Array, decay: float) -> Array:
    memory[key] = decay * remember(memory, key, value) + (1 - decay) * value
    return memory[key]


def sgd(
    t: int, lr: float, p: Array, g: Array, memory: dict[str, Array], *, momentum: float = 0.0, nesterov: bool = False
) -> Array:
    v = momentum * remember(memory, "v", p) - lr * g
    memory["v"] = v
    return p + (momentum * v - lr * g if nesterov else v)


def adam(
    t: int,
    lr: float,
    p: Array,
    g: Array,
    memory: dict[str, Array],
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-7,
    amsgrad: bool = False,
    decay: float = 0.0,
) -> Array:
    m, v = mean(memory, "m", g, b1), mean(memory, "v", g**2, b2)
    if amsgrad:
        v = memory["greatest"] = np.maximum(remember(memory, "greatest", v), v)
    corrected = lr * np.sqrt(1 - b2**t) / (1 - b1**t)
    return p - lr * decay * p - corrected * m / (np.sqrt(v) + eps)


def lamb(
    t: int,
    lr: float,
    p: Array,
    g: Array,
    memory: dict[str, Array],
    *,
    eps: float = 1e-6,
    decay: float = 0.0,
    is_adapted: bool = True,
) -> Array:
    m, v = mean(memory, "m", g, 0.9) / (1 - 0.9**t), mean(memory, "v", g**2, 0.999) / (1 - 0.999**t)
    u = m / (np.sqrt(v) + eps) + decay * p
    ratio = norm(p) / norm(u) if is_adapted and norm(p) > 0 and norm(u) > 0 else 1.0
    return p - ratio * lr * u


def lars(
    t: int,
    lr: float,
    p: Array,
    g: Array,
    memory: dict[str, Array],
    *,
    momentum: float = 0.9,
    decay: float = 0.0,
    nesterov: bool = False,
    classic: bool = True,
    is_adapted: bool = True,
) -> Array:
    def trust(u: Array) -> float:
        return 0.001 * norm(p) / norm(u) if is_adapted and norm(p) > 0 and norm(u) > 0 else 1.0

    g = g + decay * p
    step = lr * trust(g) * g if classic else g
    v = memory["v"] = momentum * remember(memory, "v", p) + step
    u = momentum * v + step if nesterov else v
    return p - u if classic else p - trust(u) * lr * u


def rmsprop(
    t: int,
    lr: float,
    p: Array,
    g: Array,
    memory: dict[str, Array],
    *,
    rho: float = 0.9,
    eps: float = 1e-7,
    momentum: float = 0.0,
    centered: bool = False,
) -> Array:
    v = mean(memory, "v", g**2, rho)
    if centered:
        v = v - mean(memory, "m", g, rho) ** 2
    if not momentum:
        return p - lr * g / (np.sqrt(v) + eps)
    memory["momentum"] = momentum * remember(memory, "momentum", p) + lr * g / np.sqrt(v + eps)
    return p - memory["momentum"]


def adagrad(
    t: int, lr: float, p: Array, g: Array, memory: dict[str, Array], *, start: float = 0.1, eps: float = 1e-7
) -> Array:
    memory["total"] = remember(memory, "total", p, start) + g**2
    return p - lr * g / (np.sqrt(memory["total"]) + eps)


def factored_scale(t: int, g: Array, memory: dict[str, Array], *, is_factored: bool, power: float, eps: float) -> Array:
    """The gradient over the root of Adafactor's second moments."""
    decay, square = 1 - t**power, g**2 + eps
    if not is_factored:
        return g / np.sqrt(mean(memory, "v", square, decay))
    rows = mean(memory, "rows", square.mean(-1), decay)
    columns = mean(memory, "columns", square.mean(-2), decay)
    return g / np.sqrt((rows / rows.mean(-1, keepdims=True))[..., None] * columns[..., None, :])


def adafactor(
    t: int,
    lr: float,
    p: Array,
    g: Array,
    memory: dict[str, Array],
    *,
    least_size: int = 128,
    beta1: float = 0.0,
    decay: float = 0.0,
    is_scaled: bool = True,
) -> Array:
    is_factored = p.ndim == 2 and min(p.shape) >= least_size
    u = factored_scale(t, g, memory, is_factored=is_factored, power=-0.8, eps=1e-30)
    u = lr * u / max(1.0, rms(u)) * (max(1e-3, rms(p)) if is_scaled else 1.0)
    return p - mean(memory, "m", u, beta1) - decay * p


def adafactor_keras(
    t: int, lr: float, p: Array, g: Array, memory: dict[str, Array], *, is_relative: bool = True
) -> Array:
    u = factored_scale(t, g, memory, is_factored=p.ndim >= 2, power=-0.8, eps=1e-30)
    rate = min(lr, 1 / np.sqrt(t)) if is_relative else lr
    return p - max(1e-3, rms(p)) * rate * u / max(1.0, rms(u))
