"""A site's rules: read on its login node at most once a day, and held to."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
from msgspec import Struct

from hpcdash.backends.queries import Answer, Query
from hpcdash.config.site_rules import SITE_FILE, SiteRules, parse_site_rules
from hpcdash.domain.text import decode
from hpcdash.errors import ConfigError, HpcdashError, UnreadableOutput
from hpcdash.private_files import atomic_write, make_folder
from hpcdash.shell_files import shell_text

RunRulesQuery = Callable[[Query[tuple[str, str]]], Awaitable[tuple[str, str]]]
FILE = "site-rules.json"
EVERY_SECONDS = 86_400.0
_MAX_BYTES = 64 << 10
_UNSAFE = (
    f"ignored: {SITE_FILE} and its folder must be root's, readable by all, writable by nobody "
    "else, and no links"
)


class KnownRules(Struct, frozen=True):
    """The text of a site's file, '' for none, and why it is ignored, '' if it is not; read at an
    epoch second.
    """

    text: str
    problem: str
    at: float

    @property
    def rules(self) -> SiteRules:
        return parse_site_rules(self.text) if self.text else SiteRules()


def load_site_rules(file: Path | None) -> KnownRules | None:
    """Return the rules that were read last; None if there are none that can be read."""
    if file is not None:
        with contextlib.suppress(OSError, msgspec.MsgspecError, HpcdashError):
            known = msgspec.json.decode(file.read_bytes(), type=KnownRules)
            # An earlier version may have known other keys.
            return known if known.rules else None
    return None


async def fetch_site_rules(run_query: RunRulesQuery, file: Path | None) -> KnownRules | None:
    """Return the rules of a site, read at most once a day and kept in a file; None without one.

    Raises HpcdashError if they cannot be read now.
    """
    if file is None:
        return None
    known = load_site_rules(file)
    now = time.time()
    if known is not None and 0 <= now - known.at < EVERY_SECONDS:
        return known
    text, problem = await run_query(rules_query())
    try:
        parse_site_rules(text)
        found = KnownRules(text, problem, now)
    except ConfigError as error:
        found = KnownRules("", f"ignored: {str(error).partition(chr(10))[0]}", now)
    with contextlib.suppress(OSError):
        make_folder(file.parent)
        atomic_write(file, msgspec.json.encode(found))
    return found


def rules_query(folder: str = str(SITE_FILE.parent)) -> Query[tuple[str, str]]:
    """Query the text of the file, '' for none, and why it is ignored."""

    def parse(answer: Answer) -> tuple[str, str]:
        _, mark, rest = answer.stdout.partition(b"hpcdash site ")
        word, _, text = rest.partition(b"\n")
        if word == b"none":
            return "", ""
        if word == b"unsafe":
            return "", _UNSAFE
        if not mark or word != b"rules" or answer.status != 0:
            raise UnreadableOutput("the site's rules could not be read", argv=answer.argv)
        if len(text) > _MAX_BYTES:
            return "", f"ignored: {SITE_FILE} is larger than 64 KiB"
        return decode(text), ""

    argv = ("sh", "-c", shell_text("services/cluster/site_rules.sh"), "sh", folder)
    return Query(argv, parse, 10.0, ("cat", str(SITE_FILE)), 2 * _MAX_BYTES)
