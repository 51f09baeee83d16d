"""Which PBS is there, told apart by running the probe's own script where somebody's qstat is on the
PATH.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcdash.backends.base import Probe
from hpcdash.backends.pbs.backend import BACKEND
from hpcdash.backends.pbs.dialects import Dialect, detect_dialect
from hpcdash.backends.pbs.probe import PbsProbe, parse_probe
from hpcdash.backends.queries import Query
from hpcdash.backends.slurm.backend import BACKEND as SLURM
from hpcdash.errors import CommandMissing, CommandTimedOut
from hpcdash.services.cluster.queries import find_scheduler
from hpcdash.transport.base import CommandResult
from tests.support.records import for_each

pytestmark = pytest.mark.system
_SCENES = Path(__file__).resolve().parents[3] / "fixtures" / "pbs"
_TEXT = """Server: pbs01
    server_state = Active
    state_count = Transit:0 Queued:1 Held:4 Waiting:1 Running:21 Exiting:1 Begu
\tn:4
    default_queue = workq
    pbs_version = 23.06.06
    job_history_enable = True

"""
_DSV = (
    "Server: "
    "pbs01|server_state=Active|default_queue=workq|pbs_version=23.06.06|job_history_enable=True"
)
_OPENPBS = f"""case "$*" in
  --version) echo "pbs_version = 23.06.06" ;;
  "-Bf -F dsv -D |") echo '{_DSV}' ;;
  *) echo "usage:" >&2; exit 2 ;;
esac
"""
_OLD = f"""case "$*" in
  --version) echo "pbs_version = PBSPro_13.1.2.160576" ;;
  -Bf) cat <<'.'
{_TEXT}.
  ;;
  *) echo "usage:" >&2; exit 2 ;;
esac
"""
_TORQUE = """case "$*" in
  --version) printf 'Version: 6.1.2\\nCommit: 661e092552de43a785c15d39a3634a541d86898e\\n' >&2 ;;
  -Bf) printf 'Server: trq\\n    server_state = Active\\n    pbs_version = 6.1.2\\n    keep_completed = 300\\n\\n' ;;
  *) echo "usage:" >&2; exit 2 ;;
esac
"""
_DOWN = """case "$*" in
  --version) echo "pbs_version = 23.06.06" ;;
  *) echo "Connection refused" >&2; exit 255 ;;
esac
"""
_WRAPPER = """# This file is part of Slurm, a resource management program.
case "$*" in
  --version) echo "Unknown option: version" >&2; echo "Usage:" >&2; exit 2 ;;
  -Q) echo "Queue              Max" ;;
  *) exit 153 ;;
esac
"""
_NO_PERL = """# This file is part of Slurm, a resource management program.
echo "Can't locate Slurm.pm in @INC (you may need to install the Slurm module)" >&2
exit 2
"""
_WRAPPER_WITHOUT_CONTROLLER = """# Slurm's
echo 'perl: fatal: Could not establish a configuration source' >&2
exit 1
"""
_GRID_ENGINE = """echo 'error: ERROR! invalid option argument "--version"' >&2
echo "GE 6.2u5" >&2
exit 1
"""
_SILENT = """case "$*" in
  -Bf) printf 'Server: pbs01\\n    pbs_version = 19.1.3\\n\\n' ;;
  *) exit 2 ;;
esac
"""
_HUNG = """case "$*" in
  --version) echo "pbs_version = 23.06.06" ;;
  *) exec sleep 600 ;;
esac
"""
_SHELLS = [
    shell
    for shell in ("sh", "bash", "dash", "ksh", "mksh", "zsh", "busybox")
    if shutil.which(shell)
]


def put(folder: Path, *programs: tuple[str, str]) -> None:
    """Programs of this text, run by sh, on a PATH of their own beside what any machine has."""
    for name in (
        "id",
        "date",
        "head",
        "tr",
        "sed",
        "dd",
        "grep",
        "cat",
        "sleep",
        "env",
        "sh",
        *_SHELLS,
    ):
        found = shutil.which(name)
        if found and not (folder / name).exists():
            (folder / name).symlink_to(found)
    for name, text in programs:
        (folder / name).write_text(f"#!/bin/sh\n{text}")
        (folder / name).chmod(0o755)


def answered(folder: Path, shell: str = "sh", argv: tuple[str, ...] = ()) -> CommandResult:
    argv = argv or PbsProbe().query().argv
    at = argv.index("sh")
    run = [shell, *(["sh"] if shell == "busybox" else []), *argv[at + 1 :]]
    done = subprocess.run(
        run, capture_output=True, env={"PATH": str(folder), "LC_ALL": "C"}, check=False
    )
    return CommandResult(argv, done.returncode, done.stdout, done.stderr, 0.0)


def probed(folder: Path, text: str, *others: str) -> Probe:
    put(folder, ("qstat", text), *((name, "exit 0\n") for name in others))
    return PbsProbe().query().parse(answered(folder))


def test_openpbs_tells_its_version_server_and_history(tmp_path: Path) -> None:
    probe = probed(tmp_path, _OPENPBS, "qsub")
    assert (probe.version, probe.dialect, probe.cluster) == ("OpenPBS 23.06.06", "openpbs", "pbs01")
    assert (probe.has_accounting, probe.controller_answers) == (True, True)
    assert probe.commands["qstat"] == str(tmp_path / "qstat")
    assert probe.commands["qsub"] == str(tmp_path / "qsub")
    assert probe.commands["qmove"] == ""
    assert probe.user
    assert probe.clock_epoch_seconds is not None
    assert not BACKEND.for_probe(probe).probe.needs_answer


def test_pbs_pro_before_18_is_read_as_text(tmp_path: Path) -> None:
    probe = probed(tmp_path, _OLD)
    assert (probe.version, probe.dialect, probe.cluster) == ("PBS Pro 13.1.2", "pbs-text", "pbs01")
    assert (probe.has_accounting, probe.controller_answers) == (True, True)


def test_torque_tells_its_version_on_stderr_and_keeps_no_history(tmp_path: Path) -> None:
    probe = probed(tmp_path, _TORQUE)
    assert (probe.version, probe.dialect, probe.cluster) == ("Torque 6.1.2", "torque", "trq")
    assert (probe.has_accounting, probe.controller_answers) == (False, True)


def test_history_is_off_where_the_server_does_not_name_it(tmp_path: Path) -> None:
    assert (
        probed(tmp_path, _OPENPBS.replace("|job_history_enable=True", "")).has_accounting is False
    )
    assert probed(tmp_path, _OPENPBS.replace("enable=True", "enable=False")).has_accounting is False


def test_a_server_that_is_down_is_told_apart_from_no_pbs(tmp_path: Path) -> None:
    probe = probed(tmp_path, _DOWN)
    assert (probe.version, probe.dialect, probe.cluster) == ("OpenPBS 23.06.06", "openpbs", "")
    assert (probe.has_accounting, probe.controller_answers) == (None, False)


def test_a_server_that_hangs_is_given_up_on(tmp_path: Path) -> None:
    # timeout as it is, with a shorter patience.
    put(tmp_path, ("timeout", f'shift; exec {shutil.which("timeout")} 0.2 "$@"\n'))
    probe = probed(tmp_path, _HUNG)
    assert (probe.dialect, probe.has_accounting, probe.controller_answers) == (
        "openpbs",
        None,
        False,
    )


@pytest.mark.parametrize("qstat", [_WRAPPER, _NO_PERL, _WRAPPER_WITHOUT_CONTROLLER])
def test_slurms_programs_by_torques_names_are_no_pbs(tmp_path: Path, qstat: str) -> None:
    with pytest.raises(CommandMissing, match="no PBS here: qstat is Slurm's") as raised:
        probed(tmp_path, qstat)
    assert "put squeue on the PATH" in raised.value.next_step
    assert raised.value.output


def test_slurms_programs_are_told_by_their_usage_where_their_file_cannot_be_read() -> None:
    usage = "Unknown option: version Usage:     qstat [-f] [-a|-i|-r] [-n [-1]]"
    stdout = f"user=alice\ncommand=qstat=/usr/bin/qstat\nversion={usage}\n".encode()
    with pytest.raises(CommandMissing, match="qstat is Slurm's"):
        parse_probe(CommandResult(("sh",), 0, stdout, b"", 0.0))


async def test_where_squeue_is_slurm_is_found_though_its_qstat_is_there_too(tmp_path: Path) -> None:
    async def ask(query: Query[Probe]) -> Probe:
        return query.parse(answered(tmp_path, argv=query.argv))

    put(
        tmp_path,
        ("squeue", 'echo "slurm 22.05.8"\n'),
        ("scontrol", "exit 0\n"),
        ("qstat", _WRAPPER),
    )
    backend, _ = await find_scheduler((SLURM, BACKEND), ask, lambda folder: None)
    assert backend.name == "slurm"


def test_a_script_of_the_site_around_the_real_qstat_is_pbs_though_it_names_slurm(
    tmp_path: Path,
) -> None:
    assert probed(tmp_path, f"# we may move to Slurm some day\n{_OPENPBS}").dialect == "openpbs"


def test_where_qstat_does_not_tell_its_version_the_server_does(tmp_path: Path) -> None:
    assert probed(tmp_path, _SILENT).version == "PBS Pro 19.1.3"


def test_another_schedulers_qstat_is_no_pbs(tmp_path: Path) -> None:
    with pytest.raises(CommandMissing, match="no PBS here: qstat is Grid Engine's") as raised:
        probed(tmp_path, _GRID_ENGINE)
    assert "GE 6.2u5" in raised.value.output
    with pytest.raises(CommandMissing, match="does not identify itself as PBS's"):
        probed(tmp_path, "echo hello\n")


def test_where_there_is_no_qstat_there_is_no_pbs(tmp_path: Path) -> None:
    put(tmp_path)
    with pytest.raises(CommandMissing, match="qstat is not on the PATH") as raised:
        PbsProbe().query().parse(answered(tmp_path))
    assert raised.value.next_step


@pytest.mark.parametrize("shell", _SHELLS)
def test_any_shell_runs_the_script(tmp_path: Path, shell: str) -> None:
    put(tmp_path, ("qstat", _OLD))
    probe = parse_probe(answered(tmp_path, shell))
    assert (probe.dialect, probe.cluster, probe.has_accounting) == ("pbs-text", "pbs01", True)


@for_each(
    ("said", "dialect", "version"),
    [
        ("pbs_version = 23.06.06", Dialect.OPENPBS, "OpenPBS 23.06.06"),
        ("pbs_version = 20.0.1", Dialect.OPENPBS, "OpenPBS 20.0.1"),
        ("pbs_version = 18.1.4", Dialect.OPENPBS, "PBS Pro 18.1.4"),
        ("pbs_version = 19.1.1", Dialect.OPENPBS, "PBS Pro 19.1.1"),
        ("pbs_version = 2021.1.3.20220217134230", Dialect.OPENPBS, "PBS Pro 2021.1.3"),
        ("pbs_version = 2022.1.1", Dialect.OPENPBS, "PBS Pro 2022.1.1"),
        ("pbs_version = 14.1.10", Dialect.PBS_TEXT, "PBS Pro 14.1.10"),
        ("pbs_version = PBSPro_13.0.1.153173", Dialect.PBS_TEXT, "PBS Pro 13.0.1"),
        ("pbs_version = PBSPro_9.2.2.81361", Dialect.PBS_TEXT, "PBS Pro 9.2.2"),
        ("pbs_version = master", Dialect.OPENPBS, "PBS master"),
        ("pbs_version = 6.1.3", Dialect.TORQUE, "Torque 6.1.3"),
        ("Version: 6.1.2 Commit: 661e09 ", Dialect.TORQUE, "Torque 6.1.2"),
        ("version: 4.2.10", Dialect.TORQUE, "Torque 4.2.10"),
        ("version: 2.5.13-snap.201", Dialect.TORQUE, "Torque 2.5.13-snap.201"),
    ],
)
def test_versions_tell_the_kind(said: str, dialect: Dialect, version: str) -> None:
    assert detect_dialect(said) == (dialect, version)


@for_each("said", ["", "Unknown option: version Usage:", "GE 6.2u5", "UGE 8.6.4", "slurm 22.05.8"])
def test_what_is_no_version_of_pbs(said: str) -> None:
    assert detect_dialect(said) is None


@given(st.binary(max_size=60), st.integers(0, 200), st.integers(0, 255))
def test_what_was_cut_or_garbled_is_a_probe_or_an_error(
    noise: bytes, cut: int, status: int
) -> None:
    whole = (
        b"user=alice\nclock=17\ncommand=qstat=/opt/pbs/bin/qstat\nversion=pbs_version = "
        b"23.06.06 \nServer=pbs01\n"
    )
    for stdout in (whole[:cut] + noise, noise + whole):
        try:
            probe = parse_probe(CommandResult(("sh",), status, stdout, noise, 0.0))
        except CommandMissing:
            continue
        assert Dialect(probe.dialect)


async def test_a_slurm_whose_squeue_is_slow_is_not_taken_for_a_pbs(tmp_path: Path) -> None:
    async def ask(query: Query[Probe]) -> Probe:
        return query.parse(answered(tmp_path, argv=query.argv))

    put(tmp_path, ("timeout", 'case "$*" in *squeue*) exit 124;; *) shift; exec "$@";; esac\n'))
    put(tmp_path, ("squeue", "exit 0\n"), ("scontrol", "exit 0\n"), ("qstat", _WRAPPER))
    with pytest.raises(CommandTimedOut, match="squeue --version did not respond within 10 s"):
        await find_scheduler((SLURM, BACKEND), ask, lambda folder: None)


def test_a_slow_qstat_is_not_told_to_be_somebody_elses(tmp_path: Path) -> None:
    put(tmp_path, ("timeout", "exit 124\n"), ("qstat", _OPENPBS))
    answer = answered(tmp_path)
    with pytest.raises(CommandTimedOut, match="qstat --version did not respond within 10 s"):
        PbsProbe().query().parse(answer)
