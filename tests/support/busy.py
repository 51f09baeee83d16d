"""Runs a command beside processes that take all the processor they get, as on a loaded laptop.

python -m tests.support.busy 8 pytest -n 4 --journeys
"""

from __future__ import annotations

import subprocess
import sys

# It ends with the process that started it, which holds its stdin.
_BUSY = (
    "import os, threading\nthreading.Thread(target=lambda: (os.read(0, 1), "
    "os._exit(0))).start()\nwhile True: pass"
)


def main(count: str, *command: str) -> int:
    busy = [
        subprocess.Popen([sys.executable, "-c", _BUSY], stdin=subprocess.PIPE)
        for _ in range(int(count))
    ]
    try:
        return subprocess.run(command, check=False).returncode
    finally:
        for process in busy:
            process.kill()
            process.wait()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
