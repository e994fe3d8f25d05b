"""The machine: devices, processes, precision, compiled programs, random keys, the console."""

from typing import TYPE_CHECKING

from trellis.doors import door

if TYPE_CHECKING:
    from trellis.runtime.configs import (
        RuntimeConfig as RuntimeConfig,
        MeshConfig as MeshConfig,
        ONE_DEVICE as ONE_DEVICE,
        runtime_problems as runtime_problems,
    )
    from trellis.runtime.mesh import (
        Placement as Placement,
        current_placement as current_placement,
        shardings_of as shardings_of,
    )
    from trellis.runtime.lookups import (
        look_up as look_up,
        pick as pick,
        sum_rows as sum_rows,
        take_places as take_places,
    )
    from trellis.runtime.precision import Precision as Precision
    from trellis.runtime.cluster import (
        NEEDS_NO_SERVER as NEEDS_NO_SERVER,
        TF_CONFIG as TF_CONFIG,
        cluster_role as cluster_role,
        count_gpus as count_gpus,
        is_parameter_server as is_parameter_server,
        worker_seconds as worker_seconds,
    )
    from trellis.runtime.agreement import (
        agreed as agreed,
        capitalized as capitalized,
        forget as forget,
        gathered as gathered,
        hear as hear,
        is_any_stopping as is_any_stopping,
        is_first_process as is_first_process,
        note_progress as note_progress,
        process_name as process_name,
        tell as tell,
        wait_for_processes as wait_for_processes,
    )
    from trellis.runtime.watchdog import failing_together as failing_together, watching_processes as watching_processes
    from trellis.runtime.processes import (
        end_without_jax as end_without_jax,
        fetch as fetch,
        spans_processes as spans_processes,
        join_processes as join_processes,
        join_seconds as join_seconds,
        sum_over_processes as sum_over_processes,
    )
    from trellis.runtime.chips import Peak as Peak, chip_names as chip_names, chip_peak as chip_peak
    from trellis.runtime.random import StepKeys as StepKeys, checked_key as checked_key
    from trellis.runtime.console import (
        answering_in_json as answering_in_json,
        count_weights as count_weights,
        describe_duration as describe_duration,
        describe_metric as describe_metric,
        describe_number as describe_number,
        describe_rate as describe_rate,
        describe_size as describe_size,
        describe_weights as describe_weights,
        ending_with_reader as ending_with_reader,
        flush_output as flush_output,
        lead_nowhere as lead_nowhere,
        line_width as line_width,
        open_missing_streams as open_missing_streams,
        print_coloured as print_coloured,
        print_error as print_error,
        print_json as print_json,
        print_line as print_line,
        table as table,
    )
    from trellis.runtime.bar import (
        DRAW_INTERVAL as DRAW_INTERVAL,
        Bar as Bar,
        NotebookBar as NotebookBar,
        Tally as Tally,
        new_bar as new_bar,
    )
    from trellis.runtime.collectives import count_sent_bytes as count_sent_bytes
    from trellis.runtime.compilation import (
        describe_exactness as describe_exactness,
        jit_on as jit_on,
        run_by_parts as run_by_parts,
    )
    from trellis.runtime.program_cache import keep_programs as keep_programs
    from trellis.runtime import random as random
else:
    __getattr__, __dir__, __all__ = door(__name__)
