"""A command on a cluster of Ray, whose trainer for JAX starts its processes, joins them and starts them again."""

import contextlib
import logging
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trellis.disk import check_writable
from trellis.errors import ArgumentError, ExitCode, MissingPackageError, RunFailedError
from trellis.runtime import TF_CONFIG, print_line

_PASSED_ON = ("JAX_", "XLA_", "NCCL_", "TRELLIS_", "PYTHONPATH", "XDG_CACHE_HOME", TF_CONFIG)
"""What the names of the variables begin with that the processes get from the launcher."""
_NO_RETRY = (ExitCode.DONE, ExitCode.BAD_INPUT, ExitCode.INTERRUPTED)
"""Exit codes after which nothing is started again: done, bad input, Ctrl-C."""
_MOST_SECONDS = 10
"""How long to wait for a cluster to answer."""
_JOINED_BY_RAY = {"JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo", "JAX_ENABLE_PREEMPTION_SERVICE": "true"}
"""What Trellis sets where it joins the processes itself."""


@dataclass(frozen=True)
class RayOptions:
    """What Ray is to know of a run."""

    address: str | None = None
    """Of the cluster; None is the one of `RAY_ADDRESS`, or of this machine."""
    n_gpus: int = 0
    """How many GPUs a process takes. Ray numbers them from 0 in every process: have one process a machine."""
    n_cpus: int = 1
    """How many cores a process takes."""
    n_restarts: int = 0
    """How often all are started again when one has failed; a machine that is taken away is not counted."""

    @property
    def need(self) -> dict[str, int]:
        """What a process takes, in Ray's words."""
        return {"CPU": self.n_cpus} | ({"GPU": self.n_gpus} if self.n_gpus else {})


def launch_on_ray(
    main: Callable[[Sequence[str]], int],
    arguments: Sequence[str],
    *,
    n_processes: int | tuple[int, int],
    log_dir: Path,
    options: RayOptions | None = None,
) -> int:
    """Runs the command with some arguments in processes of a cluster of Ray; returns its exit code.

    Ray joins the processes and starts them again; what they go on from is the run's own checkpoint file, which Ray does
    not know of. The output of the first is shown, that of the others goes to files.

    Args:
        main: Runs the command, and returns its exit code.
        n_processes: Or the fewest and the most, of which Ray takes as many as there are machines for.
        log_dir: Where the output goes; all machines have to see it, as they have to see the directory of the run.
    """
    options = options or RayOptions()
    fewest, most = (n_processes, n_processes) if isinstance(n_processes, int) else n_processes
    if fewest < 1:
        raise ArgumentError(f"processes is {fewest}, but there is at least one.")
    if fewest > most:
        raise ArgumentError(f"processes is {fewest}:{most}. Give the fewest first: {most}:{fewest}.")
    connect(options, n_processes=fewest)
    try:
        from ray import train as ray_train
        from ray.train.v2.jax import JaxTrainer
        from ray.train.v2.jax.config import JaxConfig
    except ImportError:
        raise MissingPackageError("ray", "ray") from None
    # Its types are those of the trainer before this one, whatever it gives.
    train: Any = ray_train
    log_dir = log_dir.absolute()
    check_writable(log_dir, name="logs")
    number = f"{fewest} to {most}" if fewest != most else str(most)
    print_line(
        f"Starts {number} processes on Ray; the output of all but the first goes to {log_dir}. When there are too few "
        f"machines, Ray waits for more: see ray status."
    )
    trainer: Any = JaxTrainer(
        _run_command,
        train_loop_config={
            "main": main,
            "arguments": list(arguments),
            "directory": os.getcwd(),
            "log_dir": str(log_dir),
        },
        # Without this Ray leaves the processes alone, each for itself, on CPUs too.
        jax_config=JaxConfig(use_gpu=True),
        scaling_config=train.ScalingConfig(
            num_workers=n_processes,
            use_gpu=options.n_gpus > 0,
            resources_per_worker=options.need,
        ),
        run_config=train.RunConfig(
            storage_path=str(log_dir),
            failure_config=train.FailureConfig(max_failures=options.n_restarts, max_preemption_failures=-1),
            worker_runtime_env={"env_vars": passed_on(os.environ, options=options) | _JOINED_BY_RAY},
        ),
    )
    try:
        result = trainer.fit()
    except Exception as error:  # noqa: BLE001  (Ray raises many kinds, and has told what it knows)
        raise RunFailedError(f"The run on Ray has failed: {in_short(error)} Its files are in {log_dir}.") from None
    return int(result.return_value)


def connect(options: RayOptions, *, n_processes: int) -> Any:
    """Joins a cluster of Ray, and returns Ray.

    Raises an error if there is none, or if it has not the room for so many processes: Ray itself would wait.
    """
    try:
        import ray as untyped_ray
    except ImportError:
        raise MissingPackageError("ray", "ray") from None
    ray: Any = untyped_ray
    if not ray.is_initialized():
        join_cluster(ray, options.address or os.environ.get("RAY_ADDRESS"), log_to_driver=True)
    machines = [machine["Resources"] for machine in ray.nodes() if machine["Alive"]]
    room = sum(min(int(has.get(name, 0) // each) for name, each in options.need.items()) for has in machines)
    if room < n_processes:
        takes = " and ".join(f"{each} {name}" for name, each in options.need.items())
        fewer = f"Give --processes={room}, or add" if room else "Add"
        raise ArgumentError(
            f"processes is {n_processes}, each of which takes {takes}, but the cluster of Ray has room for {room}. "
            f"{fewer} machines first: `ray start --address=…`."
        )
    return ray


def join_cluster(ray: Any, address: str | None, **options: Any) -> None:
    """Joins a cluster of Ray, or raises an error that names the address.

    Args:
        ray: The package.
        address: None is this machine, on which Ray starts one.
    """
    place = "this machine" if address in (None, "auto") else address
    answers = False
    try:
        answers = check_address(address or "")
        ray.init(address=address, **options)
    except Exception as error:  # noqa: BLE001  (Ray raises many kinds)
        problem = in_short(error).rstrip(".")
        if answers:
            raise ArgumentError(
                f"The cluster of Ray at {place} cannot be joined: {problem}. If it asks for a token, set "
                f"RAY_AUTH_MODE=token, and have its token in ~/.ray/auth_token: `ray get-auth-token` shows it there."
            ) from None
        raise ArgumentError(
            f"There is no cluster of Ray at {place}: {problem}. Start one with `ray start --head`, "
            f"and give its address, as in --address=10.0.0.1:6379."
        ) from None


def check_address(address: str) -> bool:
    """Whether somebody answers; False if an address is no host and port, which only Ray knows to read.

    Raises ConnectionError where nobody answers: Ray itself would try for minutes.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdecimal() or "/" in host:
        return False
    try:
        socket.create_connection((host, int(port)), timeout=_MOST_SECONDS).close()
    except OSError as error:
        raise ConnectionError(error.strerror or str(error)) from None
    return True


def passed_on(environment: Mapping[str, str], *, options: RayOptions) -> dict[str, str]:
    """Those of the launcher's variables that its processes get, on whatever machine they are."""
    own = {name: value for name, value in environment.items() if name.startswith(_PASSED_ON)}
    return {"JAX_PLATFORMS": "cuda" if options.n_gpus else "cpu"} | own


def _run_command(config: dict[str, Any]) -> int:
    """Runs the command in a process that Ray has joined to the others; returns its exit code."""
    import ray.train

    context = ray.train.get_context()
    with contextlib.suppress(OSError):
        os.chdir(config["directory"])
    # Ray has every package tell all that it does.
    logging.getLogger("absl").setLevel(logging.WARNING)
    with _output(Path(config["log_dir"]), context.get_world_rank()):
        try:
            code = config["main"](config["arguments"])
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else 1
    if code not in _NO_RETRY:
        raise RuntimeError(f"process {context.get_world_rank()} has ended with code {code}")
    return int(code)


@contextlib.contextmanager
def _output(log_dir: Path, rank: int) -> Iterator[None]:
    """Sends the output of all processes but the first to files."""
    if rank == 0:
        yield
        return
    log = (log_dir / f"process_{rank}.log").open("a")
    with log, contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
        yield


def in_short(error: BaseException) -> str:
    """The last line of what Ray says, which is the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
