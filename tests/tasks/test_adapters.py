"""Adapters in a loop of one's own: what is trained beside weights that stay as they are."""

from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import trellis
from tests import tiny
from trellis.errors import ArgumentError, CheckpointMismatchError, ModelError
from trellis.extensions import checkpoint_storage
from trellis.runtime import Placement, Precision
from trellis.tasks import Lora


class Attending(nn.Module):
    """Dense layers of every shape, one of which is used twice."""

    remat: bool = False

    @nn.compact
    def __call__(self, x: Any) -> Any:
        """Logits of four classes."""
        x = nn.relu(nn.Dense(32, name="encoder")(x)).reshape(-1, 4, 8)
        attention_cls: Any = (
            nn.remat(nn.MultiHeadDotProductAttention) if self.remat else nn.MultiHeadDotProductAttention
        )
        attention = attention_cls(num_heads=2, qkv_features=8, name="attention")
        x = attention(x + attention(x))
        x = nn.DenseGeneral(16, axis=(-1, -2), name="join")(nn.LayerNorm(name="norm")(x))
        return nn.Dense(4, name="head")(nn.relu(x))


class Joining(nn.Module):
    """A dense layer, and one that sums over two axes."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        """Logits of four classes."""
        x = nn.relu(nn.Dense(32, name="encoder")(x)).reshape(-1, 4, 8)
        x = nn.DenseGeneral(16, axis=(-1, -2), name="join")(x)
        return nn.Dense(4, name="head")(nn.relu(x))


class Stacked(nn.Module):
    """A layer that is scanned, so that its kernels are one array."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        """Logits of four classes."""
        x = nn.Dense(8, name="first")(x)
        layers = nn.scan(_Layer, variable_axes={"params": 0}, split_rngs={"params": True}, length=2)
        return nn.Dense(4, name="head")(layers(name="layers")(x, None)[0])


class _Layer(nn.Module):
    @nn.compact
    def __call__(self, x: Any, _: Any) -> Any:
        """The next hidden states."""
        return nn.Dense(8, name="dense")(x), None


INPUTS = tiny.examples()[0][:8]
ALL = ("query", "value", "out", "encoder", "join")


def adapted(model: nn.Module | None = None, **options: Any) -> Lora:
    return Lora(model or Joining(), **{"rank": 2, "targets": ["encoder", "join"], "also": ["head"]} | options)


def pretrained(model: nn.Module | None = None) -> Any:
    return (model or Joining()).init(jax.random.key(5), INPUTS)


def with_random_adapters(variables: Any) -> Any:
    """Variables whose adapters do something."""
    leaves, structure = jax.tree.flatten(variables["params"])
    keys = jax.random.split(jax.random.key(7), len(leaves))
    new = [jax.random.normal(key, leaf.shape) / 4 for key, leaf in zip(keys, leaves, strict=True)]
    return {**variables, "params": jax.tree.unflatten(structure, new)}


def train(lora: Lora, n_steps: int, *, weights: Any = None, directory: Path | None = None, **options: Any) -> Any:
    """The last checkpoint of a training that resumes from a directory, and writes there every ten steps."""
    microbatches = options.pop("n_microbatches", 1)
    task = trellis.TrainTask(
        apply=options.pop("apply", lora.apply),
        optimizer=optax.adam(1e-2),
        loss=tiny.cross_entropy,
        data=tiny.stream(),
        initialize=lora.starting_from(pretrained() if weights is None else weights),
        n_microbatches=microbatches,
    )
    init = lora.init if directory is None else trellis.CheckpointFileReader(dir=directory, target=lora.init)
    options = {"devices": jax.devices()[:1], "n_steps_per_checkpoint": 10} | options
    loop = trellis.TrainLoop(init=init, task=task, n_steps=n_steps, stdout=False, **options)
    write = None if directory is None else trellis.CheckpointFileWriter(directory)
    for checkpoint in loop:
        last = checkpoint.copy() if write is None else write(checkpoint).copy()
    return last


@pytest.mark.parametrize("remat", [False, True])
def test_adapters_change_nothing_at_first_and_answer_merged_as_beside(remat: bool) -> None:
    model = Attending(remat=remat)
    lora = adapted(model, targets=ALL)
    weights = pretrained(model)
    start = lora.starting_from(weights)(lora.init({"params": jax.random.key(0)}, INPUTS))
    np.testing.assert_array_equal(lora.apply(start, INPUTS), model.apply(weights, INPUTS))
    tiny.assert_equal(lora.plain(start), weights)
    changed = with_random_adapters(start)
    beside, merged = lora.apply(changed, INPUTS), model.apply(lora.merged(changed), INPUTS)
    assert not np.allclose(beside, model.apply(lora.plain(changed), INPUTS), atol=0.1)
    np.testing.assert_allclose(beside, merged, rtol=2e-5, atol=2e-5)


def test_a_layer_that_is_computed_again_has_the_gradients_of_one_that_is_kept() -> None:
    def gradients(model: nn.Module) -> Any:
        lora = adapted(model, targets=["query", "join"])
        start = with_random_adapters(lora.init({"params": jax.random.key(0)}, INPUTS))
        return jax.grad(lambda params: lora.apply({**start, "params": params}, INPUTS).sum())(start["params"])

    kept, again = gradients(Attending()), gradients(Attending(remat=True))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), kept, again)
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(kept))


def test_what_is_frozen_as_chance_has_made_it_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    lora = adapted(also=[])
    weights = {"params": {"encoder": pretrained()["params"]["encoder"]}}
    lora.starting_from(weights)(lora.init({"params": jax.random.key(0)}, INPUTS))
    told = capsys.readouterr().out
    assert "Frozen as chance has made them are head, join: the weights did not have them" in told


def test_only_the_small_part_is_in_the_optimizer_and_in_files(tmp_path: Path) -> None:
    weights = pretrained()
    last = train(adapted(), 10, weights=weights, directory=tmp_path)
    names = checkpoint_storage.read_manifest(tmp_path / "regular_10")["tree"]
    ends = {name.split("/")[-1] for name in names if name.startswith(("model_params", "optimizer_state"))}
    assert ends == {"lora_a", "lora_b", "kernel", "bias", "count"}
    assert [name for name in names if name.endswith("kernel") and "head" not in name] == []
    assert [name for name in names if name.startswith("model_state")] == ["model_state/base/fingerprint"]
    kept = adapted().plain(last.variables)["params"]
    tiny.assert_equal(kept["encoder"], weights["params"]["encoder"])
    assert not np.array_equal(kept["head"]["kernel"], weights["params"]["head"]["kernel"])
    saved = trellis.CheckpointFileReader(dir=tmp_path, target=adapted().init).read()
    assert saved is not None
    assert saved.model_state["base"].tree is None


def test_no_gradient_of_a_frozen_weight_is_computed() -> None:
    lora = adapted(targets=["join"])
    start = lora.starting_from(pretrained())(lora.init({"params": jax.random.key(0)}, INPUTS))

    def loss(params: Any) -> Any:
        return lora.apply({**start, "params": params}, INPUTS[:7]).sum()

    traced: Any = jax.make_jaxpr(jax.grad(loss))(start["params"])
    made = {var.aval.shape for equation in _equations(traced.jaxpr) for var in equation.outvars}
    assert (16, 4) in made, "the gradient of the head, which is trained whole"
    assert not made & {(8, 32), (4, 8, 16), (8, 4, 16)}


def _equations(jaxpr: Any) -> Any:
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", None)
            if inner is not None:
                yield from _equations(getattr(inner, "jaxpr", inner))


def test_a_run_with_adapters_is_resumed_exactly(tmp_path: Path) -> None:
    lora = adapted(dropout=0.2)
    options = {"collections": {"apply": ["dropout"]}}
    whole = train(lora, 20, directory=tmp_path / "whole", **options)
    train(lora, 10, directory=tmp_path / "parts", **options)
    parts = train(lora, 20, directory=tmp_path / "parts", **options)
    tiny.assert_equal(parts.variables, whole.variables)
    tiny.assert_equal(parts.optimizer_state, whole.optimizer_state)
    without = train(adapted(), 20, **options)
    assert not np.array_equal(without.model_params["head"]["kernel"], whole.model_params["head"]["kernel"]), (
        "dropout of adapters does something"
    )


def test_a_run_does_not_go_on_beside_other_weights(tmp_path: Path) -> None:
    train(adapted(), 10, directory=tmp_path)
    weights = pretrained()
    weights["params"]["encoder"]["kernel"] = weights["params"]["encoder"]["kernel"].at[3, 3].add(1e-6)
    with pytest.raises(CheckpointMismatchError, match=r"1 of 4 arrays of the weights differ: encoder/kernel\. Bring"):
        train(adapted(), 20, weights=weights, directory=tmp_path)


@pytest.mark.parametrize("mesh", [{"data": 4}, {"data": 2, "fsdp": 2, "model": 2}])
def test_adapters_are_trained_on_many_devices_as_on_one(mesh: dict[str, int], tmp_path: Path) -> None:
    devices = Placement(jax.devices()[: np.prod([*mesh.values()])], **mesh)
    one = train(adapted(), 10)
    many = train(adapted(), 10, devices=devices, n_microbatches=2, directory=tmp_path)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-3), one.model_params, many.model_params)
    if "fsdp" in mesh:
        assert train(adapted(), 11, devices=devices, n_microbatches=2, directory=tmp_path).step == 11


def test_adapters_compute_in_the_precision_of_the_model() -> None:
    lora = adapted()
    low = lora.around(Precision("bfloat16").applied_to(Joining().apply))
    last = train(lora, 10, apply=low)
    assert {leaf.dtype for leaf in jax.tree.leaves(last.model_params)} == {jnp.dtype("float32")}
    np.testing.assert_allclose(low(last.variables, INPUTS), lora.apply(last.variables, INPUTS), atol=0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"targets": ["jion"]},
            r"Lora\.targets: 'jion' matches no layer\. Did you mean 'join'\? There is encoder, head",
        ),
        (
            {"model": Attending(), "targets": ["norm"]},
            "'norm' has no dense layer in it, only norm/.*name it in Lora.also",
        ),
        ({"also": ["haed"]}, r"Lora\.also: 'haed' matches no parameter\. Did you mean 'head'\?"),
        ({"targets": ["head"]}, "all of head is trained whole"),
        ({"rank": 9}, "rank is 9, but encoder is a matrix of 8 × 32, which has no greater rank than 8"),
        ({"rank": 0}, "rank is 0, but adapters have a rank of at least 1"),
        ({"alpha": 0.0}, "alpha is 0.0, so that adapters would change nothing"),
        ({"dropout": 1.0}, "dropout is 1.0, but it is a share"),
        ({"targets": []}, r"Lora\.targets is empty\. Name what gets adapters"),
        ({"targets": "query"}, r"targets is 'query'\. Give a list of paths"),
        ({"model": Stacked(), "targets": ["dense"]}, "the kernels of layers/dense are stacked"),
    ],
)
def test_what_cannot_have_adapters_is_told(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        adapted(**options).init({"params": jax.random.key(0)}, INPUTS)


def test_adapters_are_for_linen_models() -> None:
    with pytest.raises(ModelError, match="for models of Flax's linen.*a str"):
        Lora("model")  # type: ignore[arg-type]
