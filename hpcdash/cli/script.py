"""`hpcdash script`: a job's batch script byte by byte, explained, or compared with another's."""

from __future__ import annotations

import asyncio
import sys

from hpcdash.backends.job_detail import Script
from hpcdash.cli.oneshot import with_session
from hpcdash.cli.options import CommonOptions
from hpcdash.cli.stdout import print_text
from hpcdash.domain.scripts import script_lines, unified
from hpcdash.domain.text import visible
from hpcdash.services.jobs.scripts import READ_FROM, fetch_script
from hpcdash.services.session import ClusterSession


def run_script(common: CommonOptions, *, job: str, diff: str | None, explain: bool) -> None:
    """Print the script, or a unified difference from the script of `diff` to that of `job`.

    A pipe gets the bytes as they were submitted, a terminal what cannot harm it; `explain` adds a comment line below
    each directive.
    """

    async def work(session: ClusterSession) -> tuple[list[Script], ClusterSession]:
        wanted = [job] if diff is None else [diff, job]
        return list(await asyncio.gather(*(fetch_script(session.store, one) for one in wanted))), session

    scripts, session = with_session(common, work)
    for one, script in zip([job] if diff is None else [diff, job], scripts, strict=True):
        if script.source.startswith(READ_FROM):
            print(f"hpcdash: {visible(one)}: {visible(script.source)}", file=sys.stderr)
    if diff is not None:
        names = (f"job {visible(diff)}", f"job {visible(job)}")
        text = "".join(f"{line}\n" for line in unified(scripts[0].text, scripts[1].text, names))
    elif explain:
        text = _explained(scripts[0], session)
    else:
        text = scripts[0].text
    print_text(text)


def _explained(script: Script, session: ClusterSession) -> str:
    """The script, and below each directive a comment that says what it asks for."""
    explained = script_lines(script.text, session.store.backend.explain_directive)
    lines = script.text.split("\n")
    shown = []
    for at, line in enumerate(lines):
        shown.append(line)
        if at < len(explained) and explained[at].note:
            shown.append(f"#   ^ {explained[at].note}")
    return "\n".join(shown)
