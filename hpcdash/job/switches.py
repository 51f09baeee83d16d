"""The kill switch and the save switch: files whose appearance stops a training, or has it save and
go on.

Looks with one stat a file, at most every few seconds, and on rank 0 alone; in a thread, as a look
at a mount that is dead never ends.
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

KILL_SWITCH, SAVE_SWITCH = "HPCDASH_KILL_SWITCH", "HPCDASH_SAVE_SWITCH"
# A check takes microseconds on a healthy file system. Before the start a longer wait delays
# nothing.
_WAIT_SECONDS, _WAIT_AT_START_SECONDS = 2.0, 10.0


class Switches:
    """Two files to check for.

    Paths default to HPCDASH_KILL_SWITCH and HPCDASH_SAVE_SWITCH; "" means none.

    The kill switch is never deleted here, so that it ends every queued run; a user deletes it. The
    save switch is deleted when it is seen, so that it fires once. A file that cannot be checked
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

    With several ranks, rank 0 checks and `all_reduce_max` (takes a rank's number, returns the
    highest of all) tells the others: then all ranks must ask, at the same places. torch.distributed
    is used automatically if it is running.
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
        """Ends the program with exit status 0 if the kill switch is there: the first line of main.

        Each rank looks for itself, as no rank can talk to others yet.
        """
        if self.kill and self._check_path(self.kill, self._is_there, _WAIT_AT_START_SECONDS):
            self._log.warn(
                "exit",
                f"the kill switch {self.kill} is set: ending before the start; delete it to train",
            )
            raise SystemExit(0)

    def kill_wanted(self) -> bool:
        """Whether the training should save and end; once true it stays so."""
        if not self._is_killed:
            self._is_killed = bool(
                all_reduce_highest(
                    int(self._rank.now == 0 and self.sees_kill()), self._all_reduce_max
                )
            )
        return self._is_killed

    def save_wanted(self) -> bool:
        """Whether the training should save and go on: true once for each time the file is made."""
        return bool(
            all_reduce_highest(int(self._rank.now == 0 and self.takes_save()), self._all_reduce_max)
        )

    def sees_kill(self) -> bool:
        """Whether this rank sees the kill switch, if a check is due."""
        return self._is_due(self.kill) and self._check_path(
            self.kill, self._is_there, _WAIT_SECONDS
        )

    def takes_save(self) -> bool:
        """Whether this rank saw the save switch, if a check is due, and removed it."""
        return self._is_due(self.save) and self._check_path(self.save, self._take, _WAIT_SECONDS)

    def _check_path(self, path: str, check: Callable[[], bool], wait_seconds: float) -> bool:
        found: bool | None = self._aside[path].answer(check, wait_seconds, None)
        if found is None:
            message = (
                f"the switch {path} cannot be checked: its file system does not respond; "
                "training continues"
            )
            self._log.warn((path, "unanswered"), f"{message} without it until it does")
        return bool(found)

    def _is_there(self) -> bool:
        return self._stat(self.kill) is not None

    def _take(self) -> bool:
        """Whether the save switch is there; takes it away."""
        found = self._stat(self.save)
        if found is None:
            return False
        made = (found.st_ino, found.st_mtime_ns)
        try:
            os.unlink(self.save)
        except FileNotFoundError:
            # Another run with the same switch has taken it.
            return False
        except OSError as error:
            message = (
                f"the save switch {self.save} cannot be deleted ({error.strerror}): it fires "
                "once until touched again"
            )
            self._log.warn((self.save, "undeleted"), message)
            is_new, self._undeleted = made != self._undeleted, made
            return is_new
        return True

    def _is_due(self, path: str) -> bool:
        now = monotonic()
        if not path or now < self._next_check[path]:
            return False
        self._next_check[path] = now + self._every_seconds
        return True

    def _stat(self, path: str) -> os.stat_result | None:
        try:
            found = os.lstat(path)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            self._log.warn(
                path,
                f"the switch {path!r} cannot be checked ({error}); training continues without it",
            )
            return None
        if stat.S_ISDIR(found.st_mode):
            self._log.warn(
                path, f"the switch {path} is a folder and has no effect; use a file in it"
            )
            return None
        return found


def _absolute(path: str | os.PathLike[str]) -> str:
    """A path that a later chdir does not move; "" stays "" ."""
    text = os.fspath(path)
    return os.path.abspath(os.path.expanduser(text)) if text else ""
