"""Asks the stand-ins of tests.support.pbs all that hpcdash asks a PBS, and keeps it as cases of
fixtures/pbs/.

    python -m tests.support.record_pbs_case [SCENE ...]

Every scene, unless some are named. Read the difference of expected.json before keeping it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from hpcdash.backends.base import Backend
from hpcdash.backends.pbs.backend import BACKEND
from hpcdash.backends.queries import JobScope, Query
from hpcdash.backends.tokens import RECORDED_TOKEN
from hpcdash.domain import schema
from hpcdash.errors import HpcdashError
from hpcdash.recorded import find_token, normalised_argv
from hpcdash.services.cluster.job_counts import running_hosts
from hpcdash.services.cluster.store import MAX_HOSTS
from hpcdash.transport.base import CommandResult
from tests.support.pbs import SCENES, StandIns
from tests.support.play_case import HISTORY_SECONDS
from tests.support.record_case import Recorded, write_case, write_expected

CASES = SCENES.parent
# A command of the stand-ins answers soon, or never; a probe gives a server that says nothing ten
# seconds.
_PATIENCE_SECONDS = 60.0
_PATIENCE_WITH_A_HUNG_SERVER_SECONDS = 2.0
_NEVER_SECONDS = 3600.0
# In which scenes each job's own answers are kept, and of how many at most.
DETAILED = {"everyday": 100, "finished": 100, "node-failed": 10, "preempted": 10, "odd": 12}
# Of the folder that the stand-ins were in a case says what a site has.
SITE_FOLDER = "/opt/pbs/bin"


def case_questions(backend: Backend, user: str) -> Iterator[tuple[str, str, Query[Any]]]:
    """(file stem, name of the file for a long word, query) of everything a screen asks for."""
    for stem, scope in (
        ("jobs-me", JobScope("")),
        ("jobs-me-ended", JobScope("", ended=True)),
        ("jobs-mine", JobScope(user)),
        ("jobs-mine-ended", JobScope(user, ended=True)),
        ("jobs-all", JobScope()),
        ("jobs-all-ended", JobScope(ended=True)),
    ):
        yield stem, "jobs.sh", backend.queue.jobs(scope)
    yield "nodes", "nodes.sh", backend.queue.nodes()
    yield "queues", "queues.sh", backend.queue.queues()
    yield "history-me", "history.sh", backend.history.jobs("", HISTORY_SECONDS)
    yield "history-mine", "history.sh", backend.history.jobs(user, HISTORY_SECONDS)
    yield "history-all", "history.sh", backend.history.jobs(None, HISTORY_SECONDS)


def host_questions(backend: Backend, stem: str, jobs: Any) -> Iterator[tuple[str, str, Query[Any]]]:
    """Which hosts of a table of jobs are down, where any runs and that is asked."""
    hosts = () if jobs is None else running_hosts(jobs, MAX_HOSTS)
    if (query := backend.queue.down_hosts(hosts)) is not None:
        yield f"{stem}-hosts", "hosts.sh", query


def job_questions(
    backend: Backend, row: dict[str, Any], *, in_queue: bool
) -> Iterator[tuple[str, str, Query[Any]]]:
    """The same for the page of one job."""
    job_id = str(row["id"])
    stem = "jobs/" + re.sub(
        r"[^0-9A-Za-z]+", "-", job_id.partition(".")[0].replace("[]", "-array")
    ).strip("-")
    if in_queue:
        yield f"{stem}-row", "job-row.sh", backend.queue.jobs(JobScope(job_ids=(job_id,)))
        yield f"{stem}-native", "native.sh", backend.detail.native(job_id)
        yield from host_questions(backend, stem, pa.Table.from_pylist([row], schema=schema.JOBS))
    yield f"{stem}-past", "past.sh", backend.history.jobs(None, 0, (job_id,))
    yield f"{stem}-past-native", "past-native.sh", backend.history.native(job_id)
    for part, query in (
        ("usage", backend.detail.usage(row)),
        ("priority", backend.detail.priority(job_id)),
        ("rules", backend.policy.queue_rules(str(row["queue"]))),
    ):
        if query is not None:
            yield f"{stem}-{part}", f"{part}.sh", query


class Recorder:
    """Runs queries against stand-ins, and keeps each different command once, in the order they were
    asked.
    """

    def __init__(self, stand_ins: StandIns) -> None:
        self.stand_ins = stand_ins
        self.commands: dict[tuple[str, ...], Recorded] = {}
        self._names: set[str] = set()
        # Where a script of sh is kept that several questions share.
        self._files: dict[str, str] = {}

    def ask(self, stem: str, word_file: str, query: Query[Any]) -> Any:
        """What is read from the answer, which is kept; None where it is an error, or of one job and
        known already.
        """
        argv = normalised_argv(query.argv)
        if argv in self.commands and stem.startswith("jobs/"):
            return None
        is_hung = self.stand_ins.settings.get("hung", False) and stem != "probe"
        answer = self._run(
            query.argv, _PATIENCE_WITH_A_HUNG_SERVER_SECONDS if is_hung else _PATIENCE_SECONDS
        )
        if argv not in self.commands:
            number = 2
            name = stem
            while name in self._names:
                name, number = f"{stem}-{number}", number + 1
            self._names.add(name)
            word_file = self._files.setdefault(max(argv, key=len), word_file)
            token = find_token(query.argv)
            stdout = (
                answer.stdout.replace(token.encode(), RECORDED_TOKEN.encode())
                if token
                else answer.stdout
            )
            stdout = stdout.replace(str(self.stand_ins.path).encode(), SITE_FOLDER.encode())
            self.commands[argv] = Recorded(
                name, argv, answer.status, stdout, answer.stderr, answer.seconds, word_file
            )
        if answer.seconds >= _NEVER_SECONDS:
            return None
        try:
            return query.parse(answer)
        except HpcdashError as error:
            print(f"{stem}: {type(error).__name__}: {error.message}", file=sys.stderr)
            return None

    def _run(self, argv: tuple[str, ...], patience_seconds: float) -> CommandResult:
        started = subprocess.Popen(
            argv,
            env=self.stand_ins.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
        )
        try:
            stdout, stderr = started.communicate(timeout=patience_seconds)
        except subprocess.TimeoutExpired:
            os.killpg(started.pid, signal.SIGKILL)
            started.communicate()
            return CommandResult(argv, -1, b"", b"", _NEVER_SECONDS)
        # How long the stand-ins took tells nothing of a PBS.
        return CommandResult(argv, started.returncode, stdout, stderr, 0.02)


def fetch_rows(parsed: Any) -> list[dict[str, Any]]:
    table: pa.Table | None = None if parsed is None else parsed.table
    return [] if table is None else table.to_pylist()


def record_scene(scene: str, folder: Path) -> Path:
    """Ask everything of one scene; gives the folder of the case."""
    stand_ins = StandIns.install(folder / scene, scene)
    settings = stand_ins.settings
    user = settings["user"]
    recorder = Recorder(stand_ins)
    probe = recorder.ask("probe", "probe.sh", BACKEND.probe.query())
    backend = BACKEND if probe is None else BACKEND.for_probe(probe)
    tables = {
        stem: recorder.ask(stem, word_file, query)
        for stem, word_file, query in case_questions(backend, user)
    }
    for stem in ("jobs-me", "jobs-mine"):
        for question in host_questions(backend, stem, tables[stem] and tables[stem].table):
            recorder.ask(*question)
    asked: set[str] = set()
    for stem, in_queue in (("jobs-all-ended", True), ("jobs-mine", True), ("history-all", False)):
        for row in fetch_rows(tables[stem])[: DETAILED.get(scene, 0)]:
            if row["id"] not in asked:
                asked.add(row["id"])
                for question in job_questions(backend, row, in_queue=in_queue):
                    recorder.ask(*question)
    directory = CASES / scene
    shutil.rmtree(directory, ignore_errors=True)
    about, clock = settings["about"], settings["clock"]
    write_case(directory, about, user, clock, recorder.commands.values(), backend=BACKEND.name)
    write_expected(directory)
    return directory


def main() -> None:
    every = sorted(file.parent.name for file in SCENES.glob("*/scene.json"))
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.record_pbs_case", description=__doc__
    )
    parser.add_argument("scenes", nargs="*", metavar="SCENE", default=[], help=", ".join(every))
    scenes = parser.parse_args().scenes or every
    with (
        tempfile.TemporaryDirectory(prefix="hpcdash-pbs-") as folder,
        ThreadPoolExecutor(os.cpu_count()) as pool,
    ):
        for directory in pool.map(partial(record_scene, folder=Path(folder)), scenes):
            print(directory)


if __name__ == "__main__":
    main()
