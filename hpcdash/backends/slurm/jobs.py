"""The queue: one squeue for one's own jobs or everyone's, read into the columns of
domain.schema.JOBS.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from hpcdash.backends.base import QueuePart
from hpcdash.backends.queries import (
    Answer,
    JobScope,
    ParsedTable,
    Query,
    unreadable,
)
from hpcdash.backends.slurm.clusters import (
    ClusterPart,
    known_in_part,
    named_rows,
    query_on,
    with_clusters,
)
from hpcdash.backends.slurm.commands import slurm
from hpcdash.backends.slurm.errors import failure, require_success, unknown_job
from hpcdash.backends.slurm.nodes import nodes_query
from hpcdash.backends.slurm.queues import queues_query
from hpcdash.backends.slurm.rows import Columns, Layout, read_rows
from hpcdash.backends.slurm.states import is_held, job_state, only_waits
from hpcdash.backends.slurm.values import (
    durations,
    instants,
    integers,
    requested_gpus,
    tres_columns,
    wait_status,
)
from hpcdash.backends.tokens import fresh_token
from hpcdash.domain import schema
from hpcdash.domain.array_tasks import parse_tasks
from hpcdash.domain.columns import (
    dictionary_text,
    digits,
    null_where,
    pairs_per_distinct,
    per_distinct,
    where,
    with_columns,
)
from hpcdash.domain.job_ids import covers, parse_job_id, with_cluster
from hpcdash.domain.states import ENDED, WAITING, JobState
from hpcdash.errors import UsageError

# A shell adds this to the number of the signal that ended its command; the numbers are those of
# ABRT, KILL, SEGV, TERM.
_SHELL_SIGNAL = 128
_CUT_EXIT_CODES = pa.array([6, 9, 11, 15], pa.int64())
_OVERSUBSCRIBE = "oversubscribe"
_EXCLUSIVE = "exclusive"
LAYOUT = Layout(
    plain=(
        "jobarrayid",
        "arrayjobid",
        "arraytaskid",
        "username",
        "account",
        "partition",
        "qos",
        "state",
        "prioritylong",
        "numnodes",
        "numcpus",
        "tres-alloc",
        "tres-per-job",
        "tres-per-node",
        "tres-per-task",
        "tres-per-socket",
        "sct",
        "numtasks",
        _OVERSUBSCRIBE,
        "timeused",
        "timelimit",
        "submittime",
        "eligibletime",
        "starttime",
        "endtime",
        "nodelist",
        "exit_code",
        "dependency",
    ),
    hostile=("reason", "name", "comment", "workdir"),
)
_NO_REASON = pa.array(["None", "(null)", ""])
# Slurm writes NO_VAL-2 for the task of an array's record that holds many; it is no task number.
_MANY_TASKS = "4294967294"
# Everything that is an id begins with a number: 11, 11_2, 11_[3-9%1], 65+1.
ID_PATTERN = r"^[0-9]{1,12}(?:$|[^0-9])"
# Job IDs that a person may request: 11, 11_2, 65+1.
_JOB_ID = re.compile(r"[0-9]+(?:_[0-9]+)?(?:\+[0-9]+)?")


def _parse_each(
    answer: Answer, *, parse: Callable[[Answer], ParsedTable], own: str, requested: frozenset[str]
) -> ParsedTable:
    """Parse rows of several clusters; of those with a name only the `requested` IDs (none: all)."""
    parsed = parse(known_in_part(answer))
    if not requested:
        return parsed
    selected = [parse_job_id(job_id) for job_id in requested]
    rows = [
        any(covers(one, parse_job_id(row_id)) for one in selected)
        for row_id in parsed.table["id"].to_pylist()
    ]
    table = parsed.table.filter(pa.array(rows, pa.bool_()))
    if own:
        ending = rf"@{re.escape(own)}$"
        ids = {
            name: pc.replace_substring_regex(table[name], ending, "") for name in ("id", "array_id")
        }
        table = with_columns(table, ids)
    return replace(parsed, table=table.combine_chunks())


def jobs_on_cluster(
    scope: JobScope, *, counts_gpus: bool = True, layout: Layout = LAYOUT
) -> Query[ParsedTable]:
    """Return the squeue query of a scope, hidden partitions included.

    The server filters where Slurm can (one user, one job). The rest of an array ('11_[3-9%1]') is
    requested as the whole array. `counts_gpus`: the site's TRES count GPUs.
    """
    token = fresh_token()
    selection: tuple[str, ...] = ()
    by_id = bool(scope.job_ids) and not (scope.ended and scope.user is not None)
    if by_id:
        selection = ("-t", "all", "-j", ",".join(dict.fromkeys(map(queue_id, scope.job_ids))))
    else:
        if scope.user is not None:
            selection = ("-u", scope.user) if scope.user else ("--me",)
        if scope.ended:
            selection = (*selection, "-t", "all")
        narrowed = (("-p", scope.queue), ("-q", scope.qos), ("-R", scope.reservation))
        selection = (
            *selection,
            *(word for option, name in narrowed if name for word in (option, name)),
        )
    argv = slurm("squeue", "-a", "-h", *selection, "-O", layout.option(token))
    parse = partial(parse_jobs, token=token, one_job=by_id, counts_gpus=counts_gpus, layout=layout)
    return Query(argv, parse, limit_seconds=60.0)


def queue_id(job_id: str) -> str:
    """Return the ID that squeue takes for a row.

    squeue reads '6_[1-2,4-6]' as jobs 6 and 4, and shows those of another user. Raises UsageError
    for a text that is no ID: squeue takes '6;x' for job 6.
    """
    requested = job_id.partition("_[")[0]
    if not _JOB_ID.fullmatch(requested):
        raise UsageError(
            f"{job_id!r} is not a Slurm job ID", "Use 123, or 123_4 for an array task."
        )
    return requested


def parse_jobs(
    answer: Answer,
    *,
    token: str,
    one_job: bool = False,
    counts_gpus: bool = True,
    layout: Layout = LAYOUT,
) -> ParsedTable:
    """Rows of domain.schema.JOBS; raises what the answer's failure stands for."""
    require_success(answer)
    columns = read_rows(answer.stdout, token, layout)
    if columns is None:
        raise unreadable(answer, "jobs")
    columns = without_revoked(with_ids(columns, "jobarrayid"))
    if one_job and not columns.table.num_rows and not columns.rejected:
        raise unknown_job(answer)
    if answer.status != 0 and not columns.table.num_rows:
        raise failure(answer)
    rejected = columns.rejected
    raw = dict(zip(columns.table.column_names, columns.table.columns, strict=True))
    # From here on each text column lives until it is read: for 100 000 jobs all of them together
    # are 30 MB.
    del columns
    cluster_column = raw.pop("cluster", None)
    parsed = ParsedTable(_in_schema(raw, counts_gpus), rejected)
    return (
        parsed if cluster_column is None else with_clusters(parsed, cluster_column.combine_chunks())
    )


def without_revoked(columns: Columns) -> Columns:
    """The rows but for a federation's siblings of jobs that run on another cluster: `squeue -a`
    lists them.
    """
    is_revoked = pc.equal(columns.table["state"], "REVOKED")
    if not pc.any(is_revoked, min_count=0).as_py():
        return columns
    return Columns(
        columns.table.filter(pc.invert(pc.fill_null(is_revoked, False))), columns.rejected
    )


def with_ids(columns: Columns, name: str) -> Columns:
    """The rows whose id begins with a number; the others are rejected."""
    ids = columns.table[name]
    good = pc.fill_null(pc.match_substring_regex(ids, ID_PATTERN), False)
    if pc.all(good, min_count=0).as_py():
        return columns
    refused = [f"not a job ID: {text!r}" for text in ids.filter(pc.invert(good)).to_pylist()]
    return Columns(columns.table.filter(good), (*columns.rejected, *refused))


def is_any(column: pa.Array, texts: frozenset[str]) -> pa.Array:
    """Return a mask of the rows of a dictionary column with one of `texts`; null counts as no."""
    return _where(column, texts.__contains__)


def _where(column: pa.DictionaryArray, holds: Callable[[str], bool]) -> pa.Array:
    hits = [
        index
        for index, text in enumerate(column.dictionary.to_pylist())
        if text is not None and holds(text)
    ]
    return pc.fill_null(pc.is_in(column.indices, pa.array(hits, column.indices.type)), False)


def _text_or_null(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return null_where(pc.is_in(column, pa.array(["(null)", ""])), column)


def _reasons(column: pa.ChunkedArray) -> pa.Array:
    return dictionary_text(null_where(pc.is_in(column, _NO_REASON), column))


def states(native: pa.Array, reason: pa.Array) -> pa.Array:
    """Return our states as a dictionary column, from two of Slurm's: states and reasons."""
    names = [str(state) for state in JobState]
    name_codes = {name: index for index, name in enumerate(names)}
    by_native = pa.array(
        [name_codes[job_state(text or "")] for text in native.dictionary.to_pylist()]
        or [name_codes["unknown"]],
        pa.int32(),
    )
    codes = by_native.take(pc.fill_null(native.indices, 0))
    held = pc.and_(pc.equal(codes, name_codes[JobState.PENDING]), _where(reason, is_held))
    codes = pc.if_else(held, pa.scalar(name_codes[JobState.HELD], pa.int32()), codes)
    codes = pc.if_else(
        pc.is_null(native.indices), pa.scalar(name_codes[JobState.UNKNOWN], pa.int32()), codes
    )
    return pa.DictionaryArray.from_arrays(codes, pa.array(names))


def _held_tasks(text: str) -> tuple[int | None, int]:
    """(first task, how many) of '3-10%1' or '1,5-7'; what is no list of tasks stands for one
    job.
    """
    try:
        tasks = parse_tasks(text)
    except ValueError:
        return None, 1
    return tasks.first, max(1, tasks.count)


def exit_columns(texts: pa.ChunkedArray, ended: pa.Array) -> tuple[pa.Array, pa.Array]:
    """(exit codes, signals) of the jobs that ended; null for the others."""
    codes, signals = pairs_per_distinct(texts, lambda text: wait_status(text) or (None, None))
    return where(ended, codes), where(ended, signals)


def accounted_exit_columns(texts: pa.ChunkedArray, ended: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return exit codes and signals from accounting, which stores seven bits of an exit code.

    143, the exit code of a shell whose command a signal ended, is 15 there. 6, 9, 11 and 15 are
    read as such codes: hardly any program exits with them by itself, and the controller's record of
    the job has 134, 137, 139 or 143.
    """
    codes, signals = exit_columns(texts, ended)
    is_cut = pc.and_(pc.is_in(codes, value_set=_CUT_EXIT_CODES), pc.equal(signals, 0))
    return pc.if_else(is_cut, pc.add(codes, _SHELL_SIGNAL), codes), signals


def array_columns(
    ids: pa.ChunkedArray, array_ids: pa.ChunkedArray, tasks: pa.ChunkedArray
) -> dict[str, pa.Array]:
    """Return the columns of a row's array: array_id, array_task, _number, _task, _tasks."""
    tasks = null_where(pc.equal(tasks, _MANY_TASKS), tasks)
    is_array = pc.is_valid(tasks)
    first, count = pairs_per_distinct(tasks, _held_tasks)
    return {
        "array_id": where(is_array, array_ids),
        "array_task": tasks,
        "_number": integers(pc.replace_substring_regex(ids, r"(?s)[^0-9].*$", "")),
        "_task": first,
        "_tasks": pc.fill_null(count, 1),
    }


def _job_gpus(
    raw: dict[str, pa.ChunkedArray], reported: pa.Array, counts_gpus: bool, active: pa.Array
) -> pa.Array:
    """Return the GPUs of each job: those of its TRES, else the requested ones, else 0.

    Null where only a whole node was requested, and its GPUs, which the job has, are not in its
    TRES.
    """
    nodes = integers(raw["numnodes"])
    tasks = integers(raw.pop("numtasks"))
    sockets = per_distinct(raw.pop("sct"), lambda text: digits(text.partition(":")[0]), pa.int64())
    job, node, task, socket = (
        per_distinct(raw.pop(f"tres-per-{unit}"), requested_gpus, pa.int64())
        for unit in ("job", "node", "task", "socket")
    )
    requested = pc.coalesce(
        job,
        pc.multiply(node, nodes),
        pc.multiply(task, tasks),
        pc.multiply(pc.multiply(socket, sockets), nodes),
    )
    whole_node = (_EXCLUSIVE, "NODE") if _EXCLUSIVE in raw else (_OVERSUBSCRIBE, "NO")
    is_whole_node = pc.fill_null(pc.equal(raw.pop(whole_node[0]), whole_node[1]), False)
    is_unknown = (
        pc.is_valid(socket)
        if counts_gpus
        else pc.or_(pc.is_valid(socket), pc.and_(is_whole_node, active))
    )
    return pc.coalesce(reported, requested, null_where(is_unknown, pa.scalar(0, pa.int64())))


def _in_schema(raw: dict[str, pa.ChunkedArray], counts_gpus: bool) -> pa.Table:
    """The columns of the contract; takes each text column out of `raw`."""
    ids = raw.pop("jobarrayid")
    nodes_at = raw.pop("nodelist")
    native = dictionary_text(raw.pop("state"))
    reason = _reasons(raw.pop("reason"))
    state = states(native, reason)
    ended = is_any(state, frozenset(ENDED))
    waiting = is_any(state, frozenset(WAITING))
    not_begun = pc.or_(waiting, pc.and_(ended, pc.is_null(nodes_at.combine_chunks())))
    stale = pc.and_(ended, _where(reason, only_waits))
    starts = instants(raw.pop("starttime"))
    exit_code, exit_signal = exit_columns(raw.pop("exit_code"), ended)
    gpus, memory_bytes = tres_columns(raw.pop("tres-alloc"))
    gpus = _job_gpus(raw, gpus, counts_gpus, pc.invert(waiting))
    nothing = pa.nulls(len(ids), pa.string())
    columns = {
        "id": ids,
        **array_columns(ids, raw.pop("arrayjobid"), raw.pop("arraytaskid")),
        "name": raw.pop("name"),
        "user": dictionary_text(raw.pop("username")),
        "account": dictionary_text(raw.pop("account")),
        "queue": dictionary_text(raw.pop("partition")),
        "qos": dictionary_text(raw.pop("qos")),
        "state": state,
        "native_state": native,
        "reason": dictionary_text(null_where(stale, reason.dictionary_decode())),
        "priority": integers(raw.pop("prioritylong")),
        "nodes": integers(raw.pop("numnodes")),
        "cpus": integers(raw.pop("numcpus")),
        "gpus": gpus,
        "memory_bytes": memory_bytes,
        "elapsed_seconds": durations(raw.pop("timeused")),
        "limit_seconds": durations(raw.pop("timelimit")),
        "submitted_at": instants(raw.pop("submittime")),
        "eligible_at": instants(raw.pop("eligibletime")),
        # Slurm gives a job that was cancelled before it began the time of its end as a start, and
        # no nodes.
        "started_at": null_where(not_begun, starts),
        "_expected_start_at": where(waiting, starts),
        "_other_id": nothing,
        "ends_at": null_where(waiting, instants(raw.pop("endtime"))),
        "node_list": nodes_at,
        "work_dir": _text_or_null(raw.pop("workdir")),
        "stdout_path": nothing,
        "stderr_path": nothing,
        "dependency": raw.pop("dependency"),
        "comment": _text_or_null(raw.pop("comment")),
        "exit_code": exit_code,
        "exit_signal": exit_signal,
    }
    return pa.table(columns, schema=schema.JOBS).combine_chunks()


class SlurmQueue(ClusterPart, QueuePart):
    """The queue as squeue and sinfo print it."""

    lists_ended = True

    def jobs(self, scope: JobScope) -> Query[ParsedTable]:
        """Return the query of `jobs_on_cluster` for the selected cluster, or for each of several.

        Raises UsageError for IDs of several clusters where the own cluster's name is unknown.
        """
        clusters = self.clusters
        plain_ids, cluster, is_several = clusters.select(scope.job_ids)
        layout = LAYOUT
        if clusters.has_exclusive:
            plain = (_EXCLUSIVE if name == _OVERSUBSCRIBE else name for name in LAYOUT.plain)
            layout = replace(LAYOUT, plain=tuple(plain))
        query = jobs_on_cluster(
            replace(scope, job_ids=plain_ids),
            counts_gpus=clusters.counts_gpus,
            layout=layout.with_cluster if is_several else layout,
        )
        if not is_several:
            return named_rows(query, cluster)
        named = map(clusters.split_cluster, scope.job_ids)
        parse = partial(
            _parse_each,
            parse=query.parse,
            own="" if clusters.named else clusters.own,
            requested=frozenset(with_cluster(plain, name or clusters.own) for plain, name in named),
        )
        return replace(query_on(query, cluster), parse=parse)

    def nodes(self) -> Query[ParsedTable]:
        return nodes_query(self.clusters)

    def queues(self) -> Query[ParsedTable]:
        return queues_query(self.clusters)
