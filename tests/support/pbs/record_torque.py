"""Asks the commands of the made-up Torque all that hpcdash asks, and keeps it as
fixtures/pbs/torque-6.1/torque.

    python -m tests.support.pbs.record_torque

Writes the lists as printed anew, too. Read the difference of expected.json before keeping it.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hpcdash.backends.pbs.backend import BACKEND
from tests.support.pbs.asker import Asker
from tests.support.pbs.torque import printed
from tests.support.pbs.torque_site import PRINTED, USER, TorqueSite
from tests.support.pbs.torque_standin import CLOCK
from tests.support.record_case import write_case, write_expected
from tests.support.record_pbs_case import case_questions, fetch_rows, host_questions, job_questions

CASE = PRINTED.parent / "torque"
ABOUT = (
    "a Torque 6.1, made up from its formats' definition: two people, an array, GPUs, jobs "
    "that ended in every way"
)


def record(folder: Path) -> None:
    """Write the case from commands installed in `folder`."""
    site = TorqueSite.install(folder / "site")
    recorder = Asker(site.run, str(site.path), "/usr/local/bin")
    probe = recorder.ask("probe", "probe.sh", BACKEND.probe.query())
    backend = BACKEND.for_probe(probe)
    tables = {
        stem: recorder.ask(stem, file, query) for stem, file, query in case_questions(backend, USER)
    }
    for question in host_questions(backend, "jobs-mine", tables["jobs-mine"].table):
        recorder.ask(*question)
    asked: set[str] = set()
    for stem, in_queue in (("jobs-all-ended", True), ("history-all", False)):
        for row in fetch_rows(tables[stem]):
            if row["id"] not in asked:
                asked.add(row["id"])
                for question in job_questions(backend, row, in_queue=in_queue):
                    recorder.ask(*question)
    shutil.rmtree(CASE, ignore_errors=True)
    write_case(CASE, ABOUT, USER, CLOCK, recorder.commands.values(), backend=BACKEND.name)
    write_expected(CASE)


def main() -> None:
    PRINTED.mkdir(parents=True, exist_ok=True)
    for name, raw in printed().items():
        (PRINTED / name).write_bytes(raw)
    with tempfile.TemporaryDirectory(prefix="hpcdash-torque-") as folder:
        record(Path(folder))
    print(CASE)


if __name__ == "__main__":
    main()
