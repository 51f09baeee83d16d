"""The folder of a lab: settings, ports, and configuration files written from the templates.

Starts nothing.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import string
import subprocess
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from .daemons import LabError

PORTS = 40
CPU_NODES = ("n1", "n2", "n3")
GPU_NODES = ("g1", "g2")
LIVE_NODES = CPU_NODES + GPU_NODES
OTHER_CLUSTER, OTHER_NODE = "lab2", "m1"
DEAD_NODE = "x1"
_TEMPLATES = Path(__file__).parent / "templates"
_NO_ACCOUNTING = (
    "AccountingStorageType=accounting_storage/none\nJobAcctGatherType=jobacct_gather/none"
)
# slurmctld does not start without any partition.
_NO_NODES = "MaxNodeCount=1\nPartitionName=main Default=YES State=UP"
_RECORD = "lab.json"
_LOWEST_PORT, _HIGHEST_PORT = 18000, 30000
# Held as long as this process is there.
_locked_ports: list[socket.socket] = []
_single_ports: list[int] = []


@dataclass(frozen=True, slots=True)
class Settings:
    """What a lab was made with; kept in its folder so that another process can use or stop it."""

    base_port: int
    users: tuple[str, ...]
    min_job_age: int
    extra_conf: str
    max_jobs: int
    accounting: bool
    empty: bool
    shards: int = 0
    root: str = ""

    @property
    def database_port(self) -> int:
        return self.base_port

    @property
    def controller_port(self) -> int:
        return self.base_port + 1

    @property
    def accounting_port(self) -> int:
        return self.base_port + 2

    @property
    def ssh_port(self) -> int:
        return self.base_port + 3

    @property
    def node_ports(self) -> dict[str, int]:
        """The port of every node's slurmd, also of the node that has none."""
        return {
            name: self.base_port + 10 + place for place, name in enumerate((*LIVE_NODES, DEAD_NODE))
        }

    @property
    def listening_ports(self) -> tuple[int, ...]:
        """Every port that a daemon of the lab listens on."""
        ports: tuple[int, ...] = (self.controller_port, self.ssh_port)
        if self.accounting:
            ports += (self.database_port, self.accounting_port)
        return ports if self.empty else ports + tuple(self.node_ports[name] for name in LIVE_NODES)


def short_name(account: str) -> str:
    """`alice` of the account alice or hpcdash-test-0-alice."""
    return account.rpartition("-")[2]


class _Template(string.Template):
    delimiter = "@"


def port_is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_base_port() -> int:
    """The first of 40 free ports in a row, below those the system hands out; no other process gets
    them meanwhile.
    """
    for base in range(_LOWEST_PORT, _HIGHEST_PORT, PORTS):
        lock = socket.socket(socket.AF_UNIX)
        try:
            lock.bind(f"\0hpcdash-test-ports-{base}")
        except OSError:
            lock.close()
            continue
        if all(port_is_free(port) for port in range(base, base + PORTS)):
            _locked_ports.append(lock)
            return base
        lock.close()
    raise LabError(f"no {PORTS} free ports in a row between {_LOWEST_PORT} and {_HIGHEST_PORT}")


def free_port() -> int:
    """A free port of its own, as of free_base_port()."""
    if not _single_ports:
        base = free_base_port()
        _single_ports.extend(range(base, base + PORTS))
    port = _single_ports.pop()
    return port if port_is_free(port) else free_port()


def write_record(run_dir: Path, settings: Settings) -> None:
    (run_dir / _RECORD).write_text(json.dumps(asdict(settings), indent=1) + "\n")


def read_record(run_dir: Path) -> Settings:
    try:
        recorded = json.loads((run_dir / _RECORD).read_text())
    except FileNotFoundError:
        raise LabError(f"{run_dir} is not a Slurm lab: it has no {_RECORD}") from None
    return Settings(**{**recorded, "users": tuple(recorded["users"])})


def prepare_folder(run_dir: Path) -> None:
    """Make the folders of a lab and its fake GPUs; the users must be able to read their way to
    it.
    """
    for name in (
        "bin",
        "dev",
        "etc",
        "jobs",
        "log",
        "munge",
        "mysql",
        "pid",
        "spool",
        "ssh",
        "state",
        "work",
    ):
        folder = run_dir / name
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o1777 if name == "jobs" else 0o755)
    run_dir.chmod(0o755)
    closed = [str(folder) for folder in run_dir.parents if not folder.stat().st_mode & stat.S_IXOTH]
    if closed:
        raise LabError(
            f"the lab's users cannot reach {run_dir}: {', '.join(closed)} is closed to others"
        )
    for number in range(4):
        gpu = run_dir / "dev" / f"gpu{number}"
        if gpu.exists():
            continue
        try:
            os.mknod(gpu, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        except PermissionError:
            gpu.touch()


def write_configuration(run_dir: Path, settings: Settings, release: str) -> None:
    """Write RUN/etc, for a `release` of Slurm as 24.11.5, and the ssh client's configuration."""
    ports = settings.node_ports
    words = {
        "run": str(run_dir),
        "host": socket.gethostname().partition(".")[0],
        "controller_port": settings.controller_port,
        "accounting_port": settings.accounting_port,
        "database_port": settings.database_port,
        "ssh_port": settings.ssh_port,
        "cpu_node_port": ports["n1"],
        "cpu_node_ports": f"[{ports['n1']}-{ports['n3']}]",
        "gpu_node_ports": f"[{ports['g1']}-{ports['g2']}]",
        "dead_node_port": ports[DEAD_NODE],
        "min_job_age": settings.min_job_age,
        "max_jobs": settings.max_jobs,
        "extra": settings.extra_conf,
        "shards": f",shard:{settings.shards}" if settings.shards else "",
        "shard_type": ",shard" if settings.shards else "",
        "shard_line": f"NodeName=g[1-2] Name=shard Count={settings.shards}"
        if settings.shards
        else "",
        "hosts": "\n".join(
            f"Host lab-{short_name(user)}\n  User {user}" for user in settings.users
        ),
    }
    words["accounting"] = (
        _rendered("accounting.conf", words) if settings.accounting else _NO_ACCOUNTING
    )
    words["nodes"] = _NO_NODES if settings.empty else _rendered("nodes.conf", words)
    etc = run_dir / "etc"
    for name in ("slurm.conf", "sshd_config", "epilog.sh"):
        (etc / name).write_text(_rendered(name, words))
    (etc / "epilog.sh").chmod(0o755)
    # Slurm 24.11 and later look for the cgroups of systemd otherwise; 22.05 has no such plugin.
    (etc / "cgroup.conf").write_text("CgroupPlugin=disabled\n" if release >= "24.11" else "")
    (etc / "gres.conf").write_text(
        "AutoDetect=off\n" if settings.empty else _rendered("gres.conf", words)
    )
    if settings.accounting:
        (etc / "slurmdbd.conf").touch(0o600)
        (etc / "slurmdbd.conf").write_text(_rendered("slurmdbd.conf", words))
    (run_dir / "ssh" / "config").write_text(_rendered("ssh_config", words))


def write_other_configuration(
    run_dir: Path, settings: Settings, conf: Path, first_job_id: str = "1"
) -> None:
    """Write the configuration of a second cluster of the lab's, which has a node and a controller
    of its own.
    """
    port = settings.base_port + 20
    changed = {
        "ClusterName": OTHER_CLUSTER,
        "SlurmctldPort": str(port),
        "SlurmdPort": str(port + 1),
        "StateSaveLocation": str(run_dir / f"state.{OTHER_CLUSTER}"),
        "SlurmctldPidFile": str(run_dir / "pid" / f"slurmctld.{OTHER_CLUSTER}.pidfile"),
        "SlurmctldLogFile": str(run_dir / "log" / f"slurmctld.{OTHER_CLUSTER}.log"),
        "FirstJobId": first_job_id,
    }
    kept = [
        line
        for line in (run_dir / "etc" / "slurm.conf").read_text().splitlines()
        if not line.startswith(("NodeName", "PartitionName", *(f"{name}=" for name in changed)))
    ]
    node = (
        f"NodeName={OTHER_NODE} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port + 1} "
        "CPUs=8 RealMemory=8000"
    )
    lines = [
        *kept,
        *(f"{name}={value}" for name, value in changed.items()),
        f"{node} State=UNKNOWN",
    ]
    lines.append(f"PartitionName=main Nodes={OTHER_NODE} Default=YES MaxTime=1-00:00:00 State=UP")
    conf.parent.mkdir(exist_ok=True)
    conf.write_text("\n".join(lines) + "\n")
    (conf.parent / "gres.conf").write_text("AutoDetect=off\n")
    shutil.copyfile(run_dir / "etc" / "cgroup.conf", conf.parent / "cgroup.conf")
    for folder in (f"state.{OTHER_CLUSTER}", f"spool/{OTHER_NODE}"):
        (run_dir / folder).mkdir(exist_ok=True)


def make_ssh_keys(run_dir: Path, settings: Settings) -> None:
    """One host key, and one key that opens the account of every user of the lab."""
    folder = run_dir / "ssh"
    for name in ("host_ed25519", "id_ed25519"):
        if not (folder / name).exists():
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lab", "-f", folder / name],
                check=True,
            )
    shutil.copyfile(folder / "id_ed25519.pub", folder / "authorized_keys")
    host_key = " ".join((folder / "host_ed25519.pub").read_text().split()[:2])
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{settings.ssh_port} {host_key}\n")


def make_munge_key(run_dir: Path) -> None:
    key = run_dir / "munge" / "munge.key"
    if not key.exists():
        key.touch(0o600)
        key.write_bytes(os.urandom(1024))


def busy_ports(ports: Iterable[int]) -> list[int]:
    return [port for port in ports if not port_is_free(port)]


def _rendered(name: str, words: dict[str, object]) -> str:
    return _Template((_TEMPLATES / f"{name}.in").read_text()).substitute(words)
