"""What qstat says of queues and the server's default, in DSV and in text."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcdash.backends.pbs.dialects import Dialect
from hpcdash.backends.pbs.queues import parse_queues, queues_query
from hpcdash.backends.queries import ParsedTable
from hpcdash.backends.tokens import RECORDED_TOKEN
from hpcdash.domain import schema
from hpcdash.domain.job_text import queue_note
from hpcdash.domain.rfc3339 import table_to_json_rows
from hpcdash.errors import ControllerDown, HpcdashError, UnreadableOutput
from tests.backends.pbs.test_pbs_records import SCENES, TORQUE, mutations, wrapped
from tests.support.records import for_each
from tests.support.slurm_text import answered

TOKEN = RECORDED_TOKEN
HOUR = 3600


def parsed(raw: bytes, dialect: Dialect = Dialect.OPENPBS, **ended: Any) -> ParsedTable:
    return parse_queues(answered(raw, argv=("sh",), **ended), dialect=dialect, token=TOKEN)


def fetch_rows(raw: bytes, dialect: Dialect = Dialect.OPENPBS) -> dict[str, dict[str, Any]]:
    found = parsed(raw, dialect)
    assert found.rejected == ()
    assert found.table.schema == schema.QUEUES
    return {row["name"]: row for row in table_to_json_rows(found.table, found.table.column_names)}


def scene(name: str, *files: str) -> bytes:
    raw = b"".join((SCENES / name / file).read_bytes() for file in files)
    return raw.replace(b"@@", TOKEN.encode())


EVERYDAY = scene("everyday", "queues.dsv", "server.dsv")
TORQUE_TEXT = (TORQUE / "qstat-Q-f.txt").read_bytes() + (TORQUE / "qstat-B-f.txt").read_bytes()


def test_the_recorded_queues() -> None:
    queues = fetch_rows(EVERYDAY)
    assert list(queues) == ["workq", "gpu", "debug", "maint", "stopped", "bobonly", "route"]
    assert queues["workq"] == {
        "name": "workq",
        "available": True,
        "default": True,
        "limit_seconds": 168 * HOUR,
        **dict.fromkeys(
            ("nodes", "nodes_idle", "nodes_down", "cpus", "cpus_used", "gpus", "gpus_used")
        ),
        "jobs_running": 20,
        "jobs_pending": 5,
        **dict.fromkeys(("_cpus_down", "_gpus_down")),
        **dict.fromkeys(("_standing", "_note", "_opens_at", "_server_note")),
    }
    assert (queues["gpu"]["default"], queues["gpu"]["limit_seconds"]) == (False, 24 * HOUR)
    assert queues["stopped"]["jobs_pending"] == 1
    assert queues["bobonly"]["limit_seconds"] is None


def test_a_queue_takes_jobs_only_where_it_is_enabled_and_started() -> None:
    queues = fetch_rows(EVERYDAY)
    assert [name for name, row in queues.items() if not row["available"]] == ["maint", "stopped"]
    bare = f"Queue: new{TOKEN}total_jobs=0\n".encode()
    assert fetch_rows(bare)["new"]["available"] is False


def standings(
    raw: bytes, dialect: Dialect = Dialect.OPENPBS
) -> dict[str, tuple[str | None, str | None]]:
    return {
        name: (row["_standing"], row["_note"]) for name, row in fetch_rows(raw, dialect).items()
    }


ALICE = b"User: alice\nGroups: alice users\n"


def test_disabled_stopped_closed_and_routing_queues_are_told_apart() -> None:
    told = standings(ALICE + EVERYDAY)
    assert told == {
        **dict.fromkeys(("workq", "gpu", "debug"), (None, None)),
        "maint": ("disabled", "disabled: PBS rejects new jobs"),
        "stopped": ("stopped", "stopped: jobs wait until the site starts the queue"),
        "bobonly": ("closed", "closed to you: only bob may submit"),
        "route": ("routing", "routes jobs to workq"),
    }
    queues = fetch_rows(ALICE + EVERYDAY)
    assert [name for name, row in queues.items() if not row["available"]] == [
        "maint",
        "stopped",
        "bobonly",
    ]
    assert standings(ALICE.replace(b"User: alice", b"User: bob") + EVERYDAY)["bobonly"] == (
        None,
        None,
    )


def test_a_queue_that_is_disabled_though_it_starts_jobs_refuses_them() -> None:
    raw = (
        f"Queue: closed{TOKEN}queue_type=Execution{TOKEN}enabled=False{TOKEN}started=True\n"
    ).encode()
    assert standings(ALICE + raw)["closed"] == ("disabled", "disabled: PBS rejects new jobs")


@for_each(
    ("settings", "standing"),
    [
        ("acl_user_enable=True|acl_users=alice@pbs01,bob@*", None),
        ("acl_user_enable=True|acl_users=+*@login1,-alice", "closed"),
        ("acl_user_enable=True|acl_users=-bob,+*", None),
        ("acl_user_enable=True", "closed"),
        ("acl_user_enable=False|acl_users=bob", None),
        ("acl_group_enable=True|acl_groups=users,staff", None),
        ("acl_group_enable=True|acl_groups=staff", "closed"),
        ("from_route_only=True", "closed"),
    ],
)
def test_whose_jobs_a_queue_takes_is_read_from_its_lists(
    settings: str, standing: str | None
) -> None:
    raw = "|".join(
        ("Queue: q", "queue_type=Execution", "enabled=True", "started=True", settings)
    ).replace("|", TOKEN)
    row = fetch_rows(ALICE + raw.encode() + b"\n")["q"]
    assert (row["_standing"], row["available"]) == (standing, standing is None)
    # Where nobody said who asks nothing is said either.
    assert (
        standing != "closed"
        or "route" in settings
        or standings(raw.encode() + b"\n")["q"][0] is None
    )


def test_a_scheduler_that_is_off_is_said_of_every_queue_that_takes_jobs() -> None:
    off = EVERYDAY.replace(b"scheduling=True", b"scheduling=False")
    assert off != EVERYDAY
    told = standings(ALICE + off)
    assert told["workq"] == (None, None)
    assert told["stopped"][0] == "stopped"
    notes = {name: row["_server_note"] for name, row in fetch_rows(ALICE + off).items()}
    words = "scheduling is off on this server: jobs do not start"
    assert notes == {**dict.fromkeys(notes, words), "maint": None, "bobonly": None}
    row = {"_note": "stopped: its jobs wait", "_opens_at": None, "_server_note": words}
    assert queue_note(row, 0.0) == f"stopped: its jobs wait; {words}"


def test_a_reservation_s_queue_tells_when_it_starts() -> None:
    reserved = (
        b"Start: Sun Nov 22 17:48:00 2026\nReservation: R11118\nStart: Mon Nov 23 06:00:00 "
        b"2026\nReservation: S7\n"
    )
    lines = "".join(
        TOKEN.join((f"Queue: {name}", "queue_type=Execution", "enabled=True", "started=False"))
        + "\n"
        for name in ("R11118", "S7", "M9")
    )
    queues = fetch_rows(ALICE + reserved + lines.encode())
    assert [(row["_standing"], row["_opens_at"]) for row in queues.values()] == [
        ("reserved", "2026-11-22T17:48:00Z"),
        ("reserved", "2026-11-23T06:00:00Z"),
        ("reserved", None),
    ]
    begins = datetime(2026, 11, 22, 17, 48, tzinfo=UTC)
    row = {"_note": "reserved", "_opens_at": begins, "_server_note": None}
    assert queue_note(row, begins.timestamp() - 2400) == "reserved, in 40 min"
    assert queue_note(row, begins.timestamp()) == "reserved"


def test_a_routing_queue_is_shown_for_people_submit_to_it() -> None:
    route = fetch_rows(EVERYDAY)["route"]
    assert (route["available"], route["jobs_running"], route["jobs_pending"]) == (True, 0, 0)


def test_without_the_server_s_answer_no_queue_is_said_to_be_the_default_or_not() -> None:
    assert {row["default"] for row in fetch_rows(scene("everyday", "queues.dsv")).values()} == {
        None
    }
    nowhere = (
        scene("everyday", "queues.dsv") + f"Server: pbs01{TOKEN}server_state=Active\n".encode()
    )
    assert {row["default"] for row in fetch_rows(nowhere).values()} == {False}


def test_a_queue_named_as_its_server_is_a_queue() -> None:
    raw = (
        f"Queue: pbs01{TOKEN}queue_type=Execution{TOKEN}enabled=True{TOKEN}started=True\n".encode()
    )
    raw += f"Server: pbs01{TOKEN}server_state=Active{TOKEN}default_queue=pbs01\n".encode()
    assert [(name, row["default"]) for name, row in fetch_rows(raw).items()] == [("pbs01", True)]


def test_text_says_what_dsv_says() -> None:
    text = b""
    for line in EVERYDAY.decode().rstrip("\n").split("\n"):
        head, *fields = line.split(TOKEN)
        kind, _, name = head.partition(": ")
        said = dict(field.split("=", 1) for field in fields)
        text += wrapped(name, said).replace(b"Job Id", kind.encode(), 1)
    assert b"\n\t" in text
    assert fetch_rows(text, Dialect.PBS_TEXT) == fetch_rows(EVERYDAY)


def test_torque_s_queues() -> None:
    queues = fetch_rows(TORQUE_TEXT, Dialect.TORQUE)
    assert list(queues) == ["batch", "gpu", "closed", "stopped", "feed"]
    batch = queues["batch"]
    assert (batch["default"], batch["jobs_running"], batch["jobs_pending"]) == (True, 3, 8)
    assert queues["gpu"]["limit_seconds"] == 48 * HOUR
    assert [name for name, row in queues.items() if row["available"]] == ["batch", "gpu", "feed"]


def test_a_server_without_queues_has_none() -> None:
    assert parsed(b"").table.num_rows == 0
    assert parsed(scene("everyday", "server.dsv")).table.num_rows == 0


def test_a_server_that_is_down_is_no_empty_list() -> None:
    with pytest.raises(ControllerDown) as raised:
        parsed(
            b"",
            status=255,
            stderr=b"Connection refused\nqstat: cannot connect to server pbs01 (errno=15010)\n",
        )
    assert "qstat" in str(raised.value)


def test_something_else_is_unreadable() -> None:
    with pytest.raises(UnreadableOutput):
        parsed(b"This account is not available.\n")


@pytest.mark.system
@pytest.mark.parametrize("dialect", [Dialect.OPENPBS, Dialect.PBS_TEXT])
@pytest.mark.parametrize(
    ("queues_status", "server_status", "status", "asked"),
    [(0, 0, 0, ["-Qf", "-Bf"]), (0, 1, 0, ["-Qf", "-Bf"]), (162, 0, 162, ["-Qf"])],
)
def test_the_status_of_the_queues_is_the_command_s_own(
    tmp_path: Path,
    dialect: Dialect,
    queues_status: int,
    server_status: int,
    status: int,
    asked: list[str],
) -> None:
    qstat = tmp_path / "qstat"
    qstat.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\necho said "$@" >&2\n'
        f"case $1 in -Qf) exit {queues_status};; *) exit {server_status};; esac\n"
    )
    qstat.chmod(0o755)
    argv = queues_query(dialect).argv
    ran = subprocess.run(argv, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True)
    calls = [line.split(" ") for line in (tmp_path / "asked").read_text().rstrip("\n").split("\n")]
    assert (ran.returncode, [call[0] for call in calls]) == (status, asked)
    assert ran.stderr.count(b"said") == 1
    if dialect is Dialect.OPENPBS:
        assert all(call[1:] == ["-F", "dsv", "-D", argv[-1]] for call in calls)


@pytest.mark.parametrize(
    ("dialect", "raw"),
    [(Dialect.OPENPBS, EVERYDAY), (Dialect.TORQUE, TORQUE_TEXT)],
    ids=str,
)
@given(draw=st.data(), status=st.sampled_from([0, 0, 0, 1]))
def test_broken_output_is_read_or_refused_with_an_error_of_ours(
    dialect: Dialect, raw: bytes, draw: st.DataObject, status: int
) -> None:
    with suppress(HpcdashError):
        table = parsed(draw.draw(mutations(raw)), dialect, status=status).table
        table_to_json_rows(table, table.column_names)
