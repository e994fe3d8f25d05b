"""`trellis report`: runs on one page, which can be mailed."""

import argparse
from pathlib import Path

from trellis.cli.parser import Parser
from trellis.disk import local_path, write_whole
from trellis.errors import ArgumentError
from trellis.reports import build_page, read_run
from trellis.runtime import describe_size, print_error, print_line

_EPILOG = """\
  trellis report runs/a runs/b -o report.html
"""


def add_flags(parser: Parser) -> None:
    """Adds which runs, and where the page goes."""
    parser.epilog = _EPILOG
    parser.add_argument("runs", metavar="RUN", nargs="+", help="the model_dir of a run")
    parser.add_argument("-o", "--output_file", metavar="FILE", default="report.html", help="where the page goes")


def report(flags: argparse.Namespace) -> None:
    """Writes the page."""
    file = local_path(flags.output_file, name="--output_file")
    if file.is_dir():
        raise ArgumentError(f"--output_file: `{file}` is a directory. Name a file in it: {file / 'report.html'}")
    runs = [read_run(run) for run in dict.fromkeys(flags.runs)]
    for run in runs:
        if run.damage:
            print_error(f"{run.model_dir}: {run.damage}")
    page = build_page(runs).encode()
    write_whole(Path(file), page)
    print_line(f"Written to {file}: {len(runs)} runs, {describe_size(len(page)).lstrip('=~ ')}.")
