"""Checkpoints that are complete or absent: written to a temporary folder, flushed to disk, then
renamed.
"""

from __future__ import annotations

import errno
import os
from collections import namedtuple
from contextlib import contextmanager, suppress
from time import monotonic, time

from hpcdash.job.on_disk import (
    file_sums,
    host_name,
    is_abandoned,
    relink,
    remove,
    sync_file_system,
    sync_folder,
    sync_tree,
    wait_until_seen,
    write_whole,
)
from hpcdash.job.rank_variables import processes_in_all
from hpcdash.job.ranks import ALONE, Rank, broadcast_from_rank_0, can_agree
from hpcdash.job.save_times import remember
from hpcdash.job.warnings_once import OnceLog

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path
    from typing import Any

    from hpcdash.job.ranks import AllReduceMax

__all__ = [
    "MARKER",
    "Checkpoint",
    "Checkpoints",
    "difference",
    "init",
    "marker_of",
    "read_marker",
    "saved_at",
    "write_whole",
]

# File in a checkpoint that is written last; the files in its list must be complete.
MARKER = "WHOLE.json"
CHECKPOINTS = "HPCDASH_CHECKPOINTS"
_SAVING = ".saving-"
_DELETING = ".deleting-"


# Not typing's NamedTuple: its import takes longer than the rest of this file.
class Checkpoint(namedtuple("Checkpoint", ("step", "path"))):
    """Complete checkpoint: the folder `path`, saved after `step`."""

    __slots__ = ()
    step: int
    path: Path


class Checkpoints:
    """Folder of checkpoints, each a folder `step-00000100`; the newest `keep` stay (None: all).

    The default folder is HPCDASH_CHECKPOINTS, which is set in jobs whose request has `checkpoints`.

        checkpoints = Checkpoints("/scratch/me/run1")
        newest = checkpoints.resume_from()
        if newest:
            model.load_state_dict(torch.load(newest.path / "model.pt"))
        for step in range(newest.step + 1 if newest else 0, steps):
            ...
            with checkpoints.saving(step) as folder:
                torch.save(model.state_dict(), folder / "model.pt")

    A run that is killed during a save leaves earlier checkpoints untouched, and `newest` never
    returns the torn checkpoint. There must be room for one more than `keep`. One process saves; if
    each rank writes its part, pass `barrier=torch.distributed.barrier` and have all ranks enter
    `saving`. `checksum=True` reads everything back after writing, and again before resuming, to
    detect a file of the right size with wrong bytes. Links stay links, and targets outside the
    folder are not checked; an absolute path to a file inside becomes relative.

    The newest checkpoint is the one saved last, whatever its step. A run that goes back to step
    1000 with `next(found for found in checkpoints.all() if found.step == 1000)`, or to a
    `keep_forever` checkpoint, continues from its own saves when it is restarted; the saves of
    higher steps are deleted as the oldest. Only complete checkpoints count for `keep`: older ones
    are deleted once there are enough newer complete ones.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        keep: int | None = 2,
        barrier: Callable[[], object] | None = None,
        rank: int | None = None,
        checksum: bool = False,
    ) -> None:
        if folder is None:
            folder = os.environ.get(CHECKPOINTS, "")
            if not folder:
                raise ValueError(
                    f"no checkpoint folder: pass one, or set {CHECKPOINTS} (as `checkpoints` in "
                    "the request does)"
                )
        if keep is not None and keep < 1:
            raise ValueError(
                f"keep={keep} would delete the newest checkpoint; use 1 or more, or None to "
                "keep all"
            )
        # pathlib takes a third of this module's import.
        from pathlib import Path

        self.folder = Path(os.path.abspath(os.path.expanduser(os.fspath(folder))))
        self._keep = keep
        self._barrier = barrier
        self._own_rank = Rank(rank)
        self._has_checksum = checksum
        self._damaged: dict[Path, dict[str, Any]] = {}
        self._log = OnceLog()

    @property
    def _rank(self) -> int:
        return self._own_rank.now

    def newest(self) -> Checkpoint | None:
        """Return the complete checkpoint saved last; torn ones are skipped and logged."""
        found = next(self._whole(), None)
        if found:
            _remember_save(found.path)
        return found

    def resume_from(self, all_reduce_max: AllReduceMax | None = None) -> Checkpoint | None:
        """Return the newest checkpoint, which rank 0 chooses for all ranks: on other nodes the last
        save may not be visible yet.

        torch.distributed shares the choice if it is running, else `all_reduce_max` (takes a rank's
        number, returns the highest of all); then all ranks must call this at the same place. Raises
        RuntimeError on a rank that does not see the chosen checkpoint within two minutes.
        """
        if not can_agree(all_reduce_max):
            if processes_in_all() > 1:
                self._log.warn(
                    "alone",
                    f"{ALONE}, or pass all_reduce_max= to resume_from, if they train together",
                )
            return self.newest()
        chosen = self.newest() if self._rank == 0 else None
        step = attempt = -1
        if chosen:
            step = chosen.step
            attempt = int(chosen.path.name.partition(".")[2] or 0)
        step = broadcast_from_rank_0(step, self._rank, all_reduce_max)
        attempt = broadcast_from_rank_0(attempt, self._rank, all_reduce_max)
        if self._rank == 0 or step < 0:
            return chosen
        path = self.folder / _name(step, attempt)
        wait_until_seen(path / MARKER, self._rank)
        _remember_save(path)
        return Checkpoint(step, path)

    def all(self) -> list[Checkpoint]:
        """Return all complete checkpoints, the last saved first."""
        return list(self._whole())

    @contextmanager
    def saving(self, step: int, *, keep_forever: bool = False) -> Iterator[Path]:
        """Yield a new folder to write into, which becomes the checkpoint of `step` if the block
        succeeds.

        After an error, the folder is removed and the error is raised. A `keep_forever` checkpoint
        is never deleted for newer ones. Raises RuntimeError on ranks other than 0 if there is no
        barrier.
        """
        if self._rank and self._barrier is None:
            raise RuntimeError(
                f"rank {self._rank} would save in parallel with rank 0: save only on rank 0, or "
                "pass barrier=, such as torch.distributed.barrier, and have all ranks call it"
            )
        beside = self.folder / f"{_SAVING}{int(step):08d}"
        if self._barrier is None:
            # With a barrier all ranks know the name; without one no other run may use it.
            beside = beside.with_name(f"{beside.name}@{host_name()}@{os.getpid()}")
        if self._rank == 0:
            self.folder.mkdir(parents=True, exist_ok=True)
            remove(beside)
            beside.mkdir()
        self._meet()
        try:
            start = monotonic()
            yield beside
            if self._rank == 0 and self._barrier is None:
                sync_tree(beside)
            else:
                sync_file_system(beside)
            self._meet()
            if self._rank == 0:
                self._finish(beside, int(step), keep_forever, monotonic() - start)
        except BaseException:
            if self._rank == 0:
                remove(beside)
            raise
        self._meet()

    def _finish(self, beside: Path, step: int, keep_forever: bool, save_seconds: float) -> None:
        if relink(beside):
            sync_file_system(beside)
        write_marker(
            beside,
            [saved_at(marker) for _, marker in self._newest_first()[:1]],
            has_checksum=self._has_checksum,
            step=step,
            kept=keep_forever,
            save_seconds=round(save_seconds, 3),
        )
        final = self._rename(beside, step)
        sync_folder(self.folder)
        self._prune(final)

    def _rename(self, beside: Path, step: int) -> Path:
        """Rename a checkpoint to its first free name, and return that."""
        attempt = 0
        while True:
            # A run that resumed from an earlier step reaches this step again: both stay.
            final = self.folder / _name(step, attempt)
            try:
                if not final.exists():
                    beside.rename(final)
                    return final
            except OSError as error:
                # Another run in this folder was first.
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
            attempt += 1

    def _meet(self) -> None:
        if self._barrier is not None:
            self._barrier()

    def _by_attempt(self) -> list[tuple[int, int, Path]]:
        """Return step, attempt and path of all checkpoints, torn or not, the highest first."""
        try:
            names = os.listdir(self.folder)
        except OSError:
            return []
        import re

        matches = (re.fullmatch(r"step-([0-9]{1,18})(?:\.([0-9]{1,9}))?", name) for name in names)
        found = [
            (int(match[1]), int(match[2] or 0), self.folder / match[0])
            for match in matches
            if match
        ]
        return sorted(found, reverse=True)

    def _newest_first(self) -> list[tuple[Checkpoint, dict[str, Any]]]:
        """Return the checkpoints that have a marker, with it, by time of saving.

        Checkpoints of the same time, from two runs, are in the order of their steps.
        """
        marked = []
        for step, _, path in self._by_attempt():
            marker = read_marker(path)
            if marker is not None:
                marked.append((Checkpoint(step, path), marker))
        # The sort is stable.
        marked.sort(key=lambda pair: saved_at(pair[1]), reverse=True)
        return marked

    def _whole(self) -> Iterator[Checkpoint]:
        """Yield the complete checkpoints, the last saved first; log the others."""
        marked = self._newest_first()
        marked_paths = {checkpoint.path for checkpoint, _ in marked}
        for _, _, path in self._by_attempt():
            if path not in marked_paths:
                self._skip(path, "no completion marker")
        for checkpoint, marker in marked:
            defect = difference(checkpoint.path, marker, has_checksum=True)
            if defect:
                self._damaged[checkpoint.path] = marker
                self._skip(checkpoint.path, defect)
            else:
                yield checkpoint

    def _skip(self, path: Path, defect: str) -> None:
        self._log.warn(path, f"the checkpoint {path} is incomplete and was skipped: {defect}")

    def _prune(self, saved: Path) -> None:
        """Delete checkpoints older than `keep` complete ones, and leftovers of killed runs.

        The checkpoint `saved` stays, and so does one without a marker. A checkpoint is complete by
        its sizes, and by the check when it was to be resumed: reading its content at each save
        would take as long as the save.
        """
        try:
            self._clear()
            if self._keep is None:
                return
            whole = 0
            for (_, path), marker in self._newest_first():
                if marker.get("kept"):
                    continue
                if whole >= self._keep and path != saved:
                    self._delete(path)
                elif self._damaged.get(path) != marker and not difference(
                    path, marker, has_checksum=False
                ):
                    whole += 1
            self._clear()
        except OSError as error:
            self._log.warn(
                "undeleted", f"cannot delete old checkpoints in {self.folder}: {error.strerror}"
            )

    def _delete(self, path: Path) -> None:
        # Renamed first: a partly deleted folder is no checkpoint. Another run may delete it too.
        with suppress(FileNotFoundError):
            path.rename(path.with_name(_DELETING + path.name))

    def _clear(self) -> None:
        for name in os.listdir(self.folder):
            path = self.folder / name
            if name.startswith(_DELETING) or (name.startswith(_SAVING) and is_abandoned(path)):
                remove(path)


def init(
    model: Any,
    optimizer: Any = None,
    scheduler: Any = None,
    amp_scaler: Any = None,
    ckpt_path: str | os.PathLike[str] | None = None,
    *,
    replicated: bool | None = None,
) -> tuple[int, int, Any]:
    """Load what `model.try_save` saved last, and add this method to the model.

    Returns (epoch, step, others) to resume at.

        epoch, step, others = init(model, optimizer, ckpt_path="/scratch/me/run1")
        for epoch in range(epoch, epochs):
            for step in range(step, steps):
                train(step)
                model.try_save(epoch, step + 1, others=best)
            step = 0

    Returns (0, 0, None) if nothing was saved; see `hpcdash.job.try_save.TrySave` for when it saves.
    `ckpt_path` is a folder of `Checkpoints`, by default HPCDASH_CHECKPOINTS. All four need
    `state_dict` and `load_state_dict` like PyTorch's; pass the same ones as in the run that saved.

    With torch.distributed, call it in all ranks once that is running, after wrapping the model. For
    a model in DistributedDataParallel each rank writes a part (below 2 GiB rank 0 writes
    everything), and any number of ranks may resume. For any other model, for example one sharded by
    fully_shard, each rank writes its own state, and as many ranks must resume; `replicated=True`
    means that all ranks have the same state.

    Loading runs no code from the files (torch 2.6 or later; earlier versions have had holes), but
    the files decide what is trained. Raises RuntimeError for files of other users, for unreadable
    files, and for a number of ranks that does not match the parts.
    """
    from hpcdash.job.ranks import torch_is_distributed
    from hpcdash.job.try_save import TrySave, barrier

    checkpoints = Checkpoints(ckpt_path, barrier=barrier if torch_is_distributed() else None)
    try_save = TrySave((model, optimizer, scheduler, amp_scaler), checkpoints, replicated)
    found = try_save.resume()
    model.try_save = try_save
    return found


def _name(step: int, attempt: int) -> str:
    return f"step-{step:08d}" + (f".{attempt}" if attempt else "")


def _remember_save(path: Path) -> None:
    remember((read_marker(path) or {}).get("save_seconds"))


def write_marker(
    folder: Path, earlier: Iterable[float], *, has_checksum: bool = False, **values: Any
) -> None:
    """Mark a folder as a complete checkpoint, saved now, or after the `earlier` times if a clock of
    another host is ahead.
    """
    now = max([time(), *(0.001 + other for other in earlier)])
    values["saved_at"] = round(now, 3)
    with write_whole(folder / MARKER) as path:
        path.write_text(marker_of(folder, has_checksum=has_checksum, **values), encoding="utf-8")
        # A batch script compares the times of markers.
        os.utime(path, (now, now))


def marker_of(path: Path, *, has_checksum: bool = False, **values: Any) -> str:
    """Return the text of a marker for a folder's current content, including `values`."""
    import json

    # A killed run may have left a part of a marker.
    files = {
        name: sums
        for name, sums in file_sums(path, has_checksum)
        if not name.lstrip(".").startswith(MARKER)
    }
    return json.dumps({**values, "files": files}, indent=1) + "\n"


def read_marker(path: Path) -> dict[str, Any] | None:
    """Read a folder's marker; None if it has no readable marker."""
    import json

    try:
        marker = json.loads((path / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return marker if isinstance(marker, dict) and isinstance(marker.get("files"), dict) else None


def saved_at(marker: dict[str, Any]) -> float:
    """Return a marker's time in epoch seconds; 0 if it has none."""
    epoch = marker.get("saved_at")
    return epoch if isinstance(epoch, (int, float)) else 0.0


def difference(path: Path, marker: dict[str, Any], *, has_checksum: bool) -> str:
    """Return how a checkpoint differs from its marker; "" if it does not.

    Compares sizes, and with `has_checksum` the checksums that the marker has.
    """
    files = marker["files"]
    has_sums = has_checksum and any(
        "crc32" in sums for sums in files.values() if isinstance(sums, dict)
    )
    try:
        found = dict(file_sums(path, has_sums))
    except OSError as error:
        return str(error)
    for name, sums in files.items():
        current = found.get(name)
        if current and "link" in current and isinstance(sums, dict) and "link" not in sums:
            # An earlier version compared the link's target.
            continue
        if (
            current is None
            or not isinstance(sums, dict)
            or any(sums.get(key) != value for key, value in current.items())
        ):
            return f"{name} differs from the saved data"
    return ""
