"""Our own `run_fn`: a registered experiment as a step of a pipeline."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trellis.config import Origin, Setting, setting_at
from trellis.errors import ArgumentError
from trellis.executor import FnArgs
from trellis.experiments.experiment import ExperimentConfig, register_experiments
from trellis.experiments.export import best_of_run, export_experiment
from trellis.experiments.mode import get_mode
from trellis.experiments.overrides import resolve
from trellis.experiments.processes import run_on_processes
from trellis.extensions import newest_file
from trellis.runtime import failing_together, is_first_process, join_processes, wait_for_processes
from trellis.spelling import did_you_mean

_CHECKPOINT = "checkpoint"
_SETTINGS = ("experiment", "module", "mode", "config_file", "params_override", "set", "allow_changes")
_FIELDS = {
    "train_files": "task.train_data.input_path",
    "eval_files": "task.validation_data.input_path",
    "train_steps": "trainer.train_steps",
    "eval_steps": "trainer.validation_steps",
    "base_model": "task.init_checkpoint",
}
"""The fields of FnArgs, each with the one value of an experiment that it sets."""


def run_fn(fn_args: FnArgs) -> None:
    """Runs an experiment on the artifacts of a pipeline, and leaves its model in `serving_model_dir`.

    `custom_config` names the experiment, and may change it as the flags of `trellis train` do: `experiment`, `module`,
    `mode`, `config_file`, `params_override`, `set`, `allow_changes`. Then come what the pipeline says (files, steps, a
    base model) and what a tuning has found, whose hyperparameters are named by their dotted paths. The run is in
    `model_run_dir`, and goes on there if it is started again. Several workers share out each batch, and have the losses
    of one.

    Example:
        trellis run --run_fn=trellis.experiments.run_fn --examples=data --model=out/model \
          --custom_config='{"experiment": "digits/classifier"}' --train_steps=500
    """
    settings = _settings(fn_args.custom_config or {})
    params = _resolved(settings, fn_args)
    model_dir = Path(str(fn_args.model_run_dir))
    allow_changes = bool(settings.get("allow_changes"))
    join_processes()
    with failing_together():
        run_on_processes(params, mode=settings["mode"], model_dir=model_dir, allow_changes=allow_changes)
        if is_first_process():
            _publish(params, model_dir, Path(str(fn_args.serving_model_dir)))
        wait_for_processes("publishing the model")


def _settings(custom_config: Mapping[str, Any]) -> dict[str, Any]:
    unknown = [name for name in custom_config if name not in _SETTINGS]
    if unknown:
        suggestion = did_you_mean(unknown[0], _SETTINGS)
        raise ArgumentError(f"custom_config has no {unknown[0]!r}.{suggestion} It takes {', '.join(_SETTINGS)}.")
    if not custom_config.get("experiment"):
        raise ArgumentError("custom_config names no experiment. Give one, such as {'experiment': 'digits/classifier'}.")
    mode = custom_config.get("mode", "train_and_eval")
    if not get_mode(mode).trains:
        raise ArgumentError(f"custom_config: mode {mode!r} trains nothing, so there would be no model to serve.")
    return {**custom_config, "mode": mode}


def _resolved(settings: Mapping[str, Any], fn_args: FnArgs) -> ExperimentConfig:
    register_experiments(_listed(settings.get("module")), place="custom_config['module']")
    return resolve(
        settings["experiment"],
        config_file=_listed(settings.get("config_file")),
        params_override=settings.get("params_override", ""),
        settings=_listed(settings.get("set")),
        values=[*_pipeline_values(fn_args), *_tuned_values(fn_args.hyperparameters or {})],
        mode=settings["mode"],
        model_dir=str(fn_args.model_run_dir),
    )


def _pipeline_values(fn_args: FnArgs) -> Iterator[Setting]:
    for name, path in _FIELDS.items():
        value = getattr(fn_args, name)
        if name == "base_model" and value and Path(value, _CHECKPOINT).is_dir():
            value = str(Path(value, _CHECKPOINT))
        if value:
            yield setting_at(path, value, Origin(f"fn_args.{name}", form="flag"))


def _tuned_values(hyperparameters: Mapping[str, Any]) -> Iterator[Setting]:
    # A tuner writes the space that it has searched, and the values that it has found in there.
    values = hyperparameters["values"] if isinstance(hyperparameters.get("values"), Mapping) else hyperparameters
    for path, value in values.items():
        yield setting_at(path, value, Origin(f"fn_args.hyperparameters[{path!r}]", form="flag"))


def _listed(value: str | Sequence[str] | None) -> list[str]:
    return [value] if isinstance(value, str) else list(value or ())


def _publish(params: ExperimentConfig, model_dir: Path, serving_dir: Path) -> None:
    """Exports the model of the best checkpoint file, or else of the newest; the file and its config go along."""
    source = best_of_run(params, model_dir) or newest_file(model_dir)
    assert source is not None  # a run that trains leaves the checkpoint of its last step
    export_experiment(params, model_dir=model_dir, output_dir=serving_dir, checkpoint_file=source)
    shutil.copytree(source, serving_dir / _CHECKPOINT)
    shutil.copy(model_dir / "params.yaml", serving_dir)
