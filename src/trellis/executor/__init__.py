"""Any `run_fn`, run between artifacts; nothing here needs JAX or TensorFlow."""

from typing import TYPE_CHECKING

from trellis.doors import door

if TYPE_CHECKING:
    from trellis.executor.artifacts import Artifact as Artifact
    from trellis.executor.artifacts import Examples as Examples
    from trellis.executor.artifacts import ExampleStatistics as ExampleStatistics
    from trellis.executor.artifacts import HyperParameters as HyperParameters
    from trellis.executor.artifacts import Model as Model
    from trellis.executor.artifacts import ModelRun as ModelRun
    from trellis.executor.artifacts import Schema as Schema
    from trellis.executor.artifacts import TransformGraph as TransformGraph
    from trellis.executor.artifacts import serving_model_dir as serving_model_dir
    from trellis.executor.data_accessor import DataAccessor as DataAccessor
    from trellis.executor.data_accessor import RecordBatchesOptions as RecordBatchesOptions
    from trellis.executor.data_accessor import TensorFlowDatasetOptions as TensorFlowDatasetOptions
    from trellis.executor.example_schema import ExampleFeature as ExampleFeature
    from trellis.executor.example_schema import ExampleSchema as ExampleSchema
    from trellis.executor.example_schema import parse_schema as parse_schema
    from trellis.executor.example_schema import read_schema as read_schema
    from trellis.executor.executor import Executor as Executor
    from trellis.executor.fn_args import RUN_ARGS as RUN_ARGS
    from trellis.executor.fn_args import FnArgs as FnArgs
    from trellis.executor.fn_args import read_custom_config as read_custom_config
    from trellis.executor.process import StartWorker as StartWorker
    from trellis.executor.process import Worker as Worker
    from trellis.executor.process import WorkerOrder as WorkerOrder
    from trellis.executor.process import start_process as start_process
    from trellis.executor.served_model import ServedModel as ServedModel
    from trellis.executor.served_model import check_served_model as check_served_model

__getattr__, __dir__, __all__ = door(
    __name__,
    {
        "Executor": "executor",
        "FnArgs": "fn_args",
        "Artifact": "artifacts",
        "Examples": "artifacts",
        "Schema": "artifacts",
        "TransformGraph": "artifacts",
        "Model": "artifacts",
        "ModelRun": "artifacts",
        "HyperParameters": "artifacts",
        "ExampleStatistics": "artifacts",
        "serving_model_dir": "artifacts",
        "DataAccessor": "data_accessor",
        "RecordBatchesOptions": "data_accessor",
        "TensorFlowDatasetOptions": "data_accessor",
        "ExampleSchema": "example_schema",
        "ExampleFeature": "example_schema",
        "read_schema": "example_schema",
        "parse_schema": "example_schema",
        "RUN_ARGS": "fn_args",
        "read_custom_config": "fn_args",
        "ServedModel": "served_model",
        "check_served_model": "served_model",
        "StartWorker": "process",
        "Worker": "process",
        "WorkerOrder": "process",
        "start_process": "process",
    },
)
