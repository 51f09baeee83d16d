"""Finds out which of several schedulers a cluster has, by the answers to their probes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from hpcdash.backends.base import Backend, Probe
from hpcdash.backends.queries import Query
from hpcdash.errors import CommandElsewhere, CommandMissing, NoConfiguration


async def find_scheduler(
    backends: Sequence[Backend],
    ask: Callable[[Query[Probe]], Awaitable[Probe]],
    prepend_path: Callable[[str], None],
) -> tuple[Backend, Probe]:
    """The first backend that finds its scheduler there, settled, and what it found; raises why none does.

    Where its commands are in a folder that is not on the PATH, `prepend_path` is given that folder.
    """
    missing: list[CommandMissing] = []
    unconfigured: NoConfiguration | None = None
    for backend in backends:
        try:
            try:
                probe = await ask(backend.probe_query())
            except CommandElsewhere as elsewhere:
                prepend_path(elsewhere.folder)
                probe = await ask(backend.probe_query())
        except CommandMissing as error:
            missing.append(error)
            continue
        except NoConfiguration as error:
            unconfigured = unconfigured or error
            continue
        # The commands of one may be installed where another is used; of two that do not answer the first tells.
        if unconfigured is None or probe.controller_answers is not False:
            return backend.settled(probe), probe
    if unconfigured is not None:
        raise unconfigured
    if len(missing) == 1:
        raise missing[0]
    raise CommandMissing(
        "; ".join(error.message for error in missing),
        missing[0].next_step,
        status=missing[0].status,
        words="\n".join(error.words for error in missing if error.words),
    )
