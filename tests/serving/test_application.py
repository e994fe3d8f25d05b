"""What a server answers at its addresses: both protocols, texts, refusals; and that nonsense never takes it down."""

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from starlette.testclient import TestClient

from tests.serving.served_models import application, client_of, export_doubling, export_function
from trellis.errors import ArgumentError
from trellis.serving.application import Application


class Answered(NamedTuple):
    values: Mapping[str, Any]


class Shouting:
    """Answers texts with their lengths, which a model of numbers doubles."""

    kind = "sentences"
    text_columns = ("first", "second")

    def __call__(self, texts: Sequence[tuple[str, ...]], /, *, ask: Any) -> Iterator[Answered]:
        if any(len(parts) != 2 for parts in texts):
            raise ArgumentError("A text needs two parts.")
        lengths = np.array([[len(part) for part in parts] for parts in texts], np.float32)
        for parts, doubled in zip(texts, ask({"inputs": lengths}), strict=True):
            yield Answered({"text": list(parts), "doubled": doubled.tolist()})


def shouting(model: Any, /, *, name: str) -> Shouting:
    return Shouting()


@pytest.fixture(scope="module")
def doubling(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("doubling")
    export_doubling(folder / "3")
    return folder


@pytest.fixture(scope="module")
def client(doubling: Path) -> TestClient:
    return client_of(application(doubling, open_text=shouting))


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    """A model with two inputs and two outputs of several types."""
    inputs = {"ids": np.zeros((2, 3), np.int32), "mask": np.zeros((2, 3), bool), "w": np.zeros((2,), jnp.bfloat16)}

    def function(v: Any, x: Any) -> Any:
        total = (x["ids"] * x["mask"]).sum(-1)
        return {"total": total, "odd": total % 2 == 1, "part": total.astype(jnp.bfloat16) / x["w"]}

    return client_of(application(export_function(tmp_path_factory.mktemp("mixed") / "served", function, inputs)))


def tensor(name: str, datatype: str, data: Any, shape: Sequence[int] | None = None) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": list(np.shape(data) if shape is None else shape), "data": data}


def infer(client: TestClient, document: Any, **options: Any) -> Any:
    content = document if isinstance(document, bytes | str) else json.dumps(document)
    return client.post("/v2/models/it/infer", content=content, **options)


def test_the_open_inference_protocol_tells_of_the_server_and_of_the_model(client: TestClient) -> None:
    assert client.get("/v2").json()["extensions"] == ["binary_tensor_data"]
    assert client.get("/v2/health/live").json() == {"live": True}
    assert client.get("/v2/health/ready").json() == {"ready": True}
    for path in ("/v2/models/it", "/v2/models/it/versions/3"):
        assert client.get(path).json() == {
            "name": "it",
            "versions": ["3"],
            "platform": "trellis_jax_export",
            "inputs": [{"name": "inputs", "datatype": "FP32", "shape": [-1, 2]}],
            "outputs": [{"name": "outputs", "datatype": "FP32", "shape": [-1, 2]}],
        }
        assert client.get(f"{path}/ready").json() == {"name": "it", "version": "3", "ready": True}


@pytest.mark.parametrize("data", [[[1, 2.5], [3, -4]], [1, 2.5, 3, -4]])
def test_tensors_are_taken_flat_or_nested(client: TestClient, data: Any) -> None:
    reply = infer(client, {"id": "a7", "inputs": [tensor("inputs", "FP32", data, [2, 2])]})
    outputs = [{"name": "outputs", "shape": [2, 2], "datatype": "FP32", "data": [2.0, 5.0, 6.0, -8.0]}]
    assert reply.json() == {"model_name": "it", "model_version": "3", "id": "a7", "outputs": outputs}


def test_tensors_are_taken_and_given_as_bytes(client: TestClient) -> None:
    array = np.array([[1, np.nan], [np.inf, -4]], np.float32)
    given = {"name": "inputs", "datatype": "FP32", "shape": [2, 2], "parameters": {"binary_data_size": array.nbytes}}
    header = json.dumps({"inputs": [given], "outputs": [{"name": "outputs", "parameters": {"binary_data": True}}]})
    lengths = {"Inference-Header-Content-Length": str(len(header))}
    reply = infer(client, header.encode() + array.tobytes(), headers=lengths)
    n_json = int(reply.headers["inference-header-content-length"])
    assert json.loads(reply.content[:n_json])["outputs"][0]["parameters"] == {"binary_data_size": 16}
    np.testing.assert_array_equal(np.frombuffer(reply.content[n_json:], np.float32).reshape(2, 2), 2 * array)
    assert infer(client, header.encode() + array.tobytes()[:-1], headers=lengths).status_code == 400
    assert infer(client, header.encode() + array.tobytes() + b"x", headers=lengths).status_code == 400
    assert infer(client, header.encode(), headers={"Inference-Header-Content-Length": "99999"}).status_code == 400


def test_several_types_are_taken_and_given_by_name(mixed: TestClient) -> None:
    given = [
        tensor("w", "FP32", [0.5, 2]),
        tensor("ids", "INT64", [[1, 2, 3], [4, 5, 6]]),
        tensor("mask", "BOOL", [[True, True, False], [True, False, False]]),
    ]
    outputs = {each["name"]: each for each in infer(mixed, {"inputs": given}).json()["outputs"]}
    assert outputs["total"] == {"name": "total", "shape": [2], "datatype": "INT32", "data": [3, 4]}
    assert outputs["odd"] == {"name": "odd", "shape": [2], "datatype": "BOOL", "data": [True, False]}
    assert outputs["part"] == {"name": "part", "shape": [2], "datatype": "FP32", "data": [6.0, 2.0]}
    only = infer(mixed, {"inputs": given, "outputs": [{"name": "odd"}]}).json()["outputs"]
    assert [each["name"] for each in only] == ["odd"]
    rows = [{"w": 0.5, "ids": [1, 2, 3], "mask": [True, True, False]}]
    predicted = mixed.post("/v1/models/it:predict", json={"instances": rows}).json()
    assert predicted == {"predictions": [{"total": 3, "odd": True, "part": 6.0}]}


def test_tensorflow_servings_predict_takes_rows_and_columns(client: TestClient) -> None:
    for path in ("/v1/models/it:predict", "/v1/models/it/versions/3:predict"):
        for rows in ([[1, 2], [3, 4]], [{"inputs": [1, 2]}, {"inputs": [3, 4]}]):
            assert client.post(path, json={"instances": rows}).json() == {"predictions": [[2.0, 4.0], [6.0, 8.0]]}
        for columns in ([[1, 2]], {"inputs": [[1, 2]]}):
            asked = {"signature_name": "serving_default", "inputs": columns}
            assert client.post(path, json=asked).json() == {"outputs": [[2.0, 4.0]]}
    status = client.get("/v1/models/it").json()["model_version_status"][0]
    assert (status["version"], status["state"]) == ("3", "AVAILABLE")
    signatures = client.get("/v1/models/it/metadata").json()["metadata"]["signature_def"]["signature_def"]
    assert signatures["serving_default"]["inputs"]["inputs"]["dtype"] == "DT_FLOAT"


def test_what_json_has_no_numbers_for_is_taken_as_others_take_it_and_given_by_its_name(client: TestClient) -> None:
    reply = client.post("/v1/models/it:predict", content='{"instances": [[NaN, Infinity], [-Infinity, 0.1]]}')
    assert reply.json() == {"predictions": [["nan", "inf"], ["-inf", 0.2]]}


REFUSED: list[tuple[Any, str]] = [
    ("", "The request has no body. It has to be a JSON object."),
    ("[1]", "is a list, but it has to be a JSON object"),
    ("[" * 5000, "The body of the request is not JSON"),
    ({}, "has no list of inputs"),
    ({"inputs": [1]}, "has no list of inputs"),
    ({"inputs": []}, "lack inputs"),
    ({"inputs": [tensor("input", "FP32", [[1, 2]])]}, "There is no input 'input'. Did you mean 'inputs'?"),
    ({"inputs": [tensor("inputs", "FP32", [[1, 2]])] * 2}, "is given twice"),
    ({"inputs": [tensor("inputs", "FP33", [[1, 2]])]}, "datatype 'FP33'"),
    ({"inputs": [tensor("inputs", "INT32", [[1, 2]])]}, "is INT32, but the model takes FP32"),
    ({"inputs": [tensor("inputs", "BYTES", ["a"])]}, "is BYTES, but the model takes"),
    ({"inputs": [tensor("inputs", "FP32", ["a", "b"], [1, 2])]}, "has text, but the model takes numbers"),
    ({"inputs": [tensor("inputs", "FP32", [[1, None]], [1, 2])]}, "has null, but the model takes numbers"),
    ({"inputs": [tensor("inputs", "FP32", [[1, 2], [3]], [2, 2])]}, "is ragged"),
    ({"inputs": [tensor("inputs", "FP32", [10**400, 1], [1, 2])]}, "a number that is too large"),
    ({"inputs": [tensor("inputs", "FP32", [1e300, 1], [1, 2])]}, "has numbers that float32 cannot hold"),
    ({"inputs": [tensor("inputs", "FP32", [1, 2], [2, 2])]}, r"has the shape [2, 2], but its data are of shape [2]"),
    ({"inputs": [tensor("inputs", "FP32", [1, 2], [-1, 2])]}, "which is no list of sizes"),
    ({"inputs": [tensor("inputs", "FP32", [], [0, 2])]}, "is empty"),
    ({"inputs": [tensor("inputs", "FP32", [[1, 2, 3]])]}, "is float32[1, 3], but it takes inputs float32[batch, 2]"),
    ({"inputs": [{"name": "inputs", "datatype": "FP32", "shape": [1, 2]}]}, "has no data"),
    ({"inputs": [tensor("inputs", "FP32", [[1, 2]])], "outputs": [{"name": "x"}]}, "There is no output 'x'"),
    ({"inputs": [tensor("inputs", "FP32", [[1, 2]])], "parameters": {"signature": "x"}}, "There is no signature 'x'"),
    ({"inputs": [tensor("inputs", "FP32", [[1, 2]])], "id": 7}, "has to be text"),
]


@pytest.mark.parametrize(("document", "problem"), REFUSED)
def test_a_request_that_is_wrong_is_told_what_is_wrong(client: TestClient, document: Any, problem: str) -> None:
    reply = infer(client, document)
    assert reply.status_code == 400
    assert problem in reply.json()["error"]


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({}, "has to have either 'instances'"),
        ({"instances": [[1, 2]], "inputs": [[1, 2]]}, "has to have either 'instances'"),
        ({"instances": []}, "has to be a list of one example or more"),
        ({"instances": [{"inputs": [1, 2]}, [1, 2]]}, "Example 1 of instances has other names"),
        ({"instances": [{"input": [1, 2]}]}, "There is no input 'input'. Did you mean 'inputs'?"),
        ({"instances": [[1, 2]], "signature_name": "clasify"}, "There is no signature 'clasify'"),
        ({"instances": [{"b64": "aGk="}]}, "There is no input 'b64'"),
    ],
)
def test_a_prediction_that_is_wrong_is_told_what_is_wrong(client: TestClient, document: Any, problem: str) -> None:
    reply = client.post("/v1/models/it:predict", json=document)
    assert reply.status_code == 400
    assert problem in reply.json()["error"]


@pytest.mark.parametrize(
    ("method", "path", "status", "problem"),
    [
        ("GET", "/v3", 404, "There is nothing at /v3. There are: /classify, /v2/models/it/infer"),
        ("GET", "/v2/models/its", 404, "There is no model 'its'. There is: it."),
        ("GET", "/v2/models/it/versions/4", 404, "There is no version 4. Served is 3."),
        ("GET", "/v2/models/it/versions/²", 404, "is no number of a version"),
        ("GET", "/v2/models/it/infer", 405, "GET is not for /v2/models/it/infer, but POST is. There are: "),
        ("POST", "/fill", 404, "The model does not fill. There are: /classify"),
        ("POST", "/embed", 404, "The model does not embed. There are: /classify"),
    ],
)
def test_an_address_where_nothing_is_says_what_there_is(
    client: TestClient, method: str, path: str, status: int, problem: str
) -> None:
    reply = client.request(method, path)
    assert reply.status_code == status
    assert problem in reply.json()["error"]


def test_texts_are_asked_one_at_a_time_or_many_in_any_form_of_their_parts(client: TestClient) -> None:
    one = {"text": ["ab", "abc"], "doubled": [4.0, 6.0]}
    known_by = {"model_name": "it", "model_version": "3"}
    for document in ({"text": ["ab", "abc"]}, {"first": "ab", "second": "abc"}):
        assert client.post("/classify", json=document).json() == {**known_by, **one}
    many = client.post("/classify", json={"texts": [["ab", "abc"]] * 9}).json()
    assert many == {**known_by, "answers": [one] * 9}


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({}, "Give {'first': '…', 'second': '…'}, or {'texts': [{'first': '…', 'second': '…'}, …]} for several."),
        ({"texts": []}, "for several"),
        ({"text": 5}, "text is 5. Give {'first': '…', 'second': '…'}."),
        ({"texts": [["a", "b"], {"first": "a"}]}, "texts[1] has the parts 'first'. Give {"),
        ({"text": "alone"}, "A text needs two parts."),
    ],
)
def test_texts_that_cannot_be_asked_are_told_how(client: TestClient, document: Any, problem: str) -> None:
    reply = client.post("/classify", json=document)
    assert reply.status_code == 400
    assert problem in reply.json()["error"]


def test_requests_that_are_too_large_or_compressed_are_refused(client: TestClient) -> None:
    assert infer(client, b" " * 100_001).status_code == 413
    assert infer(client, b"{}", headers={"content-encoding": "gzip"}).status_code == 415
    many = client.post("/v1/models/it:predict", json={"instances": [[1, 2]] * 65})
    assert many.status_code == 413 and "has 65 examples, and 64 are the most" in many.json()["error"]
    texts = client.post("/classify", json={"texts": [["a", "b"]] * 65})
    assert texts.status_code == 413


def test_callers_without_the_token_are_refused_but_health_is_told_to_all(doubling: Path) -> None:
    client = client_of(application(doubling, token="correct-horse-battery"))
    for shown in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic correct-horse-battery"}):
        reply = client.get("/v2", headers=shown)
        assert (reply.status_code, reply.headers["www-authenticate"]) == (401, "Bearer")
    assert client.get("/metrics").status_code == 401
    assert client.get("/v2/health/ready").status_code == 200
    for host in ("127.0.0.1", "model.example"):
        shown = {"authorization": "Bearer correct-horse-battery", "host": host}
        assert client.get("/v2", headers=shown).status_code == 200


@pytest.mark.parametrize(("host", "status"), [("localhost:1", 200), ("[::1]:8000", 200), ("model.example", 403)])
def test_without_a_token_the_server_is_asked_by_the_names_of_its_own_machine(
    client: TestClient, host: str, status: int
) -> None:
    assert client.get("/v2", headers={"host": host}).status_code == status


def held_up(app: Application, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Has the model wait, until the event is set."""
    version = app.versions.current
    assert version is not None
    signature = version.model.signatures["inference_step"]
    ask, goes_on = signature.call_by_name, threading.Event()

    def waiting(arrays: Any) -> Any:
        goes_on.wait(60)
        return ask(arrays)

    monkeypatch.setattr(signature, "call_by_name", waiting)
    return goes_on


def test_an_answer_that_takes_too_long_is_given_up(doubling: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = application(doubling, open_text=shouting, seconds=0.2)
    goes_on = held_up(app, monkeypatch)
    client = client_of(app)
    for path, document in (
        ("/v1/models/it:predict", {"instances": [[1, 2]]}),
        ("/classify", {"first": "a", "second": "b"}),
    ):
        reply = client.post(path, json=document)
        assert reply.status_code == 504
        assert reply.json()["error"] == "There was no answer within 0.2 seconds, and the request is given up."
    goes_on.set()
    assert (app.n_accepted, app.n_answered, app.n_under_way) == (2, 2, 0)


def test_a_model_that_fails_shows_no_caller_why(doubling: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = application(doubling)
    version = app.versions.current
    assert version is not None

    def failing(arrays: Any) -> Any:
        raise RuntimeError("/secret/place: stablehlo.dot_general has failed\nmodule @jit_f {")

    monkeypatch.setattr(version.model.signatures["inference_step"], "call_by_name", failing)
    told: list[str] = []
    app.tell = lambda event, text, **fields: told.append(text)
    reply = client_of(app).post("/v1/models/it:predict", json={"instances": [[1, 2]]})
    assert reply.status_code == 500
    number = reply.json()["error"].removeprefix(
        "The model has failed on this request. The server's log tells of it as "
    )
    assert told == [
        f"Request {number[:-1]} has failed (RuntimeError: /secret/place: stablehlo.dot_general has failed)."
    ]


def test_metrics_count_requests_batches_and_what_waits(doubling: Path) -> None:
    app = application(doubling)
    version = app.versions.current
    assert version is not None
    app.metrics.watch(n_waiting=lambda: 7, version=lambda: version.number)
    client = client_of(app)
    client.post("/v1/models/it:predict", json={"instances": [[1, 2]] * 3})
    client.get("/nothing")
    version.batcher.close()
    lines = client.get("/metrics").text.splitlines()
    for line in (
        'trellis_requests_total{code="200",endpoint="predict"} 1.0',
        'trellis_requests_total{code="404",endpoint="other"} 1.0',
        'trellis_request_seconds_count{endpoint="predict"} 1.0',
        "trellis_batch_examples_sum 3.0",
        "trellis_batch_filling_total 1.0",
        "trellis_waiting_examples 7.0",
        "trellis_served_version 3.0",
    ):
        assert line in lines


def test_hundreds_of_requests_made_of_nonsense_are_refused_and_the_next_is_answered(client: TestClient) -> None:
    random = np.random.default_rng(0)
    good = json.dumps({"inputs": [tensor("inputs", "FP32", [[1, 2]])], "instances": [[1, 2]], "text": ["a", "b"]})
    junk: list[Any] = [None, True, -1, 1e308, 10**30, "", "\ud83d", [], {}, [[]], [[[1]]], {"b64": "x"}, "9" * 999]
    paths = ("/v2/models/it/infer", "/v1/models/it:predict", "/classify")
    statuses = set()
    for number in range(300):
        if number % 2:
            letters = bytearray(good.encode())
            for place in random.integers(0, len(letters), random.integers(1, 6)):
                letters[place] = random.integers(0, 256)
            content = bytes(letters)
        else:
            document = json.loads(good)
            owner: Any = document
            for _ in range(random.integers(0, 3)):
                values = owner.values() if isinstance(owner, dict) else owner
                inner = [value for value in values if isinstance(value, dict | list) and value]
                owner = inner[random.integers(len(inner))] if inner else owner
            key = list(owner)[random.integers(len(owner))] if isinstance(owner, dict) else random.integers(len(owner))
            owner[key] = junk[random.integers(len(junk))]
            content = json.dumps(document).encode()
        reply = client.post(paths[number % 3], content=content)
        statuses.add(reply.status_code)
        assert reply.status_code == 200 or set(reply.json()) == {"error"}
    assert statuses <= {200, 400, 413}
    assert client.post("/v1/models/it:predict", json={"instances": [[1, 2]]}).status_code == 200
