"""`hpcdash serve`: the dashboard in a browser, by a printed link, or the API, by tokens."""

from __future__ import annotations

import asyncio
import os
import shlex
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcdash.assembly import chosen_clusters
from hpcdash.cli.debug_log import log_traceback
from hpcdash.cli.ending import ends_silently, run_async
from hpcdash.cli.jobs import open_sessions
from hpcdash.cli.options import CommonOptions
from hpcdash.cli.terminal import print_notes
from hpcdash.config.read import config_path, load_settings
from hpcdash.domain.text import visible
from hpcdash.errors import HpcdashError, UsageError
from hpcdash.listening import listen_on_loopback, listen_on_socket
from hpcdash.ui.actions import ACTION_NAMES

if TYPE_CHECKING:
    from hpcdash.web.server import DashboardServer

# Port on the user's own machine to which the socket is forwarded.
_FORWARDED_PORT = 8080
# The file is beside the configuration.
TOKENS_NAME = "api-tokens.toml"


def run_serve(
    common: CommonOptions,
    *,
    port: int | None,
    socket_path: Path | None,
    allow_actions: bool,
    api: bool = False,
    tokens: Path | None = None,
) -> None:
    """Serve until ctrl+c. Raises HpcdashError early for errors that a browser would see later."""
    conflicts = {
        "--port and --socket": port is not None and socket_path is not None,
        "--read-only and --allow-actions": common.read_only and allow_actions,
        "--api and --allow-actions": api and allow_actions,
    }
    for options, is_conflict in conflicts.items():
        if is_conflict:
            raise UsageError(f"{options} cannot be used together", "Remove one of them.")
    if api:
        _run_api(common, tokens, port=port, socket_path=socket_path)
        return
    if tokens is not None:
        raise UsageError("--tokens requires --api", "Add --api, or remove --tokens.")
    if any(find_spec(name) is None for name in ("aiohttp", "textual_serve")):
        raise UsageError(
            "hpcdash serve needs aiohttp and textual-serve",
            "Install them: pip install 'hpcdash[web]'",
        )
    settings = load_settings(common.config, action_names=ACTION_NAMES)
    chosen_clusters(common, settings)
    dashboard_arguments = _dashboard_argv(common, allow_actions=allow_actions)
    with ends_silently(), _listening(port or 0, socket_path) as (listening, address, forwarding):
        from hpcdash.web.server import LINK_SECONDS, DashboardServer

        server = DashboardServer(dashboard_arguments)

        def print_link() -> None:
            click.echo(f"  {address}{server.new_link()}")

        click.echo("hpcdash in a browser:")
        print_link()
        click.echo(f"The link works once, within {LINK_SECONDS // 60} minutes.")
        click.echo(
            "Enter prints a new one; ctrl+c stops the server."
            if sys.stdin.isatty()
            else "Restart to get a new one."
        )
        click.echo(f"From another machine, run first: {forwarding}")
        if socket_path is None:
            click.echo(
                "Other users of this machine can reach the port; only the secret link protects it."
            )
            click.echo("With --socket PATH they cannot connect at all.")
        if not (allow_actions or settings.read_only):
            click.echo("It is read-only; --allow-actions enables actions.")
        run_async(_serve(server, listening, print_link))


def _run_api(
    common: CommonOptions, tokens_file: Path | None, *, port: int | None, socket_path: Path | None
) -> None:
    if find_spec("aiohttp") is None:
        raise UsageError(
            "hpcdash serve --api needs aiohttp", "Install it: pip install 'hpcdash[api]'"
        )
    settings = load_settings(common.config)
    clusters = chosen_clusters(common, settings)[:1]
    from hpcdash.web.api.server import ApiServer
    from hpcdash.web.api.tokens import Tokens

    file = tokens_file or config_path(common.config)[0].parent / TOKENS_NAME
    tokens = Tokens(file)
    tokens.read()
    is_read_only = common.read_only or settings.read_only

    async def serve(listening: socket.socket, address: str) -> None:
        async with open_sessions(clusters, settings, common) as [session]:
            # A login may need a person, who is present now.
            await session.store.open(force=True)
            report = partial(_report, has_log=common.debug)
            server = ApiServer(session, tokens, is_read_only=is_read_only, report=report)
            await server.start(listening)
            try:
                click.echo(f"hpcdash's API for {visible(session.name)}: {address}")
                click.echo(
                    f"Tokens: {visible(str(file))}. GET / lists the endpoints; ctrl+c stops the "
                    "server."
                )
                await asyncio.Event().wait()
            finally:
                await server.stop()

    with ends_silently(), _listening(port or 0, socket_path) as (listening, address, _):
        if socket_path is not None:
            address = f"http://localhost through {visible(str(socket_path))}"
        run_async(serve(listening, address))


def _report(error: Exception, *, has_log: bool) -> None:
    if isinstance(error, HpcdashError):
        message = f"{error.message}. {error.next_step}"
    else:
        where = "--debug writes the traceback to the log file"
        if has_log and (path := log_traceback(error)):
            where = f"the traceback is in {path}"
        message = f"something went wrong: {type(error).__name__}; {where}"
    print_notes(message)


def _dashboard_argv(common: CommonOptions, *, allow_actions: bool) -> tuple[str, ...]:
    # With -P, the current folder cannot replace the package.
    argv = [sys.executable, "-P", "-m", "hpcdash"]
    argv += common.cluster_argv()
    flags = {
        "--yes": common.yes,
        "--debug": common.debug,
        "--read-only": not allow_actions,
    }
    argv += [name for name, is_set in flags.items() if is_set]
    return tuple(argv)


@contextmanager
def _listening(port: int, path: Path | None) -> Iterator[tuple[socket.socket, str, str]]:
    """Listen; give the socket, the page's address, and the ssh command for another machine."""
    host = socket.gethostname()
    if path is not None:
        with listen_on_socket(path) as listening:
            forward = f"{_FORWARDED_PORT}:{listening.getsockname()}"
            command = shlex.join(("ssh", "-L", forward, host))
            yield listening, f"http://127.0.0.1:{_FORWARDED_PORT}", command
        return
    with closing(listen_on_loopback(port)) as listening:
        port = listening.getsockname()[1]
        yield listening, f"http://127.0.0.1:{port}", f"ssh -L {port}:127.0.0.1:{port} {host}"


async def _serve(
    server: DashboardServer, listening: socket.socket, print_link: Callable[[], None]
) -> None:
    await server.start(listening)
    loop = asyncio.get_running_loop()

    def answer_enter() -> None:
        # In the background, typed text is another program's, and a read would stop this one.
        with suppress(OSError):
            if os.tcgetpgrp(sys.stdin.fileno()) != os.getpgrp():
                return
        # A terminal passes a whole line at once, and the end of its input once.
        if os.read(sys.stdin.fileno(), 4096):
            print_link()
        else:
            loop.remove_reader(sys.stdin.fileno())

    if sys.stdin.isatty():
        loop.add_reader(sys.stdin.fileno(), answer_enter)
    try:
        await asyncio.Event().wait()
    finally:
        with suppress(ValueError, OSError):
            loop.remove_reader(sys.stdin.fileno())
        await server.stop()
