"""The [call] of REQUEST.toml: readers of its values, and what is wrong with the table as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from hpcdash.config.problems import quoted, shown
from hpcdash.config.values import Reader, Unfit, line_of_text
from hpcdash.domain.array_tasks import MAX_TASKS, ArrayTasks
from hpcdash.domain.request import Call
from hpcdash.launch.request_fields import folder_there, text_list


def _function(value: object) -> tuple[str, str]:
    """(module, function)."""
    text = line_of_text(value)
    module, colon, function = text.partition(":")
    if "/" in module or (colon and module.endswith(".py")):
        raise Unfit(f"{shown(text)} names a file: write the module as it is imported, {quoted('train:main')}")
    if not colon:
        module, _, function = text.rpartition(".")
        meant = f"{module}:{function}" if module and function != "py" else "train:main"
        raise Unfit(f"{shown(text)} is no MODULE:FUNCTION: write it as in {quoted(meant)}")
    for part in (*module.split("."), *function.split(".")):
        if not part.isidentifier():
            raise Unfit(f"{shown(text)} is no MODULE:FUNCTION: {shown(part)} is no name of Python's")
    if module == "__main__":
        raise Unfit("__main__ is the runner itself in the job: move the function into a module")
    return module, function


def _array(value: object) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise Unfit(f"expected an array, as in [1, {quoted('x')}], not {shown(value)}")
    return tuple(value)


def _items(value: object) -> tuple[Any, ...]:
    items = _array(value)
    if not 1 <= len(items) <= MAX_TASKS:
        raise Unfit(f"expected 1 to {MAX_TASKS} items, a task of the array for each, not {len(items)}")
    return items


def _arguments(value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise Unfit(f"expected a table, as in {{ lr = 0.001 }}, not {shown(value)}")
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
