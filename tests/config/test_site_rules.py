"""Rules of a site: what its file may say, what is wrong in it, and how they limit a user's own
settings.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from hpcdash.config.problems import ConfigProblems
from hpcdash.config.settings import PollSettings
from hpcdash.config.site_rules import SiteRules, parse_site_rules
from tests.support.records import for_each

EXAMPLE = """
broker = false
hidden_queues = ["maintenance", "admin"]
quota_command = ["/usr/local/bin/myquota", "--csv"]

[poll]
mine_seconds = 30
everyone_seconds = 120
commands_per_minute = 10
controller_share = 0.02
"""


def test_the_slower_of_a_user_s_and_the_site_s_settings_holds() -> None:
    rules = parse_site_rules(EXAMPLE)
    assert (rules.broker, rules.hidden_queues) == (False, ("maintenance", "admin"))
    assert rules.quota_command == ("/usr/local/bin/myquota", "--csv")
    usual = PollSettings()
    held = rules.limit(usual)
    assert held == replace(
        usual,
        mine_seconds=30.0,
        everyone_seconds=120.0,
        commands_per_minute=10,
        controller_share=0.02,
    )
    slow = PollSettings(600.0, 600.0, 600.0, 600.0, 9.0, 2, 0.001)
    assert rules.limit(slow) == slow


@for_each("poll", [PollSettings(), PollSettings(3.0, 3.0, 3.0, 3.0, 1.0, 600, 0.1)])
def test_a_site_without_rules_limits_nothing(poll: PollSettings) -> None:
    assert parse_site_rules("").limit(poll) == poll
    assert parse_site_rules("# nothing\n") == SiteRules()
    assert SiteRules().describe() == []


@for_each(
    "text,line,key,words",
    [
        ("[poll]\nmine_second = 30", 2, "poll.mine_second", 'did you mean "mine_seconds"?'),
        ("[poll]\nmine_seconds = 0", 2, "poll.mine_seconds", "3"),
        ("[poll]\nmine_seconds = -1", 2, "poll.mine_seconds", "3"),
        ("[poll]\nmine_seconds = nan", 2, "poll.mine_seconds", ""),
        ("[poll]\nmine_seconds = 1e99", 2, "poll.mine_seconds", "86400"),
        ("[poll]\ncommands_per_minute = 0", 2, "poll.commands_per_minute", ""),
        ("poll = 3", 1, "poll", "expected a table"),
        ("hidden_queues = [1]", 1, "hidden_queues", "expected text"),
        ('hidden_queues = ["a\\u001b[2J"]', 1, "hidden_queues", "non-printable"),
        ("quota_command = []", 1, "quota_command", ""),
        ('broker = "no"', 1, "broker", "expected true or false"),
        ('keys = { quit = "x" }', 1, "keys", "unknown key"),
        ("broker = false\nbroker = true", 2, "", ""),
        ("[poll\n", 1, "", ""),
        ("a." * 5000 + "a = 1", 1, "", ""),
    ],
)
def test_what_is_wrong_is_named_by_line_and_key(text: str, line: int, key: str, words: str) -> None:
    with pytest.raises(ConfigProblems) as caught:
        parse_site_rules(text)
    assert (caught.value.line, caught.value.key) == (line, key)
    assert words in str(caught.value)
    assert "/etc/hpcdash/site.toml" in str(caught.value)
