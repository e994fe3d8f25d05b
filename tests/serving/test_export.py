"""Served models: the same answers without the code, for batches of any size, whole or not there."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from jax.extend.core import Primitive
from jax.interpreters import mlir
from safetensors.numpy import load_file

import trellis
from tests import tiny
from tests.cli.command import environment
from trellis.disk import checksum
from trellis.errors import ArgumentError, DataError, FileWriteError, MissingPackageError, ModelError, ServedModelError
from trellis.serving import Signature, export_model, load_model
from trellis.serving.manifest import digest
from trellis.serving.tensor_file import read_tensors

MODEL = tiny.Classifier()
X = tiny.examples(48)[0]


@pytest.fixture(scope="module")
def variables() -> Any:
    return MODEL.init(jax.random.key(0), X)


@pytest.fixture
def served(tmp_path: Path, variables: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "words.txt").write_text("a\nb\n")
    return export_model(
        tmp_path / "served",
        variables=variables,
        signatures={
            "inference_step": Signature(MODEL.apply, X),
            "classify": Signature(lambda v, x: {"best": MODEL.apply(v, x).argmax(-1)}, X),
        },
        files={"vocabulary/words.txt": tmp_path / "words.txt"},
        metadata={"step": 7, "categories": {"species": ["setosa", "virginica"]}},
    )


@pytest.mark.parametrize("n", [1, 5, 48])
def test_a_served_model_answers_as_the_model_does_to_the_bit(served: Path, variables: Any, n: int) -> None:
    model = trellis.load_model(served)
    expected = jax.jit(MODEL.apply)(variables, X[:n])
    np.testing.assert_array_equal(model(X[:n]), expected)
    np.testing.assert_array_equal(model(X[:n], signature="classify")["best"], expected.argmax(-1))
    np.testing.assert_array_equal(model.signatures["inference_step"](X[:n].tolist()), expected)


def test_a_process_without_the_code_of_the_model_gets_the_same_answers(served: Path, variables: Any) -> None:
    program = (
        "import sys, numpy as np, trellis\n"
        f"model = trellis.load_model({str(served)!r})\n"
        "np.save('outputs.npy', model(np.load('inputs.npy')))\n"
        "sys.exit(str({'flax', 'optax', 'trellis.tasks', 'trellis.model'} & set(sys.modules) or ''))\n"
    )
    np.save("inputs.npy", X)
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], env=environment(), capture_output=True)
    assert done.stderr.strip() == b"", done.stderr
    outputs = np.load("outputs.npy")
    np.testing.assert_allclose(outputs, jax.jit(MODEL.apply)(variables, X), rtol=1e-5, atol=1e-6)


def test_a_loaded_model_needs_its_files_no_more(served: Path, variables: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    files: dict[str, np.ndarray] = {}

    def read(path: Path) -> dict[str, np.ndarray]:
        for name, array in read_tensors(path).items():
            memory = np.zeros(array.nbytes + 64, np.uint8)
            start = -memory.ctypes.data % 64  # JAX takes what begins at a multiple of this without a copy
            files[name] = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
            files[name][...] = array
        return files

    monkeypatch.setattr("trellis.serving.load.read_tensors", read)
    model = trellis.load_model(served)
    for array in files.values():
        array[...] = 0
    np.testing.assert_array_equal(model(X), jax.jit(MODEL.apply)(variables, X))


def test_the_manifest_describes_the_model(served: Path) -> None:
    manifest = json.loads((served / "manifest.json").read_text())
    assert (manifest["format"], manifest["version"]) == ("trellis.served_model", 2)
    assert manifest["packages"]["jax"] == jax.__version__
    assert manifest["platforms"] == ["cpu", "cuda", "tpu"]
    assert manifest["metadata"] == {"step": 7, "categories": {"species": ["setosa", "virginica"]}}
    assert trellis.load_model(served).categories == {"species": ["setosa", "virginica"]}
    assert manifest["default_signature"] == "inference_step"
    assert manifest["signatures"]["classify"] == {
        "file": "classify.jax_export",
        "inputs": [{"name": "inputs", "dtype": "float32", "shape": ["batch", 8]}],
        "outputs": [{"name": "best", "dtype": "int32", "shape": ["batch"]}],
    }
    names = {path.relative_to(served).as_posix() for path in served.rglob("*") if path.is_file()}
    assert names == manifest["checksums"].keys() | {"manifest.json"}
    model = load_model(served)
    assert model.files["vocabulary/words.txt"].read_text() == "a\nb\n"
    assert repr(model).splitlines()[0] == "inference_step(inputs float32[batch, 8]) -> outputs float32[batch, 4]"


def test_parameters_are_stored_once_and_not_in_the_functions(tmp_path: Path) -> None:
    wide = {"w": jnp.ones((8, 20_000))}
    signature = Signature(lambda v, x: x @ v["w"], X)
    served = export_model(tmp_path / "served", variables=wide, signatures={"one": signature, "two": signature})
    sizes = {path.name: path.stat().st_size for path in served.iterdir()}
    assert sizes["parameters.safetensors"] > 640_000
    assert max(sizes["one.jax_export"], sizes["two.jax_export"]) < 10_000


def test_inputs_that_no_function_looks_at_are_left_out(tmp_path: Path, variables: Any) -> None:
    batch = {"x": X, "label_ids": np.zeros(48, np.int32), "pair": (X[:, 0], X[:, 1])}

    def answer(v: Any, inputs: Any) -> Any:
        return MODEL.apply(v, inputs["x"]) + 0 * inputs["label_ids"].shape[0]

    load = load_model(
        export_model(tmp_path / "served", variables=variables, signatures={"answer": Signature(answer, batch)})
    )
    assert [spec.name for spec in load.manifest.signatures["answer"].inputs] == ["x"]
    np.testing.assert_array_equal(load({"x": X[:3]}), jax.jit(MODEL.apply)(variables, X[:3]))
    with pytest.raises(DataError, match="The inputs of answer lack x and have y. It takes: answer\\(x float32"):
        load({"y": X})


def test_every_kind_of_variable_comes_back(tmp_path: Path) -> None:
    variables = {
        "half": jnp.arange(4, dtype=jnp.bfloat16) / 3,
        "quarter": jnp.arange(4, dtype=jnp.float8_e4m3fn),
        "transposed": np.arange(6, dtype=np.int16).reshape(2, 3).T,
        "flag": jnp.array([True, False]),
        "scalar": jnp.float32(2.5),
        "empty": jnp.zeros((0, 3)),
        "key": jax.random.key(5),
        "list": [jnp.int32(3), np.arange(3, dtype=np.uint8)],
    }
    signature = Signature(
        lambda v, x: {**v, "key": jax.random.key_data(v["key"]), "x": x}, np.zeros((2, 1), np.float32)
    )
    model = load_model(export_model(tmp_path / "served", variables=variables, signatures={"all": signature}))
    outputs = model(np.zeros((3, 1)))
    expected = {**variables, "key": jax.random.key_data(variables["key"]), "x": np.zeros((3, 1), np.float32)}
    for name, value in expected.items():
        jax.tree.map(np.testing.assert_array_equal, outputs[name], value)
    assert outputs["half"].dtype == jnp.bfloat16


def test_other_readers_of_safetensors_find_the_parameters(served: Path, variables: Any) -> None:
    arrays = load_file(served / "parameters.safetensors")
    assert arrays.keys() == {f"params/Dense_{n}/{part}" for n in (0, 1) for part in ("bias", "kernel")}
    np.testing.assert_array_equal(arrays["params/Dense_1/kernel"], variables["params"]["Dense_1"]["kernel"])


def test_a_file_that_an_older_trellis_wrote_is_read(served: Path, variables: Any) -> None:
    """Older ones wrote the arrays in the order of their names, with a header of their own making."""
    arrays = load_file(served / "parameters.safetensors")
    header, offset = {}, 0
    for name, array in sorted(arrays.items()):
        offsets = [offset, offset := offset + array.nbytes]
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": offsets}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    content = b"".join(array.tobytes() for _, array in sorted(arrays.items()))
    path = served / "older.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + content)
    jax.tree.map(np.testing.assert_array_equal, read_tensors(path), arrays)


def test_arrays_are_views_of_their_file(served: Path) -> None:
    for array in read_tensors(served / "parameters.safetensors").values():
        assert isinstance(array, np.memmap)
        assert not array.flags.owndata


@pytest.mark.parametrize("package", ["flatbuffers", "safetensors"])
def test_without_a_package_that_writes_it_nothing_is_begun(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trellis.serving.manifest.find_spec", lambda name: None if name == package else True)
    with pytest.raises(MissingPackageError, match=rf"{package} is not installed.*pip install 'trellis-jax\[serving\]'"):
        export_model(tmp_path / "served", variables={}, signatures={"f": Signature(MODEL.apply, X)})


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (X[:, :7], "The input inputs of inference_step is float32[48, 7], but it takes inputs float32[batch, 8]."),
        (X[0], "is float32[8], but it takes inputs float32[batch, 8]."),
        (X.astype(np.complex64), "is complex64[48, 8], but it takes"),
        ({"x": X}, "The inputs of inference_step lack inputs and have x."),
        (X[:0], "inputs of inference_step is float32[0, 8], which has no example. Give a batch of one or more."),
    ],
)
def test_inputs_that_do_not_fit_are_told_so(served: Path, inputs: Any, message: str) -> None:
    with pytest.raises(DataError) as caught:
        load_model(served)(inputs)
    assert message in str(caught.value)


def test_numbers_that_are_lost_in_the_models_type_are_refused(tmp_path: Path) -> None:
    signature = Signature(
        lambda v, x: x["ids"] + x["more"], {"ids": np.zeros(2, np.int32), "more": np.zeros(2, np.int32)}
    )
    model = load_model(export_model(tmp_path / "served", variables={}, signatures={"add": signature}))
    np.testing.assert_array_equal(model({"ids": [1, 2], "more": [3, 4]}), [4, 6])
    with pytest.raises(DataError, match="ids of add has numbers that int32 cannot hold"):
        model({"ids": [2**40, 2], "more": [3, 4]})
    with pytest.raises(DataError, match="differ in their batch size: {'ids': 2, 'more': 1}"):
        model({"ids": [1, 2], "more": [3]})
    with pytest.raises(ArgumentError, match="There is no signature 'ad'. Did you mean add\\? There are: add."):
        model({}, signature="ad")


def test_what_is_damaged_or_missing_is_named(served: Path) -> None:
    file = served / "parameters.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(ServedModelError, match="parameters.safetensors` is damaged"):
        load_model(served)
    file.unlink()
    with pytest.raises(ServedModelError, match="parameters.safetensors` is missing"):
        load_model(served)
    manifest = json.loads((served / "manifest.json").read_text())
    for change, message in (
        ({"version": 3}, "has version 3 of the format, and this Trellis reads up to 2"),
        ({"format": "another"}, "is not that of a served model"),
    ):
        (served / "manifest.json").write_text(json.dumps(manifest | change))
        with pytest.raises(ServedModelError, match=message):
            load_model(served)
    (served / "manifest.json").write_text("{")
    with pytest.raises(ServedModelError, match="manifest.json` is damaged"):
        load_model(served)
    (served / "manifest.json").unlink()
    with pytest.raises(ServedModelError, match="holds no manifest.json, but classify.jax_export, files"):
        load_model(served)
    with pytest.raises(ServedModelError, match="nowhere` does not exist"):
        load_model("nowhere")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": "new"}, r"manifest.json` is damaged \(ValueError"),
        ({"version": None}, "is damaged"),
        ({"signatures": []}, "is damaged"),
        ({"default_signature": "none"}, "there is no signature 'none'"),
        ({"platforms": []}, "it names no platform"),
        ({"platforms": [3]}, "3 is no text"),
        ({"checksums": {}}, "it has no checksum of 'parameters.safetensors'"),
        ({"checksums": {"../secret": {}}}, "'../secret' is not in the directory"),
        ({"checksums": None}, "is damaged"),
    ],
)
def test_a_manifest_that_was_garbled_is_told_so(served: Path, change: dict[str, Any], message: str) -> None:
    file = served / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(ServedModelError, match=message):
        load_model(served)


def test_a_model_with_crcs_alone_is_read_as_before(served: Path, variables: Any) -> None:
    file = served / "manifest.json"
    manifest = json.loads(file.read_text())
    for entry in manifest["checksums"].values():
        del entry["sha256"]
    file.write_text(json.dumps(manifest | {"version": 1}))
    np.testing.assert_array_equal(load_model(served)(X[:2]), jax.jit(MODEL.apply)(variables, X[:2]))


def forge(served: Path, name: str, content: bytes) -> None:
    """Writes another file in the place of one of a model's, with checksums that fit."""
    (served / name).write_bytes(content)
    file = served / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest["checksums"][name] = {**checksum(served / name), **digest(served / name)}
    file.write_text(json.dumps(manifest))


def test_a_function_that_jax_cannot_read_is_refused_by_another_process(served: Path) -> None:
    content = (served / "classify.jax_export").read_bytes()
    forge(served, "classify.jax_export", content[: len(content) // 2])
    with pytest.raises(ServedModelError, match=r"classify.jax_export` is no function that JAX can read: a process"):
        load_model(served)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("print('ready', flush=True); import os; os.kill(os.getpid(), 11)", r"a process that tries ends with -11"),
        ("print('ready', flush=True)\nwhile True: pass", r"a process that tries does not end in 0 seconds"),
    ],
)
def test_a_function_that_crashes_or_hangs_its_reader_is_refused(
    served: Path, program: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trellis.serving.trial._PROGRAM", program)
    monkeypatch.setattr("trellis.serving.trial._SECONDS", 0 if "while" in program else 60)
    content = (served / "classify.jax_export").read_bytes()
    forge(served, "classify.jax_export", content + b" ")
    with pytest.raises(ServedModelError, match=message):
        load_model(served)


def test_what_was_tried_is_not_tried_again(served: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = (served / "classify.jax_export").read_bytes()
    forge(served, "classify.jax_export", content + b" ")
    load_model(served)
    monkeypatch.setattr("trellis.serving.trial._PROGRAM", "raise SystemExit('tried again')")
    load_model(served)


@pytest.mark.parametrize("damage", ["header", "offsets", "shape", "other"])
def test_parameters_that_do_not_fit_are_refused(served: Path, damage: str) -> None:
    name = "parameters.safetensors"
    content = (served / name).read_bytes()
    changed = {
        "header": b"\xff" * 8 + content[8:],
        "offsets": content.replace(b'data_offsets":[0', b'data_offsets":[9', 1),
        "shape": content.replace(b'shape":[', b'shape":[1', 1),
        "other": content.replace(b"kernel", b"kernal", 1),
    }[damage]
    assert changed != content
    forge(served, name, changed)
    with pytest.raises(ServedModelError, match=r"parameters.safetensors` is damaged|takes other parameters than those"):
        load_model(served)


def test_a_directory_that_holds_something_is_not_written_to(served: Path, variables: Any) -> None:
    with pytest.raises(FileWriteError, match="is there already and not empty. Choose another directory"):
        export_model(served, variables=variables, signatures={"f": Signature(MODEL.apply, X)})
    with pytest.raises(ArgumentError, match="no signatures"):
        export_model(served.parent / "other", variables=variables, signatures={})


def test_an_export_that_fails_leaves_nothing_behind(
    tmp_path: Path, variables: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "copyfile", lambda source, target: (_ for _ in ()).throw(OSError("no space")))
    (tmp_path / "words.txt").touch()
    with pytest.raises(OSError, match="no space"):
        export_model(
            tmp_path / "out" / "served",
            variables=variables,
            signatures={"f": Signature(MODEL.apply, X)},
            files={"words.txt": tmp_path / "words.txt"},
        )
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    ("name", "source", "message"),
    [
        ("words.txt", "missing.txt", "there is no file `missing.txt`"),
        ("../words.txt", "words.txt", "leads out of the model's directory"),
    ],
)
def test_files_that_cannot_go_along_are_told_first(name: str, source: str, message: str) -> None:
    Path("words.txt").touch()
    with pytest.raises(ArgumentError, match=message):
        export_model("served", variables={}, signatures={"f": Signature(MODEL.apply, X)}, files={name: source})


def test_a_model_that_depends_on_the_size_of_its_batches_needs_one(tmp_path: Path) -> None:
    signature = Signature(lambda v, x: x.reshape(-1, 16), X)
    for answer in (signature, Signature(lambda v, x: x.reshape(len(x), 2, 4), X)):
        with pytest.raises(ModelError, match="f cannot be exported for batches of any size: .* Give a batch_size"):
            export_model(tmp_path / "any", variables={}, signatures={"f": answer})
    model = load_model(export_model(tmp_path / "two", variables={}, signatures={"f": signature}, batch_size=2))
    assert model(X[:2]).shape == (1, 16)
    with pytest.raises(DataError, match=r"but it takes inputs float32\[2, 8\]"):
        model(X[:4])


def test_a_model_that_runs_on_one_platform_alone_is_exported_for_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    only_here = Primitive("only_here")
    only_here.def_abstract_eval(lambda x: x)
    mlir.register_lowering(only_here, lambda context, x: [x], platform="cpu")
    signature = Signature(lambda v, x: only_here.bind(x), X)
    model = load_model(export_model(tmp_path / "served", variables={}, signatures={"f": signature}))
    assert model.manifest.platforms == ("cpu",)
    told = capsys.readouterr().out
    assert "f is exported for cpu alone. f cannot be exported for cpu, cuda, tpu: JAX says: rule for primitive " in told
    assert "MLIR" not in told
    np.testing.assert_array_equal(model(X), X)


def test_a_callback_cannot_be_exported_and_is_named_as_what_to_leave_out(tmp_path: Path) -> None:
    def function(variables: Any, x: Any) -> Any:
        jax.debug.print("{}", x)
        return x

    with pytest.raises(ModelError, match=r"^f cannot be exported for cpu: .*\. Write it .* such as jax.debug.print"):
        export_model(tmp_path / "f", variables={}, signatures={"f": Signature(function, X)}, platforms=["cpu"])


@pytest.mark.parametrize("inputs", [X, {"x": X, "label": X}])
def test_what_jax_refuses_to_export_is_told_in_a_line_without_the_program(tmp_path: Path, inputs: Any) -> None:
    def function(variables: Any, inputs: Any) -> Any:
        x = jax.tree.leaves(inputs)[-1]
        return jax.ffi.ffi_call("__cudnn$fmhaSoftmax", jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    with pytest.raises(
        ModelError, match=r"^f cannot be exported for cpu: JAX says: .*Write it with operations"
    ) as info:
        export_model(tmp_path / "f", variables={}, signatures={"f": Signature(function, inputs)})
    assert "\n" not in str(info.value) and "stablehlo" not in str(info.value)
    assert info.value.__suppress_context__
    assert not (tmp_path / "f").exists()


def test_what_is_wrong_with_a_function_is_raised_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="absent"):
        export_model(tmp_path / "f", variables={}, signatures={"f": Signature(lambda v, x: x["absent"], {"x": X})})
    with pytest.raises(ArgumentError, match="There is no platform 'gpu'. There are: cpu, cuda, tpu, rocm."):
        export_model(tmp_path / "f", variables={}, signatures={"f": Signature(MODEL.apply, X)}, platforms=["gpu"])


def test_a_model_for_another_platform_says_what_to_do(tmp_path: Path) -> None:
    signature = Signature(lambda v, x: x, X)
    served = export_model(tmp_path / "served", variables={}, signatures={"f": signature}, platforms=["tpu"])
    with pytest.raises(ServedModelError, match="is exported for tpu, and this process runs on cpu. Export it with --p"):
        load_model(served)


def test_outputs_that_cannot_be_stored_are_told_so(tmp_path: Path) -> None:
    @struct.dataclass
    class Own:
        x: Any

    with pytest.raises(ModelError, match="Return dicts, lists or tuples"):
        export_model(tmp_path / "served", variables={}, signatures={"f": Signature(lambda v, x: Own(x), X)})
    assert not (tmp_path / "served").exists()
