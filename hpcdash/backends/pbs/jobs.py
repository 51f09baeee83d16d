"""The queue: one qstat for everyone's jobs, narrowed on the login node, read into the columns of
domain.schema.JOBS.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from hpcdash.backends.base import QueuePart
from hpcdash.backends.pbs.arrays import (
    COUNTS,
    REMAINING,
    SUBMITTED,
    THROTTLE,
    spread,
    with_subjob_ends,
)
from hpcdash.backends.pbs.dialects import Dialect, DialectPart
from hpcdash.backends.pbs.listing import (
    KEPT,
    MARK_VARIABLE,
    USED,
    WORK_DIR_VARIABLE,
    Listing,
    Want,
    is_requested,
    listing,
    read_listing,
)
from hpcdash.backends.pbs.log_files import submit_variable, variable_value
from hpcdash.backends.pbs.nodes import down_hosts_query, nodes_query
from hpcdash.backends.pbs.queues import RESERVED_QUEUE, pause_query, queues_query
from hpcdash.backends.pbs.reasons import (
    DEPENDENCY_NOT_MET,
    QUEUE_NOT_STARTED,
    RESERVATION_NOT_BEGUN,
    exit_reason,
    find_reason,
)
from hpcdash.backends.pbs.records import Form
from hpcdash.backends.pbs.states import exit_pair, job_state
from hpcdash.backends.pbs.values import durations, exec_hosts, instants, integers, size_bytes, sizes
from hpcdash.backends.queries import Answer, JobScope, ParsedTable, Query
from hpcdash.backends.submissions import MARK_START
from hpcdash.domain import schema
from hpcdash.domain.columns import (
    MOST,
    as_array,
    dictionary_text,
    has_state,
    null_where,
    pairs_per_distinct,
    per_distinct,
    row_numbers,
    utc_instants,
    where,
    with_columns,
)
from hpcdash.domain.runs import split_runs
from hpcdash.domain.states import ENDED, WAITING, JobState
from hpcdash.errors import NoSuchJob

# What Torque says besides, or in place of these; and where nothing was left out on the login node.
_MORE = (
    "exit_status",
    "start_time",
    "comp_time",
    "init_work_dir",
    "job_array_request",
    "Resource_List.procs",
    *("Variable_List", WORK_DIR_VARIABLE, MARK_VARIABLE),
)
# What `frame` reads.
WANTED = (*KEPT, *_MORE, *USED)
# A job that runs names its nodes here: of 20 000 comments all would be different.
_WHERE_IT_RUNS = r"(?s)^(Job run) at .*? on \(.*\)"
# JOB_SUBSTATE_PRERUN of job.h.
_SENT_TO_NODE = "41"
_WAITING = pa.array(sorted(WAITING))
_NOT_WAITED_FOR = re.compile(r"(?:^|,)before[a-z]*:[^,]*")
_AT_SERVER = re.compile(r"@[^:,]*")


class _Raw:
    """The text columns of a list, those of a dialect's own names as PBS calls them."""

    def __init__(self, table: pa.Table, dialect: Dialect) -> None:
        self._table = table
        self.is_torque = dialect is Dialect.TORQUE

    def __getitem__(self, name: str) -> pa.Array:
        return as_array(self._table[name])

    def first_present(self, *names: str) -> pa.Array:
        return pc.coalesce(*(self[name] for name in names))

    @property
    def nothing(self) -> pa.Array:
        return pa.nulls(self._table.num_rows, pa.string())

    @property
    def exit_status(self) -> pa.Array:
        return self.first_present("Exit_status", "exit_status")

    @property
    def started(self) -> pa.Array:
        return self.first_present("stime", "start_time")

    @property
    def has_started(self) -> pa.Array:
        return pc.or_(pc.is_valid(self.started), pc.is_valid(self["exec_host"]))

    def variable(self, name: str) -> pa.Array:
        """A variable of Variable_List, which the login node may have made a field of its own."""
        alone = per_distinct(self[name], variable_value, pa.string())
        listed = self["Variable_List"]
        if listed.null_count == len(listed):
            return as_array(alone)
        found = per_distinct(
            listed, lambda text: submit_variable({"Variable_List": text}, name) or None, pa.string()
        )
        return pc.coalesce(as_array(alone), as_array(found))


def job_frame(table: pa.Table, dialect: Dialect, clock_epoch_seconds: int) -> pa.Table:
    """A row a record: the columns of domain.schema.JOBS as far as they do not hang on what an
    array's rows become, and the texts those are made of.
    """
    table, is_copy = with_subjob_ends(table)
    raw = _Raw(table, dialect)
    limit = as_array(durations(raw["Resource_List.walltime"]))
    used = durations(raw["resources_used.walltime"])
    state = _states(raw, used, limit)
    has_ended = pc.is_in(state, value_set=pa.array(sorted(ENDED)))
    node_list, hosts = exec_hosts(raw["exec_host"])
    exit_code, exit_signal = pairs_per_distinct(where(has_ended, raw.exit_status), _exit_pair)
    requested = _requested(raw)
    columns = {
        **_array_columns(raw["id"]),
        "name": raw["Job_Name"],
        "user": pc.replace_substring_regex(raw["Job_Owner"], "(?s)@.*$", ""),
        "account": raw["Account_Name"],
        "queue": raw["queue"],
        "state": state,
        "native_state": raw["job_state"],
        "priority": integers(raw["Priority"]),
        "nodes": pc.coalesce(hosts, integers(raw["Resource_List.nodect"]), requested["nodes"]),
        "cpus": _cpus(raw, requested["cpus"]),
        "gpus": pc.coalesce(integers(raw["Resource_List.ngpus"]), requested["gpus"]),
        "memory_bytes": pc.coalesce(sizes(raw["Resource_List.mem"]), requested["memory_bytes"]),
        "limit_seconds": limit,
        **_time_columns(raw, state, is_copy, used, limit, clock_epoch_seconds),
        "node_list": null_where(pc.is_in(state, value_set=_WAITING), node_list),
        "work_dir": pc.coalesce(raw.variable(WORK_DIR_VARIABLE), raw["init_work_dir"]),
        "dependency": per_distinct(raw["depend"], _waited_for, pa.string()),
        "comment": per_distinct(raw.variable(MARK_VARIABLE), _mark, pa.string()),
        "exit_code": exit_code,
        "exit_signal": exit_signal,
        **dict.fromkeys(("qos", "reason", "stdout_path", "stderr_path", "_other_id"), raw.nothing),
        "_comment": raw["comment"],
        "_substate": raw["substate"],
        "_holds": raw["Hold_Types"],
        "_exit_status": raw.exit_status,
        "_never_began": pc.and_(pc.invert(raw.has_started), pc.is_valid(raw["depend"])),
        **{name: raw[name] for name in USED},
        COUNTS: raw["array_state_count"],
        SUBMITTED: raw.first_present("array_indices_submitted", "job_array_request"),
        REMAINING: raw["array_indices_remaining"],
        THROTTLE: raw["max_run_subjobs"],
    }
    return pa.table({name: as_array(column) for name, column in columns.items()})


def _time_columns(
    raw: _Raw, state: pa.Array, is_copy: pa.Array, used: pa.Array, limit: pa.Array, clock: int
) -> dict[str, pa.Array]:
    """The columns of instants, and the seconds since the start."""
    is_waiting = pc.is_in(state, value_set=_WAITING)
    has_ended = pc.is_in(state, value_set=pa.array(sorted(ENDED)))
    runs = pc.equal(state, str(JobState.RUNNING))
    # While its node has yet to confirm it, a job that was sent there is R with no start of its own.
    is_sent = pc.and_(pc.equal(raw["substate"], _SENT_TO_NODE), pc.is_valid(raw["exec_host"]))
    sent = where(is_sent, raw["mtime"])
    started = null_where(pc.or_(is_waiting, is_copy), instants(pc.coalesce(raw.started, sent)))
    begun = started.cast(pa.int64())
    # A job that was put back keeps the obituary of its last run, but no start.
    obituary = where(pc.is_valid(raw.started), raw["obittime"])
    ends = (obituary, raw["comp_time"], raw["history_timestamp"], raw["mtime"])
    # A limit that nobody can live to see has no end.
    expected_end = as_array(utc_instants(pc.add(begun, limit)))
    since = pc.coalesce(pc.subtract(pa.scalar(clock), begun), used)
    elapsed = null_where(is_waiting, pc.if_else(runs, since, used))
    is_set = pc.fill_null(pc.equal(raw["job_state"], "W"), False)
    return {
        # The login node's clock may be behind that of the server.
        "elapsed_seconds": pc.max_element_wise(elapsed, pa.scalar(0, pa.int64()), skip_nulls=False),
        # qtime is anew whenever a job comes into a queue.
        "submitted_at": instants(raw["ctime"]),
        "eligible_at": pc.if_else(is_set, instants(raw["Execution_Time"]), instants(raw["etime"])),
        "started_at": started,
        "ends_at": pc.if_else(
            runs, expected_end, where(has_ended, pc.coalesce(*map(instants, ends)))
        ),
        "_expected_start_at": where(is_waiting, instants(raw["estimated.start_time"])),
    }


def _states(raw: _Raw, used: pa.Array, limit: pa.Array) -> pa.Array:
    """Our states as text: one look at each combination of what they are made of."""
    is_all = pc.fill_null(pc.greater_equal(used, limit), False)
    keys = pc.binary_join_element_wise(
        raw["job_state"],
        raw["substate"],
        raw.exit_status,
        raw["Hold_Types"],
        raw.has_started.cast(pa.string()),
        is_all.cast(pa.string()),
        "\x1f",
        null_handling="replace",
        null_replacement="",
    )

    def read(key: str) -> str:
        letter, substate, exit_status, hold_types, has_started, used_all = key.split("\x1f")[:6]
        state = job_state(
            letter,
            substate=_integer(substate),
            exit_status=_integer(exit_status),
            has_started=has_started == "true",
            hold_types=hold_types,
            is_torque=raw.is_torque,
            used_all_its_time=raw.is_torque and used_all == "true",
        )
        return str(state)

    return as_array(per_distinct(keys, read, pa.string()))


def _integer(text: str) -> int | None:
    return int(text) if re.fullmatch("-?[0-9]{1,9}", text) else None


def _exit_pair(text: str) -> tuple[int | None, int | None]:
    status = _integer(text)
    return (None, None) if status is None else exit_pair(status)


def _requested(raw: _Raw) -> dict[str, pa.Array]:
    encoded = dictionary_text(raw.first_present("Resource_List.select", "Resource_List.nodes"))
    read = [
        None if text is None else read_resource_request(text)
        for text in encoded.dictionary.to_pylist()
    ]
    return {
        name: pa.array(
            [None if one is None else getattr(one, name) for one in read], pa.int64()
        ).take(encoded.indices)
        for name in ("nodes", "cpus", "gpus", "memory_bytes")
    }


def _cpus(raw: _Raw, in_chunks: pa.Array) -> pa.Array:
    listed, processors = (integers(raw[f"Resource_List.{name}"]) for name in ("ncpus", "procs"))
    if not raw.is_torque:
        return pc.coalesce(listed, in_chunks, processors)
    # Torque leaves the queue's default ncpus, and its default nodes, beside a request of others.
    has_processors = pc.match_substring(raw["Resource_List.nodes"], ":ppn=")
    in_nodes = where(pc.fill_null(has_processors, False), in_chunks)
    return pc.coalesce(in_nodes, processors, listed, in_chunks)


def _array_columns(ids: pa.Array) -> dict[str, pa.Array]:
    """The columns that say what of an array a record is."""
    is_array = pc.match_substring(ids, "[")
    inner = pc.replace_substring_regex(ids, r"(?s)^[0-9]*\[([^\]]*)\].*$", r"\1")
    tasks = where(pc.and_(is_array, pc.not_equal(inner, "")), inner)
    return {
        "id": ids,
        "array_id": where(is_array, pc.replace_substring_regex(ids, r"\[[^\]]*\]", "[]")),
        "array_task": tasks,
        "_number": integers(pc.replace_substring_regex(ids, r"(?s)[^0-9].*$", "")),
        "_task": integers(tasks),
        "_tasks": pa.repeat(pa.scalar(1, pa.int64()), len(ids)),
    }


def _waited_for(depend: str) -> str | None:
    """Return a dependency without the jobs that wait for this one, and without servers."""
    return _AT_SERVER.sub("", _NOT_WAITED_FOR.sub("", depend)).lstrip(",") or None


def _mark(text: str) -> str | None:
    return text if text.startswith(MARK_START) else None


def _reasons(rows: pa.Table, dialect: Dialect) -> pa.Array:
    comments = pc.replace_substring_regex(as_array(rows["_comment"]), _WHERE_IT_RUNS, r"\1")
    is_stopped = pc.match_substring(comments, QUEUE_NOT_STARTED)
    is_reserved = pc.match_substring_regex(as_array(rows["queue"]), f"^{RESERVED_QUEUE.pattern}$")
    waits_for_it = pc.fill_null(pc.and_(is_stopped, is_reserved), False)
    comments = pc.if_else(waits_for_it, RESERVATION_NOT_BEGUN, comments)
    names = ("state", "_substate", "_holds", "_exit_status", "_never_began")
    texts = (as_array(rows[name]).cast(pa.string()) for name in names)
    keys = pc.binary_join_element_wise(
        *texts, comments, "\x1f", null_handling="replace", null_replacement=""
    )

    def read(key: str) -> str | None:
        state, substate, holds, exit_status, never_began, comment = key.split("\x1f", 5)
        reason = find_reason(state, comment or None, substate=substate or None, holds=holds or None)
        if reason or state not in ENDED:
            return reason
        if state == JobState.CANCELLED and never_began == "true" and substate == "92":
            return DEPENDENCY_NOT_MET
        status = _integer(exit_status)
        return None if status is None else exit_reason(status, is_torque=dialect is Dialect.TORQUE)

    return as_array(per_distinct(keys, read, pa.string()))


def in_schema(rows: pa.Table, dialect: Dialect) -> pa.Table:
    """The table of the contract, from a frame whose arrays have their rows."""
    rows = with_columns(rows, {"reason": _reasons(rows, dialect)})
    columns = []
    for field in schema.JOBS:
        column = as_array(rows[field.name])
        columns.append(dictionary_text(column) if pa.types.is_dictionary(field.type) else column)
    return pa.table(columns, schema=schema.JOBS)


# How long ago a job may have ended that a scope with `ended` is to show.
RECENT_SECONDS = 3600
_GOOD_ID = r"^[0-9]{1,12}(\[[0-9,:-]*\])?(\.[A-Za-z0-9._:-]*)?$"


def parse_jobs(answer: Answer, *, question: Listing) -> ParsedTable:
    """Rows of domain.schema.JOBS; raises what the answer's failure stands for, NoSuchJob where none
    was found by id.
    """
    parsed, clock_epoch_seconds = read_jobs(answer, question)
    table = parsed.table
    if question.want is Want.NOW:
        table = table.filter(pc.invert(is_ended(table)))
    elif question.want is Want.RECENT:
        # One that moved to another server is neither in this queue nor has it ended.
        has_moved = pc.equal(as_array(table["native_state"]).cast(pa.string()), "M")
        is_old = pc.and_(is_ended(table), ended_before(table, clock_epoch_seconds - RECENT_SECONDS))
        table = table.filter(pc.invert(pc.or_(pc.fill_null(has_moved, False), is_old)))
    if question.job_ids and not table.num_rows and not parsed.rejected:
        raise NoSuchJob(
            "PBS no longer knows this job",
            "Finished jobs: `hpcdash history`, or key 4 in the app.",
            argv=question.command,
            status=answer.status,
        )
    return ParsedTable(table, parsed.rejected)


def is_ended(table: pa.Table) -> pa.Array:
    """Return a mask of the rows of domain.schema.JOBS with an ended job."""
    return pc.is_in(
        as_array(table["state"]).cast(pa.string()), value_set=pa.array(sorted(ENDED), pa.string())
    )


def ended_before(table: pa.Table, epoch_seconds: int) -> pa.Array:
    """Return a mask of the rows with an end before an instant; an unknown end is not."""
    return pc.fill_null(pc.less(as_array(table["ends_at"]).cast(pa.int64()), epoch_seconds), False)


def read_jobs(answer: Answer, question: Listing) -> tuple[ParsedTable, int]:
    """All jobs of an answer that were asked for, living or not; and the login node's clock, in
    epoch seconds.
    """
    frame, rejected, clock_epoch_seconds = _ordered_frame(answer, question)
    table = in_schema(frame, question.dialect)
    if question.job_ids:
        requested = [is_requested(question, row_id) for row_id in table["id"].to_pylist()]
        table = table.filter(pa.array(requested, pa.bool_()))
    return ParsedTable(table, rejected), clock_epoch_seconds


def read_runs(answer: Answer, question: Listing) -> ParsedTable:
    """The last run of each job of an answer, living or not, in the columns of
    domain.schema.RUNS.
    """
    frame, rejected, _ = _ordered_frame(answer, question)
    cput, memory, count = USED
    cpu_seconds = as_array(durations(frame[cput])).cast(pa.float64())
    peak_bytes = as_array(sizes(frame[memory]))
    is_known = pc.or_(pc.is_valid(cpu_seconds), pc.is_valid(peak_bytes))
    known = pa.scalar(str(schema.UsageSource.ACCOUNTING))
    runs = split_runs(in_schema(frame, question.dialect))
    begun, ended = (as_array(runs[name]).cast(pa.int64()) for name in ("started_at", "ends_at"))
    # PBS's walltime leaves out what a job was suspended; of a lost node it is the last that was
    # heard.
    suspended = pc.max_element_wise(
        pc.subtract(pc.subtract(ended, begun), as_array(runs["elapsed_seconds"])),
        pa.scalar(0, pa.int64()),
        skip_nulls=False,
    )
    is_lost = has_state(runs, {JobState.NODE_FAILED})
    columns = {
        "suspended_seconds": null_where(is_lost, suspended),
        "cpu_seconds_used": cpu_seconds,
        "memory_peak_bytes": peak_bytes,
        "usage_source": dictionary_text(where(is_known, known)),
        "run": pc.fill_null(as_array(integers(frame[count])), 1),
    }
    return ParsedTable(with_columns(runs, columns), rejected)


def _ordered_frame(answer: Answer, question: Listing) -> tuple[pa.Table, tuple[str, ...], int]:
    """(a row a record that is shown, those of arrays in their order; what was rejected; the
    clock).
    """
    records, clock, owner = read_listing(answer, question, WANTED)
    raw = records.table
    rejected = records.rejected
    del records
    ids = as_array(raw["id"])
    good = pc.fill_null(pc.match_substring_regex(ids, _GOOD_ID), False)
    if not pc.all(good, min_count=0).as_py():
        bad = ids.filter(pc.invert(good)).to_pylist()
        rejected += tuple(f"not a job ID: {text!r}" for text in bad)
        raw = raw.filter(good)
    raw, places = _one_a_job(raw)
    if owner and question.form is not Form.DSV:
        is_own = pc.fill_null(pc.starts_with(as_array(raw["Job_Owner"]), f"{owner}@"), False)
        raw = raw.filter(is_own)
        places = places.filter(is_own)
    frame = job_frame(raw, question.dialect, clock)
    # All texts end here: of a long list they are most of the memory.
    del raw, ids
    is_apart = pc.invert(_waits_with_its_array(frame))
    frame, places = spread(frame.filter(is_apart), places.filter(is_apart))
    keys = pa.table({"place": places, "task": frame["_task"]})
    order = pc.sort_indices(keys, sort_keys=[("place", "ascending"), ("task", "ascending")])
    return frame.take(order), rejected, clock


def _one_a_job(raw: pa.Table) -> tuple[pa.Table, pa.Array]:
    """Each id's last record, and the place of its first: an array's parent comes once more with its
    subjobs.
    """
    codes = as_array(raw["id"]).dictionary_encode()
    numbers = row_numbers(raw.num_rows)
    if len(codes.dictionary) == raw.num_rows:
        return raw, numbers
    grouped = pa.table({"id": codes.indices, "at": numbers}).group_by("id", use_threads=False)
    found = grouped.aggregate([("at", "min"), ("at", "max")]).combine_chunks()
    return raw.take(as_array(found["at_max"])), as_array(found["at_min"])


def _waits_with_its_array(frame: pa.Table) -> pa.Array:
    """Return a mask of the subjobs that the row of their array's waiting tasks contains."""
    ids = as_array(frame["id"])
    is_shown = pc.is_in(
        as_array(frame["array_id"]), value_set=ids.filter(pc.match_substring(ids, "[]"))
    )
    waits = pc.and_(
        pc.equal(as_array(frame["native_state"]), "Q"), pc.is_valid(as_array(frame["_task"]))
    )
    return pc.fill_null(pc.and_(is_shown, waits), False)


_CPUS = frozenset({"ncpus", "ppn"})
# naccelerators: of Crays.
_GPUS = frozenset({"ngpus", "gpus", "ngpu", "gpu", "naccelerators"})
# More digits than any count of nodes or processors has.
_MAX_DIGITS = 9


class ResourceRequest(Struct, frozen=True):
    """Sums over all chunks. No memory named: None; a chunk that names no CPUs has one."""

    nodes: int
    cpus: int
    gpus: int
    memory_bytes: int | None


def read_resource_request(text: str) -> ResourceRequest | None:
    """Reads `2:ncpus=4:mem=1gb+1:ncpus=1`, `2:ppn=4:gpus=1`, `g01:ppn=4+g02`; None for what is no
    request.
    """
    nodes = cpus = gpus = 0
    memory: int | None = None
    for chunk in text.split("+"):
        parts = chunk.strip().split(":")
        if not parts[0]:
            return None
        amounts = [word.partition("=") for word in parts]
        count = _count(parts[0])
        count = 1 if count is None else count
        chunk_cpus = _first_count(amounts, _CPUS)
        chunk_memory = next(
            (size_bytes(value) for name, _, value in amounts if name == "mem"), None
        )
        nodes += count
        cpus += count * (1 if chunk_cpus is None else chunk_cpus)
        gpus += count * (_first_count(amounts, _GPUS) or 0)
        if chunk_memory is not None:
            memory = (memory or 0) + count * chunk_memory
    if max(nodes, cpus, gpus, memory or 0) > MOST:
        return None
    return ResourceRequest(nodes, cpus, gpus, memory)


def _first_count(amounts: Sequence[tuple[str, str, str]], names: frozenset[str]) -> int | None:
    return next((_count(value) for name, _, value in amounts if name in names), None)


def _count(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS else None


class PbsQueue(DialectPart, QueuePart):
    """The queue as qstat and pbsnodes print it."""

    def __init__(self, dialect: Dialect) -> None:
        super().__init__(dialect)
        # Torque keeps ended jobs for some minutes (keep_completed), PBS only as history.
        self.finds_ended = dialect is Dialect.TORQUE

    def jobs(self, scope: JobScope) -> Query[ParsedTable]:
        """qstat for a scope, after qselect where it is one person's: who has no jobs does not cost
        the server a list.
        """
        want = Want.RECENT if scope.ended else Want.NOW
        if scope.job_ids:
            want = Want.NAMED
        since_seconds = RECENT_SECONDS if want is Want.RECENT else 0
        question = listing(
            self.dialect, want, scope.user, since_seconds, scope.job_ids, for_hours=scope.each_task
        )
        return question.rows_query(partial(parse_jobs, question=question))

    def nodes(self) -> Query[ParsedTable]:
        return nodes_query(self.dialect)

    def queues(self) -> Query[ParsedTable]:
        return queues_query(self.dialect)

    def down_hosts(self, hosts: Sequence[str]) -> Query[frozenset[str]] | None:
        return down_hosts_query(self.dialect, hosts)

    def pause_reason(self) -> Query[str] | None:
        return pause_query(self.dialect)
