"""Ends a training before its scheduler does: at a signal that warns, or while there is time left for one more save.

Knows nothing of how a checkpoint is saved; is told how long that took.
"""

from __future__ import annotations

import os
from collections import deque
from time import monotonic, time

from hpcdash.job.end_time import end_time
from hpcdash.job.said_once import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType
    from typing import Any

# What a save is taken to last until one was measured; no more than a twentieth of the time there was at the start.
UNMEASURED_SAVE_SECONDS = 60.0
_GRACE_FACTOR = 2.0
_RECENT_ITERATIONS = 50
_RECENT_SAVES = 5


class Preemption:
    """Says when to save and end: after SIGUSR1 or SIGTERM, or when the job's end is nearer than 2 × (iteration + save).

    The end is the earliest of HPCDASH_END_TIME (the script of a launch sets it), SLURM_JOB_END_TIME, `walltime`
    ("24:00:00" or seconds, from this process's start: PBS says it nowhere) and `exit_duration_in_mins` after the start.
    `ask_slurm` has one `scontrol show job` asked, here: older versions of Slurm, as 22.05, set no SLURM_JOB_END_TIME,
    and an end that was put off later is in neither.

        preemption = Preemption()
        for step in range(steps):
            train(step)
            if preemption.should_stop(step):
                save(step)
                break

    Iterations are timed from one `should_stop` to the next, and the slowest of the last 50 counts; saves by
    `saved(seconds)`. The handler only sets a flag, then calls the handler that was there. Signals reach the main thread
    alone: made in another one, this raises RuntimeError unless `signals=()`. `close` puts the old handlers back.
    """

    def __init__(
        self,
        *,
        signals: Sequence[str] = ("SIGUSR1", "SIGTERM"),
        walltime: float | str | None = None,
        exit_duration_in_mins: float | None = None,
        ask_slurm: bool = False,
        save_seconds: float | None = None,
        now: Callable[[], float] = time,
    ) -> None:
        self._now = now
        self.ends_at = end_time(walltime=walltime, exit_duration_in_mins=exit_duration_in_mins, ask_slurm=ask_slurm)
        assumed = UNMEASURED_SAVE_SECONDS
        if self.ends_at is not None:
            assumed = min(assumed, max(0.0, self.ends_at - now()) / 20)
        self._assumed_save = assumed if save_seconds is None else float(save_seconds)
        self._iterations: deque[float] = deque(maxlen=_RECENT_ITERATIONS)
        self._saves: deque[float] = deque(maxlen=_RECENT_SAVES)
        self._last_step_at: float | None = None
        self._reason = ""
        self._signal: int | None = None
        self._process = os.getpid()
        self._previous: dict[int, Any] = {}
        self._is_closed = False
        if signals:
            self._catch(signals)

    def should_stop(self, step: int | None = None) -> str:
        """Why to save and end now, "" to go on. Once said it stays said; asked once an iteration."""
        self._time_iteration()
        return self.reason(step)

    def reason(self, step: int | None = None) -> str:
        """As `should_stop`, without timing an iteration."""
        if not self._reason:
            at = "" if step is None else f" at step {step}"
            if self._signal is not None:
                import signal

                self._reason = f"received {signal.Signals(self._signal).name}{at}"
            elif self.ends_at is not None and self.seconds_left() <= self.grace_seconds():
                left, grace = max(0.0, self.seconds_left()), self.grace_seconds()
                self._reason = f"{left:.0f} s are left{at}, less than the {grace:.0f} s of 2 × (iteration + save)"
        return self._reason

    def seconds_left(self) -> float:
        """Until the job's end; infinite where that is not known."""
        return float("inf") if self.ends_at is None else self.ends_at - self._now()

    def grace_seconds(self) -> float:
        """How long before its end the training stops: 2 × (iteration + save), of the slowest measured lately."""
        save = max(self._saves) if self._saves else self._assumed_save
        return _GRACE_FACTOR * (max(self._iterations, default=0.0) + save)

    def iterated(self, seconds: float) -> None:
        """Says how long an iteration took."""
        self._iterations.append(float(seconds))

    def saved(self, seconds: float) -> None:
        """Says how long a save took; it is not counted as part of an iteration."""
        self._saves.append(float(seconds))
        self._last_step_at = monotonic()

    def close(self) -> None:
        """Puts back the handlers that were there; those that were put over these since are left alone.

        Where one of those puts this one's back when it is closed itself, signals go on to what was there before.
        """
        import signal

        self._is_closed = True
        for number in self._previous:
            if signal.getsignal(number) == self._handle:
                signal.signal(number, self._before(number))

    def _before(self, number: int) -> Any:
        """What handled a signal before this: of others like it that are closed by now, what did before them."""
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
                "signals reach the main thread alone: make this in the main thread, or with signals=() to go without"
            )
        for name in names:
            number = int(signal.Signals[name])
            previous = signal.signal(number, self._handle)
            # A handler that C code set is known as None and can be neither called nor put back.
            self._previous[number] = signal.SIG_DFL if previous is None else previous
            if previous is None:
                say(f"{name} had a handler that is not Python's: it is not called any more")

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
            # A forked worker of a data loader: it is ended with TERM, and is to outlive what warns the whole step.
            if number == signal.SIGTERM or callable(previous):
                signal.signal(number, previous or signal.SIG_DFL)
                os.kill(os.getpid(), number)
            return
        self._signal = number
        if callable(previous):
            previous(number, frame)
