"""`hpcdash submit`, `script`, `cancel` and their like on a login node of a PBS: what is said, and
what PBS is asked.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.pbs import StandIns
from tests.support.program import Program, home_with

SCRIPT = b"#!/bin/bash\n#PBS -l walltime=60 -v A=1\nsleep 1 # \xff\n"
LIVE_LOG = "the output stays on the execution host until the job ends; use -k oed to read the output while the job runs"


@pytest.fixture
def stand_ins(tmp_path: Path) -> StandIns:
    return StandIns.install(tmp_path / "pbs", "everyday")


@pytest.fixture
def program(tmp_path: Path, stand_ins: StandIns) -> Program:
    variables = {"PATH": f"{stand_ins.path}:/usr/bin:/bin", "PBS_CONF_FILE": "/dev/null"}
    return Program(home_with(tmp_path / "home"), ("--local", "--backend", "pbs"), variables)


@pytest.fixture
def script(tmp_path: Path) -> str:
    file = tmp_path / "run a.sh"
    file.write_bytes(SCRIPT)
    return str(file)


@pytest.fixture
def request_file(tmp_path: Path) -> str:
    file = tmp_path / "train.toml"
    file.write_text(
        f'command = "train"\nslots = 4\nqueue = "gpu"\nsite.storage_root = "{tmp_path}/launches"\n'
    )
    return str(file)


def marked(words: list[str]) -> list[str]:
    """qsub's words with our mark as the tests know it."""
    return [
        f"HPCDASH_MARK=…{word[31:]}" if word.startswith("HPCDASH_MARK=hpcdash:") else word
        for word in words
    ]


def test_the_id_is_printed_and_the_command_and_advice_are_said_beside_it(
    program: Program, stand_ins: StandIns, script: str
) -> None:
    done = program("submit", script, "--", "-q", "gpu")
    assert (done.status, done.text) == (0, "35.pbs01\n")
    assert f"hpcdash: {LIVE_LOG}\n" in done.stderr
    assert "hpcdash: the job is named run_a.sh: PBS limits the characters" in done.stderr
    assert "submit on local: qsub -f -q gpu -N run_a.sh -v HPCDASH_MARK=hpcdash:" in done.stderr
    [called] = stand_ins.calls("qsub")
    assert marked(called) == [
        "qsub",
        "-f",
        "-q",
        "gpu",
        "-N",
        "run_a.sh",
        "-v",
        "HPCDASH_MARK=…,A=1",
    ]


def test_an_array_has_its_id_in_full(program: Program, script: str) -> None:
    assert program("submit", script, "--array", "1-3", "--", "-k", "oed").text == "35[].pbs01\n"
    assert program("script", "35[2]").stdout == SCRIPT


def test_a_dry_run_submits_and_keeps_nothing(
    program: Program, stand_ins: StandIns, script: str
) -> None:
    done = program("submit", script, "--dry-run", "--after", "12", "--hold")
    assert done.text.startswith(
        "qsub -f -W 'depend=afterany:12[].pbs01' -h -N run_a.sh -v HPCDASH_MARK=hpcdash:"
    )
    assert stand_ins.calls("qsub") == []
    assert not list(program.home.rglob("scripts"))


@pytest.mark.parametrize(
    ("typed", "named"),
    [
        ("12", "12[].pbs01"),
        ("12[]", "12[].pbs01"),
        ("9,12", "9.pbs01:12[].pbs01"),
        ("20", "20.pbs01"),
        ("999", "999"),
    ],
)
def test_a_job_to_wait_for_is_named_as_pbs_names_it(
    program: Program, script: str, typed: str, named: str
) -> None:
    """PBS takes 12 for a job it does not know where that is the array 12[], and ends what waits for
    it at once.
    """
    told = program("submit", script, "--dry-run", "--after", typed).text
    assert f"depend=afterany:{named}" in told.replace("'", "").split()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--after", "12[3]"), "PBS jobs cannot depend on a single array task"),
        (("--array", "1-3,7"), "Submit these separately: 1-3, 7."),
        (("--", "-I"), "needs a terminal"),
        (("--", "--", "first"), "-v NAME=VALUE"),
        (("--", "--foo"), "--foo is not a qsub option"),
    ],
)
def test_what_pbs_cannot_do_is_refused_before_it_is_asked(
    program: Program, stand_ins: StandIns, script: str, words: tuple[str, ...], told: str
) -> None:
    assert told in program("submit", script, *words).refused(2)
    assert stand_ins.calls("qsub") == []


@pytest.mark.parametrize("asked", ["35", "35.pbs01"])
def test_a_script_that_was_submitted_from_here_is_shown_byte_by_byte(
    program: Program, script: str, asked: str
) -> None:
    program("submit", script)
    shown = program("script", asked)
    assert (shown.status, shown.stdout, shown.stderr) == (0, SCRIPT, "")


def test_its_directives_are_explained(program: Program, script: str) -> None:
    program("submit", script)
    explained = program("script", "35", "--explain").stdout.split(b"\n")
    assert explained[1:3] == [b"#PBS -l walltime=60 -v A=1", b"#   ^ time limit 1 min; sets A"]


def test_two_kept_scripts_are_compared(program: Program, script: str) -> None:
    program("submit", script)
    Path(script).write_bytes(SCRIPT.replace(b"walltime=60", b"walltime=90"))
    program("submit", script)
    difference = program("script", "36", "--diff", "35").stdout.split(b"\n")
    assert difference[:2] == [b"--- job 35", b"+++ job 36"]
    assert b"-#PBS -l walltime=60 -v A=1" in difference
    assert b"+#PBS -l walltime=90 -v A=1" in difference


def test_of_another_job_it_is_said_that_pbs_gives_no_script_back(program: Program) -> None:
    refused = program("script", "2").refused(1)
    assert "PBS does not return scripts, not even to a job's owner" in refused
    assert "submitted from /home/alice/work/sleep.sh" in refused


def test_where_nothing_can_be_kept_the_job_is_submitted_and_that_is_said(
    program: Program, script: str
) -> None:
    """Its folder cannot be made: a file is in the way."""
    state = program.home / "state" / "hpcdash"
    state.mkdir(parents=True)
    (state / "scripts").write_bytes(b"")
    done = program("submit", script)
    assert (done.status, done.text) == (0, "35.pbs01\n")
    assert "hpcdash: the script could not be saved: " in done.stderr


@pytest.mark.parametrize("content", [b"hostname\n", b"#PBS -l walltime=60\nsleep 1\n"])
def test_a_script_without_an_interpreter_is_the_login_shell_s(
    program: Program, stand_ins: StandIns, tmp_path: Path, content: bytes
) -> None:
    file = tmp_path / "plain.sh"
    file.write_bytes(content)
    done = program("submit", str(file), "--", "-k", "oed")
    assert (done.status, done.text) == (0, "35.pbs01\n")
    assert (
        "hpcdash: line 1: the first line is not #!: your login shell will run the script. Start it"
        in done.stderr
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the script is empty"),
        (b"\x7fELF\0\0", "the script contains NUL bytes"),
        (b"\xef\xbb\xbf#!/bin/sh\n", "byte-order mark"),
        (b"hostname\r\n", "CRLF"),
    ],
)
def test_what_no_shell_could_run_is_refused(
    program: Program, stand_ins: StandIns, tmp_path: Path, content: bytes, words: str
) -> None:
    file = tmp_path / "odd.sh"
    file.write_bytes(content)
    assert words in program("submit", str(file)).refused(2)
    assert stand_ins.calls("qsub") == []


def test_a_server_that_is_down_is_no_refusal(
    program: Program, stand_ins: StandIns, script: str, request_file: str
) -> None:
    stand_ins.play("server-down")
    for file in (script, request_file):
        done = program("submit", file)
        assert (done.status, done.text) == (3, "")
        assert "cannot connect to server pbs01" in done.stderr


# -- requests

TOLD = "has GPUs is not told"


def with_attribute(
    stand_ins: StandIns, attribute: str, *, file: str = "queues", name: str = "gpu"
) -> None:
    """Say more of a queue, or of the server."""
    listed = stand_ins.folder / "scene" / f"{file}.dsv"
    lines = listed.read_text().splitlines(keepends=True)
    head = ("Server: pbs01" if file == "server" else f"Queue: {name}") + "@@"
    listed.write_text("".join(line.replace(head, f"{head}{attribute}@@", 1) for line in lines))


def test_gpus_come_with_their_node_s_share_of_cpus_and_logs_are_written_at_once(
    program: Program, request_file: str
) -> None:
    done = program("submit", request_file, "--dry-run")
    assert "\n#PBS -l select=4:ngpus=1:ncpus=8\n" in done.text
    assert "\n#PBS -k oed\n" in done.text
    assert "hpcdash: 8 CPUs per GPU, a node's share; cpus_per_gpu overrides it\n" in done.stderr
    assert LIVE_LOG not in done.stderr
    assert TOLD not in done.stderr


@pytest.mark.parametrize(
    ("attribute", "file", "select", "words"),
    [
        (
            "default_chunk.ncpus=12",
            "queues",
            "4:ngpus=1",
            "queue gpu defaults to 12 CPUs per chunk",
        ),
        (
            "resources_max.ncpus=10",
            "queues",
            "4:ngpus=1:ncpus=2",
            "the maximum that queue gpu allows",
        ),
        (
            "resources_max.ncpus=7",
            "server",
            "4:ngpus=1:ncpus=1",
            "1 CPU per GPU, the maximum that queue gpu allows",
        ),
        ("resources_max.ncpus=3", "queues", "4:ngpus=1", "no CPUs requested with the GPUs"),
        ("resources_max.ngpus=0", "queues", "4:ncpus=1", ""),
    ],
    ids=["given", "allowed", "allowed by the server", "less than one a GPU", "no GPUs"],
)
def test_what_the_queue_gives_and_allows_counts_over_the_node_s_share(
    program: Program,
    stand_ins: StandIns,
    request_file: str,
    attribute: str,
    file: str,
    select: str,
    words: str,
) -> None:
    with_attribute(stand_ins, attribute, file=file)
    done = program("submit", request_file, "--dry-run")
    assert f"\n#PBS -l select={select}\n" in done.text
    assert words in done.stderr
    assert TOLD not in done.stderr


def test_a_routing_queue_allows_what_the_queues_behind_it_do(
    program: Program, stand_ins: StandIns, request_file: str
) -> None:
    with_attribute(stand_ins, "resources_max.ncpus=8", name="workq")
    Path(request_file).write_text(Path(request_file).read_text().replace('"gpu"', '"route"'))
    assert (
        "\n#PBS -l select=4:ngpus=1:ncpus=2\n" in program("submit", request_file, "--dry-run").text
    )


def test_where_no_node_has_gpus_slots_are_cpus(
    program: Program, stand_ins: StandIns, request_file: str
) -> None:
    for name in ("nodes", "vnodes"):
        listed = stand_ins.folder / "scene" / f"{name}.dsv"
        listed.write_text(
            "".join(
                line for line in listed.read_text().splitlines(keepends=True) if "ngpus" not in line
            )
        )
    done = program("submit", request_file, "--dry-run")
    assert "\n#PBS -l select=4:ncpus=1\n" in done.text
    assert TOLD not in done.stderr


@pytest.mark.parametrize("typed", ["12", "12[]", "12.pbs01"])
def test_tasks_that_ended_are_not_counted_among_those_that_are_cancelled(
    program: Program, stand_ins: StandIns, typed: str
) -> None:
    done = program("cancel", "--yes", typed)
    assert (done.status, done.text) == (0, "12[].pbs01  cancelled\n")
    assert (
        "cancel on local: 3 jobs owned by alice (3 running)\n  7 already finished (skipped)\n"
        in done.stderr
    )
    assert stand_ins.calls("qdel") == [["qdel", "12[].pbs01"]]


def test_of_what_has_all_ended_it_is_said_how(program: Program) -> None:
    assert "hold on local: 1 job owned by alice (1 cancelled)\n" in program("hold", "24").stderr


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (("hold", "14[6]"), ["qhold", "14[6].pbs01"]),
        (("release", "14[6]"), ["qrls", "14[6].pbs01"]),
        (("hold", "14[6-8]"), ["qhold", "14[6-8].pbs01"]),
        (("hold", "14[6-10]"), ["qhold", "14[6-10].pbs01"]),
        (("alter", "14[6]", "--time", "1h"), ["qalter", "-l", "walltime=01:00:00", "14[6].pbs01"]),
        (("alter", "14[6]", "--queue", "debug"), ["qmove", "debug", "14[6].pbs01"]),
        (("alter", "14[6]", "--throttle", "2"), ["qalter", "-Wmax_run_subjobs=2", "14[6].pbs01"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_for_a_task_that_was_named_its_array_is_not_taken_but_named(
    program: Program, stand_ins: StandIns, words: tuple[str, ...], asked: list[str]
) -> None:
    refused = program(*words, "--yes")
    assert refused.status == 1
    assert stand_ins.calls(asked[0]) == [asked]
    said = "refused: Invalid request (PBS supports this only for whole arrays: use 14[].pbs01)\n"
    assert refused.text == f"{asked[-1]}  {said}"


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (("hold", "14"), ["qhold", "14[].pbs01"]),
        (("alter", "14[]", "--throttle", "2"), ["qalter", "-Wmax_run_subjobs=2", "14[].pbs01"]),
        (("cancel", "14[6]"), ["qdel", "14[6].pbs01"]),
        (("cancel", "14[3-8]"), ["qdel", "14[3-8].pbs01"]),
        (("signal", "USR1", "14[3]"), ["qsig", "-s", "USR1", "14[3].pbs01"]),
        (("signal", "USR1", "14[]"), ["qsig", "-s", "USR1", "14[].pbs01"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_was_named_is_what_is_touched(
    program: Program, stand_ins: StandIns, words: tuple[str, ...], asked: list[str]
) -> None:
    done = program(*words, "--yes")
    assert (done.status, done.text.split()[0]) == (0, asked[-1])
    assert stand_ins.calls(asked[0]) == [asked]


def test_a_signal_to_tasks_that_wait_is_answered_though_pbs_answers_for_no_range(
    program: Program,
) -> None:
    refused = program("signal", "USR1", "14[6-8]", "--yes")
    assert refused.status == 1
    assert refused.text == "14[6-8].pbs01  refused: 14[6].pbs01: Request invalid for state of job\n"
    refused = program("signal", "USR1", "14[5-6]", "--yes")
    assert refused.text == (
        "14[5-6].pbs01  refused: 14[6].pbs01: Request invalid for state of job; done for 1 of 2\n"
    )


@pytest.fixture
def lost(stand_ins: StandIns) -> StandIns:
    """A job, 177, runs on a node that is down."""
    stand_ins.play("node-failed")
    nodes = stand_ins.folder / "scene" / "nodes.dsv"
    nodes.write_bytes(nodes.read_bytes().replace(b"state=free", b"state=down", 1))
    return stand_ins


def test_a_job_on_a_node_that_is_down_is_marked(program: Program, lost: StandIns) -> None:
    (job,) = program("jobs", "--all", "--filter", "id:177", "--format", "json").json["jobs"]
    assert (job["state"], job["reason"]) == ("running", None)
    (job,) = program("jobs", "--filter", "id:177", "--format", "json").json["jobs"]
    assert (job["state"], job["reason"]) == ("running", "cn01, cn02 are down")
    assert "(cn01, cn02 are down)" in program("jobs").text
    assert "cn01, cn02 are down" in program("show", "177").text
    assert ["pbsnodes", "-F", "dsv", "cn01", "cn02"] in [
        [word for word in words if not word.startswith(("-D", "\x1e"))]
        for words in lost.calls("pbsnodes")
    ]


def test_what_cannot_be_ended_on_its_node_is_cancelled_by_force(
    program: Program, lost: StandIns
) -> None:
    refused = program("cancel", "177", "--yes")
    assert refused.status == 1
    assert refused.text.startswith(
        "177.pbs01  refused: Server could not connect to MOM (the node does not respond; "
    )
    assert "cancel --force removes it from the queue" in refused.text
    done = program("cancel", "177", "--yes", "--force")
    assert (done.status, done.text) == (0, "177.pbs01  cancelled\n")
    assert "forced: processes on nodes that do not respond keep running" in done.stderr
    assert lost.calls("qdel") == [["qdel", "177.pbs01"], ["qdel", "-W", "force", "177.pbs01"]]


def test_tasks_of_an_array_that_is_held_are_held_in_what_is_said_before(
    program: Program, stand_ins: StandIns
) -> None:
    subjobs = stand_ins.folder / "scene" / "subjobs.dsv"
    subjobs.write_bytes(subjobs.read_bytes().replace(b"Hold_Types=n", b"Hold_Types=u"))
    assert "release on local: 1 job owned by alice (1 held)" in program("release", "14[6]").stderr


def test_an_unknown_job_is_told_as_unknown_where_no_history_is_kept(
    program: Program, stand_ins: StandIns
) -> None:
    stand_ins.play("history-off")
    refused = program("cancel", "99999", "--yes")
    assert (refused.status, refused.text) == (1, "99999  refused: Unknown Job Id\n")
    assert "not in the queue: 99999" in refused.stderr
    shown = program("show", "99999").refused(1)
    assert shown.startswith("hpcdash: PBS no longer knows this job")
    assert "the job history cannot be queried: this PBS server does not keep job history" in shown


def test_what_a_filter_matches_is_listed_asked_about_and_cancelled(
    program: Program, stand_ins: StandIns
) -> None:
    refused = program("cancel", "--filter", "state:pending")
    assert (refused.status, stand_ins.calls("qdel")) == (2, [])
    assert "needs confirmation, but there is no terminal" in refused.stderr
    done = program("cancel", "--filter", "state:pending", "--yes")
    shown = program("jobs", "--filter", "state:pending", "--format", "csv").text.splitlines()[1:]
    ids = [line.partition(",")[0] for line in shown]
    assert ids
    assert stand_ins.calls("qdel") == [["qdel", *ids]]
    assert [line.split()[0] for line in done.text.splitlines()] == ids
    assert all(f"\n  {job_id}" in done.stderr for job_id in ids)


@pytest.mark.parametrize("verb", ["hold", "release"])
def test_other_verbs_ask_too_where_a_filter_chooses(
    program: Program, stand_ins: StandIns, verb: str
) -> None:
    assert program(verb, "--filter", "state:pending").status == 2
    assert stand_ins.calls("qhold") + stand_ins.calls("qrls") == []


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (
            ("cancel", "--filter", "name:nobody-has-it", "--yes"),
            1,
            "none of your jobs in the queue matches",
        ),
        (
            ("cancel", "12", "--filter", "state:pending"),
            2,
            "job IDs and --filter cannot be combined",
        ),
        (("hold",), 2, "no job specified"),
        (("hold", "12", "--all"), 2, "--all needs --filter"),
        (("cancel", "--filter", "colour:red", "--yes"), 2, "no column colour"),
    ],
    ids=["no match", "both", "neither", "all alone", "a bad filter"],
)
def test_a_filter_that_chooses_nothing_or_not_alone_changes_nothing(
    program: Program, stand_ins: StandIns, words: tuple[str, ...], status: int, said: str
) -> None:
    done = program(*words)
    assert (done.status, done.text) == (status, "")
    assert said in done.stderr
    assert stand_ins.calls("qdel") + stand_ins.calls("qhold") == []


def test_nothing_is_sent_to_cancel_what_has_ended(program: Program, stand_ins: StandIns) -> None:
    done = program("cancel", "24", "--yes")
    assert done.status == 1
    assert (
        "cancel: nothing to do; already finished: 1 job owned by alice (1 cancelled)" in done.stderr
    )
    assert stand_ins.calls("qdel") == []
