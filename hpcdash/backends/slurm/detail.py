"""Detail of one job: scontrol show job, joined with the job's row from squeue or sacct.

A job's name or comment may contain lines that look like scontrol's own, so the columns of the
schema come from the row; of this answer only the log paths are taken, and the text shown as Slurm's
own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from hpcdash.backends.base import DetailPart, ScriptReader, ScriptsPart, ScriptWriter
from hpcdash.backends.job_detail import JobDetail, Script, Usage
from hpcdash.backends.queries import (
    TEXT_BYTES,
    Answer,
    Facts,
    Native,
    ParsedTable,
    Query,
    Row,
    Variables,
    decoded,
    refused,
    unreadable,
)
from hpcdash.backends.slurm.clusters import ClusterPart, on_cluster, query_on
from hpcdash.backends.slurm.commands import slurm
from hpcdash.backends.slurm.errors import failure, require_success, unknown_job
from hpcdash.backends.slurm.history import sacct_id
from hpcdash.backends.slurm.jobs import queue_id
from hpcdash.backends.slurm.log_files import find_last_value, shown_files, submitted_file
from hpcdash.backends.slurm.policy import priority_query
from hpcdash.backends.slurm.usage import usage_query
from hpcdash.backends.slurm.values import readable_instant
from hpcdash.domain.columns import with_columns
from hpcdash.domain.job_ids import parse_task_part
from hpcdash.domain.states import ENDED
from hpcdash.errors import AccountingUnavailable, NoSuchJob, excerpt
from hpcdash.shell_files import shell_text

if TYPE_CHECKING:
    from hpcdash.backends.script.cron import CronJob
    from hpcdash.backends.shell import ShellCommand, ShellRequest
    from hpcdash.domain.scripts import ScriptBlock

T = TypeVar("T")
# A key starts a line (after its indent) or follows a space; values may hold spaces.
_KEY = re.compile(r"(?:^|(?<=\s))([A-Z][A-Za-z0-9_/:.&]*)=")
# These stand alone on their line, whatever their values hold.
_WHOLE_LINE = frozenset(
    {"Command", "SubmitLine", "WorkDir", "StdErr", "StdIn", "StdOut"}
    | {"Comment", "AdminComment", "SystemComment", "Extra", "Power"}
)
# scontrol indents its lines; one that is not, or holds no key, goes on a text with a newline in it.
_OWN_LINE = re.compile(r"\s+[A-Z][A-Za-z0-9_/:.&]*=")
# Possible start of a record after another, with all blanks before it.
_RECORD_HEAD = re.compile(r"(?<=\S)(\s+)(?<=\n)JobId=[0-9]")
# Stands before the name, so no text of a person's.
_OF_SEVERAL = re.compile(r"JobId=[0-9]+ (?:ArrayJobId|HetJobId)=")
# The keys before NumNodes include the job's name, which may hold anything.
_AFTER_THE_NAME = "\n   NumNodes="
# The key of a record's second line.
_USER = "\n   UserId="
_COMPONENT = re.compile(r"([0-9]+)\+([1-9][0-9]*)")
# Keys that the leader of a heterogeneous job has for all of its components.
_OF_LEADER = ("BatchHost", "StdErr", "StdOut")
# Texts of a person's choice, and the columns that hold them whole.
_CHOSEN = (("JobName", "name"), ("WorkDir", "work_dir"), ("Comment", "comment"))


def scontrol_id(job_id: str) -> str:
    """The id scontrol takes: for '11_[3-9%1]' its first task."""
    array_id, bracket, tasks = job_id.partition("_[")
    if not bracket:
        return job_id
    first = re.match(r"\d+", tasks)
    return f"{array_id}_{first.group()}" if first else array_id


def format_no_requeue(job_id: str) -> str:
    """Return why Slurm does not requeue a job, and how its owner can allow it."""
    return f"submitted with --no-requeue (`scontrol update JobId={job_id} Requeue=1` allows it)"


def parse_native(answer: Answer) -> Native:
    """Key → value in scontrol's order, of the first job it prints; keys that come again (a node's)
    get a number.
    """
    return _parse_record(_first_record(_records_text(answer)))


def parse_component(answer: Answer, *, offset: str) -> Native:
    """Parse the native record of a component of a heterogeneous job.

    Only the leader has a batch script, and with it the log; the paths of a component name files
    that never exist.
    """
    rest = _records_text(answer)
    records: dict[str, dict[str, str]] = {}
    while rest:
        record = _first_record(rest)
        rest = rest[len(record) :].lstrip()
        native = _parse_record(record)
        records.setdefault(native.get("HetJobOffset", ""), native)
    if offset not in records:
        raise unknown_job(answer)
    leader = records.get("0", {})
    own = {
        key: value
        for key, value in records[offset].items()
        if key.partition(" ")[0] not in _OF_LEADER
    }
    paths = {
        key: value for key in _OF_LEADER if (value := find_last_value(leader, key)) is not None
    }
    return {**own, **paths}


def _records_text(answer: Answer) -> str:
    require_success(answer)
    text = decoded(answer.stdout).strip()
    if not text:
        raise unknown_job(answer)
    if not text.startswith("JobId="):
        raise unreadable(answer, "a job's details")
    return text


def _parse_record(record: str) -> dict[str, str]:
    found: list[tuple[str, list[str]]] = []
    for number, line in enumerate(record.split("\n")):
        if number == 0 or _OWN_LINE.match(line):
            found += [(key, [value]) for key, value in _pairs(line.strip() if number else line)]
        elif found:
            found[-1][1].append(line)
    return _numbered((key, "\n".join(lines)) for key, lines in found)


def _first_record(text: str) -> str:
    """The first of the records of an array or a heterogeneous job; of another job there is one."""
    if not _OF_SEVERAL.match(text):
        return text
    last_user = text.rfind(_USER)
    for head in _RECORD_HEAD.finditer(text, max(0, text.find(_AFTER_THE_NAME))):
        # Without a user after it, it is none.
        if head.end() > last_user:
            break
        if head[1].count("\n") > 1:
            return text[: head.start() + head[1].index("\n")]
    return text


def _numbered(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    native: dict[str, str] = {}
    times: dict[str, int] = {}
    for key, value in pairs:
        times[key] = times.get(key, 0) + 1
        native[key if times[key] == 1 else f"{key} {times[key]}"] = readable_instant(key, value)
    return native


def _pairs(line: str) -> list[tuple[str, str]]:
    found = list(_KEY.finditer(line))
    if found and found[0].start() == 0 and found[0].group(1) in _WHOLE_LINE:
        return [(found[0].group(1), line[found[0].end() :])]
    pairs = []
    for index, match in enumerate(found):
        if match.group(1) == "JobName":
            # The name is the last of its line and may hold anything.
            pairs.append(("JobName", line[match.end() :]))
            break
        end = found[index + 1].start() if index + 1 < len(found) else len(line)
        pairs.append((match.group(1), line[match.end() : end].strip()))
    return pairs


def _without_forgeries(row: pa.Table, native: Native) -> dict[str, str]:
    pairs = [(key.partition(" ")[0], value) for key, value in native.items()]
    keys = [name for name, _ in pairs]
    if "SubmitLine" in keys:
        # Slurm's next line is the folder, which the row knows.
        at = keys.index("SubmitLine")
        folder = ("WorkDir", row["work_dir"][0].as_py())
        end = max((number for number, pair in enumerate(pairs) if pair == folder), default=0)
        if end > at:
            pairs[at + 1 : end] = []
    for key, column in _CHOSEN:
        text = row[column][0].as_py()
        keys = [name for name, _ in pairs]
        if text is None or key not in keys:
            continue
        _, *rest = text.split("\n")
        # A text's own lines follow its key; continuation lines are joined to the last of them.
        forged = sum(len(_pairs(line.strip())) for line in rest if _OWN_LINE.match(line))
        at = keys.index(key)
        pairs[at : at + 1 + forged] = [(key, text)]
    return _numbered(pairs)


_ANOTHERS_WORDS = ("Invalid user id", "Access/permission denied")
_NO_SCRIPT = "Job script not specified"
_HEADING = re.compile(rb"^Batch Script for (\d+)[^\n]*\n-{80}\n", re.MULTILINE)
_HISTORY_LIMIT_SECONDS = 60.0


def parse_script(answer: Answer) -> Script:
    """Parse the script; scontrol of 22.05 exits with 0 without one, and reports why on stderr."""
    if answer.status == 0 and answer.stdout:
        return Script(_text(answer.stdout), "as stored by Slurm")
    text = excerpt(answer.stderr)
    if any(phrase in text for phrase in _ANOTHERS_WORDS):
        raise refused(
            answer,
            "this is another user's job",
            "Slurm shows a script only to its owner and to operators.",
        )
    if _NO_SCRIPT in text:
        raise refused(answer, "this job has no batch script", "It was started by srun or salloc.")
    require_success(answer)
    if text:
        raise failure(answer)
    raise NoSuchJob("Slurm does not have this job's script", argv=answer.argv, status=answer.status)


def parse_history_script(answer: Answer) -> Script:
    """Parse the script after sacct's heading, without the newline that sacct adds.

    An array's script is printed once for each of its rows. sacct prints nothing for another user's
    job, and NONE where the script was not stored or did not exist.
    """
    require_success(answer)
    pieces = _HEADING.split(answer.stdout)
    # Text before the first heading, then a number and a script in turn.
    texts = pieces[2::2]
    whole = texts[0] if len(set(texts)) == 1 else None
    if whole is None and texts:
        # Lines like a heading that are a script's own.
        first = _HEADING.search(answer.stdout)
        assert first is not None
        whole = answer.stdout[first.end() :]
    if whole is None or whole.strip() in (b"", b"NONE"):
        raise AccountingUnavailable(
            "this job's script is not available in accounting",
            "Only its owner can see it, and only if AccountingStoreFlags in slurm.conf has "
            "job_script.",
            argv=answer.argv,
            status=answer.status,
        )
    return Script(_text(whole.removesuffix(b"\n")), "the copy in accounting")


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def job_variables(row: Row) -> Variables:
    """Return the variables of a job's environment that its row determines."""
    found = {
        "SLURM_SUBMIT_DIR": row["work_dir"],
        "SLURM_JOB_NAME": row["name"],
        "SLURM_ARRAY_JOB_ID": row["array_id"],
    }
    if row["array_id"] is None:
        found |= dict.fromkeys(("SLURM_JOB_ID", "SLURM_JOBID"), row["id"])
    elif (task := parse_task_part(str(row["id"]))).isdigit():
        found["SLURM_ARRAY_TASK_ID"] = task
    return found


class SlurmDetail(ClusterPart, DetailPart):
    """A job as scontrol reports it."""

    holds_requeued = True

    def native(self, job_id: str) -> Query[Native]:
        """With the nodes' details; of a heterogeneous job's component together with its leader."""
        job_id, cluster = self.clusters.split_cluster(job_id)
        component = _COMPONENT.fullmatch(job_id)
        number = component[1] if component else scontrol_id(job_id)
        parse = partial(parse_component, offset=component[2]) if component else parse_native
        argv = slurm("scontrol", "-d", "show", "job", number)
        return query_on(Query(argv, parse, cap_bytes=TEXT_BYTES), cluster)

    def join(self, job: pa.Table, native: Native) -> JobDetail:
        """Join the row with the files that scontrol reports; a pending array's keep %a.

        Texts chosen by a person are the row's: lines of theirs in `native` that look like
        scontrol's own are dropped.
        """
        row = self.clusters.plain_detail(JobDetail(job, native)).job
        native = _without_forgeries(row, native)
        paths = zip(
            ("stdout_path", "stderr_path"), shown_files(row.to_pylist()[0], native), strict=True
        )
        files = {column: pa.array([path]) for column, path in paths if path}
        return JobDetail(with_columns(job, files), native)

    def submit_line(self, native: Native) -> str:
        """The command line of sbatch: sacct has it, and scontrol of later releases."""
        return native.get("SubmitLine") or ""

    def requeue_refusal(self, native: Native) -> str:
        if native.get("Requeue") != "0":
            return ""
        job_id = native.get("ArrayJobId") or native.get("JobId", "")
        return format_no_requeue(job_id)

    def task_refusal(self, native: Native) -> str:
        if native.get("ArrayJobId") or native.get("HetJobId"):
            return "an array or a heterogeneous job cannot be a task"
        least, _, most = native.get("NumNodes", "").partition("-")
        if most not in ("", least):
            return (
                f"the job requests {least} to {most} nodes, but a task needs a fixed number "
                f"(--nodes={least})"
            )
        # Since 26.05 OverSubscribe is NO for jobs that share their nodes, too.
        has_whole_nodes = native.get("OverSubscribe") == "NO"
        if "Exclusive" in native:
            has_whole_nodes = native["Exclusive"] == "NODE"
        if not has_whole_nodes:
            return "other jobs may share the nodes: submit it with --exclusive"
        return self.requeue_refusal(native)

    def usage(self, row: Row) -> Query[Usage] | None:
        return self._on_own_cluster(row, usage_query)

    def steps(self, row: Row) -> Query[ParsedTable] | None:
        from hpcdash.backends.slurm.steps import steps_query

        return self._on_own_cluster(row, steps_query)

    def _on_own_cluster(self, row: Row, build: Callable[[Row], Query[T] | None]) -> Query[T] | None:
        """None for a living job of another cluster: sstat reports its own cluster alone."""
        plain, cluster = self.clusters.plain_row(row)
        if cluster and row["state"] not in ENDED:
            return None
        query = build(plain)
        return None if query is None else query_on(query, cluster)

    def shell(self, row: Row, request: ShellRequest) -> ShellCommand:
        from hpcdash.backends.shell import ShellCommand, in_job

        plain, cluster = self.clusters.plain_row(row)
        script = shell_text("backends/slurm/gpus_by_node.sh", "backends/slurm/shell.sh")
        argv = (
            *("sh", "-c", script, "sh"),
            queue_id(str(plain["id"])),
            request.node,
            "" if row["gpus"] == 0 else "gpus",
            "--pty" if request.has_terminal else "",
            *in_job(str(row["work_dir"] or ""), request),
        )
        return ShellCommand(on_cluster(argv, cluster))

    def priority(self, job_id: str) -> Query[Facts]:
        plain, cluster = self.clusters.split_cluster(job_id)
        return query_on(priority_query(plain), cluster)

    def variables(self, row: Row) -> Variables:
        return job_variables(self.clusters.plain_row(row)[0])


class SlurmScripts(ClusterPart, ScriptsPart):
    """Batch scripts with #SBATCH lines, and Slurm's copies of those of jobs."""

    def query(self, job_id: str) -> Query[Script]:
        """scontrol write batch_script, to stdout; of a task it is its array's."""
        plain, cluster = self.clusters.split_cluster(job_id)
        argv = slurm("scontrol", "write", "batch_script", scontrol_id(plain), "-")
        return query_on(Query(argv, parse_script), cluster)

    def history_query(self, job_id: str) -> Query[Script]:
        """sacct's copy, by the array's number: sacct finds none by a task's."""
        plain, cluster = self.clusters.split_cluster(job_id)
        argv = slurm("sacct", "-B", "-j", sacct_id(plain).partition("_")[0])
        query = Query(argv, parse_history_script, limit_seconds=_HISTORY_LIMIT_SECONDS)
        return query_on(query, cluster)

    def submitted_file(self, detail: JobDetail) -> str | None:
        return submitted_file(detail)

    # Modules that few commands need are imported by those.
    def writer(self) -> ScriptWriter:
        from hpcdash.backends.slurm import script

        return script

    def reader(self) -> ScriptReader:
        from hpcdash.backends.slurm import lint

        return lint

    def blocks(self) -> tuple[ScriptBlock, ...]:
        from hpcdash.backends.slurm.blocks import script_blocks

        return script_blocks()

    def explain(self, line: str) -> str:
        from hpcdash.backends.slurm.explain import explain

        return explain(line)

    def cron_script(self, job: CronJob) -> str:
        from hpcdash.backends.slurm.script import cron_script

        return cron_script(job, shell_text("backends/slurm/cron.sh"))
