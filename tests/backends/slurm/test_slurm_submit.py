"""A job is submitted again with the options it had; what cannot be had again, or should not, is
said.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from hpcdash.backends.actions import Outcome
from hpcdash.backends.job_detail import JobDetail, Script
from hpcdash.backends.slurm.detail import SlurmDetail
from hpcdash.backends.slurm.history import parse_history
from hpcdash.backends.slurm.jobs import parse_jobs
from hpcdash.backends.slurm.options import read_submit_line
from hpcdash.backends.slurm.submit import SlurmSubmit
from hpcdash.backends.submissions import NewLimits, Submission, SubmitCommand
from hpcdash.domain.array_tasks import parse_tasks
from hpcdash.errors import UsageError, without_env
from tests.support.records import for_each
from tests.support.slurm_text import TOKEN, answered, history_text, queue_text

MARK = "hpcdash:0123456789"
ENVIRONMENT = "runs with a fresh environment"
# What no option of the tests' jobs gives, and the job has.
PINNED = ["--partition=gpu", "--account=physics", "--qos=normal", "--time=720"]


def held(command: str = "/w/train.sh", job_id: str = "30", **fields: str) -> JobDetail:
    """A job that slurmctld holds."""
    row = parse_jobs(
        answered(queue_text({"jobarrayid": job_id, "workdir": "/w", **fields})), token=TOKEN
    ).table
    return SlurmDetail().join(row, {"JobId": "30", "BatchFlag": "1", "Command": command})


def array(**fields: str) -> JobDetail:
    return held(job_id="30_3", arrayjobid="30", arraytaskid="3", **fields)


def past(**fields: str) -> JobDetail:
    """A job that only the accounting knows."""
    row = parse_history(
        answered(history_text({"jobid": "30", "workdir": "/w", **fields})), token=TOKEN
    ).table
    return SlurmDetail().join(row, {"JobID": "30", "JobIDRaw": "30"})


def script(*directives: str) -> Script:
    return Script(
        "\n".join(("#!/bin/bash", *directives, "srun train")) + "\n", "as stored by Slurm"
    )


def again(
    line: str,
    detail: JobDetail | None = None,
    tasks: str | None = None,
    text: Script | None = None,
    native: Mapping[str, str] | None = None,
) -> SubmitCommand:
    told = {"SubmitLine": line, **(native or {})} if line else {**(native or {})}
    wanted = None if tasks is None else parse_tasks(tasks)
    return SlurmSubmit().resubmission(detail or held(), told, text or script(), wanted, MARK)


def options(found: SubmitCommand) -> list[str]:
    """The options of sbatch that stand for the job itself, without those the tests' jobs always
    get.
    """
    words = list(without_env(found.command.argv))
    words = words[words.index("sbatch") + 1 :]
    words = words[: words.index("/dev/stdin")] if "/dev/stdin" in words else words
    always = {*PINNED, "--chdir=/w", f"--comment={MARK}", "--job-name=train"}
    return [word for word in words if word not in always]


def test_options_are_given_again_and_the_script_comes_on_stdin() -> None:
    found = again("sbatch -p long -n2 --mem 4G --exclusive -o %x.out train.sh")
    assert options(found) == [
        "--partition=long",
        "--ntasks=2",
        "--mem=4G",
        "--exclusive",
        "--output=%x.out",
    ]
    assert found.command.stdin == b"#!/bin/bash\nsrun train\n"
    assert without_env(found.command.argv)[0] == "sbatch"
    assert (found.command.job_ids, found.notes, found.mark) == (("30",), (ENVIRONMENT,), MARK)


def test_what_the_job_had_without_saying_is_said_now() -> None:
    words = again("sbatch train.sh").command.argv
    assert [word for word in words if word in PINNED] == PINNED
    assert "--job-name=train" in words
    assert "--chdir=/w" in words


def test_what_line_or_script_say_is_not_said_twice() -> None:
    found = again(
        "sbatch -A bio train.sh", text=script("#SBATCH -p long -J train", "#SBATCH -t 5 --qos=high")
    )
    assert options(found) == ["--account=bio"]
    assert "--job-name=train" not in found.command.argv


def test_no_variable_of_ours_or_of_the_persons_sbatch_settings_reaches_the_job() -> None:
    words = again("sbatch train.sh").command.argv
    settings = words[: words.index("sbatch")]
    assert {"SBATCH_PARTITION", "SBATCH_ARRAY_INX", "SBATCH_WAIT", "SLURM_CLUSTERS"} <= set(
        settings
    )
    assert not [word for word in settings if "=" in word]


def test_only_the_wanted_tasks_with_the_throttle_that_was() -> None:
    found = again("sbatch -a 0-99%5 train.sh", array(), "3,7-9")
    assert options(found) == ["--array=3,7-9%5"]
    assert found.command.job_ids == ("30_[3,7-9]",)
    assert options(again("sbatch train.sh", array(), "3", script("#SBATCH --array=1-5%2"))) == [
        "--array=3%2"
    ]
    assert options(
        again("sbatch -a 1-5 train.sh", array(), "3", native={"ArrayTaskThrottle": "7"})
    ) == ["--array=3%7"]


def test_a_whole_array_has_the_tasks_it_had_and_is_refused_where_these_are_not_known() -> None:
    assert options(again("sbatch -a 0-99:2%5 train.sh", array())) == ["--array=0-99:2%5"]
    with pytest.raises(UsageError, match="the tasks of array 30 are unknown"):
        again("sbatch train.sh", array())


def test_what_was_meant_for_then_is_left_out_and_said() -> None:
    found = again("sbatch -d afterok:5 --begin=16:00 --parsable -W -Q -n2 train.sh")
    assert options(found) == ["--ntasks=2"]
    assert "omitted (no longer applicable): --dependency=afterok:5 --begin=16:00" in found.notes


def test_directives_meant_for_then_are_overruled() -> None:
    found = again("sbatch train.sh", text=script("#SBATCH -d singleton --begin=now+1hour"))
    assert options(found) == ["--dependency=", "--begin=now"]
    assert "overridden #SBATCH lines: dependency, begin" in found.notes


def test_a_comment_of_its_own_is_kept_and_a_mark_of_ours_is_renewed() -> None:
    kept = again("sbatch --comment=budget7 train.sh", held(comment="budget7"))
    assert "--comment=budget7" in kept.command.argv
    assert kept.mark == ""
    renewed = again("sbatch --comment=hpcdash:old train.sh", held(comment="hpcdash:old"))
    assert [word for word in renewed.command.argv if "comment" in word] == [f"--comment={MARK}"]


def test_arguments_of_the_script_follow_it_through_a_pipe() -> None:
    found = again("sbatch -n2 train.sh --lr 0.1", held("/w/train.sh --lr 0.1"))
    words = without_env(found.command.argv)
    assert words[:5] == ("sh", "-c", 'cat | "$@"', "sh", "sbatch")
    assert words[-3:] == ("/dev/stdin", "--lr", "0.1")
    assert any("assumed to contain no blanks" in note for note in found.notes)


def test_a_plugins_options_are_passed_on() -> None:
    found = again("sbatch --container-mounts=/a:/b --container-image a.sqsh train.sh")
    assert options(found) == ["--container-mounts=/a:/b", "--container-image=a.sqsh"]


def test_files_that_were_named_from_the_jobs_folder_are_found_there() -> None:
    assert options(again("sbatch -F nodes.txt train.sh")) == ["--nodefile=/w/nodes.txt"]


def test_where_the_environment_was_not_taken_along_nothing_is_missing() -> None:
    assert again("sbatch --export=NONE train.sh").notes == ()


def test_without_a_command_line_options_are_rebuilt_and_that_is_said() -> None:
    native = {
        "NumNodes": "2-2",
        "NumTasks": "8",
        "CPUs/Task": "4",
        "MinMemoryNode": "64G",
        "TresPerNode": "gres:gpu:2",
        "Features": "(null)",
        "Licenses": "(null)",
    }
    found = again("", native=native)
    assert options(found) == [
        "--nodes=2",
        "--ntasks=8",
        "--cpus-per-task=4",
        "--mem=64G",
        "--gres=gpu:2",
    ]
    assert "options are rebuilt" in found.notes[0]


def test_without_a_command_line_arguments_and_files_are_those_of_the_record() -> None:
    native = {"StdOut": "/w/7/out-30.txt", "StdErr": "/w/7/30.err"}
    detail = held("/w/train.sh --lr 0.1")
    shown = {**detail.native, **native}
    found = again("", JobDetail(detail.job, shown))
    assert options(found) == ["--output=/w/7/out-%j.txt", "--error=/w/7/%j.err"]
    assert found.command.argv[-3:] == ("/dev/stdin", "--lr", "0.1")
    usual = {**detail.native, "StdOut": "/w/slurm-30.out", "StdErr": "/w/slurm-30.out"}
    assert options(again("", JobDetail(detail.job, usual))) == []


def test_a_heterogeneous_job_is_refused() -> None:
    with pytest.raises(UsageError, match="heterogeneous"):
        again("sbatch train.sh", native={"HetJobId": "30"})


def test_bytes_of_the_script_that_are_no_utf8_come_back() -> None:
    found = again(
        "sbatch train.sh",
        text=Script(b"#!/bin/sh\n# \xff\n".decode("utf-8", "surrogateescape"), ""),
    )
    assert found.command.stdin == b"#!/bin/sh\n# \xff\n"


# -- the command line in Slurm's records

ROW = {"name": "train", "comment": None, "work_dir": "/w"}


@for_each(
    ("line", "command", "row", "given", "rest"),
    [
        ("sbatch train.sh a b", "/w/train.sh a b", {}, {}, ("train.sh", "a", "b")),
        (
            "sbatch --export=ALL,K=a b train.sh",
            "/w/train.sh",
            {},
            {"export": "ALL,K=a b"},
            ("train.sh",),
        ),
        (
            "sbatch -J a b train.sh",
            "/w/train.sh",
            {"name": "a b"},
            {"job-name": "a b"},
            ("train.sh",),
        ),
        (
            "sbatch -D /a b /a b/t.sh x",
            "/a b/t.sh x",
            {"work_dir": "/a b"},
            {"chdir": "/a b"},
            ("/a b/t.sh", "x"),
        ),
        ("sbatch --wrap echo a; -n 2", "(null)", {}, {"wrap": "echo a;", "ntasks": "2"}, ()),
        ("/opt/slurm/bin/sbatch -n2", "(null)", {}, {"ntasks": "2"}, ()),
        (
            "sbatch --export=K=a b my job.sh x",
            None,
            {"name": "my job.sh"},
            {"export": "K=a b"},
            ("my job.sh", "x"),
        ),
        ("sbatch --export=K=a b run", None, {"name": "run"}, {"export": "K=a b"}, ("run",)),
    ],
)
def test_words_that_held_blanks_are_put_together_again(
    line: str,
    command: str | None,
    row: Mapping[str, str],
    given: Mapping[str, str],
    rest: tuple[str, ...],
) -> None:
    read = read_submit_line(line, {**ROW, **row}, None, command)
    assert read is not None
    assert {option.name: option.value for option in read.options} == given
    assert (read.script, read.is_certain) == (rest, True)


def test_where_the_scripts_name_may_be_another_word_that_is_said() -> None:
    read = read_submit_line("sbatch -J mine --mail-user=a b c", {**ROW, "name": "mine"}, None)
    assert read is not None
    assert not read.is_certain
    found = again("sbatch -J mine --mail-user=a b c", past(jobname="mine"))
    assert any("unclear where the script's name begins" in note for note in found.notes)


@for_each("line", ["srun train", "", "salloc -n2"])
def test_a_line_of_another_program_is_none_of_sbatchs(line: str) -> None:
    assert read_submit_line(line, ROW, None) is None


# -- what sbatch says


@for_each(
    ("status", "stdout", "stderr", "done", "words"),
    [
        (0, b"Submitted batch job 93\n", b"", True, "job 93"),
        (0, b"Submitted batch job 93 on cluster far\n", b"", True, "job 93@far"),
        (0, b"93;far\n", b"", True, "job 93@far"),
        (0, b"a site's greeting\nSubmitted batch job 93\n", b"", True, "job 93"),
        (0, b"", b"", True, "submitted, but sbatch returned no job ID"),
        (
            0,
            b"",
            b"sbatch: Job 93 to start at 2026-01-01T00:00:00 using 1 processors on nodes n1 in "
            b"partition x\n",
            False,
            "nothing was submitted: --test-only only estimates the start",
        ),
        (
            1,
            b"",
            b"sbatch: error: Batch job submission failed: Invalid job array specification\n",
            False,
            "Invalid job array specification",
        ),
        (
            1,
            b"",
            b"sbatch: error: Batch job submission failed: Unable to contact slurm controller "
            b"(connect failure)\n",
            False,
            "Unable to contact slurm controller (connect failure)",
        ),
        (
            1,
            b"",
            b"sbatch: error: Batch job submission failed: Socket timed out on send/recv "
            b"operation\n",
            None,
            "Socket timed out on send/recv operation",
        ),
        (124, b"", b"", None, "sbatch exited with status 124"),
        (127, b"", b"sh: sbatch: not found\n", False, "sh: sbatch: not found"),
    ],
)
def test_what_sbatch_says_is_read(
    status: int, stdout: bytes, stderr: bytes, done: bool | None, words: str
) -> None:
    command = again("sbatch train.sh").command
    (found,) = command.read(answered(stdout, status=status, stderr=stderr))
    is_unreachable = words.startswith(("Unable to contact", "sh: sbatch: not found"))
    assert found == Outcome("30", done, words, is_unreachable)


# -- how large an array may be

CONFIG = b"MaxArraySize            = 1001\nMaxJobCount             = 10000\nMaxJobId = 67043328\n"


def refused(
    array: str = "", *options: str, text: str = "#!/bin/sh\n", config: bytes = CONFIG
) -> str | None:
    """Why an array would be refused; None where the cluster is not asked."""
    query = SlurmSubmit().array_refusal(Submission(text.encode(), "job", options, array=array))
    assert query is None or without_env(query.argv) == ("scontrol", "show", "config")
    return None if query is None else query.parse(answered(config, argv=("scontrol",)))


def test_an_array_is_measured_by_its_highest_task_and_their_number() -> None:
    assert refused("1-1000") is None
    assert refused() is None
    assert (
        refused("1-1001")
        == "task 1001 is over this cluster's limit: at most 1000 (MaxArraySize = 1001)"
    )
    large = b"MaxArraySize = 4000001\nMaxJobCount = 10000\n"
    assert refused("1-9999", config=large) == ""
    assert refused("1-10000%5", config=large) == (
        "10000 tasks exceed this cluster's limit: at most 9999 jobs at a time for all users "
        "(MaxJobCount = 10000)"
    )
    assert refused("1-100000:100", config=large) == ""


def test_an_array_is_found_in_options_and_directives_as_sbatch_reads_them() -> None:
    directive = "#!/bin/sh\n#SBATCH -a 1-2000\n"
    assert "2000" in (refused(text=directive) or "")
    assert refused("", "--array=1-5", text=directive) is None
    assert "3000" in (refused("", "-a1-3000", text=directive) or "")
    assert refused("", "--array=nonsense") is None


def test_what_sbatch_says_while_it_tries_again_is_explained() -> None:
    command = SlurmSubmit().submission(Submission(b"#!/bin/sh\n", "job")).command
    tries = "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying"
    assert "MaxJobCount" in command.explain(tries)
    assert command.explain("sbatch: lua: welcome") == "sbatch: lua: welcome"
    said = (
        f"{tries}\nsbatch: error: Batch job submission failed: Resource temporarily unavailable\n"
    )
    (outcome,) = command.read(answered(b"", stderr=said.encode(), status=1, argv=("sbatch",)))
    assert outcome.done is False
    assert "MaxJobCount" in outcome.text
    assert command.limit_seconds > 120, "sbatch itself gives up after two minutes"


def with_limits(line: str, limits: NewLimits, *directives: str, **fields: str) -> list[str]:
    found = SlurmSubmit().resubmission(
        held(**fields), {"SubmitLine": line}, script(*directives), None, MARK, limits
    )
    return options(found)


def test_another_time_limit_takes_the_place_of_the_one_it_had() -> None:
    longer = NewLimits(time_seconds=18 * 3600)
    assert with_limits("sbatch -t 720 train.sh", longer) == ["--time=1080"]
    assert with_limits("sbatch train.sh", longer, "#SBATCH --time=12:00:00") == ["--time=1080"]


def test_more_memory_is_asked_for_by_the_option_that_the_job_used() -> None:
    """sbatch refuses --mem beside a --mem-per-cpu of the script."""
    more, eight = (
        NewLimits(memory_bytes=64 << 30),
        {"tres-alloc": "cpu=16,mem=32G,node=2,gres/gpu=8", "numnodes": "2"},
    )
    eight |= {"numcpus": "16"}
    assert with_limits("sbatch --mem=16G train.sh", more, **eight) == ["--mem=65536M"]
    assert with_limits("sbatch train.sh", more, **eight) == ["--mem=65536M"]
    assert with_limits("sbatch train.sh", more, "#SBATCH --mem-per-cpu=2G", **eight) == [
        "--mem-per-cpu=8192M"
    ]
    assert with_limits("sbatch --mem-per-gpu=4G train.sh", more, **eight) == [
        "--mem-per-gpu=16384M"
    ]
