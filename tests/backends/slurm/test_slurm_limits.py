"""Fair shares, limits and reservations as sshare, sacctmgr and scontrol print them; see
fixtures/slurm/22.05/limits.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from hpcdash.backends.base import PolicyReason
from hpcdash.backends.queries import ParsedTable
from hpcdash.backends.slurm.backend import BACKEND
from hpcdash.backends.slurm.limits import limits_query, parse_limits
from hpcdash.backends.slurm.reasons import SlurmReasons
from hpcdash.backends.slurm.reservations import parse_reservations
from hpcdash.backends.slurm.shares import parse_shares
from hpcdash.domain.limits import format_limit
from hpcdash.errors import AccountingUnavailable, CommandError, ControllerDown, UnreadableOutput
from hpcdash.transport.replay import ReplayTransport
from tests.support.play_case import FIXTURES, play
from tests.support.records import for_each
from tests.support.slurm_text import answered

CASE = FIXTURES / "slurm" / "22.05" / "limits"
TOKEN = "-end-"
NOBODY = (
    "Current Association Manager state\nNo associations currently cached in Slurm.\nNo QOS "
    "currently cached.\n"
)
MANAGER = (
    "Association Records\n"
    "ClusterName=c Account=lab UserName= Partition= Priority=0 ID=1 ParentAccount=root(1) Lft=1 "
    "DefAssoc=No "
    "GrpJobs=9(4) GrpTRES=cpu=20(14),mem=65536(4896),gres/gpu=N(2) GrpTRESMins=cpu=600(90) "
    "GrpWall=60(1.50)\n"
    "ClusterName=c Account=lab UserName=ada(7) Partition= Priority=0 ID=2 ParentAccount= Lft=2 "
    "DefAssoc=Yes "
    "GrpJobs=N(3) MaxJobs=5(3) MaxSubmitJobs= MaxWallPJ=1440 MaxTRESPJ=\n"
    "QOS=short(3) UsageRaw=1.5 GrpJobs=N(1) GrpTRES=cpu=8(2) MaxWallPJ=10 Account Limits= "
    "lab={MaxJobsPA=N(2)} User Limits= 7={MaxJobsPU=2(1) MaxTRESPU=cpu=6(2),gres/gpu=4(0)} "
    "8={MaxJobsPU=2(2)}\n"
    "QOS=idle(4) UsageRaw=0.0 GrpJobs=N(0) Account Limits=No Accounts User Limits=No Users\n"
)
NO_ACCOUNTING = (
    b"You are not running a supported accounting_storage plugin\nOnly "
    b"'accounting_storage/slurmdbd' is supported.\n"
)
DBD_DOWN = (
    b"sacctmgr: error: slurm_persist_conn_open: failed to open persistent connection: "
    b"Connection refused\n"
)


def replayed(kind: str) -> ParsedTable:
    transport = ReplayTransport(CASE)
    queries = {
        "shares": lambda: BACKEND.policy.shares("alice"),
        "limits": lambda: BACKEND.policy.limits("alice", "lab"),
        "reservations": lambda: BACKEND.policy.reservations("alice"),
    }
    found: ParsedTable = play(transport, queries[kind]())
    return found


def find_limits(
    manager: str, associations: tuple[str, int], qos: tuple[str, int], stderr: bytes = b""
) -> ParsedTable:
    """What is read of these answers, to ada, whose number is 7."""
    parts = [
        ("ada\n7\n", 0),
        (manager, 0),
        associations,
        qos,
        ("PartitionName=gpu QoS=part State=UP\n", 0),
    ]
    printed = "".join(f"{text}{TOKEN}{status}\n" for text, status in parts)
    return parse_limits(answered(printed.encode(), stderr=stderr, argv=("sh",)), token=TOKEN)


def association(**limits: str) -> str:
    from hpcdash.backends.slurm.limits import _ASSOCIATION_FIELDS

    values = {"account": "lab", "partition": "", "qos": "short,idle", **limits}
    return "|".join(values.get(name, "") for name in _ASSOCIATION_FIELDS) + "\n"


def qos_row(name: str, **limits: str) -> str:
    from hpcdash.backends.slurm.limits import _QOS_FIELDS

    return "|".join({"name": name, **limits}.get(field, "") for field in _QOS_FIELDS) + "\n"


def told(parsed: ParsedTable) -> list[str]:
    return [format_limit(row) for row in parsed.table.to_pylist()]


def test_one_s_own_shares_are_under_their_accounts() -> None:
    rows = replayed("shares").table.to_pylist()
    shown = [
        (row["_depth"], row["account"], row["user"], row["own"], row["_on_own_path"])
        for row in rows
    ]
    assert shown == [
        (0, "root", None, False, True),
        (1, "chem", None, False, True),
        (2, "chem", "alice", True, True),
        (1, "physics", None, False, True),
        (2, "physics", "alice", True, True),
        (1, "staff", None, False, False),
    ]
    physics, alice, chem = rows[3], rows[4], rows[2]
    assert (physics["raw_shares"], physics["normalized_shares"], physics["fair_share"]) == (
        60,
        0.540541,
        None,
    )
    assert (alice["fair_share"], chem["fair_share"]) == (0.2, 1.0)
    # Where nothing was used there is no bound.
    assert math.isinf(chem["level_fair_share"])


@for_each(
    ("stdout", "stderr", "status", "error", "words"),
    [
        (b"", b"", 0, AccountingUnavailable, "slurmdbd is not configured"),
        (
            b"You are not running a supported priority plugin\n(priority/basic).\n",
            b"",
            0,
            AccountingUnavailable,
            "does not use fair share",
        ),
        (
            b"",
            b"Couldn't get shares from controller: Unable to contact slurm controller",
            255,
            ControllerDown,
            "does not respond",
        ),
        (b"Welcome to juno\n", b"", 0, UnreadableOutput, "shares"),
    ],
)
def test_shares_that_are_not_to_be_had_say_why(
    stdout: bytes, stderr: bytes, status: int, error: type[CommandError], words: str
) -> None:
    with pytest.raises(error, match=words):
        parse_shares(answered(stdout, status=status, stderr=stderr, argv=("sshare",)))


def test_a_row_that_is_no_share_is_told_and_a_share_of_its_parent_s_is_not_a_number() -> None:
    parsed = parse_shares(
        answered(b" a|ada||parent|0.5|7|nan|-1|0.25|\nno row\n", argv=("sshare",)), user="ada"
    )
    [row] = parsed.table.to_pylist()
    assert (row["raw_shares"], row["normalized_usage"], row["effective_usage"]) == (
        None,
        None,
        None,
    )
    assert row["fair_share"] == 0.25
    assert parsed.rejected == ("no row",)


def test_limits_are_those_of_associations_accounts_qos_and_partitions_with_what_is_used() -> None:
    lines = told(replayed("limits"))
    for line in (
        "association physics/alice: 5 of 5 running jobs, for user alice",
        "association physics/alice: CPUs 16, for a job",
        "account physics: 2 of 6 GPUs used, for account physics",
        "QoS limited: 2 of 2 running jobs, for user alice",
        "QoS tiny: 0 of 1 jobs in the queue, for user alice",
        "QoS gpart: time limit 12:00:00, for a job",
    ):
        assert line in lines
    of_partition = [row for row in replayed("limits").table.to_pylist() if row["name"] == "gpart"]
    assert {tuple(row["queues"]) for row in of_partition} == {("gpu",)}


def test_what_nobody_has_used_is_zero_and_what_is_not_told_is_unknown() -> None:
    qos = qos_row("short", maxjobspu="2", grptres="mem=2G", maxwall="1-00:00:00") + qos_row(
        "idle", grpjobs="3"
    )
    part = qos_row("part", maxtrespu="gres/gpu=4,license/x=3")
    lines = told(find_limits(MANAGER, (association(maxjobs="5"), 0), (qos + part, 0)))
    assert lines == [
        "association lab/ada: 3 of 5 running jobs, for user ada",
        "association lab/ada: time limit 1d00h, for a job",
        "account lab: 4 of 9 running jobs, for account lab",
        "account lab: 14 of 20 CPUs used, for account lab",
        "account lab: 4.8G of 64G memory used, for account lab",
        "account lab: 1.5 of 10 CPU-hours used, for account lab",
        "account lab: 1:30 of 1:00:00 wall time used, for account lab",
        "QoS short: 1 of 2 running jobs, for user ada",
        "QoS short: 2 of 6 CPUs used, for user ada",
        "QoS short: 0 of 4 GPUs used, for user ada",
        "QoS short: 0 of 2G memory used, for all together",
        "QoS short: time limit 1d00h, for a job",
        "QoS idle: 0 of 3 running jobs, for all together",
        # The controller has no record of this QoS.
        "QoS part: GPUs 4, for user ada",
        "QoS part: license/x 3, for user ada",
    ]


def test_without_the_database_the_controller_tells_what_it_knows() -> None:
    parsed = find_limits(MANAGER, ("", 1), ("", 1), DBD_DOWN)
    assert "QoS short: 2 of 6 CPUs used, for user ada" in told(parsed)
    assert "association lab/ada: 3 of 5 running jobs, for user ada" in told(parsed)
    [rejected] = parsed.rejected
    assert "slurmdbd does not respond" in rejected


def test_without_the_controller_one_s_jobs_are_counted() -> None:
    parsed = find_limits("", (association(maxjobs="5"), 0), (qos_row("short", maxjobspu="2"), 0))
    rows = {row["native"]: row for row in parsed.table.to_pylist()}
    assert (
        rows["MaxJobs"]["used"],
        rows["MaxJobs"]["_of_user"],
        rows["MaxJobs"]["_of_account"],
    ) == (
        None,
        "ada",
        "lab",
    )
    assert (rows["MaxJobsPU"]["_of_user"], rows["MaxJobsPU"]["_of_qos"]) == ("ada", "short")


@pytest.mark.parametrize(
    ("stderr", "words"),
    [
        (NO_ACCOUNTING, "slurmdbd is not configured"),
        (DBD_DOWN, "accounting database does not respond"),
    ],
)
def test_limits_that_nobody_tells_say_why(stderr: bytes, words: str) -> None:
    with pytest.raises(AccountingUnavailable, match=words):
        find_limits(NOBODY, ("", 1), ("", 1), stderr)


def test_the_user_and_the_cluster_are_words_of_their_own() -> None:
    argv = limits_query("a; reboot", "$(id)").argv
    assert "a; reboot" in argv
    assert "$(id)" in argv
    assert "reboot" not in argv[argv.index("-c") + 1]


def test_a_reservation_says_who_may_use_it_and_whether_one_may() -> None:
    rows = {row["name"]: row for row in replayed("reservations").table.to_pylist()}
    # `open` is for the account root, which is above alice's; Slurm took her job for it, and bob's.
    allowed = {name: row["allowed"] for name, row in rows.items()}
    assert allowed == {"open": True, "maint": False, "course": True, "notbob": True, "grp": True}
    assert (rows["open"]["ends_at"], rows["open"]["state"]) == (None, "active")
    assert (
        rows["course"]["_note"] == "repeats every day; eligible jobs use it without requesting it"
    )
    assert rows["maint"]["duration_seconds"] == 4 * 3600


@for_each(
    ("fields", "allowed"),
    [
        ("Users=ada,bob", True),
        ("Users=bob Groups=staff", True),
        ("Users=bob Accounts=lab", False),
        ("Users=ada Accounts=lab", True),
        ("Users=ada Accounts=other", False),
        ("Users=-ada", False),
        ("Users=-bob Accounts=-top", False),
        ("Users=(null) Accounts=top", True),
        ("Users=bob Comment=Users=ada", False),
        ("AllowedPartitions=(null) QOS=(null) Users=ada", True),
        ("AllowedPartitions=(null) QOS=high Users=(null)", None),
        ("AllowedPartitions=gpu QOS=(null) Users=ada", None),
        ("AllowedPartitions=(null) QOS=high Users=bob", False),
    ],
)
def test_users_and_groups_are_one_list_and_accounts_another(fields: str, allowed: bool) -> None:
    head = f"ada\nusers staff\n{TOKEN}lab|\n{TOKEN}\nlab|top\ntop|root\n"
    line = (
        f"ReservationName=r StartTime=1795526000 EndTime=1795529600 Duration=01:00:00 {fields} "
        "State=INACTIVE\n"
    )
    parsed = parse_reservations(
        answered(f"{head}{TOKEN}{TOKEN}\n{line}".encode(), argv=("sh",)), token=TOKEN
    )
    assert [row["allowed"] for row in parsed.table.to_pylist()] == [allowed]


def test_no_reservations_are_none_and_accounts_that_are_not_told_leave_it_open() -> None:
    none = f"ada\nusers\n{TOKEN}\n{TOKEN}{TOKEN}\nNo reservations in the system\n"
    assert (
        parse_reservations(answered(none.encode(), argv=("sh",)), token=TOKEN).table.num_rows == 0
    )
    some = (
        f"ada\nusers\n{TOKEN}\n{TOKEN}{TOKEN}\nReservationName=r Accounts=lab State=ACTIVE\nnoise\n"
    )
    parsed = parse_reservations(answered(some.encode(), argv=("sh",)), token=TOKEN)
    assert parsed.table.to_pylist()[0]["allowed"] is None
    assert parsed.rejected == ("noise",)


REASONS: list[tuple[str, Any]] = [
    ("Priority", PolicyReason("shares")),
    ("QOSMaxJobsPerUserLimit", PolicyReason("limits", "qos", "user", "jobs_running")),
    ("QOSMaxCpuPerUserLimit", PolicyReason("limits", "qos", "user", "cpus")),
    ("QOSMaxGRESPerUser", PolicyReason("limits", "qos", "user", "gpus")),
    ("QOSGrpCpuLimit", PolicyReason("limits", "qos", "all", "cpus")),
    ("QOSMaxWallDurationPerJobLimit", PolicyReason("limits", "qos", "job", "limit_seconds")),
    ("QOSMaxSubmitJobPerUserLimit", PolicyReason("limits", "qos", "user", "jobs_submitted")),
    ("AssocGrpGRES", PolicyReason("limits", "", "", "gpus")),
    ("AssocGrpCPUMinutesLimit", PolicyReason("limits", "", "", "cpu_minutes")),
    ("AssocGrpCPURunMinutesLimit", PolicyReason("limits", "", "", "cpu_run_minutes")),
    ("AssocMaxJobsLimit", PolicyReason("limits", "association", "", "jobs_running")),
    ("MaxMemoryPerAccount", PolicyReason("limits", "qos", "account", "memory_bytes")),
    ("Reservation", PolicyReason("reservations")),
    ("ReqNodeNotAvail, Reserved for maintenance", PolicyReason("reservations")),
    ("Resources", None),
    ("QOSNotAllowed", None),
    ("QOSMinGRES", None),
    ("Dependency", None),
]


def test_a_reason_that_is_a_rule_of_the_site_names_it() -> None:
    assert [(reason, SlurmReasons().policy("pending", reason)) for reason, _ in REASONS] == REASONS
    assert SlurmReasons().policy("running", "Priority") is None
