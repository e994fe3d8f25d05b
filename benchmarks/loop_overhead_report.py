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
from loop_overhead_workers import OURS, Measurement

PACKAGES = ("jax", "flax", "optax", "orbax-checkpoint", "numpy", "keras", "torch", "lightning", "transformers")

MOST_OVERHEAD = 20.0
"""Microseconds that an unfused step may take above one of the raw jit loop."""
LEAST_FUSED_THROUGHPUT = 0.95
"""The share of the throughput of a raw scan that fused steps have to reach."""

Item = TypeVar("Item")
Key = TypeVar("Key")

RAW_JIT, UNFUSED, RAW_SCAN, FUSED_50, FUSED = OURS.contenders


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
    head = ("contender", "steps/s", "µs a step", "min", "IQR", "main thread", "Trellis fused ×", "Trellis unfused ×")
    rows = []
    for who, times in walls.items():
        low, _, high = quantiles(times, n=4)
        host = f"{median(hosts[who]):.0f} µs" if who in OURS.contenders else ""
        ratios = [f"{_median_ratio(times, walls[ours]):.2f}" for ours in (FUSED, UNFUSED)]
        numbers = f"{1e6 / median(times):.0f}", f"{median(times):.0f}", f"{min(times):.0f}", f"{high - low:.0f}"
        rows.append((who, *numbers, host, *ratios))
    return f"**{name}**\n\n{_table(head, rows)}\n\n{_report_targets(walls, hosts)}"


def _report_targets(walls: dict[str, list[float]], hosts: dict[str, list[float]]) -> str:
    def over(times: dict[str, list[float]]) -> list[float]:
        return [ours - raw for ours, raw in zip(times[UNFUSED], times[RAW_JIT], strict=True)]

    overhead = median(over(walls))
    of_minima = min(walls[UNFUSED]) - min(walls[RAW_JIT])
    lines = [
        f"- Trellis unfused over the raw jit loop: {overhead:+.1f} µs a step (median of the rounds' differences; "
        f"{of_minima:+.1f} between the minima; {median(over(hosts)):+.1f} in main-thread time); "
        f"{_verdict(overhead <= MOST_OVERHEAD, f'at most {MOST_OVERHEAD:.0f} µs')}."
    ]
    for who in (FUSED_50, FUSED):
        throughput = _median_ratio(walls[RAW_SCAN], walls[who])
        of_minima = min(walls[RAW_SCAN]) / min(walls[who])
        lines.append(
            f"- {who}, relative to the raw scan: {throughput:.3f} of its throughput (median of the rounds' ratios; "
            f"{of_minima:.3f} of the minima); "
            f"{_verdict(throughput >= LEAST_FUSED_THROUGHPUT, f'at least {LEAST_FUSED_THROUGHPUT}')}."
        )
    return "\n".join(lines)


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
