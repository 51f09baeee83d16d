"""`hpcdash top`: use of a running job, once or for as long as it is watched."""

from __future__ import annotations

import shutil
import sys
from contextlib import aclosing

from hpcdash.backends.base import Capability
from hpcdash.cli.jobs import with_session
from hpcdash.cli.options import CommonOptions
from hpcdash.cli.terminal import print_json
from hpcdash.services.inside.run import fetch_inside_row
from hpcdash.services.session import ClusterSession
from hpcdash.services.state.folders import state_root
from hpcdash.services.usage.live import LiveUse, fetch_once, for_json
from hpcdash.services.usage.live_lines import use_lines

_CLEAR = "\x1b[H\x1b[2J"


def run_top(common: CommonOptions, *, job: str, once: bool, form: str) -> None:
    """Print each measurement. Raises UsageError for what is no running job of one's own."""

    async def work(session: ClusterSession) -> None:
        store = session.store
        await store.open()
        row = await fetch_inside_row(store, job, needs=Capability.LIVE_USE)
        live = LiveUse(store, row, state_root())
        nodes = max(1, row["nodes"] or 1)
        if once:
            await fetch_once(live, nodes)
            _print(session, live, job, form)
            return
        received: set[str] = set()
        try:
            async with aclosing(live.follow()) as uses:
                async for use in uses:
                    # Shown together once all have told, or the first tells again.
                    is_round = use.sample.node in received
                    received = {*(() if is_round else received), use.sample.node}
                    if is_round or len(received) >= nodes:
                        _print(session, live, job, form)
                    if len(received) >= nodes:
                        received = set()
        finally:
            live.remember()

    with_session(common, work)


def _print(session: ClusterSession, live: LiveUse, job: str, form: str) -> None:
    taken_at = live.taken_at if live.taken_at is not None else session.store.clock.now()
    if form == "json":
        print_json(
            {
                **session.envelope(taken_at),
                "job": job,
                "nodes": [for_json(use) for use in live.latest()],
                "warnings": live.warnings(),
                "problem": live.problem or None,
            }
        )
        return
    is_terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if is_terminal else 120
    encoding = (sys.stdout.encoding or "").lower().replace("-", "")
    lines = [text for text, _ in use_lines(live, width, is_ascii=encoding != "utf8")]
    if is_terminal:
        sys.stdout.write(_CLEAR)
    print("\n".join(lines), flush=True)
