"""The dashboard's figures on a real Slurm over ssh, with as many pending jobs as asked for; needs
root and Debian.

    python -m benchmarks.real_slurm [JOBS]

Loading 100 000 jobs takes about a minute and a half.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.dashboard import HEADING, import_seconds, measure_dashboard
from tests.support.slurm import SlurmLab, bulk_jobs, free_base_port

DEFAULT_JOBS = 100_000
_MINE = 200


def main(jobs: int) -> None:
    unit_seconds = import_seconds()
    with tempfile.TemporaryDirectory(prefix="hpcdash-bench-slurm-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        lab = SlurmLab(folder / "slurm", base_port=free_base_port())
        lab.start()
        try:
            began = time.perf_counter()
            bulk_jobs(lab, "bob", jobs - _MINE)
            bulk_jobs(lab, "alice", _MINE)
            print(f"{jobs} jobs loaded in {time.perf_counter() - began:.0f} s")
            print(HEADING)
            shutil.copytree(lab.ssh_config.parent, folder / ".ssh")
            settings = {"PATH": os.environ["PATH"]}
            print(
                measure_dashboard(
                    jobs, folder, settings, unit_seconds, where=("--ssh", "lab-alice")
                )
            )
        finally:
            lab.stop(wipe=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_JOBS)
