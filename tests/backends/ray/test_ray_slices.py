"""Slices: what a request asks for, what the driver is given, and how it judges an attempt."""

from __future__ import annotations

import io
import json
import zipfile
from typing import Any

import pytest

from hpcdash.backends.ray.driver.outcomes import (
    Attempts,
    Outcome,
    may_grow,
    outcome_of_error,
    outcome_of_exit,
    pause_seconds,
    size_to_take,
    slice_variables,
    verdict,
)
from hpcdash.backends.ray.requests import submitted_request
from hpcdash.backends.ray.slices import slice_type, types_among
from hpcdash.config.problems import ConfigProblems
from hpcdash.config.request import read_request, request_text
from hpcdash.domain.request import Request
from hpcdash.errors import UsageError

HOUR = 3600.0


def request(text: str) -> Request:
    return read_request(text, "request.toml")


def submitted(text: str) -> tuple[dict[str, bytes], dict[str, Any], str]:
    """The files of a request's package, the body that submits it, and what a person is shown."""
    made = submitted_request(request(text), b"library", "hpcdash:0123")
    [upload] = made.before
    with zipfile.ZipFile(io.BytesIO(upload.stdin or b"")) as package:
        files = {name: package.read(name) for name in package.namelist()}
    body = json.loads(made.submission.command.stdin or b"")
    assert upload.argv[1].rpartition("/")[2] in body["runtime_env"]["working_dir"]
    return files, body, made.shown


@pytest.mark.parametrize(
    ("name", "workers", "chips"),
    [("v4-256", 32, 4), ("v4-8", 1, 4), ("v3-32", 4, 4), ("v5p-16", 2, 4), ("v5litepod-16", 4, 4), ("v6e-8", 1, 8)],
)
def test_a_slice_type_says_how_many_workers_there_are(name: str, workers: int, chips: int) -> None:
    kind = slice_type(name)
    assert (kind.workers, kind.chips, kind.head_resource) == (workers, chips, f"TPU-{name}-head")


def test_what_is_no_slice_type_names_the_nearest_that_the_cluster_has() -> None:
    known = types_among({"TPU-v4-256-head": 1, "TPU": 4, "CPU": 8})
    with pytest.raises(ValueError, match="did you mean v4-256"):
        slice_type("v4_256", known=known)
    with pytest.raises(ValueError, match="multiple of 8 cores"):
        slice_type("v4-12")


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        ('slice = "v4"', "slice", "is not a slice type"),
        ("slice = 4", "slice", "in quotes"),
        ('slice = "v4-8"\nnum_slices = 0', "num_slices", "[2, 4, 8]"),
        ('slice = "v4-8"\nnum_slices = []', "num_slices", "[2, 4, 8]"),
        ('slice = "v4-8"\nretries_failure = -1', "retries_failure", "whole number"),
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
        'name = "llm"\ncommand = "python train.py"\nslice = "v4-16"\nnum_slices = [2, 4]\nwork_dir = "/data/a b"\n'
        '[environment]\nWANDB_API_KEY = "s3cret"\n[container]\nimage = "img:1"\nbinds = ["/data"]\n'
    )
    asked = json.loads(files["request.json"])
    assert asked["argv"] == ["bash", "-c", "cd -- '/data/a b' || exit 1\npython train.py\n"]
    assert {key: asked[key] for key in ("workers", "tpus", "num_slices", "retries_preemption", "retries_failure")} == {
        "workers": 2,
        "tpus": 4,
        "num_slices": [2, 4],
        "retries_preemption": 10_000,
        "retries_failure": 10,
    }
    assert asked["container"] == {"image": "img:1", "binds": ["/data"], "name": "hpcdash-llm"}
    assert {"slice_driver/__main__.py", "slice_driver/command.py", "hpcdash-job.zip"} <= files.keys()
    assert (body["entrypoint"], body["metadata"]) == ("python -m slice_driver", {"job_name": "llm", "slice": "v4-16"})
    # The dashboard shows a job's body to everyone.
    assert "s3cret" not in json.dumps(body)
    assert "s3cret" not in shown


def test_a_request_without_a_slice_is_one_command_with_its_slots() -> None:
    files, body, shown = submitted(
        'command = "echo $A"\nslots = 2\nslot_type = "cuda"\n[environment]\nA = "$(touch x)"\n'
    )
    assert body["entrypoint_num_gpus"] == 2
    assert body["entrypoint"] == "bash hpcdash-run.sh"
    assert b"export A='$(touch x)'\necho $A\n" in files["hpcdash-run.sh"]
    assert "touch" not in shown


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('array = "1-4"', "array: Ray's jobs have none"),
        ('time = "2h"', "time: Ray's jobs have none"),
        ('queue = "gpu"', "queue: Ray's jobs have none"),
        ('launcher = "torchrun"', "launcher: "),
        ("num_slices = 2", "num_slices: of which type"),
        ('[container]\nimage = "a"', "container: Ray starts containers on slices alone"),
    ],
)
def test_what_ray_s_jobs_do_not_have_is_refused_by_its_key(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        submitted(f'command = "true"\n{text}\n')


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (["NodeDiedError", "RayError"], "preempted"),
        (["WorkerCrashedError", "RayError"], "preempted"),
        (["ActorDiedError", "RayActorError", "RayError"], "preempted"),
        (["RayTaskError", "RayError"], "failed"),
        (["OutOfMemoryError", "RayError"], "failed"),
        (["RaySystemError", "RayError"], "failed"),
        (["SomethingNew"], "failed"),
        (["TaskCancelledError", "RayError"], "cancelled"),
    ],
)
def test_a_lost_node_is_a_preemption_and_all_that_is_not_known_a_failure(names: list[str], kind: str) -> None:
    assert outcome_of_error("worker 0", names, "").kind == kind


def test_an_exit_status_is_a_failure_but_on_a_machine_that_is_being_taken_away() -> None:
    assert [
        outcome_of_exit("w", code, is_preempted=gone).kind for code, gone in ((0, False), (7, False), (7, True))
    ] == (["succeeded", "failed", "preempted"])


@pytest.mark.parametrize(
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
    attempts = Attempts(most_preemptions=1, most_failures=0)
    preempted, failed = Outcome("preempted", ""), Outcome("failed", "")
    assert not attempts.after(preempted).is_over
    assert attempts.after(preempted).after(preempted).is_over
    assert attempts.after(failed).is_over
    assert (attempts.after(preempted).number, attempts.after(preempted).counts) == (2, "preempted 1×, failed 0×")
    assert [pause_seconds(count) for count in (0, 1, 2, 100)] == [0, 5, 10, 300]


def test_the_largest_size_that_can_be_had_is_taken_and_growth_waits_for_half_a_day() -> None:
    assert [size_to_take((2, 4, 8), available) for available in (1, 2, 7, 9)] == [None, 2, 4, 8]
    assert not may_grow((2, 4), 2, changed_at=0, looked_at=0, now=11 * HOUR)
    assert may_grow((2, 4), 2, changed_at=0, looked_at=0, now=12 * HOUR)
    assert not may_grow((2, 4), 2, changed_at=0, looked_at=10 * HOUR, now=12 * HOUR)
    assert not may_grow((2, 4), 4, changed_at=0, looked_at=0, now=99 * HOUR)


def test_several_slices_find_the_first_one() -> None:
    assert slice_variables(0, ["10.0.0.1"]) == ()
    assert dict(slice_variables(1, ["10.0.0.1", "10.0.0.9"])) == {
        "MEGASCALE_COORDINATOR_ADDRESS": "10.0.0.1:8081",
        "MEGASCALE_NUM_SLICES": "2",
        "MEGASCALE_PORT": "8081",
        "MEGASCALE_SLICE_ID": "1",
    }
