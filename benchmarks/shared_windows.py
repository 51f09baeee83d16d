"""What all windows of a person cost a cluster, with and without the broker: commands, RPCs, logins.

    python -m benchmarks.shared_windows [SECONDS]

Three dashboards, `watch`, `serve --api`, `jobs` every 10 s and a Python program that waits for 100
jobs, over ssh on a real Slurm; needs root and Debian's packages. HPCDASH_SLURM_LAB has it use a lab
that runs. Exits 1 if with the broker 120 s cost more than 16 commands, 35 RPCs or one login, or if
`jobs` takes 0.25 s longer than it takes Python to import what it needs.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from benchmarks.terminal import Terminal
from tests.support.slurm import SlurmLab, free_base_port

DEFAULT_SECONDS = 120.0
_MAX_COMMANDS, _MAX_RPCS, _MAX_LOGINS = 16, 35, 1
_MAX_JOBS_SECONDS = 0.25
_WINDOWS, _WAITING = 3, 100
_JOBS_EVERY_SECONDS = 10.0
_CONFIG = """\
[clusters.there]
ssh = "lab-alice"
[connection]
broker = {broker}
keep = 30
[watch.failures]
"""
_PROGRAM = f"""\
import time
import hpcdash

@hpcdash.task(time="10m", cpus=1)
def wait(number):
    time.sleep(300)

if __name__ == "__main__":
    with hpcdash.connect("there"):
        jobs = wait.map(range({_WAITING}))
        print("submitted", flush=True)
        jobs.results()
"""
# A command's words are encoded for printf, plain letters as they are.
_LOG_COMMAND = """\
#!/bin/sh
printf '%s\\n' "$SSH_ORIGINAL_COMMAND" | tr '\\n' ' ' | sed 's/$/\\n/' >>{log}
exec sh -c "$SSH_ORIGINAL_COMMAND"
"""
_SCHEDULER = re.compile(r"\b(squeue|sinfo|sacct|scontrol|sshare|sacctmgr|sbatch|scancel)\b")
# By then the jobs that can start have started: their steps cost RPCs too.
_SETTLE_SECONDS = 15.0
_IMPORTS = "import hpcdash.cli.jobs, hpcdash.cli.commands, hpcdash.backends.slurm.backend, numpy"


class Cost(NamedTuple):
    """Commands of the scheduler, and others, which read files."""

    commands: int
    reads: int
    rpcs: int
    logins: int


def main(seconds: float) -> int:
    name = os.environ.get("HPCDASH_SLURM_LAB")
    with tempfile.TemporaryDirectory(prefix="hpcdash-bench-") as folder:
        home = Path(folder)
        home.chmod(0o755)
        lab = (
            SlurmLab.attach(name) if name else SlurmLab(home / "slurm", base_port=free_base_port())
        )
        if not name:
            lab.start()
        commands = home / "commands"
        log_commands(lab, commands)
        try:
            print("           commands  reads  RPCs  logins")
            for broker in (False, True):
                cost = measure_mix(lab, home / f"home-{broker}", commands, seconds, broker=broker)
                print(
                    f"{'broker' if broker else 'no broker':10} {cost.commands:8} {cost.reads:6} "
                    f"{cost.rpcs:5} {cost.logins:7}",
                    flush=True,
                )
            late = measure_start(lab, home / "home-start")
        finally:
            if not name:
                lab.stop(wipe=True)
    is_dear = cost.commands > _MAX_COMMANDS or cost.rpcs > _MAX_RPCS or cost.logins > _MAX_LOGINS
    return 1 if is_dear or late > _MAX_JOBS_SECONDS else 0


def log_commands(lab: SlurmLab, log: Path) -> None:
    """Have the lab's sshd write each command into a file, a line each."""
    log.touch()
    log.chmod(0o666)
    script = log.with_suffix(".sh")
    script.write_text(_LOG_COMMAND.format(log=log))
    script.chmod(0o755)
    config = lab.run_dir / "etc" / "sshd_config"
    lines = [line for line in config.read_text().splitlines() if "ForceCommand" not in line]
    config.write_text("\n".join([*lines, f"ForceCommand {script}", ""]))
    pid = int((lab.run_dir / "pid" / "sshd.pidfile").read_text())
    os.kill(pid, signal.SIGHUP)
    time.sleep(1)


def make_home(lab: SlurmLab, home: Path, *, broker: bool) -> dict[str, str]:
    """A person's home, and the environment of their programs."""
    (home / "hpcdash").mkdir(parents=True)
    config = home / "hpcdash" / "config.toml"
    config.write_text(_CONFIG.format(broker=str(broker).lower()))
    tokens = home / "hpcdash" / "api-tokens.toml"
    tokens.write_text(f'[own]\ntoken = "{"0" * 40}"\naccounts = ["alice"]\n')
    tokens.chmod(0o600)
    (home / "program.py").write_text(_PROGRAM)
    shutil.copytree(lab.ssh_config.parent, home / ".ssh")
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "XDG_CONFIG_HOME": str(home),
        "XDG_STATE_HOME": str(home / "state"),
        "XDG_RUNTIME_DIR": str(home),
        "HPCDASH_CACHE": str(home / "cache"),
    }


def measure_mix(lab: SlurmLab, home: Path, commands: Path, seconds: float, *, broker: bool) -> Cost:
    environment = make_home(lab, home, broker=broker)
    log = lab.run_dir / "log" / "sshd.log"
    before = log.stat().st_size
    hpcdash = (sys.executable, "-m", "hpcdash")
    others = [start((sys.executable, "program.py"), home, environment)]
    assert others[0].stdout is not None
    assert others[0].stdout.readline() == b"submitted\n"
    time.sleep(_SETTLE_SECONDS)
    at_start = commands.stat().st_size
    sdiag(lab, "--reset")
    windows = [Terminal(hpcdash, environment) for _ in range(_WINDOWS)]
    others += [
        start((*hpcdash, *words), home, environment) for words in (("watch",), ("serve", "--api"))
    ]
    began = time.monotonic()
    next_jobs = began
    try:
        while time.monotonic() < began + seconds:
            if time.monotonic() >= next_jobs:
                next_jobs += _JOBS_EVERY_SECONDS
                argv = (*hpcdash, "jobs", *(("--max-age", "15s") if broker else ()))
                others.append(start(argv, home, environment))
            for window in windows:
                window.pump(0.1)
        rpcs = count_rpcs(lab)
        sent = commands.read_bytes()[at_start:].decode(errors="replace").splitlines()
        logins = log.read_bytes()[before:].count(b"Accepted publickey for alice")
    finally:
        for window in windows:
            window.close()
        for process in others:
            process.terminate()
        for process in others:
            process.communicate()
        lab.as_user("alice", "scancel", "--me")
        subprocess.run((*hpcdash, "broker", "stop"), env=environment, stdout=subprocess.DEVNULL)
    asked = sum(1 for line in sent if _SCHEDULER.search(line))
    return Cost(asked, len(sent) - asked, rpcs, logins)


def start(
    argv: tuple[str, ...], home: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        argv, cwd=home, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )


def sdiag(lab: SlurmLab, *words: str) -> str:
    environment = {**os.environ, **lab.env}
    return subprocess.check_output(("sdiag", *words), env=environment, text=True)


def count_rpcs(lab: SlurmLab) -> int:
    """The requests of alice's programs to the controller."""
    found = re.search(r"(?m)^\s*alice\s*\(\s*\d+\)\s*count:(\d+)", sdiag(lab))
    return int(found[1]) if found else 0


def measure_start(lab: SlurmLab, home: Path) -> float:
    """The median seconds of `hpcdash jobs` with a broker, beyond those of Python's imports."""
    environment = make_home(lab, home, broker=True)
    jobs = (sys.executable, "-m", "hpcdash", "jobs")
    subprocess.run(jobs, env=environment, check=True, capture_output=True)
    bare = median_seconds((sys.executable, "-c", _IMPORTS), environment)
    whole = median_seconds(jobs, environment)
    alone = median_seconds((*jobs, "--no-broker"), environment)
    stop = (sys.executable, "-m", "hpcdash", "broker", "stop")
    subprocess.run(stop, env=environment, stdout=subprocess.DEVNULL)
    print(f"hpcdash jobs: {whole:.2f} s with a broker, {alone:.2f} s without, imports {bare:.2f} s")
    return whole - bare


def median_seconds(argv: tuple[str, ...], environment: Mapping[str, str]) -> float:
    times = []
    for _ in range(7):
        began = time.perf_counter()
        subprocess.run(argv, env=environment, check=True, capture_output=True)
        times.append(time.perf_counter() - began)
    return sorted(times)[len(times) // 2]


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_SECONDS))
