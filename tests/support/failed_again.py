"""Runs the tests that failed last once more, one at a time: python -m tests.support.failed_again"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")


def ids_of(last_failed: str) -> list[str]:
    """What pytest takes for the tests that it noted; several workers note a group behind '@'."""
    return [re.sub(r"@[\w ]+$", "", name) for name in json.loads(last_failed)]


if __name__ == "__main__":
    failed = ids_of(LAST_FAILED.read_text("utf-8"))
    print(f"once more, alone: {', '.join(failed)}", flush=True)
    os.execv(sys.executable, (sys.executable, "-m", "pytest", "--maxfail", "1", *failed))
