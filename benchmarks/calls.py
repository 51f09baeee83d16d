"""Functions as jobs of a real Slurm: how soon one starts and is answered, and what a thousand of
them cost.

    python -m benchmarks.calls [TASKS]

Needs root and Debian's packages, as `benchmarks.real_slurm`. With submitit from PyPI on the
PYTHONPATH the same calls go through it, on the same Slurm from its login node: it has no way over
ssh. Exits 1 when a call is answered later than by submitit, or a thousand waiting jobs take more
than 20 commands or a second of CPU a minute.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import hpcdash
from hpcdash.client.job import Launched, SubmittedJob
from hpcdash.client.loop import run_in_loop
from tests.support.slurm import SlurmLab, bulk_jobs, free_base_port

DEFAULT_TASKS = 200
_CALLS = 5
_WAITING = 1000
_MINUTE_SECONDS = 60.0
_MAX_COMMANDS, _MAX_CPU_SECONDS = 20, 1.0
# In a folder of its own, which is what is sent over ssh.
_FUNCTIONS = """\
import time

def began(_=0):
    return time.time()

def odd_alone(number):
    if number % 34 == 0:
        raise ValueError(f"{number} fails")
    return number
"""
_CONFIG = (
    '[clusters.here]\nbackend = "slurm"\n[clusters.there]\nssh = '
    '"lab-alice"\n[poll]\ncommands_per_minute = 600\n'
)


def main(tasks: int) -> int:
    with tempfile.TemporaryDirectory(prefix="hpcdash-bench-calls-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        lab = SlurmLab(folder / "slurm", base_port=free_base_port())
        lab.start()
        try:
            return measure(lab, folder, tasks)
        finally:
            lab.stop(wipe=True)


def measure(lab: SlurmLab, folder: Path, tasks: int) -> int:
    functions = prepare(lab, folder)
    answered: dict[str, float] = {}
    # The home of root, who the benchmark runs as, is not shared between nodes.
    root = {"storage_root": str(folder / "launches")}
    for title, cluster, site in (("hpcdash", "here", root), ("hpcdash over ssh", "there", {})):
        with hpcdash.connect(cluster, time="5m", site=site) as connected:
            began = hpcdash.task(functions.began)
            answered[title] = print_times(title, began.submit, began.map, tasks)
            if cluster == "there":
                print_failures(functions, connected)
                bulk_jobs(lab, "alice", _WAITING)
                is_cheap = print_waiting(lab, connected)
    if importlib.util.find_spec("submitit") is not None:
        executor = submitit_executor(folder)
        one = "submitit"
        answered[one] = print_times(
            one,
            lambda: executor.submit(functions.began),
            lambda items: SubmititMap(executor.map_array(functions.began, list(items))),
            tasks,
        )
    else:
        print("submitit is not here: pip install --target FOLDER submitit, and PYTHONPATH=FOLDER")
    is_late = answered["hpcdash"] > answered.get("submitit", answered["hpcdash"])
    return 1 if is_late or not is_cheap else 0


def prepare(lab: SlurmLab, folder: Path) -> ModuleType:
    """A home with both ways to the lab, for this process, and the functions to call."""
    home, code = folder / "home", folder / "code"
    (home / "hpcdash").mkdir(parents=True)
    (home / "hpcdash" / "config.toml").write_text(_CONFIG)
    (home / ".ssh").symlink_to(lab.ssh_config.parent)
    os.environ.update(lab.env)
    os.environ.update(HOME=str(home), XDG_CONFIG_HOME=str(home), XDG_STATE_HOME=str(home / "state"))
    os.environ["HPCDASH_CACHE"] = str(home / "cache")
    code.mkdir()
    (code / "bench_functions.py").write_text(_FUNCTIONS)
    os.chdir(home)
    sys.path.insert(0, str(code))
    # submitit's jobs have the environment of the program.
    os.environ["PYTHONPATH"] = f"{os.environ.get('PYTHONPATH', '')}:{code}"
    return importlib.import_module("bench_functions")


def print_times(
    title: str, submit: Callable[[], Any], map_items: Callable[[range], Any], tasks: int
) -> float:
    """One line of figures; how soon a call is answered, the median, in seconds."""
    submit().result()
    calls = []
    for _ in range(_CALLS):
        at = time.time()
        began = submit().result()
        calls.append((began - at, time.time() - at))
    running, answered = (statistics.median(times) for times in zip(*calls, strict=True))
    at = time.time()
    map_items(range(tasks)).results()
    print(
        f"{title:16}  runs {running:5.2f} s  answered {answered:5.2f} s  map of {tasks} "
        f"{time.time() - at:6.1f} s"
    )
    return answered


def print_failures(functions: ModuleType, cluster: hpcdash.Cluster) -> None:
    numbers = range(1, 1021)
    with counted(cluster) as spent:
        found = (
            hpcdash.task(functions.odd_alone)
            .map(numbers, at_most=8)
            .results(return_exceptions=True)
        )
    failed = sum(isinstance(one, ValueError) for one in found)
    assert [one for one in found if isinstance(one, int)] == [one for one in numbers if one % 34]
    print(f"map of {len(numbers)}, {failed} of them failing: {spent()}")


def print_waiting(lab: SlurmLab, cluster: hpcdash.Cluster) -> bool:
    """What a minute of waiting for the results of a thousand jobs costs, each with a folder of its
    own.
    """
    listed = lab.as_user("alice", "squeue", "--me", "--noheader", "--format=%i").stdout
    ids = listed.decode().split()[:_WAITING]
    base = lab.work_dir("alice")

    async def wait() -> None:
        units = [
            SubmittedJob(cluster, job_id, Launched(f"{base}/launch-{job_id}")) for job_id in ids
        ]
        cluster.early_results.submitted()
        waiting = [asyncio.create_task(unit.value(None, None)) for unit in units]
        await asyncio.sleep(_MINUTE_SECONDS)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    with counted(cluster) as spent:
        run_in_loop(wait())
    print(f"waiting for {len(ids)} jobs: {spent()}")
    return spent.commands <= _MAX_COMMANDS and spent.cpu_seconds <= _MAX_CPU_SECONDS


class Spent:
    """What was spent since it was made: commands of a cluster, CPU of this process, and time."""

    def __init__(self, cluster: hpcdash.Cluster) -> None:
        self._budget = cluster.session.store.budget
        self._sent, self._cpu, self._at = self._budget.sent, time.process_time(), time.time()
        self.commands, self.cpu_seconds, self.seconds = 0, 0.0, 0.0

    def stop(self) -> None:
        self.commands = self._budget.sent - self._sent
        self.cpu_seconds = time.process_time() - self._cpu
        self.seconds = time.time() - self._at

    def __call__(self) -> str:
        return f"{self.seconds:.1f} s, {self.commands} commands, {self.cpu_seconds:.2f} s of CPU"


@contextmanager
def counted(cluster: hpcdash.Cluster) -> Iterator[Spent]:
    """What is spent within the block."""
    spent = Spent(cluster)
    yield spent
    spent.stop()


def submitit_executor(folder: Path) -> Any:
    import submitit  # type: ignore[import-not-found]

    executor = submitit.AutoExecutor(folder=folder / "submitit", cluster="slurm")
    executor.update_parameters(timeout_min=5, slurm_array_parallelism=1000)
    return executor


class SubmititMap:
    def __init__(self, jobs: list[Any]) -> None:
        self._jobs = jobs

    def results(self) -> list[Any]:
        return [job.result() for job in self._jobs]


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_TASKS))
