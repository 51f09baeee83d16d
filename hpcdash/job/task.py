"""Functions that can be submitted: `@task`, on the machine that submits and in the job."""

from __future__ import annotations

import functools

from hpcdash.job.names import client

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Iterable, Mapping


class Task:
    """Function with the resources of its jobs; calling it runs it here.

    `options` are keys of a request, such as `slots` or `time`, and those of hpcdash.client.
    """

    def __init__(
        self, function: Callable[..., Any], options: Mapping[str, Any], after: tuple[Any, ...] = ()
    ) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.options = dict(options)
        self.waits_for = after

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __reduce__(self) -> Any:
        # By its name, as the function itself.
        return self.__qualname__  # type: ignore[attr-defined]

    def with_options(self, **options: Any) -> Task:
        """Return the same function with these options of its jobs replaced."""
        return Task(self.function, {**self.options, **options}, self.waits_for)

    def after(self, job: Any, kind: str = "afterok") -> Task:
        """Return the same function, whose jobs also wait for `job`, a job or its ID.

        `kind` is afterok (its success), afternotok (its failure), afterany (its end) or after (its
        start).
        """
        return Task(self.function, self.options, (*self.waits_for, (job, kind)))

    def submit(self, *args: Any, **kwargs: Any) -> Any:
        """Submit a job that calls the function with these arguments, to the cluster of its options
        or the current one.
        """
        return client().submit_task(self, args, kwargs)

    async def asubmit(self, *args: Any, **kwargs: Any) -> Any:
        """Submit in an event loop, like `submit`."""
        return await client().asubmit_task(self, args, kwargs)

    def map(self, items: Iterable[Any], *, at_most: int | None = None, **kwargs: Any) -> Any:
        """Submit an array whose tasks call the function with an item each; `at_most` run at once.

        A tuple is positional arguments, a dict keyword arguments, anything else one argument;
        `kwargs` are for all tasks.
        """
        return client().map_task(self, items, kwargs, at_most)

    async def amap(self, items: Iterable[Any], *, at_most: int | None = None, **kwargs: Any) -> Any:
        """Submit an array in an event loop, like `map`."""
        return await client().amap_task(self, items, kwargs, at_most)


def task(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Make a function a Task: `@task`, or with options `@task(slots=8, time="2h")`."""
    if function is None:
        return functools.partial(Task, options=options)
    return Task(function, options)
