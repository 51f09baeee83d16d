"""Injection of the job's context into a function whose signature requests it."""

from __future__ import annotations

import ast
import functools
import inspect
from inspect import Parameter
from typing import Any, Callable, Iterator, Mapping, Sequence, Union, get_args, get_origin

from hpcdash.job.context import JobContext

NAME = "job"
_VARIADIC = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def bind_job_context(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    context: JobContext,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with the context for each parameter named `job` or annotated JobContext.

    The caller's arguments are bound as by Python: `f(job, x)` called with one argument lacks one,
    so that the context goes before it; `f(x, job=None, y=1)` called with two has its job. *args and
    **kwargs never get the context. If the call does not fit even with the context, the arguments
    are returned unchanged, and the call raises as it would.
    """
    given = (tuple(args), dict(kwargs))
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # Some builtins have none.
        return given
    bound = _bound(signature, *given)
    taken = {*kwargs, *(() if bound is None else bound.arguments)}
    requested = [
        parameter
        for parameter in _context_parameters(function, signature)
        if parameter.name not in taken
    ]
    if not requested:
        return given
    extended = _with_context(signature, requested, *given, context)
    if _bound(signature, *extended) is None:
        return given
    # A wrapper may accept less than the function whose signature it shows.
    try:
        own_signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):  # functools.lru_cache's wrapper is C code without a signature.
        return extended
    return given if _bound(own_signature, *extended) is None else extended


def _with_context(
    signature: inspect.Signature,
    requested: Sequence[Parameter],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    context: JobContext,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with the context inserted for each requested parameter."""
    positional = list(args)
    keywords = dict(kwargs)
    order = [
        parameter for parameter in signature.parameters.values() if parameter.kind in _POSITIONAL
    ]
    for parameter in requested:
        if parameter.kind not in _POSITIONAL:
            keywords[parameter.name] = context
            continue
        index = order.index(parameter)
        if index < len(positional) and isinstance(positional[index], JobContext):
            continue
        if parameter.kind is Parameter.POSITIONAL_ONLY:
            # Defaults of the parameters before it bring it to its place.
            missing = order[len(positional) : index]
            if all(other.default is not Parameter.empty for other in missing):
                positional += [other.default for other in missing]
        if index <= len(positional):
            positional.insert(index, context)
        else:
            keywords[parameter.name] = context
    return tuple(positional), keywords


def _bound(
    signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> inspect.BoundArguments | None:
    try:
        return signature.bind(*args, **kwargs)
    except TypeError:
        return None


def _context_parameters(
    function: Callable[..., Any], signature: inspect.Signature
) -> Iterator[Parameter]:
    """Yield the parameters named `job` or annotated JobContext, except those that partials set."""
    skipped: set[str] = set()
    for layer in _layers(function):
        if isinstance(layer, functools.partial):
            skipped.update(layer.keywords)
    # The last layer is the `def`.
    names = getattr(layer, "__globals__", {})
    for parameter in signature.parameters.values():
        if parameter.kind in _VARIADIC or parameter.name in skipped:
            continue
        if parameter.name == NAME or _is_context(parameter.annotation, names):
            yield parameter


def _layers(function: Any) -> Iterator[Any]:
    """Yield a callable and those that it wraps, such as a decorator's, down to the `def`."""
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


def _is_context(annotation: Any, names: Mapping[str, Any]) -> bool:
    if annotation is JobContext:
        return True
    # A ForwardRef stands for a string inside Optional and the like.
    text = getattr(annotation, "__forward_arg__", annotation)
    if isinstance(text, str):
        return _is_context_text(text, names)
    if hasattr(annotation, "__metadata__"):  # Annotated[JobContext, …]
        return _is_context(annotation.__origin__, names)
    # `X | Y` is a type of its own from Python 3.10 on, and the same as Union from 3.14 on.
    if get_origin(annotation) is Union or type(annotation).__name__ == "UnionType":
        return any(_is_context(part, names) for part in get_args(annotation))
    return False


def _is_context_text(text: str, names: Mapping[str, Any]) -> bool:
    try:
        annotation = eval(text, dict(names))  # As typing evaluates the text of an annotation.
    except Exception:
        # A name that only a type checker imports, `X | Y` before Python 3.10, or any text.
        try:
            return _is_context_name(ast.parse(text.strip(), mode="eval").body, names)
        except (SyntaxError, ValueError):  # ValueError: a NUL byte.
            return False
    # A text that evaluates to itself would recur for ever; other values may define == freely.
    is_same = isinstance(annotation, str) and annotation == text
    return not is_same and _is_context(annotation, names)


def _is_context_name(node: Any, names: Mapping[str, Any]) -> bool:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _is_context_name(node.left, names) or _is_context_name(node.right, names)
    if isinstance(node, ast.Subscript):
        if _last_name(node.value) not in ("Optional", "Union", "Annotated"):
            return False
        index: Any = node.slice
        # Python 3.8 has the index in a node of its own.
        if type(index).__name__ == "Index":
            index = index.value
        parts = index.elts if isinstance(index, ast.Tuple) else [index]
        parts = parts[:1] if _last_name(node.value) == "Annotated" else parts
        return any(_is_context_name(part, names) for part in parts)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return _is_context_text(node.value, names)
    if isinstance(node, ast.Name) and node.id in names:
        return names[node.id] is JobContext
    return _last_name(node) == JobContext.__name__


def _last_name(node: Any) -> str | None:
    return getattr(node, "id", None) or getattr(node, "attr", None)
