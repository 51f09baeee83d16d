"""Steps that a log counts within its epochs: which epoch is the first, and whether they are of an
epoch at all.

A line such as `epoch: 3/10, step: 50/100` leaves both open. The lines of a log together mostly
settle it; where they do not, `doubt` puts it into words for the axis.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from hpcdash.services.metrics.batch import Floats, MetricBatch
from hpcdash.services.metrics.vocabulary import Position, parse_last_step

Place = tuple[float, float]


class EpochCount(Struct):
    """The evidence of one log."""

    position: Position | None = None
    # The first epoch's number, as another log of the same run shows it.
    begins_with: float | None = None
    # Whether some of its steps are no positions, or of epochs of another length.
    has_others: bool = False
    least_epoch: float | None = None
    greatest_epoch: float = 0.0
    # Its ends: an epoch and the step as it stands in the line.
    first: Place | None = None
    last: Place | None = None
    # Whether the step is lower, or higher, in a later epoch.
    goes_back: bool = False
    goes_on: bool = False

    @property
    def is_mixed(self) -> bool:
        """Whether one rule cannot hold for all of the log's steps."""
        return self.position is not None and self.has_others

    def note(self, batch: MetricBatch, *, is_behind: bool = True) -> None:
        """Take in a batch that stands behind, or before, all others."""
        known = np.flatnonzero(~np.isnan(batch.steps))
        if not known.size:
            return
        position = batch.position
        self.has_others |= position is None or batch.is_mixed
        if position is None:
            return
        self.has_others |= self.position is not None and self.position.steps != position.steps
        if self.position is None or is_behind:
            self.position = position
        if self.has_others:
            return
        known = known[~np.isnan(batch.epochs[known])]
        if not known.size:
            return
        epochs = batch.epochs[known]
        written = batch.steps[known] - self._assumed(epochs)
        least = float(epochs.min())
        self.least_epoch = least if self.least_epoch is None else min(least, self.least_epoch)
        self.greatest_epoch = max(float(epochs.max()), self.greatest_epoch)
        grown = np.diff(written)[np.diff(epochs) > 0].tolist()
        begin = (float(epochs[0]), float(written[0]))
        end = (float(epochs[-1]), float(written[-1]))
        older, newer = (self.last, begin) if is_behind else (end, self.first)
        if older is not None and newer is not None and newer[0] > older[0]:
            grown.append(newer[1] - older[1])
        if is_behind or self.last is None:
            self.last = end
        if not is_behind or self.first is None:
            self.first = begin
        self.goes_back |= any(growth < 0 for growth in grown)
        self.goes_on |= any(growth > 0 for growth in grown) or bool(
            (written > position.steps).any()
        )

    def corrected(self, batch: MetricBatch) -> MetricBatch:
        """Return the batch with its steps counted over all epochs."""
        steps = batch.steps + self.correction(batch.epochs)
        return replace(batch, axes=np.concatenate((steps[None], batch.axes[1:])))

    def correction(self, epochs: Floats) -> Floats:
        """Return the number of steps to add to the reader's steps at `epochs` (n)."""
        if self.position is None or self.is_mixed or self.least_epoch is None:
            return np.zeros(epochs.size)
        done = 0.0 if self.is_overall else (epochs - self.first_epoch) * self.position.steps
        return np.nan_to_num(done - self._assumed(epochs))

    def _assumed(self, epochs: Floats) -> Floats:
        assert self.position is not None
        earlier: Floats = np.maximum(epochs - self.position.base, 0.0) * self.position.steps
        return earlier

    @property
    def first_epoch(self) -> float:
        """The number of the training's first epoch."""
        if (shown := self.shown_first_epoch) is not None:
            return shown
        if self.begins_with is not None:
            return self.begins_with
        return 1.0 if self.position is None else float(self.position.base)

    @property
    def shown_first_epoch(self) -> float | None:
        """First epoch as the log's own lines show it; None if they do not."""
        position = self.position
        if position is None or self.is_mixed or self.is_overall:
            return None
        if self.least_epoch is not None and self.least_epoch < 2:
            return self.least_epoch
        # The last of so many epochs is called by their number where the first is 1.
        return 1.0 if self.greatest_epoch == position.epochs else None

    @property
    def is_overall(self) -> bool:
        """Whether the step counts on over the epochs, as far as is known."""
        position = self.position
        if position is None or not position.may_be_overall or self.goes_back:
            return False
        if self.goes_on or self.least_epoch is None or self.least_epoch < 2:
            return self.goes_on
        if position.epochs is None or self.last is None:
            return True
        # A step of one epoch would stand there too if it were one of all.
        epoch, step = self.last
        return epoch - 2 <= step / position.steps * position.epochs <= epoch + 1

    @property
    def last_step(self) -> int | None:
        """The final step, None where the log does not name it, or may not."""
        position = self.position
        if position is None or self.is_mixed:
            return None
        if self.is_overall:
            is_beyond = self.last is not None and self.last[1] > position.steps
            return position.steps if self.goes_on and not is_beyond else None
        if position.epochs is None:
            return None
        # Where the last of 0 … 9 is called 9 of 9.
        is_index = self.first_epoch == 0 and (
            position.is_index or self.greatest_epoch == position.epochs
        )
        return parse_last_step(str((position.epochs + is_index) * position.steps))

    @property
    def doubt(self) -> str:
        """Text on the uncertainty of the steps for the axis; '' for none."""
        position = self.position
        if position is None:
            return ""
        if self.is_mixed:
            return "counted in two ways"
        if self.is_overall:
            return "" if self.goes_on else "of its epoch or of all"
        is_known = (
            self.shown_first_epoch is not None or self.begins_with is not None or position.is_usual
        )
        return "" if is_known else f"if epoch {position.base} is the first"
