"""Allocations that wait for runs: their jobs, their runs, and the delivery of a run."""

from __future__ import annotations

import posixpath
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from msgspec import Struct

from hpcdash.backends.actions import ActionCommand, ActionRequest, Outcome, Verb
from hpcdash.backends.queries import Answer, Query, refused
from hpcdash.backends.script.allocation import (
    RUN_SCRIPT,
    RUNS_FOLDER,
    STDERR_NAME,
    STDOUT_NAME,
)
from hpcdash.domain.job_ids import holds_many
from hpcdash.domain.states import ACTIVE, WAITING
from hpcdash.domain.text import counted, visible
from hpcdash.domain.units import format_duration, format_memory
from hpcdash.errors import UsageError, excerpt
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.jobs.actions import Plan
from hpcdash.services.submit.code_files import PackedCode, code_command
from hpcdash.services.submit.launch_records import LaunchRecords, is_allocation
from hpcdash.services.submit.staging import Staged, refuse_replaceable
from hpcdash.shell_files import shell_text

_LIMIT_SECONDS = 120.0
_NO_ALLOCATION = 17
_NOT_OWN = 18
TITLE_NAME = "title"
_MAX_TITLE_BYTES = 200


class Run(Struct, frozen=True):
    """One run in an allocation: `number` from 1; times in epoch seconds, None until they occur."""

    number: int
    name: str
    title: str
    folder: str
    started_at: int | None = None
    ended_at: int | None = None
    status: int | None = None

    @property
    def state(self) -> str:
        if self.started_at is None:
            return "waiting"
        if self.status is None:
            return "running"
        return "completed" if self.status == 0 else f"failed with {self.status}"

    @property
    def text(self) -> str:
        """Its state, duration and title."""
        took = ""
        if self.started_at is not None and self.ended_at is not None:
            took = format_duration(max(0, self.ended_at - self.started_at))
        return f"{self.state:<16} {took:<8} {self.title}".rstrip()

    @property
    def stdout(self) -> str:
        return f"{self.folder}/{STDOUT_NAME}"

    @property
    def stderr(self) -> str:
        return f"{self.folder}/{STDERR_NAME}"


class Allocation(Struct, frozen=True):
    """A job that waits for runs, or did: its row, and its launch's folder on the cluster."""

    job_id: str
    row: Mapping[str, Any]
    folder: str

    @property
    def root(self) -> str:
        """The folder of launches that contains its folder."""
        return posixpath.dirname(self.folder)

    @property
    def is_open(self) -> bool:
        return self.row["state"] in ACTIVE or self.row["state"] in WAITING


async def find_allocation(store: ClusterStore, job_id: str) -> Allocation:
    """Fetch a job as an allocation, located through its log; a first use verifies that it is one.

    Raises UsageError for another user's job, and for IDs that stand for many jobs.
    """
    if holds_many(job_id):
        raise UsageError(f"{visible(job_id)} matches several jobs, not one allocation")
    probe = await store.open()
    detail = await store.fetch_detail(job_id)
    row = detail.job.to_pylist()[0]
    owner = str(row["user"] or "")
    if owner and probe.user and owner != probe.user:
        raise UsageError(
            f"job {visible(job_id)} belongs to {visible(owner)} (you are {probe.user})"
        )
    return build_allocation(row)


def build_allocation(row: Mapping[str, Any]) -> Allocation:
    """Build an allocation from the row of a job's details: its log is in its launch's folder.

    Raises UsageError.
    """
    path = str(row["stdout_path"] or "")
    if not path.startswith("/"):
        raise _no_allocation(str(row["id"]))
    return Allocation(str(row["id"]), row, posixpath.dirname(path))


def _no_allocation(job_id: str, reason: str = "") -> UsageError:
    text = f"job {visible(job_id)} is not an allocation that accepts runs"
    return UsageError(
        f"{text}: {reason}" if reason else text,
        "Create one with hpcdash alloc; hpcdash alloc --list lists yours.",
    )


def runs_query(allocation: Allocation) -> Query[tuple[Run, ...]]:
    """Build the query for the runs in their order.

    Its parser raises UsageError for a job that is no allocation.
    """

    def parse(answer: Answer) -> tuple[Run, ...]:
        if answer.status in (_NO_ALLOCATION, _NOT_OWN):
            raise _no_allocation(allocation.job_id, excerpt(answer.stderr))
        if answer.status != 0:
            raise refused(answer, "cannot list the runs")
        runs: list[Run] = []
        for line in answer.stdout.decode("utf-8", "replace").splitlines():
            if line.count("\t") == 3:
                runs.append(_parse_run(allocation.folder, len(runs) + 1, line.split("\t")))
        return tuple(runs)

    script = shell_text("services/submit/enter_runs.sh", "services/submit/list_runs.sh")
    return Query(("sh", "-c", script, "sh", allocation.folder), parse)


def _parse_run(folder: str, number: int, parts: Sequence[str]) -> Run:
    name, started, ended, title = parts
    status, _, at = ended.strip().partition(" ")
    has_ended = status.isdecimal() and at.isdecimal()
    return Run(
        number=number,
        name=name,
        title=title.strip(),
        folder=f"{folder}/{RUNS_FOLDER}/{name}",
        started_at=int(started) if started.strip().isdecimal() else None,
        ended_at=int(at) if has_ended else None,
        status=int(status) if has_ended else None,
    )


async def fetch_runs(store: ClusterStore, allocation: Allocation) -> tuple[Run, ...]:
    """Fetch the runs in an allocation.

    Raises UsageError for a job that is no allocation, and the errors of an unreachable cluster.
    """
    return await store.run_query(runs_query(allocation))


def new_run_folder(store: ClusterStore, allocation: Allocation) -> str:
    """Return the folder of the next run, sorted after all earlier ones by the cluster's clock."""
    milliseconds = round(store.clock.now() * 1000)
    return f"{allocation.folder}/{RUNS_FOLDER}/{milliseconds:014d}.{secrets.token_hex(4)}"


def title_content(title: str) -> bytes:
    """Return the content of a title file, which the list of runs shows."""
    return visible(title).encode("utf-8", "replace")[:_MAX_TITLE_BYTES]


def plan_delivery(
    allocation: Allocation,
    staged: Staged,
    title: str,
    code: PackedCode | None = None,
) -> Plan:
    """Plan the commands that deliver a run; `code` is unpacked into the run's folder first.

    If the answer is lost, the list of runs shows whether it arrived. Raises UsageError if the
    allocation has ended.
    """
    if not allocation.is_open:
        raise UsageError(
            f"job {visible(allocation.job_id)} has ended ({allocation.row['state']}): it accepts "
            "no more runs",
            "Create another with hpcdash alloc.",
        )
    assert RUN_SCRIPT in staged.contents

    def read(answer: Answer) -> tuple[Outcome, ...]:
        if answer.status == 0:
            return (Outcome(title, True, f"delivered to job {allocation.job_id}"),)
        if answer.status == _NO_ALLOCATION:
            text = _no_allocation(allocation.job_id).message
        else:
            last_lines = map(str.strip, excerpt(answer.stderr).splitlines()[-2:])
            text = "; ".join(filter(None, last_lines)) or f"exited with status {answer.status}"
        return (Outcome(title, False, text),)

    def shell_argv(name: str, *arguments: str) -> tuple[str, ...]:
        # The script runs in the folder of the allocation's runs.
        opened = shell_text("services/submit/enter_runs.sh", "services/submit/open_runs.sh", name)
        script = f'{refuse_replaceable()}refuse_replaceable "$1"\n{opened}'
        return ("sh", "-c", script, "sh", allocation.folder, staged.name, *arguments)

    files = counted(len(staged.contents) - 1, "file")
    size = format_memory(sum(map(len, staged.contents.values())))
    is_prepared = "" if code is None else "there"
    deliver = ActionCommand(
        shell_argv("services/submit/deliver_run.sh", is_prepared),
        (title,),
        read,
        stdin=staged.archive,
        limit_seconds=_LIMIT_SECONDS,
        shown=(
            *("deliver", files, f"({size})", "to", f"job {allocation.job_id}"),
            *("in", staged.folder),
        ),
    )
    request = ActionRequest(Verb.SUBMIT, (title,))
    if code is None:
        return Plan(request, (), (deliver,))
    prepare = ActionCommand(
        shell_argv("services/submit/prepare_run.sh"),
        (title,),
        read,
        shown=("create", staged.folder),
    )
    # Until it is complete, it has a name that no run has.
    unpack = code_command(code, allocation.root, f"{staged.root}/.{staged.name}", title)
    return Plan(request, (), (prepare, unpack, deliver))


def format_place(allocation: Allocation, runs: Sequence[Run], run: Run) -> str:
    """Format the state of a run that has started, else the reason that it waits."""
    if run.started_at is not None:
        return run.state
    if allocation.row["state"] in WAITING:
        return f"waiting for job {allocation.job_id} to start ({allocation.row['state']})"
    before = [one for one in runs if one.number < run.number and one.ended_at is None]
    if not before:
        return "about to start"
    first = f"run {before[0].number} ({before[0].title})"
    if len(before) == 1:
        return f"waiting for {first} to end"
    return f"waiting for {len(before)} runs, next: {first}"


def find_run(runs: Sequence[Run], job_id: str, number: int) -> Run:
    """Return a job's run by its number. Raises UsageError, with the existing numbers."""
    if not 1 <= number <= len(runs):
        raise UsageError(
            f"job {visible(job_id)} has no run {number}",
            f"Its runs: 1 to {len(runs)}." if runs else "It has no runs yet.",
        )
    return runs[number - 1]


def list_allocations(jobs: pa.Table, records: LaunchRecords) -> list[dict[str, Any]]:
    """Return the rows of jobs that were launched from here as allocations.

    Raises StateUnusable.
    """
    known = {record.job_id: record.name for record in records.all() if is_allocation(record)}
    return [row for row in jobs.to_pylist() if known.get(str(row["id"])) == str(row["name"] or "")]
