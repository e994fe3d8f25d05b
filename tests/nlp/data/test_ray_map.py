"""Data that a cluster of Ray prepares has the bytes of one process, whatever is killed on the way."""

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.launch.test_engines import environment, ray_node, wait_for
from tests.nlp.data.small_questions import question, write_squad
from tests.nlp.data.small_text import write_corpus_file, write_vocabulary
from trellis.cli.main import main
from trellis.errors import ArgumentError, MissingPackageError, RunFailedError
from trellis.nlp.data import ray_map
from trellis.nlp.data.ray_map import _result as result_of

SMALL_BLOCKS = """
import sys
from trellis.cli.main import main
from trellis.nlp.data import corpus, next_sentences, pretraining_data, questions, sentences

corpus._BLOCK_SENTENCES = 1000
next_sentences._BLOCK_DOCUMENTS = 500
pretraining_data._BLOCK_PAIRS = 200
questions._BLOCK_QUESTIONS = questions._BLOCK_WINDOWS = sentences._BLOCK_ROWS = 5
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="ray is installed")
def test_without_ray_the_extra_is_named() -> None:
    with pytest.raises(MissingPackageError, match=r"pip install 'trellis-jax\[ray\]'"):
        ray_map("127.0.0.1:6379")


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")
def test_a_cluster_that_is_not_there_is_told_at_once() -> None:
    with pytest.raises(ArgumentError, match=r"no cluster of Ray at 127.0.0.1:9: .*refused.*`ray start --head`"):
        ray_map("127.0.0.1:9")


class RayError(Exception):
    """As Ray has it."""


class RayTaskError(RayError):
    """What a worker has raised."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__()
        self.cause = cause


class BrokenRay:
    """A Ray that cannot give back a block."""

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)

    def __init__(self, error: RayError) -> None:
        self.error = error

    def get(self, reference: object) -> None:
        raise self.error


def test_what_ray_has_lost_of_the_work_is_told_and_what_the_work_raises_is_left_as_it_is() -> None:
    lost = RayTaskError(RayError("Failed to retrieve object 00ff.\n\nThe object's owner has exited."))
    with pytest.raises(
        RunFailedError, match=r"^Ray has lost a part of the work: Failed to retrieve object 00ff\. Look"
    ):
        result_of(BrokenRay(lost), None)
    with pytest.raises(RunFailedError, match=r"^A block was lost on Ray 9 times: It ran out of memory\. If its"):
        result_of(BrokenRay(RayError("It ran out of memory")), None)
    with pytest.raises(ArgumentError, match="^a wrong label$"):
        result_of(BrokenRay(RayTaskError(ArgumentError("a wrong label"))), None)


def cluster_test(test: Callable[..., None]) -> Callable[..., None]:
    """Marks a test that needs a cluster."""
    has_ray = importlib.util.find_spec("ray") is not None
    is_asked = "TRELLIS_CLUSTER_TESTS" in os.environ
    test = pytest.mark.skipif(not has_ray, reason="ray is not installed")(test)
    test = pytest.mark.skipif(not is_asked, reason="run by `make test-cluster`")(test)
    return pytest.mark.cluster(test)


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[str, list[int]]]:
    """The address of a cluster of two machines with a core each, and the processes that started them."""
    with ExitStack() as stack:
        address, _ = stack.enter_context(ray_node("--head", "--num-cpus=0", "--include-dashboard=false"))
        nodes = [stack.enter_context(ray_node(f"--address={address}"))[1] for _ in range(2)]
        yield address, nodes


def start(address: str, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", SMALL_BLOCKS, "data", *arguments, "--on=ray", f"--address={address}"],
        env=environment(RAY_AUTH_MODE="disabled"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def pretraining(folder: Path, output: str, *, n_passes: int = 2) -> list[str]:
    sentences = Path(write_corpus_file(folder / "few.txt")).read_text()
    (folder / "text.txt").write_text("\n".join([sentences] * 150))
    write_vocabulary(folder / "vocab.txt")
    return [
        "pretraining", f"--input_file={folder}/text.txt", f"--vocab_file={folder}/vocab.txt",
        f"--output_file={folder}/{output}", "--max_seq_length=128", f"--dupe_factor={n_passes}",
    ]  # fmt: skip


def busy_workers(node: int) -> list[int]:
    """The processes that work on a block, on a node."""
    parents = {}
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            parents[int(status.parent.name)] = int(status.read_text().partition("PPid:")[2].split()[0])
        except OSError:
            continue
    found = []
    for pid in parents:
        ancestor = pid
        while ancestor not in (0, node):
            ancestor = parents.get(ancestor, 0)
        if ancestor == node and _title(pid).startswith(b"ray::_do_block"):
            found.append(pid)
    return found


def _title(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def finish(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    output, errors = process.communicate(timeout=300)
    return process.returncode, output, errors


@pytest.mark.parametrize("lost", ["nothing", "a worker", "a machine"])
@cluster_test
def test_a_cluster_writes_the_bytes_of_one_process(cluster: tuple[str, list[int]], tmp_path: Path, lost: str) -> None:
    address, nodes = cluster
    assert main(["data", *pretraining(tmp_path, "one.tfrecord")]) == 0
    with ExitStack() as stack:
        if lost == "a machine":
            nodes = [stack.enter_context(ray_node(f"--address={address}"))[1]]
        command = start(address, *pretraining(tmp_path, "ray.tfrecord"))
        if lost != "nothing":
            wait_for(lambda: any(map(busy_workers, nodes)))
            if lost == "a worker":
                os.kill(next(pid for node in nodes for pid in busy_workers(node)), signal.SIGKILL)
            else:
                os.killpg(nodes[0], signal.SIGKILL)
        code, _, errors = finish(command)
    assert code == 0, errors
    assert (tmp_path / "ray.tfrecord").read_bytes() == (tmp_path / "one.tfrecord").read_bytes()


@cluster_test
def test_ctrl_c_stops_the_work_on_all_machines(cluster: tuple[str, list[int]], tmp_path: Path) -> None:
    address, nodes = cluster
    command = start(address, *pretraining(tmp_path, "ray.tfrecord", n_passes=50))
    wait_for(lambda: any(map(busy_workers, nodes)))
    command.send_signal(signal.SIGINT)
    code, _, errors = finish(command)
    assert (code, "Traceback" in errors) == (130, False), errors
    wait_for(lambda: not any(map(busy_workers, nodes)))
    assert not [path for path in tmp_path.iterdir() if "tfrecord" in path.name or "trellis" in path.name]


@cluster_test
def test_records_to_fine_tune_on_are_those_of_one_process(cluster: tuple[str, list[int]], tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("sentence\tlabel\n" + "the cat sat\t1\na dog\t0\n" * 20)
    questions = [question(f"q{number}", "What is blue?", "Sky") for number in range(20)]
    squad = write_squad(tmp_path / "squad.json", *questions)
    sizes = ["--max_seq_length=16", "--max_query_length=8", f"--vocab_file={write_vocabulary(tmp_path / 'vocab.txt')}"]
    tasks = {
        "SST-2": ["--classification_task_name=SST-2", f"--input_data_dir={tmp_path}"],
        "SQuAD": ["--fine_tuning_task_type=squad", f"--squad_data_file={squad}"],
    }
    for name, flags in tasks.items():
        one, ray = (
            ["finetuning", *flags, *sizes, f"--train_data_output_path={path}", f"--meta_data_file_path={path}.json"]
            for path in (tmp_path / f"{name}-one", tmp_path / f"{name}-ray")
        )
        assert main(["data", *one]) == 0
        code, _, errors = finish(start(cluster[0], *ray))
        assert code == 0, errors
        assert (tmp_path / f"{name}-ray").read_bytes() == (tmp_path / f"{name}-one").read_bytes()


@cluster_test
def test_the_error_of_a_block_is_that_of_one_process(
    cluster: tuple[str, list[int]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.tsv").write_text("sentence\tlabel\n" + "the cat\t1\n" * 20 + "a dog\tseven\n")
    flags = [
        "finetuning", "--classification_task_name=SST-2", f"--input_data_dir={tmp_path}",
        f"--vocab_file={write_vocabulary(tmp_path / 'vocab.txt')}", f"--train_data_output_path={tmp_path}/o",
        f"--meta_data_file_path={tmp_path}/meta.json",
    ]  # fmt: skip
    assert main(["data", *flags]) == 2
    code, _, errors = finish(start(cluster[0], *flags))
    assert (code, errors) == (2, capsys.readouterr().err)
    assert "'seven'" in errors
