"""The script that asks qstat, run by a real sh with commands that answer what was recorded, or what
a test tells.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from hpcdash.backends.pbs.dialects import Dialect
from hpcdash.backends.pbs.history import PbsHistory
from hpcdash.backends.pbs.jobs import PbsQueue
from hpcdash.backends.pbs.listing import KEPT, MARK_VARIABLE, Want, listing
from hpcdash.backends.queries import JobScope, ParsedTable, Query
from hpcdash.errors import CommandMissing, ControllerDown, NoSuchJob
from hpcdash.shell_files import shell_text
from hpcdash.transport.base import CommandResult
from tests.support.pbs import StandIns
from tests.support.pbs.job_text import ARRAY, CLOCK, ENDED_JOB, JOB, TOKEN, WAITING_JOB, dsv
from tests.support.records import for_each

pytestmark = pytest.mark.system
EVERYDAY_OWN = 19
# Each is tried where it is installed.
SHELLS = [shell for shell in ("dash", "bash", "busybox") if shutil.which(shell)]
AWKS = [awk for awk in ("gawk", "mawk", "original-awk", "busybox") if shutil.which(awk)]


def run(argv: tuple[str, ...], environment: Mapping[str, str]) -> CommandResult:
    done = subprocess.run(argv, env=environment, stdin=subprocess.DEVNULL, capture_output=True)
    return CommandResult(argv, done.returncode, done.stdout, done.stderr, 0.1)


# -- with the recorded commands


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> StandIns:
    return StandIns.install(tmp_path_factory.mktemp("pbs") / "here", "everyday")


def asked(
    stand_ins: StandIns, scene: str, query: Query[ParsedTable]
) -> tuple[list[str], list[list[str]]]:
    """(the ids read, the calls of PBS's commands without their format) in a scene."""
    stand_ins.play(scene)
    before = len(stand_ins.calls("qstat", "qselect"))
    answer = run(query.argv, stand_ins.environment)
    calls = stand_ins.calls("qstat", "qselect")[before:]
    return query.parse(answer).table["id"].to_pylist(), [_without_format(words) for words in calls]


def _without_format(words: list[str]) -> list[str]:
    return [
        word for word in words if word not in ("-F", "dsv", "-D") and not word.startswith("\x1e")
    ]


def test_everyone_s_jobs_are_one_call_without_subjobs(stand_ins: StandIns) -> None:
    ids, calls = asked(stand_ins, "everyday", PbsQueue(Dialect.OPENPBS).jobs(JobScope()))
    assert calls == [["qstat", "-f"]]
    assert {"3.pbs01", "27.pbs01", "12[].pbs01", "14[6-10].pbs01", "14[].pbs01"} <= set(ids)


def test_one_s_own_jobs_and_the_subjobs_that_run_are_one_question(stand_ins: StandIns) -> None:
    ids, calls = asked(stand_ins, "everyday", PbsQueue(Dialect.OPENPBS).jobs(JobScope("")))
    assert calls[:2] == [["qselect", "-u", "alice"], ["qselect", "-T", "-u", "alice", "-s", "RESU"]]
    assert [words[:3] for words in calls[2:]] == [["qstat", "-f", "-E"]]
    assert "14[3].pbs01" in calls[2]
    assert "14[6].pbs01" not in calls[2]
    assert not {"3.pbs01", "27.pbs01"} & set(ids)
    assert {"12[4].pbs01", "13[0].pbs01", "14[3].pbs01", "15[3].pbs01", "14[6-10].pbs01"} <= set(
        ids
    )
    assert not [job_id for job_id in ids if "[]" in job_id]


def test_few_jobs_of_one_person_are_one_question_too(stand_ins: StandIns) -> None:
    ids, calls = asked(stand_ins, "everyday", PbsQueue(Dialect.OPENPBS).jobs(JobScope("bob")))
    assert ids == ["3.pbs01", "27.pbs01"]
    assert calls == [["qselect", "-u", "bob"], ["qstat", "-f", "-E", "3.pbs01", "27.pbs01"]]


def test_who_has_no_jobs_costs_the_server_one_selection(stand_ins: StandIns) -> None:
    ids, calls = asked(stand_ins, "empty", PbsQueue(Dialect.OPENPBS).jobs(JobScope("")))
    assert (ids, calls) == ([], [["qselect", "-u", "alice"]])


def test_of_the_history_what_ended_recently_is_asked_for_alone(stand_ins: StandIns) -> None:
    ids, calls = asked(
        stand_ins, "everyday", PbsQueue(Dialect.OPENPBS).jobs(JobScope("", ended=True))
    )
    # An hour before the scene's clock.
    since = "-tm.ge.202611210306.35"
    assert calls[2] == ["qselect", "-x", "-T", "-s", "FX", "-u", "alice", since]
    assert [words[:4] for words in calls[3:]] == [["qstat", "-f", "-E", "-x"]]
    assert {"17.pbs01", "12[1].pbs01", "2.pbs01"} <= set(ids)
    assert "18.pbs01" not in ids


def test_without_a_history_what_is_recent_is_what_lives(stand_ins: StandIns) -> None:
    ids, calls = asked(
        stand_ins, "history-off", PbsQueue(Dialect.OPENPBS).jobs(JobScope("", ended=True))
    )
    assert [words[0] for words in calls] == ["qselect", "qselect", "qselect", "qstat"]
    assert "-x" not in calls[-1]
    assert "2.pbs01" in ids
    everyone, calls = asked(
        stand_ins, "history-off", PbsQueue(Dialect.OPENPBS).jobs(JobScope(ended=True))
    )
    assert [words[:3] for words in calls] == [["qstat", "-f"], ["qselect", "-x", "-s"]]
    assert "3.pbs01" in everyone
    named, calls = asked(
        stand_ins, "history-off", PbsQueue(Dialect.OPENPBS).jobs(JobScope(job_ids=("3",)))
    )
    assert calls == [
        ["qstat", "-f", "-E", "-x", "-t", "3[]", "3"],
        ["qstat", "-f", "-E", "-t", "3[]", "3"],
    ]
    assert named == ["3.pbs01"]


@for_each(
    ("typed", "asked_for", "read"),
    [
        ("2", ["2[]", "2"], ["2.pbs01"]),
        ("17.pbs01", ["17[].pbs01", "17.pbs01"], ["17.pbs01"]),
        ("12[3]", ["12[3]"], ["12[3].pbs01"]),
        ("12_3", ["12[3]"], ["12[3].pbs01"]),
        ("14[6]", ["14[6]"], ["14[6].pbs01"]),
        ("13", ["13[]", "13"], [f"13[{index}].pbs01" for index in (0, 5, 10, 15, 20)]),
        ("14[6-10].pbs01", ["14[].pbs01"], ["14[6-10].pbs01"]),
        ("14[4-7]", ["14[]"], ["14[4].pbs01", "14[5].pbs01", "14[6-10].pbs01"]),
    ],
)
def test_one_job_is_asked_by_its_id(
    stand_ins: StandIns, typed: str, asked_for: list[str], read: list[str]
) -> None:
    ids, calls = asked(
        stand_ins, "everyday", PbsQueue(Dialect.OPENPBS).jobs(JobScope(job_ids=(typed,)))
    )
    assert calls == [["qstat", "-f", "-E", "-x", "-t", *asked_for]]
    assert ids == read


def test_an_array_s_ended_tasks_come_with_it(stand_ins: StandIns) -> None:
    ids, _ = asked(
        stand_ins, "everyday", PbsQueue(Dialect.OPENPBS).jobs(JobScope(job_ids=("14[]",)))
    )
    assert ids == [f"14[{index}].pbs01" for index in (1, 2, 3, 4, 5)] + ["14[6-10].pbs01"]


def test_of_several_jobs_those_that_are_there_are_read_at_once(stand_ins: StandIns) -> None:
    wanted = ("2", "3.pbs01", "17", "18", "20", "12[3]", "99999")
    ids, calls = asked(
        stand_ins, "everyday", PbsQueue(Dialect.OPENPBS).jobs(JobScope(job_ids=wanted))
    )
    assert [words[:3] for words in calls] == [["qstat", "-f", "-E"]]
    assert sorted(ids) == ["12[3].pbs01", "17.pbs01", "18.pbs01", "2.pbs01", "20.pbs01", "3.pbs01"]


def test_an_unknown_job_is_no_such_job(stand_ins: StandIns) -> None:
    with pytest.raises(NoSuchJob) as caught:
        asked(stand_ins, "everyday", PbsQueue(Dialect.OPENPBS).jobs(JobScope(job_ids=("99999",))))
    assert (caught.value.argv, caught.value.status) == (("qstat", "-x", "-f", "99999"), 153)
    assert "Unknown Job Id 99999.pbs01" in caught.value.output


def test_somebody_else_s_job_that_is_hidden_is_no_such_job(stand_ins: StandIns) -> None:
    with pytest.raises(NoSuchJob):
        asked(stand_ins, "private", PbsQueue(Dialect.OPENPBS).jobs(JobScope(job_ids=("3",))))


@pytest.mark.parametrize(
    "scope", [JobScope(), JobScope(""), JobScope("", ended=True), JobScope(job_ids=("2",))], ids=str
)
def test_a_server_that_is_down_fails_the_script(stand_ins: StandIns, scope: JobScope) -> None:
    with pytest.raises(ControllerDown) as caught:
        asked(stand_ins, "server-down", PbsQueue(Dialect.OPENPBS).jobs(scope))
    assert "Connection refused" in caught.value.output


def test_older_pbs_gives_the_same_rows_as_text(stand_ins: StandIns) -> None:
    for scope in (JobScope(""), JobScope(job_ids=("14",))):
        older, _ = asked(stand_ins, "older", PbsQueue(Dialect.PBS_TEXT).jobs(scope))
        assert (older, len(older) > 0) == (
            asked(stand_ins, "everyday", PbsQueue(Dialect.OPENPBS).jobs(scope))[0],
            True,
        )


def test_one_s_own_history_is_what_ended_with_the_tasks_of_one_s_arrays(
    stand_ins: StandIns,
) -> None:
    ids, calls = asked(stand_ins, "everyday", PbsHistory(Dialect.OPENPBS).jobs("", 86400))
    assert [words[:4] for words in calls] == [
        ["qselect", "-x", "-T", "-s"],
        ["qstat", "-f", "-E", "-x"],
    ]
    assert {"17.pbs01", "12[1].pbs01", "14[2].pbs01"} <= set(ids)
    assert not {"2.pbs01", "18.pbs01", "14[3].pbs01"} & set(ids)


def test_everyone_s_history_names_what_ended_since_then(stand_ins: StandIns) -> None:
    _, calls = asked(stand_ins, "everyday", PbsHistory(Dialect.OPENPBS).jobs(None, 86400))
    assert calls[0] == ["qselect", "-x", "-s", "F", "-tm.ge.202611200406.35"]
    assert [words[:4] for words in calls[1:]] == [["qstat", "-f", "-E", "-x"]]
    nothing, calls = asked(stand_ins, "everyday", PbsHistory(Dialect.OPENPBS).jobs(None, 1))
    assert (nothing, len(calls)) == ([], 1)


def test_for_hours_each_task_of_everyone_s_arrays_is_asked_for(stand_ins: StandIns) -> None:
    runs, calls = asked(
        stand_ins, "everyday", PbsHistory(Dialect.OPENPBS).runs(None, CLOCK - 86_400, CLOCK, CLOCK)
    )
    assert calls[0][:5] == ["qselect", "-x", "-T", "-s", "FX"]
    assert {"12[1].pbs01", "14[2].pbs01"} <= set(runs)
    _, calls = asked(
        stand_ins, "everyday", PbsQueue(Dialect.OPENPBS).jobs(JobScope(each_task=True))
    )
    assert calls == [["qstat", "-f", "-t"]]


# -- with commands of a test's own


@dataclass(frozen=True, slots=True)
class Commands:
    """A folder with a qstat that prints a file, a qselect that prints some ids, and what else the
    script needs.
    """

    folder: Path

    @classmethod
    def make(
        cls,
        folder: Path,
        printed: bytes,
        *,
        status: int = 0,
        selected: str = "1 2 3 4 5",
        awk: str = "awk",
        is_old: bool = False,
    ) -> Commands:
        """`is_old`: a qstat that knows no -E."""
        bin_folder = folder / "bin"
        bin_folder.mkdir()
        (folder / "printed").write_bytes(printed.replace(TOKEN.encode(), b"@@TOKEN@@"))
        _program(
            bin_folder / "qstat",
            f"""echo "qstat $*" >> {folder}/called
case {int(is_old)}," $* " in 1,*" -E "*) echo "qstat: invalid option -- 'E'" >&2; exit 2;; esac
while [ $# -gt 1 ]; do [ "$1" = -D ] && token=$2; shift; done
sed "s/@@TOKEN@@/$token/g" {folder}/printed
exit {status}
""",
        )
        _program(bin_folder / "qselect", f"printf '%s\\n' {selected}\n")
        _program(bin_folder / "date", f"echo {CLOCK}\n")
        for name in ("cat", "sed", "grep", "sort", "head", "sh", "id"):
            (bin_folder / name).symlink_to(shutil.which(name) or name)
        _program(
            bin_folder / "awk",
            f'exec {shutil.which(awk)} {"awk" if awk == "busybox" else ""} "$@"\n',
        )
        return cls(folder)

    def run(self, argv: tuple[str, ...], shell: str = "sh") -> CommandResult:
        """The script under another shell."""
        at = argv.index("sh")
        words = [shutil.which(shell) or shell, *(["sh"] if shell == "busybox" else [])]
        # What comes before `sh` is `env` and its settings.
        command = ("/usr/bin/env", *argv[1:at], *words, *argv[at + 1 :])
        return run(command, {"PATH": str(self.folder / "bin")})

    @property
    def calls(self) -> list[str]:
        file = self.folder / "called"
        return file.read_text("utf-8", "replace").splitlines() if file.exists() else []


def _program(file: Path, text: str) -> None:
    file.write_text(f"#!/bin/sh\n{text}", encoding="utf-8")
    file.chmod(0o755)


def submitted(**variables: str) -> str:
    """A Variable_List as PBS writes it."""
    listed = {"PBS_O_HOME": "/home/alice", "PBS_O_WORKDIR": "/home/alice/work", **variables}
    return ",".join(f"{name}={value}" for name, value in listed.items())


def narrowed(
    commands: Commands, user: str | None = None, want: Want = Want.NOW, **options: str
) -> bytes:
    """What the script leaves of the list after its clock, with `|` for the token."""
    question = listing(Dialect.OPENPBS, want, user)
    answer = commands.run(question.argv, **options)
    assert answer.status == 0, answer.stderr
    assert answer.stdout.startswith(b"Clock: %d\n" % CLOCK)
    return answer.stdout.partition(b"\n")[2].replace(question.token.encode(), b"|")


def test_the_mark_is_looked_for_under_the_name_it_is_submitted_with() -> None:
    script = shell_text("backends/pbs/listing.sh")
    assert f'variable(value, "{MARK_VARIABLE}")' in script
    assert f'T "{MARK_VARIABLE}=" name' in script


def test_the_script_holds_no_word_from_outside() -> None:
    question = listing(Dialect.OPENPBS, Want.NAMED, "a'b", job_ids=("12",))
    script = question.argv[question.argv.index("-c") + 1]
    assert script == "".join(
        (
            f"kept='{' '.join(KEPT)}' most_tasks=5000 each_task=",
            shell_text("backends/pbs/listing.sh"),
        )
    )
    assert "hpcdash" not in script


@pytest.mark.parametrize("awk", AWKS)
@pytest.mark.parametrize("shell", SHELLS)
def test_the_environment_of_a_job_is_left_out_but_for_the_mark_and_the_folder(
    tmp_path: Path, shell: str, awk: str
) -> None:
    variables = submitted(
        PBS_O_WORKDIR=r"/home/alice/a\,b",
        A=r"x\,HPCDASH_MARK=hpcdash:no",
        HPCDASH_MARK="hpcdash:3f2a9c",
    )
    job = JOB | {
        "Variable_List": variables,
        "Submit_arguments": "-l x=|=Job_Owner=bob@",
        "project": "p",
    }
    commands = Commands.make(tmp_path, dsv("1.pbs01", job), awk=awk)
    kept = "|".join(f"{key}={value}" for key, value in JOB.items() if key != "server")
    assert narrowed(commands, shell=shell) == (
        (
            rf"Job Id: "
            rf"1.pbs01|{kept}|PBS_O_WORKDIR=/home/alice/a\,b|HPCDASH_MARK=hpcdash:3f2a9c"
        ).encode()
        + b"\n"
    )


@pytest.mark.parametrize("awk", AWKS)
@pytest.mark.parametrize(
    "variables",
    ["PBS_O_WORKDIR=" + r"\," * 500_000, r"A=\,HPCDASH_MARK=" + r"\,HPCDASH_MARK=" * 130_000],
    ids=["a folder of commas", "names that are none"],
)
def test_nobody_s_variables_keep_the_login_node_busy(
    tmp_path: Path, awk: str, variables: str
) -> None:
    commands = Commands.make(
        tmp_path, dsv("1.s", JOB | {"Variable_List": variables}) + dsv("2.s", JOB), awk=awk
    )
    read = narrowed(commands)
    assert [line.partition(b"|")[0] for line in read.splitlines()] == [
        b"Job Id: 1.s",
        b"Job Id: 2.s",
    ]
    assert len(read) < 10_000


@pytest.mark.parametrize("awk", AWKS)
def test_a_folder_s_name_may_be_as_long_as_any(tmp_path: Path, awk: str) -> None:
    folder = "/" + r"\," * 4095
    job = JOB | {"Variable_List": f"PBS_O_WORKDIR={folder},HPCDASH_MARK=hpcdash:3f2a9c"}
    read = narrowed(Commands.make(tmp_path, dsv("1.s", job), awk=awk))
    assert f"|PBS_O_WORKDIR={folder}|HPCDASH_MARK=hpcdash:3f2a9c\n".encode() in read


def test_a_server_with_a_port_in_its_name_is_asked_for_the_subjobs(tmp_path: Path) -> None:
    commands = Commands.make(
        tmp_path, dsv("12[].srv:15101", ARRAY), selected="'12[].srv:15101' '12[3].srv:15101'"
    )
    narrowed(commands, user="alice")
    # Once as one of the jobs and once as one that runs: this qselect says the same whatever it is
    # asked.
    assert commands.calls[-1].endswith(
        " -E 12[].srv:15101 12[3].srv:15101 12[].srv:15101 12[3].srv:15101"
    )


@pytest.mark.parametrize("many", [1000, 2001])
def test_a_thousand_ids_are_asked_for_at_once(tmp_path: Path, many: int) -> None:
    commands = Commands.make(
        tmp_path, dsv("1.s", JOB), selected=" ".join(f"{number}.s" for number in range(many))
    )
    narrowed(commands, user="alice")
    asked_for = [call.partition(" -E ")[2].split() for call in commands.calls if " -E " in call]
    assert [len(ids) for ids in asked_for] == [1000] * (many // 1000) + [many % 1000] * bool(
        many % 1000
    )


def test_where_qstat_knows_no_express_option_a_few_ids_are_asked_one_by_one_and_more_read_from_the_list(
    tmp_path: Path,
) -> None:
    commands = Commands.make(tmp_path, dsv("1.s", JOB), selected="1.s 2.s", is_old=True)
    assert b"Job Id: 1.s" in narrowed(commands, user="alice")
    assert commands.calls[-1].endswith(" 1.s 2.s")
    assert " -E " not in commands.calls[-1]
    (tmp_path / "many").mkdir()
    many = " ".join(f"{number}.s" for number in range(60))
    commands = Commands.make(tmp_path / "many", dsv("1.s", JOB), selected=many, is_old=True)
    assert b"Job Id: 1.s" in narrowed(commands, user="alice")
    assert commands.calls[-1].endswith(" -t")


@pytest.mark.parametrize("awk", AWKS)
def test_only_a_whole_owner_s_name_is_the_owner(tmp_path: Path, awk: str) -> None:
    owners = ("al@h", "alice@h", "alice.b@h", "xalice@h", "alicex@h", "a.ice@h", "bob@alice")
    lines = [dsv(f"{number}.s", JOB | {"Job_Owner": owner}) for number, owner in enumerate(owners)]
    forged = dsv("9.s", JOB | {"Job_Owner": "bob@h", "comment": "Job_Owner=alice@h"})
    many = " ".join(map(str, range(60)))
    commands = Commands.make(
        tmp_path, b"".join((*lines, forged)), awk=awk, is_old=True, selected=many
    )
    read = narrowed(commands, user="alice").splitlines()
    assert [line.partition(b"|")[0] for line in read[1:]] == [b"Job Id: 1.s"]
    assert read[0] == b"Owner: alice"


@pytest.mark.parametrize("awk", AWKS)
def test_a_newline_in_a_value_begins_no_record(tmp_path: Path, awk: str) -> None:
    # PBS prints the byte CA as ^ and a newline.
    forged = submitted(A="^\nJob Id: 666.s", B="2\nJob Id: 668.s=")
    job = {**JOB, "Variable_List": forged, "Account_Name": "a^\nJob Id: 667.s"}
    commands = Commands.make(tmp_path, dsv("1.s", job) + dsv("2.s", JOB), awk=awk)
    read = narrowed(commands)
    assert read.count(b"|Job_Name=") == 2
    assert b"666" not in read
    assert b"668" not in read
    query = PbsQueue(Dialect.OPENPBS).jobs(JobScope())
    assert query.parse(commands.run(query.argv)).table["id"].to_pylist() == ["1.s", "2.s"]


@pytest.mark.parametrize("awk", AWKS)
@pytest.mark.parametrize("status", [0, 1, 153, 255])
def test_qstat_s_exit_status_is_the_script_s(tmp_path: Path, awk: str, status: int) -> None:
    commands = Commands.make(tmp_path, dsv("1.s", JOB), status=status, awk=awk)
    assert commands.run(listing(Dialect.OPENPBS, Want.NOW).argv).status == status


def test_a_qstat_that_is_missing_is_said_to_be(tmp_path: Path) -> None:
    commands = Commands.make(tmp_path, b"")
    (tmp_path / "bin" / "qstat").unlink()
    query = PbsQueue(Dialect.OPENPBS).jobs(JobScope())
    with pytest.raises(CommandMissing):
        query.parse(commands.run(query.argv))


def test_a_missing_awk_is_no_empty_queue(tmp_path: Path) -> None:
    commands = Commands.make(tmp_path, dsv("1.s", JOB))
    (tmp_path / "bin" / "awk").unlink()
    assert commands.run(listing(Dialect.OPENPBS, Want.NOW).argv).status == 127


def test_a_missing_awk_is_no_empty_queue_of_one_s_own(tmp_path: Path) -> None:
    commands = Commands.make(tmp_path, dsv("1.s", JOB))
    (tmp_path / "bin" / "awk").unlink()
    assert commands.run(listing(Dialect.OPENPBS, Want.NOW, "alice").argv).status == 127


def test_a_login_node_that_cannot_resolve_the_server_of_an_id_is_asked_for_the_list(
    tmp_path: Path,
) -> None:
    commands = Commands.make(tmp_path, dsv("1.s", JOB) + dsv("2.s", JOB), selected="2.s")
    qstat = tmp_path / "bin" / "qstat"
    refusal = (
        'case $* in *" 2.s") echo "qstat: illegally formed job identifier: 2.s" >&2; exit 1;; esac'
    )
    _program(qstat, f"{refusal}\n{qstat.read_text('utf-8')}")
    for query in (
        PbsQueue(Dialect.OPENPBS).jobs(JobScope("alice")),
        PbsQueue(Dialect.OPENPBS).jobs(JobScope(job_ids=("2.s",))),
    ):
        assert query.parse(commands.run(query.argv)).table["id"].to_pylist() == ["2.s"]
    # Everything of everyone would not be one job.
    assert commands.run(listing(Dialect.OPENPBS, Want.WHOLE, job_ids=("2.s",)).argv).status == 1


def test_an_array_s_id_is_no_pattern_of_files(tmp_path: Path) -> None:
    (tmp_path / "1234.s").touch()
    commands = Commands.make(tmp_path, dsv("1.s", JOB), selected="'123[4].s'")
    question = listing(Dialect.OPENPBS, Want.NOW, "alice")
    done = subprocess.run(
        question.argv, env={"PATH": f"{tmp_path}/bin:/usr/bin"}, cwd=tmp_path, capture_output=True
    )
    assert done.returncode == 0
    assert commands.calls[-1].endswith(" 123[4].s")


@pytest.mark.parametrize("awk", AWKS)
def test_what_ended_long_ago_does_not_cross_the_line(tmp_path: Path, awk: str) -> None:
    long_ago = ENDED_JOB | {"history_timestamp": str(CLOCK - 7200)}
    unknown_ids = {key: value for key, value in ENDED_JOB.items() if key != "history_timestamp"}
    lines = (
        dsv("1.s", ENDED_JOB),
        dsv("2.s", long_ago),
        dsv("3.s", WAITING_JOB),
        dsv("4.s", unknown_ids),
    )
    commands = Commands.make(tmp_path, b"".join(lines), awk=awk)
    for want, ids in ((Want.ENDED, ["1", "4"]), (Want.RECENT, ["1", "3", "4"])):
        question = listing(Dialect.OPENPBS, want, None, 3600)
        read = commands.run(question.argv).stdout.splitlines()[1:]
        # What lives and what ended are two questions, to which this qstat gives one answer.
        assert {line.decode().removeprefix("Job Id: ").partition(".")[0] for line in read} == set(
            ids
        )


def test_words_that_are_no_job_come_through(tmp_path: Path) -> None:
    commands = Commands.make(tmp_path, b"This qstat is an alias\n")
    assert narrowed(commands) == b"This qstat is an alias\n"


def test_torque_is_asked_for_xml_with_every_task(tmp_path: Path) -> None:
    printed = b"<Data><Job><Job_Id>12[3].s</Job_Id><job_state>R</job_state></Job></Data>\n"
    commands = Commands.make(tmp_path, printed)
    for ids, read in (((), 1), (("12[3]",), 1), (("12[]",), 1), (("12",), 1)):
        query = PbsQueue(Dialect.TORQUE).jobs(JobScope(job_ids=ids))
        assert query.parse(commands.run(query.argv)).table.num_rows == read
    assert commands.calls == ["qstat -x -t", "qstat -x -t 12[3]", "qstat -x -t", "qstat -x -t 12"]
