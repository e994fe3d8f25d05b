"""What a cluster tells a process of its role, by `TF_CONFIG`; no JAX is needed to read it."""

import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from trellis.errors import ArgumentError

TF_CONFIG = "TF_CONFIG"
NEEDS_NO_SERVER = (
    f"{TF_CONFIG} makes this process a parameter server (ps), and none is needed: the workers keep the parameters "
    f"themselves, and do not count this process. It has nothing to do, and ends."
)
"""What a process says that would keep parameters for others elsewhere."""


class Role(NamedTuple):
    """What a process is in its cluster."""

    kind: str
    """`chief`, `master`, `worker`, `ps` or another."""
    number: int
    """Among those of its kind, from 0 on."""
    cluster: Mapping[str, Any]
    """The addresses of each kind."""


def cluster_role(environment: Mapping[str, str] = os.environ) -> Role | None:
    """What `TF_CONFIG` tells of this process; None if it tells of no cluster."""
    text = environment.get(TF_CONFIG) or "{}"
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ArgumentError(
            f"{TF_CONFIG} is {text!r}, which is no JSON: {error}. Quote names and texts with double quotes."
        ) from None
    if not isinstance(config, dict):
        raise ArgumentError(f"{TF_CONFIG} is {text!r}, which is no mapping. Unset it, or mend it.")
    if not config.get("cluster"):
        return None
    try:
        return Role(config["task"]["type"], int(config["task"]["index"]), config["cluster"])
    except (KeyError, TypeError, ValueError):
        raise ArgumentError(
            f"{TF_CONFIG} has a cluster, but does not say which part of it this process is: "
            f"{text}. Add a task, such as {{'type': 'worker', 'index': 0}}."
        ) from None


def is_parameter_server() -> bool:
    """Whether this process would keep parameters for workers, and train nothing itself."""
    role = cluster_role()
    return role is not None and role.kind == "ps"
