"""What is said of a switch: who made it and when, who may write beside it, what came of it."""

from __future__ import annotations

from msgspec.structs import replace

from hpcdash.domain.switch_text import (
    PathEntry,
    SwitchProgress,
    SwitchSnapshot,
    Thing,
    clear_doubt,
    clear_refusal,
    dropped_at,
    format_dropped,
    format_folder,
    format_group,
    format_log,
    format_progress,
    format_unseen,
    in_time,
    parse_entry,
    refusal,
    warnings,
)
from hpcdash.domain.switches import SwitchKind
from tests.support.records import for_each

FOLDER = PathEntry("drwxrws---", 1001, 2000, "alice", "physics", 4096, 900.0)
FREE = SwitchSnapshot(
    "/project/KILL", "/project", "", FOLDER, may_write=True, user="alice", uid=1001, now=1000.0
)
DROPPED = replace(
    FREE, thing=Thing.FILE, file=PathEntry("-rw-rw-r--", 1002, 2000, "bob", "physics", 0, 988.0)
)


def test_a_group_s_name_may_hold_blanks() -> None:
    entry = parse_entry(
        "drwxrwx---+ 2 1001 2000 4096 Nov 21 16:40 .",
        "drwxrwx---+ 2 alice 4096 Nov 21 16:40 .",
        "drwxrwx---+ 2 domain users 4096 Nov 21 16:40 .",
        "1795279200",
    )
    assert (entry.owner, entry.group, entry.uid, entry.gid) == ("alice", "domain users", 1001, 2000)
    assert entry.group_may_write
    assert parse_entry("", "", "", "") == PathEntry()


def test_a_switch_that_is_there_is_not_dropped_twice() -> None:
    assert refusal(FREE) == ""
    assert refusal(DROPPED) == "already set 12 s ago by bob"


def test_an_age_is_between_two_times_of_one_clock_and_never_negative() -> None:
    assert DROPPED.age_seconds == 12
    assert replace(DROPPED, now=980.0).age_seconds == 0
    assert replace(DROPPED, now=None).age_seconds is None


def test_a_file_from_the_future_is_told_by_when_it_was_dropped_from_here() -> None:
    ahead = replace(DROPPED, uid=1002, file=replace(DROPPED.file, changed_at=2200.0))
    assert (
        format_dropped(ahead)
        == "set by bob: its file server's clock is ahead, so the time is unknown"
    )
    assert format_dropped(in_time(ahead, 30.0)) == "set 30 s ago by bob"
    assert format_dropped(in_time(replace(ahead, uid=1001), 30.0)) == format_dropped(ahead), (
        "it is somebody else's"
    )
    assert (dropped_at(ahead, 30.0), dropped_at(ahead, None)) == (970.0, 1000.0)
    later = replace(ahead, now=3000.0)
    assert dropped_at(later, 2030.0) == 970.0, "once that time is past, too"
    assert dropped_at(DROPPED, None) == 988.0
    assert dropped_at(FREE, 30.0) == 970.0
    assert dropped_at(FREE, None) is None


@for_each(
    ("mode", "thing", "words"),
    [
        (
            "l",
            Thing.LINK,
            "a link of mallory's to /home/alice/.ssh/rc has this name: training programs treat "
            "it as the switch",
        ),
        (
            "p",
            Thing.SPECIAL,
            "a FIFO of mallory's has this name: training programs treat it as the switch",
        ),
        (
            "s",
            Thing.SPECIAL,
            "a socket of mallory's has this name: training programs treat it as the switch",
        ),
    ],
)
def test_what_trainings_take_for_the_switch_is_told_as_that_and_cleared_once_one_agrees(
    mode: str, thing: Thing, words: str
) -> None:
    look = replace(
        FREE,
        thing=thing,
        link_to="/home/alice/.ssh/rc",
        file=PathEntry(f"{mode}rwxrwxrwx", owner="mallory", size=0),
    )
    assert refusal(look) == words
    assert look.is_dropped
    assert clear_refusal(look) == ""
    assert clear_doubt(look, is_dropped_here=True)


def test_a_folder_and_a_device_stay() -> None:
    folder = replace(FREE, thing=Thing.FOLDER)
    assert (
        clear_refusal(folder)
        == refusal(folder)
        == "a folder has this name: training programs do not treat it as a switch"
    )
    assert not folder.is_dropped
    device = replace(FREE, thing=Thing.SPECIAL, file=PathEntry("crw-rw-rw-", owner="root"))
    assert (
        clear_refusal(device)
        == "a device of root's has this name and was not removed: check it yourself"
    )


def test_only_an_empty_file_or_one_dropped_from_here_is_cleared_unasked() -> None:
    assert clear_refusal(DROPPED) == clear_doubt(DROPPED, is_dropped_here=False) == ""
    full = replace(DROPPED, file=replace(DROPPED.file, size=41))
    assert clear_refusal(full) == clear_doubt(full, is_dropped_here=True) == ""
    said = "the file contains 41 bytes, and was not created from here: it may not be a switch"
    assert clear_doubt(full, is_dropped_here=False) == said
    assert clear_doubt(replace(full, file=replace(full.file, size=None)), is_dropped_here=False)
    assert "2000000 bytes" in clear_refusal(
        replace(DROPPED, file=replace(DROPPED.file, size=2_000_000))
    )


def test_a_stranger_s_folder_is_not_trusted_but_one_s_group_s_is() -> None:
    stranger = replace(
        FREE, folder=replace(FOLDER, uid=1666, owner="mallory"), gids=frozenset({3000})
    )
    assert "belongs to mallory" in refusal(stranger)
    assert refusal(replace(stranger, owner_uid=1666)) == ""
    assert refusal(replace(stranger, gids=frozenset({2000}))) == ""
    assert refusal(replace(stranger, folder=replace(FOLDER, uid=0, owner="root"))) == ""


def test_a_folder_that_the_group_may_not_write_is_told_calmly_whoever_is_in_the_group() -> None:
    closed = replace(FREE, folder=replace(FOLDER, mode="drwxr-xr-x"))
    assert (
        warnings(FREE, SwitchKind.KILL, "alice") == warnings(closed, SwitchKind.KILL, "alice") == ()
    )
    assert (
        format_group(closed)
        == "members of the group physics cannot create or clear the switch there"
    )
    assert "an ACL" in format_group(replace(closed, folder=replace(FOLDER, mode="drwxr-xr-x+")))
    assert format_group(FREE) == format_group(replace(FREE, there="")) == ""
    assert format_folder(closed) == "/project of alice, group physics"
    assert format_folder(FREE) == "/project of alice, group physics, which may write there"


def test_where_the_file_really_is_is_told() -> None:
    assert (
        "leads to /gpfs/p1"
        in warnings(replace(FREE, there="/gpfs/p1"), SwitchKind.KILL, "alice")[0]
    )


def test_in_a_sticky_folder_another_s_job_could_not_remove_its_save_switch() -> None:
    tmp = replace(FREE, folder=PathEntry("drwxrwxrwt", 0, 0, "root", "root", 0))
    assert warnings(tmp, SwitchKind.KILL, "bob") == ()
    assert "bob's job could not" in warnings(tmp, SwitchKind.SAVE, "bob")[0]


@for_each(
    ("progress", "words"),
    [
        (SwitchProgress(5, 0, 0), "set 12 s ago by bob; not seen yet"),
        (SwitchProgress(7, 3, 3), "set 12 s ago by bob; seen: 3 of 10 ended, cleanly"),
        (
            SwitchProgress(7, 3, 2, "1 failed"),
            "set 12 s ago by bob; seen: 3 of 10 ended, 2 of them cleanly: 1 failed",
        ),
        (SwitchProgress(0, 1, 1, "", "50"), "set 12 s ago by bob; seen: job 50 ended cleanly"),
        (
            SwitchProgress(0, 1, 0, "cancelled", "50"),
            "set 12 s ago by bob; job 50 ended, but not cleanly: cancelled",
        ),
        (SwitchProgress(), "set 12 s ago by bob; no known job uses it any more"),
    ],
)
def test_what_came_of_a_kill_switch(progress: SwitchProgress, words: str) -> None:
    assert format_progress(SwitchKind.KILL, DROPPED, progress) == words


def test_a_kill_switch_that_was_taken_away_is_told_with_how_its_job_ended() -> None:
    told = format_progress(SwitchKind.KILL, FREE, SwitchProgress(0, 1, 1, "", "50"), 70.4)
    assert told == "set from here 1 min ago, and removed since; seen: job 50 ended cleanly"


def test_what_came_of_a_save_switch() -> None:
    def said(look: SwitchSnapshot, here: float | None = None) -> str:
        return format_progress(SwitchKind.SAVE, look, SwitchProgress(), here)

    assert said(DROPPED) == "set 12 s ago by bob; not seen yet"
    unseen = SwitchProgress(0, 1, 1, "", "50")
    assert format_progress(SwitchKind.SAVE, DROPPED, unseen).endswith(
        "; not seen: job 50 ended cleanly"
    )
    gone = "set from here 1 min ago, and removed since; "
    assert said(FREE, here=70) == f"{gone}check the log for a save"
    assert (
        format_progress(SwitchKind.SAVE, FREE, SwitchProgress(1), 70, "")
        == f"{gone}the log does not mention a save"
    )
    assert (
        format_progress(SwitchKind.SAVE, FREE, SwitchProgress(1), 70, "saved 8")
        == f"{gone}log: saved 8"
    )
    assert said(FREE) == "not set"
    assert (
        said(replace(FREE, there="", problem="the folder does not exist"))
        == "the folder does not exist"
    )


def test_a_switch_that_is_cleared_before_anyone_saw_it_is_told_as_that() -> None:
    assert format_unseen(SwitchKind.SAVE, SwitchProgress(1)) == "no job picked it up: no known save"
    assert (
        format_unseen(SwitchKind.KILL, SwitchProgress(2))
        == "no job ended: jobs that have not seen it continue"
    )
    assert (
        format_unseen(SwitchKind.KILL, SwitchProgress(2, 1, 1))
        == format_unseen(SwitchKind.SAVE, SwitchProgress())
        == ""
    )


def test_a_log_that_stands_still_tells_of_a_job_that_cannot_see_a_switch() -> None:
    assert format_log(12) == "the log grew 12 s ago"
    assert "a hung job cannot see" in format_log(42 * 60)
    assert format_log(None, "no log yet") == "no log yet"
