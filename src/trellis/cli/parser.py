"""The flags of a word of the command, and those in files of flags, read without guessing."""

import argparse
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal, NoReturn

from trellis.disk import local_path, scheme_of
from trellis.errors import ArgumentError, DataError
from trellis.remote import check_address, fetched
from trellis.spelling import did_you_mean, nearest

_PATHS = ("DIR", "FILE", "WHICH")
"""What the help shows for the value of a flag that names something on a disk."""
_PATH_NAMES = ("_dir", "_file", "_path")

Address = Literal["refused", "fetched", "kept"]
"""What becomes of an address in a flag: an error, the path of a copy, or the address itself if it can be reached."""

SuggestSetting = Callable[[argparse.Namespace, str, str], tuple[str | None, bool]]
"""From the flags that there are, and the name and the value of one that there is not, to the text that was probably
meant, and whether that is certain."""

_LOGS = "logs, of which --v tells the least level, go to stderr"
_OF_ABSL: Mapping[str, str] = dict.fromkeys(
    ("alsologtostderr", "logtostderr", "stderrthreshold", "log_dir", "showprefixforinfo"), _LOGS
) | dict.fromkeys(("noalsologtostderr", "nologtostderr", "noshowprefixforinfo"), _LOGS)
"""Flags that every command of absl has and that do nothing here, each with the reason."""
_FLAG_FILE = "flagfile"
_COMMENTS = ("#", "//")
_LEVELS = {"fatal": -3, "error": -2, "warning": -1, "info": 0, "debug": 1}


@dataclass(frozen=True)
class Argument:
    """An argument of the command, and where it is written."""

    text: str
    file: str = ""
    """The file that it comes from; empty for the command line."""
    line: int = 0

    @property
    def place(self) -> str:
        """Where it is written, as a message begins with; empty for the command line."""
        return f"{self.file}:{self.line}: " if self.file else ""

    @property
    def flag(self) -> str:
        """The flag without its value, such as `--mode`; empty if it is none."""
        return self.text.partition("=")[0] if self.text.startswith("-") else ""


class Parser(argparse.ArgumentParser):
    """Reads flags as they are spelt, and raises what is wrong with them.

    Args:
        word: The word whose flags these are, such as `config show`.
        summary: What the word does.
    """

    def __init__(self, word: str, summary: str) -> None:
        super().__init__(
            prog=f"trellis {word}",
            description=f"{summary[0].upper()}{summary[1:]}.",
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self._addresses: dict[str, Address] = {}
        self.suggest_setting: SuggestSetting = lambda flags, name, value: (None, False)
        self.takes_command = False
        """Whether a command of its own follows the flags, behind two dashes; it becomes `flags.command`."""
        self._idle: dict[str, str] = {}
        self._arguments: Sequence[Argument] = ()
        general = self.add_argument_group("flags of every word")
        text = "a file of flags, one a line, # before a comment; of a flag that is also elsewhere, the last wins"
        general.add_argument("--flagfile", metavar="FILE", help=text)
        text = "show what libraries log, from a level on: -1 warnings, 0 info, 1 debug"
        names = ("-v", "--v", "--verbosity")
        general.add_argument(*names, dest="verbosity", metavar="N", nargs="?", const=1, type=_level, help=text)
        self.add_idle_flags(_OF_ABSL)

    def error(self, message: str) -> NoReturn:
        """Raises what argparse would print before it leaves, with the place if the flag is in a file."""
        flag = re.search(r"(?<!\S)--?\w+", message)
        places = [argument.place for argument in self._arguments if flag and argument.flag == flag[0]]
        place = places[-1] if places else ""
        raise ArgumentError(f"{place}{message[0].upper()}{message[1:]}.\n{self.way_out}")

    @property
    def way_out(self) -> str:
        """Where to read on."""
        return f"All flags: {self.prog} --help"

    def add_flag(self, name: str, metavar: str, text: str, *, address: Address = "refused", **options: Any) -> None:
        """Adds a flag that may occur once.

        Args:
            address: What becomes of an address such as `gs://bucket/run`, if the flag takes a path.
        """
        self._addresses[name] = address
        self.add_argument(f"--{name}", action=Once, metavar=metavar, help=text, **options)

    def add_repeated_flag(self, name: str, metavar: str, text: str, *, address: Address = "refused") -> None:
        """Adds a flag that may occur as often as one likes; its values are a list."""
        self._addresses[name] = address
        self.add_argument(f"--{name}", action="append", default=[], metavar=metavar, help=text)

    def add_json_flag(self, text: str = "print one JSON object, for programs") -> None:
        """Adds the flag with which stdout has the answer as JSON, and nothing else."""
        self.add_argument("--json", action="store_true", help=text)

    def add_idle_flags(self, reasons: Mapping[str, str]) -> None:
        """Adds flags of other programs that are accepted and do nothing, each with the reason."""
        self._idle.update(reasons)
        for name in reasons:
            self.add_argument(f"--{name}", nargs="?", const="", help=argparse.SUPPRESS)

    def flag_texts(self) -> Iterator[str]:
        """Yields the flags that the help shows, as one types them: with a `=` where a value follows."""
        for action in self._actions:
            if action.help != argparse.SUPPRESS:
                names = (text for text in action.option_strings if text.startswith("--"))
                yield from (name if action.nargs == 0 else f"{name}=" for name in names)

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Returns the values of the flags, and in `idle` a line about each that was set and has no effect.

        One error lists all flags that do not exist or are missing.
        """
        end = list(arguments).index("--") if self.takes_command and "--" in arguments else len(arguments)
        arguments, command = arguments[:end], list(arguments[end + 1 :])
        # Required flags are checked below, not by argparse: a misspelt flag is reported instead of the missing one.
        required = [action for action in self._actions if action.option_strings and action.required]
        for action in required:
            action.required = False
        self._arguments = self._last_of_each(_read_flag_files(arguments))
        flags, extra = self.parse_known_args([argument.text for argument in self._arguments])
        known = [text.removesuffix("=") for text in self.flag_texts()]
        # Of two equal texts, either is a place to look at.
        written = {argument.text: argument for argument in self._arguments}
        given = [written.get(text, Argument(text)) for text in extra]
        if self.takes_command and not command and given and not given[0].flag:
            raise ArgumentError(
                f"Two dashes come before the command. Write: {self.prog} … -- {given[0].text} …\n{self.way_out}"
            )
        unknown = list(_unknown(given, known, lambda name, value: self.suggest_setting(flags, name, value)))
        suggestions = {flag for _, flag in unknown}
        names = {action.option_strings[0]: action.dest for action in required}
        missing = [name for name, field in names.items() if getattr(flags, field) is None and name not in suggestions]
        problems = [*(message for message, _ in unknown), *(f"{name} is missing." for name in missing)]
        problems += self._take_paths(flags)
        if problems:
            raise ArgumentError("\n".join([*problems, self.way_out]))
        if self.takes_command:
            flags.command = command
        reasons = {name: reason for name, reason in self._idle.items() if getattr(flags, name) is not None}
        flags.idle = [f"--{name} has no effect: {reason}." for name, reason in reasons.items()]
        return flags

    def _last_of_each(self, arguments: Sequence[Argument]) -> list[Argument]:
        """Leaves out flags that a file gives again, or that are given again after a file.

        A flag that may occur once only is refused elsewhere if one place gives it twice.
        """
        once = {name for action in self._actions if isinstance(action, Once) for name in action.option_strings}
        last = {argument.flag: argument.file for argument in arguments if argument.flag in once}
        kept: list[Argument] = []
        is_dropped = False
        for argument in arguments:
            # A value that does not follow a `=` goes with its flag.
            is_dropped = last.get(argument.flag, argument.file) != argument.file if argument.flag else is_dropped
            if not is_dropped:
                kept.append(argument)
            is_dropped = is_dropped and "=" not in argument.text and bool(argument.flag)
        return kept

    def _take_paths(self, flags: argparse.Namespace) -> Iterator[str]:
        """Turns addresses of this machine into paths; yields a message about each flag with another address."""
        for action in self._actions:
            value = getattr(flags, action.dest, None)
            is_path = action.metavar in _PATHS or action.dest.endswith(_PATH_NAMES)
            # What the help does not show has no effect.
            if not is_path or action.help == argparse.SUPPRESS or not isinstance(value, str | list):
                continue
            texts = [value] if isinstance(value, str) else value
            paths = []
            for text in texts:
                try:
                    # Some flags take several paths.
                    kind = self._addresses.get(action.dest)
                    paths.append(",".join(_path_at(part, f"--{action.dest}", kind) for part in text.split(",")))
                except (ArgumentError, DataError) as error:
                    yield str(error)
            if len(paths) == len(texts):
                setattr(flags, action.dest, paths[0] if isinstance(value, str) else paths)


def _path_at(text: str, name: str, address: Address | None) -> str:
    if ":/" not in text:
        return text  # as it was typed
    if address == "kept" and scheme_of(text):
        check_address(text, name=name)
        return text
    return str(fetched(text, name=name) if address == "fetched" else local_path(text, name=name))


class Once(argparse.Action):
    """A flag that may occur once only: of two values, one would be lost in silence."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        """Sets the value."""
        names = vars(namespace).setdefault("flags_read", set())
        if self.dest in names:
            parser.error(f"{option_string} is given twice, the second time as {values!r}: give it once")
        names.add(self.dest)
        setattr(namespace, self.dest, values)


def _read_flag_files(arguments: Sequence[str]) -> list[Argument]:
    """Returns the arguments with what is in files of flags in the place of each file.

    A file may name others. As everywhere, paths are those of the directory in which the command is called.
    """
    return list(_expanded([Argument(text) for text in arguments], ()))


def _expanded(arguments: Sequence[Argument], above: tuple[Path, ...]) -> Iterator[Argument]:
    rest = iter(arguments)
    for argument in rest:
        if argument.text == "--":
            yield argument
            yield from rest
        elif argument.flag.lstrip("-") != _FLAG_FILE:
            yield argument
        else:
            _, equals, name = argument.text.partition("=")
            value = name if equals else getattr(next(rest, None), "text", "")
            yield from _expanded(
                _file_arguments(value.strip(), argument, above), (*above, _path(value.strip()).resolve())
            )


def _path(name: str) -> Path:
    return Path(os.path.expanduser(name))


def _file_arguments(name: str, argument: Argument, above: tuple[Path, ...]) -> list[Argument]:
    """Returns the lines of a file that are arguments."""
    at = f"{argument.place}--{_FLAG_FILE}"
    if not name:
        raise ArgumentError(f"{at} is empty. Write --{_FLAG_FILE}=FILE, where FILE has one flag a line.")
    path = _path(name)
    if path.resolve() in above:
        through = " → ".join(str(file.name) for file in (*above, path))
        raise ArgumentError(f"{at}: `{name}` is read already, by {through}. Leave one of them out.")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ArgumentError(f"{at}: `{name}` is not UTF-8 text. Give a file of flags, one a line.") from None
    except OSError as error:
        raise ArgumentError(f"{at}: {_unreadable(path, error)}") from None
    lines = ((number, line.strip()) for number, line in enumerate(text.splitlines(), 1))
    read = [Argument(line, name, number) for number, line in lines if line and not line.startswith(_COMMENTS)]
    for own in read:
        _check_form(own)
    return read


def _unreadable(path: Path, error: OSError) -> str:
    if path.exists():
        return f"`{path}` cannot be read: {error.strerror}. Give a file of flags, one a line."
    folder = path.parent
    beside = os.listdir(folder) if folder.is_dir() else []
    return f"there is no file `{path}`.{did_you_mean(path.name, beside, show=lambda name: f'`{folder / name}`')}"


def _check_form(argument: Argument) -> None:
    """Refuses a line that a shell would read otherwise: nothing takes it apart, and nothing takes quotes away."""
    apart = re.fullmatch(r"(--?\w+)[ \t]+(\S.*)", argument.text)
    if apart:
        flag, value = apart.groups()
        raise ArgumentError(f"{argument.place}a line is one argument. Write:\n      {flag}={value.lstrip('= ')}")
    quoted = re.fullmatch(r"""(--?\w+)=(["'])(.*)\2""", argument.text)
    if quoted and quoted[2] not in quoted[3]:
        raise ArgumentError(f"{argument.place}quotes would be part of the value. Write:\n      {quoted[1]}={quoted[3]}")


def _level(text: str) -> int:
    """Returns a level of logs, given as absl takes it: by number, or by name."""
    name = text.lower()
    if name in _LEVELS:
        return _LEVELS[name]
    try:
        return int(text)
    except ValueError:
        message = f"{text!r} is no level of logs: give a number such as 1, or one of {', '.join(_LEVELS)}"
        raise argparse.ArgumentTypeError(message) from None


def _unknown(
    extra: Sequence[Argument], flags: Sequence[str], suggest: Callable[[str, str], tuple[str | None, bool]]
) -> Iterator[tuple[str, str | None]]:
    """Yields a message about each argument that means nothing, and the flag that it suggests."""
    after_a_flag = False
    for argument, following in zip_longest(extra, extra[1:], fillvalue=Argument("")):
        name, equals, value = argument.text.partition("=")
        is_flag = bool(argument.flag)
        if is_flag:
            setting, is_certain = suggest(name.lstrip("-").replace("-", "_"), value if equals else following.text)
            close = setting if is_certain else nearest(name, flags) or setting
            yield f"{argument.place}There is no flag {name}.{f' Did you mean {close}?' if close else ''}", close
        elif not after_a_flag:
            text = argument.text
            yield f"{argument.place}{text!r} is one too many: a value is written as --flag={text}.", None
        after_a_flag = is_flag and not equals
