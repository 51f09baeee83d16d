"""`hpcdash doctor`: checks of the setup, each with a finding and, if it failed, the next step."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import locale
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

from msgspec.structs import replace

from hpcdash import __version__
from hpcdash.assembly import EMBEDDED, broker_use, chosen_clusters
from hpcdash.backends.base import Capability
from hpcdash.cli.clusters import proposed_clusters
from hpcdash.cli.ending import run_async
from hpcdash.cli.jobs import open_sessions
from hpcdash.cli.options import CommonOptions
from hpcdash.cli.terminal import print_json
from hpcdash.config.read import load_settings
from hpcdash.config.settings import ClusterSettings, Settings
from hpcdash.config.site_rules import SITE_FILE
from hpcdash.domain.checks import Check
from hpcdash.domain.rfc3339 import format_utc
from hpcdash.domain.tables import Kind
from hpcdash.domain.text import counted, visible
from hpcdash.domain.units import format_span
from hpcdash.embedded import FOLDER_VARIABLE
from hpcdash.embedded.machine import this_machine
from hpcdash.embedded.start import supervisor_pid
from hpcdash.errors import EXIT_REFUSED, EXIT_UNREACHABLE, HpcdashError
from hpcdash.private_files import make_folder, make_private
from hpcdash.services.cluster.site import fetch_site_clusters, format_proposals
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.state.folders import cache_root, queue_folder
from hpcdash.shell_files import shell_text
from hpcdash.transport.base import Transport
from hpcdash.transport.local import LocalTransport

# Clocks under time servers differ by less.
_TOLERATED_SKEW_SECONDS = 60.0
_SLOW_ANSWER_SECONDS = 2.0
_CHECKED_TABLES = (Kind.MINE, Kind.NODES, Kind.QUEUES, Kind.HISTORY)

# Names of GNU stat.
_SHARED_FILE_SYSTEMS = frozenset(
    {
        "nfs",
        "nfs4",
        "lustre",
        "gpfs",
        "beegfs",
        "ceph",
        "fhgfs",
        "panfs",
        "wekafs",
        "smb2",
        "afs",
        "orangefs",
    }
)


def run_doctor(common: CommonOptions, form: str) -> None:
    """Check everything, print it, and exit with the status of the worst finding."""
    settings = load_settings(common.config)
    cluster = chosen_clusters(common, settings)[0]
    checks = [
        Check(
            "configuration", True, str(settings.file) if settings.file else "none; using defaults"
        ),
        _terminal_check(),
        _cache_check(),
        *_alerts_checks(settings),
        *secret_checks(cluster),
    ]

    async def inspect() -> bool:
        async with open_sessions([cluster], settings, common) as [session]:
            is_reached = await check_cluster(session.store, checks.append)
            if broker_use(common, settings) is not None and cluster.transport == "ssh":
                checks.append(await _broker_check(session.store.transport))
            if is_reached:
                store = session.store
                if store.site_problem:
                    step = "Tell the cluster's support."
                    checks.append(Check("site rules", False, store.site_problem, step))
                elif rules := store.site.describe():
                    checks.append(Check("site rules", True, f"{SITE_FILE}: {'; '.join(rules)}"))
                with contextlib.suppress(HpcdashError):
                    await fetch_site_clusters(session.store)
            return is_reached

    reached = run_async(inspect())
    proposed, file = proposed_clusters(common, settings)
    if form == "json":
        checks = [check if not check.ok else replace(check, next_step="") for check in checks]
        answer = {
            "cluster": cluster.name,
            "version": __version__,
            "taken_at": format_utc(time.time()),
            "checks": checks,
            "proposed": proposed,
        }
        print_json(answer)
    else:
        for check in checks:
            print(f"{'ok  ' if check.ok else 'FAIL'}  {check.name:<14} {visible(check.detail)}")
            if not check.ok and check.next_step:
                for line in check.next_step.splitlines():
                    print(f"      {'':<14} → {visible(line)}")
        if lines := format_proposals(proposed, file):
            print("", *lines, sep="\n")
    sys.stdout.flush()
    if not reached:
        sys.exit(EXIT_UNREACHABLE)
    if not all(check.ok for check in checks):
        sys.exit(EXIT_REFUSED)


async def _broker_check(transport: Transport) -> Check:
    """Check that the connection is the broker's, and count the programs that share it."""
    from hpcdash.transport.broker import BrokerTransport, inquire

    alone_because = transport.alone_because if isinstance(transport, BrokerTransport) else ""
    state = None if alone_because else await inquire()
    if state is None:
        step = "This program has a connection of its own. hpcdash broker stop ends the broker."
        return Check("broker", False, alone_because or "not running", step)
    clients = sum(len(connection.clients) for connection in state.connections)
    detail = f"pid {state.pid}, {counted(len(state.connections), 'connection')}, "
    return Check("broker", True, detail + counted(clients, "program"))


def _terminal_check() -> Check:
    codeset = locale.nl_langinfo(locale.CODESET)
    term = os.environ.get("TERM", "")
    detail = f"TERM={term or 'not set'}, {codeset}"
    if os.environ.get("NO_COLOR"):
        detail += ", NO_COLOR"
    if codeset.upper().replace("-", "") != "UTF8":
        detail += ": using ASCII symbols"
    return Check("terminal", True, detail)


def _cache_check() -> Check:
    folder = cache_root()
    try:
        make_folder(folder)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"x")
    except OSError as error:
        step = (
            "Free space there, or set HPCDASH_CACHE to another folder. hpcdash works without "
            "it, but starts empty."
        )
        return Check("cache", False, f"{folder}: {error.strerror}", step)
    return Check("cache", True, str(folder))


def _alerts_checks(settings: Settings) -> list[Check]:
    """Check the secrets of the channels that send alerts; [] where [watch] names no recipient."""
    from hpcdash.services.watch.secrets import build_notifiers, unready

    notifiers, _ = build_notifiers(settings.watch.notices, str(settings.file or ""))
    mute = unready(notifiers)
    if mute:
        errors = [notifier.error for notifier in mute]
        return [Check("alerts", False, error.message, error.next_step) for error in errors]
    if not notifiers:
        return []
    names = ", ".join(notifier.name for notifier in notifiers)
    return [Check("alerts", True, f"sent through {names}")]


def secret_checks(cluster: ClusterSettings) -> list[Check]:
    """Check that a cluster's token and headers are sent encrypted or locally.

    [] where it has none.
    """
    if not (cluster.token_file or cluster.headers_file):
        return []
    url = urlsplit(cluster.url)
    host = url.hostname or ""
    try:
        is_loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = host == "localhost"
    if url.scheme == "https" or is_loopback:
        return [Check("token", True, "encrypted, or sent within one machine")]
    detail = f"sent to {host} unencrypted: anyone on the network between can read it"
    return [
        Check(
            "token",
            False,
            detail,
            f'Use https, or ssh = "{host}" with the URL http://127.0.0.1:{url.port or 80}.',
        )
    ]


def _failed(name: str, error: HpcdashError) -> Check:
    text = getattr(error, "output_beside_message", "")
    detail = f"{error.message}: {' '.join(text.split())}" if text else error.message
    return Check(name, False, detail, error.next_step)


async def check_cluster(store: ClusterStore, notify: Callable[[Check], None]) -> bool:
    """Check a cluster and report each finding.

    False where it is unreachable or has no scheduler.
    """
    transport = store.transport
    began = time.monotonic()
    try:
        await transport.connect()
    except HpcdashError as error:
        notify(_failed("connection", error))
        return False
    hops = " → ".join(transport.health.hops) or transport.name
    notify(Check("connection", True, f"{hops}, {1000 * (time.monotonic() - began):.0f} ms"))
    try:
        queried_at = time.time()
        probe = await store.open()
    except HpcdashError as error:
        notify(_failed("scheduler", error))
        return False
    if store.backend.name == EMBEDDED:
        notify(
            Check(
                "scheduler",
                True,
                f"{store.backend.title}, {probe.version}, logged in as {probe.user}",
            )
        )
        for check in await asyncio.to_thread(queue_checks, queue_folder()):
            notify(check)
        notify(await _home_check(transport, is_one_machine=True))
        for kind in _CHECKED_TABLES:
            notify(await _table_check(store, kind))
        return True
    dialect = f" (dialect {probe.dialect})" if probe.dialect else ""
    cluster = probe.cluster or "unnamed"
    user = f", logged in as {probe.user}" if probe.user else ""
    notify(Check("scheduler", True, f"{probe.version}{dialect}, cluster {cluster}{user}"))
    missing = [name for name, path in probe.commands.items() if not path]
    found = ", ".join(path for path in probe.commands.values() if path)
    if probe.commands:
        detail = f"missing: {', '.join(missing)}" if missing else found
        notify(Check("commands", not missing, detail, "Ask the site's administrators for them."))
    if probe.controller_answers is not None:
        step = "Running jobs continue. Wait, or notify the site's administrators."
        detail = "answers" if probe.controller_answers else "does not respond"
        if probe.is_scheduling is False:
            detail = "responds, but scheduling is off: no jobs start"
            step = "The site turned it off; you can still submit jobs."
        notify(
            Check(
                "controller",
                probe.controller_answers and probe.is_scheduling is not False,
                detail,
                step,
            )
        )
    if probe.clock_epoch_seconds is not None:
        skew = probe.clock_epoch_seconds - (queried_at + time.time()) / 2
        is_synced_here = None
        is_synced_there = None
        if abs(skew) > _TOLERATED_SKEW_SECONDS:
            is_synced_here = await _is_synchronized(LocalTransport())
            is_synced_there = await _is_synchronized(transport)
        notify(clock_check(probe.clock_epoch_seconds, skew, is_synced_here, is_synced_there))
    if probe.commands:
        notify(await _home_check(transport))
    # At once: a server that hangs delays each of them for a minute.
    capabilities = store.backend.capabilities
    tables = [kind for kind in _CHECKED_TABLES if kind is Kind.MINE or kind.value in capabilities]
    for check in await asyncio.gather(*(_table_check(store, kind) for kind in tables)):
        notify(check)
    notify(_accounting_check(store))
    if (accounts := await _accounts_check(store)) is not None:
        notify(accounts)
    return True


def clock_check(
    there_epoch: float,
    ahead_seconds: float,
    is_synced_here: bool | None,
    is_synced_there: bool | None,
) -> Check:
    """Report how far the cluster's clock is ahead of this machine's, and which of the two is wrong.

    `is_synced_here` and `is_synced_there` are true where a time server controls the clock; None
    where this is unknown.
    """
    there = datetime.fromtimestamp(there_epoch, UTC)
    is_same = round(ahead_seconds) == 0
    difference = "in sync" if is_same else f"differs by {ahead_seconds:+.0f} s"
    reported = f"{difference} (cluster time: {there:%Y-%m-%d %H:%M:%S} UTC)"
    if abs(ahead_seconds) <= _TOLERATED_SKEW_SECONDS:
        return Check("clock", True, reported)
    side = "ahead of" if ahead_seconds > 0 else "behind"
    far = format_span(60 * round(abs(ahead_seconds) / 60))
    reported = f"the cluster's clock is {far} {side} this machine's; it {reported}"
    if is_synced_here is False and is_synced_there is not False:
        step = "This machine's clock is not synchronized. Enable NTP: timedatectl set-ntp true"
    elif is_synced_there is False and is_synced_here is not False:
        step = (
            "The cluster's clock is not synchronized (timedatectl there). Notify the site's "
            "administrators."
        )
    else:
        step = "Compare `date -u` on both with a clock you trust."
    return Check(
        "clock",
        False,
        reported,
        f"{step}\nTimes shown follow the cluster's clock; remaining times are correct.",
    )


async def _is_synchronized(transport: Transport) -> bool | None:
    """Return whether a time server controls a machine's clock; None where this is unknown."""
    try:
        answer = await transport.run(
            ("timedatectl", "show", "--property=NTPSynchronized", "--value")
        )
    except HpcdashError:
        return None
    return {b"yes": True, b"no": False}.get(answer.stdout.strip()) if answer.status == 0 else None


def queue_checks(folder: Path) -> list[Check]:
    """Check the embedded queue's folder, its supervisor and its slots."""
    try:
        make_private(folder, FOLDER_VARIABLE)
    except HpcdashError as error:
        return [_failed("queue's folder", error)]
    mode = folder.stat().st_mode & 0o777
    is_open = bool(mode & 0o077)
    found = (
        f"{folder} is accessible to others (mode {mode:03o})" if is_open else f"{folder}, private"
    )
    # The queue makes its folder private if the file system can.
    step = "This file system ignores permissions: set HPCDASH_QUEUE to a folder on another one."
    checks = [Check("queue's folder", not is_open, found, step)]
    pid = supervisor_pid(folder)
    idle = "not running: no jobs; the next submission starts it"
    checks.append(Check("supervisor", True, idle if pid is None else f"running, PID {pid}"))
    try:
        machine = this_machine(folder)
    except HpcdashError as error:
        return [*checks, _failed("slots", error)]
    found = (
        f"{machine.cpus} CPUs, {len(machine.gpu_ids)} GPUs; {machine.grace_seconds:g} s from "
        "SIGTERM to SIGKILL"
    )
    checks.append(Check("slots", True, f"{found} (set in [embedded])"))
    if not machine.gpu_ids and shutil.which("nvidia-smi"):
        step = "Check nvidia-smi, or set the number of GPUs: [embedded] gpus = N."
        checks.append(Check("GPUs", False, "nvidia-smi found no GPUs", step))
    return checks


async def _home_check(transport: Transport, *, is_one_machine: bool = False) -> Check:
    """Check that logs can be written in the home, and that nodes share it.

    A node that does not share it would write a job's log where nobody finds it.
    """
    try:
        answer = await transport.run(("sh", "-c", shell_text("cli/home.sh")))
    except HpcdashError as error:
        return _failed("home", error)
    lines = answer.stdout.decode("utf-8", "replace").splitlines()
    path, kind, writable = [*lines, "", "", ""][:3]
    if writable != "yes":
        step = "Jobs cannot write logs there: check the quota and whether it is mounted read-only."
        return Check("home", False, f"{path} is not writable", step)
    if is_one_machine:
        return Check("home", True, f"{path} is writable")
    if kind in _SHARED_FILE_SYSTEMS:
        return Check("home", True, f"{path} is on {kind}, usually shared by all nodes")
    where = f"on {kind or 'an unknown file system'}; open a job's log to see whether nodes share it"
    return Check("home", True, f"{path} is {where}")


async def _table_check(store: ClusterStore, kind: Kind) -> Check:
    name = "jobs" if kind is Kind.MINE else str(kind)
    began = time.monotonic()
    try:
        snapshot = await store.fetch(kind)
    except HpcdashError as error:
        return _failed(name, error)
    seconds = time.monotonic() - began
    detail = f"{counted(snapshot.table.num_rows, 'row')} in {1000 * seconds:.0f} ms"
    if snapshot.rejected:
        return Check(
            name,
            False,
            f"{detail}, {len(snapshot.rejected)} could not be read",
            "`hpcdash jobs` lists them.",
        )
    if seconds > _SLOW_ANSWER_SECONDS:
        detail += "; slow, so hpcdash polls less often"
    return Check(name, True, detail)


def _accounting_check(store: ClusterStore) -> Check:
    has_accounting = store.probe.has_accounting if store.probe else None
    detail = "available" if has_accounting else store.backend.history.no_history
    if Capability.HISTORY not in store.backend.capabilities or has_accounting is None:
        detail = "unknown"
    return Check("accounting", True, detail)


async def _accounts_check(store: ClusterStore) -> Check | None:
    """Report the accounts that the user may charge.

    None where the scheduler has no accounts or accounting.
    """
    probe = store.probe
    if probe is None or not probe.has_accounting:
        return None
    query = store.backend.policy.associations(store.user, probe.cluster)
    if query is None:
        return None
    try:
        offers = (await store.run_query(query)).offers
    except HpcdashError as error:
        return Check("accounts", True, f"unknown: {error.message}")
    if not offers:
        return Check(
            "accounts",
            True,
            f"{store.user} has no account; if the site requires one, it rejects your jobs",
        )
    names = [f"{offer.name} (default)" if offer.is_default else offer.name for offer in offers]
    return Check("accounts", True, ", ".join(names))
