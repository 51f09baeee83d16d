"""What qsub is given for a script, first or once more, and what its answers mean, as OpenPBS 23.06
printed them.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hpcdash.backends.actions import Outcome
from hpcdash.backends.job_detail import JobDetail, Script
from hpcdash.backends.pbs.dialects import Dialect
from hpcdash.backends.pbs.submit import PbsSubmit
from hpcdash.backends.submissions import NewLimits, Submission, SubmitCommand
from hpcdash.domain.array_tasks import parse_tasks
from hpcdash.domain.job_ids import parse_array_id, parse_job_number, parse_task_part
from hpcdash.errors import UsageError
from hpcdash.transport.base import CommandResult
from tests.support.job_rows import build_table
from tests.support.records import for_each

OPENPBS, TEXT, TORQUE = Dialect.OPENPBS, Dialect.PBS_TEXT, Dialect.TORQUE
MARK = "hpcdash:0123456789"
MARKED = f"HPCDASH_MARK={MARK}"
FIXTURES = Path(__file__).parents[3] / "fixtures" / "pbs"
LIVE_LOG = "the output stays on the execution host until the job ends; use -k oed to read the output while the job runs"
USAGE = b"""usage: qsub [-a date_time] [-A account_string] [-c interval]
\t[-C directive_prefix] [-e path] [-f ] [-h ] [-I [-X]] [-j oe|eo] [-J X-Y[:Z]]
       qsub --version
"""


def text(*directives: str) -> bytes:
    return "\n".join(("#!/bin/bash", *directives, "sleep 1", "")).encode()


def handed(
    *options: str, script: bytes = b"", dialect: Dialect = OPENPBS, **wanted: Any
) -> SubmitCommand:
    wanted = {"name": "train.sh", "mark": MARK, "script": script or text(), **wanted}
    return PbsSubmit(dialect).submission(Submission(options=options, **wanted))


def words(found: SubmitCommand) -> list[str]:
    """qsub's words, without those that each submission has."""
    argv = list(found.command.argv)
    argv = argv[argv.index("qsub") + 1 :]
    for usual in (["-f"], ["-N", "train.sh"], ["-v", MARKED]):
        if usual[0] in argv and argv[argv.index(usual[0]) :][: len(usual)] == usual:
            del argv[argv.index(usual[0]) : argv.index(usual[0]) + len(usual)]
    return argv


def answered(stdout: bytes = b"", *, status: int = 0, stderr: bytes = b"") -> CommandResult:
    return CommandResult(("qsub",), status, stdout, stderr, 0.01)


# -- a script for the first time


def test_a_script_comes_on_stdin_with_a_name_and_our_mark() -> None:
    found = handed()
    assert found.command.argv == ("qsub", "-f", "-N", "train.sh", "-v", MARKED)
    assert found.command.stdin == text()
    assert found.command.job_ids == ("train.sh",)
    assert (found.mark, found.job_name) == (MARK, "train.sh")


def test_qsub_runs_without_a_time_zone_or_locale_of_ours() -> None:
    """-a is a time in the zone of who runs it, PBS_O_TZ is sent with the job, and with -V LC_ALL
    would be.
    """
    assert not any(
        word.startswith(("TZ=", "LC_ALL=")) for word in handed("-a", "1130").command.argv
    )


def test_only_openpbs_is_kept_from_leaving_a_process_behind() -> None:
    """Torque's -f is another option."""
    assert [
        dialect
        for dialect in (OPENPBS, TEXT, TORQUE)
        if "-f" in handed(dialect=dialect).command.argv
    ] == [OPENPBS]


def test_options_are_handed_on_as_they_were_given() -> None:
    given = (
        "-l",
        "select=1:ncpus=4",
        "-koed",
        "-m",
        "abe",
        "-M",
        "bob@example.org",
        "-P",
        "big project",
        "-W",
        "umask=022",
    )
    assert words(handed(*given)) == [*given]


@for_each(
    ("file", "name"),
    [
        ("ok.sh", "ok.sh"),
        ("run a.sh", "run_a.sh"),
        ("a[1].sh", "a_1_.sh"),
        ("naïve.sh", "na_ve.sh"),
        ("日本語.sh", "job_sh"),
        ("123.sh", "job_123.sh"),
        ("-dash.sh", "job_dash.sh"),
        (".hidden", "job_hidden"),
        ("esc\x1b[31mred.sh", "esc_31mred.sh"),
        ("n" * 300, "n" * 230),
        ("\udcff.sh", "job_sh"),
    ],
)
def test_a_file_s_name_becomes_one_that_qsub_takes(file: str, name: str) -> None:
    found = handed(name=file)
    assert found.command.argv[:4] == ("qsub", "-f", "-N", name)
    assert any(f"named {name}" in note for note in found.notes) is (file != name)


def test_torque_s_names_are_short() -> None:
    assert handed(name="thisisaverylongscriptname.sh", dialect=TORQUE).job_name == "thisisaverylong"


@pytest.mark.parametrize("options", [("-N", "mine"), ()])
def test_a_name_of_its_own_stays(options: tuple[str, ...]) -> None:
    found = handed(*options, script=text() if options else text("#PBS -N mine"))
    assert words(found) == [*options]
    assert found.job_name == "mine"


# -- our mark beside variables


def test_our_mark_takes_no_variable_of_the_script_away() -> None:
    """-v on the command line takes the place of the script's."""
    found = handed(script=text("#PBS -v A=1,B='x\\,y',HOME"))
    assert found.command.argv[-2:] == ("-v", f"{MARKED},A=1,B=x\\,y,HOME")


def test_variables_given_take_the_place_of_the_script_s_as_qsub_has_it() -> None:
    found = handed("-v", "C=3", "-q", "gpu", "-v", "D=4", script=text("#PBS -v A=1"))
    assert words(found) == ["-q", "gpu", "-v", f"{MARKED},D=4"]


def test_torque_adds_variables_up() -> None:
    assert words(handed("-v", "C=3", script=text("#PBS -v A=1"), dialect=TORQUE)) == [
        "-v",
        f"{MARKED},A=1,C=3",
    ]


def test_where_a_quote_is_open_there_is_no_mark_and_that_is_said() -> None:
    found = handed("-v", 'A=say "hi')
    assert found.mark == ""
    assert words(found) == ["-v", 'A=say "hi']
    assert any("cannot mark" in note for note in found.notes)
    assert words(handed(script=text("#PBS -v 'A=\"'"))) == []


# -- arrays


@for_each(
    ("array", "spoken"),
    [
        ("1-10", "1-10"),
        ("1-10%1", "1-10%1"),
        ("0-20:5", "0-20:5"),
        ("5", "5-6:2"),
        ("1,3,5", "1-5:2"),
        ("3,7%2", "3-7:4%2"),
        ("1-3,4-6", "1-6"),
    ],
)
def test_an_array_is_a_range_as_pbs_has_them(array: str, spoken: str) -> None:
    """qsub refuses -J 5, -J 1-1 and -J 1,3,5."""
    assert words(handed(array=array)) == ["-J", spoken]


def test_tasks_that_are_no_range_are_refused_with_what_to_do() -> None:
    with pytest.raises(
        UsageError, match=r"1-3,7 is not a single range\nSubmit these separately: 1-3, 7"
    ) as refused:
        handed(array="1-3,7")
    assert "one task range per submission" in refused.value.message


def test_torque_takes_lists() -> None:
    assert words(handed(array="1,3,7-9%2", dialect=TORQUE)) == ["-t", "1,3,7-9%2"]


def test_releases_that_cannot_limit_running_tasks_are_not_asked_to() -> None:
    assert words(handed(array="1-10", dialect=TEXT)) == ["-J", "1-10"]
    with pytest.raises(UsageError, match="Remove %2"):
        handed(array="1-10%2", dialect=TEXT)


@for_each(
    ("options", "directives", "array"),
    [
        ((), ("#PBS -r n",), "1-3"),
        (("-r", "n"), (), "1-3"),
        (("-J", "1-3"), ("#PBS -r n",), ""),
        ((), ("#PBS -J 1-3 -rn",), ""),
    ],
)
def test_an_array_that_may_not_be_rerun_is_refused_before_pbs_refuses_it(
    options: tuple[str, ...], directives: tuple[str, ...], array: str
) -> None:
    with pytest.raises(UsageError, match="PBS arrays must be rerunable") as refused:
        handed(*options, script=text(*directives), array=array)
    assert ("in the script" in refused.value.message) is bool(directives)
    assert "Remove -r n" in refused.value.next_step


def test_an_option_over_the_script_s_makes_its_array_rerunable() -> None:
    assert words(handed("-r", "y", script=text("#PBS -r n"), array="1-3")) == [
        "-r",
        "y",
        "-J",
        "1-3",
    ]
    assert words(handed("-r", "n", array="1-3", dialect=TORQUE)) == ["-r", "n", "-t", "1-3"]


# -- jobs that wait


def test_a_job_waits_for_others_however_they_end() -> None:
    found = handed(after=("12", "13.pbs01", "14[].pbs01"))
    assert words(found) == ["-W", "depend=afterany:12:13.pbs01:14[].pbs01"]
    assert any("no longer knows" in note for note in found.notes)


def test_what_it_waits_for_already_stays() -> None:
    """-W depend on the command line takes the place of the script's."""
    script = text("#PBS -W depend=afterok:9,umask=022")
    assert words(handed(after=("12",), script=script)) == ["-W", "depend=afterok:9,afterany:12"]
    found = handed("-W", "depend=afterok:8,umask=077", after=("12",), script=script)
    assert words(found) == ["-W", "umask=077", "-W", "depend=afterok:8,afterany:12"]
    made = text("#PBS -W depend=afterany:12:13[]")
    assert words(handed(after=("12", "13[]"), script=made)) == ["-W", "depend=afterany:12:13[]"]


def test_torque_waits_for_arrays_in_words_of_their_own() -> None:
    assert words(handed(after=("12", "14[]"), dialect=TORQUE)) == [
        "-W",
        "depend=afterany:12,afteranyarray:14[]",
    ]


@for_each("after", ["12[3].pbs01", "12_3", "x", "12,umask=0", "12 -W x"])
def test_tasks_and_what_is_no_id_cannot_be_waited_for(after: str) -> None:
    with pytest.raises(UsageError):
        handed(after=(after,))


def test_a_job_may_be_held_and_is_once() -> None:
    assert words(handed(held=True)) == ["-h"]
    assert words(handed("-h", held=True)) == ["-h"]
    assert words(handed(held=True, script=text("#PBS -h"))) == []


# -- what cannot be


@for_each(
    ("options", "script"),
    [
        (("-I",), ()),
        (("-hX",), ()),
        ((), ("#PBS -I",)),
        (("-W", "block=true"), ()),
        ((), ("#PBS -W umask=022,block=TRUE",)),
        (("--foo",), ()),
        (("-Z",), ()),
        (("-N",), ()),
        (("other.sh",), ()),
        (("--", "/bin/sleep", "1"), ()),
    ],
)
def test_what_would_wait_or_talk_or_is_no_option_is_refused(
    options: tuple[str, ...], script: tuple[str, ...]
) -> None:
    with pytest.raises(UsageError):
        handed(*options, script=text(*script))


def test_pbs_hands_a_script_no_arguments_and_says_how_else() -> None:
    with pytest.raises(UsageError, match="-v NAME=VALUE"):
        handed(arguments=("first",))


def test_torque_does_but_not_with_blanks() -> None:
    assert words(handed(arguments=("first", "2"), dialect=TORQUE)) == ["-F", "first 2"]
    with pytest.raises(UsageError, match="a b"):
        handed(arguments=("a b",), dialect=TORQUE)


def test_a_script_after_a_command_is_no_directive() -> None:
    assert words(handed(script=b"#!/bin/sh\ntrue\n#PBS -I\n#PBS -N no\n")) == []


# -- advice


@for_each(
    ("options", "script", "is_told"),
    [
        ((), (), True),
        (("-k", "oed"), (), False),
        ((), ("#PBS -k oed",), False),
        (("-koe",), ("#PBS -k oed",), True),
    ],
)
def test_how_to_read_the_log_while_it_runs_is_told(
    options: tuple[str, ...], script: tuple[str, ...], is_told: bool
) -> None:
    assert (LIVE_LOG in handed(*options, script=text(*script)).notes) is is_told


def test_what_v_does_not_do_is_told() -> None:
    assert any("pass variables with -v" in note for note in handed("-V").notes)
    assert handed("-V", dialect=TORQUE).notes == ()


# -- what qsub says


def outcome(answer: CommandResult, dialect: Dialect = OPENPBS) -> Outcome:
    [found] = handed(dialect=dialect).command.read(answer)
    assert found.job_id == "train.sh"
    return found


@for_each("job_id", ["1.pbs01", "0.pbs01", "137[].pbs01", "12[].srv-1.example.org"])
def test_the_new_job_s_id_is_all_that_qsub_prints(job_id: str) -> None:
    assert outcome(answered(f"{job_id}\n".encode())) == Outcome("train.sh", True, f"job {job_id}")


def test_a_site_s_words_before_the_id_are_no_id() -> None:
    printed = (
        b"Project: 42.5 h left\nYour job will be charged to 7.x of y\n3\n\n5.pbs01 is "
        b"soon\n  138.pbs01  \nThanks!\n"
    )
    assert outcome(answered(printed)).text == "job 138.pbs01"


def test_torque_may_leave_its_server_out_and_pbs_does_not() -> None:
    assert outcome(answered(b"138\n"), TORQUE).text == "job 138"
    assert outcome(answered(b"138[]\n"), TORQUE).text == "job 138[]"
    assert outcome(answered(b"138\n")).done is None


def test_without_an_id_it_is_not_known_and_looked_for() -> None:
    """As with -z, which prints none."""
    assert outcome(answered(b"")).done is None


@for_each(
    ("status", "stderr", "told"),
    [
        (170, b"qsub: Unknown queue\n", "Unknown queue"),
        (188, b"qsub: Job violates queue\n", "Job violates queue"),
        (38, b"qsub: would exceed queue generic's per-user limit\n", "would exceed queue generic's "
                                                                     "per-user limit"),
        (2, b"qsub: illegal -J value\n" + USAGE, "illegal -J value"),
        (1, b"qsub: invalid option -- 'Z'\nqsub: directive error: -Z\n", "invalid option -- 'Z'; "
                                                                         "directive error: -Z"),
        (162, b"Connection refused\nqsub: cannot connect to server pbs01 (errno=15010)\n",
         "Connection refused; cannot connect to server pbs01 (errno=15010)"),
        (32, b"qsub: no budget left\nask your PI\n", "no budget left; ask your PI"),
        (5, b"", "qsub exited with status 5"),
    ],
)  # fmt: skip
def test_a_refusal_is_in_qsub_s_own_words(status: int, stderr: bytes, told: str) -> None:
    assert outcome(answered(status=status, stderr=stderr)) == Outcome(
        "train.sh", False, told, is_unreachable=told.startswith("Connection refused")
    )


@for_each(
    ("status", "stderr", "is_unreachable"),
    [
        (162, b"Connection refused\nqsub: cannot connect to server pbs01 (errno=15010)\n", True),
        (162, b"No route to host\nqsub: cannot connect to server pbs01 (errno=15010)\n", True),
        (160, b"Unknown Host.\nqsub: cannot connect to server nosuchs (errno=15008)\n", True),
        (173, b"qsub: Queue is not enabled\n", False),
        (159, b"qsub: Unauthorized Request \n", False),
    ],
)
def test_a_server_that_cannot_be_asked_is_told_from_one_that_refuses(
    status: int, stderr: bytes, is_unreachable: bool
) -> None:
    found = outcome(answered(status=status, stderr=stderr))
    assert (found.done, found.is_unreachable) == (False, is_unreachable)


@for_each(
    ("status", "stderr"),
    [(124, b""), (143, b""), (183, b"qsub: Batch protocol error\n"), (233, b"qsub: End of File\n")],
)
def test_where_the_connection_broke_the_job_may_be_there(status: int, stderr: bytes) -> None:
    assert outcome(answered(status=status, stderr=stderr)).done is None


@given(
    st.integers(0, 255),
    st.binary(max_size=80),
    st.binary(max_size=80),
    st.sampled_from(list(Dialect)),
)
def test_no_answer_breaks_the_reader(
    status: int, stdout: bytes, stderr: bytes, dialect: Dialect
) -> None:
    [found] = handed(dialect=dialect).command.read(answered(stdout, status=status, stderr=stderr))
    assert found.job_id == "train.sh"
    assert found.done is not True or found.text.startswith("job ")


# -- once more

HOME, WORK = "/home/alice", "/home/alice/work"
VARIABLES = (
    f"PBS_O_HOME={HOME},PBS_O_LANG=C.UTF-8,PBS_O_WORKDIR={WORK},PBS_O_QUEUE=route,PBS_O_HOST=login1"
)
RECORD = {
    "Job_Name": "sim",
    "queue": "workq",
    "Checkpoint": "u",
    "Error_Path": f"login1:{WORK}/sim.e9",
    "Join_Path": "n",
    "Keep_Files": "n",
    "Mail_Points": "a",
    "Output_Path": f"login1:{WORK}/sim.o9",
    "Priority": "0",
    "Rerunable": "True",
    "Resource_List.ncpus": "4",
    "Resource_List.mem": "2gb",
    "Resource_List.nodect": "2",
    "Resource_List.place": "scatter",
    "Resource_List.select": "2:ncpus=2:mem=1gb",
    "Resource_List.walltime": "01:00:00",
    "project": "_pbs_project_default",
    "Variable_List": VARIABLES,
    "Submit_arguments": "-l select=2:ncpus=2:mem=1gb -l place=scatter sim.sh",
}
PLAIN = [
    "-N",
    "sim",
    "-q",
    "route",
    "-l",
    "place=scatter",
    "-l",
    "select=2:ncpus=2:mem=1gb",
    "-l",
    "walltime=01:00:00",
]


def detail(
    native: Mapping[str, str], job_id: str = "9.pbs01", base: Mapping[str, str] = RECORD
) -> JobDetail:
    task = parse_task_part(job_id)
    row = {
        "id": job_id,
        "array_id": parse_array_id(job_id) if "[" in job_id else None,
        "name": native.get("Job_Name", "sim"),
        "work_dir": WORK,
        "_number": int(parse_job_number(job_id)),
        "_task": int(task) if task.isdigit() else None,
    }
    return JobDetail(build_table(row), {**base, **native})


def script(*directives: str) -> Script:
    return Script(text(*directives).decode(), "kept here")


def again(
    native: Mapping[str, str] | None = None,
    *directives: str,
    job_id: str = "9.pbs01",
    tasks: str | None = None,
    dialect: Dialect = OPENPBS,
) -> SubmitCommand:
    wanted = None if tasks is None else parse_tasks(tasks)
    return PbsSubmit(dialect).resubmission(
        detail(native or {}, job_id), {}, script(*directives), wanted, MARK
    )


def options(found: SubmitCommand) -> list[str]:
    argv = list(found.command.argv)
    assert argv[:5] == ["sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", WORK]
    assert argv[5:7] == ["qsub", "-f"]
    return argv[7:]


def test_a_job_is_made_again_from_its_record_in_the_folder_it_was_submitted_from() -> None:
    found = again()
    assert options(found) == [*PLAIN, "-v", MARKED]
    assert found.command.stdin == text()
    assert (found.command.job_ids, found.mark, found.job_name) == (("9.pbs01",), MARK, "sim")
    assert found.notes == ("options are from the PBS record of job 9.pbs01",)


@pytest.mark.system
def test_the_folder_is_one_word_whatever_is_in_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "a'b $(touch x) é"
    folder.mkdir()
    argv = [str(folder) if word == WORK else word for word in again().command.argv]
    argv[argv.index("qsub") :] = ["pwd"]
    done = subprocess.run(argv, capture_output=True, check=True)
    assert done.stdout.decode().strip() == str(folder)
    missing = subprocess.run(
        [*argv[:4], str(tmp_path / "no"), "true"], capture_output=True, check=False
    )
    assert missing.returncode != 0


def test_sums_over_chunks_are_not_said_beside_them_and_other_resources_are() -> None:
    """qsub refuses -l ncpus beside -l select."""
    found = options(
        again(
            {
                "Resource_List.matlab": "1",
                "Resource_List.filesystems": "home:eagle",
                "Resource_List.ngpus": "2",
            }
        )
    )
    assert [word.partition("=")[0] for word in found if "=" in word] == [
        *("place", "select", "walltime", "matlab", "filesystems", "HPCDASH_MARK"),
    ]


def test_of_nodes_the_select_that_pbs_made_of_them_is_not_said() -> None:
    native = {
        "Resource_List.nodes": "2:ppn=4",
        "Resource_List.select": "2:ncpus=4:mpiprocs=4",
        "Resource_List.mpiprocs": "8",
    }
    assert [word for word in options(again(native)) if "=" in word][:2] == [
        "walltime=01:00:00",
        "nodes=2:ppn=4",
    ]


def test_what_was_chosen_is_chosen_again() -> None:
    native = {
        "Account_Name": "proj42",
        "project": "big project",
        "Priority": "-5",
        "Join_Path": "oe",
        "Keep_Files": "oed",
        "Mail_Points": "abe",
        "Mail_Users": "bob@example.org",
        "Rerunable": "False",
        "umask": "22",
        "Output_Path": f"login1:{WORK}/logs/out.txt",
        "Error_Path": "store:/elsewhere/err.txt",
    }
    found = options(again(native))
    pairs = dict(zip(found[::2], found[1::2], strict=True))
    assert {
        letter: pairs[letter] for letter in pairs if letter not in ("-N", "-q", "-l", "-v")
    } == {
        "-A": "proj42",
        "-P": "big project",
        "-p": "-5",
        "-j": "oe",
        "-k": "oed",
        "-m": "abe",
        "-M": "bob@example.org",
        "-r": "n",
        "-W": "umask=22",
        "-o": f"{WORK}/logs/out.txt",
        "-e": "store:/elsewhere/err.txt",
    }


def test_what_was_meant_for_then_is_left_out_and_that_is_said() -> None:
    found = again(
        {
            "depend": "afterok:8.pbs01@pbs01,beforeany:11.pbs01@pbs01",
            "Execution_Time": "Sat Nov 21 04:01:41 2026",
        }
    )
    assert options(found) == [*PLAIN, "-v", MARKED]
    assert "omitted (no longer applicable): its dependency, its start time" in found.notes
    assert len(again({"depend": "beforeany:16.pbs01@pbs01"}).notes) == 1


def test_variables_go_along_without_pbs_s_own_and_an_earlier_mark() -> None:
    variables = f"{VARIABLES},A=1,HPCDASH_MARK=hpcdash:old,B=x\\,y,EMPTY=,SPACE=a b"
    assert options(again({"Variable_List": variables}))[-2:] == [
        "-v",
        f"{MARKED},A=1,B=x\\,y,EMPTY=,SPACE=a b",
    ]


def test_variables_that_qsub_would_change_are_named() -> None:
    """qsub takes quotes away and doubles backslashes; a newline is shown with one, an escape as
    ^[.
    """
    found = again(
        {
            "Variable_List": f"{VARIABLES},Q=say "
            '\\"hi\\",NL=x\\ny,BS=x\\\\y,ESC=^[[31m,BAD=\ufffd,OK=5^2é'
        }
    )
    assert options(found)[-1] == f"{MARKED},OK=5^2é"
    assert any(note.endswith("omitted: Q, NL, BS, ESC, BAD") for note in found.notes)


def test_a_whole_environment_is_that_of_a_new_session_and_said_to_be() -> None:
    variables = f"{VARIABLES},SHELL=/bin/bash,A=1,PATH=/usr/bin"
    found = again({"Variable_List": variables, "Submit_arguments": "-V -v A=1 sim.sh"})
    assert options(found) == [*PLAIN, "-V", "-v", f"{MARKED},A=1"]
    assert any("new session" in note for note in found.notes)
    assert options(again({"Variable_List": variables}, "#PBS -V -v SHELL")) == [
        *PLAIN,
        "-v",
        f"{MARKED},SHELL=/bin/bash",
    ]


# -- once more, and what its directives say


def test_what_the_directives_say_as_well_is_not_said_twice() -> None:
    found = again({}, "#PBS -N sim -l select=2:ncpus=2:mem=1gb,walltime=1:00:00", "#PBS -q route")
    assert options(found) == ["-l", "place=scatter", "-v", MARKED]


def test_what_they_say_otherwise_is_said_over_them() -> None:
    assert options(again({}, "#PBS -l walltime=2:00:00 -N other")) == [*PLAIN, "-v", MARKED]


@for_each(
    ("line", "shown"),
    [
        ("-a 1130", "-a"),
        ("-h", "-h"),
        ("-W depend=afterok:8", "-W depend"),
        ("-W block=true", "-W block"),
        ("-W umask=077", "-W umask"),
        ("-l ncpus=4", "-l ncpus"),
        ("-j oe", "-j"),
        ("-J 1-3", "-J"),
        ("-Z", "-Z"),
    ],
)
def test_directives_that_no_option_takes_back_are_not_read(line: str, shown: str) -> None:
    found = again({}, f"#PBS {line}", "#PBS -N sim")
    assert options(found) == ["-C", "#no-directives", *PLAIN, "-v", MARKED]
    assert found.notes[-1] == f"#PBS lines are ignored, because the job did not have: {shown}"


def test_directives_for_what_is_so_anyway_are_read() -> None:
    native = {"umask": "22", "Output_Path": f"login1:{WORK}/logs/o.txt"}
    found = again(native, "#PBS -W umask=022 -r y -m a -p 0 -j n -o logs/o.txt -z -f")
    assert options(found) == [*PLAIN, "-v", MARKED]


# -- arrays once more


def test_an_array_is_made_again_with_its_limit_and_default_paths_are_no_choice() -> None:
    native = {
        "Output_Path": f"login1:{WORK}/sim.o9.^array_index^",
        "Error_Path": f"login1:{WORK}/sim.e9.^array_index^",
        "array_indices_submitted": "1-10",
        "max_run_subjobs": "3",
    }
    found = again(native, "#PBS -J 1-20", job_id="9[].pbs01")
    assert options(found) == [*PLAIN, "-J", "1-10%3", "-v", MARKED]
    assert found.command.job_ids == ("9[].pbs01",)


@for_each(
    ("tasks", "spoken"), [("3", "3-4:2"), ("3,7", "3-7:4"), ("2-5", "2-5"), ("0-20:5", "0-20:5")]
)
def test_some_tasks_are_a_range_of_them(tasks: str, spoken: str) -> None:
    found = again({"Output_Path": f"login1:{WORK}/sim.o9.2"}, job_id="9[2].pbs01", tasks=tasks)
    assert options(found)[-4:] == ["-J", spoken, "-v", MARKED]
    assert "-o" not in options(found)
    assert found.command.job_ids == (f"9[{parse_tasks(tasks)}].pbs01",)


def test_tasks_that_are_no_range_have_to_be_submitted_apart() -> None:
    with pytest.raises(UsageError, match="Submit these separately: 1, 3, 7-9"):
        again(job_id="9[].pbs01", tasks="1,3,7-9")


def test_without_the_array_s_own_record_its_tasks_have_to_be_named() -> None:
    with pytest.raises(UsageError, match="Specify the tasks"):
        again(job_id="9[2].pbs01")


def test_torque_s_record_names_tasks_and_has_no_select() -> None:
    native = {
        "Job_Name": "sweep-1",
        "Resource_List.nodes": "g01:ppn=4:gpus=1",
        "Resource_List.mem": "64gb",
        "Resource_List.nodect": "1",
        "Resource_List.walltime": "24:00:00",
        "job_array_request": "1-4,9%2",
        "Variable_List": "PBS_O_QUEUE=gpu",
    }
    found = PbsSubmit(TORQUE).resubmission(
        detail(native, "9[1].trq01", base={}), {}, script(), None, MARK
    )
    assert found.command.argv[5:] == (
        *("qsub", "-N", "sweep", "-q", "gpu", "-l", "nodes=g01:ppn=4:gpus=1", "-l", "mem=64gb"),
        *("-l", "walltime=24:00:00", "-t", "1-4,9%2", "-v", MARKED),
    )


# -- what cannot be made again


@for_each(
    ("native", "words"),
    [
        (
            {"executable": "<jsdl-hpcpa:Executable>/bin/sleep</jsdl-hpcpa:Executable>"},
            "runs a command",
        ),
        ({"interactive": "45123"}, "interactive"),
        ({"interactive": "True"}, "interactive"),
    ],
)
def test_jobs_without_a_script_are_not_made_again(native: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        again(native)


def test_a_job_of_which_nothing_is_told_is_not_guessed() -> None:
    with pytest.raises(UsageError, match="no longer reports"):
        PbsSubmit(OPENPBS).resubmission(detail({}, base={}), {}, script(), None, MARK)


def recorded_jobs() -> list[tuple[str, dict[str, str]]]:
    """Every job of every recorded list."""
    found = []
    for file in sorted(FIXTURES.glob("*/scenes/*/*.dsv")):
        for line in file.read_bytes().decode("utf-8", "replace").split("\n"):
            head, *fields = line.split("@@")
            if head.startswith("Job Id: "):
                pairs = [field.partition("=") for field in fields]
                found.append(
                    (head.removeprefix("Job Id: "), {name: value for name, _, value in pairs})
                )
    return found


def test_every_recorded_job_is_made_again_or_refused_in_words() -> None:
    jobs = recorded_jobs()
    assert len(jobs) > 100
    made = 0
    for job_id, native in jobs:
        try:
            found = PbsSubmit(OPENPBS).resubmission(
                detail(native, job_id, base={}), {}, script(), None, MARK
            )
        except UsageError:
            continue
        made += 1
        argv = found.command.argv
        assert argv[argv.index("-N") + 1] == native["Job_Name"]
        assert not any(word.startswith(("ncpus=", "nodect=", "select=:")) for word in argv)
    assert made > 100


ATTRIBUTES = sorted(
    [*RECORD, "depend", "umask", "array_indices_submitted", "max_run_subjobs", "interactive"]
)


@given(st.dictionaries(st.sampled_from(ATTRIBUTES), st.text(max_size=20)))
@example({"array_indices_submitted": "["})
def test_no_record_breaks_the_builder(native: dict[str, str]) -> None:
    for job_id in ("9.pbs01", "9[].pbs01"):
        with contextlib.suppress(UsageError):
            again(native, "#PBS -j oe -o x -l walltime=1", job_id=job_id)


@pytest.mark.parametrize(
    ("word", "said", "next_step"),
    [
        ("--signal=USR1@600", "PBS sends no signal ahead of the time limit", "timer in the script"),
        ("--partition=gpu", "--partition=gpu is not a qsub option", "a single dash"),
    ],
)
def test_an_option_in_slurms_manner_is_refused_with_what_pbs_has(
    word: str, said: str, next_step: str
) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        PbsSubmit(Dialect.OPENPBS).submission(Submission(b"#!/bin/sh\ntrue\n", "job.sh", (word,)))
    assert next_step in refused.value.next_step


def test_a_job_that_is_made_again_may_have_more_time_and_memory() -> None:
    limits = NewLimits(time_seconds=30 * 3600, memory_bytes=3 << 30)

    def limited(native: Mapping[str, str] | None = None) -> list[str]:
        return options(
            PbsSubmit(OPENPBS).resubmission(detail(native or {}), {}, script(), None, MARK, limits)
        )

    assert "walltime=30:00:00" in limited()
    assert "select=2:ncpus=2:mem=1572864kb" in limited()
    bare = {"Resource_List.select": "1:ncpus=4"}
    assert "select=1:ncpus=4:mem=3145728kb" in limited(bare)
    base = {name: value for name, value in RECORD.items() if name != "Resource_List.select"}
    found = PbsSubmit(OPENPBS).resubmission(detail({}, base=base), {}, script(), None, MARK, limits)
    assert "mem=3145728kb" in options(found)
