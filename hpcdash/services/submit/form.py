"""Conversion of a form's texts to REQUEST.toml and a request, with the problems of each field."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct, field

from hpcdash.backends.base import ScriptReader
from hpcdash.config.document import parse_document
from hpcdash.config.problems import quoted
from hpcdash.config.request import RequestProblems, read_request
from hpcdash.config.toml_text import format_toml
from hpcdash.domain.request import Request, Site
from hpcdash.domain.text import without_surrogates
from hpcdash.services.submit.form_fields import FIELDS, HERE, NO, OF_THE_FORM, YES, FieldKind
from hpcdash.services.submit.launches import MAX_LINKS

MISSING = "missing"
_ITEM = re.compile(r"""(?:[^\s"']+|"[^"]*"|'[^']*')+""")
_NUMBER = re.compile(r"[0-9]{1,12}")
Texts = Mapping[str, str]


class Draft(Struct, frozen=True):
    """Content of the form: texts by field, and `rest`, request keys without a field."""

    texts: Texts = field(default_factory=dict)
    rest: Mapping[str, Any] = field(default_factory=dict)


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
    """A batch script as it is, with what is said over it on the command line; as FormReading
    otherwise.
    """

    file: str
    is_here: bool
    options: tuple[str, ...]
    arguments: tuple[str, ...]
    array: str
    after: tuple[str, ...]
    held: bool
    problems: Mapping[str, str]
    links: int = 1


class _UnclosedQuote(ValueError):
    """Text that cannot be told apart into words."""


def read_form(draft: Draft, site: Site | None = None) -> FormReading:
    """The request a draft makes, or what is wrong with it."""
    document, problems = _document(draft)
    links = _links(draft.texts, problems)
    text = format_toml(document)
    request = None
    try:
        request = read_request(text, "REQUEST.toml", site=site)
    except RequestProblems as error:
        _note(error, problems)
    return FormReading(text, None if problems else request, problems, links)


def read_script_form(
    draft: Draft, reader: ScriptReader, *, has_own_disk: bool = False
) -> ScriptReading:
    """A batch script with its overrides in the words of its scheduler.

    `has_own_disk`: the cluster is this machine, where a path here and one there are the same.
    """
    texts = draft.texts
    requested = ("queue", "time", "array", "after", "hold")
    document, problems = _document(
        Draft({name: texts[name] for name in requested if name in texts})
    )
    links = _links(texts, problems)
    request = Request()
    try:
        request = read_request(format_toml({"command": "true", **document}))
    except RequestProblems as error:
        _note(error, problems)
    file = texts.get("file", "").strip()
    if not file:
        problems["file"] = f"{MISSING}: a batch script's path"
    labels: dict[str, tuple[str, ...]] = {}
    for name in ("arguments", "extra_args"):
        try:
            labels[name] = tuple(shlex.split(texts.get(name, "")))
        except ValueError:
            problems[name] = "unclosed quote"
    options = [
        *reader.queue_and_time_options(request.queue, request.limit_seconds),
        *labels.get("extra_args", ()),
    ]
    return ScriptReading(
        file,
        has_own_disk or texts.get("file_where", "") in ("", HERE),
        tuple(options),
        labels.get("arguments", ()),
        str(request.array) if request.array else "",
        request.after,
        request.hold,
        problems,
        links,
    )


def parse_draft(text: str, file: str = "REQUEST.toml") -> Draft:
    """A request's text as it would be typed into the form.

    Raises ConfigError for what is no TOML.
    """
    texts: dict[str, str] = {}
    rest: dict[str, Any] = {}
    for key, value in parse_document(text, file).items():
        if key == "container" and isinstance(value, dict):
            inner = {}
            for name, one in value.items():
                written = _written(f"container.{name}", one)
                if written is None:
                    inner[name] = one
                else:
                    texts[f"container.{name}"] = written
            if inner:
                rest[key] = inner
        elif (written := _written(key, value)) is not None:
            texts[key] = written
        else:
            rest[key] = value
    return Draft(texts, rest)


def split_error(text: str) -> tuple[str, str]:
    """(field, the rest) of an error that names a field: `time: too long`; ('', words) of any other.

    One about a person's own options names the option, and says that it is of extra_args.
    """
    name, _, rest = text.partition(":")
    if name in FIELDS and rest.strip():
        return name, rest.strip()
    return ("extra_args" if re.search(r"\bextra_args\b", text) else "", text)


def _document(draft: Draft) -> tuple[dict[str, Any], dict[str, str]]:
    """A request's document, and what cannot be read as a value, by field."""
    document: dict[str, Any] = {
        key: value for key, value in draft.rest.items() if not isinstance(value, Mapping)
    }
    tables: dict[str, dict[str, Any]] = {
        key: dict(value) for key, value in draft.rest.items() if isinstance(value, Mapping)
    }
    problems: dict[str, str] = {}
    for name, one in FIELDS.items():
        text = draft.texts.get(name, "")
        if name in OF_THE_FORM or not text.strip():
            continue
        try:
            value = _READ[one.kind](without_surrogates(text))
        except _UnclosedQuote as error:
            problems[name] = str(error)
            continue
        table, _, key = name.rpartition(".")
        if one.kind is FieldKind.PAIRS:
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
            "a task of a shared pool goes on by itself until it ends: use either share or chain"
        )
    return int(text)


def _note(error: RequestProblems, problems: dict[str, str]) -> None:
    """Add an error's problems by field: the first of a field, or all parts of pairs by name."""
    parts: dict[str, list[str]] = {}
    for problem in error.problems:
        name = _form_field(problem.key)
        part = problem.key.partition(".")[2] if name and problem.key != name else ""
        parts.setdefault(name, []).append(f"{part}: {problem.message}" if part else problem.message)
    for name, arguments in parts.items():
        has_parts = name in FIELDS and FIELDS[name].kind is FieldKind.PAIRS
        problems.setdefault(name, "; ".join(arguments) if has_parts else arguments[0])


def _form_field(key: str) -> str:
    """The field that a problem's key is of; '' where the form has none."""
    if key in FIELDS:
        return key
    table = key.partition(".")[0]
    return {"environment": "environment", "container": "container.image"}.get(table, "")


def _count(text: str) -> object:
    return int(text) if _NUMBER.fullmatch(text.strip()) else text.strip()


def _counts(text: str) -> object:
    counts = [_count(word) for word in text.replace(",", " ").split()]
    return counts[0] if len(counts) == 1 else counts


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        raise _UnclosedQuote("unclosed quote") from None


def _options(text: str) -> list[str]:
    """Options as they are typed, each with its value: `-A lab --nice=3` are two."""
    if _ITEM.sub("", text).strip():
        raise _UnclosedQuote("unclosed quote")
    options: list[str] = []
    for word in _ITEM.findall(text):
        if word.startswith("-") or not options:
            options.append(word)
        else:
            options[-1] += f" {word}"
    return options


def _pairs(text: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for line in text.split("\n"):
        if not line.strip():
            continue
        name, equals, value = line.strip().removeprefix("export ").partition("=")
        if not equals:
            raise _UnclosedQuote(f"{quoted(line.strip()[:40])}: write NAME=value")
        pairs[name.strip()] = value
    return pairs


_READ: Mapping[FieldKind, Callable[[str], Any]] = {
    FieldKind.TEXT: str.strip,
    FieldKind.LINES: lambda text: text.rstrip("\n"),
    FieldKind.COUNT: _count,
    FieldKind.COUNTS: _counts,
    FieldKind.FLAG: lambda text: text.strip() == YES,
    FieldKind.UNLESS_NO: lambda text: {YES: True, NO: False}.get(text.strip(), text.strip()),
    FieldKind.WORDS: _split,
    FieldKind.OPTIONS: _options,
    FieldKind.PAIRS: _pairs,
}


def _written(key: str, value: object) -> str | None:
    """A value as it would be typed into a field; None where there is no such field, or it cannot
    be.
    """
    one = FIELDS.get(key)
    if one is None or key in OF_THE_FORM:
        return None
    if one.kind is FieldKind.FLAG:
        return (YES if value else "") if isinstance(value, bool) else None
    if one.kind is FieldKind.UNLESS_NO:
        return (YES if value else NO) if isinstance(value, bool) else None
    if one.kind is FieldKind.PAIRS:
        if not isinstance(value, Mapping) or any("\n" in str(text) for text in value.values()):
            return None
        is_plain = all(type(text) in (str, int) for text in value.values())
        return "\n".join(f"{name}={text}" for name, text in value.items()) if is_plain else None
    if one.kind in (FieldKind.WORDS, FieldKind.OPTIONS):
        items = value if isinstance(value, list) else [value]
        if not all(type(item) in (str, int) for item in items):
            return None
        quote = shlex.quote if one.kind is FieldKind.WORDS else str
        return " ".join(item if _is_plain(item) else quote(item) for item in map(str, items))
    if one.kind is FieldKind.COUNTS and isinstance(value, list):
        return " ".join(map(str, value)) if all(type(item) is int for item in value) else None
    if type(value) is int:
        return str(value)
    return (
        value
        if isinstance(value, str) and (one.kind is FieldKind.LINES or "\n" not in value)
        else None
    )


def _is_plain(item: str) -> bool:
    """A word that shlex gives back as it is, though its quote() would put quotes around it."""
    return re.fullmatch(r"[A-Za-z0-9_@%+=:,./\[\]-]+", item) is not None
