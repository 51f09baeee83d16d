"""Places that watchdogs are to look at and cannot, round after round: nothing tells of trouble there."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from hpcdash.domain.alerts import Finding, Severity, shown

RULE = "cannot-look"
SILENT = "silent"
UNTOLD = "untold"
ABSENT = "absent"
FAILED = "failed"
_GRAVE = frozenset({SILENT, FAILED})
_WHY = {
    SILENT: "it does not answer",
    UNTOLD: "no tool tells how full it is",
    ABSENT: "there is no such file, or it cannot be read",
    FAILED: "the command that looks at logs and disks fails",
}
_STEPS = {
    SILENT: "Is its file system there? Until it answers nobody knows of hanging jobs, saves or room in it",
    UNTOLD: "Is the path under [[watch.storage]] right? hpcdash watch --once --dry-run looks again",
    ABSENT: "Is the path right, under [[watch.losses]]: log, or of the job's output?",
    FAILED: "hpcdash watch --once --dry-run says why; hpcdash doctor looks at the connection",
}


def unreachable_place(place: str, why: str, rounds: int) -> Finding:
    """That a place could not be looked at for so many rounds; `why` is SILENT, UNTOLD, ABSENT or FAILED."""
    words = f"{shown(place)} could not be looked at {rounds} times in a row: {_WHY.get(why, shown(why))}"
    severity = Severity.CRITICAL if why in _GRAVE else Severity.WARNING
    return Finding(RULE, place, severity, words, _STEPS.get(why, ""))


def unseen_after(
    before: Mapping[str, tuple[str, int]], found: Mapping[str, str], kept: Collection[str]
) -> dict[str, tuple[str, int]]:
    """(why, rounds in a row) by place: those `found` now with why, and those `kept` that were not looked at."""
    after = {place: before[place] for place in kept if place in before}
    return after | {place: (why, before.get(place, ("", 0))[1] + 1) for place, why in found.items()}


def lies_in(path: str, places: Collection[str]) -> bool:
    """Whether a path is one of these folders or files, or below one."""
    return any(f"{path}/".startswith(f"{place.rstrip('/')}/") for place in places)
