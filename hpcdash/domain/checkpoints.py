"""Cost of a training's checkpoints: time, and room on the disk."""

from __future__ import annotations

from msgspec import Struct

from hpcdash.domain.units import DAY, HOUR, MINUTE
from hpcdash.errors import UsageError


class CheckpointPlan(Struct, frozen=True):
    """A training of `days` that saves every `interval_seconds`; a save takes `save_seconds` and
    `save_tb`.

    TB are decimal: 1e12 bytes. The training pauses while it saves.
    """

    days: float
    interval_seconds: float
    save_seconds: float
    save_tb: float | None = None

    def __post_init__(self) -> None:
        """Raise UsageError for values out of range."""
        if not 0 < self.days < 1e6:
            raise UsageError(
                f"a training run of {self.days:g} days is out of range",
                "Use a number such as --days 90.",
            )
        if not 0 < self.interval_seconds < 1e11:
            raise UsageError(
                "the interval between checkpoints must be above 0",
                "Use a duration such as --every 3h.",
            )
        if not 0 <= self.save_seconds < 1e11:
            raise UsageError(
                "the duration of a save cannot be negative", "Use a duration such as --save 40s."
            )
        if self.save_seconds >= self.interval_seconds:
            raise UsageError(
                f"a save of {self.save_seconds:g} s is longer than the interval of "
                f"{self.interval_seconds:g} s later",
                "Save less often, or faster.",
            )
        if self.save_tb is not None and not 0 <= self.save_tb < 1e9:
            raise UsageError(
                f"{self.save_tb:g} TB is not a valid checkpoint size",
                "Use a size such as --tb 2.3.",
            )

    @property
    def saves(self) -> int:
        # 0.3 days in steps of 0.1 are three, whatever binary fractions make of it.
        return int(self.days * DAY / self.interval_seconds + 1e-9)

    @property
    def hours_lost(self) -> float:
        return self.saves * self.save_seconds / HOUR

    @property
    def percent_lost(self) -> float:
        """Percentage of the whole time that saves take, 0 to 100."""
        return 100 * self.saves * self.save_seconds / (self.days * DAY)

    @property
    def tb_per_day(self) -> float | None:
        return None if self.save_tb is None else self.save_tb * DAY / self.interval_seconds

    @property
    def tb_in_all(self) -> float | None:
        """Terabytes of all checkpoints if none is removed; None if the size of one is unknown."""
        return None if self.save_tb is None else self.save_tb * self.saves

    @property
    def text(self) -> str:
        """`a save every 3 h, taking 40 s each: 720 saves, 8 h lost, 0.37 % of its time`"""
        pace = (
            f"a save every {_rounded(self.interval_seconds)}, taking {_rounded(self.save_seconds)} "
            "each"
        )
        if not self.saves:
            return f"{pace}: no saves in {_rounded(self.days * DAY)}"
        lost = (
            f"{_rounded(self.saves * self.save_seconds)} lost, {self.percent_lost:.2f}% of its time"
        )
        return f"{pace}: {self.saves} save{'s' if self.saves > 1 else ''}, {lost}"


def _rounded(seconds: float) -> str:
    """Format `40 s`, `1.5 h`, `90 d`: three digits, in hours up to two days."""
    for size, unit, least in ((DAY, "d", 2 * DAY), (HOUR, "h", HOUR), (MINUTE, "min", MINUTE)):
        if seconds >= least:
            digits = ".3g" if seconds < 1000 * size else ".0f"
            return f"{seconds / size:{digits}} {unit}"
    return f"{seconds:.3g} s"
