"""A request as REQUEST.toml: what it says beyond the usual, in the order a person reads it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from hpcdash.config.request import FIELD_OF_KEY
from hpcdash.config.toml_text import format_toml
from hpcdash.domain.request import SITE_SAID, Call, Container, EarlySignal, Request, Runtime, Site
from hpcdash.domain.units import KIB, format_clock

_KEY_OF_FIELD = {field: key for key, field in FIELD_OF_KEY.items()}
_USUAL, _USUAL_CALL = Request(), Call("", "")
_APART = frozenset({"environment", "call", "container", "site", "said"})


def request_text(request: Request, *, site: Site | None = None) -> str:
    """TOML that `read_request(text, site=site)` reads back equal; `site` is the cluster's own, which is not repeated.

    What a person wrote (`said`) is kept where it is what is usual too. Raises nothing.
    """
    tables = {
        "environment": request.environment,
        "call": dict(_call(request.call)) if request.call is not None else {},
        "container": dict(_container(request.container)) if request.container is not None else {},
        "site": dict(_site(request, site or Site())),
    }
    return format_toml(dict(_top(request)) | {key: table for key, table in tables.items() if table})


def _top(request: Request) -> Iterator[tuple[str, Any]]:
    for field in fields(Request):
        name, value = field.name, getattr(request, field.name)
        if name in _APART or (name == "array" and request.call and request.call.items and name not in request.said):
            # The items make the array.
            continue
        if value != getattr(_USUAL, name) or (name in request.said and value not in (None, "", ())):
            yield _KEY_OF_FIELD.get(name, name), _value(name, value)


def _call(call: Call) -> Iterator[tuple[str, Any]]:
    yield "function", call.name
    for field in fields(Call)[2:]:
        value = getattr(call, field.name)
        if value and value != getattr(_USUAL_CALL, field.name):
            yield field.name, value


def _container(container: Container) -> Iterator[tuple[str, Any]]:
    if container.runtime is not Runtime.APPTAINER or not container.image:
        yield "runtime", container.runtime.value
    for name in ("image", "binds", "force_pull"):
        if value := getattr(container, name):
            yield name, value


def _site(request: Request, usual: Site) -> Iterator[tuple[str, Any]]:
    for field in fields(Site):
        value = getattr(request.site, field.name)
        is_said = f"{SITE_SAID}{field.name}" in request.said
        # '' and None cannot be written: they are what is not said.
        if (value != getattr(usual, field.name) or is_said) and value not in ("", None):
            yield field.name, _value(field.name, value)


def _value(field: str, value: object) -> object:
    match value:
        case int() if field == "limit_seconds":
            return format_clock(value)
        case int() if field == "memory_bytes":
            return _memory(value)
        case EarlySignal():
            return f"{'B:' if value.batch_only else ''}{value.name}@{value.seconds_before}"
        case bool() | int() | tuple():
            return value
        case _:
            return str(value)


def _memory(amount_bytes: int) -> str:
    """`64G`: the largest unit of which it is a whole number."""
    for power, unit in ((4, "T"), (3, "G"), (2, "M"), (1, "K")):
        if amount_bytes % KIB**power == 0:
            return f"{amount_bytes // KIB**power}{unit}"
    return f"{amount_bytes}B"
