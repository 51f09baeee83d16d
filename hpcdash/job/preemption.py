"""Ends a training before its scheduler does: at a signal that warns, or while there is time left
for one more save.
"""

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

# Assumed duration of a save until one was measured; no more than a twentieth of the time left at
# the start.
UNMEASURED_SAVE_SECONDS = 60.0
_GRACE_FACTOR = 2.0
# The least that is left for the end; no more than a twentieth either.
_MIN_GRACE_SECONDS = 10.0
# With these workers are ended: they must get them.
_ENDING = ("SIGTERM", "SIGINT")
# A file that the batch script reads: the signals for which the training stopped, `SIGTERM 4711` a
# line.
STOPPED_EARLY = "HPCDASH_STOPPED_EARLY"
_RECENT_ITERATIONS = 50
_RECENT_SAVES = 5


class Preemption:
    """Says when to save and end: after SIGUSR1 or SIGTERM, or when the job's end is nearer than 2 ×
    (iteration + save).

    At the latest it says so 10 s before the end, or a twentieth of the time there was.

    The end is the earliest of HPCDASH_END_TIME (the script of a launch sets it),
    SLURM_JOB_END_TIME, `walltime` ("24:00:00" or seconds, from this process's start: PBS says it
    nowhere) and `exit_duration_in_mins` after the start. `ask_slurm` has one `scontrol show job`
    asked, here: older versions of Slurm, as 22.05, set no SLURM_JOB_END_TIME, and an end that was
    put off later is in neither.

    The batch script of a job with `requeue` and `checkpoints` is notified of a stop for a signal,
    by the file HPCDASH_STOPPED_EARLY: it requeues a job that is being preempted.

        preemption = Preemption()
        for step in range(steps):
            train(step)
            if preemption.should_stop(step):
                save(step)
                break

    Iterations are timed from one `should_stop` to the next, and the slowest of the last 50 counts;
    saves by `saved(seconds)`. Before the first, a save takes `save_seconds`, or as long as that of
    what `Checkpoints` resumed from, or 60 s (at most a twentieth of the time there was). The
    handler only sets a flag, then calls the handler that was there. Signals reach the main thread
    alone: made in another one, this raises RuntimeError unless `signals=()`. `close` puts the old
    handlers back.

    With several ranks one that has to stop stops all, by `all_reduce_max` (a rank's number in, the
    highest of all out) or by torch.distributed where it runs: then all ranks must ask, at the same
    places.

    `scancel --signal=USR1` and `#SBATCH --signal=USR1@90` go to all processes of a step, and end
    each that does not handle them. Workers that multiprocessing starts after this is made (fork,
    spawn or forkserver) outlive them, and hear of them only by a Preemption of their own. Other
    programs are left as they are, for some want the signal: what is to outlive it, as the service
    of a logger, is started in `with preemption.sparing():`.
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
        self._also: dict[str, float] = {}
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
            self._reason = "another rank knows that the job is ending" + (
                "" if step is None else f" at step {step}"
            )
        if worst:
            self.stopping()
        return self._reason

    def stopping(self) -> None:
        """Reports that the training stops now: its batch script then knows the signals it has
        received, or receives.
        """
        if not self._is_stopping:
            self._is_stopping = True
            self._report_signals()

    def reason(self, step: int | None = None) -> str:
        """Return the reason to stop of this rank alone, without timing an iteration."""
        if not self._reason:
            at = "" if step is None else f" at step {step}"
            if self._signal is not None:
                import signal

                self._reason = f"received {signal.Signals(self._signal).name}{at}"
            elif self.ends_at is not None and self.seconds_left() <= self.grace_seconds():
                left, grace = max(0.0, self.seconds_left()), self.grace_seconds()
                steps = (
                    "iteration"
                    if self.check_every_steps == 1
                    else f"{self.check_every_steps} iterations"
                )
                parts = " + ".join((steps, "save", *self._also))
                least = f"2 × ({parts})" if grace > self._least_grace else "the end itself"
                self._reason = f"{left:.0f} s are left{at}, less than the {grace:.0f} s of {least}"
        return self._reason

    def seconds_left(self) -> float:
        """Until the job's end; infinite where that is not known."""
        return float("inf") if self.ends_at is None else self.ends_at - self._now()

    def grace_seconds(self) -> float:
        """Return how many seconds before its end the training stops.

        It is 2 × (iteration + save), of the slowest measured lately, with as many iterations as lie
        between two checks; and at least some seconds.
        """
        known = (
            max(self._saves, default=None),
            self._save_seconds,
            remembered(),
            self._assumed_save,
        )
        save = next(seconds for seconds in known if seconds is not None)
        iterations = self.check_every_steps * max(self._iterations, default=0.0)
        return max(
            self._least_grace, _GRACE_FACTOR * (iterations + save + sum(self._also.values()))
        )

    def sparing(self) -> AbstractContextManager[None]:
        """Block the warning signals for processes and threads that this thread starts in the block.

        SIGTERM and SIGINT are not blocked.

            with guard.preemption.sparing():
                wandb.init()
        """
        from hpcdash.job.spared import blocked

        return blocked(self._spared)

    def iterated(self, seconds: float) -> None:
        """Record how long an iteration took."""
        self._iterations.append(float(seconds))

    def saved(self, seconds: float) -> None:
        """Record how long a save took; it is not counted as part of an iteration."""
        self._saves.append(float(seconds))
        self._last_step_at = monotonic()

    def also(self, what: str, seconds: float) -> None:
        """Record another part of the end, such as a last validation, and its duration."""
        self._also[what] = float(seconds)

    def close(self) -> None:
        """Puts back the handlers that were there; those that were put over these since are left
        alone.

        Where one of those puts this one's back when it is closed itself, signals go on to what was
        there before.
        """
        import signal

        self._is_closed = True
        if self._spared:
            from hpcdash.job.spared import spare_no_longer

            spare_no_longer(self._spared)
        self._spared = []
        for number in self._previous:
            if signal.getsignal(number) == self._handle:
                signal.signal(number, self._before(number))

    def _before(self, number: int) -> Any:
        """Return the previous handler of a signal, skipping handlers of closed Preemptions."""
        previous = self._previous.get(number)
        of = getattr(previous, "__self__", None)
        return of._before(number) if isinstance(of, Preemption) and of._is_closed else previous

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
            # A handler that C code set is known as None and can be neither called nor put back.
            self._previous[number] = signal.SIG_DFL if previous is None else previous
            if previous is None:
                warn(f"{name} had a non-Python handler, which is no longer called")
        self._spared = [int(signal.Signals[name]) for name in names if name not in _ENDING]
        from hpcdash.job.spared import spare_workers_from, unblock_in_worker

        spare_workers_from(self._spared)
        unblock_in_worker(self._spared)

    def _report_signals(self) -> None:
        """Write each signal once, unbuffered: the handler calls this too."""
        path = os.environ.get(STOPPED_EARLY, "")
        if not path or not self._received:
            return
        import signal

        # A job that this one has submitted inherits the path, and has another number.
        job = os.environ.get("SLURM_JOB_ID", "")
        lines = [f"{signal.Signals(number).name} {job}\n" for number in self._received]
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

        previous = self._before(number)
        if self._is_closed:
            if callable(previous):
                previous(number, frame)
            elif signal.getsignal(number) == self._handle:
                signal.signal(number, previous)
                os.kill(os.getpid(), number)
            return
        if os.getpid() != self._process:
            # A forked worker of a data loader: it is ended with TERM, and is to outlive what warns
            # the whole step.
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
