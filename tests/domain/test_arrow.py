"""Tables are made without pandas, which whoever wants it can still have."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.system


def test_a_table_is_made_without_pandas_and_pandas_is_there_afterwards(tmp_path: Path) -> None:
    # As much of it as pyarrow asks for.
    (tmp_path / "pandas.py").write_text("__version__ = '3.0.0'\nprint('imported')\n")
    script = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
import pyarrow as pa
from hpcdash.domain import schema
rows = pa.table({{"id": ["1"]}}).to_pylist()
print("table")
import pandas
"""
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert ended.stdout.split() == ["table", "imported"]
