"""`hpcdash watch` and `hpcdash cron`: watchdogs in the foreground, one round, or in a job instead
of cron.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from msgspec.structs import replace

from hpcdash.assembly import broker_use, build_session, chosen_clusters, connection_pool
from hpcdash.backends.script.cron import (
    CronJob,
    interval_label,
    parse_interval,
    watch_script,
)
from hpcdash.cli.ending import ends_silently, run_async
from hpcdash.cli.jobs import with_session
from hpcdash.cli.options import CommonOptions
from hpcdash.cli.terminal import confirm, print_notes, print_text, require_prompt
from hpcdash.config.read import config_path, load_settings
from hpcdash.config.watch_settings import WatchSettings
from hpcdash.domain.states import ACTIVE
from hpcdash.domain.text import counted, visible
from hpcdash.domain.units import DAY, MINUTE, format_age, parse_duration
from hpcdash.errors import (
    EXIT_REFUSED,
    EXIT_UNREACHABLE,
    EXIT_USAGE,
    HpcdashError,
    UsageError,
)
from hpcdash.services.session import ClusterSession
from hpcdash.services.state.folders import queue_folder, queue_program, state_root
from hpcdash.services.watch.alerts import AlertEvent, AlertKind
from hpcdash.services.watch.cron import (
    CronStand,
    fetch_stands,
    install,
    remove,
    write_script,
)
from hpcdash.services.watch.message import trial_message
from hpcdash.services.watch.notifiers.base import Delivery, Notifier, deliver
from hpcdash.services.watch.notifiers.terminal import TerminalNotifier
from hpcdash.services.watch.round import RoundReport, watch_round
from hpcdash.services.watch.secrets import build_notifiers, secret_variables, unready
from hpcdash.services.watch.state import WatchFiles
from hpcdash.transport.prompter import TerminalPrompter

WATCH_SCRIPT = "hpcdash-watch"
_USUAL = "1h"


def run_watch(
    common: CommonOptions, *, once: bool, dry_run: bool, trial: bool, every: str | None
) -> None:
    """Run rounds until interrupted, or one with `once`.

    The exit status is then 3 if a cluster could not be queried, else 2 if a recipient's secret is
    missing, else 1 if a round failed, its state could not be saved, or an alert could not be
    delivered; delivery is retried.
    """
    settings = load_settings(common.config)
    watch = settings.watch
    if every is not None:
        seconds = _parse_every(every, "10m or 1h", lambda seconds: seconds >= 1)
        watch = replace(watch, every_seconds=float(seconds))
    if not watch.is_configured and not trial:
        text = (
            "no [watch] section: only jobs that can never start are checked, and no alerts are sent"
        )
        print_notes(f"{text}. `hpcdash config example` shows what can be watched.")
    notifiers, warnings = build_notifiers(watch.notices, str(settings.file or ""))
    for text in warnings:
        _complain(text)
    missing = unready(notifiers)
    for notifier in missing:
        _complain(
            f"{notifier.error.message}. {notifier.error.next_step} Until then {notifier.name} "
            "gets no alerts; other recipients are not affected."
        )
    rings = not once and sys.stdout.isatty()
    if watch.is_configured and not trial and (text := no_recipients(watch, rings=rings)):
        _complain(text)
    if watch.terminal is not None and rings:
        notifiers.append(TerminalNotifier(watch.terminal))
    if trial:
        _send_trial(notifiers, dry_run=dry_run)
        return
    pool = connection_pool(TerminalPrompter(), broker_use(common, settings))
    sessions = [
        build_session(cluster, pool, share=settings.share)
        for cluster in chosen_clusters(common, settings)
    ]
    rounds = _Watch(sessions, watch, notifiers, dry_run=dry_run, debug=common.debug)
    with ends_silently():
        status = run_async(rounds.run(once=once))
    if status := max(status, EXIT_USAGE if missing else 0):
        sys.exit(status)


def no_recipients(watch: WatchSettings, *, rings: bool) -> str:
    """Return a warning that alerts have no recipient, '' where they have one.

    `rings`: a terminal exists that [watch.terminal] rings. A channel that cannot be used counts as
    a recipient.
    """
    if watch.notices or (watch.terminal is not None and rings):
        return ""
    who = ""
    if watch.terminal is not None:
        who = ": [watch.terminal] only rings in the foreground and in the dashboard"
    return (
        f"no alerts are sent{who}. Add a recipient: [[watch.mail]], [[watch.webhook]], "
        "[[watch.command]] or [[watch.apprise]]; hpcdash config example"
    )


def _parse_every(text: str, examples: str, is_valid: Callable[[int], bool]) -> int:
    """Parse an interval in seconds; a number is minutes."""
    step = f"Use {examples}; a bare number is minutes."
    try:
        seconds = parse_duration(text, bare_unit_seconds=60)
    except ValueError as error:
        raise UsageError(f"--every: {error}", step) from None
    if seconds is None or not is_valid(seconds):
        raise UsageError(f"--every: {text!r} is not an interval", step)
    return seconds


def _send_trial(notifiers: Sequence[Notifier], *, dry_run: bool) -> None:
    """Send a test message; raises HpcdashError where a channel did not take it."""
    if not notifiers:
        raise UsageError(
            "no alerts are sent: [watch] has no recipients",
            "`hpcdash config example` shows how to add one.",
        )

    async def send() -> list[Delivery]:
        message = trial_message("hpcdash")
        sending = (deliver(notifier, message, dry_run=dry_run) for notifier in notifiers)
        return await asyncio.gather(*sending)

    deliveries = run_async(send())
    for delivery in deliveries:
        print(visible(delivery.summary), flush=True)
    if not dry_run and not all(delivery.reached for delivery in deliveries):
        raise HpcdashError("not all recipients were reached")


class _Watch:
    """Rounds of several clusters, each independent of the others' failures."""

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
        self._watched = [
            (session, WatchFiles(state_root(), session.store.name)) for session in sessions
        ]

    async def run(self, *, once: bool) -> int:
        """Return the exit status of one round; otherwise run until interrupted."""
        if not once:
            names = ", ".join(session.store.title for session, _ in self._watched)
            _print(f"watching {names} every {format_age(self._watch.every_seconds)}; ctrl+c stops")
        try:
            while True:
                began = time.monotonic()
                rounds = (self._round(session, files) for session, files in self._watched)
                statuses = await asyncio.gather(*rounds)
                if once:
                    return max(statuses, default=0)
                await asyncio.sleep(max(0.0, began + self._watch.every_seconds - time.monotonic()))
        finally:
            for session, _ in self._watched:
                await session.store.close()

    async def _round(self, session: ClusterSession, files: WatchFiles) -> int:
        """Return the status of one cluster's round; raises nothing, so that the others go on."""
        title = session.store.title
        try:
            report = await watch_round(
                session.store,
                self._watch,
                files,
                self._notifiers,
                shared=session.pools,
                dry_run=self._dry_run,
            )
            self._report(title, report)
        except HpcdashError as error:
            _complain(f"{title}: this round failed: {error}")
            return EXIT_REFUSED
        except BrokenPipeError:
            raise
        except Exception as error:
            where = "run it with --debug to write the traceback to its log file"
            if self._debug:
                from hpcdash.cli.debug_log import log_traceback

                if path := log_traceback(error):
                    where = f"the traceback is in {path}"
            what = f"internal error of hpcdash: {type(error).__name__}: {error}"
            _complain(f"{title}: this round failed: {what}; {where}")
            return EXIT_REFUSED
        if not report.check.is_reached:
            return EXIT_UNREACHABLE
        has_failed = any(delivery.attempts and delivery.problem for delivery in report.deliveries)
        return EXIT_REFUSED if has_failed or not report.is_saved else 0

    def _report(self, title: str, report: RoundReport) -> None:
        check = report.check
        for text in (*report.problems, *check.problems, *report.lost):
            _complain(f"{title}: {text}")
        for text in check.pulses:
            self._pulse(text)
        requested = "not reached"
        if check.is_reached:
            requested = f"{counted(check.job_count, 'job')}, {counted(report.commands, 'command')}"
        sends = f"{len(report.events)} to send"
        sends += f", {len(report.again)} to resend" if report.again else ""
        _print(f"{title}: {requested}, {counted(len(report.alerts.states), 'alert')}, {sends}")
        for event in report.events:
            _print(f"{title}: {_format_event(event)}")
        for channel, event in report.again:
            _print(f"{title}: resent to {channel}: {_format_event(event)}")
        for delivery in report.deliveries:
            write = _complain if delivery.problem else _print
            write(f"{title}: {delivery.summary}")

    def _pulse(self, text: str) -> None:
        line = f"[{datetime.now().astimezone():%Y-%m-%d %H:%M:%S}] PULSE: {visible(text)}\n"
        if not self._watch.pulse_file:
            sys.stdout.write(line)
            sys.stdout.flush()
            return
        if self._dry_run:
            _print(f"would be written to {self._watch.pulse_file}: PULSE: {text}")
            return
        path = Path(self._watch.pulse_file).expanduser()
        try:
            # At the end in one piece: a training writes there too. Somebody else's link would lead
            # anywhere.
            is_own_link = path.is_symlink() and path.lstat().st_uid in (os.geteuid(), 0)
            follows = 0 if is_own_link else os.O_NOFOLLOW
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | follows, 0o666)
            try:
                os.write(descriptor, line.encode("utf-8", "replace"))
            finally:
                os.close(descriptor)
        except OSError as error:
            _complain(f"{path}: {error.strerror}: {line.strip()}")


def _format_event(event: AlertEvent) -> str:
    """`raised critical: …`, `over: …`, `no longer watched: …`."""
    if event.kind is AlertKind.RECOVERED:
        return f"over: {event.text}"
    if event.kind is AlertKind.UNWATCHED:
        return f"no longer watched: {event.text}"
    return f"{event.kind} {event.finding.severity.word}: {event.text}"


def _print(text: str) -> None:
    print(f"[{datetime.now():%Y-%m-%d %H:%M:%S}] {visible(text)}", flush=True)


def _complain(text: str) -> None:
    print_notes(" ".join(text.split()))


def run_cron(
    common: CommonOptions,
    *,
    action: str | None,
    every: str | None,
    folder: str | None,
    watches: bool,
    options: tuple[str, ...],
) -> None:
    """Print the job's script, or install or remove it; raises HpcdashError for what failed.

    Without `every` it is hourly; a removal then applies to the installed job.
    """
    every_seconds = _parse_cron_every(every or _USUAL)
    # A job installed when a shorter interval was allowed can still be removed.
    if action in (None, "install") and every_seconds < MINUTE:
        raise UsageError(
            f"--every: {every!r} is too often: each run is a scheduler job",
            "The minimum is 1m; prefer 15m or 1h.",
        )
    if folder is not None and not folder.startswith("/"):
        raise UsageError(
            f"--folder: {folder!r} is not an absolute path", "It is a folder on the cluster."
        )
    settings = load_settings(common.config)
    if action in ("install", "remove") and (common.read_only or settings.read_only):
        raise UsageError(
            f"cron --{action} is disabled: hpcdash is read-only", "--status still works."
        )
    if action == "remove" and not common.yes:
        require_prompt("cron --remove")

    async def work(session: ClusterSession) -> tuple[str, ...]:
        store = session.store
        await store.open(force=True)
        place, stands = await fetch_stands(store, (folder or "").rstrip("/"), jobs=bool(action))
        program = queue_program(queue_folder()) if store.backend.is_embedded else ()
        job = CronJob(every_seconds, place, options, program)
        if action is None:
            return (store.backend.scripts.cron_script(job).rstrip("\n"),)
        if action == "status":
            return _format_status(place, stands, store.clock.now())
        if action == "remove":
            return await _remove(common, session, job, stands, is_chosen=every is not None)
        stand = next((stand for stand in stands if stand.label == job.label), None)
        text = await _watch_text(common, session) if watches else ""
        return await _install(session, job, stand, text, settings.watch)

    lines = with_session(common, work)
    print_text("".join(f"{visible(line) if action else line}\n" for line in lines))


def _parse_cron_every(text: str) -> int:
    def is_valid(seconds: int) -> bool:
        return 1 <= seconds <= 366 * DAY and len(interval_label(seconds)) <= 7

    return _parse_every(text, "1h, 1d or 15m", is_valid)


async def _install(
    session: ClusterSession,
    job: CronJob,
    stand: CronStand | None,
    text: str,
    watch: WatchSettings,
) -> tuple[str, ...]:
    if text and session.store.transport.name == "local":
        print_notes(*_unnotified(watch))
    if stand is None or not stand.rows:
        print(
            f"cron on {visible(session.name)}: submits {visible(job.script_path)} as {job.name}",
            file=sys.stderr,
        )
    messages: tuple[str, ...] = ()
    if text:
        path = f"{job.scripts_folder}/{WATCH_SCRIPT}"
        await write_script(session.store, path, text)
        messages = (f"{path} runs the watchdogs",)
    return (*messages, *await install(session.store, session.actions, job, stand))


async def _remove(
    common: CommonOptions,
    session: ClusterSession,
    job: CronJob,
    stands: Sequence[CronStand],
    *,
    is_chosen: bool,
) -> tuple[str, ...]:
    """Remove the job, or the installed one unless its interval `is_chosen`."""
    stand = next((stand for stand in stands if stand.label == job.label), None)
    if not is_chosen and stands:
        if len(stands) > 1:
            raise UsageError(
                f"several cron jobs are installed: {', '.join(stand.name for stand in stands)}",
                f"Choose one with --every {parse_interval(stands[0].label)}.",
            )
        stand = stands[0]
        job = replace(job, every_seconds=_parse_cron_every(parse_interval(stand.label)))
    if stand is not None and not common.yes:
        _announce_removal(job, stand, session)
        await confirm()
    return await remove(session.store, session.actions, job, stand)


def _announce_removal(job: CronJob, stand: CronStand, session: ClusterSession) -> None:
    print(f"cron on {visible(session.name)}: removes {job.name}", file=sys.stderr)
    if stand.is_installed:
        print(
            f"  moves {visible(job.script_path)} to {visible(job.folder)}/removed", file=sys.stderr
        )
    if stand.waiting:
        print(f"  cancels pending jobs: {visible(' '.join(stand.waiting))}", file=sys.stderr)
    if len(stand.waiting) < len(stand.rows):
        print("  lets running jobs finish", file=sys.stderr)


async def _watch_text(common: CommonOptions, session: ClusterSession) -> str:
    """Return the script of one watch round on the cluster.

    It runs this very program where the cluster is this machine, else the one on its PATH.
    """
    if session.store.transport.name != "local":
        answer = await session.store.transport.run(("sh", "-lc", "command -v hpcdash"))
        program = answer.stdout.decode("utf-8", "replace").strip().splitlines()[-1:]
        if answer.status != 0 or not program or not program[0].startswith("/"):
            raise UsageError(
                f"hpcdash is not installed on {session.store.title}",
                "Install and configure it there, or run `hpcdash watch` on this machine.",
            )
        return watch_script((program[0], "--local", "watch", "--once"), {})
    parts: tuple[str, ...] = (sys.executable, "-P", "-m", "hpcdash")
    file, is_named = config_path(common.config)
    if is_named:
        parts += ("--config", str(file.resolve()))
    if common.cluster:
        parts += ("--cluster", common.cluster)
    if common.backend:
        parts += ("--backend", common.backend)
    # Its home and variables are those of the submitter; these locate the state.
    variables = {"HPCDASH_STATE": str(state_root().resolve())}
    if session.store.backend.is_embedded:
        variables["HPCDASH_QUEUE"] = str(queue_folder().resolve())
    for name in ("PYTHONPATH", "SLURM_CONF"):
        if os.environ.get(name):
            variables[name] = os.environ[name]
    return watch_script((*parts, "watch", "--once"), variables)


def _unnotified(watch: WatchSettings) -> list[str]:
    if text := no_recipients(watch, rings=False):
        return [text]
    return [
        f"{key}: {variable} must be set where the job starts, which may not read your login "
        f"shell's settings; {key.removesuffix('_env')}_file works everywhere"
        for key, variable in secret_variables(watch.notices)
    ]


def _format_status(folder: str, stands: Sequence[CronStand], now: float) -> tuple[str, ...]:
    if not stands:
        return (f"not installed in {folder}; run hpcdash cron --install",)
    lines = []
    for stand in stands:
        running = [row["id"] for row in stand.rows if row["state"] in ACTIVE]
        states = [f"runs ({', '.join(running)})"] if running else []
        for row in stand.rows:
            if row["state"] in ACTIVE:
                continue
            starts = row["_expected_start_at"] or row["eligible_at"]
            ahead = starts.timestamp() - now if starts is not None else 0.0
            wait = f", for {format_age(ahead)}" if ahead > 0 else ""
            if wait and row["_expected_start_at"]:
                wait += " (scheduler's estimate)"
            states.append(f"waits ({row['id']}{wait})")
        installed = "installed" if stand.is_installed else "moved away"
        state = " and ".join(states) or "not in the queue: it will not run again"
        lines.append(f"{stand.name}: {installed}, {state}")
        scripts = ", ".join(stand.scripts) or "no script"
        lines.append(f"  {folder}/cron.{stand.label}: {scripts}")
    return tuple(lines)
