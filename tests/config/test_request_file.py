"""What REQUEST.toml may say, and what is told of one that is wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcdash.config.request import RequestProblems, read_request, request_text
from hpcdash.domain.array_tasks import ArrayTasks
from hpcdash.domain.request import (
    Container,
    EarlySignal,
    Launcher,
    Request,
    Runtime,
    Site,
    SlotType,
)
from hpcdash.errors import ConfigError
from tests.support.records import for_each

FULL = """\
name = "train llm"
kind = "exp-2-trial-2"
command = '''
set -e
\tpython train.py --lr 1e-4'''
slots = 64
slots_per_node = 8
slot_type = "rocm"
gpu_type = "mi250"
queue = "gpu"
account = "llm-2"
qos = "long"
time = "2-00:00:00"
memory = "480G"
work_dir = "/work/ada"
array = "1-10%1"
after = [4711, "4712_3", "12.server"]
hold = true
signal = "B:USR1@600"
requeue = true
kill_switch = "/work/ada/KILL"
save_switch = "/work/ada/SAVE"
exclude_nodes = ["n01", "n[05-07]"]
extra_args = ["--nice=3", "--mail-type=END"]
place = "excl:scatter"
attributes = ["umask=027"]
keep_files = "oe"
launcher = "torchrun"
project = "llm"
workspace = "lab"
labels = ["cost:a", "team b"]

[environment]
OMP_NUM_THREADS = 8
EMPTY = ""
WHERE = "/a b/$HOME"

[container]
runtime = "singularity"
image = "docker://nvcr.io/nvidia/pytorch:24.05-py3"
binds = ["/scratch", "/data:/mnt/data:ro"]
force_pull = true

[site]
tres_supported = false
gres_supported = false
job_project_source = "label:cost:"
storage_root = "/work/jobs"
name_prefix = "llm"
image_root = "/work/images"
keep = "failed"
run_as = "grace"
slot_type = "cuda"
"""


def test_every_field_of_a_full_file_is_read() -> None:
    assert read_request(FULL) == Request(
        name="train llm",
        kind="exp-2-trial-2",
        command="set -e\n\tpython train.py --lr 1e-4",
        slots=64,
        slots_per_node=8,
        slot_type=SlotType.ROCM,
        gpu_type="mi250",
        queue="gpu",
        account="llm-2",
        qos="long",
        limit_seconds=172_800,
        memory_bytes=480 * 1024**3,
        work_dir="/work/ada",
        array=ArrayTasks((range(1, 11),), throttle=1),
        after=("4711", "4712_3", "12.server"),
        hold=True,
        signal=EarlySignal("USR1", 600, batch_only=True),
        requeue=True,
        kill_switch="/work/ada/KILL",
        save_switch="/work/ada/SAVE",
        exclude_nodes=("n01", "n[05-07]"),
        extra_args=("--nice=3", "--mail-type=END"),
        place="scatter:excl",
        attributes=("umask=027",),
        keep_files="oe",
        launcher=Launcher.TORCHRUN,
        project="llm",
        workspace="lab",
        labels=("cost:a", "team b"),
        environment={"OMP_NUM_THREADS": "8", "EMPTY": "", "WHERE": "/a b/$HOME"},
        container=Container(
            Runtime.APPTAINER,
            "docker://nvcr.io/nvidia/pytorch:24.05-py3",
            ("/scratch", "/data:/mnt/data:ro"),
            force_pull=True,
        ),
        site=Site(
            False,
            False,
            "label:cost:",
            "/work/jobs",
            "llm",
            "/work/images",
            "failed",
            "grace",
            SlotType.CUDA,
        ),
    )


def test_a_file_of_one_line_is_a_request_with_all_else_as_it_is_by_default() -> None:
    assert read_request('script = "train.sh"') == Request(script="train.sh")


def test_what_the_file_does_not_say_of_the_site_is_as_the_cluster_says() -> None:
    cluster = Site(tres_supported=False, name_prefix="llm")
    read = read_request('command = "a"\n[site]\nname_prefix = "mine"', site=cluster)
    assert read.site == Site(tres_supported=False, name_prefix="mine")


def test_what_a_person_wrote_is_told_from_what_is_by_default() -> None:
    read = read_request(
        'command = "a"\ntime = "1h"\nhold = false\n[site]\nsingularity_image_root = "/images"'
    )
    assert read.said == {"command", "limit_seconds", "hold", "site.image_root"}


def test_the_folder_of_images_has_one_name_at_a_time() -> None:
    with pytest.raises(ConfigError) as raised:
        read_request(
            'command = "a"\n[site]\napptainer_image_root = "/a"\nimage_root = "/b"', "R.toml"
        )
    assert str(raised.value).startswith(
        "R.toml:4: site.image_root: apptainer_image_root is also set"
    )


def test_run_as_user_is_the_cluster_s_user() -> None:
    text = 'command = "a"\n[site]\nrun_as = "user"'
    assert read_request(text, user="ada").site.run_as == "ada"
    with pytest.raises(ConfigError, match="its configuration does not set one"):
        read_request(text)


@for_each(
    ("line", "field", "value"),
    [
        ('time = "20:00:00"', "limit_seconds", 72_000),
        ('time = "90m"', "limit_seconds", 5400),
        ('time = "30:00"', "limit_seconds", 1800),
        ('memory = "1.5T"', "memory_bytes", 3 * 1024**4 // 2),
        ('signal = "USR1@600"', "signal", EarlySignal("USR1", 600)),
        ('signal = "SIGTERM@60"', "signal", EarlySignal("TERM", 60)),
        ("slots = 0", "slots", 0),
        ("after = 12", "after", ("12",)),
        ('after = "12, 13"', "after", ("12", "13")),
        ('after = ["12", "12"]', "after", ("12",)),
        (
            'after = ["afterok:12:13_2", "14, afternotok:15"]',
            "after",
            ("afterok:12", "afterok:13_2", "14", "afternotok:15"),
        ),
        ("extra_args = []", "extra_args", ()),
        (
            'array = "1,3,5-7%2"',
            "array",
            ArrayTasks((range(1, 2), range(3, 4), range(5, 8)), throttle=2),
        ),
        ('array = "0-15:4"', "array", ArrayTasks((range(0, 16, 4),))),
        ('container = {runtime = "none"}', "container", Container(Runtime.NONE)),
        (
            'environment = {A = "x\\n\\ty", B = " ", C = -1}',
            "environment",
            {"A": "x\n\ty", "B": " ", "C": "-1"},
        ),
        ('container = {image = "a"}', "container", Container(image="a")),
    ],
)
def test_a_value_is_read(line: str, field: str, value: object) -> None:
    assert getattr(read_request(f'command = "a"\n{line}\n'), field) == value


@for_each(
    ("lines", "line", "key", "words"),
    [
        ('qeue = "gpu"', 2, "qeue", 'unknown key; did you mean "queue"?'),
        ('partition = "gpu"', 2, "partition", 'unknown key; did you mean "queue"?'),
        ('walltime = "1h"', 2, "walltime", 'unknown key; did you mean "time"?'),
        ('zzzz = "gpu"', 2, "zzzz", "unknown key"),
        ('image = "a"', 2, "image", "belongs in [container]"),
        ("[site]\ntres_suported = true", 3, "site.tres_suported", 'did you mean "tres_supported"?'),
        ('[container]\nimage = "a"\nqueue = "gpu"', 4, "container.queue", "at the top of the file"),
        ('[environment]\ntime = "1h"', 3, "environment.time", "at the top of the file"),
        ("queue = 3", 2, "queue", "expected text in quotes, not 3"),
        ('queue = ""', 2, "queue", "not an empty string"),
        ('hold = "yes"', 2, "hold", "expected true or false"),
        ("slots = -1", 2, "slots", "from 0"),
        ("slots = true", 2, "slots", "whole number"),
        ("slots = 2.5", 2, "slots", "whole number"),
        ("cpus_per_gpu = 0", 2, "cpus_per_gpu", "from 1"),
        ("slots_per_node = 0", 2, "slots_per_node", "from 1"),
        ('slot_type = "gpu"', 2, "slot_type", '"cuda", "rocm", "cpu"'),
        ('launcher = "torchrn"', 2, "launcher", 'did you mean "torchrun"?'),
        ("time = 20:00:00", 2, "time", "expected text in quotes, not a date or time"),
        ('time = "soon"', 2, "time", "'soon' is not a duration"),
        ('time = "90"', 2, "time", "no unit"),
        ("time = 90", 2, "time", "no unit"),
        ('time = "unlimited"', 2, "time", "expected a limit"),
        ('time = "0s"', 2, "time", "at least 1 second"),
        ('memory = "lots"', 2, "memory", "not an amount of memory"),
        ("memory = 64", 2, "memory", "no unit"),
        ('memory = "0K"', 2, "memory", "1M or more"),
        ('array = "10-1"', 2, "array", "empty range"),
        ('array = "1-3,..."', 2, "array", "truncated"),
        ('array = "[1-3"', 2, "array", "truncated"),
        ('array = "0-4000000,0-4000000"', 2, "array", "more than 4000001 tasks"),
        ('signal = "USR1"', 2, "signal", "use"),
        ('signal = "R:USR1@600"', 2, "signal", "use"),
        ('signal = "KILL@600"', 2, "signal", "not a signal name"),
        ('signal = "USR3@600"', 2, "signal", "not a signal name"),
        ('signal = "USR1@0"', 2, "signal", "1 to 65535"),
        ('signal = "USR1@65536"', 2, "signal", "1 to 65535"),
        ('time = "5m"\nsignal = "USR1@300"', 3, "signal", "outside the time limit of 300 s"),
        ('after = ["12", "job"]', 2, "after", "item 2: 'job' is not a job ID"),
        ('after = ","', 2, "after", "not a job ID"),
        (
            'after = ["aftr:12"]',
            2,
            "after",
            "item 1: 'aftr:12': 'aftr' is not one of afterany, afterok",
        ),
        ("after = [-3]", 2, "after", "not a job ID"),
        ("after = [-10000000000000000]", 2, "after", "'-10000000000000000' is not a job ID"),
        ('exclude_nodes = ["n[3"]', 2, "exclude_nodes", "item 1"),
        ('exclude_nodes = ["n1 n2"]', 2, "exclude_nodes", "is not a list of nodes"),
        ('exclude_nodes = "n1"', 2, "exclude_nodes", "expected an array"),
        ('extra_args = "--nice=3"', 2, "extra_args", "expected an array"),
        ('extra_args = ["--nice=3", 4]', 2, "extra_args", "item 2: expected text in quotes"),
        ('place = "scatter:pack"', 2, "place", "scatter and pack cannot be combined"),
        ('place = "exclusive"', 2, "place", "'exclusive' is not one of free, pack"),
        (
            'attributes = ["umask"]',
            2,
            "attributes",
            'item 1: "umask" is not in the form NAME=VALUE',
        ),
        ('keep_files = "oo"', 2, "keep_files", 'letters of "oed"'),
        ('keep_files = "d"', 2, "keep_files", "o or e among them"),
        ('name = "a\\nb"', 2, "name", "non-printable"),
        ('name = "a\\u001b[31m"', 2, "name", "non-printable"),
        ('work_dir = "/a\\u0000"', 2, "work_dir", "non-printable"),
        ('script = "train.sh"', 2, "script", "use command or script"),
        ("environment = 3", 2, "environment", "expected a table"),
        ('[[container]]\nimage = "a"', 2, "container", "expected a table"),
        ('slot_type = "gpu"', 2, "slot_type", 'did you mean "cuda"'),
        ('checkpoints = "c/%j"', 2, "checkpoints", '"%j" is not supported here'),
        ('checkpoints = "$SCRATCH/c"', 2, "checkpoints", "variables are not expanded"),
        ('checkpoints = "gs://bucket/c"', 2, "checkpoints", "expected a folder"),
        ('checkpoints = "~/c"', 2, "checkpoints", "use the full path"),
        ('work_dir = "~/run"', 2, "work_dir", "use the full path"),
        ('[environment]\n"1A" = "x"', 3, "environment.1A", "not a variable name"),
        ('[environment]\n"A B" = "x"', 3, 'environment."A B"', "not a variable name"),
        ("[environment]\nVERSION = 3.10", 3, "environment.VERSION", "in quotes"),
        ("[environment]\nDEBUG = true", 3, "environment.DEBUG", "in quotes"),
        ("[environment]\nA.B = 'x'", 3, "environment.A", "not a table"),
        ('[environment]\nA = "x\\u0000"', 3, "environment.A", "non-printable"),
        ("[container]\nforce_pull = true", 2, "container.image", "set an image"),
        ('[container]\nimage = "a"\nruntime = "lxc"', 4, "container.runtime", "expected"),
        ('[container]\nimage = "a"\nbinds = ["/a:b"]', 4, "container.binds", "must start with '/'"),
        ('[container]\nimage = "a"\nbinds = ["/a:/b:ro:c"]', 4, "container.binds", "not a bind"),
        ('[container]\nimage = "a"\nbinds = [":/b"]', 4, "container.binds", "not a bind"),
        ('[container]\nimage = "a"\nbinds = ["/a:/b:"]', 4, "container.binds", "not a bind"),
        ('[site]\njob_project_source = "team"', 3, "site.job_project_source", "label:PREFIX"),
        ("slots = ", 2, "", "not TOML"),
    ],
)
def test_what_is_wrong_is_told_with_its_line_and_key(
    lines: str, line: int, key: str, words: str
) -> None:
    with pytest.raises(RequestProblems) as caught:
        read_request(f'command = "a"\n{lines}\n', "my/REQUEST.toml")
    (problem,) = caught.value.problems
    assert (problem.line, problem.key) == (line, key)
    assert words in problem.message
    assert str(caught.value).startswith(f"my/REQUEST.toml:{line}: {key}")


@for_each(
    ("lines", "line", "key"),
    [
        ("requeue = true", 3, "requeue"),
        ("max_requeues = 3", 3, "max_requeues"),
        ('checkpoints = "/ck"', 3, "checkpoints"),
        ('kill_switch = "/KILL"', 3, "kill_switch"),
        ('save_switch = "/SAVE"', 3, "save_switch"),
        ('signal = "USR1@60"', 3, "signal"),
        ('share = "HIGH"', 3, "share"),
        ('pool = "lab"', 3, "pool"),
        ('files = ["."]', 3, "files"),
        ('launcher = "torchrun"', 3, "launcher"),
        ('rank_variables = "nodes"', 3, "rank_variables"),
        ("rank_logs = true", 3, "rank_logs"),
        ("job_library = true", 3, "job_library"),
        ('startup_hook = "true"', 3, "startup_hook"),
        ('node_probe = "true"', 3, "node_probe"),
        ('[site]\nnode_probe = "true"', 4, "site.node_probe"),
        ('[environment]\nA = "b"\nHF_TOKEN = "x"', 5, "environment.HF_TOKEN"),
        ('[container]\nimage = "x.sif"', 3, "container"),
    ],
)
def test_a_plain_script_refuses_what_needs_other_lines(lines: str, line: int, key: str) -> None:
    with pytest.raises(RequestProblems) as caught:
        read_request(f'command = "a"\nplain = true\n{lines}\n', "my/REQUEST.toml")
    [problem] = caught.value.problems
    assert (problem.line, problem.key) == (line, key)
    assert problem.message.startswith("cannot be combined with plain: ")
    assert str(caught.value).startswith(f"my/REQUEST.toml:{line}: {key}: cannot be combined")
    # The same request without plain.
    assert not read_request(f'command = "a"\n{lines}\n').plain


def test_a_plain_script_refuses_a_function() -> None:
    with pytest.raises(RequestProblems) as caught:
        read_request('plain = true\n[call]\nfunction = "train:main"\n')
    assert [(one.line, one.key) for one in caught.value.problems] == [(2, "call")]


def test_a_plain_script_takes_defaults_that_are_written_and_what_directives_say() -> None:
    text = """\
command = "python train.py"
plain = true
requeue = false
job_library = false
launcher = "plain"
rank_variables = "processes"
array = "1-3"
after = [7]
begin = "+2h"
labels = ["nlp"]
work_dir = "/work"
[environment]
SEED = 1
[container]
runtime = "none"
"""
    request = read_request(text)
    assert request.plain
    assert read_request(request_text(request)) == request


def test_a_file_with_nothing_to_run_is_told_so_without_a_line() -> None:
    with pytest.raises(RequestProblems, match=r"set command, script or \[call\]") as caught:
        read_request("slots = 1")
    assert [(problem.line, problem.key) for problem in caught.value.problems] == [(None, "command")]


@for_each("command", ['""', '"a\\u0000"', '"a\\u001b"', '"a\\u200bb"', "3", "[]"])
def test_a_command_that_is_no_text_a_person_could_read_is_the_one_thing_told(command: str) -> None:
    with pytest.raises(RequestProblems) as caught:
        read_request(f"command = {command}")
    assert [(problem.line, problem.key) for problem in caught.value.problems] == [(1, "command")]


def test_all_problems_of_a_file_are_told_at_once_in_its_order() -> None:
    with pytest.raises(RequestProblems) as caught:
        read_request('slots = -1\ntime = "x"\n[environment]\n"A-B" = true\n[site]\nroot = 1\n')
    told = [(problem.line, problem.key) for problem in caught.value.problems]
    assert told == [
        (1, "slots"),
        (2, "time"),
        (4, "environment.A-B"),
        (4, "environment.A-B"),
        (6, "site.root"),
        (None, "command"),
    ]
    assert "REQUEST.toml:6: site.root" in str(caught.value)
    assert "config example" not in str(caught.value)


def test_a_file_name_that_would_act_on_a_terminal_is_told_as_text() -> None:
    with pytest.raises(RequestProblems) as caught:
        read_request("", "a\x1b[31m")
    assert "\x1b" not in str(caught.value)


_KEYS = st.sampled_from(
    [line.split(" = ")[0] for line in FULL.splitlines() if " = " in line and line[0].isalpha()]
    + ["script", "environment", "container", "site", '"a b"', "x"]
)
_SCALARS = st.sampled_from(
    ['"1-10%1"', '"x"', "''", "1", "-1", "1.5", "inf", "nan", "true", "20:00:00", '"USR1@600"']
)
_TEXTS = st.text(st.characters(exclude_characters="'\r\n", exclude_categories=["Cc", "Cs"])).map(
    lambda text: f"'{text}'"
)
_VALUES = st.recursive(
    _SCALARS | _TEXTS | st.integers().map(str),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]")
        | st.dictionaries(_KEYS, inner, max_size=3).map(
            lambda table: "{" + ", ".join(f"{key} = {value}" for key, value in table.items()) + "}"
        )
    ),
    max_leaves=4,
)
_LINES = (
    st.tuples(_KEYS, _VALUES).map(" = ".join)
    | st.sampled_from(["[site]", "[container]", "[environment]", "[[site]]"])
    | st.text(max_size=12)
)


def _told(text: str) -> ConfigError | None:
    try:
        assert isinstance(read_request(text), Request)
    except ConfigError as error:
        return error
    return None


def _is_request_or_told(text: str) -> None:
    error = _told(text)
    if error is not None:
        assert error.file == "REQUEST.toml"
        assert error.line is None or 1 <= error.line <= text.count("\n") + 1


@given(
    st.lists(
        st.tuples(_KEYS, _VALUES).map(" = ".join),
        max_size=6,
        unique_by=lambda line: line.split(" ")[0],
    )
)
def test_any_toml_is_a_request_or_an_error_of_it(lines: list[str]) -> None:
    _is_request_or_told("\n".join(lines))


@given(st.lists(_LINES, max_size=6).map("\n".join))
def test_any_text_is_a_request_or_an_error_of_it(text: str) -> None:
    _is_request_or_told(text)
