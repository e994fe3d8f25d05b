"""Trellis: a training library for JAX.

The loops, then what they yield, what they take, and what consumes their checkpoints; then tasks and experiments;
last the packages, which have the rest. Each name is loaded when it is first used.
"""

from typing import TYPE_CHECKING

from trellis.doors import door

if TYPE_CHECKING:
    from trellis.loops import (
        TrainLoop as TrainLoop,
        TrainTask as TrainTask,
        EvalLoop as EvalLoop,
        EvalTask as EvalTask,
        Checkpoint as Checkpoint,
        Summary as Summary,
        TrainState as TrainState,
        StepOutput as StepOutput,
        Outline as Outline,
        Histogram as Histogram,
        Image as Image,
        Text as Text,
        Mean as Mean,
        Accuracy as Accuracy,
        F1 as F1,
        MatthewsCorrelation as MatthewsCorrelation,
        MacroF1 as MacroF1,
        AUC as AUC,
        Perplexity as Perplexity,
        MeanAbsoluteError as MeanAbsoluteError,
        MeanSquaredError as MeanSquaredError,
    )
    from trellis.runtime import StepKeys as StepKeys
    from trellis.data import ExampleStream as ExampleStream, Stream as Stream
    from trellis.extensions import (
        Extension as Extension,
        serial as serial,
        every as every,
        ProgressBar as ProgressBar,
        SummaryLogger as SummaryLogger,
        SummaryWriter as SummaryWriter,
        EventWriter as EventWriter,
        Tracker as Tracker,
        Profiler as Profiler,
        CheckpointFileWriter as CheckpointFileWriter,
        CheckpointFileReader as CheckpointFileReader,
        LowestCheckpointFileWriter as LowestCheckpointFileWriter,
        LowestCheckpointFileReader as LowestCheckpointFileReader,
        HighestCheckpointFileWriter as HighestCheckpointFileWriter,
        HighestCheckpointFileReader as HighestCheckpointFileReader,
        BlowUpCheck as BlowUpCheck,
        DivergenceCheck as DivergenceCheck,
        EarlyStopping as EarlyStopping,
    )
    from trellis.tasks import (
        Task as Task,
        BoundModel as BoundModel,
        InputContext as InputContext,
        register_task_cls as register_task_cls,
        get_task as get_task,
    )
    from trellis.trainer import (
        Trainer as Trainer,
        ProgressiveTrainer as ProgressiveTrainer,
        ProgressivePolicy as ProgressivePolicy,
        register_policy_cls as register_policy_cls,
    )
    from trellis.experiments import (
        run_experiment as run_experiment,
        register_config_factory as register_config_factory,
        get_exp_config as get_exp_config,
    )
    from trellis.serving import load_model as load_model
    from trellis.executor import Executor as Executor, FnArgs as FnArgs
    from trellis.config import Config as Config
    from trellis.experiments import ExperimentConfig as ExperimentConfig
    from trellis.tasks import TaskConfig as TaskConfig
    from trellis.trainer import (
        TrainerConfig as TrainerConfig,
        ProgressiveTrainerConfig as ProgressiveTrainerConfig,
        ProgressiveConfig as ProgressiveConfig,
    )
    from trellis.runtime import RuntimeConfig as RuntimeConfig
    from trellis.data import DataConfig as DataConfig
    from trellis.optimizers import OptimizationConfig as OptimizationConfig
    from trellis import (
        loops as loops,
        runtime as runtime,
        data as data,
        optimizers as optimizers,
        extensions as extensions,
        tasks as tasks,
        trainer as trainer,
        experiments as experiments,
        launch as launch,
        tuning as tuning,
        reports as reports,
        serving as serving,
        bridges as bridges,
        executor as executor,
        nlp as nlp,
        config as config,
        errors as errors,
    )
    from trellis.version import __version__ as __version__
else:
    __getattr__, __dir__, __all__ = door(__name__)
