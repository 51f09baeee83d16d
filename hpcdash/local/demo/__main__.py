"""`python -m hpcdash.local.demo FOLDER PROGRAM…`: waits for the end of stdin, then ends the demonstration in FOLDER.

Whoever began it holds the other end: however that program ends, nothing of the demonstration stays.
"""

import shutil
import sys
from pathlib import Path

from hpcdash.local.demo.jobs import Demonstration

if __name__ == "__main__":
    folder, program = Path(sys.argv[1]), sys.argv[2:]
    sys.stdin.buffer.read()
    Demonstration(folder).end(program)
    shutil.rmtree(folder, ignore_errors=True)
