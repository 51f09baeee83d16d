"""What came of a switch: how many of those that name it ended since, and how, in words."""

from __future__ import annotations

from dataclasses import dataclass

from hpcdash.domain.stakes import span_words
from hpcdash.domain.switch_looks import SwitchLook, Thing, dropped_words, thing_words
from hpcdash.domain.switches import SwitchKind
from hpcdash.domain.text import visible


@dataclass(frozen=True, slots=True)
class Progress:
    """How many of the jobs that name a switch live, and how those ended that ended since it was dropped.

    `badly` is in words how those ended that did not end with status 0; `job_id` is the one, where there is one alone.
    """

    living: int = 0
    ended: int = 0
    clean: int = 0
    badly: str = ""
    job_id: str = ""

    @property
    def total(self) -> int:
        return self.living + self.ended


def progress_words(
    kind: SwitchKind,
    look: SwitchLook,
    progress: Progress,
    dropped_here_seconds_ago: float | None = None,
    said: str | None = None,
) -> str:
    """What came of a dropped switch: `dropped 12 s ago by alice; not seen yet`.

    `dropped_here_seconds_ago` where it was dropped from here and not cleared since; `said` is the line of its log that
    tells since then of a save or an end, '' where none does, None where that is not known.
    """
    if look.is_dropped:
        came = "not seen yet" if kind is SwitchKind.SAVE and not progress.ended else came_words(kind, progress)
        return f"{dropped_words(look)}; {came}"
    if look.thing is not Thing.NOTHING or look.problem or dropped_here_seconds_ago is None:
        return thing_words(look)
    dropped = f"dropped from here {span_words(max(0.0, dropped_here_seconds_ago))} ago"
    if kind is SwitchKind.KILL:
        return f"{dropped}, and removed since; {came_words(kind, progress)}"
    if said:
        return f"{dropped}, and gone since; its log says: {said}"
    return f"{dropped}, and gone since; {'the log names no save' if said == '' else 'its log may tell of a save'}"


def unseen_words(kind: SwitchKind, progress: Progress) -> str:
    """Of one that is cleared while it is there, that it may have come to nothing; '' where not, or nobody is left."""
    if not progress.living:
        return ""
    if kind is SwitchKind.SAVE:
        return "no job had taken it: none is known to have saved"
    return "" if progress.ended else "none had ended: what has not seen it goes on"


def came_words(kind: SwitchKind, progress: Progress) -> str:
    """`seen: 3 of 5 ended, cleanly`."""
    if progress.total == 0:
        return "no job that names it is known to be left"
    if progress.ended == 0:
        return "not seen yet"
    if kind is SwitchKind.SAVE:
        return f"not seen: {ends_words(progress)}" if not progress.living else f"not seen yet: {ends_words(progress)}"
    return f"seen: {ends_words(progress)}" if progress.clean else ends_words(progress)


def ends_words(progress: Progress) -> str:
    """`job 50 ended cleanly`, `3 of 5 ended, 2 of them cleanly, 1 failed`."""
    badly = f": {progress.badly}" if progress.badly else ""
    if progress.total == 1:
        job = f"job {visible(progress.job_id)}" if progress.job_id else "the job"
        return f"{job} ended cleanly" if progress.clean else f"{job} ended, and not cleanly{badly}"
    if progress.clean == progress.ended:
        return f"{progress.ended} of {progress.total} ended, cleanly"
    return f"{progress.ended} of {progress.total} ended, {progress.clean} of them cleanly{badly}"


def shared_words(kind: SwitchKind, running: int) -> str:
    """What to know where several jobs that run name one save switch; '' for none."""
    if kind is SwitchKind.KILL or running < 2:
        return ""
    return f"{running} that run name it: the first that looks removes it, and saves alone"
