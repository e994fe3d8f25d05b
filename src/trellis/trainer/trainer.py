"""A task, run: its two sides become a training and an evaluation loop, its config a list of extensions."""

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import jax

from trellis.aliases import Batch, PyTree
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
from trellis.loops import (
    Checkpoint,
    EvalLoop,
    EvalTask,
    Metric,
    StepOutput,
    Summary,
    TrainLoop,
    TrainState,
    TrainTask,
    finish_saves,
    split_batch,
    state_maker,
)
from trellis.optimizers import build_schedule
from trellis.runtime import RuntimeConfig, StepKeys, print_line
from trellis.tasks import BoundModel, Task, lasting_init
from trellis.trainer.computation import computing_model
from trellis.trainer.configs import TrainerConfig
from trellis.trainer.default_extensions import (
    Evaluation,
    best_writer,
    default_extensions,
    early_stopping,
    on_averages,
    validation_writers,
)
from trellis.trainer.outline import Outline, Tracer
from trellis.trainer.placement import build_placement
from trellis.trainer.requirements import check_task
from trellis.trainer.stage import Stage, Start, first_state, peeked, whole_stage


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
        stage: What to run on if not on the task's own model and data from step 0.
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
        stage: Stage | None = None,
    ) -> None:
        self.task = task
        self.config = config
        self.runtime = runtime or RuntimeConfig()
        self.model_dir = Path(model_dir)
        self._stage = stage or whole_stage(task, runtime=self.runtime)
        self.model = self._stage.model
        self._model = computing_model(self.model, runtime=self.runtime)
        self.optimizer = task.create_optimizer(
            config.optimizer_config,
            runtime_config=self.runtime,
            dp_config=getattr(task.task_config, "differential_privacy_config", None),
            n_steps=self._n_steps or None,
        )
        self._evaluates, self._extensions, self._placement = evaluate, tuple(extensions), build_placement(self.runtime)
        self._save_summary = save_summary and self._placement.is_writer
        self._root = self._placement.put_state(jax.random.key(self.runtime.seed))
        self._skipped = SkippedData(self.model_dir)
        self._reader = CheckpointFileReader(
            dir=self.model_dir, target=lasting_init(self.model), after=self._stage.start_step or -1
        )
        # So that the outline and what the loops make of a step trace it once.
        self._validation_step = jax.jit(self._validate, inline=True)
        self._make_state = state_maker(self._reader.target, optimizer=self.optimizer, keep_names=True)
        check_task(task, config=config)

    def train(self) -> Summary | None:
        """Trains up to `train_steps`, from the newest checkpoint file if there is one; returns the last summary.

        None if there was nothing left to do. When the loss blows up, goes back to the last checkpoint file and past
        the data since, up to `recovery_max_trials` times; after that the error is raised.
        """
        self.build_train_data()
        while True:
            try:
                return self._train()
            except DivergedError as error:
                self._recover(error)

    def build_train_data(self) -> Any:
        """The training data; once it is built, its first batch is what the model is initialised with."""
        return self._train_data

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
        return BoundModel(self._model, params=held.model_params, model_state=held.model_state)

    def inference_inputs(self, step: int = 0) -> Any:
        """The inputs of a first batch, as `Task.inference_step` takes them; they do not depend on the step here."""
        inputs = self._sample_inputs
        return inputs[0] if len(inputs) == 1 else inputs

    def initialize(self) -> Checkpoint:
        """The first step: the model's own variables after `Task.initialize`."""
        how = {"optimizer": self.optimizer, "like": self._shapes, "placement": self._placement}
        state = first_state(self._stage, self._make_state, self._init_rngs, *self._sample_inputs, **how)
        # An iterator of this stage is not read yet, however many steps there were before.
        return Checkpoint.of(state, step=self._stage.start_step, position={"n_batches": 0})

    def outline(self, *, trains: bool, evaluates: bool) -> Outline:
        """What a run holds and computes, by abstract evaluation; a side that it does without is left out."""
        train = self._peek("_train_data") if trains else None
        validation = self._peek("_validation_data") if evaluates else None
        tracer = Tracer(self._shapes, StepKeys(self._root, self._stage.start_step))
        return Outline(
            model=self.model,
            checkpoint=self._template,
            trace_outputs=partial(tracer.trace_model, self._model, train or validation, task=self.task),
            train=tracer.trace_train_step(self._train_step, train),
            validation=tracer.trace_validation_step(self._validation_step, validation),
            n_steps=self.config.train_steps,
            placement=self._placement,
        )

    @cached_property
    def best(self) -> BestCheckpointFileWriter | None:
        """The writer of the best checkpoint file, if the config asks for one."""
        return best_writer(self.config, model_dir=self.model_dir)

    @cached_property
    def evaluation(self) -> Evaluation:
        """The extension that evaluates a checkpoint."""
        config, best, steps = self.config, self.best, self.config.validation_steps
        task = EvalTask(data=self._validation_data, validation_step=self._validation_step, host_metrics=self.task)
        loop = EvalLoop(task=task, rnkey=self._root, n_steps=None if steps == -1 else steps, devices=self._placement)
        then = validation_writers(config, model_dir=self.model_dir, best=best, save_summary=self._save_summary)
        return Evaluation(loop, best=best, then=then)

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
        periods += [*self._stage.periods, *([config.validation_interval] if self._evaluates else [])]
        return TrainLoop(
            init=Start(self._reader, initialize=self.initialize),
            input_sample=self._sample_inputs,
            task=TrainTask(
                data=self._skipped.applied_to(self._train_data),
                optimizer=self.optimizer,
                train_step=self._train_step,
            ),
            rnkey=self._root,
            n_steps=config.train_steps,
            n_steps_per_checkpoint=periods,
            devices=self._placement,
            grads=config.keep_gradients,
        )

    def _build_extensions(self, stopping: EarlyStopping | None) -> list[Callable[[Any], Any]]:
        rate, start = self.config.optimizer_config, self._stage.start_step
        schedule = build_schedule(rate, n_steps=self._n_steps) if rate.learning_rate.type is not None else None
        return default_extensions(
            self.config,
            model_dir=self.model_dir,
            evaluation=self.evaluation if self._evaluates else None,
            stopping=stopping,
            # An optimizer counts the steps of its own stage.
            schedule=schedule and (lambda step: schedule(step - start)),
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
        found = self._reader.find_step()
        step = self._stage.start_step if found is None else found
        self._skipped.add(step=step, n_batches=error.step - step)
        left_out = f"past the {error.step - step} batches since"
        print_line(f"{error} Recovery {n_trials + 1} of {most}: back to step {step}, {left_out}.")

    @cached_property
    def _train_step(self) -> Any:
        model = computing_model(self.model, runtime=self.runtime, placement=self._placement, shapes=self._shapes)
        # A task's own step need not know of parts if there are none.
        parts = {"n_microbatches": self.config.n_microbatches} if self.config.n_microbatches != 1 else {}

        def step(state: TrainState, batch: Batch, keys: StepKeys) -> tuple[TrainState, StepOutput]:
            metrics = self.task.build_metrics(training=True)
            options = {"model": model, "optimizer": self.optimizer, "metrics": metrics, "keys": keys, **parts}
            return self.task.train_step(batch, state=state, **options)

        return jax.jit(step, inline=True)

    def _validate(
        self, params: PyTree, model_state: PyTree, batch: Batch, keys: StepKeys
    ) -> tuple[dict[str, Metric], dict[str, Any]]:
        model = BoundModel(self._model, params=params, model_state=model_state)
        logs = self.task.validation_step(batch, model, self.task.build_metrics(training=False))
        metrics = {name: value for name, value in logs.items() if isinstance(value, Metric)}
        return metrics, {name: value for name, value in logs.items() if name not in metrics}

    @cached_property
    def _train_data(self) -> Any:
        return self._stage.build_train_data()

    @cached_property
    def _validation_data(self) -> Any:
        return self._stage.build_validation_data()

    @cached_property
    def _sample_inputs(self) -> tuple[Any, ...]:
        # A run that only evaluates has no need of training data, nor perhaps any.
        return split_batch(self._peek("_train_data" if "_train_data" in vars(self) else "_validation_data")[0])[0]

    def _peek(self, side: str) -> tuple[Batch, Any]:
        batch, vars(self)[side] = peeked(getattr(self, side))
        return batch, vars(self)[side]

    @cached_property
    def _init_rngs(self) -> dict[str, Any]:
        return StepKeys(self._root, self._stage.start_step).rngs(["params"], prefix="init/")

    @cached_property
    def _shapes(self) -> Any:
        return self._placement.shapes(self._make_state, self._init_rngs, *self._sample_inputs)

    @cached_property
    def _template(self) -> Checkpoint:
        return Checkpoint.of(self._shapes, step=0)

    @property
    def _n_steps(self) -> int:
        return self.config.train_steps - self._stage.start_step
