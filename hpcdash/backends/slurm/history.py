"""Ended jobs, from sacct: one row an allocation, read into the columns of domain.schema.JOBS.

sacct has one delimiter for all fields and a newline after the last; the last and the first field
are Slurm's own, so a row ends at the one newline between them, whatever the fields in the middle
hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from hpcdash.backends.base import HistoryPart, HistoryScope
from hpcdash.backends.queries import (
    TEXT_BYTES,
    Answer,
    Native,
    ParsedTable,
    Query,
    decoded,
    noise_lines,
    unreadable,
)
from hpcdash.backends.slurm.clusters import ClusterPart, named_rows, query_on
from hpcdash.backends.slurm.commands import slurm
from hpcdash.backends.slurm.errors import failure, require_success
from hpcdash.backends.slurm.jobs import (
    accounted_exit_columns,
    array_columns,
    is_any,
    states,
    with_ids,
)
from hpcdash.backends.slurm.rows import NOTHING, Columns
from hpcdash.backends.slurm.values import (
    instants,
    integers,
    readable_instant,
    tres_columns,
    tres_cpus,
)
from hpcdash.backends.tokens import fresh_token
from hpcdash.domain import schema
from hpcdash.domain.columns import (
    as_array,
    dictionary_text,
    digits,
    null_where,
    per_distinct,
    text_column,
    where,
    with_columns,
)
from hpcdash.domain.states import ENDED, WAITING
from hpcdash.errors import NoSuchJob

FIELDS = (
    "jobid",
    "user",
    "account",
    "partition",
    "qos",
    "state",
    "reason",
    "priority",
    "nnodes",
    "ncpus",
    "alloctres",
    "reqtres",
    "elapsedraw",
    "timelimitraw",
    "submit",
    "eligible",
    "start",
    "end",
    "nodelist",
    "jobname",
    "comment",
    "workdir",
    "exitcode",
)
# With several clusters each row names its own.
FIELDS_OF_EACH = (*FIELDS[:-1], "cluster", FIELDS[-1])
# The first half of the configuration is the controller's, which hides the queue alone; then what
# the user may see.
_VISIBILITY_SCRIPT = """
sacctmgr show configuration | sed '1,/^SlurmDBD configuration/d' | grep -E '^(PrivateData|SlurmUser) '
exec sacctmgr -n -P show user "name=$1" withcoord format=adminlevel,coord
"""
_SEES_ALL = ("Operator", "Administrator")
_SECONDS_A_MINUTE = 60
# A thousand years: more is no limit but a mistake.
_MAX_MINUTES = 525_960_000
_HISTORY_LIMIT_SECONDS = 60.0


def sacct_id(job_id: str) -> str:
    """The id sacct takes for a row: it refuses '11_[3-9%1]', and knows what is left of an array by
    its number.
    """
    return job_id.partition("_[")[0]


def parse_history(
    answer: Answer,
    *,
    token: str,
    ended_only: bool = True,
    counts_gpus: bool = True,
    fields: Sequence[str] = FIELDS,
    own: str = "",
) -> ParsedTable:
    """Rows of domain.schema.JOBS, newest end first."""
    require_success(answer)
    columns = with_ids(read_columns(answer, token, fields), "jobid")
    columns = replace(
        columns, table=columns.table.filter(pc.invert(refused_submissions(columns.table)))
    )
    table = _in_schema(columns.table, counts_gpus)
    if "cluster" in columns.table.column_names:
        endings = pc.replace_substring_regex(columns.table["cluster"].combine_chunks(), "^", "@")
        endings = pc.if_else(pc.equal(endings, f"@{own}"), "", endings)
        table = with_columns(
            table,
            {
                name: pc.binary_join_element_wise(table[name].combine_chunks(), endings, "")
                for name in ("id", "array_id")
            },
        )
    if ended_only:
        table = table.filter(is_any(table["state"].combine_chunks(), frozenset(ENDED)))
    order = pc.sort_indices(table, sort_keys=[("ends_at", "descending"), ("_number", "descending")])
    return ParsedTable(table.take(order).combine_chunks(), columns.rejected)


def read_columns(answer: Answer, token: str, fields: Sequence[str] = FIELDS) -> Columns:
    """sacct's fields as text columns; the first is the id and the last the exit code, which Slurm
    alone fills.
    """
    pieces = answer.stdout.split(token.encode())
    between = len(fields) - 1
    rows, left = divmod(len(pieces) - 1, between)
    rejected: tuple[str, ...] = ()
    if len(pieces) == 1:
        if answer.stdout.strip():
            raise unreadable(answer, "ended jobs")
        rows = 0
    elif left or not pieces[-1].endswith(b"\n"):
        # Cut off: the last row is not whole.
        rejected = ("the output ended in the middle of a row",)
        if not left:
            rows -= 1
    # Between two rows: the exit code of the one, a newline, the id of the other; what stands
    # between those is noise.
    firsts = pieces[0 : rows * between + 1 : between]
    seams = [(b"", *firsts[0].rpartition(b"\n")[::2]), *map(_seam, firsts[1:])]
    rejected += tuple(line for _, noise, _ in seams if noise for line in noise_lines(noise))
    columns = {
        name: text_column(pieces[index : rows * between : between])
        for index, name in enumerate(fields[1:-1], start=1)
    }
    columns[fields[0]] = text_column([job_id for _, _, job_id in seams[:rows]])
    columns[fields[-1]] = text_column([exit_code for exit_code, _, _ in seams[1:]])
    return Columns(pa.table(columns), rejected)


def _seam(piece: bytes) -> tuple[bytes, bytes, bytes]:
    """The exit code of a row, what stands between it and the next row, and the id of that."""
    exit_code, _, rest = piece.partition(b"\n")
    noise, _, job_id = rest.rpartition(b"\n")
    return exit_code, noise, job_id


def refused_submissions(raw: pa.Table) -> pa.Array:
    """Return a mask of the records of submissions that sbatch refused.

    Slurm 22.05 gives such a submission a number, and the accounting has a job that failed with 1 on
    no node in the second of its submission.
    """
    time_columns = [as_array(raw[name]) for name in ("submit", "start", "end")]
    conditions = (
        pc.equal(as_array(raw["state"]), "FAILED"),
        pc.equal(as_array(raw["exitcode"]), "1:0"),
        pc.is_null(as_array(none_to_null(raw["nodelist"]))),
        pc.equal(as_array(raw["alloctres"]), ""),
        pc.equal(time_columns[0], time_columns[1]),
        pc.equal(time_columns[1], time_columns[2]),
    )
    return reduce(pc.and_, (pc.fill_null(one, False) for one in conditions))


def none_to_null(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Replace Slurm's text for an absent value by null."""
    return null_where(pc.is_in(column, pa.array([*NOTHING, "None assigned"])), column)


def text_or_null(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return null_where(pc.equal(column, ""), column)


def sacct_columns(raw: pa.Table, reason: pa.Array, counts_gpus: bool) -> dict[str, pa.Array]:
    """Return the columns of sacct's rows that domain.schema.JOBS and RUNS have in common."""
    ids = raw["jobid"]
    native = dictionary_text(raw["state"])
    state = states(native, reason)
    tres = pc.coalesce(none_to_null(raw["alloctres"]), none_to_null(raw["reqtres"]))
    gpus, memory_bytes = tres_columns(tres)
    # Since 23.02 a job that never had any has none, whatever it requested.
    cpus = integers(none_to_null(raw["ncpus"]))
    requested_cpus = per_distinct(tres, tres_cpus, pa.int64())
    # '11_2' or '11_[3-9%1]'
    tasks = where(
        pc.match_substring(ids, "_"),
        pc.replace_substring_regex(ids, r"^[^_]*_\[?([^\]]*)\]?$", r"\1"),
    )
    exit_code, exit_signal = accounted_exit_columns(
        none_to_null(raw["exitcode"]), is_any(state, frozenset(ENDED))
    )
    return {
        "id": ids,
        **array_columns(ids, pc.replace_substring_regex(ids, r"_.*$", ""), tasks),
        "name": raw["jobname"],
        **{name: dictionary_text(none_to_null(raw[name])) for name in ("user", "account", "qos")},
        "queue": dictionary_text(none_to_null(raw["partition"])),
        "state": state,
        "native_state": native,
        "nodes": integers(none_to_null(raw["nnodes"])),
        "cpus": pc.if_else(pc.equal(cpus, 0), requested_cpus, cpus),
        # Where GPUs are counted, TRES that name none have none.
        "gpus": pc.fill_null(gpus, 0) if counts_gpus else gpus,
        "memory_bytes": memory_bytes,
        "elapsed_seconds": integers(none_to_null(raw["elapsedraw"])),
        "limit_seconds": per_distinct(
            none_to_null(raw["timelimitraw"]), _limit_seconds, pa.int64()
        ),
        "submitted_at": instants(none_to_null(raw["submit"])),
        "eligible_at": instants(none_to_null(raw["eligible"])),
        "started_at": instants(none_to_null(raw["start"])),
        "ends_at": instants(none_to_null(raw["end"])),
        "node_list": none_to_null(raw["nodelist"]),
        "work_dir": text_or_null(raw["workdir"]),
        "exit_code": exit_code,
        "exit_signal": exit_signal,
    }


def _in_schema(raw: pa.Table, counts_gpus: bool) -> pa.Table:
    no_text = pa.nulls(raw.num_rows, pa.string())
    reason = dictionary_text(none_to_null(raw["reason"]))
    columns = sacct_columns(raw, reason, counts_gpus)
    ended = is_any(columns["state"], frozenset(ENDED))
    waiting = is_any(columns["state"], frozenset(WAITING))
    not_begun = pc.or_(waiting, pc.and_(ended, pc.is_null(columns["node_list"])))
    columns |= {
        # sacct keeps the last reason a job waited for.
        "reason": dictionary_text(where(waiting, reason.dictionary_decode())),
        "priority": integers(none_to_null(raw["priority"])),
        "started_at": null_where(not_begun, columns["started_at"]),
        "ends_at": where(ended, columns["ends_at"]),
        "comment": text_or_null(raw["comment"]),
        "_expected_start_at": pa.nulls(raw.num_rows, schema.TIME),
        **dict.fromkeys(("_other_id", "stdout_path", "stderr_path", "dependency"), no_text),
    }
    return pa.table([columns[name] for name in schema.JOBS.names], schema=schema.JOBS)


def _limit_seconds(minutes_text: str) -> int | None:
    """Return the seconds of TimelimitRaw, which counts minutes; None for no limit."""
    minutes = digits(minutes_text)
    return minutes * _SECONDS_A_MINUTE if minutes is not None and minutes < _MAX_MINUTES else None


def parse_history_native(answer: Answer, *, token: str) -> Native:
    """Parse sacct's fields by name; of the first job where the ID names an array."""
    require_success(answer)
    header, newline, rest = answer.stdout.partition(b"\n")
    names = decoded(header).split(token)
    if not newline or len(names) < len(FIELDS):
        raise unreadable(answer, "a job of the past") if answer.stdout.strip() else failure(answer)
    if not rest.strip():
        raise NoSuchJob("job not found in the history", argv=answer.argv, status=answer.status)
    pieces = rest.split(token.encode())[: len(names)]
    if len(pieces) == len(names):
        # Behind the newline the next job's first field begins.
        pieces[-1] = pieces[-1].rpartition(b"\n")[0]
    texts = (decoded(piece) for piece in pieces)
    return {
        name: readable_instant(name, text) for name, text in zip(names, texts, strict=False) if text
    }


def parse_scope(answer: Answer, *, user: str) -> HistoryScope:
    return HistoryScope(_hides_others(answer, user))


def _hides_others(answer: Answer, user: str) -> bool | None:
    """Return whether others' jobs are hidden; None where unknown, and for a coordinator.

    A coordinator sees the jobs of some accounts.
    """
    require_success(answer)
    settings: dict[str, str] = {}
    levels: list[tuple[str, str]] = []
    for line in decoded(answer.stdout).splitlines():
        name, equals, value = line.partition("=")
        if equals and name.strip() in ("PrivateData", "SlurmUser"):
            settings[name.strip()] = value.strip()
        elif line.count("|") == 1:
            level, _, coordinates = line.partition("|")
            levels.append((level.strip(), coordinates.strip()))
    if "PrivateData" not in settings:
        return None
    if "jobs" not in settings["PrivateData"].split(","):
        return False
    if user in ("root", settings.get("SlurmUser", "").partition("(")[0]):
        return False
    if any(level in _SEES_ALL for level, _ in levels):
        return False
    return None if any(coordinates for _, coordinates in levels) else True


class SlurmHistory(ClusterPart, HistoryPart):
    """Ended jobs as the accounting database keeps them."""

    is_sliced = True
    no_history = (
        "not kept here: how jobs ended is known for some minutes only (MinJobAge of the site)"
    )

    def jobs(
        self, user: str | None, since_seconds: int, job_ids: Sequence[str] = ()
    ) -> Query[ParsedTable]:
        token = fresh_token()
        plain_ids, cluster, is_several = self.clusters.select(job_ids)
        fields = FIELDS_OF_EACH if is_several else FIELDS
        if job_ids:
            selection: tuple[str, ...] = ("-j", ",".join(map(sacct_id, plain_ids)))
        else:
            # Without -u or -a sacct lists the caller's own jobs (everyone's for root).
            whose: tuple[str, ...] = ("-a",) if user is None else ("-u", user) if user else ()
            selection = (*whose, "-S", f"now-{since_seconds}seconds")
        argv = slurm(
            "sacct", "-n", "-X", "-P", f"--delimiter={token}", *selection, "-o", ",".join(fields)
        )
        own = "" if self.clusters.named else self.clusters.own
        parse = partial(
            parse_history,
            token=token,
            ended_only=not job_ids,
            counts_gpus=self.clusters.counts_gpus,
            fields=fields,
            own=own,
        )
        query = Query(argv, parse, limit_seconds=_HISTORY_LIMIT_SECONDS)
        return query_on(query, cluster) if is_several else named_rows(query, cluster)

    def native(self, job_id: str) -> Query[Native]:
        """Every field sacct has of one job, in its order."""
        job_id, cluster = self.clusters.split_cluster(job_id)
        token = fresh_token()
        argv = slurm(
            "sacct", "-X", "-P", f"--delimiter={token}", "-j", sacct_id(job_id), "-o", "ALL"
        )
        parse = partial(parse_history_native, token=token)
        return query_on(Query(argv, parse, cap_bytes=TEXT_BYTES), cluster)

    def scope(self, user: str) -> Query[HistoryScope]:
        """By PrivateData of the database's own configuration, and who the user is there."""
        argv = slurm("sh", "-c", _VISIBILITY_SCRIPT, "sh", user)
        return Query(
            argv, partial(parse_scope, user=user), command=("sacctmgr",), cap_bytes=TEXT_BYTES
        )
