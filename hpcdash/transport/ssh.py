"""A login node over ssh: one persistent connection, with commands in parallel channels."""

from __future__ import annotations

import asyncio
import importlib
import itertools
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcdash.domain.units import format_age
from hpcdash.errors import (
    AuthenticationFailed,
    CommandTimedOut,
    ConfigError,
    ConnectionFailed,
    HostKeyChanged,
    HostKeyRefused,
    HpcdashError,
    LoginRequired,
    NotSent,
    UnreachableError,
    program_name,
)
from hpcdash.transport.base import (
    DEFAULT_CAP_BYTES,
    DEFAULT_LIMIT_SECONDS,
    CommandResult,
    Health,
    OnOutput,
    Prompter,
)
from hpcdash.transport.local import timed_out
from hpcdash.transport.shell import (
    BEGIN_SECONDS,
    RemoteOutput,
    interactive_command,
    remote_command,
)
from hpcdash.transport.shell_environment import RemoteEnvironment

if TYPE_CHECKING:
    import asyncssh

    from hpcdash.transport.ssh_connection import SshConnection
    from hpcdash.transport.ssh_login import Login
    from hpcdash.transport.ssh_session import RunSession, StreamSession, TerminalSession
    from hpcdash.transport.terminal import Terminal

# sshd allows 10 sessions per connection (MaxSessions); two are left for a person's own use of the
# same master.
CHANNELS = 8
STREAMS = 5
# Pauses between attempts to open a channel.
_CHANNEL_PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8)
# More attempts while a person waits: our own commands may be using all sessions.
_TERMINAL_PAUSES = (1.6, 3.2, 3.2)
FIRST_RETRY_SECONDS = 5.0
LONGEST_RETRY_SECONDS = 120.0
# A connection that is lost repeatedly is not reopened automatically more often than this.
MAX_LOGINS = 6
LOGINS_SECONDS = 300.0
# A stream whose connection died unnoticed ends on the login node after a day.
STREAM_LIMIT_SECONDS = 86_400.0
# Errors that only a person can fix are not retried until a person requests it.
_NEEDS_A_PERSON = (AuthenticationFailed, HostKeyChanged, HostKeyRefused, ConfigError)
_RECONNECTS = "The next command reconnects."
_LOG_IN_AGAIN = "Log in again: ctrl+r in the dashboard, or run the command again."


class SshStream:
    """A running remote command's stdout; `stderr` is the end of its error output."""

    def __init__(self, session: StreamSession, check: Callable[[], object]) -> None:
        """`check` raises if the command did not run to its end."""
        self._session = session
        self._check = check

    @property
    def status(self) -> int | None:
        return self._session.status

    @property
    def stderr(self) -> bytes:
        return self._session.stderr

    async def write(self, content: bytes) -> None:
        await self._session.write(content)

    def write_eof(self) -> None:
        self._session.write_eof()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._session.chunks():
            yield chunk
        self._check()


class SshTransport:
    """A login node named as [user@]host[:port] or by its Host in ~/.ssh/config."""

    def __init__(
        self,
        destination: str,
        prompter: Prompter,
        *,
        config_path: Path | None = None,
        known_hosts: Path | None = None,
        environment: dict[str, str] | None = None,
        path: str = "",
        other_logins: Sequence[str] = (),
    ) -> None:
        """`config_path` replaces ~/.ssh/config, `known_hosts` replaces all known_hosts files.

        `other_logins` are destinations that are tried in turn if `destination` cannot be reached,
        unless a login took a person.

        `environment` is set for each command on the login node; `path` goes before its PATH.
        """
        self.name = destination
        # The present login node is the first.
        self._logins_in_turn = deque([destination, *other_logins])
        self.health = Health()
        self._environment = RemoteEnvironment(environment, path)
        self._prompter = prompter
        self._config_path = config_path
        self._known_hosts = known_hosts
        self._login: Login | None = None
        self._connection: SshConnection | None = None
        self._opening: asyncio.Task[SshConnection] | None = None
        self._waiting = 0
        self._failures = 0
        # Start of the latest logins, on the monotonic clock.
        self._logins: deque[float] = deque(maxlen=MAX_LOGINS)
        self._last_error: HpcdashError | None = None
        self._channels = asyncio.Semaphore(CHANNELS)
        self._streams = asyncio.Semaphore(STREAMS)

    async def connect(self, *, force: bool = False) -> None:
        """Open the connection unless it is open.

        Until `health.retry_at`, and after an error that only a person can fix, the last error is
        raised again without an attempt; `force` tries at once. A lost connection is reopened at
        once, unless any login needed a person. Raises UnreachableError, or ConfigError for an
        unreadable ssh configuration.
        """
        await self._require_connection(force)

    async def run(
        self,
        argv: tuple[str, ...],
        *,
        stdin: bytes | None = None,
        limit_seconds: float = DEFAULT_LIMIT_SECONDS,
        cap_bytes: int = DEFAULT_CAP_BYTES,
        on_output: OnOutput | None = None,
        on_stdout: OnOutput | None = None,
        environment: RemoteEnvironment | None = None,
    ) -> CommandResult:
        """Run one command on the login node; see Transport.run.

        `environment` replaces the transport's own variables and PATH.
        """
        from hpcdash.transport.ssh_session import RunSession

        environment = environment or self._environment
        command = remote_command(
            argv,
            limit_seconds=limit_seconds,
            environment=environment.variables,
            path=environment.path,
            stdin_bytes=None if stdin is None else len(stdin),
        )
        connection = await self._require_connection()
        program = program_name(argv)
        doing = f"running {program}"
        reads_stdin = stdin is not None
        output = RemoteOutput(command, host=self.name, program=program, reads_stdin=reads_stdin)
        async with self._channels:
            started = time.monotonic()
            session = RunSession(output, cap_bytes, on_output, on_stdout)
            try:
                async with asyncio.timeout(limit_seconds):
                    await self._start(
                        connection,
                        command.text,
                        session,
                        doing=doing,
                        reads_stdin=reads_stdin,
                    )
                    async with asyncio.timeout(BEGIN_SECONDS):
                        has_begun = await session.begin()
                    # If an rc file replaces the shell (exec zsh), that one would run the stdin.
                    if stdin is not None and has_begun:
                        try:
                            session.send(stdin)
                        except OSError as error:
                            lost = session.lost or error
                            raise self._connection_lost(lost, doing, has_started=False) from error
                    await session.wait()
            except TimeoutError:
                if noise := output.noise_failure():
                    raise noise from None
                if not output.stdout.seen:
                    raise output.start_failure(min(limit_seconds, BEGIN_SECONDS)) from None
                raise self._timed_out(argv, limit_seconds, session) from None
            finally:
                session.abort()
            seconds = time.monotonic() - started
        status = self._status(session, doing)
        # After a stall here, the remote limit may have been reached first.
        if status in (124, 137) and seconds > limit_seconds:
            raise self._timed_out(argv, limit_seconds, session)
        return CommandResult(
            argv=argv,
            status=status,
            stdout=session.stdout,
            stderr=session.stderr,
            seconds=seconds,
            truncated=session.truncated,
            answer_seconds=session.answer_seconds,
        )

    def _timed_out(
        self, argv: tuple[str, ...], limit_seconds: float, session: RunSession
    ) -> CommandTimedOut:
        return timed_out(
            argv,
            limit_seconds,
            where=self.name,
            stderr=session.stderr,
            answer_seconds=session.answer_seconds,
        )

    def stream(
        self, argv: tuple[str, ...], environment: RemoteEnvironment | None = None
    ) -> AbstractAsyncContextManager[SshStream]:
        """Run a command and stream its output; leaving the context ends the command.

        `environment` is as in `run`.
        """
        return self._stream(argv, environment)

    def open_pipe(
        self, argv: tuple[str, ...], environment: RemoteEnvironment | None = None
    ) -> AbstractAsyncContextManager[SshStream]:
        """Run a command with an open stdin; see Transport.open_pipe. `environment` is as in `run`."""
        return self._stream(argv, environment, is_pipe=True)

    @asynccontextmanager
    async def _stream(
        self,
        argv: tuple[str, ...],
        environment: RemoteEnvironment | None,
        *,
        is_pipe: bool = False,
    ) -> AsyncIterator[SshStream]:
        from hpcdash.transport.ssh_session import StreamSession

        environment = environment or self._environment
        command = remote_command(
            argv,
            limit_seconds=STREAM_LIMIT_SECONDS,
            environment=environment.variables,
            path=environment.path,
            is_pipe=is_pipe,
        )
        program = program_name(argv)
        output = RemoteOutput(command, host=self.name, program=program, reads_stdin=False)
        connection = await self._require_connection()
        async with self._streams, self._channels:
            session = StreamSession(output)
            try:
                async with asyncio.timeout(DEFAULT_LIMIT_SECONDS):
                    await self._start(
                        connection, command.text, session, doing=f"starting {program}"
                    )
            except TimeoutError:
                raise timed_out(argv, DEFAULT_LIMIT_SECONDS, self.name, b"") from None
            try:
                yield SshStream(session, lambda: self._status(session, f"reading {program}"))
            finally:
                session.abort()

    async def adopt_login_environment(self) -> bool:
        unset = RemoteEnvironment(None, self._environment.path)
        return await self._environment.adopt(partial(self.run, environment=unset))

    def prepend_path(self, folder: str) -> None:
        self._environment.prepend_path(folder)

    async def interact(
        self,
        argv: tuple[str, ...],
        terminal: Terminal,
        environment: RemoteEnvironment | None = None,
    ) -> int | None:
        """Run a command on a person's terminal, in a channel of the open connection.

        See Transport.interact; `environment` is as in `run`.
        """
        from hpcdash.transport.ssh_session import TerminalSession

        environment = environment or self._environment

        connection = await self._require_connection()
        session = TerminalSession()
        program = program_name(argv)
        text = interactive_command(argv, environment.variables, environment.path)
        try:
            await self._start(
                connection, text, session, doing=f"running {program}", terminal=terminal
            )
            if not await terminal.lend(session):
                return None
        finally:
            session.abort()
        if session.status is None:
            raise self._connection_lost(session.lost, f"{program} ran on your terminal")
        return session.status

    async def open_connection(self, host: str, port: int) -> tuple[Any, Any]:
        """Open a connection from the login node on, without a listening port on this machine.

        Returns its reader and its writer.
        """
        import asyncssh

        connection = await self._require_connection()
        try:
            return await connection.last_hop.open_connection(host, port, encoding=None)
        except asyncssh.Error as error:
            raise ConnectionFailed(
                f"{self.name} cannot connect to {host}:{port}: {error.reason}",
                "Is the server running? Is AllowTcpForwarding set to no in the login node's "
                "sshd_config?",
            ) from error

    async def close(self) -> None:
        """Close the connection; remote commands end with it."""
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait({self._opening})
        connection = self._connection
        self._connection = None
        if connection is not None:
            await connection.close()
        self.health.set_state("idle")
        self.health.retry_at = None

    async def _require_connection(self, force: bool = False) -> SshConnection:
        """Return the open connection; all callers share one attempt to open it."""
        if self._connection is not None:
            return self._connection
        if self._opening is None:
            if not force:
                self._refuse_early_retry()
            self._opening = asyncio.create_task(self._open())
        opening = self._opening
        self._waiting += 1
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            # Without a caller, no prompt may stay open.
            if self._waiting == 1 and not opening.done():
                opening.cancel()
            task = asyncio.current_task()
            is_being_cancelled = task is not None and task.cancelling() > 0
            if opening.cancelled() and not is_being_cancelled:
                raise NotSent(f"Connecting to {self.name} was aborted.", "Connect again.") from None
            raise
        finally:
            self._waiting -= 1

    def _refuse_early_retry(self) -> None:
        error = self._last_error
        is_too_early = self.health.retry_at is not None and time.time() < self.health.retry_at
        if error is not None and (isinstance(error, _NEEDS_A_PERSON) or is_too_early):
            raise error.with_traceback(None)
        if wait := self._login_wait_seconds():
            self.health.retry_at = time.time() + wait
            # The reason of the last failure is more useful than the number of logins.
            self._last_error = error or NotSent(
                f"The connection to {self.name} dropped too often: {MAX_LOGINS} logins within "
                f"{format_age(LOGINS_SECONDS)}.",
                f"Reconnecting in {format_age(wait)} (ctrl+r: now).",
            )
            self.health.set_state("failed", self._last_error.message)
            raise self._last_error.with_traceback(None)

    def _login_wait_seconds(self) -> float:
        """Return the seconds until the connection may be reopened automatically, 0 for now."""
        if len(self._logins) < MAX_LOGINS:
            return 0.0
        return max(0.0, self._logins[0] + LOGINS_SECONDS - time.monotonic())

    async def _open(self) -> SshConnection:
        # Its import takes 0.1 to 0.2 s, during which the screen would not respond.
        await asyncio.to_thread(importlib.import_module, "hpcdash.transport.ssh_login")

        self.health.set_state("connecting")
        self.health.retry_at = None
        self._logins.append(time.monotonic())
        try:
            connection = await self._log_in()
        except (UnreachableError, ConfigError) as failed:
            error = failed
            if not isinstance(failed, _NEEDS_A_PERSON):
                # Another attempt would prompt the person again.
                kind = LoginRequired if self.is_attended else NotSent
                error = kind(failed.message, failed.next_step)
            self._failures += 1
            self._last_error = error
            self.health.set_state("failed", error.message)
            if not isinstance(error, _NEEDS_A_PERSON):
                self.health.retry_at = time.time() + retry_seconds(self._failures)
            if error is failed:
                raise
            raise error from failed.__cause__
        except asyncio.CancelledError:
            self.health.set_state("idle")
            if self.is_attended:
                self._last_error = LoginRequired(
                    f"Logging in to {self.name} was aborted.", _LOG_IN_AGAIN
                )
            raise
        finally:
            self._opening = None
        self._failures = 0
        self._last_error = None
        self._connection = connection
        self.health.set_state("connected")
        return connection

    async def _log_in(self) -> SshConnection:
        """Log in to the login node, or to the next one that can be reached."""
        for left in range(len(self._logins_in_turn) - 1, -1, -1):
            login = await self._updated_login()
            try:
                return await login.open(self._lost)
            except UnreachableError as failed:
                if not left or isinstance(failed, _NEEDS_A_PERSON) or self.is_attended:
                    raise
                self._logins_in_turn.rotate(-1)
                self.name = self._logins_in_turn[0]
                self._login = None
        raise AssertionError("there is a login node")

    async def _updated_login(self) -> Login:
        """Return the login; after a failure, the ssh configuration is read again for it."""
        from hpcdash.transport.ssh_config import hops_to
        from hpcdash.transport.ssh_login import Login

        has_failed = self._failures > 0 or isinstance(self._last_error, _NEEDS_A_PERSON)
        if self._login is not None and not has_failed:
            return self._login
        hops = await asyncio.to_thread(hops_to, self.name, self._config_path, self._known_hosts)
        self.health.hops = tuple(hop.label for hop in hops)
        if self._login is None or self._login.hops != hops:
            self._login = Login(hops, self._prompter, self.health)
        return self._login

    @property
    def logins(self) -> int:
        """Logins of late, at most MAX_LOGINS."""
        return len(self._logins)

    @property
    def is_attended(self) -> bool:
        """Whether the last login took a person, so that another one must be requested."""
        return self._login is not None and self._login.attended

    def _lost(self, reason: str) -> None:
        """Handle a lost connection: reopen it if that does not need a person."""
        connection = self._connection
        self._connection = None
        if connection is None:
            return
        connection.abort()
        self.health.set_state("lost", reason or "the login node closed the connection")
        if self.is_attended:
            self._last_error = LoginRequired(
                f"The connection to {self.name} was lost: {self.health.detail}. It is not reopened "
                "automatically, as you would have to log in.",
                _LOG_IN_AGAIN,
            )
        elif self._opening is None and not self._login_wait_seconds():
            self._opening = asyncio.create_task(self._open())
            # The next caller gets the connection's error.
            self._opening.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _start(
        self,
        connection: SshConnection,
        command: str,
        session: RunSession | StreamSession | TerminalSession,
        *,
        doing: str,
        reads_stdin: bool = False,
        terminal: Terminal | None = None,
    ) -> None:
        """Open a channel and start the command in it, with a remote terminal if one is given.

        A login node frees a session a moment after its command has exited, so a refused channel is
        requested again, for longer if a person waits at a terminal. A command that `reads_stdin`
        does nothing before its stdin is complete, so an error is NotSent. A channel that opens
        after a timeout is closed.
        """
        import asyncssh

        pty: dict[str, Any] = {"request_pty": False}
        pauses: tuple[float, ...] = _CHANNEL_PAUSES
        if terminal is not None:
            pty = {"request_pty": "force", "term_type": terminal.kind, "term_size": terminal.size}
            pauses += _TERMINAL_PAUSES
        for attempt in itertools.count():
            opening = asyncio.ensure_future(
                connection.last_hop.create_session(lambda: session, command, encoding=None, **pty)
            )
            try:
                await asyncio.shield(opening)
                return
            except asyncio.CancelledError:
                opening.add_done_callback(_close_late)
                raise
            except asyncssh.ChannelOpenError as error:
                if self._connection is not connection:
                    raise self._connection_lost(
                        error, doing, has_started=not reads_stdin
                    ) from error
                if error.code == asyncssh.OPEN_REQUEST_PTY_FAILED:
                    raise NotSent(
                        f"{self.name} does not provide a terminal: {error.reason}.",
                        "It may forbid terminals (PermitTTY no); commands without one still run.",
                    ) from error
                if attempt == len(pauses):
                    kind = NotSent if reads_stdin else ConnectionFailed
                    raise kind(
                        f"{self.name} did not open a channel for {doing}: {error.reason}.",
                        "It may limit sessions per connection (MaxSessions); close other "
                        "windows on it.",
                    ) from error
            except (asyncssh.Error, OSError) as error:
                raise self._connection_lost(error, doing, has_started=not reads_stdin) from error
            await asyncio.sleep(pauses[attempt])

    def _status(self, session: RunSession | StreamSession, doing: str) -> int:
        """Return a command's exit status; raises if it did not finish, or not properly."""
        if noise := session.output.noise_failure():
            raise noise
        if session.status is None:
            raise self._connection_lost(session.lost, doing)
        if not session.truncated:
            failure = session.output.exit_failure(session.status, session.stderr)
            if failure is not None:
                raise failure
        return session.status

    def _connection_lost(
        self, error: Exception | None, doing: str, *, has_started: bool = True
    ) -> ConnectionFailed:
        reason = f": {error}" if error is not None and str(error) else ""
        kind = ConnectionFailed if has_started else NotSent
        when = "while" if has_started else "before"
        return kind(
            f"The connection to {self.name} was lost {when} {doing}{reason}.",
            _LOG_IN_AGAIN if self.is_attended else _RECONNECTS,
        )


def retry_seconds(failures: int) -> float:
    """Return the wait after consecutive failures: 5 s doubled up to 2 min, less a random part.

    The random part is at most half.
    """
    longest = min(LONGEST_RETRY_SECONDS, FIRST_RETRY_SECONDS * float(2 ** min(failures - 1, 10)))
    return longest * random.uniform(0.5, 1.0)


def _close_late(opening: asyncio.Future[tuple[asyncssh.SSHClientChannel[Any], Any]]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result()[0].abort()
