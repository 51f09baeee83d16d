"""Starts Textual workers whose coroutine is made when it runs: one that ends before has none that is never awaited."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, cast

from textual.dom import DOMNode
from textual.worker import Worker


def start_worker(
    node: DOMNode,
    work: Callable[..., Awaitable[object]],
    *arguments: object,
    group: str = "default",
    exclusive: bool = False,
    exit_on_error: bool = True,
) -> Worker[Any]:
    """Run `work(*arguments)` beside the event handlers of `node`, as DOMNode.run_worker does."""
    # Textual's type for a callable takes no partial.
    return node.run_worker(
        cast("Any", partial(work, *arguments)), group=group, exclusive=exclusive, exit_on_error=exit_on_error
    )
