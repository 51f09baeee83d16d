"""Builds the notifiers of a configuration, with the passwords and URLs that it keeps elsewhere.

No message holds a secret.
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


class UnreadyNotifier(Notifier):
    """Stands for a notifier whose secret is missing, or whose settings cannot work; each message
    tries to build it again.
    """

    def __init__(self, name: str, error: ConfigError, rebuild: Callable[[], Notifier]) -> None:
        self.name = name
        self.error = error
        self.problem = f"{name}: {error.message}"
        self._rebuild = rebuild

    async def send(self, message: Message) -> None:
        """Send through the notifier, if it can be built by now; raises NotifyFailed."""
        try:
            notifier = self._rebuild()
        except ConfigError as error:
            text = f"{self.name}: {error.message}."
            raise NotifyFailed(text, error.next_step, is_lasting=True) from None
        await notifier.send(message)


def notifier_for(settings: NotifierSettings) -> Notifier:
    """Build the notifier; raises UsageError for settings that cannot work."""
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
    channels: Iterable[NotificationChannel], file: str
) -> tuple[list[Notifier], list[str]]:
    """Return the notifiers, and warnings about their secrets; `file` is the configuration's name.

    One that cannot send as things are is an UnreadyNotifier, whose error has the key: the others
    work.
    """
    notifiers: list[Notifier] = []
    warnings: list[str] = []
    for channel in channels:
        build = partial(_build_notifier, channel, file, warnings)
        try:
            notifiers.append(build())
        except ConfigError as error:
            notifiers.append(UnreadyNotifier(_unready_name(channel), error, build))
    return notifiers, warnings


def unready(notifiers: Iterable[Notifier]) -> list[UnreadyNotifier]:
    """Return the notifiers that cannot send because their secret is missing."""
    return [notifier for notifier in notifiers if isinstance(notifier, UnreadyNotifier)]


def secret_variables(channels: Iterable[NotificationChannel]) -> list[tuple[str, str]]:
    """Return (key, environment variable) of each secret that is in one."""
    return [
        (f"{channel.key}.{name}_env", secret.variable)
        for channel in channels
        for name, secret in channel.secrets.items()
        if secret.variable
    ]


def _build_notifier(channel: NotificationChannel, file: str, warnings: list[str]) -> Notifier:
    """Build a channel's notifier with its secrets; raises ConfigError, with the key, for a missing
    secret and for settings that cannot work.
    """
    lines = {
        name: _lines(secret, file, f"{channel.key}.{name}", warnings)
        for name, secret in channel.secrets.items()
    }
    settings: NotifierSettings = channel.settings
    match settings:
        case MailSettings() if "password" in lines:
            settings = replace(settings, password=lines["password"][0])
        case WebhookSettings():
            url = lines.pop("url")[0]
            headers = {name.removeprefix("headers."): values[0] for name, values in lines.items()}
            settings = replace(settings, url=url, headers=headers)
        case AppriseSettings():
            settings = replace(settings, urls=tuple(lines["urls"]))
    try:
        notifier = notifier_for(settings)
    except UsageError as error:
        raise ConfigError(error.message, error.next_step, file=file, key=channel.key) from None
    notifier.unready_name = _unready_name(channel)
    return notifier


def _unready_name(channel: NotificationChannel) -> str:
    match channel.settings:
        case WebhookSettings(form=form):
            return f"{form} webhook ({channel.key})"
        case AppriseSettings():
            return f"apprise ({channel.key})"
    try:
        return notifier_for(channel.settings).name
    except UsageError:
        return channel.key


def _lines(secret: Secret, file: str, key: str, warnings: list[str]) -> list[str]:
    """Read the secret's lines; raises ConfigError if there are none."""
    if secret.text:
        return [secret.text]
    if secret.variable:
        text = os.environ.get(secret.variable, "")
        key = f"{key}_env"
        problem = f"environment variable {secret.variable} is not set"
        step = "Set it in the environment hpcdash starts in."
    else:
        key = f"{key}_file"
        text = _read_secret(Path(secret.file).expanduser(), file, key, warnings)
        problem = f"{secret.file} is empty"
        step = "Put the secret in this file."
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        raise ConfigError(problem, step, file=file, key=key)
    return lines


def _read_secret(path: Path, file: str, key: str, warnings: list[str]) -> str:
    try:
        with path.open("rb") as opened:
            raw = opened.read(_MAX_BYTES)
            if os.fstat(opened.fileno()).st_mode & _OTHERS:
                warnings.append(f"{path}: other users can read this secret; run chmod 600")
    except OSError as error:
        problem = f"{path}: {error.strerror}"
        raise ConfigError(problem, "Check the path.", file=file, key=key) from None
    return raw.decode("utf-8", "replace")
