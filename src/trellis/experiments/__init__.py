"""Named configurations, and how files and flags change them."""

from typing import TYPE_CHECKING

from trellis.doors import door

if TYPE_CHECKING:
    from trellis.experiments import run_fn as run_fn
    from trellis.experiments.config_files import find_config_file as find_config_file
    from trellis.experiments.config_files import register_config_dir as register_config_dir
    from trellis.experiments.config_files import shipped_config_files as shipped_config_files
    from trellis.experiments.experiment import BuildExperiment as BuildExperiment
    from trellis.experiments.experiment import ExperimentConfig as ExperimentConfig
    from trellis.experiments.experiment import experiment_summaries as experiment_summaries
    from trellis.experiments.experiment import get_exp_config as get_exp_config
    from trellis.experiments.experiment import recorded_experiment as recorded_experiment
    from trellis.experiments.experiment import register_config_factory as register_config_factory
    from trellis.experiments.experiment_modules import register_experiments as register_experiments
    from trellis.experiments.export import best_of_run as best_of_run
    from trellis.experiments.export import export_experiment as export_experiment
    from trellis.experiments.lengths import derive_lengths as derive_lengths
    from trellis.experiments.modes import prepare_experiment as prepare_experiment
    from trellis.experiments.modes import run_experiment as run_experiment
    from trellis.experiments.overrides import parse_params_override as parse_params_override
    from trellis.experiments.overrides import parse_setting as parse_setting
    from trellis.experiments.overrides import resolve as resolve
    from trellis.experiments.plan import Plan as Plan
    from trellis.experiments.plan import plan_experiment as plan_experiment
    from trellis.experiments.reports import diff_configs as diff_configs
    from trellis.experiments.reports import list_experiments as list_experiments
    from trellis.experiments.reports import show_config as show_config
    from trellis.experiments.requirements import MODES as MODES
    from trellis.experiments.requirements import check_mode as check_mode
    from trellis.experiments.run_params import read_params as read_params

__getattr__, __dir__, __all__ = door(
    __name__,
    {
        "ExperimentConfig": "experiment",
        "BuildExperiment": "experiment",
        "register_config_factory": "experiment",
        "get_exp_config": "experiment",
        "experiment_summaries": "experiment",
        "recorded_experiment": "experiment",
        "resolve": "overrides",
        "parse_params_override": "overrides",
        "parse_setting": "overrides",
        "show_config": "reports",
        "diff_configs": "reports",
        "list_experiments": "reports",
        "MODES": "requirements",
        "check_mode": "requirements",
        "register_config_dir": "config_files",
        "shipped_config_files": "config_files",
        "find_config_file": "config_files",
        "register_experiments": "experiment_modules",
        "derive_lengths": "lengths",
        "read_params": "run_params",
        "run_experiment": "modes",
        "prepare_experiment": "modes",
        "Plan": "plan",
        "plan_experiment": "plan",
        "export_experiment": "export",
        "best_of_run": "export",
        "run_fn": "run_fn",
    },
)
