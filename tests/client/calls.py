"""What the tests submit: copied into a folder of its own, which the job imports it from."""

from __future__ import annotations

import atexit
import os
import sys
import time
from typing import Any

import hpcdash


class Unreadable(Exception):
    """Its pickle cannot be read: it wants two arguments and keeps one."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


class Notes(hpcdash.BaseCallback):
    """Writes what it is told to a file."""

    requires_runner_transport = True  # type: ignore[assignment]

    def __init__(self, path: str) -> None:
        self.path = path

    def _note(self, *words: object) -> None:
        with open(self.path, "a") as file:
            file.write(" ".join(map(str, words)) + "\n")

    def on_begin_run_job_ctx(self, ctx: hpcdash.RunBeginContext) -> None:
        self._note("begin", ctx.job_context.job_id)

    def on_end_run_job_ctx(self, ctx: hpcdash.RunEndContext) -> None:
        self._note("end", ctx.status, ctx.error_type)

    def on_completed_ctx(self, ctx: hpcdash.CompletedContext) -> None:
        self._note("completed", ctx.emitted_by, ctx.status, ctx.job_id)


@hpcdash.task(time="10m")
def add(first: float, second: float = 1) -> float:
    print(f"adding {first} and {second}")
    return first + second


@hpcdash.task(time="10m")
def total(values: list[float]) -> float:
    return sum(values)


@hpcdash.task(time="10m")
def odd_alone(number: int) -> int:
    if number % 2 == 0:
        raise ValueError(f"{number} is even")
    return number


@hpcdash.task(time="10m")
def where(job: hpcdash.JobContext) -> tuple[str | None, str, str]:
    return job.job_id, str(job.output_dir), os.getcwd()


@hpcdash.task(time="00:05:00", ntasks=4, mem="100M")
def inspect_allocation(
    params: list[str] | None = None, *, job: hpcdash.JobContext
) -> dict[str, Any]:
    os.environ.update(job.torch_distributed_env())
    return {
        "params": params,
        "rank": os.environ["RANK"],
        "world_size": job.world_size,
        "hosts": job.hostnames,
    }


@hpcdash.task(time="10m")
def unreadable() -> None:
    raise Unreadable("one", "two")


@hpcdash.task(result_format="json")
def described(**values: Any) -> dict[str, Any]:
    return {"values": values, "python": sys.version_info[0]}


@hpcdash.task(cache=True)
def once(number: int) -> int:
    return number


@hpcdash.task(time="10m")
def lingering(value: int | None) -> int:
    """Returns, or fails without a value, in a process that takes its time to end."""
    atexit.register(time.sleep, 300)
    if value is None:
        raise ValueError("no value")
    return value


@hpcdash.task(time="10m")
def train(job: hpcdash.JobContext) -> int:
    """Goes on until its kill switch is set; the step that it came to."""
    from hpcdash.job import TrainingGuard

    guard, step = TrainingGuard(), 0
    while not guard.should_stop():
        step += 1
        guard.step(step, loss=1 / step)
        if step < 50:
            print(f"step {step} loss {1 / step:.6f}", flush=True)
        time.sleep(0.02)
    return step


@hpcdash.task(time="10m")
def vanishing(number: int) -> None:
    os._exit(number)


def square(number: int) -> int:
    return number * number
