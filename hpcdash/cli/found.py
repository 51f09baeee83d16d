"""Which schedulers this machine is configured for, by the files that their own commands read. Starts nothing."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from hpcdash.backends.pbs.backend import BACKEND as PBS
from hpcdash.backends.slurm.backend import BACKEND as SLURM

# Where Slurm's commands find their configuration, where SLURM_CONF does not say it.
_SLURM_CONFIGURATIONS = (
    "/etc/slurm/slurm.conf",
    "/etc/slurm-llnl/slurm.conf",
    "/usr/local/etc/slurm.conf",
    "/usr/local/slurm/etc/slurm.conf",
    "/opt/slurm/etc/slurm.conf",
    "/run/slurm/conf/slurm.conf",
    "/var/spool/slurmd/conf-cache/slurm.conf",
    "/var/spool/slurm/conf-cache/slurm.conf",
)
# Where the daemons of a machine without a slurm.conf are told who has it.
_SLURM_DAEMON_OPTIONS = (
    "/etc/default/slurmd",
    "/etc/sysconfig/slurmd",
    "/etc/default/sackd",
    "/etc/sysconfig/sackd",
)
# Where PBS's commands find theirs, where PBS_CONF_FILE does not say it; and Torque's.
_PBS_CONFIGURATION = "/etc/pbs.conf"
_TORQUE_SERVER_NAMES = (
    "/var/spool/torque/server_name",
    "/etc/torque/server_name",
    "/var/spool/pbs/server_name",
    "/usr/spool/PBS/server_name",
)
_CONTROLLER = re.compile(r"(?im)^[ \t]*(?:SlurmctldHost|ControlMachine)[ \t]*=[ \t]*([^\s#]+)")
_INCLUDED = re.compile(r"(?im)^[ \t]*Include[ \t]+([^\s#]+)")
_CONF_SERVER = re.compile(r"(?m)^[^#\n]*--conf-server[= \t]+[\"']?([^\s\"']+)")
_PBS_SERVER = re.compile(r"(?m)^[ \t]*(?:PBS_SERVER|PBS_PRIMARY)=[\"']?([^\s\"']+)")
# No configuration that names a server is longer than this.
_READ_CHARACTERS = 4_000_000
# In place of what this user may not read.
_UNREAD = "?"


def found_here() -> dict[str, str]:
    """This machine's schedulers, the first to be tried first, and the server that the configuration of each names.

    Commands without a configuration are packages that were installed, and no cluster; a configuration that names no
    server is of none either. Whether the commands are there is not looked at.
    """
    servers = {SLURM.name: next(_slurm_servers(), ""), PBS.name: next(_pbs_servers(), "")}
    return {name: server for name, server in servers.items() if server}


def why_none_here() -> str:
    """Why `found_here` finds none, and how to ask all the same."""
    if shutil.which("squeue"):
        return "Slurm's commands are here, but no slurm.conf that names a controller; --backend slurm asks them"
    if shutil.which("qstat"):
        return "there is a qstat here, but no /etc/pbs.conf that names a server; --backend pbs asks it"
    return "neither Slurm nor PBS is here"


def _slurm_servers() -> Iterator[str]:
    named = os.environ.get("SLURM_CONF", "")
    yield from filter(None, [os.environ.get("SLURM_CONF_SERVER", "")])
    if named:
        # One that is not there was meant, and its absence is Slurm's to tell.
        yield from _names([named], _controller) if os.path.exists(named) else [named]
        return
    yield from _names(_SLURM_CONFIGURATIONS, _controller)
    yield from _names(_SLURM_DAEMON_OPTIONS, lambda text, _: _found(_CONF_SERVER, text))


def _pbs_servers() -> Iterator[str]:
    yield from filter(None, map(os.environ.get, ("PBS_SERVER", "PBS_DEFAULT")))
    named = os.environ.get("PBS_CONF_FILE", "")
    if named and not os.path.exists(named):
        yield named
    yield from _names([named or _PBS_CONFIGURATION], lambda text, _: _found(_PBS_SERVER, text))
    yield from _names(_TORQUE_SERVER_NAMES, lambda text, _: next(iter(text.split()), ""))


def _names(files: Iterable[str], server_in: Callable[[str, str], str]) -> Iterator[str]:
    """The servers that the files name; `server_in` is given a file's text and its own path."""
    for file in files:
        if (text := _text(file)) is not None and (server := server_in(text, file) if text != _UNREAD else _UNREAD):
            yield server


def _text(file: str) -> str | None:
    """None where there is no such file."""
    try:
        with Path(file).open(encoding="utf-8", errors="replace") as source:
            return source.read(_READ_CHARACTERS)
    except OSError as error:
        return _UNREAD if isinstance(error, PermissionError) and os.path.exists(file) else None


def _controller(text: str, file: str) -> str:
    """The first controller of a slurm.conf, or of a file that it includes."""
    if server := _found(_CONTROLLER, text):
        return server
    parts = (_text(os.path.join(os.path.dirname(file), name)) for name in _INCLUDED.findall(text))
    return next(filter(None, (_found(_CONTROLLER, part or "") for part in parts)), "")


def _found(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return found[1] if found else ""
