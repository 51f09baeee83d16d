"""Turns [launch] and [clusters.NAME.launch] into settings. Pure; reads no file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from hpcdash.config.problems import KeyPath, shown
from hpcdash.config.queue_defaults import overridden
from hpcdash.config.request_fields import QUEUE_FIELDS, SITE_FIELDS, as_fields, image_root_problem, variable, whose
from hpcdash.config.settings import PLAIN_PATH, LaunchSettings
from hpcdash.config.values import Reader, ValidationError, line_of_text


class Checking(Protocol):
    """Collects problems while it reads tables."""

    def problem(self, path: KeyPath, message: str) -> None: ...

    def table(self, parent: Mapping[str, object], path: KeyPath, key: str) -> Mapping[str, Any]: ...

    def fields(
        self, table: Mapping[str, object], path: KeyPath, readers: Mapping[str, Reader], inner: Iterable[str] = ()
    ) -> dict[str, Any]: ...


def launch_settings(
    checking: Checking, parent: Mapping[str, object], path: KeyPath, inherited: LaunchSettings
) -> LaunchSettings:
    """What `launch` of a table says, over what is inherited: scalars override, lists append.

    run_as may still be the word that `settled` settles.
    """
    table, here = checking.table(parent, path, "launch"), (*path, "launch")
    own = _values(checking, table, here, {**SITE_FIELDS, "launch_program": _launch_program}, inner=("queues",))
    program = own.pop("launch_program", inherited.launch_program)
    queues: dict[str, Mapping[str, object]] = dict(inherited.queues)
    named: dict[str, str] = {}
    given = checking.table(table, here, "queues")
    for name in given:
        at = (*here, "queues", name)
        if not name.strip():
            checking.problem(at, "a queue has a name")
        if name.casefold() in named:
            checking.problem(at, f"the same queue as {named[name.casefold()]}: upper and lower case are alike")
        named[name.casefold()] = name
        values = _queue(checking, checking.table(given, (*here, "queues"), name), at)
        before = next((one for one in queues if one.casefold() == name.casefold()), name)
        queues[before] = overridden(queues.get(before, {}), {name: values}, name)
    return LaunchSettings(replace(inherited.site, **own), queues, program)


def settled(launch: LaunchSettings, user: str | None, complain: Callable[[str], None] | None = None) -> LaunchSettings:
    """With the login name that run_as means. Without a user that is oneself, or a complaint where it was asked for."""
    try:
        run_as = whose(launch.site.run_as, user)
    except ValidationError as error:
        run_as = ""
        if complain:
            complain(str(error))
    return replace(launch, site=replace(launch.site, run_as=run_as))


def _launch_program(value: object) -> str:
    text = line_of_text(value)
    if not PLAIN_PATH.fullmatch(text):
        raise ValidationError(
            f"{shown(text)} is no program's path: write it from the root, of letters, digits and ._@+- alone"
        )
    return text


def _queue(checking: Checking, table: Mapping[str, object], path: KeyPath) -> dict[str, object]:
    values: dict[str, object] = _values(checking, table, path, QUEUE_FIELDS, inner=("environment",))
    variables = checking.table(table, path, "environment")
    if variables:
        readers: dict[str, Reader] = dict.fromkeys(variables, variable)
        values["environment"] = checking.fields(variables, (*path, "environment"), readers)
    return values


def _values(
    checking: Checking, table: Mapping[str, object], path: KeyPath, readers: Mapping[str, Reader], inner: Iterable[str]
) -> dict[str, Any]:
    found = as_fields(checking.fields(table, path, readers, inner=inner))
    if twice := image_root_problem(table):
        checking.problem((*path, twice[0]), twice[1])
    return found
