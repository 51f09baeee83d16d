"""Where launches are and save, what their scripts ask for, what is remembered of them, and when
their folders go.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from hpcdash.backends.actions import Outcome
from hpcdash.backends.pbs.backend import pbs_backend
from hpcdash.backends.pbs.dialects import Dialect
from hpcdash.backends.script.folder import PROVENANCE_NAME
from hpcdash.backends.slurm.backend import BACKEND as SLURM
from hpcdash.config.settings import LaunchSettings
from hpcdash.domain.request import Container, Request, Site, SlotType
from hpcdash.domain.schema import JOBS
from hpcdash.domain.tables import Kind
from hpcdash.errors import CommandTimedOut, UsageError, without_env
from hpcdash.services.jobs.actions import Actions
from hpcdash.services.state.journal import Journal
from hpcdash.services.submit import launch_records, provenance
from hpcdash.services.submit.launch_folders import has_completed, has_failed, unfinished_ids
from hpcdash.services.submit.launch_records import LaunchedCheckpoints, LaunchRecord, LaunchRecords
from hpcdash.services.submit.launches import Launches
from hpcdash.services.submit.provenance import CodeState
from hpcdash.services.submit.submission import SubmissionPlan
from hpcdash.shell_files import shell_text
from tests.support.job_rows import job_row
from tests.support.records import for_each
from tests.support.scripted_cluster import Cluster, settled
from tests.support.scripted_transport import HISTORY, QUEUES, Command, ScriptedTransport
from tests.support.waiting import until

RECORD = LaunchRecord(
    "/jobs/one-1", "sums", "7", "one", "failed", "", 1, 1_795_242_000.0, 'command = "true"\n'
)


def asks_for_root(words: tuple[str, ...]) -> bool:
    return shell_text("services/submit/inspect_root.sh") in "".join(words[2:3])


def home(number: int = 1000, *, has_login: bool = False) -> Callable[[Command], str]:
    """What a shell says of a person's home."""

    def told(command: Command) -> str:
        return (
            f"{number}\n{command.argv[-1] or '/home/alice/hpcdash/launches'}\n"
            + "login\n" * has_login
        )

    return told


def shell(words: tuple[str, ...]) -> bool:
    asks_slurm = words == without_env(SLURM.probe.query().argv) or "sinfo" in " ".join(words)
    return words[0] == "sh" and not asks_slurm


@pytest.fixture
def transport() -> ScriptedTransport:
    """A shell there says yes to all that it is to do."""
    made = ScriptedTransport()
    made.answers = {shell: "", asks_for_root: home()}
    return made


@pytest.fixture
async def cluster(tmp_path: Path, transport: ScriptedTransport) -> Any:
    made = Cluster(tmp_path / "cache", transport=transport)
    transport.queues = [
        {"partition": "main*", "gres": "(null)", "gresused": "(null)"},
        {"partition": "gpu", "gres": "gpu:a100:4"},
    ]
    yield made
    await made.close()


@pytest.fixture
def launches(cluster: Cluster, tmp_path: Path) -> Launches:
    return Launches(cluster.store, LaunchSettings(), tmp_path / "state")


def options(script: str) -> list[str]:
    return [
        line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH ")
    ]


async def test_launches_are_below_the_home_which_is_asked_for_once_as_the_queues_are(
    launches: Launches, transport: ScriptedTransport
) -> None:
    assert [await launches.root(), await launches.root()] == ["/home/alice/hpcdash/launches"] * 2
    assert len(transport.ran(shell)) == 1
    assert transport.count(QUEUES) == 1


async def test_queues_that_are_known_are_not_asked_for(
    cluster: Cluster, launches: Launches, transport: ScriptedTransport
) -> None:
    await cluster.store.fetch(Kind.QUEUES)
    await launches.root()
    assert transport.count(QUEUES) == 1


async def test_for_root_a_storage_root_has_to_be_set(
    launches: Launches, transport: ScriptedTransport
) -> None:
    transport.answers[asks_for_root] = home(0)
    with pytest.raises(UsageError, match="storage_root"):
        await launches.root()
    launches.settings = LaunchSettings(Site(storage_root="/scratch/jobs"))
    assert await launches.root() == "/scratch/jobs"


@pytest.mark.parametrize("root", ["", "/proj/amal/launches"])
async def test_where_others_could_replace_the_folder_nothing_is_launched(
    launches: Launches, transport: ScriptedTransport, root: str
) -> None:
    answer = home()
    transport.answers[asks_for_root] = lambda command: (
        f"{answer(command)}weak members of group x may write to /proj\n"
    )
    launches.settings = LaunchSettings(Site(storage_root=root))
    with pytest.raises(
        UsageError, match="members of group x may write to /proj, so others could"
    ) as refused:
        await launches.plan(Request(command="true", name="one"))
    assert "Set storage_root to a folder below your home on the cluster" in refused.value.next_step


async def test_without_a_queue_gpus_are_asked_for_where_there_are_some(launches: Launches) -> None:
    await launches.root()
    asked = options(launches.render(Request(command="true"), uid="1", root="/jobs").text)
    assert {"--partition=gpu", "--gpus=1", "--output=/jobs/hpcdash_exp-1/%j.out"} <= set(asked)


async def test_without_gpus_the_default_queue_is_meant_and_slots_are_cpus(
    launches: Launches,
) -> None:
    await launches.root()
    on_cpus = launches.render(
        Request(command="true", slots=2, slot_type=SlotType.CPU), uid="1", root="/jobs"
    )
    assert {"--partition=main", "--ntasks=2"} <= set(options(on_cpus.text))
    in_main = launches.render(Request(command="true", queue="MAIN"), uid="1", root="/jobs")
    assert not [option for option in options(in_main.text) if "gpu" in option]
    assert (on_cpus.warnings, in_main.warnings) == ((), ())


async def test_of_a_queue_that_nobody_knows_it_is_said_what_its_slots_are_taken_for(
    launches: Launches, transport: ScriptedTransport
) -> None:
    transport.fails[QUEUES] = CommandTimedOut("no answer")
    await launches.root()
    script = launches.render(Request(command="true"), uid="1", root="/jobs")
    assert "--gpus=1" in options(script.text)
    assert script.warnings == (
        "the queue does not report GPUs: slots are assumed to be GPUs; set slot_type to change it",
    )


async def test_what_the_site_says_of_a_queue_counts_there(launches: Launches) -> None:
    launches.settings = LaunchSettings(
        queues={"GPU": {"account": "physics", "extra_args": ["--nice=1"]}}
    )
    await launches.root()
    asked = options(launches.render(Request(command="true"), uid="1", root="/jobs").text)
    assert {"--account=physics", "--nice=1", "--partition=gpu"} <= set(asked)


async def test_an_only_queue_is_not_named(launches: Launches, transport: ScriptedTransport) -> None:
    del transport.queues[1]
    await launches.root()
    asked = options(launches.render(Request(command="true"), uid="1", root="/jobs").text)
    assert not [option for option in asked if option.startswith(("--partition", "--gpus"))]


async def test_for_a_scheduler_whose_options_are_others_no_script_is_made(
    cluster: Cluster, launches: Launches
) -> None:
    cluster.store.backend = pbs_backend(Dialect.TORQUE)
    with pytest.raises(UsageError, match="Torque"):
        launches.render(Request(command="true"), uid="1", root="/jobs")


async def test_what_it_waits_for_is_on_the_command_line_too(launches: Launches) -> None:
    planned = await launches.plan(Request(command="true", name="one", after=("7", "8")))
    assert planned.plan.commands[-1].argv.count("--dependency=afterany:7:8") == 1
    assert "--dependency=afterany:7:8" in options(planned.shown)


async def test_each_plan_has_a_folder_and_a_mark_of_its_own(launches: Launches) -> None:
    plans = [await launches.plan(Request(command="true", name="one")) for _ in range(2)]
    assert len({plan.folder for plan in plans}) == 2
    assert len({plan.searches["one"].mark for plan in plans}) == 2
    stage, submit = (command.argv for command in plans[0].plan.commands)
    assert stage[-2:] == ("/home/alice/hpcdash/launches", plans[0].folder.rpartition("/")[2])
    assert submit[-1] == f"{plans[0].folder}/batch.sh"


async def test_a_plain_launch_has_its_mark_on_the_command_line_and_stages_no_library(
    launches: Launches,
) -> None:
    usual, plain = [
        await launches.plan(Request(command="true", name="one", plain=plain), 'command = "true"\n')
        for plain in (False, True)
    ]
    for planned in (usual, plain):
        search = planned.searches["one"]
        submit = planned.plan.commands[-1].argv
        assert f"--comment={search.mark}" in submit
        assert search.mark not in planned.shown
        assert submit[-1] == f"{planned.folder}/batch.sh"
        assert search.name == "one"
    assert options(plain.shown)[0] == options(usual.shown)[0]
    assert plain.shown.endswith("\n\ntrue\n")
    sent = [planned.plan.commands[0].stdin or b"" for planned in (usual, plain)]
    assert [b"hpcdash-job.zip" in archive for archive in sent] == [True, False]
    assert all(b"request.toml" in archive for archive in sent)


async def test_a_plain_launch_has_the_state_of_its_code_beside_the_script(
    launches: Launches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = CodeState("1a2b3c4d", "main", b"")
    monkeypatch.setattr(provenance, "find_code_state", lambda folder: state)
    planned = await launches.plan(Request(command="true", plain=True), base=tmp_path)
    assert planned.code_state == state.summary
    assert state.summary not in planned.shown
    assert PROVENANCE_NAME.encode() in (planned.plan.commands[0].stdin or b"")


@pytest.mark.parametrize(("has_login", "run_as"), [(True, ""), (False, ""), (True, "bob")])
async def test_a_container_s_image_is_fetched_with_the_login_that_is_kept_there(
    launches: Launches, transport: ScriptedTransport, has_login: bool, run_as: str
) -> None:
    transport.answers[asks_for_root] = home(has_login=has_login)
    container = Container(image="docker://nvcr.io/nvidia/cuda:12")
    site = Site(storage_root="/jobs", run_as=run_as)
    planned = await launches.plan(Request(command="true", container=container, site=site))
    assert ("source /jobs/login" in planned.shown) == (has_login and not run_as)


# -- what is remembered


async def concluded(launches: Launches, outcome: Outcome) -> tuple[SubmissionPlan, str]:
    request = Request(command="true", name="one", site=Site(keep="failed"))
    planned = await launches.plan(request, "text")
    return planned, await launches.record_outcome(planned, outcome)


async def test_a_launch_that_may_have_been_submitted_is_remembered_and_its_folder_told(
    launches: Launches,
) -> None:
    planned, said = await concluded(launches, Outcome("one", None, "not known"))
    assert said == f"files are in {planned.folder}"
    (record,) = launches.records.all()
    assert (record.job_id, record.folder, record.request) == ("", planned.folder, "text")
    assert launches.records.unsettled() == ()


async def test_a_link_that_cannot_be_planned_does_not_take_the_folder_of_the_one_before_it(
    cluster: Cluster, launches: Launches, transport: ScriptedTransport, tmp_path: Path
) -> None:
    async def plan(after: tuple[str, ...]) -> SubmissionPlan:
        if after:
            raise UsageError("no more")
        return await launches.plan(Request(command="true", name="one"))

    actions = Actions(cluster.store, Journal(tmp_path / "journal"))
    outcomes = await launches.submit_chain(plan, actions, 2)
    assert [outcome.done for outcome in outcomes] == [True, False]
    (record,) = launches.records.all()
    assert record.job_id == outcomes[0].new_job
    # Where launches are, and the folder of the first.
    assert len(transport.ran(shell)) == 2


async def test_where_nothing_can_be_noted_that_is_said(launches: Launches, tmp_path: Path) -> None:
    (tmp_path / "state").write_bytes(b"")
    _, said = await concluded(launches, Outcome("one", True, "job 7"))
    assert said.startswith("files are in /home/alice/hpcdash/launches/one-")


def test_a_launch_is_looked_after_until_its_folder_is_gone_or_stays(tmp_path: Path) -> None:
    records = LaunchRecords(tmp_path, "lab")
    others = LaunchRecords(tmp_path, "other")
    second, third = (replace(RECORD, folder=f"/jobs/{number}") for number in (2, 3))
    for record in (RECORD, second, third, replace(RECORD, folder="/jobs/4", keep="always")):
        records.launched(record)
    others.launched(replace(RECORD, folder="/jobs/5"))
    records.removed(second)
    records.stays(third, "did not complete")
    assert records.unsettled() == (RECORD,)
    assert len(records.all()) == 4


def test_of_very_many_launches_the_newest_are_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch_records, "MAX_LAUNCHES", 3)
    records = LaunchRecords(tmp_path, "lab")
    for number in range(5):
        records.launched(replace(RECORD, folder=f"/jobs/{number}"))
    assert [record.folder for record in records.all()] == ["/jobs/2", "/jobs/3", "/jobs/4"]


# -- when folders go


@for_each(
    ("states", "tasks", "completed", "failed"),
    [
        (["completed"], 1, True, False),
        (["running"], 1, False, False),
        (["failed"], 1, False, True),
        (["cancelled"], 1, False, True),
        (["gone"], 1, False, True),
        ([], 1, False, False),
        (["completed"], 2, False, False),
        (["completed", "completed"], 2, True, False),
        (["completed", "failed"], 2, False, True),
        (["completed", "failed", "pending"], 3, False, False),
        (["unknown"], 1, False, False),
    ],
)
def test_a_launch_completed_when_each_of_its_jobs_is_known_to_have(
    states: list[str], tasks: int, completed: bool, failed: bool
) -> None:
    rows = [{"state": state} for state in states]
    assert (has_completed(rows, tasks), has_failed(rows)) == (completed, failed)


async def test_where_nothing_was_launched_nothing_is_asked(
    launches: Launches, transport: ScriptedTransport
) -> None:
    assert await launches.remove_finished_folders() == ()
    assert transport.asked == []


async def test_what_is_in_the_list_still_is_not_asked_for(
    cluster: Cluster, launches: Launches, transport: ScriptedTransport
) -> None:
    launches.records.launched(RECORD)
    transport.mine = [{"jobarrayid": "7", "arrayjobid": "7"}]
    await cluster.mine()
    assert await launches.remove_finished_folders() == ()
    assert transport.count(HISTORY) == 0


async def test_one_question_tells_how_all_ended(
    cluster: Cluster, launches: Launches, transport: ScriptedTransport
) -> None:
    launches.records.launched(RECORD)
    launches.records.launched(replace(RECORD, folder="/jobs/two-2", job_id="8"))
    transport.history = [{"jobid": "7", "state": "COMPLETED"}, {"jobid": "8", "state": "FAILED"}]
    assert await launches.remove_finished_folders() == ("job 7 completed: removed /jobs/one-1",)
    assert transport.count(HISTORY) == 1
    assert [words[-4:] for words in transport.ran(shell)] == [("/jobs", "one-1", "sums", "staged")]
    assert launches.records.unsettled() == ()
    assert await launches.remove_finished_folders() == ()
    assert transport.count(HISTORY) == 1


async def test_where_nothing_is_kept_the_folder_of_what_failed_goes_too(
    launches: Launches, transport: ScriptedTransport
) -> None:
    launches.records.launched(replace(RECORD, keep="nothing"))
    transport.history = [{"jobid": "7", "state": "FAILED"}]
    assert await launches.remove_finished_folders() == ("job 7 ended: removed /jobs/one-1",)
    assert launches.records.unsettled() == ()


async def test_what_is_kept_for_some_days_goes_that_long_after_its_end(
    cluster: Cluster, launches: Launches, transport: ScriptedTransport
) -> None:
    launches.records.launched(replace(RECORD, keep="14d"))
    launches.records.launched(replace(RECORD, folder="/jobs/two-2", job_id="8", keep="14d"))
    transport.history = [{"jobid": "7", "state": "COMPLETED"}, {"jobid": "8", "state": "FAILED"}]
    assert await launches.remove_finished_folders() == ()
    # The history may forget it meanwhile.
    transport.history = []
    cluster.clock.seconds += 13 * 86400
    assert await launches.remove_finished_folders() == ()
    cluster.clock.seconds += 86400
    assert await launches.remove_finished_folders() == ("job 7 completed: removed /jobs/one-1",)
    assert [words[-4:] for words in transport.ran(shell)] == [("/jobs", "one-1", "sums", "staged")]


@pytest.mark.parametrize(
    "row",
    [{"name": "one"}, {"dependency": "afterok:7(unfulfilled)"}, {"workdir": "/jobs/one-1/sub"}],
)
async def test_a_folder_that_a_queued_job_names_waits_for_its_end(
    launches: Launches, transport: ScriptedTransport, row: dict[str, str]
) -> None:
    launches.records.launched(RECORD)
    transport.history = [{"jobid": "7", "state": "COMPLETED"}]
    transport.mine = [{"jobarrayid": "70", "arrayjobid": "70", "state": "PENDING", **row}]
    assert await launches.remove_finished_folders() == ()
    assert launches.records.unsettled() == (RECORD,)
    transport.mine = [{"jobarrayid": "70", "arrayjobid": "70", "state": "PENDING"}]
    assert await launches.remove_finished_folders() == ("job 7 completed: removed /jobs/one-1",)


async def test_a_command_that_is_called_in_a_loop_does_not_ask_each_time(
    launches: Launches, transport: ScriptedTransport
) -> None:
    launches.records.launched(RECORD)
    for _ in range(3):
        await launches.remove_finished_folders(every_seconds=3600)
    assert transport.count(HISTORY) == 1


async def test_what_nobody_knows_any_more_is_left(
    cluster: Cluster, launches: Launches, transport: ScriptedTransport
) -> None:
    launches.records.launched(RECORD)
    await launches.remove_finished_folders()
    assert launches.records.unsettled() == (RECORD,)
    cluster.clock.seconds += 2 * 86400
    await launches.remove_finished_folders()
    assert launches.records.unsettled() == ()
    assert transport.ran(shell) == []


async def test_a_history_that_fails_is_asked_another_time(
    launches: Launches, transport: ScriptedTransport
) -> None:
    launches.records.launched(RECORD)
    transport.fails[HISTORY] = CommandTimedOut("no answer")
    assert await launches.remove_finished_folders() == ()
    assert launches.records.unsettled() == (RECORD,)


@pytest.mark.parametrize("folder", ["/jobs/..", "/", "jobs/one", "/jobs/", "/."])
async def test_what_is_no_folder_of_a_launch_is_never_removed(
    launches: Launches, transport: ScriptedTransport, folder: str
) -> None:
    launches.records.launched(replace(RECORD, folder=folder))
    transport.history = [{"jobid": "7", "state": "COMPLETED"}]
    assert "remain in" in (await launches.remove_finished_folders())[0]
    assert transport.ran(shell) == []


async def test_a_job_that_leaves_the_list_is_followed_by_its_folder(
    cluster: Cluster, launches: Launches, transport: ScriptedTransport
) -> None:
    told: list[str] = []
    stop = launches.follow(told.append)
    launches.records.launched(RECORD)
    transport.mine = [{"jobarrayid": "7", "arrayjobid": "7"}]
    await cluster.mine()
    await settled(cluster)
    assert told == []
    transport.mine = []
    transport.history = [{"jobid": "7", "state": "COMPLETED"}]
    await cluster.mine()
    await until(lambda: told)
    assert told == ["job 7 completed: removed /jobs/one-1"]
    stop()


def test_the_folder_is_that_of_the_newest_launch_of_the_number_and_name_as_the_job_sees_it(
    tmp_path: Path,
) -> None:
    folders = LaunchedCheckpoints(tmp_path, "here")

    def launched(job_id: str, request: str, cluster: str = "here") -> None:
        LaunchRecords(tmp_path, cluster).launched(
            LaunchRecord("", "", job_id, "train", "", "", 1, 0.0, request)
        )

    def folder(job_id: str, name: str = "train") -> str:
        return folders.folder({**job_row(job_id, "running", work_dir="/home/ada"), "name": name})

    assert folder("7") == ""
    launched("7", 'checkpoints = "/scratch/old"')
    launched("7.server", 'checkpoints = "/scratch/50%%"')
    launched("8", 'checkpoints = "saved"')
    launched("9", 'checkpoints = "task-%a"\nwork_dir = "/scratch/run"')
    launched("10", "checkpoints = ")
    launched("11", 'command = "true"')
    launched("12", 'checkpoints = "/elsewhere"', cluster="there")
    assert (folder("7"), folder("8")) == ("/scratch/50%", "/home/ada/saved")
    assert (folder("9_3"), folder("9[4].server"), folder("9_[5-7]")) == (
        "/scratch/run/task-3",
        "/scratch/run/task-4",
        "",
    )
    assert [folder(job_id) for job_id in ("10", "11", "12", "13")] == [""] * 4
    assert folder("7", "another") == ""


def test_an_array_has_not_ended_while_one_of_its_tasks_has_not() -> None:
    rows = [
        {"id": "7_1", "array_id": "7", "state": "completed"},
        {"id": "7_2", "array_id": "7", "state": "running"},
        {"id": "8", "array_id": None, "state": "failed"},
        {"id": "9", "array_id": None, "state": None},
        {"id": "10", "array_id": None, "state": "running"},
    ]
    table = pa.Table.from_pylist([{**dict.fromkeys(JOBS.names), **row} for row in rows], JOBS)
    assert unfinished_ids(table, ["7", "8", "9", "11"]) == {"7", "9"}
