"""What a compiled program sends from device to device, counted in its text."""

import math
import re
from collections.abc import Iterator, Mapping

_ITEM_BYTES: Mapping[str, int] = {"pred": 1, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "bf16": 2, "f16": 2} | {
    **dict.fromkeys(("s32", "u32", "f32"), 4),
    **dict.fromkeys(("s64", "u64", "f64", "c64"), 8),
}
_COLLECTIVE = re.compile(
    r"= (?P<result>.*?) (?P<kind>all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)\((?P<rest>.*)"
)
_SHAPE = re.compile(r"\b([a-z]+\d+|pred)\[([\d,]*)\]")
_COMPUTATION = re.compile(r"^(?P<entry>ENTRY )?%?(?P<name>[\w.-]+) \(.*\{$")
_CALLED = re.compile(r"\b(?:body|to_apply|calls|true_computation|false_computation)=%?([\w.-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_N_TIMES = re.compile(r'known_trip_count":\{"n":"(\d+)"')
_LISTED = re.compile(r"replica_groups=\{\{([\d,]*)\}")
_COUNTED = re.compile(r"replica_groups=\[\d+,(\d+)\]<=")
_OF_A_MESH = re.compile(r"replica_groups=mesh\[(?P<sizes>[^\]]*)\].*?\{(?P<axes>[^}]*)\}")


def count_sent_bytes(program: str, *, n_devices: int) -> dict[str, int]:
    """The bytes that each device sends in one run of a program, by the kind of what sends them.

    Each is counted as a ring does it, which no other way undercuts: of g devices that sum up B bytes, each sends
    2 B (g - 1) / g; of g that gather or scatter B bytes, B (g - 1) / g. A loop counts as often as it runs.

    Args:
        program: As `jax.stages.Compiled.as_text` has it.
        n_devices: How many take part where the text does not say which.
    """
    lines_of, entry = _computations(program)
    sent: dict[str, float] = {}
    for kind, n_bytes in _sent_by(entry, lines_of, n_devices):
        sent[kind] = sent.get(kind, 0.0) + n_bytes
    return {kind: round(sent[kind]) for kind in sorted(sent) if sent[kind]}


def _computations(program: str) -> tuple[dict[str, list[str]], str]:
    """The lines of each function of a program, and the name of the one that it starts with."""
    lines_of: dict[str, list[str]] = {}
    entry, name = "", ""
    for line in program.splitlines():
        start = _COMPUTATION.match(line)
        if start:
            name = start["name"]
            lines_of[name] = []
            entry = name if start["entry"] else entry
        elif name:
            lines_of[name].append(line)
    return lines_of, entry


def _sent_by(name: str, lines_of: Mapping[str, list[str]], n_devices: int) -> Iterator[tuple[str, float]]:
    for line in lines_of.get(name, ()):
        collective = _COLLECTIVE.search(line)
        if collective:
            yield collective["kind"], _sent_bytes(collective, n_devices)
            continue
        called = _CALLED.findall(line)
        for names in _BRANCHES.findall(line):
            called += [branch.strip().lstrip("%") for branch in names.split(",")]
        times = _N_TIMES.search(line)
        n_times = int(times[1]) if times else 1
        for inner in called:
            yield from ((kind, n_times * n_bytes) for kind, n_bytes in _sent_by(inner, lines_of, n_devices))


def _sent_bytes(collective: re.Match[str], n_devices: int) -> float:
    size = _size_of(collective["result"])
    kind, n = collective["kind"], _group_size(collective["rest"], n_devices)
    if kind == "collective-permute":
        return float(size)
    if kind == "reduce-scatter":
        return float(size * (n - 1))
    return (2 if kind == "all-reduce" else 1) * size * (n - 1) / n


def _size_of(shapes: str) -> int:
    sizes = (
        _ITEM_BYTES.get(kind, 4) * math.prod(int(length) for length in lengths.split(",") if length)
        for kind, lengths in _SHAPE.findall(shapes)
    )
    return sum(sizes)


def _group_size(rest: str, n_devices: int) -> int:
    listed, counted, of_mesh = _LISTED.search(rest), _COUNTED.search(rest), _OF_A_MESH.search(rest)
    if listed:
        return listed[1].count(",") + 1
    if counted:
        return int(counted[1])
    if of_mesh:
        sizes = dict(re.findall(r"'([^']+)'=(\d+)", of_mesh["sizes"]))
        # A part of an axis is written with its size behind it: 'axis_0':(2)4.
        axes = re.findall(r"'([^']+)'(?::\(\d+\)(\d+))?", of_mesh["axes"])
        return math.prod(int(part or sizes[axis]) for axis, part in axes)
    return n_devices
