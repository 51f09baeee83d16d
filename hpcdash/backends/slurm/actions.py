"""Slurm commands that act on jobs, and what each of them says of every job."""

from __future__ import annotations

from hpcdash.backends.base import ActionCommand, ActionRequest


def action_commands(request: ActionRequest) -> tuple[ActionCommand, ...]:
    raise NotImplementedError
