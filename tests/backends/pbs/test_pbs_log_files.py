"""Where a PBS job's output is, as a real OpenPBS 23.06 wrote it; and which file was submitted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcdash.backends.job_detail import JobDetail, LogFiles
from hpcdash.backends.pbs.dialects import Dialect
from hpcdash.backends.pbs.log_files import PbsLogs, last_files, submit_variable, submitted_file
from hpcdash.domain.states import JobState
from tests.support.job_rows import build_table, job_row
from tests.support.records import for_each

HOME, WORK = "/home/alice", "/home/alice/work/lg"
SPOOL = "/var/spool/pbs/spool"
VARIABLES = (
    f"PBS_O_HOME={HOME},PBS_O_LANG=C.UTF-8,PBS_O_LOGNAME=alice,PBS_O_PATH=/usr/bin:/bin,PBS_O_SHELL=/bin/bash,"
    f"PBS_O_WORKDIR={WORK},PBS_O_SYSTEM=Linux,A=x\\,PBS_O_HOME=/evil,PBS_O_QUEUE=workq,PBS_O_HOST=login1"
)
RUNNING, WAITING, ENDED = JobState.RUNNING, JobState.PENDING, JobState.COMPLETED
ON_CN01 = "PBS keeps the log on cn01 until the job ends; submit with -k oed to read the log here while the job runs"
BROUGHT = "PBS copies the log there when the job ends, or while it runs with -k oed"


def detail(
    native: Mapping[str, str], *, state: str = RUNNING, job_id: str = "153.pbs01", **row: Any
) -> JobDetail:
    """A job as `qstat -f` tells of it; it ran or runs on cn01 unless it waits."""
    told = {
        "Variable_List": VARIABLES,
        "Submit_Host": "login1",
        "Join_Path": "n",
        "Keep_Files": "n",
    }
    if state != WAITING:
        told["exec_host"] = "cn01/15"
    return JobDetail(build_table(job_row(job_id, state, **row)), {**told, **native})


def paths(name: str, number: int = 153) -> dict[str, str]:
    """The paths PBS gives a job that names none."""
    return {
        "Job_Name": name,
        "Output_Path": f"login1:{WORK}/{name}.o{number}",
        "Error_Path": f"login1:{WORK}/{name}.e{number}",
    }


def found(native: Mapping[str, str], **row: Any) -> LogFiles:
    return PbsLogs(Dialect.OPENPBS).files(detail(native, **row))


# -- while it runs


def test_a_running_job_s_output_is_in_the_spool_of_its_node() -> None:
    files = found(paths("def"))
    assert files == LogFiles(f"{SPOOL}/153.pbs01.OU", f"{SPOOL}/153.pbs01.ER", ON_CN01, "cn01")


def test_it_is_in_the_spool_whatever_path_was_asked_for() -> None:
    native = {"Output_Path": f"login1:{WORK}/abs.log", "Error_Path": f"login1:{WORK}/abs.err"}
    assert found(native, job_id="162.pbs01").stdout == f"{SPOOL}/162.pbs01.OU"


@pytest.mark.parametrize("state", [JobState.SUSPENDED, JobState.COMPLETING])
def test_a_suspended_or_exiting_job_has_its_file_on_the_node_still(state: str) -> None:
    assert found(paths("def"), state=state).host == "cn01"


@for_each(
    ("exec_host", "host"),
    [
        ("cn02/0*2+gpu01/9*2", "cn02"),
        ("gpu01/0*4", "gpu01"),
        ("cn01.example.org/3", "cn01.example.org"),
        ("cn01:15002/0*2", "cn01"),
        ("node7/0-3+node8/0-3", "node7"),
    ],
)
def test_the_first_node_writes_the_log_of_all(exec_host: str, host: str) -> None:
    assert found({**paths("def"), "exec_host": exec_host}).host == host


@for_each(
    "exec_host",
    ["-oProxyCommand=id/0", "$(id)/0", "a b/0", "", "/0", "+", "root@cn01/0", "\n-x/0", "ü/0"],
)
def test_what_is_no_name_of_a_machine_is_no_host(exec_host: str) -> None:
    files = found({**paths("def"), "exec_host": exec_host})
    assert (files.stdout, files.host) == (f"{WORK}/def.o153", "")
    assert "on the job's node until the job ends" in files.note


@for_each("keep", ["oed", "doe", "eod"])
def test_direct_write_puts_it_where_it_stays_at_once(keep: str) -> None:
    for state in (RUNNING, WAITING, ENDED):
        files = found({**paths("koed", 155), "Keep_Files": keep}, job_id="155.pbs01", state=state)
        assert files == LogFiles(f"{WORK}/koed.o155", f"{WORK}/koed.e155")


@pytest.mark.parametrize("state", [RUNNING, ENDED])
def test_kept_without_d_it_is_in_the_home_folder_whatever_the_path(state: str) -> None:
    files = found({**paths("koe", 154), "Keep_Files": "oe"}, job_id="154.pbs01", state=state)
    assert (files.stdout, files.stderr, files.host) == (f"{HOME}/koe.o154", f"{HOME}/koe.e154", "")
    assert "in the home folder on cn01 (-k oe)" in files.note


def test_one_stream_kept_and_the_other_not_are_both_on_the_node() -> None:
    files = found({**paths("kd"), "Keep_Files": "od"})
    assert files == LogFiles(f"{WORK}/kd.o153", f"{SPOOL}/153.pbs01.ER", ON_CN01, "cn01")


def test_joined_streams_are_one_file() -> None:
    native = {
        "Output_Path": f"login1:{WORK}/joed.log",
        "Error_Path": f"login1:{WORK}/joed.e160",
        "Keep_Files": "oed",
        "Join_Path": "oe",
    }
    assert found(native, job_id="160.pbs01") == LogFiles(f"{WORK}/joed.log", None)
    assert found({**native, "Join_Path": "eo"}, job_id="160.pbs01") == LogFiles(
        f"{WORK}/joed.e160", None
    )
    assert found({**native, "Join_Path": "eo", "Keep_Files": "n"}).stdout == f"{SPOOL}/153.pbs01.ER"


@pytest.mark.parametrize(("state", "keep"), [(RUNNING, "oed"), (ENDED, "n")])
def test_in_a_folder_it_is_named_after_the_job_s_id(state: str, keep: str) -> None:
    native = {
        "Output_Path": f"login1:{WORK}/d1/",
        "Error_Path": f"login1:{WORK}/d1/",
        "Keep_Files": keep,
    }
    files = found(native, job_id="158.pbs01", state=state)
    assert (files.stdout, files.stderr) == (f"{WORK}/d1/158.pbs01.OU", f"{WORK}/d1/158.pbs01.ER")
    task = found(native, job_id="167[2].pbs01", state=state, array_id="167[].pbs01", array_task="2")
    assert task.stdout == f"{WORK}/d1/167[2].pbs01.OU"


@for_each(
    "path",
    ["job.$PBS_JOBID.log", "d1/^array_index^.log", "%j.log", 'run a/out "x".txt', "e,rr", "a:b"],
)
def test_nothing_in_a_path_is_filled_in(path: str) -> None:
    native = {
        "Output_Path": f"login1:{WORK}/{path}",
        "Error_Path": f"login1:{WORK}/x",
        "Keep_Files": "oed",
    }
    assert found(native).stdout == f"{WORK}/{path}"


def test_a_path_may_come_without_its_machine() -> None:
    assert (
        found({"Output_Path": "/scratch/a:b", "Keep_Files": "oed", "Join_Path": "oe"}).stdout
        == "/scratch/a:b"
    )
    assert (
        found({"Output_Path": ":/scratch/x", "Keep_Files": "oed", "Join_Path": "oe"}).stdout
        == "/scratch/x"
    )


def test_a_private_sandbox_has_the_files_in_a_folder_of_the_job() -> None:
    native = {**paths("private", 161), "sandbox": "PRIVATE", "jobdir": f"{HOME}/pbs.161.pbs01.x8z"}
    files = found(native, job_id="161.pbs01")
    assert (files.stdout, files.host) == (f"{HOME}/pbs.161.pbs01.x8z/161.pbs01.OU", "")
    assert "sandbox=PRIVATE" in files.note
    assert found(native, job_id="161.pbs01", state=ENDED).stdout == f"{WORK}/private.o161"
    local = found({**native, "jobdir": "/local/pbs.161.pbs01.x8z"}, job_id="161.pbs01")
    assert (local.stdout, local.host) == ("/local/pbs.161.pbs01.x8z/161.pbs01.OU", "cn01")


def test_an_interactive_job_has_no_file() -> None:
    native = {"Output_Path": "/dev/pts/2", "Error_Path": "/dev/pts/2", "jobdir": HOME}
    for told in (native, {**native, "interactive": "True"}, {**paths("x"), "interactive": "True"}):
        files = found(told)
        assert (files.stdout, files.stderr, files.host) == (None, None, "")
        assert "terminal" in files.note


def test_what_goes_to_dev_null_is_in_no_spool() -> None:
    assert found({"Output_Path": "login1:/dev/null", "Join_Path": "oe"}) == LogFiles(
        "/dev/null", None
    )


# -- before and after


def test_a_waiting_job_s_file_will_be_brought_when_it_has_ended() -> None:
    assert found(paths("def"), state=WAITING) == LogFiles(
        f"{WORK}/def.o153", f"{WORK}/def.e153", BROUGHT
    )


def test_an_ended_job_s_files_are_where_it_wanted_them() -> None:
    assert found(paths("def"), state=ENDED) == LogFiles(f"{WORK}/def.o153", f"{WORK}/def.e153")
    assert found({**paths("def"), "Submit_Host": "login1.example.org"}, state=ENDED).note == ""


def test_files_that_went_to_another_machine_are_said_to_be_there() -> None:
    native = {**paths("def"), "Output_Path": "store7:/data/x.log"}
    assert found(native, state=ENDED) == LogFiles(
        "/data/x.log", f"{WORK}/def.e153", "PBS copied the log to store7"
    )


@pytest.mark.parametrize("state", [RUNNING, ENDED])
def test_files_that_pbs_removes_are_said_to_be(state: str) -> None:
    assert (
        "removes the log when the job ends (-R oe)"
        in found({**paths("R_oe"), "Remove_Files": "oe"}, state=state).note
    )
    assert "remove" not in found({**paths("x"), "Remove_Files": "n"}, state=state).note


def test_a_job_whose_folder_cannot_be_written_is_held_and_keeps_its_path() -> None:
    native = {
        "Output_Path": f"login1:{WORK}/sub dir/x.log",
        "Error_Path": f"login1:{WORK}/e.log",
        "Keep_Files": "oed",
    }
    files = found({**native, "Exit_status": "-3"}, job_id="157.pbs01", state=JobState.HELD)
    assert files == LogFiles(f"{WORK}/sub dir/x.log", f"{WORK}/e.log")


def test_a_job_s_last_files_are_known_while_it_runs() -> None:
    row = {"id": "153.pbs01", "state": RUNNING, "array_id": None, "array_task": None, "name": "def"}
    native = {**paths("def"), "Variable_List": VARIABLES, "exec_host": "cn01/0"}
    assert last_files(row, native, Dialect.OPENPBS) == (f"{WORK}/def.o153", f"{WORK}/def.e153")
    assert last_files(row, {**native, "Join_Path": "oe"}, Dialect.OPENPBS) == (
        f"{WORK}/def.o153",
        f"{WORK}/def.o153",
    )
    assert last_files(row, {**native, "Keep_Files": "oe"}, Dialect.OPENPBS) == (
        f"{HOME}/def.o153",
        f"{HOME}/def.e153",
    )
    assert last_files(
        row, {"interactive": "True", "Output_Path": "/dev/pts/1"}, Dialect.OPENPBS
    ) == (None, None)


# -- arrays


TASK = {"job_id": "165[2].pbs01", "array_id": "165[].pbs01", "array_task": "2"}


def test_a_task_s_paths_have_its_number() -> None:
    native = {
        "Output_Path": f"login1:{WORK}/log.2.txt",
        "Error_Path": f"login1:{WORK}/arrlog.e165.2",
    }
    assert found({**native, "Keep_Files": "oed"}, **TASK).stdout == f"{WORK}/log.2.txt"
    assert found(native, **TASK).stdout == f"{SPOOL}/165[2].pbs01.OU"


def test_a_task_that_waits_in_its_array_gets_its_own_path() -> None:
    native = {
        "Output_Path": f"login1:{WORK}/log.^array_index^.txt",
        "Join_Path": "oe",
        "array": "True",
    }
    assert found(native, state=WAITING, **TASK).stdout == f"{WORK}/log.2.txt"


def test_of_tasks_that_wait_together_each_has_a_file_of_its_own() -> None:
    native = {
        "Output_Path": f"login1:{WORK}/log.^array_index^.txt",
        "Join_Path": "oe",
        "array": "True",
    }
    together = {"job_id": "165[2-3].pbs01", "array_id": "165[].pbs01", "array_task": "2-3"}
    files = found(native, state=WAITING, **together)
    assert files == LogFiles(
        f"{WORK}/log.^array_index^.txt", None, f"each task writes to its own file; {BROUGHT}"
    )
    running = {"job_id": "165[].pbs01", "array_id": "165[].pbs01", "array_task": "1-3"}
    assert found(native, **running).host == ""
    ended = found(native, state=ENDED, **running)
    assert ended == LogFiles(
        f"{WORK}/log.^array_index^.txt", None, "each task writes to its own file"
    )


def test_a_kept_task_s_file_ends_with_its_number() -> None:
    native = {**paths("arr", 165), "Keep_Files": "oe"}
    assert found(native, **TASK).stdout == f"{HOME}/arr.o165.2"


# -- other dialects


def test_torque_has_a_spool_of_its_own_and_no_direct_write() -> None:
    native = {
        "Output_Path": f"head:{WORK}/STDIN.o12",
        "Error_Path": f"head:{WORK}/STDIN.e12",
        "exec_host": "n1/0+n1/1",
    }
    files = PbsLogs(Dialect.TORQUE).files(detail(native, job_id="12.head.example.org"))
    assert (files.stdout, files.host) == ("/var/spool/torque/spool/12.head.example.org.OU", "n1")
    assert files.note == "Torque keeps the log on n1 until the job ends"
    assert (
        PbsLogs(Dialect.TORQUE).files(detail(native, state=WAITING)).note
        == "Torque copies the log there when the job ends"
    )


def test_torque_fills_in_variables_itself() -> None:
    native = {"Output_Path": f"head:{WORK}/$PBS_JOBID.${{HOME}}.$NONE.o", "Join_Path": "oe"}
    files = PbsLogs(Dialect.TORQUE).files(detail(native, job_id="12.head", state=ENDED))
    assert files.stdout == f"{WORK}/12.head.{HOME}.$NONE.o"
    assert "a guess" in files.note


def test_pbs_professional_before_14_has_its_spool_elsewhere() -> None:
    files = PbsLogs(Dialect.PBS_TEXT).files(detail(paths("def")))
    assert files.stdout == "/var/spool/PBS/spool/153.pbs01.OU"
    assert files.note == "PBS keeps the log on cn01 until the job ends"


def test_a_job_that_tells_no_path_has_none() -> None:
    assert found({}, state=ENDED).stdout is None
    assert found({"Variable_List": "", "Keep_Files": "oe"}).stdout is None


ATTRIBUTES = [
    "Output_Path",
    "Error_Path",
    "Keep_Files",
    "Join_Path",
    "exec_host",
    "Variable_List",
    "jobdir",
    "sandbox",
]
ATTRIBUTES += ["Submit_arguments", "Remove_Files", "interactive", "Job_Name", "Submit_Host"]


@given(
    st.dictionaries(
        st.sampled_from(ATTRIBUTES),
        st.text()
        | st.sampled_from(
            ["oed", "oe", "PRIVATE", "h:/x/", VARIABLES, "cn01/0", "-k o", "/dev/null"]
        ),
    ),
    st.sampled_from(list(JobState)),
    st.sampled_from(list(Dialect)),
)
def test_no_answer_breaks_it(native: dict[str, str], state: JobState, dialect: Dialect) -> None:
    job = detail(native, state=state)
    files = PbsLogs(dialect).files(job)
    assert not files.host.startswith("-")
    assert files.stdout is None or files.stdout
    submitted_file(job)


# -- what was submitted


@for_each(
    ("arguments", "file"),
    [
        ("-N direct -k oed sleep.sh", f"{WORK}/sleep.sh"),
        ("-N arr -J 1-10 arr.sh", f"{WORK}/arr.sh"),
        ("-h 123.sh", f"{WORK}/123.sh"),
        ("-hN x -Vz -koed /srv/run.sh", "/srv/run.sh"),
        (
            "-N grandchild -W depend=afterany:9.pbs01:10.pbs01,umask=022 sleep.sh",
            f"{WORK}/sleep.sh",
        ),
        ('-h -N env_comma -v A="x,y" sleep.sh', f"{WORK}/sleep.sh"),
        ("run.sh", f"{WORK}/run.sh"),
        ("-N execform -l walltime=1:00:00 -- /bin/sleep 3000", None),
        ("-I -N inter -l walltime=1:00:00", None),
        ("-VI x.sh", None),
        ("-N stdin", None),
        ("-N stdin -", None),
        ("-h -N env_space -v A=hello world sleep.sh", None),
        ("-P big project -m abe sleep.sh", None),
        ("my script.sh", None),
        ('"quoted.sh"', None),
        ("-w /elsewhere run.sh", None),
        ("-N", None),
        ("", None),
    ],
)
def test_the_file_that_was_submitted_is_the_last_word(arguments: str, file: str | None) -> None:
    assert submitted_file(detail({"Submit_arguments": arguments})) == file
    assert submitted_file(detail({"submit_args": arguments})) == file


def test_without_the_folder_it_was_submitted_from_a_relative_name_is_none() -> None:
    assert (
        submitted_file(detail({"Submit_arguments": "run.sh", "Variable_List": "PBS_O_HOME=/h"}))
        is None
    )


@for_each(
    ("listed", "value"),
    [
        ("PBS_O_HOME=/a,B=1", "/a"),
        ("B=1,PBS_O_HOME=/a\\,b\\\\", "/a,b\\"),
        ("XPBS_O_HOME=/a", ""),
        ("A=x\\,PBS_O_HOME=/evil,PBS_O_HOME=/a", "/a"),
        ("PBS_O_HOME=", ""),
        ("", ""),
    ],
)
def test_a_variable_is_read_out_of_the_list(listed: str, value: str) -> None:
    assert submit_variable({"Variable_List": listed}, "PBS_O_HOME") == value
