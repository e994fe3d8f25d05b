"""A task, run: its two sides become a training and an evaluation loop, its config a list of extensions."""

import inspect
import os
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any

import jax

from trellis.aliases import Batch, PyTree
from trellis.batch import split_batch
from trellis.data import is_stream
from trellis.errors import ArgumentError, DivergedError
from trellis.extensions import (
    BestCheckpointFileWriter,
    CheckpointFileReader,
    EarlyStopping,
    SkippedData,
    newest_file,
    restore_file,
    serial,
)
from trellis.loops import Checkpoint, EvalLoop, EvalTask, Summary, TrainLoop, TrainTask
from trellis.metrics import Metric
from trellis.model import StepOutput, TrainState, state_maker
from trellis.optimizers import build_schedule
from trellis.runtime import RuntimeConfig, StepKeys, finish_saves, print_line
from trellis.tasks import BoundModel, InputContext, Task, bind, lasting_init
from trellis.trainer.configs import TrainerConfig
from trellis.trainer.default_extensions import (
    Evaluation,
    best_writer,
    default_extensions,
    early_stopping,
    on_averages,
    validation_writers,
)
from trellis.trainer.outline import Outline, Tracer, peeked
from trellis.trainer.start import Start


class Trainer:
    """Runs a task as a config says: `train()`, `evaluate()`.

    Example:
        task = trellis.get_task(params.task, logging_dir=model_dir)
        trainer = trellis.Trainer(task, config=params.trainer, runtime=params.runtime, model_dir=model_dir)
        trainer.train()

    Args:
        evaluate: Whether `train` evaluates every `validation_interval` steps and at the last.
        extensions: What else to do with every checkpoint of the training, metrics included.
        save_summary: Whether to write metrics to files.
    """

    def __init__(
        self,
        task: Task,
        *,
        config: TrainerConfig,
        runtime: RuntimeConfig | None = None,
        model_dir: str | os.PathLike[str],
        evaluate: bool = True,
        extensions: Sequence[Callable[[Any], Any]] = (),
        save_summary: bool = True,
    ) -> None:
        self.task = task
        self.config = config
        self.runtime = runtime or RuntimeConfig()
        self.model_dir = Path(model_dir)
        self.model = task.build_model()
        self.optimizer = task.create_optimizer(
            config.optimizer_config,
            runtime_config=self.runtime,
            dp_config=getattr(task.task_config, "differential_privacy_config", None),
            n_steps=config.train_steps or None,
        )
        self._evaluates = evaluate
        self._extensions = tuple(extensions)
        self._save_summary = save_summary
        self._root = jax.random.key(self.runtime.seed)
        self._skipped = SkippedData(self.model_dir)
        self._reader = CheckpointFileReader(dir=self.model_dir, target=lasting_init(self.model))
        takes_parts = "n_microbatches" in inspect.signature(task.train_step).parameters
        if config.n_microbatches != 1 and not takes_parts:
            raise ArgumentError(
                f"trainer.n_microbatches is {config.n_microbatches}, but {type(task).__name__}.train_step takes no "
                f"n_microbatches. Let it cut the batch into so many parts, or leave trainer.n_microbatches at 1."
            )

    def train(self) -> Summary | None:
        """Trains up to `train_steps`, from the newest checkpoint file if there is one; returns the last summary.

        None if there was nothing left to do. When the loss blows up, goes back to the last checkpoint file and past
        the data since, up to `recovery_max_trials` times; after that the error is raised.
        """
        self._train_data  # noqa: B018  (built first: the model is initialised with its inputs)
        while True:
            try:
                return self._train()
            except DivergedError as error:
                self._recover(error)

    def evaluate(self, checkpoint: Checkpoint | None = None) -> Summary:
        """The metrics of a checkpoint, by default of the newest file, on the validation data."""
        if checkpoint is None:
            checkpoint = self.read_checkpoint()
        summary = self.evaluation(checkpoint)
        # No loop moves on after it, which would commit what was written.
        finish_saves()
        return Summary.from_checkpoint(summary)

    def read_checkpoint(self, path: Path | None = None) -> Checkpoint:
        """The checkpoint of a file, by default of the newest in `model_dir` that is whole."""
        if path is not None:
            return restore_file(path, template=self._template)
        if newest_file(self.model_dir) is None:
            raise ArgumentError(
                f"There is no checkpoint file in model_dir `{self.model_dir}`, so there is nothing to evaluate. "
                f"Train first (--mode=train), or give the model_dir of a run."
            )
        return self._reader(self._template)

    def bound_model(self, checkpoint: Checkpoint) -> BoundModel:
        """The model with the parameters of a checkpoint, or with their averages if there are some."""
        held = on_averages(checkpoint)
        return BoundModel(self.model, params=held.model_params, model_state=held.model_state)

    def initialize(self) -> Checkpoint:
        """Step 0: the model's own variables after `Task.initialize`."""
        make = state_maker(self._reader.target, optimizer=self.optimizer)
        state = jax.jit(make)(self._init_rngs, *self._sample_inputs)
        variables = dict(self.task.initialize(bind(self.model, state)))
        params = variables.pop("params", {})
        return Checkpoint.of(TrainState(state.step, params, variables, self.optimizer.init(params)), step=0)

    def outline(self, *, trains: bool, evaluates: bool) -> Outline:
        """What a run holds and computes, by abstract evaluation; a side that it does without is left out."""
        batch = self._peek("_train_data" if trains else "_validation_data")
        tracer = Tracer(self._template, StepKeys(self._root, 0))
        is_usual = type(self.task).train_step is Task.train_step
        return Outline(
            checkpoint=self._template,
            outputs=tracer.trace_model(self.model, batch) if is_usual else None,
            train=tracer.trace_train_step(self._train_step, batch, self._train_data) if trains else None,
            validation=tracer.trace_validation_step(
                self._validation_step, self._peek("_validation_data"), self._validation_data
            )
            if evaluates
            else None,
            n_devices=len(self._devices),
        )

    @cached_property
    def best(self) -> BestCheckpointFileWriter | None:
        """The writer of the best checkpoint file, if the config asks for one."""
        return best_writer(self.config, model_dir=self.model_dir)

    @cached_property
    def evaluation(self) -> Evaluation:
        """The extension that evaluates a checkpoint."""
        steps = self.config.validation_steps
        task = EvalTask(data=self._validation_data, validation_step=self._validation_step, host_metrics=self.task)
        loop = EvalLoop(task=task, rnkey=self._root, n_steps=None if steps == -1 else steps, devices=self._devices)
        writers = validation_writers(
            self.config, model_dir=self.model_dir, best=self.best, save_summary=self._save_summary
        )
        return Evaluation(loop, best=self.best, then=writers)

    def _train(self) -> Summary | None:
        loop = self._build_train_loop()
        stopping = early_stopping(self.config, self.best) if self._evaluates else None
        is_evaluated = loop.step > 0 and loop.step % self.config.validation_interval == 0
        if stopping is not None and is_evaluated and stopping.is_over(loop.step):
            return None
        process = serial(*self._build_extensions(stopping))
        loop.attach(process)
        last = None
        with closing(loop.run()) as checkpoints:
            for checkpoint in checkpoints:
                last = Summary.from_checkpoint(process(checkpoint))
                if last.is_last and not checkpoint.is_last:
                    break
        return last

    def _build_train_loop(self) -> TrainLoop:
        config = self.config
        periods = [config.steps_per_loop, config.summary_interval, config.checkpoint_interval]
        periods += [config.validation_interval] if self._evaluates else []
        return TrainLoop(
            init=Start(self._reader, self.initialize),
            input_sample=self._sample_inputs,
            task=TrainTask(
                data=self._skipped.applied_to(self._train_data),
                optimizer=self.optimizer,
                train_step=self._train_step,
            ),
            rnkey=self._root,
            n_steps=config.train_steps,
            n_steps_per_checkpoint=periods,
            devices=self._devices,
        )

    def _build_extensions(self, stopping: EarlyStopping | None) -> list[Callable[[Any], Any]]:
        rate, n_steps = self.config.optimizer_config, self.config.train_steps
        has_rate = rate.learning_rate.type is not None
        return default_extensions(
            self.config,
            model_dir=self.model_dir,
            evaluation=self.evaluation if self._evaluates else None,
            stopping=stopping,
            schedule=build_schedule(rate, n_steps=n_steps) if has_rate else None,
            extensions=self._extensions,
            save_summary=self._save_summary,
        )

    def _recover(self, error: DivergedError) -> None:
        n_trials, most = self._skipped.n_windows, self.config.recovery_max_trials
        if n_trials >= most or not is_stream(self._train_data):
            way = f"trainer.recovery_max_trials={most} allows {'no' if not most else 'no more'} recovery"
            if most > n_trials:
                way = "recovery needs training data that is a stream (`batch(step)`)"
            error.add_note(f"{way}. Lower the learning rate, clip gradients, or look at the data of those steps.")
            raise error
        found = self._reader.read()
        step = 0 if found is None else found.step
        self._skipped.add(step=step, n_batches=error.step - step)
        left_out = f"past the {error.step - step} batches since"
        print_line(f"{error} Recovery {n_trials + 1} of {most}: back to step {step}, {left_out}.")

    def _train_step(self, state: TrainState, batch: Batch, keys: StepKeys) -> tuple[TrainState, StepOutput]:
        # A task's own step need not know of parts if there are none.
        parts = {"n_microbatches": self.config.n_microbatches} if self.config.n_microbatches != 1 else {}
        return self.task.train_step(
            batch,
            state=state,
            model=self.model,
            optimizer=self.optimizer,
            metrics=self.task.build_metrics(training=True),
            keys=keys,
            **parts,
        )

    def _validation_step(
        self, params: PyTree, model_state: PyTree, batch: Batch, keys: StepKeys
    ) -> tuple[dict[str, Metric], dict[str, Any]]:
        model = BoundModel(self.model, params=params, model_state=model_state)
        logs = self.task.validation_step(batch, model, self.task.build_metrics(training=False))
        metrics = {name: value for name, value in logs.items() if isinstance(value, Metric)}
        return metrics, {name: value for name, value in logs.items() if name not in metrics}

    @cached_property
    def _train_data(self) -> Any:
        return self._build_inputs(self.task.task_config.train_data)

    @cached_property
    def _validation_data(self) -> Any:
        return self._build_inputs(self.task.task_config.validation_data)

    @cached_property
    def _sample_inputs(self) -> tuple[Any, ...]:
        # A run that only evaluates has no need of training data, nor perhaps any.
        return split_batch(self._peek("_train_data" if "_train_data" in vars(self) else "_validation_data"))[0]

    def _peek(self, side: str) -> Batch:
        batch, vars(self)[side] = peeked(getattr(self, side))
        return batch

    @cached_property
    def _init_rngs(self) -> dict[str, Any]:
        return StepKeys(self._root, 0).rngs(["params"], prefix="init/")

    @cached_property
    def _template(self) -> Checkpoint:
        make = state_maker(self._reader.target, optimizer=self.optimizer)
        return Checkpoint.of(jax.eval_shape(make, self._init_rngs, *self._sample_inputs), step=0)

    @property
    def _devices(self) -> Sequence[Any]:
        devices: list[Any] = jax.local_devices()
        if self.runtime.distribution_strategy in ("off", "one_device"):
            return devices[:1]
        return devices[: self.runtime.num_gpus or None]

    def _build_inputs(self, params: Any) -> Any:
        takes_context = "input_context" in inspect.signature(self.task.build_inputs).parameters
        context = {"input_context": InputContext(seed=self.runtime.seed)} if takes_context else {}
        return self.task.build_inputs(params, **context)
