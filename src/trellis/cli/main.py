"""The command's words, and how it ends."""

import os
import sys
from collections.abc import Collection, Sequence

from trellis.cli import data, experiments, export, predict, run, train
from trellis.cli.experiments import add_experiment_flags, add_module_flag
from trellis.cli.words import Word, parse
from trellis.errors import ArgumentError, TrellisError
from trellis.spelling import nearest

DONE, BAD_INPUT, INTERRUPTED, PIPE_CLOSED = 0, 2, 130, 141

WORDS = {
    word.name: word
    for word in (
        Word("experiments", "list what can be trained", add_module_flag, experiments.experiments),
        Word("config show", "show a config, and where each value comes from", add_experiment_flags, experiments.show),
        Word("config diff", "show in what two configs differ", experiments.add_diff_flags, experiments.diff),
        Word("plan", "check a run, and tell what it would do, without running it", train.add_flags, train.plan),
        Word("train", "run an experiment: train it, evaluate it", train.add_flags, train.train),
        Word("export", "write the model of a run, to be served", export.add_flags, export.export),
        Word("run", "run training code of your own between artifacts", run.add_flags, run.run),
        Word("predict", "ask a trained model about text", predict.add_flags, predict.predict),
        Word("data vocabulary", "train a vocabulary on text", data.add_vocabulary_flags, data.vocabulary),
        Word("data pretraining", "make records of text to pretrain on", data.add_pretraining_flags, data.pretraining),
        Word("data finetuning", "make records of GLUE or SQuAD", data.add_finetuning_flags, data.finetuning),
    )
}

_HELP = ("-h", "--help")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code: 0 done, 2 bad input. A run that is preempted exits with 143.

    Args:
        arguments: The default is what the process was given.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given:
        print(_help(WORDS), file=sys.stderr)
        return BAD_INPUT
    if given[0] in _HELP or (given[-1] in _HELP and _group(given[0]) and len(given) == 2):
        print(_help(_group(given[0]) or WORDS))
        return DONE
    try:
        word, rest = _word(given)
        word.run(parse(word, rest))
        sys.stdout.flush()
    except TrellisError as error:
        print("\n".join([str(error), *_causes(error)]), file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever reads has seen enough, as in `trellis plan … | head`. What is still to be said goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    return DONE


def _word(given: list[str]) -> tuple[Word, list[str]]:
    """Returns the word that the arguments begin with, and the rest of them."""
    for n in (2, 1):
        name = " ".join(given[:n])
        if name in WORDS:
            return WORDS[name], given[n:]
    group = _group(given[0])
    if group and not given[1:]:
        raise ArgumentError(f"`trellis {given[0]}` needs another word: {' or '.join(f'trellis {w}' for w in group)}.")
    # What follows a first word that exists only in pairs is part of the name.
    pair = " ".join(given[:2])
    name = pair if group else given[0]
    close = nearest(pair, group or WORDS) or nearest(given[0], {word.split()[0] for word in WORDS})
    meant = f" Did you mean `trellis {close}`?" if close else ""
    raise ArgumentError(f"There is no `trellis {name}`.{meant} There are: {', '.join(group or WORDS)}.")


def _group(first: str) -> list[str]:
    """Returns the words that begin with a first one and go on."""
    return [name for name in WORDS if name.startswith(f"{first} ")]


def _causes(error: BaseException) -> list[str]:
    """Returns what else an error has to tell: its notes, and the errors that it comes from."""
    lines = list(getattr(error, "__notes__", ()))
    cause = error.__cause__
    return lines if cause is None else [*lines, f"Caused by {type(cause).__name__}: {cause}", *_causes(cause)]


def _help(names: Collection[str]) -> str:
    width = max(map(len, names))
    listed = "\n".join(f"  trellis {name:<{width}}  {WORDS[name].summary}" for name in names)
    return (
        f"Trains experiments, and shows what they are made of.\n\n{listed}\n\n"
        f"A word's own flags: trellis train --help\n"
        f"To begin with:      trellis train --experiment=digits/classifier --model_dir=runs/digits"
    )
