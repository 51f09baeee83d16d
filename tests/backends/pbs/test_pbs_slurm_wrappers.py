"""What Slurm's commands by Torque's names printed on a real Slurm is read as squeue told it at the
same moment.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from hpcdash.backends.actions import ActionRequest, Verb
from hpcdash.backends.base import Capability
from hpcdash.backends.pbs.backend import pbs_backend
from hpcdash.backends.pbs.dialects import Dialect
from hpcdash.backends.queries import JobScope, Query
from hpcdash.backends.submissions import Submission
from hpcdash.backends.tokens import RECORDED_TOKEN
from hpcdash.domain import schema
from hpcdash.domain.rfc3339 import table_to_json_rows
from hpcdash.errors import ControllerDown, NoSuchJob, UsageError
from hpcdash.recorded import find_token
from hpcdash.transport.base import CommandResult
from tests.backends.pbs.test_pbs_wrapped_records import PRINTED, lists, told_by_squeue
from tests.support.records import for_each

WRAPPERS = pbs_backend(Dialect.SLURM_WRAPPERS)
UNKNOWN = "99999999"
CLOCK = 1795264849


def recorded(scene: str, name: str) -> CommandResult:
    """What one command left."""
    said = {
        command["name"]: command
        for command in json.loads((PRINTED / scene / "commands.json").read_text("utf-8"))
    }
    out, err = (
        file.read_bytes() if file.is_file() else b""
        for file in (PRINTED / scene / f"{name}.out", PRINTED / scene / f"{name}.err")
    )
    return CommandResult(tuple(said[name]["argv"]), said[name]["exit"], out, err, 0.05)


def listed(
    query: Query[Any], full: bytes, short: bytes, status: int = 0, stderr: bytes = b""
) -> Any:
    """What is read from both lists, as the script on the login node prints them."""
    token = find_token(query.argv)
    assert token is not None
    assert token != RECORDED_TOKEN
    stdout = b"Clock: %d\n" % CLOCK + full + b"\n" + token.encode() + b"\n" + short
    return query.parse(CommandResult(query.argv, status, stdout, stderr, 0.05))


def jobs_of(scene: str) -> dict[str, dict[str, Any]]:
    parsed = listed(WRAPPERS.queue.jobs(JobScope(ended=True)), *lists(scene))
    assert parsed.rejected == ()
    return {
        row["id"]: row for row in table_to_json_rows(parsed.table, schema.public_names(schema.JOBS))
    }


def squeue_rows(scene: str) -> dict[str, list[bytes]]:
    """The fields of each job as record_wrappers.TRUTH_FIELDS has them."""
    return {number.decode(): fields for number, fields in told_by_squeue(scene).items()}


def moment(text: bytes) -> str | None:
    if text in (b"N/A", b""):
        return None
    # The lab's clock was in UTC.
    return datetime.fromisoformat(text.decode()).replace(tzinfo=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


OURS = {
    b"RUNNING": "running",
    b"SUSPENDED": "suspended",
    b"COMPLETING": "ended",
    b"COMPLETED": "ended",
    b"FAILED": "ended",
    b"CANCELLED": "ended",
    b"TIMEOUT": "ended",
    b"PREEMPTED": "ended",
    b"NODE_FAIL": "ended",
}


# -- jobs


@pytest.mark.parametrize("scene", ["everyday", "hostile"])
def test_each_job_is_read_as_squeue_told_it(scene: str) -> None:
    found, truth = jobs_of(scene), squeue_rows(scene)
    assert found.keys() == truth.keys()
    for job_id, fields in truth.items():
        row = found[job_id]
        _, user, queue, state, reason, _, submitted, start, _, _, cpus, nodes, *_ = fields
        assert (row["user"], row["queue"]) == (user.decode(), queue.decode())
        assert (row["cpus"], row["nodes"]) == (int(cpus), int(nodes))
        assert row["submitted_at"] == moment(submitted)
        if state in (b"PENDING", b"SPECIAL_EXIT"):
            is_held = reason.startswith(b"JobHeld") or reason == b"job requeued in held state"
            assert row["state"] == ("held" if is_held else "pending"), (job_id, reason)
            assert (row["started_at"], row["node_list"], row["elapsed_seconds"]) == (
                None,
                None,
                None,
            )
        else:
            assert row["started_at"] == moment(start)
            assert OURS[state] in (row["state"], "ended"), (job_id, state)


def test_how_a_job_ended_is_not_told_and_not_guessed() -> None:
    ended = [row for row in jobs_of("everyday").values() if row["native_state"] == "C"]
    assert len(ended) > 5
    assert {(row["exit_code"], row["exit_signal"]) for row in ended} == {(None, None)}
    assert {row["state"] for row in ended} & {
        "completed",
        "failed",
        "cancelled",
        "running",
        "pending",
    } == set()


def test_jobs_that_ended_are_not_in_the_queue() -> None:
    table = listed(WRAPPERS.queue.jobs(JobScope()), *lists("everyday")).table
    assert "C" not in table["native_state"].to_pylist()
    assert table.num_rows == sum(
        fields[3] in (b"RUNNING", b"PENDING", b"SUSPENDED", b"SPECIAL_EXIT")
        for fields in squeue_rows("everyday").values()
    )


def test_no_limit_is_no_limit_and_not_eight_thousand_years() -> None:
    (row,) = [row for row in jobs_of("hostile").values() if row["name"] == "no limit"]
    assert row["limit_seconds"] is None


def test_a_name_with_line_ends_is_one_name() -> None:
    names = {row["name"] for row in jobs_of("hostile").values()}
    assert "line1\nline2\r\ttab" in names
    assert "latin1-\ufffd\ufffd" in names
    assert any(name.startswith("forge\n\tjob_state = C") for name in names)


def test_an_array_is_a_job_with_its_number() -> None:
    (row,) = [row for row in jobs_of("hostile").values() if row["name"] == "sweep"]
    assert (row["array_id"], row["array_task"]) == (None, None)
    assert row["id"].isdigit()


def test_no_job_at_all_is_an_empty_queue() -> None:
    query = WRAPPERS.queue.jobs(JobScope())
    assert listed(query, b"", b"").table.num_rows == 0


def test_an_unknown_job_is_said_to_be_unknown() -> None:
    answer = recorded("empty", "unknown-job")
    with pytest.raises(NoSuchJob):
        WRAPPERS.detail.native(UNKNOWN).parse(answer)


@for_each("name", ["qstat-f", "pbsnodes-a", "qstat-Q-f"])
def test_a_controller_that_is_down_is_slurm_s(name: str) -> None:
    query: Query[Any] = {
        "qstat-f": WRAPPERS.queue.jobs(JobScope()),
        "pbsnodes-a": WRAPPERS.queue.nodes(),
        "qstat-Q-f": WRAPPERS.queue.queues(),
    }[name]
    with pytest.raises(ControllerDown, match="slurmctld"):
        query.parse(recorded("controller-down", name))


# -- nodes and queues


def test_nodes_have_their_states_and_gpus() -> None:
    parsed = WRAPPERS.queue.nodes().parse(recorded("everyday", "pbsnodes-a"))
    rows = {
        row["name"]: row
        for row in table_to_json_rows(parsed.table, schema.public_names(schema.NODES))
    }
    assert {name: row["state"] for name, row in rows.items()} == {
        "g1": "mixed",
        "g2": "drained",
        "n1": "mixed",
        "n2": "mixed",
        "n3": "draining",
        "x1": "down",
    }
    assert (rows["g1"]["gpus"], rows["g1"]["gpu_type"], rows["g1"]["cpus"]) == (4, "a100", 8)
    assert rows["g2"]["reason"] == "GPU 3 fell off the bus: Xid 79"
    # How many are in use is not told.
    assert {(row["cpus_used"], row["jobs"]) for row in rows.values()} == {(None, None)}


def test_the_reason_of_a_node_may_hold_anything() -> None:
    parsed = WRAPPERS.queue.nodes().parse(recorded("hostile", "pbsnodes-a"))
    rows = {row["name"]: row for row in parsed.table.to_pylist()}
    assert set(rows) == {"g1", "g2", "n1", "n2", "n3", "x1"}
    assert "fell off" in rows["n3"]["reason"]
    assert rows["n3"]["cpus"] == 8


def test_queues_are_those_of_slurm() -> None:
    parsed = WRAPPERS.queue.queues().parse(recorded("everyday", "qstat-Q-f"))
    assert parsed.table["name"].to_pylist() == ["main", "debug", "gpu", "long", "closed", "staff"]
    assert parsed.table["nodes"].to_pylist() == [4, 1, 2, 2, 1, 5]
    # closed is down, which is not told.
    assert set(parsed.table["available"].to_pylist()) == {None}


def test_queues_have_their_longest_time_and_the_jobs_that_run() -> None:
    query = WRAPPERS.queue.queues()
    stdout = recorded("everyday", "qstat-Q-f").stdout + recorded("everyday", "qstat-q").stdout
    table = query.parse(CommandResult(query.argv, 0, stdout, b"", 0.05)).table
    hours = [seconds and seconds / 3600 for seconds in table["limit_seconds"].to_pylist()]
    assert hours == [168, 0.5, 48, None, 24, 24]
    assert table["jobs_running"].to_pylist() == [2, 2, 1, 3, 0, 0]
    assert set(table["jobs_pending"].to_pylist()) == {None}


# -- acting


def outcome_of(verb: Verb, name: str) -> tuple[bool | None, str]:
    """What a recorded answer to one job's command means."""
    answer = recorded("acting", name)
    (command,) = WRAPPERS.actions.commands(ActionRequest(verb, (answer.argv[-1],)))
    (outcome,) = command.read(answer)
    return outcome.done, outcome.words


@for_each(
    ("verb", "name", "done", "words"),
    [
        (Verb.HOLD, "qhold-held", True, ""),
        (Verb.HOLD, "qhold-others", False, "Invalid user id"),
        (Verb.HOLD, "qhold-unknown", False, "Invalid job id specified"),
        (Verb.HOLD, "qhold-ended", False, "Job has already finished"),
        (Verb.RELEASE, "qrls-held", True, ""),
        (Verb.RELEASE, "qrls-others", False, "Invalid user id"),
        (Verb.CANCEL, "qdel-running", True, ""),
        (Verb.CANCEL, "qdel-others", False, "Access/permission denied"),
        (Verb.CANCEL, "qdel-unknown", False, "is unknown"),
        (Verb.CANCEL, "qdel-ended", False, "already ended"),
    ],
)
def test_what_became_of_a_job_is_told_in_slurm_s_words(
    verb: Verb, name: str, done: bool, words: str
) -> None:
    told, said = outcome_of(verb, name)
    assert told is done
    assert words in said
    assert bool(said) is not done


def test_a_qrerun_that_cannot_is_a_refusal_with_what_can() -> None:
    done, words = outcome_of(Verb.REQUEUE, "qrerun-running")
    assert done is False
    assert "scontrol requeue" in words


def test_commands_are_as_the_wrappers_take_them() -> None:
    def words(verb: Verb, *job_ids: str) -> list[tuple[str, ...]]:
        return [
            command.argv[3:] for command in WRAPPERS.actions.commands(ActionRequest(verb, job_ids))
        ]

    assert words(Verb.HOLD, "12", "13") == [("qhold", "-h", "u", "12", "13")]
    assert words(Verb.RELEASE, "12", "13") == [("qrls", "12", "13")]
    assert words(Verb.CANCEL, "12") == [("qdel", "12")]
    # qrerun looks at the last of its words only.
    assert words(Verb.REQUEUE, "12", "13") == [("qrerun", "12"), ("qrerun", "13")]


@for_each("job_id", ["12[3]", "12_3", "12[]", "12_[3-5]"])
def test_a_task_which_qdel_would_take_for_its_array_is_refused(job_id: str) -> None:
    # As it was recorded: qdel 117[1] ended all of array 117.
    with pytest.raises(UsageError):
        WRAPPERS.actions.commands(ActionRequest(Verb.CANCEL, (job_id,)))


@for_each(
    ("verb", "changes"),
    [
        (Verb.SUSPEND, {}),
        (Verb.SIGNAL, {}),
        (Verb.ALTER, {"time": "2h"}),
        (Verb.ALTER, {"qos": "x"}),
    ],
)
def test_what_there_is_no_command_for_is_refused_with_the_way_that_is_left(
    verb: Verb, changes: dict[str, str]
) -> None:
    with pytest.raises(UsageError) as refusal:
        WRAPPERS.actions.commands(ActionRequest(verb, ("12",), signal="USR1", changes=changes))
    assert "slurm" in refusal.value.next_step


def test_what_the_backend_offers_is_what_there_is() -> None:
    assert WRAPPERS.actions.alterable == ()
    assert Capability.SUBMIT in WRAPPERS.capabilities
    assert (
        not {Capability.SIGNAL, Capability.SUSPEND, Capability.HISTORY, Capability.ALTER}
        & WRAPPERS.capabilities
    )


# -- submitting


def handed_in(name: str) -> tuple[bool | None, str]:
    """What a recorded answer of qsub means."""
    submit = WRAPPERS.submit.submission(Submission(b"#!/bin/sh\n", "train.sh"))
    (outcome,) = submit.command.read(recorded("acting", name))
    return outcome.done, outcome.words


def test_a_new_job_is_named_by_its_number() -> None:
    done, words = handed_in("qsub-plain")
    assert done is True
    assert words == f"job {recorded('acting', 'qsub-plain').stdout.decode().strip()}"


@for_each(
    ("name", "words"),
    [
        ("qsub-no-queue", "invalid partition specified: nosuch"),
        ("qsub-bad-time", "Invalid time limit specified (soon)"),
        ("qsub-no-script", "Unable to open file nosuch.sh"),
    ],
)
def test_a_refusal_is_sbatch_s_without_the_wrapper_s_report(name: str, words: str) -> None:
    done, said = handed_in(name)
    assert done is False
    assert words in said
    assert "The command was" not in said


def test_a_submission_has_no_mark_and_is_known_by_its_name() -> None:
    submit = WRAPPERS.submit.submission(Submission(b"#!/bin/sh\n", "train.sh", mark="hpcdash:1"))
    assert (submit.mark, submit.job_name) == ("", "train.sh")


def test_what_qsub_s_shell_would_read_is_kept_from_it() -> None:
    submit = WRAPPERS.submit.submission(
        Submission(
            b"#!/bin/sh\n", "train.sh", options=("-N", "$(id) x"), arguments=("a b", "$(id)")
        )
    )
    assert "\\$\\(id\\)\\ x" in submit.command.argv
    assert submit.command.argv[-2:] == ("'a b'", "'$(id)'")
    with pytest.raises(UsageError):
        WRAPPERS.submit.submission(
            Submission(b"#!/bin/sh\n", "train.sh", options=("-W", "group_list=x';id;'"))
        )
