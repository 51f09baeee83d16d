"""Launches on a cluster: their folders and scripts, their staging, submission and records."""

from __future__ import annotations

import asyncio
import contextlib
import posixpath
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from hpcdash.backends.actions import Outcome
from hpcdash.backends.base import Capability
from hpcdash.backends.queries import Answer, Query, refused
from hpcdash.backends.script.folder import PROVENANCE_NAME, SCRIPT_NAME, staged_name
from hpcdash.backends.submissions import SentFile, Submission
from hpcdash.config.settings import LaunchSettings, PoolSettings
from hpcdash.domain.request import TASK_KIND, Request, request_slot_type, request_slots
from hpcdash.domain.states import ENDED
from hpcdash.domain.tables import Kind
from hpcdash.domain.text import counted, visible
from hpcdash.errors import CommandTimedOut, HpcdashError, UsageError
from hpcdash.private_files import terse_weak_spot
from hpcdash.services.cluster.store import Changed, ClusterStore
from hpcdash.services.jobs.actions import Actions, Plan, Report
from hpcdash.services.state.database import StateUnusable
from hpcdash.services.submit.launch_records import LaunchRecord, LaunchRecords
from hpcdash.services.submit.recovery import reconcile
from hpcdash.services.submit.submission import (
    SubmissionPlan,
    SubmissionResult,
    after_in_full,
    build_plan,
    new_mark,
    plan_request,
    refuse_large_array,
    submitting_program,
)
from hpcdash.shell_files import shell_text

if TYPE_CHECKING:
    from hpcdash.backends.script.allocation import Waiting
    from hpcdash.backends.script.body import BatchScript, Place
    from hpcdash.domain.demand import LintFinding
    from hpcdash.services.submit.allocations import Allocation
    from hpcdash.services.submit.code_files import PackedCode
    from hpcdash.services.submit.provenance import CodeState
    from hpcdash.services.submit.queues import LaunchQueues
    from hpcdash.services.submit.staging import Staged


# Each is a call of the scheduler's own submission command.
MAX_LINKS = 100
LAUNCHES_BELOW_HOME = "hpcdash/launches"
LOGIN_NAME = "login"
_ROOT_LIMIT_SECONDS = 15.0
_UID_BYTES = 4
_WEAK = "weak "


class Launches:
    """Launches on one cluster.

    They are recorded in `state_folder`; None: nowhere. `pools` are its shared pools.
    """

    def __init__(
        self,
        store: ClusterStore,
        settings: LaunchSettings | None = None,
        state_folder: Path | None = None,
        pools: Sequence[PoolSettings] = (),
    ) -> None:
        self.store = store
        self.pools = pools
        self.settings = settings or LaunchSettings()
        self.state_folder = state_folder
        self._roots: dict[str, _Root] = {}
        # Storage roots that only root's launch program can change.
        self._trusted: set[str] = set()
        # Findings on kill switches when the root was queried.
        self._switches: dict[str, LintFinding] = {}
        self._lock = asyncio.Lock()
        self._cleanup_lock = asyncio.Lock()
        self._accounts: Mapping[str, str] = {}
        # Stamp of the records that `_accounts` was read from.
        self._accounts_stamp: tuple[int, int] | None = None
        # Stamp of the records when no node check was left to read.
        self._all_read_at: tuple[int, int] | None = None
        store.reader_command = self._reader_command

    @cached_property
    def queues(self) -> LaunchQueues:
        """Known queues of the cluster."""
        from hpcdash.services.submit.queues import LaunchQueues

        return LaunchQueues(self.store)

    @property
    def records(self) -> LaunchRecords:
        """Records of the launches from here."""
        return LaunchRecords(self.state_folder, self.store.name)

    # -- folders

    async def root(self) -> str:
        """Return the cluster's folder of launches, an absolute path.

        It and the queues are queried once per connection. Raises UsageError if storage_root has to
        be set, and the errors of an unreachable cluster.
        """
        return await self._root(self.settings.site.storage_root)

    async def _root(self, storage_root: str, switch: str = "") -> str:
        """Return the absolute path of a storage root; '' stands for the one below the home.

        The query also checks for a registry's login in it, and for a kill switch.
        """
        await self.queues.fetch()
        async with self._lock:
            found = self._roots.get(storage_root)
            if found is None:
                found = self._roots[storage_root] = await self._inspect_root(storage_root, switch)
        if found.user_number == 0 and not storage_root:
            raise UsageError(
                "storage_root is not set, and root's home is not shared between nodes",
                'Set storage_root = "/PATH" in [launch] of the configuration, to a folder that all '
                "nodes mount.",
            )
        return found.folder

    async def _inspect_root(self, storage_root: str, switch: str) -> _Root:
        from hpcdash.domain.demand import LintFinding
        from hpcdash.services.submit.checks import dropped_finding

        try:
            found = await self.store.run_query(_root_query(storage_root, switch))
        except CommandTimedOut:
            if not switch:
                raise
            # The switch may be on another disk.
            found = await self.store.run_query(_root_query(storage_root))
            text = f"cannot check the kill switch {switch}: its disk does not respond"
            self._switches[switch] = LintFinding("warning", "", text)
        if found.is_switch_dropped:
            self._switches[switch] = dropped_finding(switch)
        return found

    def _weak_spot(self, storage_root: str, *, is_sites: bool) -> str:
        """Return how other users could replace the folder of launches; '' if they cannot.

        Raises UsageError unless the site chose the folder.
        """
        known = self._roots.get(storage_root)
        if known is None:
            return ""
        if known.weak_spot and not is_sites:
            raise UsageError(
                f"{known.weak_spot}, so others could replace files that jobs run from "
                f"{known.folder}",
                "Set storage_root to a folder below your home on the cluster, or remove it to use "
                f"~/{LAUNCHES_BELOW_HOME}. Remove others' write access to your folders above it: "
                "chmod go-w",
            )
        return known.weak_spot

    # -- plans

    def render(self, request: Request, *, uid: str, root: str = "") -> BatchScript:
        """Render a request's script with the values of the site and its queue, without a query.

        Raises UsageError.
        """
        request, warning = self._apply_queue_values(request)
        return self._script(request, self._place(request, uid, root, staged=False), warning)

    async def plan(
        self,
        requested: Request,
        text: str = "",
        files: Mapping[str, bytes] = MappingProxyType({}),
        base: Path | None = None,
        *,
        waiting: Waiting | None = None,
    ) -> SubmissionPlan:
        """Plan the commands of a launch: stage its folder, and submit the script in it.

        `text` is the request as a person wrote it, `files` (name → content) are staged with it: if
        its `script` is among them, by its last part, the staged file runs. `base` is the local
        folder that the request's own `files` are relative to, None for the current one. With
        `waiting` it is an allocation that waits for runs. A scheduler that takes requests gets the
        request as it is. `submit` runs the plan. Raises UsageError, and the errors of an
        unreachable cluster.
        """
        await self.store.open(force=True)
        if self.store.backend.submit.takes_requests and waiting is None:
            return await plan_request(
                self.store,
                requested,
                text,
                base,
                most_bytes=self.settings.files_limit,
                files={name: SentFile(content) for name, content in files.items()},
            )
        from hpcdash.services.submit.staging import launch_files, with_copies

        request, root, weak_spot, warning = await self._choose_root(requested)
        name = requested.script.rpartition("/")[2]
        # A launch of a cached function call is found by its key.
        cache_key = requested.call.cache_key if requested.call else ""
        uid = cache_key[: 2 * _UID_BYTES] or secrets.token_hex(_UID_BYTES)
        place = self._place(request, uid, root, staged=bool(name) and name in files)
        if requested.site.run_as and not request.work_dir:
            # That account may be unable to enter the folder that sudo is called from.
            request = replace(request, work_dir=place.folder)
        if waiting is not None:
            place = replace(place, waiting=waiting)
        packed = None
        if request.files:
            packed = await self._pack(request, base, posixpath.dirname(place.folder))
        if weak_spot:
            digest = None if packed is None else packed.digest
            request, place = with_copies(request, place, files, digest)
            copied = f"{weak_spot}: each node runs a checked copy of the staged files"
            warning = f"{warning}; {copied}" if warning else copied
        script = self._script(request, place, warning, files.get(name))
        if request.is_task:
            script = await self._lint_pool_task(request, script)
        code_state, script = await self._add_code_state(request, script, base)
        staged = launch_files(
            request,
            place,
            script,
            text,
            files,
            {} if code_state is None else {PROVENANCE_NAME: code_state.text},
            launch_program=self.settings.launch_program,
            at=self.store.clock.now(),
            is_copied=bool(weak_spot),
        )
        planned = await self._plan_staged(request, script, staged, packed, text)
        return planned if code_state is None else replace(planned, code_state=code_state.summary)

    async def _choose_root(self, requested: Request) -> tuple[Request, str, str, str]:
        """Return a request with the values of its queue, its storage root, and two warnings.

        The first warning names other users who could replace the root, the second is about the
        queue's slots; '' for none.
        """
        from hpcdash.services.submit.checks import request_kill_switch

        run_as = requested.site.run_as
        configured = self.settings.site.storage_root
        storage_root = requested.site.storage_root or configured
        if run_as:
            submitting_program(self.store)
            if not storage_root:
                raise UsageError(
                    "storage_root is not set; run_as needs a folder that the other account can "
                    "enter",
                    "Set storage_root in [launch] to the folder that root's launch program uses "
                    "(hpcdash sudoers "
                    "--program).",
                )
        root = await self._root(storage_root, request_kill_switch(requested))
        if run_as:
            await self._trust(root.rstrip("/"))
        request = replace(requested, after=await after_in_full(self.store, requested.after))
        request, warning = self._apply_queue_values(request)
        if request.site.storage_root not in ("", storage_root):
            # Its queue determines the storage root.
            storage_root = request.site.storage_root
            root = await self._root(storage_root)
        is_sites = self.settings.is_sites and requested.site.storage_root in ("", configured)
        return request, root, self._weak_spot(storage_root, is_sites=is_sites), warning

    async def _plan_staged(
        self,
        request: Request,
        script: BatchScript,
        staged: Staged,
        packed: PackedCode | None,
        text: str,
    ) -> SubmissionPlan:
        """Plan the commands that stage a launch, and the submission of its script."""
        from hpcdash.config.toml_text import without_secrets
        from hpcdash.services.submit.code_files import code_command
        from hpcdash.services.submit.staging import staging_command

        run_as = request.site.run_as
        content = script.text.encode("utf-8", "surrogateescape")
        await refuse_large_array(self.store, Submission(content, script.job_name))
        submit = self.store.backend.submit.submission(
            Submission(
                script=content,
                name=script.job_name,
                # In the script too, but a job that has started is known only to the command line.
                after=request.after,
                mark=new_mark(),
                file="" if staged.is_copied else f"{staged.folder}/{SCRIPT_NAME}",
                run_as=run_as,
                program=submitting_program(self.store) if run_as else "",
            )
        )
        [name] = submit.command.job_ids
        before = [staging_command(staged, name)]
        notes = submit.notes
        if packed is not None:
            before.append(
                code_command(
                    packed, staged.root, staged.folder, job=name, is_copied=staged.is_copied
                )
            )
            notes = (*packed.code.notes, *notes)
        record = LaunchRecord(
            folder=staged.folder,
            sums=staged.sums_digest,
            name=script.job_name,
            keep=request.site.keep,
            run_as=run_as,
            tasks=request.array.count if request.array else 1,
            at=self.store.clock.now(),
            request=without_secrets(text),
        )
        return replace(
            build_plan(self.store, submit, before=before, notes=notes, user=run_as),
            shown=script.text,
            request=request,
            record=record,
            warnings=script.warnings,
        )

    async def _lint_pool_task(self, request: Request, script: BatchScript) -> BatchScript:
        """Return the script of a shared pool's task, with a warning if no coordinator is active.

        Raises UsageError for a task that the pool would refuse.
        """
        from hpcdash.services.share.submission import check_pool
        from hpcdash.services.submit.request_lint import slot_type_in

        slot_type = slot_type_in(request, await self.queues.offers())
        named = replace(request, name=script.job_name)
        message = await check_pool(self.store, self.pools, named, slot_type)
        return replace(script, warnings=(message, *script.warnings)) if message else script

    async def _add_code_state(
        self, request: Request, script: BatchScript, base: Path | None
    ) -> tuple[CodeState | None, BatchScript]:
        """Find the code state of the repository that a request is in, and add it to the script."""
        from hpcdash.backends.script.body import with_code_state
        from hpcdash.services.submit.provenance import find_code_state

        folder = base or (Path.cwd() if request.files else None)
        if folder is None:
            return None, script
        code_state = await asyncio.to_thread(find_code_state, folder)
        if code_state is not None and not request.plain:
            script = with_code_state(script, code_state.summary)
        return code_state, script

    async def _pack(self, request: Request, base: Path | None, root: str) -> PackedCode:
        """Pack a request's files, and query how much of them is on the cluster already."""
        from hpcdash.services.submit.code_files import (
            find_code_files,
            folder_query,
            pack_code_files,
        )

        if request.site.run_as:
            raise UsageError(
                "files: cannot be sent with run_as: root's program writes only the launch's own "
                "files",
                "Remove run_as, or copy the folder to a place that this account can read and set "
                "work_dir to it.",
            )
        folder = base or Path.cwd()
        code = await asyncio.to_thread(
            find_code_files, request.files, folder, self.settings.files_limit
        )
        packed = await asyncio.to_thread(pack_code_files, code)
        arrived = await self.store.run_query(folder_query(root, packed.digest))
        return replace(packed, arrived=arrived)

    async def plan_run(
        self,
        requested: Request,
        allocation: Allocation,
        title: str,
        text: str,
        files: Mapping[str, bytes],
        base: Path | None,
    ) -> tuple[Sequence[str], Staged, Plan]:
        """Plan a run of a request in an allocation; nothing is staged.

        Returns its warnings, its folder's content, and the plan that delivers it. Raises
        UsageError, and the errors of an unreachable cluster.
        """
        if requested.array is not None or requested.after or requested.hold:
            raise UsageError(
                "array, after and hold belong to the scheduler and do not apply to a run",
                "Runs execute in the order they arrive; submit one per task.",
            )
        from hpcdash.backends.script.body import Place
        from hpcdash.services.submit.allocations import (
            TITLE_NAME,
            new_run_folder,
            plan_delivery,
            title_content,
        )
        from hpcdash.services.submit.staging import launch_files

        await self.queues.fetch()
        request, warning = self._apply_queue_values(requested)
        folder = new_run_folder(self.store, allocation)
        name = request.script.rpartition("/")[2]
        staged_script = f"{folder}/{staged_name(name, '')}" if name and name in files else ""
        place = Place(folder.rpartition(".")[2], folder, script=staged_script, is_run=True)
        script = self._script(request, place, warning, files.get(name))
        _, script = await self._add_code_state(request, script, base)
        staged = launch_files(
            request,
            place,
            script,
            text,
            files,
            {TITLE_NAME: title_content(title)},
            at=self.store.clock.now(),
        )
        packed = None
        warnings = script.warnings
        if request.files:
            packed = await self._pack(request, base, allocation.root)
            warnings = (*packed.code.notes, *warnings)
        return warnings, staged, plan_delivery(allocation, staged, title, packed)

    async def _trust(self, root: str) -> None:
        """Raise UsageError if anyone but root could change the launch program or its folder.

        Queried once per connection.
        """
        from hpcdash.services.submit.staging import trust_query

        if root not in self._trusted:
            await self.store.run_query(trust_query(self.settings.launch_program, root))
            self._trusted.add(root)

    async def findings(self, planned: SubmissionPlan) -> tuple[LintFinding, ...]:
        """Check a plan without a query.

        Findings are conflicts with the known queues, warnings about the script, and a kill switch
        that existed when the folder of launches was queried; () for an unchanged script.
        """
        if planned.request is None or not planned.folder:
            return ()
        from hpcdash.services.submit.checks import request_kill_switch
        from hpcdash.services.submit.request_lint import lint_request

        offers = await self.queues.offers()
        found = lint_request(
            planned.request, offers, planned.warnings, packs_nodes=self.packs_nodes
        )
        switch = self._switches.get(request_kill_switch(planned.request))
        return found if switch is None else (*found, switch)

    @property
    def packs_nodes(self) -> bool:
        """Whether slots without a count per node may share nodes."""
        writer = self.store.backend.scripts.writer()
        return writer is not None and not writer.ENVIRONMENT.finds_nodes

    # -- submissions

    async def submit(
        self,
        planned: SubmissionPlan,
        actions: Actions,
        on_message: Callable[[str], None] | None = None,
    ) -> SubmissionResult:
        """Run a plan of one submission, search for its job if the answer was lost, and record it.

        `on_message` receives lines for a person who waits. Never raises HpcdashError.
        """
        report = await actions.run(planned.plan, on_message=on_message)
        return await self.settle(planned, report, on_message or (lambda text: None))

    async def settle(
        self, planned: SubmissionPlan, report: Report, on_message: Callable[[str], None]
    ) -> SubmissionResult:
        """Search for the job of a plan that has run if its answer was lost, and record it.

        `on_message` is as in `submit`. Never raises HpcdashError.
        """
        outcomes = await reconcile(self.store, planned, report, on_message)
        message = await self.record_outcome(planned, outcomes[-1])
        return SubmissionResult(outcomes[-1], message, report.journal_problem)

    async def submit_chain(
        self,
        plan_link: Callable[[tuple[str, ...]], Awaitable[SubmissionPlan]],
        actions: Actions,
        count: int,
        on_result: Callable[[int, SubmissionResult], Awaitable[None]] | None = None,
        on_message: Callable[[str], None] | None = None,
    ) -> tuple[Outcome, ...]:
        """Submit `count` jobs; `plan_link` plans one that waits for the given IDs.

        These are () for the first job, then the previous job. Returns an outcome for each attempt,
        reported as (0-based link, result) once it is settled; `on_message` is as in `submit`. The
        first job that was not submitted, or may not have been, is the last: `format_chain`
        describes the result. Raises UsageError for an invalid count, and the errors of planning the
        first job; a later one that cannot be planned is an outcome.
        """
        if not 1 <= count <= MAX_LINKS:
            raise UsageError(
                f"a chain has 1 to {MAX_LINKS} jobs, not {count}",
                "A longer chain is an array: 1-1000%1.",
            )
        if count > 1:
            self.store.backend.require(Capability.CHAINS)
        outcomes: list[Outcome] = []
        after: tuple[str, ...] = ()
        for link in range(count):
            try:
                planned = await plan_link(after)
            except HpcdashError as error:
                if not outcomes:
                    raise
                text = f"not submitted: {error.message}"
                result = SubmissionResult(Outcome(outcomes[-1].job_id, False, text))
            else:
                result = await self.submit(planned, actions, on_message)
            outcome = result.outcome
            if result.journal_problem:
                outcome = replace(outcome, text=f"{outcome.text}; {result.journal_problem}")
                result = replace(result, outcome=outcome)
            outcomes.append(outcome)
            if on_result is not None:
                await on_result(link, result)
            if not outcome.new_job:
                break
            after = (outcome.new_job,)
        return tuple(outcomes)

    async def record_outcome(self, planned: SubmissionPlan, outcome: Outcome) -> str:
        """Record a launch, or remove its folder if it was not submitted; return a note on it.

        Awaited once the outcome is settled. Never raises HpcdashError.
        """
        request = planned.request
        record = planned.record
        if request is None or record is None or not record.folder:
            return ""
        messages: list[str] = []
        if outcome.done is False:
            from hpcdash.services.submit.launch_folders import remove_folder

            version = self.store.probe.version if self.store.probe else ""
            types = await self._gpu_types() if request.gpu_type else ()
            reader = self.store.backend.scripts.reader()
            messages.append(
                reader.refusal_hint(outcome.text, version, planned.shown, (), gpu_types=types)
            )
            left = await remove_folder(self.store, record, self.settings.launch_program)
            if left:
                messages.append(f"files remain in {record.folder}: {left}")
        else:
            from hpcdash.backends.script.call import format_result_path

            if not outcome.done:
                messages.append(f"files are in {record.folder}")
            messages.append(format_result_path(request, record.folder))
            record = replace(record, job_id=outcome.new_job, at=self.store.clock.now())
            try:
                await asyncio.to_thread(self.records.launched, record, planned.code_state)
            except StateUnusable as error:
                messages.append(
                    f"files are in {record.folder}, but this could not be recorded: {error.message}"
                )
        return "; ".join(filter(None, messages))

    async def _gpu_types(self) -> tuple[str, ...]:
        """Return the GPU types of the nodes; () if unknown."""
        if self.store.table(Kind.NODES) is None:
            with contextlib.suppress(HpcdashError):
                await self.store.fetch(Kind.NODES)
        return (await self.queues.offers()).gpu_types

    # -- finished launches

    async def remove_finished_folders(self, *, every_seconds: float = 0.0) -> tuple[str, ...]:
        """Remove the folders of finished launches that need not be kept; return a message for each.

        One query covers all launches that may have finished. It is skipped if there are none, or if
        any run of hpcdash made one within the last `every_seconds`. Never raises HpcdashError.
        """
        if self.state_folder is None:
            return ()
        from hpcdash.services.submit.launch_folders import remove_finished_folders

        async with self._cleanup_lock:
            try:
                return await remove_finished_folders(
                    self.store,
                    self.records,
                    self.settings.launch_program,
                    every_seconds=every_seconds,
                )
            except HpcdashError:
                # The next call retries.
                return ()

    async def read_checks(self) -> tuple[str, ...]:
        """Read the findings of finished node check jobs; return a sentence for each.

        Never raises HpcdashError.
        """
        if self.state_folder is None:
            return ()
        from hpcdash.services.submit.node_findings import NodeCheckRecords, read_ended_checks

        records = NodeCheckRecords(self.state_folder, self.store.name)
        async with self._cleanup_lock:
            stamp = records.stamp()
            if stamp == self._all_read_at:
                return ()
            try:
                read = await read_ended_checks(self.store, records)
            except HpcdashError:
                # The next call retries.
                return ()
            self._all_read_at = None if records.unread() else stamp
            return read

    def follow(self, on_message: Callable[[str], None]) -> Callable[[], None]:
        """Read node checks with each list of one's jobs; remove folders with the first list, and
        when jobs have ended.

        Returns a function that stops this.
        """
        has_checked = False
        running: set[asyncio.Task[None]] = set()

        async def check(*, removes: bool) -> None:
            # Findings are in logs in these folders.
            messages = await self.read_checks()
            if removes:
                messages += await self.remove_finished_folders()
            if messages:
                on_message("\n".join(messages))

        def on_progress(changed: Changed) -> None:
            nonlocal has_checked
            if changed.kind is not Kind.MINE:
                return
            removes = not has_checked or any(event.after in ENDED for event in changed.events)
            has_checked = True
            task = asyncio.create_task(
                check(removes=removes), name=f"clean up launches of {self.store.name}"
            )
            running.add(task)
            task.add_done_callback(running.discard)

        return self.store.listen(on_progress)

    def _reader_command(self, path: str) -> tuple[str, ...]:
        """Return the command that reads a file of another account's launch; () for other files."""
        from hpcdash.services.submit.sudoers import PLAIN_NAME, program_argv

        folder, _, name = path.rpartition("/")
        if not PLAIN_NAME.fullmatch(name):
            return ()
        stamp = self.records.stamp()
        if stamp is None or stamp != self._accounts_stamp:
            try:
                records = self.records.all()
            except StateUnusable:
                return ()
            self._accounts = {one.folder: one.run_as for one in records if one.run_as}
            self._accounts_stamp = stamp
        if folder not in self._accounts:
            return ()
        launch_name = folder.rpartition("/")[2]
        program = self.settings.launch_program
        return program_argv(self._accounts[folder], program, "read", launch_name, name)

    def _place(self, request: Request, uid: str, root: str, *, staged: bool) -> Place:
        from hpcdash.backends.script.body import Place, effective_name, folder_name

        root = (request.site.storage_root or root).rstrip("/")
        folder = f"{root}/{folder_name(request, uid)}" if root else ""
        if root and request.kind == TASK_KIND:
            known = self._roots.get(root)
            base = root
            # Two people may have functions with the same name.
            if known is not None and known.is_shared and self.store.user:
                base = f"{root}/{self.store.user}"
            function = effective_name(request, uid)[0]
            submitted_at = datetime.fromtimestamp(self.store.clock.now())
            folder = f"{base}/{function}/{submitted_at:%Y%m%d_%H%M%S}_{uid}"
        name = request.script.rpartition("/")[2]
        script = ""
        if staged and folder and name:
            script = f"{folder}/{staged_name(name, request.site.run_as)}"
        # Another account cannot read the login, a file of mode 0600.
        has_login = not request.site.run_as and any(
            known.has_login and known.folder.rstrip("/") == root for known in self._roots.values()
        )
        return Place(uid, folder, script=script, login=f"{root}/{LOGIN_NAME}" if has_login else "")

    def _apply_queue_values(self, request: Request) -> tuple[Request, str]:
        """Return a request with the site's values for its queue, and a warning on unknown slots."""
        from hpcdash.config.queue_defaults import with_queue_defaults

        if request.is_task:
            from hpcdash.services.share.submission import with_pool

            request = with_pool(request, self.pools)
        pools = self.queues.pools()
        # A request need not name the only queue, unless the site configures queues.
        named = pools if len(pools) > 1 or self.settings.queues else []
        request = with_queue_defaults(request, self.settings.queues, named)
        has_gpus, is_known = self.queues.has_gpus(request.queue)
        if request.slot_type is not None or request.slots == 0 or is_known:
            return request, ""
        slots = "GPUs" if has_gpus else "CPUs"
        queue = f"queue {request.queue}" if request.queue else "the queue"
        warning = (
            f"{queue} does not report GPUs: slots are assumed to be {slots}; set slot_type to "
            "change it"
        )
        return request, warning

    def _script(
        self, request: Request, place: Place, warning: str, program: bytes | None = None
    ) -> BatchScript:
        """Write a request's script; `program` is the content of its own script if it is staged."""
        backend = self.store.backend
        if (writer := backend.scripts.writer()) is None:
            raise UsageError(
                f"hpcdash cannot write {backend.title} scripts",
                "Write one yourself and run: hpcdash submit SCRIPT",
            )
        has_gpus, _ = self.queues.has_gpus(request.queue)
        if request.is_task and backend.detail.holds_requeued and not backend.is_embedded:
            from hpcdash.services.share.submission import require_node_count

            require_node_count(request, request_slot_type(request, queue_has_gpus=has_gpus))
        slots = request_slots(request)
        script = writer.batch_script(
            request,
            place,
            queue_has_gpus=has_gpus,
            has_live_logs=Capability.LIVE_LOGS in backend.capabilities,
            cpu_share=self.queues.cpu_share(request.queue, slots.nodes * slots.per_node),
        )
        warnings = [warning]
        if program is not None:
            from hpcdash.backends.script.lint import unread_directives

            warnings.insert(0, unread_directives(program))
        return replace(script, warnings=(*filter(None, warnings), *script.warnings))


class _Root(Struct, frozen=True):
    """Folder of launches on the cluster, as the user with this number sees it.

    `is_shared`: the folder belongs to somebody else. `weak_spot` tells how other users could
    replace it, '' if they cannot.
    """

    user_number: int
    folder: str
    has_login: bool
    is_switch_dropped: bool = False
    is_shared: bool = False
    weak_spot: str = ""


def _root_query(storage_root: str, switch: str = "") -> Query[_Root]:
    script = terse_weak_spot() + shell_text("services/submit/inspect_root.sh")
    arguments = (storage_root, switch) if switch else (storage_root,)
    return Query(("sh", "-c", script, "sh", *arguments), _read_root, _ROOT_LIMIT_SECONDS)


def _read_root(answer: Answer) -> _Root:
    number, _, rest = answer.stdout.decode("utf-8", "replace").partition("\n")
    folder, _, reported = rest.partition("\n")
    if answer.status != 0 or not number.isdecimal() or not folder.startswith("/"):
        step = "Set storage_root in [launch] of the configuration."
        raise refused(answer, "the home folder (for launches) is unknown", step)
    lines = reported.splitlines()
    weak = next((line.removeprefix(_WEAK) for line in lines if line.startswith(_WEAK)), "")
    return _Root(
        user_number=int(number),
        folder=folder,
        has_login=LOGIN_NAME in lines,
        is_switch_dropped="dropped" in lines,
        is_shared="shared" in lines,
        weak_spot=visible(weak),
    )


def format_chain(outcomes: Sequence[Outcome], count: int) -> str:
    """`job 7`; `4 jobs, one after the other: 7 8 9 10`; for an incomplete chain, its submitted jobs
    and the reason.
    """
    submitted = [outcome.new_job for outcome in outcomes if outcome.new_job]
    jobs = counted(len(submitted), "job")
    last = outcomes[-1]
    if count == 1:
        return last.text
    if len(submitted) == count:
        return f"{jobs}, one after the other: {' '.join(submitted)}"
    remaining = count - len(outcomes)
    stay = f" (these stay queued: {' '.join(submitted)})" if submitted else ""
    parts = [f"{jobs} of {count} submitted{stay}"]
    if not last.new_job:
        parts.append(f"job {len(outcomes)} of {count}: {last.text or 'no reason given'}")
    if remaining:
        verb = "was" if remaining == 1 else "were"
        parts.append(f"the remaining {remaining} {verb} not sent")
    return "; ".join(parts)
