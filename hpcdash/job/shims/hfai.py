"""Module that programs import as `hfai`, on top of hpcdash.job.

It has hfai's client, checkpoint, multiprocessing and distributed.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from types import ModuleType

from hpcdash.job import checkpoint, multiprocessing
from hpcdash.job import suspend as client

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["checkpoint", "client", "distributed", "multiprocessing"]


class _Distributed(ModuleType):
    """torch.distributed, but for `get_rank` and `get_world_size` before it runs: those of the
    nodes.
    """

    def __getattr__(self, name: str) -> Any:
        # A search through all modules, like inspect's, must not import torch.
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(import_module("torch.distributed"), name)

    def get_rank(self, *args: Any) -> int:
        """A process's rank; before torch.distributed runs, its node's: 0 is the one that hears the
        suspend command.
        """
        return self._torch().get_rank(*args) if self._torch() else int(os.environ.get("RANK", "0"))

    def get_world_size(self, *args: Any) -> int:
        """Return the number of processes; before torch.distributed runs, the number of nodes."""
        return (
            self._torch().get_world_size(*args)
            if self._torch()
            else int(os.environ.get("WORLD_SIZE", "1"))
        )

    def _torch(self) -> Any:
        found = getattr(sys.modules.get("torch"), "distributed", None)
        return (
            found if found is not None and found.is_available() and found.is_initialized() else None
        )


distributed = _Distributed("hfai.distributed")
for _module in (checkpoint, client, distributed, multiprocessing):
    # For `import hfai.client` and `from hfai.client import …`.
    sys.modules[
        f"{__name__}.{_module.__name__.rpartition('.')[2].replace('suspend', 'client')}"
    ] = _module
