"""Installs the job that stands in for cron on a cluster, removes it, and reports its state."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import partial
from typing import Any

from msgspec import Struct

from hpcdash.backends.actions import ActionCommand, ActionRequest, Outcome, Verb
from hpcdash.backends.queries import Answer, JobScope, Query
from hpcdash.backends.script.cron import CronJob, job_name, label_in
from hpcdash.backends.submissions import Submission
from hpcdash.domain.states import ENDED, WAITING
from hpcdash.errors import CommandError, HpcdashError, UsageError, excerpt
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.jobs.actions import Actions
from hpcdash.services.submit.recovery import reconcile
from hpcdash.services.submit.staging import IS_REPLACEABLE, refuse_replaceable
from hpcdash.services.submit.submission import plan_submission
from hpcdash.shell_files import shell_text

_LIMIT_SECONDS = 30.0
FOLDER_BELOW_HOME = "hpcdash/cron"
_MOVE_AWAY = """
umask 077; mkdir -p -- "$2" && mv -f -- "$1" "$2/"
"""


class CronStand(Struct, frozen=True):
    """A job that is installed or in the queue: its label, the scripts it runs, its rows that have
    not ended.
    """

    label: str
    is_installed: bool
    scripts: tuple[str, ...]
    rows: tuple[dict[str, Any], ...]

    @property
    def name(self) -> str:
        return job_name(self.label)


async def folder_there(store: ClusterStore, named: str = "") -> str:
    """The folder on the cluster: the named one, else the usual one in the home there."""
    return (await _list(store, named))[0]


async def stands(store: ClusterStore, named: str = "") -> tuple[str, tuple[CronStand, ...]]:
    """(the folder, what is installed there or in the queue, by label)."""
    folder, installed = await _list(store, named)
    parsed = await store.run_query(store.backend.queue.jobs(JobScope(user=store.user)))
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in parsed.table.to_pylist():
        label = label_in(row["name"] or "")
        if label is not None and row["state"] not in ENDED:
            rows.setdefault(label, []).append(row)
    labels = sorted(installed.keys() | rows.keys())
    return folder, tuple(
        CronStand(
            label, label in installed, tuple(installed.get(label, ())), tuple(rows.get(label, ()))
        )
        for label in labels
    )


async def write_script(store: ClusterStore, path: str, content: str) -> None:
    """A program of the person alone; raises CommandError where it cannot be written there."""
    script = refuse_replaceable() + shell_text("services/watch/write_script.sh")
    argv = ("sh", "-c", script, "sh", path)
    await _act(store, argv, f"cannot write {path}", content.encode("utf-8", "surrogateescape"))


async def move_away(store: ClusterStore, job: CronJob) -> None:
    """The job's script into the folder `removed`; raises CommandError."""
    argv = ("sh", "-c", _MOVE_AWAY, "sh", job.script_path, f"{job.folder}/removed")
    await _act(store, argv, f"cannot move {job.script_path} away")


async def install(
    store: ClusterStore, actions: Actions, job: CronJob, stand: CronStand | None
) -> tuple[str, ...]:
    """Install the cron job and describe the actions.

    A job of that name that waits or runs is left as it is: it reads the new script when it
    resubmits itself. Raises HpcdashError if an action fails.
    """
    script = store.backend.scripts.cron_script(job)
    folders = (job.scripts_folder, job.output_folder)
    make_folders = refuse_replaceable() + shell_text("services/watch/make_folders.sh")
    argv = ("sh", "-c", make_folders, "sh", *folders)
    await _act(store, argv, f"{' and '.join(folders)} could not be created")
    await write_script(store, job.script_path, script)
    messages = [f"wrote {job.script_path}; it runs the scripts in {job.scripts_folder}"]
    if stand is not None and stand.rows:
        rows = ", ".join(f"{row['id']} {row['state']}" for row in stand.rows)
        return (*messages, f"{job.name} is already in the queue ({rows}); not submitted again")
    planned = plan_submission(store, Submission(script.encode(), job.name, file=job.script_path))
    report = await actions.run(planned.plan)
    outcome = (await reconcile(store, planned, report))[-1]
    if not outcome.done:
        text = (
            "was not submitted" if outcome.done is False else "may or may not have been submitted"
        )
        raise HpcdashError(
            f"{job.name} {text}: {outcome.text}", "Check with hpcdash cron --status."
        )
    return (
        *messages,
        f"{job.name}: {outcome.text}",
        *((report.journal_problem,) if report.journal_problem else ()),
    )


async def remove(
    store: ClusterStore, actions: Actions, job: CronJob, stand: CronStand | None
) -> tuple[str, ...]:
    """Remove the cron job and describe the actions.

    Its script is moved away, waiting jobs are cancelled; a running job ends on its own.
    """
    messages = []
    if stand is not None and stand.is_installed:
        await move_away(store, job)
        messages.append(f"moved {job.script_path} to {job.folder}/removed")
    waiting = tuple(
        str(row["id"])
        for row in (stand.rows if stand is not None else ())
        if row["state"] in WAITING
    )
    if waiting:
        report = await actions.run(actions.plan(ActionRequest(Verb.CANCEL, waiting)))
        messages += [f"{one.job_id}: {one.text or 'cancelled'}" for one in report.outcomes]
    return tuple(messages) or (f"{job.name} is neither installed in {job.folder} nor in the queue",)


async def _list(store: ClusterStore, named: str) -> tuple[str, dict[str, list[str]]]:
    token = f"\x1e{secrets.token_hex(8)}"
    argv = (
        "sh",
        "-c",
        shell_text("services/watch/list_cron.sh"),
        "sh",
        token,
        named,
        FOLDER_BELOW_HOME,
    )
    return await store.run_query(
        Query(argv, partial(_parse, token=token), limit_seconds=_LIMIT_SECONDS)
    )


def _parse(answer: Answer, *, token: str) -> tuple[str, dict[str, list[str]]]:
    parts = answer.stdout.decode("utf-8", "surrogateescape").split(token)[1:]
    if not parts or parts[-1] != "end" or not parts[0].startswith("folder /"):
        raise CommandError(
            "cannot read the cron jobs' folder",
            "Name another with --folder.",
            argv=("sh",),
            status=answer.status,
            output=excerpt(answer.stderr),
        )
    folder = parts[0].removeprefix("folder ").rstrip("\n")
    found: dict[str, list[str]] = {}
    scripts: list[str] | None = None
    for part in parts[1:-1]:
        kind, _, name = part.rstrip("\n").partition(" ")
        if kind == "job":
            label = label_in(name)
            scripts = None if label is None else found.setdefault(label, [])
        elif scripts is not None:
            scripts.append(name)
    return folder.rstrip("/"), found


async def _act(
    store: ClusterStore, argv: Sequence[str], what: str, stdin: bytes | None = None
) -> None:
    def read(answer: Answer) -> tuple[Outcome, ...]:
        return ()

    answer = await store.act(ActionCommand(tuple(argv), (), read, stdin, _LIMIT_SECONDS))
    if answer.status == IS_REPLACEABLE:
        raise UsageError(
            f"{what}: {excerpt(answer.stderr)}",
            f"Leave --folder out to use ~/{FOLDER_BELOW_HOME}, or name another folder below your "
            "home.",
        )
    if answer.status != 0:
        raise CommandError(
            what, "Check free space and permissions.", argv=("sh",), output=excerpt(answer.stderr)
        )
