"""Workers and one-shot timers of Textual's nodes that Textual does not lose."""

from __future__ import annotations

import asyncio
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
    """Run `work(*arguments)` beside the event handlers of `node`, as DOMNode.run_worker does.

    The coroutine is created when the worker runs, so a worker cancelled earlier leaves none
    unawaited.
    """
    # Textual's type for a callable takes no partial.
    return node.run_worker(
        cast("Any", partial(work, *arguments)),
        group=group,
        exclusive=exclusive,
        exit_on_error=exit_on_error,
    )


def call_after(
    node: DOMNode, seconds: float, callback: Callable[[], object]
) -> asyncio.TimerHandle:
    """Call back in `seconds`, unless the handle is cancelled or `node` is removed before.

    MessagePump.set_timer never calls back if its time is over before its task first runs, as on a
    loaded machine.
    """

    def unless_cancelled() -> object:
        return None if handle.cancelled() else callback()

    handle = asyncio.get_running_loop().call_later(seconds, node.call_later, unless_cancelled)
    return handle
