"""All that a step is: batches to checkpoints."""

from typing import TYPE_CHECKING

from trellis.doors import door

if TYPE_CHECKING:
    from trellis.loops.train_loop import TrainLoop as TrainLoop
    from trellis.loops.replica_loop import BuildTask as BuildTask, ReplicaLoop as ReplicaLoop
    from trellis.loops.eval_loop import EvalLoop as EvalLoop
    from trellis.loops.step import (
        TrainTask as TrainTask,
        TrainStep as TrainStep,
        EvalTask as EvalTask,
        ValidationStep as ValidationStep,
        ForwardPass as ForwardPass,
        run_model as run_model,
        update_state as update_state,
    )
    from trellis.loops.initial_state import (
        InitialState as InitialState,
        overlaid as overlaid,
        traceable as traceable,
        is_traceable as is_traceable,
    )
    from trellis.loops.feed import Replay as Replay, build_feed as build_feed
    from trellis.loops.state import (
        Checkpoint as Checkpoint,
        CheckpointSource as CheckpointSource,
        MadeAtStart as MadeAtStart,
        check_as_before as check_as_before,
        made_parts as made_parts,
        saved_part as saved_part,
        with_made as with_made,
        Outline as Outline,
        describe_arrays as describe_arrays,
        StepOutput as StepOutput,
        Summary as Summary,
        TrainState as TrainState,
    )
    from trellis.loops.media import Histogram as Histogram, Image as Image, Media as Media, Text as Text
    from trellis.loops.fused_steps import whole_number as whole_number
    from trellis.loops.batch import batch_sides as batch_sides, batch_size as batch_size, split_batch as split_batch
    from trellis.loops.metrics import (
        Mean as Mean,
        Metric as Metric,
        MetricFunction as MetricFunction,
        as_metric as as_metric,
        is_metric_class as is_metric_class,
        weighted_mean as weighted_mean,
    )
    from trellis.loops.classification_metrics import (
        Accuracy as Accuracy,
        F1 as F1,
        MatthewsCorrelation as MatthewsCorrelation,
        MacroF1 as MacroF1,
        AUC as AUC,
        Perplexity as Perplexity,
        MeanAbsoluteError as MeanAbsoluteError,
        MeanSquaredError as MeanSquaredError,
        cross_entropy as cross_entropy,
    )
    from trellis.loops.session import (
        Attachable as Attachable,
        Event as Event,
        Session as Session,
        finish_saves as finish_saves,
    )
    from trellis.loops.time_ledger import (
        BUCKETS as BUCKETS,
        CLOCKED_METRICS as CLOCKED_METRICS,
        begin_command as begin_command,
        take_command_age as take_command_age,
        InputMeter as InputMeter,
        TimeLedger as TimeLedger,
    )
else:
    __getattr__, __dir__, __all__ = door(__name__)
