"""Interface of every transport, and its prompts to a person."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct, field

if TYPE_CHECKING:
    from hpcdash.transport.terminal import Terminal

DEFAULT_LIMIT_SECONDS = 30.0
DEFAULT_CAP_BYTES = 256 * 1024 * 1024
# A script's output before it has called the scheduler is less: the clock, the user, their groups.
HEAD_BYTES = 1024
# Takes a piece of what a command writes on stderr while it runs.
OnOutput = Callable[[bytes], None]


class CommandResult(Struct, frozen=True):
    """Result of a command: `status` as a shell gives it (128 + signal), output, and duration.

    `truncated` is true when it wrote more than the cap and was ended for that; `is_copy` where it
    read a local copy, without a query to the cluster. `answer_seconds` is how long it ran before
    the first byte of output beyond HEAD_BYTES, or its end: the scheduler's time, independent of the
    connection's; None where it was not measured.
    """

    argv: tuple[str, ...]
    status: int
    stdout: bytes
    stderr: bytes
    seconds: float
    truncated: bool = False
    is_copy: bool = False
    answer_seconds: float | None = None


class PromptField(Struct, frozen=True):
    """One field of a login node's prompt; `secret` is typed unseen."""

    label: str
    secret: bool = True


class Prompt(Struct, frozen=True):
    """Prompt of a login node: `hop` is user@host[:port], the rest its own (hostile) text.

    `said` is its output since its last prompt, which was shown already.
    """

    hop: str
    title: str
    instructions: str
    fields: tuple[PromptField, ...]
    said: str = ""


class HostKeyQuestion(Struct, frozen=True):
    """An unknown host's key: `fingerprint` in OpenSSH's SHA256:… form."""

    hop: str
    algorithm: str
    fingerprint: str
    known_hosts_path: str


class Prompter(Protocol):
    """Answers a transport's questions; implemented by the screen and by the command line."""

    def can_prompt(self) -> bool:
        """Whether a person is here to answer; where none is, no login that may need one is
        tried.
        """
        ...

    def show(self, hop: str, text: str) -> None:
        """Show `hop`'s (hostile) output that needs no answer: a banner, "Pushed a login …"."""
        ...

    def waiting(self, hop: str) -> None:
        """Notify that `hop` has not prompted for a while and may wait for an approval elsewhere."""
        ...

    async def answer(self, prompt: Prompt) -> list[str] | None:
        """One answer a field, or None when the person gives up."""
        ...

    async def accept_host_key(self, question: HostKeyQuestion) -> bool:
        """Whether to trust (and remember) this key."""
        ...


class Stream(Protocol):
    """A running command's stdout, chunk by chunk; leaving its context ends the command."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...


class Health(Struct):
    """Health of a connection, for the status line and the clusters view.

    `state` is one of: idle, connecting, asking, connected, lost, failed. `detail` is the reason as
    text. `asking` means that a person may be needed: a prompt is open, or the host waits for an
    approval. `text` is the hosts' (hostile) output in this login or the last, each line after its
    hop, `waiting_since` when (monotonic) the wait for the person began.
    """

    state: str = "idle"
    detail: str = ""
    hops: tuple[str, ...] = ()
    connected_at: float | None = None
    last_seconds: float | None = None
    retry_at: float | None = None
    text: str = ""
    waiting_since: float | None = None
    extra: dict[str, str] = field(default_factory=dict)


class Transport(Protocol):
    """One cluster's login node, this machine, or a recording."""

    name: str

    @property
    def health(self) -> Health: ...

    async def connect(self, *, force: bool = False) -> None:
        """Open the connection if it is not open; raises UnreachableError with what was tried and
        the next step.

        While a transport backs off, or waits for the user to settle something, it raises its last
        error again; `force` tries anyway.
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
        """Run one command to its end; `on_output` gets each piece of its stderr as it comes.

        `on_stdout` gets the pieces of stdout, of any length in all; the result has only what was
        not passed to it.

        Raises CommandTimedOut after `limit_seconds` (the command and its children are ended there
        too, the connection stays), UnreachableError when the connection fails. A missing command
        exits with status 127.
        """
        ...

    def stream(self, argv: tuple[str, ...]) -> AbstractAsyncContextManager[Stream]:
        """Run a command whose output is read as it comes, until the context is left."""
        ...

    async def adopt_login_environment(self) -> bool:
        """Use the PATH and the like of a login shell; True if that changed anything."""
        ...

    def prepend_path(self, folder: str) -> None:
        """Search commands in `folder` before the PATH there, from the next command on."""
        ...

    async def interact(self, argv: tuple[str, ...], terminal: Terminal) -> int | None:
        """Run a command there on a person's terminal until it ends; its status, or None where the
        person left it.

        The line that is open is used, where there is one, and the terminal is given back as it was.
        Raises UsageError where nothing can be run so, UnreachableError when the line fails. A
        missing command ends with status 127.
        """
        ...

    async def close(self) -> None:
        """End the line and everything of ours on the other side."""
        ...
