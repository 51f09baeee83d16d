"""`hpcdash watch` and `hpcdash cron`: watchdogs in the foreground, one round, or in a job instead
of cron.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from hpcdash.assembly import build_session, chosen_clusters, connection_pool
from hpcdash.backends.script.cron import (
    CronJob,
    interval_label,
    parse_interval,
    watch_script,
)
from hpcdash.cli.ending import ends_silently, run_async
from hpcdash.cli.jobs import with_session
from hpcdash.cli.options import CommonOptions
from hpcdash.cli.terminal import is_agreed, print_text
from hpcdash.config.read import config_path, load_settings
from hpcdash.config.watch_settings import WatchSettings
from hpcdash.domain.states import ACTIVE, WAITING
from hpcdash.domain.text import counted, visible
from hpcdash.domain.units import DAY, MINUTE, format_age, parse_duration
from hpcdash.errors import (
    EXIT_REFUSED,
    EXIT_UNREACHABLE,
    EXIT_USAGE,
    Declined,
    HpcdashError,
    UsageError,
)
from hpcdash.services.session import ClusterSession
from hpcdash.services.state.folders import queue_folder, queue_program, state_root
from hpcdash.services.watch.alerts import AlertEvent, AlertKind
from hpcdash.services.watch.cron import (
    CronStand,
    folder_there,
    install,
    remove,
    stands,
    write_script,
)
from hpcdash.services.watch.judge import pulse_line
from hpcdash.services.watch.message import trial_message
from hpcdash.services.watch.notifiers.base import Notifier, deliver
from hpcdash.services.watch.notifiers.terminal import TerminalNotifier
from hpcdash.services.watch.round import RoundReport, watch_round
from hpcdash.services.watch.secrets import build_notifiers, secret_variables, unready
from hpcdash.services.watch.state import WatchFiles
from hpcdash.transport.prompter import TerminalPrompter

_SHORTEST_ROUND_SECONDS = 1
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
        watch = replace(watch, every_seconds=_every(every))
    if not watch.is_configured and not trial:
        text = (
            "no [watch] section: only jobs that can never start are checked, and no alerts are sent"
        )
        print(
            f"hpcdash: {text}. `hpcdash config example` shows what can be watched.",
            file=sys.stderr,
        )
    notifiers, warnings = build_notifiers(watch.notices, str(settings.file or ""))
    for text in warnings:
        _complain(text)
    for one in unready(notifiers):
        _complain(
            f"{one.error.message}. {one.error.next_step} Until then {one.name} gets no alerts; the "
            "rest continues."
        )
    if (
        watch.is_configured
        and not trial
        and (text := no_recipients(watch, rings=not once and sys.stdout.isatty()))
    ):
        _complain(text)
    if watch.terminal is not None and sys.stdout.isatty() and not once:
        notifiers.append(TerminalNotifier(watch.terminal))
    if trial:
        _try(notifiers, dry_run=dry_run)
        return
    pool = connection_pool(TerminalPrompter())
    sessions = [
        build_session(cluster, pool, share=settings.share)
        for cluster in chosen_clusters(common, settings)
    ]
    rounds = _Watch(sessions, watch, notifiers, dry_run=dry_run, debug=common.debug)
    with ends_silently():
        status = run_async(rounds.run(once=once))
    if status := max(status, EXIT_USAGE if unready(notifiers) else 0):
        sys.exit(status)


def no_recipients(watch: WatchSettings, *, rings: bool) -> str:
    """Return a warning that alerts have no recipient, '' where they have one.

    `rings`: a terminal exists that [watch.terminal] rings. A channel that cannot be used counts as
    a recipient.
    """
    if watch.notices or (watch.terminal is not None and rings):
        return ""
    ways = "[[watch.mail]], [[watch.webhook]], [[watch.command]] or [[watch.apprise]]"
    who = (
        "[watch.terminal] rings in the foreground and in the dashboard alone"
        if watch.terminal is not None
        else ""
    )
    return (
        f"no alerts are sent{f': {who}' if who else ''}. Add a recipient: {ways}; hpcdash "
        "config example"
    )


def _every(text: str) -> float:
    try:
        seconds = parse_duration(text, bare_unit_seconds=60)
    except ValueError as error:
        raise UsageError(f"--every: {error}", "Write 10m or 1h; a number is minutes.") from None
    if seconds is None or seconds < _SHORTEST_ROUND_SECONDS:
        raise UsageError(
            f"--every: {text!r} is not an interval", "Write 10m or 1h; a number is minutes."
        )
    return float(seconds)


def _try(notifiers: Sequence[Notifier], *, dry_run: bool) -> None:
    """A message that nothing is wrong, by each way there is; raises HpcdashError where one did not
    take it.
    """
    if not notifiers:
        raise UsageError(
            "no alerts are sent: [watch] has no recipients",
            "`hpcdash config example` shows how to add one.",
        )
    deliveries = run_async(deliver(notifiers, trial_message("hpcdash"), dry_run=dry_run))
    for one in deliveries:
        print(visible(one.summary), flush=True)
    if not dry_run and not all(one.reached for one in deliveries):
        raise HpcdashError("not all recipients were reached")


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
        self._watched = [
            (session, WatchFiles(state_root(), session.store.name)) for session in sessions
        ]

    async def run(self, *, once: bool) -> int:
        """The exit status, of the one round; otherwise it does not end by itself."""
        names = ", ".join(session.store.title for session, _ in self._watched)
        if not once:
            _print(
                f"watching {names} every {format_age(self._watch.every_seconds)}; ctrl+c ends it"
            )
        try:
            while True:
                began = time.monotonic()
                statuses = await asyncio.gather(
                    *(self._round(*watched) for watched in self._watched)
                )
                if once:
                    return max(statuses, default=0)
                await asyncio.sleep(max(0.0, began + self._watch.every_seconds - time.monotonic()))
        finally:
            for session, _ in self._watched:
                await session.store.close()

    async def _round(self, session: ClusterSession, files: WatchFiles) -> int:
        """The status of one cluster's round; whatever goes wrong with it, the others are watched
        on.
        """
        store = session.store
        try:
            report = await watch_round(
                store,
                self._watch,
                files,
                self._notifiers,
                shared=session.pools,
                dry_run=self._dry_run,
            )
            self._report(session, report)
        except HpcdashError as error:
            _complain(f"{store.title}: this round failed: {error}")
            return EXIT_REFUSED
        except BrokenPipeError:
            raise
        except Exception as error:
            self._went_wrong(store.title, error)
            return EXIT_REFUSED
        if not report.check.is_reached:
            return EXIT_UNREACHABLE
        was_announced = all(
            delivery.attempts == 0 or not delivery.problem
            for delivery in report.notified.deliveries
        )
        return 0 if report.is_saved and was_announced else EXIT_REFUSED

    def _went_wrong(self, title: str, error: Exception) -> None:
        from hpcdash.cli.debug_log import log_traceback

        path = log_traceback(error) if self._debug else None
        where = (
            f"the traceback is in {path}"
            if path
            else "run it with --debug to write the traceback to its log file"
        )
        what = f"internal error of hpcdash: {type(error).__name__}: {error}"
        _complain(f"{title}: this round failed: {what}; {where}")

    def _report(self, session: ClusterSession, report: RoundReport) -> None:
        title = session.store.title
        check = report.check
        reported = report.notified
        for text in (*report.problems, *check.problems, *reported.lost):
            _complain(f"{title}: {text}")
        for text in check.pulses:
            self._pulse(text)
        looked = f"{counted(check.job_count, 'job')}, {counted(report.commands, 'command')}"
        requested = looked if check.is_reached else "not reached"
        again = f", {len(reported.again)} to resend" if reported.again else ""
        _print(
            f"{title}: {requested}, {counted(reported.wrong, 'alert')}, {len(reported.events)} to send{again}"
        )
        for event in reported.events:
            _print(f"{title}: {_format_event(event)}")
        for channel, event in reported.again:
            _print(f"{title}: again for {channel}: {_format_event(event)}")
        for delivery in reported.deliveries:
            if delivery.problem:
                _complain(f"{title}: {delivery.summary}")
            else:
                _print(f"{title}: {delivery.summary}")

    def _pulse(self, text: str) -> None:
        line = pulse_line(datetime.now().astimezone(), text) + "\n"
        if self._watch.pulse_file and self._dry_run:
            _print(f"would be written to {self._watch.pulse_file}: PULSE: {text}")
            return
        if not self._watch.pulse_file:
            sys.stdout.write(line)
            sys.stdout.flush()
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
    if event.kind.is_end:
        return (
            f"{'over' if event.kind is AlertKind.RECOVERED else 'no longer watched'}: {event.text}"
        )
    return f"{event.kind} {event.finding.severity.word}: {event.text}"


def _print(text: str) -> None:
    print(f"[{datetime.now():%Y-%m-%d %H:%M:%S}] {visible(text)}", flush=True)


def _complain(text: str) -> None:
    print(f"hpcdash: {visible(' '.join(text.split()))}", file=sys.stderr, flush=True)


class _CronRequest(NamedTuple):
    action: str | None
    every_seconds: int
    is_every_given: bool
    folder: str
    watches: bool
    options: tuple[str, ...]


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
    every_seconds = _every_seconds(every or _USUAL)
    # A job installed when a shorter interval was allowed can still be removed.
    if action in (None, "install") and every_seconds < MINUTE:
        raise UsageError(
            f"--every: {every!r} is too often: each run is a scheduler job",
            "The minimum is 1m; prefer 15m or 1h.",
        )
    requested = _CronRequest(
        action, every_seconds, every is not None, _folder(folder), watches, options
    )
    settings = load_settings(common.config)
    if action in ("install", "remove") and (common.read_only or settings.read_only):
        raise UsageError(
            f"cron --{action} is refused: hpcdash is read-only", "--status still works."
        )
    if action == "remove" and not common.yes and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(
            "cron --remove needs confirmation, but there is no terminal",
            "Use --yes to skip the question.",
        )
    lines = with_session(common, lambda session: _work(common, session, requested))
    print_text("".join(f"{visible(line) if action else line}\n" for line in lines))


def _every_seconds(text: str) -> int:
    try:
        seconds = parse_duration(text, bare_unit_seconds=60)
    except ValueError as error:
        raise UsageError(f"--every: {error}", "Write 1h, 1d or 15m; a number is minutes.") from None
    if seconds is None or not 1 <= seconds <= 366 * DAY or len(interval_label(seconds)) > 7:
        raise UsageError(
            f"--every: {text!r} is not an interval", "Write 1h, 1d or 15m; a number is minutes."
        )
    return seconds


def _folder(text: str | None) -> str:
    if text is not None and not text.startswith("/"):
        raise UsageError(
            f"--folder: {text!r} is not an absolute path", "It is a folder on the cluster."
        )
    return (text or "").rstrip("/")


async def _work(
    common: CommonOptions, session: ClusterSession, requested: _CronRequest
) -> tuple[str, ...]:
    store = session.store
    await store.open(force=True)
    folder = await folder_there(store, requested.folder)
    program = queue_program(queue_folder()) if store.backend.is_embedded else ()
    job = CronJob(requested.every_seconds, folder, requested.options, program)
    if requested.action is None:
        return (store.backend.scripts.cron_script(job).rstrip("\n"),)
    _, found = await stands(store, requested.folder)
    stand = next((one for one in found if one.label == job.label), None)
    if requested.action == "status":
        return _status_lines(folder, found, store.clock.now())
    if requested.action == "remove":
        if not requested.is_every_given and found:
            stand = _only(found, job.label)
            job = replace(job, every_seconds=_every_seconds(parse_interval(stand.label)))
        if stand is not None and not common.yes:
            _announce_removal(job, stand, session)
            if not await is_agreed():
                raise Declined
        return await remove(store, session.actions, job, stand)
    messages: tuple[str, ...] = ()
    text = await _watch_text(common, session) if requested.watches else ""
    if text and session.store.transport.name == "local":
        for message in _unnotified(load_settings(common.config).watch):
            print(f"hpcdash: {visible(message)}", file=sys.stderr)
    if stand is None or not stand.rows:
        print(
            f"cron on {visible(session.name)}: submits {visible(job.script_path)} as {job.name}",
            file=sys.stderr,
        )
    if text:
        path = f"{job.scripts_folder}/{WATCH_SCRIPT}"
        await write_script(store, path, text)
        messages = (f"{path} runs the watchdogs",)
    return (*messages, *await install(store, session.actions, job, stand))


def _only(found: tuple[CronStand, ...], usual: str) -> CronStand:
    """Return the installed job, else the usual one.

    Raises UsageError where several are installed.
    """
    there = [stand for stand in found if stand.is_installed or stand.rows]
    if len(there) > 1:
        names = ", ".join(stand.name for stand in there)
        raise UsageError(
            f"several are installed: {names}",
            f"Choose one with --every {parse_interval(there[0].label)}.",
        )
    return there[0] if there else next((stand for stand in found if stand.label == usual), found[0])


def _announce_removal(job: CronJob, stand: CronStand, session: ClusterSession) -> None:
    """Print to stderr which files are moved and which jobs are cancelled."""
    print(f"cron on {visible(session.name)}: removes {job.name}", file=sys.stderr)
    if stand.is_installed:
        print(
            f"  moves {visible(job.script_path)} to {visible(job.folder)}/removed", file=sys.stderr
        )
    waiting = [str(row["id"]) for row in stand.rows if row["state"] in WAITING]
    if waiting:
        print(f"  cancels pending jobs: {visible(' '.join(waiting))}", file=sys.stderr)
    if len(waiting) < len(stand.rows):
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
    return _text_here(common, is_queue=session.store.backend.is_embedded)


def _text_here(common: CommonOptions, *, is_queue: bool) -> str:
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
    if is_queue:
        variables["HPCDASH_QUEUE"] = str(queue_folder().resolve())
    for name in ("PYTHONPATH", "SLURM_CONF"):
        if os.environ.get(name):
            variables[name] = os.environ[name]
    return watch_script((*parts, "watch", "--once"), variables)


def _unnotified(watch: WatchSettings) -> list[str]:
    """Return warnings on recipients that the job's watchdogs may not be able to notify."""
    if text := no_recipients(watch, rings=False):
        return [text]
    return [
        f"{key}: {variable} must be set where the job starts, which may not read your login "
        f"shell's settings; {key.removesuffix('_env')}_file works everywhere"
        for key, variable in secret_variables(watch.notices)
    ]


def _status_lines(folder: str, found: tuple[CronStand, ...], now: float) -> tuple[str, ...]:
    if not found:
        return (f"not installed in {folder}; run hpcdash cron --install",)
    lines = []
    for stand in found:
        there = "installed" if stand.is_installed else "moved away"
        running = [row["id"] for row in stand.rows if row["state"] in ACTIVE]
        waiting = [row for row in stand.rows if row["state"] not in ACTIVE]
        state = [f"runs ({', '.join(running)})"] if running else []
        for row in waiting:
            starts = row["_expected_start_at"] or row["eligible_at"]
            ahead = starts.timestamp() - now if starts is not None else 0.0
            whose = " by the scheduler's estimate" if row["_expected_start_at"] else ""
            state.append(
                f"waits ({row['id']}{f', for {format_age(ahead)}{whose}' if ahead > 0 else ''})"
            )
        lines.append(
            f"{stand.name}: {there}, "
            f"{' and '.join(state) or 'not in the queue: it will not run again'}"
        )
        scripts = ", ".join(stand.scripts) or "no script"
        lines.append(f"  {folder}/cron.{stand.label}: {scripts}")
    return tuple(lines)
