"""Finds, reads and checks the configuration file."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

import platformdirs

from hpcdash.config.document import decode, parse_document, read_bytes, shown_path
from hpcdash.config.locate import key_lines, line_of
from hpcdash.config.problems import ConfigProblems, KeyPath, Problem, dotted
from hpcdash.config.settings import Settings, read_settings
from hpcdash.errors import ConfigError, UsageError

ENVIRONMENT_VARIABLE = "HPCDASH_CONFIG"


def config_path(explicit: Path | None = None) -> tuple[Path, bool]:
    """The file to read and whether it was asked for by name, so must be there.

    That is `explicit`, else $HPCDASH_CONFIG, else config.toml in the user's configuration folder (XDG_CONFIG_HOME).
    """
    if explicit is not None:
        return explicit, True
    named = path_variable(ENVIRONMENT_VARIABLE)
    if named is not None:
        return named, True
    return platformdirs.user_config_path("hpcdash") / "config.toml", False


def path_variable(name: str) -> Path | None:
    """The path that an environment variable names; None where it is not set. Raises UsageError where it is empty."""
    named = os.environ.get(name)
    if named is None:
        return None
    if not named.strip():
        raise UsageError(f"${name} is empty", f"Give it a path, or unset {name}.")
    return Path(named)


def load_settings(path: Path | None = None, *, action_names: Collection[str] | None = None) -> Settings:
    """Read the configuration: `path`, else where config_path() says; defaults when the usual file is not there.

    `action_names`, where given, are the only keys [keys] may have. Raises ConfigError: with file, line and key for
    every problem of what the file says (ConfigProblems), with the file alone when it cannot be read.
    """
    file, must_exist = config_path(path)
    raw = read_bytes(file)
    if raw is None:
        if must_exist:
            raise ConfigError(
                "there is no such file",
                f"Give --config or ${ENVIRONMENT_VARIABLE} a file that exists, or leave them out.",
                file=shown_path(file),
            )
        return Settings()
    return settings_from_text(decode(raw, shown_path(file)), file, action_names=action_names)


def settings_from_text(text: str, file: Path, *, action_names: Collection[str] | None = None) -> Settings:
    """Settings of a TOML text; `file` is where it came from. Raises ConfigProblems."""
    named = shown_path(file)
    document = parse_document(text, named)
    settings, problems = read_settings(document, file, action_names)
    if problems:
        raise ConfigProblems(named, _in_order(text, problems))
    return settings


def _in_order(text: str, problems: list[tuple[KeyPath, str]]) -> list[Problem]:
    lines = key_lines(text)
    placed = [Problem(line_of(lines, path), dotted(path), message) for path, message in problems]
    return sorted(placed, key=lambda problem: problem.line or 0)
