"""Trellis: a training library for JAX.

The loops, then what they yield, what they take, and what consumes their checkpoints; then tasks and experiments.
"""

from typing import TYPE_CHECKING

from trellis.doors import door

if TYPE_CHECKING:
    from trellis.classification_metrics import F1 as F1
    from trellis.classification_metrics import Accuracy as Accuracy
    from trellis.classification_metrics import MatthewsCorrelation as MatthewsCorrelation
    from trellis.data.configs import DataConfig as DataConfig
    from trellis.data.example_stream import ExampleStream as ExampleStream
    from trellis.data.stream import Stream as Stream
    from trellis.experiments.experiment import ExperimentConfig as ExperimentConfig
    from trellis.experiments.experiment import get_exp_config as get_exp_config
    from trellis.experiments.experiment import register_config_factory as register_config_factory
    from trellis.experiments.modes import run_experiment as run_experiment
    from trellis.extensions.best_checkpoint_files import HighestCheckpointFileReader as HighestCheckpointFileReader
    from trellis.extensions.best_checkpoint_files import HighestCheckpointFileWriter as HighestCheckpointFileWriter
    from trellis.extensions.best_checkpoint_files import LowestCheckpointFileReader as LowestCheckpointFileReader
    from trellis.extensions.best_checkpoint_files import LowestCheckpointFileWriter as LowestCheckpointFileWriter
    from trellis.extensions.checkpoint_files import CheckpointFileReader as CheckpointFileReader
    from trellis.extensions.checkpoint_files import CheckpointFileWriter as CheckpointFileWriter
    from trellis.extensions.early_stopping import EarlyStopping as EarlyStopping
    from trellis.extensions.event_writer import EventWriter as EventWriter
    from trellis.extensions.extension import Extension as Extension
    from trellis.extensions.extension import every as every
    from trellis.extensions.extension import serial as serial
    from trellis.extensions.progress import ProgressBar as ProgressBar
    from trellis.extensions.recovery import DivergenceCheck as DivergenceCheck
    from trellis.extensions.summary_logger import SummaryLogger as SummaryLogger
    from trellis.extensions.summary_writer import SummaryWriter as SummaryWriter
    from trellis.loops.checkpoint import Checkpoint as Checkpoint
    from trellis.loops.checkpoint import Summary as Summary
    from trellis.loops.checkpoint import TrainState as TrainState
    from trellis.loops.eval_loop import EvalLoop as EvalLoop
    from trellis.loops.step import EvalTask as EvalTask
    from trellis.loops.step import StepOutput as StepOutput
    from trellis.loops.step import TrainTask as TrainTask
    from trellis.loops.train_loop import TrainLoop as TrainLoop
    from trellis.metrics import Mean as Mean
    from trellis.optimizers.configs import OptimizationConfig as OptimizationConfig
    from trellis.runtime.configs import RuntimeConfig as RuntimeConfig
    from trellis.serving.load import load_model as load_model
    from trellis.tasks.bound_model import BoundModel as BoundModel
    from trellis.tasks.configs import InputContext as InputContext
    from trellis.tasks.configs import TaskConfig as TaskConfig
    from trellis.tasks.task import Task as Task
    from trellis.tasks.task_registry import get_task as get_task
    from trellis.tasks.task_registry import register_task_cls as register_task_cls
    from trellis.trainer.configs import ProgressiveConfig as ProgressiveConfig
    from trellis.trainer.configs import ProgressiveTrainerConfig as ProgressiveTrainerConfig
    from trellis.trainer.configs import TrainerConfig as TrainerConfig
    from trellis.trainer.progressive_policy import ProgressivePolicy as ProgressivePolicy
    from trellis.trainer.progressive_policy import register_policy_cls as register_policy_cls
    from trellis.trainer.progressive_trainer import ProgressiveTrainer as ProgressiveTrainer
    from trellis.trainer.trainer import Trainer as Trainer

__getattr__, __dir__, __all__ = door(
    __name__,
    {
        "TrainLoop": "loops",
        "TrainTask": "loops",
        "EvalLoop": "loops",
        "EvalTask": "loops",
        "Checkpoint": "loops",
        "Summary": "loops",
        "TrainState": "loops",
        "StepOutput": "loops",
        "Mean": "metrics",
        "Accuracy": "classification_metrics",
        "F1": "classification_metrics",
        "MatthewsCorrelation": "classification_metrics",
        "ExampleStream": "data",
        "Stream": "data",
        "Extension": "extensions",
        "serial": "extensions",
        "every": "extensions",
        "ProgressBar": "extensions",
        "SummaryLogger": "extensions",
        "SummaryWriter": "extensions",
        "EventWriter": "extensions",
        "CheckpointFileWriter": "extensions",
        "CheckpointFileReader": "extensions",
        "LowestCheckpointFileWriter": "extensions",
        "LowestCheckpointFileReader": "extensions",
        "HighestCheckpointFileWriter": "extensions",
        "HighestCheckpointFileReader": "extensions",
        "DivergenceCheck": "extensions",
        "EarlyStopping": "extensions",
        "Task": "tasks",
        "BoundModel": "tasks",
        "InputContext": "tasks",
        "register_task_cls": "tasks",
        "get_task": "tasks",
        "Trainer": "trainer",
        "ProgressiveTrainer": "trainer",
        "ProgressivePolicy": "trainer",
        "register_policy_cls": "trainer",
        "run_experiment": "experiments",
        "register_config_factory": "experiments",
        "get_exp_config": "experiments",
        "load_model": "serving",
        "ExperimentConfig": "experiments",
        "TaskConfig": "tasks",
        "TrainerConfig": "trainer",
        "ProgressiveTrainerConfig": "trainer",
        "ProgressiveConfig": "trainer",
        "RuntimeConfig": "runtime",
        "DataConfig": "data",
        "OptimizationConfig": "optimizers",
    },
)
