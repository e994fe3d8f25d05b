"""The config of a run that was trained before."""

import os
from pathlib import Path

from trellis.config import merge, raise_if_any, read_file
from trellis.errors import ArgumentError
from trellis.experiments.experiment import ExperimentConfig, experiment_summaries, get_exp_config, recorded_experiment


def read_params(model_dir: str | os.PathLike[str]) -> ExperimentConfig:
    """Returns the config that a run was trained with, after its `params.yaml`.

    Its class is that of the experiment that the file names or, if it names none, of the first that has all its fields.
    """
    file = Path(model_dir, "params.yaml")
    if not file.is_file():
        raise ArgumentError(f"There is no `{file}`. Give the model_dir of a run that was trained.")
    given, problems = read_file(file)
    raise_if_any(problems)
    recorded = recorded_experiment(str(file))
    for name in [recorded] if recorded else experiment_summaries():
        config = get_exp_config(name)
        if not merge(config, given):
            config.lock()
            return config
    raise ArgumentError(
        f"No registered experiment has all the fields of `{file}`. If the run's experiment is your own, name the "
        f"module that registers it with --module."
    )
