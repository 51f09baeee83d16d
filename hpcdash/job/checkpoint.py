"""Checkpoints that are whole or not there: written beside, flushed to the disk, then renamed. Knows no framework."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from time import time
from typing import NamedTuple

from hpcdash.job.on_disk import (
    file_sums,
    host_name,
    is_abandoned,
    remove,
    sync_file_system,
    sync_folder,
    sync_tree,
    write_whole,
)
from hpcdash.job.rank_variables import rank_among_all
from hpcdash.job.said_once import SaidOnce

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

__all__ = ["MARKER", "Checkpoint", "Checkpoints", "write_whole"]

# Written last, inside: what it lists must be there in full.
MARKER = "WHOLE.json"
_SAVING, _DELETING = ".saving-", ".deleting-"


class Checkpoint(NamedTuple):
    """A whole checkpoint: the folder `path`, saved after `step`."""

    step: int
    path: Path


class Checkpoints:
    """A folder of checkpoints, each a folder `step-00000100`, of which the newest `keep` stay (None: all).

        checkpoints = Checkpoints("/scratch/me/run1")
        newest = checkpoints.newest()
        if newest:
            model.load_state_dict(torch.load(newest.path / "model.pt"))
        for step in range(newest.step + 1 if newest else 0, steps):
            ...
            with checkpoints.saving(step) as folder:
                torch.save(model.state_dict(), folder / "model.pt")

    A run that is killed in the middle leaves the ones before untouched, and no torn one that `newest` would give. There
    must be room for one more than `keep`. One process saves; where each rank writes its part, give
    `barrier=torch.distributed.barrier` and have all ranks enter `saving`. `checksum=True` reads all that was written
    once more, and again before it is resumed from, to tell a file of the right size with wrong bytes.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        keep: int | None = 2,
        barrier: Callable[[], object] | None = None,
        rank: int | None = None,
        checksum: bool = False,
    ) -> None:
        if keep is not None and keep < 1:
            raise ValueError(f"keep={keep} would delete the newest checkpoint: 1 or more, or None for all")
        self.folder = Path(os.path.abspath(os.path.expanduser(os.fspath(folder))))
        self._keep = keep
        self._barrier = barrier
        self._rank = rank_among_all() if rank is None else rank
        self._has_checksum = checksum
        self._log = SaidOnce()

    def newest(self) -> Checkpoint | None:
        """The whole checkpoint with the highest step; torn ones are passed over, and named in the log."""
        return next(iter(self._whole()), None)

    def all(self) -> list[Checkpoint]:
        """All whole ones, the newest first."""
        return list(self._whole())

    @contextmanager
    def saving(self, step: int, *, keep_forever: bool = False) -> Iterator[Path]:
        """A new folder to write into, which becomes the checkpoint of `step` when the block ends without an error.

        After an error the folder is gone and the error goes on. `keep_forever` is never deleted for newer ones.
        Raises RuntimeError on a rank other than 0 without a barrier.
        """
        if self._rank and self._barrier is None:
            raise RuntimeError(
                f"rank {self._rank} would save beside rank 0: save on rank 0 alone, or give barrier=, as"
                " torch.distributed.barrier, and have all ranks enter"
            )
        # All ranks must know the name where they share it; elsewhere two runs must not.
        own = f"{int(step):08d}" if self._barrier else f"{int(step):08d}@{host_name()}@{os.getpid()}"
        beside = self.folder / f"{_SAVING}{own}"
        if self._rank == 0:
            self.folder.mkdir(parents=True, exist_ok=True)
            remove(beside)
            beside.mkdir()
        self._meet()
        try:
            yield beside
            if self._rank == 0 and self._barrier is None:
                sync_tree(beside)
            else:
                sync_file_system(beside)
            self._meet()
            if self._rank == 0:
                self._finish(int(step), beside, keep_forever)
        except BaseException:
            if self._rank == 0:
                remove(beside)
            raise
        self._meet()

    def _finish(self, step: int, beside: Path, keep_forever: bool) -> None:
        import json

        files = {name: sums for name, sums in file_sums(beside, self._has_checksum) if name != MARKER}
        marker = {"step": step, "saved_at": round(time(), 3), "kept": keep_forever, "files": files}
        with write_whole(beside / MARKER) as path:
            path.write_text(json.dumps(marker, indent=1) + "\n", encoding="utf-8")
        attempt, final = 0, self.folder / f"step-{step:08d}"
        while final.exists():
            # A run that resumed earlier comes by this step again: neither is lost at any moment.
            attempt += 1
            final = self.folder / f"step-{step:08d}.{attempt}"
        beside.rename(final)
        sync_folder(self.folder)
        self._prune()

    def _meet(self) -> None:
        if self._barrier is not None:
            self._barrier()

    def _named(self) -> list[tuple[int, int, Path]]:
        try:
            names = os.listdir(self.folder)
        except OSError:
            return []
        import re

        pattern = re.compile(r"step-([0-9]{1,18})(?:\.([0-9]{1,9}))?")
        found = [(match, name) for name in names for match in [pattern.fullmatch(name)] if match]
        return sorted(((int(match[1]), int(match[2] or 0), self.folder / name) for match, name in found), reverse=True)

    def _whole(self) -> Iterator[Checkpoint]:
        for step, _, path in self._named():
            marker = self._marker(path)
            wrong = "it has no marker" if marker is None else _wrong(path, marker)
            if wrong:
                self._log.say(path, f"the checkpoint {path} is not whole and is passed over: {wrong}")
            else:
                yield Checkpoint(step, path)

    def _marker(self, path: Path) -> dict[str, Any] | None:
        import json

        try:
            marker = json.loads((path / MARKER).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return marker if isinstance(marker, dict) and isinstance(marker.get("files"), dict) else None

    def _prune(self) -> None:
        """Deletes what is beyond `keep`, and what runs that were killed have left; never what has no marker."""
        try:
            if self._keep is not None:
                marked = [(path, self._marker(path)) for _, _, path in self._named()]
                for path in [path for path, marker in marked if marker and not marker.get("kept")][self._keep :]:
                    # Renamed first: half of it is never taken for a checkpoint.
                    path.rename(path.with_name(_DELETING + path.name))
            for name in os.listdir(self.folder):
                path = self.folder / name
                if name.startswith(_DELETING) or (name.startswith(_SAVING) and is_abandoned(path)):
                    remove(path)
        except OSError as error:
            self._log.say("undeleted", f"old checkpoints in {self.folder} cannot be deleted: {error.strerror}")


def _wrong(path: Path, marker: dict[str, Any]) -> str:
    """What of a checkpoint is not as its marker says, "" where all is."""
    files = marker["files"]
    has_sums = any("crc32" in sums for sums in files.values() if isinstance(sums, dict))
    try:
        found = dict(file_sums(path, has_sums))
    except OSError as error:
        return str(error)
    return next((f"{name} differs from what was saved" for name, sums in files.items() if found.get(name) != sums), "")
