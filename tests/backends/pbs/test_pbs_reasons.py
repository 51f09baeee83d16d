"""PBS's comments in plain words."""

from __future__ import annotations

import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from hpcdash.backends.pbs.reasons import (
    DEPENDENCY_NOT_MET,
    PbsReasons,
    exit_reason,
    find_reason,
    resource_amount,
)
from hpcdash.domain.job_text import format_exit
from hpcdash.domain.states import JobState
from tests.support.records import for_each

_SCENES = Path(__file__).resolve().parents[3] / "fixtures" / "pbs"
_RUN = "Job run at Sat Nov 21 at 04:19 on (cn01:ncpus=1:mem=1024kb)+(gpu01[0]:ncpus=2)"
# Each comment of OpenPBS's scheduler, without what stands before it; and what its hint has in it.
WAITING = [
    ("Queue not started.", "does not start them"),
    ("Queue not an execution queue.", "only routes jobs"),
    (
        "Queue gpu job limit has been reached.",
        "all users together reached the limit on running jobs in queue gpu",
    ),
    (
        "Server job limit has been reached.",
        "all users together reached the limit on running jobs on this server",
    ),
    (
        "User has reached server running job limit.",
        "the owner reached the limit on running jobs on this server",
    ),
    (
        "User has reached queue gpu running job limit.",
        "the owner reached the limit on running jobs in queue gpu",
    ),
    (
        "Group has reached server running limit.",
        "the owner's group reached the limit on running jobs on this server",
    ),
    (
        "Group has reached queue gpu running limit.",
        "the owner's group reached the limit on running jobs in queue gpu",
    ),
    (
        "Project has reached queue gpu's running limit.",
        "the project reached the limit on running jobs in queue gpu",
    ),
    (
        "Queue gpu job limit reached for user alice",
        "the owner reached the limit on running jobs in queue gpu",
    ),
    (
        "Server job limit reached for group ml",
        "the owner's group reached the limit on running jobs on this server",
    ),
    (
        "Queue gpu per-user limit reached on resource ncpus",
        "the owner reached the limit on CPUs in queue gpu",
    ),
    (
        "Server per-project limit reached on resource mem",
        "the project reached the limit on memory",
    ),
    (
        "would exceed user alice's limit on resource ngpus in queue gpu",
        "the owner reached the limit on GPUs in",
    ),
    (
        "would exceed group ml's limit on resource ncpus in complex",
        "the owner's group reached the limit on CPUs on this server",
    ),
    (
        "would exceed overall limit on resource mem in queue gpu",
        "all users together reached the limit on memory in queue gpu",
    ),
    (
        "would exceed queue gpu's per-user limit",
        "the owner reached the limit on running jobs in queue gpu",
    ),
    ("Dedicated time conflict", "time for other work"),
    ("Job would cross dedicated time boundary", "request less time"),
    ("Not enough of the right type of nodes are available", "of the requested type"),
    ("Not enough free nodes available", "enough free nodes"),
    ("Not enough total nodes available", "more nodes than exist"),
    ("Job would conflict with reservation or top job", "would delay a reservation"),
    ("Job would interfere with a top job", "a job with higher priority"),
    ("Job would interfere with a confirmed reservation", "a reservation"),
    ("Job will run in primetime only", "only in prime time"),
    ("Job will run in nonprimetime only", "outside prime time"),
    ("Job will cross into non-primetime", "request less time"),
    ("Specified host does not exist: cn99", "requests cn99, which does not exist"),
    ("No available resources on nodes", "free resources"),
    ("Can't preempt enough work to run job", "cannot preempt enough"),
    ("Job has zero shares for fairshare", "no fair share"),
    ("Node is in an ineligible state: down", "a required node is down"),
    ("Node is of an ineligible type: x", "the wrong type"),
    ("cn01 is requesting an exclusive node and node is in use", "an exclusive node"),
    ("Node has reached user run limit", "their job limit"),
    ("Node can't satisfy a multi-node job", "multi-node jobs"),
    ("Node has no PBS license", "licence"),
    (
        "Node ineligible because job requested pack placement and won't fit on node",
        "fit on one node",
    ),
    ("Job would break strict sorted order", "strictly in order"),
    ("Cannot provision, provisioning disabled on server", "cannot be provisioned"),
    ("Provision conflict with existing job/reservation", "cannot be provisioned"),
    (
        "PBS Error: Execution server rejected request",
        "will retry: Execution server rejected request",
    ),
    ("rack set r1 has too few free resources", "node group r1"),
    ("can't fit in the largest placement set, and can't span psets", "large enough"),
    ("Invalid Job/Resv invalid chunk in select", "cannot parse the request"),
    ("Job is under job_sort_formula threshold value", "priority is below"),
    ("Number of concurrent running subjobs limit reached", "limit on running tasks"),
    ("Internal Scheduling Error", "internal scheduler error"),
    # Torque's pbs_sched.
    ("Draining system to allow starving job to run", "starving job"),
    ("All timesharing nodes are too loaded to run job", "overloaded"),
    ("Strict fifo order", "strictly in order"),
    ("Job would cross dedicated time boundry", "request less time"),
]


@for_each(("comment", "words"), WAITING)
def test_why_a_job_waits(comment: str, words: str) -> None:
    reason = find_reason("pending", f"Not Running: {comment}")
    assert reason == comment
    assert words in PbsReasons().hint("pending", reason)


@for_each(
    ("lacking", "words"),
    [
        ("resource: ncpus (R: 32 A: 25 T: 48)", "needs 32 CPUs; 25 of 48 are free"),
        ("resource: ngpus (R: 2 A: 1 T: 4)", "needs 2 GPUs; 1 of 4 is free"),
        ("resource: ncpus (R: 1 A: 0 T: 4)", "needs 1 CPU; 0 of 4 are free"),
        (
            "resource: mem (R: 64gb A: 10485760kb T: 128gb)",
            "needs 64G of memory; 10G of 128G is free",
        ),
        (
            "queue resource: ncpus (R: 8 A: 2 T: 16)",
            "needs 8 CPUs; 2 of 16 are free in the queue",
        ),
        (
            "server resource: matlab (R: 2 A: 0 T: 2)",
            "needs 2 matlab; 0 of 2 is free on this server",
        ),
        ("resource: ncpus ", "waiting for enough free CPUs"),
        ("resource: host ", "the requested node is busy or does not exist"),
        ("resource: host (cn09 != cn01,cn02)", "the requested node is busy or does not exist"),
        ("resource: Qlist", "no suitable node has the requested Qlist"),
    ],
)
def test_what_is_lacking_is_told_with_its_figures(lacking: str, words: str) -> None:
    reason = find_reason("pending", f"Not Running: Insufficient amount of {lacking}")
    assert PbsReasons().hint("pending", reason) == words


def test_a_job_that_can_never_run_says_so_and_what_to_do() -> None:
    comment = "Can Never Run: Insufficient amount of resource: ncpus (R: 500 A: 48 T: 48)"
    assert find_reason("pending", comment) == comment
    assert PbsReasons().hint("pending", comment) == (
        "will never start: needs 500 CPUs; only 48 exist; change the request or delete the job"
    )
    reason = find_reason(
        "pending", "Can Never Run: Insufficient amount of resource: host (n9 != n1,n2)"
    )
    assert (PbsReasons().hint("pending", reason) or "").startswith(
        "will never start: the node n9 does not exist; "
    )
    assert (
        PbsReasons()
        .hint("pending", "Can Never Run: flux capacitor")
        .startswith("will never start: ")
    )


@for_each("comment", [_RUN, "Job was sent for execution at Sat Nov 21 at 04:19 on (cn01:ncpus=1)"])
@for_each("state", ["running", "pending", "completing", "completed", "failed"])
def test_where_it_ran_is_no_reason(state: str, comment: str) -> None:
    assert find_reason(state, comment) is None
    assert (
        find_reason(state, f"{comment} and finished" if state == "completed" else comment) is None
    )
    assert find_reason("failed", f"{comment} and failed") is None


def test_an_array_that_began_and_a_task_that_ended_have_no_reason() -> None:
    assert find_reason("running", "Job Array Began at Sat Nov 21 at 04:19") is None
    assert find_reason("completed", "Subjob finished") is None
    assert find_reason("pending", None) is None
    assert find_reason("pending", "") is None


@for_each(
    ("ending", "state", "reason", "hint"),
    [
        (
            "terminated by alice@login1",
            "cancelled",
            "terminated by alice@login1",
            "deleted by alice, from login1",
        ),
        ("terminated", "cancelled", "terminated", "deleted"),
        (
            "exceeded resource walltime",
            "timeout",
            "exceeded resource walltime",
            "hit its time limit",
        ),
        (
            "exceeded resource mem",
            "out_of_memory",
            "exceeded resource mem",
            "used more memory than it requested",
        ),
        (
            "exceeded resource cput",
            "failed",
            "exceeded resource cput",
            "used more CPU time than requested",
        ),
        (
            "exceeded resource ncpus (burst)",
            "failed",
            "exceeded resource ncpus (burst)",
            "used more CPUs than requested",
        ),
    ],
)
def test_how_a_job_ended(ending: str, state: str, reason: str, hint: str) -> None:
    assert find_reason(state, f"{_RUN} and {ending}") == reason
    assert PbsReasons().hint(state, reason) == hint


def test_what_the_state_says_as_well_is_said_in_the_same_words() -> None:
    for state, comment in (("timeout", "walltime"), ("out_of_memory", "mem")):
        hint = PbsReasons().hint(
            state, find_reason(state, f"{_RUN} and exceeded resource {comment}")
        )
        assert hint == format_exit(state, None, None)


def test_a_job_deleted_before_it_ran_tells_what_it_waited_for() -> None:
    comment = (
        "Can Never Run: Insufficient amount of resource: ncpus (R: 500 A: 48 T: 48) and terminated"
    )
    assert find_reason("cancelled", comment) == comment
    assert PbsReasons().hint("cancelled", comment) == (
        "deleted before it started, and never could have: needs 500 CPUs; only 48 exist"
    )
    waited = "Not Running: Queue not started. and terminated by alice@login1"
    assert PbsReasons().hint("cancelled", find_reason("cancelled", waited)) == (
        "deleted by alice, from login1 before it started: the queue accepts jobs but does not "
        "start them"
    )


def test_who_holds_a_job_is_its_reason_until_it_is_released() -> None:
    comment = "Job held by alice on Sat Nov 21 04:19:31 2026"
    assert find_reason("held", comment, substate="20") == "held by alice"
    assert "release it" in PbsReasons().hint("held", "held by alice")
    # PBS keeps the comment until the scheduler comes by.
    assert find_reason("pending", comment, substate="10") is None
    assert find_reason("cancelled", f"{comment} and terminated") == "held by alice and terminated"
    assert "release it" in PbsReasons().hint("held", None)
    assert PbsReasons().hint("held", "ask ops@site") != ""


def test_a_hold_of_an_operator_is_not_the_owners_to_release() -> None:
    for holds in ("o", "uo", "s", "us"):
        reason = find_reason("held", None, substate="20", holds=holds)
        assert reason in ("held by an operator", "held by PBS or a manager")
        assert "only they can release it" in PbsReasons().hint("held", reason)
    assert find_reason("held", None, substate="20", holds="u") == "held by its owner"
    assert "release it" in PbsReasons().hint("held", "held by its owner")
    assert find_reason("held", None, substate="22", holds="s") == "waits for a dependency"
    assert find_reason("pending", None, substate="10", holds="n") is None


def test_a_job_that_pbs_gave_up_on_is_not_the_owners_to_release() -> None:
    reason = find_reason("held", "job held, too many failed attempts to run", substate="20")
    assert reason == "job held, too many failed attempts to run"
    assert "operator" in PbsReasons().hint("held", reason)


@for_each(
    ("state", "substate", "words"),
    [
        ("held", "22", "waits for a job it depends on"),
        ("pending", "30", "waiting for its requested start time"),
        ("pending", "37", "staging the input files failed"),
        ("suspended", "43", "resume it to continue"),
        ("suspended", "45", "preempted by a job with higher priority"),
    ],
)
def test_where_there_is_no_comment_the_substate_tells(
    state: str, substate: str, words: str
) -> None:
    reason = find_reason(state, None, substate=substate)
    assert reason
    assert words in PbsReasons().hint(state, reason)
    assert find_reason("completed", None, substate=substate) is None


def test_a_preempted_job_says_what_it_waits_for_to_go_on() -> None:
    reason = find_reason(
        "suspended", "Not Running: Insufficient amount of resource: ncpus ", substate="45"
    )
    assert reason == "suspended by the scheduler: Insufficient amount of resource: ncpus"
    assert PbsReasons().hint("suspended", reason) == (
        "preempted by a job with higher priority; it continues afterwards; now waiting for enough "
        "free CPUs"
    )


def test_what_a_site_writes_stays_as_it_is() -> None:
    for state in ("pending", "running", "held", "failed"):
        assert (
            find_reason(state, "ask ops@site about\n ticket 12") == "ask ops@site about ticket 12"
        )
    assert PbsReasons().hint("pending", "ask ops@site about ticket 12") == ""


@for_each(
    ("status", "words"),
    [
        (-3, "could not start; PBS retries (JOB_EXEC_RETRY, -3)"),
        (-11, "was requeued (JOB_EXEC_RERUN, -11)"),
        (-20, "the first node was unreachable (JOB_EXEC_RERUN_MS_FAIL, -20)"),
        (-27, "exceeded resource mem (JOB_EXEC_KILL_MEM, -27)"),
        (-29, "exceeded resource walltime (JOB_EXEC_KILL_WALLTIME, -29)"),
        (-99, "ended by PBS (-99)"),
    ],
)
def test_what_pbs_itself_ended_is_told_by_its_exit_status(status: int, words: str) -> None:
    assert exit_reason(status) == words


def test_torques_exit_statuses_are_others() -> None:
    assert (
        exit_reason(-11, is_torque=True)
        == "exceeded resource walltime (JOB_EXEC_OVERLIMIT_WT, -11)"
    )
    assert exit_reason(-3, is_torque=True) == exit_reason(-3)
    for status in (0, 1, 143, 271):
        assert exit_reason(status) is None


def test_the_reasons_of_an_exit_status_have_hints() -> None:
    assert PbsReasons().hint("timeout", exit_reason(-29)) == "hit its time limit"
    assert (
        PbsReasons().hint("out_of_memory", exit_reason(-27)) == "used more memory than it requested"
    )
    assert "writable" in PbsReasons().hint("failed", exit_reason(-3))
    assert PbsReasons().hint("node_failed", exit_reason(-20)) == format_exit(
        "node_failed", None, None
    )
    # A job that was put back keeps the exit status of its last run.
    assert PbsReasons().hint("pending", exit_reason(-20)) == "one of its nodes failed"
    assert "depends on" in PbsReasons().hint("failed", DEPENDENCY_NOT_MET)


@for_each(
    ("resource", "value", "words"),
    [
        ("ncpus", "4", "4 CPUs"),
        ("ncpus", "1", "1 CPU"),
        ("mpiprocs", "1", "1 MPI process"),
        ("mem", "65536kb", "64M of memory"),
        ("cput", "10:00:00", "10:00:00 of CPU time"),
        ("matlab", "2", "2 matlab"),
        ("mem", "lots", "lots of memory"),
    ],
)
def test_amounts_of_resources(resource: str, value: str, words: str) -> None:
    assert resource_amount(resource, value) == words


def test_every_comment_that_was_recorded_is_understood() -> None:
    comments = {
        found.decode("utf-8", "replace")
        for file in _SCENES.rglob("*.dsv")
        if "nodes" not in file.name
        for found in re.findall(rb"@@comment=(.*?)@@", file.read_bytes())
    }
    assert len(comments) > 10
    for comment in comments:
        for state in ("pending", "held", "running", "suspended", "cancelled"):
            reason = find_reason(state, comment)
            understood = reason is None or reason != comment or PbsReasons().hint(state, reason)
            assert understood, (state, comment)


@given(
    st.sampled_from(list(JobState)),
    st.text(max_size=80) | st.sampled_from([f"Not Running: {comment}" for comment, _ in WAITING]),
    st.integers(0, 80),
    st.sampled_from([None, "10", "20", "22", "43", "45", "92", "x"]),
)
def test_no_comment_is_beyond_it(
    state: JobState, comment: str, cut: int, substate: str | None
) -> None:
    reason = find_reason(state, comment[:cut], substate=substate)
    assert reason != ""
    assert isinstance(PbsReasons().hint(state, reason), str)
