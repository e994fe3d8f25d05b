"""The Hugging Face Trainer's side of finetuning.py, on the same ids with the same settings."""

import json
import sys
import tempfile
import time
from typing import Any

import numpy as np
from finetuning_settings import (
    CLIP_NORM,
    EPSILON,
    LEARNING_RATE,
    TASKS,
    WARMUP_SHARE,
    WEIGHT_DECAY,
    Job,
    build_arrays,
    resolve_params,
)

_NAMES = {
    "input_word_ids": "input_ids",
    "input_mask": "attention_mask",
    "input_type_ids": "token_type_ids",
    "start_positions": "start_positions",
    "end_positions": "end_positions",
}


def run(job: Job) -> dict[str, float]:
    """Trains and evaluates once."""
    import os

    # Only its configs and data are used here: the accelerator is torch's.
    os.environ["JAX_PLATFORMS"] = "cpu"
    import torch
    import transformers

    transformers.utils.logging.set_verbosity_error()
    # What JAX takes for float32 products by default on such devices.
    torch.set_float32_matmul_precision("high")
    started = time.perf_counter()
    params = resolve_params(job)
    train, validation = (
        build_arrays(params, is_training=is_training, n_examples=job.n_examples) for is_training in (True, False)
    )
    borrowed = time.perf_counter() - started
    label = params.task.train_data.as_dict().get("label_field")
    transformers.set_seed(job.seed)
    # In float32 whatever the file holds, as on the other side: AdamW on weights of float16 learns nothing.
    if job.task == "SQuAD":
        model = transformers.BertForQuestionAnswering.from_pretrained(job.weights, dtype=torch.float32)
    else:
        n_classes = params.task.model.num_classes
        model = transformers.BertForSequenceClassification.from_pretrained(
            job.weights, num_labels=n_classes, dtype=torch.float32
        )
    size = params.task.train_data.global_batch_size
    n_steps = max(1, int(len(train["input_mask"]) // size * params.trainer.train_epochs))
    with tempfile.TemporaryDirectory() as output_dir:
        arguments = transformers.TrainingArguments(
            output_dir=output_dir,
            max_steps=n_steps,
            per_device_train_batch_size=size,
            per_device_eval_batch_size=64,
            learning_rate=LEARNING_RATE,
            warmup_steps=int(WARMUP_SHARE * n_steps),
            lr_scheduler_type="linear",
            weight_decay=WEIGHT_DECAY,
            adam_epsilon=EPSILON,
            max_grad_norm=CLIP_NORM,
            dataloader_drop_last=True,
            logging_strategy="no",
            save_strategy="no",
            eval_strategy="no",
            report_to="none",
            disable_tqdm=True,
            seed=job.seed,
        )
        rows = Rows(train, label)
        collate = stack if job.task == "SQuAD" else pad_by_batch
        trainer = transformers.Trainer(model=model, args=arguments, train_dataset=rows, data_collator=collate)
        begun = time.perf_counter()
        trainer.train()
        trained = time.perf_counter()
    logits = predict(model, Rows(validation, label, with_labels=False))
    return {
        "score": score(job, params, logits, validation),
        "train_seconds": trained - begun,
        "compile_seconds": 0.0,
        "borrowed_seconds": borrowed,
        "n_steps": n_steps,
    }


def stack(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """A batch as long as the rows are. The loss of a span is over all positions: another length is another loss."""
    import torch

    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def pad_by_batch(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """A batch as long as its longest row: the faster way of this trainer, with the same results."""
    batch = stack(rows)
    length = int(batch["attention_mask"].sum(dim=-1).max())
    return {name: array[:, :length] if array.ndim > 1 else array for name, array in batch.items()}


def predict(model: Any, rows: "Rows", *, batch_size: int = 64) -> Any:
    """The logits of all rows: an array, or for questions a pair of them."""
    import torch

    model.eval()
    found = []
    with torch.no_grad():
        for start in range(0, len(rows), batch_size):
            batch = rows[slice(start, start + batch_size)]
            outputs = model(**{name: array.to(model.device) for name, array in batch.items()})
            found.append([array.float().cpu().numpy() for array in outputs.to_tuple()])
    arrays = [np.concatenate(parts) for parts in zip(*found, strict=True)]
    return arrays if len(arrays) > 1 else arrays[0]


class Rows:
    """Arrays as a data set of dictionaries."""

    def __init__(self, arrays: dict[str, np.ndarray], label: str | None, *, with_labels: bool = True) -> None:
        import torch

        names = {**_NAMES, **({label: "labels"} if label and with_labels else {})}
        self._arrays = {
            theirs: torch.from_numpy(arrays[ours]).long() for ours, theirs in names.items() if ours in arrays
        }

    def __len__(self) -> int:
        return len(self._arrays["input_ids"])

    def __getitem__(self, row: int | slice) -> dict[str, Any]:
        return {name: array[row] for name, array in self._arrays.items()}


def score(job: Job, params: Any, logits: Any, arrays: dict[str, np.ndarray]) -> float:
    """The same score as on the other side, by the same functions."""
    from trellis.tasks import get_task

    task, settings = get_task(params.task), TASKS[job.task]
    if job.task == "SQuAD":
        parts = {"unique_ids": arrays["unique_ids"], "start_logits": logits[0], "end_logits": logits[1]}
        return task.reduce_aggregated_logs([parts])[settings.metric] * settings.scale
    labels = arrays[params.task.train_data.label_field]
    values = task.reduce_aggregated_logs([(logits, labels)])
    values["cls_accuracy"] = float(np.mean(logits.argmax(axis=-1) == labels))
    return values[settings.metric] * settings.scale


if __name__ == "__main__":
    result = run(Job(**json.loads(sys.argv[1])))
    print(json.dumps({name: float(np.float64(value)) for name, value in result.items()}))
