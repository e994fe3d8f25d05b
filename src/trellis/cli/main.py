"""The command's words, and how it ends."""

import atexit
import errno
import importlib
import importlib.util
import logging
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NoReturn

from trellis import executor, runtime
from trellis.cli.parser import Parser
from trellis.doors import import_whole
from trellis.errors import ArgumentError, ExitCode, Preempted, ProcessLostError, TrellisError, drop_jax_note
from trellis.runtime import (
    answering_in_json,
    describe_size,
    ending_with_reader,
    flush_output,
    lead_nowhere,
    open_missing_streams,
    print_error,
    print_line,
    table,
)
from trellis.spelling import nearest
from trellis.version import __version__

# What the system says when a disk, a limit or a right is in the way: no mistake of a program, so no trace of one helps.
_OF_THE_MACHINE = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO, errno.ENOMEM),
    *(errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENAMETOOLONG, errno.ELOOP, errno.ESTALE),
}
_SIGNALS = {KeyboardInterrupt: signal.SIGINT, Preempted: signal.SIGTERM}
"""Those that come to code as errors."""
_SECONDS_TO_FINALIZE = 0.1
_LEAST_OF_JAX = 2 << 30
_NO_MEMORY = ("RESOURCE_EXHAUSTED", "Cannot allocate memory", "failed to map segment")


@dataclass(frozen=True)
class Word:
    """One thing that the command does. Its functions are loaded when it is used, so that a command starts quickly."""

    summary: str
    function: str
    """What it calls with the values of its flags, such as `train.train` of this folder."""
    flags_function: str
    """What adds its flags to a parser."""
    only_tells: bool = False
    """Whether it is done when nobody reads on; else it goes on without its terminal."""
    tells_of_flags: bool = False
    """Whether it tells itself, among all else, which of its flags have no effect."""
    takes_path: bool = False
    """Whether what follows it may be a path, although other words go on from it."""


WORDS = {
    "experiments": Word("list what can be trained", "experiments.experiments", "experiments.add_list_flags", True),
    "config show": Word(
        "show a config, and where each value comes from", "experiments.show", "experiments.add_show_flags", True
    ),
    "config diff": Word("show in what two configs differ", "experiments.diff", "experiments.add_diff_flags", True),
    "plan": Word(
        "check a run, and tell what it would do, without running it", "plan.plan", "plan.add_flags", True, True
    ),
    "train": Word("run an experiment: train it, evaluate it", "train.train", "train.add_flags", tells_of_flags=True),
    "tune": Word("run an experiment many times, and find the best settings", "tune.tune", "tune.add_flags"),
    "verify-resume": Word(
        "kill a run at random points, resume it, and compare it with one that was left alone",
        "verify_resume.verify_resume",
        "verify_resume.add_flags",
    ),
    "replay": Word("run one step of a run again, and look into it", "replay.replay", "replay.add_flags", True),
    "report": Word("put runs on one page, which opens offline", "report.report", "report.add_flags", True),
    "runs": Word("list the runs in a folder", "runs.show", "runs.add_show_flags", True, takes_path=True),
    "runs diff": Word("find the step at which two runs part", "runs.diff", "runs.add_diff_flags", True),
    "runs time": Word("show where the time of a run went", "runs.time", "runs.add_time_flags", True),
    "export": Word("write the model of a run, to be served", "export.export", "export.add_flags"),
    "serve": Word("answer requests with an exported model, over HTTP", "serve.serve", "serve.add_flags"),
    "launch": Word("run a command in several processes that train together", "launch.launch", "launch.add_flags"),
    "run": Word("run training code of your own between artifacts", "run.run", "run.add_flags"),
    "predict": Word("ask a trained model about text, arrays or records", "predict.predict", "predict.add_flags", True),
    "data vocabulary": Word("train a vocabulary on text", "data.vocabulary", "data.add_vocabulary_flags"),
    "data pretraining": Word("make records of text to pretrain on", "data.pretraining", "data.add_pretraining_flags"),
    "data show": Word(
        "show a few examples as the model sees them", "data_show.show", "data_show.add_flags", only_tells=True
    ),
    "data finetuning": Word("make records of GLUE or SQuAD", "data.finetuning", "data.add_finetuning_flags"),
    "cache": Word("show what is kept to be made once, and how large it is", "cache.show", "cache.add_show_flags", True),
    "cache prune": Word("remove what was not used for long", "cache.prune", "cache.add_prune_flags"),
    "completion": Word("let a shell complete this command", "completion.completion", "completion.add_flags", True),
}

# What words that begin alike have in common.
_GROUPS = {
    "config": "Shows what an experiment is made of.",
    "data": "Shows what a model is trained on; makes that of models of text: vocabularies, and records.",
}

_HELP = ("-h", "--help")


def command() -> NoReturn:
    """Runs the command, and ends this process with its exit code."""
    codes: list[int] = []
    # What is registered first is called last.
    atexit.register(_end_at_once, codes)
    code = main()
    if code == ExitCode.INTERRUPTED and "jax" in sys.modules:
        # A program that was being compiled still is, in a thread: JAX and Python would take all from under it (139).
        runtime.end_without_jax()
        codes.append(code)
    sys.exit(code)


def _end_at_once(codes: Sequence[int]) -> None:
    for code in codes:
        flush_output()
        os._exit(code)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code: 0 done, 2 bad input, 75 a process lost; if preempted, it exits with 143.

    A word that has done its work for a part of its input only, and has told for which, returns 1 itself.

    Args:
        arguments: The default is what the process was given.
    """
    open_missing_streams()
    if "TRELLIS_STARTED_BY" in os.environ:  # asked here, too: what knows more of it takes its time to load
        executor.end_with_starter()
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments:
        print_error(_help(WORDS))
        return ExitCode.BAD_INPUT
    if arguments[0] == "--version":
        print_line(f"trellis {__version__}")
        return ExitCode.DONE
    if arguments[0] == "help":
        arguments = [*arguments[1:], "--help"]
    first = arguments[0]
    if first in _HELP or (arguments[-1] in _HELP and first in _GROUPS and len(arguments) == 2):
        print_line(_group_help(first) if first in _GROUPS else _help(WORDS))
        return ExitCode.DONE
    try:
        name, rest = _word(arguments)
        word = WORDS[name]
        parser = Parser(name, word.summary)
        around: AbstractContextManager[None] = ending_with_reader() if word.only_tells else _outliving_terminal()
        with around, _hearing_dropped_signals():
            _warn_of_limit(word)
            load(word.flags_function)(parser)
            flags = parser.read(rest)
            for line in flags.idle if not word.tells_of_flags else ():
                print_error(line)
            if flags.verbosity is not None:
                _show_logs(flags.verbosity)
            with answering_in_json() if getattr(flags, "json", False) else nullcontext():
                code = load(word.function)(flags)
            flush_output()
    except KeyboardInterrupt:
        print_error("Interrupted.")
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # The reader has closed the pipe, as in `trellis plan … | head`. The rest of the output goes nowhere.
        lead_nowhere(sys.stdout)
        return ExitCode.PIPE_CLOSED
    except Exception as error:
        told = _told(error)
        if told is None:
            for part in _chain(error):
                drop_jax_note(part)
            raise
        print_error("\n".join([told, *(_causes(error) if isinstance(error, TrellisError) else ())]))
        return ExitCode.LOST if isinstance(error, ProcessLostError) else ExitCode.BAD_INPUT
    return code or ExitCode.DONE


@contextmanager
def _outliving_terminal() -> Iterator[None]:
    """Within it, a terminal or a connection that is closed does not end the process (SIGHUP)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, previous)


@contextmanager
def _hearing_dropped_signals() -> Iterator[None]:
    """Within it, Ctrl-C counts also where Python lets no error out: in a finalizer, or in JAX's part of a collection.

    A signal that comes in the midst of a collection of memory meets that part first. Python would print that it has
    ignored an error, and go on.
    """
    previous = sys.unraisablehook
    timers: list[threading.Timer] = []

    def send_again(unraisable: "sys.UnraisableHookArgs") -> None:
        number = _SIGNALS.get(unraisable.exc_type)
        if number is None:
            previous(unraisable)
            return
        timer = threading.Timer(_SECONDS_TO_FINALIZE, os.kill, (os.getpid(), number))
        timer.daemon = True
        timers.append(timer)
        timer.start()

    sys.unraisablehook = send_again
    try:
        yield
    finally:
        # Somebody else may have put a hook before this one, which knows it.
        if sys.unraisablehook is send_again:
            sys.unraisablehook = previous
        for timer in timers:
            timer.cancel()


def _warn_of_limit(word: Word) -> None:
    """Tells of a limit that JAX cannot live with: its libraries do not raise an error then, but end the process."""
    loads_jax = word.function.startswith(("train.", "plan.", "export.", "predict.", "replay.", "serve."))
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if loads_jax and limit != resource.RLIM_INFINITY and limit < _LEAST_OF_JAX:
        size = describe_size(limit).lstrip("=~ ")
        print_error(f"This process may have {size} of memory (ulimit -v), and JAX alone takes 2 GB. Lift the limit.")


def _show_logs(verbosity: int) -> None:
    """Shows on stderr what libraries log, from a level on, which absl counts: -1 warnings, 0 info, from 1 on debug."""
    level = logging.INFO - 10 * verbosity if verbosity <= 1 else max(1, logging.DEBUG - verbosity + 1)
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger().setLevel(level)
    if importlib.util.find_spec("absl"):
        # It has a logger of its own kind, which has to be made by itself and keeps a level of its own.
        importlib.import_module("absl.logging").set_verbosity(verbosity)


def _told(error: Exception) -> str | None:
    """What people are told of an error; None for one of a program, whose traceback says more."""
    if isinstance(error, TrellisError) and not isinstance(error, ImportError):
        return str(error)
    said = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    # A package that there was no memory to load looks as if it were not installed.
    if any(isinstance(part, MemoryError) or any(sign in str(part) for sign in _NO_MEMORY) for part in _chain(error)):
        way_out = "Free some, take a smaller batch or model, or lift the limit (ulimit -v)."
        return f"There is not enough memory ({said}). {way_out}"
    if isinstance(error, TrellisError):
        return str(error)
    if isinstance(error, OSError) and error.errno in _OF_THE_MACHINE:
        file = "" if error.filename is None else f"`{error.filename}`: "
        return f"{file}{error.strerror}. Make room, or choose a place that can be read and written."
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an error, and those that it came of."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def load(name: str) -> Callable[[Any], int | None]:
    """Returns a function of this folder by its name, such as `train.train`."""
    module, _, attribute = name.partition(".")
    function: Callable[[Any], int | None] = getattr(import_whole(f"trellis.cli.{module}"), attribute)
    return function


def _word(arguments: list[str]) -> tuple[str, list[str]]:
    """Returns the name of the word that the arguments begin with, and the rest of them."""
    for n in (2, 1):
        name = " ".join(arguments[:n])
        is_longer = n == 1 and _group(name) and _is_word(arguments[1:2])
        if name in WORDS and (WORDS[name].takes_path or not is_longer):
            return name, arguments[n:]
    first = arguments[0]
    if first.startswith("-"):
        raise ArgumentError(
            f"The word comes before its flags, as in: trellis train {first}. `trellis help` lists them."
        )
    group = _group(first)
    if group and not arguments[1:]:
        raise ArgumentError(f"`trellis {first}` needs another word: {' or '.join(f'trellis {w}' for w in group)}.")
    # A first word that exists only in pairs takes the second one with it: both are the name.
    pair = " ".join(arguments[:2])
    name = pair if group else first
    close = nearest(pair, group or WORDS) or nearest(first, {word.split()[0] for word in WORDS})
    suggestion = f" Did you mean `trellis {close}`?" if close else ""
    raise ArgumentError(f"There is no `trellis {name}`.{suggestion} There are: {', '.join(group or WORDS)}.")


def _is_word(arguments: Sequence[str]) -> bool:
    """Whether there is an argument, and it is no flag."""
    return bool(arguments) and not arguments[0].startswith("-")


def _group(first: str) -> list[str]:
    """Returns the words that begin with a first one and go on."""
    return [name for name in WORDS if name.startswith(f"{first} ")]


def _causes(error: BaseException) -> list[str]:
    """Returns the notes of an error, and the errors that caused it."""
    lines = list(getattr(error, "__notes__", ()))
    cause = error.__cause__
    return lines if cause is None else [*lines, f"Caused by {type(cause).__name__}: {cause}", *_causes(cause)]


def _group_help(first: str) -> str:
    return f"{_GROUPS[first]}\n\n{_listed(_group(first))}\n\nA word's own flags: trellis help {_group(first)[0]}"


def _listed(names: Collection[str]) -> str:
    return "\n".join(table((f"  trellis {name}", WORDS[name].summary) for name in names))


def _help(names: Collection[str]) -> str:
    return (
        f"Trains experiments, and shows what they are made of.\n\n{_listed(names)}\n\n"
        f"A word's own flags: trellis help train\n"
        f"Tab completes:      trellis help completion\n"
        f"To begin with:      trellis train --experiment=digits/classifier --model_dir=runs/digits"
    )
