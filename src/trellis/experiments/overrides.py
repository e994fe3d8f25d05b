"""From an experiment's name, files and flags to the config that runs."""

from collections.abc import Sequence

from trellis.config import Given, Problem, merge, raise_if_any, read_file, violations
from trellis.experiments.config_files import find_config_file
from trellis.experiments.experiment import ExperimentConfig, get_exp_config
from trellis.experiments.override_text import OverrideText
from trellis.experiments.requirements import mode_problems


def resolve(
    experiment: str,
    *,
    config_file: Sequence[str] = (),
    params_override: str = "",
    settings: Sequence[str] = (),
    values: Sequence[Given] = (),
    mode: str | None = None,
) -> ExperimentConfig:
    """Returns the config that an experiment has after its files and flags, validated and locked.

    Later ones win: the factory, each `config_file`, `params_override`, each of `settings`, each of `values`. Everything
    that is wrong with any of them is raised as one error.

    Args:
        params_override: The text of `--params_override`, such as `task.hidden_size=32,trainer.train_steps=2000`.
        settings: The texts of `--set`, such as `task.hidden_size=32`.
        values: Settings that are no text, each with its origin.
        mode: What the config is to be run in, if it is: what that needs is checked with the rest.
    """
    config = get_exp_config(experiment)
    problems: list[Problem] = []
    for given, found in [*_layers(config_file, params_override, settings), *((each, []) for each in values)]:
        problems += [*found, *merge(config, given)]
    wrong = {problem.path for problem in problems}
    needed = () if mode is None else mode_problems(config, mode=mode)
    problems += [problem for problem in (*violations(config), *needed) if problem.path not in wrong]
    raise_if_any(problems)
    config.lock()
    return config


def parse_params_override(text: str) -> tuple[Given, list[Problem]]:
    """Returns what the text of `--params_override` gives, and what is wrong with the text."""
    reader = OverrideText(text, flag="--params_override")
    return reader.read_list(), reader.problems


def parse_setting(text: str) -> tuple[Given, list[Problem]]:
    """Returns what the text of one `--set` gives, and what is wrong with the text."""
    reader = OverrideText(text, flag="--set")
    return reader.read_one(), reader.problems


def _layers(
    config_file: Sequence[str], params_override: str, settings: Sequence[str]
) -> list[tuple[Given, list[Problem]]]:
    files = [config_file] if isinstance(config_file, str) else config_file
    return [
        *(read_file(find_config_file(path)) for path in files),
        parse_params_override(params_override),
        *(parse_setting(text) for text in settings),
    ]
