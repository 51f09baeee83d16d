"""`hpcdash submit REQUEST.toml` on the embedded queue and a stand-in PBS: what is printed, awaited,
staged, removed.
"""

from __future__ import annotations

import json
import pickle
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hpcdash.backends.pbs.backend import pbs_backend
from hpcdash.backends.pbs.dialects import Dialect
from hpcdash.backends.queries import Query
from hpcdash.backends.script.folder import LIBRARY_NAME
from hpcdash.backends.slurm.backend import BACKEND as SLURM
from hpcdash.domain.units import format_memory
from hpcdash.services.state.database import StateDatabase
from hpcdash.services.state.journal import Journal
from hpcdash.services.state.recents import Recents
from hpcdash.services.submit.launch_records import LaunchRecords
from hpcdash.services.submit.submission import after_in_full
from tests.job.tiny_wheel import tiny_wheel
from tests.support.job_rows import build_table, job_row
from tests.support.pbs import StandIns
from tests.support.program import Program, home_with
from tests.support.records import for_each

REQUEST = """# remember me
name = "try"
slots = 1
slot_type = "cpu"
time = "5m"
"""


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """On an embedded queue of its own."""
    return Program(
        home_with(tmp_path / "home"),
        ("--local", "--backend", "local"),
        {"HPCDASH_QUEUE": str(tmp_path / "queue"), "HPCDASH_STATE": str(tmp_path / "state")},
    )


@pytest.fixture
def stand_ins(tmp_path: Path) -> StandIns:
    return StandIns.install(tmp_path / "pbs", "everyday")


@pytest.fixture
def on_pbs(tmp_path: Path, stand_ins: StandIns) -> Program:
    home = home_with(tmp_path / "home")
    variables = {"PATH": f"{stand_ins.path}:/usr/bin:/bin", "PBS_CONF_FILE": "/dev/null"}
    found = Program(home, ("--local", "--backend", "pbs"), variables)
    configured(found, f'storage_root = "{home}/jobs"')
    return found


def configured(program: Program, launch: str) -> None:
    program.config.parent.mkdir(parents=True, exist_ok=True)
    program.config.write_text(f"[launch]\n{launch}\n")


def request(program: Program, more: str = 'command = "echo ran"', name: str = "a.toml") -> str:
    file = program.home / name
    file.write_text(f"{more}\n{REQUEST}")
    return str(file)


def launches(program: Program) -> list[Path]:
    root = program.home / "hpcdash" / "launches"
    return sorted(one for one in root.iterdir() if one.name != ".library") if root.exists() else []


def size(folder: Path) -> str:
    return format_memory(
        sum((folder / name).stat().st_size for name in ("batch.sh", "request.toml", LIBRARY_NAME))
    )


def ended(program: Program, job: str) -> dict[str, Any]:
    """A job of the embedded queue once it has ended; looking on read-only removes no folder of
    it.
    """
    for _ in range(200):
        found: dict[str, Any] = program("show", job, "--format", "json", "--read-only").json["job"]
        if found["state"] not in ("pending", "running", "completing"):
            return found
    raise AssertionError(found)


def test_a_request_is_staged_submitted_and_found_by_its_job(program: Program) -> None:
    written = 'command = "echo ran"\nrank_logs = true'
    done = program("submit", request(program, written))
    assert (done.status, done.text) == (0, "1\n"), done
    job = ended(program, "1")
    (folder,) = launches(program)
    assert (job["state"], job["name"], job["stdout_path"]) == (
        "completed",
        "try",
        f"{folder}/1.out",
    )
    assert program("log", "1").text == "ran\n"
    assert program("log", "1", "--logs").text == "rank-0  rank 0\n"
    assert program("log", "1", "--of", "0").text == "ran\n"
    assert program("log", "1", "--of", "0", "--path").text == f"{folder}/1.rank-0.out\n"
    assert program("script", "1").stdout == (folder / "batch.sh").read_bytes()
    assert (folder / "request.toml").read_text() == f"{written}\n{REQUEST}"
    (noted,) = LaunchRecords(program.home.parent / "state", "local").all()
    assert (noted.job_id, noted.folder, noted.keep) == ("1", str(folder), "always")
    actions = program("journal", "--format", "json").json["actions"]
    assert actions[0]["verb"] == "submit"


def test_a_plain_request_hands_in_directives_and_the_command_alone(program: Program) -> None:
    done = program("submit", request(program), "--plain")
    assert (done.status, done.text) == (0, "1\n"), done
    assert "plain script: hpcdash.job is not on PYTHONPATH" in done.stderr
    job = ended(program, "1")
    (folder,) = launches(program)
    assert (job["state"], job["stdout_path"]) == ("completed", f"{folder}/1.out")
    assert program("log", "1").text == "ran\n"
    script = program("script", "1").text
    assert script == (folder / "batch.sh").read_text()
    head, command = script.split("\n\n")
    assert command == "echo ran\n"
    assert all(line.startswith("#") for line in head.splitlines())
    assert not (folder / LIBRARY_NAME).exists()
    assert "plain = true" in (folder / "request.toml").read_text()
    rendered = program("render", request(program), "--plain")
    assert rendered.text.endswith("\n\necho ran\n")
    assert "plain script: " in rendered.stderr
    written = request(program, 'plain = true\ncommand = "echo ran"')
    assert program("render", written).text.split("\n\n")[1] == "echo ran\n"


def test_a_batch_script_is_plain_already(program: Program) -> None:
    (program.home / "a.sh").write_text("#!/bin/sh\n")
    refused = program("submit", "a.sh", "--plain").refused(2)
    assert "--plain is for requests" in refused


def test_its_commands_are_said_before_they_run(program: Program) -> None:
    said = [
        line
        for line in program("submit", request(program)).stderr.splitlines()
        if "submit on local: " in line
    ]
    (folder,) = launches(program)
    assert len(said) == 2
    assert said[0] == f"submit on local: stage 3 files ({size(folder)}) in {folder}"
    assert said[1] == f"submit on local: hpcdash submit {folder}/batch.sh"


def test_a_dry_run_prints_a_script_with_the_commands_as_remarks_and_stages_nothing(
    program: Program,
) -> None:
    done = program("submit", request(program), "--dry-run")
    script, _, commands = done.text.rpartition("\n\n# stage 3 files (")
    assert script.startswith("#!/bin/bash\n")
    assert "\n#SBATCH --job-name=try\n" in script
    assert commands.count("\n# hpcdash submit ") == 1
    assert subprocess.run(["bash", "-n"], input=done.stdout, check=False).returncode == 0
    assert launches(program) == []
    assert program.rows("jobs") == []


def test_a_dry_run_with_debug_prints_what_stages_in_full(program: Program) -> None:
    assert "\n# sh -c 'umask " in program("--debug", "submit", request(program), "--dry-run").text


def test_what_was_submitted_is_among_those_that_the_form_starts_from(program: Program) -> None:
    script = program.home / "run.sh"
    script.write_bytes(b"#!/bin/sh\n#SBATCH --hold\n")
    program("submit", request(program), "--chain", "2")
    program("submit", str(script))
    program("submit", request(program, 'command = "false"'), "--dry-run")
    kept = Recents(program.home.parent / "state").recent("local")
    assert [(one.name, one.kind, one.text) for one in kept] == [
        (str(script), "script", "#!/bin/sh\n#SBATCH --hold\n"),
        ("try", "request", f'command = "echo ran"\n{REQUEST}'),
    ]
    program("cancel", "1", "2", "3", "--yes")


def test_what_the_queue_cannot_give_is_warned_of_and_left_to_the_scheduler(
    program: Program,
) -> None:
    file = request(program, 'command = "true"\nqueue = "gone"')
    said = "hpcdash: queue: no queue 'gone'. Available: local\n"
    assert said in program("submit", file, "--dry-run").stderr
    done = program("submit", file, "--chain", "2")
    assert done.stderr.count(said) == 1
    assert "submit on local: stage 3 files" in done.stderr


def test_a_dry_run_for_machines_has_script_folder_and_commands(program: Program) -> None:
    answer = program("submit", request(program), "--dry-run", "--format", "json").json
    assert (answer["job_id"], answer["done"]) == (None, None)
    assert answer["script"].startswith("#!/bin/bash\n")
    assert answer["commands"][0][0] == "sh"
    assert answer["commands"][-1][-1] == f"{answer['folder']}/batch.sh"
    assert not Path(answer["folder"]).exists()


def test_what_the_command_line_says_beats_the_request_and_is_kept_with_it(program: Program) -> None:
    first = program("submit", request(program, 'command = "true"\nhold = true')).text.strip()
    file = request(program, 'command = "true"\narray = "1-2"\nafter = ["99"]', "b.toml")
    answer = program(
        *(
            "submit",
            file,
            "--array",
            "3-5%1",
            "--after",
            first,
            "--hold",
            "--dry-run",
            "--format",
            "json",
        ),
        *("--", "--nice=3", "--comment=my own"),
    ).json
    lines = answer["script"].splitlines()
    assert {
        "#SBATCH --array=3-5%1",
        f"#SBATCH --dependency=afterany:{first}",
        "#SBATCH --hold",
        "#SBATCH --nice=3",
    } <= set(lines)
    assert not {"#SBATCH --array=1-2", "#SBATCH --dependency=afterany:99"} & set(lines)
    assert [line for line in lines if "my own" in line]
    done = program("submit", file, "--array", "7", "--hold", "--after", first)
    folder = next(
        folder for folder in launches(program) if "7" in (folder / "request.toml").read_text()
    )
    assert done.status == 0
    assert 'array = "7"' in (folder / "request.toml").read_text()
    program("cancel", first, done.text.strip(), "--yes")


def test_its_script_is_staged_from_beside_it_and_run_from_there(program: Program) -> None:
    (program.home / "code").mkdir()
    (program.home / "code" / "run it").write_bytes(b'#!/bin/sh\necho "$0"\n')
    job = program("submit", request(program, 'script = "code/run it"')).text.strip()
    assert ended(program, job)["state"] == "completed"
    (folder,) = launches(program)
    assert program("log", job).text == f"{folder}/files/run it\n"


def test_a_function_of_a_wheel_is_called_in_a_venv_of_its_own_and_its_result_is_where_it_was_said(
    program: Program,
) -> None:
    code = "import sys\ndef where(tag, n, *, job):\n    return tag, n, job.output_dir, sys.prefix\n"
    wheel = tiny_wheel(program.home, code)
    call = (
        f'[call]\nfunction = "tiny:where"\nargs = ["a"]\nkwargs = {{ n = 2 }}\nwheel = "{wheel}"\n'
    )
    file = program.home / "call.toml"
    file.write_text(f"{REQUEST}{call}")
    done = program("submit", str(file))
    (folder,) = launches(program)
    assert (
        f"the result of tiny:where will be in {folder}/result.pkl, or the traceback in"
        in done.stderr
    )
    assert ended(program, "1")["state"] == "completed", (folder / "1.err").read_text()
    *result, prefix = pickle.loads((folder / "result.pkl").read_bytes())
    assert result == ["a", 2, str(folder)]
    assert Path(prefix).parent == folder / "env"
    assert not (folder / "env").exists()


def test_a_script_that_is_not_here_is_the_cluster_s_own_and_that_is_said(program: Program) -> None:
    done = program("submit", request(program, 'script = "/no/such/run.sh"'), "--dry-run")
    assert (
        "hpcdash: /no/such/run.sh is not on this machine: using the cluster's file" in done.stderr
    )
    assert "\nbash /no/such/run.sh\n" in done.text


@for_each(
    ("more", "words", "told"),
    [
        ('command = "true"\nslotz = 1', (), 'slotz: unknown key; did you mean "slots"?'),
        ('script = "gone.sh"', (), "gone.sh does not exist"),
        ('script = "words"', (), "the first line does not begin with #!"),
        ('command = "true"', ("--", "--nodes=4"), "--nodes is not allowed in extra_args"),
        ('command = "true"', ("--", "--", "first"), "a request's script takes no arguments"),
        ('command = "true"', ("--array", "5-3"), "--array: "),
        (
            'kill_switch = "/K"\ncommand = "a"',
            ("--plain",),
            "a.toml:1: kill_switch: cannot be combined with plain",
        ),
        ('plain = true\ncommand = "a"\nrank_logs = true', (), "a.toml:3: rank_logs: cannot be"),
        ('command = "true"', ("--read-only",), "read-only"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_staged(
    program: Program, more: str, words: tuple[str, ...], told: str
) -> None:
    (program.home / "words").write_bytes(b"echo\n")
    assert told in program("submit", request(program, more), *words).refused(2)
    assert launches(program) == []


def test_a_request_that_the_queue_refuses_leaves_no_folder(program: Program) -> None:
    done = program("submit", request(program), "--", "--dependency=afterwards:1")
    assert (done.status, done.text) == (1, "")
    assert (
        "hpcdash: line 10 of the script: --dependency: 'afterwards' is not one of " in done.stderr
    )
    assert launches(program) == []


def test_links_of_a_chain_wait_for_each_other(program: Program) -> None:
    done = program("submit", request(program, 'command = "true"\nhold = true'), "--chain", "3")
    assert (done.status, done.text) == (0, "1\n2\n3\n"), done
    assert "3 jobs, one after the other: 1 2 3" in done.stderr
    found = {row["id"]: row["dependency"] for row in program.rows("jobs")}
    assert [found["1"], found["2"].count("1"), found["3"].count("2")] == [None, 1, 1]
    assert len(launches(program)) == 3
    program("cancel", "1", "2", "3", "--yes")


def test_a_task_of_a_pool_is_no_chain_and_waits_for_a_coordinator(program: Program) -> None:
    file = request(program, 'command = "true"\nshare = "HIGH"')
    assert "--chain: a shared-pool task already continues" in program(
        "submit", file, "--chain", "2"
    ).refused(2)
    done = program("submit", file)
    assert (done.status, "held until a coordinator elsewhere starts it" in done.stderr) == (
        0,
        True,
    ), done


def test_links_of_a_chain_without_a_name_have_the_same_one(program: Program) -> None:
    file = program.home / "a.toml"
    file.write_text('command = "true"\nslots = 1\nslot_type = "cpu"\nhold = true\n')
    program("submit", str(file), "--chain", "2")
    (name,) = {row["name"] for row in program.rows("jobs")}
    assert name.startswith("hpcdash_exp-")
    program("cancel", "1", "2", "--yes")


def test_a_chain_of_a_plain_script_is_told_for_machines(program: Program) -> None:
    script = program.home / "run.sh"
    script.write_bytes(b"#!/bin/sh\n#SBATCH --hold\n")
    answer = json.loads(program("submit", str(script), "--chain", "2", "--format", "json").stdout)
    assert [one["job_id"] for one in answer["jobs"]] == ["1", "2"]
    program("cancel", "1", "2", "--yes")


def test_a_dry_run_of_a_plain_script_is_told_for_machines(program: Program) -> None:
    script = program.home / "run.sh"
    script.write_bytes(b"#!/bin/sh\n")
    answer = program("submit", str(script), "--dry-run", "--format", "json").json
    assert (answer["job_id"], answer["script"], len(answer["commands"])) == (None, "#!/bin/sh\n", 1)
    shown = program(
        "submit", str(script), "--array", "1-3", "--dry-run", "--", "--nice=3", "--", "a b"
    ).text
    assert shown == "hpcdash submit run.sh --array 1-3 -- --nice=3 -- 'a b'\n"
    assert program.rows("jobs") == []


@pytest.mark.parametrize("more", [("--dry-run",), ()])
def test_a_script_is_linted_before_it_is_submitted_and_not_kept_back(
    program: Program, more: tuple[str, ...]
) -> None:
    script = program.home / "run.sh"
    script.write_text(
        "#!/bin/bash\nset -euo pipefail\n#SBATCH --gres=gpu:1\n# SBATCH --hold\necho ran\n"
    )
    done = program("submit", str(script), *more)
    assert done.status == 0
    warnings = [line for line in done.stderr.splitlines() if line.startswith("hpcdash: ")]
    assert warnings == [
        "hpcdash: line 3: ignored: ignored: after a command (line 2). Move it to the top",
        "hpcdash: line 4: ignored: there is a space after #. Remove it, or use ## instead",
    ]


def test_a_script_of_pbs_s_directives_is_linted_as_one(program: Program) -> None:
    script = program.home / "run.sh"
    script.write_text("#!/bin/bash\n#PBS -l walltime=1h\n#PBS -N own\necho ran\n")
    said = program("submit", str(script), "--dry-run").stderr
    assert "hpcdash: line 2: walltime=1h is not a time. Use hours:minutes:seconds\n" in said
    assert "#PBS lines are for PBS" not in said


def test_directives_in_a_request_s_script_are_warned_of(program: Program) -> None:
    (program.home / "run.sh").write_text("#!/bin/bash\n\n#SBATCH --gres=gpu:1\necho ran\n")
    said = program("submit", request(program, 'script = "run.sh"'), "--dry-run").stderr
    words = "script: #SBATCH lines, from line 3 on, are ignored: the request's keys replace them"
    assert f"hpcdash: {words}\n" in said


def test_what_completed_is_removed_by_whoever_looks_next_where_only_failures_are_kept(
    program: Program,
) -> None:
    configured(program, 'keep = "failed"')
    bad = program("submit", request(program, 'command = "exit 3"', "b.toml")).text.strip()
    # A submission removes what has completed too.
    go = program.home / "go"
    waits = f'command = "until [ -e {go} ]; do sleep 0.02; done"'
    well = program("submit", request(program, waits)).text.strip()
    go.touch()
    assert [ended(program, job)["state"] for job in (well, bad)] == ["completed", "failed"]
    StateDatabase(program.home.parent / "state").write(("DELETE FROM cleanups", ()))
    no_jobs = "You have no jobs. hpcdash submit submits one; --all shows everyone's.\n"
    assert program("jobs", "--read-only").stderr == no_jobs
    assert len(launches(program)) == 2
    said = program("jobs")
    (folder,) = launches(program)
    assert "exit 3" in (folder / "batch.sh").read_text()
    assert f"hpcdash: job {well} completed: removed " in said.stderr
    assert program("jobs").stderr == no_jobs


def test_on_pbs_the_script_is_handed_in_as_a_file_and_kept_here(
    on_pbs: Program, stand_ins: StandIns
) -> None:
    done = on_pbs("submit", request(on_pbs), "--after", "12")
    assert (done.status, done.text) == (0, "35.pbs01\n"), done
    (folder,) = (one for one in (on_pbs.home / "jobs").iterdir() if one.name != ".library")
    (called,) = stand_ins.calls("qsub")
    assert called[:5] == ["qsub", "-f", "-W", "depend=afterany:12[].pbs01", "-v"]
    assert called[-1] == f"{folder}/batch.sh"
    script = (folder / "batch.sh").read_bytes()
    assert b"\n#PBS -W depend=afterany:12[].pbs01\n" in script
    assert f"\n#PBS -o {folder}/job.out\n".encode() in script
    assert on_pbs("script", "35").stdout == script


def test_on_pbs_nodes_tell_whether_slots_are_gpus(on_pbs: Program) -> None:
    file = on_pbs.home / "any.toml"
    file.write_text('command = "true"\nslots = 2\n')
    done = on_pbs("submit", str(file), "--dry-run")
    assert "has GPUs is not told" not in done.stderr
    assert "ngpus=1" in done.text


def test_for_root_a_storage_root_has_to_be_set(on_pbs: Program, stand_ins: StandIns) -> None:
    on_pbs.config.unlink()
    (stand_ins.path / "id").write_text('#!/bin/sh\n[ "$1" = -u ] && echo 0 || echo alice\n')
    refused = on_pbs("submit", request(on_pbs)).refused(2)
    assert "storage_root is not set, and root's home is not shared between nodes" in refused
    (stand_ins.path / "id").write_text('#!/bin/sh\n[ "$1" = -u ] && echo 1000 || echo alice\n')
    folder = on_pbs("submit", request(on_pbs), "--dry-run", "--format", "json")
    assert json.loads(folder.stdout)["folder"].startswith(f"{on_pbs.home}/hpcdash/launches/try-")


def test_what_the_scheduler_does_not_take_is_told_with_file_line_and_key(program: Program) -> None:
    done = program(
        "submit", request(program, 'command = "true"\nextra_args = ["--nodes=3"]'), "--dry-run"
    )
    assert done.status == 2
    assert "a.toml:2: extra_args: --nodes is not allowed in extra_args" in done.stderr
    done = program("submit", request(program), "--dry-run", "--", "--nodes=3")
    assert done.stderr.startswith("hpcdash: --nodes is not allowed in extra_args")


def test_a_job_to_wait_for_that_is_no_id_is_told_before_anything_is_done(program: Program) -> None:
    done = program("submit", request(program), "--after", "12,abc")
    assert done.status == 2
    assert "--after: 'abc' is not a job ID" in done.stderr
    assert "submit on" not in done.stderr
    done = program("submit", request(program), "--after", "afterwards:1")
    assert "--after: 'afterwards:1': 'afterwards' is not one of afterany, afterok" in done.refused(
        2
    )


def test_a_dry_run_of_a_chain_says_that_it_is_the_first(program: Program) -> None:
    assert (
        "first of a chain of 3"
        in program("submit", request(program), "--chain", "3", "--dry-run").stderr
    )


def test_a_submission_that_nobody_saw_the_end_of_is_told_before_another(program: Program) -> None:
    state = Path(program.variables["HPCDASH_STATE"])
    noted = Journal(state / "journal.jsonl")
    noted.before(
        cluster="local",
        user="me",
        verb="submit",
        job_ids=("night",),
        commands=[("hpcdash", "submit", "night.sh")],
        names={"night": "night"},
    )
    noted.path.write_bytes(noted.path.read_bytes().replace(b'"host":"', b'"host":"not-'))
    done = program("submit", request(program, 'command = "true"'), "--dry-run")
    assert (
        "the outcome of submitting night is unknown; hpcdash journal --settle searches for it"
        in done.stderr
    )


def store(backend: Any, asked: list[str]) -> Any:
    async def run_query(query: Query[Any]) -> Any:
        asked.append(query.argv[-1])
        return SimpleNamespace(
            table=build_table(job_row("12[3].pbs01", _number=12) | {"array_id": "12[].pbs01"})
        )

    return cast("Any", SimpleNamespace(backend=backend, run_query=run_query))


async def test_where_an_id_is_whole_as_it_is_written_nobody_is_asked() -> None:
    asked: list[str] = []
    assert await after_in_full(store(SLURM, asked), ("12", "afterok:13")) == ("12", "afterok:13")
    assert asked == []


async def test_where_it_may_be_an_array_s_the_queue_tells() -> None:
    asked: list[str] = []
    found = await after_in_full(
        store(pbs_backend(Dialect.OPENPBS), asked), ("12", "afterok:12", "afterok:7")
    )
    assert found == ("afterany:12[].pbs01", "afterok:12[].pbs01", "afterok:7")
    assert len(asked) == 1


def test_a_template_is_submitted_with_other_values_and_a_saved_one_comes_first(
    program: Program, tmp_path: Path
) -> None:
    dry = program(
        "submit", "--template", "vscode", "--set", "time=2:00:00", "--dry-run", "--", "--nice=3"
    )
    assert dry.status == 0, dry
    assert "--time=02:00:00" in dry.text
    assert "--nice=3" in dry.text
    assert "no template 'vscod'" in program("submit", "--template", "vscod").refused(2)
    assert "has no field 'tim'" in program(
        "submit", "--template", "vscode", "--set", "tim=1h"
    ).refused(2)
    assert "--set requires --template" in program("submit", "x.sh", "--set", "a=b").refused(2)
    saved = tmp_path / "state" / "templates"
    saved.mkdir(parents=True)
    saved.parent.chmod(0o700)
    (saved / "vscode.toml").write_text(REQUEST + 'command = "echo of my own"\n')
    assert "echo of my own" in program("submit", "--template", "vscode", "--dry-run").text


def test_a_site_s_template_that_others_can_change_is_not_submitted(program: Program) -> None:
    folder = program.home / "site"
    folder.mkdir(mode=0o755)
    (folder / "lab.toml").write_text('name = "lab"\ncommand = "echo lab"\ntime = "1h"\n')
    (folder / "lab.toml").chmod(0o644)
    program.config.parent.mkdir(parents=True)
    program.config.write_text(f'[launch]\ntemplates = "{folder}"\n')
    program.config.chmod(0o600)
    assert "echo lab" in program("submit", "--template", "lab", "--dry-run").text
    (folder / "lab.toml").chmod(0o666)
    refused = program("submit", "--template", "lab", "--dry-run").refused(2)
    assert "others could change what the template" in refused
