"""A request as REQUEST.toml: what it says beyond the usual, in the order a person reads it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields

from hpcdash.config.problems import key_text, quoted
from hpcdash.config.request import FIELD_OF_KEY
from hpcdash.domain.request import SITE_SAID, Call, Container, EarlySignal, Request, Runtime, Site
from hpcdash.domain.units import KIB, format_clock

_ORDER = (
    *(
        "name",
        "kind",
        "command",
        "script",
        "slots",
        "slots_per_node",
        "slot_type",
        "gpu_type",
        "cpus_per_gpu",
        "queue",
        "account",
    ),
    *(
        "qos",
        "time",
        "memory",
        "place",
        "work_dir",
        "array",
        "after",
        "hold",
        "signal",
        "requeue",
        "kill_switch",
        "save_switch",
    ),
    *(
        "checkpoints",
        "job_library",
        "exclude_nodes",
        "extra_args",
        "attributes",
        "keep_files",
        "launcher",
        "project",
        "workspace",
        "labels",
    ),
)
_USUAL, _USUAL_CALL = Request(), Call("", "")


def request_text(request: Request, *, site: Site | None = None) -> str:
    """TOML that `read_request(text, site=site)` reads back equal; `site` is the cluster's own, which is not repeated.

    What a person wrote (`said`) is kept where it is what is usual too. Raises nothing.
    """
    lines = []
    for key in _ORDER:
        field = FIELD_OF_KEY.get(key, key)
        if field == "array" and request.call and request.call.items and field not in request.said:
            # The items make it.
            continue
        value = getattr(request, field)
        if value != getattr(_USUAL, field) or (field in request.said and value not in (None, "", ())):
            lines.append(f"{key} = {_value(key, value)}")
    if request.environment:
        lines += ["", "[environment]", *(f"{key_text(name)} = {_text(v)}" for name, v in request.environment.items())]
    if request.call is not None:
        lines += ["", "[call]", *_call(request.call)]
    if request.container is not None:
        lines += ["", "[container]", *_container(request.container)]
    if said := list(_site(request, site or Site())):
        lines += ["", "[site]", *said]
    return "\n".join(lines) + "\n"


def toml_value(value: object) -> str:
    """A value that was read from TOML, on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key_text(key)} = {toml_value(one)}" for key, one in value.items()) + "}"
    # Python refuses to print an integer of more than 4300 digits, which TOML may have written so.
    return hex(value) if isinstance(value, int) and value >= 1 << 64 else str(value)


def _call(call: Call) -> Iterable[str]:
    yield f"function = {_text(call.name)}"
    for field in fields(Call)[2:]:
        value = getattr(call, field.name)
        if value and value != getattr(_USUAL_CALL, field.name):
            yield f"{field.name} = {toml_value(value)}"


def _container(container: Container) -> Iterable[str]:
    if container.runtime is not Runtime.APPTAINER or not container.image:
        yield f"runtime = {_text(container.runtime)}"
    if container.image:
        yield f"image = {_text(container.image)}"
    if container.binds:
        yield f"binds = {_list(container.binds)}"
    if container.force_pull:
        yield "force_pull = true"


def _site(request: Request, usual: Site) -> Iterable[str]:
    for field in fields(Site):
        value = getattr(request.site, field.name)
        is_said = f"{SITE_SAID}{field.name}" in request.said
        # '' and None cannot be written: they are what is not said.
        if (value != getattr(usual, field.name) or is_said) and value not in ("", None):
            yield f"{field.name} = {_value(field.name, value)}"


def _value(key: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return quoted(format_clock(value)) if key == "time" else _memory(value) if key == "memory" else str(value)
    if isinstance(value, EarlySignal):
        return quoted(f"{'B:' if value.batch_only else ''}{value.name}@{value.seconds_before}")
    if isinstance(value, tuple):
        return _list(value)
    return _text(str(value))


def _list(items: Iterable[str]) -> str:
    return f"[{', '.join(map(quoted, items))}]"


def _memory(amount_bytes: int) -> str:
    """`"64G"`: the largest unit of which it is a whole number."""
    for power, unit in ((4, "T"), (3, "G"), (2, "M"), (1, "K")):
        if amount_bytes % KIB**power == 0:
            return quoted(f"{amount_bytes // KIB**power}{unit}")
    return quoted(f"{amount_bytes}B")


def _text(text: str) -> str:
    """One line in quotes, several between three of them."""
    if "\n" not in text:
        return quoted(text)
    # Of three quotes the last is escaped, and one at the end.
    lines = [quoted(line)[1:-1].replace('\\"', '"') for line in text.split("\n")]
    body = "\n".join(lines).replace('""', '"\\"')
    return f'"""\n{body[:-1]}\\""""' if body.endswith('"') else f'"""\n{body}"""'
