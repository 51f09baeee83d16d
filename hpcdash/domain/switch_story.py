"""What became of a switch that was dropped, told to its end, and which line of a log tells of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from hpcdash.domain.stakes import span_words
from hpcdash.domain.switch_looks import SwitchLook, Thing, thing_words
from hpcdash.domain.switch_progress import Progress, ends_words
from hpcdash.domain.switches import SwitchKind
from hpcdash.domain.text import clip, visible

_LINE_CELLS = 160
_SAVED = re.compile(r"checkpoint|\bsaved\b", re.IGNORECASE)
_SAVING = re.compile(r"\bsav(?:e|ing)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Deeds:
    """What was done to a switch from here and seen of it: times of day as a person reads them, '' for what was not.

    `gone` is when the file was first seen to be gone that nobody cleared from here; `said` what a log says of it, ''
    where it names nothing, and `is_log_read` whether that is known. `unseen` is in words what one that was cleared from
    here had not brought about.
    """

    dropped: str = ""
    gone: str = ""
    cleared: str = ""
    said: str = ""
    is_log_read: bool = False
    unseen: str = ""

    @property
    def is_any(self) -> bool:
        return bool(self.dropped or self.gone or self.cleared)


def story_lines(kind: SwitchKind, look: SwitchLook, deeds: Deeds, progress: Progress) -> Iterator[tuple[str, str]]:
    """(a label of 7 letters at the most, words) of each thing that is known of a switch that is or was dropped."""
    if look.is_dropped and look.thing is not Thing.FILE:
        yield "there", thing_words(look)
    elif look.is_dropped:
        age = "" if look.age_seconds is None else f"{span_words(look.age_seconds)} ago"
        yield "dropped", ", ".join(filter(None, (deeds.dropped, age, f"by {visible(look.file.owner or '?')}")))
    elif deeds.dropped:
        yield "dropped", f"{deeds.dropped}, from here"
    if deeds.cleared:
        unseen = f"; {deeds.unseen}" if deeds.unseen else ""
        yield "cleared", f"{deeds.cleared}, from here: the file is not there any more{unseen}"
    elif deeds.gone and kind is SwitchKind.SAVE and deeds.said:
        yield "seen", f"{deeds.gone}, and removed"
    elif deeds.gone and kind is SwitchKind.SAVE:
        yield "gone", f"{deeds.gone}, by the program or by somebody"
    elif deeds.gone:
        # Few programs take their kill switch away: as long as none ended, it may have been a person.
        yield "removed", f"{deeds.gone}, by the program{'' if progress.ended else ' or by somebody: none has ended'}"
    if progress.ended:
        yield "end", _ended_words(kind, look, progress)
    elif look.is_dropped:
        yield "seen", "not yet"
    if deeds.said:
        yield "log", deeds.said
    elif deeds.gone and kind is SwitchKind.SAVE and deeds.is_log_read:
        # Of several any may have taken it, and one log is read.
        which = "" if progress.living == 1 else "; it is that of one of several"
        yield "log", f"names no save{which}"


def _ended_words(kind: SwitchKind, look: SwitchLook, progress: Progress) -> str:
    unseen = ", without having seen it" if kind is SwitchKind.SAVE and look.is_dropped and not progress.living else ""
    return ends_words(progress) + unseen


def telling_line(kind: SwitchKind, text: str, before: str = "") -> str:
    """The line of a log that tells best what a switch brought about, cut to what a row holds; '' where none does.

    `before` is the line that was found in what the log said earlier. A save is told by the first of several such
    lines, as later ones are of later saves; an end by the last.
    """
    own = re.compile(rf"\b{kind}[ _-]?switch", re.IGNORECASE)
    best, best_rank = before, _rank(before, own)
    for line in re.split(r"[\r\n]+", text):
        rank = _rank(line, own)
        if rank and (rank > best_rank or (rank == best_rank and kind is SwitchKind.KILL)):
            best, best_rank = clip(visible(line.strip()), _LINE_CELLS), rank
    return best


def _rank(line: str, own: re.Pattern[str]) -> int:
    names_it = own.search(line) is not None
    has_saved = _SAVED.search(line) is not None
    return 4 if names_it and has_saved else 3 if names_it else 2 if has_saved else 1 if _SAVING.search(line) else 0
