"""Models are told apart by their files, and damaged ones found, without executing anything of them."""

import json
import pickle
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import jax
import jax.numpy as jnp
import joblib
import numpy as np
import pytest
from jax import export
from sklearn.linear_model import LinearRegression

from trellis.errors import ModelRefusedError
from trellis.executor import check_served_model


def estimator() -> LinearRegression:
    """A small one, trained."""
    return LinearRegression().fit(np.arange(200.0).reshape(100, 2), np.arange(100.0))


def write_saved_model(folder: Path) -> Path:
    (folder / "variables").mkdir()
    (folder / "variables" / "variables.index").write_bytes(b"index")
    (folder / "variables" / "variables.data-00000-of-00001").write_bytes(b"data")
    (folder / "saved_model.pb").write_bytes(b"\x08\x01\x12\x09a graph..")
    return folder / "saved_model.pb"


def write_keras(folder: Path) -> Path:
    with zipfile.ZipFile(folder / "model.keras", "w") as archive:
        archive.writestr("config.json", json.dumps({"class_name": "Sequential"}))
        archive.writestr("model.weights.h5", b"weights" * 50)
    return folder / "model.keras"


def write_hdf5(folder: Path) -> Path:
    with h5py.File(folder / "model.h5", "w") as file:
        file["weights"] = np.arange(100.0)
    return folder / "model.h5"


def write_safetensors(folder: Path) -> Path:
    header = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    content = len(header).to_bytes(8, "little") + header + bytes(16)
    (folder / "model.safetensors").write_bytes(content)
    return folder / "model.safetensors"


def write_jax_export(folder: Path) -> Path:
    exported = export.export(jax.jit(jnp.sin))(jax.ShapeDtypeStruct((), jnp.float32))
    (folder / "model.jax_export").write_bytes(exported.serialize())
    return folder / "model.jax_export"


def write_pickle(folder: Path) -> Path:
    (folder / "model.pkl").write_bytes(pickle.dumps(estimator()))
    return folder / "model.pkl"


def write_joblib(folder: Path) -> Path:
    joblib.dump(estimator(), folder / "model.joblib")
    return folder / "model.joblib"


def write_arrays(folder: Path) -> Path:
    np.savez(folder / "model.npz", w=np.ones(100))
    return folder / "model.npz"


FORMATS: dict[Callable[[Path], Path], str] = {
    write_saved_model: "SavedModel",
    write_keras: "Keras",
    write_hdf5: "Keras",
    write_safetensors: "safetensors",
    write_jax_export: "jax.export",
    write_pickle: "pickle",
    write_joblib: "pickle",
    write_arrays: "archive",
}


@pytest.mark.parametrize("write", FORMATS)
def test_a_whole_model_is_recognised(write: Any, tmp_path: Path) -> None:
    path = write(tmp_path)
    assert [(model.format, model.path) for model in check_served_model(str(tmp_path))] == [(FORMATS[write], path)]


@pytest.mark.parametrize("write", FORMATS)
def test_a_model_that_is_cut_short_is_found(write: Any, tmp_path: Path) -> None:
    path = write(tmp_path)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) - 6])
    with pytest.raises(ModelRefusedError) as caught:
        check_served_model(str(tmp_path))
    assert str(path) in str(caught.value)
    assert f"Found: {path.name} ({len(content) - 6:,} bytes)" in str(caught.value)


@pytest.mark.parametrize("write", [each for each in FORMATS if each is not write_joblib])
def test_a_file_that_is_something_else_than_its_name_says_is_found(write: Any, tmp_path: Path) -> None:
    path = write(tmp_path)
    path.write_bytes(b"\xffthis is none")
    with pytest.raises(ModelRefusedError, match="that cannot be loaded"):
        check_served_model(str(tmp_path))


def test_variables_without_an_index_are_found(tmp_path: Path) -> None:
    write_saved_model(tmp_path)
    (tmp_path / "variables" / "variables.index").unlink()
    with pytest.raises(ModelRefusedError, match="variables lacks variables.index"):
        check_served_model(str(tmp_path))


def test_a_pickle_is_read_but_not_followed(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "sprung",))

    (tmp_path / "model.pkl").write_bytes(pickle.dumps(Trap()))
    assert check_served_model(str(tmp_path))[0].format == "pickle"
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("n_letters", range(1, 9))
def test_an_exported_function_that_lacks_any_number_of_bytes_is_found(n_letters: int, tmp_path: Path) -> None:
    def function(x: Any) -> Any:
        return x

    function.__name__ = "f" * n_letters
    exported = export.export(jax.jit(function))(jax.ShapeDtypeStruct((), jnp.float32))
    content = bytes(exported.serialize())
    path = tmp_path / "model.jax_export"
    path.write_bytes(content)
    assert check_served_model(str(tmp_path))
    for n_lost in (1, 2, 3, 4, 8, 64, len(content) // 2, len(content) - 4, len(content) - 1):
        path.write_bytes(content[:-n_lost])
        with pytest.raises(ModelRefusedError, match="is cut short or no serialised jax.export.Exported"):
            check_served_model(str(tmp_path))


def test_a_format_that_is_not_known_is_refused_unless_its_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "trees").mkdir()
    (tmp_path / "trees/model.cbm").write_bytes(b"trees")
    with pytest.raises(ModelRefusedError) as caught:
        check_served_model(str(tmp_path))
    told = str(caught.value)
    assert told.startswith(f"run_fn has left no model of a known format in `{tmp_path}`. Found: trees/model.cbm (5 by")
    assert "Known are SavedModel (saved_model.pb, saved_model.pbtxt); Keras (.keras);" in told
    assert told.endswith("as in --model_files=trees/model.cbm, or 'model_files' in custom_config['trellis_run_args'].")
    for pattern in ("trees/model.cbm", "*.cbm"):
        (found,) = check_served_model(str(tmp_path), model_files=[pattern])
        assert (found.format, found.path) == ("own", tmp_path / "trees/model.cbm")
    (tmp_path / "trees/model.bin").touch()
    for pattern in ("model.bin", "model.onnx"):
        with pytest.raises(ModelRefusedError, match=f"model_files names '{pattern}', and there is no such file"):
            check_served_model(str(tmp_path), model_files=["*.cbm", pattern])


def test_the_files_of_a_model_of_trellis_are_compared_with_its_manifest(tmp_path: Path) -> None:
    content = b"parameters"
    (tmp_path / "a.bin").write_bytes(content)
    checksums = {"a.bin": {"size": len(content), "crc32": zlib.crc32(content)}}
    (tmp_path / "manifest.json").write_text(json.dumps({"format": "trellis.served_model", "checksums": checksums}))
    assert [model.format for model in check_served_model(str(tmp_path))] == ["Trellis"]
    (tmp_path / "a.bin").write_bytes(b"parameterz")
    with pytest.raises(ModelRefusedError, match="a.bin is damaged: it is not as manifest.json says"):
        check_served_model(str(tmp_path))
    (tmp_path / "a.bin").unlink()
    with pytest.raises(ModelRefusedError, match="a.bin is missing, although manifest.json tells of it"):
        check_served_model(str(tmp_path))


def test_a_manifest_of_somebody_else_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("[1]")
    with pytest.raises(ModelRefusedError, match="no model of a known format"):
        check_served_model(str(tmp_path))


def test_the_model_of_an_estimator_is_found_below(tmp_path: Path) -> None:
    (tmp_path / "export" / "taxi" / "1646034756").mkdir(parents=True)
    write_saved_model(tmp_path / "export" / "taxi" / "1646034756")
    assert [model.format for model in check_served_model(str(tmp_path))] == ["SavedModel"]
