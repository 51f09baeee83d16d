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
    """Add a cluster to the file at `path`, made (mode 0600) if missing, and return its settings.

    `fields` are keys of a cluster; None is left out. With `only_check` nothing is written, and it
    returns what the settings would be. The file changes all at once or not at all; a symbolic link
    stays one. Raises ConfigError, having written nothing: the file cannot be used as it is, holds
    this cluster, or would not be good with it; or cannot be written.
    """
    named = shown_path(path)
    key = dotted(("clusters", name))
    raw = read_bytes(path) or b""
    before = decode(raw, named)
    if name in settings_from_text(before, path).clusters:
        raise ConfigError(
            "this cluster already exists",
            "Choose another name, or edit it there.",
            file=named,
            line=find_line(key_lines(before), ("clusters", name)),
            key=key,
        )
    given = {key: value for key, value in fields.items() if value is not None}
    for text in (name, *given, *given.values()):
        # Arguments that are not UTF-8 reach Python as lone surrogates, which TOML cannot hold.
        if isinstance(text, str) and without_surrogates(text) != text:
            raise ConfigError(
                f"{printable(text)} is not UTF-8 and cannot be written to a configuration"
            )
    expected: dict[str, Any] = parse_document(before, named)
    expected.setdefault("clusters", {})[name] = given
    block = format_toml({"clusters": {name: given}})
    after = _joined(before, block, format_pair(name, given), expected)
    if after is None:
        raise ConfigError(
            "clusters are written here in a form that cannot be extended",
            f"Add it by hand:\n{block}",
            file=named,
            line=find_line(key_lines(before), ("clusters",)),
            key=key,
        )
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
    if only_check:
        return settings
    target = Path(os.path.realpath(path))
    try:
        make_folder(target.parent)
        mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else 0o600
        atomic_write(target, content, mode=mode, prefix=f".{target.name}.")
    except OSError as error:
        raise ConfigError(f"cannot be written: {error.strerror or error}", file=named) from None
    return settings


def _joined(before: str, block: str, pair: str, expected: Mapping[str, object]) -> str | None:
    """Return the text with a cluster added that reads as `expected`; None if there is none.

    The cluster is a table at the end, or in a `clusters = {...}`, which no table can follow.
    """
    gap = ""
    if before:
        gap = "\n" if before.endswith("\n") else "\n\n"
    end = (gap + block).replace("\n", "\r\n" if "\r\n" in before else "\n")
    places = [(len(before), end)]
    for brace in re.finditer("}", before):
        places += [(brace.start(), f", {pair}"), (brace.start(), pair)]
    for place, added in places:
        text = before[:place] + added + before[place:]
        with contextlib.suppress(ConfigProblems):
            if parse_document(text, "") == expected:
                return text
    return None
