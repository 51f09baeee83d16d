"""Adds a cluster to the configuration file and leaves every other byte alone."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcdash.config.document import MAX_FILE_BYTES, decode, parse_document, read_bytes, shown_path
from hpcdash.config.locate import find_line, key_lines
from hpcdash.config.problems import ConfigProblems, dotted, printable
from hpcdash.config.read import settings_from_text
from hpcdash.config.settings import Settings
from hpcdash.config.toml_text import add_inline, format_toml
from hpcdash.domain.text import without_surrogates
from hpcdash.errors import ConfigError
from hpcdash.private_files import atomic_write, make_folder

_NEW_FILE_MODE = 0o600


def cluster_block(name: str, fields: Mapping[str, object]) -> str:
    """A [clusters.NAME] table as TOML text, ending in a newline.

    `fields` are keys of a cluster; None is left out. Raises ConfigError for text that is not UTF-8.
    """
    given = {key: value for key, value in fields.items() if value is not None}
    for text in (name, *given, *given.values()):
        # Arguments that are not UTF-8 reach Python as lone surrogates, which TOML cannot hold.
        if isinstance(text, str) and without_surrogates(text) != text:
            raise ConfigError(
                f"{printable(text)} is not UTF-8 and cannot be written to a configuration"
            )
    return format_toml({"clusters": {name: given}})


def write_cluster(
    path: Path, name: str, fields: Mapping[str, object], *, only_check: bool = False
) -> Settings:
    """Add a cluster to the file at `path`, made (mode 0600) if missing, and give what it then says.

    With `only_check` nothing is written, and it gives what the file would say. The file changes all
    at once or not at all; a symbolic link stays one. Raises ConfigError, having written nothing:
    the file cannot be used as it is, holds this cluster, or would not be good with it; or cannot be
    written.
    """
    named = shown_path(path)
    raw = read_bytes(path) or b""
    target = Path(os.path.realpath(path))
    before = decode(raw, named)
    clusters = settings_from_text(before, path).clusters
    if name in clusters:
        key: tuple[str, ...] = ("clusters", name)
        line = find_line(key_lines(before), key)
        raise ConfigError(
            "this cluster is there already",
            "Choose another name, or edit it there.",
            file=named,
            line=line,
            key=dotted(key),
        )
    block = cluster_block(name, fields)
    after = _appended(before, block)
    try:
        parse_document(after, named)
    except ConfigProblems:
        after = _inserted(before, block, named, name)
    byte_order_mark = raw[: len(raw) - len(before.encode("utf-8"))]
    content = byte_order_mark + after.encode("utf-8")
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError(
            f"would be larger than {MAX_FILE_BYTES // 1024} KiB with this cluster", file=named
        )
    try:
        settings = settings_from_text(after, path)
    except ConfigProblems as error:
        problem = error.problems[0]
        raise ConfigError(problem.message, file=named, key=problem.key) from None
    if not only_check:
        _replace(target, content, named)
    return settings


def _appended(before: str, block: str) -> str:
    """The text as it is, its line's end, a blank line and the block, with the file's own line
    ends.
    """
    gap = "" if not before else "\n" if before.endswith("\n") else "\n\n"
    added = gap + block
    return before + (added.replace("\n", "\r\n") if "\r\n" in before else added)


def _inserted(before: str, block: str, named: str, name: str) -> str:
    """The text with the cluster of the block in `clusters = {...}`, which no table can follow."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    fields: Any = parse_document(block, named)["clusters"]
    try:
        document = tomlkit.parse(before)
        if tomlkit.dumps(document) != before:
            raise ValueError
        add_inline(document["clusters"], fields)
    except (TOMLKitError, ValueError):
        raise ConfigError(
            "clusters are written here in a way that a table cannot be added to",
            f"Add it by hand:\n{block}",
            file=named,
            line=find_line(key_lines(before), ("clusters",)),
            key=dotted(("clusters", name)),
        ) from None
    return tomlkit.dumps(document)


def _replace(target: Path, content: bytes, named: str) -> None:
    try:
        make_folder(target.parent)
        mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else _NEW_FILE_MODE
        atomic_write(target, content, mode=mode, prefix=f".{target.name}.")
    except OSError as error:
        raise ConfigError(f"cannot be written: {error.strerror or error}", file=named) from None
