"""A node's probe: the generated scripts run as they are, with stand-ins for the schedulers'
programs.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from hpcdash.backends.script.body import Place
from hpcdash.domain.request import EarlySignal, Launcher, Request, Site
from hpcdash.domain.root_cause import Strength, root_cause
from tests.support.scripts import Scheduler, batch_script

pytestmark = pytest.mark.system
# Fails on n2 and n3 alone, in two ways; `HOST` is of the stand-ins.
PROBE = (
    'echo "looks at $HOST"\nif [ "$HOST" = n2 ]; then echo \'RuntimeError: CUDA error: bad\' '
    ">&2; exit 3; fi\n"
)
NEVER, USR1 = None, EarlySignal("USR1", 60)
BATCH_USR1 = EarlySignal("USR1", 60, batch_only=True)
_SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
status=0
for node in n1 n2 n3; do
  HOST=$node SLURMD_NODENAME=$node "$@" || status=$?
done
exit "$status"
"""
_PBS_TMRSH = '#!/bin/bash\nHOST=$1 exec "${@:2}"\n'


def script(
    scheduler: Scheduler, probe: str, signal: EarlySignal | None = None, **more: object
) -> str:
    request = Request(
        command='echo "started on $HOST"',
        slots=6,
        slots_per_node=2,
        limit_seconds=600,
        signal=signal,
        site=Site(node_probe=probe),
        **more,  # type: ignore[arg-type]
    )
    return batch_script(scheduler, request, Place("1a2b", "/home/ann/x-1a2b")).text


def run(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "bin").mkdir(exist_ok=True)
    for name, program in (("srun", _SRUN), ("pbs_tmrsh", _PBS_TMRSH), ("scancel", "#!/bin/sh\n")):
        (folder / "bin" / name).write_text(program)
        (folder / "bin" / name).chmod(0o755)
    (folder / "nodes").write_text("n1\nn2\nn3\n")
    environment = {
        "PATH": f"{folder}/bin:{os.environ['PATH']}",
        "HOME": str(folder),
        "PBS_NODEFILE": str(folder / "nodes"),
        "PBS_JOBID": "12.server",
        "SLURM_JOB_ID": "12",
        "SLURM_JOB_NUM_NODES": "3",
    }
    return subprocess.run(
        ["bash", "-c", text], env=environment, cwd=folder, capture_output=True, text=True
    )


@pytest.mark.parametrize(
    "signal", [NEVER, USR1, BATCH_USR1], ids=["plain", "signal", "batch-signal"]
)
@pytest.mark.parametrize("scheduler", Scheduler)
def test_a_node_that_fails_is_named_and_nothing_starts(
    scheduler: Scheduler, signal: EarlySignal | None, tmp_path: Path
) -> None:
    ended = run(script(scheduler, PROBE, signal), tmp_path)
    assert (ended.returncode, ended.stdout) == (1, "")
    said = ended.stderr.splitlines()
    assert sorted(line for line in said if "looks at" in line) == [
        f"n{at}: looks at n{at}" for at in (1, 2, 3)
    ]
    assert "n2: RuntimeError: CUDA error: bad" in said
    failed = [line for line in said if line.startswith("hpcdash: ")]
    assert len(failed) == 1
    assert failed[0].startswith("hpcdash: node n2 failed the probe (status 3): ")
    if scheduler is Scheduler.SLURM:
        assert failed[0].endswith('submit with exclude_nodes = ["n2"], or --exclude=n2')
    else:
        assert "--exclude" not in failed[0]
    cause = root_cause([*said, "srun: error: n2: task 1: Exited with exit code 3"])
    assert cause is not None
    assert (cause.line, cause.strength, cause.rank) == (failed[0], Strength.SCHEDULER, "")


@pytest.mark.parametrize(
    "signal", [NEVER, USR1, BATCH_USR1], ids=["plain", "signal", "batch-signal"]
)
@pytest.mark.parametrize("scheduler", Scheduler)
def test_where_all_are_well_the_command_starts_everywhere(
    scheduler: Scheduler, signal: EarlySignal | None, tmp_path: Path
) -> None:
    ended = run(
        script(scheduler, "test -n \"$HOST\" && echo 'END_OF_PROBE\nEND_OF_PROBE'", signal),
        tmp_path,
    )
    assert (ended.returncode, sorted(ended.stdout.split("\n"))) == (
        0,
        ["", "started on n1", "started on n2", "started on n3"],
    )
    assert "hpcdash" not in ended.stderr


@pytest.mark.parametrize("scheduler", Scheduler)
def test_a_startup_hook_runs_after_the_probe_and_where_it_fails_nothing_starts(
    scheduler: Scheduler, tmp_path: Path
) -> None:
    hook = 'echo "hook on $HOST"\n[ "$HOST" != "$BROKEN" ] || exit 3'
    well = run(script(scheduler, "echo probed", BATCH_USR1, startup_hook=hook), tmp_path)
    assert sorted(well.stdout.split("\n")) == [
        "",
        "started on n1",
        "started on n2",
        "started on n3",
    ]
    said = well.stderr.splitlines()
    assert max(at for at, line in enumerate(said) if "probed" in line) < min(
        at for at, line in enumerate(said) if "hook on" in line
    )
    broken = run(script(scheduler, "", startup_hook=hook, environment={"BROKEN": "n2"}), tmp_path)
    assert (broken.returncode, broken.stdout) == (1, "")
    cause = root_cause(broken.stderr.splitlines())
    assert cause is not None
    assert cause.line == "hpcdash: the startup hook failed on node n2 (status 3)"


@pytest.mark.parametrize("scheduler", Scheduler)
def test_an_early_signal_is_not_taken_for_a_node_that_fails(
    scheduler: Scheduler, tmp_path: Path
) -> None:
    probe = "kill -s USR1 $$; kill -s USR1 $PPID; echo well"
    ended = run(script(scheduler, probe, BATCH_USR1), tmp_path)
    assert (ended.returncode, ended.stderr.count(": well")) == (0, 3)
    assert "started on n3" in ended.stdout


def test_a_signal_goes_to_the_step_of_the_command_which_the_probe_makes_the_second() -> None:
    step = re.compile(r"\nhpcdash_step=(\d)\n")
    assert step.findall(script(Scheduler.SLURM, "true", BATCH_USR1)) == ["1"]
    assert step.findall(script(Scheduler.SLURM, "", BATCH_USR1)) == ["0"]


@pytest.mark.parametrize("scheduler", Scheduler)
def test_without_a_probe_a_script_is_as_it_was(scheduler: Scheduler) -> None:
    assert "probe" not in script(scheduler, "")


def test_the_variables_of_the_request_are_set_for_a_probe(tmp_path: Path) -> None:
    for scheduler in Scheduler:
        text = script(scheduler, 'test "$WHERE" = "a \'b\'"', environment={"WHERE": "a 'b'"})
        assert run(text, tmp_path).returncode == 0


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="shellcheck is not installed")
@pytest.mark.parametrize("scheduler", Scheduler)
def test_shellcheck_has_nothing_to_say(scheduler: Scheduler, tmp_path: Path) -> None:
    for signal in (NEVER, USR1, BATCH_USR1):
        for launcher in (Launcher.PLAIN, Launcher.TORCHRUN):
            whole = script(scheduler, PROBE, signal, launcher=launcher)
            inner = re.search(
                r"<< 'END_OF_NODE_STEP'\n(.*?)^END_OF_NODE_STEP$", whole, re.DOTALL | re.MULTILINE
            )
            assert inner
            for text in (whole, f"#!/bin/bash\n{inner[1]}"):
                (tmp_path / "x.sh").write_text(text)
                words = ["shellcheck", str(tmp_path / "x.sh")]
                assert subprocess.run(words, capture_output=True, text=True).stdout == ""
                assert not [line for line in text.splitlines() if len(line) > 120]
