"""Puts the job that stands in for cron onto a cluster, takes it out, and tells how it stands."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import partial
from typing import Any

from msgspec import Struct

from hpcdash.backends.actions import ActionCommand, ActionRequest, Outcome, Verb
from hpcdash.backends.queries import Answer, JobScope, Query
from hpcdash.backends.script.cron import CronJob, cron_script, job_name, label_in
from hpcdash.backends.submissions import Submission
from hpcdash.domain.states import ENDED, WAITING
from hpcdash.errors import CommandError, HpcdashError, UsageError, excerpt
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.jobs.actions import Actions
from hpcdash.services.submit.plan import plan_submission
from hpcdash.services.submit.staging import IS_REPLACEABLE, REFUSE_REPLACEABLE

_LIMIT_SECONDS = 30.0
FOLDER_BELOW_HOME = "hpcdash/cron"
# $1 the script's path, whose folder is made; stdin is its content, put there in one step.
_WRITE = f"""{REFUSE_REPLACEABLE}
refuse_replaceable "$1"; folder=$(dirname -- "$1") && mkdir -p -- "$folder" || exit 73
refuse_replaceable "$folder"; new=$(mktemp "$folder/.new.XXXXXX") || exit 73
cat > "$new" && chmod 700 -- "$new" && mv -f -- "$new" "$1" || {{ rm -f -- "$new"; exit 73; }}
"""
_MAKE_FOLDERS = f"""{REFUSE_REPLACEABLE}
for folder do refuse_replaceable "$folder"; done; mkdir -p -- "$@" || exit
for folder do refuse_replaceable "$folder"; done
"""
_MOVE_AWAY = """
umask 077; mkdir -p -- "$2" && mv -f -- "$1" "$2/"
"""
_LIST = r"""
token=$1 folder=$2
[ "$folder" ] || folder=$HOME/$3
printf '%sfolder %s\n' "$token" "$folder"
for script in "$folder"/scheduler/*.sh; do
  [ -f "$script" ] || continue
  name=${script##*/}; label=${name#hpcdash-}; label=${label%.sh}
  printf '%sjob %s\n' "$token" "$name"
  for one in "$folder/cron.$label"/*; do
    [ -f "$one" ] && printf '%sscript %s\n' "$token" "${one##*/}"
  done
done
printf '%send' "$token"
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
    parsed = await store.ask(store.backend.queue.jobs(JobScope(user=store.user)))
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
    argv = ("sh", "-c", _WRITE, "sh", path)
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
    script = cron_script(job, store.backend.scripts.cron_parts(job))
    folders = (job.scripts_folder, job.output_folder)
    argv = ("sh", "-c", _MAKE_FOLDERS, "sh", *folders)
    await _act(store, argv, f"{' and '.join(folders)} could not be created")
    await write_script(store, job.script_path, script)
    messages = [f"wrote {job.script_path}; it runs the scripts in {job.scripts_folder}"]
    if stand is not None and stand.rows:
        rows = ", ".join(f"{row['id']} {row['state']}" for row in stand.rows)
        return (*messages, f"{job.name} is already in the queue ({rows}); not submitted again")
    planned = plan_submission(store, Submission(script.encode(), job.name, file=job.script_path))
    report = await actions.run(planned.plan)
    outcome = report.outcomes[-1]
    if not outcome.done:
        text = (
            "was not submitted" if outcome.done is False else "may or may not have been submitted"
        )
        raise HpcdashError(
            f"{job.name} {text}: {outcome.words}", "Check with hpcdash cron --status."
        )
    return (
        *messages,
        f"{job.name}: {outcome.words}",
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
        messages += [f"{one.job_id}: {one.words or 'cancelled'}" for one in report.outcomes]
    return tuple(messages) or (f"{job.name} is neither installed in {job.folder} nor in the queue",)


async def _list(store: ClusterStore, named: str) -> tuple[str, dict[str, list[str]]]:
    token = f"\x1e{secrets.token_hex(8)}"
    argv = ("sh", "-c", _LIST, "sh", token, named, FOLDER_BELOW_HOME)
    return await store.ask(Query(argv, partial(_parse, token=token), limit_seconds=_LIMIT_SECONDS))


def _parse(answer: Answer, *, token: str) -> tuple[str, dict[str, list[str]]]:
    parts = answer.stdout.decode("utf-8", "surrogateescape").split(token)[1:]
    if not parts or parts[-1] != "end" or not parts[0].startswith("folder /"):
        raise CommandError(
            "cannot read the cron jobs' folder",
            "Name another with --folder.",
            argv=("sh",),
            status=answer.status,
            words=excerpt(answer.stderr),
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
            f"home.",
        )
    if answer.status != 0:
        raise CommandError(
            what, "Check free space and permissions.", argv=("sh",), words=excerpt(answer.stderr)
        )
