"""What is at a switch's path: the file, who made it and when, and who may write in its folder; in words.

What is read is what `ls` and `date` of the login node say: all ages are between two times of its clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from hpcdash.domain.stakes import span_words
from hpcdash.domain.switches import SwitchKind
from hpcdash.domain.text import visible

# A file of more than this is taken for something else than a switch, and is not removed.
MOST_SWITCH_BYTES = 1024
STALE_LOG_SECONDS = 600.0
# Clocks of a login node and a file server that are well are no further apart.
_CLOCKS_APART_SECONDS = 60.0
_SPECIAL = {"p": "a FIFO", "s": "a socket", "b": "a device", "c": "a device"}


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

    @property
    def is_dropped(self) -> bool:
        """Whether trainings take what is there for the switch: all but a folder, a link to nowhere too."""
        return self.thing not in (Thing.NOTHING, Thing.FOLDER)

    @property
    def is_ahead(self) -> bool:
        """Whether it was made in the future of the login node: its file server's clock is ahead."""
        made = self.file.changed_at
        return self.now is not None and made is not None and made > self.now + _CLOCKS_APART_SECONDS

    @property
    def age_seconds(self) -> float | None:
        if self.now is None or self.file.changed_at is None or self.is_ahead:
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
    )


def _entry(told: Mapping[str, str], name: str) -> Entry:
    return entry_of(*(told.get(f"{name}-{part}", "") for part in ("n", "o", "g", "at")))


def dropped_at(look: SwitchLook, here_seconds_ago: float | None) -> float | None:
    """When it was dropped by the login node's clock, in epoch seconds, None where that is not known.

    `here_seconds_ago` is when it was dropped from here: a file of one's own is no younger, whatever its server's clock.
    """
    here = None if look.now is None or here_seconds_ago is None else look.now - here_seconds_ago
    made = look.file.changed_at
    if not look.is_dropped or made is None:
        return here
    if look.now is not None:
        made = min(made, look.now)
    is_own = look.uid is not None and look.file.uid == look.uid
    return min(made, here) if here is not None and is_own else made


def in_time(look: SwitchLook, here_seconds_ago: float | None) -> SwitchLook:
    """A look at one's own file whose server's clock is ahead, with the time of the drop from here instead."""
    if not look.is_ahead or here_seconds_ago is None or look.file.uid != look.uid:
        return look
    return replace(look, file=replace(look.file, changed_at=dropped_at(look, here_seconds_ago)))


def dropped_words(look: SwitchLook) -> str:
    """`dropped 3 min ago by alice`; of a link or a FIFO what it is."""
    if look.thing is not Thing.FILE:
        return thing_words(look)
    age = look.age_seconds
    when = "" if age is None else f" {span_words(age)} ago"
    ahead = ": its file server's clock is ahead, so when is not known" if look.is_ahead else ""
    return f"dropped{when} by {visible(look.file.owner or '?')}{ahead}"


def thing_words(look: SwitchLook) -> str:
    """What is at the path now, in words."""
    match look.thing:
        case Thing.FILE:
            return dropped_words(look)
        case Thing.LINK | Thing.SPECIAL:
            return f"{_odd_words(look)} has its name: trainings take it for the switch"
        case Thing.FOLDER:
            return "a folder has its name: trainings do not take it for a switch"
    return look.problem or "not dropped"


def _odd_words(look: SwitchLook) -> str:
    """`a link of bob's to /home/bob/x`, `a FIFO of bob's`."""
    whose = f"of {visible(look.file.owner or '?')}'s"
    if look.thing is Thing.LINK:
        return f"a link {whose}{f' to {visible(look.link_to)}' if look.link_to else ''}"
    return f"{_SPECIAL.get(look.file.mode[:1], 'something that is no plain file')} {whose}"


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


def group_words(look: SwitchLook) -> str:
    """Of a folder that its group may not write, that its members cannot drop the switch; '' where they can."""
    folder = look.folder
    if not look.there or folder.group_may_write:
        return ""
    more = " (there is an ACL, which may say more)" if folder.mode.endswith("+") else ""
    return f"members of the group {visible(folder.group or '?')} cannot drop or clear it there{more}"


def clear_refusal(look: SwitchLook) -> str:
    """Why what is there is not removed, in words; '' where it may be."""
    if look.problem:
        return look.problem
    if look.thing is Thing.NOTHING:
        return "nothing is there: it was not dropped, or is cleared already"
    if look.thing is Thing.FOLDER:
        return thing_words(look)
    if look.file.mode[:1] in ("b", "c"):
        return f"{_odd_words(look)} has its name, and stays: look at it yourself"
    if look.thing is Thing.FILE and look.file.size is not None and look.file.size > MOST_SWITCH_BYTES:
        return f"it holds {look.file.size} bytes, which no switch does: look at it yourself"
    return ""


def clear_doubt(look: SwitchLook, *, is_dropped_here: bool) -> str:
    """Why a person is asked before what is there is removed, in words; '' where it is an empty file or from here."""
    if look.thing is Thing.LINK:
        return f"{_odd_words(look)}: the link itself is removed, and nothing that it leads to"
    if look.thing is Thing.SPECIAL:
        return f"{_odd_words(look)}, and no plain file"
    if look.thing is not Thing.FILE or look.file.size == 0 or is_dropped_here:
        return ""
    holds = "what it holds is not known" if look.file.size is None else f"it holds {look.file.size} bytes"
    return f"{holds}, and it was not dropped from here: it may be no switch"


def log_words(age_seconds: float | None, problem: str = "") -> str:
    """Whether the log tells that the job still looks for its switches."""
    if age_seconds is None:
        return problem or "it is not known where its log is"
    if age_seconds < STALE_LOG_SECONDS:
        return f"its log grew {span_words(age_seconds)} ago"
    return f"its log has not grown for {span_words(age_seconds)}: a hung job cannot see a switch (x cancels it)"
