"""Alerts reach people by each way, against real servers on loopback; what fails says so and gives
no secret away.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import pty
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec import Struct
from msgspec.structs import replace

from hpcdash.config.watch_settings import (
    AlertSettings,
    AppriseSettings,
    CommandSettings,
    MailSettings,
    TerminalSettings,
    WebhookSettings,
)
from hpcdash.domain.alerts import Finding, Severity
from hpcdash.errors import UsageError
from hpcdash.services.watch.alerts import AlertEvent, AlertKind, Alerts
from hpcdash.services.watch.message import Message, build_message, trial_message
from hpcdash.services.watch.notifiers.apprise import AppriseNotifier
from hpcdash.services.watch.notifiers.base import (
    Delivery,
    Notifier,
    NotifyFailed,
    deliver,
    without_secrets,
)
from hpcdash.services.watch.notifiers.command import CommandNotifier
from hpcdash.services.watch.notifiers.mail import MailNotifier
from hpcdash.services.watch.notifiers.terminal import TerminalNotifier
from hpcdash.services.watch.notifiers.webhook import WebhookNotifier
from hpcdash.services.watch.round import name_channels, plan_notifications, send_notifications
from hpcdash.services.watch.secrets import notifier_for
from tests.support.receivers import answer, hook_receiver, mail_receiver, server_context
from tests.support.records import for_each

HOSTILE = "train\r\nBcc: eve@x.org\x1b]0;\x07 <!channel> & ünï"
TOKEN = "T00SECRET"


def event(
    words: str, kind: AlertKind = AlertKind.RAISED, severity: Severity = Severity.CRITICAL
) -> AlertEvent:
    finding = Finding("is-running", words, severity, words, "hpcdash history")
    return AlertEvent(kind, finding, 0.0, 7200.0)


MESSAGE = build_message([event(HOSTILE), event("disk full", severity=Severity.WARNING)], "juno")


def sends(
    *notifiers: Notifier, attempts: int = 3
) -> tuple[list[float], asyncio.Future[list[Delivery]]]:
    """(the pauses, the deliveries) without waiting."""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    sending = (
        deliver(notifier, MESSAGE, most_attempts=attempts, sleep=sleep) for notifier in notifiers
    )
    return pauses, asyncio.gather(*sending)


class TestMessage:
    def test_one_message_for_all_with_the_first_as_its_subject(self) -> None:
        assert MESSAGE.subject.startswith("[juno] CRITICAL train␍␊Bcc: eve@x.org␛]0;␇")
        assert MESSAGE.subject.isprintable()
        assert "\n\ndisk full\n  hpcdash history\n" in MESSAGE.text

    def test_what_is_over_is_not_grave_and_says_how_long_it_was(self) -> None:
        message = build_message([event("gone", AlertKind.RECOVERED)], "juno")
        assert (message.subject, message.severity) == ("[juno] over: gone", Severity.INFO)
        assert message.text == "over: gone\n  Duration: 2 h.\n"

    def test_the_json_has_all(self) -> None:
        assert MESSAGE.payload["alerts"][0] == {
            "kind": "raised",
            "key": f"is-running//{HOSTILE}",
            "rule": "is-running",
            "subject": HOSTILE,
            "aspect": None,
            "severity": "critical",
            "title": "Job not running",
            "words": HOSTILE,
            "now": None,
            "next_step": "hpcdash history",
            "since": "1970-01-01T00:00:00Z",
            "at": "1970-01-01T02:00:00Z",
        }

    def test_a_flood_is_cut_in_the_text_and_whole_in_the_json(self) -> None:
        message = build_message([event(f"job {number}") for number in range(3000)], "juno")
        assert message.subject == "[juno] CRITICAL job 0 (and 2999 more)"
        assert message.text.count("CRITICAL") == 50
        assert message.text.endswith("and 2950 more\n")
        assert len(message.payload["alerts"]) == 3000

    def test_a_trial_says_that_nothing_is_wrong(self) -> None:
        assert "nothing is wrong" in trial_message("juno").subject


class TestMail:
    def settings(self, port: int, **more: object) -> MailSettings:
        known: dict[str, object] = {"host": "127.0.0.1", "port": port, "timeout_seconds": 5.0}
        recipients = ("alice@x.org", "Bob B. <bob@x.org>")
        return MailSettings(recipients, "hpcdash@x.org", **(known | more))  # type: ignore[arg-type]

    async def test_several_recipients_over_starttls_with_a_login(self, tmp_path: Path) -> None:
        tls, trusted = server_context(tmp_path)
        async with mail_receiver(tls) as receiver:
            settings = self.settings(receiver.port, user="me", password="hunter22", ca_file=trusted)
            await MailNotifier(settings).send(MESSAGE)
        (mail,) = receiver.taken
        assert (mail.over_tls, mail.login) == (True, ("me", "hunter22"))
        assert mail.recipients == ["alice@x.org", "bob@x.org"]
        assert mail.message["Subject"] == MESSAGE.subject
        assert mail.message["Bcc"] is None
        assert mail.message["Importance"] == "high"
        assert mail.message.get_content().replace("\r\n", "\n") == MESSAGE.text

    async def test_tls_from_the_first_byte(self, tmp_path: Path) -> None:
        tls, trusted = server_context(tmp_path)
        async with mail_receiver(tls, from_first_byte=True) as receiver:
            await MailNotifier(self.settings(receiver.port, security="tls", ca_file=trusted)).send(
                MESSAGE
            )
        assert receiver.taken[0].over_tls

    async def test_a_certificate_nobody_vouches_for_is_refused(self, tmp_path: Path) -> None:
        tls, _ = server_context(tmp_path)
        async with mail_receiver(tls) as receiver:
            with pytest.raises(NotifyFailed, match="certificate verification failed") as failed:
                await MailNotifier(self.settings(receiver.port)).send(MESSAGE)
        assert failed.value.is_lasting
        assert receiver.taken == []

    async def test_a_server_without_starttls_gets_nothing_in_the_clear(self) -> None:
        async with mail_receiver() as receiver:
            with pytest.raises(NotifyFailed, match="STARTTLS") as failed:
                await MailNotifier(self.settings(receiver.port)).send(MESSAGE)
        assert failed.value.is_lasting
        assert receiver.taken == []

    async def test_one_refused_recipient_does_not_keep_it_from_the_others_nor_is_it_sent_twice(
        self,
    ) -> None:
        async with mail_receiver() as receiver:
            receiver.refuses["bob@x.org"] = "450 no such user\x1b[2J"
            pauses, deliveries = sends(MailNotifier(self.settings(receiver.port, security="none")))
            (delivery,) = await deliveries
        assert (delivery.reached, delivery.attempts, pauses) == (True, 1, [])
        assert "refused 1 of 2: bob@x.org: 450 no such user␛[2J" in delivery.problem
        assert [mail.recipients for mail in receiver.taken] == [["alice@x.org"]]

    async def test_a_server_that_is_busy_is_tried_again_a_bounded_number_of_times(self) -> None:
        async with mail_receiver() as receiver:
            receiver.greetings = ["421 too busy"] * 2
            pauses, deliveries = sends(MailNotifier(self.settings(receiver.port, security="none")))
            assert [(one.reached, one.attempts) for one in await deliveries] == [(True, 3)]
            assert len(pauses) == 2
            receiver.greetings = ["421 too busy"] * 9
            _, deliveries = sends(MailNotifier(self.settings(receiver.port, security="none")))
            assert [(one.reached, one.attempts) for one in await deliveries] == [(False, 3)]
            assert len(receiver.greetings) == 6

    async def test_a_refused_login_gives_no_password_away(self, tmp_path: Path) -> None:
        tls, trusted = server_context(tmp_path)
        encoded = base64.b64encode(b"\0me\0hunter22").decode()
        async with mail_receiver(tls) as receiver:
            receiver.login_reply = f"535 bad login me hunter22 {encoded}"
            settings = self.settings(receiver.port, user="me", password="hunter22", ca_file=trusted)
            _, deliveries = sends(MailNotifier(settings))
            (delivery,) = await deliveries
        assert "535 bad login me *** ***" in delivery.problem
        assert "hunter22" not in repr((delivery, settings, MailNotifier(settings)))

    async def test_a_server_that_says_nothing_is_given_up_on(self) -> None:
        async with mail_receiver() as receiver:
            receiver.is_silent = True
            with pytest.raises(NotifyFailed):
                await MailNotifier(self.settings(receiver.port, timeout_seconds=0.2)).send(MESSAGE)

    @for_each(
        "address",
        ["alice", "a@", "@x", "a@x.org\nBcc: e@x.org", "a b@x.org, c@d", "", "a@x.org,b@x.org"],
    )
    def test_an_address_that_is_none_is_refused_at_once(self, address: str) -> None:
        with pytest.raises(UsageError):
            MailNotifier(MailSettings((address,), "me@x.org"))

    def test_a_password_is_not_sent_without_tls(self) -> None:
        with pytest.raises(UsageError, match="without TLS"):
            MailNotifier(
                MailSettings(
                    ("a@x.org",), "me@x.org", user="me", password="hunter22", security="none"
                )
            )


class TestWebhook:
    def url(self, port: int, scheme: str = "http") -> str:
        return f"{scheme}://127.0.0.1:{port}/services/{TOKEN}?key=K3YSECRET"

    async def test_a_post_of_all_there_is(self) -> None:
        async with hook_receiver() as receiver:
            settings = WebhookSettings(
                self.url(receiver.port), headers={"Authorization": "Bearer B34RER"}
            )
            await WebhookNotifier(settings).send(MESSAGE)
        (request,) = receiver.requests
        assert (request.method, request.path) == ("POST", f"/services/{TOKEN}?key=K3YSECRET")
        assert request.headers["authorization"] == "Bearer B34RER"
        assert request.headers["content-type"] == "application/json; charset=utf-8"
        assert json.loads(request.body) == MESSAGE.payload

    async def test_slack_calls_nobody_that_a_job_names(self) -> None:
        async with hook_receiver() as receiver:
            await WebhookNotifier(WebhookSettings(self.url(receiver.port), "slack")).send(MESSAGE)
        sent = json.loads(receiver.requests[0].body)
        assert set(sent) == {"text"}
        assert "&lt;!channel&gt; &amp; ünï" in sent["text"]
        assert "<" not in sent["text"]

    async def test_tls_is_verified(self, tmp_path: Path) -> None:
        tls, trusted = server_context(tmp_path)
        async with hook_receiver(tls) as receiver:
            with pytest.raises(NotifyFailed, match="certificate verification failed") as failed:
                await WebhookNotifier(WebhookSettings(self.url(receiver.port, "https"))).send(
                    MESSAGE
                )
            assert failed.value.is_lasting
            assert receiver.requests == []
            await WebhookNotifier(
                WebhookSettings(self.url(receiver.port, "https"), ca_file=trusted)
            ).send(MESSAGE)
        assert len(receiver.requests) == 1

    @for_each(
        ("status", "attempts"),
        [("500 Oops", 3), ("503 Later", 3), ("408 Slow", 3), ("404 Gone", 1), ("400 Bad", 1)],
    )
    async def test_what_may_pass_is_tried_again(self, status: str, attempts: int) -> None:
        async with hook_receiver() as receiver:
            receiver.answers = [answer(status, f"no service {TOKEN} for K3YSECRET\x1b[2J")] * 3
            pauses, deliveries = sends(WebhookNotifier(WebhookSettings(self.url(receiver.port))))
            (delivery,) = await deliveries
        assert (delivery.reached, delivery.attempts, len(pauses)) == (False, attempts, attempts - 1)
        assert f"the server answered {status}: no service *** for ***␛[2J" in delivery.problem
        assert delivery.notifier == f"json webhook at http://127.0.0.1:{receiver.port}"

    async def test_it_waits_as_long_as_it_was_asked_to(self) -> None:
        async with hook_receiver() as receiver:
            receiver.answers = [
                answer("429 Slow down", "", "Retry-After: 7"),
                answer("429 Slow", "", "Retry-After: 99999"),
            ]
            pauses, deliveries = sends(WebhookNotifier(WebhookSettings(self.url(receiver.port))))
            assert (await deliveries)[0].reached
        assert 7 <= pauses[0] <= 9
        assert 60 <= pauses[1] <= 75

    async def test_a_redirection_is_not_followed(self) -> None:
        async with hook_receiver() as elsewhere, hook_receiver() as receiver:
            receiver.answers = [
                answer("302 Found", "", f"Location: http://127.0.0.1:{elsewhere.port}/{TOKEN}")
            ]
            with pytest.raises(NotifyFailed, match="302 Found") as failed:
                await WebhookNotifier(WebhookSettings(self.url(receiver.port))).send(MESSAGE)
        assert failed.value.is_lasting
        assert elsewhere.requests == []

    async def test_no_answer_no_server_and_no_http_are_told_without_the_url(self) -> None:
        async with hook_receiver() as receiver:
            receiver.answers = [None, b"220 mail.example.org\r\n\r\n"]
            notifier = WebhookNotifier(
                WebhookSettings(self.url(receiver.port), timeout_seconds=0.2)
            )
            for _ in range(2):
                with pytest.raises(NotifyFailed) as failed:
                    await notifier.send(MESSAGE)
                assert TOKEN not in str(failed.value)
                assert not failed.value.is_lasting
        with pytest.raises(NotifyFailed, match="refused"):
            await WebhookNotifier(WebhookSettings("http://127.0.0.1:1/x")).send(MESSAGE)

    @for_each(
        "url",
        [
            "file:///etc/passwd",
            "ftp://x/y",
            "https://",
            "https://u:p@x/y",
            "http://x/\r\nA: b",
            "http://[x",
            "",
        ],
    )
    def test_what_is_no_webhook_is_refused_at_once(self, url: str) -> None:
        with pytest.raises(UsageError) as refused:
            WebhookNotifier(WebhookSettings(url))
        assert "passwd" not in str(refused.value)

    def test_the_settings_do_not_show_their_secrets(self) -> None:
        settings = WebhookSettings(self.url(1), headers={"X-Key": "K3YSECRET"})
        assert "SECRET" not in repr(settings)


def python(code: str, *words: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code, *words)


class TestCommand:
    @pytest.mark.system
    async def test_the_alert_on_stdin_and_in_the_environment(self, tmp_path: Path) -> None:
        code = (
            "import json,os,sys; given = json.load(sys.stdin); e = os.environ\n"
            "ours = {k: v for k, v in e.items() if k.startswith('HPCDASH_')}\n"
            "json.dump([given, ours, sys.argv[1:]], open(sys.argv[1], 'w'))"
        )
        out = tmp_path / "seen.json"
        await CommandNotifier(CommandSettings(python(code, str(out), "$(id) ; *"))).send(MESSAGE)
        given, ours, words = json.loads(out.read_text())
        assert given == MESSAGE.payload
        assert json.loads(ours["HPCDASH_ALERT"]) == given
        assert (ours["HPCDASH_SUBJECT"], ours["HPCDASH_SEVERITY"]) == (MESSAGE.subject, "critical")
        assert words[1] == "$(id) ; *"

    @pytest.mark.system
    async def test_an_alert_too_long_for_a_variable_stands_on_stdin(self) -> None:
        long = build_message([event("x" * 300_000)], "juno")
        code = (
            "import os,sys; sys.exit(len(sys.stdin.read()) < 300000 or 'HPCDASH_ALERT' in "
            "os.environ)"
        )
        await CommandNotifier(CommandSettings(python(code))).send(long)

    @pytest.mark.system
    async def test_a_program_that_reads_nothing_is_no_harm(self) -> None:
        await CommandNotifier(CommandSettings(("true",))).send(
            build_message([event("x" * 300_000)], "juno")
        )

    @pytest.mark.system
    async def test_how_it_ended_and_its_last_words(self) -> None:
        code = (
            "import sys; print('x' * 10**6, file=sys.stderr); sys.exit('no line to ' + sys.argv[1])"
        )
        with pytest.raises(NotifyFailed) as failed:
            await CommandNotifier(CommandSettings(python(code, "s3cr3t-token"))).send(MESSAGE)
        assert "exit status 1" in failed.value.message
        assert "s3cr3t-token" not in str(failed.value)

    @pytest.mark.system
    async def test_what_takes_too_long_is_ended_with_all_it_started(self, tmp_path: Path) -> None:
        held = tmp_path / "held"
        os.mkfifo(held)
        reader = os.open(held, os.O_RDONLY | os.O_NONBLOCK)
        script = 'exec 3> "$1"; sleep 1000 & sleep 1000'
        with pytest.raises(NotifyFailed, match=r"did not finish within 1 s") as failed:
            await CommandNotifier(
                CommandSettings(("sh", "-c", script, "sh", str(held)), limit_seconds=1.0)
            ).send(MESSAGE)
        assert failed.value.is_lasting
        # It ends when nobody holds it open for writing any more.
        os.set_blocking(reader, True)
        assert await asyncio.to_thread(os.read, reader, 1) == b""
        os.close(reader)

    @pytest.mark.system
    async def test_a_program_that_is_not_there(self) -> None:
        with pytest.raises(NotifyFailed, match="No such file") as failed:
            await CommandNotifier(CommandSettings(("/no/such/program", "s3cr3t"))).send(MESSAGE)
        assert failed.value.is_lasting
        assert "s3cr3t" not in str(failed.value)

    @for_each("argv", [(), ("",), ("a\0b",)])
    def test_a_command_that_names_no_program(self, argv: Sequence[str]) -> None:
        with pytest.raises(UsageError):
            CommandNotifier(CommandSettings(tuple(argv)))


class TestTerminal:
    async def test_a_bell_and_a_notification_that_hold_nothing_of_a_jobs_name(self) -> None:
        written: list[str] = []
        await TerminalNotifier(TerminalSettings(), written.append).send(MESSAGE)
        (text,) = written
        assert text.startswith("\x1b]9;hpcdash [juno] CRITICAL train␍␊")
        assert text.endswith("\x1b\\\a")
        assert text[4:-3].isprintable()

    async def test_only_what_is_wanted(self) -> None:
        written: list[str] = []
        await TerminalNotifier(TerminalSettings(notification=False), written.append).send(MESSAGE)
        assert written == ["\a"]

    async def test_a_real_terminal_gets_it(self) -> None:
        ours, theirs = pty.openpty()

        def write(text: str) -> None:
            os.write(theirs, text.encode())

        await TerminalNotifier(write=write).send(MESSAGE)
        assert os.read(ours, 4096).startswith(b"\x1b]9;hpcdash")
        os.close(ours)
        os.close(theirs)

    async def test_where_there_is_none_it_says_so(self) -> None:
        def write(text: str) -> None:
            raise OSError(6, "No such device or address")

        with pytest.raises(NotifyFailed, match="No such device"):
            await TerminalNotifier(write=write).send(MESSAGE)


class TestApprise:
    async def test_it_posts_to_a_service_it_knows(self) -> None:
        pytest.importorskip("apprise")
        async with hook_receiver() as receiver:
            await AppriseNotifier(
                AppriseSettings((f"json://127.0.0.1:{receiver.port}/{TOKEN}",))
            ).send(MESSAGE)
            sent = json.loads(receiver.requests[0].body)
            assert (sent["title"], sent["type"]) == (MESSAGE.subject, "failure")
            receiver.answers = [answer("500 Oops")]
            with pytest.raises(NotifyFailed) as failed:
                await AppriseNotifier(
                    AppriseSettings((f"json://127.0.0.1:{receiver.port}/{TOKEN}",))
                ).send(MESSAGE)
        assert TOKEN not in str(failed.value)

    async def test_an_address_of_no_service(self) -> None:
        pytest.importorskip("apprise")
        with pytest.raises(NotifyFailed, match="1 of 2 URLs"):
            await AppriseNotifier(AppriseSettings((f"nothing://{TOKEN}", "json://localhost"))).send(
                MESSAGE
            )

    async def test_without_it_the_step_is_to_install_it(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "apprise", None)
        notifier = AppriseNotifier(AppriseSettings((f"json://x/{TOKEN}",)))
        with pytest.raises(NotifyFailed) as failed:
            await notifier.send(MESSAGE)
        assert "pip install 'hpcdash[apprise]'" in failed.value.next_step
        assert notifier.name == "apprise (json)"


class TestDelivery:
    @pytest.mark.system
    async def test_one_that_fails_stops_no_other(self) -> None:
        class Broken(Notifier):
            name = "a broken one"

            async def send(self, message: Message) -> None:
                raise KeyError(TOKEN)

        written: list[str] = []
        async with hook_receiver() as receiver:
            hook = WebhookNotifier(WebhookSettings(f"http://127.0.0.1:{receiver.port}/"))
            _, deliveries = sends(
                Broken(),
                CommandNotifier(CommandSettings(("false",))),
                hook,
                TerminalNotifier(write=written.append),
            )
            told = await deliveries
        assert [one.reached for one in told] == [False, False, True, True]
        assert told[0].problem == "a broken one: internal error (KeyError)"
        assert (told[1].attempts, told[1].summary) == (
            3,
            "not sent (3 attempts): command false: exit status 1",
        )

    async def test_a_dry_run_sends_nothing_and_says_to_whom(self) -> None:
        written: list[str] = []
        mail = MailNotifier(MailSettings(("a@x.org", "b@x.org"), "me@x.org", host="smtp.x.org"))
        ways = (mail, TerminalNotifier(write=written.append))
        assert [(await deliver(way, MESSAGE, dry_run=True)).summary for way in ways] == [
            "would be sent: e-mail to a@x.org, b@x.org through smtp.x.org:587",
            "would be sent: this terminal",
        ]
        assert written == []

    def test_settings_become_notifiers(self) -> None:
        assert notifier_for(CommandSettings(("true",))).name == "command true"
        assert notifier_for(AppriseSettings(("ntfy://x",))).name == "apprise (ntfy)"
        assert notifier_for(TerminalSettings()).name == "this terminal"
        assert (
            notifier_for(WebhookSettings("https://x.org/y")).name == "json webhook at https://x.org"
        )
        assert (
            notifier_for(MailSettings(("a@x.org",), "b@x.org")).name
            == "e-mail to a@x.org through localhost:587"
        )


async def test_a_port_where_nobody_listens_is_told_without_its_error_number() -> None:
    with pytest.raises(
        NotifyFailed, match=r"webhook at http://127\.0\.0\.1:1: Connection refused$"
    ):
        await WebhookNotifier(WebhookSettings("http://127.0.0.1:1/x")).send(MESSAGE)


class Listener(Notifier):
    """Takes down what it is told, unless it is deaf."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_deaf = False
        self.taken: list[str] = []

    async def send(self, message: Message) -> None:
        if self.is_deaf:
            raise NotifyFailed(f"{self.name}: Connection refused")
        self.taken += [f"{alert['kind']} {alert['words']}" for alert in message.payload["alerts"]]


async def no_pause(seconds: float) -> None:
    return None


class Told(Struct):
    """What a round told, and the state after it."""

    alerts: Alerts
    events: tuple[AlertEvent, ...]
    again: tuple[tuple[str, AlertEvent], ...]
    deliveries: list[Delivery]
    lost: tuple[str, ...]


async def tell(alerts: Alerts, found: list[Finding], now: float, ways: Sequence[Notifier]) -> Told:
    channels = name_channels(ways)
    plan = plan_notifications(alerts, channels, found, now, AlertSettings())
    sent = await send_notifications(plan, channels, "juno", sleep=no_pause)
    after = plan.delivered({channel for channel, delivery in sent.items() if delivery.reached})
    deliveries = [*sent.values()]
    return Told(after, plan.news, plan.repeated, deliveries, plan.lost_lines())


class TestRound:
    finding = Finding("is-running", "train", Severity.CRITICAL, "no job train")

    @pytest.mark.system
    async def test_what_reached_nobody_is_told_again_and_then_once(self) -> None:
        written: list[str] = []
        deaf, hearing = (
            CommandNotifier(CommandSettings(("/no/such",))),
            TerminalNotifier(write=written.append),
        )
        told = await tell(Alerts(), [self.finding], 0, [deaf])
        assert [one.reached for one in told.deliveries] == [False]
        kept = Alerts.from_json(told.alerts.to_json())
        told = await tell(kept, [self.finding], 60, [deaf, hearing])
        assert [one.kind for one in told.events] == [AlertKind.RAISED]
        told = await tell(told.alerts, [self.finding], 120, [deaf, hearing])
        assert (told.events, len(written)) == ((), 1)
        assert [(channel, one.kind) for channel, one in told.again] == [
            (deaf.name, AlertKind.RAISED)
        ]
        told = await tell(told.alerts, [], 180, [deaf, hearing])
        assert "over: no job train" in written[-1]
        assert [one.notifier for one in told.deliveries] == [hearing.name]
        assert told.lost == (f"{deaf.name} was never notified: {self.finding.text}; resolved",)
        assert told.alerts == Alerts()

    async def test_who_missed_the_first_is_told_the_newest_as_news_and_the_end_of_what_it_knows(
        self,
    ) -> None:
        one, two = Listener("hook"), Listener("hook")
        grave = replace(self.finding, severity=Severity.CRITICAL, text="worse")
        two.is_deaf = True
        told = await self.rounds(Alerts(), [(0, [self.slight])], one, two)
        told = await self.rounds(told, [(60, [grave])], one, two)
        two.is_deaf = False
        told = await self.rounds(told, [(120, [grave])], one, two)
        assert one.taken == ["raised no job train", "worsened worse"]
        assert two.taken == ["raised worse"]
        two.is_deaf = True
        told = await self.rounds(told, [(180, [])], one, two)
        two.is_deaf = False
        told = await self.rounds(told, [(240, []), (300, [])], one, two)
        assert one.taken[2:] == two.taken[1:] == ["recovered worse"]

    async def test_what_is_over_is_owed_for_a_day_and_then_lost(self) -> None:
        way = Listener("hook")
        told = await self.rounds(Alerts(), [(0, [self.finding])], way)
        way.is_deaf = True
        told = await self.rounds(told, [(60, []), (120, [])], way)
        assert [one.kind for one in told.owed] == [AlertKind.RECOVERED]
        late = await tell(told, [], 90_000, [way])
        assert "delivery failed for 24 hours" in late.lost[0]
        assert (late.alerts, late.deliveries) == (Alerts(), [])

    async def test_what_is_silent_is_not_told_to_who_missed_it(self) -> None:
        one, two = Listener("hook"), Listener("mail")
        two.is_deaf = True
        told = await self.rounds(Alerts(), [(0, [self.finding])], one, two)
        two.is_deaf = False
        told = await self.rounds(
            told.with_snoozed({self.finding.key: 500}), [(60, [self.finding])], one, two
        )
        assert two.taken == []
        await self.rounds(told, [(600, [self.finding])], one, two)
        assert two.taken == ["raised no job train"]

    async def test_a_channel_that_is_new_hears_of_no_end_of_what_it_was_not_told(self) -> None:
        old, new = Listener("hook"), Listener("mail")
        other = replace(self.finding, subject="other", text="no job other")
        nobody = await self.rounds(Alerts(), [(0, [replace(self.finding, subject="third")])])
        told = await self.rounds(
            nobody, [(60, [self.finding, replace(self.finding, subject="third")])], old
        )
        told = await self.rounds(told, [(120, [self.finding, other])], old, new)
        assert new.taken == ["raised no job other"]
        await self.rounds(told, [(180, [])], old, new)
        assert old.taken == [
            "raised no job train",
            "raised no job other",
            "recovered no job other",
            "recovered no job train",
        ]
        assert new.taken == ["raised no job other", "recovered no job other"]

    slight = Finding("is-running", "train", Severity.WARNING, "no job train")

    async def rounds(
        self, alerts: Alerts, played: Sequence[tuple[float, list[Finding]]], *ways: Listener
    ) -> Alerts:
        """The alerts after rounds at these epochs, kept as JSON in between."""
        for now, found in played:
            told = await tell(alerts, found, now, ways)
            alerts = Alerts.from_json(told.alerts.to_json())
        return alerts


def test_secrets_within_secrets_leave_nothing_behind() -> None:
    assert without_secrets("abcdef and abcd", ["abcd", "abcdef", "ab", ""]) == "*** and ***"
