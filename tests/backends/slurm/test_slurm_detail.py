"""What scontrol says of one job, and that no name or comment speaks for it."""

from __future__ import annotations

import pyarrow as pa
import pytest

from hpcdash.backends.slurm.detail import SlurmDetail, parse_native, scontrol_id
from hpcdash.backends.slurm.jobs import parse_jobs
from hpcdash.errors import NoSuchJob, UnreadableOutput
from tests.support.records import for_each
from tests.support.slurm_text import TOKEN, answered, queue_text

SHOWN = """JobId=30 JobName={name}
   UserId=alice(1001) GroupId=alice(1001) MCS_label=N/A
   Priority=10825 Nice=0 Account=physics QOS=normal WCKey=*paper1
   JobState=RUNNING Reason=None Dependency=(null)
   RunTime=00:28:24 TimeLimit=08:00:00 TimeMin=N/A
   Partition=gpu AllocNode:Sid=localhost:984
   NumNodes=1 NumCPUs=4 NumTasks=1 CPUs/Task=4 ReqB:S:C:T=0:0:*:*
   JOB_GRES=gpu:a100:2
     Nodes=g1 CPU_IDs=0-3 Mem=4096 GRES=gpu:a100:2(IDX:0-1)
   Command=/home/alice/run it.sh --lr=0.1
   WorkDir={work_dir}
   Comment={comment}
   StdErr=/home/alice/logs/30.err
   StdIn=/dev/null
   StdOut={stdout}
   Power=
   TresPerNode=gres:gpu:a100:2
   MailUser=alice MailType=END

"""
# What Slurm 26.05 puts before the folder.
SUBMIT_LINE = "   SubmitLine=sbatch --wrap A=1 ./run --comment={comment} -J {name}"
DEFAULTS = {
    "name": "train",
    "work_dir": "/home/alice",
    "comment": "run 7",
    "stdout": "/home/alice/logs/30.out",
}
FORGERIES = [
    "JobId=99 JobState=COMPLETED",
    "a\nb",
    "a\n   UserId=root(0) GroupId=root(0) MCS_label=N/A\n   StdOut=/etc/passwd",
    "a\n\nJobId=1 JobName=other\n   StdOut=/etc/shadow\n",
    "a\n   Comment=x\n   WorkDir=/tmp\n   JobName=y",
    "a\n   StdOut=/etc/passwd\n\nJobId=1 JobName=x\n   UserId=x\n",
    "a\x1e\x1f\r\x85\u2028b StdOut=/x",
    "",
]


def row(**fields: str) -> pa.Table:
    return parse_jobs(answered(queue_text({"jobarrayid": "30", **fields})), token=TOKEN).table


def native(**texts: str) -> dict[str, str]:
    return dict(
        parse_native(answered(SHOWN.format(**{**DEFAULTS, **texts}).encode(), argv=("scontrol",)))
    )


def test_every_key_is_there_in_scontrol_s_order() -> None:
    found = native()
    assert list(found)[:5] == ["JobId", "JobName", "UserId", "GroupId", "MCS_label"]
    assert found["CPUs/Task"] == "4"
    assert found["ReqB:S:C:T"] == "0:0:*:*"
    assert found["Command"] == "/home/alice/run it.sh --lr=0.1"
    assert found["GRES"] == "gpu:a100:2(IDX:0-1)"
    assert found["Power"] == ""


def test_what_slurm_prints_of_newer_releases_is_read() -> None:
    said = SHOWN.format(**DEFAULTS).replace(
        "   StdErr=", "   Extra=a b StdErr=/x JobId=99 \n   StdErr="
    )
    said = said.replace(
        "   JOB_GRES=",
        "   ReqTRES=cpu=4,mem=4G\n   AllocTRES=cpu=4,mem=4G,gres/gpu=2\n   JOB_GRES=",
    )
    found = parse_native(answered(said.encode(), argv=("scontrol",)))
    assert found["AllocTRES"] == "cpu=4,mem=4G,gres/gpu=2"
    assert found["Extra"] == "a b StdErr=/x JobId=99"
    assert "JobId 2" not in found


def test_the_paths_join_the_row() -> None:
    job = SlurmDetail().join(row(), native()).job.to_pylist()[0]
    assert (job["stdout_path"], job["stderr_path"]) == (
        "/home/alice/logs/30.out",
        "/home/alice/logs/30.err",
    )


def test_a_command_line_is_one_text_whatever_it_holds() -> None:
    said = SHOWN.format(**DEFAULTS).replace(
        "   WorkDir=", f"{SUBMIT_LINE.format(**DEFAULTS)}\n   WorkDir="
    )
    found = parse_native(answered(said.encode(), argv=("scontrol",)))
    assert found["SubmitLine"] == "sbatch --wrap A=1 ./run --comment=run 7 -J train"
    assert "A" not in found


def test_stderr_without_a_path_goes_to_the_file_of_stdout() -> None:
    said = SHOWN.format(**DEFAULTS).replace("StdErr=/home/alice/logs/30.err", "StdErr=")
    job = (
        SlurmDetail()
        .join(row(), parse_native(answered(said.encode(), argv=("scontrol",))))
        .job.to_pylist()[0]
    )
    assert (job["stdout_path"], job["stderr_path"]) == (
        "/home/alice/logs/30.out",
        "/home/alice/logs/30.out",
    )


def test_the_path_of_a_task_that_is_not_known_yet_keeps_its_pattern() -> None:
    array = row(jobarrayid="88_[3-9]", arraytaskid="3-9")
    job = (
        SlurmDetail()
        .join(array, native(stdout="/home/alice/slurm-88_4294967294.out"))
        .job.to_pylist()[0]
    )
    assert job["stdout_path"] == "/home/alice/slurm-88_%a.out"


@for_each("text", FORGERIES)
@for_each("where", ["name", "comment"])
@for_each("submit_line", ["", SUBMIT_LINE])
def test_no_name_or_comment_speaks_for_slurm(where: str, text: str, submit_line: str) -> None:
    said = SHOWN.replace(
        "   WorkDir=", f"{submit_line}\n   WorkDir=" if submit_line else "   WorkDir="
    )
    shown = parse_native(
        answered(said.format(**{**DEFAULTS, where: text}).encode(), argv=("scontrol",))
    )
    detail = SlurmDetail().join(row(**{where: text}), shown)
    job = detail.job.to_pylist()[0]
    assert job["stdout_path"] == "/home/alice/logs/30.out"
    assert detail.native["StdOut"] == "/home/alice/logs/30.out"
    assert detail.native["UserId"] == "alice(1001)"
    assert detail.native["JobId"] == "30"
    assert detail.native["JobState"] == "RUNNING"
    assert detail.native["WorkDir"] == "/home/alice"
    assert detail.native["JobName" if where == "name" else "Comment"] == (
        text or job["comment"] or ""
    )
    assert "StdOut 2" not in detail.native


def test_a_folder_with_a_newline_is_whole() -> None:
    folder = "/home/alice/dir with\nnewline and \x1b[31m"
    detail = SlurmDetail().join(
        row(workdir=folder), native(work_dir=folder, stdout=f"{folder}/30.out")
    )
    assert detail.native["WorkDir"] == folder
    assert detail.job["stdout_path"].to_pylist() == [f"{folder}/30.out"]


def test_of_several_records_the_first_is_told() -> None:
    text = SHOWN.format(**DEFAULTS) + SHOWN.format(**{**DEFAULTS, "name": "other"}).replace(
        "JobId=30", "JobId=31"
    )
    found = parse_native(answered(text.encode()))
    assert (found["JobId"], found["JobName"]) == ("30", "train")
    assert "JobId 2" not in found


def test_the_log_of_a_component_is_the_file_of_its_leader() -> None:
    shown = SHOWN.replace("JobId=30", "JobId={number} HetJobId=30 HetJobOffset={offset}")
    text = "".join(
        shown.format(
            **{**DEFAULTS, "stdout": f"/home/alice/slurm-{number}.out"},
            number=number,
            offset=offset,
        )
        for number, offset in ((31, 1), (30, 0))
    )
    query = SlurmDetail().native("30+1")
    assert query.argv[-1] == "30"
    component = query.parse(answered(text.encode(), argv=("scontrol",)))
    assert (component["JobId"], component["HetJobOffset"]) == ("31", "1")
    detail = SlurmDetail().join(row(jobarrayid="30+1"), component)
    assert detail.job["stdout_path"].to_pylist() == ["/home/alice/slurm-30.out"]
    with pytest.raises(NoSuchJob):
        SlurmDetail().native("30+2").parse(answered(text.encode(), argv=("scontrol",)))


def test_a_job_that_is_gone_is_no_such_job() -> None:
    words = b"slurm_load_jobs error: Invalid job id specified\n"
    with pytest.raises(NoSuchJob):
        parse_native(answered(status=1, stderr=words, argv=("scontrol",)))
    with pytest.raises(NoSuchJob):
        parse_native(answered(b"\n", argv=("scontrol",)))


def test_other_text_is_no_job() -> None:
    with pytest.raises(UnreadableOutput):
        parse_native(answered(b"usage: scontrol\n", argv=("scontrol",)))


@for_each(
    ("job_id", "asked"),
    [("30", "30"), ("88_4", "88_4"), ("88_[3-10%1]", "88_3"), ("65+0", "65+0"), ("7_[1,4]", "7_1")],
)
def test_the_rest_of_an_array_is_shown_by_its_first_task(job_id: str, asked: str) -> None:
    assert scontrol_id(job_id) == asked
    assert SlurmDetail().native(job_id).argv[-1] == asked


def test_instants_of_the_native_answer_are_readable_and_durations_stay() -> None:
    native = parse_native(
        answered(b"JobId=1 JobName=a\n   RunTime=00:28:24 SubmitTime=1795088225 EndTime=Unknown\n")
    )
    assert native["SubmitTime"] == "2026-11-19T11:37:05Z"
    assert (native["RunTime"], native["EndTime"]) == ("00:28:24", "Unknown")


@for_each(
    ("native", "why"),
    [
        ({"NumNodes": "2", "Requeue": "1"}, ""),
        ({"NumNodes": "2-2", "Requeue": "1"}, ""),
        (
            {"NumNodes": "2", "OverSubscribe": "OK"},
            "other jobs may share the nodes: submit it with --exclusive",
        ),
        (
            {"NumNodes": "2", "OverSubscribe": "USER"},
            "other jobs may share the nodes: submit it with --exclusive",
        ),
        # 26.05
        ({"NumNodes": "2", "Exclusive": "NODE"}, ""),
        (
            {"NumNodes": "2", "Exclusive": "NO"},
            "other jobs may share the nodes: submit it with --exclusive",
        ),
        (
            {"NumNodes": "2", "Exclusive": "USER"},
            "other jobs may share the nodes: submit it with --exclusive",
        ),
        (
            {"NumNodes": "1-4"},
            "the job requests 1 to 4 nodes, but a task needs a fixed number (--nodes=1)",
        ),
        ({"NumNodes": "1", "ArrayJobId": "7"}, "an array or a heterogeneous job cannot be a task"),
        ({"NumNodes": "1", "HetJobId": "7"}, "an array or a heterogeneous job cannot be a task"),
        (
            {"JobId": "7", "NumNodes": "1", "Requeue": "0"},
            "submitted with --no-requeue (`scontrol update JobId=7 Requeue=1` allows it)",
        ),
    ],
)
def test_which_jobs_are_tasks_of_a_pool(native: dict[str, str], why: str) -> None:
    assert SlurmDetail().task_refusal({"OverSubscribe": "NO", **native}) == why
