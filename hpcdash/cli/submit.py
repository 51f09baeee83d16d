"""`hpcdash submit`: hands a batch script in, shows the command first, prints the new job's number."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from hpcdash.backends.base import Outcome, Submission
from hpcdash.cli.oneshot import with_session
from hpcdash.cli.options import CommonOptions
from hpcdash.config import load_settings
from hpcdash.domain.array_tasks import parse_tasks
from hpcdash.domain.job_ids import split_ids
from hpcdash.domain.rfc3339 import format_utc
from hpcdash.domain.text import visible
from hpcdash.errors import EXIT_REFUSED, EXIT_UNREACHABLE, UsageError, program_words
from hpcdash.stores.job_rows import ids_in_full
from hpcdash.stores.resubmission import settle
from hpcdash.stores.submission import plan_submission
from hpcdash.ui.session import ClusterSession

# Slurm's own limit for a batch script (SchedulerParameters=max_script_size).
MAX_SCRIPT_BYTES = 4 << 20


def run_submit(
    common: CommonOptions,
    *,
    script: str,
    arguments: Sequence[str],
    array: str | None,
    after: str | None,
    hold: bool,
    dry_run: bool,
    form: str,
) -> None:
    """Submit a script; ends the process with 1 where it was refused, with 3 where what became of it is not known."""
    settings = load_settings(common.config)
    if (common.read_only or settings.read_only) and not dry_run:
        raise UsageError("submit: nothing is changed here (read-only)", "--dry-run shows the command.")
    options, own = _parted(arguments)
    wanted = Submission(
        script=read_script(script),
        name=Path(script).name if script != "-" else "stdin",
        options=options,
        arguments=own,
        array=_array(array),
        after=tuple(split_ids(after)) if after else (),
        held=hold,
    )

    async def work(session: ClusterSession) -> tuple[Outcome | None, ClusterSession]:
        await session.store.open(force=True)
        planned = plan_submission(session.store, await _after_in_full(wanted, session))
        argv = program_words(planned.plan.commands[0].argv)
        for aside in planned.asides:
            print(f"hpcdash: {visible(aside)}", file=sys.stderr)
        if dry_run:
            print(visible(shlex.join(argv)))
            return None, session
        print(f"submit on {visible(session.name)}: {visible(shlex.join(argv))}", file=sys.stderr)
        report = await session.actions.run(planned.plan)
        if report.journal_problem:
            print(f"hpcdash: {visible(report.journal_problem)}", file=sys.stderr)
        (outcome,) = await settle(session.store, planned, report)
        return outcome, session

    outcome, session = with_session(common, work)
    if outcome is None:
        return
    number, _, said = outcome.words.removeprefix("job ").partition("; ")
    if form == "json":
        answer = {
            "schema": 1,
            "cluster": session.name,
            "backend": session.store.backend.name,
            "taken_at": format_utc(time.time()),
            "job_id": number.partition(" ")[0] if outcome.done else None,
            "done": outcome.done,
            "words": outcome.words,
        }
        sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    elif outcome.done:
        print(visible(number.partition(" ")[0]))
    if said or not outcome.done:
        print(f"hpcdash: {visible(said if outcome.done else outcome.words)}", file=sys.stderr)
    sys.stdout.flush()
    if not outcome.done:
        sys.exit(EXIT_UNREACHABLE if outcome.done is None else EXIT_REFUSED)


async def _after_in_full(wanted: Submission, session: ClusterSession) -> Submission:
    """With the jobs to wait for as the scheduler names them: PBS knows no 12 where that is the array 12[]."""
    if not wanted.after or session.store.backend.has_whole_ids:
        return wanted
    rows = await session.actions.rows_of(wanted.after)
    return replace(wanted, after=ids_in_full(wanted.after, rows))


def _parted(arguments: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(the scheduler's options, the script's own arguments): options first, the rest after another `--`."""
    words = list(arguments)
    if "--" in words:
        at = words.index("--")
        return tuple(words[:at]), tuple(words[at + 1 :])
    return tuple(words), ()


def _array(text: str | None) -> str:
    if not text:
        return ""
    try:
        return str(parse_tasks(text))
    except ValueError as error:
        raise UsageError(f"--array: {error}") from error


def read_script(path: str) -> bytes:
    """A script's bytes, '-' from stdin; raises UsageError in words for what is none."""
    try:
        content = sys.stdin.buffer.read(MAX_SCRIPT_BYTES + 1) if path == "-" else _file(Path(path))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", "Is the path right?") from error
    if len(content) > MAX_SCRIPT_BYTES:
        raise UsageError(f"{path}: more than {MAX_SCRIPT_BYTES >> 20} MiB: is it a batch script?")
    if not content.startswith(b"#!"):
        raise UsageError(f"{path}:1: the first line does not begin with #!", "Let it begin with #!/bin/bash.")
    if b"\r\n" in content:
        line = content[: content.index(b"\r\n")].count(b"\n") + 1
        raise UsageError(f"{path}:{line}: DOS line ends (CR LF)", "Convert it: sed -i 's/\\r$//' SCRIPT")
    return content


def _file(path: Path) -> bytes:
    with path.open("rb") as stream:
        return stream.read(MAX_SCRIPT_BYTES + 1)
