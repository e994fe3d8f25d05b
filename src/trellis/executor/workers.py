"""Several workers: the variables that tell TensorFlow and JAX which worker a process is."""

import json
import socket
from collections.abc import Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from trellis.executor.fn_args import TF_CONFIG, FnArgs, RunArgs
from trellis.executor.process import StartWorker, run_in_process


def run_workers(exec_properties: Mapping[str, Any], fn_args: FnArgs, *, run_args: RunArgs, start: StartWorker) -> None:
    """Calls a user's function in several processes that know each other; the output of the first is shown."""
    log_dir = Path(str(fn_args.model_run_dir), "logs")
    log_dir.mkdir(parents=True, exist_ok=True)
    environments = _environments(run_args.n_workers)
    run_in_process(exec_properties, fn_args, run_args=run_args, start=start, environments=environments, log_dir=log_dir)


def _environments(n_workers: int) -> list[dict[str, str]]:
    """Returns the variables of workers on this machine, the chief first."""
    coordinator, *addresses = (f"127.0.0.1:{port}" for port in _free_ports(n_workers + 1))
    cluster = {"chief": addresses[:1], "worker": addresses[1:]}
    tasks = [{"type": "chief", "index": 0}, *({"type": "worker", "index": index} for index in range(n_workers - 1))]
    return [
        {
            TF_CONFIG: json.dumps({"cluster": cluster, "task": task}),
            "JAX_COORDINATOR_ADDRESS": coordinator,
            "JAX_NUM_PROCESSES": str(n_workers),
            "JAX_PROCESS_ID": str(index),
        }
        for index, task in enumerate(tasks)
    ]


def _free_ports(n_ports: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(closing(socket.socket())) for _ in range(n_ports)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
