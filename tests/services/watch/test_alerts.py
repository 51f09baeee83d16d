"""Alerts are told once, again when they last, worsen or recover, whatever the order and however
often it is run.
"""

from __future__ import annotations

import random
from datetime import UTC, datetime, time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hpcdash.config.watch_settings import AlertSettings, QuietHours
from hpcdash.domain.alerts import ANY_ASPECT, Finding, Severity, finding_key
from hpcdash.errors import ConfigError, HpcdashError
from hpcdash.services.watch.alerts import AlertEvent, AlertKind, Alerts
from tests.support.records import for_each

RAISED, WORSENED, REMINDED, RECOVERED, UNWATCHED = AlertKind
HOUR = 3600.0
PLAIN = AlertSettings(remind_seconds=None)


def finding(
    subject: str = "a", severity: Severity = Severity.WARNING, rule: str = "rule", text: str = "x"
) -> Finding:
    return Finding(rule, subject, severity, text)


def kinds(events: tuple[AlertEvent, ...]) -> list[AlertKind]:
    return [event.kind for event in events]


def play(rounds: list[list[Finding]], settings: AlertSettings = PLAIN) -> list[list[AlertKind]]:
    """What each round tells, an hour apart, with the state written out and read back in between."""
    alerts, told = Alerts(), []
    for number, found in enumerate(rounds):
        alerts, events = alerts.step(found, number * HOUR, settings)
        alerts = Alerts.from_json(alerts.to_json())
        told.append(kinds(events))
    return told


def test_once_then_over() -> None:
    assert play([[finding()], [finding(text="y")], [], [], [finding()]]) == [
        [RAISED],
        [],
        [RECOVERED],
        [],
        [RAISED],
    ]


def test_it_worsens_once_and_getting_better_is_not_told() -> None:
    grave = finding(severity=Severity.CRITICAL)
    assert play([[finding()], [grave], [finding()], [grave], []]) == [
        [RAISED],
        [WORSENED],
        [],
        [],
        [RECOVERED],
    ]


def test_it_is_told_again_after_a_long_time() -> None:
    settings = AlertSettings(remind_seconds=3 * HOUR)
    assert play([[finding()]] * 8, settings) == [
        [RAISED],
        [],
        [],
        [REMINDED],
        [],
        [],
        [REMINDED],
        [],
    ]


def test_what_is_not_grave_enough_is_never_told_nor_its_end() -> None:
    slight = finding(severity=Severity.INFO)
    assert play([[slight], [], [slight], [finding()], []]) == [[], [], [], [RAISED], [RECOVERED]]


def test_a_moment_is_told_once_and_neither_again_nor_as_over() -> None:
    spike = replace(finding(), is_moment=True)
    settings = AlertSettings(remind_seconds=2 * HOUR)
    assert play([[spike]] * 5 + [[], []], settings) == [[RAISED], [], [], [], [], [], []]


def test_a_moment_that_is_found_again_is_the_same_for_a_week() -> None:
    spike = replace(finding(), is_moment=True)
    assert play([[spike], [], [], [spike], [spike], [], [spike]]) == [[RAISED]] + [[]] * 6
    assert play([[spike], *([[]] * (8 * 24)), [spike]])[-1] == [RAISED]


def test_of_two_with_one_key_the_graver_counts() -> None:
    _, events = Alerts().step([finding(), finding(severity=Severity.CRITICAL), finding()], 0, PLAIN)
    assert [event.finding.severity for event in events] == [Severity.CRITICAL]


def test_it_has_to_be_gone_for_a_while() -> None:
    settings = AlertSettings(remind_seconds=None, settle_seconds=1.5 * HOUR)
    assert play([[finding()], [], [finding()], [], [], []], settings) == [
        [RAISED],
        [],
        [],
        [],
        [],
        [RECOVERED],
    ]


def test_of_a_subject_that_could_not_be_looked_at_no_aspect_is_over() -> None:
    nan, other = (
        Finding("loss", "7/a", Severity.WARNING, "x", aspect="nan loss"),
        finding("b", rule="loss"),
    )
    alerts, _ = Alerts().step([nan, other], 0, PLAIN)
    after, events = alerts.step([], HOUR, PLAIN, [finding_key("loss", "7/a", ANY_ASPECT)])
    assert [event.key for event in events] == [other.key]
    assert set(after.states) == {nan.key}


def test_what_could_not_be_looked_at_is_not_over() -> None:
    alerts, _ = Alerts().step([finding("a"), finding("b"), finding("/s/", rule="other")], 0, PLAIN)
    alerts, events = alerts.step([], 1, PLAIN, unknown=[finding_key("rule")])
    assert [event.key for event in events] == [finding_key("other", "/s/")]
    alerts, events = alerts.step([], 2, PLAIN, unknown=[finding_key("rule", "a")])
    assert [event.key for event in events] == [finding_key("rule", "b")]


def test_a_snoozed_rule_is_silent_until_it_wakes_and_its_recovery_is_told() -> None:
    alerts, _ = Alerts().step([finding("a")], 0, PLAIN)
    alerts = alerts.with_snoozed({finding_key("rule"): 10})
    worse = finding("a", Severity.CRITICAL)
    alerts, events = alerts.step([worse, finding("b"), finding("c", rule="other")], 5, PLAIN)
    assert [event.key for event in events] == [finding_key("other", "c")]
    alerts, events = alerts.step([finding("c", rule="other")], 6, PLAIN)
    # b was never told.
    assert [(event.kind, event.key) for event in events] == [(RECOVERED, finding_key("rule", "a"))]
    alerts, events = alerts.step([finding("b")], 11, PLAIN)
    assert (RAISED, finding_key("rule", "b")) in [(event.kind, event.key) for event in events]
    assert alerts.snoozed == {}


NIGHT = QuietHours(time(22), time(7), "Europe/Paris")


def paris(day: int, hour: int, month: int = 7) -> float:
    """An hour of UTC that is two hours later in Paris in July, one in January."""
    return datetime(2026, month, day, hour, tzinfo=UTC).timestamp()


def test_the_night_is_quiet_by_the_clock_of_its_zone_and_tells_in_the_morning() -> None:
    settings = AlertSettings(remind_seconds=None, quiet=NIGHT)
    alerts, events = Alerts().step([finding("a")], paris(1, 19), settings)
    assert kinds(events) == [RAISED]
    alerts, events = alerts.step([finding("b"), finding("c")], paris(1, 20), settings)
    assert events == ()
    alerts, events = alerts.step([finding("b")], paris(2, 4), settings)
    assert events == ()
    alerts, events = alerts.step([finding("b")], paris(2, 5), settings)
    assert [(event.kind, event.finding.subject) for event in events] == [
        (RAISED, "b"),
        (RECOVERED, "a"),
    ]
    # In winter seven in Paris is six in UTC.
    assert Alerts().step([finding()], paris(2, 5, month=1), settings)[1] == ()


def test_what_is_grave_is_told_at_night_as_is_its_end() -> None:
    settings = AlertSettings(remind_seconds=None, quiet=NIGHT)
    alerts, events = Alerts().step([finding(severity=Severity.CRITICAL)], paris(1, 23), settings)
    assert kinds(events) == [RAISED]
    assert kinds(alerts.step([], paris(2, 0), settings)[1]) == [RECOVERED]


def test_what_comes_back_during_the_night_was_never_over() -> None:
    settings = AlertSettings(remind_seconds=None, quiet=NIGHT)
    alerts, _ = Alerts().step([finding()], paris(1, 12), settings)
    alerts, _ = alerts.step([], paris(1, 21), settings)
    alerts, events = alerts.step([finding()], paris(2, 12), settings)
    assert events == ()


def test_a_zone_that_is_none_says_so() -> None:
    for zone in ("Mars/Olympus", "../../etc/passwd", "\0"):
        with pytest.raises(ConfigError, match="not a time zone"):
            Alerts().step([], 0, AlertSettings(quiet=QuietHours(time(1), time(2), zone)))


def test_what_is_no_longer_watched_did_not_recover_and_ends_at_once() -> None:
    settings = AlertSettings(remind_seconds=None, settle_seconds=10 * HOUR)
    alerts, _ = Alerts().step([finding("a"), finding("b")], 0, settings)

    def fixed_ending(found: Finding) -> str | None:
        return "b is well" if found.subject == "b" else None

    alerts, (ended,) = alerts.step([], HOUR, settings, find_ending=fixed_ending)
    assert (ended.kind, ended.key) == (UNWATCHED, finding_key("rule", "a"))
    _, (recovered,) = alerts.step([], 20 * HOUR, settings, find_ending=fixed_ending)
    assert (recovered.kind, recovered.text) == (RECOVERED, "b is well")


@for_each(
    "text", [b"", b"{", b"[]", b'{"schema":2,"states":[],"snoozed":{}}', b'{"schema":1}', b"\xff"]
)
def test_a_damaged_state_says_what_to_do(text: bytes) -> None:
    with pytest.raises(HpcdashError, match="alerts will be sent again"):
        Alerts.from_json(text)


FINDINGS = st.builds(
    finding,
    subject=st.sampled_from(["a", "b", "/c/", "d\n\ud7ff"]),
    severity=st.sampled_from(Severity),
    rule=st.sampled_from(["one", "two"]),
    text=st.text(max_size=3),
)
ROUNDS = st.lists(st.tuples(st.lists(FINDINGS, max_size=6), st.integers(0, 12)), max_size=15)
SETTINGS = st.builds(
    AlertSettings,
    least=st.sampled_from(Severity),
    remind_seconds=st.none(),
    settle_seconds=st.sampled_from([0.0, 4 * HOUR]),
    quiet=st.sampled_from([QuietHours(), NIGHT]),
)


@given(ROUNDS, SETTINGS, st.randoms(use_true_random=False))
def test_never_twice_without_recovery_and_recovery_only_after_an_alert(
    rounds: list[tuple[list[Finding], int]], settings: AlertSettings, shuffled: random.Random
) -> None:
    alerts, now = Alerts(), paris(1, 12)
    told: dict[str, Severity] = {}
    for found, hours in rounds:
        now += hours * HOUR
        if shuffled.random() < 0.2:
            key = shuffled.choice(["one/", "two//a"])
            alerts = alerts.with_snoozed(alerts.snoozed, {key: now + 5 * HOUR})
        mixed = shuffled.sample(found, len(found))
        same, events = alerts.step(found, now, settings), alerts.step(mixed, now, settings)[1]
        assert same[1] == events
        alerts = Alerts.from_json(same[0].to_json())
        assert alerts == same[0]
        assert len({event.key for event in events}) == len(events)
        for event in events:
            if event.kind is RAISED:
                assert event.key not in told
                assert event.finding.severity >= settings.least
                told[event.key] = event.finding.severity
            elif event.kind is WORSENED:
                assert event.finding.severity > told[event.key]
                told[event.key] = event.finding.severity
            else:
                assert event.kind is RECOVERED
                assert event.key not in {one.key for one in found}
                del told[event.key]


@given(ROUNDS)
def test_rules_can_be_stepped_apart_or_together(rounds: list[tuple[list[Finding], int]]) -> None:
    """Two books, one a rule, tell what one book tells."""
    whole, one, two, now = Alerts(), Alerts(), Alerts(), 0.0
    for found, hours in rounds:
        now += hours * HOUR
        whole, events = whole.step(found, now, PLAIN)
        one, of_one = one.step([f for f in found if f.rule == "one"], now, PLAIN)
        two, of_two = two.step([f for f in found if f.rule == "two"], now, PLAIN)
        assert sorted(events, key=lambda event: event.key) == sorted(
            (*of_one, *of_two), key=lambda event: event.key
        )
