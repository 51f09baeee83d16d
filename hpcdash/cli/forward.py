"""`hpcdash forward`: a port of a running job on this machine."""

from __future__ import annotations

import asyncio
import sys

from msgspec.structs import asdict, replace

from hpcdash.cli.actions import refuse_read_only
from hpcdash.cli.ending import ends_silently
from hpcdash.cli.jobs import with_session
from hpcdash.cli.options import CommonOptions
from hpcdash.cli.terminal import confirm, print_json, print_notes, require_prompt
from hpcdash.config.read import load_settings
from hpcdash.domain.text import align_cells, visible
from hpcdash.errors import UsageError
from hpcdash.services.forward.address import open_page, parse_ports
from hpcdash.services.forward.forward import Forward, build_request
from hpcdash.services.forward.records import ForwardRecords
from hpcdash.services.session import ClusterSession
from hpcdash.services.state.folders import state_root

_HEADINGS = ("CLUSTER", "JOB", "NODE", "PORT", "HERE", "STATUS")


def run_forward(
    common: CommonOptions,
    *,
    job: str,
    ports: str,
    node: str,
    tcp: bool,
    opens: bool,
    lists: bool,
    form: str,
) -> None:
    """Forward a port until the job ends or ctrl+c, or list the forwards of this machine."""
    if lists:
        if job:
            raise UsageError("--list cannot be used with a job")
        _print_list(form)
        return
    if not job:
        raise UsageError("no job specified", "hpcdash forward --list shows what is forwarded.")
    refuse_read_only(common, load_settings(common.config), "forward", "`hpcdash log` still works.")
    parsed = parse_ports(ports) if ports else None

    async def work(session: ClusterSession) -> None:
        request, why_socket = await build_request(
            session, job, parsed, node=node, report=print_notes
        )
        if tcp and why_socket:
            print_notes(f"{why_socket}: its users can connect to a port of this machine")
            if not common.yes:
                require_prompt("forward --tcp")
                await confirm()
        request = replace(request, is_tcp=request.is_tcp or tcp, is_for_browser=opens)
        records = ForwardRecords(session.actions.journal.path.parent)
        changed = asyncio.Event()
        forward = Forward(session.store, records, request, changed.set)
        running = asyncio.ensure_future(forward.run())
        reporting = asyncio.ensure_future(
            _report(forward, changed, why_socket="" if tcp else why_socket, opens=opens)
        )
        try:
            await asyncio.wait({running, reporting}, return_when=asyncio.FIRST_COMPLETED)
            if reporting.done():
                # Its output may be closed.
                reporting.result()
            note = await running
            if not forward.local:
                # A port of this machine, whose address is still to be printed.
                await reporting
            print_notes(note)
        finally:
            for task in (running, reporting):
                task.cancel()
            await asyncio.wait({running, reporting})

    with ends_silently():
        with_session(common, work)


async def _report(
    forward: Forward,
    changed: asyncio.Event,
    *,
    why_socket: str,
    opens: bool,
) -> None:
    """Print each status; the address once the port is open."""
    while not forward.is_open:
        await changed.wait()
        changed.clear()
        if not forward.is_open:
            print_notes(forward.status)
    url = await forward.fetch_url()
    if forward.local_port:
        print_notes(f"{forward.title}:")
        print(visible(url), flush=True)
    else:
        print_notes(
            f"{forward.title}, on a socket that only you can open, as {why_socket}:",
        )
        print(visible(forward.local), flush=True)
        print_notes(
            f"From your own machine: {forward.ssh_command}",
            f"Then open {url}",
            "With --tcp it is a port of this machine, to which its other users can connect.",
        )
    if opens:
        page = await asyncio.to_thread(forward.write_page, url)
        if not await asyncio.to_thread(open_page, page):
            print_notes("this machine has no browser with a window: open the address yourself")
    while forward.local:
        await changed.wait()
        changed.clear()
        print_notes(forward.status)


def _print_list(form: str) -> None:
    found = ForwardRecords(state_root()).read()
    if form == "json":
        rows = [asdict(record) for record in found]
        print_json(
            {"forwards": [{name: row[name] for name in row if name != "ticks"} for row in rows]}
        )
        return
    if not found:
        print("Nothing is forwarded on this machine.", file=sys.stderr)
        return
    cells = [list(_HEADINGS)]
    for record in found:
        values = (record.cluster, record.job, record.node, str(record.port), record.local)
        cells.append([*map(visible, values), visible(record.status)])
    print(*align_cells(cells), sep="\n")
