"""The signs of a chart, each with its stand-in in ASCII and what it says."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FrameSigns:
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
ASCII_FRAME = FrameSigns("+", "|", "+", "-", "+", ":", "|", "o", "^", "v")
# Where a newer attempt begins, and before the name of the panel whose height keys move.
RESTART_LETTER = "R"
ACTIVE_PANEL = ">"

# Sign, its stand-in in ASCII, a style, and what it says, by the kind of a finding.
FINDINGS = {
    "spike": ("▲", "^", "warning", "a spike"),
    "divergence": ("◆", "*", "bad", "it diverges: far above where it was, and stays there"),
    "nan": ("✗", "x", "bad", "nan"),
    "inf": ("✗", "x", "bad", "inf"),
    "plateau": ("═", "=", "warning", "a plateau: it no longer falls"),
    "stall": ("‖", "|", "warning", "a stall: no more values come, though the job runs"),
}

# What several of a kind are called.
SEVERAL = {
    "spike": "spikes",
    "divergence": "divergences",
    "nan": "metrics with nan",
    "inf": "metrics with inf",
    "plateau": "plateaus",
    "stall": "stalls",
}


@dataclass(frozen=True, slots=True)
class SignWords:
    """Signs that say one thing, the name of their style ('' none), and the words for it."""

    signs: str
    style: str
    words: str


def explained(*, is_ascii: bool) -> tuple[SignWords, ...]:
    """Every sign that may stand on a chart, once, the findings first."""
    frame = ASCII_FRAME if is_ascii else FRAME
    found: dict[tuple[str, str], list[str]] = {}
    for sign, plain, style, words in FINDINGS.values():
        found.setdefault((plain if is_ascii else sign, style), []).append(words)
    return (
        *(SignWords(sign, style, " or ".join(words)) for (sign, style), words in found.items()),
        SignWords(f"{frame.restart} {RESTART_LETTER}", "restart", "a newer attempt begins: requeued or started again"),
        SignWords(frame.point, "run-0", "one value, where values are few"),
        SignWords(f"{frame.above} {frame.below}", "raw-0", "the curve goes on above or below what is shown"),
        SignWords(frame.cursor, "cursor", "the cursor: what stands there is in the title"),
        SignWords(ACTIVE_PANEL, "title", "before a name: the metric that ↑ ↓ pgup pgdn move"),
        SignWords("A B …", "letter-0", "which run a curve is, of several"),
        SignWords("pale", "raw-0", "the values as written, where the bright curve is smoothed"),
        SignWords("dotted", "again-0", "what was done again after a restart: the newest counts"),
    )
