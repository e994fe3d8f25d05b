"""`trellis completion`: what makes a shell complete words, flags, experiments and fields."""

import argparse
import shlex
from collections.abc import Iterator, Mapping, Sequence

from trellis.cli.main import WORDS, load
from trellis.cli.parser import Parser
from trellis.errors import ArgumentError, TrellisError
from trellis.experiments import MODES, active_fields, experiment_summaries, get_exp_config, shipped_config_files
from trellis.runtime import print_line
from trellis.spelling import did_you_mean

_EPILOG = """\
To have it in every new shell:

  bash   echo 'eval "$(trellis completion bash)"' >> ~/.bashrc
  zsh    echo 'eval "$(trellis completion zsh)"' >> ~/.zshrc      (after compinit)
  fish   trellis completion fish > ~/.config/fish/completions/trellis.fish
"""

# Each asks the command itself what can follow the line so far, so that experiments and fields are always those that
# there are. bash and zsh take what comes after a `=` for a word of its own, fish does not. Where nothing is proposed,
# the shells propose files.
_SCRIPTS: Mapping[str, str] = {
    "bash": """\
_trellis_completion() {
    local IFS=$'\\n'
    COMPREPLY=($(trellis completion bash --line="${COMP_LINE:0:COMP_POINT}" 2>/dev/null))
}
complete -o nospace -o default -F _trellis_completion trellis""",
    "zsh": """\
_trellis_completion() {
    local -a proposals
    proposals=(${(f)"$(trellis completion zsh --line="$LBUFFER" 2>/dev/null)"})
    compset -P '*='
    if (( $#proposals )); then compadd -S '' -a proposals; else _files; fi
}
compdef _trellis_completion trellis""",
    "fish": """\
complete -c trellis -a '(trellis completion fish --line=(commandline --cut-at-cursor --current-process))'""",
}


def add_flags(parser: Parser) -> None:
    """Adds the shell."""
    parser.epilog = _EPILOG
    parser.add_argument("shell", metavar="SHELL", help=f"one of {', '.join(_SCRIPTS)}")
    parser.add_flag("line", "TEXT", argparse.SUPPRESS)


def completion(flags: argparse.Namespace) -> None:
    """Prints a shell's script or, for the script, what can follow a line."""
    if flags.shell not in _SCRIPTS:
        suggestion = did_you_mean(flags.shell, _SCRIPTS, show=str)
        raise ArgumentError(f"{flags.shell!r} cannot be completed.{suggestion} There are: {', '.join(_SCRIPTS)}.")
    if flags.line is None:
        print_line(_SCRIPTS[flags.shell])
        return
    if flags.shell == "fish":
        typed, space = "", ""
    else:
        typed, space = flags.line[: flags.line.rfind("=") + 1].rpartition(" ")[2], " "
    for text in proposals(flags.line):
        print_line(text.removeprefix(typed) + ("" if text.endswith("=") else space))


def proposals(line: str) -> list[str]:
    """Returns what the last word of a line can be completed to; none where a file is probably meant."""
    try:
        words = shlex.split(line)
    except ValueError:  # a quote that is not closed yet
        return []
    *words, last = [*words[1:], *([""] if line.endswith(" ") else [])] or [""]
    if words[:1] == ["help"]:
        return [text for text in _next_words(words[1:]) if text.startswith(last)]
    return [text for text in _choices(words, last) if text.startswith(last)]


def _next_words(words: Sequence[str]) -> list[str]:
    n = len(words)
    continued = (name.split() for name in WORDS if name.split()[:n] == list(words))
    return list(dict.fromkeys(parts[n] for parts in continued if len(parts) > n))


def _choices(words: Sequence[str], last: str) -> Iterator[str]:
    name = next((name for name in (" ".join(words[:2]), " ".join(words[:1])) if name in WORDS), None)
    flag, equals, value = last.partition("=")
    if name is None:
        yield from _next_words(words)
        yield from () if words else ("help", "--help", "--version")
    elif name == "completion" and not words[1:]:
        yield from _SCRIPTS
    elif not equals:
        parser = Parser(name, WORDS[name].summary)
        load(WORDS[name].flags_function)(parser)
        yield from _next_words(words)
        yield from parser.flag_texts()
    elif flag == "--mode":
        yield from (f"{flag}={mode}" for mode in MODES)
    elif flag == "--experiment":
        yield from (f"{flag}={experiment}" for experiment in experiment_summaries())
    elif flag == "--config_file" and "/" not in value:
        yield from (f"{flag}={file}" for file in shipped_config_files())
    elif flag in ("--set", "--params_override"):
        start = last[: last.rfind(",") + 1] if flag == "--params_override" and "," in last else f"{flag}="
        yield from (f"{start}{field}" for field in _fields(words))


def _fields(words: Sequence[str]) -> Iterator[str]:
    """Yields the fields of the experiment that is named so far, each ready for its value."""
    experiment = next((word.partition("=")[2] for word in words if word.startswith("--experiment=")), "")
    try:
        yield from (f"{path}=" for path in active_fields(get_exp_config(experiment)))
    except TrellisError:
        return
