"""Builds the notifiers of a configuration, with the passwords and URLs that it keeps elsewhere.

Whatever fails, no word holds a secret.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from hpcdash.config.watch_settings import (
    AppriseSettings,
    CommandSettings,
    MailSettings,
    NotificationChannel,
    NotifierSettings,
    Secret,
    TerminalSettings,
    WebhookSettings,
)
from hpcdash.errors import ConfigError, UsageError
from hpcdash.services.watch.message import Message
from hpcdash.services.watch.notifiers.apprise import AppriseNotifier
from hpcdash.services.watch.notifiers.base import Notifier, NotifyFailed
from hpcdash.services.watch.notifiers.command import CommandNotifier
from hpcdash.services.watch.notifiers.mail import MailNotifier
from hpcdash.services.watch.notifiers.terminal import TerminalNotifier
from hpcdash.services.watch.notifiers.webhook import WebhookNotifier

_MAX_BYTES = 65536
_OTHERS = 0o077


class UnreadyNotifier:
    """Stands for a notifier whose secret is missing, or whose settings cannot work; each message
    tries to build it again.
    """

    def __init__(self, name: str, error: ConfigError, remake: Callable[[], Notifier]) -> None:
        self.name = name
        self.error = error
        self._remake = remake

    @property
    def problem(self) -> str:
        """Reason that nothing can be sent, in one line."""
        return f"{self.name}: {self.error.message}"

    async def send(self, message: Message) -> None:
        """Raises NotifyFailed where it is as it was."""
        try:
            notifier = self._remake()
        except ConfigError as error:
            raise NotifyFailed(
                f"{self.name}: {error.message}.", error.next_step, is_lasting=True
            ) from None
        await notifier.send(message)


def notifier_for(settings: NotifierSettings) -> Notifier:
    """Raises UsageError for settings that cannot work."""
    match settings:
        case MailSettings():
            return MailNotifier(settings)
        case WebhookSettings():
            return WebhookNotifier(settings)
        case CommandSettings():
            return CommandNotifier(settings)
        case TerminalSettings():
            return TerminalNotifier(settings)
        case AppriseSettings():
            return AppriseNotifier(settings)


def build_notifiers(
    notices: Iterable[NotificationChannel], file: str
) -> tuple[list[Notifier], list[str]]:
    """Return the notifiers, and warnings about their secrets; `file` is the configuration's name.

    One that cannot send as things are is an UnreadyNotifier, whose error has the key: the others
    work.
    """
    found: list[Notifier] = []
    warnings: list[str] = []
    for notice in notices:
        remake = partial(_notifier, notice, file, warnings)
        try:
            found.append(remake())
        except ConfigError as error:
            found.append(UnreadyNotifier(_unready_name(notice), error, remake))
    return found, warnings


def unready(notifiers: Iterable[Notifier]) -> list[UnreadyNotifier]:
    """Return the notifiers that cannot send because their secret is missing."""
    return [one for one in notifiers if isinstance(one, UnreadyNotifier)]


def secret_variables(notices: Iterable[NotificationChannel]) -> list[tuple[str, str]]:
    """(key, environment variable) of each secret that is in one."""
    return [
        (f"{notice.key}.{name}_env", secret.variable)
        for notice in notices
        for name, secret in notice.secrets.items()
        if secret.variable
    ]


def _notifier(notice: NotificationChannel, file: str, warnings: list[str]) -> Notifier:
    """Raises ConfigError, with the key, for a secret that is not there and for settings that cannot
    work.
    """
    try:
        return notifier_for(_filled(notice, file, warnings))
    except UsageError as error:
        raise ConfigError(error.message, error.next_step, file=file, key=notice.key) from None


def _unready_name(notice: NotificationChannel) -> str:
    settings = notice.settings
    if isinstance(settings, WebhookSettings | AppriseSettings):
        return replace(settings, key=notice.key).unready_name
    try:
        # Without its secret it is called the same.
        return notifier_for(settings).name
    except UsageError:
        return notice.key


def _filled(notice: NotificationChannel, file: str, warnings: list[str]) -> NotifierSettings:
    lines = {
        name: _lines(secret, file, f"{notice.key}.{name}", warnings)
        for name, secret in notice.secrets.items()
    }
    settings = notice.settings
    match settings:
        case MailSettings() if "password" in lines:
            return replace(settings, password=lines["password"][0])
        case WebhookSettings():
            headers = {
                name.removeprefix("headers."): found[0]
                for name, found in lines.items()
                if name != "url"
            }
            return replace(settings, url=lines["url"][0], headers=headers, key=notice.key)
        case AppriseSettings():
            return replace(settings, urls=tuple(lines["urls"]), key=notice.key)
        case _:
            return settings


def _lines(secret: Secret, file: str, key: str, warnings: list[str]) -> list[str]:
    """Read the secret's lines; raises ConfigError if there are none."""
    if secret.text:
        return [secret.text]
    if secret.variable:
        text = os.environ.get(secret.variable, "")
        if not text.strip():
            message = f"environment variable {secret.variable} is not set"
            raise ConfigError(
                message, "Set it in the environment hpcdash starts in.", file=file, key=f"{key}_env"
            )
    else:
        text = _read(Path(secret.file).expanduser(), file, f"{key}_file", warnings)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        raise ConfigError(
            f"{secret.file} is empty", "Write the secret into it.", file=file, key=f"{key}_file"
        )
    return lines


def _read(path: Path, file: str, key: str, warnings: list[str]) -> str:
    try:
        with path.open("rb") as opened:
            raw = opened.read(_MAX_BYTES)
            if os.fstat(opened.fileno()).st_mode & _OTHERS:
                warnings.append(f"{path}: other users can read this secret; run chmod 600")
    except OSError as error:
        raise ConfigError(
            f"{path}: {error.strerror}", "Check the path.", file=file, key=key
        ) from None
    return raw.decode("utf-8", "replace")
