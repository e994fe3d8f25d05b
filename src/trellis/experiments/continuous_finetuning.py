"""Fine-tuning from each checkpoint file of a pretraining that is under way."""

import json
from collections.abc import Callable
from pathlib import Path

from trellis.disk import write_whole
from trellis.errors import CheckpointFileError
from trellis.experiments.experiment import ExperimentConfig
from trellis.experiments.new_files import new_files
from trellis.runtime import print_line
from trellis.tasks import BoundModel


def run_continuous_finetune(
    params: ExperimentConfig,
    *,
    model_dir: Path,
    pretrain_steps: int | None = None,
    prepare: Callable[..., Callable[[], tuple[BoundModel, dict[str, float]]]],
) -> tuple[BoundModel, dict[str, float]]:
    """Trains and evaluates from each checkpoint file in `task.init_checkpoint`; returns the last model and its metrics.

    Each run has a directory of its own, `{model_dir}/pretrained_{step}`, and leaves `{model_dir}/metrics-{step}.json`.
    Started again, only what is not finished is run.

    Args:
        pretrain_steps: The last step of the pretraining. Without it, files are awaited until none has come for
            `trainer.continuous_eval_timeout` seconds.
        prepare: Builds and checks one run: `prepare_experiment`.
    """
    pretrained = Path(params.task.init_checkpoint)
    result = None
    for file in new_files(pretrained, timeout=params.trainer.continuous_eval_timeout, last_step=pretrain_steps):
        step = int(file.name.rpartition("_")[2])
        print_line(f"Fine-tuning from `{file}`.")
        task = params.task.replace(init_checkpoint=str(file))
        run = prepare(
            params.replace(task=task),
            mode="train_and_eval",
            model_dir=model_dir / f"pretrained_{step}",
            run_post_eval=True,
        )
        result = run()
        write_whole(model_dir / f"metrics-{step}.json", f"{json.dumps(result[1], indent=2)}\n".encode())
    if result is None:
        raise CheckpointFileError(
            f"task.init_checkpoint: no checkpoint file has appeared in `{pretrained}` for "
            f"{params.trainer.continuous_eval_timeout} seconds. Give the model_dir of a pretraining that is under way."
        )
    return result
