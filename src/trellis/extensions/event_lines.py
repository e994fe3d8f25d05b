"""The lines of `events.jsonl`, written and read; nothing here needs JAX, so that a command can look at runs at once."""

import json
import zlib
from pathlib import Path
from typing import Any

_CHECKSUM_NAME = "crc32"
_CHECKSUM = f', "{_CHECKSUM_NAME}": '
_POINTS = ("summary", "fingerprint")


def with_checksum(text: str) -> str:
    """A JSON object with the checksum of its text as its last value."""
    return f"{text.removesuffix('}')}{_CHECKSUM}{zlib.crc32(text.encode())}}}"


def parse_event(line: bytes) -> dict[str, Any]:
    """The object on a line, without its checksum; empty if it holds none, is cut short or garbled."""
    body, has_checksum, checksum = line.rstrip(b"\n").rpartition(_CHECKSUM.encode())
    # A line of an older version has none.
    if has_checksum and checksum != f"{zlib.crc32(body + b'}')}}}".encode():
        return {}
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(event, dict):
        return {}
    event.pop(_CHECKSUM_NAME, None)
    return event


def is_point_past(step: int, line: bytes) -> bool:
    """Whether a line tells of the state after a later step, which a run that goes on from `step` tells again."""
    # Most lines of other kinds need not be parsed.
    event = parse_event(line) if any(f'"{kind}"'.encode() in line for kind in _POINTS) else {}
    at = event.get("step")
    return event.get("kind") in _POINTS and isinstance(at, int) and at > step


def read_events(path: Path) -> list[dict[str, Any]]:
    """The events of a file in order; an OSError if it cannot be read. Lines that hold no event are passed over."""
    return [event for event in map(parse_event, path.read_bytes().splitlines()) if event]


def read_summaries(path: Path) -> dict[int, dict[str, Any]]:
    """The summaries of a file of events, by step; there are none in a file that cannot be read."""
    try:
        events = read_events(path)
    except OSError:
        return {}
    summaries = [event for event in events if event.get("kind") == "summary"]
    return {event["step"]: event for event in summaries if isinstance(event.get("step"), int)}
