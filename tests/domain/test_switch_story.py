"""What became of a switch, told to its end, and the line of a log that tells of it."""

from __future__ import annotations

from msgspec.structs import replace

from hpcdash.domain.switch_text import (
    PathEntry,
    SwitchHistory,
    SwitchProgress,
    SwitchSnapshot,
    Thing,
    best_log_line,
    story_lines,
)
from hpcdash.domain.switches import SwitchKind
from tests.support.records import for_each

KILL, SAVE = SwitchKind.KILL, SwitchKind.SAVE
FREE = SwitchSnapshot("/project/KILL", "/project", now=1000.0)
THERE = replace(FREE, thing=Thing.FILE, file=PathEntry(owner="bob", changed_at=988.0))
ENDED = SwitchProgress(0, 1, 1, "", "50")
LIVES = SwitchProgress(1)


@for_each(
    ("kind", "look", "history", "progress", "told"),
    [
        (
            KILL,
            THERE,
            SwitchHistory("18:54:34"),
            LIVES,
            "set 18:54:34, 12 s ago, by bob | seen not yet",
        ),
        (KILL, THERE, SwitchHistory(), ENDED, "set 12 s ago, by bob | end job 50 ended cleanly"),
        (
            KILL,
            FREE,
            SwitchHistory("18:54:34", "18:54:51", log_line="kill switch: saved, ending"),
            ENDED,
            "set 18:54:34, from here | removed 18:54:51, by the program | end job 50 ended cleanly"
            " | log kill switch: saved, ending",
        ),
        (
            KILL,
            FREE,
            SwitchHistory("18:54:34", "18:54:51"),
            LIVES,
            "set 18:54:34, from here | removed 18:54:51, by the program or by a user: no job has "
            "ended",
        ),
        (
            KILL,
            FREE,
            SwitchHistory("18:54:34", cleared="18:55:00"),
            ENDED,
            "set 18:54:34, from here | cleared 18:55:00, from here: the file no longer exists"
            " | end job 50 ended cleanly",
        ),
        (
            SAVE,
            FREE,
            SwitchHistory("18:54:34", "18:54:51", is_log_read=True),
            LIVES,
            "set 18:54:34, from here | gone 18:54:51, by the program or by a user | log does "
            "not mention a save",
        ),
        (
            SAVE,
            FREE,
            SwitchHistory("18:54:34", "18:54:51"),
            LIVES,
            "set 18:54:34, from here | gone 18:54:51, by the program or by a user",
        ),
        (
            SAVE,
            FREE,
            SwitchHistory("18:54:34", "18:54:51", log_line="saved at step 8", is_log_read=True),
            LIVES,
            "set 18:54:34, from here | seen 18:54:51, and removed | log saved at step 8",
        ),
        (
            SAVE,
            FREE,
            SwitchHistory("18:54:34", cleared="18:55:00", unseen="no job had taken it"),
            LIVES,
            "set 18:54:34, from here"
            " | cleared 18:55:00, from here: the file no longer exists; no job had taken it",
        ),
        (
            KILL,
            replace(
                FREE, thing=Thing.LINK, link_to="/x", file=PathEntry(owner="bob", changed_at=988.0)
            ),
            SwitchHistory(),
            LIVES,
            "there a link of bob's to /x has this name: training programs treat it as the "
            "switch | seen not yet",
        ),
        (
            SAVE,
            THERE,
            SwitchHistory("18:54:34"),
            ENDED,
            "set 18:54:34, 12 s ago, by bob | end job 50 ended cleanly, without having seen it",
        ),
    ],
)
def test_a_switch_s_story_goes_on_to_its_end(
    kind: SwitchKind,
    look: SwitchSnapshot,
    history: SwitchHistory,
    progress: SwitchProgress,
    told: str,
) -> None:
    assert (
        " | ".join(
            f"{label} {words}" for label, words in story_lines(kind, look, history, progress)
        )
        == told
    )


def test_the_line_that_names_the_switch_and_what_was_saved_tells_best() -> None:
    log = (
        "loss 2.1\nsaved checkpoint at iteration 640\nsave switch seen: checkpoint saved at step "
        "640\n"
        "saved checkpoint at iteration 1000\nsave switch seen: checkpoint saved at step 1100\n"
    )
    assert best_log_line(SAVE, log) == "save switch seen: checkpoint saved at step 640"
    assert best_log_line(KILL, log) == "save switch seen: checkpoint saved at step 1100"
    assert (
        best_log_line(KILL, "kill switch: saved, ending\nbye\n", "saving")
        == "kill switch: saved, ending"
    )
    assert best_log_line(SAVE, "loss 2.0\nlr 1e-4\n") == ""
    assert best_log_line(SAVE, "loss 2.0\n", "saved 3") == "saved 3"


def test_a_line_of_a_log_is_hostile_and_may_be_long() -> None:
    told = best_log_line(KILL, "kill switch \x1b[2J" + "x" * 500 + "\n")
    assert "\x1b" not in told
    assert len(told) <= 160
