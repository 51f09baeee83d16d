"""The lab by hand: `python -m tests.support.slurm start|stop|env|scenario|install|check`."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from .daemons import LabError
from .debian import install
from .lab import SlurmLab
from .layout import free_base_port
from .requirements import why_no_bulk, why_no_lab, why_no_wrappers
from .scenario import scenario


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.slurm", description="A throw-away Slurm on loopback."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    start = commands.add_parser(
        "start", help="start a lab in DIR, or what is missing of one that was started there"
    )
    start.add_argument(
        "--port", type=int, help="first of 40 ports in a row (default: the first that are free)"
    )
    start.add_argument("--no-accounting", action="store_true", help="neither slurmdbd nor history")
    start.add_argument("--empty", action="store_true", help="no nodes")
    start.add_argument(
        "--root",
        metavar="ROOT",
        type=Path,
        help="use the Slurm of this Debian, which `install` made",
    )
    stop = commands.add_parser("stop", help="end the lab in DIR and its jobs")
    stop.add_argument("--wipe", action="store_true", help="delete DIR as well")
    env = commands.add_parser("env", help="print what a shell must set to use the lab in DIR")
    fill = commands.add_parser(
        "scenario", help="submit a job of nearly every state to the lab in DIR"
    )
    debian = commands.add_parser(
        "install", help="install a Debian with its Slurm in DIR, for `start --root`"
    )
    debian.add_argument("suite", metavar="SUITE", help="trixie: Slurm 24.11; sid: the newest")
    for command in (start, stop, env, fill, debian):
        command.add_argument("dir", metavar="DIR", type=Path)
    commands.add_parser(
        "check",
        help="say what the real-Slurm tests miss on this machine; status 1: they cannot run",
    )
    arguments = parser.parse_args()
    try:
        return _run(arguments)
    except (LabError, AssertionError) as error:
        print(error, file=sys.stderr)
        return 1


def _run(arguments: argparse.Namespace) -> int:
    match arguments.command:
        case "check":
            reasons = [
                reason for reason in (why_no_lab(), why_no_bulk(), why_no_wrappers()) if reason
            ]
            print(*reasons, sep="\n", end="\n" if reasons else "")
            return 1 if why_no_lab() else 0
        case "install":
            install(arguments.suite, arguments.dir)
        case "start":
            _lab_to_start(arguments).start()
            print(f"up; in a shell:  eval $({_command_line('env', arguments.dir)})")
        case "stop":
            SlurmLab.attach(arguments.dir).stop(wipe=arguments.wipe)
        case "env":
            lab = SlurmLab.attach(arguments.dir)
            words = {
                **lab.env,
                "HPCDASH_SLURM_LAB": str(lab.run_dir),
                "HPCDASH_SLURM_SSH_CONFIG": str(lab.ssh_config),
            }
            for name, value in words.items():
                print(f"export {name}={shlex.quote(value)}")
        case "scenario":
            for label, job_id in scenario(SlurmLab.attach(arguments.dir)).items():
                print(f"{job_id:>6}  {label}")
    return 0


def _command_line(command: str, folder: Path) -> str:
    return shlex.join(("python", "-m", "tests.support.slurm", command, str(folder)))


def _lab_to_start(arguments: argparse.Namespace) -> SlurmLab:
    try:
        return SlurmLab.attach(arguments.dir)
    except LabError:
        port = arguments.port or free_base_port()
        return SlurmLab(
            arguments.dir,
            base_port=port,
            accounting=not arguments.no_accounting,
            empty=arguments.empty,
            root=str(arguments.root.resolve()) if arguments.root else None,
        )


if __name__ == "__main__":
    raise SystemExit(main())
