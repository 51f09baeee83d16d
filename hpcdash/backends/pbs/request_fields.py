"""Keys of REQUEST.toml that are PBS's own, and how they are written."""

from __future__ import annotations

import json
import re

from hpcdash.backends.base import RequestField
from hpcdash.backends.pbs.options import read_placement

_ATTRIBUTE = re.compile(r"[A-Za-z_]\w*=.*\S", re.ASCII)
# As verify_keepfiles_common of OpenPBS takes them; n stands alone or before d.
_KEEP_FILES = re.compile(r"nd?|(?=[oed]*[oe])(?:([oed])(?![oed]*\1))+")
_SHOWN_CHARACTERS = 40


def _place(text: str) -> str:
    return str(read_placement(text))


def _attribute(text: str) -> str:
    """`NAME=VALUE`, as of qsub's -W."""
    if not _ATTRIBUTE.fullmatch(text):
        raise ValueError(f'{_shown(text)} is not in the form NAME=VALUE, such as "umask=027"')
    return text


def _keep_files(text: str) -> str:
    if not _KEEP_FILES.fullmatch(text):
        raise ValueError(
            f'expected letters of "oed" with o or e among them, or "n", not {_shown(text)}'
        )
    return text


def _shown(text: str) -> str:
    short = text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"
    return json.dumps(short, ensure_ascii=False)


REQUEST_FIELDS = (
    RequestField("place", _place),
    RequestField("attributes", _attribute, is_list=True),
    RequestField("keep_files", _keep_files),
)
