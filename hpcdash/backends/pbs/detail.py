"""One job: what `qstat -f` says of it, and what it used of what it was given."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from hpcdash.backends.base import DetailPart
from hpcdash.backends.job_detail import JobDetail, Usage, is_one_run, node_memory
from hpcdash.backends.pbs.dialects import DialectPart
from hpcdash.backends.pbs.listing import Listing, Want, listing, read_whole
from hpcdash.backends.pbs.log_files import last_files, submit_arguments, submit_variable
from hpcdash.backends.pbs.rules import priority_query
from hpcdash.backends.pbs.values import duration_seconds, resources_under, size_bytes
from hpcdash.backends.queries import Answer, Facts, Native, Query, Row, Variables
from hpcdash.domain.columns import digits, with_columns
from hpcdash.domain.job_ids import parse_task_part
from hpcdash.domain.states import ENDED
from hpcdash.errors import NoSuchJob
from hpcdash.shell_files import shell_text

if TYPE_CHECKING:
    from hpcdash.backends.shell import ShellCommand, ShellRequest

RUNNING_NOTE = "last sampled by PBS, possibly minutes ago"
SPREAD_NOTE = "memory is the total over all nodes, divided evenly"
NOTHING_NOTE = "not measured by PBS"
_SHELL_NOTES = (
    "This is an ssh session on the job's node, outside of the job: memory and core limits do not "
    "apply, and processes you leave running continue after the job ends.",
    "All of the node's GPUs are accessible: CUDA_VISIBLE_DEVICES is set as in the job, if "
    "hpcdash could read it.",
)


def parse_usage(answer: Answer, *, question: Listing, row: Row) -> Usage:
    """Parse the use so far, or in all; raises NoSuchJob."""
    native = parse_native(answer, question=question)
    used = resources_under(native, "resources_used")
    notes = []
    if not used:
        notes.append(NOTHING_NOTE)
    elif row["state"] not in ENDED:
        notes.append(RUNNING_NOTE)
    nodes = max(1, row["nodes"] or 1)
    if nodes > 1 and "mem" in used:
        notes.append(SPREAD_NOTE)
    cpu_seconds = duration_seconds(used.get("cput", ""))
    return Usage(
        cpu_seconds=None if cpu_seconds is None else float(cpu_seconds),
        cpus=row["cpus"] or digits(used.get("ncpus")),
        elapsed_seconds=duration_seconds(used.get("walltime", ""))
        if used
        else row["elapsed_seconds"],
        memory_peak_bytes=node_memory(size_bytes(used.get("mem", "")), nodes),
        requested_memory_bytes=node_memory(row["memory_bytes"], nodes),
        gpus=row["gpus"],
        note="; ".join(notes),
    )


def parse_native(answer: Answer, *, question: Listing) -> Native:
    """Attribute → what PBS says of it, in its order; a resource is an attribute of its own."""
    native = read_whole(answer, question)
    if not native:
        raise NoSuchJob(
            "PBS no longer knows this job",
            "Finished jobs: `hpcdash history`, or key 4 in the app.",
            argv=question.command,
            status=answer.status,
        )
    return native


def job_variables(row: Row) -> Variables:
    """Return the variables of a job's environment that its row determines."""
    found = {"PBS_O_WORKDIR": row["work_dir"], "PBS_JOBNAME": row["name"]}
    if row["array_id"] is None:
        found["PBS_JOBID"] = row["id"]
    elif (task := parse_task_part(str(row["id"]))).isdigit():
        found["PBS_ARRAY_INDEX"] = task
    return found


class PbsDetail(DialectPart, DetailPart):
    """A job as qstat -f reports it."""

    def native(self, job_id: str) -> Query[Native]:
        """qstat for one job, ended or not; of a row of several tasks for their array.

        parse raises NoSuchJob.
        """
        question = listing(self.dialect, Want.WHOLE, job_ids=(job_id,))
        return question.query(partial(parse_native, question=question))

    def join(self, job: pa.Table, native: Native) -> JobDetail:
        """The row with the files its output is in once it has ended, and the folder it was
        submitted from; where both go into one file, both are that. Of tasks that wait the files
        keep ^array_index^ for the task's number.
        """
        stdout, stderr = last_files(job.to_pylist()[0], native, self.dialect)
        texts = {
            "stdout_path": stdout,
            "stderr_path": stderr,
            "work_dir": job["work_dir"][0].as_py() or submit_variable(native, "PBS_O_WORKDIR"),
        }
        known = {name: pa.array([text], pa.string()) for name, text in texts.items() if text}
        return JobDetail(with_columns(job, known), native)

    def usage(self, row: Row) -> Query[Usage] | None:
        """None for one that did not start, for several tasks, and where nothing is measured."""
        if not is_one_run(row):
            return None
        question = listing(self.dialect, Want.WHOLE, job_ids=(str(row["id"]),))
        return question.query(partial(parse_usage, question=question, row=row))

    def requeue_refusal(self, native: Native) -> str:
        return "submitted with -r n" if native.get("Rerunable") == "False" else ""

    def submit_line(self, native: Native) -> str:
        """qsub with what it was given, whose quotes PBS does not keep."""
        text = submit_arguments(native)
        return f"qsub {text}" if text else ""

    def variables(self, row: Row) -> Variables:
        return job_variables(row)

    def priority(self, job_id: str) -> Query[Facts]:
        return priority_query(self.dialect, job_id)

    def shell(self, row: Row, request: ShellRequest) -> ShellCommand | None:
        from hpcdash.backends.shell import ShellCommand, in_job

        if not request.node:
            return None
        script = shell_text("backends/adopt.sh", "backends/pbs/shell.sh")
        inside = in_job(str(row["work_dir"] or ""), request)
        argv = ("sh", "-c", script, "sh", str(row["id"]), *inside)
        return ShellCommand(argv, request.node, _SHELL_NOTES)
