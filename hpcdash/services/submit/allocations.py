"""Allocations that are kept for runs: which job is one, what was run in it, and how a run is handed
over.
"""

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
from hpcdash.domain.text import visible
from hpcdash.domain.units import format_duration, format_memory
from hpcdash.errors import UsageError, excerpt
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.jobs.actions import Plan
from hpcdash.services.submit.code_files import PackedCode, code_command
from hpcdash.services.submit.launch_records import LaunchRecords, is_allocation
from hpcdash.services.submit.staging import Staged, refuse_replaceable
from hpcdash.shell_files import shell_text

_LIMIT_SECONDS = 120.0
_NO_ALLOCATION, _NOT_OWN = 17, 18
TITLE_NAME = "title"
_MAX_TITLE_BYTES = 200


class Run(Struct, frozen=True):
    """One run in an allocation: `number` from 1; times in epoch seconds, None for what has not
    happened.
    """

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
        """Its state, how long it took, what it is."""
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
    """A job that waits for runs, or did: its row, and the folder of its launch there."""

    job_id: str
    row: Mapping[str, Any]
    folder: str

    @property
    def root(self) -> str:
        """The folder of launches that it is one of."""
        return posixpath.dirname(self.folder)

    @property
    def is_open(self) -> bool:
        return self.row["state"] in ACTIVE or self.row["state"] in WAITING


async def find_allocation(store: ClusterStore, job_id: str) -> Allocation:
    """A job as an allocation, located through its log.

    Whether it really is one shows when it is used.

    Raises UsageError for another user's job, and for IDs that stand for many jobs.
    """
    if holds_many(job_id):
        raise UsageError(f"{visible(job_id)} means several jobs, not an allocation for runs")
    probe = await store.open()
    detail = await store.fetch_detail(job_id)
    row = detail.job.to_pylist()[0]
    owner = str(row["user"] or "")
    if owner and probe.user and owner != probe.user:
        raise UsageError(f"job {visible(job_id)} is {visible(owner)}'s (you are {probe.user})")
    return build_allocation(row)


def build_allocation(row: Mapping[str, Any]) -> Allocation:
    """By where the job writes, which is in its launch's folder; `row` is that of its details.

    Raises UsageError.
    """
    path = str(row["stdout_path"] or "")
    if not path.startswith("/"):
        raise _no_allocation(str(row["id"]))
    return Allocation(str(row["id"]), row, posixpath.dirname(path))


def _no_allocation(job_id: str, text: str = "") -> UsageError:
    return UsageError(
        f"job {visible(job_id)} is not an allocation that accepts "
        f"runs{f': {text}' if text else ''}",
        "Create one with hpcdash alloc; hpcdash alloc --list lists yours.",
    )


def runs_query(allocation: Allocation) -> Query[tuple[Run, ...]]:
    """The runs in the order they are run; parse raises UsageError for a job that waits for none."""

    def parse(answer: Answer) -> tuple[Run, ...]:
        if answer.status in (_NO_ALLOCATION, _NOT_OWN):
            raise _no_allocation(allocation.job_id, excerpt(answer.stderr))
        if answer.status != 0:
            raise refused(answer, "the runs cannot be listed")
        lines = answer.stdout.decode("utf-8", "replace").splitlines()
        fields = [line.split("\t") for line in lines if line.count("\t") == 3]
        return tuple(_read_run(allocation.folder, at, parts) for at, parts in enumerate(fields, 1))

    script = shell_text("services/submit/enter_runs.sh", "services/submit/list_runs.sh")
    return Query(("sh", "-c", script, "sh", allocation.folder), parse)


def _read_run(folder: str, number: int, parts: Sequence[str]) -> Run:
    name, started, ended, title = parts
    status, _, at = ended.strip().partition(" ")
    has_ended = status.isdecimal() and at.isdecimal()
    return Run(
        number,
        name,
        title.strip(),
        f"{folder}/{RUNS_FOLDER}/{name}",
        int(started) if started.strip().isdecimal() else None,
        int(at) if has_ended else None,
        int(status) if has_ended else None,
    )


async def fetch_runs(store: ClusterStore, allocation: Allocation) -> tuple[Run, ...]:
    """Raises UsageError for a job that is no allocation, and what keeps the cluster from
    answering.
    """
    return await store.run_query(runs_query(allocation))


def new_run_folder(store: ClusterStore, allocation: Allocation) -> str:
    """Return the folder of the next run, sorted after all earlier ones by the cluster's clock."""
    milliseconds = round(store.clock.now() * 1000)
    return f"{allocation.folder}/{RUNS_FOLDER}/{milliseconds:014d}.{secrets.token_hex(4)}"


def title_content(title: str) -> bytes:
    """Return the content of a title file, which the list of runs shows."""
    return visible(title).encode("utf-8", "replace")[:_MAX_TITLE_BYTES]


def plan_hand_over(
    allocation: Allocation,
    staged: Staged,
    title: str,
    code: PackedCode | None = None,
) -> Plan:
    """Plan the commands that hand a run over.

    If the answer is lost, the list of runs shows whether it arrived. Raises UsageError if the
    allocation has ended. `code` is unpacked into the run's folder first.
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
            return (Outcome(title, True, f"handed to job {allocation.job_id}"),)
        text = "; ".join(
            line.strip() for line in excerpt(answer.stderr).splitlines()[-2:] if line.strip()
        )
        if answer.status == _NO_ALLOCATION:
            text = _no_allocation(allocation.job_id).message
        return (Outcome(title, False, text or f"it ended with {answer.status}"),)

    total = sum(map(len, staged.contents.values()))
    shown = (
        "hand",
        f"{len(staged.contents) - 1} files",
        f"({format_memory(total)})",
        "to",
        f"job {allocation.job_id}",
    )
    argv = (
        "sh",
        "-c",
        _open_runs("services/submit/hand_over_run.sh"),
        "sh",
        allocation.folder,
        staged.name,
        "" if code is None else "there",
    )
    command = ActionCommand(
        argv, (title,), read, staged.archive, _LIMIT_SECONDS, shown=(*shown, "in", staged.folder)
    )
    request = ActionRequest(Verb.SUBMIT, (title,))
    if code is None:
        return Plan(request, (), (command,))
    prepare = ActionCommand(
        (
            "sh",
            "-c",
            _open_runs("services/submit/prepare_run.sh"),
            "sh",
            allocation.folder,
            staged.name,
        ),
        (title,),
        read,
        shown=("make", staged.folder),
    )
    # It has a name that no run has until it is complete.
    unpack = code_command(code, allocation.root, f"{staged.root}/.{staged.name}", title)
    return Plan(request, (), (prepare, unpack, command))


def handed_over(runs: Sequence[Run], staged: Staged) -> Run | None:
    """The run that was handed over, None where it did not arrive."""
    return next((run for run in runs if run.name == staged.name), None)


def format_place(allocation: Allocation, runs: Sequence[Run], run: Run) -> str:
    """Format the state of a run that has started, else what it waits for."""
    if run.started_at is not None:
        return run.state
    if allocation.row["state"] in WAITING:
        return f"waits for job {allocation.job_id} to start ({allocation.row['state']})"
    before = [one for one in runs if one.number < run.number and one.ended_at is None]
    if not before:
        return "starts in a moment"
    first = f"run {before[0].number} ({before[0].title})"
    return (
        f"waits for {first} to end"
        if len(before) == 1
        else f"waits for {len(before)} runs, of which {first} is next"
    )


def find_run(runs: Sequence[Run], job_id: str, number: int) -> Run:
    """Raises UsageError for a run that there is not, naming those there are."""
    if not 1 <= number <= len(runs):
        raise UsageError(
            f"job {visible(job_id)} has no run {number}",
            f"Its runs: 1 to {len(runs)}." if runs else "It has none yet.",
        )
    return runs[number - 1]


def list_allocations(jobs: pa.Table, records: LaunchRecords) -> list[dict[str, Any]]:
    """The rows of jobs that are allocations, as far as they were made from here.

    Raises StateUnusable.
    """
    known = {record.job_id: record.name for record in records.all() if is_allocation(record)}
    return [row for row in jobs.to_pylist() if known.get(str(row["id"])) == str(row["name"] or "")]


def _open_runs(name: str) -> str:
    """Return the script of this name, in the folder of an allocation's runs; $1 is its launch's."""
    opened = shell_text("services/submit/enter_runs.sh", "services/submit/open_runs.sh", name)
    return f'{refuse_replaceable()}refuse_replaceable "$1"\n{opened}'
