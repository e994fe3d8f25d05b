"""The same command in more processes; engines that exist start them."""

from typing import TYPE_CHECKING

from trellis.doors import door

if TYPE_CHECKING:
    from trellis.launch.local import launch_local as launch_local
    from trellis.launch.ray import (
        RayOptions as RayOptions,
        check_address as check_address,
        join_cluster as join_cluster,
        launch_on_ray as launch_on_ray,
    )
    from trellis.launch.ray_workers import launch_workers_on_ray as launch_workers_on_ray
    from trellis.launch.resume_trials import (
        SIGNALS as SIGNALS,
        Reference as Reference,
        ResumeTrials as ResumeTrials,
        Trial as Trial,
    )
    from trellis.launch.slurm import SlurmOptions as SlurmOptions, launch_on_slurm as launch_on_slurm
else:
    __getattr__, __dir__, __all__ = door(__name__)
