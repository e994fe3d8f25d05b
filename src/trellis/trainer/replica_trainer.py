"""Several runs of one task, trained as one program."""

import dataclasses
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from trellis.aliases import Array, Key, PyTree
from trellis.config import Config
from trellis.data import is_stream
from trellis.errors import FileWriteError, MissingPackageError
from trellis.extensions import Extension
from trellis.loops import Event, ReplicaLoop, Summary, TrainTask, describe_arrays, split_batch
from trellis.runtime import StepKeys, describe_metric, print_line
from trellis.tasks import get_task
from trellis.trainer.changes import values_of
from trellis.trainer.stage import Stage
from trellis.trainer.task_calls import build_task_model
from trellis.trainer.trainer import Trainer

_DATA = ("task.train_data.", "task.validation_data.")
_OPTIMIZER = "trainer.optimizer_config."
_SEED = "runtime.seed"
_UNTOLD = frozenset({"initialized", "finished", "input_bound"})
"""Events of a replica that are not told on the screen."""


class ReplicaTrainer:
    """Trains several trainers as one program, each in its own `model_dir`, which is that of an ordinary run.

    Their configs may differ in `runtime.seed`, in their data as long as batches have the same shapes, and in numbers of
    the task and of the optimizer which the step can take as traced values: what a program is made for, such as a size,
    cannot differ within it.

    Example:
        trainers = [Trainer(task, config=config, runtime=runtime.replace(seed=seed), model_dir=…) for seed in range(8)]
        errors = ReplicaTrainer(trainers).train()

    Args:
        trainers: One for each place of the program; a place that is None computes, and nobody looks.
        paths: Fields in which they may differ, such as `task.dropout_rate`, whether they do so now or not: the program
            follows from these.
        names: What to call each on the screen.
    """

    def __init__(
        self, trainers: Sequence[Trainer | None], *, paths: Sequence[str] = (), names: Sequence[str] = ()
    ) -> None:
        self._trainers = {index: trainer for index, trainer in enumerate(trainers) if trainer is not None}
        self._n_places = len(trainers)
        self._names = list(names) or [f"replica {index}" for index in range(len(trainers))]
        self._values = {index: _leaves(trainer) for index, trainer in self._trainers.items()}
        self._first = next(iter(self._trainers.values()))
        first = next(iter(self._values.values()))
        differing = [path for path in first if any(own.get(path) != first[path] for own in self._values.values())]
        self._paths = list(dict.fromkeys([*paths, *differing]))
        self._numbers = [path for path in self._paths if path != _SEED and not path.startswith(_DATA)]
        for trainer in self._trainers.values():
            trainer.is_shown = False
        self._stages = {index: trainer.stage_of(0) for index, trainer in self._trainers.items()}
        self._stage = next(iter(self._stages.values()))
        self._share()

    def __repr__(self) -> str:
        return f"ReplicaTrainer({len(self._trainers)} × {self._first!r})"

    def _share(self) -> None:
        """Has data that is the same for all be read once."""
        if any(path == _SEED or path.startswith("task.") for path in self._paths):
            return
        for stage in self._stages.values():
            stage.train_data = self._stage.train_data
            stage.validation_data = self._stage.validation_data

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yields each field in which the runs cannot differ within one program, and why; nothing is run."""
        listed = list(self._shape_problems())
        yield from listed
        if not listed:
            for path, error in self._loop().number_problems().items():
                yield path, f"decides what program a step is, and cannot differ within one: {_reason(error)}."

    def _shape_problems(self) -> Iterator[tuple[str, str]]:
        if self._first.config.recovery_max_trials > 0:
            yield "trainer.recovery_max_trials", "is above 0, but a replica cannot go back in time alone."
        if self._first.config.lora is not None:
            yield "trainer.lora", "is set, but each replica would have the frozen weights once more: run them alone."
        if len(self._stage.placement.devices) > 1:
            n_devices = len(self._stage.placement.devices)
            yield (
                "runtime.distribution_strategy",
                f"takes {n_devices} devices, but replicas share one: set it to one_device.",
            )
        batches = {describe_arrays(stage.train_data.batch(0)) for stage in self._streams()}
        if len(batches) > 1:
            for path in self._paths:
                if path.startswith(_DATA[0]):
                    yield path, f"gives batches of other shapes ({', '.join(sorted(batches))}): a program has one."
        for path in self._numbers:
            if not path.startswith(("task.", _OPTIMIZER)):
                yield path, "is about the run and not about a step, so that runs in one program share it."
                continue
            values = [own.get(path) for own in self._values.values()]
            wrong = [value for value in values if isinstance(value, bool) or not isinstance(value, int | float)]
            if wrong:
                yield path, f"is {wrong[0]!r}, which is no number: it decides what program a step is."

    def _streams(self) -> Iterator[Stage]:
        """Yields the stages whose batches can be looked at, if batches may differ."""
        if any(path.startswith(_DATA[0]) for path in self._paths):
            yield from (stage for stage in self._stages.values() if is_stream(stage.train_data))

    def _loop(self) -> ReplicaLoop:
        filler = next(iter(self._values.values()))
        numbers = {
            path: [self._values.get(index, filler)[path] for index in range(self._n_places)] for path in self._numbers
        }
        loops = [stage.train_loop if (stage := self._stages.get(i)) else None for i in range(self._n_places)]
        return ReplicaLoop(
            loops, numbers=numbers, build_task=self._build_task, same_start=not self._starts_by_numbers()
        )

    def _build_task(self, numbers: Mapping[str, Array]) -> TrainTask:
        return self._stage_with(numbers).train_task(None)

    def _stage_with(self, numbers: Mapping[str, Array]) -> Stage:
        """The first stage with numbers, which may be traced, in the place of its own."""
        own = self._stage
        config = own.config
        optimization = _with_numbers(config.optimizer_config, numbers, prefix=_OPTIMIZER)
        config = config.replace()
        vars(config)["optimizer_config"] = optimization
        task_numbers = {path: value for path, value in numbers.items() if path.startswith("task.")}
        if not task_numbers:
            return dataclasses.replace(own, config=config)
        task_config = _with_numbers(own.task.task_config, task_numbers, prefix="task.")
        task = get_task(task_config, logging_dir=own.task.logging_dir)
        return dataclasses.replace(own, config=config, task=task, model=build_task_model(task))

    def _is_looked_at(self, function: Callable[..., Any], *arguments: Any) -> bool:
        """Whether a function, such as the evaluation, depends on the numbers: then each run has its own."""
        values = next(iter(self._values.values()))
        numbers = {path: jnp.asarray(values[path]) for path in self._numbers}
        if not numbers:
            return False
        try:
            closed: Any = jax.make_jaxpr(function)(numbers, *arguments)
        except Exception:  # noqa: BLE001  (a number that is needed when it is traced is looked at)
            return True
        given = set(map(id, closed.jaxpr.invars[: len(numbers)]))
        used = [*(var for equation in closed.jaxpr.eqns for var in equation.invars), *closed.jaxpr.outvars]
        return any(id(var) in given for var in used)

    def _starts_by_numbers(self) -> bool:
        """Whether what a run starts with depends on the numbers."""

        def start(numbers: Mapping[str, Array], rngs: Mapping[str, Key], inputs: tuple[Any, ...]) -> PyTree:
            stage = self._stage_with(numbers)
            variables = dict(stage.model.init(rngs, *inputs))
            params = nn.meta.unbox(variables.pop("params", {}))
            return variables, params, stage.optimizer.init(params)

        rngs = StepKeys(self._stage.root, 0).rngs(["params"], prefix="init/")
        batch = self._stage.train_loop.outline().batch
        return self._is_looked_at(start, rngs, split_batch(batch)[0])

    def _evaluates_by_numbers(self) -> bool:
        """Whether what an evaluation measures depends on the numbers."""

        def validate(numbers: Mapping[str, Array], *arguments: Any) -> PyTree:
            return self._stage_with(numbers).validation_step(*arguments)[0]

        state = self._stage.train_loop.state_shapes()
        keys = StepKeys(self._stage.root, 0)
        return self._is_looked_at(validate, state.params, state.model_state, self._stage.eval_loop.peek(), keys)

    def train(self) -> list[Exception | None]:
        """Trains all to the end; returns for each place the error that has ended it there, if one has."""
        errors: list[Exception | None] = [None] * self._n_places
        loop = self._loop()
        processes = self._begin()
        reports: dict[int, Summary] = {}
        for index, checkpoint in loop.run(self._first.config.train_steps):
            if reports and loop.step != next(iter(reports.values())).step:
                self._report(reports)
            try:
                summary = Summary.from_checkpoint(processes[index](checkpoint))
            except (FileWriteError, MissingPackageError):
                raise
            except Exception as error:  # noqa: BLE001  (whatever is wrong with one, the others go on)
                errors[index] = error
                print_line(f"{self._names[index]} has failed at step {checkpoint.step}: {error}")
                loop.end(index, error)
                continue
            # Without its arrays, which are as large as all that a run has.
            reports[index] = dataclasses.replace(
                summary, model_params=None, model_state=None, optimizer_state=None, grads=None
            )
            if summary.is_last and not checkpoint.is_last:
                loop.end(index)
        if reports:
            self._report(reports)
        return errors

    def _begin(self) -> dict[int, Extension]:
        """Has the extensions of each run take part in its training."""
        if self._first.evaluates and not self._evaluates_by_numbers():
            shared = self._stage.eval_loop
            for stage in self._stages.values():
                if stage is not self._stage:
                    stage.eval_loop = shared.over(stage.validation_data, rnkey=stage.root)
        processes = {}
        for index, trainer in self._trainers.items():
            stage = self._stages[index]
            process = trainer.begin(stage, step=stage.find_step)
            if process is not None:
                processes[index] = process
                stage.train_loop.session.subscribe(partial(_tell, self._names[index]))
        return processes

    def _report(self, reports: dict[int, Summary]) -> None:
        """Prints one line of what all have reached at a step, and forgets it."""
        summaries = list(reports.values())
        reports.clear()
        names = [("train", "loss"), *(("eval", name) for name in summaries[0].metrics.get("eval", {}))]
        shown = []
        for group, name in names:
            values = [value for s in summaries if (value := s.metrics.get(group, {}).get(name)) is not None]
            finite = sorted(value for value in values if value == value)
            ends = [describe_metric(value) for value in (finite[0], finite[-1])] if finite else ["nan"]
            title = name if group == "train" else f"{group}/{name}"
            shown.append(f"{title} {' to '.join(dict.fromkeys(ends))}")
        first = summaries[0]
        n_steps = self._first.config.train_steps
        rate = first.n_completed_steps / max(first.elapsed_time - first.compile_time, 1e-9)
        text = f"Step {first.step:{len(str(n_steps))}d} of {n_steps}  {len(summaries)} together  "
        print_line(f"{text}{'  '.join(shown)}  {rate:.4g} steps/s")


def _leaves(trainer: Trainer) -> dict[str, Any]:
    configs: dict[str, Config] = {
        "task": trainer.task.task_config,
        "trainer": trainer.config,
        "runtime": trainer.runtime,
    }
    return {path: value for name, config in configs.items() for path, value in values_of(config, name)}


def _with_numbers(config: Any, numbers: Mapping[str, Array], *, prefix: str) -> Any:
    """A copy of a config with values which it would refuse, as they are no numbers yet."""
    changed = config.replace()
    for path, value in numbers.items():
        if path.startswith(prefix):
            *groups, name = path.removeprefix(prefix).split(".")
            node = changed
            for group in groups:
                node = getattr(node, group)
            vars(node)[name] = value
    return changed


def _reason(error: Exception) -> str:
    """Where the code needs the value of a number that is traced, or what else was wrong."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not {"site-packages", "dist-packages"} & {*Path(frame.filename).parts}]
    # The last lines are JAX's and Flax's, or of the loop between them.
    lines = [frame for frame in own if Path(frame.filename).name != "replica_loop.py"]
    frame = (lines or frames)[-1]
    return f"{Path(frame.filename).name}, line {frame.lineno}, needs its value (`{frame.line}`)"


def _tell(name: str, event: Event) -> None:
    if event.text and event.kind not in _UNTOLD:
        print_line(f"{name}: {event.text.strip()}")
