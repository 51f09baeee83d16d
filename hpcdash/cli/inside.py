"""`hpcdash exec` and `hpcdash stacks`: a command, or py-spy, on each node of a running job."""

from __future__ import annotations

import sys

from hpcdash.backends.inside import InsideCommand
from hpcdash.cli.actions import refuse_read_only
from hpcdash.cli.jobs import with_session
from hpcdash.cli.options import CommonOptions
from hpcdash.cli.terminal import can_prompt, confirm, print_json, print_notes
from hpcdash.config.read import load_settings
from hpcdash.domain.text import counted, visible
from hpcdash.errors import EXIT_REFUSED, Declined, SchedulerRefused, UsageError
from hpcdash.services.inside.ready import parse_timeout
from hpcdash.services.inside.run import (
    InsideAnswer,
    fetch_inside_row,
    for_json,
    format_answer,
    format_ending,
    run_inside,
    run_noted,
)
from hpcdash.services.session import ClusterSession


def run_exec(
    common: CommonOptions,
    *,
    job: str,
    command: tuple[str, ...],
    each_gpu: bool,
    leftovers: bool,
    timeout: str,
    form: str,
) -> None:
    """Run a command on each node, and print the answers in groups.

    Exits with 1 if the command failed on a node.
    """
    settings = load_settings(common.config)
    refuse_read_only(common, settings, "exec", "`hpcdash stacks` and `hpcdash top` still work.")
    if leftovers:
        if command or each_gpu:
            raise UsageError(
                "--leftovers cannot be used with a command", "Remove the command and --each-gpu."
            )
        _run_leftovers(common, job, form)
        return
    if not command or not command[0]:
        raise UsageError("no command specified")
    seconds = parse_timeout(timeout)
    if seconds is None:
        raise UsageError(
            f"--timeout {visible(timeout)} is not a time from 1s to 1h",
            "60s, 5m; a bare number is seconds.",
        )
    inside = InsideCommand(command, seconds, each_gpu=each_gpu)

    async def work(session: ClusterSession) -> tuple[InsideAnswer, ClusterSession]:
        await session.store.open()
        row = await fetch_inside_row(session.store, job)
        return await run_noted(session.actions.journal, session.store, row, inside), session

    answer, session = with_session(common, work)
    _print_answer(answer, session, job, list(command), form)


def _print_answer(
    answer: InsideAnswer, session: ClusterSession, job: str, command: list[str], form: str
) -> None:
    """Print the answers, and exit with 1 if the command failed on a node."""
    if form == "json":
        content = {"job": job, "command": command, "nodes": for_json(answer)}
        print_json({**session.envelope(), **content})
    else:
        _print_groups(answer)
    if answer.has_failed:
        sys.stdout.flush()
        sys.exit(EXIT_REFUSED)


def _run_leftovers(common: CommonOptions, job: str, form: str) -> None:
    """Print the leftovers of a job, and end them after a confirmation or with --yes.

    Without a terminal, only --yes ends them.
    """
    from hpcdash.services.inside.leftovers import end_command, list_command, read_leftovers

    async def work(session: ClusterSession) -> tuple[InsideAnswer, ClusterSession]:
        store = session.store
        await store.open()
        row = await fetch_inside_row(store, job)
        shown = await run_inside(store, row, await list_command(store))
        found = read_leftovers(shown.outputs)
        if not found or not (common.yes or can_prompt()):
            return shown, session
        if not common.yes:
            _print_groups(shown)
            print(f"End {counted(len(found), 'leftover')}: ", end="", file=sys.stderr)
            await confirm()
        command = await end_command(store, found)
        return await run_noted(session.actions.journal, store, row, command), session

    try:
        answer, session = with_session(common, work)
    except Declined:
        print_notes("no process was ended")
        return
    _print_answer(answer, session, job, ["leftovers"], form)


def _print_groups(answer: InsideAnswer) -> None:
    """Print groups of equal output like clush -b; a single successful node has no heading."""
    shown = list(format_answer(answer))
    for title, lines in shown:
        if len(shown) > 1 or len(answer.outputs) > 1:
            print("-" * 15, title, "-" * 15, sep="\n")
        for line in lines:
            print(line)
    for output in answer.outputs:
        if text := format_ending(output, answer.command.seconds):
            place = f"{output.node} GPU {output.gpu}" if output.gpu else output.node
            sys.stdout.flush()
            print_notes(f"{place}: {text}")


def run_stacks(common: CommonOptions, job: str) -> None:
    """Print the stacks of each node.

    Raises UsageError for a whole array, or if the scheduler has no access to nodes.
    """
    from hpcdash.services.inside.stacks import STACKS, format_stack_places, read_stack_places

    async def work(session: ClusterSession) -> InsideAnswer:
        await session.store.open()
        row = await fetch_inside_row(session.store, job)
        return await run_inside(session.store, row, STACKS)

    answer = with_session(common, work)
    for line in format_stack_places(read_stack_places(answer.outputs)):
        print(line)
    for group in answer.groups():
        for line in group.lines:
            print(f"{visible(group.places)}: {line}".rstrip())
    failed = [output for output in answer.outputs if output.status != 0]
    problems = [f"{output.node}: {format_ending(output, STACKS.seconds)}" for output in failed]
    if problems:
        sys.stdout.flush()
        raise SchedulerRefused(
            "some of the job's nodes did not respond",
            "Try again.",
            output=visible("; ".join(problems)),
        )
