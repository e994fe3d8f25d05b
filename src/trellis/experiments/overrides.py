"""From an experiment's name, files and flags to the config that runs."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from trellis.config import (
    Config,
    OneOfConfig,
    Origin,
    Problem,
    Setting,
    branches,
    merge,
    origin_of,
    raise_if_any,
    read_file,
    violations,
)
from trellis.disk import local_path
from trellis.errors import ArgumentError
from trellis.experiments.experiment import BUILT_IN, ExperimentConfig, experiment_summaries, get_exp_config
from trellis.experiments.mode import get_mode, mode_problems
from trellis.experiments.override_text import OverrideText
from trellis.experiments.reports import active_fields, leaves_of
from trellis.registry import Registry
from trellis.spelling import nearest

# What other programs call a flag, and the words of the field.
_SHORT_NAMES = {"lr": "learning_rate", "bs": "batch_size", "num_epochs": "epochs", "num_train_epochs": "epochs"}

_config_dirs: Registry[Path] = Registry("config directory", modules=BUILT_IN)


def resolve(
    experiment: str,
    *,
    config_file: Sequence[str] = (),
    params_override: str = "",
    settings: Sequence[str] = (),
    values: Sequence[Setting] = (),
    mode: str | None = None,
    model_dir: str | os.PathLike[str] | None = None,
) -> ExperimentConfig:
    """Returns the config that an experiment has after its files and flags, validated and locked.

    Later ones win: the factory, each `config_file`, `params_override`, each of `settings`, each of `values`. Everything
    that is wrong with any of them is raised as one error.

    Args:
        params_override: The text of `--params_override`, such as `task.hidden_size=32,trainer.train_steps=2000`.
        settings: The texts of `--set`, such as `task.hidden_size=32`.
        values: Settings that are no text, each with its origin.
        mode: What the config is to be run in, if it is: what that needs is checked with the rest.
        model_dir: Where it is to be run, if that is known: a run that goes on there needs less.
    """
    config = get_exp_config(experiment)
    problems: list[Problem] = []
    for setting, text_problems in _layers(config_file, params_override, settings, values):
        problems += [*text_problems, *merge(config, setting)]
    problems += _unchosen_problems(config, files=_listed(config_file))
    wrong_paths = {problem.path for problem in problems}
    directory = local_path(model_dir, name="model_dir") if model_dir else None
    needs = () if mode is None else mode_problems(config, mode=get_mode(mode), model_dir=directory)
    problems += [problem for problem in (*violations(config), *needs) if problem.path not in wrong_paths]
    raise_if_any(problems)
    config.lock()
    return config


def _layers(
    config_file: Sequence[str], params_override: str, settings: Sequence[str], values: Sequence[Setting]
) -> Iterator[tuple[Setting, list[Problem]]]:
    """Yields what each file and flag sets, and what is wrong with its text; later ones win."""
    for file in _listed(config_file):
        setting, problems = read_file(find_config_file(file))
        yield setting, problems or _emptiness_problems(setting)
    yield parse_params_override(params_override)
    for text in settings:
        yield parse_setting(text)
    for value in values:
        yield value, []


def _listed(config_file: Sequence[str]) -> Sequence[str]:
    return [config_file] if isinstance(config_file, str) else config_file


def _emptiness_problems(setting: Setting) -> list[Problem]:
    advice = "Write down what it is to change, or leave out --config_file."
    return [] if setting.value else [Problem("The config file sets nothing: it is empty.", setting.origin, "", advice)]


def _unchosen_problems(config: ExperimentConfig, *, files: Sequence[str]) -> Iterator[Problem]:
    """Yields the parts that a file or flag sets, though it or one before it has chosen another."""
    # That of a run holds what was changed in the parts that were not chosen, so that nothing is lost.
    order = {str(find_config_file(file)): place for place, file in enumerate(files) if not recorded_experiment(file)}
    for prefix, branch in branches(config):
        if not isinstance(branch, OneOfConfig):
            continue
        for name, part in vars(branch).items():
            if not isinstance(part, Config) or name == branch.type:
                continue
            chosen_in = _place_of(origin_of(branch, "type"), order)
            origins = [origin for _, origin in leaves_of(part).values() if 0 <= _place_of(origin, order) >= chosen_in]
            if origins:
                message = f"{prefix}.{name} is set, but {prefix}.type is {branch.type or 'null'}: it has no effect."
                instead = f" or set {prefix}.{branch.type} instead" if branch.type else " or leave it out"
                advice = f"Choose it ({prefix}.type={name}),{instead}."
                yield Problem(message, origins[0], f"{prefix}.{name}", advice)


def _place_of(origin: Origin, order: Mapping[str, int]) -> int:
    """The place in which files and flags are read, from 0 on; below for what nobody has written as text."""
    if origin.form == "file":
        return order.get(origin.source, -1)
    return len(order) if origin.form == "flag" and origin.text else -1


def parse_params_override(text: str) -> tuple[Setting, list[Problem]]:
    """Returns what the text of `--params_override` sets, and what is wrong with the text."""
    reader = OverrideText(text, flag="--params_override")
    return reader.read_list(), reader.problems


def parse_setting(text: str) -> tuple[Setting, list[Problem]]:
    """Returns what the text of one `--set` sets, and what is wrong with the text.

    Example:
        >>> setting, problems = parse_setting("trainer.train_steps=10")
        >>> str(setting)
        '{trainer: {train_steps: 10}}'
    """
    reader = OverrideText(text, flag="--set")
    return reader.read_one(), reader.problems


def nearest_field(config: Config, name: str) -> tuple[str | None, bool]:
    """Returns the path of the field that is probably meant by a name, and whether it has that very name.

    It is the field of that name; or one that has all words of it, as `train_epochs` has those of `epochs`; or one that
    is spelt like it.
    """
    name = _SHORT_NAMES.get(name, name)
    paths = sorted(active_fields(config), key=lambda path: path.count("."))
    same = [path for path in paths if f".{path}".endswith(f".{name}")]
    words = set(name.split("_"))
    longer = [path for path in paths if words <= set(path.rpartition(".")[2].split("_"))]
    leaves = {path.rpartition(".")[2]: path for path in reversed(paths)}
    close = nearest(name.rpartition(".")[2], leaves, cutoff=0.75)
    found = [*same, *longer, *([leaves[close]] if close else [])]
    return (found[0] if found else None), bool(same)


def register_config_dir(name: str, *, directory: Path) -> None:
    """Lets the YAML and gin files below a directory be named from anywhere."""
    _config_dirs.register(name)(directory)


def shipped_config_files(*, suffix: str = ".yaml") -> dict[str, Path]:
    """Returns the files of a kind below the registered directories, by name."""
    directories = map(_config_dirs.get, _config_dirs.names())
    return {file.name: file for directory in directories for file in sorted(directory.rglob(f"*{suffix}"))}


def find_config_file(name: str) -> str:
    """Returns a file as it was named if it is there, else the registered one of that name.

    Commands that were written for a source tree work anywhere: `configs/models/albert_base.yaml` is found too.
    """
    path = local_path(name, name="config_file")
    shipped = None if path.exists() else shipped_config_files(suffix=path.suffix).get(path.name)
    return str(shipped or path)


def recorded_experiment(config_file: str) -> str | None:
    """Returns the experiment that a run's `params.yaml` names in its first line; None if a file names none."""
    try:
        first_line = Path(config_file).read_text(errors="replace").partition("\n")[0]
    except OSError:
        return None  # what is wrong with the file is reported where it is read as a config
    match = re.fullmatch(r"# Experiment: (\S+)", first_line)
    return match[1] if match else None


def read_params(model_dir: str | os.PathLike[str]) -> ExperimentConfig:
    """Returns the config that a run was trained with, after its `params.yaml`.

    Its class is that of the experiment that the file names or, if it names none, of the first that has all its fields.
    """
    file = local_path(model_dir, name="model_dir") / "params.yaml"
    if not file.is_file():
        raise ArgumentError(f"There is no `{file}`. Give the model_dir of a run that was trained.")
    setting, problems = read_file(file)
    raise_if_any(problems)
    experiment = recorded_experiment(str(file))
    for name in [experiment] if experiment else experiment_summaries():
        config = get_exp_config(name)
        if not merge(config, setting):
            _check_whole(file, setting)
            config.lock()
            return config
    raise ArgumentError(
        f"No registered experiment has all the fields of `{file}`. If the run's experiment is your own, name the "
        f"module that registers it with --module."
    )


def _check_whole(file: Path, setting: Setting) -> None:
    """Raises an error if a run's `params.yaml` lacks a part that every run writes."""
    parts = setting.value if isinstance(setting.value, dict) else {}
    lacking = [name for name in ("task", "trainer", "runtime") if name not in parts]
    if lacking:
        raise ArgumentError(
            f"`{file}` has no {' and no '.join(lacking)}, as that of a run has: it was cut short. Bring it back; a run "
            f"that is started again with its own command writes it anew."
        )
