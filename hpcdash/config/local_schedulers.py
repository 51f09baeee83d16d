"""Schedulers that this machine is configured for."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path

from msgspec.structs import replace

from hpcdash.backends.base import LocalConfiguration, ServerFiles
from hpcdash.backends.registry import ON_LOGIN_NODES, load_backend, local_configuration

# No configuration that names a server is longer than this.
_READ_CHARACTERS = 4_000_000
_COMMAND_SECONDS = 3.0
# Text and server of a file that this user may not read.
_UNREAD = "?"


def local_schedulers() -> dict[str, str]:
    """Return this machine's schedulers in order of trial, with the servers they are configured for.

    A scheduler's commands may be installed without a configuration, or with one that names no
    server: neither is a cluster. Commands are only run where no known file is there.
    """
    servers = {name: next(_servers(local_configuration(name)), "") for name in ON_LOGIN_NODES}
    return {name: server for name, server in servers.items() if server}


def no_scheduler_reason() -> str:
    """Return the reason why `local_schedulers` finds no scheduler."""
    for configuration in map(local_configuration, ON_LOGIN_NODES):
        if shutil.which(configuration.command):
            return configuration.unconfigured
    titles = " nor ".join(load_backend(name).title for name in ON_LOGIN_NODES)
    return f"neither {titles} is installed here"


def _servers(configuration: LocalConfiguration) -> Iterator[str]:
    """Yield the servers that variables and files name, in order of precedence."""
    yield from filter(None, map(os.environ.get, configuration.server_variables))
    files = configuration.files
    if named_file := os.environ.get(configuration.file_variable, ""):
        if not os.path.exists(named_file):
            # A missing file was named on purpose, and the scheduler reports its absence.
            yield named_file
        others = () if configuration.is_file_alone else files[1:]
        files = (replace(files[0], files=(named_file,)), *others)
    for group in files:
        for file in group.files:
            if server := _server(file, group):
                yield server
    argv = configuration.server_command
    program = shutil.which(argv[0]) if argv and shutil.which(configuration.command) else None
    if program:
        yield from configuration.server_pattern.findall(_output(program, *argv[1:]))


@cache
def _output(*argv: str) -> str:
    """Return what a command prints; '' where it fails or is slow."""
    import subprocess

    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_COMMAND_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace")


def _read_text(file: str) -> str:
    """Return the text of a file: '' if it does not exist, _UNREAD without permission."""
    try:
        with Path(file).open(encoding="utf-8", errors="replace") as source:
            return source.read(_READ_CHARACTERS)
    except OSError as error:
        return _UNREAD if isinstance(error, PermissionError) and os.path.exists(file) else ""


def _server(file: str, group: ServerFiles) -> str:
    """Return the first server that a file or a file it includes names; '' for none."""
    text = _read_text(file)
    if text == _UNREAD:
        return _UNREAD
    included = group.included.findall(text) if group.included else ()
    folder = os.path.dirname(file)
    texts = chain([text], (_read_text(os.path.join(folder, name)) for name in included))
    return next((match[1] for match in map(group.pattern.search, texts) if match), "")
