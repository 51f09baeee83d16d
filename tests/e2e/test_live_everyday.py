"""What jobs, nodes, queues, history and show print of an ordinary day on a real Slurm, over ssh and
on the spot.
"""

from __future__ import annotations

import csv
import io
import re
import subprocess
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.e2e.scene import DRAIN_REASON, IRREGULAR_TASKS, Scene
from tests.support.program import Program, find_row

pytestmark = pytest.mark.slurm_releases

# ruff: noqa: SIM905
JOB_KEYS = (
    "id array_id array_task name user account queue qos state native_state reason priority nodes "
    "cpus gpus "
    "memory_bytes elapsed_seconds limit_seconds submitted_at eligible_at started_at ends_at "
    "node_list work_dir "
    "stdout_path stderr_path dependency comment exit_code exit_signal"
).split()
NODE_KEYS = (
    "name state native_state flags reason reason_by reason_since queues cpus cpus_used gpus "
    "gpus_used gpu_type "
    "memory_bytes memory_used_bytes load features jobs"
).split()
QUEUE_KEYS = (
    "name available default limit_seconds nodes nodes_idle nodes_down cpus cpus_used gpus "
    "gpus_used jobs_running "
    "jobs_pending"
).split()
JOB_COUNTS = {"priority", "nodes", "cpus", "gpus", "memory_bytes", "exit_code", "exit_signal"}
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


def utc(epoch: str | int) -> str:
    return datetime.fromtimestamp(int(epoch), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def assert_job_types(job: dict[str, Any]) -> None:
    for key, value in job.items():
        if value is None:
            continue
        if key in JOB_COUNTS or key.endswith("_seconds"):
            assert type(value) is int, (key, value)
            assert value >= 0, (key, value)
        elif key.endswith("_at"):
            assert TIME.fullmatch(value), (key, value)
        else:
            assert type(value) is str, (key, value)
            assert value not in ("", "N/A", "(null)", "None"), (key, value)


@pytest.fixture(params=["over_ssh", "locally"])
def program(request: pytest.FixtureRequest, scene: Scene) -> Program:
    found: Program = request.getfixturevalue(request.param)
    return found


@pytest.mark.parametrize(
    ("kind", "key", "keys"),
    [
        ("jobs", "jobs", JOB_KEYS),
        ("history", "jobs", JOB_KEYS),
        ("nodes", "nodes", NODE_KEYS),
        ("queues", "queues", QUEUE_KEYS),
    ],
)
def test_json_keeps_the_contract_and_csv_has_the_same_table(
    program: Program, kind: str, key: str, keys: list[str]
) -> None:
    answer = program(kind, "--all", "--format", "json").json
    assert list(answer) == ["schema", "cluster", "backend", "taken_at", "rejected_rows", key]
    cluster = "local" if program.before == ("--local",) else "lab-alice"
    assert (answer["schema"], answer["cluster"], answer["backend"]) == (1, cluster, "slurm")
    assert TIME.fullmatch(answer["taken_at"])
    assert answer["rejected_rows"] == 0
    rows = answer[key]
    assert rows
    assert all(list(row) == keys for row in rows)
    if key == "jobs":
        for job in rows:
            assert_job_types(job)
    printed = program(kind, "--all", "--format", "csv")
    table = list(csv.DictReader(io.StringIO(printed.text, newline="")))
    assert (printed.status, printed.stderr) == (0, "")
    moving = {"elapsed_seconds", "load", "priority"}
    name = keys[0]
    by_name = {row[name]: row for row in table}
    assert len(table) == len(rows)
    for row in rows:
        for column in set(keys) - moving:
            assert by_name[row[name]][column] == in_csv(row[column]), (row[name], column)


def in_csv(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(value) if isinstance(value, list) else str(value)


def test_ones_own_jobs_are_the_default_and_all_are_everyones(
    over_ssh: Program, scene: Scene
) -> None:
    whole_queue = scene.squeue("-o", "%i|%u")
    own = over_ssh.rows("jobs")
    assert sorted(job["id"] for job in own) == sorted(
        scene.squeue("--me", "-o", "%i", user="alice")
    )
    assert {job["user"] for job in own} == {scene.lab.alice}
    assert sorted(f"{job['id']}|{job['user']}" for job in over_ssh.rows("jobs", "--all")) == sorted(
        whole_queue
    )
    assert over_ssh.rows("jobs", "--mine") == own or len(over_ssh.rows("jobs", "--mine")) == len(
        own
    )


def test_root_has_no_jobs_of_its_own_but_sees_those_of_all(locally: Program, scene: Scene) -> None:
    assert locally.rows("jobs") == []
    everyones = locally.rows("jobs", "--all")
    assert sorted(job["id"] for job in everyones) == sorted(scene.squeue("-o", "%i"))


def test_what_waits_of_an_array_is_one_row_however_irregular(
    over_ssh: Program, scene: Scene
) -> None:
    jobs = over_ssh.rows("jobs")
    waiting = find_row(jobs, f"{scene.array}_[2-10%1]")
    assert (waiting["array_id"], waiting["array_task"], waiting["state"]) == (
        scene.array,
        "2-10%1",
        "pending",
    )
    running = find_row(jobs, f"{scene.array}_1")
    assert (running["array_id"], running["array_task"], running["state"]) == (
        scene.array,
        "1",
        "running",
    )
    (irregular,) = [job for job in jobs if job["array_id"] == scene.irregular]
    assert irregular["id"] == scene.squeue("-j", scene.irregular, "-o", "%i")[0]
    assert "..." not in irregular["id"]
    assert irregular["state"] == "held"
    assert {int(task) for task in IRREGULAR_TASKS.split(",")} == array_tasks(
        irregular["array_task"]
    )


def array_tasks(text: str) -> set[int]:
    tasks: set[int] = set()
    for part in text.split(","):
        span, _, step = part.partition(":")
        first, _, last = span.partition("-")
        tasks |= set(range(int(first), int(last or first) + 1, int(step or 1)))
    return tasks


def test_a_running_training_has_its_gpus_memory_times_and_node(
    program: Program, scene: Scene
) -> None:
    job = find_row(program.rows("jobs", "--all"), scene.training)
    started, ends, submitted, priority = scene.squeue("-j", scene.training, "-o", "%S %e %V %Q")[
        0
    ].split()
    assert (job["state"], job["native_state"], job["reason"]) == ("running", "RUNNING", None)
    assert (job["name"], job["user"], job["account"], job["queue"], job["qos"]) == (
        *("train lr=1e-3", scene.lab.alice, "physics", "gpu", "normal"),
    )
    assert (job["nodes"], job["cpus"], job["gpus"], job["memory_bytes"]) == (1, 4, 2, 4 << 30)
    assert (job["limit_seconds"], job["node_list"], job["comment"]) == (7200, "g1", "best so far")
    assert (job["started_at"], job["ends_at"], job["submitted_at"]) == (
        utc(started),
        utc(ends),
        utc(submitted),
    )
    assert int(ends) - int(started) == 7200
    assert 0 <= job["elapsed_seconds"] < 600
    assert abs(job["priority"] - int(priority)) < 1000
    assert job["work_dir"] == str(scene.lab.work_dir("alice"))
    assert (job["stdout_path"], job["stderr_path"], job["exit_code"], job["exit_signal"]) == (
        None,
    ) * 4
    assert (job["array_id"], job["array_task"], job["dependency"]) == (None, None, None)


def test_waiting_jobs_say_whether_they_are_held_what_for_and_with_how_many_gpus(
    over_ssh: Program, scene: Scene
) -> None:
    jobs = over_ssh.rows("jobs")
    held = find_row(jobs, scene.held)
    assert (held["state"], held["native_state"], held["reason"]) == (
        "held",
        "PENDING",
        "JobHeldUser",
    )
    assert (held["limit_seconds"], held["node_list"]) == (86400, None)
    assert (held["started_at"], held["ends_at"], held["elapsed_seconds"]) == (None, None, 0)
    by_root = find_row(jobs, scene.held_by_root)
    assert (by_root["state"], by_root["reason"]) == ("held", "JobHeldAdmin")
    assert find_row(jobs, scene.gpus_held)["gpus"] == 3
    dependent = find_row(jobs, scene.dependent)
    assert (dependent["state"], dependent["reason"]) == ("pending", "Dependency")
    assert dependent["dependency"].startswith(f"afterok:{scene.training}")


def test_a_drained_node_says_why_by_whom_and_since_when(program: Program, scene: Scene) -> None:
    shown = scene.lab.admin(
        "env", "SLURM_TIME_FORMAT=%s", "sinfo", "-hNn", "n3", "-p", "long", "-o", "%H"
    ).stdout
    nodes = {node["name"]: node for node in program.rows("nodes")}
    assert list(nodes) == ["g1", "g2", "n1", "n2", "n3", "x1"]
    drained = nodes["n3"]
    assert (drained["state"], drained["reason"], drained["reason_by"]) == (
        "drained",
        DRAIN_REASON,
        "root",
    )
    assert drained["reason_since"] == utc(shown.decode().split()[0])
    assert drained["flags"] == ["drain"] or drained["flags"] == []
    assert nodes["x1"]["state"] == "down"
    training = nodes["g1"]
    assert (training["state"], training["cpus"], training["cpus_used"]) == ("mixed", 8, 4)
    assert (training["gpus"], training["gpus_used"], training["gpu_type"], training["jobs"]) == (
        4,
        2,
        "a100",
        1,
    )
    assert (training["memory_bytes"], training["memory_used_bytes"]) == (16000 << 20, 4 << 30)
    assert training["features"] == ["gpu", "a100"]
    assert sorted(training["queues"]) == ["gpu", "staff"]
    idle = nodes["g2"]
    assert (idle["state"], idle["reason"], idle["reason_by"], idle["reason_since"]) == (
        "idle",
        None,
        None,
        None,
    )


def test_the_queues_of_a_node_stand_in_the_same_order_at_each_poll(
    locally: Program, scene: Scene
) -> None:
    # sinfo itself changes it from call to call.
    seen = [[node["queues"] for node in locally.rows("nodes")] for _ in range(4)]
    assert seen[1:] == seen[:-1]


def test_queues_have_their_limits_and_their_load(program: Program, scene: Scene) -> None:
    queues = {queue["name"]: queue for queue in program.rows("queues")}
    assert set(queues) == {"main", "debug", "gpu", "long", "closed", "staff"}
    assert [name for name, queue in queues.items() if queue["default"]] == ["main"]
    assert [name for name, queue in queues.items() if not queue["available"]] == ["closed"]
    limits = {name: queue["limit_seconds"] for name, queue in queues.items()}
    assert limits == {
        "main": 604800,
        "debug": 1800,
        "gpu": 172800,
        "long": None,
        "closed": 86400,
        "staff": 86400,
    }
    gpu = queues["gpu"]
    assert (gpu["nodes"], gpu["cpus"], gpu["cpus_used"], gpu["gpus"], gpu["gpus_used"]) == (
        2,
        16,
        4,
        8,
        2,
    )
    assert (gpu["nodes_idle"], gpu["nodes_down"], gpu["jobs_running"], gpu["jobs_pending"]) == (
        1,
        0,
        1,
        1,
    )
    main = queues["main"]
    # n3 is drained and x1 is down.
    assert (main["nodes"], main["nodes_idle"], main["nodes_down"]) == (4, 1, 2)
    waiting_tasks = 9 + len(IRREGULAR_TASKS.split(","))
    assert (main["jobs_running"], main["jobs_pending"]) == (
        2,
        waiting_tasks + len(("held", "by root", "after", "bob")),
    )


@pytest.mark.journey
def test_history_tells_how_each_job_ended(program: Program, scene: Scene) -> None:
    jobs = program.rows("history", "--all")
    failed = find_row(jobs, scene.failed)
    assert (failed["state"], failed["exit_code"], failed["exit_signal"]) == ("failed", 3, 0)
    assert failed["name"] == "broken import"
    assert failed["started_at"] is not None
    assert failed["ends_at"] >= failed["started_at"] >= failed["submitted_at"]
    completed = find_row(jobs, scene.completed)
    assert (completed["state"], completed["exit_code"]) == ("completed", 0)
    signalled = find_row(jobs, scene.signalled)
    assert (signalled["state"], signalled["exit_signal"]) == ("failed", 11)
    assert find_row(jobs, scene.cancelled)["state"] == "cancelled"
    ended = {
        "completed",
        "failed",
        "timeout",
        "cancelled",
        "node_failed",
        "preempted",
        "out_of_memory",
    }
    assert {job["state"] for job in jobs} <= ended
    ends = [job["ends_at"] for job in jobs]
    assert ends == sorted(ends, reverse=True)


def test_history_is_ones_own_by_default(over_ssh: Program, scene: Scene) -> None:
    assert {job["user"] for job in over_ssh.rows("history")} == {scene.lab.alice}


def test_show_gives_the_paths_of_an_array_task_and_all_the_scheduler_said(
    program: Program, scene: Scene
) -> None:
    answer = program("show", f"{scene.array}_1", "--format", "json").json
    assert list(answer) == [
        "schema",
        "cluster",
        "backend",
        "taken_at",
        "rejected_rows",
        "job",
        "failure",
        "waits",
        "launch",
    ]
    job = answer["job"]
    folder = scene.lab.work_dir("alice")
    assert list(job) == [*JOB_KEYS, "native", "usage"]
    assert (job["id"], job["state"]) == (f"{scene.array}_1", "running")
    assert job["stdout_path"] == str(folder / f"sweep_{scene.array}_1.out")
    assert job["stderr_path"] == str(folder / f"sweep_{scene.array}_1.err")
    assert job["native"]["JobState"] == "RUNNING"
    assert job["native"]["ArrayJobId"] == scene.array
    assert job["native"]["StdOut"] == job["stdout_path"]


def test_show_finds_a_waiting_task_in_its_array_and_a_plain_job_by_its_number(
    over_ssh: Program, scene: Scene
) -> None:
    waiting = over_ssh("show", f"{scene.array}_7", "--format", "json").json["job"]
    assert waiting["state"] == "pending"
    assert 7 in array_tasks(waiting["array_task"].partition("%")[0])
    training = over_ssh("show", scene.training, "--format", "json").json["job"]
    assert (training["id"], training["gpus"]) == (scene.training, 2)
    assert training["stdout_path"] == str(
        scene.lab.work_dir("alice") / f"train.{scene.training}.out"
    )
    words = over_ssh("show", scene.failed)
    assert (words.status, words.stderr) == (0, "")
    assert "broken import" in words.text
    assert "failed" in words.text


@pytest.mark.parametrize(
    ("expression", "labels"),
    [
        ("state:running gpus>=2", ["training"]),
        ("train queue:gpu", ["training"]),
        ("limit>13h", ["held"]),
        ("memory_bytes>=4G", ["training"]),
        ("state:held !gpus reason:JobHeldAdmin", ["held_by_root"]),
        ("name~^held (queue:main or queue:gpu)", ["held", "held_by_root"]),
        ("state:failed", []),
    ],
)
def test_a_filter_keeps_the_rows_it_means(
    over_ssh: Program, scene: Scene, expression: str, labels: list[str]
) -> None:
    wanted = {getattr(scene, label) for label in labels}
    assert {job["id"] for job in over_ssh.rows("jobs", "--filter", expression)} == wanted


def test_a_table_for_people_has_a_line_a_job_and_nothing_on_stderr(
    over_ssh: Program, scene: Scene
) -> None:
    run = over_ssh("jobs", "--all")
    assert (run.status, run.stderr) == (0, "")
    heading, *lines = run.text.splitlines()
    assert heading.split()[:3] == ["ID", "STATE", "NAME"]
    assert sorted(line.split()[0] for line in lines) == sorted(scene.squeue("-o", "%i"))


def test_a_reader_who_has_enough_ends_it_quietly(locally: Program, scene: Scene) -> None:
    program = subprocess.Popen(
        locally.argv("jobs", "--all", "--format", "json"),
        env=locally.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert program.stdout is not None
    program.stdout.close()
    assert program.stderr is not None
    assert program.stderr.read() == b""
    program.stderr.close()
    assert program.wait() == 0
