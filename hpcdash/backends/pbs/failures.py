"""Reads how a PBS command failed: from its exit status and its own words to an error with a next step."""

from __future__ import annotations

from hpcdash.backends.base import Answer
from hpcdash.errors import CommandError, UnreadableOutput


def failure(answer: Answer, command: tuple[str, ...] = ()) -> CommandError:
    """The error a failed answer stands for; `command` is what a person would call it, where a script ran it."""
    raise NotImplementedError


def require_success(answer: Answer, command: tuple[str, ...] = ()) -> None:
    """Raises the error of an answer that ended badly; one that was cut at our output cap has printed what it has."""
    raise NotImplementedError


def unreadable(answer: Answer, what: str, command: tuple[str, ...] = ()) -> UnreadableOutput:
    """The error of an answer that ended well but is not in the format asked for; `what`: jobs, nodes …"""
    raise NotImplementedError
