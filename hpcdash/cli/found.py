"""Which schedulers this machine is configured for, by the files that their own commands read. Starts nothing."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from hpcdash.backends.base import LocalConfiguration, ServerFiles
from hpcdash.backends.registry import BACKENDS

# No configuration that names a server is longer than this.
_READ_CHARACTERS = 4_000_000
# In place of what this user may not read.
_UNREAD = "?"


def found_here() -> dict[str, str]:
    """This machine's schedulers, the first to be tried first, and the server that the configuration of each names.

    Commands without a configuration are packages that were installed, and no cluster; a configuration that names no
    server is of none either. Whether the commands are there is not looked at.
    """
    servers = {name: next(_servers(one), "") for name, one in _configurations()}
    return {name: server for name, server in servers.items() if server}


def why_none_here() -> str:
    """Why `found_here` finds none, and how to ask all the same."""
    there = (one.unconfigured for _, one in _configurations() if shutil.which(one.command))
    titles = " nor ".join(backend.title for backend in BACKENDS.values())
    return next(there, f"neither {titles} is here")


def _configurations() -> Iterator[tuple[str, LocalConfiguration]]:
    for name, backend in BACKENDS.items():
        if (configuration := backend.local_configuration) is not None:
            yield name, configuration


def _servers(configuration: LocalConfiguration) -> Iterator[str]:
    yield from filter(None, map(os.environ.get, configuration.server_variables))
    files = configuration.files
    if named := os.environ.get(configuration.file_variable, ""):
        if not os.path.exists(named):
            # One that is not there was meant, and its absence is the scheduler's to tell.
            yield named
        files = (replace(files[0], files=(named,)), *(() if configuration.is_file_alone else files[1:]))
    for group in files:
        for file in group.files:
            if (text := _text(file)) is not None and (server := _server(text, file, group)):
                yield server


def _text(file: str) -> str | None:
    """None where there is no such file."""
    try:
        with Path(file).open(encoding="utf-8", errors="replace") as source:
            return source.read(_READ_CHARACTERS)
    except OSError as error:
        return _UNREAD if isinstance(error, PermissionError) and os.path.exists(file) else None


def _server(text: str, file: str, group: ServerFiles) -> str:
    """The first server that a file names, or one that it includes."""
    if text == _UNREAD:
        return _UNREAD
    if server := _found(group.pattern, text):
        return server
    names = group.included.findall(text) if group.included else ()
    parts = (_text(os.path.join(os.path.dirname(file), name)) for name in names)
    return next(filter(None, (_found(group.pattern, part or "") for part in parts)), "")


def _found(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return found[1] if found else ""
