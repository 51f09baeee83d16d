"""[watch] of a configuration: what it becomes, and where it is wrong, by line and key and without a
secret.
"""

from __future__ import annotations

from datetime import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from hpcdash.config.problems import ConfigProblems
from hpcdash.config.read import settings_from_text
from hpcdash.config.watch_settings import QuietHours, WatchSettings
from hpcdash.domain.alerts import Severity
from hpcdash.services.watch.secrets import build_notifiers, unready
from tests.support.records import for_each

FILE = Path("/home/ada/config.toml")
SECRET = "T00SECRET"


def watch(text: str) -> WatchSettings:
    return settings_from_text(text, FILE).watch


def problems(text: str) -> list[tuple[int | None, str, str]]:
    with pytest.raises(ConfigProblems) as raised:
        watch(text)
    assert SECRET not in str(raised.value)
    return [(one.line, one.key, one.message) for one in raised.value.problems]


def test_without_a_watch_table_only_jobs_that_never_start_are_looked_for() -> None:
    assert watch("") == WatchSettings()
    assert (watch("").is_configured, watch("[watch]").is_configured, watch("").never_starts) == (
        False,
        True,
        True,
    )


def test_times_and_sizes_are_numbers_or_text_with_a_unit() -> None:
    found = watch(
        """
        [watch]
        every_seconds = "5m"
        remind_seconds = "never"
        [watch.quiet]
        start = 22:00:00
        end = "07:30"
        zone = "Europe/Paris"
        [watch.snoozed]
        "storage/" = 2026-12-01T00:00:00Z
        [[watch.storage]]
        path = "/scratch/ada"
        limit_bytes = "2T"
        floor_bytes = "500G"
        forecast_seconds = "never"
        quota_of = "group:lab"
        """
    )
    assert (found.every_seconds, found.alerts.remind_seconds) == (300.0, None)
    assert found.alerts.quiet == QuietHours(
        time(22), time(7, 30), "Europe/Paris", Severity.CRITICAL
    )
    assert found.snoozed == {"storage/": 1796083200.0}
    (rule,) = found.storage
    assert (rule.limit_bytes, rule.floor_bytes, rule.forecast_seconds) == (
        2 << 40,
        500 << 30,
        None,
    )
    assert (rule.counts_by_du, rule.quota_of) == (True, "group:lab")


def test_losses_are_read_only_where_that_is_asked_for_and_as_metrics_are() -> None:
    assert watch("[watch]").losses == ()
    found = watch(
        "[metrics]\npatterns = ['step (?P<step>[0-9]+) "
        "l=(?P<value>[0-9.]+)']\n[[watch.losses]]\nkinds = ['nan']"
    )
    assert found.losses[0].kinds == ("nan",)
    assert found.metric_patterns == ("step (?P<step>[0-9]+) l=(?P<value>[0-9.]+)",)


def test_a_rule_may_be_one_table_or_several() -> None:
    assert len(watch('[watch.running]\nname = "a"').running) == 1
    assert len(watch('[[watch.running]]\nname = "a"\n[[watch.running]]\nname = "b"').running) == 2


@for_each(
    ("text", "line", "key", "words"),
    [
        ("[watch]\nevery_second = 9", 2, "watch.every_second", "unknown key; did you mean"),
        ("[watch]\nevery_seconds = 5", 2, "watch.every_seconds", "expected 60 to 86400"),
        ('[watch]\nleast = "grave"', 2, "watch.least", "expected"),
        ("[[watch.running]]\nusers = ['a']", 1, "watch.running[0]", "name = … is missing"),
        (
            "[[watch.hanging]]\nlimit_seconds = 'soon'",
            2,
            "watch.hanging[0].limit_seconds",
            "expected seconds, or text",
        ),
        ("[[watch.losses]]\nkinds = ['spice']", 2, "watch.losses[0].kinds", "did you mean"),
        (
            "[[watch.losses]]\nkinds = []",
            2,
            "watch.losses[0].kinds",
            "expected an array of nan, inf",
        ),
        (
            "[[watch.storage]]\npath = 'here'",
            2,
            "watch.storage[0].path",
            "expected an absolute path",
        ),
        ("[[watch.storage]]\npath = '/a'\nshare = 85", 3, "watch.storage[0].share", "0.85 is 85%"),
        (
            "[[watch.storage]]\npath = '/a'\nquota_of = 'group'",
            3,
            "watch.storage[0].quota_of",
            "group:NAME",
        ),
        (
            "[[watch.saves]]\nsave_seconds = 9",
            1,
            "watch.saves[0]",
            "interval_seconds = … is missing",
        ),
        ("[watch.quiet]\nzone = 'Mars/X'", 2, "watch.quiet.zone", "is not a time zone"),
        (
            "[watch.quiet]\nstart = '22:00+02:00'",
            2,
            "watch.quiet.start",
            "set the time zone with zone",
        ),
        ("[watch]\nrunning = 3", 2, "watch.running", "expected tables: [[watch.running]]"),
        (
            f"[[watch.mail]]\npassword = '{SECRET}'",
            2,
            "watch.mail[0].password",
            "password_file or password_env",
        ),
        (
            f"[[watch.webhook]]\nurl_env = 'https://x.org/{SECRET}'",
            2,
            "watch.webhook[0].url_env",
            "not its value",
        ),
        (
            "[[watch.webhook]]\nform = 'slack'",
            1,
            "watch.webhook[0]",
            "url_file, url_env or url is missing",
        ),
        (
            f"[[watch.webhook]]\nurl = '{SECRET}'\nurl_env = 'U'",
            3,
            "watch.webhook[0].url_env",
            "is also set",
        ),
        (f"[[watch.webhook]]\nurl = ['{SECRET}']", 2, "watch.webhook[0].url", "expected text"),
        (
            "[watch.snoozed]\n'storage/' = 'soon'",
            2,
            'watch.snoozed."storage/"',
            "expected a date and time",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_line_and_key(
    text: str, line: int, key: str, words: str
) -> None:
    assert any(
        (at, where) == (line, key) and words in said for at, where, said in problems(text)
    ), problems(text)


def test_of_several_clusters_a_rule_about_a_path_or_a_job_says_which() -> None:
    clusters = "[clusters.juno]\n[clusters.mira]\n"
    rule = "[[watch.running]]\nname = 'a'\n"
    assert problems(clusters + rule)[0][1] == "watch.running[0]"
    assert watch(f"{clusters}{rule}clusters = ['mira']").running[0].selector.clusters == ("mira",)
    assert (
        problems(f"{clusters}{rule}clusters = ['mars']")[0][2]
        == "no [clusters.mars] in the configuration"
    )


def test_a_rule_on_a_cluster_with_a_wrong_key_is_not_blamed() -> None:
    text = "[clusters.juno]\nprot = 1\n[clusters.mira]\n[[watch.running]]\nname = 'a'\n"
    (problem,) = problems(f"{text}clusters = ['juno']")
    assert problem[1] == "clusters.juno.prot"


def test_a_secret_comes_from_a_file_or_a_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "password"
    kept.write_text(f"{SECRET}\n")
    kept.chmod(0o640)
    monkeypatch.setenv("HOOK", f"https://hooks.example.org/{SECRET}")
    text = f"""
        [[watch.mail]]
        recipients = ["a@b.org"]
        sender = "c@d.org"
        user = "ada"
        password_file = "{kept}"
        [[watch.webhook]]
        url_env = "HOOK"
        headers_env = {{ Authorization = "HOOK" }}
    """
    found = watch(text)
    assert SECRET not in repr(found)
    notifiers, warnings = build_notifiers(found.notices, "config.toml")
    assert [one.name.partition(" ")[0] for one in notifiers] == ["e-mail", "json"]
    assert SECRET not in "".join(one.name for one in notifiers)
    assert warnings == [f"{kept}: other users can read this secret; run chmod 600"]
    kept.chmod(0o600)
    assert build_notifiers(found.notices, "")[1] == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('password_file = "/no/such/file"', "/no/such/file: No such file or directory"),
        ('password_env = "NOT_SET_HERE"', "environment variable NOT_SET_HERE is not set"),
        ('security = "none"\npassword_env = "PW"', "refusing to send an SMTP password without TLS"),
    ],
)
def test_a_secret_that_cannot_be_had_names_the_key_and_not_itself(
    line: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PW", SECRET)
    found = watch(f'[[watch.mail]]\nrecipients = ["a@b.org"]\nsender = "c@d.org"\n{line}')
    found = replace(
        found, notices=(*found.notices, *watch('[[watch.command]]\nargv = ["/bin/true"]').notices)
    )
    notifiers, _ = build_notifiers(found.notices, "config.toml")
    (one,) = unready(notifiers)
    assert (notifiers[0], notifiers[1].name) == (one, "command /bin/true")
    assert words in str(one.error)
    assert one.error.key.startswith("watch.mail[0]")
    assert SECRET not in str(one.error)
