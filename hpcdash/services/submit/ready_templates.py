"""Templates of requests that hpcdash and sites provide, such as a notebook server."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from msgspec import Struct

import hpcdash
from hpcdash.config.document import parse_document
from hpcdash.config.toml_text import format_toml
from hpcdash.domain.demand import nearest
from hpcdash.errors import UsageError
from hpcdash.private_files import find_weak_spot
from hpcdash.services.state.templates import REQUEST_END, Templates

_FOLDER = Path(hpcdash.__file__).parent / "templates"
_CUT = re.compile(r"^\[template\][ \t]*(?:#.*)?$", re.MULTILINE)
_MAX_CHOICES = 50


class ReadyTemplate(Struct, frozen=True):
    """A request's text with proposed values for its fields.

    A field is a key of the request or a variable of its environment; its default is the value in
    the text.
    """

    name: str
    text: str
    description: str = ""
    choices: Mapping[str, tuple[str, ...]] = {}

    def value(self, field: str) -> str:
        """Return a field's value; '' if the request does not have it."""
        document = parse_document(self.text, self.name)
        environment = document.get("environment")
        found = environment.get(field) if isinstance(environment, dict) else None
        return str(document.get(field, "") if found is None else found)

    def text_with(self, values: Mapping[str, str]) -> str:
        """Return the request's text with other values of its fields.

        Values become data of the request, never shell text. Raises UsageError for an unknown field.
        """
        if not values:
            return self.text
        document = deepcopy(parse_document(self.text, self.name))
        environment = document.get("environment")
        variables = environment if isinstance(environment, dict) else {}
        for field, value in values.items():
            if field in variables:
                variables[field] = value
            elif field in document and not isinstance(document[field], dict | list):
                document[field] = _converted(document[field], field, value)
            elif field in _MORE_FIELDS:
                document[field] = value
            else:
                known = {*variables, *_MORE_FIELDS}
                known |= {key for key, old in document.items() if not isinstance(old, dict | list)}
                raise UsageError(
                    f"template {self.name} has no field {field!r}", nearest(field, known)
                )
        return format_toml(document)


# Fields of every request, which a template may leave to the site.
_MORE_FIELDS = ("queue", "account", "qos", "memory", "gpu_type", "work_dir", "reservation")


def _converted(old: object, field: str, value: str) -> object:
    """Convert a value to the type of the field's default."""
    if isinstance(old, bool):
        if value not in ("true", "false"):
            raise UsageError(f"{field}: expected true or false, not {value!r}")
        return value == "true"
    if isinstance(old, int):
        if not (value.isascii() and value.isdigit()):
            raise UsageError(f"{field}: expected a number, not {value!r}")
        return int(value)
    return value


def template_names(folder: str) -> tuple[str, ...]:
    """Return the names in a site's folder ('' for none) and hpcdash's own, sorted."""
    return tuple(sorted({name for _, name in _found(folder)}))


def _found(folder: str) -> list[tuple[Path, str]]:
    found = []
    for place in (*([Path(folder).expanduser()] if folder else ()), _FOLDER):
        names = (
            name for name in Templates(place).names() if (place / (name + REQUEST_END)).exists()
        )
        found += [(place, name) for name in names]
    return found


def read_ready_template(name: str, folder: str) -> ReadyTemplate:
    """Read a template of a site's folder, else hpcdash's own.

    Raises UsageError if there is none, or if others than its owner, the user or root, could replace
    a site's; ConfigError for an invalid file.
    """
    found = next((place for place, known in _found(folder) if known == name), None)
    if found is None:
        raise UsageError(f"no template {name!r}", nearest(name, template_names(folder)))
    if found != _FOLDER:
        _refuse_replaceable(found / (name + REQUEST_END))
    text = Templates(found).read(name)
    document = parse_document(text, name + REQUEST_END)
    about = document.get("template", {})
    cut = _CUT.search(text)
    if not isinstance(about, dict) or (about and cut is None):
        raise UsageError(f"template {name}: [template] must be its last table")
    own_text = text if cut is None else text[: cut.start()].rstrip() + "\n"
    listed = about.get("choices", {})
    choices: dict[str, tuple[str, ...]] = {}
    for field, values in listed.items() if isinstance(listed, dict) else ():
        if isinstance(values, list):
            choices[field] = tuple(map(str, values[:_MAX_CHOICES]))
    return ReadyTemplate(name, own_text, str(about.get("description", "")), choices)


def _refuse_replaceable(file: Path) -> None:
    """Raise UsageError if others could change what a template runs."""
    path = os.path.abspath(file)
    try:
        spot = find_weak_spot(path, allows_private_group=False)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    if spot is not None:
        raise UsageError(
            f"{spot.message}, so others could change what the template {path} runs",
            "Its folder, and those above, must be yours or root's, and writable by nobody else.",
        )


def parse_settings(parts: Sequence[str]) -> dict[str, str]:
    """Parse the `FIELD=VALUE` of options. Raises UsageError."""
    values: dict[str, Any] = {}
    for part in parts:
        field, sign, value = part.partition("=")
        if not (field and sign):
            raise UsageError(f"{part} is not FIELD=VALUE")
        values[field] = value
    return values
