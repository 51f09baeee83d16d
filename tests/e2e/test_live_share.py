"""A pool shared on the real Slurm, between alice, bob and carol, by a coordinator with an account
of its own.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support.shared_pool import SharedPool
from tests.support.slurm import SlurmLab
from tests.support.sudo_rules import SudoSite, sudo_site, why_no_sudo
from tests.support.waiting import wait_until

# A machine that others work on takes its time.
# All five nodes, for those of one account.
QUEUE = ACCOUNT = "staff"
CONFIG = """
[launch]
storage_root = "{root}"
launch_program = "{program}"
[share.lab]
nodes = 5
queue = "staff"
poll_seconds = 0.3
grace_seconds = {grace}
start_seconds = 20
retry_seconds = 5
coordinator = "{coordinator}"
state_file = "{published}"
choosers = ["{alice}", "{bob}"]
as_owners = {as_owners}
[[share.lab.quotas]]
priority = "NORMAL"
nodes = 3
[[share.lab.quotas]]
users = ["{alice}"]
priority = "HIGH"
nodes = 4
"""
# Writes each step it takes to a log of all its runs, and where it is when it is told to suspend;
# with `every` set also at each so many steps.
TRAINING = """#!/bin/bash
cd {work} || exit
save() {{ echo $step > saved.new; mv saved.new saved; }}
step=0; [ ! -e saved ] || step=$(cat saved)
echo start >> starts
{before}
while [ ! -e enough ]; do
  step=$((step + 1)); echo $step >> steps; echo "step $step loss 0.5"; sleep 0.05
  [ $((step % ${{every:-1000000}})) != 0 ] || save
  if [ -s {launch}/suspend ] || [ -e yields ]; then
    {told}
  fi
done
"""
INTERVAL = 10
SAVES = "save; echo ready > {launch}/suspend.ready; exec sleep 600"


class Pool(SharedPool):
    """The pool `lab`, its coordinator, and what people submit to it."""

    def __init__(
        self, lab: SlurmLab, site: SudoSite, folder: Path, grace: float, *, as_owners: bool = False
    ) -> None:
        super().__init__(folder)
        self.lab, self.site = lab, site
        self.users = {"alice": site.alice, "bob": site.bob, "carol": site.outsider}
        self.owners: dict[str, str] = {}
        self.published = site.top / "published" / "lab.json"
        self.published.unlink(missing_ok=True)
        shutil.rmtree(site.home(site.launcher) / "hpcdash-state", ignore_errors=True)
        self.configure(
            CONFIG.format(
                root=site.root,
                program=site.program,
                grace=grace,
                alice=site.alice,
                bob=site.bob,
                coordinator=site.launcher,
                published=self.published,
                as_owners=str(as_owners).lower(),
            )
        )

    def configure(self, text: str) -> None:
        """The configuration of whoever coordinates, and of whoever submits."""
        self.config = text
        for account in (self.site.launcher, *self.users.values()):
            folder = self.site.home(account) / "config" / "hpcdash"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "config.toml").write_text(text)

    def argv(self, account: str, *words: str) -> tuple[str, ...]:
        home = self.site.home(account)
        variables = (
            f"HPCDASH_STATE={home}/hpcdash-state",
            f"XDG_CONFIG_HOME={home}/config",
            "LANG=C.UTF-8",
        )
        slurm = [f"{name}={value}" for name, value in self.lab.env.items()]
        program = (sys.executable, "-m", "hpcdash", "--local", *words)
        return (
            *self.site.argv_as(account),
            *variables,
            *slurm,
            "PYTHONDONTWRITEBYTECODE=1",
            *program,
        )

    def coordinator_call(self, *words: str) -> tuple[Sequence[str], Path, Mapping[str, str] | None]:
        account = self.site.launcher
        return self.argv(account, "share", *words), self.site.home(account), None

    def call_as(self, user: str, *words: str) -> subprocess.CompletedProcess[str]:
        """hpcdash as somebody who shares the pool."""
        return self.run_as(self.users[user], *words)

    def run_as(self, account: str, *words: str) -> subprocess.CompletedProcess[str]:
        argv, home = self.argv(account, *words), self.site.home(account)
        return subprocess.run(argv, capture_output=True, text=True, check=False, cwd=home)

    def work(self, name: str) -> Path:
        return self.lab.work_dir(self.users[self.owners[name]]) / name

    def add(self, name: str, *, is_hot: bool = False) -> str:
        if is_hot:
            return self.submit("alice", name, "HIGH", 3)
        return self.submit(
            {"one": "alice", "two": "bob", "three": "carol"}[name], name, "NORMAL", 2
        )

    def submit(
        self,
        user: str,
        name: str,
        priority: str,
        nodes: int = 1,
        *options: str,
        told: str = SAVES,
        before: str = "",
        launch: str | None = None,
        queue: str = QUEUE,
    ) -> str:
        """As `hpcdash submit` has it: a launch's folder, and a held job whose comment names
        both.
        """
        self.owners[name] = user
        account, work = self.users[user], self.work(name)
        work.mkdir()
        shutil.chown(work, account)
        folder = self.site.root / f"{name}-{work.stat().st_ino}"
        if launch is None:
            folder.mkdir(0o700)
            (folder / "suspend").touch(0o600)
            for path in (folder, folder / "suspend"):
                shutil.chown(path, account)
        text = TRAINING.format(
            work=work, launch=folder, told=told.format(launch=folder), before=before
        )
        mark = f"--comment=hpcdash-share:{priority}:{folder if launch is None else launch}"
        asked = (
            "--hold",
            "--requeue",
            "--open-mode=append",
            f"--partition={queue}",
            f"--account={ACCOUNT}",
        )
        words = (
            *asked,
            f"--nodes={nodes}",
            "--exclusive",
            f"--output={work}/%j.out",
            f"--job-name={name}",
            mark,
        )
        return self.lab.submit(account, *words, *options, script=text)

    def queue(self) -> str:
        return self.lab.admin("squeue").stdout.decode()

    def nodes_of(self, job_id: str) -> list[str]:
        """The names of a running job's nodes."""
        found = self.lab.admin("squeue", "-h", "-o", "%N", "-j", job_id).stdout.decode().strip()
        return self.lab.admin("scontrol", "show", "hostnames", found).stdout.decode().split()


@pytest.fixture(scope="module")
def site(slurm_lab: SlurmLab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SudoSite]:
    if reason := why_no_sudo():
        pytest.skip(reason)
    with sudo_site() as site:
        if site.run_as(site.launcher, sys.executable, "-c", "import hpcdash").returncode != 0:
            pytest.skip(f"other accounts cannot run {sys.executable}")
        subprocess.run(["usermod", "-a", "-G", site.group, site.outsider], check=True)
        variables = site.top / "slurm.env"
        variables.write_text("".join(f"{name}={value}\n" for name, value in slurm_lab.env.items()))
        site.install(commands=("scontrol", "scancel"), env_file=str(variables))
        (site.top / "published").mkdir()
        shutil.chown(site.top / "published", site.launcher)
        users = ",".join((site.alice, site.bob, site.outsider, site.launcher))
        slurm_lab.admin("sacctmgr", "-i", "add", "user", users, f"account={ACCOUNT}", "cluster=lab")
        slurm_lab.admin(
            "sacctmgr", "-i", "modify", "user", site.launcher, "set", "adminlevel=operator"
        )
        for user in (site.alice, site.bob, site.outsider):
            folder = slurm_lab.work_dir(user)
            folder.mkdir()
            shutil.chown(folder, user)
        yield site
        for user in (site.alice, site.bob, site.outsider):
            shutil.rmtree(slurm_lab.work_dir(user))
        slurm_lab.admin("sacctmgr", "-i", "delete", "user", users, check=False)


@pytest.fixture
def pool(
    clean_slurm: SlurmLab, site: SudoSite, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Pool]:
    for folder in (site.root, *map(clean_slurm.work_dir, (site.alice, site.bob, site.outsider))):
        for left in folder.iterdir():
            shutil.rmtree(left)
    grace, as_owners = getattr(request, "param", (60.0, False))
    pool = Pool(clean_slurm, site, tmp_path, grace, as_owners=as_owners)
    try:
        yield pool
    finally:
        pool.kill()


@pytest.mark.parametrize("pool", [(3.0, False)], indirect=True)
def test_tasks_save_and_give_way_or_are_ended_by_force(pool: Pool) -> None:
    pool.submit("bob", "good", "NORMAL")
    told = "echo seen > {launch}/suspend.seen; sleep 300"
    pool.submit("bob", "slow", "NORMAL", told=told, before=f"every={INTERVAL}")
    # Neither looks at the command nor ends at SIGTERM.
    pool.submit("carol", "deaf", "HIGH", before="trap '' TERM", told=":")
    pool.start()
    tasks = pool.until(good="running", slow="running", deaf="running")
    # Who may not choose has AUTO, and what the operator holds its owner cannot release.
    assert (tasks["deaf"]["priority"], tasks["deaf"]["level"]) == ("AUTO", "NORMAL")
    again = pool.submit("bob", "third", "NORMAL", 2, told=":")
    pool.until(third="waiting")
    denied = pool.lab.as_user(pool.users["bob"], "scontrol", "release", again, check=False)
    assert b"denied" in denied.stderr
    # One coordinator at a time; more than the quota ever gives is refused at once.
    second = pool.call("run", "lab", "--once")
    assert (
        second.returncode,
        "this pool already has a coordinator: process " in second.stderr,
    ) == (
        1,
        True,
    )
    large = pool.submit("alice", "large", "HIGH", 5)
    tasks = pool.until(large="refused")
    assert (
        tasks["large"]["why"] == f"requests 5 nodes, but {pool.users['alice']}'s quota at HIGH is 4"
    )
    pool.lab.wait_state(large, "CANCELLED")
    # Four of five nodes: two of the three that run give way, the last that came first.
    pool.submit("alice", "hot", "HIGH", 4)
    tasks = pool.until(hot="running", slow="waiting", deaf="waiting", good="running")
    assert {name: tasks[name]["suspended"] for name in ("good", "slow", "deaf")} == {
        "good": 0,
        "slow": 1,
        "deaf": 1,
    }
    assert [tasks[name]["runs"][0]["how"] for name in ("slow", "deaf")] == ["slow", "ignored"]
    for name in ("slow", "deaf"):
        assert pool.lab.job_states(tasks[name]["id"]) == {"PENDING"}
    # What was put back cannot be released by its owner either, and a person's stop is for good.
    denied = pool.lab.as_user(
        pool.users["bob"], "scontrol", "release", tasks["slow"]["id"], check=False
    )
    assert b"denied" in denied.stderr
    pool.lab.as_user(pool.users["carol"], "scancel", tasks["deaf"]["id"])
    # What an owner asks for goes through Slurm, which nobody else can do for them. The node is the
    # next one's.
    good = tasks["good"]["id"]
    other = pool.call_as("carol", "share", "stop", good, "--yes")
    assert f"job {good} belongs to {pool.users['bob']}" in other.stderr
    assert pool.call_as("bob", "share", "suspend", good, "--yes").returncode == 0
    pool.until(good="paused", slow="running")
    assert pool.call_as("bob", "share", "resume", good, "--yes").returncode == 0
    pool.enough("hot", "slow", "good")
    pool.until(hot="succeeded", deaf="stopped", good="succeeded", slow="succeeded", third="running")
    # A person's stop ends a task for good while it is given time to save, too.
    pool.submit("alice", "hotter", "HIGH", 4)
    pool.until(third="suspending")
    pool.lab.as_user(pool.users["bob"], "scancel", again)
    pool.until(third="stopped", hotter="running")
    pool.enough("hotter")
    tasks = pool.until(third="stopped", hotter="succeeded")
    assert (len(tasks["third"]["runs"]), pool.lab.job_states(again)) == (1, {"CANCELLED"})
    pool.assert_nothing_lost("good")
    # Ended by force, it went on from what it had saved: at most one interval was done again. All
    # runs are one curve.
    steps = pool.steps("slow")
    begins = [at for at, (before, after) in enumerate(pairwise(steps), 1) if after != before + 1]
    assert (len(begins) <= 1, all(steps[at - 1] - steps[at] < INTERVAL for at in begins)) == (
        True,
        True,
    ), steps
    for name in ("good", "slow"):
        read = pool.call_as("bob", "metrics", tasks[name]["id"], "--format", "csv")
        _, *rows = read.stdout.splitlines()
        assert [int(row.partition(",")[0]) for row in rows] == sorted(set(pool.steps(name))), read
    assert all(
        run["started_at"] and run["ended_at"] for task in tasks.values() for run in task["runs"]
    )
    # A job that is no task starts all the same: it is named.
    carol = pool.users["carol"]
    where = (f"--partition={QUEUE}", f"--account={ACCOUNT}", "--output=/dev/null")
    other = pool.lab.submit(carol, *where, script="#!/bin/sh\nsleep 100\n")
    told = f"not tasks of the pool: job {other} of {carol} on 1 node"
    wait_until("it is named", lambda: told in pool.call("show").stdout)


def test_a_coordinator_that_is_killed_goes_on(pool: Pool) -> None:
    pool.kill_often(3, (0.5, 2.5))


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_coordinator_that_is_killed_at_fifty_moments_loses_nothing_and_does_nothing_twice(
    pool: Pool,
) -> None:
    pool.kill_often(50, (1.0, 4.0))


@pytest.mark.long
def test_tasks_outlive_the_controller_and_a_drained_node(pool: Pool) -> None:
    pool.submit("bob", "first", "NORMAL", 3)
    pool.submit("carol", "second", "NORMAL", 2)
    pool.start()
    tasks = pool.until(first="running", second="running")
    with pool.lab.controller_down():
        wait_until("the coordinator to say so", lambda: "trying again" in pool.log.read_text())
    # The node is the second's until that ends; what waits for it then does not get it.
    node = pool.nodes_of(tasks["second"]["id"])[0]
    pool.lab.admin("scontrol", "update", f"nodename={node}", "state=drain", "reason=test")
    pool.submit("alice", "third", "NORMAL", 2)
    pool.until(third="waiting", first="running", second="running")
    pool.enough("second")
    pool.until(second="succeeded")
    pool.submit("carol", "fourth", "NORMAL")
    # Four of five nodes are left, and three are the first's: who came first waits, and so do those
    # behind.
    pool.until(fourth="waiting", third="waiting", first="running")
    pool.lab.admin("scontrol", "update", f"nodename={node}", "state=resume")
    pool.until(third="running", first="running")
    pool.enough("first", "third", "fourth")
    pool.until(first="succeeded", second="succeeded", third="succeeded", fourth="succeeded")
    pool.assert_nothing_lost("first", "second", "third", "fourth")
    # Nothing was to start on the node while it was drained.
    assert "did not start" not in pool.log.read_text()


@pytest.mark.parametrize("pool", [(1.0, False)], indirect=True)
def test_what_others_write_gains_them_nothing(pool: Pool) -> None:
    victim = pool.submit("alice", "victim", "NORMAL")
    folder = next(path for path in pool.site.root.iterdir() if path.name.startswith("victim-"))
    elsewhere = pool.log.parent / "elsewhere"
    elsewhere.touch()
    # The folder of someone else, one that is no launch, one that leads out by a name, and a link
    # for the command.
    pool.submit("bob", "thief", "NORMAL", launch=str(folder))
    pool.submit(
        "bob", "outside", "NORMAL", launch=str(pool.lab.work_dir(pool.users["bob"]) / "outside")
    )
    pool.submit("bob", "leading", "NORMAL", launch=f"{pool.site.root}/../launches/x")
    linked = pool.site.root / "linked"
    linked.mkdir(0o700)
    (linked / "suspend").symlink_to(elsewhere)
    shutil.chown(linked, pool.users["carol"])
    pool.submit("carol", "linked", "NORMAL", launch=str(linked))
    # More nodes than one number, an array, a job that is not put back, or has no nodes of its own:
    # no tasks.
    pool.submit("carol", "range", "NORMAL", 1, "--nodes=1-4")
    pool.submit("carol", "array", "NORMAL", 1, "--array=1-2")
    pool.submit("carol", "stays", "NORMAL", 1, "--no-requeue")
    pool.submit("carol", "shares", "NORMAL", 1, "--oversubscribe")
    hostile = "x';touch ${HOME}/x;'\x1b[31m"
    named = pool.submit(
        "carol", "odd", "NORMAL", 1, f"--job-name={hostile}", "--comment=hpcdash-share:ROOT:/x\n;"
    )
    # A name of a task's own does not keep the others from theirs; one that is released already is
    # put back.
    odd = pool.submit("carol", "weird", "NORMAL", 1, f"--job-name=JobId=1 {hostile}")
    pool.lab.as_user(pool.users["carol"], "scontrol", "release", odd)
    pool.start()
    tasks = pool.until(
        victim="running",
        thief="running",
        outside="running",
        range="refused",
        stays="refused",
        shares="refused",
        **{f"JobId=1 {hostile}": "waiting"},
    )
    pool.lab.wait_state(odd, "PENDING")
    assert (
        tasks["range"]["why"]
        == "the job requests 1 to 4 nodes, but a task needs a fixed number (--nodes=1)"
    )
    assert "--no-requeue" in tasks["stays"]["why"]
    assert "--exclusive" in tasks["shares"]["why"]
    # Nor can its owner have others share the nodes later.
    update = ("scontrol", "update", f"jobid={odd}", "oversubscribe=yes")
    assert b"denied" in pool.lab.as_user(pool.users["carol"], *update, check=False).stderr
    assert {one["user"] for one in tasks.values() if one["name"] in ("thief", "outside")} == {
        pool.users["bob"]
    }
    # Not one of the pool's priorities: nobody's task, and left as it is.
    assert pool.lab.job_states(named) == {"PENDING"}
    assert hostile not in tasks
    # A command for the thief is written neither to the victim's folder nor through a link.
    pool.submit("alice", "hot", "HIGH", 4)
    pool.until(hot="running", thief="waiting", victim="running")
    assert (folder / "suspend").read_bytes() == b""
    assert elsewhere.read_bytes() == b""
    assert pool.lab.job_states(victim) == {"RUNNING"}


OTHER_NODE = """
if [ ! $HPCDASH_SUSPEND ]; then
  while [ ! -e {work}/enough ]; do
    [ ! -e {work}/yielded ] || {{
      rm {work}/yielded; exec {python} -c 'from hpcdash.job.suspend import go_suspend; go_suspend()'
    }}
    sleep 0.1
  done
  exit
fi
"""
KINDS = """
[share.named]
nodes = 2
node_list = "n[2-3]"
queue = "staff"
[share.reserved]
nodes = 2
reservation = "{reservation}"
[share.urgent]
nodes = 2
qos = "high"
"""
QUOTAS = """
[[share.{name}.quotas]]
priority = "LOW"
nodes = 2
[[share.{name}.quotas]]
priority = "NORMAL"
nodes = 2
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "nodes"), [("named", {"n2", "n3"}), ("reserved", {"n1", "g1"}), ("urgent", None)]
)
def test_a_pool_is_a_list_of_nodes_a_reservation_or_a_qos_and_is_coordinated_by_cron(
    pool: Pool, name: str, nodes: set[str] | None
) -> None:
    lab, site = pool.lab, pool.site
    reservation = f"{site.prefix}-r"
    text = pool.config + KINDS.format(reservation=reservation)
    pool.published = site.top / "published" / f"{name}.json"
    settings = (
        f'coordinator = "{site.launcher}"\nstate_file = "{pool.published}"\nchoosers = ["*"]\n'
    )
    text = text.replace(
        f"[share.{name}]\n", f"[share.{name}]\n{settings}grace_seconds = 20\nretry_seconds = 5\n"
    )
    pool.configure(text + QUOTAS.format(name=name))
    users = ",".join(pool.users.values())
    lab.admin("sacctmgr", "-i", "modify", "user", "where", f"name={users}", "set", "qos+=high")
    lab.admin("scontrol", "create", f"reservation={reservation}", "starttime=now", "duration=60", "nodes=n1,g1",
              f"users={users}")  # fmt: skip
    try:
        # What is submitted by its pool's name goes where that is; more than its quota ever gives
        # does not.
        pool.owners["low"] = "alice"
        pool.work("low").mkdir()
        shutil.chown(pool.work("low"), pool.users["alice"])
        folder = "${HPCDASH_SUSPEND%/*}"
        told = (
            f"[ ! -e yields ] || {{ save; mv yields yielded; exec sleep 600; }}; "
            f"{SAVES.format(launch=folder)}"
        )
        script = TRAINING.format(work=pool.work("low"), launch=folder, told=told, before="")
        # The other node waits for the end, or suspends the task once that has saved.
        others = OTHER_NODE.format(work=pool.work("low"), python=sys.executable)
        request = site.home(pool.users["alice"]) / "REQUEST.toml"
        fields = {
            "name": "low",
            "pool": name,
            "share": "LOW",
            "slot_type": "cpu",
            "slots_per_node": 1,
        }
        fields |= {"account": ACCOUNT, "labels": ["nlp", "7B"]}
        fields |= {"command": f"{others}\n{script}"} | ({} if name == "named" else {"queue": QUEUE})
        assert pool.call("run", name, "--once").returncode == 0
        for slots, status, words in (
            (3, 2, f"pool {name} rejects this: requests 3 nodes"),
            (2, 0, ""),
        ):
            lines = (
                f"{key} = {json.dumps(value)}\n"
                for key, value in {**fields, "slots": slots}.items()
            )
            request.write_text("".join(lines))
            submitted = pool.call_as("alice", "submit", str(request), "--yes")
            assert (submitted.returncode, words in submitted.stderr) == (status, True), submitted

        def come_about(
            what: Callable[[], bool] = lambda: True, **wanted: str
        ) -> dict[str, dict[str, Any]]:
            wait_until(
                f"{wanted}",
                lambda: (
                    pool.call("run", name, "--once").returncode == 0
                    and wanted.items() <= pool.states().items()
                    and what()
                ),
                lambda: f"{pool.tasks()}\n{pool.queue()}",
            )
            return pool.tasks()

        tasks = come_about(low="running")
        assert tasks["low"]["labels"] == ["nlp", "7B"]
        if nodes is not None:
            assert set(pool.nodes_of(tasks["low"]["id"])) == nodes
        # It suspends itself from its second node, and has its turn again.
        (pool.work("low") / "yields").touch()
        come_about(
            lambda: [run["how"] for run in pool.tasks()["low"]["runs"]] == ["yielded", ""],
            low="running",
        )
        options = {
            "named": (),
            "reserved": (f"--reservation={reservation}",),
            "urgent": ("--qos=high",),
        }
        pool.submit("bob", "high", "NORMAL+labels=nlp", 1, *options[name])
        tasks = come_about(high="running", low="waiting")
        assert [run["how"] for run in tasks["low"]["runs"]] == ["yielded", "suspended"]
        if nodes is not None:
            assert set(pool.nodes_of(tasks["high"]["id"])) < nodes
        if name == "reserved":
            # What has left the reservation waits, and is in its turn again once it is back.
            low = tasks["low"]["id"]
            lab.admin("scontrol", "update", f"jobid={low}", "reservation=")
            come_about(lambda: "not in res" in pool.tasks()["low"]["why"], low="waiting")
            lab.admin("scontrol", "update", f"jobid={low}", f"reservation={reservation}")
        shown = pool.call_as("carol", "share", "show", name, "--filter", "labels:7b state:waiting")
        assert (shown.returncode, "low" in shown.stdout, "high" in shown.stdout) == (
            0,
            True,
            False,
        ), shown
        # Raised, it has both nodes again: it came first.
        raised = pool.call_as(
            "alice", "share", "raise", tasks["low"]["id"], "--pool", name, "--yes"
        )
        assert (raised.returncode, f"job {tasks['high']['id']} (high)" in raised.stderr) == (
            0,
            True,
        ), raised
        come_about(low="running", high="waiting")
        pool.enough("high", "low")
        come_about(high="succeeded", low="succeeded")
        pool.assert_nothing_lost("high", "low")
    finally:
        for user in pool.users.values():
            lab.admin("scancel", f"--user={user}")
        delete = ("scontrol", "delete", f"reservation={reservation}")
        wait_until(
            "the reservation to be deleted", lambda: lab.admin(*delete, check=False).returncode == 0
        )


@pytest.mark.long
@pytest.mark.parametrize("pool", [(3.0, True)], indirect=True)
def test_scontrol_runs_as_each_owner_where_the_coordinator_is_no_operator(pool: Pool) -> None:
    pool.lab.admin("sacctmgr", "-i", "modify", "user", pool.site.launcher, "set", "adminlevel=none")
    try:
        first = pool.submit("bob", "first", "NORMAL", 3)
        pool.submit("carol", "second", "NORMAL", 2)
        pool.start()
        pool.until(first="running", second="running")
        third = pool.submit("bob", "third", "NORMAL", 1)
        pool.until(third="waiting")
        # Nobody can keep an owner from releasing it: it is put back, and may save as any other.
        pool.submit("alice", "hot", "HIGH", 2)
        pool.until(hot="running", second="waiting", first="running")
        pool.lab.as_user(pool.users["carol"], "scontrol", "release", pool.tasks()["second"]["id"])
        pool.lab.as_user(pool.users["bob"], "scontrol", "release", third)
        pool.enough("hot")
        pool.until(hot="succeeded", second="running", first="running", third="waiting")
        pool.lab.as_user(pool.users["bob"], "scancel", first)
        pool.until(first="stopped", third="running")
        pool.enough("second", "third")
        pool.until(second="succeeded", third="succeeded")
        pool.assert_nothing_lost("second", "third")
    finally:
        pool.lab.admin(
            "sacctmgr", "-i", "modify", "user", pool.site.launcher, "set", "adminlevel=operator"
        )


@pytest.mark.long
@pytest.mark.parametrize("pool", [(20.0, False)], indirect=True)
def test_a_job_that_submits_itself_again_coordinates_and_its_successor_goes_on(pool: Pool) -> None:
    site, account = pool.site, pool.site.launcher
    folder = site.home(account) / "cron"
    (folder / "cron.1m").mkdir(parents=True)
    script = folder / "cron.1m" / "pool"
    argv, _, _ = pool.coordinator_call("run", "lab", "--for", "45s")
    script.write_text(f"#!/bin/sh\nexec {shlex.join(argv[argv.index('env') :])}\n")
    script.chmod(0o755)
    for path in (folder, folder / "cron.1m", script):
        shutil.chown(path, account)
    cron = (
        "cron",
        "--every",
        "1m",
        "--folder",
        str(folder),
        f"--option=--partition={QUEUE}",
        "--option=--mem=200",
    )
    installed = pool.run_as(account, *cron, "--install")
    assert installed.returncode == 0, installed
    try:
        # Its own node is not the tasks'.
        pool.submit("bob", "first", "NORMAL", 2)
        pool.submit("carol", "second", "NORMAL", 2)
        pool.until(first="running", second="running")
        pool.submit("alice", "hot", "HIGH", 2)
        pool.until(hot="running", second="waiting")
        coordinator = json.loads(pool.published.read_text())["coordinator"]
        wait_until(
            "its successor",
            lambda: json.loads(pool.published.read_text())["coordinator"] != coordinator,
            pool.queue,
        )
        pool.enough("hot")
        pool.until(hot="succeeded", second="running")
        pool.enough("first", "second")
        pool.until(first="succeeded", second="succeeded")
        pool.assert_nothing_lost("first", "second", "hot")
    finally:
        assert pool.run_as(account, *cron, "--remove", "--yes").returncode == 0
        shutil.rmtree(folder)
