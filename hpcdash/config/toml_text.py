"""Writer of TOML, which can hide secrets."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from datetime import date, datetime, time
from typing import Any

from hpcdash.config.problems import key_text, quoted
from hpcdash.domain.request import NOT_KEPT, is_secret, without_secret_values


def format_toml(document: Mapping[str, Any]) -> str:
    """Return a document as TOML, in its order: plain keys first, then a [table] for each mapping.

    A text of several lines is between three quotes; mappings in a table or an array are on one
    line. Characters that do not print are escaped. Raises TypeError for a value of another type.
    """
    plain = {key: value for key, value in document.items() if not isinstance(value, Mapping)}
    blocks = [_lines(plain)] if plain else []
    for key, value in document.items():
        if isinstance(value, Mapping):
            blocks += _table_blocks(key_text(key), value)
    return "\n".join(blocks)


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


def format_pair(key: str, value: Any, *, in_lines: bool = False) -> str:
    """Return `key = value`; with `in_lines`, a text of several lines is written as such."""
    if in_lines and isinstance(value, str) and "\n" in value:
        # The third of three quotes is escaped, and a quote at the end.
        lines = [quoted(line)[1:-1].replace('\\"', '"') for line in value.split("\n")]
        body = "\n".join(lines).replace('""', '"\\"')
        body = f'{body[:-1]}\\"' if body.endswith('"') else body
        return f'{key_text(key)} = """\n{body}"""'
    return f"{key_text(key)} = {_format_value(value)}"


def _table_blocks(name: str, table: Mapping[str, Any]) -> Iterator[str]:
    """Yield the [table] of a mapping, or of each mapping in it if it contains nothing else."""
    if table and all(isinstance(value, Mapping) for value in table.values()):
        for key, value in table.items():
            yield from _table_blocks(f"{name}.{key_text(key)}", value)
    else:
        yield f"[{name}]\n{_lines(table)}"


def _lines(pairs: Mapping[str, Any]) -> str:
    return "".join(f"{format_pair(key, value, in_lines=True)}\n" for key, value in pairs.items())


def _format_value(value: Any) -> str:
    match value:
        case str():
            return quoted(value)
        case bool():
            return str(value).lower()
        case int():
            # Python refuses to print an integer of more than 4300 digits, which TOML may have in
            # hexadecimal.
            return hex(value) if value >= 1 << 64 else str(value)
        case float():
            return str(value)
        case datetime() | date() | time():
            return value.isoformat()
        case Mapping():
            return f"{{{', '.join(format_pair(key, inner) for key, inner in value.items())}}}"
        case list() | tuple():
            return f"[{', '.join(map(_format_value, value))}]"
    raise TypeError(f"TOML has no {type(value).__name__}")
