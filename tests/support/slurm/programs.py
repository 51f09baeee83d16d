"""The command lines of the daemons that Slurm stands on: munged, sshd, MariaDB.

Starts none of them.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from .daemons import LabError
from .requirements import search_path

# The account and password of templates/slurmdbd.conf.in.
GRANT = (
    "create database if not exists slurm_acct_db; "
    "create user if not exists slurm@'127.0.0.1' identified by 'throwaway'; "
    "grant all on slurm_acct_db.* to slurm@'127.0.0.1'"
)


# ROOT/usr in place of /usr, for this process and its children alone. Both have /bin and /lib there.
_MOUNT = 'mount --bind "$0/usr" /usr && exec "$@"'


def inside(root: str) -> tuple[str, ...]:
    """The words before a command that have it run with the programs of `root`; none for ''."""
    own_mounts = ("unshare", "--mount", "--propagation", "private", "--")
    return (*own_mounts, "sh", "-c", _MOUNT, root) if root else ()


def daemon_argv(root: str, argv: Sequence[str]) -> list[str]:
    """`argv` inside of `root`, its program by its full path, as sshd wants to be started."""
    path = shutil.which(argv[0], path=search_path(root))
    if path is None:
        raise LabError(f"{argv[0]} is not installed{root and f' in {root}'}")
    return [*inside(root), path.removeprefix(root), *argv[1:]]


def munged_argv(run_dir: Path) -> list[str]:
    munge = run_dir / "munge"
    return [
        "munged",
        "--foreground",
        "--force",
        "--num-threads=4",
        f"--key-file={munge}/munge.key",
        f"--socket={munge}/munge.sock",
        f"--seed-file={munge}/munged.seed",
        f"--pid-file={run_dir}/pid/munged.pidfile",
        f"--log-file={run_dir}/log/munged.log",
    ]


def sshd_argv(run_dir: Path) -> list[str]:
    return ["sshd", "-D", "-f", f"{run_dir}/etc/sshd_config", "-E", f"{run_dir}/log/sshd.log"]


def mariadb_install_argv(run_dir: Path) -> list[str]:
    return [
        "mariadb-install-db",
        "--no-defaults",
        f"--datadir={run_dir}/mysql",
        "--user=mysql",
        "--skip-test-db",
        "--auth-root-authentication-method=normal",
    ]


def mariadb_argv(run_dir: Path, port: int) -> list[str]:
    return [
        "mariadbd",
        "--no-defaults",
        "--user=mysql",
        f"--datadir={run_dir}/mysql",
        f"--socket={run_dir}/mysql/sock",
        f"--pid-file={run_dir}/mysql/pid",
        f"--log-error={run_dir}/log/mariadb.log",
        "--bind-address=127.0.0.1",
        f"--port={port}",
        "--skip-name-resolve",
        # A database of another character set loses characters of job names.
        "--character-set-server=utf8mb4",
        "--collation-server=utf8mb4_general_ci",
        "--innodb-buffer-pool-size=256M",
        "--innodb-lock-wait-timeout=900",
        "--innodb-flush-log-at-trx-commit=0",
        "--max-allowed-packet=64M",
    ]


def mariadb_client_argv(run_dir: Path, statement: str) -> list[str]:
    return ["mariadb", "--no-defaults", "-uroot", f"--socket={run_dir}/mysql/sock", "-e", statement]
