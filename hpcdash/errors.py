"""Every error hpcdash shows a person: what was run, what came back, what to do next."""

from __future__ import annotations

import re
import shlex

EXIT_REFUSED = 1
EXIT_USAGE = 2
EXIT_UNREACHABLE = 3
_EXCERPT_BYTES = 2000
# A list of columns is of no use to a person; the command and its options are.
_WORD_LETTERS = 60
_SEPARATOR = re.compile("\x1e[0-9A-Za-z]+")


def excerpt(raw: bytes, limit: int = _EXCERPT_BYTES) -> str:
    """The end of a command's own words as text; invalid UTF-8 becomes U+FFFD."""
    # Of hundreds of megabytes only the end is decoded; a letter has four bytes at most.
    text = raw.rstrip()[-4 * limit - 4 :].decode("utf-8", "replace").strip()
    return text if len(text) <= limit else "… " + text[-limit:]


def without_env(argv: tuple[str, ...]) -> tuple[str, ...]:
    """The words from the program on: without a leading `env`, its `-u NAME` and its
    `NAME=value`.
    """
    if argv[:1] != ("env",):
        return argv
    position = 1
    while position < len(argv):
        if argv[position] == "-u":
            position += 2
        elif "=" in argv[position]:
            position += 1
        else:
            break
    return argv[position:]


def program_name(argv: tuple[str, ...]) -> str:
    """The command a person would name: the first word after `env` and its settings."""
    return next(iter(without_env(argv)), "")


def readable_command(argv: tuple[str, ...]) -> str:
    """A command as a person would know it: no `env` settings, control bytes made visible, very long
    words cut.

    The random separators of a poll's fields are left out.
    """
    argv = tuple(_SEPARATOR.sub("…", word) for word in argv)
    shown = [
        word if len(word) <= _WORD_LETTERS else word[:_WORD_LETTERS] + "…"
        for word in without_env(argv)
    ]
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in shlex.join(shown))


class HpcdashError(Exception):
    """Base of all: `message` says what happened, `next_step` what to do, `exit_status` how a
    one-shot command ends.
    """

    exit_status = EXIT_REFUSED

    def __init__(self, message: str, next_step: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step

    def __str__(self) -> str:
        return f"{self.message}\n{self.next_step}" if self.next_step else self.message


class Declined(Exception):
    """A person answered no to a question; nothing was done."""


class UsageError(HpcdashError):
    """Wrong arguments, or an expression that cannot be read."""

    exit_status = EXIT_USAGE


class ConfigError(HpcdashError):
    """A configuration that cannot be used; names the file, the line and the key."""

    exit_status = EXIT_USAGE

    def __init__(
        self,
        message: str,
        next_step: str = "",
        *,
        file: str = "",
        line: int | None = None,
        key: str = "",
    ):
        where = file + (f":{line}" if line is not None else "")
        super().__init__(": ".join(part for part in (where, key, message) if part), next_step)
        self.file = file
        self.line = line
        self.key = key


class QueryError(UsageError):
    """A filter that cannot be read; `position` is the 0-based offset of the first bad character in
    `expression`.
    """

    def __init__(self, message: str, expression: str, position: int) -> None:
        super().__init__(f"{message}\n  {expression}\n  {' ' * position}^")
        self.short = message
        self.expression = expression
        self.position = position


class UnreachableError(HpcdashError):
    """The cluster could not be asked; what was known stays on the screen and the next try is up to
    the poller.
    """

    exit_status = EXIT_UNREACHABLE


class ConnectionFailed(UnreachableError):
    """The line to a login node could not be opened, or broke."""


class NotSent(ConnectionFailed):
    """The line broke before a command, or what it was to read, was sent: nothing was done."""


class AuthenticationFailed(UnreachableError):
    """A login node did not accept who we are, or nobody was there to answer its question."""


class LoginRequired(AuthenticationFailed, NotSent):
    """Connecting again would take a person (a password, a code, an approval), so it waits until one
    asks for it.
    """


class HostKeyChanged(UnreachableError):
    """A host shows another key than the one in known_hosts: never accepted, never asked about."""


class HostKeyRefused(UnreachableError):
    """An unknown host's key that the person (or the ssh configuration) did not accept."""


def without_program(line: str) -> str:
    """Return a message without the program before it: `sbatch: error: Invalid …`."""
    return re.sub(r"^[\w.-]{1,40}: (?:error: |fatal: )?", "", line)


class CommandError(HpcdashError):
    """A command that ended badly: `argv`, its exit `status` (None: no status) and its output."""

    def __init__(
        self,
        message: str,
        next_step: str = "",
        *,
        argv: tuple[str, ...] = (),
        status: int | None = None,
        output: str = "",
    ) -> None:
        super().__init__(message, next_step)
        self.argv = argv
        self.status = status
        self.output = output

    @property
    def evidence(self) -> str:
        """The command, its exit status and its output, over several lines."""
        lines = [f"command: {readable_command(self.argv)}"] if self.argv else []
        if self.status is not None:
            lines.append(f"exit status: {self.status}")
        if output := self.output_beside_message:
            lines.append(f"output: {output}")
        return "\n".join(lines)

    @property
    def output_beside_message(self) -> str:
        """The output; '' where the message has all of it."""
        is_included = without_program(self.output) in self.message
        return "" if is_included else self.output

    def __str__(self) -> str:
        return "\n".join(part for part in (self.message, self.evidence, self.next_step) if part)


class CommandTimedOut(CommandError):
    """A command given up on after its time limit; the connection is still good.

    `answer_seconds` is after how long its output had begun to come, as in CommandResult; None: it
    had not.
    """

    exit_status = EXIT_UNREACHABLE
    answer_seconds: float | None = None


class CommandMissing(CommandError):
    """The scheduler's command is not on the PATH of the login node."""

    exit_status = EXIT_UNREACHABLE


class CommandElsewhere(CommandMissing):
    """The scheduler's command is not on the PATH of the login node, but in `folder` there."""

    def __init__(self, message: str, folder: str, *, argv: tuple[str, ...] = ()) -> None:
        super().__init__(message, argv=argv, status=127)
        self.folder = folder


class ControllerDown(CommandError):
    """The scheduler's controller does not answer; its commands are there."""

    exit_status = EXIT_UNREACHABLE


class NoConfiguration(ControllerDown):
    """The scheduler's commands are there and belong to no cluster."""


class AccountingUnavailable(CommandError):
    """The scheduler keeps no history here, or its database does not answer."""


class SchedulerRefused(CommandError):
    """The scheduler said no, in its output."""


class NoSuchJob(CommandError):
    """No list and no history knows this job."""


class UnreadableOutput(CommandError):
    """A command succeeded but printed something that is not its format."""


class NotRecorded(HpcdashError):
    """A replayed case does not hold the answer to this command."""

    exit_status = EXIT_UNREACHABLE


class RateLimited(HpcdashError):
    """Our own ceiling on commands a minute was reached; asked again later."""

    exit_status = EXIT_UNREACHABLE
