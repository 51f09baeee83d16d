"""Batch script of a job with explained directives, and its difference from another job's."""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from textual.app import ComposeResult

from hpcdash.backends.base import Capability
from hpcdash.backends.job_detail import Script
from hpcdash.domain.scripts import (
    Fold,
    ScriptLine,
    difference_lines,
    line_ends,
    script_folds,
    script_lines,
    unified,
)
from hpcdash.domain.tables import Kind
from hpcdash.domain.text import counted, visible
from hpcdash.errors import HpcdashError
from hpcdash.services.jobs.lookup import known_tables
from hpcdash.services.jobs.rows import select_rows
from hpcdash.services.jobs.scripts import fetch_script
from hpcdash.services.session import ClusterSession
from hpcdash.ui.view import Targets, View
from hpcdash.ui.widgets.command_bar import CommandBar
from hpcdash.ui.widgets.lines import PlainStatic
from hpcdash.ui.widgets.script_page import Part, ScriptPage, coloured_parts, script_language
from hpcdash.ui.workers import start_worker

# Terminals accept no more over OSC 52.
_MAX_COPIED_BYTES = 70_000
_ID_LETTERS = frozenset("0123456789_+[]-,%.abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


class ScriptView(View):
    """Batch script of a job; `diff` prompts at once for the job to compare it with."""

    DEFAULT_CSS = """
    ScriptView > PlainStatic { width: 1fr; height: auto; padding: 0 1; color: $text-muted; }
    """

    def __init__(self, session: ClusterSession, *, job_id: str, diff: bool = False) -> None:
        super().__init__(session)
        self.job_id = job_id
        self.script: Script | None = None
        self.other_id: str | None = None
        self._has_other_script = diff
        self._searched = ""
        self._lines: Sequence[ScriptLine] = ()
        self._folds: Sequence[Fold] = ()
        self._parts: Sequence[Sequence[Part]] = ()

    def compose(self) -> ComposeResult:
        yield PlainStatic("loading …")
        yield ScriptPage()

    @property
    def page(self) -> ScriptPage:
        return self.query_one(ScriptPage)

    def on_mount(self) -> None:
        start_worker(self, self._fetch, exclusive=True, group="script")

    def take_focus(self) -> None:
        self.screen.set_focus(self.page)

    def shown(self) -> None:
        self.take_focus()

    # -- script

    def do_refresh(self) -> None:
        start_worker(self, self._fetch, exclusive=True, group="script")

    async def _fetch(self) -> None:
        store = self.session.store
        try:
            script = await fetch_script(store, self.job_id)
        except HpcdashError as error:
            self._error = error
            if self.script is None:
                self.query_one(PlainStatic).update("no script to show; ! shows the error")
            self.post_message(self.CrumbsChanged())
            return
        self._error = None
        self._taken_at = store.clock.now()
        is_new = self.script is None or self.script.text != script.text
        self.script = script
        if is_new:
            scripts = store.backend.scripts
            self._lines = await asyncio.to_thread(script_lines, script.text, scripts.explain)
            self._folds = await asyncio.to_thread(
                lambda: script_folds(script.text, self._lines, scripts.blocks())
            )
            self._parts = ()
            if self.other_id is None:
                self._show_script()
            language = script_language(self._lines[0].text if self._lines else "")
            texts = [line.text for line in self._lines]
            self._parts = await asyncio.to_thread(coloured_parts, texts, language)
            if self.other_id is None:
                self.page.colour(self._parts)
        self.post_message(self.CrumbsChanged())
        if self._has_other_script:
            self._has_other_script = False
            await self.do_diff()

    def _show_script(self) -> None:
        self.query_one(PlainStatic).display = False
        self.page.show(self._lines, self._folds)
        self.page.colour(self._parts)
        self.post_message(self.CrumbsChanged())

    # -- difference from another script

    async def do_diff(self) -> None:
        """Prompt for another job, by default the previous job of the same name."""
        if self.script is None:
            self.notify("no script to compare yet", severity="warning", timeout=3)
            return
        await self._know_history()
        bar = self.screen.query_one(CommandBar)
        bar.prompt(
            "diff",
            self._earlier_job() or "",
            sign="compare with job: ",
            take=self._take_other,
            proposed=True,
        )

    def _take_other(self, typed: str) -> str:
        other_id = typed.strip()
        if not other_id or not _ID_LETTERS.issuperset(other_id) or not other_id[0].isdigit():
            # IDs with a server put tasks in brackets: 12.server, 12[3].server.
            uses_brackets = "." in self.job_id or "[]" in self.job_id
            return (
                f"enter a job ID such as 12, or {'12[3]' if uses_brackets else '12_3'} for a task"
            )
        start_worker(self, self._compare, other_id, exclusive=True, group="diff")
        return ""

    async def _compare(self, other_id: str) -> None:
        try:
            other = await fetch_script(self.session.store, other_id)
        except HpcdashError as error:
            text = f"job {other_id}: {visible(error.message)}"
            self.notify(text, severity="warning")
            return
        if self.script is None:
            return
        names = (f"job {other_id} ({other.source})", f"job {self.job_id} ({self.script.source})")
        difference = await asyncio.to_thread(unified, other.text, self.script.text, names)
        if not difference:
            self.notify(f"the scripts of {other_id} and {self.job_id} are the same")
            return
        lines = await asyncio.to_thread(difference_lines, difference)
        self.other_id = other_id
        self.page.show(lines)
        self.post_message(self.CrumbsChanged())

    async def _know_history(self) -> None:
        """Fetch the user's history once, to propose an earlier job."""
        store = self.session.store
        if Kind.HISTORY in store.snapshots or Capability.HISTORY not in store.backend.capabilities:
            return
        try:
            await store.fetch(Kind.HISTORY)
        except HpcdashError:
            # The banner of the history has the reason.
            return

    def _earlier_job(self) -> str | None:
        rows = self._rows()
        if not rows:
            return None
        job = rows[0]
        earlier: list[tuple[int, str]] = []
        for table in self._tables():
            has_name = pc.equal(table["name"], job["name"])
            has_user = pc.equal(table["user"].cast(pa.string()), job["user"])
            is_earlier = pc.less(table["_number"], job["_number"])
            found = table.filter(pc.and_(pc.and_(has_name, has_user), is_earlier))
            for row in found.select(["_number", "id", "array_id"]).to_pylist():
                # The tasks of an array share its script.
                earlier.append((row["_number"], row["array_id"] or row["id"]))
        return max(earlier, default=(0, None))[1]

    # -- keys

    def do_search(self) -> None:
        self.screen.query_one(CommandBar).prompt("script search", sign="/", take=self._take_search)

    def _take_search(self, typed: str) -> str:
        requested = visible(typed)
        if not requested:
            self._forget_search()
            return ""
        if not self.page.search(requested):
            return "no match"
        self._searched = requested
        self.post_message(self.CrumbsChanged())
        return ""

    def do_next_match(self) -> None:
        self._step(1)

    def do_previous_match(self) -> None:
        self._step(-1)

    def _step(self, places: int) -> None:
        if not self.page.matches:
            self.notify("no search yet; / searches", timeout=2)
            return
        self.page.step(places)
        self.post_message(self.CrumbsChanged())

    def _forget_search(self) -> None:
        self._searched = ""
        self.page.clear_search()
        self.post_message(self.CrumbsChanged())

    def do_fold(self) -> None:
        """Open or fold the lines that hpcdash wrote."""
        self.page.action_fold()
        self.post_message(self.CrumbsChanged())

    def do_wrap(self) -> None:
        self.page.set_wrap(not self.page.wrap)
        self.post_message(self.CrumbsChanged())

    def do_escape(self) -> bool:
        """Go back one step: from a search to the lines, from a difference to the script.

        False if there is no step to go back.
        """
        if self.page.matches:
            self._forget_search()
        elif self.other_id is not None:
            self.do_script()
        else:
            return False
        return True

    def do_script(self) -> None:
        """Go back from a difference to the script."""
        if self.other_id is not None:
            self.other_id = None
            self._searched = ""
            self._show_script()

    def do_copy(self) -> None:
        """Copy the whole script, or the difference."""
        if self.script is None:
            self.app.copy_to_clipboard(self.job_id)
            self.notify(f"copied {visible(self.job_id)}", timeout=2)
            return
        if self.other_id is None:
            message = "the script"
            text = self.script.text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        else:
            message = "the difference"
            text = "".join(f"{line.text}\n" for line in self.page.lines)
        size = len(text.encode())
        if size > _MAX_COPIED_BYTES:
            text = f"{message} is too large for the terminal's clipboard; E opens it"
            self.notify(text, severity="warning")
            return
        self.app.copy_to_clipboard(text)
        self.notify(f"copied {message}: {counted(len(text.splitlines()), 'line')}", timeout=2)

    def do_edit(self) -> None:
        """Open a copy of the script in the user's editor, and delete it afterwards."""
        open_outside = getattr(self.app, "open_outside", None)
        if self.script is None or open_outside is None:
            return
        content = self.script.text.encode("utf-8", "surrogateescape")
        # Files of mkstemp are readable only by their owner.
        safe_id = re.sub("[^0-9A-Za-z_-]", "", self.job_id)[:40]
        handle, name = tempfile.mkstemp(prefix=f"job-{safe_id}-", suffix=".sh")
        file = Path(name)
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(content)
            open_outside("editor", file)
            if file.exists() and file.read_bytes() != content:
                self.notify(
                    "you edited a copy, now deleted: the job's script is unchanged",
                    timeout=8,
                )
        except OSError as error:
            self.notify(f"could not make a copy: {error.strerror}", severity="warning")
        finally:
            file.unlink(missing_ok=True)

    # -- values for the screen

    def crumbs(self) -> Sequence[str]:
        crumbs = (f"script {self.job_id}",)
        return crumbs if self.other_id is None else (*crumbs, f"differs from {self.other_id}")

    def hint(self) -> str:
        if self.script is None:
            return ""
        page = self.page
        parts = []
        if self._searched and page.matches:
            parts.append(f"{self._searched}: {page.current + 1} of {len(page.matches)}")
        if self.other_id is not None:
            counts = Counter[str](line.kind for line in page.lines)
            removed = f"- {counts['removed']} in job {self.other_id}"
            parts.append(f"{removed}   + {counts['added']} in job {self.job_id}")
            parts.append("esc shows the script again")
        else:
            parts.append(self.script.source)
            parts.append(counted(len(self._lines), "line"))
            parts.append(line_ends(self.script.text))
            if page.folds:
                parts.append(f"enter {'folds' if page.is_open else 'opens'} hpcdash's lines")
        if page.wrap:
            parts.append("wrapped")
        return " · ".join(part for part in parts if part)

    def pointed_job(self) -> str | None:
        return self.job_id

    def targets(self) -> Targets:
        rows = self._rows()
        return Targets((self.job_id,), tuple(rows))

    def _rows(self) -> Sequence[Any]:
        """Return the job's rows in the first table that has it; all rows of a whole array."""
        for table in self._tables():
            if found := select_rows(table, (self.job_id,)):
                return found
        return ()

    def _tables(self) -> list[pa.Table]:
        return list(known_tables(self.session.store))
