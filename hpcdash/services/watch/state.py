"""State of the watchdogs between rounds, in a file per cluster, and its lock."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
import zlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

import msgspec
import numpy as np

from hpcdash.domain.units import HOUR
from hpcdash.errors import HpcdashError
from hpcdash.private_files import make_folder
from hpcdash.services.metrics.batch import Floats
from hpcdash.services.metrics.epochs import EpochCount
from hpcdash.services.state.database import StateDatabase, StateUnusable
from hpcdash.services.watch.alerts import Alerts

SCHEMA = 1
_LONGEST_NAME = 120
# Before any time that a lock is made at.
_MARKS = 1_000_000_000
# How much before what is new is read again: a block of several lines, or a line, that was not whole
# then.
OVERLAP_BYTES = 16 << 10
# Two days of figures, for a forecast.
MAX_SAMPLES = 192
SAMPLE_EVERY_SECONDS = 900.0
# Servers' clocks go wrong by minutes; beyond this an age is one, unless it contradicts what was
# seen.
MAX_SKEW_SECONDS = 1.0 * HOUR


class LogState(msgspec.Struct):
    """The size of a log when it was last checked (None: it did not exist), and since when it has
    that (epoch); its time by its server's clock then, which shows that it was written, not when;
    and when that check was.

    The size may shrink: a log that is rewritten is written to.
    """

    size_bytes: int | None
    same_since: float
    written_at: float | None = None
    seen_at: float | None = None

    def note(
        self,
        size_bytes: int | None,
        now: float,
        age_seconds: float = 0.0,
        written_at: float | None = None,
    ) -> None:
        """Take in a check; `age_seconds` is the time since the log was written, by its server."""
        is_touched = None not in (written_at, self.written_at) and written_at != self.written_at
        if self.seen_at is None or size_bytes != self.size_bytes or is_touched:
            self.same_since = grown_at(now, age_seconds, self.seen_at)
        self.size_bytes = size_bytes
        self.written_at = written_at
        self.seen_at = now


def grown_at(now: float, age_seconds: float, seen_at: float | None) -> float:
    """Return the epoch at which a log grew since it was last checked (None: never).

    That is now, because its age is by the clock of its server. If that check was longer ago than
    clocks are wrong by, its age counts, but not beyond that check.
    """
    written = now - age_seconds
    if seen_at is None:
        return written
    return now if age_seconds <= MAX_SKEW_SECONDS else max(seen_at, written)


class DiskState(msgspec.Struct):
    """Samples (epoch, used) of a path, oldest first; what du counted, and when."""

    byte_samples: list[tuple[float, int]] = []
    inode_samples: list[tuple[float, int]] = []
    counted_at: float = 0.0
    counted_bytes: int | None = None
    counted_inodes: int | None = None


class QosState(msgspec.Struct):
    """Known state of a QoS, or of a queue, and its time.

    `is_preempted`: others go before its jobs.
    """

    asked_at: float
    preempt_mode: str = ""
    grace_seconds: float | None = None
    is_preempted: bool = True


class WatchedMetric(msgspec.Struct):
    """The newest points of one metric: `x` and `values` are little-endian float64, of one length,
    ascending by x.
    """

    x: bytes = b""
    values: bytes = b""

    def arrays(self) -> tuple[Floats, Floats]:
        """Return the points as arrays of this machine's numbers."""
        x, values = (np.frombuffer(one, "<f8").astype(np.float64) for one in (self.x, self.values))
        return x, values


class Moment(msgspec.Struct):
    """A spike, or a nan that passed, of a metric, from x to x; `is_told` is false of what was told
    as lasting.
    """

    metric: str
    kind: str
    begin: float
    end: float
    text: str
    is_told: bool = True


class LogTail(msgspec.Struct):
    """One log: read up to `read_to` (bytes), its samples known up to the one that begins at
    `sampled_to`.

    looked_at, sampled_at: when it was last checked, and last seen to have got a sample
    (epochs, by our clock). usual_gap, longest_gap: between its newest samples, in seconds by its
    own times. seconds_per_step: its newest pace. last_step: the final step that it names. epochs:
    what its steps count. is_done: nothing of what was read is held back. metrics: its losses,
    others: the metrics beside them. stands: (epoch, step) of earlier rounds, oldest first.
    """

    identity: str = ""
    read_to: int = 0
    is_done: bool = False
    sampled_to: int = -1
    sample_count: int = 0
    looked_at: float = 0.0
    sampled_at: float = 0.0
    usual_gap: float | None = None
    longest_gap: float | None = None
    seconds_per_step: float | None = None
    step: float | None = None
    last_step: int | None = None
    epochs: EpochCount = msgspec.field(default_factory=EpochCount)
    csv_header: list[str] = []
    metrics: dict[str, WatchedMetric] = {}
    others: dict[str, WatchedMetric] = {}
    moments: list[Moment] = []
    stands: list[tuple[float, float]] = []

    @property
    def read_from(self) -> int:
        """The offset of the next bytes to read."""
        return max(0, self.read_to - OVERLAP_BYTES)


class WatchState(msgspec.Struct):
    """All that one cluster's watchdogs remember; `logs_of` maps a job's id to the paths it writes
    to.

    hosts: the node whose own disk a job's logs are on, by its id. unseen: why a job's logs cannot
    be looked at, by its id. tails: what was read of the logs of trainings, by path. located_at,
    log_looks, tail_looks: when finding a job's logs was last tried, by its id, and looking at a
    log, and reading one, by its path. blind: why a place could not be looked at, and in how many
    rounds in a row.
    """

    schema: int = SCHEMA
    alerts: msgspec.Raw = msgspec.Raw(b"null")
    unreachable_rounds: int = 0
    logs: dict[str, LogState] = {}
    logs_of: dict[str, list[str]] = {}
    hosts: dict[str, str] = {}
    unseen: dict[str, str] = {}
    host_looks: dict[str, float] = {}
    located_at: dict[str, float] = {}
    log_looks: dict[str, float] = {}
    tail_looks: dict[str, float] = {}
    tails: dict[str, LogTail] = {}
    blind: dict[str, tuple[str, int]] = {}
    disks: dict[str, DiskState] = {}
    qos: dict[str, QosState] = {}
    queues: dict[str, QosState] = {}
    history_at: float = 0.0

    def read_alerts(self) -> Alerts:
        """Raises HpcdashError for what this version cannot read."""
        return Alerts() if bytes(self.alerts) == b"null" else Alerts.from_json(bytes(self.alerts))


def add_sample(samples: list[tuple[float, int]], now: float, used: int) -> None:
    """One at most for SAMPLE_EVERY_SECONDS; the newest stands for its stretch."""
    if len(samples) > 1 and now - samples[-2][0] < SAMPLE_EVERY_SECONDS:
        samples[-1] = (now, used)
    else:
        samples.append((now, used))
    del samples[:-MAX_SAMPLES]


class WatchFiles:
    """The records of one cluster in the state database of `folder`, and the lock of its watcher.

    What could not be written is held until it can be, as long as this object lives; `is_saved`:
    nothing is held.
    """

    def __init__(self, folder: Path, cluster: str) -> None:
        self._name = quote(cluster, safe="@:")[:_LONGEST_NAME]
        self._database = StateDatabase(folder)
        self._lock = folder / "watch" / f"{self._name}.lock"
        self._unkept: WatchState | None = None

    @property
    def is_saved(self) -> bool:
        return self._unkept is None

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the lock of this cluster's only watcher from here.

        Raises HpcdashError if another one holds it.
        """
        try:
            make_folder(self._lock.parent)
            descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _unusable(self._lock, error) from None
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise HpcdashError(
                    "another hpcdash watch is already watching this cluster",
                    "Stop the other one, or let it run.",
                ) from None
            except OSError as error:
                raise _unusable(self._lock, error) from None
            yield
        finally:
            os.close(descriptor)

    def read(self) -> tuple[WatchState, str]:
        """Return the state, and the reason that the saved one cannot be used ('': it is used)."""
        if self._unkept is not None:
            return self._unkept, ""
        try:
            stored = self._part("state")
            if stored is None:
                return WatchState(), ""
            state = msgspec.json.decode(stored, type=WatchState)
            if state.schema != SCHEMA:
                raise HpcdashError(f"it has schema {state.schema}, not {SCHEMA}")
            state.read_alerts()
        except StateUnusable as error:
            return WatchState(), f"{error.message}: alerts will be sent again"
        except (msgspec.DecodeError, UnicodeDecodeError, HpcdashError) as error:
            why = f"cannot read the alerts in {self._database.path} ({error})"
            return WatchState(), f"{why}: alerts will be sent again"
        return state, ""

    def write(self, state: WatchState, alerts: Alerts) -> None:
        """Raises StateUnusable."""
        state.alerts = msgspec.Raw(alerts.to_json())
        self._unkept = state
        self._write("state", msgspec.json.encode(state))
        self._unkept = None

    def mark_announced(self, reported: Collection[str]) -> None:
        """Note that all of this was sent although that cannot be written: as the time of the lock,
        which needs no room on a full disk. A lock of another user, or a read-only one, notes
        nothing.
        """
        with contextlib.suppress(OSError):
            os.utime(self._lock, (_mark(reported), _mark(reported)))

    def was_announced(self, reported: Collection[str]) -> bool:
        """Whether just that was noted."""
        try:
            return int(self._lock.stat().st_mtime) == _mark(reported)
        except OSError:
            return False

    def clear_announced(self) -> None:
        """Once it is written."""
        with contextlib.suppress(OSError):
            if self._lock.stat().st_mtime < _MARKS:
                os.utime(self._lock)

    def read_snoozed(self) -> dict[str, float]:
        """Return the snoozed keys and until when; {} if nothing is saved, or cannot be read."""
        try:
            return msgspec.json.decode(self._part("snoozed") or b"{}", type=dict[str, float])
        except (StateUnusable, msgspec.DecodeError, UnicodeDecodeError):
            return {}

    def write_snoozed(self, snoozed: Mapping[str, float]) -> None:
        """Raises StateUnusable."""
        self._write("snoozed", msgspec.json.encode(dict(snoozed)))

    def _part(self, part: str) -> bytes | None:
        sql = "SELECT content FROM alerts WHERE cluster = ? AND part = ?"
        return next((content for (content,) in self._database.read(sql, self._name, part)), None)

    def _write(self, part: str, content: bytes) -> None:
        values = (self._name, part, content, time.time())
        self._database.write(("INSERT OR REPLACE INTO alerts VALUES (?, ?, ?, ?)", values))


def _mark(reported: Collection[str]) -> int:
    return zlib.crc32("\n".join(sorted(reported)).encode("utf-8", "surrogateescape")) % _MARKS


def _unusable(path: Path, error: OSError) -> HpcdashError:
    return HpcdashError(
        f"cannot save alerts: {path}: {error.strerror}", "Set HPCDASH_STATE to another folder."
    )
