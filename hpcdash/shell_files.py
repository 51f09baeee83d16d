"""Reader of the shell that runs on clusters: the .sh files beside the modules that use them."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).parent
_DIRECTIVE = re.compile(r"^# shellcheck shell=.*\n", re.MULTILINE)


@cache
def shell_text(*names: str) -> str:
    """Return the joined texts of .sh files, named by their paths in this package.

    A file's text begins below its line `# shellcheck shell=…`; the lines above are for readers.
    """
    texts = [(_PACKAGE / name).read_text("utf-8") for name in names]
    return "".join(_DIRECTIVE.split(text, maxsplit=1)[1] for text in texts)
