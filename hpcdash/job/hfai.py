"""`python -m hpcdash.job.hfai train.py`: runs a program that imports `hfai` on hpcdash.job.

Options of Python may precede the program. Only this program and its child processes import this
`hfai`, even if another is installed.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def main(parts: list[str]) -> NoReturn:
    """Replace this process by `python PARTS`."""
    if not parts:
        sys.exit("usage: python -m hpcdash.job.hfai PROGRAM [ARGUMENT ...]")
    here = os.path.dirname(os.path.abspath(__file__))
    # The folder of hpcdash itself need not be on PYTHONPATH.
    added = [
        os.path.join(here, "shims"),
        os.path.dirname(os.path.dirname(here)),
        os.environ.get("PYTHONPATH", ""),
    ]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, added))
    os.execv(sys.executable, [sys.executable, *parts])


if __name__ == "__main__":
    main(sys.argv[1:])
