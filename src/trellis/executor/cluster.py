"""Who is who among workers: the variables that tell TensorFlow and JAX, written and read."""

import json
import os
import socket
from collections.abc import Mapping
from contextlib import ExitStack, closing
from typing import Any

from trellis.errors import ArgumentError

TF_CONFIG = "TF_CONFIG"


def is_chief(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is the one that publishes: alone, the chief, or the first worker where there is no chief."""
    config, cluster = _config(environment), cluster_of(environment)
    if not cluster:
        return True
    try:
        kind, index = config["task"]["type"], int(config["task"]["index"])
    except (KeyError, TypeError, ValueError):
        raise ArgumentError(
            f"{TF_CONFIG} has a cluster, but does not say which part of it this process is: "
            f"{environment[TF_CONFIG]}. Add a task, such as {{'type': 'worker', 'index': 0}}."
        ) from None
    return kind in ("chief", "master") or (kind == "worker" and index == 0 and not {"chief", "master"} & set(cluster))


def cluster_of(environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """The addresses of the cluster that this process is a part of, by kind; empty if it is alone."""
    return _config(environment).get("cluster") or {}


def local_environments(n: int) -> list[dict[str, str]]:
    """The variables of `n` workers on this machine, the chief first."""
    coordinator, *addresses = (f"127.0.0.1:{port}" for port in _free_ports(n + 1))
    cluster = {"chief": addresses[:1], "worker": addresses[1:]}
    tasks = [{"type": "chief", "index": 0}, *({"type": "worker", "index": index} for index in range(n - 1))]
    return [
        {
            TF_CONFIG: json.dumps({"cluster": cluster, "task": task}),
            "JAX_COORDINATOR_ADDRESS": coordinator,
            "JAX_NUM_PROCESSES": str(n),
            "JAX_PROCESS_ID": str(index),
        }
        for index, task in enumerate(tasks)
    ]


def _config(environment: Mapping[str, str]) -> dict[str, Any]:
    text = environment.get(TF_CONFIG, "")
    try:
        config = json.loads(text or "{}")
    except ValueError as error:
        raise ArgumentError(f"{TF_CONFIG} is {text!r}, which is no JSON: {error}. Unset it, or mend it.") from None
    if not isinstance(config, dict):
        raise ArgumentError(f"{TF_CONFIG} is {text!r}, which is no mapping. Unset it, or mend it.")
    return config


def _free_ports(n: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(closing(socket.socket())) for _ in range(n)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
