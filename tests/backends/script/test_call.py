"""[call]: what the table may say, what it makes of a script and of files, and that a form and a
rewriting keep it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpcdash.backends.pbs.script import signal_timer
from hpcdash.backends.script.body import Place
from hpcdash.backends.script.call import call_files, format_result_path
from hpcdash.backends.script.folder import LIBRARY_NAME
from hpcdash.config.request import RequestProblems, read_request, request_text
from hpcdash.domain.array_tasks import parse_tasks
from hpcdash.domain.request import Call, Container, EarlySignal, Request, Runtime
from hpcdash.errors import UsageError
from hpcdash.job.pickles import read_packed, unpacked
from hpcdash.job.zip import job_zip
from hpcdash.services.submit.form import parse_draft, read_form
from tests.support.records import for_each
from tests.support.scripts import Scheduler, batch_script

PLACE = Place("1a2b", "/jobs/x-1a2b")
FULL = """\
[call]
function = "lab.train:Trainer.fit"
args = [1, "it's", [2.5, true], 2026-11-21T08:00:00Z]
kwargs = { lr = 0.001, "odd key" = { deep = [] } }
items = [{ lr = 0.1 }, 7, [1, 2]]
python = "/opt/env/bin/python"
sys_path = ["/home/me/my code"]
source = "/home/me/project"
callbacks = ["lab.told:Told"]
"""


def problems(text: str) -> list[tuple[int | None, str, str]]:
    with pytest.raises(RequestProblems) as raised:
        read_request(text)
    return [(one.line, one.key, one.message) for one in raised.value.problems]


def command(scheduler: Scheduler = Scheduler.SLURM, place: Place = PLACE, **fields: Any) -> str:
    """The bash that a node is given."""
    text = batch_script(scheduler, Request(**{"call": Call("m", "f"), **fields}), place).text
    return text.partition("<< 'END_OF_COMMAND'\n")[2].partition("\nEND_OF_COMMAND")[0]


def test_a_full_table_is_read_with_a_task_for_each_item() -> None:
    request = read_request(FULL)
    call = request.call
    assert call is not None
    assert (call.module, call.function, call.package) == (
        "lab.train",
        "Trainer.fit",
        "/home/me/project",
    )
    assert str(request.array) == "0-2"
    assert call.items == ({"lr": 0.1}, 7, [1, 2])
    assert "array" not in request.said


def test_its_files_hold_the_values_as_they_were_written() -> None:
    call = read_request(FULL).call
    assert call is not None
    held = [unpacked(content) for content in call_files(call).values()]
    assert held == [list(call.args), call.kwargs, list(call.items)]
    assert call_files(Call("m", "f")) == {}


@for_each(
    ("function", "said"),
    [
        ("train.py", 'use for example "train:main"'),
        ("lab.train", 'use for example "lab:train"'),
        ("train.py:main", "is a file"),
        ("lab/train:main", "is a file"),
        ("train:", '"" is not a valid Python name'),
        ("train:a b", '"a b" is not a valid Python name'),
        ("__main__:f", "move the function into a module"),
    ],
)
def test_what_is_no_function_is_told_with_what_to_write(function: str, said: str) -> None:
    ((line, key, words),) = problems(f'[call]\nfunction = "{function}"')
    assert (line, key) == (2, "call.function")
    assert said in words


@for_each(
    ("text", "line", "key", "said"),
    [
        ('command = "a"\n[call]\nfunction = "m:f"', 2, "call", "the command is also given"),
        ('script = "a"\n[call]\nfunction = "m:f"', 2, "call", "the script is also given"),
        (
            '[call]\nfunction = "m:f"\nwheel = "/w"\nsource = "/s"',
            4,
            "call.source",
            "a wheel is also given",
        ),
        (
            'array = "1-2"\n[call]\nfunction = "m:f"\nitems = [1, 2]',
            1,
            "array",
            "1-2 is not within 0-1",
        ),
        ('[call]\nfunction = "m:f"\nitems = []', 3, "call.items", "not 0"),
        ('[call]\nfunction = "m:f"\nargs = "x"', 3, "call.args", "expected an array"),
        ('[call]\nfunction = "m:f"\nkwargs = [1]', 3, "call.kwargs", "expected a table"),
        ('[call]\nfunction = "m:f"\nwheel = "~/w.whl"', 3, "call.wheel", "use the full path"),
        ('[call]\nfunctoin = "m:f"', 2, "call.functoin", 'did you mean "function"?'),
        (
            '[call]\nfunction = "m:f"\n[environment]\nPY_EXEC = "p"',
            4,
            "environment.PY_EXEC",
            "set python in [call] instead",
        ),
        ('command = "a"\nkwargs = { }', 2, "kwargs", "it belongs in [call]"),
    ],
)
def test_what_does_not_go_together_is_told_with_line_and_key(
    text: str, line: int, key: str, said: str
) -> None:
    told = {(at, of): words for at, of, words in problems(text)}
    assert said in told[line, key]


def test_an_array_may_be_part_of_the_items_and_throttled() -> None:
    read = read_request('array = "1,2%1"\n[call]\nfunction = "m:f"\nitems = [1, 2, 3]')
    assert str(read.array) == "1,2%1"


def test_it_is_the_same_after_it_was_rewritten_or_was_in_the_form() -> None:
    request = read_request(f'name = "a"\n{FULL}')
    rewritten = request_text(request)
    assert "array" not in rewritten
    assert read_request(rewritten) == request
    assert read_form(parse_draft(FULL)).request == read_request(FULL)
    typed = read_form(parse_draft(f'command = "a"\n{FULL}'))
    assert "use command or call" in typed.problems[""]


@for_each(
    ("fields", "said"),
    [
        ({"job_library": False}, "job_library: "),
        (
            {"call": Call("m", "f", wheel="/w"), "container": Container(Runtime.PODMAN, "i")},
            "call: a wheel or source is installed",
        ),
        (
            {"call": Call("m", "f", items=(1, 2)), "array": parse_tasks("2")},
            "array: 2 is not within 0-1",
        ),
        ({"place": Place("1a2b")}, "call: the launch folder for its arguments"),
    ],
)
def test_what_cannot_be_started_so_is_refused_by_its_field(
    fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError) as raised:
        command(**fields)
    assert raised.value.message.startswith(said)
    assert raised.value.next_step


def test_each_task_of_an_array_writes_a_result_of_its_own_without_items_too() -> None:
    array = parse_tasks("3-4")
    assert '--output-file=/jobs/x-1a2b/result-"$SLURM_ARRAY_TASK_ID".pkl' in command(array=array)
    assert "--array-index" not in command(array=array)
    assert '--stdout-path="/jobs/x-1a2b/job.$PBS_ARRAY_INDEX.out"' in command(
        Scheduler.PBS, array=array
    )
    said = format_result_path(Request(call=Call("m", "f"), array=array), "/jobs")
    assert said == (
        "the result of m:f will be in /jobs/result-N.pkl of task N, or the traceback in "
        "result-N.pkl.error"
    )


def test_in_a_container_its_python_is_that_of_the_image_and_its_folders_are_there() -> None:
    container = Container(Runtime.APPTAINER, "/i.sif", ("/data:/code",))
    call = Call("m", "f", python="/opt/conda/bin/python", sys_path=("/home/me/code", "/code"))
    request = Request(call=call, container=container, work_dir="/home/me/run")
    text = batch_script(Scheduler.SLURM, request, PLACE).text
    assert "\n/opt/conda/bin/python -m hpcdash.job.runner --module=m --function=f \\\n" in text
    assert "--sys-path=/home/me/run" in text
    assert "--bind /home/me/code " in text
    # /code is what the person bound there, not a folder of the node.
    assert "--bind /code " not in text


@pytest.mark.system
def test_on_two_hosts_of_pbs_each_writes_its_own_result(tmp_path: Path) -> None:
    folder = tmp_path / "jobs"
    folder.mkdir()
    (tmp_path / "mine.py").write_text(
        "import os\ndef f(n):\n    return n, os.environ['NODE_RANK']\n"
    )
    (tmp_path / "pbs_tmrsh").write_text(
        '#!/bin/sh\nshift\nexec env -i PATH="$PATH" HOME="$HOME" "$@"\n'
    )
    (tmp_path / "pbs_tmrsh").chmod(0o755)
    (tmp_path / "nodes").write_text("a\nb\n")
    call = Call("mine", "f", items=("x", "y"), python=sys.executable)
    request = Request(
        call=call, slots=2, slots_per_node=1, work_dir=str(tmp_path), array=parse_tasks("0-1")
    )
    for name, content in {**call_files(call), LIBRARY_NAME: job_zip()}.items():
        (folder / name).write_bytes(content)
    script = batch_script(Scheduler.PBS, request, Place("1a2b", str(folder))).text
    path = f"{tmp_path}:/usr/bin:/bin"
    variables = {
        "PATH": path,
        "HOME": str(tmp_path),
        "PBS_JOBID": "7[1]",
        "PBS_ARRAY_INDEX": "1",
        "PBS_NODEFILE": f"{tmp_path}/nodes",
    }
    done = subprocess.run(["bash", "-c", script], env=variables, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    found = {path.name: read_packed(str(path)) for path in folder.glob("result*")}
    assert found == {"result-1.pkl": ("y", "0"), "result-1.pkl.1": ("y", "1")}


@pytest.mark.system
@pytest.mark.parametrize("finish", ["hpcdash_finish() { echo finished; }\n", ""])
def test_the_timer_of_a_signal_leaves_the_venv_its_end(finish: str) -> None:
    # bash keeps one such trap: the last.
    script = (
        f"{finish}trap hpcdash_finish EXIT\n{signal_timer(EarlySignal('USR1', 60), 600)}exit 3\n"
    )
    ended = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (3, "finished\n" if finish else "")
