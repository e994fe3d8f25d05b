"""Any `run_fn`, run between artifacts; nothing here needs JAX or TensorFlow."""

from typing import TYPE_CHECKING

from trellis.doors import door

if TYPE_CHECKING:
    from trellis.executor.executor import Executor as Executor
    from trellis.executor.fn_args import (
        FnArgs as FnArgs,
        RUN_ARGS as RUN_ARGS,
        publishes_model as publishes_model,
        read_custom_config as read_custom_config,
    )
    from trellis.executor.artifacts import (
        Artifact as Artifact,
        Examples as Examples,
        Schema as Schema,
        TransformGraph as TransformGraph,
        Model as Model,
        ModelRun as ModelRun,
        HyperParameters as HyperParameters,
        ExampleStatistics as ExampleStatistics,
        serving_model_dir as serving_model_dir,
        split_dir as split_dir,
    )
    from trellis.executor.data_accessor import (
        DataAccessor as DataAccessor,
        RecordBatchesOptions as RecordBatchesOptions,
        TensorFlowDatasetOptions as TensorFlowDatasetOptions,
    )
    from trellis.executor.example_schema import (
        ExampleSchema as ExampleSchema,
        ExampleFeature as ExampleFeature,
        read_schema as read_schema,
        parse_schema as parse_schema,
    )
    from trellis.executor.served_model import ServedModel as ServedModel, check_served_model as check_served_model
    from trellis.executor.tuner import (
        Tuner as Tuner,
        TunerFnResult as TunerFnResult,
        TunerTrial as TunerTrial,
        run_tuner_fn as run_tuner_fn,
    )
    from trellis.executor.process import (
        LocalProcess as LocalProcess,
        RemoteWorker as RemoteWorker,
        StartWorker as StartWorker,
        WatchedWorker as WatchedWorker,
        Worker as Worker,
        WorkerOrder as WorkerOrder,
        address_of as address_of,
        cluster_variables as cluster_variables,
        end_with_starter as end_with_starter,
        hold_port as hold_port,
        local_cluster as local_cluster,
        preempted_by_sigterm as preempted_by_sigterm,
        start_process as start_process,
    )
else:
    __getattr__, __dir__, __all__ = door(__name__)
