"""Adds a cluster to the configuration file and leaves every other byte alone."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from hpcdash.config.document import MAX_FILE_BYTES, decode, read_bytes, shown_path
from hpcdash.config.locate import key_lines, line_of
from hpcdash.config.problems import ConfigProblems, dotted, key_text, printable, quoted
from hpcdash.config.read import settings_from_text
from hpcdash.config.settings import Settings
from hpcdash.errors import ConfigError
from hpcdash.private_files import atomic_write

_NEW_FILE_MODE = 0o600
_NEW_FOLDER_MODE = 0o700


def cluster_block(name: str, fields: Mapping[str, object]) -> str:
    """A [clusters.NAME] table as TOML text, ending in a newline.

    `fields` are keys of a cluster with text, numbers, true or false, or a mapping of those (poll); None is left out.
    Raises ConfigError for a value of another kind, or text that is not UTF-8.
    """
    lines = [f"[clusters.{_toml_key(name)}]"]
    lines += [f"{_toml_key(key)} = {_toml(value)}" for key, value in fields.items() if value is not None]
    return "\n".join(lines) + "\n"


def write_cluster(path: Path, name: str, fields: Mapping[str, object], *, only_check: bool = False) -> Settings:
    """Append a cluster to the file at `path`, made (mode 0600) if missing, and give what it then says.

    With `only_check` nothing is written, and it gives what the file would say.
    The file changes all at once or not at all; a symbolic link stays one. Raises ConfigError, having written nothing:
    the file cannot be used as it is, holds this cluster, or would not be good with it; or cannot be written.
    """
    named = shown_path(path)
    raw = read_bytes(path)
    target = Path(os.path.realpath(path))
    before = decode(raw or b"", named)
    clusters = settings_from_text(before, path).clusters
    if name in clusters:
        key: tuple[str, ...] = ("clusters", name)
        line = line_of(key_lines(before), key)
        raise ConfigError(
            "this cluster is there already",
            "Choose another name, or edit it there.",
            file=named,
            line=line,
            key=dotted(key),
        )
    block = cluster_block(name, fields)
    appended = _appended(before, block)
    content = (raw or b"") + appended.encode("utf-8")
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError(f"would be larger than {MAX_FILE_BYTES // 1024} KiB with this cluster", file=named)
    try:
        settings = settings_from_text(before + appended, path)
    except ConfigProblems as error:
        raise _unfit(error, before, block, named, name) from None
    if not only_check:
        _replace(target, content, named)
    return settings


def _unfit(error: ConfigProblems, before: str, block: str, named: str, name: str) -> ConfigError:
    """Why a good file would not be good with the block."""
    problem = error.problems[0]
    if problem.key:
        return ConfigError(problem.message, file=named, key=problem.key)
    line = line_of(key_lines(before), ("clusters",))
    return ConfigError(
        "clusters are written here in a way that a table cannot be added to",
        f"Add it by hand:\n{block}",
        file=named,
        line=line,
        key=dotted(("clusters", name)),
    )


def _appended(before: str, block: str) -> str:
    """What comes after the text as it is: the line's end, a blank line, the block, with the file's own line ends."""
    gap = "" if not before else "\n" if before.endswith("\n") else "\n\n"
    added = gap + block
    return added.replace("\n", "\r\n") if "\r\n" in before else added


def _toml_key(key: str) -> str:
    return key_text(_encodable(key))


def _encodable(text: str) -> str:
    # Arguments that are not UTF-8 reach Python as lone surrogates, which TOML cannot hold.
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ConfigError(f"{printable(text)} is not UTF-8 and cannot be written to a configuration") from None
    return text


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return quoted(_encodable(value))
    if isinstance(value, Mapping):
        pairs = [f"{_toml_key(str(key))} = {_toml(inner)}" for key, inner in value.items() if inner is not None]
        return f"{{ {', '.join(pairs)} }}" if pairs else "{}"
    raise ConfigError(f"a {type(value).__name__} cannot be written to a configuration")


def _replace(target: Path, content: bytes, named: str) -> None:
    try:
        target.parent.mkdir(mode=_NEW_FOLDER_MODE, parents=True, exist_ok=True)
        mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else _NEW_FILE_MODE
        atomic_write(target, content, mode=mode, prefix=f".{target.name}.")
    except OSError as error:
        raise ConfigError(f"cannot be written: {error.strerror or error}", file=named) from None
