"""Many runs of one experiment, chosen by their results."""

from typing import TYPE_CHECKING

from trellis.doors import door

if TYPE_CHECKING:
    from trellis.tuning.search import Range as Range, SearchSpace as SearchSpace, read_search as read_search
    from trellis.tuning.journal import PRUNERS as PRUNERS
    from trellis.tuning.sweep import (
        Outcome as Outcome,
        RunTrials as RunTrials,
        Sweep as Sweep,
        SweepOptions as SweepOptions,
        Trial as Trial,
        Watch as Watch,
        run_one_by_one as run_one_by_one,
    )
    from trellis.tuning.replicas import run_as_replicas as run_as_replicas
    from trellis.tuning.results import TrialResult as TrialResult, as_json as as_json, write_results as write_results
else:
    __getattr__, __dir__, __all__ = door(__name__)
