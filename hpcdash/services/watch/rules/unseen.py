"""Places that watchdogs cannot check round after round: problems there stay unknown."""

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
    SILENT: "it does not respond",
    UNTOLD: "no tool reports its usage",
    ABSENT: "no such file, or no permission",
    FAILED: "the command that checks logs and disks fails",
}
_STEPS = {
    SILENT: "Is its file system mounted? Until it responds, hangs, saves and free space there are "
    "not checked",
    UNTOLD: "Check the path under [[watch.storage]]. hpcdash watch --once --dry-run tries again",
    ABSENT: "Check the path: log under [[watch.losses]], or the job's output",
    FAILED: "hpcdash watch --once --dry-run shows why; hpcdash doctor checks the connection",
}


def unreachable_place(place: str, why: str, rounds: int) -> Finding:
    """Build the finding that a place could not be checked for that many rounds.

    `why` is SILENT, UNTOLD, ABSENT or FAILED.
    """
    text = (
        f"{shown(place)} could not be checked {rounds} times in a row: {_WHY.get(why, shown(why))}"
    )
    severity = Severity.CRITICAL if why in _GRAVE else Severity.WARNING
    return Finding(RULE, place, severity, text, _STEPS.get(why, ""))


def unseen_after(
    before: Mapping[str, tuple[str, int]], found: Mapping[str, str], remaining: Collection[str]
) -> dict[str, tuple[str, int]]:
    """Return (why, rounds in a row) by place.

    These are the places `found` now with the reason, and the `remaining` ones that were not
    checked.
    """
    after = {place: before[place] for place in remaining if place in before}
    return after | {place: (why, before.get(place, ("", 0))[1] + 1) for place, why in found.items()}


def lies_in(path: str, places: Collection[str]) -> bool:
    """Whether a path is one of these folders or files, or below one."""
    return any(f"{path}/".startswith(f"{place.rstrip('/')}/") for place in places)
