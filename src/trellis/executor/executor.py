"""The executor: runs any `run_fn` between artifacts, and checks what it leaves."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trellis.executor.artifacts import serving_model_dir
from trellis.executor.cluster import is_chief
from trellis.executor.exec_properties import Problems, RunArgs, read_custom_config, read_run_args
from trellis.executor.preparation import Run, build_fn_args, read_run
from trellis.executor.running import call, prepared
from trellis.executor.safekeeping import kept_inputs, replaced_model
from trellis.executor.served_model import check_served_model
from trellis.executor.workers import StartWorker, run_workers, start_process


class Executor:
    """Runs a user's training code: `Do` finds it, checks all that it needs, calls it, and checks its model.

    If anything fails, the model that was there before is there again, and what was written to `model_run` stays.

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
            exec_properties: `train_args` and `eval_args`; one of `module_file`, `module_path`, `run_fn`; and
                `custom_config`, of which the entry `trellis_run_args` may have `workers`, `timeout`, `model_files`.
        """
        run = read_run(input_dict, output_dict, exec_properties)
        run_args = _run_args(run)
        if run_args is None or not (self._is_apart or run_args.needs_processes):
            with prepared(run) as (function, fn_args), _kept(run, run_args or RunArgs()):
                call(function, fn_args)
        else:
            with _kept(run, run_args):
                run_workers(run, run_args=run_args, start=self._start)


@contextmanager
def _kept(run: Run, run_args: RunArgs) -> Iterator[None]:
    """Has a run leave a whole model, and all else as it was; of the workers of a cluster, the chief publishes."""
    if not is_chief():
        yield
        return
    uri, run_dir = run.outputs["model"][0].uri, Path(run.outputs["model_run"][0].uri)
    with replaced_model(uri, refused_dir=run_dir / "refused_model"):
        with kept_inputs(run.inputs, spare_dir=Path(uri, ".inputs-of-this-run")):
            yield
        check_served_model(serving_model_dir(uri), model_files=run_args.model_files)


def _run_args(run: Run) -> RunArgs | None:
    """Returns how a run is run; None if something is wrong that is known before its module is loaded."""
    problems = Problems()
    build_fn_args(run, problems=problems)
    config = problems.caught(lambda: read_custom_config(run.exec_properties), place="custom_config")
    run_args = problems.caught(lambda: read_run_args(config), place="custom_config")
    problems.caught(is_chief, place="environment")
    return None if problems else run_args
