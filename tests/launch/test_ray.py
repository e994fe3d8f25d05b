"""What is wrong with a launch on Ray is told before anything is started."""

import importlib.util
import socket
from pathlib import Path

import pytest

from trellis.errors import ArgumentError
from trellis.launch import RayOptions, check_address, join_cluster, launch_on_ray


def test_an_address_where_nobody_answers_is_told_at_once() -> None:
    for address in ("127.0.0.1:9", "ray://127.0.0.1:9"):
        with pytest.raises(ConnectionError, match="refused"):
            check_address(address)


def test_what_ray_says_of_an_address_is_told_in_one_line() -> None:
    class Ray:
        """A package that finds no cluster."""

        def init(self, *, address: str) -> None:
            raise ValueError(f"Many words.\nInvalid address format: {address}.")

    told = r"^There is no cluster of Ray at nonsense: Invalid address format: nonsense. Start one with `ray start"
    with pytest.raises(ArgumentError, match=told):
        join_cluster(Ray(), "nonsense")


def test_a_cluster_that_lets_nobody_in_is_told_from_one_that_is_not_there() -> None:
    class Ray:
        """A package that has no token."""

        def init(self, *, address: str) -> None:
            raise ConnectionError(f"Failed to connect to Ray cluster at {address}")

    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        told = rf"^The cluster of Ray at {address} cannot be joined: Failed to connect .*set RAY_AUTH_MODE=token"
        with pytest.raises(ArgumentError, match=told):
            join_cluster(Ray(), address)


@pytest.mark.parametrize("address", ["", "auto", "nonsense"])
def test_an_address_that_is_no_host_and_port_is_left_to_ray(address: str) -> None:
    assert not check_address(address)


@pytest.mark.parametrize(
    ("processes", "said"), [((4, 2), "processes is 4:2. Give the fewest first: 2:4"), ((0, 2), "processes is 0, but")]
)
def test_numbers_of_processes_that_cannot_be_are_told(processes: tuple[int, int], said: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=said):
        launch_on_ray(lambda _: 0, ["train"], n_processes=processes, log_dir=tmp_path)


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")
def test_a_launch_names_the_address_and_leaves_no_directory(tmp_path: Path) -> None:
    options = RayOptions(address="127.0.0.1:9")
    with pytest.raises(ArgumentError, match=r"no cluster of Ray at 127.0.0.1:9: .*refused.*`ray start --head`"):
        launch_on_ray(lambda _: 0, ["train"], n_processes=2, log_dir=tmp_path / "logs", options=options)
    assert not (tmp_path / "logs").exists()
