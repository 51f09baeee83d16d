"""Saves, stops and metrics of a training, in three lines of its loop."""

from __future__ import annotations

import os
from time import monotonic

from hpcdash.job.metrics import METRICS, MetricsWriter
from hpcdash.job.preemption import Preemption
from hpcdash.job.rank_variables import processes_in_all
from hpcdash.job.ranks import Rank, all_reduce_highest, torch_is_distributed
from hpcdash.job.switches import Switches
from hpcdash.job.warnings_once import OnceLog, warn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from hpcdash.job.memory import MemoryGuard
    from hpcdash.job.ranks import AllReduceMax

# Verdicts that the ranks exchange: the highest wins, and each from _MEMORY on saves, then stops.
_CONTINUE, _SAVE_TIME, _SAVE_SWITCH, _MEMORY, _PREEMPTED, _KILLED = range(6)
_REASONS_OF_OTHERS = {
    _SAVE_TIME: "it is time to save",
    _SAVE_SWITCH: "save switch",
    _MEMORY: "another rank is almost out of memory",
    _PREEMPTED: "another rank was notified that the job is ending",
    _KILLED: "kill switch",
}


class TrainingGuard:
    """Stops a training in time, saves on request, and writes metrics.

        guard = TrainingGuard(save_every_minutes=60, metrics="metrics.jsonl")  # first line of main
        newest = Checkpoints("checkpoints").resume_from()  # once torch.distributed runs
        ...
        for step in range(start, steps):
            loss = train(step)
            guard.step(step, loss=loss)
            if guard.should_save():
                save(step)
            if guard.should_stop():
                break

    It stops for the kill switch; for SIGUSR1 or SIGTERM; 2 × (iteration + save), as measured in
    this loop, and at least 10 s before the end of the job; and for more than 95% of host memory
    used or less than 2 GiB of GPU memory free. (The first save is assumed to take `save_seconds`,
    or as long as the save of the checkpoint that `Checkpoints` resumed from.) It saves before it
    stops, for the save switch, every `save_every_steps` and every `save_every_minutes`. If the kill
    switch is set at the start, the program ends here with exit status 0; with
    `exit_if_killed=False`, at the first step.

    With several ranks, each creates a guard and calls `step` at each step: all act together.
    torch.distributed is used automatically if it is running; else pass `all_reduce_max` (takes a
    rank's number, returns the highest of all). `check_every_steps` is for loops so fast that an
    all-reduce at each step matters; the guard then stops that much earlier. If only rank 0 saves,
    have the others wait for it after the loop (`torch.distributed.barrier()`): launchers end the
    other ranks soon after the first has exited.

    The end of the job is HPCDASH_END_TIME, which `hpcdash submit REQUEST.toml` sets, or
    SLURM_JOB_END_TIME, which older versions of Slurm do not set: `ask_slurm=True` queries it once,
    on rank 0. PBS sets neither: pass `walltime="24:00:00"` or `exit_duration_in_mins`.

    `memory` and `preemption` may be existing objects; `memory=None` and `signals=()` disable them.
    The paths of the switches default to HPCDASH_KILL_SWITCH and HPCDASH_SAVE_SWITCH, that of the
    metrics to HPCDASH_METRICS; "" is none.
    """

    def __init__(
        self,
        *,
        kill: str | None = None,
        save: str | None = None,
        save_every_steps: int | None = None,
        save_every_minutes: float | None = None,
        metrics: str | os.PathLike[str] | MetricsWriter | None = None,
        walltime: float | str | None = None,
        exit_duration_in_mins: float | None = None,
        save_seconds: float | None = None,
        ask_slurm: bool = False,
        signals: Sequence[str] = ("SIGUSR1", "SIGTERM"),
        memory: MemoryGuard | bool | None = True,
        preemption: Preemption | None = None,
        all_reduce_max: AllReduceMax | None = None,
        rank: int | None = None,
        check_every_steps: int = 1,
        look_every_seconds: float = 10.0,
        exit_if_killed: bool = True,
    ) -> None:
        if check_every_steps < 1 or (save_every_steps is not None and save_every_steps < 1):
            raise ValueError(
                "check_every_steps and save_every_steps must be 1 or more; None does not save at "
                "a fixed step"
            )
        self._rank = Rank(rank)
        self.switches = Switches(kill, save, every_seconds=look_every_seconds, rank=rank)
        if exit_if_killed:
            self._exit_if_killed()
        # One rank queries Slurm, not thousands.
        self.preemption = preemption or Preemption(
            signals=signals,
            walltime=walltime,
            exit_duration_in_mins=exit_duration_in_mins,
            save_seconds=save_seconds,
            ask_slurm=ask_slurm and self.rank == 0,
        )
        self.preemption.check_every_steps = check_every_steps
        if memory is True:
            from hpcdash.job.memory import MemoryGuard

            memory = MemoryGuard()
        self.memory = memory or None
        # With metrics="" the user decided against metrics.
        self._warns_without_metrics = metrics is None
        if metrics is None:
            metrics = os.environ.get(METRICS, "")
        if isinstance(metrics, (str, os.PathLike)):
            metrics = MetricsWriter(metrics, rank=rank) if os.fspath(metrics) else None
        self.metrics: MetricsWriter | None = metrics
        self.save_reason = ""
        self.stop_reason = ""
        self.all_reduce_max = all_reduce_max
        self._check_every_steps = check_every_steps
        self._save_every_steps = save_every_steps
        self._save_every_seconds = None if save_every_minutes is None else 60 * save_every_minutes
        self._steps = 0
        self._is_save_due = False
        self._last_step_at: float | None = None
        self._save_start: float | None = None
        # Step after which the save switch requested a save that has not ended.
        self._switch_step: int | None = None
        self._last_save_at = monotonic()
        self._log = OnceLog()

    @property
    def rank(self) -> int:
        """Rank among all that train, by `rank=`, torch.distributed or the environment; else 0."""
        return self._rank.now

    def step(self, step: int, /, **metrics: Any) -> None:
        """Finish a step: write its metrics, time it, and let the ranks agree on the next action."""
        self._time_iteration()
        if metrics:
            if self.metrics is not None:
                self.metrics.write(step, **metrics)
            elif self._warns_without_metrics and self.rank == 0:
                names = ", ".join(metrics)
                self._log.warn(
                    "metrics",
                    f"the steps' {names} are not recorded: pass metrics=, or set {METRICS} to a "
                    "file",
                )
        if self._save_every_steps and step and step % self._save_every_steps == 0:
            self._request_save(f"every {self._save_every_steps} steps")
        self._steps += 1
        if self._steps % self._check_every_steps == 0 and not self.stop_reason:
            self._agree(step)

    def should_save(self, step: int | None = None) -> bool:
        """Return whether to save now: True once for each reason.

        The time until the next call of the guard counts as the duration of the save. `save_reason`
        is the reason for the last save: "save switch" if a user requested it.
        """
        if not self._is_save_due:
            return False
        self._is_save_due = False
        self._save_start = monotonic()
        return True

    def should_stop(self, step: int | None = None) -> str:
        """Return the reason to leave the loop, "" to continue. Once set, the reason stays."""
        self._end_save()
        return self.stop_reason

    def saved(self, seconds: float | None = None) -> float | None:
        """Record the end of a save, for loops that do not save between two calls of the guard.

        Returns its duration in seconds; None if no save had started.
        """
        if seconds is None:
            return self._end_save()
        self._record_save(seconds)
        return seconds

    def close(self) -> None:
        """Close the metrics, and restore the previous signal handlers."""
        self._end_save()
        self.preemption.close()
        if self.metrics is not None:
            self.metrics.close()

    def __enter__(self) -> TrainingGuard:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _exit_if_killed(self) -> None:
        if not torch_is_distributed():
            self.switches.exit_if_killed()
        elif all_reduce_highest(int(self.rank == 0 and self.switches.sees_kill()), None):
            warn(
                f"the kill switch {self.switches.kill} is set: exiting before training; delete "
                "it to train"
            )
            raise SystemExit(0)

    def _agree(self, step: int) -> None:
        own_verdict, reason = self._own_verdict(step)
        verdict = all_reduce_highest(own_verdict, self.all_reduce_max)
        if verdict != own_verdict:
            reason = _REASONS_OF_OTHERS.get(verdict, reason)
        if verdict >= _MEMORY:
            self.stop_reason = reason
            if verdict == _PREEMPTED:
                self.preemption.stopping()
            self._request_save(reason)
            if self.rank == 0 or verdict == own_verdict:
                warn(f"stopping after step {step}: {reason}")
        elif verdict > _CONTINUE:
            self._request_save(reason)
            if verdict == _SAVE_SWITCH and self.rank == 0:
                self._switch_step = step
                warn(f"save switch set: saving after step {step}")

    def _request_save(self, reason: str) -> None:
        self.save_reason = reason
        self._is_save_due = True
        self._last_save_at = monotonic()

    def _own_verdict(self, step: int) -> tuple[int, str]:
        """Return this rank's most urgent verdict, and the reason for it."""
        if self._checks_files() and self.switches.sees_kill():
            return _KILLED, f"the kill switch {self.switches.kill} is set"
        reason = self.preemption.reason(step)
        if reason:
            return _PREEMPTED, reason
        reason = self.memory.reason() if self.memory is not None else ""
        if reason:
            return _MEMORY, reason
        if self.rank == 0 and self.switches.takes_save():
            return _SAVE_SWITCH, "save switch"
        since = monotonic() - self._last_save_at
        if (
            self.rank == 0
            and self._save_every_seconds is not None
            and since >= self._save_every_seconds
        ):
            return _SAVE_TIME, f"{since / 60:.0f} minutes since the last save"
        return _CONTINUE, ""

    def _checks_files(self) -> bool:
        """Return whether this rank checks the switches: only rank 0 if it can notify the others."""
        if self.all_reduce_max is not None or torch_is_distributed():
            return self.rank == 0
        if self.rank == 0 and processes_in_all() > 1:
            self._log.warn(
                "alone",
                f"{processes_in_all()} processes without torch.distributed: each decides on its "
                "own when to stop, and only rank 0 saves for the save switch and at timed "
                "intervals; pass all_reduce_max= to TrainingGuard if they train together, or "
                "rank=0 if each trains independently",
            )
        return True

    def _time_iteration(self) -> None:
        self._end_save()
        now = monotonic()
        if self._last_step_at is not None:
            self.preemption.iterated(now - self._last_step_at)
        self._last_step_at = now

    def _end_save(self) -> float | None:
        if self._save_start is None:
            return None
        now = monotonic()
        seconds = now - self._save_start
        self._last_save_at = self._last_step_at = now
        self._record_save(seconds)
        return seconds

    def _record_save(self, seconds: float) -> None:
        self.preemption.saved(seconds)
        self._save_start = None
        if self._switch_step is not None:
            warn(
                f"checkpoint saved after step {self._switch_step}, in {seconds:.0f} s, for the "
                "save switch"
            )
            self._switch_step = None
