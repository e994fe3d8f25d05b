"""Where a run happens: devices, random keys, the console, the session of a loop."""

from typing import TYPE_CHECKING

from trellis.doors import door

if TYPE_CHECKING:
    from trellis.runtime import random as random
    from trellis.runtime.by_parts import run_by_parts as run_by_parts
    from trellis.runtime.compilation import jit_on as jit_on
    from trellis.runtime.configs import ComputeDtype as ComputeDtype
    from trellis.runtime.configs import MeshConfig as MeshConfig
    from trellis.runtime.configs import RuntimeConfig as RuntimeConfig
    from trellis.runtime.console import describe_size as describe_size
    from trellis.runtime.console import describe_weights as describe_weights
    from trellis.runtime.console import print_line as print_line
    from trellis.runtime.fused_steps import FusedSteps as FusedSteps
    from trellis.runtime.mesh import Placement as Placement
    from trellis.runtime.mesh import build_placement as build_placement
    from trellis.runtime.mesh import shardings_of as shardings_of
    from trellis.runtime.precision import Precision as Precision
    from trellis.runtime.processes import fetch as fetch
    from trellis.runtime.processes import is_first_process as is_first_process
    from trellis.runtime.processes import join_processes as join_processes
    from trellis.runtime.processes import spans_processes as spans_processes
    from trellis.runtime.processes import wait_for_processes as wait_for_processes
    from trellis.runtime.program_cache import keep_programs as keep_programs
    from trellis.runtime.random import StepKeys as StepKeys
    from trellis.runtime.requirements import ONE_DEVICE as ONE_DEVICE
    from trellis.runtime.requirements import runtime_problems as runtime_problems
    from trellis.runtime.session import Attachable as Attachable
    from trellis.runtime.session import Event as Event
    from trellis.runtime.session import Session as Session
    from trellis.runtime.session import finish_saves as finish_saves
    from trellis.runtime.step_plan import StepPlan as StepPlan

__getattr__, __dir__, __all__ = door(
    __name__,
    {
        "RuntimeConfig": "configs",
        "MeshConfig": "configs",
        "ComputeDtype": "configs",
        "Attachable": "session",
        "Event": "session",
        "FusedSteps": "fused_steps",
        "Placement": "mesh",
        "build_placement": "mesh",
        "shardings_of": "mesh",
        "Precision": "precision",
        "fetch": "processes",
        "is_first_process": "processes",
        "spans_processes": "processes",
        "join_processes": "processes",
        "wait_for_processes": "processes",
        "ONE_DEVICE": "requirements",
        "runtime_problems": "requirements",
        "Session": "session",
        "StepKeys": "random",
        "StepPlan": "step_plan",
        "describe_size": "console",
        "describe_weights": "console",
        "finish_saves": "session",
        "jit_on": "compilation",
        "keep_programs": "program_cache",
        "print_line": "console",
        "random": "random",
        "run_by_parts": "by_parts",
    },
)
