"""Prints the modules of hpcdash that `jobs` on the embedded queue, or the first screen, has
loaded.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys

from hpcdash.cli.main import main

# The program opens state.db where there is one.
_STATE = """
import os
from pathlib import Path
from hpcdash.services.state.database import StateDatabase
StateDatabase(Path(os.environ["HPCDASH_STATE"])).write()
"""


async def _show_first_screen() -> None:
    import hpcdash.cli.dashboard  # noqa: F401
    from tests.ui.stage import dashboard, settled

    async with dashboard("training").run_test(size=(120, 34)) as pilot:
        await settled(pilot)


if __name__ == "__main__":
    subprocess.run((sys.executable, "-c", _STATE), check=True)
    if sys.argv[1:] == ["first-screen"]:
        asyncio.run(_show_first_screen())
    else:
        sys.argv[0] = "hpcdash"
        with contextlib.suppress(SystemExit):
            main()
    print(*sorted(name for name in sys.modules if name.split(".")[0] == "hpcdash"), sep="\n")
