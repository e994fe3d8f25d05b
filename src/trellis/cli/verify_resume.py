"""`trellis verify-resume`: whether a run that is killed and resumed ends as one that was left alone."""

import argparse
import dataclasses
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from trellis.cli.experiments import add_experiment_flags, resolve_flags
from trellis.cli.gin_bindings import add_gin_flags, check_gin_flags
from trellis.cli.parser import Parser
from trellis.disk import local_path
from trellis.errors import ArgumentError
from trellis.executor import preempted_by_sigterm
from trellis.experiments import Comparison, compare_runs, get_mode
from trellis.launch import SIGNALS, Reference, ResumeTrials, Trial
from trellis.runtime import describe_duration, print_json, print_line

_EPILOG = """\
Runs the experiment once to its end, then again and again: each time it is killed at a random point (SIGKILL, SIGTERM,
one after the other) and resumed by the same command. States, batches and metrics have to be equal to the bit, by the
fingerprints that a run writes at every checkpoint file. On another number of processes sums are rounded in another
order: there batches have to be equal, and losses within a tolerance.
All runs are as long as the config says: shorten them, and let them save often.
Exit codes: 0 each resumed run is as the one that was left alone, 1 one is not, 2 bad input.

  trellis verify-resume --experiment=digits/classifier --processes=1,2
  trellis verify-resume --module=my_project.digits --experiment=mine --set=trainer.train_steps=200 \\
    --set=trainer.checkpoint_interval=50 --set=trainer.steps_per_loop=25 --trials=10
"""
_VERIFIED, _REFUTED = 0, 1


def add_flags(parser: Parser) -> None:
    """Adds the flags of a training, and those of the trials."""
    parser.epilog = _EPILOG
    parser.add_flag("mode", "MODE", "one that trains; the default is train_and_eval", default="train_and_eval")
    add_experiment_flags(parser)
    add_gin_flags(parser)
    parser.add_flag("trials", "N", "how many runs are killed and resumed; the default is 3", type=int, default=3)
    text = "how many processes of this machine train together, and on how many others one is resumed, as in 1,2"
    parser.add_flag("processes", "N,N", text, type=_counts, default=(1,))
    parser.add_flag("seed", "N", "of the points at which runs are killed; the default is 0", type=int, default=0)
    text = "how far losses may be from each other on other processes, as a share; the default is 0.001"
    parser.add_flag("tolerance", "SHARE", text, type=float, default=1e-3)
    text = "where the runs go; the default is a temporary directory, which is kept only if a trial fails"
    parser.add_flag("dir", "DIR", text)
    parser.add_argument("--keep", action="store_true", help="keep the temporary directory")
    parser.add_json_flag()


def _counts(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number, nor several as in 1,2") from None


def verify_resume(flags: argparse.Namespace) -> int:
    """Kills and resumes a run, and tells in what it is not as one that was left alone; returns 1 if it is not."""
    _check(flags)
    directory = _directory(flags)
    is_kept = flags.keep or flags.dir is not None
    try:
        with preempted_by_sigterm():
            trials = _run(flags, directory)
        is_kept = is_kept or any(trial.problem for trial in trials)
    except Exception:
        is_kept = True  # the error names files in it
        raise
    finally:
        if not is_kept:
            shutil.rmtree(directory, ignore_errors=True)
    if is_kept:
        print_line(f"All of it:  {directory}")
    if flags.json:
        print_json({"trials": [_as_json(trial) for trial in trials]})
    return _REFUTED if any(trial.problem for trial in trials) else _VERIFIED


def _check(flags: argparse.Namespace) -> None:
    """Raises an error for what can be known to be wrong before the first run."""
    mode = get_mode(flags.mode)
    if not mode.trains or mode.follows:
        raise ArgumentError(f"--mode is {flags.mode}, which has no training to kill. Give one: --mode=train_and_eval.")
    for name, value, least in [
        ("trials", flags.trials, 1),
        *(("processes", count, 1) for count in flags.processes),
        ("tolerance", flags.tolerance, 0),
    ]:
        if value < least:
            raise ArgumentError(f"--{name} is {value}, but it is at least {least}.")
    resolve_flags(flags, mode=flags.mode)
    check_gin_flags(flags)


def _directory(flags: argparse.Namespace) -> Path:
    if flags.dir is None:
        return Path(tempfile.mkdtemp(prefix="trellis-verify-"))
    directory = local_path(flags.dir, name="--dir")
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ArgumentError(f"--dir: `{directory}` is there already. Give one that is empty or does not exist.")
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def _run(flags: argparse.Namespace, directory: Path) -> list[Trial]:
    trials = ResumeTrials(_command(flags), directory=directory, seed=flags.seed, tolerance=flags.tolerance)
    first, *others = dict.fromkeys(flags.processes)
    n_killed = flags.trials + len(others)
    print_line(f"{flags.experiment}, {flags.mode}: one run is left alone, then {n_killed} killed and resumed.")
    reference = trials.run_undisturbed(n_processes=first)
    print_line("\n".join(_about(reference, n_starts=2 * n_killed)))
    results = []
    for number in range(n_killed):
        trial = trials.run_trial(
            f"trial_{number + 1}",
            reference=reference,
            signals=SIGNALS[number % len(SIGNALS)],
            n_processes=others[number - flags.trials] if number >= flags.trials else first,
        )
        print_line(_row(number + 1, trial, tolerance=flags.tolerance))
        results.append(trial)
    print_line("\n".join(_ending(results, reference, trials=trials)))
    return results


def _command(flags: argparse.Namespace) -> list[str]:
    """The training, as somebody would start it, without its directory."""
    repeated = {name: getattr(flags, name) for name in ("module", "config_file", "set", "gin_file", "gin_params")}
    override = [f"--params_override={flags.params_override}"] if flags.params_override else []
    return [
        "train",
        f"--experiment={flags.experiment}",
        f"--mode={flags.mode}",
        *(f"--{name}={value}" for name, values in repeated.items() for value in values),
        *override,
    ]


def _about(reference: Reference, *, n_starts: int) -> Iterator[str]:
    rest = describe_duration(reference.seconds * n_starts * 0.75)
    yield (
        f"Left alone, on {_processes(reference.n_processes)}: step {reference.last_step} after "
        f"{describe_duration(reference.seconds)}. The rest takes about {rest}."
    )
    if not reference.has_file_to_resume:
        yield (
            "It writes no checkpoint file before its last step, so that a killed run begins anew. To try more, lower "
            "trainer.checkpoint_interval."
        )


def _row(number: int, trial: Trial, *, tolerance: float) -> str:
    strikes = ", then ".join(map(str, trial.strikes)) or "not killed"
    steps = " and ".join(map(str, trial.resumed_from)) or "—"
    is_exact = all(strike.n_processes == trial.n_processes for strike in trial.strikes)
    result = trial.problem or _good(trial.comparison, is_exact=is_exact, tolerance=tolerance)
    return f"{number:3d}  {strikes}; went on from step {steps}, on {_processes(trial.n_processes)}\n     {result}"


def _good(comparison: Comparison | None, *, is_exact: bool, tolerance: float) -> str:
    if comparison is None:
        return ""
    if is_exact:
        seen = f"{comparison.n_fingerprints} fingerprints, {comparison.n_summaries} reports"
        return f"equal to the bit up to step {comparison.last_step} ({seen})"
    return f"batches equal to the bit, losses within {tolerance:g} up to step {comparison.last_step}"


def _ending(results: Sequence[Trial], reference: Reference, *, trials: ResumeTrials) -> Iterator[str]:
    bad = [trial for trial in results if trial.problem]
    if not bad:
        yield "Each resumed run is as the one that was left alone."
        return
    yield f"Of {len(results)} resumed runs, {len(bad)} did not end as the one that was left alone."
    if not any(trial.comparison and not trial.comparison.is_equal for trial in bad):
        return
    again = compare_runs(
        reference.record, trials.run_undisturbed("undisturbed_again", n_processes=reference.n_processes).record
    )
    if again.parted_at is not None:
        yield (
            f"Nor are two runs that are left alone, from step {again.parted_at} on: the training draws something that "
            f"does not follow from its seed, such as the order of its data."
        )
    yield f"To see more: trellis runs diff {reference.model_dir} {bad[0].model_dir}"


def _processes(n: int) -> str:
    return f"{n} process{'' if n == 1 else 'es'}"


def _as_json(trial: Trial) -> dict[str, object]:
    return {**dataclasses.asdict(trial), "model_dir": str(trial.model_dir)}
