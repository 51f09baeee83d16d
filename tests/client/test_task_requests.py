"""What a function's settings and arguments become: a request and files, and how lists of jobs are
read.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest

import hpcdash
from hpcdash.client.loop import finish_in_loop, run_in_loop
from hpcdash.client.packaging import Code, find_code, is_by_value
from hpcdash.client.task import prepare
from hpcdash.client.tracking import TrackedJob
from hpcdash.domain.request import Launcher, Request, Runtime, Site, SlotType
from hpcdash.errors import HpcdashError, UsageError
from hpcdash.job.callbacks import Callback
from hpcdash.job.names import find
from tests.support.records import for_each


@dataclass
class CallTarget:
    """A cluster that nothing is asked of."""

    defaults: Mapping[str, Any] = field(default_factory=dict)
    callbacks: tuple[Callback, ...] = ()
    is_here: bool = False
    python: str = "python3"
    title: str = "Slurm"
    logs_results: bool = False
    site: Site = field(default_factory=Site)

    def conditions(self, after: Iterable[tuple[Any, str]]) -> list[str]:
        return [f"{kind}:{job}" for job, kind in after]


def build_request(calls: ModuleType, target: CallTarget, **options: Any) -> Request:
    return prepare(target, calls.add.with_options(**options), (1,), {}).request


def test_settings_of_a_call_go_before_those_of_its_task_file_and_cluster(calls: ModuleType) -> None:
    target = CallTarget({"time": "1h", "queue": "long", "environment": {"A": "1", "B": "1"}})
    request = build_request(calls, target, partition="short", mem="2G", environment={"B": "2"})
    assert (request.queue, request.memory_bytes, request.limit_seconds) == ("short", 2 << 30, 600)
    assert dict(request.environment) == {"A": "1", "B": "2"}
    waiting = prepare(target, calls.add.after("12").after("13_1", "afterany"), (1,), {}).request
    assert waiting.after == ("afterok:12", "afterany:13_1")


@for_each(
    ("options", "expected"),
    [
        ({}, (1, 1, SlotType.CPU)),
        ({"cpus": 4}, (4, 4, SlotType.CPU)),
        ({"gpus": 8}, (8, 8, SlotType.CUDA)),
        ({"gpus": 8, "nodes": 2}, (8, 4, SlotType.CUDA)),
        ({"nodes": 3}, (3, 1, SlotType.CPU)),
        ({"ntasks": 8}, (8, 8, SlotType.CPU)),
        ({"ntasks": 8, "nodes": 2, "gpus": 8}, (8, 4, SlotType.CUDA)),
        ({"slots": 6}, (6, None, None)),
    ],
)
def test_what_a_function_asks_for_is_on_one_node_unless_it_says_how_many(
    calls: ModuleType, options: dict[str, int], expected: tuple[int, int | None, SlotType | None]
) -> None:
    request = build_request(calls, CallTarget(), **options)
    assert (request.slots, request.slots_per_node, request.slot_type) == expected
    assert (request.launcher is Launcher.SRUN) == ("ntasks" in options)


def test_a_container_s_binds_stay_where_its_image_is_named_apart(calls: ModuleType) -> None:
    target = CallTarget(
        {"container": {"binds": ["/data"], "runtime": "podman"}},
        is_here=True,
        python="/here/python",
    )
    request = build_request(calls, target, image="py:1")
    assert request.container is not None
    assert (request.container.image, request.container.binds) == ("py:1", ("/data",))
    assert (request.container.runtime, request.call and request.call.python) == (
        Runtime.PODMAN,
        "python3",
    )


@for_each(
    ("options", "said"),
    [
        ({"memroy": "4G"}, "memory"),
        ({"gpus": 1.5}, "whole numbers"),
        ({"slots": 4, "gpus": 4}, "slots"),
        ({"packaging": "container"}, "needs an image"),
        ({"packaging": "box"}, "not one of auto"),
        ({"result_format": "yaml"}, "json"),
        ({"time": "soon"}, "time"),
    ],
)
def test_settings_that_cannot_be_are_refused(
    calls: ModuleType, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(HpcdashError, match=said):
        build_request(calls, CallTarget(), **options)


def test_where_results_come_back_in_logs_they_are_json(calls: ModuleType) -> None:
    target = CallTarget({"result_format": "json"}, title="Ray", logs_results=True)
    assert build_request(calls, target, time=None).slots_per_node is None
    with pytest.raises(UsageError, match="pickles are not read"):
        build_request(calls, target, result_format="pickle")
    with pytest.raises(UsageError, match="Ray does not support arrays"):
        prepare(target, calls.add, (), {}, items=[1, 2])


def test_where_the_code_is_from(calls: ModuleType) -> None:
    folder = str(calls.__file__).rpartition("/")[0]
    assert find_code(calls.square, "auto", is_here=True) == Code(
        "client_calls", "square", sys_path=(folder,)
    )
    there = find_code(calls.square, "auto", is_here=False)
    assert (str(there.folder), there.sys_path, there.main) == (folder, (), "")
    assert find_code(calls.square, "none", is_here=False).folder is None
    assert find_code(sys.exc_info, "auto", is_here=False) == Code("sys", "exc_info")
    assert is_by_value(lambda: None)
    with pytest.raises(UsageError, match=r"no pyproject\.toml"):
        find_code(calls.square, "wheel", is_here=False)


def test_a_job_without_hpcdash_has_its_names(
    calls: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "hpcdash.client", None)
    with pytest.raises(RuntimeError, match=r"hpcdash\.connect is not available"):
        find("hpcdash", "connect")("juno")
    monkeypatch.setitem(sys.modules, "hpcdash.client.cluster", None)
    with pytest.raises(RuntimeError, match=r"a task's submit is not available.*below if __name__"):
        calls.add.submit(1)
    assert find("hpcdash", "task") is hpcdash.task
    with pytest.raises(AttributeError):
        find("hpcdash", "conect")


def row(job_id: str, state: str, tasks: str | None = None) -> dict[str, Any]:
    return {"id": job_id, "array_task": tasks, "state": state, "reason": None}


def test_tasks_end_by_their_own_rows_and_those_that_are_left_by_the_array_s() -> None:
    array = TrackedJob("7", range(4))
    assert array.update([row("7_0", "completed", "0"), row("7_[1-9%2]", "pending", "1-9%2")]) == {
        0,
        1,
        2,
        3,
    }
    assert (array.state(0), array.state(3), array.ended) == ("completed", "pending", {0})
    # An end stands, whatever a late answer says.
    array.update([row("7_0", "running", "0"), row("7_1", "failed", "1")])
    assert (array.state(0), array.ended) == ("completed", {0, 1})
    array.forget((2, 3))
    array.update([row("7", "cancelled")])
    assert (array.is_over, array.state(3)) == (True, "cancelled")
    job = TrackedJob("8.server", None)
    assert job.update([row("8.server", "running")]) == {None}
    job.lose([None])
    assert (job.is_over, job.state(None)) == (True, "gone")


def test_what_ends_something_may_be_called_in_the_loops_own_thread() -> None:
    ended = threading.Event()

    async def end() -> None:
        ended.set()

    async def collect() -> None:
        finish_in_loop(end())

    finish_in_loop(end())
    assert ended.is_set()
    ended.clear()
    run_in_loop(collect())
    assert ended.wait()
