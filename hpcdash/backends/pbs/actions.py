"""What can be done to jobs: qdel qhold qrls qrerun qsig qalter qmove. Builds commands, runs nothing."""

from __future__ import annotations

from hpcdash.backends.base import ActionCommand, ActionRequest
from hpcdash.backends.pbs.dialects import Dialect


def action_commands(dialect: Dialect, request: ActionRequest) -> tuple[ActionCommand, ...]:
    """As Backend.action_commands."""
    raise NotImplementedError


def alterable(dialect: Dialect) -> tuple[str, ...]:
    """As Backend.alterable."""
    raise NotImplementedError
