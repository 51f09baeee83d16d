"""Commands, stacks and live use of a running job in the dashboard, on a cluster whose nodes answer as a test says."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input

from hpcdash.config.read import settings_from_text
from hpcdash.services.state.choices import read_choices
from hpcdash.ui.actions import ACTION_NAMES, configured, key_problems
from hpcdash.ui.app import HpcdashApp
from tests.support.scripted_transport import EVERYONE, MINE, Command, ScriptedTransport
from tests.support.slurm_text import queue_text
from tests.ui.stage import CASES, answering, answering_transport, notices, press, screen_text, settled, type_text, until

SIZE = (140, 40)
_ = (CASES, EVERYONE, queue_text)


def frames(token: str, node: str, text: str, status: int | None = 0) -> str:
    coded = base64.encodebytes(text.encode()).decode().splitlines()
    ended = [] if status is None else [f"{token} {node} - ={status}"]
    return "".join(f"{line}\n" for line in [*(f"{token} {node} - .{line}" for line in coded), *ended])


def token_in(words: tuple[str, ...]) -> str:
    return next(word for word in words if word.startswith("hpcdash-"))
