"""`trellis serve` under load and under attack, beside `load_model` asked one example at a time.

Run it as `python benchmarks/serve_load.py`; benchmarks/README.md says what is measured and how.
"""

import argparse
import json
import os
import platform
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from statistics import median, quantiles
from typing import Any

CLIENTS = (1, 8, 32)
ALONE, UNBATCHED, BATCHED = "load_model, one at a time", "trellis serve, batches of 1", "trellis serve"
PACKAGES = ("jax", "starlette", "uvicorn")
RESULTS = Path(__file__).parent / "results/serve_load.md"
MODELS = {"a small MLP, 64 numbers": [], "BERT, 6 layers of 384, 64 tokens": []}


def export_models(folder: Path) -> dict[str, Path]:
    """Two models with weights of chance: one that costs less than its request, and one that costs more."""
    import flax.linen as nn
    import jax
    import numpy as np

    from trellis.experiments import resolve
    from trellis.serving import Signature, export_model
    from trellis.tasks import BoundModel, export_task, get_task

    small = nn.Sequential([nn.Dense(64), nn.relu, nn.Dense(10)])
    images = np.zeros((2, 64), np.float32)
    signatures = {"inference_step": Signature(small.apply, images)}
    export_model(folder / "small", variables=small.init(jax.random.key(0), images), signatures=signatures)
    encoder = "task.model.encoder.bert."
    sizes = {"hidden_size": 384, "num_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    settings = [
        *(f"{encoder}{name}={value}" for name, value in sizes.items()),
        f"{encoder}vocab_size=30522",
        "task.model.num_classes=2",
        "task.init_checkpoint=",
    ]
    task = get_task(resolve("bert/sentence_prediction", settings=settings).task)
    model = task.build_model()
    names = ("input_word_ids", "input_mask", "input_type_ids")
    inputs = {name: np.ones((2, 64), np.int32) for name in names}
    params = model.init(jax.random.key(0), inputs)["params"]
    export_task(task, model=BoundModel(model, params=nn.meta.unbox(params)), inputs=inputs, output_dir=folder / "bert")
    return dict(zip(MODELS, (folder / "small", folder / "bert"), strict=True))


def one_example(directory: Path) -> dict[str, Any]:
    """Inputs for a model, as lists, by name."""
    manifest = json.loads((directory / "manifest.json").read_text())
    specs = manifest["signatures"][manifest["default_signature"]]["inputs"]
    return {spec["name"]: (spec["dtype"], [[1] * spec["shape"][1]]) for spec in specs}


def request_of(directory: Path, name: str) -> bytes:
    """A whole HTTP request for one example."""
    kinds = {"float32": "FP32", "int32": "INT32"}
    inputs = [
        {"name": key, "datatype": kinds[dtype], "shape": [1, len(rows[0])], "data": rows}
        for key, (dtype, rows) in one_example(directory).items()
    ]
    return http_request(f"/v2/models/{name}/infer", json.dumps({"inputs": inputs}).encode())


def http_request(path: str, body: bytes) -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def read_reply(connection: socket.socket) -> tuple[int, bytes]:
    """The status and the body of a reply; (0, b"") if the connection ends before."""
    received = b""
    while b"\r\n\r\n" not in received:
        part = connection.recv(1 << 16)
        if not part:
            return 0, b""
        received += part
    head, _, body = received.partition(b"\r\n\r\n")
    n_body = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
    while len(body) < n_body:
        part = connection.recv(1 << 16)
        if not part:
            return 0, b""
        body += part
    return int(head.split()[1]), body


@contextmanager
def served(directory: Path, *flags: str) -> Iterator[tuple[subprocess.Popen[str], int, list[dict[str, Any]]]]:
    """A server that is ready: its process, its port, and the lines that it has told."""
    command = [sys.executable, "-m", "trellis", "serve", f"--model={directory}", "--json", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    told: list[dict[str, Any]] = []
    ready = threading.Event()

    def listen() -> None:
        for line in process.stdout or ():
            told.append(json.loads(line))
            if told[-1]["event"] == "ready":
                ready.set()
        ready.set()

    listening = threading.Thread(target=listen, daemon=True)
    listening.start()
    try:
        ready.wait()
        port = next(line["port"] for line in told if line["event"] == "listening")
        yield process, port, told
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
        listening.join()


def ask_for(seconds: float, n_clients: int, client: Callable[[], Callable[[], object]]) -> tuple[list[float], float]:
    """How long each request took, and all of them: each client asks the next when it has its answer."""
    times: list[list[float]] = [[] for _ in range(n_clients)]
    clients = [client() for _ in range(n_clients)]
    first = time.perf_counter()
    end = first + seconds

    def work(number: int) -> None:
        while (start := time.perf_counter()) < end:
            clients[number]()
            times[number].append(time.perf_counter() - start)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(n_clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [each for own in times for each in own], time.perf_counter() - first


def processor_seconds(process: int) -> float:
    """What a process has had of the cores so far: unlike a time, it does not grow when others want them too."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def over_http(port: int, request: bytes) -> Callable[[], Callable[[], object]]:
    def client() -> Callable[[], object]:
        connection = socket.create_connection(("127.0.0.1", port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def ask() -> None:
            connection.sendall(request)
            status, _ = read_reply(connection)
            assert status == 200, status

        return ask

    return client


def in_process(directory: Path) -> Callable[[], Callable[[], object]]:
    """`load_model` in a process where one caller after the other is heard."""
    import jax
    import numpy as np

    from trellis.serving import load_model

    model = load_model(directory).signatures
    signature = next(iter(model.values()))
    arrays = {name: np.array(rows, dtype) for name, (dtype, rows) in one_example(directory).items()}
    alone = threading.Lock()

    def ask() -> None:
        with alone:
            jax.device_get(signature.call_by_name(arrays))

    ask()
    return lambda: ask


def measure(models: dict[str, Path], *, seconds: float, rounds: int) -> list[str]:
    """A table of latencies and throughputs."""
    results: dict[tuple[str, int, str], list[tuple[list[float], float]]] = {}
    costs: dict[tuple[str, int, str], float] = {}
    for name, directory in models.items():
        request = request_of(directory, directory.name)
        with (
            served(directory, "--port=0", "--batch_sizes=1") as (one_by_one, unbatched, _),
            served(directory, "--port=0") as (together, batched, _),
        ):
            processes = {ALONE: os.getpid(), UNBATCHED: one_by_one.pid, BATCHED: together.pid}
            contenders = {
                ALONE: in_process(directory),
                UNBATCHED: over_http(unbatched, request),
                BATCHED: over_http(batched, request),
            }
            for client in contenders.values():
                ask_for(1, 8, client)
            for number in range(rounds):
                # Each is first, and each is last, as often as the others.
                order = list(contenders)[number % 3 :] + list(contenders)[: number % 3]
                for n_clients in CLIENTS:
                    for contender in order:
                        key = name, n_clients, contender
                        before = processor_seconds(processes[contender])
                        results.setdefault(key, []).append(ask_for(seconds, n_clients, contenders[contender]))
                        costs[key] = costs.get(key, 0) + processor_seconds(processes[contender]) - before
                        print(*key, len(results[key][-1][0]), flush=True)
    rows = [
        "| model | clients | contender | p50 ms | p99 ms | CPU ms | requests/s | × |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (name, n_clients, contender), all_times in results.items():
        first = results[name, n_clients, ALONE]
        rate, own = (median(len(times) / elapsed for times, elapsed in each) for each in (all_times, first))
        middle = median(median(times) for times, _ in all_times)
        late = median(quantiles(times, n=100)[98] for times, _ in all_times)
        cost = costs[name, n_clients, contender] / sum(len(times) for times, _ in all_times)
        cells = f"{1000 * middle:.2f}", f"{1000 * late:.2f}", f"{1000 * cost:.2f}", f"{rate:,.0f}", f"{rate / own:.2f}"
        rows.append(f"| {name} | {n_clients} | {contender} | {' | '.join(cells)} |")
    return rows


def nonsense(chance: random.Random, good: bytes) -> tuple[str, list[bytes]]:
    """A request that is wrong in some way, and what way that is; as parts that are sent apart."""
    head, _, body = good.partition(b"\r\n\r\n")
    kind = chance.choice(["bytes", "head", "json", "values", "short", "long", "huge", "pipelined", "left", "slow"])
    match kind:
        case "bytes":
            return kind, [chance.randbytes(chance.randrange(1, 4000)), b"\r\n\r\n"]
        case "head":
            return kind, [mutated(chance, head) + b"\r\n\r\n" + body]
        case "json":
            return kind, [http_request(path_of(head), mutated(chance, body))]
        case "values":
            values = [
                "null",
                "[]",
                "{}",
                '"x"',
                "NaN",
                "-Infinity",
                "1e999",
                "9" * 5000,
                "[" * 3000,
                "true",
                '"\\ud800"',
            ]
            number = chance.randrange(body.count(b"1"))
            parts = body.split(b"1")
            changed = b"1".join(parts[: number + 1]) + chance.choice(values).encode() + b"1".join(parts[number + 1 :])
            return kind, [http_request(path_of(head), changed)]
        case "short":
            return kind, [good[: chance.randrange(len(good))]]
        case "long":
            return kind, [
                head.replace(b"Content-Length: ", b"Content-Length: 0"),
                b"X-A: " + b"a" * 70_000,
                b"\r\n\r\n",
            ]
        case "huge":
            size = chance.choice([17 << 20, 40 << 20])
            sent = f"POST {path_of(head)} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n\r\n".encode()
            return kind, [sent, *[b" " * (1 << 20)] * (size >> 20)]
        case "pipelined":
            return kind, [good * chance.randrange(2, 20)]
        case "left":
            return kind, [good]
    return kind, [good[:n] for n in [chance.randrange(1, len(good))]]


def path_of(head: bytes) -> str:
    return head.split()[1].decode()


def mutated(chance: random.Random, content: bytes) -> bytes:
    letters = bytearray(content)
    for _ in range(chance.randrange(1, 8)):
        place = chance.randrange(len(letters))
        match chance.randrange(3):
            case 0:
                letters[place] = chance.randrange(256)
            case 1:
                del letters[place : place + chance.randrange(1, 20)]
            case _:
                letters[place:place] = chance.randbytes(chance.randrange(1, 20))
        if not letters:
            break
    return bytes(letters)


def attack(directory: Path, *, n_requests: int, n_slow: int) -> list[str]:
    """Thousands of requests that are wrong, beside one caller whose requests are right and have to be answered."""
    good = request_of(directory, directory.name)
    replies: Counter[tuple[str, str]] = Counter()
    is_over = threading.Event()
    well_asked: list[float] = []
    failures: list[str] = []
    with served(directory, "--port=0", "--timeout_seconds=60") as (process, port, told):
        expected = over_good(port, good)

        def ask_well() -> None:
            connection = socket.create_connection(("127.0.0.1", port))
            while not is_over.is_set():
                start = time.perf_counter()
                connection.sendall(good)
                status, body = read_reply(connection)
                well_asked.append(time.perf_counter() - start)
                if status != 200 or not is_alike(body, expected):
                    failures.append(f"{status} {body[:200]!r}")
                    connection = socket.create_connection(("127.0.0.1", port))

        memory_before = memory_of(port)
        well = threading.Thread(target=ask_well)
        well.start()
        slow = [socket.create_connection(("127.0.0.1", port)) for _ in range(n_slow)]
        for connection in slow:
            connection.sendall(b"POST / HTTP/1.1\r\nHost: ")

        def ask_wrongly(seed: int) -> None:
            chance = random.Random(seed)
            for _ in range(n_requests // 8):
                kind, parts = nonsense(chance, good)
                replies[kind, status_of(port, kind, parts)] += 1

        attackers = [threading.Thread(target=ask_wrongly, args=(seed,)) for seed in range(8)]
        for thread in attackers:
            thread.start()
        for thread in attackers:
            thread.join()
        cut_off = sum(not still_open(connection) for connection in slow)
        is_over.set()
        well.join()
        memory_after = memory_of(port)
        is_alive = process.poll() is None and is_alike(over_good(port, good), expected)
    n_failed = sum(line["event"] == "request_failed" for line in told)
    kinds = sorted({kind for kind, _ in replies})
    rows = ["| kind | requests | answers by status |", "| --- | --- | --- |"]
    for kind in kinds:
        own = {status: count for (each, status), count in sorted(replies.items()) if each == kind}
        rows.append(f"| {kind} | {sum(own.values()):,} | {', '.join(f'{s}: {n:,}' for s, n in own.items())} |")
    late = quantiles(well_asked, n=100)[98]
    state = "answers as before" if is_alive else "IS DOWN"
    summary = f"""\
{sum(replies.values()):,} wrong requests came from 8 connections at a time, and {n_slow} connections never ended their
head, of which {cut_off} were cut off. Meanwhile one caller asked {len(well_asked):,} right ones: {len(failures)} had no
answer or a wrong one, p99 {1000 * late:.0f} ms. {n_failed} requests failed inside (500). The server {state}; told to
end, it ended with {process.returncode}. Memory: {memory_before / 1e6:.0f} MB before, {memory_after / 1e6:.0f} after."""
    return [summary, "", *rows, *(f"- FAILED: {failure}" for failure in failures[:5])]


def is_alike(first: bytes, second: bytes) -> bool:
    """Whether two answers are the same, but for the rounding of batches of another size."""
    numbers = [json.loads(body)["outputs"][0]["data"] for body in (first, second)]
    return all(abs(one - other) < 1e-5 for one, other in zip(*numbers, strict=True))


def over_good(port: int, good: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(good)
        return read_reply(connection)[1]


def status_of(port: int, kind: str, parts: Sequence[bytes]) -> str:
    """What a server answers to parts of a request."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        try:
            for part in parts:
                connection.sendall(part)
            if kind == "left":
                return "(did not wait)"
            if kind in ("short", "slow", "bytes", "head"):
                connection.shutdown(socket.SHUT_WR)
            status, _ = read_reply(connection)
            return str(status) if status else "(closed)"
        except (ConnectionError, ValueError) as error:
            return f"({type(error).__name__})"
        except TimeoutError:
            return "NO ANSWER"


def still_open(connection: socket.socket) -> bool:
    connection.settimeout(20)
    try:
        while connection.recv(1 << 16):
            pass
    except TimeoutError:
        return True
    except ConnectionError:
        return False
    return False


def memory_of(port: int) -> float:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        _, body = read_reply(connection)
    line = next(line for line in body.decode().splitlines() if line.startswith("process_resident_memory_bytes"))
    return float(line.split()[1])


def kill(directory: Path, *, rounds: int) -> list[str]:
    """Servers that end under load: by SIGTERM nothing that was accepted is lost; after SIGKILL they start again."""
    good = request_of(directory, directory.name)
    n_accepted = n_received = n_other = 0
    codes: Counter[int] = Counter()
    longest = 0.0
    for number in range(rounds):
        counts = [0] * 16
        others: list[str] = []

        with served(directory, "--port=0", "--batch_sizes=1,16") as (process, port, told):

            def ask(own: int, port: int = port, counts: list[int] = counts, others: list[str] = others) -> None:
                with suppress(OSError):
                    while True:
                        with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
                            status = 200
                            while status == 200:
                                connection.sendall(good)
                                status, _ = read_reply(connection)
                                counts[own] += status == 200
                        if status:
                            others.append(str(status))

            threads = [threading.Thread(target=ask, args=(own,)) for own in range(16)]
            for thread in threads:
                thread.start()
            time.sleep(0.5 + number % 4 * 0.2)
            start = time.perf_counter()
            process.send_signal(signal.SIGTERM)
            process.wait()
            longest = max(longest, time.perf_counter() - start)
            for thread in threads:
                thread.join()
        stopped = next(line for line in told if line["event"] == "stopped")
        codes[process.returncode] += 1
        n_accepted += stopped["accepted"]
        n_received += sum(counts)
        n_other += len(others)
    ended = f"""\
{rounds} servers were told to end (SIGTERM) under the load of 16 connections: of {n_accepted:,} requests that they
accepted, {n_received:,} answers were received, and {n_other} of another status; exit codes {dict(codes)}; the longest
end took {longest:.1f} s."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    n_again, n_killed = 0, max(1, rounds // 2)
    for _ in range(n_killed):
        with served(directory, f"--port={port}", "--batch_sizes=1,16") as (process, _, _):
            connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(16)]
            for connection in connections:
                connection.sendall(good)
            process.kill()
            process.wait()
        with served(directory, f"--port={port}", "--batch_sizes=1,16"):
            n_again += bool(over_good(port, good))
        for connection in connections:
            connection.close()
    again = f"""\
{n_killed} were killed (SIGKILL) with 16 requests under way and started again on the same port: {n_again} served."""
    return [ended, "", again]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.5, help="how long each contender is asked in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=4000, help="how many wrong requests are sent")
    parser.add_argument("--slow", type=int, default=200, help="how many connections never end their head")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--output", type=Path, default=RESULTS)
    flags = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        models = export_models(Path(folder))
        small = next(iter(models.values()))
        attacked = attack(small, n_requests=flags.requests, n_slow=flags.slow) if flags.requests else []
        print("\n".join(attacked), flush=True)
        killed = kill(small, rounds=flags.kills) if flags.kills else []
        print("\n".join(killed), flush=True)
        table = measure(models, seconds=flags.seconds, rounds=flags.rounds) if flags.rounds else []
    packages = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
    head = f"""\
# Load on a server

Made by `python benchmarks/serve_load.py` on {cpu}, {os.cpu_count()} cores; Python {platform.python_version()};
{packages}. The load average was {load:.1f} when it started.

Load: medians of {flags.rounds} rounds of {flags.seconds:g} s. Each client has a connection, and asks for one example
when it has the answer to the last. Clients and servers share the cores; `load_model` has no HTTP, no JSON and no other
process. CPU is what a request cost the process that answers it, on all cores; for `load_model` that is also the one
that asks. × is the throughput as a multiple of its.
"""
    parts = {"Load": table, "Attacks": attacked, "Kills": killed}
    text = [f"\n## {name}\n\n" + "\n".join(lines) + "\n" for name, lines in parts.items() if lines]
    flags.output.write_text("".join([head, *text]), encoding="utf-8")


if __name__ == "__main__":
    main()
