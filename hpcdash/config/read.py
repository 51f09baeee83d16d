"""Reader of the configuration file."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

import platformdirs

from hpcdash.config.document import decode, parse_document, read_bytes, shown_path
from hpcdash.config.locate import located
from hpcdash.config.problems import ConfigProblems, KeyPath
from hpcdash.config.settings import Settings, read_settings
from hpcdash.errors import ConfigError, UsageError
from hpcdash.private_files import find_weak_spot, is_private_group

ENVIRONMENT_VARIABLE = "HPCDASH_CONFIG"
# Checks the settings as a whole against what only the caller knows.
Check = Callable[[Settings], Iterable[tuple[KeyPath, str]]]


def config_path(explicit: Path | None = None) -> tuple[Path, bool]:
    """Return the file to read, and whether it must exist because it was named.

    The file is `explicit`, else $HPCDASH_CONFIG, else config.toml in the user's configuration
    folder (XDG_CONFIG_HOME).
    """
    if explicit is not None:
        return explicit, True
    from_environment = path_variable(ENVIRONMENT_VARIABLE)
    if from_environment is not None:
        return from_environment, True
    return platformdirs.user_config_path("hpcdash") / "config.toml", False


def path_variable(name: str) -> Path | None:
    """Return the path that an environment variable names; None if it is not set.

    Raises UsageError if it is empty.
    """
    path = os.environ.get(name)
    if path is None:
        return None
    if not path.strip():
        raise UsageError(f"${name} is empty", f"Set it to a path, or unset {name}.")
    return Path(path)


def load_settings(
    path: Path | None = None,
    *,
    action_names: Collection[str] | None = None,
    check: Check | None = None,
) -> Settings:
    """Read the configuration from `path` or config_path(); defaults if the usual file is missing.

    With `action_names`, [keys] may have only these and aliases. `check` checks settings without
    other problems. Raises ConfigProblems, with line and key of each problem in the file's text, or
    ConfigError if the file cannot be read, or if others can write it: it names programs to run.
    """
    file, must_exist = config_path(path)
    raw = read_bytes(file)
    if raw is None:
        if must_exist:
            raise ConfigError(
                "no such file",
                f"Set --config or ${ENVIRONMENT_VARIABLE} to an existing file, or remove it.",
                file=shown_path(file),
            )
        return Settings()
    is_sites = _check_owners(file)
    # Only someone who controls the home could replace the usual file.
    spot = find_weak_spot(file.absolute()) if must_exist else None
    # The owner of a folder above may maintain the site's software, and root's group is root's.
    if spot is not None and not spot.owner and spot.group != "root":
        raise ConfigError(
            f"{spot.message}, so others could replace it: it controls what hpcdash runs",
            f"Run: chmod go-w {shown_path(Path(spot.path))}, or keep it below your home.",
            file=shown_path(file),
        )
    text = decode(raw, shown_path(file))
    return settings_from_text(text, file, action_names=action_names, check=check, is_sites=is_sites)


def _check_owners(file: Path) -> bool:
    """Return whether a file is the site's: root's, and not the user's own.

    Raises ConfigError if a user other than root could change or replace it. It checks the file and
    its folder, and for a symbolic link the link's own folder too. A folder like /tmp, where users
    may only replace their own files, is accepted, and so is a group without other members.
    """
    target = Path(os.path.realpath(file))
    folders = (file.absolute().parent, target.parent)
    try:
        statuses = {file: file.lstat()} | {path: path.stat() for path in (*folders, target)}
    except OSError:
        return False
    for path, status in statuses.items():
        name = shown_path(path)
        if status.st_uid not in (os.geteuid(), 0):
            raise ConfigError(
                f"{name} belongs to another user, who could control what hpcdash runs",
                "Change its owner with chown, or pass a file of your own with --config. `ls -ld "
                f"{name}` shows its owner.",
                file=shown_path(file),
            )
        if stat.S_ISLNK(status.st_mode) or (path in folders and status.st_mode & stat.S_ISVTX):
            continue
        is_shared = status.st_gid != 0 and not is_private_group(status.st_gid)
        if status.st_mode & stat.S_IWOTH or (status.st_mode & stat.S_IWGRP and is_shared):
            writable = "it" if path == file else name
            raise ConfigError(
                f"others can write to {writable} and control what hpcdash runs",
                f"Run: chmod go-w {name}",
                file=shown_path(file),
            )
    return statuses[target].st_uid == 0 != os.geteuid()


def settings_from_text(
    text: str,
    file: Path,
    *,
    action_names: Collection[str] | None = None,
    check: Check | None = None,
    is_sites: bool = False,
) -> Settings:
    """Read the settings of a TOML text; raises ConfigProblems.

    `file` is its source; with `is_sites`, the site wrote it.
    """
    file_name = shown_path(file)
    document = parse_document(text, file_name)
    settings, problems = read_settings(document, file, action_names, is_sites=is_sites)
    if not problems and check is not None:
        problems = list(check(settings))
    if problems:
        raise ConfigProblems(file_name, located(text, problems))
    return settings
