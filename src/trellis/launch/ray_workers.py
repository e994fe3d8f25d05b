"""A command in processes of a cluster of Ray, each of which an actor starts on its machine and looks after."""

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from trellis.errors import ArgumentError, ExitCode, RunFailedError
from trellis.executor import (
    LocalProcess,
    Worker,
    WorkerOrder,
    address_of,
    cluster_variables,
    hold_port,
    start_process,
)
from trellis.launch.local import launch_workers
from trellis.launch.ray import RayOptions, connect, in_short, passed_on
from trellis.runtime import join_seconds, print_line

_SECONDS_BETWEEN_LOOKS = 0.05
_SECONDS_UNTIL_TOLD = 5.0
"""After so many seconds it is told that a cluster has no room yet."""


def launch_workers_on_ray(
    arguments: Sequence[str], *, n_processes: int, log_dir: Path, options: RayOptions | None = None
) -> int:
    """Runs `trellis` with some arguments in processes of a cluster of Ray that know each other; returns the exit code.

    They are shown, ended and started again as those of this machine (`launch_local`). A machine that is gone is a
    process that has failed; whoever starts them again waits for another machine as long as processes wait for each
    other.

    Args:
        log_dir: Where the output of all processes but the first goes, on this machine.
    """
    if n_processes < 1:
        raise ArgumentError(f"processes is {n_processes}, but there is at least one.")
    options = options or RayOptions()
    machines = _RayMachines(connect(options, n_processes=n_processes), n_processes, options)
    print_line(f"Starts {n_processes} processes on Ray; the output of all but the first goes to {log_dir}.")
    return launch_workers(
        arguments, cluster=machines.room, start=machines.start, log_dir=log_dir, n_restarts=options.n_restarts
    )


class _RayMachines:
    """The places of a cluster in which processes run, one actor each."""

    def __init__(self, ray: Any, n_processes: int, options: RayOptions) -> None:
        self._ray = ray
        self._n_processes = n_processes
        self._options = options
        self._actors: list[Any] = []

    @contextlib.contextmanager
    def room(self) -> Iterator[list[dict[str, str]]]:
        """Makes room on the cluster; gives the variables that tell the processes who they are."""
        from ray.util import placement_group, remove_placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        need = self._options.need
        group = placement_group([need] * self._n_processes, strategy="SPREAD")
        try:
            self._wait_for(group)
            actor = self._ray.remote(max_concurrency=2)(_Place)
            self._actors = [
                actor.options(
                    num_cpus=need["CPU"],
                    num_gpus=need.get("GPU", 0),
                    scheduling_strategy=PlacementGroupSchedulingStrategy(group, index),
                    runtime_env={"env_vars": passed_on(os.environ, options=self._options)},
                ).remote()
                for index in range(self._n_processes)
            ]
            addresses = self._get([each.addresses.remote() for each in self._actors])
            if self._n_processes == 1:
                yield [{}]
            else:
                yield cluster_variables([own for own, _ in addresses], coordinator=addresses[0][1])
        finally:
            # Its actors end with it.
            remove_placement_group(group)

    def start(self, order: WorkerOrder) -> Worker:
        """Starts a process in its place."""
        actor = self._actors[order.index]
        environment = passed_on(order.environment, options=self._options)
        self._get(actor.start.remote(replace(order, environment=environment), directory=os.getcwd()))
        return _RayWorker(self._ray, actor, order)

    def _wait_for(self, group: Any) -> None:
        """Waits until there is room; raises an error if there is none for too long."""
        seconds = join_seconds()
        if group.wait(min(_SECONDS_UNTIL_TOLD, seconds)):
            return
        print_line(f"Waits for room for {self._n_processes} processes on the cluster, {seconds:g} seconds at most.")
        if not group.wait(seconds):
            raise RunFailedError(
                f"The cluster of Ray has had no room for {self._n_processes} processes for {seconds:g} seconds "
                f"(--join_timeout): `ray status` tells what its machines do. Give fewer processes, or add machines."
            )

    def _get(self, reference: Any) -> Any:
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            raise RunFailedError(f"Ray could not start a process: {in_short(error)}") from None


class _Place:
    """A process on a machine of a cluster; lives in an actor there."""

    def __init__(self) -> None:
        from ray import util

        ray_util: Any = util  # it has no types
        host = ray_util.get_node_ip_address()
        self._own = hold_port(host)
        self._coordinator = hold_port(host)
        self._files: list[IO[bytes]] = []
        self._n_read: dict[int, int] = {}
        self._process: LocalProcess | None = None

    def addresses(self) -> tuple[str, str]:
        """An address for the process itself, and one for the coordinator of all."""
        return address_of(self._own), address_of(self._coordinator)

    def start(self, order: WorkerOrder, *, directory: str) -> None:
        """Starts the process, with the Python of this machine."""
        self._own.close()
        with contextlib.suppress(OSError):
            os.chdir(directory)
        # What goes to a file goes there together. These end with the actor.
        self._files = [TemporaryFile() for _ in range(1 if order.log_file else 2)]  # noqa: SIM115
        own = replace(
            order,
            command=[sys.executable, *order.command[1:]],
            environment=os.environ | dict(order.environment),
            log_file=None,
        )
        self._process = start_process(own, stdout=self._files[0], stderr=self._files[-1])

    def look(self) -> tuple[int | None, list[bytes]]:
        """Its exit code, None while it runs, and what it has written since the last look."""
        code = self._process.poll() if self._process else None
        return code, [self._read(file) for file in self._files]

    def _read(self, file: IO[bytes]) -> bytes:
        # The process writes at the place of the file that both share.
        begin = self._n_read.get(file.fileno(), 0)
        end = os.fstat(file.fileno()).st_size
        self._n_read[file.fileno()] = end
        return os.pread(file.fileno(), end - begin, begin)

    def stop(self, *, seconds: float) -> None:
        """Ends the process and all that it has started."""
        if self._process:
            self._process.stop(seconds=seconds)


class _RayWorker:
    """A process of a cluster, seen from the machine that has launched it."""

    def __init__(self, ray: Any, actor: Any, order: WorkerOrder) -> None:
        self._ray = ray
        self._actor = actor
        self._log_file = order.log_file
        self._code: int | None = None
        self._is_lost = False
        if order.log_file:
            order.log_file.write_bytes(b"")

    def poll(self) -> int | None:
        if self._code is None:
            self._look()
        return self._code

    def is_gone(self) -> bool:
        """Whether Ray has lost it."""
        return self._is_lost

    def stop(self, *, seconds: float) -> None:
        if self._is_lost:
            return
        stopped = self._actor.stop.remote(seconds=seconds)
        while not self._ray.wait([stopped], timeout=_SECONDS_BETWEEN_LOOKS)[0]:
            self._look()
        self._look()

    def _look(self) -> None:
        """Shows what the process has written, and asks whether it has ended."""
        try:
            self._code, outputs = self._ray.get(self._actor.look.remote())
        except self._ray.exceptions.ActorUnavailableError:
            return  # it may come back, or is told to be dead the next time
        except self._ray.exceptions.RayActorError as error:
            self._is_lost = True
            self._code = ExitCode.LOST
            outputs = [b"", f"Ray has lost this process: {in_short(error)}\n".encode()]
        self._show(outputs)

    def _show(self, outputs: Sequence[bytes]) -> None:
        if self._log_file:
            with self._log_file.open("ab") as log:
                log.writelines(outputs)
            return
        for screen, output in zip((sys.stdout, sys.stderr), outputs, strict=True):
            if output:
                screen.flush()
                screen.buffer.write(output)
                screen.buffer.flush()
