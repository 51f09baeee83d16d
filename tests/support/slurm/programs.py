"""The command lines of the daemons that Slurm stands on: munged, sshd, MariaDB. Starts none of them."""

from __future__ import annotations

import shutil
from pathlib import Path

from .daemons import LabError
from .requirements import SEARCH_PATH

# The account and password of templates/slurmdbd.conf.in.
GRANT = (
    "create database if not exists slurm_acct_db; "
    "create user if not exists slurm@'127.0.0.1' identified by 'throwaway'; "
    "grant all on slurm_acct_db.* to slurm@'127.0.0.1'"
)


def program(name: str, *arguments: str) -> list[str]:
    """The full path of a program, as sshd wants to be started, and its arguments."""
    path = shutil.which(name, path=SEARCH_PATH)
    if path is None:
        raise LabError(f"{name} is not installed")
    return [path, *arguments]


def munged_argv(run_dir: Path) -> list[str]:
    munge = run_dir / "munge"
    return program(
        "munged",
        "--foreground",
        "--force",
        "--num-threads=4",
        f"--key-file={munge}/munge.key",
        f"--socket={munge}/munge.sock",
        f"--seed-file={munge}/munged.seed",
        f"--pid-file={run_dir}/pid/munged.pidfile",
        f"--log-file={run_dir}/log/munged.log",
    )


def sshd_argv(run_dir: Path) -> list[str]:
    return program("sshd", "-D", "-f", f"{run_dir}/etc/sshd_config", "-E", f"{run_dir}/log/sshd.log")


def mariadb_install_argv(run_dir: Path) -> list[str]:
    return program(
        "mariadb-install-db",
        "--no-defaults",
        f"--datadir={run_dir}/mysql",
        "--user=mysql",
        "--skip-test-db",
        "--auth-root-authentication-method=normal",
    )


def mariadb_argv(run_dir: Path, port: int) -> list[str]:
    return program(
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
    )


def mariadb_client_argv(run_dir: Path, statement: str) -> list[str]:
    return program("mariadb", "--no-defaults", "-uroot", f"--socket={run_dir}/mysql/sock", "-e", statement)
