"""Models are known by the names of their files, and damaged ones found, without executing anything of them."""

import json
import pickle
import sys
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
from safetensors.numpy import save_file
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
    save_file({"w": np.ones(4, np.float32)}, folder / "model.safetensors")
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


def write_torch(folder: Path) -> Path:
    with zipfile.ZipFile(folder / "model.pt", "w") as archive:
        archive.writestr("model/data.pkl", pickle.dumps({}))
    return folder / "model.pt"


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
    write_torch: "PyTorch",
}
# Only what executes a pickle or an exported function can tell whether the file is whole.
WITHOUT_READER = (write_jax_export, write_pickle, write_joblib)
WITH_READER = [write for write in FORMATS if write not in WITHOUT_READER]


@pytest.mark.parametrize("write", FORMATS)
def test_a_whole_model_is_recognised(write: Any, tmp_path: Path) -> None:
    path = write(tmp_path)
    assert [(model.format, model.path) for model in check_served_model(str(tmp_path))] == [(FORMATS[write], path)]


@pytest.mark.parametrize("write", WITH_READER)
def test_a_model_that_is_cut_short_is_found(write: Any, tmp_path: Path) -> None:
    path = write(tmp_path)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) - 6])
    with pytest.raises(ModelRefusedError) as caught:
        check_served_model(str(tmp_path))
    assert str(path) in str(caught.value)
    assert f"Found: {path.name} ({len(content) - 6:,} bytes)" in str(caught.value)


@pytest.mark.parametrize("write", FORMATS)
def test_an_empty_file_is_no_model(write: Any, tmp_path: Path) -> None:
    path = write(tmp_path)
    path.write_bytes(b"")
    (tmp_path / "log.txt").write_text("done")
    with pytest.raises(ModelRefusedError, match="that cannot be loaded"):
        check_served_model(str(tmp_path))


@pytest.mark.parametrize(("package", "write"), [("h5py", write_hdf5), ("safetensors", write_safetensors)])
def test_without_the_package_that_reads_a_format_its_files_must_not_be_empty(
    package: str, write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    assert [model.path for model in check_served_model(str(tmp_path))] == [path]
    path.write_bytes(b"")
    (tmp_path / "log.txt").write_text("done")
    with pytest.raises(ModelRefusedError, match=f"{path.name} is empty"):
        check_served_model(str(tmp_path))


@pytest.mark.parametrize("write", [write for write in WITH_READER if write is not write_torch])
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


def test_a_pickle_is_not_followed(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "sprung",))

    (tmp_path / "model.pkl").write_bytes(pickle.dumps(Trap()))
    assert check_served_model(str(tmp_path))[0].format == "pickle"
    assert not (tmp_path / "sprung").exists()


def test_the_older_format_of_pytorch_is_a_pickle(tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(pickle.dumps({}))
    assert [model.format for model in check_served_model(str(tmp_path))] == ["PyTorch"]


def test_a_saved_model_without_a_graph_is_found_and_one_without_variables_is_whole(tmp_path: Path) -> None:
    (tmp_path / "saved_model.pb").write_bytes(b"\x08\x01")
    with pytest.raises(ModelRefusedError, match="saved_model.pb holds no graph"):
        check_served_model(str(tmp_path))
    (tmp_path / "saved_model.pb").write_bytes(b"\x08\x01\x12\x09a graph..")
    assert check_served_model(str(tmp_path))[0].format == "SavedModel"


def test_a_format_that_is_not_known_is_refused_unless_its_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "trees").mkdir()
    (tmp_path / "trees/model.cbm").write_bytes(b"trees")
    with pytest.raises(ModelRefusedError) as caught:
        check_served_model(str(tmp_path))
    text = str(caught.value)
    assert text.startswith(f"run_fn has left no model of a known format in `{tmp_path}`. Found: trees/model.cbm (5 by")
    assert "Known are SavedModel (saved_model.pb, saved_model.pbtxt); Keras (.keras);" in text
    assert text.endswith("as in --model_files=trees/model.cbm, or 'model_files' in custom_config['trellis_run_args'].")
    for pattern in ("trees/model.cbm", "*.cbm"):
        (model,) = check_served_model(str(tmp_path), model_files=[pattern])
        assert (model.format, model.path) == ("own", tmp_path / "trees/model.cbm")
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
