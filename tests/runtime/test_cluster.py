"""Who a process is among those that SLURM or Open MPI have started, and which GPUs are its own."""

from typing import Any

import pytest

from trellis.errors import ArgumentError
from trellis.runtime.cluster import count_gpus, find_cluster, share_of_gpus

SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_NODELIST": "node[1-3]",
    "SLURM_STEP_NUM_TASKS": "10",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2),2",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
}
OPEN_MPI = {
    "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1:34911",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
}


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What JAX is asked for."""
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(
        "jax.distributed.initialize", lambda address, **more: calls.append({"address": address, **more})
    )
    monkeypatch.setattr("jax.config.update", lambda name, value: None)
    monkeypatch.setattr("trellis.runtime.roll_call.RollCall.hold", lambda self, bind_address: None)
    return calls


def test_slurm_tells_how_many_processes_are_on_a_node() -> None:
    found = find_cluster(SLURM)
    assert found is not None
    assert (found.method, found.n_processes, found.n_here, found.index_here) == ("slurm", 10, 4, 1)
    last = find_cluster(SLURM | {"SLURM_NODEID": "2"})
    assert last is not None
    assert last.n_here == 2


def test_open_mpi_is_known() -> None:
    found = find_cluster(OPEN_MPI)
    assert found is not None
    assert (found.method, found.n_processes, found.n_here, found.index_here) == ("ompi", 2, 2, 1)


def test_open_mpi_that_does_not_tell_where_the_first_process_is_needs_its_address(joined: list[dict[str, Any]]) -> None:
    from trellis.runtime import join_processes

    since_5 = {name: value for name, value in OPEN_MPI.items() if "orte" not in name}
    with pytest.raises(ArgumentError, match=r"Open MPI has started 2 processes, .* -x JAX_COORDINATOR_ADDRESS=HOST"):
        join_processes(since_5)
    join_processes(since_5 | {"JAX_COORDINATOR_ADDRESS": "10.0.0.1:8476"})
    (call,) = joined
    assert (call["address"], call["num_processes"], call["process_id"]) == ("10.0.0.1:8476", 2, 1)
    assert call["cluster_detection_method"] == "deactivate"
    assert find_cluster(since_5 | {"OMPI_COMM_WORLD_SIZE": "1"}) is None


def test_a_script_that_sbatch_runs_and_a_single_task_are_alone() -> None:
    in_a_script = {name: value for name, value in SLURM.items() if not name.startswith("SLURM_STEP")}
    assert find_cluster(in_a_script) is None
    assert find_cluster(SLURM | {"SLURM_STEP_NUM_TASKS": "1"}) is None
    assert find_cluster({}) is None


@pytest.mark.parametrize(
    ("more", "own"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, [1]),
        ({"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}, [2, 3]),
        ({"CUDA_VISIBLE_DEVICES": "2", "SLURM_GPUS_PER_TASK": "1"}, [0]),
        ({"CUDA_VISIBLE_DEVICES": "0,1,2,3", "SLURM_STEP_TASKS_PER_NODE": "1(x10)"}, [0, 1, 2, 3]),
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
        ({"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}, []),
    ],
    ids=["one each", "two each", "bound by slurm", "one process a node", "none", "not used"],
)
def test_processes_of_a_node_share_out_its_gpus(more: dict[str, str], own: list[int]) -> None:
    environment = SLURM | more
    found = find_cluster(environment)
    assert found is not None
    assert share_of_gpus(found, environment) == own


def test_gpus_that_cannot_be_shared_out_are_told() -> None:
    environment = SLURM | {"CUDA_VISIBLE_DEVICES": "0,1,2"}
    found = find_cluster(environment)
    assert found is not None
    with pytest.raises(ArgumentError, match="4 processes of this machine see the same 3 GPUs"):
        share_of_gpus(found, environment)


def test_gpus_are_counted_without_jax(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert count_gpus({}) == 0
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'GPU 0: H200 (UUID: a)'\necho 'GPU 1: H200 (UUID: b)'\n")
    program.chmod(0o755)
    assert count_gpus({}) == 2


def test_jax_is_told_of_the_cluster_and_of_the_share(
    joined: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from trellis.runtime import join_processes

    # JAX looks there itself, and wants one more that `srun` sets.
    for name, value in SLURM.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SLURM_NTASKS", "10")
    join_processes(SLURM | {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"})
    (call,) = joined
    assert call["address"] == "node1:61447"
    assert (call["process_id"], call["num_processes"]) == (5, 10)
    assert call["local_device_ids"] == [2, 3]
