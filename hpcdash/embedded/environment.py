"""A job's environment: Slurm's variables, so that scripts written for a cluster run unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hpcdash.embedded.job import Job
from hpcdash.embedded.machine import Machine
from hpcdash.embedded.processes import APART, MARK
from hpcdash.embedded.store import StoredSubmission

QUEUE = "local"
# These describe the job that this one was submitted from.
_SCHEDULER_PREFIXES = ("SLURM_", "SBATCH_", "PBS_")
_YEAR_SECONDS = 365 * 86400
_ALWAYS_EXPORTED = ("HOME", "PATH", "USER", "LOGNAME", "SHELL", "LANG", "TMPDIR")


def mark(folder: Path, job: Job) -> str:
    """Return the `NAME=value` that only the processes of this attempt have in their environment."""
    return f"{MARK}={job.id}.{job.attempt}:{folder}"


def job_environment(
    job: Job,
    submission: StoredSubmission,
    machine: Machine,
    *,
    inherited: Mapping[str, str],
    user: str,
    uid: int,
    gid: int,
    folder: Path,
    path_first: str,
) -> dict[str, str]:
    """Return all variables of a job: the exported ones of its submission, and the scheduler's.

    `path_first` goes before its PATH; `folder` is the queue's.
    """
    request = submission.request
    variables: dict[str, str] = {}
    for name, value in inherited.items():
        is_internal = name.startswith(_SCHEDULER_PREFIXES) or name == APART
        exported = request.exported
        if not is_internal and (exported is None or name in (*exported, *_ALWAYS_EXPORTED)):
            variables[name] = value
    variables |= request.variables
    variables |= _slurm(job, submission, machine)
    variables |= {
        "SLURM_JOB_GID": str(gid),
        "SLURM_JOB_UID": str(uid),
        "SLURM_JOB_USER": user,
    }
    if request.is_pbs:
        variables |= _pbs(job, submission, machine)
    path = variables.get("PATH", "/usr/bin:/bin")
    # A job that another job submitted has it already.
    if path_first and not path.startswith(f"{path_first}:"):
        variables["PATH"] = f"{path_first}:{path}"
    variables["PWD"] = submission.work_dir
    name, _, value = mark(folder, job).partition("=")
    variables[name] = value
    if machine.gpu_ids:
        # '' hides all GPUs from a job that requested none.
        variables["CUDA_VISIBLE_DEVICES"] = job.gpu_ids
        variables["SLURM_JOB_GPUS"] = variables["SLURM_STEP_GPUS"] = job.gpu_ids
    return variables


def _slurm(job: Job, submission: StoredSubmission, machine: Machine) -> dict[str, str]:
    request = submission.request
    started = int(job.started_at or 0)
    variables = {
        "SLURM_CLUSTER_NAME": QUEUE,
        "SLURM_CPUS_ON_NODE": str(job.cpus),
        "SLURM_GTIDS": "0",
        "SLURM_JOBID": str(job.id),
        "SLURM_JOB_CPUS_PER_NODE": str(job.cpus),
        "SLURM_JOB_ID": str(job.id),
        "SLURM_JOB_NAME": submission.name,
        "SLURM_JOB_NODELIST": machine.node,
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_JOB_PARTITION": QUEUE,
        "SLURM_JOB_START_TIME": str(started),
        "SLURM_LOCALID": "0",
        "SLURM_NNODES": "1",
        "SLURM_NODEID": "0",
        "SLURM_NODELIST": machine.node,
        "SLURM_PROCID": "0",
        "SLURM_SUBMIT_DIR": submission.submit_dir,
        "SLURM_SUBMIT_HOST": machine.node,
        "SLURM_TASKS_PER_NODE": str(request.processes),
        "SLURMD_NODENAME": machine.node,
    }
    # As in Slurm, a job without a limit ends in a year.
    variables["SLURM_JOB_END_TIME"] = str(started + (job.limit_seconds or _YEAR_SECONDS))
    # As in Slurm, these are set only if they were requested.
    if request.account:
        variables["SLURM_JOB_ACCOUNT"] = request.account
    if job.restarts:
        variables["SLURM_RESTART_COUNT"] = str(job.restarts)
    if "cpus-per-task" in request.counts:
        variables["SLURM_CPUS_PER_TASK"] = str(request.counts["cpus-per-task"])
    if "ntasks-per-node" in request.counts:
        variables["SLURM_NTASKS_PER_NODE"] = str(request.counts["ntasks-per-node"])
    if "ntasks" in request.counts or "ntasks-per-node" in request.counts:
        variables["SLURM_NPROCS"] = variables["SLURM_NTASKS"] = str(request.processes)
    if request.memory_per_cpu_bytes:
        variables["SLURM_MEM_PER_CPU"] = str(request.memory_per_cpu_bytes >> 20)
    elif request.memory_bytes:
        variables["SLURM_MEM_PER_NODE"] = str(request.memory_bytes >> 20)
    if job.gpus:
        variables["SLURM_GPUS"] = variables["SLURM_GPUS_ON_NODE"] = str(job.gpus)
    if job.task is not None and request.array is not None:
        ranges = request.array.ranges
        lowest = sorted(task for tasks in ranges for task in tasks[:2])
        step = lowest[1] - lowest[0] if len(lowest) > 1 else 1
        variables |= {
            "SLURM_ARRAY_JOB_ID": str(job.number),
            "SLURM_ARRAY_TASK_ID": str(job.task),
            "SLURM_ARRAY_TASK_COUNT": str(request.array.count),
            "SLURM_ARRAY_TASK_MIN": str(lowest[0]),
            "SLURM_ARRAY_TASK_MAX": str(max(tasks[-1] for tasks in ranges)),
            "SLURM_ARRAY_TASK_STEP": str(step),
        }
    return variables


def _pbs(job: Job, submission: StoredSubmission, machine: Machine) -> dict[str, str]:
    variables = {
        "PBS_ENVIRONMENT": "PBS_BATCH",
        "PBS_JOBID": f"{job.id}.{machine.node}",
        "PBS_JOBNAME": submission.name,
        "PBS_O_HOST": machine.node,
        "PBS_O_QUEUE": QUEUE,
        "PBS_O_WORKDIR": submission.submit_dir,
        "PBS_QUEUE": QUEUE,
        "NCPUS": str(job.cpus),
    }
    if job.task is not None:
        variables |= {
            "PBS_ARRAY_ID": f"{job.number}[].{machine.node}",
            "PBS_ARRAY_INDEX": str(job.task),
            "PBS_JOBID": f"{job.number}[{job.task}].{machine.node}",
        }
    return variables
