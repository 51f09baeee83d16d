"""`python -m hpcdash.embedded.demo FOLDER`: fills a demonstration's queue, says so, and ends it
when stdin ends.

Whoever began it holds the other end of stdin: however that program ends, nothing of the
demonstration stays. Where this one is killed too, the next demonstration takes away what is left.
stdout gets one line: READY, or why there is no demonstration.
"""

import os
import shutil
import signal
import sys
from pathlib import Path

from hpcdash.embedded.demo.jobs import READY, Demonstration, remove_left_behind
from hpcdash.errors import HpcdashError


def main(folder: Path) -> None:
    # Closing a terminal, or ending its whole session, ends the program that holds stdin.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    # In the background: it may take seconds, for which nobody should wait.
    if os.fork() == 0:
        try:
            nowhere = os.open(os.devnull, os.O_RDWR)
            for descriptor in range(3):
                os.dup2(nowhere, descriptor)
            remove_left_behind(folder)
        finally:
            os._exit(0)
    one = Demonstration(folder)
    try:
        try:
            one.begin()
            message = READY
        except (HpcdashError, OSError) as error:
            message = " ".join(str(error).split())
        try:
            print(message, flush=True)
        except BrokenPipeError:
            return
        sys.stdin.buffer.read()
    finally:
        one.end()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
