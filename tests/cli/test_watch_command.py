"""`hpcdash watch` and `hpcdash cron` as a person or cron runs them: what they say, how they end,
what they leave.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from hpcdash.assembly import build_session, connection_pool
from hpcdash.cli.watch import _Watch
from hpcdash.config.read import load_settings
from hpcdash.domain.tables import Kind
from hpcdash.services.cluster.snapshots import Snapshot
from hpcdash.services.watch.state import WatchFiles
from hpcdash.transport.prompter import TerminalPrompter
from tests.embedded.queue_lab import QueueLab
from tests.support.program import Program, home_with
from tests.support.waiting import wait_until

SECRET = "T00SECRET"


@pytest.fixture
def person(tmp_path: Path) -> Iterator[Program]:
    """hpcdash on an embedded queue of its own."""
    queue = QueueLab(tmp_path / "queue", tmp_path / "work")
    variables = {"HPCDASH_QUEUE": str(queue.folder), "HPCDASH_STATE": str(tmp_path / "state")}
    yield Program(home_with(tmp_path / "home"), ("--local", "--backend", "local"), variables)
    queue.end()


def configure(person: Program, text: str) -> None:
    person.config.parent.mkdir(parents=True, exist_ok=True)
    person.config.write_text(text)


def test_once_tells_writes_the_pulse_and_ends_well_whatever_it_finds(person: Program) -> None:
    told, main_log = person.home / "told", person.home / "main_log.txt"
    main_log.write_text("step 1\n")
    tell = person.home / "tell"
    tell.write_text(f"#!/bin/sh\ncat >> {told}\n")
    tell.chmod(0o755)
    configure(
        person,
        f"""
        [watch]
        pulse_file = "~/main_log.txt"
        [[watch.running]]
        name = "train"
        [[watch.command]]
        argv = ["{tell}", "{SECRET}"]
        """,
    )
    first = person("watch", "--once")
    assert first.status == 0, first
    assert "raised critical: no job train" in first.text
    assert "sent: command" in first.text
    assert SECRET not in first.text + first.stderr
    second = person("watch", "--once")
    assert (second.status, second.stderr) == (0, "")
    assert "0 to send" in second.text
    assert json.loads(told.read_text())["alerts"][0]["rule"] == "is-running"
    lines = main_log.read_text().splitlines()
    assert lines[0] == "step 1"
    assert [line.partition("] ")[2] for line in lines[1:]] == [
        "PULSE: train is neither running nor pending"
    ] * 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives links to somebody else")
@pytest.mark.parametrize(("owner", "is_written"), [(0, True), (65534, False)])
def test_the_pulse_goes_through_no_link_of_somebody_else(
    person: Program, owner: int, is_written: bool
) -> None:
    configure(person, '[watch]\npulse_file = "~/log"\n[[watch.running]]\nname = "t"\n')
    precious = person.home / "precious"
    precious.write_text("")
    (person.home / "log").symlink_to(precious)
    os.chown(person.home / "log", owner, owner, follow_symlinks=False)
    run = person("watch", "--once")
    assert ("PULSE: t is neither" in precious.read_text()) is is_written
    assert ("Too many levels of symbolic links" in run.stderr) is not is_written


def test_a_dry_run_says_who_would_be_told(person: Program) -> None:
    configure(
        person,
        '[watch]\npulse_file = "~/log"\n[[watch.running]]\nname = "t"\n'
        '[[watch.command]]\nargv = ["/no/such/program"]\n[watch.quiet]\nzone="UTC"',
    )
    for _ in range(2):
        run = person("watch", "--once", "--dry-run")
        assert run.status == 0
        assert "would be sent: command /no/such/program" in run.text
        assert "raised critical" in run.text
        assert "1 alert, 1 to send" in run.text
        assert "PULSE: t is neither running nor pending" in run.text
    assert not (person.home / "log").exists()
    assert not Path(person.variables["HPCDASH_STATE"], "watch").exists()


def test_a_notifier_that_fails_says_so_and_cron_sees_it_until_it_was_told(person: Program) -> None:
    tell = person.home / "tell"
    configure(person, f'[[watch.running]]\nname = "t"\n[[watch.command]]\nargv = ["{tell}"]')
    for _ in range(2):
        run = person("watch", "--once")
        assert run.status == 1
        assert "not sent: command " in run.stderr
        assert "No such file or directory" in run.stderr
    assert person("watch", "--once", "--dry-run").status == 0
    tell.write_text("#!/bin/sh\n")
    tell.chmod(0o755)
    assert [person("watch", "--once").status for _ in range(2)] == [0, 0]


def test_a_cluster_that_cannot_be_reached_ends_with_3_and_the_others_are_watched(
    person: Program,
) -> None:
    configure(
        person,
        """
        [clusters.here]
        backend = "local"
        [clusters.gone]
        transport = "openssh"
        ssh = "nobody@127.0.0.1:1"
        [[watch.running]]
        name = "t"
        clusters = ["here"]
        """,
    )
    run = Program(person.home, (), person.variables)("watch", "--once")
    assert run.status == 3, run
    assert "here: raised critical: no job t" in run.text
    assert "gone: not reached" in run.text


def test_a_round_that_cannot_be_done_ends_with_1_and_says_why(person: Program) -> None:
    configure(person, '[[watch.running]]\nname = "t"')
    with WatchFiles(Path(person.variables["HPCDASH_STATE"]), "local").alone():
        run = person("watch", "--once")
    assert (run.status, run.text) == (1, "")
    assert "this round failed: another hpcdash watch is already watching this cluster" in run.stderr
    Path(person.variables["HPCDASH_STATE"], "watch").rename(person.home / "elsewhere")
    Path(person.variables["HPCDASH_STATE"], "watch").touch()
    run = person("watch", "--once")
    assert (run.status, "Set HPCDASH_STATE to another folder" in run.stderr) == (1, True)


async def test_what_goes_wrong_with_one_cluster_ends_neither_its_watch_nor_the_others(
    person: Program, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(person, '[clusters.here]\nbackend = "local"\n[clusters.torn]\nbackend = "local"\n')
    for name, value in person.variables.items():
        monkeypatch.setenv(name, value)
    settings = load_settings(person.config)
    pool = connection_pool(TerminalPrompter())
    sessions = [build_session(cluster, pool) for cluster in settings.clusters.values()]

    async def tear(kind: Kind, *_: object) -> Snapshot:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(sessions[1].store, "fetch", tear)
    rounds = _Watch(
        sessions, replace(settings.watch, every_seconds=0.01), [], dry_run=False, debug=False
    )
    watched = asyncio.create_task(rounds.run(once=False))
    said = ""
    while said.count("here: 0 jobs") < 2 or said.count("torn: this round failed") < 2:
        await asyncio.sleep(0.01)
        out, err = capsys.readouterr()
        said += out + err
    watched.cancel()
    await asyncio.wait([watched])
    assert (
        "internal error of hpcdash: OSError: [Errno 5] Input/output error; run it with --debug"
        in said
    )
    assert (
        await _Watch(sessions, settings.watch, [], dry_run=False, debug=False).run(once=True) == 1
    )


def test_a_trial_reaches_everyone_or_says_who_was_not_reached(person: Program) -> None:
    configure(person, '[[watch.command]]\nargv = ["/bin/true"]')
    assert person("watch", "--trial").text == "sent: command /bin/true\n"
    configure(person, '[[watch.command]]\nargv = ["/bin/false"]')
    run = person("watch", "--trial")
    assert run.status == 1
    assert "not sent (3 attempts): command /bin/false" in run.text
    configure(person, "[watch]")
    assert "no alerts are sent" in person("watch", "--trial").refused(2)


def test_who_lacks_a_secret_is_named_the_rest_goes_on_and_it_is_told_once_that_is_there(
    person: Program,
) -> None:
    told = person.home / "told"
    secret = person.home / "url"
    configure(
        person,
        f"""
        [[watch.running]]
        name = "t"
        [[watch.command]]
        argv = ["/bin/sh", "-c", "cat >> {told}"]
        [[watch.webhook]]
        url_file = "{secret}"
        """,
    )
    lacks = f"watch.webhook[0].url_file: {secret}: No such file or directory"
    check = person("config", "check")
    assert (check.status, "good" in check.text) == (2, False)
    assert lacks in check.stderr
    assert "FAIL  alerts" in person("doctor").text
    dry = person("watch", "--once", "--dry-run")
    assert (dry.status, "would be sent: command" in dry.text) == (2, True)
    assert "cannot be sent: json webhook (watch.webhook[0])" in dry.stderr
    run = person("watch", "--once")
    assert run.status == 2, run
    assert "PULSE: t is neither running nor pending" in run.text
    assert "sent: command" in run.text
    assert f"{lacks}" in run.stderr
    assert "not sent: json webhook (watch.webhook[0])" in run.stderr
    assert len(told.read_text().splitlines()) == 1

    # An address nobody listens at is one it can be tried to be told at.
    secret.write_text("http://127.0.0.1:1/hook")
    secret.chmod(0o600)
    assert person("config", "check").status == 0
    run = person("watch", "--once")
    assert run.status == 1, run
    assert "resent to json webhook at http://127.0.0.1:1: raised critical: no job t" in run.text


def test_a_watch_that_tells_nobody_says_so(person: Program) -> None:
    configure(person, '[[watch.running]]\nname = "t"')
    run = person("watch", "--once")
    assert (run.status, "raised critical: no job t" in run.text) == (0, True)
    assert "hpcdash: no alerts are sent. Add a recipient: [[watch.mail]]" in run.stderr
    configure(person, '[[watch.running]]\nname = "t"\n[watch.terminal]')
    assert (
        "[watch.terminal] only rings in the foreground and in the dashboard"
        in person("watch", "--once").stderr
    )
    configure(person, '[[watch.running]]\nname = "t"\n[[watch.webhook]]\nurl_env = "HOOK"')
    installed = person("cron", "--install", "--watch", "--every", "1d")
    assert installed.status == 0
    assert "watch.webhook[0].url_env: HOOK must be set where the job starts" in installed.stderr


def test_in_the_foreground_it_goes_on_until_interrupted(person: Program) -> None:
    configure(person, '[[watch.running]]\nname = "t"')
    with subprocess.Popen(
        person.argv("watch", "--every", "1s"),
        env=person.environment,
        cwd=person.home,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        lines: list[str] = []

        def pulses() -> bool:
            assert process.stdout is not None
            lines.append(process.stdout.readline())
            return sum("PULSE" in line for line in lines) >= 3

        wait_until("three rounds", pulses)
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
        assert sum("raised critical" in line for line in lines) == 1


def test_cron_is_printed_and_nothing_is_done(person: Program) -> None:
    run = person("cron", "--every", "1d", "--option=--partition=cpu")
    assert run.status == 0
    assert run.text.startswith("#!/bin/sh\n#SBATCH --job-name=hpcdash-daily\n")
    assert "#SBATCH --partition=cpu\n" in run.text
    assert f"{person.home}/hpcdash/cron/cron.daily" in run.text
    assert not (person.home / "hpcdash").exists()
    assert person("cron", "--status").text.startswith("not installed in ")


def test_cron_installed_runs_the_watchdogs_says_how_it_stands_and_is_removed(
    person: Program,
) -> None:
    configure(person, '[[watch.running]]\nname = "t"')
    folder = person.home / "hpcdash" / "cron"
    run = person("cron", "--install", "--watch", "--every", "1m")
    assert run.status == 0, run
    assert "hpcdash-1m: job 1" in run.text
    assert "submits" in run.stderr
    files = WatchFiles(Path(person.variables["HPCDASH_STATE"]), "local")
    wait_until("a round of the watchdogs", lambda: files.read()[0].read_alerts().states)
    status = person("cron", "--status").text
    assert status.startswith("hpcdash-1m: installed, ")
    assert f"{folder}/cron.1m: hpcdash-watch" in status
    again = person("cron", "--install", "--every", "1m")
    assert "not submitted again" in again.text
    assert "submits" not in again.stderr
    assert "Use --yes to skip" in person("cron", "--remove", "--every", "1m").refused(2)
    assert person("cron", "--status").text.startswith("hpcdash-1m: installed, ")
    # The only one there is need not be named.
    assert "/removed" in person("cron", "--remove", "--yes").text
    wait_until("its end", lambda: person("cron", "--status").text.startswith("not installed"))
    assert [path.name for path in (folder / "removed").iterdir()] == ["hpcdash-1m.sh"]
    assert person("cron", "--remove", "--every", "1m", "--yes").text.startswith(
        "hpcdash-1m is neither installed in "
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders to a group")
def test_cron_is_not_installed_where_others_could_replace_its_scripts(
    person: Program, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    shutil.chown(project, group="mail")
    project.chmod(0o2775)
    folder = str(project / "amal" / "cron")
    for words in (("--install",), ("--install", "--watch")):
        run = person("cron", *words, "--every", "1d", "--folder", folder)
        assert run.status == 2
        assert (
            f"members of group mail may write to {project}, so others could replace" in run.stderr
        )
        assert "omit --folder to use ~/hpcdash/cron" in run.stderr
    assert list(project.iterdir()) == []
    assert person("cron", "--status", "--folder", folder).text.startswith("not installed in ")


def test_of_several_crons_one_has_to_be_named_to_be_removed(person: Program) -> None:
    for label in ("1m", "hourly"):
        script = person.home / "hpcdash" / "cron" / "scheduler" / f"hpcdash-{label}.sh"
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text("#!/bin/sh\n")
    refused = person("cron", "--remove", "--yes").refused(2)
    assert "several cron jobs are installed: hpcdash-1m, hpcdash-hourly" in refused
    assert "/removed" in person("cron", "--remove", "--every", "1m", "--yes").text
    assert "hpcdash-hourly.sh to " in person("cron", "--remove", "--yes").text


def test_cron_comes_no_more_often_than_a_minute(person: Program) -> None:
    for words in ((), ("--install", "--watch")):
        assert "The minimum is 1m" in person("cron", *words, "--every", "1s").refused(2)
    assert not (person.home / "hpcdash").exists()
    # One that was installed before can be taken out.
    assert person("cron", "--remove", "--every", "1s", "--yes").text.startswith(
        "hpcdash-1s is neither installed in "
    )


def test_read_only_installs_nothing(person: Program) -> None:
    assert "read-only" in person("cron", "--install", "--read-only").refused(2)
    assert not (person.home / "hpcdash").exists()


@pytest.mark.parametrize("words", [("--every", "soon"), ("--every", "0"), ("--folder", "here")])
def test_what_cannot_be_is_said(person: Program, words: tuple[str, str]) -> None:
    assert words[0] in person("cron", *words).refused(2)
