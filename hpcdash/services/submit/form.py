"""Conversion of a form's texts to REQUEST.toml and a request, with the problems of each field."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from hpcdash.backends.base import ScriptReader
from hpcdash.config.document import parse_document
from hpcdash.config.problems import quoted
from hpcdash.config.request import RequestProblems, read_request
from hpcdash.config.toml_text import format_toml
from hpcdash.domain.request import Request, Site
from hpcdash.domain.text import without_surrogates
from hpcdash.services.submit.form_fields import FIELDS, FORM_ONLY, HERE, NO, YES, FieldKind
from hpcdash.services.submit.launches import MAX_LINKS

MISSING = "missing"
_ITEM = re.compile(r"""(?:[^\s"']+|"[^"]*"|'[^']*')+""")
_NUMBER = re.compile(r"[0-9]{1,12}")
# Fields that show the problems of a table's other keys.
_TABLE_FIELDS = {"environment": "environment", "container": "container.image"}
Texts = Mapping[str, str]


class Draft(Struct, frozen=True):
    """Content of the form: texts by field, and `rest`, request keys without a field."""

    texts: Texts = {}
    rest: Mapping[str, Any] = {}


class FormReading(Struct, frozen=True):
    """Result of reading a draft.

    `request` is None if there are `problems` (text by field, '' for the whole). `text` is the
    request as TOML, `links` the number of jobs one after the other.
    """

    text: str
    request: Request | None
    problems: Mapping[str, str]
    links: int = 1


class ScriptReading(Struct, frozen=True):
    """Result of reading a draft of an unchanged batch script, with the options that override it."""

    file: str
    is_here: bool
    options: tuple[str, ...]
    arguments: tuple[str, ...]
    array: str
    after: tuple[str, ...]
    held: bool
    problems: Mapping[str, str]
    links: int = 1


class _InvalidText(ValueError):
    """Text that cannot be split into values."""


def read_form(draft: Draft, site: Site | None = None) -> FormReading:
    """Read the request that a draft makes, or its problems."""
    document, problems = _document(draft)
    links = _links(draft.texts, problems)
    text = format_toml(document)
    request = None
    try:
        request = read_request(text, "REQUEST.toml", site=site)
    except RequestProblems as error:
        _add_problems(error, problems)
    return FormReading(text, None if problems else request, problems, links)


def read_script_form(draft: Draft, reader: ScriptReader) -> ScriptReading:
    """Read a batch script with its overrides as options of its scheduler."""
    texts = draft.texts
    names = ("queue", "time", "array", "after", "hold")
    document, problems = _document(Draft({name: texts[name] for name in names if name in texts}))
    links = _links(texts, problems)
    request = Request()
    try:
        request = read_request(format_toml({"command": "true", **document}))
    except RequestProblems as error:
        _add_problems(error, problems)
    file = texts.get("file", "").strip()
    if not file:
        problems["file"] = f"{MISSING}: a batch script's path"
    split: dict[str, list[str]] = {"arguments": [], "extra_args": []}
    for name in split:
        try:
            split[name] = shlex.split(texts.get(name, ""))
        except ValueError:
            problems[name] = "unclosed quote"
    options = reader.place_options(request.queue, request.limit_seconds)
    return ScriptReading(
        file=file,
        is_here=texts.get("file_where", "") in ("", HERE),
        options=(*options, *split["extra_args"]),
        arguments=tuple(split["arguments"]),
        array=str(request.array) if request.array else "",
        after=request.after,
        held=request.hold,
        problems=problems,
        links=links,
    )


def parse_draft(text: str, file: str = "REQUEST.toml") -> Draft:
    """Parse a request's TOML into the texts of the form's fields. Raises ConfigError."""
    texts: dict[str, str] = {}
    rest: dict[str, Any] = {}
    for key, value in parse_document(text, file).items():
        if key == "container" and isinstance(value, dict):
            unwritten = {}
            for name, inner in value.items():
                written = _format_value(f"container.{name}", inner)
                if written is None:
                    unwritten[name] = inner
                else:
                    texts[f"container.{name}"] = written
            if unwritten:
                rest[key] = unwritten
        elif (written := _format_value(key, value)) is not None:
            texts[key] = written
        else:
            rest[key] = value
    return Draft(texts, rest)


def split_error(text: str) -> tuple[str, str]:
    """Split an error into its field and message: `time: too long`; ('', text) if it names none.

    An error about a person's own options names the option, and mentions extra_args.
    """
    name, _, rest = text.partition(":")
    if name in FIELDS and rest.strip():
        return name, rest.strip()
    return ("extra_args" if re.search(r"\bextra_args\b", text) else "", text)


def _document(draft: Draft) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a request's document, and the problems of invalid texts by field."""
    document: dict[str, Any] = {}
    tables: dict[str, dict[str, Any]] = {}
    for key, value in draft.rest.items():
        if isinstance(value, Mapping):
            tables[key] = dict(value)
        else:
            document[key] = value
    problems: dict[str, str] = {}
    for name, field in FIELDS.items():
        text = draft.texts.get(name, "")
        if name in FORM_ONLY or not text.strip():
            continue
        try:
            value = _PARSERS[field.kind](without_surrogates(text))
        except _InvalidText as error:
            problems[name] = str(error)
            continue
        table, _, key = name.rpartition(".")
        if field.kind is FieldKind.PAIRS:
            tables.setdefault(name, {}).update(value)
        elif table:
            tables.setdefault(table, {})[key] = value
        else:
            document[name] = value
    # A runtime without an image is no container.
    if set(tables.get("container", ())) == {"runtime"}:
        del tables["container"]
    return {**document, **tables}, problems


def _links(texts: Texts, problems: dict[str, str]) -> int:
    text = texts.get("chain", "").strip()
    if not text:
        return 1
    if not _NUMBER.fullmatch(text) or not 1 <= int(text) <= MAX_LINKS:
        problems["chain"] = f"expected a whole number from 1 to {MAX_LINKS}, not {quoted(text)}"
        return 1
    if int(text) > 1 and texts.get("array", "").strip():
        problems["chain"] = "an array with %1 is already a chain: use either array or chain"
    if int(text) > 1 and any(texts.get(name, "").strip() for name in ("share", "pool")):
        problems["chain"] = (
            "a shared-pool task continues automatically until it ends: use either share or chain"
        )
    return int(text)


def _add_problems(error: RequestProblems, problems: dict[str, str]) -> None:
    """Add an error's problems by field: the first of a field, or all parts of pairs by name."""
    messages: dict[str, list[str]] = {}
    for problem in error.problems:
        name = problem.key
        message = problem.message
        if name not in FIELDS:
            table, _, part = problem.key.partition(".")
            name = _TABLE_FIELDS.get(table, "")
            if name and part:
                message = f"{part}: {message}"
        messages.setdefault(name, []).append(message)
    for name, found in messages.items():
        has_parts = name in FIELDS and FIELDS[name].kind is FieldKind.PAIRS
        problems.setdefault(name, "; ".join(found) if has_parts else found[0])


def _parse_count(text: str) -> object:
    return int(text) if _NUMBER.fullmatch(text.strip()) else text.strip()


def _parse_counts(text: str) -> object:
    counts = [_parse_count(word) for word in text.replace(",", " ").split()]
    return counts[0] if len(counts) == 1 else counts


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        raise _InvalidText("unclosed quote") from None


def _split_options(text: str) -> list[str]:
    """Split typed options, each with its value: `-A lab --nice=3` are two."""
    if _ITEM.sub("", text).strip():
        raise _InvalidText("unclosed quote")
    options: list[str] = []
    for word in _ITEM.findall(text):
        if word.startswith("-") or not options:
            options.append(word)
        else:
            options[-1] += f" {word}"
    return options


def _parse_pairs(text: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for line in map(str.strip, text.split("\n")):
        if not line:
            continue
        name, equals, value = line.removeprefix("export ").partition("=")
        if not equals:
            raise _InvalidText(f"{quoted(line[:40])}: expected NAME=value")
        pairs[name.strip()] = value
    return pairs


_PARSERS: Mapping[FieldKind, Callable[[str], Any]] = {
    FieldKind.TEXT: str.strip,
    FieldKind.LINES: lambda text: text.rstrip("\n"),
    FieldKind.COUNT: _parse_count,
    FieldKind.COUNTS: _parse_counts,
    FieldKind.FLAG: lambda text: text.strip() == YES,
    FieldKind.UNLESS_NO: lambda text: {YES: True, NO: False}.get(text.strip(), text.strip()),
    FieldKind.WORDS: _split,
    FieldKind.OPTIONS: _split_options,
    FieldKind.PAIRS: _parse_pairs,
}


def _format_value(key: str, value: object) -> str | None:
    """Format a value as it would be typed; None without such a field, or if that is impossible."""
    if key not in FIELDS or key in FORM_ONLY:
        return None
    kind = FIELDS[key].kind
    if kind in (FieldKind.FLAG, FieldKind.UNLESS_NO):
        no = NO if kind is FieldKind.UNLESS_NO else ""
        text = YES if value else no
        return text if isinstance(value, bool) else None
    if kind is FieldKind.PAIRS:
        if not isinstance(value, Mapping) or not all(map(_is_typeable, value.values())):
            return None
        return "\n".join(f"{name}={text}" for name, text in value.items())
    if kind in (FieldKind.WORDS, FieldKind.OPTIONS):
        items = value if isinstance(value, list) else [value]
        if not all(type(item) in (str, int) for item in items):
            return None
        texts = map(str, items)
        return " ".join(map(_quote, texts) if kind is FieldKind.WORDS else texts)
    if kind is FieldKind.COUNTS and isinstance(value, list):
        return " ".join(map(str, value)) if all(type(item) is int for item in value) else None
    if kind is FieldKind.LINES and isinstance(value, str):
        return value
    return str(value) if _is_typeable(value) else None


def _is_typeable(value: object) -> bool:
    """Whether a value fits in one line: a whole number, or text without a newline."""
    return type(value) is int or (type(value) is str and "\n" not in value)


def _quote(item: str) -> str:
    # shlex.quote() would also quote %, [ and ].
    is_plain = re.fullmatch(r"[A-Za-z0-9_@%+=:,./\[\]-]+", item) is not None
    return item if is_plain else shlex.quote(item)
