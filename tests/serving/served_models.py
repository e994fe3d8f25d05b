"""Small models that were exported, whose answers tell what they were asked, and what serves them."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from starlette.testclient import TestClient

from trellis.serving import LoadedModel, OpenText, Signature, export_model
from trellis.serving.application import Application, Limits
from trellis.serving.batching import Batcher
from trellis.serving.server_metrics import ServerMetrics
from trellis.serving.versions import Versions, open_version

SIZES = (1, 4)


def export_doubling(directory: Path, *, offset: float = 0.0, batch_size: int | None = None) -> Path:
    """A model that doubles rows of two numbers: exactly, in a batch of any size."""
    return export_function(
        directory, lambda v, x: 2 * x + v["offset"], np.zeros((2, 2), np.float32), offset=offset, batch_size=batch_size
    )


def export_function(
    directory: Path,
    function: Callable[[Any, Any], Any],
    inputs: Any,
    *,
    offset: float = 0.0,
    batch_size: int | None = None,
) -> Path:
    return export_model(
        directory,
        variables={"offset": jnp.float32(offset)},
        signatures={"inference_step": Signature(function, inputs)},
        metadata={"step": 1},
        batch_size=batch_size,
        platforms=["cpu"],
    )


def without_text(model: LoadedModel, /, *, name: str) -> None:
    """Answers no text."""


def application(
    directory: Path,
    *,
    open_text: OpenText = without_text,
    seconds: float = 60,
    most_waiting: int = 64,
    token: str = "",
) -> Application:
    """What answers with the newest version in a directory, as `it`."""
    metrics = ServerMetrics(sizes=SIZES)

    def build_batcher(model: LoadedModel) -> Batcher:
        return Batcher(model, sizes=SIZES, most_waiting=most_waiting, observe=metrics.note_batch)

    def tell(event: str, text: str, **fields: object) -> None:
        pass

    opened = partial(open_version, name="it", open_text=open_text, build_batcher=build_batcher)
    versions = Versions(directory, open_version=opened, tell=tell)
    asyncio.run(versions.load())
    limits = Limits(body_bytes=100_000, seconds=seconds)
    return Application(versions=versions, name="it", limits=limits, metrics=metrics, tell=tell, token=token)


def client_of(app: Application) -> TestClient:
    """A caller on this machine."""
    return TestClient(app, base_url="http://127.0.0.1:8000")
