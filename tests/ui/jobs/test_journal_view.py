"""The journal on the screen: what was done, newest first, and each entry whole."""

from __future__ import annotations

from pathlib import Path

from hpcdash.backends.actions import Outcome
from hpcdash.services.state.journal import Journal
from hpcdash.ui.dialogs import TextDialog
from hpcdash.ui.jobs.journal import JournalView
from tests.support.scripted_transport import ScriptedTransport
from tests.ui.jobs.acting_stage import EVERYDAY, NOW, acting_app
from tests.ui.stage import notices, press, screen_text, settled, shown_rows, type_text, until

USUAL = (120, 34)


def note(
    folder: Path,
    verb: str,
    ids: tuple[str, ...],
    *outcomes: Outcome,
    ago: float = 0.0,
    cluster: str = "lab",
    is_over: bool = True,
) -> None:
    """One action in the journal, begun `ago` seconds before now."""
    journal = Journal(folder / "journal.jsonl", now=lambda: NOW - ago)
    action_id = journal.before(
        cluster=cluster,
        user="alice",
        verb=verb,
        job_ids=ids,
        commands=[("env", "LC_ALL=C", "scancel", "-v", *ids)],
    )
    if is_over:
        journal.after(action_id, outcomes)


def everyday(folder: Path) -> None:
    """One of each outcome."""
    note(folder, "hold", ("301",), Outcome("301", True), ago=7200)
    refused = Outcome("400", False, "Access/permission denied")
    note(folder, "cancel", ("400",), refused, ago=3600, cluster="fjord")
    note(folder, "cancel", ("101", "400"), Outcome("101", True), refused, ago=1800)
    note(
        folder,
        "signal",
        ("102",),
        Outcome("102", None, "the answer was lost; check the job"),
        ago=600,
    )
    note(folder, "requeue", ("102",), ago=60, is_over=False)


async def test_the_newest_action_is_first_with_a_sign_and_a_word_for_how_it_ended(
    tmp_path: Path,
) -> None:
    everyday(tmp_path)
    app = acting_app(ScriptedTransport(*EVERYDAY), tmp_path)
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        await press(pilot, "J")
        lines = [
            line for line in screen_text(app).splitlines() if "lab" in line or "fjord" in line
        ][1:]
        outcomes = ("… running", "? unknown", "✗ partly done", "✗ refused", "✓ done")
        for line, outcome in zip(lines, outcomes, strict=False):
            assert outcome in line
        assert "Access/permission denied" in screen_text(app)


async def test_enter_shows_the_whole_entry_in_words(tmp_path: Path) -> None:
    everyday(tmp_path)
    app = acting_app(ScriptedTransport(*EVERYDAY), tmp_path)
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        await press(pilot, "J", "down", "down", "enter")
        assert isinstance(app.screen, TextDialog)
        shown = screen_text(app)
        assert "scancel -v 101 400" in shown
        assert "done for some of the jobs" in shown
        assert shown.index("refused 400  Access/permission denied") < shown.index("done    101")
        await press(pilot, "escape", "escape")
        assert app.main.view_name == "jobs"


async def test_the_journal_can_be_filtered_and_sorted(tmp_path: Path) -> None:
    everyday(tmp_path)
    app = acting_app(ScriptedTransport(*EVERYDAY), tmp_path)
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        await press(pilot, "J", "slash")
        await type_text(pilot, "cancel outcome:refused")
        await press(pilot, "enter")
        assert shown_rows(app).row_count == 1
        assert shown_rows(app).cursor_row is not None
        assert shown_rows(app).cursor_row["cluster"] == "fjord"
        await press(pilot, "escape")
        app.main.view.sort_by("verb", False)
        await settled(pilot)
        verbs = app.main.view.rows.table["verb"].to_pylist()
        assert verbs == sorted(verbs)


async def test_it_is_read_again_with_ctrl_r(tmp_path: Path) -> None:
    app = acting_app(ScriptedTransport(*EVERYDAY), tmp_path)
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        await press(pilot, "J")
        assert isinstance(app.main.view, JournalView)
        assert "No actions yet" in screen_text(app)
        note(tmp_path, "cancel", ("1",), Outcome("1", True))
        await press(pilot, "ctrl+r")
        await until(pilot, lambda: shown_rows(app).row_count == 1)
        await press(pilot, "J")
        assert len(app.main.stack) == 2


async def test_lines_that_cannot_be_read_are_counted_and_a_folder_in_its_place_is_an_error(
    tmp_path: Path,
) -> None:
    note(tmp_path, "cancel", ("1",), Outcome("1", True))
    with (tmp_path / "journal.jsonl").open("ab") as stream:
        stream.write(b'{"half a line\n')
    app = acting_app(ScriptedTransport(*EVERYDAY), tmp_path)
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        await press(pilot, "J")
        await until(pilot, lambda: "1 unreadable line of the journal" in screen_text(app))
        (tmp_path / "journal.jsonl").unlink()
        (tmp_path / "journal.jsonl").mkdir()
        await press(pilot, "ctrl+r")
        await until(pilot, lambda: "cannot read the journal" in screen_text(app))


async def test_what_a_scheduler_said_is_shown_as_plain_text(tmp_path: Path) -> None:
    note(tmp_path, "cancel", ("1",), Outcome("1", False, "[red]no\x1b[2J"))
    app = acting_app(ScriptedTransport(*EVERYDAY), tmp_path)
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        await press(pilot, "J")
        assert "[red]no␛[2J" in screen_text(app)
        await press(pilot, "enter")
        assert "1  [red]no␛[2J" in screen_text(app)


async def test_a_submission_whose_end_no_run_saw_is_looked_for_at_the_start_and_told(
    tmp_path: Path,
) -> None:
    journal = Journal(tmp_path / "journal.jsonl", now=lambda: NOW - 300)
    journal.before(
        cluster="lab",
        user="alice",
        verb="submit",
        job_ids=("night",),
        commands=[("sbatch", "--comment=hpcdash:0123456789", "/l/night-1/batch.sh")],
        names={"night": "night"},
    )
    # Its run was killed on another machine.
    journal.path.write_bytes(journal.path.read_bytes().replace(b'"host":"', b'"host":"not-'))
    transport = ScriptedTransport(*EVERYDAY)
    transport.recent = [{"jobarrayid": "417", "name": "night", "comment": "hpcdash:0123456789"}]
    app = acting_app(transport, tmp_path)
    async with app.run_test(size=USUAL) as pilot:
        await until(
            pilot, lambda: any("found: job 417" in notice for notice in notices(app)), "told"
        )
        (entry,), _ = app.main.session.actions.journal.read()
        assert (entry.state, entry.outcomes[0].text) == ("done", "job 417")


async def test_nothing_is_looked_for_where_every_submission_was_seen_to_end(tmp_path: Path) -> None:
    everyday(tmp_path)
    transport = ScriptedTransport(*EVERYDAY)
    async with acting_app(transport, tmp_path).run_test(size=USUAL) as pilot:
        await settled(pilot)
        assert transport.count("recent") == transport.count("mine")
