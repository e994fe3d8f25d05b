"""What both sides of finetuning.py train: tasks, settings, and the same arrays of ids."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

BATCH_SIZE, QUESTION_BATCH_SIZE, LEARNING_RATE = 32, 16, 1e-4
WARMUP_SHARE, WEIGHT_DECAY, EPSILON, CLIP_NORM = 0.1, 0.01, 1e-8, 1.0
LENGTH, QUESTION_LENGTH = 128, 384


@dataclass(frozen=True)
class Job:
    """One run of one side."""

    side: str
    task: str
    seed: int
    data_dir: str
    weights: str
    cache_dir: str
    """Where tokens and compiled programs are kept between the runs of a task."""
    n_examples: int | None = None
    """Trains on so many examples only, and validates on as many: for a trial."""


@dataclass(frozen=True)
class TaskSettings:
    """Where a task's files are, and how it is scored."""

    train_file: str
    validation_file: str
    yaml_file: str
    metric: str
    n_epochs: int
    scale: float = 100.0


TASKS = {
    "MRPC": TaskSettings("glue/MRPC/train.tsv", "glue/MRPC/dev.tsv", "glue_mrpc_text.yaml", "f1", 5),
    "RTE": TaskSettings("glue/RTE/train.tsv", "glue/RTE/dev.tsv", "glue_rte_text.yaml", "cls_accuracy", 5),
    "CoLA": TaskSettings("glue/CoLA/train.tsv", "glue/CoLA/dev.tsv", "glue_cola_text.yaml", "matthews_corrcoef", 3),
    "SQuAD": TaskSettings("squad/train-v1.1-subset44.json", "squad/dev-v1.1.json", "squad_v1.yaml", "final_f1", 2, 1.0),
    "SST-2": TaskSettings("glue/SST-2/train.tsv", "glue/SST-2/dev.tsv", "glue_sst2_text.yaml", "cls_accuracy", 1),
}


def resolve_params(job: Job) -> Any:
    """The experiment of a job, as Trellis runs it."""
    import trellis.nlp.experiments  # noqa: F401  (registers them)
    from trellis.experiments import resolve

    task, is_question = TASKS[job.task], job.task == "SQuAD"
    size = QUESTION_BATCH_SIZE if is_question else BATCH_SIZE
    rate = "trainer.optimizer_config.learning_rate.polynomial"
    settings = {
        "task.hub_module_url": job.weights,
        "task.train_data.input_path": str(Path(job.data_dir, task.train_file)),
        "task.validation_data.input_path": str(Path(job.data_dir, task.validation_file)),
        "task.train_data.global_batch_size": size,
        "task.validation_data.global_batch_size": 64,
        "task.train_data.seq_length": QUESTION_LENGTH if is_question else LENGTH,
        "task.validation_data.seq_length": QUESTION_LENGTH if is_question else LENGTH,
        "trainer.train_steps": 0,
        "trainer.train_epochs": task.n_epochs,
        "trainer.validation_steps": -1,
        "trainer.best_checkpoint_export_subdir": "''",
        # As torch has it, where epsilon is added after the bias correction, and a decay begins at the end of a warm-up.
        "trainer.optimizer_config.optimizer.adamw.epsilon": EPSILON * (1 - 0.999) ** 0.5,
        f"{rate}.initial_learning_rate": LEARNING_RATE / (1 - WARMUP_SHARE),
        f"{rate}.decay_steps": "null",
        "trainer.optimizer_config.warmup.polynomial.warmup_steps": "null",
        "runtime.seed": job.seed,
        # One device, as the other side has it.
        "runtime.distribution_strategy": "one_device",
    }
    kept = "input_preprocessed_data_path" if is_question else "cache_dir"
    settings |= {f"task.{side}.{kept}": job.cache_dir for side in ("train_data", "validation_data")}
    settings |= {} if is_question else {"task.model.use_encoder_pooler": "true"}
    return resolve(
        "bert/squad" if is_question else "bert/sentence_prediction_text",
        config_file=[task.yaml_file],
        settings=[f"{name}={value}" for name, value in settings.items()],
    )


def build_arrays(params: Any, *, is_training: bool, n_examples: int | None) -> dict[str, np.ndarray]:
    """All examples of a side of the data as arrays, in order: the ids that Trellis trains on."""
    from trellis.nlp.data import build_question_stream, build_sentence_stream
    from trellis.tasks import get_task

    task = get_task(params.task)
    data = params.task.train_data if is_training else params.task.validation_data
    build = build_question_stream if params.task.as_dict().get("n_best_size") else build_sentence_stream
    found = task.find_vocabulary()
    stream = build(data.replace(vocab_file=str(found), global_batch_size=1), None)
    n = stream.n_examples if n_examples is None else min(n_examples, stream.n_examples)
    examples = stream._examples.take(np.arange(n))
    return {name: np.asarray(array) for name, array in examples.items()}
