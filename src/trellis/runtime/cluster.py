"""What a cluster tells a process of its part, by `TF_CONFIG`, SLURM or Open MPI; no JAX is needed to read it."""

import json
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from trellis.errors import ArgumentError

TF_CONFIG = "TF_CONFIG"
_OF_SLURM = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID")
_OF_OPEN_MPI = ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")
_ADDRESS_OF_OPEN_MPI = "OMPI_MCA_orte_hnp_uri"
"""Where `mpirun` is, which JAX takes for the machine of the first process; from version 5 on nobody tells it."""
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


@dataclass(frozen=True)
class Cluster:
    """Who this process is among those that a cluster has started."""

    method: str
    """What JAX calls the kind of cluster; JAX itself finds the address of the first process, if there is none here."""
    address: str | None
    """Where the first process listens, if somebody has told it."""
    n_processes: int
    index: int
    """Which of all processes this one is."""
    n_here: int
    """How many of them are on this machine."""
    index_here: int
    """Which of these this one is."""
    has_own_devices: bool
    """Whether the cluster shows each process its own GPUs only."""


def find_cluster(environment: Mapping[str, str]) -> Cluster | None:
    """The cluster that has started this process together with others; None if there is none.

    A script that `sbatch` runs, and a shell that `salloc` gives, are no processes of a cluster: `srun` starts those.
    """
    if _has(environment, *_OF_SLURM):
        n_processes = int(environment["SLURM_STEP_NUM_TASKS"])
        n_here = _tasks_here(environment.get("SLURM_STEP_TASKS_PER_NODE", ""), int(environment.get("SLURM_NODEID", 0)))
        own = ("SLURM_GPUS_PER_TASK", "SLURM_TRES_PER_TASK", "SLURM_GPU_BIND")
        found = Cluster(
            "slurm",
            address=None,
            n_processes=n_processes,
            index=int(environment["SLURM_PROCID"]),
            n_here=n_here or n_processes,
            index_here=int(environment["SLURM_LOCALID"]),
            has_own_devices=any(name in environment for name in own),
        )
    elif _has(environment, *_OF_OPEN_MPI):
        found = Cluster(
            "ompi",
            address=None if environment.get(_ADDRESS_OF_OPEN_MPI) else environment.get("JAX_COORDINATOR_ADDRESS"),
            n_processes=int(environment["OMPI_COMM_WORLD_SIZE"]),
            index=int(environment["OMPI_COMM_WORLD_RANK"]),
            n_here=int(environment.get("OMPI_COMM_WORLD_LOCAL_SIZE", 1)),
            index_here=int(environment["OMPI_COMM_WORLD_LOCAL_RANK"]),
            has_own_devices=False,
        )
    else:
        return None
    if found.n_processes == 1:
        return None
    if found.method == "ompi" and not found.address and not environment.get(_ADDRESS_OF_OPEN_MPI):
        raise ArgumentError(
            f"Open MPI has started {found.n_processes} processes, but does not tell them where the first one is, as it "
            f"did up to version 4. Name a free port of its machine: mpirun -x JAX_COORDINATOR_ADDRESS=HOST:PORT …"
        )
    return found


def share_of_gpus(cluster: Cluster, environment: Mapping[str, str]) -> list[int]:
    """Which of the GPUs that this process can see are its own, by number; empty if it sees none.

    JAX by itself gives each process the one whose number is that of the process on its machine.
    """
    n_gpus = count_gpus(environment)
    if cluster.has_own_devices or cluster.n_here == 1:
        return list(range(n_gpus))
    if n_gpus % cluster.n_here:
        raise ArgumentError(
            f"{cluster.n_here} processes of this machine see the same {n_gpus} GPUs, which cannot be shared out "
            f"evenly. Start as many processes on a machine as divide {n_gpus}; one takes all of them."
        )
    n_own = n_gpus // cluster.n_here
    return list(range(cluster.index_here * n_own, (cluster.index_here + 1) * n_own))


def count_gpus(environment: Mapping[str, str] = os.environ) -> int:
    """How many NVIDIA GPUs a process can see; JAX is not asked, as it would take them."""
    if "cpu" in environment.get("JAX_PLATFORMS", ""):
        return 0
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([name for name in visible.split(",") if name.strip() not in ("", "-1")])
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False, timeout=30).stdout
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return len(re.findall(r"^GPU \d+:", listed, re.MULTILINE))


def _has(environment: Mapping[str, str], *names: str) -> bool:
    return all(environment.get(name) for name in names)


def _tasks_here(text: str, node: int) -> int:
    """How many tasks a node has, of a text such as `4(x2),3`; 0 if it does not tell."""
    counts: list[int] = []
    for n_tasks, n_nodes in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts += [int(n_tasks)] * int(n_nodes or 1)
    return counts[node] if node < len(counts) else 0


def seconds_in(environment: Mapping[str, str], name: str, *, default: float) -> float:
    """The seconds that a variable gives."""
    text = environment.get(name)
    if not text:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not seconds > 0:
        raise ArgumentError(f"{name} is {text!r}. Give a number of seconds above 0, such as {name}={default or 60:g}.")
    return seconds


def worker_seconds(environment: Mapping[str, str] = os.environ) -> float:
    """How long one of several processes may be silent, or be stopped: `TRELLIS_WORKER_TIMEOUT`, by default a minute."""
    return seconds_in(environment, "TRELLIS_WORKER_TIMEOUT", default=60.0)
