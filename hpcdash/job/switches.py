"""Kill switch and save switch: files that, once created, stop a training or have it save.

A check is one stat, at most every few seconds and only on rank 0; it runs in a thread, because a
stat on a dead mount never returns.
"""

from __future__ import annotations

import os
import stat
from time import monotonic

from hpcdash.job.aside import Aside
from hpcdash.job.ranks import Rank, all_reduce_highest
from hpcdash.job.warnings_once import OnceLog

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from hpcdash.job.ranks import AllReduceMax

KILL_SWITCH = "HPCDASH_KILL_SWITCH"
SAVE_SWITCH = "HPCDASH_SAVE_SWITCH"
# A check takes microseconds on a healthy file system. Before the start a longer wait does no harm.
_WAIT_SECONDS = 2.0
_WAIT_AT_START_SECONDS = 10.0


class Switches:
    """Kill switch and save switch of a training.

    Paths default to HPCDASH_KILL_SWITCH and HPCDASH_SAVE_SWITCH; "" means none.

    The kill switch is not deleted here, so that it ends every queued run, until a user deletes it.
    The save switch is deleted when it is seen, so that it fires once. A file that cannot be checked
    counts as absent and is logged once. No check raises or waits longer than 2 s (10 s before the
    start): if a mount does not answer, the training continues as if the file were absent, and sees
    it once the mount answers. Raises ValueError if both are the same file, because its meaning
    would be ambiguous.

        switches = Switches(kill="/scratch/me/KILL", save="/scratch/me/SAVE")
        switches.exit_if_killed()
        for step in range(steps):
            train(step)
            if switches.save_wanted() or switches.kill_wanted():
                save(step)
            if switches.kill_wanted():
                break

    With several ranks, rank 0 checks and notifies the others by `all_reduce_max` (takes a rank's
    number, returns the highest of all), or by torch.distributed if it is running: then all ranks
    must call a method at the same places.
    """

    def __init__(
        self,
        kill: str | None = None,
        save: str | None = None,
        *,
        every_seconds: float = 10.0,
        all_reduce_max: AllReduceMax | None = None,
        rank: int | None = None,
    ) -> None:
        self.kill = _absolute(os.environ.get(KILL_SWITCH, "") if kill is None else kill)
        self.save = _absolute(os.environ.get(SAVE_SWITCH, "") if save is None else save)
        if self.kill and self.kill == self.save:
            raise ValueError(
                f"kill switch and save switch are the same file, {self.kill}: use two paths"
            )
        self._every_seconds = every_seconds
        self._all_reduce_max = all_reduce_max
        self._rank = Rank(rank)
        self._is_killed = False
        self._next_check = {self.kill: 0.0, self.save: 0.0}
        self._aside = {self.kill: Aside(), self.save: Aside()}
        self._undeleted: tuple[int, int] | None = None
        self._log = OnceLog()

    def exit_if_killed(self) -> None:
        """End the program with exit status 0 if the kill switch is set; for the first line of main.

        Each rank checks on its own, because ranks cannot communicate yet.
        """
        if self.kill and self._check_path(self.kill, self._is_set, _WAIT_AT_START_SECONDS):
            self._log.warn(
                "exit",
                f"the kill switch {self.kill} is set: exiting before training; delete it to train",
            )
            raise SystemExit(0)

    def kill_wanted(self) -> bool:
        """Return whether the training should save and end; once True, it stays True."""
        self._is_killed = self._is_killed or self._in_all_ranks(self.sees_kill)
        return self._is_killed

    def save_wanted(self) -> bool:
        """Return whether the training should save and continue: True once for each new file."""
        return self._in_all_ranks(self.takes_save)

    def sees_kill(self) -> bool:
        """Return whether this rank sees the kill switch, if a check is due."""
        return self._is_due(self.kill) and self._check_path(self.kill, self._is_set, _WAIT_SECONDS)

    def takes_save(self) -> bool:
        """Return whether this rank saw and removed the save switch, if a check is due."""
        return self._is_due(self.save) and self._check_path(self.save, self._take, _WAIT_SECONDS)

    def _in_all_ranks(self, check: Callable[[], bool]) -> bool:
        """Return the result of a check on rank 0, in all ranks."""
        own = int(self._rank.now == 0 and check())
        return bool(all_reduce_highest(own, self._all_reduce_max))

    def _check_path(self, path: str, check: Callable[[], bool], wait_seconds: float) -> bool:
        found: bool | None = self._aside[path].answer(check, wait_seconds, None)
        if found is None:
            self._log.warn(
                (path, "unanswered"),
                f"the switch {path} cannot be checked: its file system does not respond; "
                "training continues without it until it responds",
            )
        return bool(found)

    def _is_set(self) -> bool:
        return self._stat(self.kill) is not None

    def _take(self) -> bool:
        """Delete the save switch; return whether it was set."""
        status = self._stat(self.save)
        if status is None:
            return False
        try:
            os.unlink(self.save)
        except FileNotFoundError:
            # Another run with the same switch has deleted it.
            return False
        except OSError as error:
            self._log.warn(
                (self.save, "undeleted"),
                f"the save switch {self.save} cannot be deleted ({error.strerror}): it fires once "
                "until touched again",
            )
            previous = self._undeleted
            self._undeleted = (status.st_ino, status.st_mtime_ns)
            return self._undeleted != previous
        return True

    def _is_due(self, path: str) -> bool:
        now = monotonic()
        if not path or now < self._next_check[path]:
            return False
        self._next_check[path] = now + self._every_seconds
        return True

    def _stat(self, path: str) -> os.stat_result | None:
        try:
            status = os.lstat(path)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            self._log.warn(
                path,
                f"the switch {path!r} cannot be checked ({error}); training continues without it",
            )
            return None
        if stat.S_ISDIR(status.st_mode):
            self._log.warn(
                path, f"the switch {path} is a folder and has no effect; use a file in it"
            )
            return None
        return status


def _absolute(path: str | os.PathLike[str]) -> str:
    """Return a path as an absolute path, independent of a later chdir; "" stays ""."""
    text = os.fspath(path)
    return os.path.abspath(os.path.expanduser(text)) if text else ""
