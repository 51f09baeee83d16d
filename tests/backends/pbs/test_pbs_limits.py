"""Limits and reservations as qstat and pbs_rstat print them; see fixtures/pbs/23.06/limits."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from hpcdash.backends.base import Capability, PolicyReason
from hpcdash.backends.pbs.backend import pbs_backend
from hpcdash.backends.pbs.dialects import Dialect
from hpcdash.backends.pbs.limits import parse_limits
from hpcdash.backends.pbs.reasons import PbsReasons
from hpcdash.backends.pbs.records import Form
from hpcdash.backends.pbs.reservations import parse_reservations
from hpcdash.backends.queries import JobScope
from hpcdash.domain.limits import format_limit
from hpcdash.errors import ControllerDown, UnreadableOutput
from hpcdash.services.usage.limits import with_counted_use
from hpcdash.transport.replay import ReplayTransport
from tests.support.play_case import FIXTURES, play
from tests.support.slurm_text import answered

CASE = FIXTURES / "pbs" / "23.06" / "limits"
OPENPBS = pbs_backend(Dialect.OPENPBS)
TOKEN = "-end-"
HEAD = "User: ada\nGroup: lab\nGroups: lab users\n"


def find_limits(text: str) -> list[str]:
    parsed = parse_limits(answered(f"{HEAD}{text}".encode(), argv=("sh",)), form=Form.TEXT)
    return [format_limit(row) for row in parsed.table.to_pylist()]


def test_each_limit_of_a_real_server_is_there_and_own_jobs_tell_what_is_used() -> None:
    transport = ReplayTransport(CASE)
    parsed = play(transport, OPENPBS.policy.limits("alice", ""))
    mine = play(transport, OPENPBS.queue.jobs(JobScope("alice"))).table
    counted = with_counted_use(parsed.table, mine, None, "alice")
    lines = [format_limit(row) for row in counted.to_pylist()]
    for line in (
        "server pbs01: 3 of 50 running jobs, for all together",
        "server pbs01: 3 of 5 running jobs, for user alice",
        "server pbs01: 6 of 12 CPUs used, for user alice",
        "server pbs01: CPUs 20, for group alice",
        # One's own entry counts, not that for everybody (8).
        "queue workq: 3 of 3 running jobs, for user alice",
        "queue workq: 3G of 8G memory used, for user alice",
        "queue workq: 10 of 40 CPUs of jobs in the queue used, for user alice",
        "queue gpu: 0 of 6 GPUs used, for all together",
        "queue gpu: time limit 1d00h, for a job",
        "queue gpu: jobs in the queue 10, for a project",
    ):
        assert line in lines
    # A reservation's queue has what its reservation has.
    assert not [line for line in lines if line.startswith("queue R")]


def test_limits_of_old_and_of_several_entities_in_text_are_read() -> None:
    lines = find_limits(
        "Queue: a\n    queue_type = Execution\n    max_user_run = 4\n    max_running = 30\n    "
        "max_user_res.mem = 4gb\n"
        "    state_count = Transit:0 Queued:0 Held:0 Waiting:0 Running:7 Exiting:0 \n\n"
        "Queue: b\n    queue_type = Execution\n    max_run = [u:PBS_GENERIC=3]\n    max_run = "
        '[g:"my lab"=9]\n'
        "    max_run = [g:lab=5]\n    max_run = [u:eve=99]\n    max_run = broken\n    max_run = "
        "[u:ada]\n\n"
        "Server: s\n    server_state = Active\n    max_run = [o:PBS_ALL=100]\n"
    )
    assert lines == [
        "server s: running jobs 100, for all together",
        "queue a: running jobs 4, for user ada",
        "queue a: 7 of 30 running jobs, for all together",
        "queue a: memory 4G, for user ada",
        "queue b: running jobs 3, for user ada",
        "queue b: running jobs 5, for group lab",
    ]


def test_a_server_that_is_away_and_other_text_are_said_to_be() -> None:
    down = answered(
        b"",
        status=255,
        stderr=b"Connection refused\nqstat: cannot connect to server pbs01 (errno=15010)\n",
    )
    with pytest.raises(ControllerDown):
        parse_limits(down, form=Form.TEXT)
    with pytest.raises(UnreadableOutput, match="queues"):
        parse_limits(answered(b"Welcome\n"), form=Form.TEXT)


def test_a_reservation_is_for_those_whom_pbs_lets_in() -> None:
    # The server took alice's jobs in R5 and R7, and refused them in the others.
    rows = {
        row["queue"]: row
        for row in play(
            ReplayTransport(CASE), OPENPBS.policy.reservations("alice")
        ).table.to_pylist()
    }
    assert {queue: row["allowed"] for queue, row in rows.items()} == {
        "R5": True,
        "R6": False,
        "R7": True,
        "R14": False,
    }
    assert rows["R7"]["users"] == ["alice", "bob"]
    assert rows["R7"]["groups"] == ["alice"]
    assert rows["R5"]["starts_at"] == datetime(2026, 11, 24, 15, 16, tzinfo=UTC)
    assert (rows["R5"]["duration_seconds"], rows["R5"]["node_list"]) == (3600, "n1")
    assert rows["R5"]["_option"] == "-q R5"


def test_a_reservation_that_another_one_forges_is_not_believed() -> None:
    listed = (
        "Resv ID: R1.s\nReserve_Name = a\nAuthorized_Users = eve\nqueue = R1\nVariable_List = A=b\n"
        "Authorized_Users = ada\n\nResv ID: R2.s\nReserve_Name = forged\n\nResv ID: "
        "R9.s\nReserve_Name = made up\n\n"
        "Resv ID: R2.s\nReserve_Name = true\nAuthorized_Users = ada\n"
    )
    printed = f"ada\nlab\n{TOKEN}Resv ID: R1.s\nResv ID: R2.s\n{TOKEN}{listed}"
    parsed = parse_reservations(answered(printed.encode(), argv=("sh",)), token=TOKEN)
    assert [(row["name"], row["allowed"]) for row in parsed.table.to_pylist()] == [("R1.s", False)]
    assert len(parsed.rejected) == 3


def test_a_comment_on_a_limit_names_it() -> None:
    found = {
        reason: PbsReasons().policy("pending", reason)
        for reason in (
            "Queue workq job limit reached for user palice",
            "Server job limit has been reached",
            "would exceed per-user limit on resource ncpus in queue gpu",
            "Job would conflict with reservation or top job",
            "Insufficient amount of resource: ncpus (R: 4 A: 2 T: 8)",
        )
    }
    assert list(found.values()) == [
        PolicyReason("limits", "queue", "user", "jobs_running"),
        PolicyReason("limits", "server", "all", "jobs_running"),
        PolicyReason("limits", "queue", "user", "cpus"),
        PolicyReason("reservations"),
        None,
    ]


def test_only_what_a_kind_of_pbs_tells_is_offered() -> None:
    rules = {Capability.SHARES, Capability.LIMITS, Capability.RESERVATIONS}
    offered = {dialect: rules & pbs_backend(dialect).capabilities for dialect in Dialect}
    assert offered == {
        Dialect.OPENPBS: {Capability.LIMITS, Capability.RESERVATIONS},
        Dialect.PBS_TEXT: {Capability.LIMITS, Capability.RESERVATIONS},
        Dialect.TORQUE: {Capability.LIMITS},
    }
