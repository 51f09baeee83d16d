"""Stops a training before its scheduler does: at a warning signal, or in time for a last save."""

from __future__ import annotations

import os
from collections import deque
from time import monotonic, time

from hpcdash.job.ranks import all_reduce_highest
from hpcdash.job.save_times import remembered
from hpcdash.job.warnings_once import warn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager
    from types import FrameType
    from typing import Any

    from hpcdash.job.ranks import AllReduceMax

# Assumed duration of a save until one is measured, at most a twentieth of the time left at the
# start.
UNMEASURED_SAVE_SECONDS = 60.0
_GRACE_FACTOR = 2.0
# Least time left for the end, at most a twentieth of the time left at the start too.
_MIN_GRACE_SECONDS = 10.0
# Signals that end workers, which must receive them.
_ENDING = ("SIGTERM", "SIGINT")
# File for the batch script: the signals for which the training stopped, a line `SIGTERM 4711` each.
STOPPED_EARLY = "HPCDASH_STOPPED_EARLY"
_RECENT_ITERATIONS = 50
_RECENT_SAVES = 5


class Preemption:
    """Reports when to save and end: after SIGUSR1 or SIGTERM, or 2 × (iteration + save) before the
    job's end.

    At the latest that is 10 s before the end, or a twentieth of the time left at the start.

    The end is the earliest of HPCDASH_END_TIME (the script of a launch sets it),
    SLURM_JOB_END_TIME, `walltime` ("24:00:00" or seconds, from this process's start: PBS does not
    report it) and `exit_duration_in_mins` after the start. `ask_slurm` runs one `scontrol show job`
    here: older versions of Slurm, such as 22.05, set no SLURM_JOB_END_TIME, and neither variable
    knows of an extension.

    The batch script of a job with `requeue` and `checkpoints` is notified of a stop for a signal by
    the file HPCDASH_STOPPED_EARLY: it requeues a job that is being preempted.

        preemption = Preemption()
        for step in range(steps):
            train(step)
            if preemption.should_stop(step):
                save(step)
                break

    Iterations are timed from one `should_stop` to the next, and the slowest of the last 50 counts;
    saves are reported with `saved(seconds)`. Before the first, a save is assumed to take
    `save_seconds`, or as long as that of the checkpoint that `Checkpoints` resumed from, or 60 s
    (at most a twentieth of the time left at the start). The handler only sets a flag, then calls
    the previous handler. Signals reach only the main thread: created in another thread, this raises
    RuntimeError unless `signals=()`. `close` restores the previous handlers.

    With several ranks, one that has to stop stops all, by `all_reduce_max` (takes a rank's number,
    returns the highest of all) or by torch.distributed if it is running: then all ranks must call
    `should_stop` at the same places.

    `scancel --signal=USR1` and `#SBATCH --signal=USR1@90` go to all processes of a step, and end
    each that does not handle them. Workers that multiprocessing starts after this was created
    (fork, spawn or forkserver) survive them, and are notified only by a Preemption of their own.
    Other programs are left as they are, because some handle the signal: start a program that must
    survive, such as the service of a logger, in `with preemption.sparing():`.
    """

    def __init__(
        self,
        *,
        signals: Sequence[str] = ("SIGUSR1", "SIGTERM"),
        walltime: float | str | None = None,
        exit_duration_in_mins: float | None = None,
        ask_slurm: bool = False,
        save_seconds: float | None = None,
        all_reduce_max: AllReduceMax | None = None,
        now: Callable[[], float] = time,
    ) -> None:
        from hpcdash.job.end_time import end_time

        self._now = now
        self.ends_at = end_time(
            walltime=walltime, exit_duration_in_mins=exit_duration_in_mins, ask_slurm=ask_slurm
        )
        # Number of timed iterations between two checks.
        self.check_every_steps = 1
        twentieth = float("inf") if self.ends_at is None else max(0.0, self.ends_at - now()) / 20
        self._assumed_save = min(UNMEASURED_SAVE_SECONDS, twentieth)
        self._least_grace = 0.0 if self.ends_at is None else min(_MIN_GRACE_SECONDS, twentieth)
        self._save_seconds = None if save_seconds is None else float(save_seconds)
        self._all_reduce_max = all_reduce_max
        self._iterations: deque[float] = deque(maxlen=_RECENT_ITERATIONS)
        self._saves: deque[float] = deque(maxlen=_RECENT_SAVES)
        self._other_parts: dict[str, float] = {}
        self._last_step_at: float | None = None
        self._reason = ""
        self._signal: int | None = None
        self._received: list[int] = []
        self._is_stopping = False
        self._process = os.getpid()
        self._previous: dict[int, Any] = {}
        self._spared: list[int] = []
        self._is_closed = False
        if signals:
            self._catch(signals)

    def should_stop(self, step: int | None = None) -> str:
        """Return the reason to save and end now, "" to continue.

        Once set, the reason stays; call it once per iteration.
        """
        self._time_iteration()
        worst = all_reduce_highest(int(bool(self.reason(step))), self._all_reduce_max)
        if worst and not self._reason:
            self._reason = "another rank was notified that the job is ending" + (
                "" if step is None else f" at step {step}"
            )
        if worst:
            self.stopping()
        return self._reason

    def stopping(self) -> None:
        """Record that the training stops now, and report its signals to the batch script, also
        those that it receives later.
        """
        if not self._is_stopping:
            self._is_stopping = True
            self._report_signals()

    def reason(self, step: int | None = None) -> str:
        """Return the reason to stop of this rank alone, without timing an iteration."""
        if self._reason:
            return self._reason
        place = "" if step is None else f" at step {step}"
        left = self.seconds_left()
        grace = self.grace_seconds()
        if self._signal is not None:
            import signal

            self._reason = f"received {signal.Signals(self._signal).name}{place}"
        elif left <= grace:
            steps = "iteration"
            if self.check_every_steps != 1:
                steps = f"{self.check_every_steps} iterations"
            parts = " + ".join((steps, "save", *self._other_parts))
            needed = f"2 × ({parts})" if grace > self._least_grace else "the job end"
            self._reason = (
                f"{max(0.0, left):.0f} s left{place}, less than the {grace:.0f} s of {needed}"
            )
        return self._reason

    def seconds_left(self) -> float:
        """Return the seconds until the job's end; infinite if it is unknown."""
        return float("inf") if self.ends_at is None else self.ends_at - self._now()

    def grace_seconds(self) -> float:
        """Return how many seconds before the job's end the training stops.

        This is 2 × (iteration + save), by the slowest of the last ones and with the iterations
        between two checks, and at least some seconds.
        """
        known = (
            max(self._saves, default=None),
            self._save_seconds,
            remembered(),
            self._assumed_save,
        )
        save = next(seconds for seconds in known if seconds is not None)
        iterations = self.check_every_steps * max(self._iterations, default=0.0)
        end = iterations + save + sum(self._other_parts.values())
        return max(self._least_grace, _GRACE_FACTOR * end)

    def sparing(self) -> AbstractContextManager[None]:
        """Block the warning signals for processes and threads that this thread starts in the block.

        SIGTERM and SIGINT are not blocked.

            with guard.preemption.sparing():
                wandb.init()
        """
        from hpcdash.job.spared import blocked

        return blocked(self._spared)

    def iterated(self, seconds: float) -> None:
        """Record the duration of an iteration."""
        self._iterations.append(float(seconds))

    def saved(self, seconds: float) -> None:
        """Record the duration of a save, which then does not count as part of an iteration."""
        self._saves.append(float(seconds))
        self._last_step_at = monotonic()

    def also(self, what: str, seconds: float) -> None:
        """Record another part of the end, such as a last validation, and its duration."""
        self._other_parts[what] = float(seconds)

    def close(self) -> None:
        """Restore the previous handlers, except where another handler has been installed since.

        If that handler restores this one later, this one passes signals on to the previous handler.
        """
        import signal

        self._is_closed = True
        if self._spared:
            from hpcdash.job.spared import spare_no_longer

            spare_no_longer(self._spared)
        self._spared = []
        for number in self._previous:
            if signal.getsignal(number) == self._handle:
                signal.signal(number, self._previous_handler(number))

    def _previous_handler(self, number: int) -> Any:
        """Return the previous handler of a signal, skipping handlers of closed Preemptions."""
        handler = self._previous.get(number)
        owner = getattr(handler, "__self__", None)
        if isinstance(owner, Preemption) and owner._is_closed:
            return owner._previous_handler(number)
        return handler

    def _time_iteration(self) -> None:
        now = monotonic()
        if self._last_step_at is not None:
            self.iterated(now - self._last_step_at)
        self._last_step_at = now

    def _catch(self, names: Sequence[str]) -> None:
        import signal
        import threading

        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError(
                "signals reach only the main thread: create this in the main thread, or pass "
                "signals=()"
            )
        for name in names:
            number = int(signal.Signals[name])
            previous = signal.signal(number, self._handle)
            # A handler of C code is None here: it can be neither called nor restored.
            self._previous[number] = signal.SIG_DFL if previous is None else previous
            if previous is None:
                warn(f"{name} had a non-Python handler, which is no longer called")
        self._spared = [int(signal.Signals[name]) for name in names if name not in _ENDING]
        from hpcdash.job.spared import spare_workers_from, unblock_in_worker

        spare_workers_from(self._spared)
        unblock_in_worker(self._spared)

    def _report_signals(self) -> None:
        """Append the signals received since the last report; the handler calls this too."""
        path = os.environ.get(STOPPED_EARLY, "")
        if not path or not self._received:
            return
        import signal

        # A job that this job has submitted inherits the path, but has another ID.
        job_id = os.environ.get("SLURM_JOB_ID", "")
        lines = [f"{signal.Signals(number).name} {job_id}\n" for number in self._received]
        self._received.clear()
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
            try:
                os.write(file, "".join(lines).encode())
            finally:
                os.close(file)
        except OSError as error:
            warn(f"the batch script is not notified of this stop: {path}: {error.strerror}")

    def _handle(self, number: int, frame: FrameType | None) -> None:
        import signal

        previous = self._previous_handler(number)
        if self._is_closed:
            if callable(previous):
                previous(number, frame)
            elif signal.getsignal(number) == self._handle:
                signal.signal(number, previous)
                os.kill(os.getpid(), number)
            return
        if os.getpid() != self._process:
            # A forked worker of a data loader ends at TERM, and survives a warning to the step.
            if number == signal.SIGTERM or callable(previous):
                signal.signal(number, previous or signal.SIG_DFL)
                os.kill(os.getpid(), number)
            return
        self._signal = number
        self._received.append(number)
        if self._is_stopping:
            self._report_signals()
        if callable(previous):
            previous(number, frame)
