"""Which functions are given the job's context, and where among their arguments it goes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, List, Optional, Union  # noqa: UP035

import pytest

import hpcdash.job as job_module
from hpcdash.job import JobContext
from hpcdash.job import JobContext as Ctx
from hpcdash.job.injection import bind_job_context
from tests.support.records import for_each

if TYPE_CHECKING:
    from elsewhere import Unknown

CONTEXT = JobContext(job_id="7", rank=0)
OTHER = JobContext(job_id="8", rank=1)


def called(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What a function answers to the arguments that it is given in a job."""
    args, kwargs = bind_job_context(function, args, kwargs, CONTEXT)
    return function(*args, **kwargs)


def untouched(function: Callable[..., Any], *args: Any, **kwargs: Any) -> bool:
    return bind_job_context(function, args, kwargs, CONTEXT) == (args, kwargs)


# -- where it goes


def test_a_keyword_only_parameter_is_given_by_keyword() -> None:
    def train(x, *, job=None):
        return x, job

    assert bind_job_context(train, (1,), {}, CONTEXT) == ((1,), {"job": CONTEXT})
    assert called(train, 1) == (1, CONTEXT)


@pytest.mark.parametrize(
    ("args", "bound"),
    [((1, 2), (CONTEXT, 1, 2)), ((OTHER, 1, 2), (OTHER, 1, 2))],
)
def test_a_first_positional_parameter_goes_before_what_is_given(
    args: tuple[Any, ...], bound: tuple[Any, ...]
) -> None:
    def train(job, x, y):
        return job, x, y

    assert bind_job_context(train, args, {}, CONTEXT) == (bound, {})


def test_a_positional_parameter_in_the_middle_goes_to_its_index() -> None:
    def train(x, job, y):
        return x, job, y

    assert bind_job_context(train, (1, 2), {}, CONTEXT) == ((1, CONTEXT, 2), {})
    assert bind_job_context(train, (1,), {"y": 2}, CONTEXT) == ((1, CONTEXT), {"y": 2})


def test_a_positional_parameter_behind_ones_given_by_keyword_is_given_by_keyword() -> None:
    def train(x, y=2, job=None):
        return x, y, job

    assert bind_job_context(train, (), {"x": 1}, CONTEXT) == ((), {"x": 1, "job": CONTEXT})
    assert called(train, 1) == (1, 2, CONTEXT)


def test_a_positional_only_parameter_is_reached_over_the_defaults_before_it() -> None:
    def train(x, y=2, job=None, /):
        return x, y, job

    assert called(train, 1) == (1, 2, CONTEXT)


def test_never_through_varargs() -> None:
    def named(*job):
        return job

    def annotated(*args: JobContext, **kwargs: JobContext):
        return args, kwargs

    def before(x, job=None, *rest):
        return x, job, rest

    def named_and_more(*job, **rest):
        return job, rest

    assert untouched(named, 1)
    assert untouched(named_and_more)
    assert untouched(annotated, 1, a=2)
    assert called(before, 1) == (1, CONTEXT, ())
    assert called(before, 1, 2, 3) == (1, 2, (3,))


# -- given by the caller


def test_what_the_caller_gives_is_untouched() -> None:
    def train(x, job=None, y=1):
        return x, job, y

    assert untouched(train, 1, OTHER)
    assert untouched(train, 1, job=OTHER)
    assert untouched(train, 1, job=None)
    assert untouched(train, 1, "mine", 2)


def test_a_call_that_could_not_be_made_is_left_to_raise_as_it_would() -> None:
    def train(job, x, y):
        return job, x, y

    assert untouched(train)
    with pytest.raises(TypeError, match="missing"):
        called(train, 1)


def test_a_function_that_asks_for_nothing_is_left_alone() -> None:
    def train(jobs, my_job=None, *, context: object = None):
        return jobs

    assert untouched(train, 1)
    assert untouched(print, 1)
    assert untouched(dict, a=1)


def test_a_direct_call_outside_a_cluster_works_without_it() -> None:
    def train(x: int, job: Optional[JobContext] = None):  # noqa: UP045
        return x, job

    assert train(1) == (1, None)
    assert called(train, 1) == (1, CONTEXT)


def test_each_of_two_that_ask_is_given_it() -> None:
    def train(job, x, *, context: JobContext):
        return job, x, context

    assert called(train, 1) == (CONTEXT, 1, CONTEXT)


# -- annotations (strings here, as this module has its annotations postponed)


def plain(x, context: JobContext): ...
def optional(x, context: Optional[JobContext] = None): ...  # noqa: UP045
def union(x, context: Union[int, JobContext, None] = None): ...  # noqa: UP007
def bar(x, context: JobContext | None = None): ...
def dotted(x, context: job_module.JobContext): ...
def aliased(x, context: Ctx): ...
def annotated(x, context: Annotated[JobContext, "the job's"]): ...
def quoted_inside(x, context: Optional["JobContext"] = None): ...  # noqa: UP037, UP045
def twice_quoted(x, context: "JobContext"): ...  # noqa: UP037
def beside_unknown(x: Unknown, context: Optional[JobContext] = None): ...  # noqa: UP045
def or_unknown(x, context: Union[Unknown, JobContext, None] = None): ...  # noqa: UP007


def no_list(x, context: List[JobContext] = []): ...  # noqa: B006, UP006
def no_callable(x, context: Callable[[JobContext], None] = print): ...
def no_number(x, context: Optional[int] = None): ...  # noqa: UP045
def no_text(x, context: "not an annotation" = None): ...  # type: ignore  # noqa: F722
def no_list_of_unknown(x, context: List[Union[Unknown, JobContext]] = []): ...  # noqa: B006, UP006, UP007


ASK = [
    plain,
    optional,
    union,
    bar,
    dotted,
    aliased,
    annotated,
    quoted_inside,
    twice_quoted,
    beside_unknown,
    or_unknown,
]


@for_each("function", ASK, ids=lambda function: function.__name__)
def test_a_parameter_annotated_with_the_context_is_given_it_whatever_its_name(
    function: Callable[..., Any],
) -> None:
    assert bind_job_context(function, (1,), {}, CONTEXT) == ((1, CONTEXT), {})


@for_each("function", [no_list, no_callable, no_number, no_text, no_list_of_unknown])
def test_a_parameter_that_only_mentions_the_context_is_not(function: Callable[..., Any]) -> None:
    assert untouched(function, 1)


@for_each(
    "annotation",
    [
        JobContext,
        Optional[JobContext],  # noqa: UP045
        Union[str, JobContext],  # noqa: UP007
        JobContext | None,
        Annotated[JobContext, 1],
        Annotated[Optional[JobContext], 1],  # noqa: UP045
        Optional["JobContext"],
    ],
    ids=str,
)
def test_annotations_that_are_not_postponed_mean_the_same(annotation: Any) -> None:
    def train(x, context=None):
        return x, context

    train.__annotations__["context"] = annotation
    assert called(train, 1) == (1, CONTEXT)


def test_what_an_annotation_says_may_not_be_comparable() -> None:
    class Array:
        def __ne__(self, other: object) -> Any:
            raise ValueError("the truth value of an array is ambiguous")

    names: dict[str, Any] = {"array": Array()}
    exec("def train(x: 'array', job=None): return x, job", names)
    assert called(names["train"], 1) == (1, CONTEXT)


def test_a_name_that_only_a_type_checker_imports_is_taken_by_its_word() -> None:
    names: dict[str, Any] = {}
    exec(
        "def train(x, c: 'Optional[JobContext]' = None, d: 'api.JobContext | None' = None): return "
        "x, c, d",
        names,
    )
    assert called(names["train"], 1) == (1, CONTEXT, CONTEXT)


@for_each("annotation", ["JobContext", "Union[Unknown, JobContext]", "JobContext | Unknown"])
def test_another_class_of_that_name_is_not_the_context(annotation: str) -> None:
    names: dict[str, Any] = {}
    exec(f"class JobContext: ...\ndef train(x, c: {annotation!r} = None): return x, c", names)
    assert untouched(names["train"], 1)


# -- through decorators, partials, methods and classes


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


@logged
@functools.lru_cache
@logged
def decorated(x: int, ctx: Optional[JobContext] = None):  # noqa: UP045
    return x, ctx


def test_through_decorators() -> None:
    assert called(decorated, 1) == (1, CONTEXT)


def test_a_decorator_in_another_module_does_not_hide_what_an_annotation_means() -> None:
    names = {"functools": functools}
    exec(
        "def deco(f):\n @functools.wraps(f)\n def w(*a, **k): return f(*a, **k)\n return w",
        names,
    )
    assert called(names["deco"](aliased), 1) is None
    assert bind_job_context(names["deco"](aliased), (1,), {}, CONTEXT) == ((1, CONTEXT), {})


def test_a_decorator_that_takes_less_than_it_shows_is_called_as_it_can_be() -> None:
    def train(x, job=None):
        return x, job

    @functools.wraps(train)
    def narrow(x):
        return train(x)

    assert called(narrow, 1) == (1, None)


def test_through_a_cache_whose_own_signature_nobody_knows() -> None:
    @functools.lru_cache
    def load(job: JobContext, x: int, y: int = 1) -> tuple[Any, ...]:
        return job, x, y

    assert called(load, 2) == (CONTEXT, 2, 1)
    assert called(load, 2) is called(load, 2)


def test_through_a_partial() -> None:
    def train(x, job, y=0):
        return x, job, y

    assert called(functools.partial(train, 1)) == (1, CONTEXT, 0)
    assert called(functools.partial(train, x=1)) == (1, CONTEXT, 0)
    assert called(functools.partial(functools.partial(train, y=3), 1)) == (1, CONTEXT, 3)
    assert called(functools.partial(decorated, 1)) == (1, CONTEXT)


def test_what_a_partial_gives_is_untouched() -> None:
    def train(x, job=None):
        return x, job

    assert called(functools.partial(train, job=OTHER), 1) == (1, OTHER)
    assert called(functools.partial(train, 1, OTHER)) == (1, OTHER)
    assert called(logged(functools.partial(train, job=OTHER)), 1) == (1, OTHER)


class Trainer:
    def __init__(self, x: int, context: Optional[JobContext] = None) -> None:  # noqa: UP045
        self.given = (x, context)

    def fit(self, x, job):
        return x, job

    @classmethod
    def made(cls, x, job):
        return x, job

    @staticmethod
    def alone(x, job):
        return x, job

    def __call__(self, x: int, context: Ctx):
        return x, context


def test_methods_classes_and_objects_that_are_called() -> None:
    trainer = Trainer(0)
    for function in (trainer.fit, Trainer.made, Trainer.alone, trainer):
        assert called(function, 1) == (1, CONTEXT)
    assert called(Trainer, 1).given == (1, CONTEXT)


def test_the_callers_own_arguments_are_not_changed() -> None:
    args, kwargs = [1], {"y": 2}
    bind_job_context(lambda x, y, job: None, args, kwargs, CONTEXT)
    assert (args, kwargs) == ([1], {"y": 2})
