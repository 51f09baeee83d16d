"""Login node over ssh: one persistent connection, with commands in parallel channels."""

from __future__ import annotations

import asyncio
import importlib
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcdash.domain.units import format_age
from hpcdash.errors import (
    AuthenticationFailed,
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
    Stream,
)
from hpcdash.transport.local import timed_out
from hpcdash.transport.shell import (
    BEGIN_SECONDS,
    interactive_command,
    never_began,
    noise_failure,
    remote_command,
    shell_failure,
)
from hpcdash.transport.shell_environment import fetch_login_environment

if TYPE_CHECKING:
    import asyncssh

    from hpcdash.transport.ssh_line import SshLine
    from hpcdash.transport.ssh_login import Login
    from hpcdash.transport.ssh_session import RunSession, StreamSession, TerminalSession
    from hpcdash.transport.terminal import Terminal

# sshd allows 10 sessions a connection (MaxSessions); two are left for what a person does through
# the same master.
CHANNELS = 8
STREAMS = 5
# Between attempts to open a channel.
_CHANNEL_PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8)
# For a person who waits for it: commands of ours that hold all sessions there end meanwhile.
_MORE_PAUSES = (1.6, 3.2, 3.2)
FIRST_RETRY_SECONDS = 5.0
LONGEST_RETRY_SECONDS = 120.0
# A line that is lost again and again is not opened more often by itself.
MAX_LOGINS = 6
LOGINS_SECONDS = 300.0
# A stream whose line died unseen ends on the login node after a day at most.
STREAM_LIMIT_SECONDS = 86_400.0
# Errors that only a person can fix are not retried until a person requests it.
_NEEDS_A_PERSON = (AuthenticationFailed, HostKeyChanged, HostKeyRefused, ConfigError)
_OPENED_AGAIN = "The next command reconnects."
_LOG_IN_AGAIN = "Log in again: ctrl+r in the dashboard, or run the command again."


class SshStream:
    """A running remote command's stdout; `stderr` is the end of what it complained of, `status` how
    it ended.
    """

    def __init__(self, session: StreamSession, check: Callable[[], object]) -> None:
        """`check` raises where the command did not run to its end."""
        self._session = session
        self._check = check

    @property
    def status(self) -> int | None:
        return self._session.status

    @property
    def stderr(self) -> bytes:
        return self._session.stderr

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
    ) -> None:
        """`config_path` is read in place of ~/.ssh/config, `known_hosts` in place of all
        known_hosts files.

        `environment` is set for each command on the login node; `path` goes before the PATH there.
        """
        self.name = destination
        self.health = Health()
        self.environment = dict(environment or {})
        self.path = path
        self._prompter = prompter
        self._config_path = config_path
        self._known_hosts = known_hosts
        self._login: Login | None = None
        self._line: SshLine | None = None
        self._opening: asyncio.Task[SshLine] | None = None
        self._waiting = 0
        self._failures = 0
        # When logins were begun (monotonic), the newest last.
        self._logins: deque[float] = deque(maxlen=MAX_LOGINS)
        self._last_error: HpcdashError | None = None
        self._channels = asyncio.Semaphore(CHANNELS)
        self._streams = asyncio.Semaphore(STREAMS)

    async def connect(self, *, force: bool = False) -> None:
        """Open the line if it is not open.

        Until `health.retry_at`, and after an error that only a person can mend, the last error is
        raised again without a try; `force` tries at once. A line that was lost is opened again at
        once, unless a person was ever needed. Raises UnreachableError, or ConfigError for an
        unreadable ssh configuration.
        """
        await self._open_line(force)

    async def run(
        self,
        argv: tuple[str, ...],
        *,
        stdin: bytes | None = None,
        limit_seconds: float = DEFAULT_LIMIT_SECONDS,
        cap_bytes: int = DEFAULT_CAP_BYTES,
        on_output: OnOutput | None = None,
        on_stdout: OnOutput | None = None,
    ) -> CommandResult:
        """Run one command on the login node; see Transport.run."""
        return await self._run(
            argv,
            stdin=stdin,
            limit_seconds=limit_seconds,
            cap_bytes=cap_bytes,
            environment=self.environment,
            on_output=on_output,
            on_stdout=on_stdout,
        )

    async def _run(
        self,
        argv: tuple[str, ...],
        *,
        stdin: bytes | None,
        limit_seconds: float,
        cap_bytes: int,
        environment: dict[str, str],
        on_output: OnOutput | None = None,
        on_stdout: OnOutput | None = None,
    ) -> CommandResult:
        from hpcdash.transport.ssh_session import RunSession

        command = remote_command(
            argv,
            limit_seconds=limit_seconds,
            environment=environment,
            path=self.path,
            stdin_bytes=None if stdin is None else len(stdin),
        )
        line = await self._open_line()
        program = program_name(argv)
        is_sent = stdin is None
        async with self._channels:
            started = time.monotonic()
            session = RunSession(command, cap_bytes, on_output, on_stdout)
            try:
                async with asyncio.timeout(limit_seconds):
                    await self._start(
                        line, command.text, session, f"running {program}", does_read=not is_sent
                    )
                    async with asyncio.timeout(BEGIN_SECONDS):
                        has_begun = await session.begin()
                    # Were the shell replaced by an rc file (exec zsh), its successor would run what
                    # is sent.
                    if stdin is not None and has_begun:
                        try:
                            session.send(stdin)
                        except OSError as error:
                            lost = session.lost or error
                            raise self._line_lost(
                                lost, f"running {program}", is_sent=False
                            ) from error
                    await session.wait()
            except TimeoutError:
                if noise := self._noise_failure(session, program, is_sent=is_sent):
                    raise noise from None
                if not session.marked_stdout.seen:
                    stderr = session.marked_stderr
                    waited = min(limit_seconds, BEGIN_SECONDS)
                    raise never_began(self.name, program, waited, stderr, is_sent=is_sent) from None
                raise timed_out(
                    argv, limit_seconds, self.name, session.stderr, session.answer_seconds
                ) from None
            finally:
                session.abort()
            seconds = time.monotonic() - started
        self.health.last_seconds = seconds
        status = self._status(session, program, is_sent=is_sent)
        # Ours came first as a rule; a stalled client may find that the limit over there has struck.
        if status in (124, 137) and seconds > limit_seconds:
            raise timed_out(argv, limit_seconds, self.name, session.stderr, session.answer_seconds)
        return CommandResult(
            argv,
            status,
            session.stdout,
            session.stderr,
            seconds,
            session.truncated,
            answer_seconds=session.answer_seconds,
        )

    @asynccontextmanager
    async def stream(self, argv: tuple[str, ...]) -> AsyncIterator[Stream]:
        """Run a command whose output is read as it comes; leaving the context ends it over
        there.
        """
        from hpcdash.transport.ssh_session import StreamSession

        command = remote_command(
            argv, limit_seconds=STREAM_LIMIT_SECONDS, environment=self.environment, path=self.path
        )
        line = await self._open_line()
        async with self._streams, self._channels:
            session = StreamSession(command)
            try:
                async with asyncio.timeout(DEFAULT_LIMIT_SECONDS):
                    await self._start(line, command.text, session, f"starting {program_name(argv)}")
            except TimeoutError:
                raise timed_out(argv, DEFAULT_LIMIT_SECONDS, self.name, b"") from None
            try:
                yield SshStream(
                    session, lambda: self._status(session, program_name(argv), "reading")
                )
            finally:
                session.abort()

    async def adopt_login_environment(self) -> bool:
        """Take PATH, LD_LIBRARY_PATH and SLURM_CONF from the person's login shell; True when that
        changed any.

        For when a command is missing (status 127): many sites set the scheduler's PATH where only
        login shells read it.
        """
        found = await fetch_login_environment(partial(self._run, stdin=None, environment={}))
        changed = {
            name: value for name, value in found.items() if self.environment.get(name) != value
        }
        self.environment.update(changed)
        return bool(changed)

    def prepend_path(self, folder: str) -> None:
        """Have a folder go before the PATH there."""
        self.path = f"{folder}:{self.path}" if self.path else folder

    async def interact(self, argv: tuple[str, ...], terminal: Terminal) -> int | None:
        """Run a command there on a person's terminal, in a channel of the open line; see
        Transport.interact.
        """
        from hpcdash.transport.ssh_session import TerminalSession

        line = await self._open_line()
        session = TerminalSession()
        program = program_name(argv)
        text = interactive_command(argv, self.environment, self.path)
        try:
            await self._start(line, text, session, f"running {program}", terminal=terminal)
            if not await terminal.lend(session):
                return None
        finally:
            session.abort()
        if session.status is None:
            raise self._line_lost(session.lost, f"{program} ran on your terminal")
        return session.status

    async def open_connection(self, host: str, port: int) -> tuple[Any, Any]:
        """A reader and writer of a connection from the login node on; no port of this machine
        listens for it.
        """
        import asyncssh

        line = await self._open_line()
        try:
            return await line.connection.open_connection(host, port, encoding=None)
        except asyncssh.Error as error:
            raise ConnectionFailed(
                f"{self.name} opens no connection to {host}:{port}: {error.reason}",
                "Is the server up there? sshd refuses all of them where AllowTcpForwarding is no.",
            ) from error

    async def close(self) -> None:
        """End the line; what runs over there is ended with it."""
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait({self._opening})
        line = self._line
        self._line = None
        if line is not None:
            await line.close()
        self.health.state, self.health.detail, self.health.retry_at = "idle", "", None

    async def _open_line(self, force: bool = False) -> SshLine:
        """Return the open connection; all callers wait for the same attempt to open it."""
        if self._line is not None:
            return self._line
        if self._opening is None:
            if not force:
                self._refuse_early_retry()
            self._opening = asyncio.create_task(self._open())
        opening = self._opening
        self._waiting += 1
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            # No caller is left: no prompt may stay open.
            if self._waiting == 1 and not opening.done():
                opening.cancel()
            if opening.cancelled() and not _being_cancelled():
                raise NotSent(f"Connecting to {self.name} was aborted.", "Connect again.") from None
            raise
        finally:
            self._waiting -= 1

    def _refuse_early_retry(self) -> None:
        error = self._last_error
        wait_is_on = self.health.retry_at is not None and time.time() < self.health.retry_at
        if error is not None and (isinstance(error, _NEEDS_A_PERSON) or wait_is_on):
            raise error.with_traceback(None)
        if wait := self._login_wait_seconds():
            self.health.retry_at = time.time() + wait
            # The reason of the last failure is more useful than the number of logins.
            self._last_error = error or NotSent(
                f"The line to {self.name} was lost too often: {MAX_LOGINS} logins within "
                f"{format_age(LOGINS_SECONDS)}.",
                f"It is opened again in {format_age(wait)}; ctrl+r tries now.",
            )
            self.health.state, self.health.detail = "failed", self._last_error.message
            raise self._last_error.with_traceback(None)

    def _login_wait_seconds(self) -> float:
        """Return the seconds until the connection may be reopened automatically; 0: now."""
        if len(self._logins) < MAX_LOGINS:
            return 0.0
        return max(0.0, self._logins[0] + LOGINS_SECONDS - time.monotonic())

    async def _open(self) -> SshLine:
        # 0.1 to 0.2 s of importing, in which the screen would not answer a key.
        await asyncio.to_thread(importlib.import_module, "hpcdash.transport.ssh_login")
        from hpcdash.transport.ssh_config import hops_to
        from hpcdash.transport.ssh_login import Login

        health = self.health
        health.state, health.detail, health.retry_at = "connecting", "", None
        self._logins.append(time.monotonic())
        try:
            if (
                self._login is None
                or self._failures
                or isinstance(self._last_error, _NEEDS_A_PERSON)
            ):
                hops = await asyncio.to_thread(
                    hops_to, self.name, self._config_path, self._known_hosts
                )
                health.hops = tuple(hop.label for hop in hops)
                if self._login is None or self._login.hops != hops:
                    self._login = Login(hops, self._prompter, health)
            line = await self._login.open(self._lost)
        except (UnreachableError, ConfigError) as failed:
            error = failed
            if not isinstance(failed, _NEEDS_A_PERSON):
                # Another attempt would prompt the person again.
                error = (LoginRequired if self._is_attended else NotSent)(
                    failed.message, failed.next_step
                )
            self._failures += 1
            self._last_error = error
            health.state, health.detail = "failed", error.message
            if not isinstance(error, _NEEDS_A_PERSON):
                health.retry_at = time.time() + retry_seconds(self._failures)
            if error is failed:
                raise
            raise error from failed.__cause__
        except asyncio.CancelledError:
            health.state, health.detail = "idle", ""
            if self._is_attended:
                self._last_error = LoginRequired(
                    f"Logging in to {self.name} was aborted.", _LOG_IN_AGAIN
                )
            raise
        finally:
            self._opening = None
        self._failures = 0
        self._last_error = None
        self._line = line
        health.state, health.detail, health.connected_at = "connected", "", time.time()
        return line

    @property
    def _is_attended(self) -> bool:
        """Whether the last login took a person, so that another one has to be requested."""
        return self._login is not None and self._login.attended

    def _lost(self, reason: str) -> None:
        """Note that the connection ended without our closing it, and open it again where no person
        is needed.
        """
        line = self._line
        self._line = None
        if line is None:
            return
        line.abort()
        self.health.state, self.health.connected_at = "lost", None
        self.health.detail = reason or "the login node closed the connection"
        if self._is_attended:
            self._last_error = LoginRequired(
                f"The line to {self.name} was lost: {self.health.detail}. It is not opened again "
                "by itself, as that would ask you to log in.",
                _LOG_IN_AGAIN,
            )
        elif self._opening is None and not self._login_wait_seconds():
            self._opening = asyncio.create_task(self._open())
            # The next caller gets the connection's error.
            self._opening.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _start(
        self,
        line: SshLine,
        command: str,
        session: RunSession | StreamSession | TerminalSession,
        doing: str,
        *,
        does_read: bool = False,
        terminal: Terminal | None = None,
    ) -> asyncssh.SSHClientChannel[bytes]:
        """Open a channel and start the command in it.

        A channel that opens after a timeout is closed.

        A login node frees a session a moment after its command has exited: a refused channel is
        requested again. A command that `does_read` does nothing before its stdin is whole, so that
        a command that did not start is NotSent. With a `terminal` it has one there, and running
        commands are waited for longer.
        """
        import asyncssh

        pty: dict[str, Any] = {"request_pty": False}
        if terminal is not None:
            pty = {"request_pty": "force", "term_type": terminal.kind, "term_size": terminal.size}
        for pause in (*_CHANNEL_PAUSES, *(_MORE_PAUSES if terminal else ()), None):
            opening = asyncio.ensure_future(
                line.connection.create_session(lambda: session, command, encoding=None, **pty)
            )
            try:
                channel, _ = await asyncio.shield(opening)
                return channel
            except asyncio.CancelledError:
                opening.add_done_callback(_close_late)
                raise
            except asyncssh.ChannelOpenError as error:
                if self._line is not line:
                    raise self._line_lost(error, doing, is_sent=not does_read) from error
                if error.code == asyncssh.OPEN_REQUEST_PTY_FAILED:
                    raise NotSent(
                        f"{self.name} gives no terminal: {error.reason}.",
                        "It may forbid them (PermitTTY no); commands without one still run.",
                    ) from error
                if pause is None:
                    raise (NotSent if does_read else ConnectionFailed)(
                        f"{self.name} opened no channel for {doing}: {error.reason}.",
                        "It may allow few sessions at once (MaxSessions); close other windows "
                        "on it.",
                    ) from error
            except (asyncssh.Error, OSError) as error:
                raise self._line_lost(error, doing, is_sent=not does_read) from error
            await asyncio.sleep(pause)
        raise AssertionError("a refused channel is told")

    def _status(
        self,
        session: RunSession | StreamSession,
        program: str,
        doing: str = "running",
        *,
        is_sent: bool = True,
    ) -> int:
        """Return a command's exit status; raises where it did not finish, or not properly."""
        if noise := self._noise_failure(session, program, is_sent=is_sent):
            raise noise
        if session.status is None:
            raise self._line_lost(session.lost, f"{doing} {program}")
        if not session.truncated and (
            failure := shell_failure(
                self.name,
                program,
                session.status,
                session.marked_stdout,
                session.marked_stderr,
                session.stderr,
                is_sent=is_sent,
            )
        ):
            raise failure
        return session.status

    def _noise_failure(
        self, session: RunSession | StreamSession, program: str, *, is_sent: bool
    ) -> ConnectionFailed | None:
        return noise_failure(
            self.name, program, session.marked_stdout, session.marked_stderr, is_sent=is_sent
        )

    def _line_lost(
        self, error: Exception | None, doing: str, *, is_sent: bool = True
    ) -> ConnectionFailed:
        reason = f": {error}" if error is not None and str(error) else ""
        again = _LOG_IN_AGAIN if self._is_attended else _OPENED_AGAIN
        if not is_sent:
            return NotSent(f"The line to {self.name} was lost before {doing}{reason}.", again)
        return ConnectionFailed(f"The line to {self.name} was lost while {doing}{reason}.", again)


def retry_seconds(failures: int) -> float:
    """Return the wait in seconds after so many failures in a row.

    It is 5 s doubled up to 2 min, less up to half at random.
    """
    longest = min(LONGEST_RETRY_SECONDS, FIRST_RETRY_SECONDS * float(2 ** min(failures - 1, 10)))
    return longest * random.uniform(0.5, 1.0)


def _close_late(opening: asyncio.Future[tuple[asyncssh.SSHClientChannel[Any], Any]]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result()[0].abort()


def _being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
