"""Installs the job that stands in for cron on a cluster, removes it, and reports its state."""

from __future__ import annotations

import secrets
from functools import partial
from typing import Any

from msgspec import Struct

from hpcdash.backends.actions import ActionCommand, ActionRequest, Verb
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
    """A job that is installed or in the queue."""

    label: str
    is_installed: bool
    # Names of the scripts it runs.
    scripts: tuple[str, ...]
    # Its rows that have not ended.
    rows: tuple[dict[str, Any], ...]

    @property
    def name(self) -> str:
        return job_name(self.label)

    @property
    def waiting(self) -> tuple[str, ...]:
        """The ids of its jobs that wait."""
        return tuple(str(row["id"]) for row in self.rows if row["state"] in WAITING)


async def fetch_stands(
    store: ClusterStore, named: str = "", *, jobs: bool = True
) -> tuple[str, tuple[CronStand, ...]]:
    """Return the folder on the cluster (the named one, else the usual one in the home there), and
    what is installed there or in the queue, by label.

    Without `jobs` the queue is not queried.
    """
    token = f"\x1e{secrets.token_hex(8)}"
    script = shell_text("services/watch/list_cron.sh")
    argv = ("sh", "-c", script, "sh", token, named, FOLDER_BELOW_HOME)
    query = Query(argv, partial(_parse, token=token), limit_seconds=_LIMIT_SECONDS)
    folder, installed = await store.run_query(query)
    rows: dict[str, list[dict[str, Any]]] = {}
    if jobs:
        parsed = await store.run_query(store.backend.queue.jobs(JobScope(user=store.user)))
        for row in parsed.table.to_pylist():
            label = label_in(row["name"] or "")
            if label is not None and row["state"] not in ENDED:
                rows.setdefault(label, []).append(row)
    stands = tuple(
        CronStand(
            label, label in installed, tuple(installed.get(label, ())), tuple(rows.get(label, ()))
        )
        for label in sorted(installed.keys() | rows.keys())
    )
    return folder, stands


async def write_script(store: ClusterStore, path: str, content: str) -> None:
    """Write a program of the person alone; raises CommandError where it cannot be written."""
    script = refuse_replaceable() + shell_text("services/watch/write_script.sh")
    argv = ("sh", "-c", script, "sh", path)
    await _act(store, argv, f"cannot write {path}", content.encode("utf-8", "surrogateescape"))


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
    await _act(store, argv, f"could not create {' and '.join(folders)}")
    await write_script(store, job.script_path, script)
    messages = [f"wrote {job.script_path}; it runs the scripts in {job.scripts_folder}"]
    if stand is not None and stand.rows:
        rows = ", ".join(f"{row['id']} {row['state']}" for row in stand.rows)
        messages.append(f"{job.name} is already in the queue ({rows}); not submitted again")
        return tuple(messages)
    planned = plan_submission(store, Submission(script.encode(), job.name, file=job.script_path))
    report = await actions.run(planned.plan)
    outcome = (await reconcile(store, planned, report))[-1]
    if not outcome.done:
        text = "may or may not have been submitted"
        if outcome.done is False:
            text = "was not submitted"
        raise HpcdashError(
            f"{job.name} {text}: {outcome.text}", "Check with hpcdash cron --status."
        )
    messages.append(f"{job.name}: {outcome.text}")
    if report.journal_problem:
        messages.append(report.journal_problem)
    return tuple(messages)


async def remove(
    store: ClusterStore, actions: Actions, job: CronJob, stand: CronStand | None
) -> tuple[str, ...]:
    """Remove the cron job and describe the actions.

    Its script is moved away, waiting jobs are cancelled; a running job ends on its own.
    """
    messages = []
    if stand is not None and stand.is_installed:
        argv = ("sh", "-c", _MOVE_AWAY, "sh", job.script_path, f"{job.folder}/removed")
        await _act(store, argv, f"cannot move {job.script_path} away")
        messages.append(f"moved {job.script_path} to {job.folder}/removed")
    if stand is not None and stand.waiting:
        report = await actions.run(actions.plan(ActionRequest(Verb.CANCEL, stand.waiting)))
        messages += [
            f"{outcome.job_id}: {outcome.text or 'cancelled'}" for outcome in report.outcomes
        ]
    return tuple(messages) or (f"{job.name} is neither installed in {job.folder} nor in the queue",)


def _parse(answer: Answer, *, token: str) -> tuple[str, dict[str, list[str]]]:
    parts = answer.stdout.decode("utf-8", "surrogateescape").split(token)[1:]
    if not parts or parts[-1] != "end" or not parts[0].startswith("folder /"):
        raise CommandError(
            "cannot read the cron jobs' folder",
            "Use another folder with --folder.",
            argv=("sh",),
            status=answer.status,
            output=excerpt(answer.stderr),
        )
    folder = parts[0].removeprefix("folder ").rstrip("\n")
    installed: dict[str, list[str]] = {}
    scripts: list[str] | None = None
    for part in parts[1:-1]:
        kind, _, name = part.rstrip("\n").partition(" ")
        if kind == "job":
            label = label_in(name)
            scripts = None if label is None else installed.setdefault(label, [])
        elif scripts is not None:
            scripts.append(name)
    return folder.rstrip("/"), installed


async def _act(
    store: ClusterStore, argv: tuple[str, ...], what: str, stdin: bytes | None = None
) -> None:
    command = ActionCommand(argv, (), lambda answer: (), stdin, _LIMIT_SECONDS)
    answer = await store.act(command)
    if answer.status == IS_REPLACEABLE:
        raise UsageError(
            f"{what}: {excerpt(answer.stderr)}",
            f"Use a folder in your home, or omit --folder to use ~/{FOLDER_BELOW_HOME}.",
        )
    if answer.status != 0:
        raise CommandError(
            what, "Check free space and permissions.", argv=("sh",), output=excerpt(answer.stderr)
        )
