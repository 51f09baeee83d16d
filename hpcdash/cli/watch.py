"""`hpcdash watch`: the watchdogs of the configuration in the foreground, or one round for cron. Draws nothing."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from hpcdash.cli.build import build_session, chosen_clusters, connection_pool, state_root
from hpcdash.cli.ending import ends_silently, run_async
from hpcdash.cli.options import CommonOptions
from hpcdash.cli.prompter import TerminalPrompter
from hpcdash.config import load_settings
from hpcdash.config.watch_settings import WatchSettings
from hpcdash.domain.text import counted, visible
from hpcdash.domain.units import format_age, parse_duration
from hpcdash.errors import EXIT_REFUSED, EXIT_UNREACHABLE, EXIT_USAGE, HpcdashError, UsageError
from hpcdash.services.session import ClusterSession
from hpcdash.services.watch.alerts import AlertEvent, AlertKind
from hpcdash.services.watch.judge import pulse_line
from hpcdash.services.watch.message import trial_message
from hpcdash.services.watch.notifiers.base import Notifier
from hpcdash.services.watch.notifiers.delivery import deliver
from hpcdash.services.watch.notifiers.terminal import TerminalNotifier
from hpcdash.services.watch.round import RoundReport, watch_round
from hpcdash.services.watch.secrets import notifiers_of, unready
from hpcdash.services.watch.state import WatchFiles

_SHORTEST_ROUND_SECONDS = 1


def watch_folder() -> Path:
    """Where watchdogs keep what they remember."""
    return state_root() / "watch"


def run_watch(common: CommonOptions, *, once: bool, dry_run: bool, trial: bool, every: str | None) -> None:
    """Rounds until interrupted, or `once`, which ends with 3 where a cluster could not be asked, else with 2 where one
    of those who are told cannot be, else with 1 where a round could not be done, or not be kept for the next, or where
    an alert was not delivered to one of them; that is tried again."""
    settings = load_settings(common.config)
    watch = settings.watch
    if every is not None:
        watch = replace(watch, every_seconds=_every(every))
    if not watch.is_configured and not trial:
        words = "no [watch] is in the configuration: only jobs that never start are looked for, and nobody is told"
        print(f"hpcdash: {words}. `hpcdash config example` shows what can be watched.", file=sys.stderr)
    notifiers, warnings = notifiers_of(watch.notices, str(settings.file or ""))
    for words in warnings:
        _complain(words)
    for one in unready(notifiers):
        _complain(
            f"{one.error.message}. {one.error.next_step} Until then {one.name} is told nothing, the rest goes on."
        )
    if watch.is_configured and not trial and (words := nobody_told(watch, rings=not once and sys.stdout.isatty())):
        _complain(words)
    if watch.terminal is not None and sys.stdout.isatty() and not once:
        notifiers.append(TerminalNotifier(watch.terminal))
    if trial:
        _try(notifiers, dry_run=dry_run)
        return
    pool = connection_pool(TerminalPrompter())
    sessions = [build_session(cluster, pool) for cluster in chosen_clusters(common, settings)]
    rounds = _Watch(sessions, watch, notifiers, dry_run=dry_run, debug=common.debug)
    with ends_silently():
        status = run_async(rounds.run(once=once))
    if status := max(status, EXIT_USAGE if unready(notifiers) else 0):
        sys.exit(status)


def nobody_told(watch: WatchSettings, *, rings: bool) -> str:
    """That alerts reach nobody, '' where they reach someone; `rings`: there is a terminal that [watch.terminal] rings.

    A channel that cannot be used is none of nobody's.
    """
    if watch.notices or (watch.terminal is not None and rings):
        return ""
    ways = "[[watch.mail]], [[watch.webhook]], [[watch.command]] or [[watch.apprise]]"
    who = "[watch.terminal] rings in the foreground and in the dashboard alone" if watch.terminal is not None else ""
    return f"nobody is told what is wrong{f': {who}' if who else ''}. Name someone: {ways}; hpcdash config example"


def _every(text: str) -> float:
    try:
        seconds = parse_duration(text, bare_unit_seconds=60)
    except ValueError as error:
        raise UsageError(f"--every: {error}", "Write 10m or 1h; a number is minutes.") from None
    if seconds is None or seconds < _SHORTEST_ROUND_SECONDS:
        raise UsageError(f"--every: {text!r} is no interval", "Write 10m or 1h; a number is minutes.")
    return float(seconds)


def _try(notifiers: Sequence[Notifier], *, dry_run: bool) -> None:
    """A message that nothing is wrong, by each way there is; raises HpcdashError where one did not take it."""
    if not notifiers:
        raise UsageError("nobody is told: [watch] names no one", "`hpcdash config example` shows the ways.")
    deliveries = run_async(deliver(notifiers, trial_message("hpcdash"), dry_run=dry_run))
    for one in deliveries:
        print(visible(one.words), flush=True)
    if not dry_run and not all(one.reached for one in deliveries):
        raise HpcdashError("not everyone was reached")


class _Watch:
    def __init__(
        self,
        sessions: Sequence[ClusterSession],
        watch: WatchSettings,
        notifiers: Sequence[Notifier],
        *,
        dry_run: bool,
        debug: bool,
    ) -> None:
        self._watch = watch
        self._notifiers = notifiers
        self._dry_run = dry_run
        self._debug = debug
        # Each is used for all rounds: what cannot be written is remembered there.
        self._watched = [(session, WatchFiles(watch_folder(), session.store.name)) for session in sessions]

    async def run(self, *, once: bool) -> int:
        """The exit status, of the one round; otherwise it does not end by itself."""
        names = ", ".join(session.store.title for session, _ in self._watched)
        if not once:
            _tell(f"watching {names} every {format_age(self._watch.every_seconds)}; ctrl+c ends it")
        try:
            while True:
                began = time.monotonic()
                statuses = await asyncio.gather(*(self._round(*watched) for watched in self._watched))
                if once:
                    return max(statuses, default=0)
                await asyncio.sleep(max(0.0, began + self._watch.every_seconds - time.monotonic()))
        finally:
            for session, _ in self._watched:
                await session.store.close()

    async def _round(self, session: ClusterSession, files: WatchFiles) -> int:
        """The status of one cluster's round; whatever goes wrong with it, the others are watched on."""
        store = session.store
        try:
            report = await watch_round(store, self._watch, files, self._notifiers, dry_run=self._dry_run)
            self._report(session, report)
        except HpcdashError as error:
            _complain(f"{store.title}: this round was not done: {error}")
            return EXIT_REFUSED
        except BrokenPipeError:
            raise
        except Exception as error:
            self._went_wrong(store.title, error)
            return EXIT_REFUSED
        if not report.look.is_reached:
            return EXIT_UNREACHABLE
        was_told = all(delivery.attempts == 0 or not delivery.problem for delivery in report.told.deliveries)
        return 0 if report.is_kept and was_told else EXIT_REFUSED

    def _went_wrong(self, title: str, error: Exception) -> None:
        from hpcdash.cli.debug_log import log_traceback

        path = log_traceback(error) if self._debug else None
        where = f"the traceback is in {path}" if path else "run it with --debug to write the traceback to its log file"
        what = f"something went wrong in hpcdash itself: {type(error).__name__}: {error}"
        _complain(f"{title}: this round was not done: {what}; {where}")

    def _report(self, session: ClusterSession, report: RoundReport) -> None:
        title, look = session.store.title, report.look
        told = report.told
        for words in (*report.problems, *look.problems, *told.lost):
            _complain(f"{title}: {words}")
        for words in look.pulses:
            self._pulse(words)
        looked = f"{counted(look.job_count, 'job')}, {counted(report.commands, 'command')}"
        asked = looked if look.is_reached else "not reached"
        again = f", {len(told.again)} to tell again" if told.again else ""
        _tell(f"{title}: {asked}, {told.wrong} wrong, {len(told.events)} to tell{again}")
        for event in told.events:
            _tell(f"{title}: {_event_words(event)}")
        for channel, event in told.again:
            _tell(f"{title}: again for {channel}: {_event_words(event)}")
        for delivery in told.deliveries:
            if delivery.problem:
                _complain(f"{title}: {delivery.words}")
            else:
                _tell(f"{title}: {delivery.words}")

    def _pulse(self, words: str) -> None:
        line = pulse_line(datetime.now().astimezone(), words) + "\n"
        if self._watch.pulse_file and self._dry_run:
            _tell(f"would be written to {self._watch.pulse_file}: PULSE: {words}")
            return
        if not self._watch.pulse_file:
            sys.stdout.write(line)
            sys.stdout.flush()
            return
        path = Path(self._watch.pulse_file).expanduser()
        try:
            # At the end in one piece: a training writes there too.
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            try:
                os.write(descriptor, line.encode("utf-8", "replace"))
            finally:
                os.close(descriptor)
        except OSError as error:
            _complain(f"{path}: {error.strerror}: {line.strip()}")


def _event_words(event: AlertEvent) -> str:
    """`raised critical: …`, `over: …`, `no longer watched: …`."""
    if event.kind.is_end:
        return f"{'over' if event.kind is AlertKind.RECOVERED else 'no longer watched'}: {event.words}"
    return f"{event.kind} {event.finding.severity.word}: {event.words}"


def _tell(words: str) -> None:
    print(f"[{datetime.now():%Y-%m-%d %H:%M:%S}] {visible(words)}", flush=True)


def _complain(words: str) -> None:
    print(f"hpcdash: {visible(' '.join(words.split()))}", file=sys.stderr, flush=True)
