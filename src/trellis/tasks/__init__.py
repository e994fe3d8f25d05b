"""What is learned."""

from typing import TYPE_CHECKING

from trellis.doors import door

if TYPE_CHECKING:
    from trellis.tasks.task import Task as Task, register_task_cls as register_task_cls, get_task as get_task
    from trellis.tasks.configs import (
        TaskConfig as TaskConfig,
        InputContext as InputContext,
        DifferentialPrivacyConfig as DifferentialPrivacyConfig,
        BASE as BASE,
        DigitsConfig as DigitsConfig,
        LoraConfig as LoraConfig,
        with_addresses as with_addresses,
    )
    from trellis.tasks.batch_view import BatchView as BatchView
    from trellis.tasks.bound_model import (
        BoundModel as BoundModel,
        lasting_init as lasting_init,
        InferenceStep as InferenceStep,
        Model as Model,
        ModelWithItems as ModelWithItems,
        WrappedModel as WrappedModel,
    )
    from trellis.tasks.built_metrics import (
        BuiltMetric as BuiltMetric,
        BuiltMetrics as BuiltMetrics,
        all_metrics as all_metrics,
        name_metrics as name_metrics,
        renewed as renewed,
        results as results,
    )
    from trellis.tasks.adapters import (
        Lora as Lora,
        PeftTask as PeftTask,
        build_adapters as build_adapters,
        parameters_by_path as parameters_by_path,
        with_parameters as with_parameters,
    )
    from trellis.tasks.samples import write_samples as write_samples
    from trellis.tasks.shapes import (
        options_for as options_for,
        place_of as place_of,
        refused as refused,
        shape_problems as shape_problems,
        uncalled_methods as uncalled_methods,
    )
    from trellis.tasks.export import (
        PARAMS as PARAMS,
        export_adapters as export_adapters,
        export_task as export_task,
        made_by as made_by,
        refresh_task as refresh_task,
        export_weights as export_weights,
        task_in_memory as task_in_memory,
    )
    from trellis.tasks.warm_start import (
        read_warm_start as read_warm_start,
        tell_warm_start as tell_warm_start,
        check_parts as check_parts,
    )
    from trellis.loops import traceable as traceable
else:
    __getattr__, __dir__, __all__ = door(__name__)
