"""What a Ray dashboard answers is read as the recordings say, and what it refuses is told in its
words.
"""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from hpcdash.backends.actions import ActionRequest, Verb
from hpcdash.backends.base import Capability
from hpcdash.backends.job_detail import JobDetail, LogFiles, Script
from hpcdash.backends.queries import JobScope
from hpcdash.backends.ray.backend import BACKEND
from hpcdash.backends.registry import load_backend
from hpcdash.backends.submissions import AS_IT_WAS, SentFile, Submission
from hpcdash.domain import schema
from hpcdash.domain.request import Request
from hpcdash.errors import (
    CommandMissing,
    ControllerDown,
    HpcdashError,
    NoSuchJob,
    SchedulerRefused,
    UnreadableOutput,
    UsageError,
)
from hpcdash.services.jobs.rows import ids_in_full, select_rows
from hpcdash.services.logs.locate import find_other_log
from hpcdash.services.submit.form_fields import absent_fields
from hpcdash.transport.replay import ReplayTransport
from tests.support.play_case import FIXTURES, expected_of, play
from tests.support.records import for_each

CASE = FIXTURES / "ray" / "2.60" / "training"


@dataclass(frozen=True)
class Told:
    """A command's answer: bodies behind their frames."""

    status: int = 0
    stdout: bytes = b""
    stderr: bytes = b""
    argv: tuple[str, ...] = ("GET", "/api/jobs/")
    truncated: bool = field(default=False)


def told(body: object, status: int = 200) -> Told:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Told(0 if status < 300 else status, b"%d %d 1700000100\n" % (status, len(raw)) + raw)


def jobs(*listed: object) -> list[dict[str, Any]]:
    return BACKEND.queue.jobs(JobScope(ended=True)).parse(told(list(listed))).table.to_pylist()


@for_each("case", ["2.60/training", "2.60/tasks", "2.60/slices", "2.9/tasks"])
def test_the_recorded_cluster_is_read_as_its_expected_json_says(case: str) -> None:
    folder = FIXTURES / "ray" / case
    assert expected_of(folder) == json.loads(Path(folder, "expected.json").read_text("utf-8"))


@pytest.mark.parametrize("version", ["2.60", "2.9"])
def test_what_a_recorded_program_runs_writes_and_uses_is_read_of_the_oldest_and_the_newest_ray(
    version: str,
) -> None:
    transport = ReplayTransport(FIXTURES / "ray" / version / "tasks")
    native = play(transport, BACKEND.detail.native("raysubmit_sweep"))
    detail = JobDetail(schema.JOBS.empty_table(), native)
    activity, logs = (
        BACKEND.detail.activity({}, native),
        BACKEND.logs.others(detail, LogFiles(None, None)),
    )
    assert activity is not None
    assert logs is not None
    ran = play(transport, activity)
    assert {one.name for one in ran.counts} >= {"load", "evaluate", "Scores.best", "Scores"}
    assert ("train-0.1", "ValueError: rate 0.1 diverges") in ran.failures
    assert {"train-0.01", "train-0.02", "scores"} <= {
        name for log in play(transport, logs) for name in log.aliases
    }
    nodes = play(transport, BACKEND.inside.use_nodes(native))
    [sample] = play(transport, BACKEND.inside.use(native, nodes))
    assert {"ray::train-0.01", "ray::train-0.02"} <= {one.command for one in sample.processes}
    failed = play(transport, BACKEND.detail.native("raysubmit_noenv"))
    assert BACKEND.reasons.cause(failed).startswith("requests.exceptions.ConnectionError: ")


@for_each(
    ("native", "state"),
    [
        ("PENDING", "pending"),
        ("RUNNING", "running"),
        ("STOPPED", "cancelled"),
        ("SUCCEEDED", "completed"),
        ("FAILED", "failed"),
        ("ASLEEP", "unknown"),
    ],
)
def test_each_state_of_ray_has_one_of_ours(native: str, state: str) -> None:
    [row] = jobs({"submission_id": "a", "status": native})
    assert (row["state"], row["native_state"]) == (state, native)


def test_what_is_not_told_is_unknown_and_not_zero() -> None:
    [row] = jobs(
        {"submission_id": "a", "status": "RUNNING", "start_time": 0, "driver_exit_code": None}
    )
    assert [
        row[name]
        for name in ("started_at", "elapsed_seconds", "exit_code", "node_list", "user", "cpus")
    ] == ([None] * 6)


def test_a_running_job_has_run_by_the_server_s_clock() -> None:
    [row] = jobs({"submission_id": "a", "status": "RUNNING", "start_time": 1_700_000_000_000})
    assert row["elapsed_seconds"] == 100


def test_a_driver_that_connected_by_itself_goes_by_its_own_id_and_has_no_log_here() -> None:
    driver = {
        "type": "DRIVER",
        "job_id": "02000000",
        "submission_id": None,
        "status": "RUNNING",
        "entrypoint": "",
    }
    [row] = jobs(driver | {"driver_node_id": "abc"})
    assert (row["id"], row["name"], row["stdout_path"]) == ("02000000", "driver", None)


def test_a_submission_is_found_by_ray_s_own_number_of_it_unless_that_is_another_s_id() -> None:
    listed = [
        {
            "submission_id": "raysubmit_a",
            "job_id": "0a000000",
            "status": "RUNNING",
            "start_time": 1,
        },
        {"submission_id": "raysubmit_b", "job_id": None, "status": "RUNNING", "start_time": 2},
        {"submission_id": "0c000000", "job_id": "0d000000", "status": "RUNNING", "start_time": 3},
        {
            "submission_id": "raysubmit_c",
            "job_id": "0c000000",
            "status": "RUNNING",
            "start_time": 4,
        },
        {
            "submission_id": "raysubmit_d",
            "job_id": ["0a000000"],
            "status": "RUNNING",
            "start_time": 5,
        },
    ]
    table = BACKEND.queue.jobs(JobScope(job_ids=("0a000000",))).parse(told(listed)).table
    assert table["id"].to_pylist() == ["raysubmit_a"]
    whole = BACKEND.queue.jobs(JobScope()).parse(told(listed)).table
    rows = select_rows(whole, ("0a000000", "0c000000"))
    assert [row["id"] for row in rows] == ["raysubmit_a", "0c000000"]
    assert ids_in_full(("0a000000", "0c000000"), rows) == ("raysubmit_a", "0c000000")


def test_a_job_has_the_resources_of_its_entrypoint_as_its_supervisor_or_its_request_has_them() -> (
    None
):
    noted = {"hpcdash_resources": '{"entrypoint_num_gpus": 2}'}
    listed = [
        {"submission_id": "a", "status": "RUNNING", "start_time": 1},
        {"submission_id": "b", "status": "RUNNING", "start_time": 2, "metadata": noted},
        {"submission_id": "c", "status": "RUNNING", "start_time": 3},
    ]
    space = {"ray_namespace": "SUPERVISOR_ACTOR_RAY_NAMESPACE"}
    actors = [
        {
            **space,
            "name": "_ray_internal_job_actor_a",
            "required_resources": {"CPU": 1.5, "TPU": 4, "memory": 1e9},
        },
        {
            "name": "_ray_internal_job_actor_b",
            "ray_namespace": "own",
            "required_resources": {"CPU": 64},
        },
        {**space, "name": "other", "required_resources": {"CPU": 64}},
    ]
    query = BACKEND.queue.jobs(JobScope())
    assert [path.partition("?")[0] for path in query.argv] == [
        "GET",
        "/api/jobs/",
        "/api/v0/actors",
    ]
    supervisors = told({"data": {"result": {"result": actors}}})
    rows = query.parse(Told(0, told(listed).stdout + supervisors.stdout)).table.to_pylist()
    assert [(row["id"], row["cpus"], row["gpus"], row["memory_bytes"]) for row in rows] == [
        ("a", 2, 4, 1_000_000_000),
        ("b", None, 2, None),
        ("c", None, None, None),
    ]
    without = told(b'{"result": false, "msg": "the agents are gone"}', 500)
    rows = query.parse(Told(500, told(listed).stdout + without.stdout)).table.to_pylist()
    assert [row["gpus"] for row in rows] == [None, 2, None]


def test_one_bad_row_is_counted_and_the_rest_stands() -> None:
    parsed = BACKEND.queue.jobs(JobScope()).parse(
        told([{"status": "RUNNING"}, 7, {"submission_id": "a", "status": "RUNNING"}])
    )
    assert (parsed.table["id"].to_pylist(), len(parsed.rejected)) == (["a"], 2)


def test_a_number_that_is_too_large_for_any_time_or_amount_is_none() -> None:
    found = jobs(
        {
            "submission_id": "raysubmit_a",
            "status": "SUCCEEDED",
            "start_time": 10**400,
            "end_time": -(10**400),
        }
    )
    assert [(row["id"], row["started_at"], row["ends_at"]) for row in found] == [
        ("raysubmit_a", None, None)
    ]


def test_jobs_that_ended_are_history_and_jobs_that_have_not_are_the_queue() -> None:
    listed = [
        {
            "submission_id": "old",
            "status": "SUCCEEDED",
            "start_time": 1_600_000_000_000,
            "end_time": 1_600_000_001_000,
        },
        {
            "submission_id": "new",
            "status": "FAILED",
            "start_time": 1_700_000_000_000,
            "end_time": 1_700_000_050_000,
        },
        {"submission_id": "now", "status": "RUNNING", "start_time": 1_700_000_000_000},
    ]
    assert BACKEND.queue.jobs(JobScope()).parse(told(listed)).table["id"].to_pylist() == ["now"]
    assert BACKEND.history.jobs("", 3600).parse(told(listed)).table["id"].to_pylist() == ["new"]


@for_each(
    ("answer", "error", "words"),
    [
        (told(b"Job x does not exist", 404), NoSuchJob, "does not know this job"),
        (told(b"<html>not found</html>", 404), UnreadableOutput, "no Ray dashboard"),
        (
            told(b"Traceback (most recent call last):\n  x\nRuntimeError: GCS died\n", 500),
            ControllerDown,
            "GCS died",
        ),
        (told(b"bad field", 400), SchedulerRefused, "bad field"),
        (
            told({"result": False, "msg": "Max number reached."}, 429),
            ControllerDown,
            "overloaded",
        ),
        (
            told(b"<html>a login page</html>"),
            UnreadableOutput,
            "not a response from a Ray dashboard",
        ),
        (told({"jobs": 1}), UnreadableOutput, "not a list of Ray jobs"),
        (Told(0, b"200 400 -\ncut"), UnreadableOutput, "cut short"),
        (Told(127, b"", b"no commands"), CommandMissing, "--ray http://"),
        (told(b"[" * 200_000), UnreadableOutput, "not a response from a Ray dashboard"),
    ],
)
def test_an_answer_that_is_none_is_an_error_with_ray_s_own_words(
    answer: Told, error: type[HpcdashError], words: str
) -> None:
    with pytest.raises(error) as raised:
        BACKEND.queue.jobs(JobScope()).parse(answer)
    assert words in str(raised.value)


def test_a_ray_that_is_too_old_is_refused_by_its_version() -> None:
    with pytest.raises(SchedulerRefused, match=r"Ray 2\.8\.1 is too old"):
        BACKEND.probe.query().parse(told({"ray_version": "2.8.1"}))


def test_a_version_of_any_length_is_read() -> None:
    version = f"{'9' * 5000}.{'9' * 5000}"
    assert BACKEND.probe.query().parse(told({"ray_version": version})).version == f"Ray {version}"


def test_what_ray_cannot_do_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(UsageError, match="cannot hold"):
        BACKEND.actions.commands(ActionRequest(Verb.HOLD, ("raysubmit_a",)))
    with pytest.raises(UsageError, match="cannot cancel a job by force"):
        BACKEND.actions.commands(ActionRequest(Verb.CANCEL, ("raysubmit_a",), force=True))
    with pytest.raises(UsageError, match="array: not supported for Ray jobs"):
        BACKEND.submit.submission(Submission(b"true\n", "a.sh", array="1-3"))


def test_an_id_with_a_slash_stays_one_part_of_the_path() -> None:
    [command] = BACKEND.actions.commands(ActionRequest(Verb.CANCEL, ("../../x?y",)))
    assert command.argv == ("POST", "/api/jobs/..%2F..%2Fx%3Fy/stop")
    [outcome] = command.read(
        told(b"Traceback\nRuntimeError: Request failed with status code 404", 500)
    )
    assert (outcome.done, outcome.text) == (False, "Ray cannot stop a job whose ID contains /?")


def test_a_submission_sent_twice_is_one_job() -> None:
    command = BACKEND.submit.submission(
        Submission(b"#!/bin/bash\ntrue\n", "a.sh", mark="hpcdash:0123abcd")
    ).command
    sent = json.loads(command.stdin or b"")
    assert sent["submission_id"] == "raysubmit_0123abcd"
    twice = told(
        b"Traceback\nValueError: Job with submission_id raysubmit_0123abcd already exists. "
        b"Please use",
        500,
    )
    assert [one.new_job for one in command.read(twice)] == ["raysubmit_0123abcd"]
    assert [(one.done, one.text) for one in command.read(told(b"no room", 400))] == [
        (False, "no room")
    ]
    assert [one.done for one in command.read(Told(0, b""))] == [None]


def test_a_script_goes_with_the_request_and_no_argument_is_run() -> None:
    wanted = Submission(b'echo "$1"\n', "a b.sh", arguments=("$(touch x)",), mark="hpcdash:1")
    entrypoint = json.loads(BACKEND.submit.submission(wanted).command.stdin or b"")["entrypoint"]
    assert entrypoint == "bash -c 'echo \"$1\"\n' 'a b.sh' '$(touch x)'"


def test_a_script_is_the_entrypoint_and_what_it_runs_in() -> None:
    transport = ReplayTransport(CASE)
    query = BACKEND.scripts.query("raysubmit_llama7b")
    assert query is not None
    assert play(transport, query).text == (
        "# entrypoint\ncd /home/maya/llama && python -u train.py --config llama-7b.yaml\n\n"
        '# runtime environment\nenv_vars = {"WANDB_MODE": "offline"}\n\n'
        "# metadata\njob_name = llama-7b\nteam = pretrain\n"
    )


def test_a_dead_node_is_down_and_its_resources_are_no_queue_s() -> None:
    nodes = {
        "data": {
            "result": {
                "result": [
                    {
                        "node_id": "a",
                        "node_ip": "10.0.0.1",
                        "state": "ALIVE",
                        "resources_total": {"CPU": 8, "GPU": 4},
                    },
                    {
                        "node_id": "b",
                        "node_ip": "10.0.0.2",
                        "state": "DEAD",
                        "resources_total": {"CPU": 8},
                    },
                ]
            }
        }
    }
    used = {
        "data": {
            "clusterStatus": {
                "loadMetricsReport": {"usageByNode": {"a": {"CPU": [8, 8], "GPU": [1, 4]}}}
            }
        }
    }
    answer = Told(0, told(nodes).stdout + told(used).stdout)
    rows = BACKEND.queue.nodes().parse(answer).table.to_pylist()
    assert [(row["name"], row["state"], row["cpus_used"], row["gpus_used"]) for row in rows] == [
        ("10.0.0.1", "mixed", 8, 1),
        ("10.0.0.2", "down", None, None),
    ]
    queues = BACKEND.queue.queues().parse(answer).table.to_pylist()
    assert [(row["name"], row["nodes"], row["_note"]) for row in queues] == [
        ("CPU", 1, "8 of 8 in use"),
        ("GPU", 1, "1 of 4 in use"),
    ]


def test_memory_and_load_of_a_node_are_what_its_agent_measures() -> None:
    def node(number: str, state: str) -> dict[str, Any]:
        return {
            "node_id": number,
            "node_ip": number,
            "state": state,
            "resources_total": {"CPU": 8, "memory": 100},
        }

    def measured(number: str, **values: Any) -> dict[str, Any]:
        return {
            "raylet": {"nodeId": number},
            "mem": [1000, 400, 60.0, 550],
            "loadAvg": [[2.5, 2, 1], [0.3]],
            **values,
        }

    nodes = {
        "data": {
            "result": {"result": [node(name, "ALIVE") for name in "abcd"] + [node("e", "DEAD")]}
        }
    }
    summaries = [
        measured("a"),
        measured("b", mem=[1000, 4000], loadAvg=[[float("inf")]]),
        measured("c", mem="much", loadAvg=None),
        measured("e"),
        {"raylet": None},
    ]
    used = {"data": {"clusterStatus": {"loadMetricsReport": {"usageByNode": {}}}}}
    query = BACKEND.queue.nodes()
    assert query.argv[-1] == "/nodes?view=summary"
    frames = b"".join(told(one).stdout for one in (nodes, used, {"data": {"summary": summaries}}))
    rows = query.parse(Told(0, frames)).table.to_pylist()
    assert [
        (row["name"], row["memory_used_bytes"], row["memory_bytes"], row["load"]) for row in rows
    ] == [
        ("a", 600, 1000, 2.5),
        ("b", None, 100, None),
        ("c", None, 100, None),
        ("d", None, 100, None),
        ("e", None, 100, None),
    ]


def test_what_is_not_offered_on_ray_is_no_key_and_no_command() -> None:
    offered = BACKEND.capabilities
    assert {
        Capability.SUBMIT,
        Capability.CANCEL,
        Capability.DELETE,
        Capability.LOGS,
        Capability.FORM,
    } <= offered
    assert not offered & {Capability.CHAINS, Capability.ERROR_LOGS, Capability.INSIDE}
    for capability in (Capability.CHAINS, Capability.INSIDE, Capability.CONNECT, Capability.SHARES):
        with pytest.raises(UsageError, match="Ray cannot "):
            BACKEND.require(capability)
    BACKEND.require(Capability.LIVE_USE)
    assert not offered & {
        Capability.HOLD,
        Capability.ALTER,
        Capability.SIGNAL,
        Capability.REQUEUE,
        Capability.OWNERS,
    }
    absent = absent_fields(BACKEND)
    assert {"queue", "time", "array", "chain", "place", "begin"} <= absent
    assert not absent & {"name", "command", "files", "slots", "memory", "slice", "environment"}
    assert {"slice", "num_slices"} <= absent_fields(load_backend("slurm"))


def summary(rows: dict[str, Any], warning: str = "") -> dict[str, Any]:
    clusters = {"node_id_to_summary": {"cluster": {"summary": rows}}}
    return {
        "result": True,
        "data": {"result": {"result": clusters, "partial_failure_warning": warning}},
    }


def test_tasks_and_actors_are_counted_by_name_and_state_and_failures_have_their_cause() -> None:
    tasks = {
        "shard": {
            "func_or_class_name": "shard",
            "state_counts": {"RUNNING": 2, "FINISHED": 1, "FAILED": 1},
        },
        "never": {
            "func_or_class_name": "never",
            "state_counts": {"PENDING_NODE_ASSIGNMENT": 1, "NEW_ONE": 1},
        },
        "odd": {"func_or_class_name": 7, "state_counts": None},
    }
    failed = [
        {
            "name": "shard-3",
            "error_type": "TASK_EXECUTION_EXCEPTION",
            "error_message": 'ray::shard() (pid=7)\n  File "x"\nValueError: it is broken\n',
        },
        {
            "name": "shard-4",
            "error_type": "OUT_OF_MEMORY",
            "error_message": "A worker was killed.\n\nSee the docs.",
        },
        {
            "name": "shard-5",
            "error_type": "NODE_DIED",
            "error_message": "Task failed … Node IP: 10.0.0.9, node ID: 4",
        },
        {"name": "quiet"},
    ]
    listed = {"data": {"result": {"result": failed}}}
    query = BACKEND.detail.activity({}, {"job_id": "02/&x=1"})
    assert query is not None
    assert "filter_values=02%2F%26x%3D1" in query.argv[1]
    assert BACKEND.detail.activity({}, {"submission_id": "raysubmit_a"}) is None
    actors = told(b'{"result": false, "msg": "the agents are gone"}', 500)
    parts = (told(summary(tasks, "2 of 7 nodes did not respond")), actors, told(listed))
    activity = query.parse(Told(500, b"".join(part.stdout for part in parts)))
    counted = told(summary({"Server": {"class_name": "Server", "state_counts": {"ALIVE": 2}}}))
    restarted = [{"class_name": "Server", "num_restarts": count} for count in ("2", 1, None)]
    truncated = {"result": restarted, "total": 20, "num_after_truncation": 10, "num_filtered": 3}
    whole = (told(summary({})), counted, told(listed), told({"data": {"result": truncated}}))
    actors_of = query.parse(Told(0, b"".join(part.stdout for part in whole)))
    assert [(one.name, one.restarts) for one in actors_of.counts] == [("Server", 3)]
    assert actors_of.notes == ("restarts of actors: Ray examined 10 of 20",)
    assert [(one.kind, one.name, one.states) for one in activity.counts] == [
        (
            "task",
            "shard",
            (("failed", "failed", 1), ("running", "running", 2), ("finished", "completed", 1)),
        ),
        ("task", "never", (("new one", "unknown", 1), ("waiting for a node", "pending", 1))),
    ]
    assert activity.failures == (
        ("shard-3", "ValueError: it is broken"),
        ("shard-4", "A worker was killed."),
        ("shard-5", "node 10.0.0.9 died"),
    )
    assert activity.notes == (
        "tasks: 2 of 7 nodes did not respond",
        "actors: the agents are gone",
    )
    with pytest.raises(ControllerDown):
        query.parse(actors)


def test_the_tasks_and_actors_of_a_node_are_those_of_all_programs_there() -> None:
    def listed(*rows: dict[str, Any], **more: int) -> bytes:
        return told({"data": {"result": {"result": rows, **more}}}).stdout

    nodes = listed(
        {"node_id": "n1", "node_ip": "10.0.0.1"}, {"node_id": "n2", "node_ip": "10.0.0.2"}
    )
    running = [
        {"node_id": node, "name": name, "state": "RUNNING"}
        for node, name in (("n1", "a"), ("n2", "b"))
    ]
    actors = [
        {"node_id": "n1", "class_name": "Server", "state": "ALIVE", "num_restarts": "2"},
        {"node_id": "n1", "class_name": "Server", "state": "RESTARTING", "num_restarts": "3"},
        {"node_id": None, "class_name": "Waits", "state": "PENDING_CREATION"},
        {"node_id": ["n1"], "class_name": "Odd", "state": "ALIVE"},
    ]
    query = BACKEND.queue.node_activity("10.0.0.1")
    assert query is not None
    whole = nodes + listed(*running, total=9, num_filtered=9) + listed(*actors)
    activity = query.parse(Told(0, whole))
    assert [(one.kind, one.name, one.states, one.restarts) for one in activity.counts] == [
        ("task", "a", (("running", "running", 1),), 0),
        ("actor", "Server", (("alive", "running", 1), ("restarting", "pending", 1)), 5),
    ]
    assert activity.notes == ("tasks of all nodes: 2 of 9 are listed",)
    with pytest.raises(ControllerDown):
        query.parse(Told(500, nodes + told(b"gone", 500).stdout + listed()))


def test_the_cause_of_a_failed_start_is_the_last_error_of_its_message_and_a_failed_command_s_is_in_its_log() -> (
    None
):
    message = (
        "Traceback (most recent call last):\n  x\nRuntimeError: Failed to set up runtime "
        "environment.\n"
    )
    assert BACKEND.reasons.cause({"status": "FAILED", "message": message}) == (
        "RuntimeError: Failed to set up runtime environment."
    )
    logged = "Job entrypoint command failed with exit code 7, last available logs:\nstep 1\n"
    assert BACKEND.reasons.cause({"status": "FAILED", "message": logged}) == ""
    assert (
        BACKEND.reasons.cause({"status": "RUNNING", "message": "Job is currently running."}) == ""
    )


def test_driver_metadata_and_runtime_environment_are_groups_of_the_job_page() -> None:
    native = {
        "driver_info": '{"node_ip_address": "10.0.0.1", "pid": "17"}',
        "metadata": '{"team": "x", "n": 3}',
        "runtime_env": "not JSON",
    }
    assert BACKEND.detail.facts(native) == {
        "Driver": {"address": "10.0.0.1", "process": "17"},
        "Metadata": {"n": "3", "team": "x"},
    }


def test_an_ended_job_is_deleted_by_one_request_and_a_running_one_is_refused_in_ray_s_words() -> (
    None
):
    [command] = BACKEND.actions.commands(ActionRequest(Verb.DELETE, ("a/b",)))
    assert command.argv == ("DELETE", "/api/jobs/a%2Fb")
    refused = (
        b"Traceback\nRuntimeError: failed with 500: Traceback\n  x\nRuntimeError: it is in "
        b"a non-terminal state\n."
    )
    answers = [
        told({"deleted": True}),
        told(refused, 500),
        told(b"Job a does not exist", 404),
        Told(0, b"cut"),
    ]
    assert [(one.done, one.text) for answer in answers for one in command.read(answer)] == [
        (True, ""),
        (False, "RuntimeError: it is in a non-terminal state"),
        (False, "Job a does not exist"),
        (None, "the answer was cut short"),
    ]


def test_each_worker_has_a_log_named_by_what_it_ran_and_no_task_can_name_another_file() -> None:
    worker, other = "ab" * 28, "cd" * 28
    ran = {"node_id": "n1", "worker_id": worker, "worker_pid": 7}
    listed = [
        {**ran, "name": "shard-1", "state": "RUNNING", "creation_time_ms": 3},
        {**ran, "name": "shard-0", "state": "FINISHED", "creation_time_ms": 2},
        {
            "name": "ps:Server.__init__",
            "actor_id": "a1",
            "type": "ACTOR_CREATION_TASK",
            "state": "FINISHED",
        },
        {
            "node_id": "n2",
            "worker_id": other,
            "actor_id": "a1",
            "name": "Server.ping",
            "state": "FINISHED",
        }
        | {"task_log_info": {"stdout_file": "/tmp/ray/logs/own.out", "stderr_file": "/etc/shadow"}},
        {"node_id": "n2", "worker_id": "../../x", "name": "evil", "state": "RUNNING"},
        {"name": "waits", "state": "PENDING_NODE_ASSIGNMENT"},
    ]
    detail = JobDetail(
        schema.JOBS.empty_table(), {"job_id": "02", "driver_node_id": "n1", "runtime_env": "{}"}
    )
    query = BACKEND.logs.others(detail, LogFiles(None, None))
    assert query is not None
    head, dead = "ab" * 28, "cd" * 28
    nodes = [
        {"node_id": head, "node_ip": "10.0.0.1", "state": "ALIVE", "is_head_node": True},
        {"node_id": dead, "node_ip": "n2", "state": "DEAD"},
        {"node_id": "../../x", "node_ip": "n1", "state": "ALIVE"},
    ]
    frames = [told({"data": {"result": {"result": rows}}}).stdout for rows in (listed, nodes)]
    logs = query.parse(Told(0, b"".join(frames)))
    assert [(log.name, log.title, log.files.stdout, log.files.stderr) for log in logs] == [
        (
            "cdcdcdcd",
            "ps, Server.ping · 1 task: 1 finished · node n2",
            "/ray-logs/n2/own.out",
            f"/ray-logs/n2/worker-{other}-02-0.err",
        ),
        (
            "abababab",
            "shard-0, shard-1 · 2 tasks: 1 finished, 1 running · pid 7 on node n1",
            f"/ray-logs/n1/worker-{worker}-02-7.out",
            f"/ray-logs/n1/worker-{worker}-02-7.err",
        ),
        (
            "setup",
            "runtime environment setup",
            "/ray-logs/n1/runtime_env_setup-02.log",
            None,
        ),
        (
            "gcs",
            "Ray's control service on node 10.0.0.1",
            f"/ray-logs/{head}/gcs_server.out",
            f"/ray-logs/{head}/gcs_server.err",
        ),
    ]
    assert find_other_log(logs, "ps").name == "cdcdcdcd"
    with pytest.raises(
        UsageError, match="this job has no other log named evil: cdcdcdcd, abababab, setup"
    ):
        find_other_log(logs, "evil")
    assert (
        BACKEND.logs.others(
            JobDetail(schema.JOBS.empty_table(), {"submission_id": "a"}), LogFiles(None, None)
        )
        is None
    )


def test_a_list_of_tasks_that_ray_cuts_is_reported_with_the_logs_of_their_workers() -> None:
    task = {"node_id": "n1", "worker_id": "ab" * 28, "name": "shard", "state": "RUNNING"}
    query = BACKEND.logs.others(
        JobDetail(schema.JOBS.empty_table(), {"job_id": "02"}), LogFiles(None, None)
    )
    assert query is not None
    [log] = query.parse(
        told(
            {
                "data": {
                    "result": {"result": [task], "total": 23_000, "num_after_truncation": 10_000}
                }
            }
        )
    )
    assert log.title == "shard · 1 task: 1 running · node n1 · tasks: Ray examined 10000 of 23000"


def test_the_raylets_of_a_job_s_nodes_have_logs_also_before_its_program_connects() -> None:
    nodes = [
        {"node_id": f"{number:056x}", "node_ip": f"10.0.0.{number}", "state": "ALIVE"}
        for number in range(3)
    ]
    detail = JobDetail(schema.JOBS.empty_table(), {"driver_node_id": f"{2:056x}"})
    query = BACKEND.logs.others(detail, LogFiles(None, None))
    assert query is not None
    [log] = query.parse(told({"data": {"result": {"result": nodes}}}))
    assert (log.name, log.aliases) == ("raylet@10.0.0.2", ("raylet",))
    assert log.files == LogFiles(f"/ray-logs/{2:056x}/raylet.out", f"/ray-logs/{2:056x}/raylet.err")


def test_placement_groups_are_reservations_with_what_they_hold_and_where() -> None:
    def group(
        number: str, name: str, state: str, *bundles: tuple[str, dict[str, float]], **more: Any
    ) -> dict[str, Any]:
        listed = [{"node_id": node, "unit_resources": held} for node, held in bundles]
        stats = {"creation_request_received_ns": "1700000000123456789", **more}
        return {
            "placement_group_id": number * 36,
            "name": name,
            "state": state,
            "bundles": listed,
            "stats": stats,
            "creator_job_id": "02",
        }

    groups = [
        group("a", "pair", "CREATED", ("n1", {"CPU": 1}), ("n2", {"CPU": 1})),
        group("b", "", "PENDING", ("", {"GPU": 8, "CPU": 2}), scheduling_state="INFEASIBLE"),
        group("c", "twice", "CREATED"),
        group("d", "twice", "RESCHEDULING"),
        {"name": "no ID"},
    ]
    listed = {"result": groups, "total": 9, "num_after_truncation": 9, "num_filtered": 7}
    nodes = {"result": [{"node_id": "n1", "node_ip": "10.0.0.1"}]}
    frames = [told({"data": {"result": part}}).stdout for part in (listed, nodes)]
    parsed = BACKEND.policy.reservations("").parse(Told(0, b"".join(frames)))
    columns = ("name", "state", "starts_at", "nodes", "node_list", "queue", "flags")
    rows = [[row[name] for name in columns] for row in parsed.table.to_pylist()]
    began = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    missing = "no nodes have these resources"
    assert rows == [
        ["bbbbbbbb", "pending", None, None, None, "CPU,GPU", ["CPU=2 GPU=8", missing, "of job 02"]],
        ["twice dddddddd", "rescheduling", None, None, None, None, ["of job 02"]],
        ["pair", "active", began, 2, "10.0.0.1,n2", "CPU", ["CPU=1 ×2", "of job 02"]],
        ["twice cccccccc", "active", began, None, None, None, ["of job 02"]],
    ]
    assert parsed.rejected == ("{'name': 'no ID'}", "placement groups: 5 of 7 are listed")


def test_a_folder_goes_in_one_package_whose_name_is_its_content_s() -> None:
    request = Request(
        name="train", command="python train.py", environment={"TOKEN": "s3cret"}, labels=("a", "b")
    )
    files = {
        "train.py": SentFile(b"print(1)\n"),
        "bin/tool": SentFile(b"#!/bin/sh\n", is_program=True),
    }
    first, second = (
        BACKEND.submit.request(request, b"PK", f"hpcdash:{mark}", files) for mark in "12"
    )
    [upload] = first.before
    assert upload.argv == second.before[0].argv
    with zipfile.ZipFile(io.BytesIO(upload.stdin or b"")) as package:
        modes = {entry.filename: entry.external_attr >> 16 for entry in package.infolist()}
        assert package.read("train.py") == b"print(1)\n"
        assert b"s3cret" in package.read("hpcdash-run.sh")
    assert modes == {
        **dict.fromkeys(("hpcdash-job.zip", "hpcdash-run.sh", "train.py"), 0o100600),
        "bin/tool": 0o100700,
    }
    body = json.loads(first.submission.command.stdin or b"")
    assert body["runtime_env"] == {"working_dir": f"gcs://{upload.argv[1].rpartition('/')[2]}"}
    assert body["metadata"] == {"job_name": "train", "labels": "a,b", "hpcdash_script": first.shown}
    assert "2 files of yours" in upload.text
    assert "s3cret" not in first.shown + upload.text + str(body)
    assert first.is_sent is not None
    assert first.is_sent.argv == ("GET", upload.argv[1])
    assert [first.is_sent.parse(told(b"", status)) for status in (200, 404, 500)] == [
        True,
        False,
        False,
    ]


def test_a_request_submitted_again_asks_for_the_same_if_its_package_is_still_there() -> None:
    request = Request(command="true", slots=2, memory_bytes=4 << 30)
    made = BACKEND.submit.request(request, b"PK", "hpcdash:1", {})
    body = json.loads(made.submission.command.stdin or b"")
    native = {key: json.dumps(body[key]) for key in ("metadata", "runtime_env")}
    native |= {"submission_id": body["submission_id"], "entrypoint": body["entrypoint"]}
    detail = JobDetail(pa.Table.from_pylist([{"id": body["submission_id"], "name": "job"}]), native)
    again = BACKEND.submit.resubmission(detail, {}, Script("", ""), None, "hpcdash:2", AS_IT_WAS)
    assert json.loads(again.command.stdin or b"") == body | {"submission_id": "raysubmit_2"}
    assert again.check is not None
    assert again.check.argv == ("GET", made.before[0].argv[1])
    again.check.parse(told(b"PK"))
    with pytest.raises(SchedulerRefused, match="deleted the package"):
        again.check.parse(told(b"", 404))


@for_each(
    ("request_", "files", "words"),
    [
        (
            Request(command="true"),
            {"hpcdash-run.sh": SentFile(b"")},
            "files: hpcdash uses the name hpcdash-run.sh itself",
        ),
        (Request(command="true", begin="+2h"), {}, "begin: not supported for Ray jobs"),
        (Request(command="true", queue="x"), {}, "queue: not supported for Ray jobs"),
        (Request(command="true", plain=True), {}, "plain: a Ray job has no batch script"),
    ],
    ids=("own name", "begin", "queue", "plain"),
)
def test_what_cannot_go_with_a_request_is_refused_before_anything_is_sent(
    request_: Request, files: dict[str, SentFile], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        BACKEND.submit.request(request_, b"PK", "hpcdash:1", files)


def test_a_list_over_the_cap_is_said_to_be_too_large() -> None:
    with pytest.raises(UnreadableOutput, match="only the first 1000B were read"):
        BACKEND.queue.jobs(JobScope()).parse(Told(0, b"200 990 -\n" + b"[" * 990, truncated=True))


def test_the_use_of_a_job_is_that_of_its_own_processes_on_each_node_they_are_on() -> None:
    native = {"job_id": "02"}
    workers = [{"jobId": "02", "pid": 7}]
    summary = [
        {"raylet": {"nodeId": "n1", "coreWorkersStats": workers}},
        {"raylet": {"nodeId": "n2", "coreWorkersStats": [{"jobId": "01"}]}},
        {"raylet": None},
    ]
    asked = BACKEND.inside.use_nodes(native)
    assert asked.parse(told({"data": {"summary": summary}})) == ("n1",)
    with pytest.raises(UsageError, match="Ray does not measure any process of this job"):
        asked.parse(told({"data": {"summary": summary[1:]}}))
    with pytest.raises(UsageError, match="connected"):
        BACKEND.inside.use_nodes({"submission_id": "a"})
    times = {"user": 3.0, "system": 1.0, "childrenUser": 0.5}
    own = {
        "pid": 7,
        "jobId": "02",
        "cpuTimes": times,
        "memoryInfo": {"rss": 100.0},
        "cmdline": ["ray::shard", "", ""],
    }
    other = own | {"pid": 8, "jobId": "01"}
    gpus = [
        {
            "index": 0,
            "utilizationGpu": 90,
            "memoryUsed": 10,
            "memoryTotal": 40,
            "processesPids": [{"pid": 7}],
        },
        {"index": 1, "utilizationGpu": 20, "processesPids": [{"pid": 8}]},
        {"index": 2, "utilizationGpu": 0, "processesPids": None},
    ]
    detail = {
        "ip": "10.0.0.1",
        "now": 5.5,
        "cpus": [8, 4],
        "workers": [own, other, {"jobId": "02"}],
        "gpus": gpus,
    }
    query = BACKEND.inside.use(native, ("n1", "n2"))
    gone = told(b"not found", 404)
    [sample] = query.parse(Told(404, told({"data": {"detail": detail}}).stdout + gone.stdout))
    assert (sample.node, sample.up_seconds, sample.cpus, sample.memory_bytes) == (
        "10.0.0.1",
        5.5,
        8,
        100,
    )
    assert [(one.pid, one.cpu_seconds, one.command) for one in sample.processes] == [
        (7, 4.5, "ray::shard")
    ]
    assert [(gpu.index, gpu.percent, gpu.memory_bytes) for gpu in sample.gpus] == [
        ("0", 90.0, 10 << 20)
    ]


def test_json_that_is_none_hides_no_other_job() -> None:
    odd = (
        b'{"submission_id": "b", "status": "RUNNING", "metadata": {"name": "\\ud800 nan"}, '
        b'"runtime_env": {"x": NaN}}'
    )
    jobs = b'[{"submission_id": "a", "status": "RUNNING", "start_time": 1}, ' + odd + b"]"
    rows = BACKEND.queue.jobs(JobScope()).parse(told(jobs)).table.to_pylist()
    assert [(row["id"], row["name"]) for row in rows] == [("a", "driver"), ("b", "? nan")]
    job = BACKEND.history.native("b").parse(
        told(b'{"status": "RUNNING", "runtime_env": {"x": NaN}}')
    )
    assert BACKEND.detail.facts(job)["Runtime environment"] == {"x": "NaN"}


def test_a_node_that_died_uses_nothing_although_ray_still_tells_what_it_did() -> None:
    def node(number: str, state: str) -> dict[str, Any]:
        worker = {"jobId": "02", "pid": 7, "cpuTimes": {"user": 1.0}, "memoryInfo": {"rss": 1024}}
        raylet = {"nodeId": number, "state": state, "coreWorkersStats": [{"jobId": "02", "pid": 7}]}
        return {"ip": number, "now": 5.0, "workers": [worker], "raylet": raylet}

    nodes = [node("n1", "ALIVE"), node("n2", "DEAD")]
    native = {"job_id": "02"}
    assert BACKEND.inside.use_nodes(native).parse(told({"data": {"summary": nodes}})) == ("n1",)
    answers = Told(0, b"".join(told({"data": {"detail": one}}).stdout for one in nodes))
    assert [sample.node for sample in BACKEND.inside.use(native, ("n1", "n2")).parse(answers)] == [
        "n1"
    ]


def test_a_dashboard_whose_version_never_ends_is_an_error_that_names_the_request() -> None:
    query = BACKEND.probe.query()
    assert query.cap_bytes == 64 << 10
    with pytest.raises(UnreadableOutput) as caught:
        query.parse(Told(stdout=b"200 99999999 -\n" + b"x" * 100, argv=query.argv, truncated=True))
    assert "GET /api/version" in str(caught.value)
