"""The contenders of masked_lm_speed.py, each in a process of its own that stays warm and sleeps in between."""

import json
import logging
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Self

import numpy as np

Run = Callable[[int], float]

VOCAB_SIZE, WIDTH, N_LAYERS, N_HEADS = 30522, 256, 4, 4
LENGTH, BATCH_SIZE, N_PREDICTIONS, LEARNING_RATE = 128, 16, 20, 1e-4
N_EXAMPLES = 64 * BATCH_SIZE
N_WARM_STEPS = 3


def build_examples() -> dict[str, np.ndarray]:
    """Sequences with masks, the same in every process."""
    generator = np.random.default_rng(0)
    ids = generator.integers(5, VOCAB_SIZE, (N_EXAMPLES, LENGTH), dtype=np.int32)
    positions = np.sort(np.argsort(generator.random((N_EXAMPLES, LENGTH)), axis=1)[:, :N_PREDICTIONS], axis=1)
    return {
        "input_word_ids": ids,
        "input_mask": np.ones_like(ids),
        "input_type_ids": np.zeros_like(ids),
        "masked_lm_positions": positions.astype(np.int32),
        "masked_lm_ids": generator.integers(5, VOCAB_SIZE, positions.shape, dtype=np.int32),
        "masked_lm_weights": np.ones(positions.shape, np.float32),
    }


def trellis_run() -> Run:
    """The masked-LM task in a training loop."""
    import jax
    import optax

    import trellis
    from trellis.nlp.data import BertPretrainDataConfig
    from trellis.nlp.models import BertEncoderConfig, EncoderConfig, PretrainerConfig
    from trellis.nlp.tasks import MaskedLMConfig
    from trellis.tasks import lasting_init

    encoder = BertEncoderConfig(
        hidden_size=WIDTH,
        num_layers=N_LAYERS,
        num_attention_heads=N_HEADS,
        intermediate_size=4 * WIDTH,
        dropout_rate=0.0,
        attention_dropout_rate=0.0,
    )
    data = BertPretrainDataConfig(seq_length=LENGTH, use_next_sentence_label=False)
    config = MaskedLMConfig(
        model=PretrainerConfig(encoder=EncoderConfig(bert=encoder)), train_data=data, validation_data=data
    )
    task = trellis.get_task(config)
    model, optimizer = task.build_model(), optax.adamw(LEARNING_RATE)
    metrics = task.build_metrics(training=True)

    def step(state: Any, batch: Any, keys: Any) -> Any:
        return task.train_step(batch, state=state, model=model, optimizer=optimizer, metrics=metrics, keys=keys)

    stream = trellis.ExampleStream(build_examples(), batch_size=BATCH_SIZE)
    loop = trellis.TrainLoop(
        init=lasting_init(model),
        input_sample=(stream.batch(0),),
        task=trellis.TrainTask(data=stream, optimizer=optimizer, train_step=step),
        rnkey=jax.random.key(0),
        n_steps=N_WARM_STEPS,
        n_steps_per_checkpoint=1_000_000,
    )

    def run(n_steps: int) -> float:
        for _ in loop(n_steps=loop.step + N_WARM_STEPS):
            pass
        started = time.perf_counter()
        for checkpoint in loop(n_steps=loop.step + n_steps):
            jax.block_until_ready(checkpoint.model_params)
        return time.perf_counter() - started

    return run


class Batches:
    """Endless batches for `BertForMaskedLM`: labels are -100 where nothing is masked."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        import torch

        examples = build_examples()
        ids = torch.from_numpy(examples["input_word_ids"]).long()
        labels = torch.full_like(ids, -100)
        positions = torch.from_numpy(examples["masked_lm_positions"]).long()
        labels.scatter_(1, positions, torch.from_numpy(examples["masked_lm_ids"]).long())
        while True:
            for start in range(0, N_EXAMPLES, BATCH_SIZE):
                rows = slice(start, start + BATCH_SIZE)
                yield {
                    "input_ids": ids[rows],
                    "attention_mask": torch.ones_like(ids[rows]),
                    "token_type_ids": torch.zeros_like(ids[rows]),
                    "labels": labels[rows],
                }


def build_torch_model() -> Any:
    """The same model, by `transformers`."""
    import transformers

    config = transformers.BertConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=WIDTH,
        num_hidden_layers=N_LAYERS,
        num_attention_heads=N_HEADS,
        intermediate_size=4 * WIDTH,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return transformers.BertForMaskedLM(config)


def build_torch_optimizer(model: Any) -> Any:
    """AdamW, in its fastest form."""
    import torch

    return torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=1e-4, fused=True)


def lightning_run() -> Run:
    """A LightningModule that has nothing but a training step."""
    import lightning

    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    def run(n_steps: int) -> float:
        marks: list[float] = []

        class Module(lightning.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.model = build_torch_model()

            def training_step(self, batch: Any, _: int) -> Any:
                marks.append(time.perf_counter())
                return self.model(**batch).loss

            def configure_optimizers(self) -> Any:
                return build_torch_optimizer(self.model)

        trainer = lightning.Trainer(max_steps=N_WARM_STEPS + n_steps + 1, accelerator="cpu", barebones=True)
        trainer.fit(Module(), Batches())
        return marks[N_WARM_STEPS + n_steps] - marks[N_WARM_STEPS]

    return run


def hugging_face_run() -> Run:
    """A Trainer that neither logs, saves, clips nor schedules."""
    import torch
    import transformers

    transformers.utils.logging.set_verbosity_error()

    class Trainer(transformers.Trainer):
        def get_train_dataloader(self) -> Any:
            return Batches()

    def run(n_steps: int) -> float:
        model, marks = build_torch_model(), list[float]()
        model.register_forward_pre_hook(lambda *_: marks.append(time.perf_counter()))
        optimizer = build_torch_optimizer(model)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
        with tempfile.TemporaryDirectory() as output_dir:
            arguments = transformers.TrainingArguments(
                output_dir=output_dir,
                max_steps=N_WARM_STEPS + n_steps + 1,
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
        return marks[N_WARM_STEPS + n_steps] - marks[N_WARM_STEPS]

    return run


CONTENDERS: dict[str, Callable[[], Run]] = {
    "Trellis": trellis_run,
    "Hugging Face Trainer": hugging_face_run,
    "Lightning barebones": lightning_run,
}


class Worker:
    """A process that measures one contender on request."""

    def __init__(self, contender: str) -> None:
        self._contender = contender
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  (open as long as the process)
        self._process = subprocess.Popen(
            [sys.executable, __file__, contender],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def measure(self, *, n_steps: int) -> float:
        """The seconds that some steps take; the first request also builds and compiles."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(n_steps, file=self._process.stdin, flush=True)
        reply = self._process.stdout.readline()
        if not reply:
            self._errors.seek(0)
            raise RuntimeError(f"The process of {self._contender!r} failed:\n{self._errors.read()}")
        return float(json.loads(reply))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def serve(contender: str) -> None:
    """Answers the requests of a `Worker`; what contenders print goes nowhere."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    run = CONTENDERS[contender]()
    for line in sys.stdin:
        print(json.dumps(run(int(line))), file=replies, flush=True)


if __name__ == "__main__":
    serve(sys.argv[1])
