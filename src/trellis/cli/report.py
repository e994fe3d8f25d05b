"""`trellis report`: runs on one page, which can be mailed, or which keeps up with them."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from trellis.cli.parser import Parser
from trellis.disk import local_path, write_whole
from trellis.errors import ArgumentError
from trellis.reports import EVENTS, PORT, LiveReport, build_page, find_runs, read_run
from trellis.runtime import describe_size, print_error, print_line

_EPILOG = """\
A folder stands for all runs in it: a sweep of trellis tune, the seeds of trellis train --seeds.

  trellis report runs/a runs/b -o report.html
  trellis report runs/sweep --live

With --live nothing is written. The page is served to this machine alone; from another one, it is reached by
  ssh -L 7117:localhost:7117 MACHINE
"""
_LARGE = 256 << 20
_MOST_RUNS = 500


def add_flags(parser: Parser) -> None:
    """Adds which runs, and where the page goes."""
    parser.epilog = _EPILOG
    parser.add_argument("runs", metavar="RUN", nargs="+", help="the model_dir of a run, or a folder of runs")
    text = "where the page goes; the default is report.html"
    parser.add_argument("-o", "--output_file", metavar="FILE", help=text)
    text = "serve the page, up to date, until it is interrupted"
    parser.add_argument("--live", action="store_true", help=text)
    text = f"of 127.0.0.1, for --live; the default is {PORT}, or a free one if that is taken; 0 takes a free one"
    parser.add_flag("port", "N", text, type=int)


def report(flags: argparse.Namespace) -> None:
    """Writes the page, or serves it."""
    directories = _directories(flags.runs)
    if flags.live:
        _serve(flags)
        return
    if flags.port is not None:
        raise ArgumentError(f"--port is {flags.port}, but nothing is served. Add --live, or leave it out.")
    file = local_path(flags.output_file or "report.html", name="--output_file")
    if file.is_dir():
        raise ArgumentError(f"--output_file: `{file}` is a directory. Name a file in it: {file / 'report.html'}")
    sizes = [(directory / EVENTS).stat().st_size for directory in directories if (directory / EVENTS).is_file()]
    if sum(sizes) > _LARGE:
        print_error(f"Reading {_size(sum(sizes))} of events …")
    runs = [read_run(directory) for directory in directories]
    for run in runs:
        if run.damage:
            print_error(f"{run.model_dir}: {run.damage}")
    page = build_page(runs).encode()
    write_whole(file, page)
    count = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
    print_line(f"Written to {file}: {count}, {_size(len(page))}.")


def _serve(flags: argparse.Namespace) -> None:
    if flags.output_file is not None:
        raise ArgumentError(f"--output_file is {flags.output_file}, but --live writes nothing. Leave out one of them.")
    if flags.port is not None and not 0 <= flags.port < 1 << 16:
        raise ArgumentError(f"--port is {flags.port}. Give one from 1 to 65535, or 0 for a free one.")
    with LiveReport(lambda: _directories(flags.runs), port=flags.port) as live:
        try:
            print_line(f"Live at {live.url} for this machine alone. Ctrl-C ends it; the runs go on.")
            live.serve()
        except KeyboardInterrupt:
            print_line("\nEnded.")


def _directories(names: Sequence[str]) -> list[Path]:
    """The directories of runs: a folder that is none, such as a sweep, stands for those in it."""
    directories: dict[Path, None] = {}
    for name in names:
        found = find_runs(name, name="RUN")
        root = local_path(name, name="RUN")
        directories |= dict.fromkeys([root] if root in found else found or [root])
    if len(directories) > _MOST_RUNS:
        raise ArgumentError(f"There are {len(directories)} runs, of which {_MOST_RUNS} go on a page. Give fewer.")
    return list(directories)


def _size(n_bytes: int) -> str:
    return describe_size(n_bytes).lstrip("=~ ")
