"""One job as PBS tells it: everything of `qstat -x -f`, and how that joins the job's row."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import pyarrow as pa

from hpcdash.backends.job_detail import JobDetail
from hpcdash.backends.pbs.dialects import Dialect
from hpcdash.backends.pbs.listing import Listing, Want, listing, read_whole
from hpcdash.backends.pbs.log_files import last_files, submit_variable
from hpcdash.backends.queries import TEXT_BYTES, Answer, Query
from hpcdash.domain.job_ids import task_of
from hpcdash.errors import NoSuchJob


def native_query(dialect: Dialect, job_id: str) -> Query[Mapping[str, str]]:
    """qstat for one job, ended or not; of a row of several tasks for their array. parse raises NoSuchJob."""
    question = listing(dialect, Want.WHOLE, job_ids=(job_id,))
    return Query(
        question.argv, partial(parse_native, question=question), command=question.command, cap_bytes=TEXT_BYTES
    )


def parse_native(answer: Answer, *, question: Listing) -> Mapping[str, str]:
    """Attribute → what PBS says of it, in its order; a resource is an attribute of its own."""
    native = read_whole(answer, question)
    if not native:
        raise NoSuchJob(
            "PBS does not know this job (any more)",
            "Finished jobs: `hpcdash history`, or key 4 in the app.",
            argv=question.command,
            status=answer.status,
        )
    return native


def job_detail(dialect: Dialect, row: pa.Table, native: Mapping[str, str]) -> JobDetail:
    """The row with the files its output is in once it has ended, and the folder it was submitted from; where both go
    into one file, both are that. Of tasks that wait the files keep ^array_index^ for the task's number."""
    out, err = last_files(row.to_pylist()[0], native, dialect)
    work_dir = row["work_dir"][0].as_py() or submit_variable(native, "PBS_O_WORKDIR") or None
    for column, text in (("stdout_path", out), ("stderr_path", err), ("work_dir", work_dir)):
        if text:
            position = row.schema.get_field_index(column)
            row = row.set_column(position, row.schema.field(position), pa.array([text], pa.string()))
    return JobDetail(row, native)


def job_variables(row: Mapping[str, Any]) -> dict[str, str | None]:
    """What of a job's environment its row tells."""
    found = {"PBS_O_WORKDIR": row["work_dir"], "PBS_JOBNAME": row["name"]}
    if row["array_id"] is None:
        found["PBS_JOBID"] = row["id"]
    elif (task := task_of(str(row["id"]))).isdigit():
        found["PBS_ARRAY_INDEX"] = task
    return found
