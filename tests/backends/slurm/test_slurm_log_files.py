"""Where a job's output is: scontrol tells while it holds the job; later the command line, the
script, the default.
"""

from __future__ import annotations

from collections.abc import Mapping

from hpcdash.backends.job_detail import JobDetail, LogFiles, Script
from hpcdash.backends.slurm.detail import SlurmDetail
from hpcdash.backends.slurm.history import parse_history
from hpcdash.backends.slurm.jobs import parse_jobs
from hpcdash.backends.slurm.log_files import SlurmLogs, submitted_file
from tests.support.records import for_each
from tests.support.slurm_text import TOKEN, answered, history_text, queue_text

KEPT = "the copy in accounting"


def held(native: Mapping[str, str], **fields: str) -> JobDetail:
    """A job that slurmctld holds."""
    row = parse_jobs(answered(queue_text({"jobarrayid": "30", **fields})), token=TOKEN).table
    return SlurmDetail().join(row, {"JobId": "30", "BatchFlag": "1", "BatchHost": "g1", **native})


def past(submit_line: str, native: Mapping[str, str] | None = None, **fields: str) -> JobDetail:
    """A job that only the accounting knows."""
    row = parse_history(answered(history_text({"jobid": "30", **fields})), token=TOKEN).table
    return SlurmDetail().join(
        row, {"JobID": "30", "JobIDRaw": "30", "SubmitLine": submit_line, **(native or {})}
    )


def script(*lines: str) -> Script:
    return Script("\n".join(("#!/bin/bash", *lines, "srun train", "#SBATCH -o late")) + "\n", KEPT)


def test_one_file_for_both_streams_is_told_once() -> None:
    files = SlurmLogs().files(
        held({"StdOut": "/home/alice/30.out", "StdErr": "/home/alice/30.out"}), None
    )
    assert files == LogFiles("/home/alice/30.out", None)


def test_what_scontrol_leaves_of_a_pattern_is_filled_in() -> None:
    detail = held({"StdOut": "/home/alice/30_%N_%4j.out", "StdErr": "/home/alice/%s.err"})
    assert SlurmLogs().files(detail, None) == LogFiles(
        "/home/alice/30_g1_0030.out", "/home/alice/batch.err"
    )


def test_a_component_of_the_past_wrote_to_the_file_of_its_leader() -> None:
    detail = past("sbatch het.sh", {"JobID": "30+1", "JobIDRaw": "31"}, jobid="30+1")
    assert SlurmLogs().files(detail, None).stdout == "/home/alice/slurm-30.out"


def test_a_waiting_job_s_node_is_not_known_yet() -> None:
    detail = held({"StdOut": "/home/alice/%N.out", "BatchHost": ""}, state="PENDING", nodelist="")
    assert SlurmLogs().files(detail, None).stdout == "/home/alice/%N.out"


def test_tasks_that_wait_have_no_numbers_yet() -> None:
    native = {"ArrayTaskId": "3-9%1", "StdOut": "/home/alice/88_4294967294_30.out"}
    files = SlurmLogs().files(
        held(native, jobarrayid="88_[3-9]", arraytaskid="3-9", state="PENDING"), None
    )
    assert files.stdout == "/home/alice/88_%a_30.out"


def test_one_file_for_all_waiting_tasks_is_doubted() -> None:
    native = {"ArrayTaskId": "3-9%1", "StdOut": "/home/alice/30.out"}
    files = SlurmLogs().files(
        held(native, jobarrayid="88_[3-9]", arraytaskid="3-9", state="PENDING"), None
    )
    assert "each task writes to its own file" in files.note


def test_a_job_of_srun_has_no_file() -> None:
    detail = held({"BatchFlag": "0"})
    assert not SlurmLogs().needs_script(detail)
    files = SlurmLogs().files(detail, None)
    assert files.stdout is None
    assert "terminal" in files.note


def test_a_backslash_in_a_pattern_is_settled_by_the_script() -> None:
    detail = held({"StdOut": r"/home/alice/a\30.out", "StdErr": r"/home/alice/a\30.out"})
    assert SlurmLogs().needs_script(detail)
    assert SlurmLogs().files(detail, script(r"#SBATCH -o a\%j.out")) == LogFiles(
        "/home/alice/a%j.out", None
    )
    assert "a guess" in SlurmLogs().files(detail, script("#SBATCH -t 1")).note


@for_each(
    ("pattern", "shown"),
    [("%%4_%%j.out", "%4_%j.out"), ("%%4_%%j.out", "%%4_%30.out"), ("%4j_%j", "%4j_30")],
)
def test_a_double_percent_is_settled_by_the_script_whichever_release_shows_it(
    pattern: str, shown: str
) -> None:
    detail = held({"StdOut": f"/home/alice/{shown}", "StdErr": f"/home/alice/{shown}"})
    assert SlurmLogs().needs_script(detail)
    file = pattern.replace("%4j", "0030").replace("%%", "\0").replace("%j", "30").replace("\0", "%")
    assert SlurmLogs().files(detail, script(f"#SBATCH -o {pattern}")) == LogFiles(
        f"/home/alice/{file}", None
    )


@for_each(
    "line",
    [
        "sbatch -o out_%j run.sh",
        "sbatch -oout_%j run.sh -o not-this",
        "/opt/slurm/bin/sbatch --output=out_%j run.sh",
        "sbatch --output out_%j run.sh --output not-this",
        "sbatch --outp out_%j run.sh",
        "sbatch -Ho out_%j -t5 --parsable run.sh",
        "sbatch --output=first --output=out_%j run.sh",
    ],
)
def test_the_command_line_comes_before_the_script(line: str) -> None:
    files = SlurmLogs().files(past(line), script("#SBATCH -o script_%j"))
    assert (files.stdout, files.stderr) == ("/home/alice/out_30", None)
    assert "command line" in files.note


def test_the_command_line_may_name_one_stream_and_the_script_the_other() -> None:
    files = SlurmLogs().files(past("sbatch -o out run.sh"), script("#SBATCH --error=err_%j"))
    assert (files.stdout, files.stderr) == ("/home/alice/out", "/home/alice/err_30")
    assert KEPT in files.note


@for_each(
    "line",
    [
        "#SBATCH -o out_%j",
        "#SBATCH --output='out_%j' # the log",
        '#SBATCH -J "x # y" --outp "out_%j"',
        "#SBATCH -o first\n#SBATCH -oout_%j",
        "# a comment\n\n  \n#SBATCH\t-o out_%j\r",
    ],
)
def test_the_script_names_the_file(line: str) -> None:
    files = SlurmLogs().files(past("sbatch run.sh"), script(line))
    assert files.stdout == "/home/alice/out_30"
    assert "SBATCH_OUTPUT" in files.note


@for_each(
    "line",
    [" #SBATCH -o x", "# SBATCH -o x", "##SBATCH -o x", "#SBATCH -J a #-o x", "#sbatch -o x"],
)
def test_what_only_looks_like_a_directive_names_nothing(line: str) -> None:
    assert (
        SlurmLogs().files(past("sbatch run.sh"), script(line)).stdout == "/home/alice/slurm-30.out"
    )


def test_a_name_with_blanks_on_the_command_line_is_no_script() -> None:
    line = "sbatch -J we ird name -o out run.sh"
    assert SlurmLogs().files(past(line, jobname="we ird name"), None).stdout == "/home/alice/out"


def test_a_wrapped_command_s_options_are_its_own() -> None:
    wrapped = Script(
        "#!/bin/sh\n# This script was created by sbatch --wrap.\n\ngcc -o x y.c\n", KEPT
    )
    line = "sbatch --wrap gcc -o x y.c --output=out"
    assert SlurmLogs().files(past(line), wrapped).stdout == "/home/alice/out"


def test_without_script_and_command_line_the_default_is_a_guess() -> None:
    files = SlurmLogs().files(past(""), None)
    assert files.stdout == "/home/alice/slurm-30.out"
    assert (
        "the script and the command line, which may set another path, are no longer available"
        in files.note
    )


def test_a_task_of_the_past_has_the_array_s_default() -> None:
    detail = past("sbatch --array=1-3 run.sh", {"JobIDRaw": "31"}, jobid="30_2")
    assert SlurmLogs().files(detail, script()).stdout == "/home/alice/slurm-30_2.out"


def test_the_first_node_gives_its_name() -> None:
    assert (
        SlurmLogs().files(past("sbatch -o %N run.sh", nodelist="n[07-09]"), None).stdout
        == "/home/alice/n07"
    )


def test_newer_releases_keep_the_patterns_in_the_accounting() -> None:
    detail = past(
        "sbatch run.sh",
        {"StdOut": "out_%x_%b", "StdErr": "/scratch/%4j"},
        jobid="30_12",
        jobname="train",
    )
    assert not SlurmLogs().needs_script(detail)
    assert SlurmLogs().files(detail, None) == LogFiles("/home/alice/out_train_2", "/scratch/0030")


@for_each(
    ("line", "file"),
    [
        ("sbatch run.sh 1 2", "/home/alice/run.sh"),
        ("sbatch -t 5 --hold jobs/run.sh", "/home/alice/jobs/run.sh"),
        ("sbatch /srv/run.sh", "/srv/run.sh"),
        ("sbatch -D /tmp run.sh", None),
        ("sbatch -D /tmp /srv/run.sh", "/srv/run.sh"),
        ("sbatch --wrap sleep 5", None),
        ("sbatch -t 5", None),
        ("srun sleep 5", None),
        ("", None),
    ],
)
def test_the_file_that_was_submitted_is_on_the_command_line(line: str, file: str | None) -> None:
    assert submitted_file(past(line)) == file


@for_each(
    ("command", "file"),
    [("/home/alice/run.sh a b", "/home/alice/run.sh"), ("(null)", None), ("run.sh", None)],
)
def test_the_file_that_was_submitted_is_scontrol_s_command(command: str, file: str | None) -> None:
    assert submitted_file(held({"Command": command})) == file
