"""Slices: what a request asks for, what the driver is given, and how it judges an attempt."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from msgspec.structs import replace

from hpcdash.backends.job_detail import JobDetail
from hpcdash.backends.queries import JobScope
from hpcdash.backends.ray.backend import BACKEND
from hpcdash.backends.ray.driver import command
from hpcdash.backends.ray.driver.outcomes import (
    Attempts,
    Outcome,
    describe_slice,
    error_outcome,
    error_text,
    exit_outcome,
    is_growth_due,
    largest_size,
    slice_problem,
    slice_variables,
    verdict,
)
from hpcdash.backends.ray.driver.status import (
    SliceRunStatus,
    format_waiting,
    labelled,
    ranges,
    similar_types,
    task_name,
    with_record,
)
from hpcdash.backends.ray.jobs import job_row
from hpcdash.backends.ray.logs import RayLogs
from hpcdash.backends.ray.slices import log_parts, part_pattern, slice_run, slice_type, worker_rows
from hpcdash.backends.ray.submit import RaySubmit, logged_result
from hpcdash.config.problems import ConfigProblems
from hpcdash.config.request import read_request, request_text
from hpcdash.domain.demand import format_finding
from hpcdash.domain.offers import Offers, QueueOffer
from hpcdash.domain.request import Request
from hpcdash.domain.states import JobState
from hpcdash.errors import UsageError
from hpcdash.job import job_zip
from hpcdash.job.pickles import packed
from tests.support.records import for_each

HOUR = 3600.0


def request(text: str) -> Request:
    return read_request(text, "request.toml")


def submitted(text: str) -> tuple[dict[str, bytes], dict[str, Any], str]:
    """The files of a request's package, the body that submits it, and what a person is shown."""
    made = RaySubmit().request(request(text), b"library", "hpcdash:0123")
    [upload] = made.before
    with zipfile.ZipFile(io.BytesIO(upload.stdin or b"")) as package:
        files = {name: package.read(name) for name in package.namelist()}
    body = json.loads(made.submission.command.stdin or b"")
    assert upload.argv[1].rpartition("/")[2] in body["runtime_env"]["working_dir"]
    return files, body, made.shown


@for_each(
    ("name", "workers", "chips"),
    [
        ("v4-256", 32, 4),
        ("v4-8", 1, 4),
        ("v3-32", 4, 4),
        ("v5p-16", 2, 4),
        ("v5litepod-16", 4, 4),
        ("v6e-8", 1, 8),
        ("v7x-16", 2, 4),
    ],
)
def test_a_slice_type_says_how_many_workers_there_are(name: str, workers: int, chips: int) -> None:
    kind = slice_type(name)
    assert (kind.workers, kind.chips, kind.head_resource) == (workers, chips, f"TPU-{name}-head")


@for_each(
    ("name", "words"),
    [
        ("v4_256", "did you mean v4-256"),
        ("TPU-V5p-16", "did you mean v5p-16"),
        ("v5e-16", "did you mean v5litepod-16"),
        ("tpu7x-16", "did you mean v7x-16"),
        ("h100-8", "is not a slice type such as v4-256$"),
        ("v4", "is not a slice type such as v4-256$"),
        ("v4-12", "multiple of 8 cores"),
    ],
)
def test_what_is_no_slice_type_says_what_was_meant(name: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        slice_type(name)


OFFERED = Offers(
    (
        QueueOffer("CPU", nodes=3, cpus_per_node=64, memory_per_node_bytes=256 << 30),
        QueueOffer("TPU-v4-256-head", nodes=2),
        QueueOffer("TPU-v4-16-head", nodes=1),
        QueueOffer("TPU", nodes=64, gpus_per_node=4),
        QueueOffer("slice-a", nodes=2),
    )
)


@for_each(
    ("text", "offers", "said"),
    [
        ('slice = "v4-256"\nnum_slices = [2, 4]', OFFERED, []),
        (
            'slice = "v4-264"',
            OFFERED,
            ["slice: the cluster has no v4-264 now: the job waits for one. Did you mean 'v4-256'?"],
        ),
        (
            'slice = "v6e-8"',
            OFFERED,
            [
                "slice: the cluster has no v6e-8 now: the job waits for one. Available: v4-16, "
                "v4-256"
            ],
        ),
        (
            'slice = "v4-8"',
            Offers((QueueOffer("CPU"),)),
            [
                "slice: the cluster has no v4-8 now: the job waits for one. It has no other slice "
                "either"
            ],
        ),
        (
            'slice = "v4-16"\nnum_slices = [4, 2]',
            OFFERED,
            ["num_slices: the cluster has 1 slice of v4-16 now: the job waits for 2"],
        ),
        (
            'slice = "v4-16"\ntpus_per_worker = 8',
            OFFERED,
            [
                "tpus_per_worker: no node has 8 TPUs now, at most 4: the job waits for one. Set "
                "tpus_per_worker = 4"
            ],
        ),
        ('slice = "v4-8"', Offers(), []),
        ('slot_type = "cpu"\nslots = 64', OFFERED, []),
        (
            'slot_type = "cpu"\nslots = 65',
            OFFERED,
            ["slots: no node has 65 CPUs now, at most 64: the job waits for one"],
        ),
        ("slots = 2", OFFERED, ["slots: no node has 2 GPUs now: the job waits for one"]),
        (
            'slot_type = "cuda"\nslots = 1',
            OFFERED,
            ["slots: no node has 1 GPU now: the job waits for one"],
        ),
        (
            'memory = "300G"',
            OFFERED,
            ["memory: no node has 300G now, at most 256G: the job waits for one"],
        ),
    ],
)
def test_what_the_cluster_does_not_have_is_said_before_the_job_waits_for_it(
    text: str, offers: Offers, said: list[str]
) -> None:
    found = BACKEND.submit.request_findings(request(f'command = "true"\n{text}\n'), offers)
    assert [format_finding(one) for one in found] == said


@for_each(
    ("text", "key", "words"),
    [
        ('slice = "v4"', "slice", "is not a slice type"),
        ("slice = 4", "slice", "in quotes"),
        ('slice = "v4-8"\nnum_slices = 0', "num_slices", "[2, 4, 8]"),
        ('slice = "v4-8"\nnum_slices = []', "num_slices", "[2, 4, 8]"),
        ('slice = "v4-8"\nretries_failure = -1', "retries_failure", "whole number"),
        ('slice = "v4-8"\ngrow_every = "0s"', "grow_every", "a duration"),
        ('slice = "v4-8"\ntpus_per_worker = true', "tpus_per_worker", "whole number"),
    ],
)
def test_a_wrong_value_is_named_by_its_key(text: str, key: str, words: str) -> None:
    with pytest.raises(ConfigProblems) as raised:
        request(f'command = "true"\n{text}\n')
    assert f": {key}: " in str(raised.value)
    assert words in str(raised.value)


def test_a_request_with_slices_is_written_as_it_was_read() -> None:
    asked = request('command = "true"\nslice = "v4-16"\nnum_slices = [4, 2]\nretries_failure = 0\n')
    assert asked.num_slices == (2, 4)
    assert read_request(request_text(asked), "again.toml") == asked


def test_the_driver_is_given_the_command_its_workers_and_its_retries() -> None:
    files, body, shown = submitted(
        'name = "llm"\ncommand = "python train.py"\nslice = "v4-16"\nnum_slices = [2, 4]\nwork_dir '
        '= "/data/a b"\n'
        'checkpoints = "/saved"\nkill_switch = "/switches/KILL"\nsave_switch = "/other/SAVE"\n'
        '[environment]\nWANDB_API_KEY = "s3cret"\n[container]\nimage = "docker://img:1"\n'
        'binds = ["/data", "/a:/b:ro"]\n'
    )
    asked = json.loads(files["request.json"])
    assert asked["argv"][2].startswith("cd -- '/data/a b' || exit 1\n")
    assert asked["argv"][2].endswith("\npython train.py\n")
    assert {
        key: asked[key]
        for key in ("workers", "tpus", "num_slices", "retries_preemption", "retries_failure")
    } == {
        "workers": 2,
        "tpus": 4,
        "num_slices": [2, 4],
        "retries_preemption": 10_000,
        "retries_failure": 10,
    }
    assert asked["container"] == {
        "program": "docker",
        "image": "img:1",
        "pull": False,
        "binds": [
            *("/data:/data", "/a:/b:ro", "/data/a b:/data/a b", "/switches:/switches"),
            *("/other:/other", "/saved:/saved"),
        ],
        "made": ["/saved"],
        "name": "hpcdash-llm",
    }
    assert {
        "slice_driver/__main__.py",
        "slice_driver/command.py",
        "hpcdash-job.zip",
    } <= files.keys()
    assert body["entrypoint"].endswith(" python -m slice_driver")
    assert body["metadata"] == {
        "job_name": "llm",
        "slice": "v4-16",
        "hpcdash_script": shown,
        "HPCDASH_KILL_SWITCH": "/switches/KILL",
        "HPCDASH_SAVE_SWITCH": "/other/SAVE",
    }
    # The dashboard shows a job's body to everyone.
    assert "s3cret" not in json.dumps(body)
    assert "s3cret" not in shown


def test_docker_may_be_named_as_the_runtime() -> None:
    files, _, _ = submitted(
        'command = "true"\nslice = "v4-16"\n[container]\nruntime = "docker"\nimage = "img:1"\n'
    )
    assert json.loads(files["request.json"])["container"]["program"] == "docker"


def test_podman_runs_the_container_where_it_is_asked_for_and_pulls_the_image_anew() -> None:
    text = 'command = "true"\nslice = "v4-16"\n[container]\n'
    files, _, _ = submitted(f'{text}runtime = "podman"\nimage = "img:1"\nforce_pull = true\n')
    argv = command.container_argv(json.loads(files["request.json"])["container"], {})
    assert (argv[:2], "--pull=always" in argv, argv[-1]) == (["podman", "run"], True, "img:1")
    files, _, _ = submitted(f'{text}runtime = "none"\n')
    assert json.loads(files["request.json"])["container"] is None


def test_a_request_without_a_slice_is_one_command_with_its_slots() -> None:
    files, body, shown = submitted(
        'command = "echo $A"\nslots = 2\n[environment]\nA = "$(touch x)"\n'
    )
    assert body["entrypoint_num_gpus"] == 2
    assert body["entrypoint"] == "bash hpcdash-run.sh"
    assert b"export A='$(touch x)'\necho $A\n" in files["hpcdash-run.sh"]
    assert "touch" not in shown


def test_a_function_is_called_by_its_runner_with_arguments_from_the_package() -> None:
    text = (
        'slice = "v4-16"\nwork_dir = "/data/a b"\n[call]\nfunction = "train:main"\nargs = '
        "[1]\nkwargs = { lr = 0.1 }\n"
    )
    files, _, _ = submitted(text)
    script = json.loads(files["request.json"])["argv"][2]
    assert {"call-args.b64", "call-kwargs.b64"} <= files.keys()
    assert script.startswith("cd -- '/data/a b' || exit 1\npython3 ")
    for words in (
        "--module=train",
        "--function=main",
        '--args-file="$HPCDASH_PACKAGE"/call-args.b64',
        "--output-file='/data/a b/result-0123.pkl'",
        "--job-dir='/data/a b'",
    ):
        assert words in script
    files, _, _ = submitted(
        text.replace('work_dir = "/data/a b"\n', "").replace('slice = "v4-16"\n', "")
    )
    assert b'export HPCDASH_PACKAGE="$PWD"\n' in files["hpcdash-run.sh"]
    assert b'--job-dir="$HPCDASH_PACKAGE"' in files["hpcdash-run.sh"]
    assert b"--output-file" not in files["hpcdash-run.sh"]


@pytest.mark.system
def test_a_result_as_json_stands_in_the_log_with_the_arguments_that_python_staged(
    tmp_path: Path,
) -> None:
    asked = read_request('[call]\nfunction = "json:loads"\nresult_format = "json"\n')
    assert asked.call is not None
    staged = {"call-args.b64": packed(['{"loss": 0.5}']), "call-kwargs.b64": packed({})}
    for staged_args, expected in (
        (staged, b'{"loss": 0.5}'),
        ({"call-args.b64": packed(["no JSON"])}, None),
    ):
        call = replace(asked.call, staged=staged_args)
        made = RaySubmit().request(replace(asked, call=call), job_zip(), "hpcdash:0123")
        folder = tmp_path / str(expected is None)
        with zipfile.ZipFile(io.BytesIO(made.before[0].stdin or b"")) as package:
            package.extractall(folder)
        done = subprocess.run(
            ["bash", "hpcdash-run.sh"], cwd=folder, capture_output=True, check=False
        )
        result, failure = logged_result(done.stdout)
        assert (done.returncode, result) == (0 if expected else 1, expected), done
        assert (
            failure is None if expected else json.loads(failure or b"")["type"] == "JSONDecodeError"
        )


@for_each(
    ("call", "words"),
    [('wheel = "/a.whl"', "call: "), ('source = "/a"', "call: "), ("items = [1, 2]", "array: ")],
)
def test_what_ray_s_jobs_cannot_have_of_a_call_is_refused(call: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        submitted(f'slice = "v4-16"\n[call]\nfunction = "train:main"\n{call}\n')


@for_each(
    ("text", "words"),
    [
        ('array = "1-4"', "array: not supported for Ray jobs"),
        ('time = "2h"', "time: not supported for Ray jobs"),
        ('slots = 4\nslice = "v4-8"', "slots: a slice gives each worker a whole machine"),
        ('memory = "4G"\nslice = "v4-8"', "memory: a slice gives each worker a whole machine"),
        ('queue = "gpu"', "queue: not supported for Ray jobs"),
        ('launcher = "torchrun"', "launcher: "),
        ("num_slices = 2", "num_slices needs a slice type"),
        ('[container]\nimage = "a"', "container: Ray starts containers only on slices"),
        (
            'slice = "v4-8"\n[container]\nruntime = "enroot"\nimage = "a"',
            "cannot start a container with enroot",
        ),
        (
            'slice = "v4-8"\n[container]\nruntime = "apptainer"\nimage = "a"',
            "cannot start a container with apptainer",
        ),
    ],
)
def test_what_ray_s_jobs_do_not_have_is_refused_by_its_key(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        submitted(f'command = "true"\n{text}\n')


@for_each(
    ("names", "kind"),
    [
        (["NodeDiedError", "RayError"], "preempted"),
        (["WorkerCrashedError", "RayError"], "preempted"),
        (["TaskUnschedulableError", "RayError"], "preempted"),
        (["ActorDiedError", "RayActorError", "RayError"], "preempted"),
        (["RayTaskError", "RayError"], "failed"),
        (["OutOfMemoryError", "RayError"], "failed"),
        (["RaySystemError", "RayError"], "failed"),
        (["SomethingNew"], "failed"),
        (["TaskCancelledError", "RayError"], "cancelled"),
    ],
)
def test_a_lost_node_is_a_preemption_and_all_that_is_not_known_a_failure(
    names: list[str], kind: str
) -> None:
    assert error_outcome("worker 0", names, "").kind == kind


def test_what_ray_raised_is_told_in_a_line() -> None:
    memory = (
        "2 worker(s) were killed due to the node running low on memory. Memory on the node (IP: "
        "10.0.0.9, ID: 1f) was "
        "62.19GB used / 64.00GB limit (0.971719)\nOOM kill reason: threshold\nRefer to the "
        "documentation on ..."
    )
    cases = {
        "killed by Ray: the node ran out of memory, with 62.19GB of 64.00GB in use": (
            "OutOfMemoryError",
            memory,
        ),
        "OutOfMemoryError: killed": ("OutOfMemoryError", "killed"),
        "node 10.0.0.9 died": (
            "NodeDiedError",
            "Task failed because … Node IP: 10.0.0.9, node ID: 40c0e5.\n\nUse",
        ),
        "the node died": (
            "ActorDiedError",
            "The actor died.\n\tclass_name: SliceHead\nIts node has died.",
        ),
        "WorkerCrashedError: The worker died": (
            "WorkerCrashedError",
            "The worker died\nCheck logs",
        ),
        "RayTaskError: ValueError: no": (
            "RayTaskError",
            "ray::run() (pid=7)\n  File a.py\nValueError: no",
        ),
        "RayError: ": ("RayError", ""),
    }
    assert [error_text([name, "RayError"], text) for name, text in cases.values()] == list(cases)


def test_an_exit_status_is_a_failure_but_on_a_machine_that_is_being_taken_away() -> None:
    assert [
        exit_outcome("w", code, is_preempted=gone).kind
        for code, gone in ((0, False), (7, False), (7, True))
    ] == (["succeeded", "failed", "preempted"])


@for_each(
    ("kinds", "kind"),
    [
        (["succeeded", "succeeded"], "succeeded"),
        (["failed", "cancelled"], "failed"),
        (["failed", "preempted", "cancelled"], "preempted"),
        (["succeeded", "cancelled"], "failed"),
        ([], "failed"),
    ],
)
def test_one_preempted_worker_outranks_those_that_failed(kinds: list[str], kind: str) -> None:
    assert verdict([Outcome(one, str(at)) for at, one in enumerate(kinds)]).kind == kind


def test_preemptions_and_failures_are_counted_apart() -> None:
    attempts = Attempts(max_preemptions=1, max_failures=0)
    preempted, failed = Outcome("preempted", ""), Outcome("failed", "")
    assert not attempts.after(preempted, HOUR).is_over
    assert attempts.after(preempted, HOUR).after(preempted, HOUR).is_over
    assert attempts.after(failed, HOUR).is_over
    assert (attempts.may_be_preempted, attempts.after(preempted, HOUR).may_be_preempted) == (
        True,
        False,
    )
    assert (attempts.after(preempted, 1).number, attempts.after(preempted, 1).counts) == (
        2,
        "preempted 1×, failed 0×",
    )


def test_the_next_attempt_waits_longer_after_each_that_ended_soon() -> None:
    attempts, pauses = Attempts(100, 100), []
    for kind, seconds in (
        *(("preempted", 90), ("preempted", 1), ("preempted", 1), ("failed", 1), ("failed", 90)),
        *(("preempted", 90), *[("preempted", 1)] * 20),
    ):
        attempts = attempts.after(Outcome(kind, ""), seconds)
        pauses.append(attempts.pause_seconds)
    assert pauses[:6] == [0, 5, 10, 20, 5, 0]
    assert pauses[-1] == 300


def test_the_largest_size_that_can_be_had_is_taken_and_growth_waits_as_long_as_asked() -> None:
    assert [largest_size((2, 4, 8), available) for available in (1, 2, 7, 9)] == [None, 2, 4, 8]
    often = {"after": 12 * HOUR, "every": 3 * HOUR}
    assert not is_growth_due((2, 4), 2, changed_at=0, checked_at=0, now=11 * HOUR, **often)
    assert is_growth_due((2, 4), 2, changed_at=0, checked_at=0, now=12 * HOUR, **often)
    assert not is_growth_due((2, 4), 2, changed_at=0, checked_at=10 * HOUR, now=12 * HOUR, **often)
    assert not is_growth_due((2, 4), 4, changed_at=0, checked_at=0, now=99 * HOUR, **often)
    asked = request('command = "true"\nslice = "v4-8"\ngrow_after = "12h"\ngrow_every = 60\n')
    assert (asked.grow_after, asked.grow_every) == (12 * 3600, 60)
    assert read_request(request_text(asked), "again.toml") == asked


def test_several_slices_find_the_first_one() -> None:
    assert slice_variables(0, ["10.0.0.1"]) == {}
    assert slice_variables(1, ["10.0.0.1", "10.0.0.9"]) == {
        "MEGASCALE_COORDINATOR_ADDRESS": "10.0.0.1:8081",
        "MEGASCALE_NUM_SLICES": "2",
        "MEGASCALE_PORT": "8081",
        "MEGASCALE_SLICE_ID": "1",
    }


def ray_node(number: int, **resources: float) -> dict[str, Any]:
    address = f"10.0.0.{number}"
    return {
        "NodeID": f"n{number}",
        "NodeManagerAddress": address,
        "NodeManagerPort": 7,
        "Resources": resources,
    }


def test_a_slice_is_its_workers_the_one_with_its_head_first() -> None:
    head = {"TPU-v4-16-head": 1.0}
    found = describe_slice(
        [ray_node(1, a=1, TPU=4), ray_node(2, a=1, TPU=4, **head), ray_node(3, b=1, **head)],
        "a",
        "n2",
    )
    assert found == {
        "pod": "a",
        "places": [("10.0.0.2", 7, "n2"), ("10.0.0.1", 7, "n1")],
        "heads": 1,
        "tpus": 4,
    }


def test_a_slice_that_cannot_be_used_says_why() -> None:
    head = {"TPU-v4-16-head": 1.0}
    found = describe_slice([ray_node(1, a=1, TPU=1), ray_node(2, a=1, TPU=4, **head)], "a", "n2")
    asked = {"head_resource": "TPU-v4-16-head", "workers": 2, "tpus": 1}
    assert slice_problem(found, 2, asked) == ""
    assert slice_problem(found, 1, asked) == "a has 1 of its 2 workers"
    assert slice_problem(found, 2, asked | {"tpus": 4}) == (
        "workers of a have 1 TPU, this run requests 4: set tpus_per_worker = 1"
    )
    words = slice_problem(
        describe_slice([ray_node(1, a=1, **head), ray_node(2, a=1, **head)], "a", "n1"), 2, asked
    )
    assert words.startswith(
        "2 workers of a have TPU-v4-16-head, which only the first one should: a bug in Ray"
    )


@pytest.mark.system
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_command_ends_with_the_worker_that_started_it_and_the_next_one_waits(
    tmp_path: Path, is_killed: bool
) -> None:
    def start(shell: str) -> subprocess.Popen[str]:
        program = (
            f"import sys; sys.path.insert(0, {command.__file__.rpartition('/')[0]!r}); "
            "import command; "
        )
        program += f"sys.exit(command.run(['bash', '-c', {shell!r}], {{}}, node='n'))"
        environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
        return subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment
        )

    with start("trap 'sleep 1; echo saved; exit' TERM; echo begun; sleep 60 & wait") as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "begun\n"
        with start("echo next; exit 7") as second:
            assert second.stdout is not None
            assert second.stdout.readline().startswith(
                "hpcdash: waiting for the command of an earlier attempt"
            )
            (first.kill if is_killed else first.terminate)()
            assert second.stdout.readline() == "next\n"
            assert second.wait() == 7
        assert first.stdout.read() == "saved\n"


_STOPPED_WHILE_STARTING = """
import os, runpy, signal, subprocess, sys

class Popen(subprocess.Popen):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        os.kill(os.getpid(), signal.SIGTERM)

subprocess.Popen = Popen
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.system
def test_a_command_that_is_stopped_while_it_starts_is_ended(tmp_path: Path) -> None:
    arguments = [command.__file__, "0.1", str(tmp_path / "lock"), "", "sleep", "60"]
    # The worker is alive: it holds the other end. `sleep` would hold the output open.
    stdin, held = os.pipe()
    try:
        done = subprocess.run(
            [sys.executable, "-c", _STOPPED_WHILE_STARTING, *arguments],
            stdin=stdin,
            capture_output=True,
            timeout=30,
        )
    finally:
        os.close(stdin)
        os.close(held)
    assert (done.returncode, done.stderr) == (143, b"")


def test_the_lock_of_a_node_is_where_nobody_else_can_hold_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    lock = Path(command.lock_path("n"))
    assert lock.parent == tmp_path / ".cache" / "hpcdash"
    assert lock.parent.stat().st_mode & 0o077 == 0
    monkeypatch.setenv("HOME", "/proc/nowhere")
    assert Path(command.lock_path("n")).parent == Path(command.__file__).parent


@dataclass(frozen=True)
class Told:
    """A command's answer: bodies behind their frames."""

    stdout: bytes
    status: int = 0
    stderr: bytes = b""
    argv: tuple[str, ...] = ("GET", "/api/jobs/")
    truncated: bool = False


def listed(*jobs: object) -> Told:
    body = json.dumps(jobs).encode()
    return Told(b"200 %d -\n" % len(body) + body)


def published(status: SliceRunStatus, state: str = "RUNNING") -> dict[str, Any]:
    """A job of the Jobs API, in whose metadata a driver wrote how its run stands."""
    job = {"status": "RUNNING", "metadata": {"job_name": "llm", "slice": "v4-16"}}
    kept = json.loads(with_record(json.dumps(job).encode(), status.record()) or b"")
    return {
        **kept,
        "status": state,
        "submission_id": "raysubmit_1",
        "start_time": 1_700_000_000_000,
    }


def test_a_run_is_one_job_with_its_workers_its_attempts_and_its_slices() -> None:
    status = SliceRunStatus(
        2, 4, attempt=3, preempted=2, slices=("slice-a", "slice-b"), began=1_700_000_000.5
    )
    status.nodes = [f"10.0.0.{number}" for number in range(1, 5)]
    status.past = [f"attempt {number} preempted: slice-b, gone" for number in range(1, 3)]
    status.ended = {0: ("succeeded", "", 0, "10.0.0.1"), 2: ("failed", "exit 7", 7, "10.0.0.9")}
    status.ended[3] = ("preempted", "NodeDiedError: gone", None, "")
    row = job_row(published(status))
    assert row is not None
    assert {
        name: row[name] for name in ("nodes", "gpus", "queue", "node_list", "reason", "comment")
    } == {
        "nodes": 4,
        "gpus": 16,
        "queue": "slice-a,slice-b,TPU-v4-16-head",
        "node_list": "10.0.0.1,10.0.0.2,10.0.0.3,10.0.0.4",
        "reason": "attempt 3: preempted 2×, failed 0×",
        "comment": "attempt 3: preempted 2×, failed 0×; attempt 2 preempted: slice-b, gone",
    }
    run = slice_run(published(status)["metadata"])
    assert run is not None
    workers = worker_rows(run, JobState.RUNNING, 1_700_000_060.0)
    assert [
        (one["id"], one["state"], one["exit_code"], one["node_list"], one["elapsed_seconds"])
        for one in workers
    ] == [
        ("0", "completed", 0, None, None),
        ("1", "running", None, None, 60),
        ("2", "failed", 7, "10.0.0.9", None),
        ("3", "preempted", None, None, None),
    ]
    assert workers[3]["name"] == "attempt 3 on slice-b: NodeDiedError: gone"
    assert [one["state"] for one in worker_rows(run, JobState.CANCELLED, None)][1] == "cancelled"


def test_the_workers_of_a_run_end_as_an_array_s_tasks_do_each_with_its_part_of_the_log() -> None:
    status = SliceRunStatus(2, 4, slices=("slice-a",))
    status.ended = {0: ("cancelled", "", None, ""), 1: ("failed", "exit 7", 7, "10.0.0.9")}
    job = {**published(status, "FAILED"), "driver_node_id": "n"}
    answer = Told(stdout=b"200 %d -\n" % len(json.dumps(job)) + json.dumps(job).encode())
    row = BACKEND.queue.jobs(JobScope(ended=True)).parse(listed(job)).table
    query = BACKEND.detail.workers(JobDetail(row, {"metadata": json.dumps(job["metadata"])}))
    assert query is not None
    told = query.parse(answer).table.to_pylist()
    assert [
        (one["array_task"], one["state"], one["exit_code"], one["node_list"]) for one in told
    ] == [
        ("0", "cancelled", None, "slice-a"),
        ("1", "failed", 7, "10.0.0.9"),
    ]
    assert told[1]["stdout_path"] == "/ray-logs/n/job-driver-raysubmit_1.log#attempt1.worker1"
    assert BACKEND.detail.workers(JobDetail(row, {"metadata": "{}"})) is None


def test_what_a_run_waits_for_is_the_reason_until_it_has_ended() -> None:
    similar = similar_types("v4-12", ["v5p-8", "v4-16"])
    words = format_waiting(1, "v4-12", acquired=0, free=0, total=0, types=similar)
    assert (
        words
        == "waiting for 1 slice of v4-12: 0 found so far; the cluster has none, only v4-16, v5p-8"
    )
    in_use = format_waiting(1, "v4-16", acquired=0, free=0, total=2, types=["v4-16"])
    assert in_use == "waiting for 1 slice of v4-16: 0 found so far; 0 of 2 free"
    too_many = format_waiting(8, "v4-16", acquired=1, free=1, total=2, types=["v4-16"])
    assert too_many == "waiting for 8 slices of v4-16: 1 found so far; the cluster has 2"
    status = SliceRunStatus(2, 4, waiting=too_many)
    assert (job_row(published(status)) or {})["reason"] == too_many
    assert (job_row(published(status, "STOPPED")) or {})["reason"] is None


def test_a_driver_changes_no_record_but_that_of_a_job_that_runs() -> None:
    for job in (
        b"",
        b"[1]",
        b"{",
        b'{"status": "STOPPED"}',
        b'{"status": "SUCCEEDED", "metadata": {}}',
    ):
        assert with_record(job, "{}") is None
    assert json.loads(
        with_record(b'{"status": "RUNNING", "metadata": null, "x": 1}', "{}") or b""
    ) == {
        "status": "RUNNING",
        "metadata": {"hpcdash_run": "{}"},
        "x": 1,
    }


@for_each(
    "record",
    [
        *(
            "",
            "null",
            "[]",
            "[" * 100_000,
            '{"attempt": 1}',
            '{"attempt": true, "preempted": 0, "failed": 0}',
        ),
        '{"attempt":1,"preempted":0,"failed":0,"workers_per_slice":999999,"slices":["a"]}',
        '{"attempt":1,"preempted":0,"failed":0,"workers_per_slice":0,"slices":["a"]}',
        '{"attempt":NaN,"preempted":0,"failed":0,"workers_per_slice":1,"slices":["a"]}',
    ],
)
def test_metadata_that_others_wrote_make_no_run(record: str) -> None:
    assert slice_run({"hpcdash_run": record}) is None
    row = job_row(
        {"submission_id": "raysubmit_1", "status": "RUNNING", "metadata": {"hpcdash_run": record}}
    )
    assert row is not None
    assert row["comment"] is None


def test_odd_parts_of_a_record_are_left_out() -> None:
    run = slice_run(
        {
            "hpcdash_run": '{"attempt":1,"preempted":0,"failed":0,"workers_per_slice":1,"slices":["a",3],"began":-1,'
            '"succeeded":"x,0-9999999,0-99999","ended":[1,[0,"failed"],[7,"odd","",1,""],[0,[],"",1,""]],"past":"x","waiting":4,"tpus":-2}'
        }
    )
    assert run is not None
    assert (run.slices, run.past, run.waiting, run.tpus, run.began) == (("a",), (), "", 0, None)
    assert [worker.state for worker in run.workers(JobState.RUNNING)] == [JobState.RUNNING]


def test_a_record_of_many_workers_stays_short() -> None:
    status = SliceRunStatus(
        256, 4, slices=("a",) * 16, past=["x" * 5000] * 9, nodes=["10.0.0.1"] * 4096
    )
    status.ended = dict.fromkeys(range(4096), ("failed", "y" * 5000, 1, "10.0.0.1"))
    assert len(status.record()) < 32_000
    row = job_row(published(status))
    assert row is not None
    assert row["node_list"] == ",".join(["a"] * 16)
    assert ranges([3, 0, 1, 2, 7]) == "0-3,7"


def test_a_line_says_which_worker_of_which_attempt_wrote_it() -> None:
    ray = f"({task_name(2, 13)} pid=77, ip=10.0.0.9) loss 3"
    assert (
        labelled(ray)
        == labelled(f"\x1b[36m{ray.replace(')', ')' + chr(27) + '[0m')}")
        == "[attempt2.worker13]: loss 3"
    )
    assert labelled("(worker pid=7) x") == "(worker pid=7) x"
    cases: tuple[tuple[str, dict[str, str]], ...] = (
        (
            "[attempt2.worker13]: loss 3",
            {
                "attempt2.worker13": "loss 3",
                "worker13": "loss 3",
                "attempt2": "[attempt2.worker13]: loss 3",
            },
        ),
        ("hpcdash: attempt 2: preempted 1×", {"attempt2": "hpcdash: attempt 2: preempted 1×"}),
        ("[attempt22.worker1]: x", {"worker1": "x"}),
    )
    for line, kept in cases:
        for part in ("attempt2.worker13", "worker13", "attempt2", "worker1"):
            found = re.match(part_pattern(part), line)
            assert (line[found.end() :] if found else None) == kept.get(part)


def test_the_log_of_a_worker_or_an_attempt_is_a_part_of_the_drivers() -> None:
    run = slice_run(published(SliceRunStatus(2, 4, attempt=60, slices=("a",)))["metadata"])
    assert run is not None
    parts = log_parts(run, "/ray-logs/n/job-driver-x.log")
    assert len(parts) == 50 + 2 + 3 * 2
    assert parts[-1][0] == "attempt60.worker1"
    for attempt, newest in ((1, None), (3, "attempt2.worker1")):
        waiting = slice_run(published(SliceRunStatus(2, 4, attempt=attempt))["metadata"])
        assert waiting is not None
        assert [name for name, _, _ in log_parts(waiting, "/x.log")][-1:] == [newest] * (
            newest is not None
        )
    assert (
        RayLogs()
        .request(parts[-1][2])
        .endswith(
            "filename=job-driver-x.log&lines=-1&interval=1#%5C%5Battempt60%5C.worker1%5C%5D%3A%20"
        )
    )
    # What is no part is a name, and no pattern of another's is used.
    for name in (
        "x.log#",
        "x.log#worker",
        "x.log#attempt1.",
        "x.log#(a+)+b",
        "x.log#attempt1.worker1#",
        "a#worker1",
    ):
        assert (
            RayLogs()
            .request(f"/ray-logs/n/{name}")
            .endswith(f"filename={quote(name, safe='')}&lines=-1&interval=1")
        )
    assert (
        RayLogs()
        .request("/ray-logs/n/x.log#worker1.log#worker2")
        .endswith(
            "filename=x.log%23worker1.log&lines=-1&interval=1#%5C%5Battempt%5B0-9%5D%2B%5C.worker2%5C%5D%3A%20"
        )
    )


def test_a_run_of_many_workers_and_numbers_is_read_at_once() -> None:
    record = {
        "attempt": 1,
        "preempted": 0,
        "failed": 0,
        "workers_per_slice": 1000,
        "slices": ["a"] * 100,
    }
    run = slice_run({"hpcdash_run": json.dumps(record | {"succeeded": "0-99999," * 100_000})})
    assert run is not None
    assert {worker.state for worker in run.workers(JobState.RUNNING)} == {JobState.COMPLETED}
