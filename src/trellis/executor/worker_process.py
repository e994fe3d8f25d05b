"""The process of a worker: one order, carried out, and a report of how that went."""

import faulthandler
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from trellis.errors import Preempted, TrellisError
from trellis.executor.artifacts import Artifact, Examples
from trellis.executor.preparation import Run
from trellis.executor.running import call, prepared
from trellis.executor.workers import STARTED_BY

_SECONDS_BETWEEN_LOOKS = 1.0


def main(order: Mapping[str, Any]) -> NoReturn:
    """Carries out an order, writes a report, and exits: 0 if `run_fn` has returned, else 1."""
    index, scratch = order["index"], Path(order["scratch"])
    # As on a terminal: what was said is not lost if this process is ended by force.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # always a TextIOWrapper here
    parent = int(os.environ.get(STARTED_BY, os.getppid()))
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    # Written down by the interpreter itself, even if nothing else of this process answers any more.
    place = (scratch / f"place-{index}.txt").open("w")
    faulthandler.register(signal.SIGUSR1, file=place, all_threads=True)
    report = _carried_out(_read_run(order))
    file = scratch / f"report-{index}.json"
    file.with_suffix(".partial").write_text(json.dumps({"time": time.monotonic(), **report}))
    file.with_suffix(".partial").rename(file)
    sys.exit(0 if report["kind"] == "done" else 1)


def _carried_out(run: Run) -> dict[str, str]:
    kind = "problems"
    try:
        with prepared(run) as (function, fn_args):
            kind = "failed"
            call(function, fn_args)
    except Preempted:
        return {"kind": "preempted"}
    except BaseException as error:  # noqa: BLE001  (told by the process that waits for this one)
        if isinstance(error, TrellisError):
            # It says all that there is to say: where in the library it was raised is of no use.
            return {"kind": kind, "summary": str(error), "text": "\n".join(getattr(error, "__notes__", ()))}
        return {
            "kind": kind,
            "summary": f"run_fn has raised {type(error).__name__}: {error}",
            "text": _traceback(error),
        }
    return {"kind": "done"}


def _traceback(error: BaseException) -> str:
    """The trace from the user's function on."""
    own = Path(__file__).parent
    trace = error.__traceback__
    while trace is not None and Path(trace.tb_frame.f_code.co_filename).parent == own and trace.tb_next is not None:
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace)).rstrip()


def _end_with(parent: int) -> None:
    """Ends this process, and what it has started, when the one that waits for it is gone."""
    while os.getppid() == parent:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    os.killpg(0, signal.SIGKILL)


def _read_run(order: Mapping[str, Any]) -> Run:
    return Run(
        inputs={key: tuple(_artifact(key, each) for each in listed) for key, listed in order["inputs"].items()},
        outputs={key: tuple(_artifact(key, each) for each in listed) for key, listed in order["outputs"].items()},
        exec_properties=order["exec_properties"],
    )


def _artifact(key: str, fields: dict[str, Any]) -> Artifact:
    if key != "examples":
        return Artifact(fields["uri"])
    splits = fields.pop("split_names")
    return Examples(**fields, split_names=None if splits is None else tuple(splits))
