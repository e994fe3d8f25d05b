"""YAML and JSON text, read with the place of every value and written without surprises."""

import os
from pathlib import Path
from typing import Any

import yaml

from trellis.config.problems import Problem
from trellis.config.settings import Origin, Setting, Text, as_setting
from trellis.json_text import DEEPEST, parse_json
from trellis.spelling import did_you_mean

_WIDE = 1_000_000
_MERGE = "tag:yaml.org,2002:merge"
_TUPLE = "tag:yaml.org,2002:python/tuple"
# What an alias stands for is read each time that it occurs: a few aliases of aliases would be billions of values.
_MOST_VALUES_A_LETTER = 20
_MOST_VALUES_OF_A_SHORT_TEXT = 10_000


_Entries = dict[str, tuple[yaml.Node, yaml.Node]]


class _Dumper(yaml.SafeDumper):
    """Writes lists on one line, tuples as lists, and everything in full."""

    def ignore_aliases(self, data: object) -> bool:
        """Writes a value each time that it occurs."""
        return True


def _flow_list(dumper: _Dumper, items: Any) -> yaml.Node:
    nested = any(isinstance(item, dict) for item in items)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=not nested)


_Dumper.add_representer(list, _flow_list)
_Dumper.add_representer(tuple, _flow_list)


def dump(values: dict[str, Any]) -> str:
    """Returns plain nested data as YAML that every YAML reader reads alike."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, default_flow_style=False, allow_unicode=True, width=_WIDE)


def read_file(config_file: str | Path) -> tuple[Setting, list[Problem]]:
    """Returns what a YAML or JSON file gives, and what is wrong with it as a file; an empty one gives nothing."""
    source = Origin(str(config_file), form="file")
    path = Path(config_file)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        return Setting({}, source), [_unreadable(path, error, source)]
    setting, problems = read_text(text, source=str(config_file))
    if problems and path.suffix == ".json":  # YAML lacks a few of JSON's liberties, such as tabs.
        try:
            values = parse_json(text)
        except ValueError:
            return setting, problems
        if isinstance(values, dict):
            return as_setting(values, source), []
    return setting, problems


def read_text(text: str, *, source: str) -> tuple[Setting, list[Problem]]:
    """Returns what a YAML document gives, each value with its line and column, and what is wrong with it."""
    reader = _Reader(text, source)
    return reader.document(), reader.problems


class _Reader:
    def __init__(self, text: str, source: str) -> None:
        self.problems: list[Problem] = []
        self._source = source
        self._text = text
        self._lines = text.splitlines()
        self._open: list[yaml.Node] = []
        self._entries_of: dict[int, _Entries] = {}
        self._n_values = 0
        self._most_values = max(_MOST_VALUES_OF_A_SHORT_TEXT, _MOST_VALUES_A_LETTER * len(text))

    def document(self) -> Setting:
        empty = Setting({}, Origin(self._source, form="file"))
        try:
            # It composes nodes only: the field that a scalar is for decides what it means.
            node = yaml.SafeLoader(self._text).get_single_node()
            return empty if node is None else self._root(node)
        except yaml.YAMLError as error:
            self.problems.append(self._syntax(error))
        except RecursionError:
            self.problems.append(_too_deep(empty.origin))
        except _TooManyValuesError:
            message = f"Its aliases (*name) stand for more than {self._most_values} values."
            self.problems.append(Problem(message, empty.origin, "", "Write the values out, or alias fewer of them."))
        return empty

    def _root(self, node: yaml.Node) -> Setting:
        if isinstance(node, yaml.MappingNode):
            return self._value(node)
        advice = "Write it as field: value, one to a line."
        self.problems.append(Problem("The file is not a mapping from fields to values.", self._at(node), "", advice))
        return Setting({}, self._at(node))

    def _value(self, node: yaml.Node) -> Setting:
        at = self._at(node)
        if node in self._open:
            self.problems.append(Problem("This value contains itself.", at))
            return Setting(None, at)
        self._n_values += 1
        if self._n_values > self._most_values:
            raise _TooManyValuesError
        if len(self._open) >= DEEPEST:
            self.problems.append(_too_deep(at))
            return Setting(None, at)
        is_plain = node.tag.startswith("tag:yaml.org,2002:") and "python/" not in node.tag
        if not is_plain and node.tag != _TUPLE:
            advice = "Leave it out: the field decides what a value is."
            self.problems.append(Problem(f"The tag {node.tag} is not read.", at, "", advice))
        if isinstance(node, yaml.ScalarNode):
            return Setting(Text(node.value, quoted=node.style is not None), at)
        self._open.append(node)
        if isinstance(node, yaml.MappingNode):
            setting = Setting(self._mapping(node), at)
        else:
            setting = Setting([self._value(item) for item in node.value], at)
        self._open.pop()
        return setting

    def _mapping(self, node: yaml.MappingNode) -> dict[str, Setting]:
        settings = {}
        for name, (key, value) in self._entries(node).items():
            setting = self._value(value)
            settings[name] = Setting(setting.value, setting.origin, self._at(key))
        return settings

    def _entries(self, node: yaml.MappingNode) -> "_Entries":
        """Returns the keys and values of a mapping by name: its own, and those of others that it merges in (`<<`)."""
        if id(node) in self._entries_of:
            return self._entries_of[id(node)]
        # A mapping that merges itself gets nothing from that.
        self._entries_of[id(node)] = {}
        own: _Entries = {}
        merged: _Entries = {}
        for key, value in node.value:
            if key.tag == _MERGE:
                for other in reversed(value.value if isinstance(value, yaml.SequenceNode) else [value]):
                    merged |= self._merged(other)
                continue
            if not isinstance(key, yaml.ScalarNode):
                self.problems.append(Problem("A key is text here, no list and no mapping.", self._at(key)))
                continue
            name = str(key.value)
            if name in own:
                message = f"{name} is given twice here, first in line {own[name][0].start_mark.line + 1}."
                self.problems.append(Problem(message, self._at(key), name, "Keep one of the two."))
            own[name] = (key, value)
        self._entries_of[id(node)] = merged | own
        return self._entries_of[id(node)]

    def _merged(self, node: yaml.Node) -> "_Entries":
        if isinstance(node, yaml.MappingNode):
            return self._entries(node)
        self.problems.append(Problem("Only a mapping, or a list of mappings, can be merged (<<).", self._at(node)))
        return {}

    def _at(self, node: yaml.Node) -> Origin:
        start, end = node.start_mark, node.end_mark
        line = self._lines[start.line] if start.line < len(self._lines) else ""
        last = end.column if end.line == start.line else len(line.rstrip())
        width = max(1, last - start.column)
        return Origin(self._source, "file", start.line + 1, start.column + 1, line, width)

    def _syntax(self, error: yaml.YAMLError) -> Problem:
        mark = getattr(error, "problem_mark", None)
        if mark is None:
            return Problem(f"This is not YAML: {error}.", Origin(self._source, form="file"))
        line = self._lines[mark.line] if mark.line < len(self._lines) else ""
        at = Origin(self._source, "file", mark.line + 1, mark.column + 1, line.replace("\t", "→"))
        if "\t" in line:
            return Problem("YAML does not take tabs.", at, "", "Write spaces instead:", line.expandtabs(2))
        reason = getattr(error, "problem", None) or "it cannot be parsed"
        advice = "Look for a missing colon, quote or bracket here or just above."
        return Problem(f"This is not YAML: {reason}.", at, "", advice)


class _TooManyValuesError(Exception):
    """Aliases stand for more values than are read."""


def _too_deep(at: Origin) -> Problem:
    return Problem(f"The file is nested too deeply to be read: {DEEPEST} levels are the most.", at)


def _unreadable(path: Path, error: Exception, source: Origin) -> Problem:
    if isinstance(error, UnicodeDecodeError):
        return Problem("The file is not UTF-8 text.", source, "", "Give a YAML or JSON file.")
    if path.is_dir():
        inside = sorted(item.name for item in path.glob("*.yaml"))
        advice = f"Give one of its files: {', '.join(inside) or 'it has no .yaml'}."
        return Problem("This is a directory.", source, "", advice)
    if path.exists():
        return Problem(f"The file cannot be read: {getattr(error, 'strerror', error)}.", source)
    folder = path.parent
    if not folder.is_dir():
        return Problem(f"There is no such file; there is no directory {folder} either.", source)
    advice = did_you_mean(path.name, os.listdir(folder), show=lambda close: str(folder / close)).lstrip()
    return Problem("There is no such file.", source, "", advice)
