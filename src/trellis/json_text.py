"""JSON from others, of which all that can be wrong is one kind of error, and numbers that JSON does not have."""

import json
import math
import re
from typing import Any

DEEPEST = 64
"""How many levels JSON may have; what reads, compares and prints it goes down level by level."""
_HALF_OF_A_PAIR = re.compile(r"\\u[dD][89a-fA-F]", re.ASCII)


def parse_json(text: str | bytes) -> Any:
    """Returns what JSON text holds; whatever is wrong with the text is a ValueError, in a line.

    Besides what is no JSON, these are refused: more than 64 levels, whole numbers of thousands of digits, and text that
    cannot be written again, because it has half of a surrogate pair.

    Example:
        >>> parse_json('{"steps": 10}')
        {'steps': 10}
    """
    text = text.decode("utf-8-sig") if isinstance(text, bytes) else text
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        raise
    except ValueError:
        raise ValueError("a whole number has more than 4300 digits") from None
    except RecursionError:
        raise ValueError(_too_deep()) from None
    if text.count("[") + text.count("{") > DEEPEST and _is_too_deep(value):
        raise ValueError(_too_deep())
    if _HALF_OF_A_PAIR.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = error.object[error.start]
            raise ValueError(f"a text has \\u{ord(half):04x}, which is half of a character") from None
    return value


def _too_deep() -> str:
    return f"it is nested too deeply: {DEEPEST} levels are the most"


def _is_too_deep(value: object) -> bool:
    level = [value]
    for _ in range(DEEPEST):
        nested = (item for item in level if isinstance(item, dict | list))
        level = [inner for item in nested for inner in (item.values() if isinstance(item, dict) else item)]
    return any(isinstance(item, dict | list) for item in level)


def without_nan(value: Any) -> Any:
    """What JSON can hold, with names in the place of numbers that it does not have."""
    match value:
        case float() if not math.isfinite(value):
            return str(value)
        case dict():
            return {name: without_nan(item) for name, item in value.items()}
        case list() | tuple():
            return [without_nan(item) for item in value]
    return value
