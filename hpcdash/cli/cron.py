"""`hpcdash cron`: the job that stands in for cron, printed, installed, taken out, or how it stands. Draws nothing."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import NamedTuple

from hpcdash.backends.embedded.backend import EmbeddedBackend
from hpcdash.backends.script.cron import CronJob, cron_script, interval_of, label_of, watch_script
from hpcdash.cli.acting import is_agreed
from hpcdash.cli.build import queue_folder, queue_program, state_root
from hpcdash.cli.oneshot import with_session
from hpcdash.cli.options import CommonOptions
from hpcdash.cli.stdout import print_text
from hpcdash.cli.watch import nobody_told
from hpcdash.config import config_path, load_settings
from hpcdash.config.watch_settings import WatchSettings
from hpcdash.domain.states import ACTIVE, WAITING
from hpcdash.domain.text import visible
from hpcdash.domain.units import DAY, MINUTE, format_age, parse_duration
from hpcdash.errors import EXIT_REFUSED, UsageError
from hpcdash.services.session import ClusterSession
from hpcdash.services.watch.cron import CronStand, folder_there, install, remove, stands, write_script
from hpcdash.services.watch.secrets import variables_of

WATCH_SCRIPT = "hpcdash-watch"
_USUAL = "1h"


class _Declined(Exception):
    """The person said no."""


class _Asked(NamedTuple):
    deed: str | None
    every_seconds: int
    is_every_given: bool
    folder: str
    watches: bool
    options: tuple[str, ...]


def run_cron(
    common: CommonOptions,
    *,
    deed: str | None,
    every: str | None,
    folder: str | None,
    watches: bool,
    options: tuple[str, ...],
) -> None:
    """Print the job's script, or do as asked; raises HpcdashError with what could not be done.

    Where `every` is left out that is hourly; what is taken out is then the one there is.
    """
    every_seconds = _every_seconds(every or _USUAL)
    # What was installed when it could be shorter can be taken out.
    if deed in (None, "install") and every_seconds < MINUTE:
        raise UsageError(
            f"--every: {every!r} is too often: each time is a job that the scheduler starts",
            "A minute is the shortest: 1m; 15m or 1h are kinder.",
        )
    asked = _Asked(deed, every_seconds, every is not None, _folder(folder), watches, options)
    settings = load_settings(common.config)
    if deed in ("install", "remove") and (common.read_only or settings.read_only):
        raise UsageError(f"cron --{deed}: nothing is changed here (read-only)", "--status tells how it stands.")
    if deed == "remove" and not common.yes and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError("cron --remove asks first, and there is no terminal to ask on", "--yes does it without.")
    try:
        lines = with_session(common, lambda session: _work(common, session, asked))
    except _Declined:
        print("nothing was done", file=sys.stderr)
        sys.exit(EXIT_REFUSED)
    print_text("".join(f"{visible(line) if deed else line}\n" for line in lines))


def _every_seconds(text: str) -> int:
    try:
        seconds = parse_duration(text, bare_unit_seconds=60)
    except ValueError as error:
        raise UsageError(f"--every: {error}", "Write 1h, 1d or 15m; a number is minutes.") from None
    if seconds is None or not 1 <= seconds <= 366 * DAY or len(label_of(seconds)) > 7:
        raise UsageError(f"--every: {text!r} is no interval", "Write 1h, 1d or 15m; a number is minutes.")
    return seconds


def _folder(text: str | None) -> str:
    if text is not None and not text.startswith("/"):
        raise UsageError(f"--folder: {text!r} is no path from the root", "It is a folder of the cluster.")
    return (text or "").rstrip("/")


async def _work(common: CommonOptions, session: ClusterSession, asked: _Asked) -> tuple[str, ...]:
    store = session.store
    await store.open(force=True)
    folder = await folder_there(store, asked.folder)
    program = queue_program(queue_folder()) if isinstance(store.backend, EmbeddedBackend) else ()
    job = CronJob(asked.every_seconds, folder, asked.options, program)
    if asked.deed is None:
        return (cron_script(job, store.backend.cron_parts(job)).rstrip("\n"),)
    _, found = await stands(store, asked.folder)
    stand = next((one for one in found if one.label == job.label), None)
    if asked.deed == "status":
        return _status_lines(folder, found, store.clock.now())
    if asked.deed == "remove":
        if not asked.is_every_given and found:
            stand = _only(found, job.label)
            job = replace(job, every_seconds=_every_seconds(interval_of(stand.label)))
        if stand is not None and not common.yes:
            _announce_removal(job, stand, session)
            if not await is_agreed():
                raise _Declined
        return await remove(store, session.actions, job, stand)
    said: tuple[str, ...] = ()
    text = await _watch_text(common, session) if asked.watches else ""
    if text and session.store.transport.name == "local":
        for words in _untold(load_settings(common.config).watch):
            print(f"hpcdash: {visible(words)}", file=sys.stderr)
    if stand is None or not stand.rows:
        print(f"cron on {visible(session.name)}: submits {visible(job.script_path)} as {job.name}", file=sys.stderr)
    if text:
        path = f"{job.scripts_folder}/{WATCH_SCRIPT}"
        await write_script(store, path, text)
        said = (f"{path} runs the watchdogs",)
    return (*said, *await install(store, session.actions, job, stand))


def _only(found: tuple[CronStand, ...], usual: str) -> CronStand:
    """The one that is meant where nobody said which; raises UsageError where there are several."""
    there = [stand for stand in found if stand.is_installed or stand.rows]
    if len(there) > 1:
        names = ", ".join(stand.name for stand in there)
        raise UsageError(f"which one is it? There are {names}", f"--every {interval_of(there[0].label)} says it.")
    return there[0] if there else next((stand for stand in found if stand.label == usual), found[0])


def _announce_removal(job: CronJob, stand: CronStand, session: ClusterSession) -> None:
    """What will be moved away and cancelled, on stderr."""
    print(f"cron on {visible(session.name)}: {job.name} is taken out", file=sys.stderr)
    if stand.is_installed:
        print(f"  {visible(job.script_path)} goes to {visible(job.folder)}/removed", file=sys.stderr)
    waiting = [str(row["id"]) for row in stand.rows if row["state"] in WAITING]
    if waiting:
        print(f"  what waits is cancelled: {visible(' '.join(waiting))}", file=sys.stderr)
    if len(waiting) < len(stand.rows):
        print("  what runs ends by itself", file=sys.stderr)


async def _watch_text(common: CommonOptions, session: ClusterSession) -> str:
    """What runs one round there: this very program where the cluster is this machine, else the one on its PATH."""
    if session.store.transport.name != "local":
        answer = await session.store.transport.run(("sh", "-lc", "command -v hpcdash"))
        program = answer.stdout.decode("utf-8", "replace").strip().splitlines()[-1:]
        if answer.status != 0 or not program or not program[0].startswith("/"):
            raise UsageError(
                f"there is no hpcdash on {session.store.title} that could watch",
                "Install it there, with a configuration; or run `hpcdash watch` where it is.",
            )
        return watch_script((program[0], "--local", "watch", "--once"), {})
    return _text_here(common, is_queue=isinstance(session.store.backend, EmbeddedBackend))


def _text_here(common: CommonOptions, *, is_queue: bool) -> str:
    words: tuple[str, ...] = (sys.executable, "-P", "-m", "hpcdash")
    file, is_named = config_path(common.config)
    if is_named:
        words += ("--config", str(file.resolve()))
    if common.cluster:
        words += ("--cluster", common.cluster)
    if common.backend:
        words += ("--backend", common.backend)
    # Its home and its variables are those of whoever submits; these say where the state is.
    variables = {"HPCDASH_STATE": str(state_root().resolve())}
    if is_queue:
        variables["HPCDASH_QUEUE"] = str(queue_folder().resolve())
    for name in ("PYTHONPATH", "SLURM_CONF"):
        if os.environ.get(name):
            variables[name] = os.environ[name]
    return watch_script((*words, "watch", "--once"), variables)


def _untold(watch: WatchSettings) -> list[str]:
    """Whom the watchdogs of the job may not be able to tell, in words."""
    if words := nobody_told(watch, rings=False):
        return [words]
    return [
        f"{key}: {variable} must be in the environment the job starts with, which a login shell's may not be; "
        f"{key.removesuffix('_env')}_file is read anywhere"
        for key, variable in variables_of(watch.notices)
    ]


def _status_lines(folder: str, found: tuple[CronStand, ...], now: float) -> tuple[str, ...]:
    if not found:
        return (f"nothing is installed in {folder}; hpcdash cron --install",)
    lines = []
    for stand in found:
        there = "installed" if stand.is_installed else "moved away"
        running = [row["id"] for row in stand.rows if row["state"] in ACTIVE]
        waiting = [row for row in stand.rows if row["state"] not in ACTIVE]
        state = [f"runs ({', '.join(running)})"] if running else []
        for row in waiting:
            starts = row["_expected_start_at"] or row["eligible_at"]
            ahead = starts.timestamp() - now if starts is not None else 0.0
            state.append(f"waits ({row['id']}{f', for {format_age(ahead)}' if ahead > 0 else ''})")
        lines.append(f"{stand.name}: {there}, {' and '.join(state) or 'not in the queue: it does not come again'}")
        scripts = ", ".join(stand.scripts) or "no script"
        lines.append(f"  {folder}/cron.{stand.label}: {scripts}")
    return tuple(lines)
