"""Library for a training: it stops in time, saves on request, resumes, and writes metrics.

    from hpcdash.job import TrainingGuard

    guard = TrainingGuard(save_every_minutes=60, metrics="metrics.jsonl")
    for step in range(start, steps):
        loss = train(step)
        guard.step(step, loss=loss)
        if guard.should_save():
            save(step)
        if guard.should_stop():
            break

It needs only the standard library and Python 3.8 or later, with or without a scheduler. A module is
imported when it is first used.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hpcdash.job.checkpoint import Checkpoint as Checkpoint
    from hpcdash.job.checkpoint import Checkpoints as Checkpoints
    from hpcdash.job.checkpoint import write_whole as write_whole
    from hpcdash.job.context import JobContext as JobContext
    from hpcdash.job.context import current_job_context as current_job_context
    from hpcdash.job.context import torch_distributed_env as torch_distributed_env
    from hpcdash.job.guard import TrainingGuard as TrainingGuard
    from hpcdash.job.memory import MemoryGuard as MemoryGuard
    from hpcdash.job.metrics import MetricsWriter as MetricsWriter
    from hpcdash.job.preemption import Preemption as Preemption
    from hpcdash.job.switches import Switches as Switches
    from hpcdash.job.zip import job_zip as job_zip

_MODULES = {
    "Checkpoint": "checkpoint",
    "Checkpoints": "checkpoint",
    "JobContext": "context",
    "MemoryGuard": "memory",
    "MetricsWriter": "metrics",
    "Preemption": "preemption",
    "Switches": "switches",
    "TrainingGuard": "guard",
    "current_job_context": "context",
    "job_zip": "zip",
    "torch_distributed_env": "context",
    "write_whole": "checkpoint",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
