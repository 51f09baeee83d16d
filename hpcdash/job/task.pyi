from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, ParamSpec, TypeVar, overload

from hpcdash.client.job import Job, JobArray

P = ParamSpec("P")
R = TypeVar("R", covariant=True)
S = TypeVar("S")

class Task(Generic[P, R]):
    function: Callable[P, R]
    options: dict[str, Any]
    waits_for: tuple[tuple[Any, str], ...]
    def __init__(
        self,
        function: Callable[P, R],
        options: Mapping[str, Any],
        after: tuple[tuple[Any, str], ...] = (),
    ) -> None: ...
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...
    def with_options(self, **options: Any) -> Task[P, R]: ...
    def after(self, job: Job[Any] | JobArray[Any] | str, kind: str = "afterok") -> Task[P, R]: ...
    # A job may stand for any argument, as its result.
    def submit(self, *args: Any, **kwargs: Any) -> Job[R]: ...
    async def asubmit(self, *args: Any, **kwargs: Any) -> Job[R]: ...
    def map(
        self, items: Iterable[Any], *, at_most: int | None = None, **kwargs: Any
    ) -> JobArray[R]: ...
    async def amap(
        self, items: Iterable[Any], *, at_most: int | None = None, **kwargs: Any
    ) -> JobArray[R]: ...

@overload
def task(function: Callable[P, S], /) -> Task[P, S]: ...
@overload
def task(function: None = None, **options: Any) -> Callable[[Callable[P, S]], Task[P, S]]: ...
