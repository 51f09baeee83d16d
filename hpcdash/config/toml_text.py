"""Writes TOML with tomlkit, and hides secrets in it. Imports tomlkit when it writes."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hpcdash.config.problems import key_text, quoted
from hpcdash.domain.request import NOT_KEPT, is_secret, without_secret_values

if TYPE_CHECKING:
    from tomlkit.items import Item, Key, Table


def format_toml(document: Mapping[str, Any]) -> str:
    """A document as TOML, in its order: plain keys first, then a [table] for each mapping.

    A text of several lines stands between three quotes; mappings in a table or an array stand on
    one line. Whatever does not print is escaped. Raises tomlkit's TOMLKitError for a value that
    TOML has not.
    """
    import tomlkit

    root = tomlkit.document()
    for key, value in sorted(document.items(), key=lambda pair: isinstance(pair[1], Mapping)):
        root.append(
            _key(key), _table(value) if isinstance(value, Mapping) else _item(value, in_lines=True)
        )
    return tomlkit.dumps(root)


def without_secrets(text: str) -> str:
    """Return the text of a request, if it is TOML, with NOT_KEPT in place of its secrets."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return text
    hidden = dict(document)
    if isinstance(environment := document.get("environment"), dict):
        secrets = {
            name: NOT_KEPT for name, value in environment.items() if is_secret(name, str(value))
        }
        hidden["environment"] = environment | secrets
    if "runtime_env" in document:
        hidden["runtime_env"] = without_secret_values(document["runtime_env"])
    return format_toml(hidden) if hidden != document else text


def add_inline(table: Any, values: Mapping[str, Any]) -> None:
    """Append keys to a table of tomlkit's, mappings on one line each."""
    for key, value in values.items():
        table.append(_key(key), _item(value))


def _table(values: Mapping[str, Any]) -> Table:
    import tomlkit

    holds_tables = bool(values) and all(isinstance(value, Mapping) for value in values.values())
    table = tomlkit.table(is_super_table=holds_tables)
    for key, value in values.items():
        table.append(_key(key), _table(value) if holds_tables else _item(value, in_lines=True))
    return table


def _key(key: str) -> Key:
    from tomlkit.items import SingleKey

    return SingleKey(key, original=key_text(key))


def _item(value: Any, *, in_lines: bool = False) -> Item:
    import tomlkit
    from tomlkit.items import Array, Integer, String, StringType, Trivia, Whitespace

    if isinstance(value, str):
        # tomlkit escapes control characters alone, and in a time that grows with the square of the
        # length.
        if in_lines and "\n" in value:
            return String(StringType.MLB, value, "\n" + _lines(value), Trivia())
        return String(StringType.SLB, value, quoted(value)[1:-1], Trivia())
    if isinstance(value, Mapping):
        table = tomlkit.inline_table()
        add_inline(table, value)
        return table
    if isinstance(value, list | tuple):
        # Appended one by one they would be renumbered each time.
        parts = [part for item in value for part in (Whitespace(","), Whitespace(" "), _item(item))]
        return Array(parts[2:], Trivia())
    if isinstance(value, int) and value >= 1 << 64:
        # Python refuses to print an integer of more than 4300 digits, which TOML may have written
        # so.
        return Integer(value, Trivia(), hex(value))
    item: Item = tomlkit.item(value)
    return item


def _lines(text: str) -> str:
    """Lines as they stand between three quotes: of three quotes the last is escaped, and one at the
    end.
    """
    lines = [quoted(line)[1:-1].replace('\\"', '"') for line in text.split("\n")]
    body = "\n".join(lines).replace('""', '"\\"')
    return f'{body[:-1]}\\"' if body.endswith('"') else body
