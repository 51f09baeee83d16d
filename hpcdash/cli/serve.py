"""`hpcdash serve`: the dashboard in a browser, by a link that is printed, or the API for programs,
by tokens.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcdash.assembly import build_session, chosen_clusters, connection_pool
from hpcdash.cli.debug_log import log_traceback
from hpcdash.cli.ending import ends_silently, run_async
from hpcdash.cli.options import CommonOptions
from hpcdash.config.read import config_path, load_settings
from hpcdash.domain.text import visible
from hpcdash.errors import HpcdashError, UsageError
from hpcdash.transport.prompter import TerminalPrompter
from hpcdash.ui.actions import ACTION_NAMES
from hpcdash.web.listening import listen_on_loopback, listen_on_socket

if TYPE_CHECKING:
    from hpcdash.web.server import DashboardServer

# Port on the reader's own machine, to which the socket is forwarded.
_FORWARDED_PORT = 8080
# Beside the configuration.
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
    for excluded, other in (
        (port is not None and socket_path is not None, "--port and --socket"),
        (common.read_only and allow_actions, "--read-only and --allow-actions"),
        (api and allow_actions, "--api and --allow-actions"),
    ):
        if excluded:
            raise UsageError(f"{other} cannot be used together", "Leave one of them out.")
    if api:
        _run_api(common, tokens, port=port, socket_path=socket_path)
        return
    if tokens is not None:
        raise UsageError("--tokens requires --api", "Add --api, or leave --tokens out.")
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
                "Other users of this machine can reach the port; only the secret link keeps them "
                "out."
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
    cluster = chosen_clusters(common, settings)[0]
    from hpcdash.web.api.server import ApiServer
    from hpcdash.web.api.tokens import Tokens

    file = tokens_file or config_path(common.config)[0].parent / TOKENS_NAME
    tokens = Tokens(file)
    tokens.read()
    is_read_only = common.read_only or settings.read_only

    async def serve(listening: socket.socket, address: str) -> None:
        session = build_session(cluster, connection_pool(TerminalPrompter()), share=settings.share)
        try:
            # The person needed for a login is here now.
            await session.store.open(force=True)
            server = ApiServer(session, tokens, is_read_only=is_read_only, report=_report)
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
        finally:
            await session.store.close()

    def _report(error: Exception) -> None:
        if isinstance(error, HpcdashError):
            print(
                f"hpcdash: {visible(f'{error.message}. {error.next_step}')}",
                file=sys.stderr,
                flush=True,
            )
            return
        path = log_traceback(error) if common.debug else None
        where = (
            f"the traceback is in {path}"
            if path
            else "--debug writes the traceback to the log file"
        )
        print(
            f"hpcdash: something went wrong: {type(error).__name__}; {where}",
            file=sys.stderr,
            flush=True,
        )

    with ends_silently(), _listening(port or 0, socket_path) as (listening, address, _):
        shown = (
            address
            if socket_path is None
            else f"http://localhost through {visible(str(socket_path))}"
        )
        run_async(serve(listening, shown))


def _dashboard_argv(common: CommonOptions, *, allow_actions: bool) -> tuple[str, ...]:
    # A URL comes by its scheduler's own option, and chooses the backend.
    backend = (f"--{common.backend}", common.url) if common.url else ("--backend", common.backend)
    named = [("--cluster", common.cluster), ("--ssh", common.ssh), backend]
    named += [("--config", str(common.config) if common.config else None)]
    flags = [("--local", common.local), ("--yes", common.yes), ("--debug", common.debug)]
    flags += [("--read-only", not allow_actions)]
    return (
        # -P: a folder that one happens to be in must not stand for the package.
        *(sys.executable, "-P", "-m", "hpcdash"),
        *(f"{name}={value}" for name, value in named if value),
        *(name for name, is_set in flags if is_set),
    )


@contextmanager
def _listening(port: int, path: Path | None) -> Iterator[tuple[socket.socket, str, str]]:
    """A listening socket, the address of its page, and the ssh command that forwards it to another
    machine.
    """
    host = socket.gethostname()
    if path is not None:
        with listen_on_socket(path) as listening:
            forwarded = f"{_FORWARDED_PORT}:{listening.getsockname()}"
            yield (
                listening,
                f"http://127.0.0.1:{_FORWARDED_PORT}",
                shlex.join(("ssh", "-L", forwarded, host)),
            )
        return
    with closing(listen_on_loopback(port)) as listening:
        port = listening.getsockname()[1]
        yield listening, f"http://127.0.0.1:{port}", f"ssh -L {port}:127.0.0.1:{port} {host}"


def _is_in_background(terminal: int) -> bool:
    """Return whether typed text goes to another program; a read would then stop this one."""
    try:
        return os.tcgetpgrp(terminal) != os.getpgrp()
    except OSError:
        return False


async def _serve(
    server: DashboardServer, listening: socket.socket, print_link: Callable[[], None]
) -> None:
    await server.start(listening)
    loop = asyncio.get_running_loop()

    def answer_enter() -> None:
        if _is_in_background(sys.stdin.fileno()):
            return
        # A terminal hands over a line at once; the end of its input comes once.
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
