"""REQUEST.toml as a checked request, or all that is wrong with it, by line and key."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from hpcdash.backends.script.call import array_problem
from hpcdash.config.locate import key_lines, line_of
from hpcdash.config.problems import ConfigProblems, KeyPath, Problem, did_you_mean, dotted, printable, quoted, shown
from hpcdash.config.read import parse_document
from hpcdash.config.request_fields import (
    CONTAINER_FIELDS,
    INNER_TABLES,
    REQUEST_FIELDS,
    SITE_FIELDS,
    TABLES,
    as_fields,
    folder_there,
    image_root_problem,
    text_list,
    variable,
    whose,
)
from hpcdash.config.values import Reader, ValidationError, line_of_text
from hpcdash.domain.array_tasks import MAX_TASKS, ArrayTasks
from hpcdash.domain.request import SITE_SAID, Call, Container, Request, Runtime, Site

NEXT_STEP = "Fix the file."
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Slurm's and PBS's words for what a request says.
_OTHER_WORDS = {
    "partition": "queue",
    "gpus": "slots",
    "ngpus": "slots",
    "walltime": "time",
    "chdir": "work_dir",
    "dependency": "after",
    "env": "environment",
    "job_name": "name",
}
_AT_THE_TOP = "it stands at the top of the file, before the first [table]"


def _function(value: object) -> tuple[str, str]:
    """(module, function)."""
    text = line_of_text(value)
    module, colon, function = text.partition(":")
    if "/" in module or (colon and module.endswith(".py")):
        raise ValidationError(f"{shown(text)} names a file: write the module as it is imported, {quoted('train:main')}")
    if not colon:
        module, _, function = text.rpartition(".")
        meant = f"{module}:{function}" if module and function != "py" else "train:main"
        raise ValidationError(f"{shown(text)} is no MODULE:FUNCTION: write it as in {quoted(meant)}")
    for part in (*module.split("."), *function.split(".")):
        if not part.isidentifier():
            raise ValidationError(f"{shown(text)} is no MODULE:FUNCTION: {shown(part)} is no name of Python's")
    if module == "__main__":
        raise ValidationError("__main__ is the runner itself in the job: move the function into a module")
    return module, function


def _array(value: object) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise ValidationError(f"expected an array, as in [1, {quoted('x')}], not {shown(value)}")
    return tuple(value)


def _items(value: object) -> tuple[Any, ...]:
    items = _array(value)
    if not 1 <= len(items) <= MAX_TASKS:
        raise ValidationError(f"expected 1 to {MAX_TASKS} items, a task of the array for each, not {len(items)}")
    return items


def _arguments(value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValidationError(f"expected a table, as in {{ lr = 0.001 }}, not {shown(value)}")
    return value


def _callback(value: object) -> str:
    return ":".join(_function(value))


CALL_FIELDS: Mapping[str, Reader] = {
    "function": _function,
    "args": _array,
    "kwargs": _arguments,
    "items": _items,
    "python": folder_there,
    "sys_path": partial(text_list, read=folder_there),
    "wheel": folder_there,
    "source": folder_there,
    "callbacks": partial(text_list, read=_callback),
}


def call_problems(table: Mapping[str, object]) -> list[tuple[str, str]]:
    """(key, words) of what does not go together in the table, or is missing from it."""
    found = []
    if "function" not in table:
        found.append(("function", f"missing: name what to call, as in {quoted('train:main')}"))
    if "wheel" in table and "source" in table:
        found.append(("source", "the wheel is given too: give one of wheel and source"))
    return found


def call_of(found: Mapping[str, Any]) -> Call:
    """The call of checked values, which has to have a function."""
    module, function = found["function"]
    return Call(module, function, **{key: value for key, value in found.items() if key != "function"})


def array_of_items(call: Call) -> ArrayTasks:
    """A task for each."""
    return ArrayTasks((range(len(call.items)),))


_INNER_TABLES = {**INNER_TABLES, "call": CALL_FIELDS}


class RequestProblems(ConfigProblems):
    """All that is wrong with a request's file, in its order; as a ConfigError it stands at the first."""

    def __init__(self, file: str, problems: Collection[Problem]) -> None:
        super().__init__(file, list(problems))
        self.next_step = NEXT_STEP


def read_request(
    text: str, file: str = "REQUEST.toml", *, site: Site | None = None, user: str | None = None
) -> Request:
    """The request a TOML text makes; what [site] leaves out is as in `site`, which the cluster's configuration gives.

    `file` is the name told in errors; `user` is who run_as = "user" means. Raises RequestProblems (a
    ConfigError) with file, line and key of every problem.
    """
    named = printable(file)
    try:
        document = parse_document(text, named)
    except ConfigProblems as error:
        raise RequestProblems(named, error.problems) from None
    checking = _Checking(document)
    request = checking.request(site or Site(), user)
    if checking.problems:
        lines = key_lines(text)
        placed = [Problem(line_of(lines, path), dotted(path), words) for path, words in checking.problems]
        # What is missing comes last: a misspelt key is often why.
        raise RequestProblems(named, sorted(placed, key=lambda problem: problem.line or len(text)))
    return request


class _Checking:
    def __init__(self, document: Mapping[str, object]) -> None:
        self.document = document
        self.problems: list[tuple[KeyPath, str]] = []

    def request(self, site: Site, user: str | None) -> Request:
        """The request; good only when there are no problems."""
        given = as_fields(self.fields(self.document, (), REQUEST_FIELDS, tables=(*TABLES, "call")))
        of_site = self.site(user)
        said = frozenset((*given, *(SITE_SAID + key for key in of_site)))
        runs = [key for key in ("command", "script", "call") if key in self.document]
        if len(runs) > 1:
            one, other = ("the command", "command") if runs[0] == "command" else ("the script", "script")
            self.problems.append(((runs[1],), f"{one} is given too: give one of {other} and {runs[1]}"))
        elif not runs:
            self.problems.append((("command",), "missing: give what to run, a command, a script or a [call]"))
        call = self.call()
        if call is not None and call.items:
            given.setdefault("array", array_of_items(call))
            if problem := array_problem(call, given["array"]):
                self.problems.append((("array",), problem))
        signal, limit = given.get("signal"), given.get("limit_seconds")
        if signal is not None and limit is not None and signal.seconds_before >= limit:
            self.problems.append(
                (("signal",), f"{signal.seconds_before} s before the end is not within the time, {limit} s")
            )
        return Request(
            environment=self.environment(),
            container=self.container(),
            call=call,
            site=replace(site, **of_site),
            said=said,
            **given,
        )

    def site(self, user: str | None) -> dict[str, Any]:
        """What [site] says, by fields of Site."""
        table = self.table("site")
        found = as_fields(self.fields(table, ("site",), SITE_FIELDS))
        if twice := image_root_problem(table):
            self.problems.append((("site", twice[0]), twice[1]))
        if "run_as" in found:
            try:
                found["run_as"] = whose(found["run_as"], user)
            except ValidationError as error:
                self.problems.append((("site", "run_as"), str(error)))
        return found

    def table(self, key: str) -> Mapping[str, object]:
        table = self.document.get(key, {})
        if isinstance(table, dict):
            return table
        self.problems.append(((key,), f"expected a table, not {shown(table)}"))
        return {}

    def fields(
        self, table: Mapping[str, object], path: KeyPath, readers: Mapping[str, Reader], tables: Collection[str] = ()
    ) -> dict[str, Any]:
        """The values that are there and fit."""
        fit: dict[str, Any] = {}
        for key, value in table.items():
            if key in readers:
                try:
                    fit[key] = readers[key](value)
                except ValidationError as error:
                    self.problems.append(((*path, key), str(error)))
            elif key not in tables:
                self.problems.append(((*path, key), _unknown_key(key, path, (*readers, *tables))))
        return fit

    def environment(self) -> dict[str, str]:
        table = self.table("environment")
        for name in table:
            path = ("environment", name)
            if name in REQUEST_FIELDS:
                self.problems.append((path, f"this is a key of the request; {_AT_THE_TOP}"))
            elif not _VARIABLE.fullmatch(name):
                self.problems.append((path, "no name of a variable: letters, digits and '_', no digit first"))
        return self.fields(table, ("environment",), dict.fromkeys(table, variable))

    def call(self) -> Call | None:
        if "call" not in self.document:
            return None
        before = len(self.problems)
        table = self.table("call")
        found = self.fields(table, ("call",), CALL_FIELDS)
        self.problems += [(("call", key), words) for key, words in call_problems(table)]
        if "PY_EXEC" in self.table("environment"):
            self.problems.append((("environment", "PY_EXEC"), "[call] sets it: write python there"))
        return None if len(self.problems) > before else call_of(found)

    def container(self) -> Container | None:
        if "container" not in self.document:
            return None
        before = len(self.problems)
        table = self.table("container")
        found = self.fields(table, ("container",), CONTAINER_FIELDS)
        if len(self.problems) == before and "image" not in table and found.get("runtime") is not Runtime.NONE:
            self.problems.append((("container", "image"), 'missing: name an image, or write runtime = "none"'))
        return Container(**found)


def _unknown_key(key: str, path: KeyPath, known: Collection[str]) -> str:
    if path and key in REQUEST_FIELDS:
        return f"unknown key; {_AT_THE_TOP}"
    if home := next((name for name, readers in _INNER_TABLES.items() if not path and key in readers), ""):
        return f"unknown key; it belongs in [{home}]"
    if not path and key in _OTHER_WORDS:
        return f"unknown key; did you mean {quoted(_OTHER_WORDS[key])}?"
    return f"unknown key{did_you_mean(key, known)}"
