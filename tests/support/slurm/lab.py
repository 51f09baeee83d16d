"""A real Slurm of one's own on loopback: five nodes, fake GPUs, accounting, an sshd, a few
users.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tests.support.waiting import GUARD_SECONDS, wait_until

from .accounts import account_stages
from .daemons import Daemons, LabError, kill_leftovers, log_tail
from .layout import (
    DEAD_NODE,
    LIVE_NODES,
    OTHER_CLUSTER,
    OTHER_NODE,
    Settings,
    busy_ports,
    make_munge_key,
    make_ssh_keys,
    prepare_folder,
    read_record,
    short_name,
    write_configuration,
    write_other_configuration,
    write_record,
)
from .programs import (
    GRANT,
    daemon_argv,
    inside,
    mariadb_argv,
    mariadb_client_argv,
    mariadb_install_argv,
    munged_argv,
    sshd_argv,
)
from .requirements import SEARCH_PATH, chosen_root, why_no_lab

Argument = str | bytes | Path
SLEEPING_SCRIPT = "#!/bin/sh\nsleep 43200\n"
_SLURMDS = tuple(f"slurmd.{name}" for name in LIVE_NODES)
_USABLE = ("idle", "mixed", "allocated", "completing")


class SlurmLab:
    """A Slurm cluster in `run_dir`, on the 40 ports from `base_port` on.

    Needs root, and what requirements.py names.

    Nodes n1-n3 (8 CPUs), g1-g2 (8 CPUs, 4 GPUs a100) and x1 (down: it has no slurmd). Partitions
    main (default), debug, gpu, long, closed (down), staff (root only). QoS normal, low, high,
    scavenger, limited, tiny. Licenses matlab:2 and ansys:10. `accounting=False`: no slurmdbd,
    history or QoS. `empty=True`: no nodes, and a partition main without any. `shards`: how many
    parts the GPUs of each of g1 and g2 are divided into. `root`: an installed Debian whose programs
    it uses, in place of this machine's; by default HPCDASH_SLURM_ROOT. Failures raise LabError,
    with the daemon's log or the command's words.
    """

    def __init__(
        self,
        run_dir: Path | str,
        *,
        base_port: int = 17800,
        users: Sequence[str] = ("alice", "bob"),
        min_job_age: int = 300,
        extra_conf: str = "",
        max_jobs: int = 200_000,
        accounting: bool = True,
        empty: bool = False,
        shards: int = 0,
        root: str | None = None,
    ) -> None:
        self.run_dir = Path(run_dir).resolve()
        root = chosen_root() if root is None else root
        self.settings = Settings(
            base_port,
            tuple(users),
            min_job_age,
            extra_conf,
            max_jobs,
            accounting,
            empty,
            shards,
            root,
        )
        self.conf = self.run_dir / "etc" / "slurm.conf"
        self._daemons = Daemons(self.run_dir)

    @classmethod
    def attach(cls, run_dir: Path | str) -> SlurmLab:
        """The lab that another process started in `run_dir`; LabError where there is none."""
        settings = read_record(Path(run_dir))
        return cls(run_dir, **{name: getattr(settings, name) for name in Settings.__slots__})

    # What tests hand to the program under test.

    @property
    def users(self) -> tuple[str, ...]:
        return self.settings.users

    @property
    def env(self) -> dict[str, str]:
        """The variables that make Slurm's commands talk to this lab."""
        return {"SLURM_CONF": str(self.conf)}

    @property
    def ssh_config(self) -> Path:
        """An ssh client configuration with the hosts lab-alice and lab-bob, their key and the known
        host key.
        """
        return self.run_dir / "ssh" / "config"

    @property
    def ssh_identity(self) -> Path:
        return self.run_dir / "ssh" / "id_ed25519"

    @property
    def ssh_known_hosts(self) -> Path:
        return self.run_dir / "ssh" / "known_hosts"

    @property
    def ssh_port(self) -> int:
        return self.settings.ssh_port

    @property
    def tripwire(self) -> Path:
        """A file that appears when something ran a hostile job's name as a command.

        Anyone may create it.
        """
        return self.run_dir / "jobs" / "tripwire"

    @property
    def alice(self) -> str:
        """The account of the first user; the methods below take her by "alice" too."""
        return self.users[0]

    @property
    def bob(self) -> str:
        return self.users[1]

    def account(self, user: str) -> str:
        """The account of a user of the lab whose name ends so: hpcdash-test-0-alice of alice; of
        others `user`.
        """
        return next((name for name in self.users if user == short_name(name)), user)

    def work_dir(self, user: str) -> Path:
        """The folder that the user's commands run in, so where job output goes; it is the user's
        own.
        """
        return self.run_dir / "work" / short_name(user)

    # Starting and stopping.

    def start(self) -> None:
        """Bring all up, from nothing or from kept state; what already runs is left alone."""
        reason = why_no_lab(self.settings.root)
        if reason:
            raise LabError(reason)
        if self._daemons.pid("slurmctld") is None and (
            busy := busy_ports(self.settings.listening_ports)
        ):
            raise LabError(
                f"ports in use: {busy}; choose another base_port, or stop the lab that has them"
            )
        os.umask(0o022)
        prepare_folder(self.run_dir)
        write_record(self.run_dir, self.settings)
        self._make_users()
        # As `slurm-wlm 24.11.5`.
        release = self.admin("slurmd", "-V").stdout.decode().split()[-1]
        write_configuration(self.run_dir, self.settings, release)
        make_munge_key(self.run_dir)
        make_ssh_keys(self.run_dir, self.settings)
        self._start_munged()
        self._start_sshd()
        if self.settings.accounting:
            self._start_database()
            self.start_accounting()
            self._make_accounts()
        self.start_controller()
        if not self.settings.empty:
            self._start_nodes()

    def stop(self, *, wipe: bool = False) -> None:
        """End the daemons, by recorded pid, and the processes of the lab's jobs; `wipe` also
        deletes the folder.
        """
        # A controller with very many jobs takes long to save what would be deleted anyway.
        seconds = 3 if wipe else 30
        others = (f"slurmd.{OTHER_NODE}", f"slurmctld.{OTHER_CLUSTER}")
        self._daemons.stop((*_SLURMDS, "slurmctld", "sshd", *others), seconds)
        for conf in (self.conf, self.other_conf):
            kill_leftovers(self.run_dir, conf)
        self._daemons.stop(("slurmdbd",), seconds)
        self._daemons.stop(("mariadb", "munged"), seconds)
        if wipe:
            read_record(self.run_dir)
            shutil.rmtree(self.run_dir)

    def reset(self) -> None:
        """Cancel all jobs, resume all nodes and partitions, and start what was stopped; finished
        jobs stay listed.
        """
        self.thaw_controller()
        if self.settings.accounting:
            self.start_accounting()
        self.start_controller()
        for flag in (self.run_dir / "jobs").iterdir():
            flag.unlink()
        if self.settings.empty:
            return
        self._end_jobs()
        self.resume_nodes()

    def end_other_cluster_jobs(self) -> None:
        """Cancel all jobs of lab2 and wait until they ended, so that its one node is free."""
        self._end_jobs("-M", OTHER_CLUSTER)

    def resume_nodes(self) -> None:
        """Bring all nodes but x1 back from down or drained, and wait until they take jobs."""
        for name, state in self._node_states().items():
            if state not in _USABLE and name in LIVE_NODES:
                # Refused when the node came back by itself in between.
                self.admin("scontrol", "update", f"nodename={name}", "state=resume", check=False)
        self._wait_nodes()

    @property
    def other_conf(self) -> Path:
        """The configuration of the cluster lab2, once start_other_cluster has made it."""
        return self.run_dir / "etc" / OTHER_CLUSTER / "slurm.conf"

    def start_other_cluster(self) -> None:
        """Bring up the cluster lab2 beside this one, in its slurmdbd: one node m1, a partition
        main, the same users.

        Its jobs have the numbers that this one's have, too.
        """
        shown = self.admin("scontrol", "show", "config").stdout.decode()
        found = re.search(r"(?m)^NEXT_JOB_ID\s*=\s*([0-9]+)", shown)
        write_other_configuration(
            self.run_dir, self.settings, self.other_conf, found[1] if found else "1"
        )
        if OTHER_CLUSTER not in self._lines(
            "sacctmgr", "-n", "-P", "show", "cluster", "format=cluster"
        ):
            self.admin("sacctmgr", "-i", "-Q", "add", "cluster", OTHER_CLUSTER)
            users = ",".join((*self.users, "root"))
            where = (f"cluster={OTHER_CLUSTER}", "account=physics", "defaultaccount=physics")
            self.admin(
                "sacctmgr", "-i", "-Q", "add", "account", "physics", f"cluster={OTHER_CLUSTER}"
            )
            self.admin("sacctmgr", "-i", "-Q", "add", "user", users, *where)
        env = {**self._daemon_env, "SLURM_CONF": str(self.other_conf)}
        self._start(
            f"slurmctld.{OTHER_CLUSTER}", ["slurmctld", "-D", "-f", str(self.other_conf)], env
        )
        self._start(
            f"slurmd.{OTHER_NODE}",
            ["slurmd", "-D", "-N", OTHER_NODE, "-f", str(self.other_conf)],
            env,
        )
        known = ("sinfo", "-h", "-M", OTHER_CLUSTER, "-o", "%T")
        logs = (self.run_dir / "log" / f"slurmctld.{OTHER_CLUSTER}.log",)
        wait_until(
            "the other cluster's node to take jobs",
            lambda: self.admin(*known, check=False).stdout.decode().split()[-1:] == ["idle"],
            lambda: log_tail(*logs),
        )

    # Trouble on demand.

    def start_controller(self) -> None:
        if self._daemons.pid("slurmctld") is not None:
            return
        self._start("slurmctld", ["slurmctld", "-D", "-f", str(self.conf)])
        self._daemons.wait_ready("slurmctld", lambda: self._answers("scontrol", "ping"))

    def stop_controller(self) -> None:
        self._daemons.stop(("slurmctld",))

    def freeze_controller(self) -> None:
        """SIGSTOP the controller: connections are accepted and never answered."""
        self._daemons.send("slurmctld", signal.SIGSTOP)

    def thaw_controller(self) -> None:
        self._daemons.send("slurmctld", signal.SIGCONT)

    def start_accounting(self) -> None:
        if self._daemons.pid("slurmdbd") is not None:
            return
        self._start("slurmdbd", ["slurmdbd", "-D"])
        self._daemons.wait_ready(
            "slurmdbd", lambda: self._answers("sacctmgr", "-n", "show", "cluster")
        )

    def stop_accounting(self) -> None:
        self._daemons.stop(("slurmdbd",))

    @contextmanager
    def controller_down(self) -> Iterator[None]:
        """No slurmctld inside, running again afterwards."""
        self.stop_controller()
        try:
            yield
        finally:
            self.start_controller()

    @contextmanager
    def controller_hung(self) -> Iterator[None]:
        """A slurmctld that does not answer inside, thawed afterwards."""
        self.freeze_controller()
        try:
            yield
        finally:
            self.thaw_controller()

    @contextmanager
    def accounting_down(self) -> Iterator[None]:
        """No slurmdbd inside, running again afterwards."""
        self.stop_accounting()
        try:
            yield
        finally:
            self.start_accounting()

    # Commands and jobs.

    def user_argv(self, user: str, *argv: Argument) -> tuple[Argument, ...]:
        """`argv` run as `user` in the user's work folder with a clean environment that names this
        lab.
        """
        user = self.account(user)
        env = {**self._user_env(user), **self.env}
        words = [f"{name}={value}" for name, value in env.items()]
        return (
            *self._inside,
            "runuser",
            "-u",
            user,
            "--",
            "env",
            "-i",
            "-C",
            self.work_dir(user),
            *words,
            *argv,
        )

    def as_user(
        self,
        user: str,
        *argv: Argument,
        stdin: bytes | None = None,
        check: bool = True,
        seconds: float = GUARD_SECONDS,
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command as `user`; `check`: a status that is not 0 raises LabError with the
        command's words.
        """
        return self._run(self.user_argv(user, *argv), stdin, check, seconds)

    def admin(
        self,
        *argv: Argument,
        stdin: bytes | None = None,
        check: bool = True,
        seconds: float = GUARD_SECONDS,
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command as root, who may do all here."""
        return self._run((*self._inside, *argv), stdin, check, seconds)

    def submit(
        self, user: str, *sbatch_args: Argument, script: str | bytes = SLEEPING_SCRIPT
    ) -> str:
        """Submit a batch script (by default one that sleeps for hours) and answer the job's id."""
        stdin = script.encode() if isinstance(script, str) else script
        return (
            self.as_user(user, "sbatch", "--parsable", *sbatch_args, stdin=stdin)
            .stdout.decode()
            .strip()
            .partition(";")[0]
        )

    def job_states(self, job_id: str) -> set[str]:
        """The states of a job and of its tasks, from the accounting once the controller has
        forgotten it.
        """
        listed = self.admin("squeue", "-h", "-t", "all", "-o", "%T", "-j", job_id, check=False)
        if not listed.stdout.strip() and self.settings.accounting:
            listed = self.admin("sacct", "-n", "-X", "-P", "-o", "state", "-j", job_id, check=False)
        return {line.split()[0] for line in listed.stdout.decode().splitlines() if line.strip()}

    def wait_state(self, job_id: str, *states: str) -> None:
        """Wait until the job, with all its tasks, is in one of `states` (Slurm's long words, as
        COMPLETED).
        """
        what = f"job {job_id} to be {' or '.join(states)}"

        def evidence() -> str:
            return self.admin("scontrol", "show", "job", job_id, check=False).stdout.decode(
                errors="replace"
            )

        wait_until(
            what, lambda: bool(seen := self.job_states(job_id)) and seen <= set(states), evidence
        )

    def slow_epilog(self, job_id: str, seconds: int) -> None:
        """Keep the job in COMPLETING for `seconds` after its end; to be said before it ends."""
        flag = self.run_dir / "jobs" / f"slow_epilog.{job_id}"
        flag.write_text(f"{seconds}\n")

    # How it is done.

    @property
    def _inside(self) -> tuple[str, ...]:
        return inside(self.settings.root)

    def _start(self, name: str, argv: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        self._daemons.start(name, daemon_argv(self.settings.root, argv), env or self._daemon_env)

    @property
    def _daemon_env(self) -> dict[str, str]:
        return {"PATH": SEARCH_PATH, "LANG": "C.UTF-8", **self.env}

    def _user_env(self, user: str) -> Mapping[str, str]:
        home = pwd.getpwnam(user).pw_dir
        return {
            "HOME": home,
            "USER": user,
            "LOGNAME": user,
            "LANG": "C.UTF-8",
            "PATH": "/usr/local/bin:/usr/bin:/bin",
        }

    def _run(
        self, argv: Sequence[Argument], stdin: bytes | None, check: bool, seconds: float
    ) -> subprocess.CompletedProcess[bytes]:
        words = [os.fsencode(word) for word in argv]
        env = {**self._daemon_env, "HOME": "/root"}
        try:
            # An input of None would leave the command our own stdin.
            ended = subprocess.run(
                words, env=env, capture_output=True, timeout=seconds, input=stdin or b""
            )
        except subprocess.TimeoutExpired as late:
            raise LabError(
                f"no end after {seconds:g} s: {words!r}\n{late.stdout!r}\n{late.stderr!r}"
            ) from late
        if check and ended.returncode:
            said = (ended.stderr + ended.stdout).decode(errors="replace")
            raise LabError(f"exit status {ended.returncode}: {words!r}\n{said}")
        return ended

    def _answers(self, *argv: str) -> bool:
        return self.admin(*argv, check=False).returncode == 0

    def _lines(self, *argv: str) -> list[str]:
        return self.admin(*argv).stdout.decode(errors="replace").splitlines()

    def _end_jobs(self, *cluster: str) -> None:
        def listed() -> list[str]:
            return self._lines("squeue", "-h", "-o", "%i", *cluster)

        if not listed():
            return
        # scancel takes one state at a time. Killed first, a job ends at once and not KillWait
        # seconds later.
        scancel = ("scancel", "--quiet", *cluster)
        self.admin(*scancel, "--state=PENDING", check=False)
        for state in ("RUNNING", "SUSPENDED"):
            self.admin(*scancel, "--full", "--signal=KILL", f"--state={state}", check=False)
            self.admin(*scancel, f"--state={state}", check=False)
        wait_until(
            "jobs to end", lambda: not listed(), lambda: "\n".join(self._lines("squeue", *cluster))
        )

    def _make_users(self) -> None:
        for user in self.users:
            try:
                pwd.getpwnam(user)
            except KeyError:
                # "*" is no password that fits, yet does not lock the account: a key still opens it.
                self.admin("useradd", "-m", "-s", "/bin/bash", "-p", "*", user)
            self.work_dir(user).mkdir(exist_ok=True)
            shutil.chown(self.work_dir(user), user)

    def _start_munged(self) -> None:
        self._start("munged", munged_argv(self.run_dir))
        self._daemons.wait_ready("munged", (self.run_dir / "munge" / "munge.sock").is_socket)

    def _start_sshd(self) -> None:
        # sshd refuses to start without its folder for unprivileged children.
        Path("/run/sshd").mkdir(exist_ok=True)
        self._start("sshd", sshd_argv(self.run_dir))
        self._daemons.wait_ready("sshd", lambda: bool(busy_ports([self.ssh_port])))

    def _start_database(self) -> None:
        folder, log = self.run_dir / "mysql", self.run_dir / "log" / "mariadb.log"
        if not (folder / "mysql").is_dir():
            log.touch()
            for path in (folder, log):
                shutil.chown(path, "mysql", "mysql")
            try:
                self.admin(*mariadb_install_argv(self.run_dir))
            except LabError:
                # On a loaded machine it fails now and then, and its tables with it.
                for path in folder.iterdir():
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
                self.admin(*mariadb_install_argv(self.run_dir))
        self._start("mariadb", mariadb_argv(self.run_dir, self.settings.database_port))
        ready = mariadb_client_argv(self.run_dir, "select 1")
        self._daemons.wait_ready("mariadb", lambda: self._answers(*ready))
        self.admin(*mariadb_client_argv(self.run_dir, GRANT))

    def _make_accounts(self) -> None:
        done = self.run_dir / "state" / "accounts_made"
        if done.exists():
            return
        with ThreadPoolExecutor() as pool:
            for stage in account_stages(self.users):
                list(
                    pool.map(
                        lambda command: self.admin("sacctmgr", "-i", "-Q", *command.split()), stage
                    )
                )
        done.touch()

    def _start_nodes(self) -> None:
        for name in LIVE_NODES:
            (self.run_dir / "spool" / name).mkdir(exist_ok=True)
            self._start(f"slurmd.{name}", ["slurmd", "-D", "-N", name, "-f", str(self.conf)])
        self._wait_nodes()
        self.admin(
            "scontrol",
            "update",
            f"nodename={DEAD_NODE}",
            "state=down",
            "reason=no slurmd on this node",
        )

    def _node_states(self) -> dict[str, str]:
        return dict(line.split() for line in self._lines("sinfo", "-h", "-N", "-o", "%N %T"))

    def _wait_nodes(self) -> None:
        logs = [self.run_dir / "log" / f"{name}.log" for name in ("slurmctld", *_SLURMDS)]

        def up() -> bool:
            states = self._node_states()
            return all(states.get(name) in _USABLE for name in LIVE_NODES)

        wait_until("the five nodes to take jobs", up, lambda: log_tail(*logs))
