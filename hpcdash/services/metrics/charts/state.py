"""State of a chart: a person's choices, the picture that was drawn, and the signs in it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isfinite, nan

from msgspec import Struct, field
from msgspec.structs import replace

from hpcdash.services.metrics.vocabulary import is_loss

# Text and the name of its style.
Piece = tuple[str, str]
Line = tuple[Piece, ...]
Span = tuple[float, float]

# The first fits what is seen; a weight as TensorBoard's; means and medians of so many points.
SMOOTHINGS = ("auto", "none", "ema 0.9", "ema 0.97", "ema 0.99", "mean of 50", "median of 50")
# Of fewer points the smoothing that fits is none.
FEW_POINTS = 150
LETTERS = "ABCDEFGH"
MAX_RUNS = len(LETTERS)
# No span is narrower than this part of the whole.
_NARROWEST = 1e-6
# Where a newer attempt begins, and before the name of the panel whose height keys move.
RESTART_LETTER = "R"
ACTIVE_PANEL = ">"
_USUAL_LOSSES = (
    "loss",
    "lm loss",
    "train loss",
    "training loss",
    "train lm loss",
    "global avg loss",
)


class FindingSign(Struct, frozen=True):
    """The sign of a kind of findings on a chart."""

    unicode: str
    ascii: str
    style: str
    meaning: str
    # What several of the kind are called.
    several: str


FINDINGS = {
    "spike": FindingSign("▲", "^", "warning", "a spike", "spikes"),
    "divergence": FindingSign(
        "◆",
        "*",
        "bad",
        "divergence: far above the earlier level, without recovery",
        "divergences",
    ),
    "nan": FindingSign("✗", "x", "bad", "nan", "metrics with nan"),
    "inf": FindingSign("✗", "x", "bad", "inf", "metrics with inf"),
    "plateau": FindingSign("═", "=", "warning", "a plateau: no longer falling", "plateaus"),
    "stall": FindingSign(
        "‖", "|", "warning", "a stall: no new values although the job is running", "stalls"
    ),
}


class ChartState(Struct, frozen=True):
    """A person's choices in a chart."""

    # () is the metric to show first.
    names: tuple[str, ...] = ()
    # '' is the run's own.
    axis: str = ""
    log_y: bool = False
    smoothing: str = "auto"
    leaves_out: bool = False
    # Of the x axis, None for all of it; one that `follows` keeps its width and moves with the end.
    span: Span | None = None
    follows: bool = True
    # y ranges by metric, as drawn (logarithms to base 10 on a log scale).
    heights: Mapping[str, Span] = field(default_factory=dict)
    panel: int = 0
    # An x, None where there is none.
    cursor: float | None = None

    def zoomed(self, factor: float, whole: Span, x: float | None = None) -> ChartState:
        """A span `factor` times as wide, around `x` (None: the end where it follows, else the
        middle).
        """
        begin, end = self.shown(whole)
        if x is None:
            x = end if self.follows else (begin + end) / 2
        part = (x - begin) / (end - begin) if end > begin else 0.5
        width = max((end - begin) * factor, (whole[1] - whole[0]) * _NARROWEST)
        if width >= whole[1] - whole[0]:
            return replace(self, span=None, follows=True)
        begin = min(max(x - part * width, whole[0]), whole[1] - width)
        return self._at((begin, begin + width), whole)

    def panned(self, part: float, whole: Span) -> ChartState:
        """Moved by a part of the span's width; at the end of the data it follows."""
        begin, end = self.shown(whole)
        width = end - begin
        begin = min(max(begin + part * width, whole[0]), whole[1] - width)
        return self._at((begin, begin + width), whole)

    def shown(self, whole: Span) -> Span:
        """The span that is seen of all there is."""
        if self.span is None:
            return whole
        begin, end = self.span
        if self.follows:
            begin = whole[1] - (end - begin)
            end = whole[1]
        return (begin, end) if end > begin and isfinite(end - begin) else whole

    def _at(self, span: Span, whole: Span) -> ChartState:
        if span[1] - span[0] >= whole[1] - whole[0]:
            return replace(self, span=None, follows=True)
        near = (span[1] - span[0]) * 1e-6
        return replace(self, span=span, follows=span[1] >= whole[1] - near)


class Mark(Struct, frozen=True):
    """A finding on the chart."""

    # On the shown axis.
    x: float
    # nan for the chart's foot.
    y: float
    text: str
    # That of the finding, which `lasts` while it has no end.
    kind: str
    lasts: bool = False

    def sign(self, *, is_ascii: bool) -> str:
        return FINDINGS[self.kind].ascii if is_ascii else FINDINGS[self.kind].unicode

    @property
    def style(self) -> str:
        return FINDINGS[self.kind].style


class PanelPlace(Struct, frozen=True):
    """Place of one metric in cells of the picture, with its ranges, y as drawn."""

    name: str
    left: int
    top: int
    width: int
    height: int
    x: Span
    y: Span

    def x_at(self, column: int) -> float:
        """The x in the middle of a column of the picture."""
        return self.x[0] + (column - self.left + 0.5) / self.width * (self.x[1] - self.x[0])

    def column_at(self, x: float) -> int | None:
        """The column of the picture an x stands in, None where it is not shown."""
        if not self.x[0] <= x <= self.x[1]:
            return None
        part = (x - self.x[0]) / (self.x[1] - self.x[0])
        return self.left + min(int(part * self.width), self.width - 1)


class Picture(Struct, frozen=True):
    """Lines of equal width, what is where on them, and notes on the picture."""

    lines: tuple[Line, ...] = ()
    panels: tuple[PanelPlace, ...] = ()
    whole: Span = (nan, nan)
    notes: tuple[str, ...] = ()
    points: int = 0
    axis: str = ""
    axes: tuple[str, ...] = ()


def main_metric(names: tuple[str, ...]) -> str | None:
    """The metric to show first: the training's loss by its usual names, else any loss, else what
    there is.
    """
    return min(names, key=_rank, default=None)


def _rank(name: str) -> tuple[int, int, str]:
    plain = re.sub("[_/-]", " ", name.lower())
    parts = plain.split()
    is_judged = not {"val", "valid", "validation", "eval", "test"}.isdisjoint(parts)
    if plain in _USUAL_LOSSES:
        rank = _USUAL_LOSSES.index(plain)
    elif not is_loss(name):
        rank = 20 + is_judged
    else:
        rank = 10 if "loss" in parts and not is_judged else 12 + is_judged
    return rank, len(name), name


class FrameSigns(Struct, frozen=True):
    """The characters of the frame and on the curves; each one cell wide."""

    left: str = "┤"
    bare: str = "│"
    corner: str = "└"
    foot: str = "─"
    tick: str = "┬"
    restart: str = "┊"
    cursor: str = "│"
    point: str = "•"
    above: str = "↑"
    below: str = "↓"


FRAME = FrameSigns()
ASCII_FRAME = FrameSigns(
    left="+",
    bare="|",
    corner="+",
    foot="-",
    tick="+",
    restart=":",
    cursor="|",
    point="o",
    above="^",
    below="v",
)


class SignLabel(Struct, frozen=True):
    """Signs that stand for one thing, the name of their style ('' none), and their meaning."""

    signs: str
    style: str
    text: str


def explained(*, is_ascii: bool) -> tuple[SignLabel, ...]:
    """Every sign that may stand on a chart, once, the findings first."""
    frame = ASCII_FRAME if is_ascii else FRAME
    meanings: dict[tuple[str, str], list[str]] = {}
    for kind in FINDINGS.values():
        key = (kind.ascii if is_ascii else kind.unicode, kind.style)
        meanings.setdefault(key, []).append(kind.meaning)
    return (
        *(SignLabel(*key, " or ".join(texts)) for key, texts in meanings.items()),
        SignLabel(
            f"{frame.restart} {RESTART_LETTER}",
            "restart",
            "start of a newer attempt (requeue or restart)",
        ),
        SignLabel(frame.point, "run-0", "a single value, shown where points are sparse"),
        SignLabel(
            f"{frame.above} {frame.below}", "raw-0", "the curve continues above or below the view"
        ),
        SignLabel(frame.cursor, "cursor", "the cursor; its values are in the title"),
        SignLabel(ACTIVE_PANEL, "title", "before a name: the metric scaled by ↑ ↓ pgup pgdn"),
        SignLabel("A B …", "letter-0", "the run of a curve"),
        SignLabel("pale", "raw-0", "the raw values, behind a smoothed curve"),
        SignLabel("dotted", "again-0", "steps repeated after a restart: the newest values count"),
    )
