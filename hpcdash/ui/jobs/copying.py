"""Values of a job that `y` copies: from its row, or fetched when selected."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdash.backends.base import Capability
from hpcdash.domain.text import clip, visible
from hpcdash.errors import HpcdashError
from hpcdash.services.jobs.action_text import format_error
from hpcdash.services.jobs.lookup import known_row
from hpcdash.ui.dialogs import Choice, ChoiceDialog
from hpcdash.ui.workers import start_worker

if TYPE_CHECKING:
    from hpcdash.services.session import ClusterSession
    from hpcdash.ui.screen import DashboardScreen

_SHOWN_CELLS = 60
_MARKED = "marked ids"
_STREAMS = {"stdout": "stdout_path", "stderr": "stderr_path"}
_COLUMNS = {"name": "name", "work dir": "work_dir", "nodes": "node_list", **_STREAMS}


def offer_copies(screen: DashboardScreen) -> None:
    """Show a list of the selected job's values to copy, its ID first."""
    view = screen.view
    session = screen.session
    job_id = view.pointed_job()
    if job_id is None:
        screen.notify("select a job first", severity="warning", timeout=3)
        return
    row = next(iter(view.targets().rows), None) if not view.marks() else None
    row = row or known_row(session.store, job_id) or {}
    texts = {"id": job_id}
    if view.marks() > 1:
        texts[_MARKED] = " ".join(view.targets().job_ids)
    for label, column in _COLUMNS.items():
        if row.get(column):
            texts[label] = str(row[column])
    capabilities = session.store.backend.capabilities
    requested = []
    if Capability.LOGS in capabilities:
        requested += [label for label in _STREAMS if label not in texts]
    if Capability.DETAIL in capabilities:
        requested.append("submit command")

    def take(label: str) -> None:
        if label in texts:
            copy(screen, texts[label])
            if label == _MARKED:
                view.clear_marks()
        else:
            start_worker(screen, _fetch_text, screen, session, job_id, label, group="copy")

    choices = [Choice(label, clip(visible(text), _SHOWN_CELLS)) for label, text in texts.items()]
    choices += [Choice(label, "queries the scheduler") for label in requested]
    screen.app.push_screen(ChoiceDialog(f"Copy from job {job_id}", choices, take))


def copy(screen: DashboardScreen, text: str) -> None:
    """Copy to the clipboard, and notify."""
    # A pasted line end would be an enter.
    safe = visible(text)
    screen.app.copy_to_clipboard(safe)
    screen.notify(f"copied {clip(safe, _SHOWN_CELLS)}")


async def _fetch_text(
    screen: DashboardScreen, session: ClusterSession, job_id: str, label: str
) -> None:
    from hpcdash.services.logs.locate import locate_logs

    try:
        if label == "submit command":
            text = await _submit_line(session, job_id)
        else:
            files = (await locate_logs(session.store, job_id)).files
            text = (files.stderr if label == "stderr" else None) or files.stdout or ""
    except HpcdashError as error:
        message = f"not copied: {format_error(error)}"
        screen.notify(message, severity="warning", timeout=8)
        return
    if text:
        copy(screen, text)
    else:
        message = f"not copied: the {label} of job {visible(job_id)} is unknown"
        screen.notify(message, severity="warning")


async def _submit_line(session: ClusterSession, job_id: str) -> str:
    """Return the submit line of a job from its detail, else from its history; '' if unknown."""
    store = session.store
    backend = store.backend
    if line := backend.detail.submit_line((await store.fetch_detail(job_id)).native):
        return line
    if Capability.HISTORY not in backend.capabilities:
        return ""
    return backend.detail.submit_line(await store.run_query(backend.history.native(job_id)))
