"""Ends a training before its memory is full: of the host, of its control group, of its GPU.

A leak that takes days costs one restart instead of a crash. Never imports torch; looks at it where the program has.
"""

from __future__ import annotations

import sys
from time import monotonic

from hpcdash.job.ranks import highest_of_all
from hpcdash.job.said_once import SaidOnce

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from hpcdash.job.ranks import AllReduceMax

GIB = 1 << 30


class MemoryGuard:
    """Says to save and end when more than `host_percent` (0-100) of host memory is used, or a GPU is almost full.

    A GPU is when less than `gpu_free_bytes` of it are free. `gpu_free` returns that for this rank's; without it
    torch.cuda is asked where the program has imported torch and uses a GPU. Low GPU memory is measured again after gc
    and `torch.cuda.empty_cache`, as only then is what torch keeps in its cache seen as free. None for a limit leaves it
    out.

        memory = MemoryGuard()
        for step in range(steps):
            train(step)
            if memory.should_stop():
                save(step)
                break

    With several ranks the worst decides, by `all_reduce_max` (a rank's number in, the highest of all out) or by
    torch.distributed where it runs: then all ranks must ask, at the same places.
    """

    def __init__(
        self,
        host_percent: float | None = 95.0,
        gpu_free_bytes: float | None = 2 * GIB,
        *,
        gpu_free: Callable[[], float] | None = None,
        every_seconds: float = 30.0,
        all_reduce_max: AllReduceMax | None = None,
        host_used: Callable[[], float | None] | None = None,
    ) -> None:
        if host_percent is not None and not 1 < host_percent <= 100:
            raise ValueError(f"host_percent {host_percent!r} is not between 1 and 100: 95 is 95 %")
        self._host_percent = host_percent
        self._gpu_free_bytes = gpu_free_bytes
        self._gpu_free = gpu_free
        self._every_seconds = every_seconds
        self._all_reduce_max = all_reduce_max
        self._host_used = host_used
        self._next_look = 0.0
        self._reason = ""
        self._log = SaidOnce()

    def should_stop(self) -> str:
        """Why to save and end now, "" to go on. Once said it stays said."""
        worst = highest_of_all(int(bool(self.reason())), self._all_reduce_max)
        if worst and not self._reason:
            self._reason = "another rank's memory is almost full"
        return self._reason

    def reason(self) -> str:
        """As `should_stop`, of this rank alone; looks at most every few seconds, and raises nothing."""
        now = monotonic()
        if not self._reason and now >= self._next_look:
            self._next_look = now + self._every_seconds
            try:
                self._reason = self._host_reason() or self._gpu_reason()
            except Exception as error:
                self._log.say("unread", f"memory cannot be measured ({error!r}); the training goes on unguarded")
        return self._reason

    def _host_reason(self) -> str:
        if self._host_percent is None:
            return ""
        if self._host_used is None:
            from hpcdash.job.host_memory import host_used_percent

            self._host_used = host_used_percent
        used = self._host_used()
        if used is None:
            self._log.say("host", "host memory cannot be measured on this system; the training goes on unguarded")
            return ""
        if used <= self._host_percent:
            return ""
        return f"{used:.1f} % of host memory is used, more than {self._host_percent:g} %"

    def _gpu_reason(self) -> str:
        if self._gpu_free_bytes is None:
            return ""
        free_bytes = self._gpu_free or _torch_gpu_free()
        if free_bytes is None or free_bytes() >= self._gpu_free_bytes:
            return ""
        import gc

        gc.collect()
        cuda = _torch_cuda()
        if cuda is not None:
            cuda.empty_cache()
        free = free_bytes()
        if free >= self._gpu_free_bytes:
            return ""
        return f"{free / GIB:.2f} GiB of GPU memory are free, less than {self._gpu_free_bytes / GIB:g} GiB"


def _torch_cuda() -> Any:
    """torch.cuda where the program uses it by now, else None."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda if cuda is not None and cuda.is_available() and cuda.is_initialized() else None


def _torch_gpu_free() -> Callable[[], float] | None:
    cuda = _torch_cuda()
    return None if cuda is None else lambda: float(cuda.mem_get_info()[0])
