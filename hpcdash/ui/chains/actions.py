"""Key actions on chains of jobs: open one, append jobs, edit what its next element runs."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hpcdash.backends.job_detail import Script
from hpcdash.domain.chains import AppendWish, Unit, read_append
from hpcdash.domain.demand import join_sentences
from hpcdash.domain.text import counted, visible
from hpcdash.errors import HpcdashError, UsageError
from hpcdash.services.chains import Appendix, plan_append, same_again
from hpcdash.services.jobs.action_text import format_error
from hpcdash.services.session import ClusterSession
from hpcdash.services.submit.launches import MAX_LINKS, format_chain
from hpcdash.services.submit.submission import SubmissionPlan
from hpcdash.ui.jobs.action_dialogs import Question
from hpcdash.ui.jobs.action_runner import ActionRunner
from hpcdash.ui.screen import DashboardScreen
from hpcdash.ui.widgets.command_bar import CommandBar
from hpcdash.ui.workers import start_worker

if TYPE_CHECKING:
    from hpcdash.ui.chains.view import ChainView

_MAX_BYTES = 4 << 20


class ChainActions:
    """Handlers of the registry's actions on chains."""

    def __init__(self, screen: DashboardScreen, runner: ActionRunner) -> None:
        self.screen = screen
        self.runner = runner
        self._is_appending = False

    async def do_chain(self) -> None:
        await self.screen.push_for_job("chain")

    def do_append(self) -> None:
        """Prompt for the number or tasks to append, and the script; a repetition is proposed."""
        from hpcdash.ui.chains.view import APPEND, ChainView

        view = self.screen.view
        if not isinstance(view, ChainView) or self._is_appending:
            return
        end = view.end_unit()
        if end is None:
            self.screen.notify("chain not loaded yet", severity="warning", timeout=3)
            return
        if end.has_ended:
            text = f"{end.job_id} has finished: no job can depend on it. R resubmits it"
            self.screen.notify(visible(text), severity="warning", timeout=6)
            return
        session = self.screen.session

        def take(typed: str) -> str:
            try:
                wish = read_append(typed, is_array=end.is_array)
            except ValueError as error:
                return str(error)
            if wish.count > MAX_LINKS:
                return f"at most {MAX_LINKS} single jobs; use an array instead: 1-{wish.count}%1"
            self._is_appending = True
            start_worker(self.screen, self._append, view, session, end, wish, group="acting")
            return ""

        proposal = "1"
        if end.is_array:
            count = sum(row["_tasks"] or 1 for row in end.rows)
            proposal = f"1-{count}%{end.throttle or 1}"
        sign = f"append after {visible(end.job_id)}: "
        self.screen.query_one(CommandBar).prompt(
            APPEND, proposal, sign=sign, take=take, proposed=True
        )
        # The crumbs show the prompt's hint.
        view.post_message(view.CrumbsChanged())

    async def _append(
        self, view: ChainView, session: ClusterSession, end: Unit, wish: AppendWish
    ) -> None:
        store = session.store

        async def plan(after: tuple[str, ...]) -> SubmissionPlan:
            return plan_append(store, appendix, after or (end.job_id,), wish.array)

        try:
            appendix = _own_script(wish.path) if wish.path else await same_again(store, end.job_id)
            await store.open(force=True)
            first = await plan(())
        except HpcdashError as error:
            self.screen.notify(
                f"not submitted: {format_error(error)}", severity="error", timeout=15
            )
            return
        finally:
            self._is_appending = False
        what = f"an array {wish.array}" if wish.array else counted(wish.count, "job")
        if end.is_array and not wish.array and not wish.path:
            what = "the same array"
        title = f"append {what} of {appendix.name} after {end.job_id}?"
        if wish.count > 1:
            aside = (
                f"{wish.count} jobs: the first after {end.job_id}, then each after the previous "
                "one (any exit status)"
            )
        else:
            job = f"an array ({wish.array})" if wish.array else "one job"
            aside = f"{job}, after {end.job_id} ends (any exit status)"
        question = Question(first.plan, (aside, *first.notes), title=title)
        if not await self.runner.is_confirmed(question):
            return
        outcomes = await session.launches.submit_chain(plan, session.actions, wish.count)
        is_complete = sum(bool(outcome.new_job) for outcome in outcomes) == wish.count
        text = f"after {end.job_id} on {store.title}: {format_chain(outcomes, wish.count)}"
        self.screen.notify(
            visible(text),
            severity="information" if is_complete else "error",
            timeout=12,
        )
        session.poller.poll_now()
        if view.is_live:
            view.read()

    def do_edit_next(self) -> None:
        """Open the script that the next element's stub will read in an editor, and replace it."""
        from hpcdash.ui.chains.view import ChainView

        view = self.screen.view
        session = self.screen.session
        job_id = view.next_job() if isinstance(view, ChainView) else None
        if job_id is None:
            self.screen.notify(
                "nothing in the chain is pending; running jobs keep the script they read",
                severity="warning",
                timeout=5,
            )
        else:
            start_worker(self.screen, self._edit, session, job_id, group="edit")

    async def _edit(self, session: ClusterSession, job_id: str) -> None:
        # Rarely used: not imported with the view.
        from hpcdash.services.chains import fetch_stubbed, replace_stubbed

        open_outside = getattr(self.screen.app, "open_outside", None)
        if open_outside is None:
            return
        try:
            before = await fetch_stubbed(session.store, job_id)
        except HpcdashError as error:
            text = join_sentences(error.message, error.next_step)
            self.screen.notify(visible(text), severity="warning", timeout=12)
            return
        file = _write_copy(before.content, before.path)
        open_outside("editor", file)
        is_done = False
        try:
            content = file.read_bytes()
        except OSError:
            text = f"cannot read the edited file: {file}"
        else:
            if content == before.content:
                text = f"{before.path} is unchanged"
                is_done = True
            else:
                outcome = await replace_stubbed(session.store, before, content)
                is_done = outcome.done is True
                text = f"{before.path}: {outcome.text}"
                if not is_done:
                    text += f"; your version is in {file}"
        if is_done:
            with contextlib.suppress(OSError):
                file.unlink()
        severity: Literal["information", "error"] = "information" if is_done else "error"
        self.screen.notify(visible(text), severity=severity, timeout=8 if is_done else 20)


def _write_copy(content: bytes, path: str) -> Path:
    """Write content to a private temporary file with the ending of `path`."""
    suffix = "".join(letter for letter in Path(path).suffix if letter.isalnum() or letter == ".")
    # mkstemp creates files of mode 0600.
    handle, name = tempfile.mkstemp(prefix="hpcdash-next-", suffix=suffix[:8] or ".sh")
    with os.fdopen(handle, "wb") as stream:
        stream.write(content)
    return Path(name)


def _own_script(written: str) -> Appendix:
    """Read a script on this machine. Raises UsageError."""
    path = Path(written).expanduser()
    try:
        with path.open("rb") as stream:
            content = stream.read(_MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(
            f"{written}: {error.strerror}", "Check the path on this machine."
        ) from error
    if not content.startswith(b"#!") or len(content) > _MAX_BYTES:
        raise UsageError(f"{written} is not a batch script", "Its first line must begin with #!.")
    script = Script(content.decode("utf-8", "surrogateescape"), str(path))
    return Appendix(path.name, script, path.name)
