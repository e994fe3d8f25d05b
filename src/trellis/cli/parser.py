"""The flags of a word of the command, read without guessing."""

import argparse
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import Any, NoReturn

from trellis.errors import ArgumentError
from trellis.spelling import nearest

SuggestSetting = Callable[[argparse.Namespace, str, str], tuple[str | None, bool]]
"""From the flags that there are, and the name and the value of one that there is not, to the text that was probably
meant, and whether that is certain."""


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
        self.suggest_setting: SuggestSetting = lambda flags, name, value: (None, False)
        self.takes_command = False
        """Whether a command of its own follows the flags, behind two dashes; it becomes `flags.command`."""

    def error(self, message: str) -> NoReturn:
        """Raises what argparse would print before it leaves."""
        raise ArgumentError(f"{message[0].upper()}{message[1:]}.\n{self.way_out}")

    @property
    def way_out(self) -> str:
        """Where to read on."""
        return f"All flags: {self.prog} --help"

    def add_flag(self, name: str, metavar: str, text: str, **options: Any) -> None:
        """Adds a flag that may occur once."""
        self.add_argument(f"--{name}", action=Once, metavar=metavar, help=text, **options)

    def add_repeated_flag(self, name: str, metavar: str, text: str) -> None:
        """Adds a flag that may occur as often as one likes; its values are a list."""
        self.add_argument(f"--{name}", action="append", default=[], metavar=metavar, help=text)

    def flag_texts(self) -> Iterator[str]:
        """Yields the flags that the help shows, as one types them: with a `=` where a value follows."""
        for action in self._actions:
            if action.help != argparse.SUPPRESS:
                names = (text for text in action.option_strings if text.startswith("--"))
                yield from (name if action.nargs == 0 else f"{name}=" for name in names)

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Returns the values of the flags; one error lists all flags that do not exist or are missing."""
        arguments = list(arguments)
        end = arguments.index("--") if self.takes_command and "--" in arguments else len(arguments)
        arguments, command = arguments[:end], arguments[end + 1 :]
        # Required flags are checked below, not by argparse: a misspelt flag is reported instead of the missing one.
        required = [action for action in self._actions if action.option_strings and action.required]
        for action in required:
            action.required = False
        flags, extra = self.parse_known_args(arguments)
        known = [text.removesuffix("=") for text in self.flag_texts()]
        unknown = list(_unknown(extra, known, lambda name, value: self.suggest_setting(flags, name, value)))
        suggestions = {flag for _, flag in unknown}
        names = {action.option_strings[0]: action.dest for action in required}
        missing = [name for name, field in names.items() if getattr(flags, field) is None and name not in suggestions]
        problems = [*(message for message, _ in unknown), *(f"{name} is missing." for name in missing)]
        if problems:
            raise ArgumentError("\n".join([*problems, self.way_out]))
        if self.takes_command:
            flags.command = command
        return flags


class Once(argparse.Action):
    """A flag that may occur once only: of two values, one would be lost in silence."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        """Sets the value."""
        names = vars(namespace).setdefault("flags_read", set())
        if self.dest in names:
            parser.error(f"{option_string} is given twice, the second time as {values!r}: give it once")
        names.add(self.dest)
        setattr(namespace, self.dest, values)


def _unknown(
    extra: Sequence[str], flags: Sequence[str], suggest: Callable[[str, str], tuple[str | None, bool]]
) -> Iterator[tuple[str, str | None]]:
    """Yields a message about each argument that means nothing, and the flag that it suggests."""
    after_a_flag = False
    for text, following in zip_longest(extra, extra[1:], fillvalue=""):
        name, equals, value = text.partition("=")
        is_flag = text.startswith("-")
        if is_flag:
            setting, is_certain = suggest(name.lstrip("-").replace("-", "_"), value if equals else following)
            close = setting if is_certain else nearest(name, flags) or setting
            yield f"There is no flag {name}.{f' Did you mean {close}?' if close else ''}", close
        elif not after_a_flag:
            yield f"{text!r} is one too many: a value is written as --flag={text}.", None
        after_a_flag = is_flag and not equals
