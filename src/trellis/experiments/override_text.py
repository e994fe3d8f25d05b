"""The text of override flags: `a.b=1,c=[x, y]` and `a.b=1`."""

import itertools
import re
from dataclasses import dataclass
from pathlib import Path

from trellis.config import Edit, Origin, Problem, Setting, Text, for_shell, read_file, read_text
from trellis.json_text import DEEPEST

_QUOTES = "'\""
_NAME = re.compile(r"([A-Za-z][\w.]*)(\[(\d{1,18})\])?\s*=\s*")
# Text in quotes, a list, a mapping, or bare text, which may be empty; what is not closed is none of these.
_VALUE = re.compile(r"'[^']*'|\"[^\"]*\"|\[[^\[\]]*\]|\{[^,}]*\}|[^,\[{'\"][^,\[]*|")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_SEPARATOR = re.compile(r"\s*,\s*")


@dataclass(frozen=True)
class Entry:
    """One `name=value` of a flag."""

    path: str
    index: int | None
    setting: Setting


class OverrideText:
    """Reads one flag into a nested Setting, and collects what is wrong with it.

    Example:
        >>> str(OverrideText("task.hidden_size=32,trainer.train_steps=2000", flag="--params_override").read_list())
        '{task: {hidden_size: 32}, trainer: {train_steps: 2000}}'
    """

    def __init__(self, text: str, *, flag: str) -> None:
        self.problems: list[Problem] = []
        self._text = text
        self._flag = flag

    def read_list(self) -> Setting:
        """Returns what `--params_override` sets: entries with commas between, or YAML, or the name of a file."""
        if not _NAME.match(self._text):
            setting = self._other_form()
            if setting is not None:
                return setting
        entries: list[Entry] = []
        start = 0
        while start < len(self._text):
            start = self._read_entry(start, entries)
        return self._nested(entries)

    def read_one(self) -> Setting:
        """Returns what `--set` sets: one path, and all that follows the first `=` as its value."""
        match = _NAME.match(self._text)
        if match is None:
            self._refuse_name(0, len(self._text))
            return self._nested([])
        return self._nested([self._entry_of(match, self._text[match.end() :].rstrip())])

    def _other_form(self) -> Setting | None:
        """Reads text that is YAML or names a file; returns None for anything else, which is a malformed list."""
        text = self._text.strip()
        if not text:
            return self._nested([])
        if text.startswith("{") or "\n" in text or re.match(r"['\"\w.]+\s*:\s", text):
            setting, problems = read_text(self._text, source=self._flag)
        elif _is_file(text):
            setting, problems = read_file(text)
        else:
            return None
        self.problems += problems
        return setting

    def _read_entry(self, start: int, entries: list[Entry]) -> int:
        """Reads the entry at `start` and returns where the next one starts."""
        match = _NAME.match(self._text, start)
        if match is None:
            stop = self._text.find(",", start)
            stop = len(self._text) if stop < 0 else stop
            self._refuse_name(start, stop, previous=entries[-1] if entries else None)
            return stop + 1
        value = _VALUE.match(self._text, match.end())
        assert value is not None  # it may be empty
        separator = _SEPARATOR.match(self._text, value.end())
        if separator is None and value.end() < len(self._text):
            return self._refuse_value(match)
        entries.append(self._entry_of(match, value[0].rstrip()))
        return separator.end() if separator else value.end()

    def _entry_of(self, match: re.Match[str], text: str) -> Entry:
        key = self._at(match.start(), len(match[0].rstrip().rstrip("=").rstrip()))
        at = self._at(match.end(), len(text))
        if text.startswith(("[", "{")):
            setting = self._structure(text, at, key)
        else:
            quoted = _QUOTED.fullmatch(text) is not None
            setting = Setting(Text(text[1:-1] if quoted else text, quoted=quoted), at, key)
        return Entry(match[1], int(match[3]) if match[3] else None, setting)

    def _structure(self, text: str, at: Origin, key: Origin) -> Setting:
        """Reads a list or a mapping in YAML's short form."""
        inner, problems = read_text(f"value: {text}", source=self._flag)
        if problems:
            advice = "Put quotes around each item that has signs in it: ['a*', 'b: c']"
            self.problems.append(Problem(f"{text} cannot be read as a list or a mapping.", at, "", advice))
            return Setting(None, at, key)
        assert isinstance(inner.value, dict)
        return _moved(inner.value["value"], at, key)

    def _nested(self, entries: list[Entry]) -> Setting:
        """Puts entries into nested mappings; of two for the same field the later one counts."""
        root = Setting({}, Origin(self._flag, form="flag"))
        for entry in self._with_lists(entries):
            *groups, name = entry.path.split(".")
            if len(groups) >= DEEPEST:
                message = f"A name of {len(groups) + 1} parts is no field's: {DEEPEST} levels are the most."
                self.problems.append(Problem(message, entry.setting.key_origin, "", "Look for one dot too many."))
                continue
            level = root
            for group in groups:
                assert isinstance(level.value, dict)
                inner = level.value.setdefault(group, Setting({}, entry.setting.origin, entry.setting.key))
                level = inner if isinstance(inner.value, dict) else self._clash(entry, inner)
            assert isinstance(level.value, dict)
            old = level.value.get(name)
            if old is not None and isinstance(old.value, dict) and isinstance(entry.setting.value, Text):
                self._clash(entry, old)
                continue
            level.value[name] = entry.setting
        return root

    def _with_lists(self, entries: list[Entry]) -> list[Entry]:
        """Joins `a[0]=x,a[1]=y` into one list."""
        indexed: dict[str, dict[int, Setting]] = {}
        for entry in entries:
            if entry.index is not None:
                indexed.setdefault(entry.path, {})[entry.index] = entry.setting
        joined = [entry for entry in entries if entry.index is None]
        for path, items in indexed.items():
            first = next(iter(items.values()))
            # Not all numbers below the greatest, which may be enormous.
            missing = next(number for number in itertools.count() if number not in items)
            if missing < max(items):
                message = f"{path} is given item by item, but {path}[{missing}] is missing."
                advice = f"Give every item from 0 to {max(items)}, or the list at once: {path}=[…]"
                self.problems.append(Problem(message, first.key_origin, path, advice))
                continue
            joined.append(Entry(path, None, Setting([items[i] for i in sorted(items)], first.origin, first.key)))
        return joined

    def _clash(self, entry: Entry, old: Setting) -> Setting:
        message = f"{entry.path} contradicts what stands before it: a field has either a value or fields of its own."
        self.problems.append(Problem(message, entry.setting.key_origin, entry.path, "Keep one of the two."))
        return Setting({}, old.origin)

    def _refuse_name(self, start: int, stop: int, *, previous: Entry | None = None) -> None:
        text = self._text[start:stop]
        at = self._at(start, len(text))
        if not text:
            self._refuse("There is nothing between two commas.", at, "Take one of them out.")
        elif "=" not in text and previous is not None and isinstance(previous.setting.value, Text):
            advice = "A comma inside a value needs quotes. Write:"
            value = f"{previous.setting.value.text},{text}"
            edit = Edit(previous.setting.key_origin.column - 1, stop, f"{previous.path}='{value}'")
            self._refuse(f"{text} has no '='.", at, advice, edit)
        elif text != text.lstrip():
            self._refuse("A name cannot start with a blank.", at, "Write:", Edit(start, stop, text.strip()))
        elif "=" not in text:
            file = ", or the name of a file that exists" if self._flag == "--params_override" else ""
            self._refuse(f"{text} has no '='.", at, f"Write {self._flag}=field.name=value{file}.")
        else:
            name, _, value = text.partition("=")
            advice = "A name starts with a letter; letters, digits, '_' and '.' follow."
            edit = Edit(start, stop, f"{name.strip().replace('-', '_')}={value}")
            message = f"{name} is not a field's name."
            if _NAME.match(edit.text):
                self._refuse(message, at, f"{advice} Write:", edit)
            else:
                self._refuse(message, at, advice)

    def _refuse_value(self, match: re.Match[str]) -> int:
        """Notes why a value cannot be read, and returns where the next entry may start."""
        following = re.compile(r",\s*(?=[A-Za-z][\w.]*(\[\d{1,18}\])?\s*=)").search(self._text, match.end())
        stop = following.start() if following else len(self._text)
        text = self._text[match.end() : stop]
        at = self._at(match.end(), len(text))
        message = f"{match[1]} has a value that cannot be read."
        if text.startswith(("[", "{")):
            advice = "Lists have one level here, and mappings one entry. Write:"
            self.problems.append(Problem(message, at, match[1], advice, f"--set={for_shell(f'{match[1]}={text}')}"))
        else:
            edit = Edit(match.start(), stop, f"{match[1]}='{text.strip(_QUOTES)}'")
            self._refuse(message, at, "Text with such signs needs quotes. Write:", edit)
        return following.end() if following else stop

    def _refuse(self, message: str, at: Origin, advice: str, edit: Edit | None = None) -> None:
        edits = (edit,) if edit else ()
        self.problems.append(Problem(message, at, "", advice, edit.text if edit else "", edits))

    def _at(self, start: int, width: int) -> Origin:
        return Origin(self._flag, "flag", None, start + 1, self._text, max(1, width))


def _is_file(name: str) -> bool:
    try:
        return Path(name).is_file()
    except OSError:
        return False  # Text that is too long for a name, for one.


def _moved(setting: Setting, at: Origin, key: Origin | None = None) -> Setting:
    """Returns a setting with everything in it at one place."""
    value = setting.value
    if isinstance(value, list):
        value = [_moved(item, at) for item in value]
    if isinstance(value, dict):
        value = {name: _moved(item, at, at) for name, item in value.items()}
    return Setting(value, at, key)
