"""A port of a running job on this machine, for as long as the job runs."""

from __future__ import annotations

import asyncio
import os
import secrets
import shlex
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from msgspec import Struct

from hpcdash.backends.base import Capability
from hpcdash.domain.states import ACTIVE
from hpcdash.domain.text import visible
from hpcdash.embedded.machine import node_name
from hpcdash.errors import (
    AuthenticationFailed,
    ConnectionFailed,
    HpcdashError,
    LoginRequired,
    NoSuchJob,
    SchedulerRefused,
    UnreachableError,
    UsageError,
    excerpt,
)
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.forward.address import (
    LogAddress,
    fetch_log_address,
    listen,
    other_users,
)
from hpcdash.services.forward.records import ForwardRecord, ForwardRecords
from hpcdash.services.forward.relay import HeadPort, Listener, Relay, relay_command
from hpcdash.services.inside.run import fetch_inside_row
from hpcdash.services.jobs.connect import ShellPlan, plan_shell
from hpcdash.services.session import ClusterSession
from hpcdash.services.state.journal import started_ticks
from hpcdash.shell_files import shell_text

_FIRST_PAUSE_SECONDS = 1.0
_MAX_PAUSE_SECONDS = 30.0
_CHECK_SECONDS = 2.0
_SESSION_SECONDS = 15.0
_HEAD_SECONDS = 10.0
_PRINT_SECONDS = 1.0
# Of a plan, until the command is known.
_PLACEHOLDER = ("true",)


class ForwardRequest(Struct, frozen=True):
    """Far `port` of a job on `node` ('': its first), and how to reach it here.

    `local` is a port of this machine, None for the same if it is free; without `is_tcp` it is a
    unix socket. `is_for_browser`: a socket is of no use. `is_here`: the cluster's commands run on
    this machine. `shares_connection`: other commands of this process use the connection as well.
    """

    job_id: str
    port: int
    node: str = ""
    local: int | None = None
    is_tcp: bool = True
    is_for_browser: bool = False
    is_here: bool = False
    shares_connection: bool = False


class Forward:
    """Runs a forward: a listener here, a relay in the job, again after a lost connection.

    `on_change` is called when `status` changes. `local` is the address here once it listens.
    """

    def __init__(
        self,
        store: ClusterStore,
        records: ForwardRecords,
        request: ForwardRequest,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.store = store
        self.request = request
        self.status = "starting"
        self.is_open = False
        self.node = ""
        self.local = ""
        self.local_port = 0
        self._token = secrets.token_hex(4)
        self._records = records
        self._on_change = on_change
        self._relay: Relay | HeadPort | None = None
        # Whether the user's own program has ever listened on the far port.
        self._was_open = False
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def title(self) -> str:
        place = f" on {visible(self.node)}" if self.node else ""
        return f"port {self.request.port} of job {visible(self.request.job_id)}{place}"

    async def run(self) -> str:
        """Serve until the job ends; return how it ended.

        Raises UsageError if the job is not the user's or not running, or if the port is not the
        user's; the errors of the first connection.
        """
        request = self.request
        await self.store.open()
        self.store.backend.require(Capability.FORWARD)
        if Capability.CONNECT not in self.store.backend.capabilities:
            return await self._serve_head()
        plan = await self._plan()
        self.node = plan.node
        is_port_here = request.is_here and plan.node.partition(".")[0] == node_name()
        if is_port_here and request.local in (None, request.port):
            return await self._wait_here()
        if request.is_for_browser and not request.is_tcp:
            raise UsageError(
                "a browser cannot open a unix socket, which is the default here",
                "With --tcp it is a port, to which other users of this machine can connect.",
            )
        async with self._serving():
            return await self._keep_relaying(plan)

    async def fetch_url(self) -> str:
        """Return the address for a browser, with the path and token of the job's log.

        Of a unix socket it is that of the same port on the person's own machine.
        """
        port = self.request.port
        nodes = (self.node.partition(".")[0],)
        found = await fetch_log_address(self.store, self.request.job_id, port, nodes)
        if found is None:
            # A server may listen before it prints its address.
            await asyncio.sleep(_PRINT_SECONDS)
            found = await fetch_log_address(self.store, self.request.job_id, port, nodes)
        return f"http://127.0.0.1:{self.local_port or port}{(found or LogAddress(port)).path}"

    def write_page(self, url: str) -> Path:
        """Write the page that leads a browser to an address, as no command line may show it."""
        return self._records.write_page(self._token, url)

    @property
    def ssh_command(self) -> str:
        """Return the command of the person's own machine that reaches the unix socket."""
        forwarding = f"{self.request.port}:{self.local}"
        return shlex.join(("ssh", "-N", "-L", forwarding, socket.gethostname()))

    async def _plan(self) -> ShellPlan:
        return await plan_shell(
            self.store,
            self.request.job_id,
            self.request.node,
            _PLACEHOLDER,
            is_outside=True,
            has_terminal=False,
        )

    def _set_status(self, status: str, *, is_open: bool = False) -> None:
        if (status, is_open) == (self.status, self.is_open):
            return
        self.status = status
        self.is_open = is_open
        self._was_open |= is_open
        if self.local:
            self._write_record()
        self._on_change()

    def _write_record(self) -> None:
        record = ForwardRecord(
            cluster=self.store.name,
            job=self.request.job_id,
            node=self.node,
            port=self.request.port,
            local=self.local,
            status=self.status,
            pid=os.getpid(),
            ticks=started_ticks(os.getpid()),
        )
        # A full disk ends no forward.
        with suppress(OSError):
            self._records.write(self._token, record)

    def _take_listener(self, listener: Listener) -> None:
        """Set the status by the far port's user. Raises UsageError if it was another's first."""
        if listener.is_own:
            self._set_status("open", is_open=True)
        elif listener.uid is None:
            self._set_status(f"waiting for a program that listens on {self.title}")
        else:
            place = f" on {visible(self.node)}" if self.node else ""
            text = f"port {self.request.port}{place} belongs to uid {listener.uid}, not to you"
            self._set_status(f"refused: {text}")
            if not self._was_open:
                raise UsageError(
                    f"{text} (uid {listener.own_uid})",
                    "Have your program listen on another port: another user's program could read "
                    "all that you send, such as the token.",
                )

    # -- a port of this machine

    async def _wait_here(self) -> str:
        """Wait until the job's program listens on this machine, whose port needs no forward."""
        script = shell_text("services/forward/listener.sh") + '\nlistener "$1"'
        argv = ("sh", "-c", script, "sh", str(self.request.port))
        self.local_port = self.request.port
        while not self.is_open:
            parts = (await self.store.transport.run(argv)).stdout.split()
            uid = int(parts[1]) if len(parts) == 2 else None
            self._take_listener(Listener(os.geteuid(), uid))
            if uid is None:
                await asyncio.sleep(_CHECK_SECONDS)
                await self._plan()
        return f"{self.title} is on this machine: it needs no forward"

    # -- a port of the head

    async def _serve_head(self) -> str:
        """Serve until the job ends, without a relay: its server's host is the far end."""
        from hpcdash.transport.http import HttpTransport

        transport = self.store.transport
        assert isinstance(transport, HttpTransport)
        head = HeadPort(transport.open_port, self.request.port)
        await head.check()
        async with self._serving():
            self._relay = head
            self._set_status("open", is_open=True)
            while True:
                await asyncio.sleep(_HEAD_SECONDS)
                try:
                    row = (await self.store.fetch_detail(self.request.job_id)).job.to_pylist()[0]
                except NoSuchJob as error:
                    return error.message
                except HpcdashError as error:
                    self._raise_if_final(error)
                    continue
                self._set_status("open", is_open=True)
                if row["state"] not in ACTIVE:
                    return f"job {visible(self.request.job_id)} has ended ({row['state']})"

    # -- connections of this machine

    @asynccontextmanager
    async def _serving(self) -> AsyncIterator[None]:
        """Listen on this machine; at the end close all connections and remove the record."""
        request = self.request
        self._records.prepare()
        path = self._records.path(self._token, ".sock")
        with listen(path, request.port, request.local, is_tcp=request.is_tcp) as address:
            self.local = address.text
            self.local_port = address.port
            start = asyncio.start_unix_server if address.path else asyncio.start_server
            server = await start(self._accept, sock=address.listening)
            try:
                yield
            finally:
                server.close()
                for task in self._connections:
                    task.cancel()
                await asyncio.gather(*self._connections, return_exceptions=True)
                self._records.remove(self._token)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry a connection; without an open port it is closed at once."""
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if self._relay is not None:
                await self._relay.carry(reader, writer)
        except (OSError, HpcdashError):
            # Its client sees the end.
            pass
        finally:
            self._connections.discard(task)
            writer.close()

    # -- the relay

    async def _keep_relaying(self, plan: ShellPlan) -> str:
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                await self._relay_once(plan)
                pause = _FIRST_PAUSE_SECONDS
                self._set_status("reconnecting")
            except (UnreachableError, SchedulerRefused) as error:
                self._raise_if_final(error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE_SECONDS)
            try:
                plan = await self._plan()
            except (UsageError, NoSuchJob) as error:
                # The job has ended, or is pending again.
                return error.message
            except HpcdashError as error:
                self._raise_if_final(error)

    def _raise_if_final(self, error: HpcdashError) -> None:
        """Raise an error of the first connection, or one that takes a person; report others."""
        if not self._was_open or isinstance(error, AuthenticationFailed | LoginRequired):
            raise error
        self._set_status(f"reconnecting: {error.message}")

    async def _relay_once(self, plan: ShellPlan) -> None:
        """Run a relay to its end. Raises SchedulerRefused if it does not start."""
        port = self.request.port
        argv = plan.argv_with(relay_command(self._token, port))
        carry_argv = plan.argv_with(relay_command(self._token, port, "carry"))
        refusal: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def changed() -> None:
            assert relay.listener is not None
            try:
                self._take_listener(relay.listener)
            except UsageError as error:
                if not refusal.done():
                    refusal.set_exception(error)

        async with plan.transport.open_pipe(argv) as pipe:
            relay = Relay(plan.transport, pipe, self._token, carry_argv, changed)
            self._relay = relay
            tasks: list[asyncio.Future[None]] = [asyncio.ensure_future(relay.run()), refusal]
            if self.request.shares_connection:
                tasks.append(asyncio.ensure_future(self._require_more_sessions(relay)))
            try:
                while not any(task.done() for task in tasks[:2]):
                    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        task.result()
                    tasks = [task for task in tasks if task not in done or task in tasks[:2]]
            finally:
                self._relay = None
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            if relay.listener is None:
                raise SchedulerRefused(
                    f"no relay starts in job {visible(self.request.job_id)}",
                    "Only its owner can start one, while it runs.",
                    output=excerpt(pipe.stderr) or "no output",
                )

    async def _require_more_sessions(self, relay: Relay) -> None:
        """Raise UsageError if the relay occupies the connection's only session."""
        try:
            await self.store.transport.run(("true",), limit_seconds=_SESSION_SECONDS)
        except ConnectionFailed as error:
            if self._relay is relay:
                job = visible(self.request.job_id)
                raise UsageError(
                    "the login node allows one session per connection (MaxSessions 1), which the "
                    "relay would occupy",
                    "In another terminal it has a connection of its own: hpcdash forward "
                    f"{job} {self.request.port}",
                ) from error


async def _wait_for_address(
    store: ClusterStore, job_id: str, report: Callable[[str], None]
) -> LogAddress:
    """Return the newest address in a running job's log, once it has one."""
    pause = _FIRST_PAUSE_SECONDS
    while (found := await fetch_log_address(store, job_id)) is None:
        if Capability.CONNECT in store.backend.capabilities:
            await fetch_inside_row(store, job_id)
        if pause == _FIRST_PAUSE_SECONDS:
            job = visible(job_id)
            report(
                f"waiting for the address of a server in the log of job {job}; to give the port: "
                f"hpcdash forward {job} 8888"
            )
        pause = min(2 * pause, _MAX_PAUSE_SECONDS)
        await asyncio.sleep(pause)
    return found


async def build_request(
    session: ClusterSession,
    job_id: str,
    ports: tuple[int, int | None] | None,
    *,
    node: str = "",
    shares_connection: bool = False,
    report: Callable[[str], None] = lambda text: None,
) -> tuple[ForwardRequest, str]:
    """Build the request with its defaults; return it and why it is a unix socket, '' for a port.

    Without `ports`, the port is that of the newest address in the job's log, for which it waits;
    `report` is called once if it does. Raises UsageError if the job is not running.
    """
    if ports is None:
        await session.store.open()
        ports = (await _wait_for_address(session.store, job_id, report)).port, None
    is_here = session.settings is None or session.settings.transport == "local"
    users = await other_users()
    why = ""
    if is_here:
        why = "this machine is a host of the cluster"
    elif users:
        why = f"other users are logged in on this machine ({visible(', '.join(users))})"
    request = ForwardRequest(
        job_id,
        ports[0],
        node,
        ports[1],
        is_tcp=not why,
        is_here=is_here,
        shares_connection=shares_connection,
    )
    return request, why
