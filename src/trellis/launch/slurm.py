"""A command as a job of SLURM, which starts its processes, stops them in time and starts them again."""

import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trellis.disk import check_writable, write_whole
from trellis.errors import ArgumentError, RunFailedError

_SECONDS_TO_SUBMIT = 60
_SCRIPT = """\
#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --ntasks={n_processes}
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=TERM@{lead_time}
#SBATCH --chdir={directory}
#SBATCH --output={log_dir}/slurm-%j.log
{options}
# A process that fails has all others ended.
srun --kill-on-bad-exit=1 {command}
code=$?

# 143: told to stop, and saved. It goes on when the job is started again, from the same checkpoint file.
if [ $code -eq 143 ]; then
  echo "Stopped and saved: the job waits to be started again."
  scontrol requeue "$SLURM_JOB_ID"
# 2: bad input, which is the same the next time.
elif [ $code -ne 0 ] && [ $code -ne 2 ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt {n_restarts} ]; then
  echo "Failed with code $code: the job is started again."
  scontrol requeue "$SLURM_JOB_ID"
fi
exit $code
"""


@dataclass(frozen=True)
class SlurmOptions:
    """What SLURM is to know of a job."""

    lead_time: int = 120
    """How many seconds before its time is over a job is told to stop, to save what it has."""
    n_restarts: int = 0
    """How often a job that has failed is started again; one that was stopped and has saved is always."""
    options: Sequence[str] = ()
    """Options of `sbatch`, such as `--partition=gpu`, `--time=4:00:00`, `--gpus-per-task=1`."""


def launch_on_slurm(
    arguments: Sequence[str], *, n_processes: int, log_dir: Path, options: SlurmOptions | None = None
) -> str:
    """Submits `trellis` with some arguments as a job of so many processes; returns the number of the job.

    Args:
        log_dir: Where the script of the job and its output go; all machines have to see it.
    """
    options = options or SlurmOptions()
    if n_processes < 1:
        raise ArgumentError(f"processes is {n_processes}, but there is at least one.")
    if shutil.which("sbatch") is None:
        raise ArgumentError("There is no sbatch on this machine: launch from a machine that submits jobs to SLURM.")
    log_dir = log_dir.absolute()
    check_writable(log_dir, name="logs")
    script = log_dir / "slurm.sh"
    write_whole(script, job_script(arguments, n_processes=n_processes, log_dir=log_dir, options=options).encode())
    done = subprocess.run(
        ["sbatch", "--parsable", str(script)], capture_output=True, text=True, check=False, timeout=_SECONDS_TO_SUBMIT
    )
    if done.returncode:
        raise RunFailedError(f"SLURM has not taken the job of {script}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout.strip().partition(";")[0]


def job_script(arguments: Sequence[str], *, n_processes: int, log_dir: Path, options: SlurmOptions) -> str:
    """The script of a job, which `sbatch` takes."""
    return _SCRIPT.format(
        name=f"trellis-{arguments[0]}" if arguments else "trellis",
        n_processes=n_processes,
        lead_time=options.lead_time,
        directory=Path.cwd(),
        log_dir=log_dir,
        options="\n".join(f"#SBATCH {option}" for option in options.options),
        command=shlex.join([sys.executable, "-m", "trellis", *arguments]),
        n_restarts=options.n_restarts,
    )
