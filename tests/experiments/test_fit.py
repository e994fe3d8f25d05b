"""Whether a step has room on the devices: what is counted follows the formula, and changes make room."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import pytest

import trellis
from trellis.errors import TrellisError
from trellis.experiments import Candidate, StepCost, cost_of, search_fit
from trellis.experiments.step_cost import Speed, describe_candidate, describe_cost, heading
from trellis.loops import weighted_mean

N_DEVICES, N_LAYERS, WIDTH, WIDE, BATCH_SIZE = 8, 3, 64, 512, 512
N_SHARED = N_LAYERS * 2 * WIDTH * WIDE
"""The parameters that can be shared out: biases and the last layer are too small, or have no names."""
N_WHOLE = N_LAYERS * (WIDE + WIDTH) + 4 * WIDTH + 4
N_PARAMETERS = N_SHARED + N_WHOLE
LARGE = {"train_data": {"global_batch_size": 8 * BATCH_SIZE}}
"""A batch for which layers keep more than the parameters take up."""


COSTS: dict[str, StepCost] = {}


@dataclass
class LayersConfig(trellis.TaskConfig):
    """The switch that encoders have."""

    use_gradient_checkpointing: bool = False
    train_data: trellis.DataConfig = trellis.DataConfig(global_batch_size=BATCH_SIZE)
    validation_data: trellis.DataConfig = trellis.DataConfig(global_batch_size=BATCH_SIZE)


class Block(nn.Module):
    """A wide layer and one back, with names for their axes."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        """The new hidden states."""
        init = nn.initializers.lecun_normal()
        wide = nn.Dense(WIDE, kernel_init=nn.with_logical_partitioning(init, ("embed", "mlp")))(x)
        return x + nn.Dense(WIDTH, kernel_init=nn.with_logical_partitioning(init, ("mlp", "embed")))(nn.gelu(wide))


class Layers(nn.Module):
    """Blocks in a row."""

    is_computed_again: bool

    @nn.compact
    def __call__(self, x: Any, training: bool = False) -> Any:
        """Logits of four classes."""
        for index in range(N_LAYERS):
            x = (nn.remat(Block) if self.is_computed_again else Block)(name=f"block_{index}")(x)
        return nn.Dense(4, name="classifier")(x)


@trellis.register_task_cls(LayersConfig)
class LayersTask(trellis.Task):
    """A network that is deep enough for its layers to matter."""

    def build_model(self) -> Any:
        return Layers(self.task_config.use_gradient_checkpointing)

    def build_inputs(self, params: Any, input_context: Any = None) -> Any:
        n = params.global_batch_size
        return trellis.ExampleStream((np.zeros((n, WIDTH), np.float32), np.zeros(n, np.int32)), batch_size=n)

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> Any:
        return weighted_mean(-jax.nn.log_softmax(model_outputs)[:, 0])

    def build_metrics(self, training: bool = True) -> Any:
        return {}


def experiment(**settings: Any) -> trellis.ExperimentConfig:
    optimizer = {"optimizer": {"type": "adam"}, "learning_rate": {"type": "constant"}}
    trainer = trellis.TrainerConfig(train_steps=10)
    trainer.override({"optimizer_config": optimizer})
    params = trellis.ExperimentConfig(task=LayersConfig(), trainer=trainer)
    return params.replace(**settings)


def cost(**settings: Any) -> StepCost:
    """Compiled once for all tests."""
    key = repr(settings)
    if key not in COSTS:
        COSTS[key] = cost_of(experiment(**settings), n_devices=N_DEVICES, model_dir=Path("never-made"))
    return COSTS[key]


@pytest.mark.parametrize("mesh", [{}, {"fsdp": 4}, {"model": 2}])
def test_what_is_held_and_sent_follows_the_formula(mesh: dict[str, int]) -> None:
    counted = cost(runtime={"mesh": mesh})
    n_sharing = mesh.get("fsdp", 1) * mesh.get("model", 1)
    own = 4 * (N_SHARED // n_sharing + N_WHOLE)
    assert counted.held["parameters"] == own
    # Adam holds two moments for each parameter, and counts steps.
    assert counted.held["optimizer state"] == pytest.approx(2 * own, abs=64)
    assert counted.gradients == counted.held["parameters"]
    n_parts = N_DEVICES // mesh.get("model", 1)
    assert counted.n_examples == BATCH_SIZE // n_parts
    grads = 4 * (N_SHARED / mesh.get("model", 1) + N_WHOLE)
    hidden = 4 * counted.n_examples * WIDTH
    layers = 2 * N_LAYERS * 2 * hidden / 2 if "model" in mesh else 0
    assert counted.sent["all-reduce"] == pytest.approx(2 * grads * (n_parts - 1) / n_parts + layers, rel=0.1)
    fsdp = mesh.get("fsdp", 1)
    gathered = 4 * N_SHARED * (fsdp - 1) / fsdp
    assert counted.sent.get("all-gather", 0) == pytest.approx(gathered, rel=0.05, abs=hidden)


def test_nothing_of_the_model_is_made_and_nothing_is_written(tmp_path: Path) -> None:
    before = {id(array) for array in jax.live_arrays()}
    cost_of(experiment(), n_devices=N_DEVICES, model_dir=tmp_path / "run")
    made = [array for array in jax.live_arrays() if id(array) not in before]
    assert sum(array.nbytes for array in made) < 4 * N_PARAMETERS
    assert not (tmp_path / "run").exists()


def test_layers_that_are_computed_again_keep_less_and_compute_more() -> None:
    plain, again = cost(task=LARGE), cost(task={**LARGE, "use_gradient_checkpointing": True})
    assert again.temporaries and plain.temporaries
    assert again.temporaries - again.gradients < 0.6 * (plain.temporaries - plain.gradients)
    assert 1.1 < again.flops / plain.flops < 1.4
    assert again.held == plain.held


def test_a_batch_in_parts_keeps_less_and_sends_gradients_for_each() -> None:
    plain, parts = cost(task=LARGE), cost(task=LARGE, trainer={"n_microbatches": 4})
    assert parts.total < plain.total
    assert parts.flops == pytest.approx(plain.flops, rel=0.05)
    assert parts.sent["all-reduce"] >= plain.sent["all-reduce"]
    assert parts.held == plain.held


def search(memory: float, **settings: Any) -> list[Candidate]:
    params = experiment(**settings)
    return search_fit(params, n_devices=N_DEVICES, memory=int(memory), model_dir=Path("never-made"))


def test_a_step_that_fits_is_left_as_it_is() -> None:
    tried = search(1e9)
    assert [candidate.settings for candidate in tried] == [{}]
    assert tried[0].fits(int(1e9))


def test_changes_that_make_a_step_fit_are_found_with_their_price() -> None:
    memory = 0.9 * cost(task=LARGE).total
    tried = search(memory, task=LARGE)
    fitting = [candidate for candidate in tried if candidate.fits(int(memory))]
    assert not tried[0].fits(int(memory))
    changes = {path for candidate in fitting for path in candidate.settings}
    assert {"trainer.n_microbatches", "task.use_gradient_checkpointing", "runtime.mesh.fsdp"} <= changes
    (again,) = (one for one in fitting if list(one.settings) == ["task.use_gradient_checkpointing"])
    assert again.flags == "--set=task.use_gradient_checkpointing=true"
    assert tried[0].cost and again.cost
    row = describe_candidate(again, first=tried[0].cost, memory=int(memory))
    assert row.split()[2:4] == ["fits", f"{again.cost.flops / tried[0].cost.flops - 1:+.0%}"]
    speed = Speed(flops=again.cost.flops / 0.25, link=sum(again.cost.sent.values()) / 0.5)
    assert " 750 ms  task." in describe_candidate(again, first=tried[0].cost, memory=int(memory), speed=speed)
    assert heading(speed).index("change") == row.index("task.") + len("time a step") + 3


def test_a_state_that_has_no_room_is_shared_out_and_nothing_is_compiled_in_vain() -> None:
    memory = 0.9 * (12 + 4) * N_PARAMETERS
    tried = search(memory)
    assert tried[0].cost and tried[0].cost.temporaries is None
    assert next(iter(describe_cost(tried[0].cost))).startswith("at least ")
    assert all("runtime.mesh.fsdp" in candidate.settings for candidate in tried[1:])
    assert any(candidate.fits(int(memory)) for candidate in tried)


def test_a_change_that_the_task_cannot_take_is_told_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def train_step(self: Any, inputs: Any, *, state: Any, model: Any, optimizer: Any, metrics: Any, keys: Any) -> Any:
        return trellis.Task.train_step(
            self, inputs, state=state, model=model, optimizer=optimizer, metrics=metrics, keys=keys
        )

    monkeypatch.setattr(LayersTask, "train_step", train_step)
    memory = 0.9 * cost(task=LARGE).total
    refused = [candidate for candidate in search(memory, task=LARGE) if candidate.cost is None]
    assert refused and refused[0].reason.startswith("trainer.n_microbatches is ")
    assert "train_step takes no" in refused[0].reason
    assert not refused[0].fits(int(memory))


def test_a_batch_that_cannot_be_split_is_an_error() -> None:
    with pytest.raises(TrellisError, match="A batch of 30 examples cannot be split over 8 devices"):
        cost(task={"train_data": {"global_batch_size": 30}})
