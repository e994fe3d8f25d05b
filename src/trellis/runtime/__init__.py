"""Where a run happens: devices, random keys, the console, the session of a loop."""

from typing import TYPE_CHECKING

from trellis.doors import door

if TYPE_CHECKING:
    from trellis.runtime.configs import (
        RuntimeConfig as RuntimeConfig,
        MeshConfig as MeshConfig,
        ComputeDtype as ComputeDtype,
    )
    from trellis.runtime.session import (
        Attachable as Attachable,
        Event as Event,
        Session as Session,
        finish_saves as finish_saves,
    )
    from trellis.runtime.fused_steps import FusedSteps as FusedSteps
    from trellis.runtime.mesh import (
        Placement as Placement,
        build_placement as build_placement,
        shardings_of as shardings_of,
    )
    from trellis.runtime.precision import Precision as Precision
    from trellis.runtime.processes import (
        fetch as fetch,
        is_first_process as is_first_process,
        spans_processes as spans_processes,
        join_processes as join_processes,
        wait_for_processes as wait_for_processes,
    )
    from trellis.runtime.requirements import ONE_DEVICE as ONE_DEVICE, runtime_problems as runtime_problems
    from trellis.runtime.random import StepKeys as StepKeys
    from trellis.runtime.step_plan import StepPlan as StepPlan
    from trellis.runtime.console import (
        describe_size as describe_size,
        describe_weights as describe_weights,
        print_line as print_line,
    )
    from trellis.runtime.compilation import jit_on as jit_on
    from trellis.runtime.program_cache import keep_programs as keep_programs
    from trellis.runtime import random as random
    from trellis.runtime.by_parts import run_by_parts as run_by_parts

__getattr__, __dir__, __all__ = door(__name__)
