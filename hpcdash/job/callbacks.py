"""Callbacks of a run, called on the client, in the runner, or both."""

from __future__ import annotations

import importlib
import logging
import math
import pickle
from enum import Enum
from typing import Any, Iterable, Sequence

from hpcdash.job.pickles import packed, read_packed
from hpcdash.job.states import Completed, EmittedBy, JobStatus, Launch, RunBegin, RunEnd, RunStatus

log = logging.getLogger("hpcdash.job")


class RunsOn(Enum):
    """Places where a callback is called: the client, the runner on the node, or both."""

    CLIENT = "client"
    RUNNER = "runner"
    BOTH = "both"


class StatusOn(Enum):
    """Times at which `on_status` is called.

    These are at an interval and at the end, when the state changes, or only at the end.
    """

    INTERVAL = "interval"
    CHANGE = "change"
    END = "end"


class Callback:
    """Base class of callbacks. Exceptions raised in a hook are logged and do not affect the job.

    A callback that runs in the runner is pickled at submission: keep open files and connections out
    of its attributes. Each rank has its own runner and calls the hooks: check `job_context.rank`.
    """

    runs_on: RunsOn = RunsOn.CLIENT
    status_on: StatusOn = StatusOn.CHANGE
    status_interval_seconds: float = 60.0

    @property
    def requires_runner_transport(self) -> bool:
        """Whether the callback is sent to the node."""
        return self.runs_on is not RunsOn.CLIENT

    def on_run_begin(self, event: RunBegin) -> None:
        """Handle the start of a run, in the runner; calls `on_begin_run_job_ctx` by default."""
        self.on_begin_run_job_ctx(event)

    def on_run_end(self, event: RunEnd) -> None:
        """Handle the end of a run, in the runner; calls `on_end_run_job_ctx` by default."""
        self.on_end_run_job_ctx(event)

    def on_completed(self, event: Completed) -> None:
        """Handle a completion: in the runner at once, on the client once the scheduler reports the
        end (see `emitted_by`). Calls `on_completed_ctx` by default.
        """
        self.on_completed_ctx(event)

    def on_status(self, event: JobStatus) -> None:
        """Handle a status, on the client at the times of `status_on`.

        Calls `on_job_status_update_ctx` by default.
        """
        self.on_job_status_update_ctx(event)

    def on_begin_run_job_ctx(self, ctx: RunBegin) -> None:
        pass

    def on_end_run_job_ctx(self, ctx: RunEnd) -> None:
        pass

    def on_completed_ctx(self, ctx: Completed) -> None:
        pass

    def on_job_status_update_ctx(self, ctx: JobStatus) -> None:
        pass


BaseCallback = Callback


def tell(callbacks: Iterable[Callback], hook: str, event: object) -> None:
    """Call a hook of each callback; its exceptions, even SystemExit, are logged.

    Only KeyboardInterrupt, which comes from the user, is raised, after all have been called.
    """
    interrupt: KeyboardInterrupt | None = None
    for callback in callbacks:
        try:
            getattr(callback, hook)(event)
        except KeyboardInterrupt as error:
            interrupt = error
        except BaseException:  # E.g. asyncio.CancelledError, of a client that was closed.
            log.exception("the callback %s failed in %s", type(callback).__name__, hook)
    if interrupt is not None:
        raise interrupt


def shipped(callbacks: Iterable[Callback]) -> bytes:
    """Return the content of `--callbacks-file`: the callbacks that run in the runner.

    A callback that cannot be pickled is logged and left out.
    """
    # Each is a pickle of its own: a module that is missing on the node affects only its callbacks.
    pickles = []
    for callback in callbacks:
        if not callback.requires_runner_transport:
            continue
        try:
            pickles.append((type(callback).__name__, pickle.dumps(callback, protocol=4)))
        except Exception as error:
            log.warning(
                "the callback %s cannot be pickled and is not sent to the job: %s. Open its "
                "resources in on_run_begin, or define its class in a module.",
                type(callback).__name__,
                error,
            )
    return packed(pickles)


def received(path: str) -> list[Callback]:
    """Return the callbacks in a file, on the node; unreadable ones are logged and left out."""
    try:
        entries = read_packed(path)
        if not isinstance(entries, (list, tuple)):
            raise ValueError(f"expected a list, not {type(entries).__name__}")
    except KeyboardInterrupt:
        raise
    except BaseException:  # Unpickling may import modules, which may do anything.
        log.exception("callbacks will not run: cannot read %s", path)
        return []
    callbacks = []
    for entry in entries:
        name, content = entry if isinstance(entry, tuple) else (type(entry).__name__, entry)
        try:
            callback = pickle.loads(content) if isinstance(content, bytes) else content
            if callback.requires_runner_transport:
                callbacks.append(callback)
        except KeyboardInterrupt:
            raise
        except BaseException:
            log.exception("the callback %s cannot be read and will not run", name)
    return callbacks


def named(names: Iterable[str]) -> list[Callback]:
    """Return callbacks by MODULE:NAME, on the node; a class is called without arguments.

    A name that cannot be imported or is no Callback is logged and left out.
    """
    callbacks = []
    for name in names:
        module, _, path = name.partition(":")
        try:
            found: Any = importlib.import_module(module)
            for part in path.split("."):
                found = getattr(found, part)
            callback = found() if isinstance(found, type) else found
            if not isinstance(callback, Callback):
                raise TypeError(f"expected a Callback, not {type(callback).__name__}")
            callbacks.append(callback)
        except KeyboardInterrupt:
            raise
        except BaseException:
            log.exception("the callback %s cannot be created and will not run", name)
    return callbacks


class ClientCallbacks:
    """Callbacks of a job on the client, called with its scheduler status, and once at its end.

    Pass `see` each polled status, at any poll interval.
    """

    def __init__(self, callbacks: Sequence[Callback], launch: Launch) -> None:
        self._callbacks = [
            callback for callback in callbacks if callback.runs_on is not RunsOn.RUNNER
        ]
        self._launch = launch
        self._called_at: dict[int, float] = {}
        self._last_state: str | None = None
        self._is_completed = False

    def see(self, status: JobStatus, result_path: str | None = None) -> None:
        """Call `on_status` of the callbacks for which it is time; at the end, once, `on_completed`
        of all.
        """
        if self._is_completed:
            return
        for number, callback in enumerate(self._callbacks):
            if self._is_due(callback, status, self._called_at.get(number, -math.inf)):
                self._called_at[number] = status.seen_at
                tell([callback], "on_status", status)
        self._last_state = status.state
        if not status.is_ended:
            return
        self._is_completed = True
        outcome = {None: None, True: RunStatus.SUCCESS, False: RunStatus.FAILURE}[status.is_success]
        completed = Completed(
            self._launch,
            EmittedBy.CLIENT,
            outcome,
            status.seen_at,
            job_id=status.job_id,
            result_path=result_path,
            scheduler_state=status.state,
            exit_status=status.exit_status,
        )
        tell(self._callbacks, "on_completed", completed)

    def _is_due(self, callback: Callback, status: JobStatus, called_at: float) -> bool:
        if status.is_ended:
            return True
        if callback.status_on is StatusOn.CHANGE:
            return status.state != self._last_state
        if callback.status_on is StatusOn.INTERVAL:
            return status.seen_at - called_at >= callback.status_interval_seconds
        return False
