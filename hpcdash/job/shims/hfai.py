"""Module that programs import as `hfai`: client, checkpoint, multiprocessing and distributed."""

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
    """torch.distributed, whose `get_rank` and `get_world_size` are the nodes' until it runs."""

    def __getattr__(self, name: str) -> Any:
        # A search through all modules, like inspect's, must not import torch.
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(import_module("torch.distributed"), name)

    def get_rank(self, *args: Any) -> int:
        """Return the process's rank; before torch.distributed runs, its node's rank: 0 for the node
        that receives the suspend command.
        """
        running = self._running()
        return running.get_rank(*args) if running else int(os.environ.get("RANK", "0"))

    def get_world_size(self, *args: Any) -> int:
        """Return the number of processes; before torch.distributed runs, the number of nodes."""
        running = self._running()
        return running.get_world_size(*args) if running else int(os.environ.get("WORLD_SIZE", "1"))

    def _running(self) -> Any:
        """Return torch.distributed if it is initialized, else None."""
        found = getattr(sys.modules.get("torch"), "distributed", None)
        is_running = found is not None and found.is_available() and found.is_initialized()
        return found if is_running else None


distributed = _Distributed("hfai.distributed")
for _name in __all__:
    # For `import hfai.client` and `from hfai.client import …`.
    sys.modules[f"{__name__}.{_name}"] = globals()[_name]
