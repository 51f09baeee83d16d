"""Rules of a site for all its users: /etc/hpcdash/site.toml of a login node.

They limit honest programs and are no security boundary. They name no program, file or key of the
user's own machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any

from msgspec import Struct
from msgspec.structs import replace

from hpcdash.config import values
from hpcdash.config.document import parse_document
from hpcdash.config.locate import located
from hpcdash.config.model import Key, Table, build
from hpcdash.config.problems import ConfigProblems, did_you_mean
from hpcdash.config.settings import PollSettings
from hpcdash.config.values import Flag

SITE_FILE = PurePosixPath("/etc/hpcdash/site.toml")
# The bounds of [poll] in config.toml, which limit nothing.
_ANY_POLL = PollSettings(
    mine_seconds=3.0,
    everyone_seconds=3.0,
    nodes_seconds=3.0,
    history_seconds=3.0,
    unfocused_factor=1.0,
    commands_per_minute=600,
    controller_share=0.1,
)


class SiteRules(Struct, frozen=True):
    """Rules of a site.

    poll: shortest intervals, smallest factor, most commands a minute and largest share of the
    controller's time. hidden_queues: not offered in forms nor by `where`. quota_command: used
    where the user configured none. broker: whether programs may share a connection.
    """

    poll: Annotated[PollSettings, Key.APART] = _ANY_POLL
    hidden_queues: Annotated[tuple[str, ...], values.texts] = ()
    quota_command: Annotated[tuple[str, ...], values.argv] = ()
    broker: Flag = True

    def limit(self, poll: PollSettings) -> PollSettings:
        """Return the settings within the rules."""
        most = {"commands_per_minute", "controller_share"}
        return PollSettings(
            *(
                (min if name in most else max)(getattr(poll, name), getattr(self.poll, name))
                for name in PollSettings.__struct_fields__
            )
        )

    def describe(self) -> list[str]:
        """Return the rules in words; [] for none."""
        lines = []
        for name in PollSettings.__struct_fields__:
            value = getattr(self.poll, name)
            if value != getattr(_ANY_POLL, name):
                lines.append(f"poll.{name} = {value:g}")
        if self.hidden_queues:
            lines.append(f"hidden queues: {', '.join(self.hidden_queues)}")
        if self.quota_command:
            lines.append(f"quotas by {self.quota_command[0]}")
        return lines if self.broker else [*lines, "no broker"]


def parse_site_rules(text: str) -> SiteRules:
    """Parse the rules; raises ConfigProblems with line and key."""
    file = str(SITE_FILE)
    root = Table(parse_document(text, file), lambda key, path, known: did_you_mean(key, known))
    fit: Mapping[str, Any] = root.fit(SiteRules)
    poll = replace(_ANY_POLL, **root.table("poll").fit(PollSettings))
    if root.problems:
        raise ConfigProblems(file, located(text, root.problems))
    return build(SiteRules, fit, poll=poll)
