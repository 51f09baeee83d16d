"""Launches on a cluster: where they are, what their scripts say, how they are staged and
submitted.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import posixpath
import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from hpcdash.backends.actions import ActionRequest, Outcome, Verb
from hpcdash.backends.base import Capability
from hpcdash.backends.queries import Answer, Query, refused
from hpcdash.backends.script.folder import (
    CODE_ARCHIVE,
    CODE_FOLDER,
    LIBRARY_NAME,
    PROVENANCE_NAME,
    REQUEST_NAME,
    SCRIPT_NAME,
    SECRETS_NAME,
    staged_name,
)
from hpcdash.backends.submissions import MARK_START, Submission
from hpcdash.config.settings import LaunchSettings, PoolSettings
from hpcdash.domain.request import TASK_KIND, Request, request_slot_type, request_slots
from hpcdash.domain.share import SUSPEND_NAME
from hpcdash.domain.states import ENDED
from hpcdash.domain.tables import Kind
from hpcdash.domain.text import visible
from hpcdash.errors import CommandTimedOut, HpcdashError, UsageError
from hpcdash.private_files import TERSE_WEAK_SPOT
from hpcdash.services.cluster.store import Changed, ClusterStore
from hpcdash.services.jobs.actions import Plan
from hpcdash.services.state.database import StateUnusable
from hpcdash.services.submit.launch_records import LaunchRecord
from hpcdash.services.submit.plan import SubmissionPlan, submitting_program
from hpcdash.services.submit.recovery import CLOCKS_APART, Search

if TYPE_CHECKING:
    from hpcdash.backends.script.allocation import Waiting
    from hpcdash.backends.script.body import BatchScript, Place
    from hpcdash.domain.demand import LintFinding
    from hpcdash.services.submit.allocations import Allocation
    from hpcdash.services.submit.code_files import CodeFiles, PackedCode
    from hpcdash.services.submit.launch_records import LaunchRecords
    from hpcdash.services.submit.provenance import CodeState
    from hpcdash.services.submit.queues import LaunchQueues
    from hpcdash.services.submit.staging import Staged


LAUNCHES_BELOW_HOME = "hpcdash/launches"
LOGIN_NAME = "login"
# The configured folder, '' for the one below the home; then a kill switch to check, if any.
_ROOT = (
    "sh",
    "-c",
    f'{TERSE_WEAK_SPOT}root=${{1:-$HOME/{LAUNCHES_BELOW_HOME}}}; printf "%s\\n" "$(id -u)" '
    f'"$root"; '
    'test ! -e "$root" || test -O "$root" || echo shared; '
    # Others may put files into a shared root.
    f'login=$root/{LOGIN_NAME}; if test -f "$login" && test -O "$login" && test ! -h "$login"; '
    f"then "
    f"echo {LOGIN_NAME}; fi; "
    'why=$(weak_spot "$root"); [ -z "$why" ] || printf "%s%s\\n" "weak " "$why"; '
    '[ ! "$2" ] || if [ -h "$2" ] || { [ -e "$2" ] && [ ! -d "$2" ]; }; then echo dropped; fi',
    "sh",
)
_ROOT_LIMIT_SECONDS = 15.0
_UID_BYTES = 4
_WEAK = "weak "


class LaunchPlan(SubmissionPlan, frozen=True):
    """Plan of a launch: it stages the launch's folder, then submits the script from there.

    `request` is the launched one, with the properties of its queue, and `text` as a person wrote
    it; `staged` is the future content of the folder. `code_state` is that of the repository it is
    launched from, None for none.
    """

    script: BatchScript
    place: Place
    request: Request
    staged: Staged
    text: str
    code_state: CodeState | None = None


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
        self._queues: LaunchQueues | None = None
        # The stamp of the records when they were read, and what _accounts() found in it.
        self._accounts_read: tuple[tuple[int, int] | None, Mapping[str, str]] = (None, {})
        # The stamp of the records when no check of nodes was left to be read.
        self._all_read_at: tuple[int, int] | None = None
        store.reader_command = self._reader_command

    async def root(self) -> str:
        """The folder there that holds launches, absolute; it and the queues are asked for once a
        connection.

        Raises UsageError where storage_root has to be set, and what keeps the cluster from
        answering.
        """
        return await self._root(self.settings.site.storage_root)

    async def _root(self, storage_root: str, switch: str = "") -> str:
        """The folder that is set, '' for the one below the home; and whether a registry's login is
        in it.

        Where it has to be asked for, so is whether a kill switch is there.
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
            found = await self.store.ask(_root_query(storage_root, *filter(None, [switch])))
        except CommandTimedOut:
            if not switch:
                raise
            # Its disk may be another than that of the launches.
            found = await self.store.ask(_root_query(storage_root))
            text = f"cannot tell whether the kill switch {switch} is set: its disk does not respond"
            self._switches[switch] = LintFinding("warning", "", text)
        if found.is_switch_dropped:
            self._switches[switch] = dropped_finding(switch)
        return found

    def render(
        self, request: Request, *, uid: str, root: str = "", staged: bool = False
    ) -> BatchScript:
        """The script of a request, with what the site and its queue say; asks nothing.

        Raises UsageError.
        """
        request, aside = self._in_its_queue(request)
        return self._script(request, self._place(request, uid, root, staged=staged), aside)

    async def plan(
        self,
        requested: Request,
        text: str = "",
        files: Mapping[str, bytes] = MappingProxyType({}),
        base: Path | None = None,
        *,
        waiting: Waiting | None = None,
    ) -> LaunchPlan:
        """Plan the commands of a launch; nothing is staged.

        Raises UsageError, and the errors of an unreachable cluster.

        `text` is the request as a person wrote it, `files` (name → content) are staged with it: its
        `script` that is among them, by its last part, is run from there. `base` is the folder here
        that the request's own `files` are relative to; None: the current one. With `waiting` it is
        an allocation that waits for runs. `Actions.run` runs the plan, `recovery.reconcile` finds
        out what became of a plan whose answer was lost, and `conclude` then records the launch, or
        removes its folder.
        """
        from hpcdash.backends.script.body import with_code_state
        from hpcdash.backends.submissions import Submission
        from hpcdash.services.submit.plan import after_in_full, refuse_large_array

        await self.store.open(force=True)
        if requested.site.run_as:
            submitting_program(self.store)
        if requested.site.run_as and not (
            requested.site.storage_root or self.settings.site.storage_root
        ):
            raise UsageError(
                "storage_root is not set; run_as needs a folder that the other account can enter",
                "Set storage_root in [launch] to the folder of root's program (hpcdash sudoers "
                "--program).",
            )
        from hpcdash.services.submit.checks import request_kill_switch

        where = requested.site.storage_root or self.settings.site.storage_root
        root = await self._root(where, request_kill_switch(requested))
        if requested.site.run_as:
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
        if request.site.run_as and not request.work_dir:
            # Where sudo is called from may be closed to that account.
            request = replace(request, work_dir=place.folder)
        if waiting is not None:
            place = replace(place, waiting=waiting)
        packed = None
        if weak_spot:
            if request.files:
                packed = await self._packed(
                    request, base or Path.cwd(), posixpath.dirname(place.folder)
                )
            request, place = _with_copies(request, place, files, packed and packed[0].digest)
            aside = "; ".join(
                filter(None, (aside, f"{weak_spot}: each node runs a checked copy of what is sent"))
            )
        script = _with_script_warning(self._script(request, place, aside), files.get(name))
        if request.is_task:
            from hpcdash.services.share.submission import require_turn
            from hpcdash.services.submit.request_lint import slot_type_in

            slot_type = slot_type_in(request, await self.queues.offers())
            named = replace(request, name=script.job_name)
            if message := await require_turn(self.store, self.pools, named, slot_type):
                script = replace(script, warnings=(message, *script.warnings))
        code_state = await self._code_state(request, base)
        if code_state is not None:
            script = with_code_state(script, code_state.words)
        content = script.text.encode("utf-8", "surrogateescape")
        await refuse_large_array(self.store, Submission(content, script.job_name))
        planned = build_launch_plan(
            self.store,
            request,
            place,
            script,
            text=text,
            files=files,
            launch_program=self.settings.launch_program,
            code_state=code_state,
            is_copied=bool(weak_spot),
        )
        if not request.files:
            return planned
        packed = packed or await self._packed(request, base or Path.cwd(), planned.staged.root)
        return self._with_code(planned, *packed)

    def _weak_spot(self, storage_root: str, *, is_sites: bool) -> str:
        """Return who else could replace the folder of the launches; '' for nobody.

        Raises UsageError unless the site chose the folder.
        """
        known = self._roots.get(storage_root)
        if known is None or not known.weak_spot or is_sites:
            return "" if known is None else known.weak_spot
        raise UsageError(
            f"{known.weak_spot}, and so others could replace what jobs run from {known.folder}",
            f"Set storage_root to a folder below your home there, or leave it out to use "
            f"~/{LAUNCHES_BELOW_HOME}. "
            "What is yours on the way is closed to others by: chmod go-w",
        )

    async def _code_state(self, request: Request, base: Path | None) -> CodeState | None:
        """Find the code state of the repository that a request and its files are in."""
        from hpcdash.services.submit.provenance import find_code_state

        folder = base or (Path.cwd() if request.files else None)
        return None if folder is None else await asyncio.to_thread(find_code_state, folder)

    def _with_code(
        self, planned: LaunchPlan, packed: PackedCode, arrived: int | None
    ) -> LaunchPlan:
        """With what sends the request's files, between what makes the folder and what submits."""
        from hpcdash.services.submit.code_files import code_command

        root, folder, name = (
            planned.staged.root,
            planned.staged.folder,
            planned.plan.request.job_ids[0],
        )
        command = code_command(
            packed, root, folder, name, arrived, is_copied=planned.staged.is_copied
        )
        first, *others = planned.plan.commands
        notes = (*packed.code.notes, *planned.notes)
        return replace(
            planned, plan=replace(planned.plan, commands=(first, command, *others)), notes=notes
        )

    async def _packed(
        self, request: Request, base: Path, root: str
    ) -> tuple[PackedCode, int | None]:
        """Pack a request's files.

        Also returns how much of them exists there already, as folder_query() reports it.
        """
        from hpcdash.services.submit.code_files import folder_query, pack_code_files

        packed = await asyncio.to_thread(lambda: pack_code_files(self.code_files(request, base)))
        return packed, await self.store.ask(folder_query(root, packed.digest))

    def code_files(self, request: Request, base: Path) -> CodeFiles:
        """Find the files of this machine to be sent with a request. Raises UsageError."""
        from hpcdash.services.submit.code_files import find_code_files

        if request.site.run_as:
            raise UsageError(
                "files: cannot be sent with run_as: root's program writes only the launch's own "
                "files",
                "Leave run_as out, or copy the folder where that account can read it, and set "
                "work_dir to it.",
            )
        return find_code_files(request.files, base, self.settings.files_limit)

    async def plan_run(
        self,
        requested: Request,
        allocation: Allocation,
        title: str,
        text: str,
        files: Mapping[str, bytes],
        base: Path | None,
    ) -> tuple[BatchScript, Staged, Plan]:
        """The script of a request that is run in an allocation, what its folder will hold, and what
        hands it over.

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

        await self.queues.learn()
        request, aside = self._in_its_queue(requested)
        folder = new_run_folder(self.store, allocation)
        name = request.script.rpartition("/")[2]
        script = f"{folder}/{staged_name(name, '')}" if name and name in files else ""
        place = Place(folder.rpartition(".")[2], folder, script=script, is_run=True)
        made = _with_script_warning(self._script(request, place, aside), files.get(name))
        if (code_state := await self._code_state(request, base)) is not None:
            made = with_code_state(made, code_state.words)
        more = {TITLE_NAME: title_content(title)}
        staged = launch_files(
            request, place, made, text=text, files=files, more=more, at=self.store.clock.now()
        )
        code = None
        if request.files:
            code = await self._packed(request, base or Path.cwd(), allocation.root)
            made = replace(made, warnings=(*code[0].code.notes, *made.warnings))
        return made, staged, plan_hand_over(allocation, staged, title, code)

    async def _trust(self, root: str) -> None:
        """Raises UsageError where others could change what root's program keeps; asked for once a
        connection.
        """
        from hpcdash.services.submit.staging import trust_query

        if root not in self._trusted:
            await self.store.ask(trust_query(self.settings.launch_program, root))
            self._trusted.add(root)

    async def findings(self, planned: LaunchPlan) -> tuple[LintFinding, ...]:
        """Check a plan without a query.

        Findings are conflicts with the queues as far as they are known, warnings about the script,
        and a kill switch that existed when the folder of launches was queried.
        """
        from hpcdash.services.submit.checks import request_kill_switch
        from hpcdash.services.submit.request_lint import lint_request

        switch = self._switches.get(request_kill_switch(planned.request))
        found = lint_request(
            planned.request,
            await self.queues.offers(),
            planned.script,
            packs_nodes=self.packs_nodes,
        )
        return (*found, *(() if switch is None else (switch,)))

    @property
    def packs_nodes(self) -> bool:
        """Whether slots that are not counted a node may lie together, on any nodes."""
        writer = self.store.backend.scripts.writer()
        return writer is not None and not writer.ENVIRONMENT.finds_nodes

    async def conclude(self, planned: LaunchPlan, outcome: Outcome) -> str:
        """Remember what was launched, and remove the folder of what surely was not; in words what
        else is to be said.

        To be awaited once how it ended is settled. Raises nothing of HpcdashError.
        """
        from hpcdash.backends.script.call import format_result_path
        from hpcdash.services.submit.cleanup import discarded

        if outcome.done is False:
            version = self.store.probe.version if self.store.probe else ""
            types = await self._gpu_types() if planned.request.gpu_type else ()
            reader = self.store.backend.scripts.reader()
            hint = reader.refusal_hint(outcome.words, version, planned.script.text, (), types)
            left = await discarded(self.store, planned.staged)
            return "; ".join(part for part in (hint, left) if part)
        folder = planned.staged.folder
        result = format_result_path(planned.request, folder)
        message = "; ".join(
            part for part in ("" if outcome.done else f"its files are in {folder}", result) if part
        )
        try:
            text = "" if planned.code_state is None else planned.code_state.words
            await asyncio.to_thread(
                self.records.launched,
                launch_record(planned, outcome, self.store.clock.now()),
                text,
            )
        except StateUnusable as error:
            stored = f"its files are in {folder}, but this could not be recorded: {error.message}"
            return "; ".join(part for part in (message, stored) if part)
        return message

    async def _gpu_types(self) -> tuple[str, ...]:
        """Return the GPU types of the nodes; () if unknown."""
        if self.store.table(Kind.NODES) is None:
            with contextlib.suppress(HpcdashError):
                await self.store.fetch(Kind.NODES)
        return (await self.queues.offers()).gpu_types

    async def tidy(self, *, every_seconds: float = 0.0) -> tuple[str, ...]:
        """Remove the folders of launches that are kept where they failed, and completed; in words
        what was done.

        One question for all that may have ended, none where there is none, nor where any run of
        hpcdash asked within the last `every_seconds`. Raises nothing of HpcdashError.
        """
        if self.state_folder is None:
            return ()
        from hpcdash.services.submit.cleanup import tidied

        async with self._tidying:
            try:
                return await tidied(
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

    @property
    def records(self) -> LaunchRecords:
        """Records of the launches from here."""
        from hpcdash.services.submit.launch_records import LaunchRecords

        return LaunchRecords(self.state_folder, self.store.name)

    @property
    def queues(self) -> LaunchQueues:
        """Known queues of the cluster."""
        from hpcdash.services.submit.queues import LaunchQueues

        if self._queues is None:
            self._queues = LaunchQueues(self.store)
        return self._queues

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
            f"change it",
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
    return Query((*_ROOT, storage_root, *switch), _read_root, _ROOT_LIMIT_SECONDS)


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


def build_launch_plan(
    store: ClusterStore,
    request: Request,
    place: Place,
    script: BatchScript,
    *,
    text: str,
    files: Mapping[str, bytes],
    launch_program: str,
    code_state: CodeState | None = None,
    is_copied: bool = False,
) -> LaunchPlan:
    """The plan of a request whose script is made.

    With run_as, root's `launch_program` there writes the files.

    `is_copied`: others could replace them, and the job runs checked copies; so the scheduler is
    handed the script.

    Raises UsageError for what cannot be staged or submitted.
    """
    from hpcdash.services.submit.staging import staging_command

    run_as = request.site.run_as
    content = script.text.encode("utf-8", "surrogateescape")
    noted = {} if code_state is None else {PROVENANCE_NAME: code_state.text}
    staged = launch_files(
        request,
        place,
        script,
        text=text,
        files=files,
        more=noted,
        launch_program=launch_program,
        at=store.clock.now(),
    )
    staged = replace(staged, is_copied=is_copied)
    submission = Submission(
        script=content,
        name=script.job_name,
        # In the script too, but only the command line is told of a job that has begun.
        after=request.after,
        mark=f"{MARK_START}{secrets.token_hex(5)}",
        file="" if is_copied else f"{place.folder}/{SCRIPT_NAME}",
        run_as=run_as,
        program=submitting_program(store) if run_as else "",
    )
    submit = store.backend.submit.submission(submission)
    not_before = datetime.fromtimestamp(store.clock.now(), UTC) - CLOCKS_APART
    search = Search(submit.mark, submit.job_name or None, not_before, run_as)
    name = submit.command.job_ids[0]
    plan = Plan(
        ActionRequest(Verb.SUBMIT, (name,)),
        (),
        (staging_command(staged, name), submit.named_command),
    )
    return LaunchPlan(
        plan, submit.notes, {name: search}, script, place, request, staged, text, code_state
    )


def launch_files(
    request: Request,
    place: Place,
    script: BatchScript,
    *,
    text: str,
    files: Mapping[str, bytes],
    more: Mapping[str, bytes] = MappingProxyType({}),
    launch_program: str = "",
    at: float = 0.0,
) -> Staged:
    """Build the content of a launch's folder.

    It holds the script, the request, modules that the command imports, and a person's `files`.
    """
    from hpcdash.backends.script.allocation import MARKER_NAME
    from hpcdash.services.submit.staging import MOST_CALL_BYTES, MOST_STAGED_BYTES, staged_files

    own = {**more, SCRIPT_NAME: script.text.encode("utf-8", "surrogateescape")}
    if text:
        own[REQUEST_NAME] = text.encode("utf-8", "surrogateescape")
    if place.waiting is not None:
        own[MARKER_NAME] = b"waits for runs\n"
    if request.is_task:
        own[SUSPEND_NAME] = b""
    own |= _run_files(request, place)
    staged = staged_files(
        place.folder,
        own,
        files,
        run_as=request.site.run_as,
        launch_program=launch_program,
        at=at,
        most_bytes=MOST_CALL_BYTES if request.kind == TASK_KIND else MOST_STAGED_BYTES,
    )
    return replace(staged, owns_root=request.kind == TASK_KIND)


def _run_files(request: Request, place: Place) -> dict[str, bytes]:
    """What a launch's command reads or imports, by its name in the folder."""
    from hpcdash.backends.script.body import has_library, secret_variables, secrets_file
    from hpcdash.backends.script.call import call_files

    found = (
        {LIBRARY_NAME: _library()} if place.waiting is None and has_library(request, place) else {}
    )
    if request.call is not None:
        found |= call_files(request.call)
    if secret_variables(request):
        found[SECRETS_NAME] = secrets_file(request)
    return found


def _with_copies(
    request: Request, place: Place, files: Mapping[str, bytes], code_digest: str | None
) -> tuple[Request, Place]:
    """A request and its place where each node runs checked copies of what is staged, as others
    could replace it.

    `code_digest` is that of the archive of its `files`. Raises UsageError for an allocation, which
    runs what comes.
    """

    if place.waiting is not None:
        raise UsageError(
            "an allocation runs what comes into its folder, which others could replace",
            f"Set storage_root in [site] of the request to a folder below your home, such as "
            f"~/{LAUNCHES_BELOW_HOME}.",
        )
    given = {staged_name(name, ""): content for name, content in files.items()}
    contents = {**_run_files(request, place), **given}
    copies = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    code_folder = ""
    if code_digest is not None and not request.work_dir.startswith("/"):
        copies[CODE_ARCHIVE] = code_digest
        code_folder = f"{CODE_FOLDER}/{request.work_dir}".rstrip("/")
        request = replace(request, work_dir="")
    # The login of a registry is read from the folder too.
    return request, replace(place, copies=copies, code_folder=code_folder, login="")


def launch_record(planned: LaunchPlan, outcome: Outcome, now: float) -> LaunchRecord:
    """Build the record of a launch that was submitted, or may have been."""
    from hpcdash.config.toml_text import without_secrets

    request = planned.request
    return LaunchRecord(
        folder=planned.staged.folder,
        sums=planned.staged.sums_digest,
        job_id=outcome.new_job,
        name=planned.script.job_name,
        keep=request.site.keep,
        run_as=request.site.run_as,
        tasks=request.array.count if request.array else 1,
        at=now,
        request=without_secrets(planned.text),
    )


@cache
def _library() -> bytes:
    from hpcdash.job.zip import job_zip

    try:
        return job_zip()
    except OSError as error:
        raise UsageError(
            f"hpcdash.job cannot be staged: {error}",
            "Set job_library = false and install hpcdash.job yourself.",
        ) from None
