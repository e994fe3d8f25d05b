"""Trellis's side of finetuning.py."""

import json
import sys
import tempfile
import time

import numpy as np
from finetuning_settings import TASKS, Job, build_arrays, resolve_params


def run(job: Job) -> dict[str, float]:
    """Trains and evaluates once; the seconds are those of training, compilation included, then of everything."""
    import jax

    import trellis
    from trellis.experiments import derive_lengths
    from trellis.runtime import keep_programs
    from trellis.tasks import get_task

    compiling: list[float] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, seconds, **_: compiling.append(seconds) if name.startswith("/jax/core/compile/") else None
    )
    keep_programs()
    params = resolve_params(job)
    task = get_task(params.task)
    if job.n_examples is not None:
        task = Shortened.of(task, params, job.n_examples)
    with tempfile.TemporaryDirectory() as model_dir:
        params = derive_lengths(params, task=task)
        n_steps = params.trainer.train_steps
        long = dict.fromkeys(("steps_per_loop", "summary_interval", "checkpoint_interval"), n_steps)
        trainer = trellis.Trainer(
            task,
            config=params.trainer.replace(**long),
            runtime=params.runtime,
            model_dir=model_dir,
            evaluate=False,
            save_summary=False,
        )
        compiling.clear()
        begun = time.perf_counter()
        last = trainer.train()
        trained, compile_seconds = time.perf_counter(), sum(compiling)
        values = trainer.evaluate(last).metrics["eval"]
    metric = TASKS[job.task]
    return {
        "score": values[metric.metric] * metric.scale,
        "train_seconds": trained - begun,
        "compile_seconds": compile_seconds,
        "n_steps": n_steps,
    }


class Shortened:
    """Makes a task see its first examples only."""

    @staticmethod
    def of(task, params, n_examples: int):
        """The same task with less data."""
        import trellis

        def build_inputs(data, input_context=None):
            arrays = build_arrays(params, is_training=bool(data.is_training), n_examples=n_examples)
            return trellis.ExampleStream(
                arrays,
                batch_size=data.global_batch_size,
                seed=params.runtime.seed,
                shuffle=bool(data.is_training),
                n_epochs=None if data.is_training else 1,
            )

        task.build_inputs = build_inputs
        return task


if __name__ == "__main__":
    result = run(Job(**json.loads(sys.argv[1])))
    print(json.dumps({name: float(np.float64(value)) for name, value in result.items()}))
