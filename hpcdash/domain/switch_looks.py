"""What is at a switch's path: the file, who made it and when, and who may write in its folder; in words. Knows no disk.

What is read is what `ls` and `date` of the login node say: all ages are between two times of its clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from hpcdash.domain.stakes import span_words
from hpcdash.domain.switches import SwitchKind
from hpcdash.domain.text import visible

# A file of more than this is taken for something else than a switch, and is not removed.
MOST_SWITCH_BYTES = 1024
STALE_LOG_SECONDS = 600.0


class Thing(StrEnum):
    """What has the name of a switch."""

    NOTHING = "nothing"
    FILE = "file"
    LINK = "link"
    FOLDER = "folder"
    SPECIAL = "special"


@dataclass(frozen=True, slots=True)
class Entry:
    """What `ls` says of a file or a folder; None and '' where it does not. `changed_at` is in epoch seconds."""

    mode: str = ""
    uid: int | None = None
    gid: int | None = None
    owner: str = ""
    group: str = ""
    size: int | None = None
    changed_at: float | None = None

    @property
    def group_may_write(self) -> bool:
        return self.mode[5:6] == "w" and self.mode[6:7] in ("x", "s")

    @property
    def all_may_write(self) -> bool:
        return self.mode[8:9] == "w"

    @property
    def is_sticky(self) -> bool:
        return self.mode[9:10] in ("t", "T")


@dataclass(frozen=True, slots=True)
class SwitchLook:
    """What one look at a switch's path found.

    `there` is the folder without links on the way, '' where it cannot be entered: `problem` says why. `now` is the
    login node's clock in epoch seconds, None where it was not told.
    """

    path: str
    there: str = ""
    problem: str = ""
    folder: Entry = field(default_factory=Entry)
    thing: Thing = Thing.NOTHING
    file: Entry = field(default_factory=Entry)
    link_to: str = ""
    may_write: bool = False
    user: str = ""
    uid: int | None = None
    gids: frozenset[int] = frozenset()
    owner_uid: int | None = None
    now: float | None = None
    # Of the folder's group, as far as it is told: those that have it as their first group are not in it.
    group_members: tuple[str, ...] = ()

    @property
    def is_dropped(self) -> bool:
        return self.thing is Thing.FILE

    @property
    def age_seconds(self) -> float | None:
        if self.now is None or self.file.changed_at is None:
            return None
        return max(0.0, self.now - self.file.changed_at)

    @property
    def is_trusted(self) -> bool:
        """Whether the folder is one's own, root's, the job owner's, or one that a group writes that one is in."""
        mine = {0, self.uid, self.owner_uid} - {None}
        return self.folder.uid in mine or (self.folder.group_may_write and self.folder.gid in self.gids)


def entry_of(numbers: str, without_group: str, without_owner: str, changed: str) -> Entry:
    """From what `ls -ldn`, `ls -ldo` and `ls -ldg` print of one file, and when it was changed (epoch seconds).

    Names of groups may hold blanks: they stand between the number of links and the size.
    """
    words = numbers.split()
    if len(words) < 5 or not words[2].isdigit() or not words[3].isdigit():
        return Entry()
    size = int(words[4]) if words[4].isdigit() else None
    return Entry(
        words[0],
        int(words[2]),
        int(words[3]),
        _name(without_group, words[4]) or words[2],
        _name(without_owner, words[4]) or words[3],
        size,
        float(changed) if changed.lstrip("-").isdigit() else None,
    )


def _name(line: str, size: str) -> str:
    """What stands between the number of links and the size."""
    words = line.split()[2:]
    return " ".join(words[: words.index(size)]) if size in words else ""


def look_of(path: str, told: Mapping[str, str]) -> SwitchLook:
    """From the answers of a look, by their names."""
    me = told.get("me", "").split()
    now = told.get("now", "")
    owner_uid = told.get("owner-uid", "")
    return SwitchLook(
        path=path,
        there=told.get("there", ""),
        problem=told.get("problem", ""),
        folder=_entry(told, "folder"),
        thing=Thing(told["thing"]) if told.get("thing") in set(Thing) else Thing.NOTHING,
        file=_entry(told, "file"),
        link_to=told.get("file-n", "").partition(" -> ")[2],
        may_write=told.get("writable") == "yes",
        user=me[1] if len(me) > 1 else "",
        uid=int(me[0]) if me and me[0].isdigit() else None,
        gids=frozenset(int(word) for word in told.get("groups", "").split() if word.isdigit()),
        owner_uid=int(owner_uid) if owner_uid.isdigit() else None,
        now=float(now) if now.isdigit() else None,
        group_members=tuple(filter(None, told.get("members", "").split(","))),
    )


def _entry(told: Mapping[str, str], name: str) -> Entry:
    return entry_of(*(told.get(f"{name}-{part}", "") for part in ("n", "o", "g", "at")))


def dropped_words(look: SwitchLook) -> str:
    """`dropped 3 min ago by alice`."""
    age = look.age_seconds
    when = "" if age is None else f" {span_words(age)} ago"
    return f"dropped{when} by {visible(look.file.owner or '?')}"


def thing_words(look: SwitchLook) -> str:
    """What is at the path now, in words."""
    match look.thing:
        case Thing.FILE:
            return dropped_words(look)
        case Thing.LINK:
            to = f" to {visible(look.link_to)}" if look.link_to else ""
            return f"a link of {visible(look.file.owner or '?')}'s{to} has its name: not a switch, and not followed"
        case Thing.FOLDER:
            return "a folder has its name: trainings do not take it for a switch"
        case Thing.SPECIAL:
            return "something that is no plain file has its name"
    return look.problem or "not dropped"


def folder_words(look: SwitchLook) -> str:
    """`/project/run of alice, group physics, which may write there`."""
    if not look.there:
        return look.problem
    folder = look.folder
    whose = f"of {visible(folder.owner)}, group {visible(folder.group)}"
    return f"{visible(look.there)} {whose}{', which may write there' if folder.group_may_write else ''}"


def refusal(look: SwitchLook) -> str:
    """Why the switch cannot be dropped here, in words; '' where nothing is in the way."""
    if look.problem:
        return look.problem
    if look.thing is Thing.FILE:
        return f"already {dropped_words(look)}"
    if look.thing is not Thing.NOTHING:
        return thing_words(look)
    if not look.is_trusted:
        return (
            f"{visible(look.there)} is {visible(look.folder.owner)}'s: neither yours, nor root's, nor the job owner's, "
            "nor a folder that your group writes"
        )
    return ""


def warnings(look: SwitchLook, kind: SwitchKind, owner: str) -> tuple[str, ...]:
    """What a person should know of the folder before it counts on the switch, a sentence each."""
    if not look.there:
        return ()
    said = []
    folder = look.folder
    if look.there != (look.path.rpartition("/")[0] or "/"):
        said.append(f"a link on the way leads to {visible(look.there)}: the file would be there")
    if not look.may_write and not look.is_dropped:
        said.append(f"{visible(look.user or 'you')} may not write there: no permission, or the disk is read-only")
    if folder.all_may_write and not folder.is_sticky:
        said.append("anyone at all may write there, drop it and take it away")
    if kind is SwitchKind.SAVE and folder.is_sticky and owner and owner not in (look.user, folder.owner):
        said.append(f"only who makes a file may remove it there: {visible(owner)}'s job could not, and saves once")
    return tuple(said)


def group_words(look: SwitchLook, owner: str) -> str:
    """Of a folder whose group has others in it than oneself and `owner`, that they cannot drop it; '' where they can,
    or nobody is known to be in it."""
    folder = look.folder
    others = [name for name in look.group_members if name not in ("", look.user, owner, folder.owner)]
    if not look.there or not others or folder.group_may_write or folder.all_may_write:
        return ""
    more = " (there is an ACL, which may say more)" if folder.mode.endswith("+") else ""
    return f"others of the group {visible(folder.group)} cannot drop or clear it there{more}"


def clear_refusal(look: SwitchLook) -> str:
    """Why what is there is not removed, in words; '' where it may be."""
    if look.problem:
        return look.problem
    if look.thing is Thing.NOTHING:
        return "nothing is there: it was not dropped, or is cleared already"
    if look.thing is not Thing.FILE:
        return thing_words(look)
    if look.file.size is not None and look.file.size > MOST_SWITCH_BYTES:
        return f"it holds {look.file.size} bytes, which no switch does: look at it yourself"
    return ""


def log_words(age_seconds: float | None, problem: str = "") -> str:
    """Whether the log tells that the job still looks for its switches."""
    if age_seconds is None:
        return problem or "it is not known where its log is"
    if age_seconds < STALE_LOG_SECONDS:
        return f"its log grew {span_words(age_seconds)} ago"
    return f"its log has not grown for {span_words(age_seconds)}: a hung job cannot see a switch (x cancels it)"


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
    kind: SwitchKind, look: SwitchLook, progress: Progress, dropped_here_seconds_ago: float | None = None
) -> str:
    """What came of a dropped switch: `dropped 12 s ago by alice; not seen yet`.

    `dropped_here_seconds_ago` where it was dropped from here and not cleared since.
    """
    if look.is_dropped:
        came = "not seen yet" if kind is SwitchKind.SAVE and not progress.ended else came_words(kind, progress)
        return f"{dropped_words(look)}; {came}"
    if look.thing is not Thing.NOTHING or look.problem or dropped_here_seconds_ago is None:
        return thing_words(look)
    when = span_words(max(0.0, dropped_here_seconds_ago))
    if kind is SwitchKind.SAVE:
        return f"seen: dropped from here {when} ago, and removed by the program since"
    return f"dropped from here {when} ago, and removed since; {came_words(kind, progress)}"


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
