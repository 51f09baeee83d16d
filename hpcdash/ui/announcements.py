"""What is said of one's own jobs that started or ended: in how many lines, in which words. Shows nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from hpcdash.domain.job_ids import array_of
from hpcdash.domain.states import ENDED_BADLY
from hpcdash.domain.text import clip, visible
from hpcdash.domain.words import state_word
from hpcdash.services.jobs.tracker import JobEvent

# More jobs and arrays than these at once are told in one line.
_ANNOUNCED_ONE_BY_ONE = 4
_NAME_CELLS = 40


@dataclass(frozen=True, slots=True)
class Announcement:
    """One line; `is_bad` where a job of it failed."""

    words: str
    is_bad: bool


def announcements(events: Sequence[JobEvent]) -> list[Announcement]:
    """What happened to one's own jobs: tasks of one array in one line, and so many at once (an absence)."""
    groups: dict[str, list[JobEvent]] = {}
    for event in events:
        groups.setdefault(array_of(event.job_id), []).append(event)
    if len(groups) > _ANNOUNCED_ONE_BY_ONE:
        groups = {"": list(events)}
    return [
        Announcement(_words(number, happened), any(event.after in ENDED_BADLY for event in happened))
        for number, happened in groups.items()
    ]


def _words(number: str, happened: Sequence[JobEvent]) -> str:
    first = happened[0]
    name = clip(visible(first.name), _NAME_CELLS)
    if len(happened) == 1:
        return f"{first.job_id} {name} {state_word(first.after)}"
    counts = Counter(state_word(event.after) for event in happened)
    who = f"array {number} {name}" if number else f"{len(happened)} of your jobs"
    return f"{who}: {', '.join(f'{count} {word}' for word, count in counts.most_common())}"
