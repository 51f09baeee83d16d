"""Tests of many records of one kind: one case for all of them, whose failure names each record that
fails.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import reprlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pytest

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80
_Test = Callable[..., Any]


def for_each(
    names: str | Sequence[str],
    records: Iterable[Any] | Callable[[], Iterable[Any]],
    ids: Iterable[object] | Callable[[Any], object] | None = None,
) -> Callable[[_Test], _Test]:
    """Run a test with every record, whatever fails before; takes what pytest.mark.parametrize
    takes. What makes the records is called when the test runs.

    That one makes a case of each record: for records that are few, take long, or need fixtures of
    their own.
    """
    fields = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)

    @functools.cache
    def titled() -> list[tuple[str, dict[str, Any]]]:
        found: list[tuple[str, dict[str, Any]]] = []
        title_value = ids if callable(ids) else _SHORT.repr
        titles = None if ids is None or callable(ids) else [str(title) for title in ids]
        for place, record in enumerate(records() if callable(records) else records):
            parameters = pytest.param(record) if len(fields) == 1 else pytest.param(*record)
            if isinstance(record, type(parameters)):
                parameters = record
            assert not parameters.marks, "a record has no marks"
            values = dict(zip(fields, parameters.values, strict=True))
            title = (
                titles[place]
                if titles
                else ", ".join(filter(None, map(title_value, values.values())))
            )
            found.append((parameters.id or title, values))
        assert found, "no records"
        return found

    if not callable(records):
        titled()

    def decorate(test: _Test) -> _Test:
        signature = inspect.signature(test)
        others = [
            parameter for name, parameter in signature.parameters.items() if name not in fields
        ]

        def trials() -> Iterator[tuple[contextlib.AbstractContextManager[None], dict[str, Any]]]:
            failures: list[tuple[str, BaseException]] = []
            for title, values in titled():
                yield _collected(failures, title), values
            if failures:
                lines = (f"{title}: {_first_line(error)}" for title, error in failures)
                message = "\n  ".join((f"{len(failures)} of {len(titled())} records fail:", *lines))
                raise BaseExceptionGroup(message, [error for _, error in failures])

        if inspect.iscoroutinefunction(test):

            @functools.wraps(test)
            async def test_all(*arguments: Any, **fixtures: Any) -> None:
                for collected, values in trials():
                    with collected:
                        await test(*arguments, **fixtures, **values)
        else:

            @functools.wraps(test)
            def test_all(*arguments: Any, **fixtures: Any) -> None:
                for collected, values in trials():
                    with collected:
                        test(*arguments, **fixtures, **values)

        test_all.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return test_all

    return decorate


@contextlib.contextmanager
def _collected(failures: list[tuple[str, BaseException]], title: str) -> Iterator[None]:
    try:
        yield
    # pytest.raises fails with the second, and so does the hang guard, which ends the test and not a
    # record of it.
    except (Exception, pytest.fail.Exception, BaseExceptionGroup) as error:
        if "from pytest-timeout" in str(error):
            raise
        failures.append((title, error))


def _first_line(error: BaseException) -> str:
    """Return the beginning of an error, or all of what another such decorator collected."""
    if isinstance(error, BaseExceptionGroup):
        return error.message.replace("\n", "\n  ")
    return f"{type(error).__name__}: {error}".partition("\n")[0][:300]
