"""Schedulers that this machine is configured for."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from hpcdash.backends.base import LocalConfiguration, ServerFiles
from hpcdash.backends.registry import ON_LOGIN_NODES, load_backend, local_configuration

# No configuration that names a server is longer than this.
_READ_CHARACTERS = 4_000_000
# In place of what this user may not read.
_UNREAD = "?"


def local_schedulers() -> dict[str, str]:
    """Return this machine's schedulers in order of trial, with the servers they are configured for.

    Commands without a configuration are installed packages, and no cluster; a configuration that
    names no server belongs to none either. Whether the commands exist is not checked.
    """
    servers = {name: next(_servers(local_configuration(name)), "") for name in ON_LOGIN_NODES}
    return {name: server for name, server in servers.items() if server}


def no_scheduler_reason() -> str:
    """Return the reason why `local_schedulers` finds no scheduler."""
    there = (
        one.unconfigured
        for one in map(local_configuration, ON_LOGIN_NODES)
        if shutil.which(one.command)
    )
    titles = " nor ".join(load_backend(name).title for name in ON_LOGIN_NODES)
    return next(there, f"neither {titles} is installed here")


def _servers(configuration: LocalConfiguration) -> Iterator[str]:
    yield from filter(None, map(os.environ.get, configuration.server_variables))
    files = configuration.files
    if named := os.environ.get(configuration.file_variable, ""):
        if not os.path.exists(named):
            # A missing file was named on purpose, and the scheduler reports its absence.
            yield named
        files = (
            replace(files[0], files=(named,)),
            *(() if configuration.is_file_alone else files[1:]),
        )
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
