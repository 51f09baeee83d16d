"""The names of `import hpcdash`, each imported when it is first used.

A job may have only hpcdash.job: there the submitting functions exist by name, so that a module with
tasks can be imported, but raise when called.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_CLIENT = "hpcdash.client"
_MODULES = {
    "BaseCallback": "hpcdash.job.callbacks",
    "Callback": "hpcdash.job.callbacks",
    "Completed": "hpcdash.job.states",
    "CompletedContext": "hpcdash.job.states",
    "JobContext": "hpcdash.job.context",
    "JobStatus": "hpcdash.job.states",
    "JobStatusUpdatedContext": "hpcdash.job.states",
    "RunBegin": "hpcdash.job.states",
    "RunBeginContext": "hpcdash.job.states",
    "RunEnd": "hpcdash.job.states",
    "RunEndContext": "hpcdash.job.states",
    "RunsOn": "hpcdash.job.callbacks",
    "StatusOn": "hpcdash.job.callbacks",
    "Task": "hpcdash.job.task",
    "current_job_context": "hpcdash.job.context",
    "task": "hpcdash.job.task",
    **dict.fromkeys(
        ("Cluster", "Executor", "Job", "JobArray", "JobFailed", "Request", "aconnect", "connect"),
        _CLIENT,
    ),
}


def find(package: str, name: str) -> Any:
    """Return the object of a public name; raises AttributeError for an unknown name."""
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if not str(error.name).startswith(_CLIENT):
            raise
        return _missing(name)


def client() -> Any:
    """Return the client's module, which submits tasks.

    Raises RuntimeError in a job that has only hpcdash.job.
    """
    try:
        return import_module(_CLIENT + ".cluster")
    except ModuleNotFoundError as error:
        if not str(error.name).startswith(_CLIENT):
            raise
        raise RuntimeError(_ALONE.format("a task's submit")) from None


_ALONE = (
    "{} is not available: this job has only hpcdash.job. Its file is imported, so put code "
    'that submits below if __name__ == "__main__":. To submit from a job, install hpcdash in its '
    "Python."
)


def _missing(name: str) -> type:
    def refuse(self: object, *_args: object, **_kwargs: object) -> None:
        raise RuntimeError(_ALONE.format(f"hpcdash.{name}"))

    return type(
        name, (), {"__init__": refuse, "__class_getitem__": classmethod(lambda cls, _: cls)}
    )
