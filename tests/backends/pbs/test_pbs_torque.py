"""A Torque 6.1 that is made up from its formats' definition is read, and acted on, as a person
expects of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pytest

from hpcdash.backends.actions import ActionRequest, Verb
from hpcdash.backends.base import Capability
from hpcdash.backends.pbs.backend import BACKEND, pbs_backend
from hpcdash.backends.pbs.dialects import Dialect
from hpcdash.backends.pbs.records import Form, read_records
from hpcdash.backends.queries import JobScope, Query
from hpcdash.backends.submissions import Submission
from hpcdash.domain import schema
from hpcdash.domain.rfc3339 import table_to_json_rows
from hpcdash.errors import NoSuchJob, UsageError
from tests.support.pbs.torque import printed
from tests.support.pbs.torque_cluster import CLOCK, JOBS, SERVER_NAME
from tests.support.pbs.torque_site import PRINTED, TorqueSite
from tests.support.records import for_each

pytestmark = pytest.mark.system
T = TypeVar("T")
WEEK_SECONDS = 604800
GIBIBYTE = 1 << 30
TORQUE = pbs_backend(Dialect.TORQUE)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> TorqueSite:
    return TorqueSite.install(tmp_path_factory.mktemp("torque") / "site")


@pytest.fixture
def fresh_site(tmp_path: Path) -> TorqueSite:
    """One that nothing was done to."""
    return TorqueSite.install(tmp_path / "site")


def ask(site: TorqueSite, query: Query[T]) -> T:
    return query.parse(site.run(query.argv))


def by_name(rows: list[dict[str, Any]], key: str = "name") -> dict[str, dict[str, Any]]:
    found = {row[key]: row for row in rows}
    assert len(found) == len(rows)
    return found


def shown(table: pa.Table, kind: pa.Schema) -> list[dict[str, Any]]:
    return table_to_json_rows(table, schema.public_names(kind))


@pytest.fixture(scope="module")
def jobs(site: TorqueSite) -> dict[str, dict[str, Any]]:
    """Everyone's jobs by their names, those that ended a short while ago too."""
    parsed = ask(site, TORQUE.queue.jobs(JobScope(ended=True)))
    assert parsed.rejected == ()
    return by_name(shown(parsed.table, schema.JOBS))


@pytest.fixture(scope="module")
def nodes(site: TorqueSite) -> dict[str, dict[str, Any]]:
    parsed = ask(site, TORQUE.queue.nodes())
    assert parsed.rejected == ()
    return by_name(shown(parsed.table, schema.NODES))


@pytest.fixture(scope="module")
def queues(site: TorqueSite) -> dict[str, dict[str, Any]]:
    parsed = ask(site, TORQUE.queue.queues())
    assert parsed.rejected == ()
    return by_name(shown(parsed.table, schema.QUEUES))


# -- what it is


def test_what_is_kept_is_what_the_definition_writes() -> None:
    assert {file.name: file.read_bytes() for file in PRINTED.iterdir()} == printed()


def test_torque_is_known_by_the_version_it_tells_on_stderr(site: TorqueSite) -> None:
    probe = ask(site, BACKEND.probe.query())
    assert (probe.dialect, probe.version, probe.user) == ("torque", "Torque 6.1.3", "maya")
    assert (probe.cluster, probe.controller_answers, probe.clock_epoch_seconds) == (
        SERVER_NAME,
        True,
        CLOCK,
    )
    torque = BACKEND.for_probe(probe)
    assert torque.title == "Torque"
    assert Capability.SIGNAL in torque.capabilities


# -- jobs


@for_each(
    ("name", "state", "native"),
    [
        ("train-resnet", "running", "R"),
        ("held-by-me", "held", "H"),
        ("after-training", "held", "H"),
        ("tonight", "pending", "W"),
        ("big", "pending", "Q"),
        ("ending", "completing", "E"),
        ("paused", "suspended", "S"),
        ("went-well", "completed", "C"),
        ("failed", "failed", "C"),
        ("deleted", "cancelled", "C"),
        ("killed", "cancelled", "C"),
        ("too-much-memory", "out_of_memory", "C"),
        ("too-slow", "timeout", "C"),
        ("too-much-cpu", "timeout", "C"),
        ("never-began", "failed", "C"),
    ],
)
def test_a_state_is_read_with_torque_s_own_exit_statuses(
    jobs: dict[str, dict[str, Any]], name: str, state: str, native: str
) -> None:
    assert (jobs[name]["state"], jobs[name]["native_state"]) == (state, native)


@for_each(
    ("name", "code", "signal"),
    [
        ("went-well", 0, 0),
        ("failed", 1, 0),
        ("deleted", 0, 15),
        ("killed", 0, 9),
        ("too-slow", None, None),
        ("never-began", None, None),
        ("train-resnet", None, None),
    ],
)
def test_an_exit_status_is_a_code_or_a_signal_or_not_the_job_s_own(
    jobs: dict[str, dict[str, Any]], name: str, code: int | None, signal: int | None
) -> None:
    assert (jobs[name]["exit_code"], jobs[name]["exit_signal"]) == (code, signal)


def test_a_running_job_on_two_nodes_has_all_its_columns(jobs: dict[str, dict[str, Any]]) -> None:
    row = jobs["train-resnet"]
    assert (row["id"], row["array_id"], row["array_task"]) == (f"1042.{SERVER_NAME}", None, None)
    assert (row["user"], row["account"], row["queue"], row["qos"]) == (
        "maya",
        "physics",
        "gpu",
        None,
    )
    # nodes=g01:ppn=4:gpus=1+g02:ppn=1:gpus=1
    assert (row["nodes"], row["cpus"], row["gpus"]) == (2, 5, 2)
    assert row["memory_bytes"] == 64 * GIBIBYTE
    assert row["node_list"] in ("g[01-02]", "g01,g02")
    assert (row["elapsed_seconds"], row["limit_seconds"]) == (6450, 86400)
    assert row["submitted_at"] == "2026-03-04T07:30:00Z"
    assert row["started_at"] == "2026-03-04T07:42:30Z"
    assert row["ends_at"] == "2026-03-05T07:42:30Z"
    assert row["work_dir"] == "/home/maya/runs"
    assert row["comment"] == "hpcdash:3f2a9c"
    assert row["priority"] == 0


def test_tasks_are_rows_of_their_array(jobs: dict[str, dict[str, Any]]) -> None:
    array = f"1043[].{SERVER_NAME}"
    tasks = {name: row for name, row in jobs.items() if row["array_id"] == array}
    assert {name: (row["id"], row["array_task"], row["state"]) for name, row in tasks.items()} == {
        "sweep-1": (f"1043[1].{SERVER_NAME}", "1", "completed"),
        "sweep-2": (f"1043[2].{SERVER_NAME}", "2", "running"),
        "sweep-3": (f"1043[3].{SERVER_NAME}", "3", "running"),
        # What the array's own limit holds (-t 1-4%2) nobody has to release.
        "sweep-4": (f"1043[4].{SERVER_NAME}", "4", "pending"),
    }
    assert {row["cpus"] for row in tasks.values()} == {2}


def test_an_ended_job_has_its_start_and_end(jobs: dict[str, dict[str, Any]]) -> None:
    row = jobs["too-slow"]
    assert row["ends_at"] == "2026-03-04T09:28:00Z"
    assert row["started_at"] == "2026-03-04T08:57:46Z"
    assert row["elapsed_seconds"] == 1814


def test_processors_asked_for_by_procs_are_counted(jobs: dict[str, dict[str, Any]]) -> None:
    assert jobs["joined"]["cpus"] == 16
    assert (jobs["big"]["nodes"], jobs["big"]["cpus"]) == (40, 320)


def test_a_job_that_waits_says_why(jobs: dict[str, dict[str, Any]]) -> None:
    assert "Not enough of the right type of nodes" in jobs["big"]["reason"]
    assert jobs["after-training"]["dependency"] == f"afterok:1042.{SERVER_NAME}"
    assert jobs["tonight"]["eligible_at"] == "2026-03-04T15:30:00Z"
    assert jobs["tonight"]["started_at"] is None


def test_what_xml_escapes_is_read_as_it_was_typed(jobs: dict[str, dict[str, Any]]) -> None:
    assert '<b>&"it\'s"' in jobs


def test_bytes_that_no_xml_may_hold_break_no_row(jobs: dict[str, dict[str, Any]]) -> None:
    assert jobs["odd-bytes"]["state"] == "pending"
    assert len(jobs) == len(JOBS)


def test_one_s_own_jobs_are_those_with_one_s_name(site: TorqueSite) -> None:
    for user in ("maya", ""):
        table = ask(site, TORQUE.queue.jobs(JobScope(user, ended=True))).table
        assert set(table["user"].to_pylist()) == {"maya"}
        assert table.num_rows == sum(job.attributes["euser"] == "maya" for job in JOBS)


def test_without_the_ended_there_is_none_that_ended(site: TorqueSite) -> None:
    table = ask(site, TORQUE.queue.jobs(JobScope())).table
    assert table.num_rows == sum(job.attributes["job_state"] != "C" for job in JOBS)
    assert "C" not in table["native_state"].to_pylist()


@pytest.mark.parametrize("job_id", ["1044", f"1044.{SERVER_NAME}"])
def test_a_job_is_found_by_its_id_with_and_without_its_server(
    site: TorqueSite, job_id: str
) -> None:
    assert ask(site, TORQUE.queue.jobs(JobScope(job_ids=(job_id,)))).table["name"].to_pylist() == [
        "held-by-me"
    ]


def test_the_history_is_what_the_server_still_shows_as_complete(site: TorqueSite) -> None:
    table = ask(site, TORQUE.history.jobs("maya", WEEK_SECONDS)).table
    assert set(table["native_state"].to_pylist()) == {"C"}
    assert table.num_rows == sum(job.attributes["job_state"] == "C" for job in JOBS)


def test_the_text_of_qstat_f_says_the_same_as_its_xml() -> None:
    wanted = sorted({key for job in JOBS for key in job.attributes})
    times = {"ctime", "etime", "mtime", "qtime", "start_time", "comp_time", "Execution_Time"}
    xml, text = (
        read_records(printed()[name], form, wanted)
        for name, form in (("qstat-x-t.xml", Form.XML), ("qstat-f-t.txt", Form.TEXT))
    )
    assert xml is not None
    assert text is not None
    assert (xml.rejected, text.rejected) == ((), ())
    for one, other in zip(xml.table.to_pylist(), text.table.to_pylist(), strict=True):
        assert {key: value for key, value in one.items() if key not in times} == {
            key: value for key, value in other.items() if key not in times
        }


# -- the page of one job


def test_the_page_of_a_job_has_everything_and_its_log_paths(site: TorqueSite) -> None:
    job_id = f"1042.{SERVER_NAME}"
    row = ask(site, TORQUE.queue.jobs(JobScope(job_ids=(job_id,)))).table
    native = ask(site, TORQUE.detail.native(job_id))
    assert native["exec_gpus"] == "g01-gpu/0+g02-gpu/1"
    assert native["Resource_List.nodes"] == "g01:ppn=4:gpus=1+g02:ppn=1:gpus=1"
    detail = TORQUE.detail.join(row, native)
    (job,) = detail.job.to_pylist()
    assert (job["stdout_path"], job["stderr_path"]) == (
        "/home/maya/runs/train-resnet.o1042",
        "/home/maya/runs/train-resnet.e1042",
    )
    # Until it ends its output lies in the spool of its first node.
    files = TORQUE.logs.files(detail, None)
    assert files.host == "g01"
    assert "g01" in files.note or "spool" in (files.stdout or "")


def test_a_job_whose_streams_are_joined_has_one_log(site: TorqueSite) -> None:
    job_id = f"1052.{SERVER_NAME}"
    row = ask(site, TORQUE.queue.jobs(JobScope(job_ids=(job_id,)))).table
    files = TORQUE.logs.files(
        TORQUE.detail.join(row, ask(site, TORQUE.detail.native(job_id))), None
    )
    assert files.stderr is None


def test_a_job_nobody_knows_is_said_so(site: TorqueSite) -> None:
    with pytest.raises(NoSuchJob):
        ask(site, TORQUE.detail.native("77"))


def test_usage_is_what_torque_counted(site: TorqueSite) -> None:
    row = ask(
        site, TORQUE.queue.jobs(JobScope(job_ids=(f"1043[2].{SERVER_NAME}",)))
    ).table.to_pylist()[0]
    query = TORQUE.detail.usage(row)
    assert query is not None
    usage = ask(site, query)
    assert usage.cpu_seconds == 2 * 3600 + 55 * 60 + 40
    assert usage.memory_peak_bytes == GIBIBYTE


# -- nodes and queues


@for_each(
    ("name", "state", "flags"),
    [
        ("g01", "mixed", []),
        ("n02", "allocated", []),
        ("n03", "drained", ["offline"]),
        ("n04", "down", []),
        ("n05", "down", ["offline"]),
        ("n06", "allocated", ["busy"]),
        ("n08", "down", ["state_unknown"]),
    ],
)
def test_a_node_s_state_is_the_worst_of_its_words(
    nodes: dict[str, dict[str, Any]], name: str, state: str, flags: list[str]
) -> None:
    assert nodes[name]["state"] == state
    assert set(flags) <= set(nodes[name]["flags"])


def test_a_node_has_its_processors_gpus_memory_and_load(nodes: dict[str, dict[str, Any]]) -> None:
    row = nodes["g01"]
    assert (row["cpus"], row["cpus_used"], row["gpus"], row["gpus_used"]) == (8, 4, 2, 1)
    assert row["gpu_type"] == "Tesla V100-SXM2-32GB"
    assert row["memory_bytes"] == 64 * GIBIBYTE
    assert (row["load"], row["jobs"], row["features"]) == (3.91, 1, ["gpu", "v100"])


def test_slots_are_counted_in_old_and_new_ways_of_writing_them(
    nodes: dict[str, dict[str, Any]],
) -> None:
    assert (nodes["n02"]["cpus_used"], nodes["n02"]["jobs"]) == (8, 3)
    assert (nodes["n07"]["cpus_used"], nodes["n07"]["jobs"]) == (2, 1)


def test_a_note_is_the_reason_with_its_commas_and_signs(nodes: dict[str, dict[str, Any]]) -> None:
    assert nodes["n03"]["reason"] == "disk swap, Tuesday (ops)"
    assert nodes["n05"]["reason"] == "no power: see <ticket> 4711 & ask"
    assert nodes["n04"]["reason"] is None


def test_queues_tell_who_is_open_who_is_default_and_how_long(
    queues: dict[str, dict[str, Any]],
) -> None:
    assert {name: row["available"] for name, row in queues.items()} == {
        "batch": True,
        "gpu": True,
        "closed": False,
        "stopped": False,
        "feed": True,
    }
    assert [name for name, row in queues.items() if row["default"]] == ["batch"]
    assert queues["gpu"]["limit_seconds"] == 48 * 3600
    assert queues["batch"]["limit_seconds"] is None
    assert (queues["batch"]["jobs_running"], queues["batch"]["jobs_pending"]) == (3, 8)


# -- acting


def acted(
    site: TorqueSite, request: ActionRequest
) -> tuple[list[list[str]], dict[str, bool | None]]:
    """The calls that an action makes, and what it tells of each job."""
    outcomes: dict[str, bool | None] = {}
    for command in TORQUE.actions.commands(request):
        outcomes.update(
            (outcome.job_id, outcome.done) for outcome in command.read(site.act(command))
        )
    return [words for words, _ in site.called], outcomes


@pytest.mark.parametrize(
    ("verb", "words"),
    [
        (Verb.CANCEL, ["qdel"]),
        (Verb.HOLD, ["qhold"]),
        (Verb.RELEASE, ["qrls"]),
        (Verb.REQUEUE, ["qrerun"]),
        (Verb.SUSPEND, ["qsig", "-s", "suspend"]),
        (Verb.RESUME, ["qsig", "-s", "resume"]),
    ],
)
def test_a_verb_is_one_command_for_all_jobs_and_those_unknown_are_told(
    fresh_site: TorqueSite, verb: Verb, words: list[str]
) -> None:
    known, unknown = f"1044.{SERVER_NAME}", f"77.{SERVER_NAME}"
    calls, outcomes = acted(fresh_site, ActionRequest(verb, (known, unknown)))
    assert calls == [[*words, known, unknown]]
    assert outcomes == {known: True, unknown: False}


def test_some_tasks_of_an_array_are_named_by_torque_s_t(fresh_site: TorqueSite) -> None:
    tasks = f"1043[2-4].{SERVER_NAME}"
    calls, outcomes = acted(fresh_site, ActionRequest(Verb.CANCEL, (tasks,)))
    assert calls == [["qdel", "-t", "2-4", f"1043[].{SERVER_NAME}"]]
    assert outcomes == {tasks: True}


def test_a_signal_and_a_longer_limit_are_asked_for(fresh_site: TorqueSite) -> None:
    job_id = f"1042.{SERVER_NAME}"
    acted(fresh_site, ActionRequest(Verb.SIGNAL, (job_id,), signal="USR1"))
    calls, _ = acted(fresh_site, ActionRequest(Verb.ALTER, (job_id,), changes={"time": "36h"}))
    assert calls == [["qsig", "-s", "USR1", job_id], ["qalter", "-l", "walltime=36:00:00", job_id]]


def test_a_script_is_handed_in_with_arguments_tasks_and_a_mark(fresh_site: TorqueSite) -> None:
    submit = TORQUE.submit.submission(
        Submission(
            b"#!/bin/sh\n#PBS -l nodes=1:ppn=2\necho $1\n",
            "train.sh",
            options=("-q", "gpu"),
            arguments=("--lr", "0.1"),
            array="1-4%2",
            after=(f"1042.{SERVER_NAME}",),
            held=True,
            mark="hpcdash:77aa",
        )
    )
    outcomes = submit.command.read(fresh_site.act(submit.command))
    ((program, *words), more) = fresh_site.called[0]
    assert (outcomes[0].done, outcomes[0].text) == (True, f"job 1053[].{SERVER_NAME}")
    assert program == "qsub"
    assert more["stdin"] == "#!/bin/sh\n#PBS -l nodes=1:ppn=2\necho $1\n"
    given = dict(zip(words, [*words[1:], ""], strict=True))
    assert (given["-q"], given["-t"], given["-F"], given["-N"]) == (
        "gpu",
        "1-4%2",
        "--lr 0.1",
        "train.sh",
    )
    assert given["-W"] == f"depend=afterany:1042.{SERVER_NAME}"
    assert "-h" in words
    assert given["-v"] == "HPCDASH_MARK=hpcdash:77aa"
    assert submit.mark == "hpcdash:77aa"


def test_what_torque_has_no_such_thing_as_is_refused_in_words() -> None:
    with pytest.raises(UsageError, match="qos"):
        TORQUE.actions.commands(ActionRequest(Verb.ALTER, ("1042",), changes={"qos": "high"}))
