"""`trellis cache`: what is kept in the user's cache directory, shown and pruned."""

import argparse
import re
import time
from collections.abc import Sequence
from itertools import groupby

from trellis.cli.parser import Once, Parser
from trellis.errors import ArgumentError
from trellis.runtime import describe_duration, describe_size, print_error, print_json, print_line, table
from trellis.user_cache import COMPILED, CacheEntry, Pruned, cache_entries, cache_root, prune as prune_cache

_SHOW_EPILOG = """\
Nothing in it is needed: what is removed is made again when a run asks for it. Its place is XDG_CACHE_HOME/trellis, or
~/.cache/trellis. What was not used for long goes by: trellis cache prune
"""
_PRUNE_EPILOG = """\
What a run uses at this moment stays, links are not followed, and nothing outside the cache is touched. A run on an
accelerator that was interrupted goes on with the very programs that it was begun with, as long as they are kept.

  trellis cache prune --dry_run
  trellis cache prune --older_than=12h
"""
_DEFAULT_AGE = "30d"
_SECONDS = {"min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_SOME_NOT_REMOVED = 1
_N_SHOWN = 20


def add_show_flags(parser: Parser) -> None:
    """Adds in what form it is shown."""
    parser.epilog = _SHOW_EPILOG
    parser.add_json_flag()


def add_prune_flags(parser: Parser) -> None:
    """Adds what is removed."""
    parser.epilog = _PRUNE_EPILOG
    ages = f"remove what was not used for so long: 45min, 12h, 30d, 8w; the default is {_DEFAULT_AGE}"
    parser.add_flag("older_than", "AGE", ages)
    parser.add_argument("--older-than", dest="older_than", action=Once, help=argparse.SUPPRESS)
    parser.add_argument("--all", action="store_true", help="remove all that no run uses at this moment")
    parser.add_argument("--dry_run", action="store_true", help="only tell what would be removed")
    parser.add_json_flag()


def show(flags: argparse.Namespace) -> None:
    """Prints what is in the cache."""
    entries = cache_entries()
    total = sum(entry.size for entry in entries)
    if flags.json:
        listed = [_as_json(entry) for entry in entries]
        print_json({"path": str(cache_root()), "size": total, "entries": listed})
        return
    if not entries:
        print_line(f"The cache, {cache_root()}, is empty.")
        return
    print_line(f"The cache, {cache_root()}:")
    rows = [["size", "last used", "what", "where"], *_rows(entries, n_shown=_N_SHOWN), [_size(total), "", "in all", ""]]
    print_line("\n".join(table(rows, alignment="><<<")))
    print_line("What was not used for 30 days goes by: trellis cache prune")


def prune(flags: argparse.Namespace) -> int:
    """Removes what is old; prints what was removed, and what stays and why. 1 if something could not be removed."""
    if flags.all and flags.older_than is not None:
        raise ArgumentError(f"--all and --older_than={flags.older_than} are both given. Give one of them.")
    age = flags.older_than or _DEFAULT_AGE
    pruned = prune_cache(unused_for=0.0 if flags.all else _seconds(age), is_dry=flags.dry_run)
    size = sum(entry.size for entry in pruned.removed)
    if flags.json:
        print_json(_pruned_as_json(pruned, size, is_dry=flags.dry_run))
    else:
        verb = "Would be removed" if flags.dry_run else "Removed"
        if pruned.removed:
            print_line("\n".join(table(_rows(pruned.removed), alignment="><<<")))
        print_line(f"{verb}: {len(pruned.removed)}, {_size(size)}, from {cache_root()}.")
        if pruned.n_kept:
            print_line(f"Kept: {pruned.n_kept} that were used within {age}. --all removes them too.")
        if pruned.used:
            reason = "a run uses them now, or their file system cannot tell"
            print_line(f"Kept: {len(pruned.used)}, {_size(sum(entry.size for entry in pruned.used))}: {reason}.")
    for entry, reason in pruned.failed:
        print_error(f"`{entry.path}` could not be removed: {reason}.")
    return _SOME_NOT_REMOVED if pruned.failed else 0


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(min|h|d|w)", text)
    if match is None:
        raise ArgumentError(f"--older_than is {text!r}. Give a number and its unit, such as 45min, 12h, 30d or 8w.")
    return float(match[1]) * _SECONDS[match[2]]


def _rows(entries: Sequence[CacheEntry], *, n_shown: int | None = None) -> list[list[str]]:
    """A row for each entry, the largest first; compiled programs, of which there are hundreds, are one.

    Args:
        n_shown: The others are one row, too.
    """
    groups = [list(group) for _, group in groupby(sorted(entries, key=_group_of), key=_group_of)]
    groups.sort(key=lambda group: -sum(entry.size for entry in group))
    rows = [_row(group) for group in groups[:n_shown]]
    rest = [entry for group in groups[len(rows) :] for entry in group]
    if rest:
        rows.append([_size(sum(entry.size for entry in rest)), "", f"{len(rest)} more, listed by --json", ""])
    return rows


def _row(entries: Sequence[CacheEntry]) -> list[str]:
    newest = max(entries, key=lambda entry: entry.last_use)
    age = "in use" if any(entry.is_used for entry in entries) else _age(newest)
    is_one = len(entries) == 1
    where = (newest.path if is_one else newest.path.parent).relative_to(cache_root())
    what = newest.what if is_one else f"{len(entries)} {newest.what}"
    return [_size(sum(entry.size for entry in entries)), age, what, str(where)]


def _group_of(entry: CacheEntry) -> tuple[str, str]:
    is_small = entry.kind in (COMPILED, "tried_functions")
    return entry.kind, "" if is_small else entry.path.name


def _age(entry: CacheEntry) -> str:
    return f"{describe_duration(max(time.time() - entry.last_use, 0))} ago"


def _size(n_bytes: int) -> str:
    return describe_size(n_bytes).lstrip("=~ ")


def _as_json(entry: CacheEntry) -> dict[str, object]:
    return {
        "path": str(entry.path),
        "kind": entry.kind,
        "what": entry.what,
        "size": entry.size,
        "last_use": round(entry.last_use),
        "is_used": entry.is_used,
    }


def _pruned_as_json(pruned: Pruned, size: int, *, is_dry: bool) -> dict[str, object]:
    return {
        "path": str(cache_root()),
        "is_dry_run": is_dry,
        "size": size,
        "removed": [_as_json(entry) for entry in pruned.removed],
        "used": [_as_json(entry) for entry in pruned.used],
        "failed": [{**_as_json(entry), "reason": reason} for entry, reason in pruned.failed],
        "n_kept": pruned.n_kept,
    }
