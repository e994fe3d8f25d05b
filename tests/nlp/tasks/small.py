"""Models and batches that are small enough for many tests."""

from typing import Any

import jax
import numpy as np
import optax
from flax.core.meta import unbox

from trellis.loops import StepOutput, TrainState
from trellis.nlp.models import BertEncoderConfig, EncoderConfig
from trellis.runtime import StepKeys
from trellis.tasks import BoundModel, Task

VOCAB_SIZE, LENGTH = 40, 12


def encoder(**changes: Any) -> EncoderConfig:
    settings: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 8,
        "num_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "max_position_embeddings": 16,
        "dropout_rate": 0.0,
        "attention_dropout_rate": 0.0,
    }
    return EncoderConfig(bert=BertEncoderConfig(**settings | changes))


def sequences(n: int, *, seed: int = 0) -> dict[str, np.ndarray]:
    ids = np.random.default_rng(seed).integers(5, VOCAB_SIZE, (n, LENGTH)).astype(np.int32)
    lengths = np.random.default_rng(seed + 1).integers(6, LENGTH + 1, n)
    mask = (np.arange(LENGTH) < lengths[:, None]).astype(np.int32)
    return {"input_word_ids": ids * mask, "input_mask": mask, "input_type_ids": np.zeros_like(ids)}


def part_of(batch: dict[str, np.ndarray], rows: slice) -> dict[str, np.ndarray]:
    return {name: array[rows] for name, array in batch.items()}


def bound(task: Task, batch: Any) -> BoundModel:
    model = task.build_model()
    # As a run does: the names of axes are for its mesh, and gone before anything is computed.
    params = unbox(jax.jit(model.init)({"params": jax.random.key(0)}, batch)["params"])
    return BoundModel(model, params=params)


def validated(task: Task, model: BoundModel, batch: Any) -> dict[str, Any]:
    """What a validation step returns, compiled as an evaluation compiles it."""

    def step(params: Any, batch: Any) -> Any:
        return task.validation_step(batch, BoundModel(model.model, params=params), task.build_metrics(training=False))

    return dict(jax.jit(step)(model.params, batch))


def one_step(task: Task, batch: Any, **options: Any) -> tuple[TrainState, StepOutput]:
    model, optimizer = bound(task, batch), optax.sgd(1.0)
    state = TrainState(np.int32(0), model.params, {}, optimizer.init(model.params))

    def step(state: TrainState, batch: Any) -> tuple[TrainState, StepOutput]:
        return task.train_step(
            batch,
            state=state,
            model=model.model,
            optimizer=optimizer,
            metrics=task.build_metrics(training=True),
            keys=StepKeys(jax.random.key(0), 0),
            **options,
        )

    return jax.jit(step)(state, batch)
