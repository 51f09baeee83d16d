"""Alerts to a program: JSON on its stdin, and in its environment."""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile

import msgspec

from hpcdash.child_process import ChildProcess
from hpcdash.config.watch_settings import CommandSettings
from hpcdash.errors import UsageError, excerpt, readable_command
from hpcdash.services.watch.message import Message
from hpcdash.services.watch.notifiers.base import Notifier, NotifyFailed, without_secrets

# Linux takes 128 KiB for one variable.
_LONGEST_VARIABLE = 100_000
_EXCERPT_BYTES = 2000


class CommandNotifier(Notifier):
    """Runs a program, without a shell, once a message.

    HPCDASH_SUBJECT, HPCDASH_TEXT, HPCDASH_SEVERITY, HPCDASH_CLUSTER and HPCDASH_ALERT (the JSON)
    are set; what is too long for a variable stands on stdin only. Whatever it starts is ended with
    it at the time limit.
    """

    def __init__(self, settings: CommandSettings) -> None:
        self._settings = settings
        if not settings.argv or not settings.argv[0] or any("\0" in word for word in settings.argv):
            raise UsageError("[[watch.command]] has no argv", 'Set argv = ["/path/to/program"].')
        # Its arguments may be secrets.
        self.name = f"command {readable_command(settings.argv[:1])}"

    async def send(self, message: Message) -> None:
        """Raises NotifyFailed where it cannot be run, ends badly or takes too long."""
        body = msgspec.json.encode(message.payload)
        # Files, not pipes: a program that reads nothing, or leaves one behind that holds on to
        # stderr, is no harm.
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as reported:
            given.write(body)
            given.seek(0)
            try:
                child = ChildProcess(
                    self._settings.argv,
                    stdin=given,
                    stdout=subprocess.DEVNULL,
                    stderr=reported,
                    environment=_environment(message, body),
                )
            except OSError as error:
                step = "Check that it exists and is executable."
                raise NotifyFailed(
                    f"{self.name}: {error.strerror}", step, is_lasting=True
                ) from None
            try:
                async with asyncio.timeout(self._settings.limit_seconds):
                    status = await child.wait()
            except TimeoutError:
                limit = f"{self._settings.limit_seconds:g} s"
                text = f"{self.name}: did not finish within {limit} and was stopped"
                raise NotifyFailed(text, is_lasting=True) from None
            finally:
                if child.returncode is None:
                    await child.kill()
            if status != 0:
                reported.seek(max(0, reported.seek(0, os.SEEK_END) - _EXCERPT_BYTES))
                output = without_secrets(excerpt(reported.read()), self._settings.argv[1:])
                text = f"exit status {status}" if status > 0 else f"ended by signal {-status}"
                text = f"{text}: {output}" if output else text
                raise NotifyFailed(f"{self.name}: {text}")


def _environment(message: Message, body: bytes) -> dict[str, str]:
    own = {
        "HPCDASH_SUBJECT": message.subject,
        "HPCDASH_TEXT": message.text,
        "HPCDASH_SEVERITY": message.severity.word,
        "HPCDASH_CLUSTER": str(message.payload["cluster"]),
        "HPCDASH_ALERT": body.decode(),
    }
    fitting = {
        name: value.replace("\0", "")
        for name, value in own.items()
        if len(value.encode()) < _LONGEST_VARIABLE
    }
    return {**os.environ, **fitting}
