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
# A file that was deleted, or that another has taken the name of, would be written on unseen.
_LOOK_SECONDS = 5.0
# Time limit of a write, after which the training continues without it: on a healthy file system it
# takes microseconds.
_WAIT_SECONDS = 2.0


class MetricsWriter:
    """Appends one line per step to a file, on rank 0 only; creates the folder.

    The default file is HPCDASH_METRICS; if a job's script sets it, charts find the file by
    themselves.

    Each line is a single write, so readers and killed runs have complete lines. A full disk, a
    quota, or a mount that is lost or hangs never stops the training: it is logged once, and the
    newest 10 000 lines wait until writing works again. A hanging mount is waited for 2 s, once. If
    the file is deleted or renamed, a new one is started within 5 s.

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
        self._rest = b""
        self._is_half = False
        self._file: int | None = None
        self._looked_at = 0.0
        self._aside = Aside()
        self._log = OnceLog()

    def write(self, step: int, /, **metrics: Any) -> None:
        """One line; metrics that are no numbers are left out, and named in the log once."""
        if self._rank.now:
            return
        self._waiting.append(self._line(step, metrics))
        self.flush()

    def flush(self) -> bool:
        """Writes what waits; False where that cannot be done now. Nothing is buffered otherwise."""
        is_written: bool | None = self._aside.answer(self._write_out, _WAIT_SECONDS, None)
        if is_written is None:
            message = (
                f"{self.path} cannot be written: its file system does not respond; training "
                "continues, lines are queued"
            )
            self._log.warn("unanswered", message)
        return bool(is_written)

    def close(self) -> None:
        """Writes what waits, if it can be, and closes the file."""
        self.flush()
        self._aside.answer(self._shut, _WAIT_SECONDS, None)

    def _write_out(self) -> bool:
        try:
            self._drop_finished()
            if self._file is None and (self._waiting or self._rest):
                self._file = self._opened()
            while self._file is not None and (self._rest or self._waiting):
                # Off the queue before it is written: a queue that is full drops its oldest
                # meanwhile.
                self._rest = self._rest or self._waiting.popleft()
                written = os.write(self._file, self._rest)
                # On a full disk a part may fit: the rest of that line comes first when there is
                # room.
                self._rest = self._rest[written:]
                self._is_half = bool(self._rest) and (self._is_half or written > 0)
        except OSError as error:
            message = (
                f"{self.path} cannot be written ({error.strerror}); training continues, lines "
                "are queued"
            )
            self._log.warn("unwritten", message)
            self._shut()
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

    def _opened(self) -> int:
        folder = os.path.dirname(self.path)
        if not os.path.isdir(folder):
            os.makedirs(folder, exist_ok=True)
        self._looked_at = monotonic()
        file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        size = os.fstat(file).st_size
        # A run that was killed may have left half a line.
        if size and not self._is_half and os.pread(file, 1, size - 1) != b"\n":
            self._rest = b"\n" + self._rest.lstrip(b"\n")
        return file

    def _drop_finished(self) -> None:
        if self._file is None or monotonic() - self._looked_at < _LOOK_SECONDS:
            return
        self._looked_at = monotonic()
        try:
            is_there = os.path.samestat(os.fstat(self._file), os.stat(self.path))
        except FileNotFoundError:
            is_there = False
        if not is_there:
            self._log.warn("gone", f"{self.path} was deleted or renamed: writing to a new file")
            self._shut()

    def _shut(self) -> None:
        if self._file is not None:
            try:
                os.close(self._file)
            except OSError as error:
                # A network file system may report only now the errors of the last writes.
                self._log.warn(
                    "unclosed", f"{self.path}: its last lines may be missing ({error.strerror})"
                )
            self._file = None


def _number(value: Any) -> int | float | str | None:
    """Return a number as a JSON value; None for a value that is no number."""
    try:
        if hasattr(value, "item"):
            value = value.item()
        if isinstance(value, (bool, int)):
            return int(value)
        number = float(value) if not isinstance(value, (str, bytes)) else None
    except (
        Exception
    ):  # A tensor raises what its library likes; the caller says that the metric is left out.
        return None
    if number is None or number - number == 0:
        return number
    if number != number:
        return "NaN"
    return "Infinity" if number > 0 else "-Infinity"
