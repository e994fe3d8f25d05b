"""A run in this process: everything checked, the function called."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from tempfile import TemporaryDirectory

from trellis.errors import ArgumentError, Preempted, RunFailedError
from trellis.executor.artifacts import EVAL, SERVING
from trellis.executor.cluster import is_chief
from trellis.executor.exec_properties import Problems, read_custom_config, read_run_args
from trellis.executor.fn_args import FnArgs
from trellis.executor.legacy_training import run_trainer_fn
from trellis.executor.module_file import UserFunction, user_function
from trellis.executor.preparation import Run, build_fn_args


@contextmanager
def prepared(run: Run) -> Iterator[tuple[UserFunction, FnArgs]]:
    """Gives the function of a run and its arguments; raises all that is wrong with either as one error."""
    problems = Problems()
    fn_args = build_fn_args(run, problems=problems)
    problems.caught(lambda: read_run_args(read_custom_config(run.exec_properties)), place="custom_config")
    problems.caught(is_chief, place="environment")
    with ExitStack() as stack:
        try:
            function = stack.enter_context(user_function(run.exec_properties))
            if function.is_legacy and fn_args.schema_path is None:
                problems.add(f"{function.place} needs a schema: give the input `schema`, or write a run_fn.")
        except ArgumentError as error:
            problems.add(str(error), cause=error.__cause__)
        problems.raise_if_any()
        yield function, fn_args


def call(function: UserFunction, fn_args: FnArgs) -> None:
    """Calls a user's function; an exit without an error is a return. What any but the chief publishes goes nowhere."""
    with ExitStack() as stack:
        if not is_chief():
            scratch = stack.enter_context(TemporaryDirectory(prefix="trellis-worker-"))
            fn_args = replace(fn_args, serving_model_dir=f"{scratch}/{SERVING}", eval_model_dir=f"{scratch}/{EVAL}")
        try:
            if function.is_legacy:
                run_trainer_fn(function.call, fn_args=fn_args, is_chief=is_chief())
            else:
                function.call(fn_args)
        except Preempted:
            raise  # not for us to judge: what it has saved, the next run goes on from
        except SystemExit as error:
            if error.code not in (None, 0):
                said = f"{function.place} has called exit({error.code!r}) instead of returning."
                raise RunFailedError(said) from error
        except Exception as error:
            error.add_note(f"That was in {function.place}.")
            raise
