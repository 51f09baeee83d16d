"""Tables are made without pandas, which can still be had."""

from __future__ import annotations

import subprocess
import sys


def test_a_table_is_made_without_pandas_and_pandas_is_there_afterwards() -> None:
    script = """
import sys
import pyarrow as pa
from hpcdash.domain import schema
rows = pa.table({"id": ["1"]}).to_pylist()
print("pandas" in sys.modules)
import pandas
print(float(pandas.Series([1.0, 3.0]).mean()))
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert ended.stdout.split() == ["False", "2.0"]
