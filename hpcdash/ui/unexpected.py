"""Errors of hpcdash's own as errors that a person is shown, so that they do not end the app."""

from __future__ import annotations

from textual.app import App

from hpcdash.errors import HpcdashError


def unexpected(app: App[object], what: str, error: Exception, before: HpcdashError | None = None) -> HpcdashError:
    """`hpcdash could not read this: …` for `what` ("read this"), noted in the log file where the app was told to.

    Where that is said already, as `before`, it is not noted again.
    """
    message = f"hpcdash could not {what}: {type(error).__name__}: {error}"[:300]
    if before is not None and before.message == message:
        return before
    from hpcdash.ui.app import HpcdashApp

    path = app.note_error(error) if isinstance(app, HpcdashApp) else None
    where = f"The traceback is in {path}." if path else "With --debug the traceback is written to its log file."
    return HpcdashError(message, where)
