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
_EXTRA_MARKER = re.compile(r"""extra\s*==\s*['"]([^'"]+)['"]""")
# A whole licence in the field of its name.
_LONGEST_NAME = 60


def licenses() -> str:
    """Return a line per installed package, of extras too: name, version, licence."""
    rows = sorted(
        (package.metadata["Name"], package.version, distribution_license(package.metadata))
        for package in _packages("hpcdash")
    )
    return "".join(f"{line}\n" for line in align_cells(rows))


def distribution_license(metadata: Message | Any) -> str:
    """Return the licence in a package's METADATA: an SPDX expression, else the field's first line
    or classifiers.
    """
    if expression := metadata["License-Expression"]:
        return str(expression)
    classifiers = [
        classifier
        for classifier in metadata.get_all("Classifier") or ()
        if classifier.startswith("License :: ")
    ]
    named = " ".join(str(metadata["License"] or "").strip().partition("\n")[0].split())
    if named and len(named) <= _LONGEST_NAME and named != "UNKNOWN":
        return named
    return (
        ", ".join(classifier.removeprefix(_LICENSE_CLASSIFIER) for classifier in classifiers)
        or named[:_LONGEST_NAME]
        or "not named"
    )


def _packages(name: str) -> Iterator[Distribution]:
    """Yield a package and its installed requirements, with those of its extras but dev."""
    seen: set[tuple[str, str]] = set()
    extras = ["", *(distribution(name).metadata.get_all("Provides-Extra") or ())]
    waiting = [(name, extra) for extra in extras if extra != "dev"]
    yielded = set()
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue
        if name not in yielded:
            yielded.add(name)
            yield found
        for requirement in found.requires or ():
            requested = _REQUIREMENT.match(requirement)
            extra_marker = _EXTRA_MARKER.search(requirement)
            if requested is not None and (extra_marker[1] if extra_marker else "") == extra:
                required = re.sub(r"[-_.]+", "-", requested[1]).lower()
                extras = ["", *(requested[2] or "").split(",")]
                waiting += [(required, extra.strip()) for extra in extras]
