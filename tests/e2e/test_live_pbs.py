"""Requests on a real PBS: what it takes, where it puts them, what their commands have, and how they
end.

HPCDASH_PBS_LAB names an ssh configuration whose first Host is an account on a PBS with two free
hosts of two CPUs or more, which share the account's home and write logs at once ($usecp).
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec.structs import replace

from hpcdash.backends.pbs.backend import BACKEND
from hpcdash.backends.submissions import Submission
from hpcdash.domain.states import ENDED_BADLY
from hpcdash.services.cluster.clock import SystemClock
from hpcdash.services.cluster.queries import CommandBudget
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.jobs.actions import Actions
from hpcdash.services.jobs.triage import fetch_tasks
from hpcdash.services.state.journal import Journal
from hpcdash.services.state.submitted_scripts import ScriptStore
from hpcdash.services.submit.launches import Launches
from hpcdash.services.submit.resubmission import (
    ResubmissionPlan,
    plan_again,
    resubmissions,
    submit_parts,
)
from hpcdash.services.submit.submission import plan_submission
from hpcdash.transport.ssh import SshTransport
from tests.backends.pbs.test_pbs_stand_ins import QSUB_REFUSALS
from tests.support.person import Person
from tests.support.program import Program, home_with
from tests.support.waiting import wait_until

LAB = "HPCDASH_PBS_LAB"
SECONDS = 60.0


@dataclass(slots=True)
class RealPbs:
    """An account on a PBS, and hpcdash of the person who has it; `submitted` are the ids of this
    test's jobs.
    """

    program: Program
    config: Path
    host: str
    submitted: list[str] = field(default_factory=list)

    def run(self, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        argv = ("ssh", "-F", str(self.config), self.host, shlex.join(words))
        return subprocess.run(argv, input=stdin, capture_output=True, text=True, check=False)

    def submit(self, **request: object) -> tuple[str, str]:
        """(the job's id, its folder) of a request of CPUs for five minutes."""
        asked = {"slot_type": "cpu", "time": "5m", **request}
        file = self.program.home / "request.toml"
        file.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in asked.items()))
        done = self.program("submit", str(file), "--format", "json")
        assert done.status == 0, done
        answer = json.loads(done.stdout)
        self.submitted.append(answer["job_id"])
        return answer["job_id"], answer["folder"]

    def attributes(self, job_id: str) -> dict[str, str]:
        text = self.run("qstat", "-x", "-f", "-w", job_id).stdout
        return dict(re.findall(r"(?m)^    (\S+) = (.*)$", text))

    def read(self, path: str) -> str:
        return self.run("cat", path).stdout

    def ended(self, job_id: str) -> dict[str, str]:
        """Its attributes, once it has."""
        wait_until(f"{job_id} to end", lambda: self.attributes(job_id).get("job_state") == "F")
        return self.attributes(job_id)

    def says(self, path: str, words: str) -> None:
        wait_until(f"{words!r} in {path}", lambda: words in self.read(path))


@pytest.fixture
def pbs(tmp_path: Path) -> Iterator[RealPbs]:
    named = os.environ.get(LAB)
    if not named:
        pytest.skip(f"{LAB} names no ssh configuration of a running PBS")
    config = Path(named)
    host = re.search(r"(?m)^Host\s+(\S+)", config.read_text())
    assert host is not None, f"{config} has no Host"
    home = home_with(tmp_path / "home", config.read_text())
    there = RealPbs(Program(home, ("--ssh", host[1])), config, host[1])
    yield there
    if there.submitted:
        there.run("qdel", "-x", *there.submitted)


ON_TWO = {"slots": 2, "slots_per_node": 1}


def test_each_task_of_an_array_runs(pbs: RealPbs) -> None:
    job, folder = pbs.submit(command='echo "task $PBS_ARRAY_INDEX of $PBS_ARRAY_ID"', array="1-5:2")
    assert pbs.ended(job)["Exit_status"] == "0"
    assert [pbs.read(f"{folder}/job.{task}.out") for task in (1, 3, 5)] == [
        f"task {at} of {job}\n" for at in (1, 3, 5)
    ]


def test_a_node_of_its_own_for_each_part_and_the_file_of_all_on_the_first(pbs: RealPbs) -> None:
    job, folder = pbs.submit(
        command='echo "$NODE_RANK $(hostname) $MASTER_ADDR $(sort -u "$PBS_NODEFILE" | wc -l)"',
        **ON_TWO,
    )
    attributes = pbs.ended(job)
    first, second = (line.split() for line in sorted(pbs.read(f"{folder}/job.out").splitlines()))
    assert attributes["Resource_List.place"] == "scatter"
    assert (first[0], second[0]) == ("0", "1")
    assert first[1] != second[1]
    assert first[2] == second[2] == first[1]
    assert first[3] == "2"


def test_slots_that_are_not_counted_a_node_may_share_one(pbs: RealPbs) -> None:
    job, folder = pbs.submit(command='echo "$NODE_SLOTS/$NUM_SLOTS"', slots=2)
    assert pbs.ended(job)["Resource_List.place"] == "free"
    assert {line.partition("/")[2] for line in pbs.read(f"{folder}/job.out").splitlines()} == {"2"}


def test_the_command_has_the_path_and_name_of_a_login_and_the_request_s_variables(
    pbs: RealPbs,
) -> None:
    value = 'it\'s $HOME "q" `x` \\ ,;'
    file = pbs.program.home / "request.toml"
    file.write_text(
        "command = '''printenv A USER; type -P qstat'''\nslot_type = 'cpu'\ntime = '5m'\n"
        f"[environment]\nA = {json.dumps(value)}\n"
    )
    done = pbs.program("submit", str(file), "--format", "json")
    answer = json.loads(done.stdout)
    pbs.submitted.append(answer["job_id"])
    assert pbs.ended(answer["job_id"])["Exit_status"] == "0"
    said = pbs.read(f"{answer['folder']}/job.out").splitlines()
    assert said[:2] == [value, pbs.run("id", "-un").stdout.strip()]
    assert said[2].endswith("/qstat")


def test_attributes_place_and_files_are_as_asked_for_and_the_log_is_read_while_it_runs(
    pbs: RealPbs,
) -> None:
    group = pbs.run("id", "-gn").stdout.strip()
    job, folder = pbs.submit(
        command="echo begun; umask; sleep 300",
        place="excl",
        attributes=["umask=027", f"group_list={group}"],
        extra_args=["-l", "select=1:mem=10mb", "-m n"],
        **ON_TWO,
    )
    pbs.says(f"{folder}/job.out", "begun")
    attributes = pbs.attributes(job)
    assert attributes["job_state"] == "R"
    assert (attributes["umask"], attributes["group_list"], attributes["Keep_Files"]) == (
        "27",
        group,
        "oed",
    )
    assert (attributes["Resource_List.place"], attributes["Mail_Points"]) == ("scatter:excl", "n")
    assert attributes["Resource_List.select"] == "2:ncpus=1:mem=10mb"
    assert "begun" in pbs.program("log", job).text


def test_commands_on_all_hosts_save_once_when_their_job_is_cancelled(pbs: RealPbs) -> None:
    saves = (
        "trap 'echo asked $NODE_RANK; sleep 2; echo saved $NODE_RANK; exit' TERM; echo begun "
        "$NODE_RANK"
    )
    job, folder = pbs.submit(command=f"{saves}\nwhile :; do sleep 1 & wait $!; done", **ON_TWO)
    for rank in (0, 1):
        pbs.says(f"{folder}/job.out", f"begun {rank}")
    assert pbs.program("cancel", job, "--yes").status == 0
    pbs.ended(job)
    said = pbs.read(f"{folder}/job.out").splitlines()
    assert sorted(line for line in said if "begun" not in line) == [
        "asked 0",
        "asked 1",
        "saved 0",
        "saved 1",
    ]


def test_one_host_that_fails_ends_the_job_with_its_status(pbs: RealPbs) -> None:
    job, folder = pbs.submit(command="[ $NODE_RANK = 1 ] && exit 7; sleep 300", **ON_TWO)
    assert pbs.ended(job)["Exit_status"] == "7"
    assert "a command on a host ended with 7: all are ended" in pbs.read(f"{folder}/job.err")


def test_a_chain_runs_one_after_the_other(pbs: RealPbs) -> None:
    file = pbs.program.home / "request.toml"
    file.write_text('command = "true"\nslot_type = "cpu"\ntime = "5m"\n')
    done = pbs.program("submit", str(file), "--chain", "3")
    pbs.submitted += done.text.split()
    assert len(pbs.submitted) == 3, done
    assert [pbs.ended(job)["Exit_status"] for job in pbs.submitted] == ["0", "0", "0"]


def test_a_script_without_an_interpreter_is_taken(pbs: RealPbs) -> None:
    file = pbs.program.home / "plain.sh"
    file.write_text("exit 3\n")
    done = pbs.program("submit", str(file))
    pbs.submitted.append(done.text.strip())
    assert pbs.ended(pbs.submitted[0])["Exit_status"] == "3"


def test_it_refuses_what_the_stand_in_refuses_in_the_same_words(pbs: RealPbs) -> None:
    pbs.run("sh", "-c", "cat > hpcdash-test-ok.sh", stdin="true\n")
    try:
        for words, status, said in QSUB_REFUSALS:
            refused = pbs.run("qsub", "-h", *words, "hpcdash-test-ok.sh")
            pbs.submitted += refused.stdout.split()
            assert (refused.returncode, refused.stderr.split("\n")[0]) == (status, said), words
    finally:
        pbs.run("rm", "-f", "hpcdash-test-ok.sh")


# -- tasks that failed here and there

FAILING = """#!/bin/bash
cd "$FOLDER" || exit
if [ -e again ]; then echo "$(date +%s.%N) begins" >> times; sleep 2; echo "$(date +%s.%N) ends" >> times; exit 0; fi
case $PBS_ARRAY_INDEX in 3|4|6|9|12) exit 1;; esac
"""


@pytest.fixture
async def store(pbs: RealPbs, tmp_path: Path) -> AsyncIterator[ClusterStore]:
    transport = SshTransport(pbs.host, Person(), config_path=pbs.config)
    budget = CommandBudget(10_000)
    scripts = ScriptStore(tmp_path / "scripts")
    opened = ClusterStore(
        "lab", transport, (BACKEND,), clock=SystemClock(), budget=budget, scripts=scripts
    )
    try:
        await opened.open()
        yield opened
    finally:
        await opened.close()
        await transport.close()


async def test_scattered_failures_run_again_alone_and_no_more_at_once_than_before(
    pbs: RealPbs, store: ClusterStore, tmp_path: Path
) -> None:
    folder = f"scattered-{tmp_path.name}"
    pbs.run("sh", "-c", f"rm -rf {folder} && mkdir {folder}")
    home = pbs.run("pwd").stdout.strip()
    options = (
        "-l",
        "walltime=60",
        "-j",
        "oe",
        "-o",
        f"{home}/{folder}/",
        "-v",
        f"FOLDER={home}/{folder}",
    )
    journal = Journal(tmp_path / "journal")
    actions = Actions(store, journal)
    submitted = plan_submission(
        store, Submission(FAILING.encode(), "scattered", options, array="1-12%2")
    )
    (outcome,) = (await actions.run(submitted.plan)).outcomes
    job = outcome.new_job
    pbs.submitted.append(job)
    pbs.ended(job)
    pbs.run("touch", f"{folder}/again")
    failed = [row for row in (await fetch_tasks(store, job)).ended if row["state"] in ENDED_BADLY]
    again = await plan_again(store, resubmissions(failed), journal=journal)
    assert isinstance(again, ResubmissionPlan)
    number, server = job.split("[]")
    assert again.plan.parts == (f"{number}[3-12:3]{server}", f"{number}[4]{server}")

    # The program is killed after the first part was sent.
    cut = replace(again, plan=replace(again.plan, commands=again.plan.commands[:1]))
    (first,) = await submit_parts(cut, Launches(store), actions)
    rest = await plan_again(store, resubmissions(failed), journal=journal)
    assert isinstance(rest, ResubmissionPlan)
    assert [command.job_ids for command in rest.plan.commands] == [(f"{number}[4]{server}",)]
    assert rest.after == first.new_job
    (second,) = await submit_parts(rest, Launches(store), actions)

    jobs = (first.new_job, second.new_job)
    pbs.submitted += jobs
    for one in jobs:
        pbs.ended(one)
    assert [pbs.attributes(one)["array_indices_submitted"] for one in jobs] == ["3-12:3", "4-5:2"]
    assert [pbs.attributes(one)["max_run_subjobs"] for one in jobs] == ["2", "2"]
    running = most = begun = 0
    for line in sorted(pbs.read(f"{home}/{folder}/times").splitlines()):
        begun += line.endswith("begins")
        running += 1 if line.endswith("begins") else -1
        most = max(most, running)
    assert (begun, most) == (5, 2)
    # Nothing is missing: once more means all of them.
    assert len((await plan_again(store, resubmissions(failed), journal=journal)).plan.commands) == 2
    pbs.run("rm", "-rf", folder)
