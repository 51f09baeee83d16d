"""Values of a job that `y` copies: those of its row at once, others fetched once chosen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

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
_OF_ROWS = (("name", "name"), ("work_dir", "work dir"), ("node_list", "nodes"))
_MARKED = "marked ids"
_STREAMS = (("stdout_path", "stdout"), ("stderr_path", "stderr"))


def offer_copies(screen: DashboardScreen) -> None:
    """A list of what can be copied of the job that is pointed at, its id first."""
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
    texts |= {
        label: str(row[column]) for column, label in (*_OF_ROWS, *_STREAMS) if row.get(column)
    }
    has = session.store.backend.capabilities
    requested = (
        [label for _, label in _STREAMS if label not in texts] if Capability.LOGS in has else []
    )
    requested += ["submit command"] if Capability.DETAIL in has else []

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
    """Copy to the clipboard, and notify. Pasted, a line end in a name would be an enter."""
    safe = visible(text)
    screen.app.copy_to_clipboard(safe)
    screen.notify(f"copied {clip(safe, _SHOWN_CELLS)}", markup=False)


async def _fetch_text(
    screen: DashboardScreen, session: ClusterSession, job_id: str, label: str
) -> None:
    try:
        text = await (
            _submit_line(session, job_id)
            if label == "submit command"
            else _log(session, job_id, label)
        )
    except HpcdashError as error:
        screen.notify(
            f"not copied: {format_error(error)}", severity="warning", timeout=8, markup=False
        )
        return
    if text:
        copy(screen, text)
    else:
        message = f"not copied: the {label} of job {visible(job_id)} is not known"
        screen.notify(message, severity="warning", markup=False)


async def _log(session: ClusterSession, job_id: str, label: str) -> str:
    from hpcdash.services.logs.locate import locate_logs

    files = (await locate_logs(session.store, job_id)).files
    return (files.stdout if label == "stdout" else files.stderr or files.stdout) or ""


async def _submit_line(session: ClusterSession, job_id: str) -> str:
    """Return the submit line of a job from its detail, else from its history; '' if unknown."""
    part = session.store.backend.detail
    native: Mapping[str, Any] = (await session.store.fetch_detail(job_id)).native
    if line := part.submit_line(native):
        return line
    if Capability.HISTORY not in session.store.backend.capabilities:
        return ""
    return part.submit_line(
        await session.store.run_query(session.store.backend.history.native(job_id))
    )
