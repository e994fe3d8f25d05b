"""The contenders on PyTorch: a plain loop, Lightning and the Hugging Face Trainer, with the same model and fused Adam.

Each trainer is given whole batches, gathered from tensors in memory by one index, and is timed between two of its own
steps: from the call of the model at one step to that at a later step. What it does before and after does not count.
"""

import logging
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from loop_overhead_workloads import (
    CNN_SHAPE,
    CNN_WIDTHS,
    FLAX_CNN_HIDDEN,
    FLAX_CNN_SHAPE,
    FLAX_CNN_WIDTHS,
    LEARNING_RATE,
    LSTM_WIDTH,
    MLP_WIDTH,
    N_CLASSES,
    N_PIXELS,
    N_TOKENS,
    WORKLOADS,
    Workload,
)
from torch import nn

Run = Callable[[int], float]

N_WARM_STEPS = 50
"""Of the smallest models; others are warm after a tenth of that."""


class LSTM(nn.Module):
    """Embedded tokens, one layer, a classifier on the last output."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(N_TOKENS, LSTM_WIDTH)
        self.cell = nn.LSTM(LSTM_WIDTH, LSTM_WIDTH, batch_first=True)
        self.head = nn.Linear(LSTM_WIDTH, N_CLASSES)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of (batch, length) tokens."""
        outputs, _ = self.cell(self.embedding(tokens))
        return self.head(outputs[:, -1])


class ChannelsFirst(nn.Module):
    """Images as PyTorch has them, of images as they lie in memory."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The same with the channels before height and width; nothing is copied."""
        return images.permute(0, 3, 1, 2)


def build_model(name: str) -> nn.Module:
    """The model of a workload."""
    # The smallest models gain nothing from a second thread, and lose much where cores are shared.
    torch.set_num_threads(1 if WORKLOADS[name].is_scanned else os.cpu_count() or 1)
    if name == "mlp":
        return nn.Sequential(nn.Linear(N_PIXELS, MLP_WIDTH), nn.ReLU(), nn.Linear(MLP_WIDTH, N_CLASSES))
    if name == "lstm":
        return LSTM()
    channels = CNN_SHAPE[-1] if name == "cnn" else FLAX_CNN_SHAPE[-1]
    first, second = CNN_WIDTHS if name == "cnn" else FLAX_CNN_WIDTHS
    strides = 2 if name == "cnn" else 1
    convolutions = (
        nn.Conv2d(channels, first, 3, padding=1),
        nn.Conv2d(first, second, 3, stride=strides, padding=1),
    )
    if name == "cnn":
        pooled = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(second, N_CLASSES))
        return nn.Sequential(ChannelsFirst(), convolutions[0], nn.ReLU(), convolutions[1], nn.ReLU(), *pooled)
    n_pooled = FLAX_CNN_SHAPE[0] // 4 * (FLAX_CNN_SHAPE[1] // 4) * second
    head = (nn.Flatten(), nn.Linear(n_pooled, FLAX_CNN_HIDDEN), nn.ReLU(), nn.Linear(FLAX_CNN_HIDDEN, N_CLASSES))
    pooled_twice = [layer for one in convolutions for layer in (one, nn.ReLU(), nn.AvgPool2d(2))]
    return nn.Sequential(ChannelsFirst(), *pooled_twice, *head)


def build_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Adam, in its fastest form."""
    return torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, fused=True)


class Batches:
    """Endless batches of tensors, gathered as the hand-written loops gather theirs."""

    def __init__(self, workload: Workload, names: tuple[str, str] | None = None) -> None:
        self._inputs = torch.from_numpy(workload.inputs)
        self._labels = torch.from_numpy(workload.labels).long()
        self._order = torch.from_numpy(workload.order)
        self._names = names
        self._batch_size = workload.batch_size

    def __iter__(self) -> Iterator[Any]:
        while True:
            for start in range(0, len(self._order), self._batch_size):
                indices = self._order[start : start + self._batch_size]
                batch = self._inputs.index_select(0, indices), self._labels.index_select(0, indices)
                yield dict(zip(self._names, batch, strict=True)) if self._names else batch


def n_warm_steps(workload: Workload) -> int:
    """How many steps come before those that are timed."""
    return N_WARM_STEPS if WORKLOADS[workload.name].is_scanned else N_WARM_STEPS // 10


class Stopwatch:
    """Reads the clock once a step."""

    def __init__(self, workload: Workload) -> None:
        self.marks: list[float] = []
        self._n_warm_steps = n_warm_steps(workload)

    def mark(self) -> None:
        """To be called at the same place in each step."""
        self.marks.append(time.perf_counter())

    def seconds(self, n_steps: int) -> float:
        """The time of `n_steps` steps after the warm-up."""
        return self.marks[self._n_warm_steps + n_steps] - self.marks[self._n_warm_steps]


def torch_loop(workload: Workload) -> Run:
    """A training loop as one writes it by hand."""
    model = build_model(workload.name)
    optimizer, batches = build_optimizer(model), iter(Batches(workload))

    def run(n_steps: int) -> float:
        started = time.perf_counter()
        for _, (inputs, labels) in zip(range(n_steps), batches, strict=False):
            loss = nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return time.perf_counter() - started

    return run


def fit_with_lightning(workload: Workload, n_steps: int, **settings: Any) -> Stopwatch:
    """Trains a LightningModule that has nothing but a training step."""
    import lightning

    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    model, stopwatch = build_model(workload.name), Stopwatch(workload)

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            stopwatch.mark()
            inputs, labels = batch
            return nn.functional.cross_entropy(self.model(inputs), labels)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return build_optimizer(self.model)

    trainer = lightning.Trainer(max_steps=n_steps, accelerator="cpu", **settings)
    trainer.fit(Module(), Batches(workload))
    return stopwatch


def train_with_hugging_face(workload: Workload, n_steps: int) -> Stopwatch:
    """Trains with a Trainer that neither logs, saves, clips nor schedules."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    stopwatch = Stopwatch(workload)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = build_model(workload.name)

        def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            stopwatch.mark()
            return {"loss": nn.functional.cross_entropy(self.model(inputs), labels)}

    class Trainer(transformers.Trainer):
        def get_train_dataloader(self) -> Any:
            return Batches(workload, names=("inputs", "labels"))

    model = Model()
    optimizer = build_optimizer(model)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    with tempfile.TemporaryDirectory() as output_dir:
        arguments = transformers.TrainingArguments(
            output_dir=output_dir,
            max_steps=n_steps,
            use_cpu=True,
            logging_strategy="no",
            save_strategy="no",
            eval_strategy="no",
            report_to="none",
            disable_tqdm=True,
            max_grad_norm=0.0,
            logging_nan_inf_filter=False,
        )
        Trainer(model=model, args=arguments, optimizers=(optimizer, schedule)).train()
    return stopwatch


def timed(train: Callable[..., Stopwatch], **settings: Any) -> Callable[[Workload], Run]:
    """A contender that trains anew in each measurement, and is timed after its warm-up."""

    def build(workload: Workload) -> Run:
        return lambda n_steps: train(workload, n_warm_steps(workload) + n_steps + 1, **settings).seconds(n_steps)

    return build


STRIPPED = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}

CONTENDERS: dict[str, Callable[[Workload], Run]] = {
    "plain torch": torch_loop,
    "Lightning": timed(fit_with_lightning, **STRIPPED),
    "Lightning barebones": timed(fit_with_lightning, barebones=True),
    "Hugging Face Trainer": timed(train_with_hugging_face),
}
