"""What is remembered of a training's log from one round to the next.

Loads no numpy: whoever only keeps it does not need it.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


class KeptMetric(msgspec.Struct):
    """The newest points of one metric: `x` and `values` are little-endian float64, of one length, ascending by x."""

    x: bytes = b""
    values: bytes = b""


class Moment(msgspec.Struct):
    """A spike, or a nan that passed, of a metric, from x to x; `is_told` is false of what was told as lasting."""

    metric: str
    kind: str
    begin: float
    end: float
    words: str
    is_told: bool = True


class LogTail(msgspec.Struct):
    """One log: read up to `read_to` (bytes), its samples known up to the one that begins at `sampled_to`.

    looked_at, sampled_at: when it was last looked at, and was last seen to have got a sample (epochs, by our clock).
    usual_gap, longest_gap: between its newest samples, in seconds by its own times. seconds_per_step: its newest pace.
    last_step: the final step that it names. is_done: nothing of what was read is held back. stands: (epoch, step) of
    earlier rounds, oldest first.
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
    csv_header: list[str] = []
    metrics: dict[str, KeptMetric] = {}
    moments: list[Moment] = []
    stands: list[tuple[float, float]] = []


@dataclass(frozen=True, slots=True)
class TailBytes:
    """Bytes of a log from `begin` on, and what it is: `identity` tells files apart, `age_seconds` is since it was last
    written to. `head` is its beginning where `content` does not begin there and it was not read before."""

    identity: str
    size_bytes: int
    age_seconds: float
    begin: int
    content: bytes
    head: bytes = b""


@dataclass(frozen=True, slots=True)
class Noticed:
    """Something about a training: `kind` is nan, inf, divergence, spike, plateau or stall; `begin` is its step.

    Where its log tells no steps (`is_of_steps`), `begin` is an epoch, or how many samples there were before it. What
    `is_moment` has passed, or passes by itself.
    """

    metric: str
    kind: str
    words: str
    begin: float = 0.0
    is_moment: bool = False
    is_of_steps: bool = True


@dataclass(frozen=True, slots=True)
class Course:
    """Where a training stands: its step, its final one, seconds per step (None: not known)."""

    step: float
    last_step: int
    seconds_per_step: float | None = None
