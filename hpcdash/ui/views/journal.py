"""What was done from here, and how it ended."""

from __future__ import annotations

from hpcdash.ui.views.base import View, ViewSpec


class JournalView(View):
    """What was done from here, and how it ended."""


VIEW = ViewSpec("journal", "journal", JournalView, root=False)
