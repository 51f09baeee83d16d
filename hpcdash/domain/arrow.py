"""Has pyarrow do without pandas, which it imports for the first array where it is there (0.4 s, 75 MB).

Looked up in pyarrow's pandas-shim.pxi: it tries once, and goes on without where that fails.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import NoReturn

import pyarrow as pa


class _NoPandas(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if name == "pandas":
            self._refuse()

    def _refuse(self) -> NoReturn:
        raise ImportError("pandas is for analysis, not for tables")


def without_pandas() -> None:
    """Let pyarrow try, and fail; whoever needs pandas imports it afterwards."""
    if "pandas" in sys.modules:
        return
    refusing = _NoPandas()
    sys.meta_path.insert(0, refusing)
    try:
        pa.array([])
    finally:
        sys.meta_path.remove(refusing)
