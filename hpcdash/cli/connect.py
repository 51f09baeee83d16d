"""`hpcdash connect`: a shell in a running job, on this terminal."""

from __future__ import annotations

import asyncio
import os
import sys
from functools import partial
from typing import Any, TextIO

from hpcdash.assembly import chosen_site
from hpcdash.cli.jobs import with_session
from hpcdash.cli.options import CommonOptions
from hpcdash.cli.terminal import print_notes
from hpcdash.domain.units import HOUR, format_memory
from hpcdash.errors import UsageError
from hpcdash.services.jobs.connect import ShellPlan, explain_end, plan_shell
from hpcdash.services.session import ClusterSession
from hpcdash.transport.terminal import ESCAPE_HELP, Terminal

_WITHOUT_TERMINAL = "In a script, give a command: hpcdash connect JOB -- COMMAND"
# The time a command without a terminal may take.
_SCRIPT_SECONDS = 24 * HOUR
# Exit status of ssh after the person left it.
_LEFT = 255


def run_connect(
    common: CommonOptions, *, job: str, node: str, outside: bool, command: tuple[str, ...]
) -> None:
    """Run a shell or a command, and exit with its status."""
    if chosen_site(common).is_read_only:
        raise UsageError("connect is disabled: hpcdash is read-only")

    async def work(session: ClusterSession) -> int:
        # Checked before any query to the cluster or prompt to the person.
        has_terminal = os.isatty(0) and os.isatty(1)
        if not (has_terminal or command):
            raise UsageError("connect needs a terminal as stdin and stdout", _WITHOUT_TERMINAL)
        descriptor = None
        if has_terminal:
            try:
                descriptor = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
            except OSError:
                raise UsageError(
                    "connect needs a terminal, and there is none", _WITHOUT_TERMINAL
                ) from None
        try:
            plan = await plan_shell(
                session.store,
                job,
                node,
                command,
                state_folder=session.actions.journal.path.parent,
                is_outside=outside,
                has_terminal=has_terminal,
            )
            if descriptor is None:
                status = await _run_to_pipes(plan)
            else:
                print_notes(f"{plan.title} on {session.store.title}; {ESCAPE_HELP}")
                print_notes(*plan.notes)
                status = await plan.transport.interact(plan.argv, Terminal(descriptor))
            print_notes(await explain_end(session.store, plan, status))
        finally:
            if descriptor is not None:
                os.close(descriptor)
        if status is None:
            print_notes("left with ~.")
        return _LEFT if status is None else status

    if status := with_session(common, work):
        raise SystemExit(status)


async def _run_to_pipes(plan: ShellPlan) -> int | None:
    """Run the command without stdin, and write its output as it arrives.

    Raises OSError if the output can no longer be written.
    """
    unread: asyncio.Future[OSError] = asyncio.get_running_loop().create_future()

    def write(stream: TextIO, piece: bytes) -> None:
        try:
            stream.buffer.write(piece)
            stream.flush()
        except OSError as error:
            if not unread.done():
                unread.set_result(error)

    running = asyncio.ensure_future(
        plan.transport.run(
            plan.argv,
            limit_seconds=_SCRIPT_SECONDS,
            on_output=partial(write, sys.stderr),
            on_stdout=partial(write, sys.stdout),
        )
    )
    either: tuple[asyncio.Future[Any], ...] = (running, unread)
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    finally:
        running.cancel()
        await asyncio.wait((running,))
    if not unread.done():
        write(sys.stdout, running.result().stdout)
    if unread.done():
        raise unread.result()
    result = running.result()
    if result.truncated:
        print_notes(f"stderr was truncated at {format_memory(len(result.stderr))}")
    return result.status
