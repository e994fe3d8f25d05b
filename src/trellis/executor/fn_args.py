"""What a `run_fn` is given."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trellis.executor.data_accessor import DataAccessor


@dataclass
class FnArgs:
    """The one argument of a `run_fn`: where its data is, where its model goes, how long to train.

    Every field is None if there is nothing to say. Fields may be set: published modules do so.

    Example:
        def run_fn(fn_args: FnArgs) -> None:
            model = train(fn_args.train_files, n_steps=fn_args.train_steps or 1000)
            model.save(fn_args.serving_model_dir)
    """

    working_dir: str | None = None
    train_files: list[str] | None = None
    """Patterns of files: one for each split and each artifact."""
    eval_files: list[str] | None = None
    train_steps: int | None = None
    eval_steps: int | None = None
    schema_path: str | None = None
    """The only file of the schema."""
    schema_file: str | None = None
    """The same, by its older name."""
    transform_graph_path: str | None = None
    transform_output: str | None = None
    """The same, by its older name."""
    data_accessor: DataAccessor | None = None
    """Reads batches of examples from files."""
    serving_model_dir: str | None = None
    """Where the model has to be when `run_fn` returns. It does not exist before; of many workers, each has its own."""
    eval_model_dir: str | None = None
    """Where a second form of the model may be written, to be analysed."""
    model_run_dir: str | None = None
    """For what else the training writes: checkpoints, summaries. It stays when a run fails."""
    base_model: str | None = None
    """A model to start from."""
    hyperparameters: dict[str, Any] | None = None
    """The result of a tuning."""
    custom_config: dict[str, Any] | None = None
    num_examples: Mapping[str, int] | None = None
    """How many examples each split has; counted when it is first asked for."""
