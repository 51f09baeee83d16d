"""Live use of a running job: one step samples its nodes while a person watches, then ends."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from pathlib import Path
from statistics import median
from typing import Any

from msgspec import Struct, field

from hpcdash.backends.inside import Frames
from hpcdash.backends.node_samples import NodeSample
from hpcdash.domain.nodelist import compress, natural_order
from hpcdash.domain.text import visible
from hpcdash.domain.units import format_memory
from hpcdash.errors import UsageError
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.usage.sample import (
    EVERY_SECONDS,
    LEASE_SECONDS,
    NodeUse,
    node_use,
    parse_sample,
    sampler,
)
from hpcdash.services.usage.watched import Watched, remember_watched
from hpcdash.transport.base import CommandResult

# An hour of checks.
MAX_LOOKS = 360
# Warnings are about the last checks, and need some.
_JUDGED_LOOKS = 6
_FEWEST_LOOKS = 3
_IDLE_PERCENT = 5.0
_BUSY_PERCENT = 20.0
_NEAR_LIMIT = 0.9
_UNEQUAL = 0.5
_MIN_CORES = 0.5
# A step that ends sooner than this has not sampled: it is not begun again and again.
_MIN_STEP_SECONDS = 30.0
# A scheduler that reports jobs' use itself measures it about this often.
_TOLD_SECONDS = 5.0


class NodeHistory(Struct):
    """The uses of a node over the time one looks, the newest last."""

    uses: deque[NodeUse] = field(default_factory=lambda: deque(maxlen=MAX_LOOKS))
    last: NodeSample | None = None

    def add(self, sample: NodeSample) -> NodeUse:
        use = node_use(sample, self.last)
        self.last = sample
        self.uses.append(use)
        return use


class LiveUse:
    """Samples of one job by node; `problem` says why there are none, or no more, '' while all is
    well.
    """

    def __init__(
        self, store: ClusterStore, row: Mapping[str, Any], state_folder: Path | None = None
    ) -> None:
        self.row = row
        self.nodes: dict[str, NodeHistory] = {}
        self.problem = ""
        self.taken_at: float | None = None
        self._store = store
        self._state_folder = state_folder
        self._watched = Watched()

    async def follow(self, checks: int | None = None) -> AsyncGenerator[NodeUse, None]:
        """Yield each use as it arrives, by node, until the job's step ends or the caller leaves.

        There are at most `checks` per node. Raises UsageError, the scheduler's refusals, and the
        transport's errors.
        """
        if self._store.backend.inside.measures_use:
            native = (await self._store.fetch_detail(str(self.row["id"]))).native
            async with aclosing(self._query(native, checks)) as uses:
                async for use in uses:
                    yield use
            return
        while True:
            began = time.monotonic()
            received = False
            async with aclosing(self._step(checks)) as uses:
                async for use in uses:
                    received = True
                    yield use
            # A loop that ended normally is restarted if a person still watches.
            if checks is not None or not received or time.monotonic() - began < LEASE_SECONDS / 2:
                return

    async def _query(
        self, native: Mapping[str, str], checks: int | None
    ) -> AsyncGenerator[NodeUse, None]:
        """Yield samples of a scheduler that reports a job's use itself.

        Each check is a query of the nodes that the job has by then.
        """
        store = self._store
        count = 0
        nodes = store.backend.inside.use_nodes(native)
        while checks is None or count < checks:
            if count:
                await asyncio.sleep(EVERY_SECONDS if count > 1 else _TOLD_SECONDS)
            count += 1
            requested = await store.run_query(nodes)
            for sample in await store.run_query(store.backend.inside.use(native, requested)):
                known = self.nodes.get(sample.node)
                if (
                    known is None
                    or known.last is None
                    or known.last.up_seconds != sample.up_seconds
                ):
                    yield self._add(sample)

    async def _step(self, checks: int | None) -> AsyncGenerator[NodeUse, None]:
        store = self._store
        step = store.backend.inside.step(self.row, sampler() if checks is None else sampler(checks))
        wait = store.budget.wait_seconds(times=2)
        if wait > 0:
            await asyncio.sleep(wait)
        store.budget.spend()
        frames = Frames(step.token)
        is_first = True
        async with store.transport.stream(step.argv) as stream:
            async for chunk in stream:
                ended = frames.feed(chunk)
                for output in ended:
                    if output.problem:
                        self.problem = f"{visible(output.node)}: {visible(output.problem)}"
                        continue
                    sample = parse_sample(output, self.row.get("gpus"))
                    if sample is not None:
                        is_first = False
                        yield self._add(sample)
                frames.take_ended(ended)
            status = getattr(stream, "status", None)
            stderr = getattr(stream, "stderr", b"")
        if step.skipped:
            self.problem = (
                f"not queried: {visible(compress(step.skipped))} (too many nodes for ssh)"
            )
        if is_first and not self.problem:
            raise step.failure(CommandResult(step.command, status or 0, b"", stderr or b"", 0.0))

    def _add(self, sample: NodeSample) -> NodeUse:
        self.taken_at = self._store.clock.now()
        use = self.nodes.setdefault(sample.node, NodeHistory()).add(sample)
        self._watched.add(use)
        return use

    def remember(self) -> None:
        """Keep what was watched for the efficiency of the job, with what was watched before."""
        if self._state_folder is not None and self._watched.seconds > 0:
            remember_watched(self._state_folder, self._store.name, self.row, self._watched)
            self._watched = Watched()

    # -- values

    def latest(self) -> list[NodeUse]:
        """The newest of each node, in their natural order."""
        return [
            self.nodes[name].uses[-1]
            for name in sorted(self.nodes, key=natural_order)
            if self.nodes[name].uses
        ]

    def warnings(self) -> list[str]:
        """Return warnings on the use, the most severe first."""
        histories = {
            name: list(self.nodes[name].uses)[-_JUDGED_LOOKS:]
            for name in sorted(self.nodes, key=natural_order)
        }
        return [*_memory_warnings(histories), *_gpu_warnings(histories), *_rank_warnings(histories)]


def _memory_warnings(histories: Mapping[str, list[NodeUse]]) -> list[str]:
    found = []
    for node, uses in histories.items():
        sample = uses[-1].sample
        used = sample.memory_bytes
        limit = sample.memory_limit_bytes
        if used is not None and limit and used >= _NEAR_LIMIT * limit:
            text = (
                f"memory is near the limit on {visible(node)}: {format_memory(used)} of "
                f"{format_memory(limit)}"
            )
            found.append(f"{text}; above the limit, the job is killed")
    return found


def _gpu_warnings(histories: Mapping[str, list[NodeUse]]) -> list[str]:
    """About GPUs that did nothing over the last looks, all of them together."""
    means: dict[tuple[str, str], float] = {}
    for node, uses in histories.items():
        if len(uses) < _FEWEST_LOOKS:
            continue
        percents: dict[str, list[float]] = {}
        for use in uses:
            for gpu in use.sample.gpus:
                if gpu.percent is not None:
                    percents.setdefault(gpu.index, []).append(gpu.percent)
        means |= {
            (node, index): max(values)
            for index, values in percents.items()
            if len(values) >= _FEWEST_LOOKS
        }
    idle = [key for key, most in means.items() if most <= _IDLE_PERCENT]
    busy = [key for key, most in means.items() if most >= _BUSY_PERCENT]
    if not idle:
        return []
    if len(idle) == len(means):
        return [f"no GPU is busy ({len(means)} idle)" if len(means) > 1 else "the GPU is idle"]
    if len(busy) == 1 and len(idle) == len(means) - 1:
        return [f"1 of {len(means)} GPUs is busy: does the program use only one?"]
    where = ", ".join(f"{visible(node)}:{visible(index)}" for node, index in idle[:8])
    return [f"{len(idle)} of {len(means)} GPUs are idle: {where}{' …' if len(idle) > 8 else ''}"]


def _rank_warnings(histories: Mapping[str, list[NodeUse]]) -> list[str]:
    sums: dict[str, list[float]] = {}
    for uses in histories.values():
        for use in uses:
            for rank, cores in use.rank_cores.items():
                sums.setdefault(rank, []).append(cores)
    means = {
        rank: sum(values) / len(values)
        for rank, values in sums.items()
        if len(values) >= _FEWEST_LOOKS - 1
    }
    if len(means) < 2:
        return []
    middle = median(means.values())
    if len(means) == 2:
        middle = max(means.values())
    low = sorted((rank for rank, mean in means.items() if mean < _UNEQUAL * middle), key=int)
    if not low or middle < _MIN_CORES:
        return []
    shown = ", ".join(low[:8]) + (" …" if len(low) > 8 else "")
    mean = sum(means[rank] for rank in low) / len(low)
    return [
        f"ranks are unequal: {'rank' if len(low) == 1 else 'ranks'} {shown} at {mean:.1f} cores, "
        f"others at {middle:.1f}"
    ]


# -- lines for a command, and bars for both

_BLOCKS = " ▁▂▃▄▅▆▇█"
_ASCII = " .:-=+*#%"


def bars(values: list[float | None], ceiling: float, width: int, *, is_ascii: bool = False) -> str:
    """The last `width` values as one letter each, from 0 to `ceiling`; blank where one is not
    known.
    """
    letters = _ASCII if is_ascii else _BLOCKS
    shown = []
    for value in values[-width:]:
        if value is None or ceiling <= 0:
            shown.append(" ")
        else:
            part = min(1.0, max(0.0, value / ceiling))
            shown.append(letters[max(1, round(part * (len(letters) - 1)))])
    return "".join(shown).rjust(width)


def for_json(use: NodeUse) -> dict[str, object]:
    """A look at one node with stable keys; null is unknown."""
    sample = use.sample
    return {
        "node": sample.node,
        "cpu_cores": None if use.cores is None else round(use.cores, 3),
        "cpus": sample.cpus,
        "memory_bytes": sample.memory_bytes,
        "memory_limit_bytes": sample.memory_limit_bytes,
        "memory_source": "rss" if sample.is_rss else "cgroup",
        "gpus": [
            {
                "index": gpu.index,
                "uuid": gpu.uuid or None,
                "percent": gpu.percent,
                "memory_bytes": gpu.memory_bytes,
                "memory_total_bytes": gpu.memory_total_bytes,
                "watts": gpu.watts,
                "name": gpu.name or None,
            }
            for gpu in sample.gpus
        ],
        "processes": [
            {
                "pid": one.pid,
                "rank": int(one.rank) if one.rank else None,
                "cpu_cores": None
                if one.pid not in use.process_cores
                else round(use.process_cores[one.pid], 3),
                "memory_bytes": one.rss_bytes,
                "command": one.command,
            }
            for one in sample.processes
        ],
    }


async def fetch_once(live: LiveUse, nodes: int) -> list[NodeUse]:
    """Two looks at each node, two seconds apart. Raises as LiveUse.follow."""
    seen: dict[str, int] = {}
    async with aclosing(live.follow(checks=2)) as uses:
        async for use in uses:
            seen[use.sample.node] = seen.get(use.sample.node, 0) + 1
            if len(seen) >= nodes and min(seen.values()) >= 2:
                break
    if not live.nodes:
        raise UsageError(live.problem or "no node of the job responded")
    return live.latest()
