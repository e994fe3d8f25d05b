"""The executor: runs any `run_fn` between artifacts, checks what it leaves, and publishes it."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from trellis.executor.artifacts import Artifacts, eval_model_dir, read_artifacts, serving_model_dir
from trellis.executor.fn_args import (
    RUN_ARGS,
    FnArgs,
    Problems,
    RunArgs,
    build_fn_args,
    read_run_args,
)
from trellis.executor.module_file import call, user_function
from trellis.executor.process import StartWorker, run_in_processes, start_process
from trellis.executor.safekeeping import new_model, recover, unchanged_inputs
from trellis.executor.served_model import check_served_model
from trellis.runtime import NEEDS_NO_SERVER, is_parameter_server, print_line


class Executor:
    """Runs a user's training code: `Do` finds it, checks all that it needs, calls it, and checks its model.

    The model that was there before stays until the new one is whole, and what was written to `model_run` stays. What a
    run that was killed has left undone, the next one puts right first.

    Example:
        Executor().Do(
            {"examples": [Examples("data")]},
            {"model": [Model("out/model")], "model_run": [ModelRun("out/model_run")]},
            {"module_file": "my_module.py", "train_args": {"num_steps": 1000}, "eval_args": {}},
        )

    Args:
        start: What starts a worker, where a run needs processes of its own: local ones, by default. A cluster's own
            starter goes here.
        is_apart: Whether the run takes place in a process of its own in any case, so that nothing that it does to its
            process (to exit at once, to crash) is done to this one.
    """

    def __init__(self, *, start: StartWorker = start_process, is_apart: bool = False) -> None:
        self._start = start
        self._is_apart = is_apart

    def Do(  # noqa: N802  (published so)
        self,
        input_dict: Mapping[str, Sequence[Any]],
        output_dict: Mapping[str, Sequence[Any]],
        exec_properties: Mapping[str, Any],
    ) -> None:
        """Runs a `run_fn`.

        Args:
            input_dict: Lists of artifacts: `examples`, and at most one of each of `schema`, `transform_graph`,
                `base_model`, `hyperparameters`, `statistics`.
            output_dict: One artifact each: `model` and `model_run`.
            exec_properties: `train_args` and `eval_args`; one of `module_file`, `module_path`, `run_fn`, or one of the
                first two with the name of a function in it as `run_fn`; and `custom_config`, of which the entry
                `trellis_run_args` may have `workers`, `timeout`, `worker_timeout`, `model_files`, `serves_parameters`.
        """
        inputs = read_artifacts(input_dict)
        outputs = read_artifacts(output_dict)
        problems = Problems()
        run_args = read_run_args(exec_properties, problems)
        if not run_args.is_chief and is_parameter_server() and not run_args.serves_parameters:
            print_line(f"{NEEDS_NO_SERVER} A run_fn that is a server itself: serves_parameters in {RUN_ARGS}.")
            return
        # Inputs that a killed run has deleted are missing until this is done.
        if run_args.is_chief and len(outputs.get("model", ())) == 1:
            kept = Path(outputs.get("model_run", outputs["model"])[0].uri, "of_a_killed_run")
            recover(Path(outputs["model"][0].uri), keep_dir=kept, model_files=run_args.model_files)
        fn_args = build_fn_args(inputs, outputs, exec_properties, problems)
        with ExitStack() as stack:
            train: Callable[[FnArgs], None]
            needs_process = self._is_apart or run_args.workers > 1 or run_args.timeout is not None
            if problems or not needs_process:
                # All problems are raised together, those with the module among them.
                module = user_function(exec_properties, fn_args=fn_args)
                user = problems.attempt(None, lambda: stack.enter_context(module))
                problems.raise_if_any()
                assert user is not None
                train = partial(call, user, is_chief=run_args.is_chief)
            else:
                train = partial(run_in_processes, exec_properties, run_args=run_args, start=self._start)
            if run_args.is_chief:
                _train_and_publish(train, fn_args, inputs=inputs, outputs=outputs, run_args=run_args)
            else:
                train(fn_args)


def _train_and_publish(
    train: Callable[[FnArgs], None], fn_args: FnArgs, *, inputs: Artifacts, outputs: Artifacts, run_args: RunArgs
) -> None:
    """Trains into a directory beside the model, checks what is there, and puts it in the place of the model."""
    model = outputs["model"][0].uri
    # A run_fn may change the directory of its process.
    folder = Path(model).absolute()
    with new_model(folder, refused_dir=Path(outputs["model_run"][0].uri, "refused_model")) as directory:
        uri = os.path.join(model, directory.name)
        with unchanged_inputs(inputs, directory=directory):
            train(replace(fn_args, serving_model_dir=serving_model_dir(uri), eval_model_dir=eval_model_dir(uri)))
        check_served_model(serving_model_dir(uri), model_files=run_args.model_files)
