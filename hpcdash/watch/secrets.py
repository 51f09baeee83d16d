"""Fills in what a configuration keeps elsewhere: a password, a URL. Whatever fails, no word holds a secret."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from hpcdash.errors import ConfigError, UsageError
from hpcdash.watch.configured import Notice, Secret
from hpcdash.watch.notifiers.base import Notifier
from hpcdash.watch.notifiers.delivery import notifier_for
from hpcdash.watch.settings import AppriseSettings, MailSettings, NotifierSettings, WebhookSettings

_MOST_BYTES = 65536
_OTHERS = 0o077


def notifiers_of(notices: Iterable[Notice], file: str) -> tuple[list[Notifier], list[str]]:
    """(those who tell, what a person should know of their secrets); `file` is the configuration's name.

    Raises ConfigError, with the key, for a secret that is not there and for settings that cannot work.
    """
    found: list[Notifier] = []
    warnings: list[str] = []
    for notice in notices:
        try:
            found.append(notifier_for(_filled(notice, file, warnings)))
        except UsageError as error:
            raise ConfigError(error.message, error.next_step, file=file, key=notice.key) from None
    return found, warnings


def _filled(notice: Notice, file: str, warnings: list[str]) -> NotifierSettings:
    lines = {name: _lines(secret, file, f"{notice.key}.{name}", warnings) for name, secret in notice.secrets.items()}
    settings = notice.settings
    match settings:
        case MailSettings() if "password" in lines:
            return replace(settings, password=lines["password"][0])
        case WebhookSettings():
            headers = {name.removeprefix("headers."): found[0] for name, found in lines.items() if name != "url"}
            return replace(settings, url=lines["url"][0], headers=headers)
        case AppriseSettings():
            return replace(settings, urls=tuple(lines["urls"]))
        case _:
            return settings


def _lines(secret: Secret, file: str, key: str, warnings: list[str]) -> list[str]:
    """What it says, a line each; raises ConfigError where there is nothing."""
    if secret.text:
        return [secret.text]
    if secret.variable:
        text = os.environ.get(secret.variable, "")
        if not text.strip():
            words = f"the environment variable {secret.variable} is not set"
            raise ConfigError(words, "Set it where hpcdash is started.", file=file, key=f"{key}_env")
    else:
        text = _read(Path(secret.file).expanduser(), file, f"{key}_file", warnings)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        raise ConfigError(f"{secret.file} is empty", "Write the secret into it.", file=file, key=f"{key}_file")
    return lines


def _read(path: Path, file: str, key: str, warnings: list[str]) -> str:
    try:
        with path.open("rb") as opened:
            raw = opened.read(_MOST_BYTES)
            if os.fstat(opened.fileno()).st_mode & _OTHERS:
                warnings.append(f"{path}: others may read this secret; chmod 600 keeps it to you")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", "Is the path right?", file=file, key=key) from None
    return raw.decode("utf-8", "replace")
