"""Ended jobs, from sacct: one row an allocation, read into the columns of domain.schema.JOBS.

sacct has one delimiter for all fields and a newline after the last; the last and the first field
are Slurm's own, so a row ends at the one newline between them, whatever the fields in the middle
hold.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from functools import partial, reduce
from io import BytesIO

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
from hpcdash.backends.slurm.rows import NOTHING, Columns, read_csv
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
# In a thread, what holds the interpreter holds it for some milliseconds at this size.
_CHUNK_BYTES = 1 << 22
_PIECE_BYTES = 1 << 15
# Bytes that end a line or a field of ours, and the letters of their stand-ins.
_BREAKING = {b"\n": b"n", b"\r": b"r", b"\x1e": b"e"}
# Fields with text that people write.
_WRITTEN = frozenset({"jobname", "comment", "admincomment", "workdir"})
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


def user_options(user: str | None) -> tuple[str, ...]:
    """Return sacct's options for a user as in JobScope; without any it lists the caller's own jobs
    (everyone's for root).
    """
    if user is None:
        return ("-a",)
    return ("-u", user) if user else ()


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
    rows = SacctRows(token, fields)
    table = rows.read(answer)
    columns = with_ids(Columns(table, tuple(rows.rejected)), "jobid")
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


class SacctRows:
    """Reads sacct's rows as text columns.

    A row that a person's text breaks into lines ends where it has all its delimiters.
    """

    def __init__(self, token: str, fields: Sequence[str]) -> None:
        self.rejected: list[str] = []
        self._fields = fields
        self._delimiter = token.encode()
        # In front of the letter for a byte that would break a line; made after sacct has printed,
        # it is in no text.
        self._stand_in = secrets.token_hex(16).encode()
        self._has_stand_ins = False
        schema = pa.schema([(name, pa.string()) for name in fields])
        self._tables = [schema.empty_table()]

    def read(self, answer: Answer) -> pa.Table:
        """Read an answer in pieces of whole lines; a row that goes on after one is read with the
        next. Raises UnreadableOutput for what is none of sacct's.
        """
        raw = answer.stdout
        if self._delimiter not in raw:
            if raw.strip():
                raise unreadable(answer, "ended jobs")
            return self._tables[0]
        position = 0
        rest = b""
        while position < len(raw):
            end = raw.find(b"\n", position + _CHUNK_BYTES) + 1 or len(raw)
            chunk = rest + raw[position:end]
            rest = b""
            delimiters = chunk.count(self._delimiter)
            lines = chunk.count(b"\n")
            is_clean = (
                delimiters == lines * (len(self._fields) - 1)
                and b"\r" not in chunk
                and chunk.endswith(b"\n")
            )
            if not (is_clean and self._read_rows(chunk, lines)):
                rows, rest = self._cleaned(chunk, delimiters)
                lines = rows.count(b"\n")
                if not self._read_rows(rows, lines):
                    self.rejected.append(f"{lines} rows that are not sacct output")
            position = end
        if self._delimiter in rest:
            self.rejected.append("the output ended in the middle of a row")
        else:
            self.rejected += noise_lines(rest)
        return pa.concat_tables(self._tables).combine_chunks()

    def _cleaned(self, chunk: bytes, delimiters: int) -> tuple[bytes, bytes]:
        """The rows of a chunk as a line each, without the bytes that would break one; and what is
        left after them.
        """
        between = len(self._fields) - 1
        start = self._delimiter[:1]
        # Mostly it is newlines alone that break some lines; then each of these bytes begins a
        # delimiter.
        is_odd = b"\r" in chunk or chunk.count(start) != delimiters
        rows: list[bytes] = []
        row = b""
        found = 0
        for piece in _line_pieces(chunk):
            if not row and not is_odd and piece.count(start) == piece.count(b"\n") * between:
                rows.append(piece)
                continue
            # A carriage return ends no line.
            for line in BytesIO(piece):
                row += line
                found += line.count(self._delimiter)
                if found < between or not line.endswith(b"\n"):
                    continue
                is_line = row.count(b"\n") == 1 and found == row.count(start) == between
                rows.append(row if is_line and b"\r" not in row else self._as_line(row))
                row = b""
                found = 0
        return b"".join(rows), row

    def _as_line(self, row: bytes) -> bytes:
        """A row with stand-ins for what would break its line."""
        fields = row[:-1].split(self._delimiter, len(self._fields) - 1)
        # Output of a wrapper or a warning before a row ends with a newline; an ID has none.
        before, _, fields[0] = fields[0].rpartition(b"\n")
        self.rejected += noise_lines(before, self._delimiter)
        for byte, letter in _BREAKING.items():
            fields = [field.replace(byte, self._stand_in + letter) for field in fields]
        self._has_stand_ins = True
        return self._delimiter.join(fields) + b"\n"

    def _read_rows(self, chunk: bytes, lines: int) -> bool:
        """Reads rows that are a line each with all their fields; False, and none is read, where any
        is not.

        The first of them begins a row. Its delimiters cannot be forged and its last field holds no
        newline, so where its line has all of them the row ends with the line, and the next line
        begins a row.
        """
        if not chunk:
            return True
        if not chunk.isascii():
            chunk = decoded(chunk).encode()
        # Split at the first byte of the delimiter: each field begins with the rest of it, which
        # costs less to cut off of those that are needed than to replace everywhere. Where a line
        # has more of that byte it has more fields.
        table, is_whole = read_csv(chunk, self._fields, self._delimiter[:1].decode())
        if not is_whole or table.num_rows != lines:
            return False
        self.add(table)
        return True

    def add(self, table: pa.Table) -> None:
        """Add rows as they were split."""
        first, *others = self._fields
        columns = {name: self.restored(name, table[name]) for name in others}
        self._tables.append(pa.table({first: table[first], **columns}))

    def restored(self, name: str, column: pa.ChunkedArray) -> pa.Array:
        """A field without the rest of the delimiter before it, and with the bytes that stand-ins
        stand for.
        """
        # pyarrow 26's binary_slice fails for some lengths.
        texts = pc.utf8_slice_codeunits(as_array(column), len(self._delimiter) - 1)
        stand_in = self._stand_in.decode()
        if not self._has_stand_ins or name not in _WRITTEN:
            return texts
        if pc.any(pc.match_substring(texts, stand_in), min_count=0).as_py():
            for byte, letter in _BREAKING.items():
                texts = pc.replace_substring(texts, stand_in + letter.decode(), byte.decode())
        return texts


def _line_pieces(chunk: bytes) -> Iterator[bytes]:
    """Yield whole lines in pieces so small that most contain no unusual line."""
    position = 0
    while position < len(chunk):
        end = chunk.find(b"\n", position + _PIECE_BYTES) + 1 or len(chunk)
        yield chunk[position:end]
        position = end


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
    return pa.table(columns, schema=schema.JOBS)


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
        raise unreadable(answer, "a past job") if answer.stdout.strip() else failure(answer)
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
    no_history = "no history here: ended jobs stay visible for a few minutes only (MinJobAge)"

    def jobs(
        self, user: str | None, since_seconds: int, job_ids: Sequence[str] = ()
    ) -> Query[ParsedTable]:
        token = fresh_token()
        plain_ids, cluster, is_several = self.clusters.select(job_ids)
        fields = FIELDS_OF_EACH if is_several else FIELDS
        if job_ids:
            selection: tuple[str, ...] = ("-j", ",".join(map(sacct_id, plain_ids)))
        else:
            selection = (*user_options(user), "-S", f"now-{since_seconds}seconds")
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
