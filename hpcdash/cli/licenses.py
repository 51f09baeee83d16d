"""Packages that hpcdash uses in this installation, and their licences."""

from __future__ import annotations

import re
from collections.abc import Iterator
from email.message import Message
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from typing import Any

from hpcdash.domain.text import align_cells

_LICENSE_CLASSIFIER = "License :: OSI Approved :: "
# `asyncssh[bcrypt]>=2.22,<3; extra == "x"`
_REQUIREMENT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[([^]]*)\])?")
_OF_EXTRA = re.compile(r"""extra\s*==\s*['"]([^'"]+)['"]""")
# A whole licence in the field of its name.
_LONGEST_NAME = 60


def licenses() -> str:
    """A line a package: name, version, licence; those of extras that are installed as well."""
    rows = sorted(
        (one.metadata["Name"], one.version, distribution_license(one.metadata))
        for one in _packages("hpcdash")
    )
    return "".join(f"{line}\n" for line in align_cells(rows))


def distribution_license(metadata: Message | Any) -> str:
    """The licence that a package's METADATA names: an SPDX expression, else the field's first line
    or classifiers.
    """
    if expression := metadata["License-Expression"]:
        return str(expression)
    classifiers = [
        one for one in metadata.get_all("Classifier") or () if one.startswith("License :: ")
    ]
    named = " ".join(str(metadata["License"] or "").strip().partition("\n")[0].split())
    if named and len(named) <= _LONGEST_NAME and named != "UNKNOWN":
        return named
    return (
        ", ".join(one.removeprefix(_LICENSE_CLASSIFIER) for one in classifiers)
        or named[:_LONGEST_NAME]
        or "not named"
    )


def _packages(name: str) -> Iterator[Distribution]:
    """Return a package and its installed requirements; for hpcdash with the users' extras."""
    seen: set[tuple[str, str]] = set()
    waiting = [
        (name, extra)
        for extra in ("", *(distribution(name).metadata.get_all("Provides-Extra") or ()))
    ]
    waiting = [one for one in waiting if one[1] != "dev"]
    given = set()
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue
        if name not in given:
            given.add(name)
            yield found
        for requirement in found.requires or ():
            requested = _REQUIREMENT.match(requirement)
            extra_marker = _OF_EXTRA.search(requirement)
            if requested is not None and (extra_marker[1] if extra_marker else "") == extra:
                required = re.sub(r"[-_.]+", "-", requested[1]).lower()
                waiting += [
                    (required, one.strip()) for one in ("", *(requested[2] or "").split(","))
                ]
