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
    """Size of a log when it was last checked; times are epoch seconds.

    The size may shrink: a log that is rewritten is written to.
    """

    # None: it did not exist.
    size_bytes: int | None
    same_since: float
    # By its server's clock, which shows that it was written, not when.
    written_at: float | None = None
    # When it was last checked.
    seen_at: float | None = None

    def note(
        self,
        size_bytes: int | None,
        now: float,
        age_seconds: float = 0.0,
        written_at: float | None = None,
    ) -> None:
        """Note a check; `age_seconds` is the time since the log was written, by its server."""
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


class QosState(msgspec.Struct, rename={"queried_at": "asked_at"}):
    """Known state of a QoS, or of a queue, and its time."""

    queried_at: float
    preempt_mode: str = ""
    grace_seconds: float | None = None
    # Whether others go before its jobs.
    is_preempted: bool = True


class WatchedMetric(msgspec.Struct):
    """The newest points of one metric: `x` and `values` are little-endian float64, of one length,
    ascending by x.
    """

    x: bytes = b""
    values: bytes = b""

    def arrays(self) -> tuple[Floats, Floats]:
        """Return the points as arrays of this machine's numbers."""
        return (
            np.frombuffer(self.x, "<f8").astype(np.float64),
            np.frombuffer(self.values, "<f8").astype(np.float64),
        )


class Moment(msgspec.Struct, rename={"is_reported": "is_told"}):
    """A spike, or a nan that passed, of a metric, from x to x."""

    metric: str
    kind: str
    begin: float
    end: float
    text: str
    # False of what was reported as lasting.
    is_reported: bool = True


class LogTail(msgspec.Struct):
    """One log of a training, as far as it was read."""

    identity: str = ""
    # In bytes.
    read_to: int = 0
    # Whether nothing of what was read is held back.
    is_done: bool = False
    # Where its last known sample begins.
    sampled_to: int = -1
    sample_count: int = 0
    # When it was last checked, and last seen to have got a sample: epochs, by our clock.
    looked_at: float = 0.0
    sampled_at: float = 0.0
    # Between its newest samples, in seconds by its own times.
    usual_gap: float | None = None
    longest_gap: float | None = None
    # Its newest pace.
    seconds_per_step: float | None = None
    step: float | None = None
    # The final step that it names.
    last_step: int | None = None
    # What its steps count.
    epochs: EpochCount = msgspec.field(default_factory=EpochCount)
    csv_header: list[str] = []
    # Its losses, and the metrics beside them.
    metrics: dict[str, WatchedMetric] = {}
    others: dict[str, WatchedMetric] = {}
    moments: list[Moment] = []
    # (epoch, step) of earlier rounds, oldest first.
    stands: list[tuple[float, float]] = []

    @property
    def read_from(self) -> int:
        """Offset of the next bytes to read."""
        return max(0, self.read_to - OVERLAP_BYTES)


class WatchState(
    msgspec.Struct,
    # As states of earlier versions have them.
    rename={
        "log_files": "logs_of",
        "hosts_checked_at": "host_looks",
        "logs_checked_at": "log_looks",
        "tails_checked_at": "tail_looks",
    },
):
    """All that one cluster's watchdogs remember."""

    schema: int = SCHEMA
    alerts: msgspec.Raw = msgspec.Raw(b"null")
    unreachable_rounds: int = 0
    # By path.
    logs: dict[str, LogState] = {}
    # By a job's id: the paths it writes to, the node whose own disk has its logs, and why they
    # cannot be checked.
    log_files: dict[str, list[str]] = {}
    hosts: dict[str, str] = {}
    unseen: dict[str, str] = {}
    # When a node was last checked; finding a job's logs, by its id, and checking or reading a log,
    # by its path, was last tried.
    hosts_checked_at: dict[str, float] = {}
    located_at: dict[str, float] = {}
    logs_checked_at: dict[str, float] = {}
    tails_checked_at: dict[str, float] = {}
    # Logs of trainings, by path.
    tails: dict[str, LogTail] = {}
    # Why a place could not be checked, and in how many rounds in a row.
    blind: dict[str, tuple[str, int]] = {}
    disks: dict[str, DiskState] = {}
    qos: dict[str, QosState] = {}
    queues: dict[str, QosState] = {}
    history_at: float = 0.0

    def read_alerts(self) -> Alerts:
        """Return the alerts; raises HpcdashError for what this version cannot read."""
        return Alerts() if bytes(self.alerts) == b"null" else Alerts.from_json(bytes(self.alerts))


def add_sample(samples: list[tuple[float, int]], now: float, used: int) -> None:
    """Add a sample, at most one for SAMPLE_EVERY_SECONDS; the newest counts."""
    if len(samples) > 1 and now - samples[-2][0] < SAMPLE_EVERY_SECONDS:
        samples[-1] = (now, used)
    else:
        samples.append((now, used))
    del samples[:-MAX_SAMPLES]


class WatchFiles:
    """Records of one cluster in the state database of `folder`, and the lock of its watcher.

    What could not be written is held until it can be, as long as this object lives.
    """

    def __init__(self, folder: Path, cluster: str) -> None:
        self._name = quote(cluster, safe="@:")[:_LONGEST_NAME]
        self._database = StateDatabase(folder)
        self._lock = folder / "watch" / f"{self._name}.lock"
        self._unsaved: WatchState | None = None

    @property
    def is_saved(self) -> bool:
        """Whether nothing is held."""
        return self._unsaved is None

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
        if self._unsaved is not None:
            return self._unsaved, ""
        try:
            stored = self._part("state")
            if stored is None:
                return WatchState(), ""
            state = msgspec.json.decode(stored, type=WatchState)
            if state.schema != SCHEMA:
                raise HpcdashError(f"has schema {state.schema}, not {SCHEMA}")
            state.read_alerts()
        except StateUnusable as error:
            return WatchState(), f"{error.message}: alerts will be sent again"
        except (msgspec.DecodeError, UnicodeDecodeError, HpcdashError) as error:
            text = f"cannot read the alerts in {self._database.path} ({error})"
            return WatchState(), f"{text}: alerts will be sent again"
        return state, ""

    def write(self, state: WatchState, alerts: Alerts) -> None:
        """Raises StateUnusable."""
        state.alerts = msgspec.Raw(alerts.to_json())
        self._unsaved = state
        self._write("state", msgspec.json.encode(state))
        self._unsaved = None

    def mark_announced(self, reported: Collection[str]) -> None:
        """Note what was sent although it cannot be written: as the time of the lock, which needs no
        room on a full disk. A lock of another user, or a read-only one, notes nothing.
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
        """Clear the note once the state is written."""
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
