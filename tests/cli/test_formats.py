"""What one-shot commands print: JSON and CSV for machines, tables and sentences for people."""

from __future__ import annotations

import csv
import io
import json
import re
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcdash.backends.actions import Outcome
from hpcdash.cli.actions import format_end, format_jobs
from hpcdash.cli.tables import write_csv, write_json, write_table
from hpcdash.domain.schema import arrow_schema
from hpcdash.domain.tables import TABLES
from hpcdash.domain.text import cell_width
from hpcdash.errors import UsageError
from hpcdash.services.state.journal import JournalEntry
from tests.support.records import for_each

NOW = 1_763_700_000
JOBS: list[dict[str, Any]] = [
    {
        "id": "1207_[3-9]",
        "array_id": "1207",
        "array_task": "3-9",
        "name": "train é",
        "user": "ada",
        "account": "phys",
        "queue": "gpu",
        "qos": "normal",
        "state": "pending",
        "native_state": "PENDING",
        "reason": "Resources",
        "priority": 4294901730,
        "nodes": 1,
        "cpus": 8,
        "gpus": 2,
        "memory_bytes": 17179869184,
        "limit_seconds": 86400,
        "submitted_at": NOW - 7200,
        "eligible_at": NOW - 7200,
        "_number": 1207,
        "_task": 3,
        "_tasks": 7,
    },
    {
        "id": "1206",
        "name": 'evil\x1b[2J\n"a",=1+1',
        "user": "bob",
        "queue": "debug",
        "state": "out_of_memory",
        "native_state": "OUT_OF_MEMORY",
        "reason": "OutOfMemory",
        "elapsed_seconds": 3723,
        "node_list": "n[01-02]",
        "started_at": NOW - 4000,
        "ends_at": NOW + 90,
        "exit_code": 0,
        "exit_signal": 9,
    },
]
NODES: list[dict[str, Any]] = [
    {
        "name": "n01",
        "state": "draining",
        "native_state": "MIXED+DRAIN",
        "flags": ["maint", "reboot"],
        "reason": "disk\tfull",
        "reason_since": NOW - 259200,
        "queues": ["gpu", "debug"],
        "cpus": 64,
        "cpus_used": 12,
        "memory_bytes": 549755813888,
        "memory_used_bytes": 0,
        "load": 11.987,
        "features": [],
    },
    {"name": "n02", "state": "idle", "load": float("nan")},
]
QUEUES: list[dict[str, Any]] = [
    {
        "name": "gpu",
        "available": True,
        "default": False,
        "limit_seconds": None,
        "nodes": 3,
        "jobs_pending": 83000,
    },
]


def build_table(kind: str, rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=arrow_schema(TABLES[kind]))


def json_of(
    kind: str, table: pa.Table, cluster: str = "juno", rejected_rows: int = 0
) -> dict[str, Any]:
    out = io.BytesIO()
    write_json(
        TABLES[kind],
        table,
        out,
        cluster=cluster,
        backend="slurm",
        taken_at=NOW + 0.9,
        rejected_rows=rejected_rows,
    )
    assert out.getvalue().endswith(b"}\n")
    read: dict[str, Any] = json.loads(out.getvalue().decode("utf-8"))
    return read


def csv_of(kind: str, table: pa.Table) -> str:
    out = io.BytesIO()
    write_csv(TABLES[kind].public_names, table, out)
    return out.getvalue().decode("utf-8")


def lines_of(kind: str, rows: list[dict[str, Any]], **how: Any) -> list[str]:
    out = io.BytesIO()
    write_table(TABLES[kind], build_table(kind, rows), out, utc_now=NOW, **how)
    text = out.getvalue().decode("utf-8")
    assert text.endswith("\n")
    return text[:-1].split("\n")


# JSON.


def test_json_is_one_object_with_the_contract_in_its_order() -> None:
    read = json_of("jobs", build_table("jobs", JOBS), rejected_rows=3)
    assert list(read) == ["schema", "cluster", "backend", "taken_at", "rejected_rows", "jobs"]
    assert [read[key] for key in list(read)[:5]] == [1, "juno", "slurm", "2025-11-21T04:40:00Z", 3]
    contract = (
        "id array_id array_task name user account queue qos state native_state reason priority "
        "nodes cpus gpus "
        "memory_bytes elapsed_seconds limit_seconds submitted_at eligible_at started_at ends_at "
        "node_list work_dir "
        "stdout_path stderr_path dependency comment exit_code exit_signal"
    )
    assert [list(job) for job in read["jobs"]] == [contract.split()] * 2


def test_json_is_as_it_was_to_the_byte() -> None:
    out = io.BytesIO()
    table = build_table("queues", QUEUES)
    write_json(TABLES["queues"], table, out, cluster="juno", backend="pbs", taken_at=None)
    assert out.getvalue() == (
        b'{"schema":1,"cluster":"juno","backend":"pbs","taken_at":null,"rejected_rows":0,"queues":[{"name":"gpu",'
        b'"available":true,"default":false,"limit_seconds":null,"nodes":3,"nodes_idle":null,"nodes_down":null,'
        b'"cpus":null,"cpus_used":null,"gpus":null,"gpus_used":null,"jobs_running":null,"jobs_pending":83000}]}\n'
    )


def test_json_holds_names_as_they_are_and_what_is_unknown_as_null() -> None:
    pending, ended = json_of("jobs", build_table("jobs", JOBS))["jobs"]
    assert (ended["name"], ended["exit_code"], ended["exit_signal"]) == (
        'evil\x1b[2J\n"a",=1+1',
        0,
        9,
    )
    assert (ended["gpus"], ended["submitted_at"], ended["array_id"]) == (None, None, None)
    assert (pending["priority"], pending["submitted_at"]) == (4294901730, "2025-11-21T02:40:00Z")
    first, second = json_of("nodes", build_table("nodes", NODES))["nodes"]
    assert (first["flags"], first["features"], second["flags"], second["load"]) == (
        ["maint", "reboot"],
        [],
        None,
        None,
    )


@for_each("kind", TABLES)
def test_no_rows_are_an_empty_array_a_lone_header_and_a_lone_heading(kind: str) -> None:
    table = build_table(kind, [])
    assert json_of(kind, table)["jobs" if kind == "history" else kind] == []
    assert csv_of(kind, table) == ",".join(TABLES[kind].public_names) + "\r\n"
    assert len(lines_of(kind, [])) == 1


def test_an_argument_that_is_not_utf8_is_replaced() -> None:
    assert json_of("jobs", build_table("jobs", []), cluster="j\udcff")["cluster"] == "j\ufffd"


@for_each("rows", [8191, 8192, 8193, 20000])
def test_long_tables_are_whole_across_parts_and_chunks(rows: int) -> None:
    table = build_table(
        "jobs", [{"id": str(number), "user": f"u{number % 3}"} for number in range(rows)]
    )
    table = pa.concat_tables([table.slice(0, 5000), table.slice(5000)])
    assert [job["id"] for job in json_of("jobs", table)["jobs"]] == [
        str(number) for number in range(rows)
    ]
    assert len(list(csv.DictReader(io.StringIO(csv_of("jobs", table), newline="")))) == rows
    out = io.BytesIO()
    write_table(TABLES["jobs"], table, out, utc_now=NOW)
    assert out.getvalue().count(b"\n") == rows + 1


# CSV.


def test_csv_quotes_what_it_must_and_alters_nothing() -> None:
    assert csv_of("nodes", build_table("nodes", NODES)) == (
        "name,state,native_state,flags,reason,reason_by,reason_since,queues,cpus,cpus_used,gpus,gpus_used,gpu_type,"
        "memory_bytes,memory_used_bytes,load,features,jobs\r\n"
        'n01,draining,MIXED+DRAIN,"maint,reboot",disk\tfull,,2025-11-18T04:40:00Z,"gpu,debug",64,12,,,,'
        "549755813888,0,11.987,,\r\n"
        "n02,idle,,,,,,,,,,,,,,,,\r\n"
    )
    assert (
        csv_of("queues", build_table("queues", QUEUES)).splitlines()[1]
        == "gpu,true,false,,3,,,,,,,,83000"
    )
    assert '"evil\x1b[2J\n""a"",=1+1"' in csv_of("jobs", build_table("jobs", JOBS))


ANY_TEXT = st.text(
    alphabet=st.characters(exclude_categories=["Cs"]) | st.sampled_from('\r\n",\x00\x1b'),
    max_size=8,
)


@given(st.lists(st.tuples(ANY_TEXT, st.none() | ANY_TEXT), min_size=1, max_size=4))
def test_any_text_comes_back_from_json_and_csv_as_it_was(
    pairs: list[tuple[str, str | None]],
) -> None:
    table = build_table("jobs", [{"id": one, "user": other} for one, other in pairs])
    assert [(job["id"], job["user"]) for job in json_of("jobs", table)["jobs"]] == pairs
    read = list(csv.DictReader(io.StringIO(csv_of("jobs", table), newline="")))
    assert [(row["id"], row["user"]) for row in read] == [
        (one, other or "") for one, other in pairs
    ]


# The table for people.


def test_the_table_of_jobs_is_as_it_was() -> None:
    assert lines_of("jobs", JOBS) == [
        "ID          STATE          NAME               USER  QUEUE  GPUS  CPUS  NODES  ELAPSED  "
        "LIMIT  NODES/(REASON)",
        "1207_[3-9]  pending        train é            ada   gpu       2     8      1        -  "
        "1d00h  (Resources)",
        '1206        out_of_memory  evil␛[2J␊"a",=1+1  bob   debug     -     -      -  1:02:03     '
        " -  n[01-02]",
    ]


def test_the_table_of_nodes_is_as_it_was() -> None:
    assert lines_of("nodes", NODES) == [
        "NAME  STATE     FLAGS         QUEUES      CPUS  GPUS  GPU_TYPE  MEMORY   LOAD  JOBS  "
        "REASON",
        "n01   draining  maint,reboot  gpu,debug  12/64     -  -         0/512G  11.99     -  "
        "disk␉full",
        "n02   idle      -             -              -     -  -              -      -     -  -",
    ]


def test_the_table_of_queues_is_as_it_was() -> None:
    assert lines_of("queues", QUEUES) == [
        "NAME  AVAILABLE  DEFAULT  LIMIT  NODES  IDLE  DOWN  CPUS  GPUS  RUNNING  PENDING",
        "gpu   yes        no           -      3     -     -     -     -        -    83000",
    ]


def test_what_becomes_of_jobs_in_a_queue_is_a_column_where_there_is_anything_to_say() -> None:
    rows = [
        {"name": "main", "available": True},
        {"name": "old", "available": False, "_note": "disabled: PBS rejects new jobs"},
        {
            "name": "R7",
            "available": False,
            "_note": "reserved\x1b: it waits",
            "_opens_at": NOW + 2400,
        },
    ]
    heading, *lines = lines_of("queues", rows)
    assert [line[heading.index("NOTE") :] for line in lines] == [
        "-",
        "disabled: PBS rejects new jobs",
        "reserved␛: it waits, in 40 min",
    ]


def test_times_are_ages_and_an_end_by_signal_is_told() -> None:
    columns = ["id", "submitted_at", "started_at", "ends_at", "exit"]
    assert lines_of("history", JOBS, columns=columns) == [
        "ID          SUBMITTED  STARTED      ENDS      EXIT",
        "1207_[3-9]    2 h ago        -         -         -",
        "1206                -  1 h ago  in 1 min  signal 9",
    ]


def test_a_narrow_terminal_loses_columns_but_not_the_id_or_the_state() -> None:
    assert lines_of("jobs", JOBS, width=60) == [
        "ID          STATE          NAME         ELAPSED  NODES/(REA…",
        "1207_[3-9]  pending        train é            -  (Resources)",
        '1206        out_of_memory  evil␛[2J␊"…  1:02:03  n[01-02]',
    ]
    assert lines_of("jobs", JOBS, width=1) == [
        "ID          STATE",
        "1207_[3-9]  pending",
        "1206        out_of_memory",
    ]


def test_one_long_name_does_not_widen_the_whole_table_in_a_pipe() -> None:
    rows = [{"id": "1", "name": "x" * 230}, {"id": "2", "name": "y" * 60}]
    heading, first, second = lines_of("jobs", rows)
    assert max(map(cell_width, (heading, first, second))) < 160
    assert "x" * 64 not in first
    assert "xxx…  " in first
    assert "y" * 60 in second


def test_in_a_pipe_ids_and_the_last_column_are_never_cut() -> None:
    array, reason = "1[" + "1,3," * 50 + "9]", "x" * 230
    (line,) = lines_of("jobs", [{"id": array, "state": "pending", "reason": reason}])[1:]
    assert line.startswith(f"{array}  pending")
    assert line.endswith(f"({reason})")
    assert lines_of("jobs", [{"id": "1", "reason": reason}], width=120)[1].endswith("…")


def test_json_and_csv_have_a_long_name_whole() -> None:
    rows = [{"id": "1", "name": "x" * 230}]
    assert "x" * 230 in csv_of("jobs", build_table("jobs", rows))
    assert json_of("jobs", build_table("jobs", rows))["jobs"][0]["name"] == "x" * 230


def test_a_terminal_is_spared_the_pbs_server_that_all_ids_name_and_a_pipe_is_not() -> None:
    rows = [
        {**JOBS[0], "id": job_id}
        for job_id in ("12.pbs01.example.org", "14[6-10].pbs01.example.org")
    ]
    assert [line.split()[0] for line in lines_of("jobs", rows, width=120)] == [
        "ID",
        "12",
        "14[6-10]",
    ]
    assert [line.split()[0] for line in lines_of("jobs", rows)][1:] == [row["id"] for row in rows]
    of_two = [{**JOBS[0], "id": job_id} for job_id in ("12.pbs01", "12.pbs02")]
    assert [line.split()[0] for line in lines_of("jobs", of_two, width=120)][1:] == [
        "12.pbs01",
        "12.pbs02",
    ]


def test_an_unknown_column_is_wrong_usage() -> None:
    with pytest.raises(
        UsageError, match=re.escape('queu is not a column of jobs; did you mean "queue"?')
    ) as raised:
        lines_of("jobs", JOBS, columns=["id", "queu"])
    assert raised.value.exit_status == 2
    with pytest.raises(UsageError):
        lines_of("jobs", JOBS, columns=["_number"])


def test_a_terminal_without_utf8_gets_question_marks() -> None:
    out = io.BytesIO()
    write_table(
        TABLES["jobs"],
        build_table("jobs", JOBS),
        out,
        utc_now=NOW,
        columns=["id", "name"],
        encoding="ascii",
    )
    assert b'evil?[2J?"a",=1+1\n' in out.getvalue()


@for_each("kind", TABLES)
def test_the_default_columns_fit_120_and_say_something_of_every_row(kind: str) -> None:
    heading = lines_of(kind, [], width=120)[0]
    assert cell_width(heading) <= 120
    assert len(heading.split()) == len(TABLES[kind].printed or TABLES[kind].shown)


@given(
    st.lists(st.tuples(st.text(max_size=12), ANY_TEXT, ANY_TEXT), max_size=4),
    st.none() | st.integers(0, 150),
)
def test_hostile_text_is_one_visible_line_a_row_within_the_width(
    rows: list[tuple[str, str, str]], width: int | None
) -> None:
    jobs = [
        {
            "id": str(number),
            "state": "running",
            "name": name.encode("utf-8", "replace").decode(),
            "user": user,
        }
        | {"queue": queue, "reason": queue, "node_list": user}
        for number, (name, user, queue) in enumerate(rows)
    ]
    lines = lines_of("jobs", jobs, width=width)
    assert len(lines) == len(rows) + 1
    assert not any(ord(char) < 0x20 or 0x7F <= ord(char) < 0xA0 for line in lines for char in line)
    assert [line.split()[:2] for line in lines[1:]] == [
        [str(number), "running"] for number in range(len(rows))
    ]
    if width is not None:
        assert all(cell_width(line) <= max(width, len("ID  running")) for line in lines)


def row(user: str | None, state: str, tasks: int | None = 1) -> dict[str, Any]:
    return {"user": user, "state": state, "_tasks": tasks}


@for_each(
    ("rows", "words"),
    [
        ([], "no jobs in the queue"),
        ([row("alice", "running")], "1 job owned by alice (1 running)"),
        (
            [row("alice", "running"), row("alice", "pending", 10), row("bob", "pending")],
            "11 jobs owned by alice, 1 by bob (11 pending, 1 running)",
        ),
        ([row(None, "out_of_memory", None)], "1 job (1 out of mem)"),
        ([row("a\x1b[2J", "held")], "1 job owned by a␛[2J (1 held)"),
    ],
)
def test_it_says_how_many_jobs_of_whom_in_which_states(
    rows: list[dict[str, Any]], words: str
) -> None:
    assert format_jobs(rows) == words


@for_each(
    ("state", "outcomes", "words"),
    [
        ("running", (), "running"),
        ("unknown", (), "outcome unknown"),
        ("done", (Outcome("1", True),), "done"),
        ("refused", (Outcome("1", False, "Access denied"),), "refused: Access denied"),
        ("partly", (Outcome("1", True), Outcome("2", False, "no")), "1 of 2 done; 2: no"),
        ("unknown", (Outcome("1", True), Outcome("2", None, "lost")), "outcome unknown: lost"),
    ],
)
def test_the_journal_says_how_it_ended(
    state: str, outcomes: tuple[Outcome, ...], words: str
) -> None:
    entry = JournalEntry("x", 0.0, None, "juno", "alice", "hold", ("1", "2"), (), state, outcomes)
    assert format_end(entry) == words
