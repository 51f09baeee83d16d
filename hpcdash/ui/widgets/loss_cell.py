"""A loss as a cell of a table: a small curve of its last values and the newest in words."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum, isfinite, isnan

from hpcdash.services.metrics.loss_tails import LossTail
from hpcdash.ui.widgets import cells

CURVE_CELLS = 10
VALUE_CELLS = 7
_BLOCKS = "▁▂▃▄▅▆▇█"
_PLAIN = "_.-=+*#"
_NOT_FINITE, _NOT_FINITE_PLAIN = "✗", "x"


def sparkline(values: Sequence[float], width: int, *, is_ascii: bool = False) -> list[str]:
    """At most `width` characters, one for each stretch of the values: how high their mean is between all of them.

    A stretch with nan or inf in it is a cross.
    """
    count = min(width, len(values))
    stretches = [values[at * len(values) // count : (at + 1) * len(values) // count] for at in range(count)]
    # Of huge values the sum may be more than a number holds.
    means = [fsum(one / len(part) for one in part) if all(map(isfinite, part)) else None for part in stretches]
    known = [mean for mean in means if mean is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    levels, cross = (_PLAIN, _NOT_FINITE_PLAIN) if is_ascii else (_BLOCKS, _NOT_FINITE)
    signs = []
    for mean in means:
        # A range of two huge values may be more than a number holds.
        part = (mean / 2 - low / 2) / (high / 2 - low / 2) if mean is not None and high > low else 0.0
        signs.append(cross if mean is None else levels[min(int(part * len(levels)), len(levels) - 1)])
    return signs


def value_words(value: float) -> str:
    """A value in at most VALUE_CELLS: four digits; nan and inf in words."""
    if isnan(value):
        return "nan"
    if not isfinite(value):
        return "inf" if value > 0 else "-inf"
    for digits in (4, 3, 2):
        words = f"{value:.{digits}g}".replace("e+0", "e").replace("e-0", "e-")
        if len(words) <= VALUE_CELLS:
            return words
    return f"{value:.0e}"[:VALUE_CELLS]


def loss_cell(tail: LossTail | None) -> cells.Cell:
    """`█▆▅▃▃▂▂▂▁▁ 2.313`; blank where no log was read yet, a dash where it has no loss."""
    is_ascii = cells.signs() is cells.ASCII_SIGNS
    if tail is None:
        return ""
    if not tail.values:
        return cells.signs().missing, cells.MUTED
    curve = sparkline(tail.values, CURVE_CELLS, is_ascii=is_ascii)
    pieces: list[cells.Piece] = [
        (sign, cells.BAD if sign in (_NOT_FINITE, _NOT_FINITE_PLAIN) else cells.ACCENT) for sign in curve
    ]
    pieces.append((" " * (CURVE_CELLS - len(curve) + 1), ""))
    newest = tail.values[-1]
    pieces.append((value_words(newest), "" if isfinite(newest) else cells.BAD))
    return pieces
