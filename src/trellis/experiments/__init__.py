"""Named configurations, and how files and flags change them."""

from typing import TYPE_CHECKING

from trellis.doors import door

if TYPE_CHECKING:
    from trellis.experiments.experiment import (
        ExperimentConfig as ExperimentConfig,
        BuildExperiment as BuildExperiment,
        register_config_factory as register_config_factory,
        get_exp_config as get_exp_config,
        experiment_summaries as experiment_summaries,
        register_experiments as register_experiments,
    )
    from trellis.experiments.overrides import (
        resolve as resolve,
        parse_params_override as parse_params_override,
        parse_setting as parse_setting,
        nearest_field as nearest_field,
        register_config_dir as register_config_dir,
        shipped_config_files as shipped_config_files,
        find_config_file as find_config_file,
        read_params as read_params,
        recorded_experiment as recorded_experiment,
    )
    from trellis.experiments.reports import (
        Leaf as Leaf,
        show_config as show_config,
        active_fields as active_fields,
        diff_configs as diff_configs,
        differing_leaves as differing_leaves,
        leaves_of as leaves_of,
        list_experiments as list_experiments,
        write_params as write_params,
    )
    from trellis.experiments.mode import Mode as Mode, MODES as MODES, get_mode as get_mode
    from trellis.experiments.lengths import derive_lengths as derive_lengths
    from trellis.experiments.run import (
        find_checkpoint as find_checkpoint,
        run_experiment as run_experiment,
    )
    from trellis.experiments.processes import run_on_processes as run_on_processes
    from trellis.experiments.data_peek import Peek as Peek, describe_peek as describe_peek, peek_data as peek_data
    from trellis.experiments.replicas import (
        ReplicaRun as ReplicaRun,
        replica_problems as replica_problems,
        run_replicas as run_replicas,
    )
    from trellis.experiments.plan import (
        Plan as Plan,
        measured_metrics as measured_metrics,
        plan_experiment as plan_experiment,
    )
    from trellis.experiments.step_cost import (
        Candidate as Candidate,
        Speed as Speed,
        StepCost as StepCost,
        describe_candidate as describe_candidate,
        describe_cost as describe_cost,
        gib as gib,
        heading as heading,
    )
    from trellis.experiments.fit import cost_of as cost_of, search_fit as search_fit
    from trellis.experiments.export import (
        export_experiment as export_experiment,
        refresh_export as refresh_export,
        best_of_run as best_of_run,
        load_array_predictor as load_array_predictor,
    )
    from trellis.experiments.comparison import (
        Comparison as Comparison,
        Difference as Difference,
        RunRecord as RunRecord,
        compare_runs as compare_runs,
    )
    from trellis.experiments.replay import StepReport as StepReport, replay_step as replay_step
    from trellis.experiments import run_fn as run_fn
else:
    __getattr__, __dir__, __all__ = door(__name__)
