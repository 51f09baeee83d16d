"""`hpcdash alloc`: allocations that wait for runs; and `hpcdash submit --in`, a run in one."""

from __future__ import annotations

import asyncio
import errno
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from hpcdash.assembly import chosen_site
from hpcdash.backends.actions import ActionRequest, Outcome, Verb
from hpcdash.backends.script.allocation import KIND, Waiting
from hpcdash.cli.ending import EndedBySignal, leave_terminal
from hpcdash.cli.jobs import with_session
from hpcdash.cli.options import CommonOptions
from hpcdash.cli.submit import (
    REQUEST_ENDING,
    RequestSubmission,
    SubmissionRun,
    exit_status,
    print_commands,
    read_script,
)
from hpcdash.cli.terminal import is_agreed, print_json, print_notes, print_text
from hpcdash.config.request import request_text
from hpcdash.domain.request import Request, SlotType
from hpcdash.domain.states import ACTIVE, ENDED, WAITING
from hpcdash.domain.tables import Kind
from hpcdash.domain.text import clip, counted, visible
from hpcdash.domain.units import format_duration, parse_duration, parse_memory
from hpcdash.errors import EXIT_REFUSED, EXIT_UNREACHABLE, HpcdashError, NoSuchJob, UsageError
from hpcdash.services.session import ClusterSession
from hpcdash.services.submit.allocations import (
    TITLE_NAME,
    Run,
    fetch_runs,
    find_allocation,
    format_place,
    list_allocations,
    new_run_folder,
    plan_delivery,
    title_content,
)
from hpcdash.services.submit.staging import staged_files
from hpcdash.services.submit.submission import SubmissionPlan
from hpcdash.services.watch.rules.jobs import SOON_SECONDS

# Interval of queries for the job's state while the command waits.
_FIRST_INTERVAL_SECONDS = 5.0
_LONGEST_INTERVAL_SECONDS = 60.0


def run_alloc(
    common: CommonOptions,
    *,
    gpus: int | None,
    nodes: int | None,
    cpus: int | None,
    memory: str | None,
    limit: str | None,
    queue: str,
    account: str,
    name: str,
    keep: bool,
    idle_limit: str | None,
    hold: bool,
    listing: bool,
    job: str | None,
    dry_run: bool,
    form: str,
) -> None:
    """Allocate, or list allocations or the runs in one; exits like submit, by ctrl+c with 130."""
    if listing:
        _list(common, form)
        return
    if job is not None:
        _list_runs(common, job, form)
        return
    site = chosen_site(common)
    if site.is_read_only and not dry_run:
        raise UsageError("alloc is disabled: hpcdash is read-only", "--dry-run shows the script.")
    # GPUs on any nodes, or evenly on so many; without GPUs, CPUs.
    slots = next((count for count in (gpus, cpus) if count is not None), nodes or 1)
    request = Request(
        kind=KIND,
        command=":",
        slots=slots,
        slots_per_node=None if gpus is not None and nodes is None else -(-slots // (nodes or 1)),
        slot_type=SlotType.CPU if gpus is None else None,
        cpus_per_gpu=cpus if gpus is not None else None,
        queue=queue,
        account=account,
        name=name,
        job_library=False,
        limit_seconds=_seconds("--time", limit),
        memory_bytes=_bytes("--memory", memory),
        hold=hold,
        site=site.launch.site,
    )
    if request.site.run_as:
        raise UsageError(
            "alloc: run_as names another account, but runs must use the allocation's own"
        )
    text = request_text(request, site=site.launch.site)
    foreground = None if keep or dry_run else _Foreground()
    waiting = Waiting(_seconds("--idle-limit", idle_limit))
    submission = _AllocationSubmission(request, text, waiting=waiting, foreground=foreground)

    async def work(session: ClusterSession) -> int:
        await session.store.open(force=True)
        if dry_run:
            planned = await submission.plan(session, (), None)
            print_notes(*planned.notes)
            print_text(planned.shown)
            for command in planned.plan.commands:
                print(f"# {visible(command.text)}")
            return 0
        run = SubmissionRun(submission, session, prints=False)
        [outcome] = await run.outcomes(1)
        notify = partial(_print_outcome, session, run, outcome, form)
        if outcome.done and foreground is not None:
            await foreground.stay(session, outcome.new_job, notify)
            return 0
        notify()
        if not outcome.done:
            return exit_status(outcome)
        print_notes(
            "the allocation stays until its time limit; to end it: hpcdash cancel "
            f"{outcome.new_job}"
        )
        return 0

    receive_signal = foreground.receive_signal if foreground is not None else lambda number: False
    if status := with_session(common, work, receive_signal):
        raise SystemExit(status)


def _print_outcome(
    session: ClusterSession, run: SubmissionRun, outcome: Outcome, form: str
) -> None:
    if form == "json" and run.planned is not None:
        answer = {
            "cluster": session.name,
            "job_id": outcome.new_job or None,
            "done": outcome.done,
            "words": outcome.text,
            "script": run.planned.shown,
            "folder": run.planned.folder,
        }
        print_json(answer)
    elif outcome.new_job:
        print(visible(outcome.new_job), flush=True)
    if outcome.done:
        print_notes(f"to use it: hpcdash submit REQUEST.toml --in {outcome.new_job}")


def _seconds(option: str, text: str | None) -> int | None:
    if not text:
        return None
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from error
    if seconds is not None and seconds <= 0:
        raise UsageError(f"{option}: {text} is not a positive duration")
    return seconds


def _bytes(option: str, text: str | None) -> int | None:
    try:
        return parse_memory(text) if text else None
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from error


class _AllocationSubmission(RequestSubmission, Struct):
    """Submission of an allocation; once planned, `foreground` handles signals.

    `foreground` is None if the allocation is kept.
    """

    foreground: _Foreground | None = None

    async def plan(
        self, session: ClusterSession, after: tuple[str, ...], before: SubmissionPlan | None
    ) -> SubmissionPlan:
        planned = await RequestSubmission.plan(self, session, after, before)
        if self.foreground is not None:
            self.foreground.handles_signals = True
        return planned


class _Foreground:
    """Waits for the end of an allocation, and ends it with this command."""

    def __init__(self) -> None:
        # Whether there may be a job that a signal has to end.
        self.handles_signals = False
        self._signalled = asyncio.Event()
        self._signal = 0
        self._job_id = ""

    def receive_signal(self, number: int) -> bool:
        """Handle the first signal to an allocation that may exist; return False for others."""
        if not self.handles_signals or self._signalled.is_set():
            return False
        self._signal = number
        self._signalled.set()
        if not self._job_id:
            print_notes(
                "the allocation is cancelled once the scheduler answers; interrupt again to "
                "stop waiting"
            )
        return True

    async def stay(self, session: ClusterSession, job_id: str, notify: Callable[[], None]) -> None:
        """Call `notify`, then wait until the job ends.

        A signal cancels it, ctrl+c after a confirmation. Raises EndedBySignal, and the errors of
        `notify`, once the job is cancelled.
        """
        self._job_id = job_id
        try:
            notify()
            if not self._signalled.is_set():
                print_notes(f"ctrl+c ends allocation {job_id}")
                if await self._has_ended(session):
                    self.handles_signals = False
                    return
        except OSError as error:
            # The output has no reader any more; a closed terminal may send its signal later.
            if error.errno != errno.EIO:
                await _cancel(session, job_id)
                raise
            self._leave()
        await _cancel(session, job_id)
        raise EndedBySignal(self._signal)

    async def _has_ended(self, session: ClusterSession) -> bool:
        """Wait for the job's end; return False if a signal to this command ends it."""
        watching = asyncio.ensure_future(_watch(session, self._job_id))
        try:
            while True:
                signalled = asyncio.ensure_future(self._signalled.wait())
                await asyncio.wait({watching, signalled}, return_when=asyncio.FIRST_COMPLETED)
                signalled.cancel()
                if watching.done():
                    watching.result()
                    return True
                if self._signal != signal.SIGINT or await self._is_end_confirmed():
                    return False
                print_notes("the allocation continues")
        finally:
            watching.cancel()

    async def _is_end_confirmed(self) -> bool:
        """Prompt for confirmation; another signal or a missing terminal confirms."""
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            return True
        self._signalled.clear()
        print(
            f"\nEnd allocation {visible(self._job_id)} and everything running in it? ",
            end="",
            file=sys.stderr,
        )
        answer = asyncio.ensure_future(is_agreed())
        signalled = asyncio.ensure_future(self._signalled.wait())
        await asyncio.wait({answer, signalled}, return_when=asyncio.FIRST_COMPLETED)
        answer.cancel()
        signalled.cancel()
        if self._signalled.is_set() or answer.result():
            self._signalled.set()
            return True
        # The end of the input may mean that the terminal was closed.
        if not sys.stdin.isatty():
            self._leave()
            return True
        return False

    def _leave(self) -> None:
        self._signal = signal.SIGHUP
        self._signalled.set()
        leave_terminal()


async def _watch(session: ClusterSession, job_id: str) -> None:
    """Print the states of a job, and a warning before its end, until it has ended."""
    state = ""
    pause = _FIRST_INTERVAL_SECONDS
    has_warned = False
    while True:
        row = None
        try:
            row = (await session.store.fetch_detail(job_id)).job.to_pylist()[0]
        except NoSuchJob:
            # A scheduler may list a job only a moment after its submission.
            pass
        except HpcdashError as error:
            print_notes(f"{error.message}; retrying")
        if row is not None:
            left = _left_seconds(session, row)
            if row["state"] != state:
                state = str(row["state"])
                pause = _FIRST_INTERVAL_SECONDS
                text = f"allocation {row['id']} is {state.replace('_', ' ')}"
                if state in ACTIVE and row["node_list"]:
                    text += f" on {row['node_list']}"
                    if left:
                        text += f", {format_duration(left)} left"
                print_notes(text)
                if state in ENDED:
                    return
            if left is not None and left <= SOON_SECONDS and not has_warned:
                has_warned = True
                print_notes(f"allocation {job_id} ends in {format_duration(left)}")
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_INTERVAL_SECONDS)


async def _cancel(session: ClusterSession, job_id: str) -> None:
    actions = session.actions
    try:
        rows = await actions.fetch_rows((job_id,))
    except HpcdashError:
        print_notes(f"allocation {job_id} continues; to end it: hpcdash cancel {job_id}")
        raise
    report = await actions.run(actions.plan(ActionRequest(Verb.CANCEL, (job_id,)), rows))
    for outcome in report.outcomes:
        if outcome.done:
            print_notes(f"allocation {outcome.job_id} was cancelled")
        else:
            text = "may continue" if outcome.done is None else "was not cancelled"
            print_notes(
                f"allocation {outcome.job_id} {text}: {outcome.text}",
                f"hpcdash cancel {outcome.job_id} ends it",
            )


def _left_seconds(session: ClusterSession, row: Mapping[str, Any]) -> float | None:
    if row["state"] not in ACTIVE or row["ends_at"] is None:
        return None
    left: float = row["ends_at"].timestamp() - session.store.clock.now()
    return max(0.0, left)


def _list(common: CommonOptions, form: str) -> None:
    async def work(session: ClusterSession) -> list[dict[str, Any]]:
        snapshot = await session.store.fetch(Kind.MINE)
        allocations = []
        for row in list_allocations(snapshot.table, session.launches.records):
            if row["state"] in ACTIVE or row["state"] in WAITING:
                left = _left_seconds(session, row)
                answer = {name: row[name] for name in ("id", "name", "state")}
                answer["left_seconds"] = None if left is None else int(left)
                answer |= {name: row[name] for name in ("nodes", "cpus", "gpus", "node_list")}
                allocations.append(answer)
        return allocations

    allocations = with_session(common, work)
    if form == "json":
        print_json({"allocations": allocations})
        return
    if not allocations:
        print("You have no allocations. hpcdash alloc submits one.", file=sys.stderr)
    for row in allocations:
        left = "" if row["left_seconds"] is None else f"{format_duration(row['left_seconds'])} left"
        amounts = {"node": row["nodes"], "GPU": row["gpus"] or 0, "CPU": row["cpus"]}
        resources = []
        for unit, amount in amounts.items():
            resources.append(f"? {unit}s" if amount is None else counted(amount, unit))
        name = clip(visible(str(row["name"] or "")), 40)
        print(
            f"{visible(str(row['id'])):<12} {row['state']:<9} {left:<14} "
            f"{', '.join(resources)}  {name}"
        )


def _list_runs(common: CommonOptions, job: str, form: str) -> None:
    async def work(session: ClusterSession) -> tuple[Run, ...]:
        return await fetch_runs(session.store, await find_allocation(session.store, job))

    runs = with_session(common, work)
    if form == "json":
        answer = [
            {
                "run": run.number,
                "title": run.title,
                "state": run.state.partition(" ")[0],
                "exit_code": run.status,
                "started_at": run.started_at,
                "ended_at": run.ended_at,
                "stdout_path": run.stdout,
                "stderr_path": run.stderr,
            }
            for run in runs
        ]
        print_json({"job_id": job, "runs": answer})
        return
    if not runs:
        print(
            f"No runs in job {visible(job)} yet. hpcdash submit --in {visible(job)} starts one.",
            file=sys.stderr,
        )
    for run in runs:
        print(f"{run.number:>4}  {visible(run.text)}")


# -- runs


def run_inside(
    common: CommonOptions, job: str, *, script: str, dry_run: bool, form: str, **options: object
) -> None:
    """Deliver a request or a script to an allocation; options of submit do not apply.

    Exits with 1 if it was refused, with 3 if its delivery is unknown.
    """
    chain = options.pop("chain", 1)
    if any(options.values()) or chain != 1:
        raise UsageError(
            "--in uses an existing allocation, so scheduler options do not apply",
            "Remove --array, --after, --hold, --chain, --plain and scheduler options.",
        )
    site = chosen_site(common)
    if site.is_read_only and not dry_run:
        raise UsageError("submit is disabled: hpcdash is read-only", "--dry-run shows the script.")
    source = None
    content = b""
    if script.endswith(REQUEST_ENDING):
        source = RequestSubmission.read(common, script, options=(), array="", after=(), held=False)
    else:
        content = read_script(script, is_program=False)
    title = "stdin" if script == "-" else Path(script).name

    async def work(session: ClusterSession) -> Outcome | None:
        store = session.store
        allocation = await find_allocation(store, job)
        if source is not None:
            request = source.request
            warnings, staged, plan = await session.launches.plan_run(
                request,
                allocation,
                title,
                text=source.text,
                files=source.files,
                base=source.folder,
            )
            print_notes(*source.notes, *warnings)
            gpus = allocation.row["gpus"]
            if request.slot_type is not SlotType.CPU and gpus and request.slots > gpus:
                print_notes(
                    f"the request needs {request.slots} slots, but the allocation has {gpus} GPUs"
                )
        else:
            own = {"batch.sh": content, TITLE_NAME: title_content(title)}
            staged = staged_files(new_run_folder(store, allocation), own, {}, at=store.clock.now())
            plan = plan_delivery(allocation, staged, title)
            lines = content.decode("utf-8", "replace").splitlines()
            if any(map(store.backend.scripts.explain, lines)):
                print_notes("the script's directives are ignored: a run gets the whole allocation")
        print_commands("run", session.name, plan)
        if dry_run:
            print_text(staged.contents["batch.sh"].decode("utf-8", "surrogateescape"))
            return None
        report = await session.actions.run(plan, on_message=print_notes)
        outcome = report.outcomes[0]
        print_notes(report.journal_problem)
        runs: Sequence[Run] = ()
        run: Run | None = None
        if outcome.done is not False:
            try:
                runs = await fetch_runs(store, allocation)
            except HpcdashError as error:
                print_notes(error.message)
            else:
                run = next((known for known in runs if known.name == staged.name), None)
                text = outcome.text if run else "the run was not delivered"
                outcome = replace(outcome, done=run is not None, text=text)
        if form == "json":
            answer = {
                "job_id": job,
                "run": None if run is None else run.number,
                "done": outcome.done,
                "folder": staged.folder,
            }
            print_json(answer)
        elif run is not None:
            print(run.number, flush=True)
            print_notes(
                f"run {run.number} of job {allocation.job_id} "
                f"{format_place(allocation, runs, run)}",
                f"log: hpcdash log {job} --run {run.number} -f",
            )
        else:
            print_notes(f"{title}: {outcome.text}")
        return outcome

    outcome = with_session(common, work)
    if outcome is not None and not outcome.done:
        sys.exit(EXIT_UNREACHABLE if outcome.done is None else EXIT_REFUSED)
