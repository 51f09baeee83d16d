"""Writes metrics as lines of JSON, `{"step": 3, "loss": 2.1, "time": 1700000000.0}`, which charts
follow.
"""

from __future__ import annotations

import os
from collections import deque
from time import monotonic, time

from hpcdash.job.aside import Aside
from hpcdash.job.ranks import Rank
from hpcdash.job.warnings_once import OnceLog

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

METRICS = "HPCDASH_METRICS"
_MAX_WAITING_LINES = 10_000
# Interval between checks that the open file still has its name: nobody reads a deleted file.
_CHECK_SECONDS = 5.0
# Time limit of a write, which takes microseconds on a healthy file system; then the training
# continues.
_WAIT_SECONDS = 2.0


class MetricsWriter:
    """Appends a line for each step to a file, on rank 0 only; creates the folder.

    The default file is HPCDASH_METRICS; if a job's script sets it, charts find the file.

    Each line is a single write, so that readers and killed runs have complete lines. A full disk, a
    quota, or a mount that is lost or hangs never stops the training: it is logged once, and the
    newest 10 000 lines wait until writing works again. A hanging mount delays the training once, by
    2 s. If the file is deleted or renamed, a new file is started within 5 s.

        metrics = MetricsWriter("metrics.jsonl")
        metrics.write(step, loss=loss, lr=rate)

    Values are numbers, or objects with `.item()` such as tensors; NaN and infinities are written as
    strings, which keeps the line valid JSON.
    """

    def __init__(
        self, path: str | os.PathLike[str] | None = None, *, rank: int | None = None
    ) -> None:
        path = os.environ.get(METRICS, "") if path is None else path
        if not os.fspath(path):
            raise ValueError(f"no metrics file: pass a path to MetricsWriter, or set {METRICS}")
        self.path = os.path.abspath(os.path.expanduser(os.fspath(path)))
        self._rank = Rank(rank)
        self._waiting: deque[bytes] = deque(maxlen=_MAX_WAITING_LINES)
        # Unwritten part of a line, and whether its first part is in the file.
        self._rest = b""
        self._is_torn = False
        self._file: int | None = None
        self._checked_at = 0.0
        self._aside = Aside()
        self._log = OnceLog()

    def write(self, step: int, /, **metrics: Any) -> None:
        """Write a line; metrics that are no numbers are left out, and logged once."""
        if self._rank.now:
            return
        self._waiting.append(self._line(step, metrics))
        self.flush()

    def flush(self) -> bool:
        """Write the waiting lines; return whether that succeeded. `write` calls this."""
        is_written: bool | None = self._aside.answer(self._write_waiting, _WAIT_SECONDS, None)
        if is_written is None:
            self._log.warn(
                "unanswered",
                f"{self.path} cannot be written: its file system does not respond; training "
                "continues, lines are queued",
            )
        return bool(is_written)

    def close(self) -> None:
        """Write the waiting lines if possible, and close the file."""
        self.flush()
        self._aside.answer(self._close_file, _WAIT_SECONDS, None)

    def _write_waiting(self) -> bool:
        try:
            self._close_renamed_file()
            if self._file is None and (self._waiting or self._rest):
                self._file = self._open_file()
            while self._file is not None and (self._rest or self._waiting):
                # Removed from the queue before the write: a full queue drops its oldest line
                # meanwhile.
                self._rest = self._rest or self._waiting.popleft()
                written = os.write(self._file, self._rest)
                # On a full disk a part of a line may fit; the rest is written first later.
                self._rest = self._rest[written:]
                self._is_torn = bool(self._rest) and (self._is_torn or written > 0)
        except OSError as error:
            self._log.warn(
                "unwritten",
                f"{self.path} cannot be written ({error.strerror}); training continues, lines "
                "are queued",
            )
            self._close_file()
            return False
        return True

    def _line(self, step: int, metrics: dict[str, Any]) -> bytes:
        import json

        record: dict[str, Any] = {"step": int(step)}
        for name, value in metrics.items():
            number = _number(value)
            if name in ("step", "time"):
                self._log.warn(name, f"invalid metric name {name}: ignored")
            elif number is None:
                self._log.warn(
                    name, f"the metric {name} is ignored: {type(value).__name__} is not a number"
                )
            else:
                record[name] = number
        record["time"] = round(time(), 3)
        return json.dumps(record, allow_nan=False, separators=(", ", ": ")).encode() + b"\n"

    def _open_file(self) -> int:
        folder = os.path.dirname(self.path)
        if not os.path.isdir(folder):
            os.makedirs(folder, exist_ok=True)
        self._checked_at = monotonic()
        file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        size = os.fstat(file).st_size
        # A killed run may have left a part of a line.
        if size and not self._is_torn and os.pread(file, 1, size - 1) != b"\n":
            self._rest = b"\n" + self._rest.lstrip(b"\n")
        return file

    def _close_renamed_file(self) -> None:
        """Close the file if it no longer has its name, checked every few seconds."""
        if self._file is None or monotonic() - self._checked_at < _CHECK_SECONDS:
            return
        self._checked_at = monotonic()
        try:
            is_same = os.path.samestat(os.fstat(self._file), os.stat(self.path))
        except FileNotFoundError:
            is_same = False
        if not is_same:
            self._log.warn("gone", f"{self.path} was deleted or renamed: writing to a new file")
            self._close_file()

    def _close_file(self) -> None:
        if self._file is not None:
            try:
                os.close(self._file)
            except OSError as error:
                # A network file system may report errors of the last writes only now.
                self._log.warn(
                    "unclosed", f"{self.path}: its last lines may be missing ({error.strerror})"
                )
            self._file = None


def _number(value: Any) -> int | float | str | None:
    """Return a number as a JSON value; None if the value is no number."""
    try:
        if hasattr(value, "item"):
            value = value.item()
        if isinstance(value, (bool, int)):
            return int(value)
        number = float(value) if not isinstance(value, (str, bytes)) else None
    # A tensor raises its library's errors; the caller logs that the metric is left out.
    except Exception:
        return None
    if number is None or number - number == 0:
        return number
    if number != number:
        return "NaN"
    return "Infinity" if number > 0 else "-Infinity"
