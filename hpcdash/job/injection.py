"""Injection of the job's context into a function whose signature requests it."""

from __future__ import annotations

import ast
import functools
import inspect
from inspect import Parameter
from typing import Any, Callable, Iterator, Mapping, Sequence, Union, get_args, get_origin

from hpcdash.job.context import JobContext

NAME = "job"
_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def bind_job_context(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    context: JobContext,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with the context put in for each parameter named `job` or annotated JobContext.

    What the caller gives stays as Python would bind it: `f(job, x)` called with one argument lacks
    one, so that the context goes before it; `f(x, job=None, y=1)` called with two has its job.
    Never through *args or **kwargs. Where the context cannot make the call fit, the arguments are
    answered as they came, and the call raises as it would.
    """
    given = (tuple(args), dict(kwargs))
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # Some builtins have none.
        return given
    requested = [
        parameter for parameter in _askers(function, signature) if parameter.name not in kwargs
    ]
    if not requested:
        return given
    as_given = _bound(signature, *given)
    if as_given is not None:
        requested = [
            parameter for parameter in requested if parameter.name not in as_given.arguments
        ]
    made = _with_context(signature, requested, *given, context)
    return made if _bound(signature, *made) and _takes(function, *made) else given


def _takes(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a wrapper itself takes these: it may take less than the function whose signature it
    shows.
    """
    try:
        own = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):  # The one of functools.lru_cache is C, and has no signature.
        return True
    return _bound(own, args, kwargs) is not None


def _with_context(
    signature: inspect.Signature,
    requested: Sequence[Parameter],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    context: JobContext,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    positional, named = list(args), dict(kwargs)
    order = [
        parameter for parameter in signature.parameters.values() if parameter.kind in _POSITIONAL
    ]
    for parameter in requested:
        index = order.index(parameter) if parameter.kind in _POSITIONAL else None
        if (
            index is not None
            and index < len(positional)
            and isinstance(positional[index], JobContext)
        ):
            continue
        if index is not None and parameter.kind is Parameter.POSITIONAL_ONLY:
            # Only what stands before it can bring it to its place.
            before = order[len(positional) : index]
            if all(other.default is not Parameter.empty for other in before):
                positional += [other.default for other in before]
        if index is not None and index <= len(positional):
            positional.insert(index, context)
        else:
            named[parameter.name] = context
    return tuple(positional), named


def _bound(
    signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> inspect.BoundArguments | None:
    try:
        return signature.bind(*args, **kwargs)
    except TypeError:
        return None


def _askers(function: Callable[..., Any], signature: inspect.Signature) -> Iterator[Parameter]:
    layers = list(_layers(function))
    preset = {
        name for layer in layers if isinstance(layer, functools.partial) for name in layer.keywords
    }
    names = getattr(layers[-1], "__globals__", {})
    for parameter in signature.parameters.values():
        if (
            parameter.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
            or parameter.name in preset
        ):
            continue
        if parameter.name == NAME or _means_context(parameter.annotation, names):
            yield parameter


def _layers(function: Any) -> Iterator[Any]:
    """The callable and what it wraps, as decorators and partials do, down to what was written with
    `def`.
    """
    seen: list[Any] = []
    while not any(function is other for other in seen):
        seen.append(function)
        yield function
        if isinstance(function, functools.partial):
            function = function.func
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        elif inspect.ismethod(function):
            function = function.__func__
        elif inspect.isclass(function):
            function = function.__init__
        elif not inspect.isroutine(function):
            function = type(function).__call__


def _means_context(annotation: Any, names: Mapping[str, Any]) -> bool:
    if annotation is JobContext:
        return True
    # A ForwardRef stands for a string inside Optional and the like.
    text = getattr(annotation, "__forward_arg__", annotation)
    if isinstance(text, str):
        return _text_means_context(text, names)
    if hasattr(annotation, "__metadata__"):  # Annotated[JobContext, …]
        return _means_context(annotation.__origin__, names)
    # `X | Y` is a type of its own from Python 3.10 on, and the same as Union from 3.14 on.
    if get_origin(annotation) is Union or type(annotation).__name__ == "UnionType":
        return any(_means_context(part, names) for part in get_args(annotation))
    return False


def _text_means_context(text: str, names: Mapping[str, Any]) -> bool:
    try:
        selected = eval(text, dict(names))  # Like typing does with the text of an annotation.
    except Exception:
        # A name that only a type checker imports, `X | Y` before Python 3.10, or any text: compared
        # as text.
        try:
            return _is_context_name(ast.parse(text.strip(), mode="eval").body, names)
        except (SyntaxError, ValueError):  # ValueError: a NUL byte.
            return False
    # Text that means itself would be resolved for ever; other values may compare as they like.
    return not (isinstance(selected, str) and selected == text) and _means_context(selected, names)


def _is_context_name(node: Any, names: Mapping[str, Any]) -> bool:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _is_context_name(node.left, names) or _is_context_name(node.right, names)
    if isinstance(node, ast.Subscript):
        if _last_name(node.value) not in ("Optional", "Union", "Annotated"):
            return False
        # Python 3.8 has the index in a node of its own.
        index = (
            getattr(node.slice, "value", node.slice)
            if type(node.slice).__name__ == "Index"
            else node.slice
        )
        parts = index.elts if isinstance(index, ast.Tuple) else [index]
        parts = parts[:1] if _last_name(node.value) == "Annotated" else parts
        return any(_is_context_name(part, names) for part in parts)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return _text_means_context(node.value, names)
    if isinstance(node, ast.Name) and node.id in names:
        return names[node.id] is JobContext
    return _last_name(node) == JobContext.__name__


def _last_name(node: Any) -> str | None:
    return getattr(node, "id", None) or getattr(node, "attr", None)
