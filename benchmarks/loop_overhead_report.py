"""The numbers of all parts as tables for people."""

import os
import platform
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median, quantiles
from typing import TypeVar

from loop_overhead_saves import Saved
from loop_overhead_starts import Started
from loop_overhead_workers import OURS, OURS_UNSCANNED, Measurement
from loop_overhead_workloads import WORKLOADS

PACKAGES = ("jax", "flax", "optax", "orbax-checkpoint", "numpy", "keras", "torch", "lightning", "transformers")

MOST_OVERHEAD = 20.0
"""Microseconds that an unfused step may take above one of the raw jit loop."""
LEAST_FUSED_THROUGHPUT = 0.95
"""The share of the throughput of a raw scan that fused steps have to reach, and of raw jit where nothing is fused."""

Item = TypeVar("Item")
Key = TypeVar("Key")

RAW_JIT, UNFUSED, RAW_SCAN, FUSED_50, FUSED = OURS.contenders
_, TRELLIS = OURS_UNSCANNED.contenders


def describe_machine() -> str:
    """Processor, Python and packages; no names of hosts, no paths."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    cpu = f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores"
    packages = ", ".join(f"{name} {found}" for name in PACKAGES if (found := _version(name)))
    return f"{cpu}; Python {platform.python_version()}; {packages}"


def report_steps(measurements: Sequence[Measurement]) -> str:
    """Part A: a table for each workload, and the two targets."""
    workloads = dict.fromkeys(item.workload for item in measurements)
    return "\n\n".join(_report_workload(name, [m for m in measurements if m.workload == name]) for name in workloads)


def report_saves(saves: Sequence[Saved]) -> str:
    """Part B: medians over the rounds."""
    head = ("parameters", "writer", "the call blocks", "next steps lose", "until committed", "restore")
    rows = []
    for (n_parameters, contender), group in _groups(saves, lambda item: (item.n_parameters, item.contender)):
        call, lost, total, restored = (
            median(getattr(item, name) for item in group) for name in ("call", "lost", "total", "restore")
        )
        cells = f"{call:.3f} s", f"{lost:.2f} s", f"{total:.2f} s", f"{restored:.2f} s"
        rows.append((f"{n_parameters / 1e6:.0f} M", contender, *cells))
    return _table(head, rows)


def report_starts(starts: Sequence[Started]) -> str:
    """Part C: medians over the rounds."""
    head = ("script", "cold cache", "warm cache", "imports alone")
    rows = []
    for contender, group in _groups(starts, lambda item: item.contender):
        warm = [item.seconds for item in group if item.is_warm]
        cold = [item.seconds for item in group if not item.is_warm]
        imports = median(item.import_seconds for item in group)
        rows.append(
            (contender, f"{median(cold):.2f} s", f"{median(warm):.2f} s" if warm else "no cache", f"{imports:.2f} s")
        )
    return _table(head, rows)


def _report_workload(name: str, measurements: Sequence[Measurement]) -> str:
    walls = {who: [m.wall for m in group] for who, group in _groups(measurements, lambda m: m.contender)}
    hosts = {who: [m.host for m in group] for who, group in _groups(measurements, lambda m: m.contender)}
    processors = {who: [m.processor for m in group] for who, group in _groups(measurements, lambda m: m.contender)}
    is_scanned = WORKLOADS[name].is_scanned
    units = {FUSED: "Trellis fused ×", UNFUSED: "Trellis unfused ×"} if is_scanned else {TRELLIS: "Trellis ×"}
    head = ("contender", "steps/s", "µs a step", "min", "IQR", "main thread", "all threads", *units.values())
    rows = []
    for who, times in walls.items():
        is_ours = who in (*OURS.contenders, TRELLIS)
        threads = [f"{median(part[who]):.0f} µs" if is_ours else "" for part in (hosts, processors)]
        ratios = [f"{_median_ratio(times, walls[ours]):.2f}" for ours in units]
        numbers = f"{1e6 / median(times):.0f}", f"{median(times):.0f}", f"{min(times):.0f}", _spread(times)
        rows.append((who, *numbers, *threads, *ratios))
    if is_scanned:
        shares = [_report_share(who, RAW_SCAN, walls, processors) for who in (FUSED_50, FUSED)]
        targets = [_report_overhead(walls, hosts), *shares]
    else:
        targets = [_report_share(TRELLIS, RAW_JIT, walls, processors)]
    sizes, n_rounds = WORKLOADS[name], len({m.round for m in measurements})
    about = f"**{name}**, batches of {sizes.batch_size}, {sizes.n_steps} steps a round, rounds: {n_rounds}"
    return "\n".join([f"{about}\n\n{_table(head, rows)}\n", *targets])


def _report_overhead(walls: dict[str, list[float]], hosts: dict[str, list[float]]) -> str:
    """What a step costs that is not fused."""

    def over(times: dict[str, list[float]]) -> list[float]:
        return [ours - raw for ours, raw in zip(times[UNFUSED], times[RAW_JIT], strict=True)]

    overhead = median(over(walls))
    of_minima = min(walls[UNFUSED]) - min(walls[RAW_JIT])
    return (
        f"- Trellis unfused over the raw jit loop: {overhead:+.1f} µs a step (median of the rounds' differences; "
        f"{of_minima:+.1f} between the minima; {median(over(hosts)):+.1f} in main-thread time); "
        f"{_verdict(overhead <= MOST_OVERHEAD, f'at most {MOST_OVERHEAD:.0f} µs')}."
    )


def _report_share(who: str, raw: str, walls: dict[str, list[float]], processors: dict[str, list[float]]) -> str:
    """The share of the throughput of the same loop by hand."""
    throughput = _median_ratio(walls[raw], walls[who])
    of_minima = min(walls[raw]) / min(walls[who])
    of_processor = _median_ratio(processors[raw], processors[who])
    return (
        f"- {who}, relative to the {raw}: {throughput:.3f} of its throughput (median of the rounds' ratios; "
        f"{of_minima:.3f} of the minima; {of_processor:.3f} in processor time); "
        f"{_verdict(throughput >= LEAST_FUSED_THROUGHPUT, f'at least {LEAST_FUSED_THROUGHPUT}')}."
    )


def _spread(times: Sequence[float]) -> str:
    """The range of the middle half, of which one round has none."""
    if len(times) < 2:
        return "–"
    low, _, high = quantiles(times, n=4)
    return f"{high - low:.0f}"


def _verdict(is_met: bool, target: str) -> str:
    return f"the target, {target}, is {'met' if is_met else 'MISSED'}"


def _median_ratio(times: Sequence[float], unit: Sequence[float]) -> float:
    return median(time / one for time, one in zip(times, unit, strict=True))


def _groups(items: Iterable[Item], key: Callable[[Item], Key]) -> Iterable[tuple[Key, list[Item]]]:
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups.items()


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
