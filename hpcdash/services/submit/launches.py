"""Launches on a cluster: where they are, what their scripts say, how they are staged, submitted and
recorded.
"""

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
    """Launches of one cluster.

    `state_folder` is where they are remembered; None: nowhere. `pools` are shared there.
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
        # Storage roots that only root's program keeps launches of other accounts in.
        self._trusted: set[str] = set()
        # Findings on kill switches when the folder was queried.
        self._switches: dict[str, LintFinding] = {}
        self._lock = asyncio.Lock()
        self._tidying = asyncio.Lock()
        # The stamp of the records when they were read, and what _accounts() found in it.
        self._accounts_read: tuple[tuple[int, int] | None, Mapping[str, str]] = (None, {})
        # The stamp of the records when no check of nodes was left to be read.
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

    # -- where they are

    async def root(self) -> str:
        """The folder there that holds launches, absolute; it and the queues are queried once a
        connection.

        Raises UsageError where storage_root has to be set, and what keeps the cluster from
        answering.
        """
        return await self._root(self.settings.site.storage_root)

    async def _root(self, storage_root: str, switch: str = "") -> str:
        """The folder that is set, '' for the one below the home; and whether a registry's login is
        in it.

        Where it has to be queried, so is whether a kill switch is there.
        """
        await self.queues.learn()
        async with self._lock:
            found = self._roots.get(storage_root)
            if found is None:
                found = self._roots[storage_root] = await self._inspect_root(storage_root, switch)
        if found.user_number == 0 and not storage_root:
            raise UsageError(
                "storage_root is not set, and root's home is not shared between nodes",
                'Write storage_root = "/PATH" in [launch] of the configuration, a folder that all '
                "nodes mount.",
            )
        return found.folder

    async def _inspect_root(self, storage_root: str, switch: str) -> _Root:
        from hpcdash.domain.demand import LintFinding
        from hpcdash.services.submit.checks import dropped_finding

        try:
            found = await self.store.run_query(_root_query(storage_root, *filter(None, [switch])))
        except CommandTimedOut:
            if not switch:
                raise
            # Its disk may be another than that of the launches.
            found = await self.store.run_query(_root_query(storage_root))
            text = f"cannot tell whether the kill switch {switch} is set: its disk does not respond"
            self._switches[switch] = LintFinding("warning", "", text)
        if found.is_switch_dropped:
            self._switches[switch] = dropped_finding(switch)
        return found

    def _weak_spot(self, storage_root: str, *, is_sites: bool) -> str:
        """Return who else could replace the folder of the launches; '' for nobody.

        Raises UsageError unless the site chose the folder.
        """
        known = self._roots.get(storage_root)
        if known is None or not known.weak_spot or is_sites:
            return "" if known is None else known.weak_spot
        raise UsageError(
            f"{known.weak_spot}, and so others could replace what jobs run from {known.folder}",
            "Set storage_root to a folder below your home there, or leave it out to use "
            f"~/{LAUNCHES_BELOW_HOME}. What is yours on the way is closed to others by: chmod go-w",
        )

    # -- plans

    def render(self, request: Request, *, uid: str, root: str = "") -> BatchScript:
        """The script of a request, with what the site and its queue say; queries nothing.

        Raises UsageError.
        """
        request, aside = self._in_its_queue(request)
        return self._script(request, self._place(request, uid, root, staged=False), aside)

    async def plan(
        self,
        requested: Request,
        text: str = "",
        files: Mapping[str, bytes] = MappingProxyType({}),
        base: Path | None = None,
        *,
        waiting: Waiting | None = None,
    ) -> SubmissionPlan:
        """Plan the commands of a launch: they stage its folder, and submit the script from there.

        Raises UsageError, and the errors of an unreachable cluster.

        `text` is the request as a person wrote it, `files` (name → content) are staged with it: its
        `script` that is among them, by its last part, is run from there. `base` is the folder here
        that the request's own `files` are relative to; None: the current one. With `waiting` it is
        an allocation that waits for runs. A scheduler that takes requests is handed the request as
        it is. `submit` runs the plan.
        """
        await self.store.open(force=True)
        if self.store.backend.submit.takes_requests and waiting is None:
            sent = {name: SentFile(content) for name, content in files.items()}
            most_bytes = self.settings.files_limit
            return await plan_request(
                self.store, requested, text, base, most_bytes=most_bytes, files=sent
            )
        from hpcdash.backends.script.body import with_code_state
        from hpcdash.config.toml_text import without_secrets
        from hpcdash.services.submit.checks import request_kill_switch
        from hpcdash.services.submit.code_files import code_command
        from hpcdash.services.submit.staging import launch_files, staging_command, with_copies

        run_as = requested.site.run_as
        where = requested.site.storage_root or self.settings.site.storage_root
        if run_as:
            submitting_program(self.store)
            if not where:
                raise UsageError(
                    "storage_root is not set; run_as needs a folder that the other account can "
                    "enter",
                    "Set storage_root in [launch] to the folder of root's program (hpcdash sudoers "
                    "--program).",
                )
        root = await self._root(where, request_kill_switch(requested))
        if run_as:
            await self._trust(root.rstrip("/"))
        request = replace(requested, after=await after_in_full(self.store, requested.after))
        request, aside = self._in_its_queue(request)
        if request.site.storage_root not in ("", where):
            # Its queue determines the storage root.
            root = await self._root(where := request.site.storage_root)
        is_given = requested.site.storage_root in ("", self.settings.site.storage_root)
        weak_spot = self._weak_spot(where, is_sites=self.settings.is_sites and is_given)
        name = requested.script.rpartition("/")[2]
        # A call that is to be found again has it from its content.
        uid = (requested.call.cache_key if requested.call else "")[
            : 2 * _UID_BYTES
        ] or secrets.token_hex(_UID_BYTES)
        place = self._place(request, uid, root, staged=bool(name) and name in files)
        if run_as and not request.work_dir:
            # Where sudo is called from may be closed to that account.
            request = replace(request, work_dir=place.folder)
        if waiting is not None:
            place = replace(place, waiting=waiting)
        packed = None
        if request.files:
            packed = await self._packed(request, base, posixpath.dirname(place.folder))
        if weak_spot:
            request, place = with_copies(
                request, place, files, None if packed is None else packed.digest
            )
            copied = f"{weak_spot}: each node runs a checked copy of what is sent"
            aside = f"{aside}; {copied}" if aside else copied
        script = _with_script_warning(self._script(request, place, aside), files.get(name))
        if request.is_task:
            script = await self._in_turn(request, script)
        code_state = await self._code_state(request, base)
        if code_state is not None and not request.plain:
            script = with_code_state(script, code_state.summary)
        content = script.text.encode("utf-8", "surrogateescape")
        await refuse_large_array(self.store, Submission(content, script.job_name))
        more = {} if code_state is None else {PROVENANCE_NAME: code_state.text}
        staged = launch_files(
            request,
            place,
            script,
            text,
            files,
            more,
            launch_program=self.settings.launch_program,
            at=self.store.clock.now(),
            is_copied=bool(weak_spot),
        )
        submit = self.store.backend.submit.submission(
            Submission(
                script=content,
                name=script.job_name,
                # In the script too, but only the command line is told of a job that has begun.
                after=request.after,
                mark=new_mark(),
                file="" if staged.is_copied else f"{place.folder}/{SCRIPT_NAME}",
                run_as=run_as,
                program=submitting_program(self.store) if run_as else "",
            )
        )
        name = submit.command.job_ids[0]
        before = [staging_command(staged, name)]
        notes = submit.notes
        if packed is not None:
            before.append(code_command(packed, staged.root, staged.folder, name, staged.is_copied))
            notes = (*packed.code.notes, *notes)
        planned = build_plan(self.store, submit, before=before, notes=notes, user=run_as)
        record = LaunchRecord(
            folder=staged.folder,
            sums=staged.sums_digest,
            job_id="",
            name=script.job_name,
            keep=request.site.keep,
            run_as=run_as,
            tasks=request.array.count if request.array else 1,
            at=self.store.clock.now(),
            request=without_secrets(text),
        )
        return replace(
            planned,
            shown=script.text,
            request=request,
            record=record,
            warnings=script.warnings,
            code_state="" if code_state is None else code_state.summary,
        )

    async def _in_turn(self, request: Request, script: BatchScript) -> BatchScript:
        """Raises UsageError for a task that its shared pool would refuse; warns where the pool
        seems to have no coordinator.
        """
        from hpcdash.services.share.submission import require_turn
        from hpcdash.services.submit.request_lint import slot_type_in

        slot_type = slot_type_in(request, await self.queues.offers())
        named = replace(request, name=script.job_name)
        message = await require_turn(self.store, self.pools, named, slot_type)
        return replace(script, warnings=(message, *script.warnings)) if message else script

    async def _code_state(self, request: Request, base: Path | None) -> CodeState | None:
        """Find the code state of the repository that a request and its files are in."""
        from hpcdash.services.submit.provenance import find_code_state

        folder = base or (Path.cwd() if request.files else None)
        return None if folder is None else await asyncio.to_thread(find_code_state, folder)

    async def _packed(self, request: Request, base: Path | None, root: str) -> PackedCode:
        """Pack a request's files, and query how much of them exists there already."""
        from hpcdash.services.submit.code_files import (
            find_code_files,
            folder_query,
            pack_code_files,
        )

        if request.site.run_as:
            raise UsageError(
                "files: cannot be sent with run_as: root's program writes only the launch's own "
                "files",
                "Leave run_as out, or copy the folder where that account can read it, and set "
                "work_dir to it.",
            )
        folder = base or Path.cwd()
        limit = self.settings.files_limit
        packed = await asyncio.to_thread(
            lambda: pack_code_files(find_code_files(request.files, folder, limit))
        )
        return replace(
            packed, arrived=await self.store.run_query(folder_query(root, packed.digest))
        )

    async def plan_run(
        self,
        requested: Request,
        allocation: Allocation,
        title: str,
        text: str,
        files: Mapping[str, bytes],
        base: Path | None,
    ) -> tuple[Sequence[str], Staged, Plan]:
        """The warnings about a request that is run in an allocation, what its folder will hold, and
        what hands it over.

        Nothing is staged. Raises UsageError, and what keeps the cluster from answering.
        """
        if requested.array is not None or requested.after or requested.hold:
            raise UsageError(
                "array, after and hold belong to the scheduler and do not apply to a run",
                "Runs execute in the order they arrive; submit one per task.",
            )
        from hpcdash.backends.script.body import Place, with_code_state
        from hpcdash.services.submit.allocations import (
            TITLE_NAME,
            new_run_folder,
            plan_hand_over,
            title_content,
        )
        from hpcdash.services.submit.staging import launch_files

        await self.queues.learn()
        request, aside = self._in_its_queue(requested)
        folder = new_run_folder(self.store, allocation)
        name = request.script.rpartition("/")[2]
        script = f"{folder}/{staged_name(name, '')}" if name and name in files else ""
        place = Place(folder.rpartition(".")[2], folder, script=script, is_run=True)
        made = _with_script_warning(self._script(request, place, aside), files.get(name))
        if (code_state := await self._code_state(request, base)) is not None:
            made = with_code_state(made, code_state.summary)
        more = {TITLE_NAME: title_content(title)}
        staged = launch_files(request, place, made, text, files, more, at=self.store.clock.now())
        code = await self._packed(request, base, allocation.root) if request.files else None
        warnings = made.warnings if code is None else (*code.code.notes, *made.warnings)
        return warnings, staged, plan_hand_over(allocation, staged, title, code)

    async def _trust(self, root: str) -> None:
        """Raises UsageError where others could change what root's program keeps; queried once a
        connection.
        """
        from hpcdash.services.submit.staging import trust_query

        if root not in self._trusted:
            await self.store.run_query(trust_query(self.settings.launch_program, root))
            self._trusted.add(root)

    async def findings(self, planned: SubmissionPlan) -> tuple[LintFinding, ...]:
        """Check a plan without a query.

        Findings are conflicts with the queues as far as they are known, warnings about the script,
        and a kill switch that existed when the folder of launches was queried; () for what is
        submitted as it is.
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
        """Whether slots that are not counted a node may lie together, on any nodes."""
        writer = self.store.backend.scripts.writer()
        return writer is not None and not writer.ENVIRONMENT.finds_nodes

    # -- submissions

    async def submit(
        self,
        planned: SubmissionPlan,
        actions: Actions,
        on_message: Callable[[str], None] | None = None,
    ) -> SubmissionResult:
        """Run a plan of one submission, search its job where the answer was lost, and record it.

        `on_message` receives lines for a person who waits. Raises nothing of HpcdashError.
        """
        report = await actions.run(planned.plan, on_message=on_message)
        return await self.settle(planned, report, on_message or (lambda text: None))

    async def settle(
        self, planned: SubmissionPlan, report: Report, on_message: Callable[[str], None]
    ) -> SubmissionResult:
        """Search the job of a plan that has run, where its answer was lost, and record it.

        `on_message` is as in `submit`. Raises nothing of HpcdashError.
        """
        outcomes = await reconcile(self.store, planned, report, on_message)
        message = await self.conclude(planned, outcomes[-1])
        return SubmissionResult(outcomes[-1], message, report.journal_problem)

    async def submit_chain(
        self,
        plan_link: Callable[[tuple[str, ...]], Awaitable[SubmissionPlan]],
        actions: Actions,
        count: int,
        on_result: Callable[[int, SubmissionResult], Awaitable[None]] | None = None,
        on_message: Callable[[str], None] | None = None,
    ) -> tuple[Outcome, ...]:
        """Submit `count` jobs; `plan_link` plans one that waits for the ids it is given.

        These are () for the first job, then the job before it. Returns an outcome for each attempt,
        reported as (0-based link, result) once it is settled; `on_message` is as in `submit`. The
        first job that was not submitted, or for which that is unknown, is the last: `format_chain`
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
                words = f"not submitted: {error.message}"
                result = SubmissionResult(Outcome(outcomes[-1].job_id, False, words))
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

    async def conclude(self, planned: SubmissionPlan, outcome: Outcome) -> str:
        """Record what was launched, or remove the folder of what surely was not; returns what else
        a person should know.

        To be awaited once the outcome is settled. Raises nothing of HpcdashError.
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
            messages.append(reader.refusal_hint(outcome.text, version, planned.shown, (), types))
            left = await remove_folder(self.store, record, self.settings.launch_program)
            if left:
                messages.append(f"its files remain in {record.folder}: {left}")
        else:
            from hpcdash.backends.script.call import format_result_path

            if not outcome.done:
                messages.append(f"its files are in {record.folder}")
            messages.append(format_result_path(request, record.folder))
            record = replace(record, job_id=outcome.new_job, at=self.store.clock.now())
            try:
                await asyncio.to_thread(self.records.launched, record, planned.code_state)
            except StateUnusable as error:
                messages.append(
                    f"its files are in {record.folder}, but this could not be recorded: "
                    f"{error.message}"
                )
        return "; ".join(filter(None, messages))

    async def _gpu_types(self) -> tuple[str, ...]:
        """Return the GPU types of the nodes; () if unknown."""
        if self.store.table(Kind.NODES) is None:
            with contextlib.suppress(HpcdashError):
                await self.store.fetch(Kind.NODES)
        return (await self.queues.offers()).gpu_types

    # -- what becomes of them

    async def tidy(self, *, every_seconds: float = 0.0) -> tuple[str, ...]:
        """Remove the folders of launches that are kept where they failed, and completed; in words
        what was done.

        One question for all that may have ended, none where there is none, nor where any run of
        hpcdash asked within the last `every_seconds`. Raises nothing of HpcdashError.
        """
        if self.state_folder is None:
            return ()
        from hpcdash.services.submit.launch_folders import tidy_folders

        async with self._tidying:
            try:
                return await tidy_folders(
                    self.store,
                    self.records,
                    self.settings.launch_program,
                    every_seconds=every_seconds,
                )
            except HpcdashError:
                # It is checked another time.
                return ()

    async def read_checks(self) -> tuple[str, ...]:
        """Read what jobs that checked nodes found, once they have ended; a sentence for each.

        Raises nothing of HpcdashError.
        """
        if self.state_folder is None:
            return ()
        from hpcdash.services.submit.node_findings import NodeCheckRecords, read_ended_checks

        records = NodeCheckRecords(self.state_folder, self.store.name)
        async with self._tidying:
            stamp = records.stamp()
            if stamp == self._all_read_at:
                return ()
            try:
                read = await read_ended_checks(self.store, records)
            except HpcdashError:
                # It is checked another time.
                return ()
            self._all_read_at = None if records.unread() else stamp
            return read

    def follow(self, on_message: Callable[[str], None]) -> Callable[[], None]:
        """Read checks of nodes with each list of one's jobs; tidy with the first one, and when jobs
        have ended.

        Returns how to stop that.
        """
        has_looked = False
        running: set[asyncio.Task[None]] = set()

        async def check(*, is_to_tidy: bool) -> None:
            # Before their folders go.
            messages = (*await self.read_checks(), *(await self.tidy() if is_to_tidy else ()))
            if messages:
                on_message("\n".join(messages))

        def on_progress(changed: Changed) -> None:
            nonlocal has_looked
            if changed.kind is not Kind.MINE:
                return
            is_to_tidy = not has_looked or any(event.after in ENDED for event in changed.events)
            has_looked = True
            task = asyncio.create_task(
                check(is_to_tidy=is_to_tidy), name=f"look after launches of {self.store.name}"
            )
            running.add(task)
            task.add_done_callback(running.discard)

        return self.store.listen(on_progress)

    def _reader_command(self, path: str) -> tuple[str, ...]:
        """The command that reads a file of a launch that was submitted as another account; () for
        any other file.
        """
        from hpcdash.services.submit.sudoers import PLAIN_NAME, program_argv

        folder, _, name = path.rpartition("/")
        account = self._accounts().get(folder, "")
        if not account or not PLAIN_NAME.fullmatch(name):
            return ()
        return program_argv(
            account, self.settings.launch_program, "read", folder.rpartition("/")[2], name
        )

    def _accounts(self) -> Mapping[str, str]:
        """The folders of launches that were submitted as another account, and whose they are."""
        stamp = self.records.stamp()
        if stamp is None or stamp != self._accounts_read[0]:
            try:
                found = {
                    record.folder: record.run_as for record in self.records.all() if record.run_as
                }
            except StateUnusable:
                return {}
            self._accounts_read = (stamp, found)
        return self._accounts_read[1]

    def _place(self, request: Request, uid: str, root: str, *, staged: bool) -> Place:
        from hpcdash.backends.script.body import Place, effective_name, folder_name

        root = (request.site.storage_root or root).rstrip("/")
        folder = f"{root}/{folder_name(request, uid)}" if root else ""
        if root and request.kind == TASK_KIND:
            known = self._roots.get(root)
            # Two people may have functions of one name.
            base = (
                f"{root}/{self.store.user}"
                if known is not None and known.is_shared and self.store.user
                else root
            )
            began = datetime.fromtimestamp(self.store.clock.now())
            folder = f"{base}/{effective_name(request, uid)[0]}/{began:%Y%m%d_%H%M%S}_{uid}"
        name = request.script.rpartition("/")[2]
        # A file of mode 0600 is readable by nobody else.
        has_login = not request.site.run_as and any(
            known.has_login and known.folder.rstrip("/") == root for known in self._roots.values()
        )
        return Place(
            uid,
            folder,
            script=f"{folder}/{staged_name(name, request.site.run_as)}"
            if staged and folder and name
            else "",
            login=f"{root}/{LOGIN_NAME}" if has_login else "",
        )

    def _in_its_queue(self, request: Request) -> tuple[Request, str]:
        """With what the site says of its queue, and what is not known about that."""
        from hpcdash.config.queue_defaults import with_queue_defaults

        if request.is_task:
            from hpcdash.services.share.submission import with_pool

            request = with_pool(request, self.pools)
        pools = self.queues.pools()
        # The only one need not be named, unless something is said of it.
        named = pools if len(pools) > 1 or self.settings.queues else []
        request = with_queue_defaults(request, self.settings.queues, named)
        has_gpus, is_known = self.queues.has_gpus(request.queue)
        if request.slot_type is not None or request.slots == 0 or is_known:
            return request, ""
        slots = "GPUs" if has_gpus else "CPUs"
        where = f"queue {request.queue}" if request.queue else "the queue"
        return (
            request,
            f"{where} does not report GPUs: slots are assumed to be {slots}; set slot_type to "
            "change it",
        )

    def _script(self, request: Request, place: Place, aside: str) -> BatchScript:
        backend = self.store.backend
        if (writer := backend.scripts.writer()) is None:
            raise UsageError(
                f"hpcdash writes no scripts for {backend.title}",
                "Write one yourself and run: hpcdash submit SCRIPT",
            )
        has_gpus, _ = self.queues.has_gpus(request.queue)
        if request.is_task and backend.detail.holds_requeued and not backend.is_embedded:
            from hpcdash.services.share.submission import require_node_count

            require_node_count(request, request_slot_type(request, queue_has_gpus=has_gpus))
        slots = request_slots(request)
        made = writer.batch_script(
            request,
            place,
            queue_has_gpus=has_gpus,
            has_live_logs=Capability.LIVE_LOGS in backend.capabilities,
            cpu_share=self.queues.cpu_share(request.queue, slots.nodes * slots.per_node),
        )
        return replace(made, warnings=(aside, *made.warnings)) if aside else made


class _Root(Struct, frozen=True):
    """A folder of launches there, whose number asked, whether a registry's login is in it, and of
    the kill switch that was asked for whether it is there; `is_shared`: the folder is somebody
    else's. `weak_spot` tells who else could put another in its place, '' where nobody could.
    """

    user_number: int
    folder: str
    has_login: bool
    is_switch_dropped: bool = False
    is_shared: bool = False
    weak_spot: str = ""


def _root_query(storage_root: str, *switch: str) -> Query[_Root]:
    script = terse_weak_spot() + shell_text("services/submit/inspect_root.sh")
    return Query(("sh", "-c", script, "sh", storage_root, *switch), _read_root, _ROOT_LIMIT_SECONDS)


def _read_root(answer: Answer) -> _Root:
    number, _, rest = answer.stdout.decode("utf-8", "replace").partition("\n")
    folder, _, reported = rest.partition("\n")
    if answer.status != 0 or not number.isdecimal() or not folder.startswith("/"):
        step = "Set storage_root in [launch] of the configuration."
        raise refused(answer, "the home folder, which holds launches, is unknown", step)
    lines = reported.splitlines()
    weak = next((line.removeprefix(_WEAK) for line in lines if line.startswith(_WEAK)), "")
    return _Root(
        int(number),
        folder,
        LOGIN_NAME in lines,
        "dropped" in lines,
        "shared" in lines,
        visible(weak),
    )


def _with_script_warning(made: BatchScript, content: bytes | None) -> BatchScript:
    """With a warning about directives in the request's own script, where that is sent along."""
    from hpcdash.backends.script.lint import unread_directives

    warning = "" if content is None else unread_directives(content)
    return replace(made, warnings=(warning, *made.warnings)) if warning else made


def format_chain(outcomes: Sequence[Outcome], count: int) -> str:
    """`job 7`; `4 jobs, one after the other: 7 8 9 10`; of one that broke off, what stands and why
    no more.
    """
    standing = [outcome.new_job for outcome in outcomes if outcome.new_job]
    jobs = counted(len(standing), "job")
    last = outcomes[-1]
    if count == 1:
        return last.text
    if len(standing) == count:
        return f"{jobs}, one after the other: {' '.join(standing)}"
    rest = count - len(outcomes)
    stand = f", which stay: {' '.join(standing)}" if standing else ""
    parts = [f"{jobs} of {count} submitted{stand}"]
    if not last.new_job:
        parts.append(f"number {len(outcomes)}: {last.text or 'no reason given'}")
    if rest:
        parts.append(f"the {rest} after it {'was' if rest == 1 else 'were'} not sent")
    return "; ".join(parts)
