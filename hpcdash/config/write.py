"""Writer of clusters into the configuration file, which leaves every other byte alone."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcdash.config.document import MAX_FILE_BYTES, decode, parse_document, read_bytes, shown_path
from hpcdash.config.locate import find_line, key_lines
from hpcdash.config.problems import ConfigProblems, dotted, printable
from hpcdash.config.read import settings_from_text
from hpcdash.config.settings import Settings
from hpcdash.config.toml_text import format_pair, format_toml
from hpcdash.domain.text import without_surrogates
from hpcdash.errors import ConfigError
from hpcdash.private_files import atomic_write, make_folder


def write_cluster(
    path: Path, name: str, fields: Mapping[str, object], *, only_check: bool = False
) -> Settings:
    """Add a cluster to the file at `path`, created (mode 0600) if missing; return its settings.

    `fields` are keys of a cluster; None is left out. With `only_check` nothing is written. The file
    changes all at once or not at all; a symbolic link stays one. Raises ConfigError, with nothing
    written, if the file has a problem or already has this cluster, would have a problem with it, or
    cannot be written.
    """
    file_name = shown_path(path)
    raw = read_bytes(path) or b""
    before = decode(raw, file_name)
    if name in settings_from_text(before, path).clusters:
        raise ConfigError(
            "this cluster already exists",
            "Choose another name, or edit it there.",
            file=file_name,
            line=find_line(key_lines(before), ("clusters", name)),
            key=dotted(("clusters", name)),
        )
    given = {key: value for key, value in fields.items() if value is not None}
    for text in (name, *given, *given.values()):
        # Arguments that are not UTF-8 reach Python as lone surrogates, which TOML cannot hold.
        if isinstance(text, str) and without_surrogates(text) != text:
            raise ConfigError(
                f"{printable(text)} is not UTF-8 and cannot be written to a configuration"
            )
    after = _with_cluster(before, name, given, file_name)
    byte_order_mark = raw[: len(raw) - len(before.encode("utf-8"))]
    content = byte_order_mark + after.encode("utf-8")
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError(
            f"would be larger than {MAX_FILE_BYTES // 1024} KiB with this cluster", file=file_name
        )
    try:
        settings = settings_from_text(after, path)
    except ConfigProblems as error:
        problem = error.problems[0]
        raise ConfigError(problem.message, file=file_name, key=problem.key) from None
    if only_check:
        return settings
    target = Path(os.path.realpath(path))
    try:
        make_folder(target.parent)
        mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else 0o600
        atomic_write(target, content, mode=mode, prefix=f".{target.name}.")
    except OSError as error:
        raise ConfigError(f"cannot be written: {error.strerror or error}", file=file_name) from None
    return settings


def _with_cluster(before: str, name: str, fields: Mapping[str, object], file_name: str) -> str:
    """Return the text with a cluster added: a table at the end, or in a `clusters = {...}`, which
    no table can follow.

    Raises ConfigError if it can be added in neither place.
    """
    expected: dict[str, Any] = parse_document(before, file_name)
    expected.setdefault("clusters", {})[name] = fields
    block = format_toml({"clusters": {name: fields}})
    pair = format_pair(name, fields)
    gap = ""
    if before:
        gap = "\n" if before.endswith("\n") else "\n\n"
    end = (gap + block).replace("\n", "\r\n" if "\r\n" in before else "\n")
    insertions = [(len(before), end)]
    for brace in re.finditer("}", before):
        insertions += [(brace.start(), f", {pair}"), (brace.start(), pair)]
    for position, added in insertions:
        text = before[:position] + added + before[position:]
        with contextlib.suppress(ConfigProblems):
            if parse_document(text, "") == expected:
                return text
    raise ConfigError(
        "clusters are written here in a form that cannot be extended",
        f"Add it by hand:\n{block}",
        file=file_name,
        line=find_line(key_lines(before), ("clusters",)),
        key=dotted(("clusters", name)),
    )
