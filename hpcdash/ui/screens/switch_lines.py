"""What the dialog of a switch says, line by line: the file, what came of it, who is stopped, what would run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hpcdash.domain.stakes import count_jobs, owners, state_counts
from hpcdash.domain.states import ACTIVE
from hpcdash.domain.switch_looks import SwitchLook, folder_words, group_words, refusal, thing_words, warnings
from hpcdash.domain.switch_progress import Progress, shared_words
from hpcdash.domain.switch_story import Deeds, story_lines
from hpcdash.domain.switches import SwitchKind
from hpcdash.domain.text import visible
from hpcdash.domain.words import state_word
from hpcdash.services.switches.switches import Switch

_MOST_LISTED = 8
Line = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class SwitchPicture:
    """All that is known of a switch. `living` are rows of the jobs that name it and run or wait.

    `log` is whether the log grows, `does` what would be done in words, `command` how, '' where it is not wanted.
    """

    switch: Switch
    look: SwitchLook
    living: tuple[Mapping[str, Any], ...]
    is_known_who: bool
    note: str
    progress: Progress
    deeds: Deeds
    log: str
    does: str
    command: str

    @property
    def kind(self) -> SwitchKind:
        return self.switch.kind


def switch_lines(picture: SwitchPicture) -> Iterator[Line]:
    """(label, words, style) of each line below the path."""
    look, kind, deeds = picture.look, picture.kind, picture.deeds
    if also := picture.switch.also_words:
        yield "", f"! {visible(also)} (p takes another)", "bold"
    is_told = deeds.is_any or look.is_dropped
    if not look.problem:
        yield "folder", folder_words(look), ""
    if (look.is_dropped or picture.living) and (group := group_words(look)):
        yield "", group, ""
    if is_told:
        for label, words in story_lines(kind, look, deeds, picture.progress):
            yield label, words, "" if label == "log" else "bold"
    else:
        yield "now", thing_words(look), "bold"
    if look.is_dropped and kind is SwitchKind.KILL:
        yield "", "It stays until it is cleared: what starts later ends at once.", ""
    if not look.is_dropped and (why := refusal(look)) and why != thing_words(look):
        yield "", f"! {why}", "bold"
    if look.is_dropped or picture.living:
        for words in warnings(look, kind, picture.switch.owner):
            yield "", f"! {words}", "bold"
    if picture.log and picture.living and not (deeds.said or deeds.gone):
        yield "log", visible(picture.log), ""
    yield from _who_lines(picture)
    if picture.does:
        yield "does", visible(picture.does), ""
    if picture.command:
        yield "runs", "\n".join(map(visible, picture.command.split("\n"))), ""


def _who_lines(picture: SwitchPicture) -> Iterator[Line]:
    """Whom it stops, or has save; of one that is there those that are left; nobody where all have ended."""
    is_told = picture.look.is_dropped or (picture.deeds.is_any and not picture.does)
    label = "left" if is_told else "stops" if picture.kind is SwitchKind.KILL else "seen by"
    if not is_told and refusal(picture.look):
        label = "for"
    if not picture.living and not picture.is_known_who:
        yield label, "looking who names it …", ""
        return
    by_unit: dict[str, list[dict[str, object]]] = {}
    for row in picture.living:
        by_unit.setdefault(str(row["array_id"] or row["id"]), []).append(dict(row))
    total = count_jobs(picture.living)
    if not total:
        yield "left", "no job that is known to name it runs or waits", ""
    if total > 1:
        yield label, f"{total} jobs", "bold"
        label = ""
    for unit, rows in list(by_unit.items())[:_MOST_LISTED]:
        states = ", ".join(f"{count} {state_word(state)}" for state, count in state_counts(rows).items())
        whose = " and ".join(visible(name) for name in owners(rows) if name)
        yield label, f"{visible(unit)} {visible(str(rows[0]['name'] or ''))} of {whose or '?'}: {states}", ""
        label = ""
    if len(by_unit) > _MOST_LISTED:
        yield "", f"and {len(by_unit) - _MOST_LISTED} more", ""
    if shared := shared_words(picture.kind, count_jobs(row for row in picture.living if row["state"] in ACTIVE)):
        yield "", f"! {shared}", "bold"
    if picture.note and total:
        yield "", picture.note, ""
    if not picture.is_known_who:
        yield "", "looking who else names it …", ""
