"""Text on a switch: the entry at its path, the outcome of setting it, its line in a log."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import StrEnum

from msgspec import Struct, field
from msgspec.structs import replace

from hpcdash.domain.switches import SwitchKind
from hpcdash.domain.text import clip, visible
from hpcdash.domain.units import format_span

# A file of more than this is taken for something else than a switch, and is not removed.
MAX_SWITCH_BYTES = 1024
STALE_LOG_SECONDS = 600.0
# Clocks of a login node and a file server that are well are no further apart.
_CLOCKS_APART_SECONDS = 60.0
_SPECIAL = {"p": "a FIFO", "s": "a socket", "b": "a device", "c": "a device"}
_LINE_CELLS = 160
_SAVED = re.compile(r"checkpoint|\bsaved\b", re.IGNORECASE)
_SAVING = re.compile(r"\bsav(?:e|ing)\b", re.IGNORECASE)


class Thing(StrEnum):
    """Kind of entry at the path of a switch."""

    NOTHING = "nothing"
    FILE = "file"
    LINK = "link"
    FOLDER = "folder"
    SPECIAL = "special"


class PathEntry(Struct, frozen=True):
    """Entry for a file or a folder in the output of `ls`; None and '' for missing values.

    `changed_at` is in epoch seconds.
    """

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


class SwitchSnapshot(Struct, frozen=True):
    """Result of one check of a switch's path."""

    path: str
    # Its folder without links on the way, '' if it cannot be entered: `problem` is the reason.
    there: str = ""
    problem: str = ""
    folder: PathEntry = field(default_factory=PathEntry)
    thing: Thing = Thing.NOTHING
    file: PathEntry = field(default_factory=PathEntry)
    link_to: str = ""
    may_write: bool = False
    user: str = ""
    uid: int | None = None
    gids: frozenset[int] = frozenset()
    owner_uid: int | None = None
    # The login node's clock in epoch seconds, None if it was not reported.
    now: float | None = None

    @property
    def is_dropped(self) -> bool:
        """Whether trainings take what is there for the switch: all but a folder, a link to nowhere
        too.
        """
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
        """Whether the folder is one's own, root's, the job owner's, or one that a group writes that
        one is in.
        """
        folder = self.folder
        if folder.uid is not None and folder.uid in (0, self.uid, self.owner_uid):
            return True
        return folder.group_may_write and folder.gid in self.gids


def parse_entry(numbers: str, without_group: str, without_owner: str, changed: str) -> PathEntry:
    """Parse what `ls -ldn`, `ls -ldo` and `ls -ldg` print of one file.

    `changed` is in epoch seconds. Names of groups may contain blanks: they stand between the number
    of links and the size.
    """
    mode, _, uid, gid, size, *_ = [*numbers.split(), "", "", "", "", ""]
    if not (uid.isdigit() and gid.isdigit() and size):
        return PathEntry()
    return PathEntry(
        mode,
        int(uid),
        int(gid),
        owner=_name(without_group, size) or uid,
        group=_name(without_owner, size) or gid,
        size=int(size) if size.isdigit() else None,
        changed_at=float(changed) if changed.lstrip("-").isdigit() else None,
    )


def _name(line: str, size: str) -> str:
    """Return the text between the number of links and the size."""
    parts = line.split()[2:]
    return " ".join(parts[: parts.index(size)]) if size in parts else ""


def parse_snapshot(path: str, reported: Mapping[str, str]) -> SwitchSnapshot:
    """Build a snapshot from the answers of a check, by their names."""
    uid, _, user = reported.get("me", "").partition(" ")
    now = reported.get("now", "")
    owner_uid = reported.get("owner-uid", "")
    groups = reported.get("groups", "").split()
    return SwitchSnapshot(
        path=path,
        there=reported.get("there", ""),
        problem=reported.get("problem", ""),
        folder=_entry(reported, "folder"),
        thing=Thing(reported["thing"]) if reported.get("thing") in set(Thing) else Thing.NOTHING,
        file=_entry(reported, "file"),
        link_to=reported.get("file-n", "").partition(" -> ")[2],
        may_write=reported.get("writable") == "yes",
        user=user.strip(),
        uid=int(uid) if uid.isdigit() else None,
        gids=frozenset(int(gid) for gid in groups if gid.isdigit()),
        owner_uid=int(owner_uid) if owner_uid.isdigit() else None,
        now=float(now) if now.isdigit() else None,
    )


def _entry(reported: Mapping[str, str], name: str) -> PathEntry:
    return parse_entry(*(reported.get(f"{name}-{part}", "") for part in ("n", "o", "g", "at")))


def dropped_at(check: SwitchSnapshot, here_seconds_ago: float | None) -> float | None:
    """Return when the switch was dropped, in epoch seconds by the login node's clock.

    None if unknown. `here_seconds_ago` is when it was dropped from here: a file of one's own is no
    younger, whatever its server's clock.
    """
    here = None if check.now is None or here_seconds_ago is None else check.now - here_seconds_ago
    made = check.file.changed_at
    if not check.is_dropped or made is None:
        return here
    if check.now is not None:
        made = min(made, check.now)
    is_own = check.uid is not None and check.file.uid == check.uid
    return min(made, here) if here is not None and is_own else made


def in_time(check: SwitchSnapshot, here_seconds_ago: float | None) -> SwitchSnapshot:
    """Return a snapshot with the time of the drop from here, if it is of one's own file whose
    server's clock is ahead.
    """
    if not check.is_ahead or here_seconds_ago is None or check.file.uid != check.uid:
        return check
    return replace(check, file=replace(check.file, changed_at=dropped_at(check, here_seconds_ago)))


def format_dropped(check: SwitchSnapshot) -> str:
    """Format `set 3 min ago by alice`; of a link or a FIFO what it is."""
    if check.thing is not Thing.FILE:
        return format_thing(check)
    owner = visible(check.file.owner or "?")
    if check.is_ahead:
        return f"set by {owner}: its file server's clock is ahead, so the time is unknown"
    age = check.age_seconds
    return f"set by {owner}" if age is None else f"set {format_span(age)} ago by {owner}"


def format_thing(check: SwitchSnapshot) -> str:
    """Describe the entry at the path now."""
    match check.thing:
        case Thing.FILE:
            return format_dropped(check)
        case Thing.LINK | Thing.SPECIAL:
            return f"{_format_odd(check)} has this name: training programs treat it as the switch"
        case Thing.FOLDER:
            return "a folder has this name: training programs do not treat it as a switch"
    return check.problem or "not set"


def _format_odd(check: SwitchSnapshot) -> str:
    """Format `a link of bob's to /home/bob/x`, `a FIFO of bob's`."""
    owner = f"of {visible(check.file.owner or '?')}'s"
    if check.thing is not Thing.LINK:
        kind = _SPECIAL.get(check.file.mode[:1], "something that is not a regular file")
        return f"{kind} {owner}"
    return f"a link {owner} to {visible(check.link_to)}" if check.link_to else f"a link {owner}"


def format_folder(check: SwitchSnapshot) -> str:
    """Format `/project/run of alice, group physics, which may write there`."""
    if not check.there:
        return check.problem
    folder = check.folder
    group = visible(folder.group) + (", which may write there" if folder.group_may_write else "")
    return f"{visible(check.there)} of {visible(folder.owner)}, group {group}"


def refusal(check: SwitchSnapshot) -> str:
    """Return the reason that the switch cannot be dropped here; '' if it can."""
    if check.problem:
        return check.problem
    if check.thing is Thing.FILE:
        return f"already {format_dropped(check)}"
    if check.thing is not Thing.NOTHING:
        return format_thing(check)
    if not check.is_trusted:
        return (
            f"{visible(check.there)} belongs to {visible(check.folder.owner)}: not to you, root "
            "or the job owner, and your group cannot write to it"
        )
    return ""


def warnings(check: SwitchSnapshot, kind: SwitchKind, owner: str) -> tuple[str, ...]:
    """Return warnings to read before relying on a switch in the folder, a sentence each."""
    if not check.there:
        return ()
    messages = []
    folder = check.folder
    if check.there != (check.path.rpartition("/")[0] or "/"):
        messages.append(
            f"a symlink in the path leads to {visible(check.there)}: the file would be created "
            "there"
        )
    if not check.may_write and not check.is_dropped:
        messages.append(
            f"{visible(check.user or 'you')} may not write there: no permission, or the disk is "
            "read-only"
        )
    if folder.all_may_write and not folder.is_sticky:
        messages.append("anyone may write there, and create or remove the switch")
    is_others = owner not in ("", check.user, folder.owner)
    if kind is SwitchKind.SAVE and folder.is_sticky and is_others:
        messages.append(
            f"only the owner of a file can remove it there: {visible(owner)}'s job could not, "
            "and would save only once"
        )
    return tuple(messages)


def format_group(check: SwitchSnapshot) -> str:
    """Return a note that members of the folder's group cannot drop the switch; '' if they can."""
    folder = check.folder
    if not check.there or folder.group_may_write:
        return ""
    more = " (there is an ACL, which may grant more)" if folder.mode.endswith("+") else ""
    return (
        f"members of the group {visible(folder.group or '?')} cannot create or clear the switch "
        f"there{more}"
    )


def clear_refusal(check: SwitchSnapshot) -> str:
    """Return the reason that the entry at the path is not removed; '' if it may be."""
    if check.problem:
        return check.problem
    if check.thing is Thing.NOTHING:
        return "not set: never set, or already cleared"
    if check.thing is Thing.FOLDER:
        return format_thing(check)
    if check.file.mode[:1] in ("b", "c"):
        return f"{_format_odd(check)} has this name and was not removed: check it yourself"
    size = check.file.size or 0
    if check.thing is Thing.FILE and size > MAX_SWITCH_BYTES:
        return f"the file contains {size} bytes, but a switch is empty: check it yourself"
    return ""


def clear_doubt(check: SwitchSnapshot, *, is_dropped_here: bool) -> str:
    """Return the reason to confirm an entry's removal; '' if it is an empty file or from here."""
    if check.thing is Thing.LINK:
        return f"{_format_odd(check)}: only the link is removed, not its target"
    if check.thing is Thing.SPECIAL:
        return f"{_format_odd(check)}, not a regular file"
    if check.thing is not Thing.FILE or check.file.size == 0 or is_dropped_here:
        return ""
    holds = "unknown content"
    if check.file.size is not None:
        holds = f"the file contains {check.file.size} bytes"
    return f"{holds}, and was not created from here: it may not be a switch"


def format_log(age_seconds: float | None, problem: str = "") -> str:
    """Describe whether the log shows that the job still checks its switches."""
    if age_seconds is None:
        return problem or "log path unknown"
    if age_seconds < STALE_LOG_SECONDS:
        return f"the log grew {format_span(age_seconds)} ago"
    return (
        f"the log has not grown for {format_span(age_seconds)}: a hung job cannot see a switch "
        "(x cancels it)"
    )


class SwitchProgress(Struct, frozen=True):
    """Number of living jobs that name a switch, and of those that ended since it was dropped."""

    living: int = 0
    ended: int = 0
    # Those that ended with status 0, and how the others ended, as text.
    clean: int = 0
    badly: str = ""
    # The job, if there is only one.
    job_id: str = ""

    @property
    def total(self) -> int:
        return self.living + self.ended


def format_progress(
    kind: SwitchKind,
    check: SwitchSnapshot,
    progress: SwitchProgress,
    dropped_here_seconds_ago: float | None = None,
    message: str | None = None,
) -> str:
    """Describe the outcome of a dropped switch: `dropped 12 s ago by alice; not seen yet`.

    `dropped_here_seconds_ago` is set if it was dropped from here and not cleared since. `message`
    is the log line since then that reports a save or an end: '' for none, None if unknown.
    """
    is_kill = kind is SwitchKind.KILL
    if check.is_dropped:
        outcome = "not seen yet"
        if is_kill or progress.ended:
            outcome = format_outcome(kind, progress)
        return f"{format_dropped(check)}; {outcome}"
    if check.thing is not Thing.NOTHING or check.problem or dropped_here_seconds_ago is None:
        return format_thing(check)
    dropped = f"set from here {format_span(max(0.0, dropped_here_seconds_ago))} ago"
    if is_kill:
        return f"{dropped}, and removed since; {format_outcome(kind, progress)}"
    log = "check the log for a save"
    if message is not None:
        log = f"log: {message}" if message else "the log does not mention a save"
    return f"{dropped}, and removed since; {log}"


def format_unseen(kind: SwitchKind, progress: SwitchProgress) -> str:
    """Return a warning if the switch is cleared before it took effect; '' if it did, or if there is
    no job.
    """
    if not progress.living:
        return ""
    if kind is SwitchKind.SAVE:
        return "no job picked it up: no known save"
    return "" if progress.ended else "no job ended: jobs that have not seen it continue"


def format_outcome(kind: SwitchKind, progress: SwitchProgress) -> str:
    """Format `seen: 3 of 5 ended, cleanly`."""
    if progress.total == 0:
        return "no known job uses it any more"
    if progress.ended == 0:
        return "not seen yet"
    ends = format_ends(progress)
    if kind is SwitchKind.SAVE:
        return f"not seen yet: {ends}" if progress.living else f"not seen: {ends}"
    return f"seen: {ends}" if progress.clean else ends


def format_ends(progress: SwitchProgress) -> str:
    """Format `job 50 ended cleanly`, `3 of 5 ended, 2 of them cleanly: 1 failed`."""
    badly = f": {progress.badly}" if progress.badly else ""
    if progress.total == 1:
        job = f"job {visible(progress.job_id)}" if progress.job_id else "the job"
        return f"{job} ended cleanly" if progress.clean else f"{job} ended, but not cleanly{badly}"
    if progress.clean == progress.ended:
        return f"{progress.ended} of {progress.total} ended, cleanly"
    return f"{progress.ended} of {progress.total} ended, {progress.clean} of them cleanly{badly}"


def format_shared(kind: SwitchKind, running: int) -> str:
    """Return a note on several running jobs that name one save switch; '' for none."""
    if kind is SwitchKind.KILL or running < 2:
        return ""
    return (
        f"{running} running jobs use it: the first job to check removes it, and only that job saves"
    )


class SwitchHistory(Struct, frozen=True):
    """Actions on a switch from here and their effects.

    Times of day are text, '' for what did not happen.
    """

    dropped: str = ""
    # When the file was first found missing that nobody cleared from here.
    gone: str = ""
    cleared: str = ""
    # The log's line about it, '' for none, and whether that is known.
    log_line: str = ""
    is_log_read: bool = False
    # What it had not yet brought about when it was cleared from here.
    unseen: str = ""

    @property
    def is_any(self) -> bool:
        return bool(self.dropped or self.gone or self.cleared)


def story_lines(
    kind: SwitchKind, check: SwitchSnapshot, history: SwitchHistory, progress: SwitchProgress
) -> Iterator[tuple[str, str]]:
    """Yield (label of 7 letters at the most, text) of each thing that is known of a switch that is
    or was dropped.
    """
    is_save = kind is SwitchKind.SAVE
    if check.is_dropped and check.thing is not Thing.FILE:
        yield "there", format_thing(check)
    elif check.is_dropped:
        age = "" if check.age_seconds is None else f"{format_span(check.age_seconds)} ago"
        parts = (history.dropped, age, f"by {visible(check.file.owner or '?')}")
        yield "set", ", ".join(filter(None, parts))
    elif history.dropped:
        yield "set", f"{history.dropped}, from here"
    if history.cleared:
        unseen = f"; {history.unseen}" if history.unseen else ""
        yield "cleared", f"{history.cleared}, from here: the file no longer exists{unseen}"
    elif history.gone and is_save:
        is_seen = bool(history.log_line)
        by = "and removed" if is_seen else "by the program or by a user"
        yield "seen" if is_seen else "gone", f"{history.gone}, {by}"
    elif history.gone:
        # Few programs remove their kill switch: as long as none ended, it may have been a person.
        doubt = "" if progress.ended else " or by a user: no job has ended"
        yield "removed", f"{history.gone}, by the program{doubt}"
    if progress.ended:
        is_unseen = is_save and check.is_dropped and not progress.living
        yield "end", format_ends(progress) + (", without having seen it" if is_unseen else "")
    elif check.is_dropped:
        yield "seen", "not yet"
    if history.log_line:
        yield "log", history.log_line
    elif history.gone and is_save and history.is_log_read:
        # Of several any may have taken it, and one log is read.
        which = "" if progress.living == 1 else "; this is the log of only one of several jobs"
        yield "log", f"does not mention a save{which}"


def best_log_line(kind: SwitchKind, text: str, before: str = "") -> str:
    """Return the line of a log that reports best what a switch brought about, cut to what a row
    holds; '' where none does.

    `before` is the line that was found in earlier text. A save is reported by the first of several
    such lines, as later ones are of later saves; an end by the last.
    """
    own = re.compile(rf"\b{kind}[ _-]?switch", re.IGNORECASE)
    best = before
    best_rank = _rank_line(before, own)
    for line in re.split(r"[\r\n]+", text):
        rank = _rank_line(line, own)
        if rank and (rank > best_rank or (rank == best_rank and kind is SwitchKind.KILL)):
            best = clip(visible(line.strip()), _LINE_CELLS)
            best_rank = rank
    return best


def _rank_line(line: str, own: re.Pattern[str]) -> int:
    has_saved = _SAVED.search(line) is not None
    if own.search(line):
        return 4 if has_saved else 3
    if has_saved:
        return 2
    return 1 if _SAVING.search(line) else 0
