"""The interface of every transport, and its prompts to a person."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from msgspec import Struct

if TYPE_CHECKING:
    from hpcdash.transport.terminal import Terminal

DEFAULT_LIMIT_SECONDS = 30.0
DEFAULT_CAP_BYTES = 256 * 1024 * 1024
# A script prints less than this before it calls the scheduler: the clock, the user, their groups.
HEAD_BYTES = 1024
# Receives each piece of a running command's output.
OnOutput = Callable[[bytes], None]


class CommandResult(Struct, frozen=True):
    """Result of a command: its exit status as in a shell (128 + signal), output and duration.

    `truncated`: it wrote more than the cap and was stopped. `is_copy`: it read a local copy and did
    not query the cluster. `answer_seconds` is the time until the first byte of output beyond
    HEAD_BYTES, or until its end: the scheduler's time, independent of the connection's; None if it
    was not measured. `age_seconds`: another client of the broker had it run so long ago.
    """

    argv: tuple[str, ...]
    status: int
    stdout: bytes
    stderr: bytes
    seconds: float
    truncated: bool = False
    is_copy: bool = False
    answer_seconds: float | None = None
    age_seconds: float = 0.0


class PromptField(Struct, frozen=True):
    """One field of a login node's prompt; the input of a `secret` field is hidden."""

    label: str
    secret: bool = True


class Prompt(Struct, frozen=True):
    """Prompt of a login node: `hop` is user@host[:port], the rest its own (hostile) text.

    `message` is its output since its last prompt, which has been shown already. `requester` is
    the program of one's own that the login is for, where that may be another one.
    """

    hop: str
    title: str
    instructions: str
    fields: tuple[PromptField, ...]
    message: str = ""
    requester: str = ""


class HostKeyQuestion(Struct, frozen=True):
    """An unknown host's key: `fingerprint` in OpenSSH's SHA256:… form; `requester` as in Prompt."""

    hop: str
    algorithm: str
    fingerprint: str
    known_hosts_path: str
    requester: str = ""


class Prompter(Protocol):
    """Prompts a person on behalf of a transport; the screen and the command line implement it."""

    def can_prompt(self) -> bool:
        """Whether a person is present; if not, a login that may need one is not tried."""
        ...

    def show(self, hop: str, text: str) -> None:
        """Show `hop`'s (hostile) output that needs no answer: a banner, "Pushed a login …"."""
        ...

    def waiting(self, hop: str) -> None:
        """Notify that `hop` has not prompted for a while and may wait for an approval elsewhere."""
        ...

    async def answer(self, prompt: Prompt) -> list[str] | None:
        """Return one answer per field, or None if the person gives up."""
        ...

    async def accept_host_key(self, question: HostKeyQuestion) -> bool:
        """Whether to trust (and remember) this key."""
        ...


class Stream(Protocol):
    """A running command's stdout, in chunks; leaving its context ends the command."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...


class Pipe(Stream, Protocol):
    """A running command's stdin and stdout; leaving its context ends the stdin, and the command.

    `stderr` is the end of its error output.
    """

    @property
    def stderr(self) -> bytes: ...

    async def write(self, content: bytes) -> None:
        """Send a part of stdin, and wait while earlier parts have not been read.

        Raises OSError once the command has exited.
        """
        ...

    def write_eof(self) -> None:
        """End the stdin; the command may still write."""
        ...


class Health(Struct):
    """Health of a connection, for the status line and the clusters view.

    `state` is one of: idle, connecting, asking, connected, lost, failed; `detail` is the reason.
    `asking` means that a person may be needed: a prompt is open, or the host waits for an approval.
    `text` is the hosts' (hostile) output in the current or last login, each line after its hop.
    `connected_at` and `retry_at` are epoch seconds; `waiting_since` is when the wait for the person
    started, on the monotonic clock.
    """

    state: str = "idle"
    detail: str = ""
    hops: tuple[str, ...] = ()
    connected_at: float | None = None
    retry_at: float | None = None
    text: str = ""
    waiting_since: float | None = None

    def set_state(self, state: str, detail: str = "") -> None:
        """Change the state and its reason; a connection starts with the state `connected`."""
        self.state = state
        self.detail = detail
        self.connected_at = time.time() if state == "connected" else None


class BrokerUse(Struct, frozen=True):
    """Use of the broker by a program, which `command` names in prompts and in `status`."""

    command: str
    is_read_only: bool
    keep_seconds: float


class Sharing(Struct, frozen=True):
    """Whose answer a query may have: any that is `max_age_seconds` old and newer than the last
    action, or than none if it `outlives_actions`.

    A new command is refused if there were `commands_per_minute` in the last minute.
    """

    max_age_seconds: float
    outlives_actions: bool
    commands_per_minute: int


class Transport(Protocol):
    """One cluster's login node, this machine, or a recording."""

    name: str

    @property
    def health(self) -> Health: ...

    async def connect(self, *, force: bool = False) -> None:
        """Open the connection unless it is open.

        Raises UnreachableError with what was tried and the next step. While a transport backs off,
        or until the user resolves an error, it raises its last error again; `force` tries anyway.
        """
        ...

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
        """Run one command to its end; `on_output` receives each piece of its stderr.

        `on_stdout` receives the pieces of stdout, which then have no size limit and are not in the
        result.

        Raises CommandTimedOut after `limit_seconds` (the command and its children are ended
        remotely as well, the connection stays), UnreachableError if the connection fails. A missing
        command exits with status 127.
        """
        ...

    def stream(self, argv: tuple[str, ...]) -> AbstractAsyncContextManager[Stream]:
        """Run a command and stream its output; leaving the context ends the command."""
        ...

    def open_pipe(self, argv: tuple[str, ...]) -> AbstractAsyncContextManager[Pipe]:
        """Run a command with an open stdin, and stream its stdout; it must end with its stdin.

        Its stdin also ends if this process is killed or the connection is lost.
        """
        ...

    async def adopt_login_environment(self) -> bool:
        """Use a login shell's PATH and related variables; True if that changed anything."""
        ...

    def prepend_path(self, folder: str) -> None:
        """Search `folder` before the PATH, from the next command on."""
        ...

    async def interact(self, argv: tuple[str, ...], terminal: Terminal) -> int | None:
        """Run a command on a person's terminal; return its status, or None if they left it.

        An open connection is reused, and the terminal is restored. Raises UsageError if the
        transport cannot do this, UnreachableError if the connection fails. A missing command exits
        with status 127.
        """
        ...

    async def close(self) -> None:
        """Close the connection, and end everything of ours on the other side."""
        ...


@runtime_checkable
class SharedTransport(Transport, Protocol):
    """A transport whose other end several programs use, which share the answers of queries."""

    async def query(
        self,
        argv: tuple[str, ...],
        *,
        limit_seconds: float,
        cap_bytes: int,
        sharing: Sharing,
    ) -> CommandResult:
        """Run a query, or return a recent answer to an equal one, with its age.

        Raises RateLimited, and the errors of `run`.
        """
        ...

    async def act(
        self,
        argv: tuple[str, ...],
        *,
        stdin: bytes | None,
        limit_seconds: float,
        cap_bytes: int,
        on_output: OnOutput | None,
    ) -> CommandResult:
        """Run a command that changes something, like `run`; no older answer is shared from now on."""
        ...
